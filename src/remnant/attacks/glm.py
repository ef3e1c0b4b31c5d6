"""`glm`: the adversary knows all records of a linear model's training set but one (001)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor

from remnant.attacks.about import (
    STEP,
    About,
    Cost,
    LeaveOne,
    Range,
    Scene,
    Space,
    measured,
    seconds_of,
    setting,
)
from remnant.attacks.glm_case import Case, Found, codes, encoded, pose
from remnant.attacks.outcome import in_box, nothing, stated_errors, worst_of
from remnant.devices import computed_there
from remnant.errors import InputError, expected
from remnant.models.linear_estimators import from_estimator, recipe
from remnant.models.linear_files import linear_target
from remnant.models.linear_model import LinearModel, Recipe
from remnant.solvers.glm.closed_form import Record, from_mean, means, recover
from remnant.solvers.glm.refit import TOLERANCES as REFIT
from remnant.solvers.glm.refit import refit
from remnant.types import Candidates, Examples, Stated, Status, Target

UNCHECKED = "no equation over to check this: right if one record is unknown, the others exact"


@dataclass(frozen=True, kw_only=True)
class Tolerances:
    """When a recovered record of a linear model is believed."""

    safety: float = 3.0  # times the predicted error is stated: it is an order of magnitude
    label_room: float = 0.1  # a misfit of the residual above this contradicts the label
    converged: float = 1e-8  # a solver's tolerance from which no search is expected
    refits: int = 3  # records left out in turn that are looked for through the solver, if need be


TOLERANCES = Tolerances()


def all_but_one(target: Target, known: Examples, label: Tensor, turn: int) -> Target:
    """The target of an adversary who knows these records and that one more was fitted.

    The label is told only where nothing else could give the record: no intercept, no classes.
    """
    model = cast(LinearModel, target.model)
    told = model.dense.bias is None and not model.classes
    return linear_target(
        model,
        replace(known, inputs=known.inputs.flatten(1)),
        records=len(known) + 1,
        labels=label if told else None,
        recipe=recipe(model) if model.solver and turn < TOLERANCES.refits else None,
    )


LEFT_OUT = LeaveOne(most=100, target=all_but_one)
ABOUT = About(
    summary="the one record of a linear model's training set that is not known",
    example="--coefficients model.json --known others.npz",
    title="The coefficients and every record but one",
    holds="the coefficients, how they were fitted, and all training records but the one in "
    "question",
    defence="A linear model that converged gives any one record to whoever knows the others: fit "
    "it with differential privacy, or keep the coefficients from them.",
    needs=("coefficients", "known"),
    takes=("records", "bounds", "label", "refit"),
    leave_one=LEFT_OUT,
    spaces={"default": Space(axes={"attempts": Range(low=1, high=16, integer=True)})},
)


@dataclass(frozen=True, kw_only=True)
class GLM:
    """Recover the one missing record of a linear, logistic, Poisson, Gamma or multinomial
    regression.

    At the optimum the known records' gradients and the missing one's cancel, which is solved in
    closed form where the solver converged. Where a released scaler was fitted on the same records,
    its mean gives the record by subtraction. Where the solver stopped early and `Knowledge.recipe`
    can fit the model again, the record is sought with which that fit ends at the released
    coefficients.
    """

    about: ClassVar[About] = ABOUT
    weights: tuple[float, ...] | None = setting(
        None, "the known records' sample weights, the missing one's last", flag=False
    )
    trusted: float = setting(1e-2, "largest predicted relative error of a record that is found")
    attempts: int = setting(4, "starts of the search through the solver")
    use_scaler: bool = setting(True, "do not use the scaler's mean", flag="no-scaler")

    def __post_init__(self) -> None:
        if not self.trusted > 0 or self.attempts < 0:
            got = f"{self.trusted} and {self.attempts}"
            raise InputError(expected("trusted and attempts", "above 0 and from 0 on", got))

    @computed_there
    def __call__(self, target: Target, *, generator: torch.Generator) -> Candidates:
        case = pose(target, self.weights)
        if isinstance(case, str):
            return nothing(target, Status.NOT_APPLICABLE, case)
        if case.missing != 1:
            return not_one(target, case)
        found = self.through_scaler(target, case) if self.use_scaler else None
        if found is None:
            found = closed_form(case)
            doubtful = not any(map(self.sound, found))
            if doubtful and target.knowledge.recipe and self.attempts:
                found = self.through_solver(target, case, found, generator)
        return self.conclude(target, case, found)

    def why_not(self, scene: Scene) -> str | None:
        if not scene.linear:
            return "it is no linear model"
        return "with one record there is none that is known" if scene.records < 2 else None

    def cost(self, scene: Scene) -> Cost:
        """Where the solver stopped early, a few records are looked for through it: from each start
        some evaluations and as many Jacobians, which are a fit a feature. One fit is measured."""
        n, d = scene.records, math.prod(scene.target.input_shape)
        seconds = seconds_of(1e-8 * n * d * d, STEP)
        model, search = scene.target.model, 0.0
        early = (
            isinstance(model, LinearModel)
            and model.solver
            and model.family != "linear"
            and (model.tolerance or 1.0) > TOLERANCES.converged
        )
        if early and self.attempts:
            turns = TOLERANCES.refits / min(LEFT_OUT.most, n)  # that have such a search
            search = turns * self.attempts * REFIT.evaluations / 2 * (d + 2) * fit_seconds(scene)
        most = seconds + 2 * max(1, len(cast(LinearModel, model).classes)) * search
        return Cost(seconds=seconds + search, memory=8.0 * 20 * n * d, most=most)

    def twin(self, scene: Scene, strangers: Examples, generator: torch.Generator) -> Target:
        """The same family and penalty, fitted by scikit-learn until it converged."""
        from sklearn import linear_model as sk

        model, n = cast(LinearModel, scene.target.model), len(strangers)
        penalty = max(model.penalty, 1e-3) * (n if model.penalty_per == "record" else 1)
        to_the_end: dict[str, Any] = {"solver": "newton-cholesky", "tol": 1e-12, "max_iter": 10_000}
        if model.family == "linear":
            made = sk.Ridge(alpha=penalty)
        elif model.family == "poisson":
            made = sk.PoissonRegressor(alpha=penalty / n, **to_the_end)
        elif model.family == "gamma":
            raise InputError(expected("a twin of the model", "a family to fit", "gamma"))
        else:
            made = sk.LogisticRegression(C=1 / penalty, **to_the_end)
        inputs = model.scaling.to_model(strangers.inputs.double()).flatten(1)
        made.fit(inputs.numpy(), np.asarray(strangers.labels))
        twin = from_estimator(made, scaling=model.scaling)
        return linear_target(twin, replace(strangers, inputs=strangers.inputs.flatten(1)))

    def sound(self, found: Found) -> bool:
        """Whether an explanation's predicted error and its contradiction of the label are both
        small."""
        return found.error <= self.trusted and found.misfit <= TOLERANCES.label_room

    def through_scaler(self, target: Target, case: Case) -> list[Found] | None:
        """The record as n times the scaler's mean less the sum of the known records, with the
        label that fits it best. None where no scaler was fitted on these records, or its numbers
        are rounded too coarsely to subtract."""
        scaling, known = target.scaling, target.knowledge.known
        assert known is not None  # `pose` saw to it
        shape = known.inputs.shape[1:]
        if scaling.mean.shape != shape or scaling.std.shape != shape:
            return None
        if known.inputs.dtype != torch.float64 or scaling.mean.dtype != torch.float64:
            return None  # n times a rounded mean is no record
        held = from_mean(known.inputs, scaling.mean, scaling.std)
        if held is None:
            return None
        record = scaling.to_model(held[0])
        own = means(case.fit(None), record[None])[0]
        options = []
        for label in case.labels():
            gradient = case.gradient(label)
            residual = -gradient[:, -1] / case.weight(label) if case.bias is not None else own * 0
            aim = own - residual if label is None else case.encode(label)
            misfit = float((own - aim - residual).norm() / residual.norm().clamp(min=1e-300))
            options.append((misfit, label, aim))
        options.sort(key=lambda option: option[0])
        misfit, label, aim = options[0]
        # A solver that stopped early tells the label badly, which is no fault of the record.
        told = len(options) == 1 or misfit < 0.5 * options[1][0]
        error = len(known) * known.inputs.abs().max() * 2.0**-52 / held[0].norm()
        through = "the scaler's mean"
        return [Found(record, label, aim if told else None, float(error), held[1], through)]

    def through_solver(
        self, target: Target, case: Case, found: list[Found], generator: torch.Generator
    ) -> list[Found]:
        """Where the solver stopped early: the record with which fitting again gives the released
        coefficients. One label after the other is tried, the likeliest first; `found`, what the
        closed form gave, where none of them leads there."""
        run = cast(Recipe, target.knowledge.recipe)
        likely = found[0].label if found else None
        for label in sorted(case.labels(), key=lambda option: option != likely):
            if label is None:
                continue  # a regression target is a further unknown
            near = next((f.input for f in found if f.label == label), case.middle(label))
            order = torch.randperm(len(case.inputs), generator=generator)
            same = order[case.known_labels[order] == label][: self.attempts - 1]
            starts = torch.cat([near[None], case.inputs[same]])
            labels = torch.cat([case.known_labels, torch.tensor([label])])

            def again(record: Tensor, labels: Tensor = labels) -> Tensor:
                rows = torch.cat([case.inputs, record[None]])
                return run(rows, labels, case.sample_weights)

            done = refit(
                case.fit(label), again, case.inputs, case.factors(label), starts, enough=1e-6
            )
            if done.error <= self.trusted:
                aim, through = case.encode(label), "the solver"
                return [Found(done.input, label, aim, done.error, done.disagreement, through)]
        return found  # elsewhere the search's own error means nothing

    def conclude(self, target: Target, case: Case, found: list[Found]) -> Candidates:
        """Candidates in the data's own scale, the likeliest first; certified only if one
        explanation alone is sound and something was left over to check it against."""
        if not found:
            reason = "no record solves the equations"
            if case.bias is None and target.knowledge.labels is None:
                reason = "without an intercept the record's label has to be known; give labels"
            return nothing(target, Status.INCONCLUSIVE, reason, stated=Stated(counted=1))
        inputs = target.scaling.to_data(torch.stack([f.input for f in found]))
        passed = torch.tensor([*map(self.sound, found)]) & in_box(inputs, target.bounds)
        alone = int(passed.sum()) == 1
        likely = torch.tensor([1 / (1 + f.error / self.trusted) for f in found]) * passed
        confidence = likely / max(1, int(passed.sum()))
        order = confidence.argsort(descending=True, stable=True)
        chosen = [found[i] for i in order.tolist()]
        one_number = chosen[0].label is None and len(case.fit(None).weight) == 1
        checked = not (alone and one_number and chosen[0].through == "the closed form")
        certified = alone and checked
        squared = torch.tensor(
            [(TOLERANCES.safety * f.error * float(f.input.norm())) ** 2 for f in chosen]
        )
        sure = passed[order] & checked
        stated = stated_errors(target, inputs[order], squared, sure)
        return Candidates(
            inputs=inputs[order],
            confidence=confidence[order].float(),
            labels=None if chosen[0].target is None else case.decode(chosen),
            status=Status.COMPLETE if certified else Status.INCONCLUSIVE,
            reason=words(chosen, passed, self.trusted, checked)
            + (f", {worst_of(stated)}" if certified else ""),
            stated=Stated(counted=1, certified=int(certified), passed=sure.tolist(), error=stated),
            figures={
                "found": len(found),
                "predicted_error": [f.error for f in chosen],
                "misfit": [f.misfit for f in chosen],
                "through": chosen[0].through,
                "checked": checked,
                "rounding": case.rounding,
            },
        )


def fit_seconds(scene: Scene) -> float:
    """CPU seconds of one fit as the model says it was made, on noise of the records' size."""
    model = cast(LinearModel, scene.target.model)
    shape = (scene.records, math.prod(scene.target.input_shape))
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    kinds = codes(model) or [0, 1, 2]
    labels = torch.tensor(kinds)[torch.arange(scene.records) % len(kinds)]
    again = recipe(model)
    return measured(lambda: again(noise, labels, None))


