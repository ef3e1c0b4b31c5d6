"""The attack on models as their own libraries fit them: what returns, and when it cannot."""

import dataclasses

import numpy as np
import pytest
import torch
from sklearn.linear_model import LinearRegression, LogisticRegression, PoissonRegressor, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

from linear_cases import relative, table, target_of
from remnant.attacks.glm import GLM
from remnant.errors import InputError
from remnant.models.linear_estimators import from_estimator, recipe, save_linear
from remnant.models.linear_files import read_linear
from remnant.types import Knowledge, Status, Target

TIGHT = {"solver": "newton-cholesky", "tol": 1e-14}
WEIGHTS = np.random.default_rng(1).uniform(0.5, 2, 60)


def attack(target, **settings):
    return GLM(**settings)(target, generator=torch.Generator().manual_seed(0))


def found_record(found, x, y, error=1e-7):
    # One number predicted, no scaler: nothing is left over that could contradict.
    checked = found.figures["checked"]
    assert found.status is (Status.COMPLETE if checked else Status.INCONCLUSIVE), found.reason
    assert (len(found), found.stated.certified) == (1, int(checked))
    assert relative(found.inputs[0].numpy(), x[-1]) < error
    np.testing.assert_allclose(found.labels[0].numpy(), y[-1], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("family", "estimator"),
    [
        ("linear", LinearRegression()),
        ("linear", Ridge(alpha=3.0)),
        ("logistic", LogisticRegression(**TIGHT)),
        ("logistic", LogisticRegression(C=0.1, class_weight="balanced", **TIGHT)),
        ("logistic", LogisticRegression(class_weight={0: 1.0, 1: 3.0}, **TIGHT)),
        ("logistic", LogisticRegression(C=np.inf, **TIGHT)),
        ("logistic", LogisticRegression(solver="liblinear", C=0.5, tol=1e-12)),
        ("poisson", PoissonRegressor(alpha=0.3, **TIGHT)),
        ("multinomial", LogisticRegression(**TIGHT)),
        ("multinomial", LogisticRegression(class_weight="balanced", **TIGHT)),
    ],
    ids=str,
)
@pytest.mark.parametrize("weighted", [False, True])
def test_every_family_gives_its_missing_record(family, estimator, weighted):
    x, ys = table(classes=3)
    y = ys[family]
    estimator.fit(x, y, sample_weight=WEIGHTS if weighted else None)
    target = target_of(estimator, x, y)
    found = attack(target, weights=tuple(WEIGHTS) if weighted else None)
    found_record(found, x, y, 1e-5)  # liblinear; the others are far below
    assert found.figures["predicted_error"][0] < 1e-3


def test_several_targets_at_once():
    x, ys = table(outputs=3)
    y = ys["linear"]
    found_record(attack(target_of(Ridge().fit(x, y), x, y)), x, y, 1e-10)


def test_a_penalised_intercept_taken_for_a_free_one_is_noticed():
    x, ys = table()
    y = ys["logistic"]
    estimator = LogisticRegression(solver="liblinear", C=0.05, tol=1e-12).fit(x, y)
    found = attack(target_of(estimator, x, y, penalise_intercept=False))
    assert found.status is Status.INCONCLUSIVE
    assert found.stated.certified == 0


def test_a_scaler_that_was_not_told_is_the_first_cause_named():
    x, ys = table()
    y, scaler = ys["logistic"], StandardScaler().fit(x)
    fitted = LogisticRegression(**TIGHT).fit(scaler.transform(x), y)
    target = target_of(fitted, x, y)
    found = attack(target)
    assert found.status is Status.INCONCLUSIVE
    assert "contradicts every label (by 97%): data scaled before the fit (save" in found.reason
    found_record(attack(target_of(fitted, x, y, scaler=scaler)), x, y)  # and it helps


@pytest.mark.parametrize("family", ["linear", "logistic", "poisson", "multinomial"])
def test_statsmodels(family):
    sm = pytest.importorskip("statsmodels.api")
    x, ys = table(rows=120, classes=3)
    y, wide = ys[family], sm.add_constant(x)
    tight = {"disp": 0, "method": "newton", "tol": 1e-14, "maxiter": 50}
    results = {
        "linear": lambda: sm.OLS(y, wide).fit(),
        "logistic": lambda: sm.Logit(y, wide).fit(**tight),
        "poisson": lambda: sm.GLM(y, wide, family=sm.families.Poisson()).fit(tol=1e-14),
        "multinomial": lambda: sm.MNLogit(y, wide).fit(**tight),
    }[family]()
    found_record(attack(target_of(results, x, y)), x, y, 1e-6)


