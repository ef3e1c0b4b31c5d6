"""audit.yaml: what is accepted, and one line with every fault for what is not."""

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from remnant.cli import main
from remnant.cli.spec import LIMITS, AuditSpec, Privacy, check_spec, checked, read_spec
from remnant.errors import InputError
from remnant.training import PrivateDescent
from remnant.training.private import privacy

WHOLE = {"weights": "w.pt", "data": "mnist"}


def write(tmp_path, text):
    path = tmp_path / "audit.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_paths_are_relative_to_the_spec(tmp_path):
    (tmp_path / "train.npz").write_bytes(b"")
    (tmp_path / "net.py").write_text("")
    named = "data: train.npz\nmean: train.npz\nholdout: mnist\nmodel: net.py:make"
    text = f"weights: w.pt\ninitial: /else/i.pt\n{named}"
    spec = read_spec(write(tmp_path, text))
    assert spec.weights == tmp_path / "w.pt"
    assert str(spec.initial) == "/else/i.pt"
    assert spec.data == str(tmp_path / "train.npz")
    assert spec.holdout == "mnist"
    assert spec.mean == str(tmp_path / "train.npz")
    assert spec.model == f"{tmp_path / 'net.py'}:make"


@pytest.mark.parametrize(
    ("value", "wanted"), [("90", 90), ("90s", 90), ("10m", 600), ("1.5h", 5400), (30, 30)]
)
def test_a_budget_is_a_time(value, wanted):
    assert check_spec(WHOLE | {"budget": value}, "spec").budget == wanted


def test_scaling_takes_numbers_lists_and_names():
    spec = check_spec(WHOLE | {"mean": [0.1, 0.2], "std": 0.5, "bounds": [0, 1]}, "spec")
    assert (spec.mean, spec.std, spec.bounds) == ("0.1,0.2", "0.5", (0, 1))


def test_a_shape_of_more_dimensions_than_records_have_is_refused():
    with pytest.raises(InputError, match=r"--shape: expected .* at most 8 items .* not 90"):
        checked(AuditSpec, {"shape": "x".join("1" * 90)})


def test_what_looks_like_a_date_is_a_text(tmp_path):
    assert read_spec(write(tmp_path, "weights: w.pt\ndata: 2020-01-01")).data == "2020-01-01"


def test_every_fault_is_said_at_once():
    with pytest.raises(InputError) as caught:
        check_spec({"data": 3, "seed": -1, "attacks": ["ntx"], "wieghts": "w"}, "a.yaml")
    said = str(caught.value)
    assert said.startswith("a.yaml: ")
    for part in ("weights: expected a value", "data: expected", "seed: expected", "attacks.0"):
        assert part in said
    assert "wieghts: expected one of weights, " in said
    assert said.endswith("did you mean weights?")
    assert "\n" not in said


FAULTS = {
    "empty": "",
    "a list": "- weights: w",
    "a word": "weights",
    "not yaml": "weights: [",
    "a tab": "weights:\tw\n\tdata: x",
    "python object": "weights: !!python/object/apply:os.system ['true']\ndata: x",
    "alias": "a: &a [x]\nweights: *a\ndata: mnist",
    "latin-1": b"weights: \xe9t\xe9\ndata: x",
    "utf-16": "weights: w\ndata: x".encode("utf-16"),
    "zeros": b"\0" * 100,
    "number key": "1: 2\nweights: w\ndata: x",
    "list as key": "? [a]\n: b\nweights: w\ndata: x",
    "deep": "weights: " + "[" * 5000,
    "two documents": "weights: w\n---\ndata: x",
    "nan threshold": "weights: w\ndata: x\nthreshold: .nan",
    "threshold 1": "weights: w\ndata: x\nthreshold: 1",
    "seed text": "weights: w\ndata: x\nseed: one",
    "seed huge": "weights: w\ndata: x\nseed: 99999999999999999999",
    "budget words": "weights: w\ndata: x\nbudget: soon",
    "budget 0": "weights: w\ndata: x\nbudget: 0",
    "budget inf": "weights: w\ndata: x\nbudget: .inf",
    "records 0": "weights: w\ndata: x\nrecords: 0",
    "data null": "weights: w\ndata: null",
    "data empty": "weights: w\ndata: ''",
    "settings list": "weights: w\ndata: x\nsettings: [1]",
    "settings of none": "weights: w\ndata: x\nsettings: {foo: {}}",
    "images maybe": "weights: w\ndata: x\nimages: perhaps",
    "mean true": "weights: w\ndata: x\nmean: true",
    "mean mixed": "weights: w\ndata: x\nmean: [1, a]",
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_malformed_spec_is_one_clear_line(tmp_path, name):
    with pytest.raises(InputError) as caught:
        read_spec(write(tmp_path, FAULTS[name]))
    assert "expected" in str(caught.value)
    assert len(str(caught.value)) < 2000


def test_a_huge_file_and_a_folder_are_refused(tmp_path):
    with pytest.raises(InputError, match="at most"):
        read_spec(write(tmp_path, b"#" * (LIMITS.size + 1)))
    with pytest.raises(InputError, match="a file"):
        read_spec(tmp_path)


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from([*AuditSpec.model_fields, "other"]), plain, max_size=6))
def test_any_values_give_a_spec_or_one_line(values):
    said = ""
    try:
        check_spec(values, "spec")
    except InputError as error:
        said = str(error)
    assert len(said.splitlines()) <= 1


