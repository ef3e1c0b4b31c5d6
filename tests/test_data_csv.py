"""Tables as comma-separated text."""

import numpy as np
import pytest
import torch
from torch import nn

from remnant import Target, audit, load
from remnant.auditing import Plan
from remnant.errors import DataError, InputError


def write(tmp_path, text, name="t.csv"):
    path = tmp_path / name
    path.write_text(text, "utf-8")
    return path


def test_numbers_categories_labels_and_ids(tmp_path):
    held = load(write(tmp_path, "id,age,city,label\na,31.5,Rome,yes\nb,40,Bonn,no\nc,22,Rome,no\n"))
    assert held.features == ("age", "city=Bonn", "city=Rome")
    assert held.inputs.dtype == torch.float64
    assert held.inputs.tolist() == [[31.5, 0, 1], [40, 1, 0], [22, 0, 1]]
    assert held.labels.tolist() == [1, 0, 0]
    assert held.ids == ("a", "b", "c")
    assert held.bounds is None
    assert held.take([2]).features == held.features


@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_marks_quotes_and_a_byte_order_mark(tmp_path, mark):
    text = "\ufeff" + mark.join(["a", '"b, c"', "y"]) + "\r\n" + mark.join("127") + "\r\n"
    held = load(write(tmp_path, text))
    assert held.features == ("a", "b, c")
    assert held.inputs.tolist() == [[1, 2]]
    assert held.labels.tolist() == [7]


def test_the_last_column_is_the_label_where_none_is_called_so(tmp_path):
    held = load(write(tmp_path, "a,b,price\n1,2,0.5\n3,4,1.5\n"))
    assert held.features == ("a", "b")
    assert held.labels.tolist() == [0.5, 1.5]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1,2,3\n4,5,6\n", "column names"),
        ("a,a,y\n1,2,3\n", "different names"),
        ("a,b,y\n", "column names and records"),
        ("a,b,y\n1,,0\n", "row 2, 'b'"),
        ("a,b,y\n1,2\n", "row 2"),
        ('a,b,y\n1,"2,0\n', "comma-separated"),
        ("y\n1\n", "features beside the label"),
        ("a,y\n" + "".join(f"word{i},0\n" for i in range(101)), "call it id"),
        ("a,y\nnan,0\n", "finite"),
    ],
)
def test_what_is_no_table_is_one_clear_line(tmp_path, text, said):
    with pytest.raises(DataError, match=said) as caught:
        load(write(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_a_table_is_audited_under_its_own_names(tmp_path):
    made = np.random.default_rng(0)

    def table(name, rows, column="height"):
        lines = [f"age,{column},weight,label\n"]
        for row in made.normal(size=(rows, 3)):
            lines.append(
                ",".join([*(f"{value:.6f}" for value in row), str(int(row[0] > 0))]) + "\n"
            )
        return load(write(tmp_path, "".join(lines), name))

    truth, others = table("train.csv", 6), table("other.csv", 40)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    target = Target(model=model.double(), input_shape=(3,), bounds=None)
    plan = Plan(attacks=("kkt",), budget=5.0)
    result = audit(target, truth, holdout=others, plan=plan)
    assert result.target["features"] == ["age", "height", "weight"]
    wrong = table("wrong.csv", 40, "width")
    with pytest.raises(InputError, match="'height' at 2, got 'width'"):
        audit(target, truth, holdout=wrong, plan=plan)