def closed_form(case: Case) -> list[Found]:
    """Every record that solves the equations of a converged fit, with its predicted error; the
    likeliest first."""
    found = []
    for label in case.labels():
        aim = None if label is None else case.encode(label)
        if label is None and case.missing_label is not None and case.bias is None:
            aim = encoded(case.model, case.missing_label[None])[0]
        for record in recover(
            case.fit(label), case.gradient(label), weight=case.weight(label), target=aim
        ):
            found.append(judged(case, label, record))
    if case.bias is None:
        return sorted(
            (f for f in found if f.misfit <= TOLERANCES.label_room), key=lambda f: odd(case, f)
        )
    return sorted(found, key=lambda f: f.misfit)[:1]  # one equation too many tells the label


def judged(case: Case, label: int | None, record: Record) -> Found:
    """A record that solves the equations, with the relative error to expect of it: how much the
    solution amplifies what the solver left over, which the solver states (its tolerance) or the
    record's unused equation shows. Poisson counts are whole numbers, so that a target near one
    is rounded and checked again."""
    misfit, shown = record.misfit, record.leftover
    counts = case.model.family == "poisson" and bool((case.targets == case.targets.round()).all())
    if counts and label is None and case.bias is not None:
        whole = record.target.round().clamp(min=0)
        fit, gradient = case.fit(label), case.gradient(label)
        again = recover(fit, gradient, weight=case.weight(label), target=whole)[0]
        misfit, shown = again.misfit, again.leftover
        record = replace(record, target=whole)
    stated = case.stated(label)
    if stated is None and shown is None:
        error = float("inf")  # nothing says how far the solver went
    else:
        error = record.amplification * max(stated or 0.0, shown or 0.0, case.rounding)
    return Found(record.input, label, record.target, error, misfit, "the closed form")