def test_a_line_break_in_a_key_stays_in_the_line():
    with pytest.raises(InputError, match=r"privacy\.\\n: expected"):
        check_spec({"privacy": {"\n": None}}, "spec")


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_give_a_spec_or_one_line(tmp_path_factory, raw):
    path = tmp_path_factory.mktemp("spec") / "audit.yaml"
    path.write_bytes(raw)
    with pytest.raises(InputError):
        read_spec(path)


def test_a_spec_survives_its_own_json():
    spec = check_spec(WHOLE | {"attacks": ["ntk"], "settings": {"ntk": {"starts": 8}}}, "spec")
    again = check_spec(yaml.safe_load(yaml.safe_dump(spec.model_dump(mode="json"))), "spec")
    assert again == spec


def test_an_unknown_key_of_the_ledger_lists_the_ledgers_keys():
    with pytest.raises(InputError, match=r"privacy\.noize: expected one of noise, steps"):
        check_spec({"privacy": {"noize": 1.0}}, "spec")


def test_unknown_keys_share_one_list_of_keys():
    with pytest.raises(InputError) as said:
        check_spec(WHOLE | {"a": 1, "b": 2, "privacy": {"noise": 1, "steps": 2, "c": 3}}, "spec")
    assert "a, b: expected one of weights, model" in str(said.value)
    assert "privacy.c: expected one of noise, steps" in str(said.value)
    assert str(said.value).count("weights") == str(said.value).count("delta") == 1


@pytest.mark.parametrize("key", ["privacy", "ledger"])
def test_a_ledger_with_all_around_it_is_one_short_line(key):
    ledger = privacy(PrivateDescent(lr=0.1, steps=30, noise=4.0))
    around = {key: ledger, "steps": 30, "loss": 0.1, "accuracy": 0.9, "epsilon": 6.3}
    with pytest.raises(InputError) as said:
        check_spec(WHOLE | {"privacy": around}, "spec")
    assert str(said.value).startswith(f"spec: privacy: expected only what stands under {key} in it")
    assert len(str(said.value)) < 140


def test_the_ledger_of_a_training_is_taken_as_it_is():
    ledger = privacy(PrivateDescent(lr=0.1, steps=30, noise=4.0, sampling=0.5))
    spec = check_spec({"weights": "w", "data": "d", "privacy": ledger}, "spec")
    assert spec.privacy == Privacy(noise=4.0, steps=30, sampling=0.5)


def test_a_budget_is_given_in_words_on_the_command_line(capsys):
    assert main(["audit", "--budget", "90s", "--weights", "none.pt", "--data", "digits"]) == 2
    assert "budget" not in capsys.readouterr().err
    assert main(["audit", "--budget", "soon", "--weights", "none.pt", "--data", "digits"]) == 2
    assert "expected a time such as 90s" in capsys.readouterr().err