@pytest.mark.filterwarnings("ignore:The InversePower link")
def test_gamma_regression_by_its_canonical_link():
    sm = pytest.importorskip("statsmodels.api")
    x, ys = table(rows=120)
    y = ys["gamma"]
    for wide, labels in ((sm.add_constant(x), None), (x - x.mean(0) + 5, torch.tensor(y[-1:]))):
        results = sm.GLM(y, wide, family=sm.families.Gamma()).fit(tol=1e-14)
        seen = x if labels is None else wide
        found = attack(target_of(results, seen, y, labels=labels, tolerance=0.0))
        assert relative(found.inputs[0].numpy(), seen[-1]) < 1e-5
        assert found.labels[0].item() == pytest.approx(y[-1], rel=1e-5)


def test_statsmodels_penalty_is_a_record_s_and_takes_the_constant_along():
    sm = pytest.importorskip("statsmodels.api")
    x, ys = table()
    y = ys["linear"]
    results = sm.OLS(y, sm.add_constant(x)).fit_regularized(alpha=0.2, L1_wt=0)
    model = sm.OLS(y, sm.add_constant(x)).fit()
    target = target_of(model, x, y, penalty=0.2, penalty_per="record", penalise_intercept=True)
    with torch.no_grad():
        target.model.dense.weight.copy_(torch.tensor(results.params[1:]))
        target.model.dense.bias.copy_(torch.tensor(results.params[:1]))
    found_record(attack(target), x, y, 1e-10)
    other = sm.GLM(y, x, family=sm.families.Gamma(sm.families.links.Log())).fit(maxiter=1)
    with pytest.raises(InputError, match="GLM of Gamma with link Log"):
        from_estimator(other)


def test_the_default_solver_stops_early_and_refitting_finds_the_record_all_the_same():
    x, ys = table()
    y = ys["logistic"]
    estimator = LogisticRegression().fit(x, y)
    early = attack(target_of(estimator, x, y))
    assert early.status is Status.INCONCLUSIVE
    assert "is above 0.01" in early.reason
    assert relative(early.inputs[0].numpy(), x[-1]) < early.figures["predicted_error"][0]
    again = attack(target_of(estimator, x, y, recipe=recipe))
    assert again.figures["through"] == "the solver"
    found_record(again, x, y, 1e-9)


def test_a_scaler_of_all_records_tells_the_record_whatever_the_solver_did():
    x, ys = table()
    y = ys["logistic"]
    estimator = make_pipeline(StandardScaler(), LogisticRegression(tol=0.1)).fit(x, y)
    target = target_of(estimator, x, y)
    found = attack(target)
    assert found.figures["through"] == "the scaler's mean"
    found_record(found, x, y, 1e-10)
    assert attack(target, use_scaler=False).status is Status.INCONCLUSIVE


def test_a_scaler_of_other_records_is_only_a_scale():
    x, ys = table()
    y, scaler = ys["linear"], StandardScaler().fit(x[:-1])
    found = attack(target_of(Ridge().fit(scaler.transform(x), y), x, y, scaler=scaler))
    assert found.figures["through"] == "the closed form"
    found_record(found, x, y, 1e-10)


def test_without_an_intercept_there_are_two_candidates_and_the_label_has_to_be_known():
    x, ys = table()
    y = ys["linear"]
    estimator = LinearRegression(fit_intercept=False).fit(x, y)
    found = attack(target_of(estimator, x, y))
    assert (found.status, len(found)) == (Status.INCONCLUSIVE, 0)
    assert "label has to be known" in found.reason
    target = target_of(estimator, x, y, labels=torch.tensor([y[-1]]))
    found = attack(target)
    assert found.status is Status.INCONCLUSIVE
    assert found.reason.startswith("2 records explain the coefficients alike")
    errors = [relative(record.numpy(), x[-1]) for record in found.inputs]
    assert min(errors) < 1e-10 < max(errors)
    assert float(found.confidence.max()) <= 0.5
    low, high = x[-1].min() - 0.1, x[-1].max() + 0.1  # a box that only the truth fits
    alone = attack(dataclasses.replace(target, bounds=(float(low), float(high))))
    assert alone.status is Status.INCONCLUSIVE  # the box chose, nothing proves it
    assert alone.reason.startswith("one record explains the coefficients")
    assert alone.confidence.tolist().index(max(alone.confidence.tolist())) == 0
    assert relative(alone.inputs[0].numpy(), x[-1]) < 1e-10


def test_several_classes_tell_the_length_without_an_intercept():
    x, ys = table(classes=3)
    y = ys["multinomial"]
    estimator = LogisticRegression(fit_intercept=False, **TIGHT).fit(x, y)
    found_record(attack(target_of(estimator, x, y)), x, y)


