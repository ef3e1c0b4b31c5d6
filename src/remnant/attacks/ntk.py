"""`ntk`: the adversary holds final and initial weights (000: fine-tuning, federated rounds)."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal

import torch

from remnant.attacks.about import (
    HELD,
    LINEAR,
    About,
    Choice,
    Cost,
    Range,
    Scene,
    Space,
    graph_cost,
    pass_seconds,
    reflections,
    setting,
    training_seconds,
)
from remnant.attacks.behind_front import has_head, through_front, tuned_head
from remnant.attacks.folded import folded_model, without_norms
from remnant.attacks.ntk_exact import UNMOVED, recover_exactly
from remnant.attacks.outcome import (
    in_data_scale,
    nothing,
    stated_errors,
    status_of,
    worst_of,
)
from remnant.devices import computed_there
from remnant.errors import InputError, expected
from remnant.evidence import weight_difference
from remnant.models.folding import statistics_moved
from remnant.solvers.dense.certificate import spread_of
from remnant.solvers.dense.rounds import Search
from remnant.solvers.dense.tolerances import TOLERANCES
from remnant.solvers.descent.front import FrontMatching
from remnant.solvers.descent.paper import SHARPENED, descend, hours_of
from remnant.solvers.descent.projected import Projected, search
from remnant.solvers.layers import first_pair
from remnant.solvers.lifted import recover_linearised
from remnant.training.recipes import GradientDescent
from remnant.training.run import train
from remnant.types import Candidates, Evidence, Examples, Knowledge, Stated, Status, Target

Preset = Literal["auto", "exact", "paper", "projected"]
PRESETS: tuple[Preset, ...] = ("auto", "exact", "paper", "projected")
IN_TRAINING = (
    "batch norm was in training mode: its running statistics moved, and every record's part of the "
    "change depends on its batch; frozen batch norm, or one gradient with its statistics, is solved"
)
FRONT = FrontMatching()
FOUND = (Status.COMPLETE, Status.PARTIAL)
ABOUT = About(
    summary="records from final and initial weights",
    example="--model mlp:784-1024-1024-10 --initial before.safetensors "
    "--weights after.safetensors --shape 1x28x28",
    title="Weights before and after training",
    holds="the released weights and the weights that training began with: a public model that "
    "was fine-tuned, an earlier round of federated training, or a known random seed",
    defence="Do not let the weights from before training out beside the final ones, or train with "
    "differential privacy. Weight decay, mini-batches and storing weights as fp16 do not stop it.",
    needs=("weights", "initial"),
    takes=(*HELD, "recipe", "loss"),
    missing="initial",
    stronger="give --initial, the weights before training, if anyone else may have them",
    counting={"preset": "exact", "patience": 1},
    spaces={
        "default": Space(
            axes={
                "features": Choice(("initial", "final")),
                "steps": Range(low=200, high=1600, log=True, integer=True),
            },
            fixed={"preset": "projected"},
        )
    },
)


def twin_recipe(loss: str) -> GradientDescent:
    """How a twin is trained, the way that leaks."""
    return GradientDescent(lr=0.05, momentum=0.9, steps=3000, loss=loss, stop_loss=0.02)


@dataclass(frozen=True, kw_only=True)
class NTK:
    """Reconstruct the records whose training moved one set of weights to another.

    exact: through the first two dense layers (`solvers.dense`), or for a linearised network
    through the lifted equations (`solvers.lifted`); certified, no public data, the count is found.
    paper: 000's descent on images and duals. projected: the same objective with its duals solved
    for, in the first layer's span, from several starts whose agreement is the confidence. auto:
    exact; where that proves nothing, projected if the number of records is known.
    """

    about: ClassVar[About] = ABOUT
    preset: Preset = setting("auto", "auto, exact, paper (000) or projected")
    starts: int = setting(32, "exact: points searched for at a time, at the least")
    iterations: int = setting(300, "exact: of each search")
    patience: int = setting(12, "exact: rounds without a new record before giving up")
    steps: int | None = setting(
        None, "of paper (default: 16000; 000 takes 80000) or projected (default: 400)"
    )
    features: Literal["initial", "final", "hybrid"] | None = setting(
        None, "of paper (default: final) and projected (default: initial)"
    )
    runs: int = setting(4, "projected: independent starts")
    batch: int | None = setting(
        None, "paper: candidates of a step, as in Algorithm 2 (default: all)"
    )
    double: bool = setting(False, "paper: float64")
    hours: float = setting(2.0, "paper, projected: not begun if it takes longer by an estimate")

    def __post_init__(self) -> None:
        if self.preset not in PRESETS:
            raise InputError(expected("preset", " or ".join(PRESETS), repr(self.preset)))
        if self.features == "hybrid" and self.preset != "paper":
            raise InputError(
                expected("features", "initial or final, unless preset paper", "hybrid")
            )

    @computed_there
    def __call__(self, target: Target, *, generator: torch.Generator) -> Candidates:
        if target.knowledge.initial is None:
            reason = "the initial weights are unknown; give --initial"
            return nothing(target, Status.NOT_APPLICABLE, reason)
        if statistics_moved(target.model, target.knowledge.initial):
            return nothing(target, Status.NOT_APPLICABLE, IN_TRAINING)
        evidence = weight_difference(target)
        plain = without_norms(target, evidence)
        if isinstance(plain, str):
            return nothing(target, Status.NOT_APPLICABLE, plain)
        if plain is not None:
            target, evidence = plain
        pair = first_pair(target.model, after_convolutions=True)
        if isinstance(pair, str) and self.preset in ("auto", "exact"):
            behind = self.behind(target, evidence, pair, generator)
            if behind is not None:
                return behind
        moved = any(bool(change.any()) for change in evidence.vector.values())
        if self.preset in ("auto", "exact"):
            found = self.exact(target, evidence, generator)
            if self.preset == "exact" or found.status in FOUND or not moved:
                return found
            return self.fall_back(target, evidence, found, generator)
        if not moved:
            return nothing(target, Status.INCONCLUSIVE, UNMOVED)
        if self.preset == "paper":
            return self.paper(target, evidence, generator)
        return self.project(target, evidence, generator)

    def behind(
        self, target: Target, evidence: Evidence, otherwise: str, generator: torch.Generator
    ) -> Candidates | None:
        """Of a network whose dense layers stand behind anything else; None where they do not.
        otherwise: the reason to return where their records are not found."""
        model, shape = target.model, target.input_shape
        two = has_head(model, shape)
        if not two and not tuned_head(model, shape, evidence.start, evidence.end):
            return None
        dense = partial(replace(self, preset="exact"), generator=generator)
        how = FRONT if self.steps is None else replace(FRONT, evaluations=self.steps)
        found = through_front(target, evidence, dense, generator, otherwise=otherwise, settings=how)
        none = found.status is Status.NOT_APPLICABLE
        if self.preset == "exact" or not (none or (not two and not found.figures.get("features"))):
            return found
        found = replace(found, reason=otherwise) if none else found
        return self.fall_back(target, evidence, found, generator)

    def why_not(self, scene: Scene) -> str | None:
        if scene.linear:
            return LINEAR
        if scene.target.knowledge.initial is None:
            return "the weights before training were not given"
        if statistics_moved(scene.target.model, scene.target.knowledge.initial):
            return IN_TRAINING
        model, shape = folded_model(scene.target.model), scene.target.input_shape
        before = scene.target.knowledge.initial
        if has_head(model, shape) or tuned_head(model, shape, before, scene.target.weights):
            return None
        pair = first_pair(model, after_convolutions=True)
        return pair if isinstance(pair, str) else None

    def cost(self, scene: Scene) -> Cost:
        """Where records are told, approximate candidates follow a search that proved nothing."""
        recipe, held = twin_recipe(scene.loss), scene.target.knowledge
        model, shape = folded_model(scene.target.model), scene.target.input_shape
        tuned = tuned_head(model, shape, held.initial or {}, scene.target.weights)
        steps = 10 if tuned else recipe.steps // 4  # it mostly fits long before
        twin = training_seconds(scene, recipe, steps)
        cost = graph_cost(scene, 2.5e4, reflections(2 * self.patience))
        count = held.records
        if tuned or has_head(model, shape):  # images from features
            images = FRONT.evaluations * pass_seconds(scene, scene.records)
            return replace(cost, seconds=cost.seconds + images, most=None, twin=twin)
        rough = 0.0
        if count is not None and self.preset != "exact":
            steps = (self.steps or 400) * self.runs
            hours = hours_of(scene.target.model, shape, 2 * count, steps, projected=True)
            rough = 3600 * hours if hours <= self.hours else 0.0
        return replace(cost, most=(cost.most or cost.seconds) + rough, twin=twin)

    def twin(self, scene: Scene, strangers: Examples, generator: torch.Generator) -> Target:
        """Trained from the same initial weights on other records, the way that leaks."""
        target, model = scene.target, copy.deepcopy(scene.target.model)
        assert target.knowledge.initial is not None
        model.load_state_dict(target.knowledge.initial, strict=False)
        recipe = twin_recipe(scene.loss)
        if tuned_head(model, target.input_shape, target.knowledge.initial, target.weights):
            recipe = replace(recipe, steps=10, momentum=0.0, stop_loss=None)
            names = [name for name, _ in model.named_parameters()]
            moved = {n for n in names if bool((target.weights[n] != model.get_parameter(n)).any())}
            for name in names:
                model.get_parameter(name).requires_grad_(name in moved)
        trained = train(model, strangers, recipe, scaling=target.scaling, generator=generator)
        held = Knowledge(initial=trained.initial, records=len(strangers), loss=scene.loss)
        return replace(target, model=trained.model, knowledge=held)

    def exact(self, target: Target, evidence: Evidence, generator: torch.Generator) -> Candidates:
        """By the layers' graph; what that does not solve may be a linearised network."""
        how = Search(starts=self.starts, iterations=self.iterations, patience=self.patience)
        found = recover_exactly(target, evidence, how, generator)
        count = found.stated.counted
        if found.status in FOUND or count is None:
            return found
        lifted = recover_linearised(target.model, evidence, generator=generator, count=count)
        if isinstance(lifted, str) or not lifted.exact:
            return found
        passed = lifted.error < TOLERANCES.sure * spread_of(lifted.inputs)
        if not bool(passed.any()):
            return found
        n, sure, data = lifted.count, int(passed.sum()), in_data_scale(target, lifted.inputs)
        stated = stated_errors(target, data, lifted.error, passed)
        return Candidates(
            inputs=data,
            confidence=passed.float(),
            status=status_of(sure, n),
            reason=f"{sure} of {n} records found and certified without the truth, "
            f"{worst_of(stated)}: training was linear about the initial weights, and they explain "
            f"all of it to {lifted.residual:.0e}",
            stated=Stated(counted=n, certified=sure, passed=passed.tolist(), error=stated),
            figures=found.figures,
            trace=found.trace,
        )

    def fall_back(
        self, target: Target, evidence: Evidence, found: Candidates, generator: torch.Generator
    ) -> Candidates:
        """What the exact solver said, and approximate candidates where the count is known."""
        if target.knowledge.recipe is not None:
            more = "attack informed replays a short training whose recipe is known"
            found = replace(found, reason=f"{found.reason} ({more})")
        if target.knowledge.records is None:
            more = "" if "--records" in found.reason else "; give --records"
            return replace(found, reason=f"{found.reason}{more} for approximate candidates")
        rough = self.project(target, evidence, generator)
        said = f"not exact, since {found.reason}; instead {rough.reason}"
        stated = Stated(counted=found.stated.counted, certified=0)  # some could have been certified
        figures = {**found.figures, **rough.figures}
        return replace(rough, reason=said, stated=stated, figures=figures, trace=found.trace)

    def paper(self, target: Target, evidence: Evidence, generator: torch.Generator) -> Candidates:
        count = target.knowledge.records
        if count is None:
            reason = "the paper's descent needs the number of records; give --records"
            return nothing(target, Status.NOT_APPLICABLE, reason)
        steps, features = self.steps or SHARPENED.steps, self.features or "final"
        settings = replace(
            SHARPENED, features=features, steps=steps, double=self.double, batch=self.batch
        )
        many = round(settings.per_record * count)
        each = steps * (1 + (features == "hybrid"))
        hours = hours_of(target.model, target.input_shape, self.batch or many, each)
        if hours > self.hours:
            return self.too_long(target, hours)
        found = descend(
            target.model,
            evidence,
            settings,
            shape=target.input_shape,
            records=count,
            generator=generator,
        )
        return Candidates(
            inputs=in_data_scale(target, found.inputs),
            confidence=torch.zeros(len(found.inputs)),
            status=Status.INCONCLUSIVE,
            reason="the paper's descent has no certificate; its residual is not evidence",
            figures={"loss": found.loss},
            trace={"loss": list(found.trace)},
        )

    def project(self, target: Target, evidence: Evidence, generator: torch.Generator) -> Candidates:
        count = target.knowledge.records
        if count is None:
            reason = "the projected descent needs the number of records; give --records"
            return nothing(target, Status.NOT_APPLICABLE, reason)
        features: Literal["initial", "final"] = "final" if self.features == "final" else "initial"
        settings = Projected(features=features, steps=self.steps or 400, starts=self.runs)
        many, each = round(settings.per_record * count), settings.steps * settings.starts
        hours = hours_of(target.model, target.input_shape, many, each, projected=True)
        if hours > self.hours:
            return self.too_long(target, hours)
        found = search(
            target.model,
            evidence,
            settings,
            shape=target.input_shape,
            records=count,
            generator=generator,
        )
        agreed = int((found.confidence > 0.9).sum())
        return Candidates(
            inputs=in_data_scale(target, found.inputs),
            confidence=found.confidence.float(),
            status=Status.INCONCLUSIVE,
            reason=f"{len(found.inputs)} approximate candidates, {agreed} of which came back alike "
            f"(correlation above 0.9) from {self.runs} independent starts; that is no proof",
            figures={"candidates": len(found.inputs), "agreed": agreed, "losses": found.losses},
        )

    def too_long(self, target: Target, hours: float) -> Candidates:
        words = f"the descent takes some {hours:.0f} hours by an estimate, more than {self.hours:g}"
        do = "allow them by --hours, or take fewer --steps"
        return nothing(target, Status.INCONCLUSIVE, f"{words}: {do}")
