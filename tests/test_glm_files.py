"""Coefficients in files and out of estimators: what is read is what was meant, or is refused."""

import json

import numpy as np
import pytest
import torch
from sklearn.linear_model import Lasso, LinearRegression, LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler

from linear_cases import examples, table
from remnant.errors import InputError, WeightsError
from remnant.models.linear_estimators import from_estimator, recipe, save_linear
from remnant.models.linear_files import linear_target, read_linear
from remnant.models.linear_model import LinearModel

PLAIN = {"family": "linear", "coef": [1.0, 2.0], "intercept": 0.5}


def fitted(estimator, family="logistic"):
    x, ys = table(classes=3)
    return estimator.fit(x, ys[family])


@pytest.mark.parametrize("ending", [".json", ".npz"])
@pytest.mark.parametrize("family", ["logistic", "multinomial"])
def test_a_model_survives_its_file(tmp_path, ending, family):
    estimator = make_pipeline(StandardScaler(), LogisticRegression(C=0.5, class_weight="balanced"))
    model = from_estimator(fitted(estimator, family))
    path = tmp_path / f"model{ending}"
    save_linear(path, estimator)
    again = read_linear(path)
    assert torch.equal(again.dense.weight, model.dense.weight)
    assert torch.equal(again.dense.bias, model.dense.bias)
    assert torch.equal(again.scaling.mean, torch.tensor(estimator[0].mean_))
    assert torch.equal(again.scaling.std, torch.tensor(estimator[0].scale_))
    for name in ("family", "penalty", "penalty_per", "penalise_intercept", "tolerance", "classes",
                 "class_weight", "features", "solver"):  # fmt: skip
        assert getattr(again, name) == getattr(model, name), name
    assert again.penalty == 2.0
    assert again.tolerance == 1e-4
    assert again.solver["iterations"] > 1


def test_the_outputs_are_those_of_the_estimator():
    x, _ = table()
    estimator = fitted(LogisticRegression())
    found = from_estimator(estimator)(torch.tensor(x))
    np.testing.assert_allclose(found[:, 0].numpy(), estimator.decision_function(x))


def test_float32_coefficients_are_known_to_be_coarse(tmp_path):
    np.savez(tmp_path / "a.npz", family="linear", coef=np.ones(3, np.float32), intercept=0.0)
    assert read_linear(tmp_path / "a.npz").precision == 2.0**-24
    assert read_linear(tmp_path / "a.npz").tolerance is None


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"family": "cubic"}, "family: expected 'linear', 'logistic', 'poisson', 'gamma' or"),
        ({"coef": [[1.0], [1.0, 2.0]]}, "coef: expected finite numbers in even rows"),
        ({"coef": [float("nan"), 1.0]}, "coef: expected finite numbers in even rows"),
        ({"coef": []}, "coef: expected d numbers or c x d, got shape (1, 0)"),
        ({"intercept": [1.0, 2.0]}, "intercept: expected 1 numbers, got 2"),
        ({"penalty": -1.0}, "penalty: expected at least 0, got -1.0"),
        ({"penalty": [1, 2]}, "penalty: expected a valid number, got a list of 2"),
        ({"coef": [10**400, 1]}, "coef: expected finite numbers in even rows, got a list of 2"),
        ({"penalty": 10**400}, "penalty: expected"),
        ({"solver": {"iterations": 10**30}}, "solver: expected 0 to 10000000 iterations"),
        ({"solver": {"parameters": {"C": [1]}}}, "solver: expected plain values as parameters"),
        ({"penalty": "much"}, "penalty: expected a valid number"),
        ({"penalty_per": "batch"}, "penalty_per: expected 'total' or 'record', got 'batch'"),
        ({"penalise_intercept": "no"}, "penalise_intercept: expected a valid boolean, got 'no'"),
        ({"alpha": 1.0}, "got alpha"),
        ({"format": "other/2"}, "format: expected remnant.linear/1, got 'other/2'"),
        ({"features": ["a"]}, "features: expected 0 or 2 names, got 1"),
        ({"features": ["a", "a"]}, "features: expected different ones"),
        ({"scaling": {"mean": [0.0]}}, "scaling: expected mean and scale"),
        ({"scaling": {"mean": [0.0] * 3, "scale": 1.0}}, "scaling: mean: expected 1 or 2 numbers"),
        ({"scaling": {"mean": [[0.0], [1.0]], "scale": 1.0}}, "scaling: expected one number each"),
        ({"scaling": {"mean": 0.0, "scale": 0.0}}, "scaling: std: expected positive numbers"),
        ({"classes": ["a", "b"]}, "classes of a linear model with 1 rows of coefficients"),
        ({"family": "logistic"}, "classes of a logistic model with 1 rows of coefficients"),
        ({"solver": "lbfgs"}, "solver: expected an object, got 'lbfgs'"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_file_is_said(tmp_path, change, text):
    path = tmp_path / "model.json"
    path.write_text(json.dumps(PLAIN | change))
    with pytest.raises(WeightsError) as error:
        read_linear(path)
    assert text in str(error.value)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "data", "text"),
    [
        ("a.pkl", b"x", "pickles are never read"),
        ("a.json", b"{", "expected a JSON file, got another"),
        ("a.json", b"[1]", "expected a JSON object, got a list of 1"),
        ("a.json", b"\xff", "expected a JSON file"),
        ("a.json", b"{}", "expected family and coef, got no family and no coef"),
        ("a.npz", b"no archive", "expected a whole file"),
    ],
)
def test_other_files_are_refused(tmp_path, name, data, text):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(WeightsError, match=text):
        read_linear(tmp_path / name)