def odd(case: Case, found: Found) -> float:
    """How far a record lies from the known ones: the mean of its squared standard scores."""
    spread = case.inputs.std(0, correction=0).clamp(min=1e-12)
    return float(((found.input - case.inputs.mean(0)) / spread).square().mean())


def not_one(target: Target, case: Case) -> Candidates:
    """The answer where no record, or more than one, is missing: of several only the sum of their
    residuals times their inputs is determined."""
    missing = case.missing
    if missing < 1:
        reason = f"{len(case.inputs)} records are known and {missing + len(case.inputs)} in all"
        return nothing(target, Status.NOT_APPLICABLE, f"{reason}: none is missing")
    gradient = -case.gradient(case.labels()[0])
    figures = {"gradient": gradient.tolist()}
    reason = (
        f"{missing} records are missing: only the sum of their residuals times their inputs is "
        "determined (figures: gradient), not the records"
    )
    stated = Stated(counted=missing)
    return nothing(target, Status.INCONCLUSIVE, reason, stated=stated, figures=figures)


def words(found: list[Found], passed: Tensor, trusted: float, checked: bool) -> str:
    """The reason that the finding gives: what explains the coefficients and how surely, or why
    nothing is believed."""
    best, certified = found[0], int(passed.sum())
    if certified == 1:
        how = f"{best.through}: predicted relative error {best.error:.1e}"
        if not checked:
            return f"one record explains the coefficients, through {how}; {UNCHECKED}"
        return f"the missing record is found and certified through {how}"
    if certified > 1:
        return f"{certified} records explain the coefficients alike, one of them was trained on"
    if best.misfit > TOLERANCES.label_room:
        return (
            f"the residual contradicts every label (by {best.misfit:.0%}): data scaled before the "
            "fit (save the pipeline, or the scaler's mean and scale with the coefficients), not "
            "these records, another penalty, or a solver that stopped early"
        )
    if best.error == float("inf"):
        return "nothing says how far the solver converged; give its tolerance, 0 for a direct one"
    return (
        f"predicted relative error {best.error:.1e} is above {trusted:g}: the record's residual is "
        "small against what the solver left over"
    )