def test_of_several_missing_records_only_their_sum_is_determined():
    x, ys = table()
    y = ys["poisson"]
    estimator = PoissonRegressor(alpha=0.3, **TIGHT).fit(x, y)
    found = attack(target_of(estimator, x, y, missing=3))
    assert (found.status, len(found)) == (Status.INCONCLUSIVE, 0)
    assert found.reason.startswith("3 records are missing: only the sum")
    residuals = estimator.predict(x[-3:]) - y[-3:]
    truth = np.append(residuals @ x[-3:], residuals.sum())
    np.testing.assert_allclose(found.figures["gradient"][0], truth, rtol=1e-8)


def test_nothing_is_certified_when_nobody_says_how_far_the_solver_went():
    x, ys = table()
    y = ys["linear"]
    found = attack(target_of(Ridge().fit(x, y), x, y, tolerance=None))
    assert found.status is Status.INCONCLUSIVE
    assert "give its tolerance" in found.reason


def test_a_wrong_set_of_known_records_is_not_certified():
    x, ys = table()
    y = ys["logistic"]
    estimator = LogisticRegression(**TIGHT).fit(x, y)
    x = x.copy()
    x[3] += 1.0
    found = attack(target_of(estimator, x, y))
    assert found.status is Status.INCONCLUSIVE


def test_float32_records_are_found_less_exactly_and_that_is_predicted():
    x, ys = table()
    y = ys["linear"]
    target = target_of(Ridge().fit(x, y), x, y)
    known = target.knowledge.known
    known = dataclasses.replace(known, inputs=known.inputs.float())
    found = attack(dataclasses.replace(target, knowledge=Knowledge(known=known)))
    error = relative(found.inputs[0].numpy(), x[-1])
    assert 1e-10 < error < found.figures["predicted_error"][0] < 1e-3


def test_from_a_file(tmp_path):
    x, ys = table()
    y = ys["logistic"]
    estimator = LogisticRegression(**TIGHT).fit(x, y)
    save_linear(tmp_path / "model.json", estimator)
    target = target_of(estimator, x, y)
    found = attack(dataclasses.replace(target, model=read_linear(tmp_path / "model.json")))
    assert torch.equal(found.inputs, attack(target).inputs)


def test_named_classes_are_counted_from_zero():
    x, ys = table()
    y = ys["logistic"]
    estimator = LogisticRegression(**TIGHT).fit(x, np.array(["no", "yes"])[y])
    found_record(attack(target_of(estimator, x, y)), x, y)


def test_what_is_not_applicable_is_said():
    x, ys = table()
    y = ys["linear"]
    target = target_of(Ridge().fit(x, y), x, y)
    other = attack(Target(model=nn.Linear(5, 1), input_shape=(5,)))
    assert other.status is Status.NOT_APPLICABLE
    assert "has to be a LinearModel, it is a Linear" in other.reason
    unknown = attack(dataclasses.replace(target, knowledge=Knowledge()))
    assert unknown.status is Status.NOT_APPLICABLE
    assert "give --known" in unknown.reason
    everyone = dataclasses.replace(target.knowledge, records=59)
    assert "none is missing" in attack(dataclasses.replace(target, knowledge=everyone)).reason


def test_wrong_settings_and_labels_are_refused():
    x, ys = table()
    y = ys["logistic"]
    target = target_of(LogisticRegression().fit(x, y), x, y)
    with pytest.raises(InputError, match=r"weights: expected 60 numbers from 0 on, .* got 2"):
        attack(target, weights=(1.0, 1.0))
    with pytest.raises(InputError, match="trusted and attempts"):
        GLM(trusted=0.0)
    known = target.knowledge.known
    known = dataclasses.replace(known, labels=known.labels + 1)
    with pytest.raises(InputError, match=r"known labels: expected integers among \[0, 1\], got"):
        attack(dataclasses.replace(target, knowledge=Knowledge(known=known)))


def test_the_target_is_not_touched_and_the_same_seed_gives_the_same_bytes():
    x, ys = table()
    y = ys["logistic"]
    target = target_of(LogisticRegression().fit(x, y), x, y, recipe=recipe)
    before = {name: value.clone() for name, value in target.weights.items()}
    state = torch.get_rng_state()
    first, second = attack(target), attack(target)
    assert first.inputs.numpy().tobytes() == second.inputs.numpy().tobytes()
    assert all(torch.equal(before[name], value) for name, value in target.weights.items())
    assert torch.equal(state, torch.get_rng_state())