def test_objects_in_an_archive_are_never_loaded(tmp_path):
    np.savez(tmp_path / "a.npz", coef=np.array([{"a": 1}], dtype=object))
    with pytest.raises(WeightsError, match="save it as plain numbers"):
        read_linear(tmp_path / "a.npz")
    with pytest.raises(WeightsError, match="no such file"):
        read_linear(tmp_path / "b.npz")
    with pytest.raises(WeightsError, match=r"expected a \.json or \.npz ending"):
        save_linear(tmp_path / "a.pkl", from_estimator(fitted(LinearRegression(), "linear")))


def test_each_estimator_is_read_with_its_own_penalty():
    ridge = from_estimator(fitted(Ridge(alpha=3.0), "linear"))
    assert (ridge.penalty, ridge.tolerance, ridge.penalise_intercept) == (3.0, 0.0, False)
    assert from_estimator(fitted(Ridge(solver="lsqr"), "linear")).tolerance is None
    liblinear = from_estimator(fitted(LogisticRegression(solver="liblinear", C=4.0)))
    assert (liblinear.penalty, liblinear.penalise_intercept) == (0.25, True)
    assert from_estimator(fitted(LogisticRegression(C=np.inf))).penalty == 0.0
    weighted = from_estimator(fitted(LogisticRegression(class_weight={1: 3.0})))
    assert weighted.class_weight == (1.0, 3.0)


def test_estimators_that_cannot_be_read_are_refused():
    with pytest.raises(InputError, match=r"estimator: expected LinearRegression, .* got Lasso"):
        from_estimator(fitted(Lasso(), "linear"))
    with pytest.raises(InputError, match="expected a fitted one, got no coef_; call fit first"):
        from_estimator(Ridge())
    with pytest.raises(InputError, match="expected l2 or none, got l1 or elastic net"):
        from_estimator(fitted(LogisticRegression(l1_ratio=0.5, solver="saga", max_iter=5000)))
    with pytest.raises(InputError, match="expected one StandardScaler, got MinMaxScaler"):
        from_estimator(fitted(make_pipeline(MinMaxScaler(), LogisticRegression())))


def test_a_recipe_gives_the_same_coefficients_again():
    x, ys = table()
    y = ys["logistic"]
    estimator = LogisticRegression(C=0.7).fit(x, y)
    model = from_estimator(estimator)
    again = recipe(model)(torch.tensor(x), torch.tensor(y), None)
    expected = np.append(estimator.coef_, estimator.intercept_)
    np.testing.assert_allclose(again[0].numpy(), expected, rtol=1e-10)


def test_a_recipe_that_cannot_be_fitted_is_told():
    held = {"estimator": "LogisticRegression", "parameters": {"C": -1.0}}
    again = recipe(LinearModel("logistic", torch.ones(1, 2), classes=[0, 1], solver=held))
    with pytest.raises(InputError, match="LogisticRegression cannot be fitted so: The 'C' param"):
        again(torch.eye(2).double(), torch.arange(2), None)


def test_a_recipe_runs_nothing_that_is_not_on_its_list():
    model = LinearModel("linear", torch.ones(1, 2), solver={"estimator": "os.system"})
    with pytest.raises(InputError, match="solver: estimator: expected LinearRegression"):
        recipe(model)
    held = {"estimator": "Ridge", "parameters": {"beta": 1}}
    with pytest.raises(InputError, match="solver: parameters do not fit Ridge"):
        recipe(LinearModel("linear", torch.ones(1, 2), solver=held))


def test_known_records_have_to_fit_the_model():
    model = LinearModel("linear", torch.ones(1, 2))
    with pytest.raises(InputError, match=r"known records: expected n x 2, got n x \(3,\)"):
        linear_target(model, examples(np.ones((4, 3)), np.ones(4)))
