"""`informed`: the adversary knows all records but one (or a few) and how the model was trained
(001: the strongest adversary, the one that differential privacy assumes)."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from remnant.attacks.about import (
    HELD,
    LINEAR,
    STEP,
    About,
    Cost,
    LeaveOne,
    Range,
    Scene,
    Space,
    seconds_of,
    setting,
)
from remnant.attacks.informed_known import (
    batched,
    blank_records,
    drawn_by_position,
    ends_of,
    fresh_starts,
    norms_in_training,
    outputs_of,
    public_labels,
    trained_by,
    unknown_count,
    unknown_labels,
    with_labels,
)
from remnant.attacks.informed_outcome import conclude_replay
from remnant.attacks.kkt import fresh_model
from remnant.attacks.outcome import model_box, nothing
from remnant.devices import computed_there
from remnant.errors import InputError, expected
from remnant.evidence import stored_precision
from remnant.solvers.reconstructor.reconn import RecoNN, fit_reconn
from remnant.solvers.reconstructor.ridge import fit_per_label
from remnant.solvers.replay.certify import squared_errors
from remnant.solvers.replay.problem import ReplaySettings
from remnant.solvers.replay.run import Observation, stacked
from remnant.solvers.replay.solve import Replayed, class_starts, replay, replay_update
from remnant.training.descent import step_count
from remnant.training.fleet import SharedRun, check_recipe, share
from remnant.training.recipes import Adam, FixedStep, PrivateDescent
from remnant.training.run import train
from remnant.training.shadows import Fleet, trained
from remnant.training.stacked import check_private
from remnant.types import Candidates, Examples, Knowledge, Stated, Status, Target

Method = Literal["replay", "ridge", "reconn"]
METHODS: tuple[Method, ...] = ("replay", "ridge", "reconn")


def all_but_one(target: Target, known: Examples, label: Tensor, turn: int) -> Target:
    """The target of an adversary who knows these records and that one more was trained on."""
    count = len(known) + 1
    held = replace(target.knowledge, known=known, labels=None, records=count)
    return replace(target, knowledge=held)


ABOUT = About(
    summary="the records that are not known, by replaying the training of those that are",
    example="--model mlp:784-10-10:elu --initial before.safetensors "
    "--weights after.safetensors --recipe recipe.json --known others.npz",
    title="The training run and every record but one",
    holds="all training records but the one in question, the weights before and after, and how "
    "the model was trained: the strongest adversary, whom differential privacy assumes",
    defence="Train with differential privacy: nothing else bounds an adversary who knows all "
    "other records. Replay fails where the initial weights or the order of batches are unknown.",
    needs=("weights", "recipe"),
    takes=(*HELD, "initial", "known", "labels"),
    missing="recipe",
    stronger="give --recipe, how it was trained, beside --initial, for the adversary who knows "
    "all else",
    shadows=True,
    leave_one=LeaveOne(most=3, target=all_but_one, last_alone=drawn_by_position),
    spaces={
        "default": Space(
            axes={"shadows": Range(low=500, high=8000, log=True, integer=True)},
            fixed={"method": "ridge"},
        )
    },
)


@dataclass(frozen=True, kw_only=True)
class Informed:
    """Reconstruct what is missing from a known training run.

    replay: differentiate through the run and solve for the records (ours); needs no public data
    and certifies a record by the run that it gives back. ridge, reconn: train shadow models on the
    known records and one public record each, and learn the way back in closed form or by the
    paper's network; nothing certifies what they return. Without initial weights each shadow model
    starts from its own.
    The unknown records are those that came last in the training order; without known records
    they are all, as in an update of federated averaging.
    """

    about: ClassVar[About] = ABOUT
    method: Method = setting("replay", "replay, or ridge or reconn, which train shadow models")
    layers: tuple[str, ...] | None = setting(
        None, "what is seen: beginnings of parameter names, such as 3. (default: all)"
    )
    probes: int = setting(0, "black box: logits on so many public inputs are seen, no weights")
    order_seed: int | None = setting(None, "of the generator that shuffled mini-batches")
    double: bool | None = setting(
        None, "float64 (default: for logits, chosen layers, several records and Adam)"
    )
    restarts: int = setting(4, "of replay without known records")
    shadows: int = setting(3500, "of ridge and reconn: models to train")
    paper: bool = setting(False, "reconn with the paper's own network, scaling and training")
    replaying: ReplaySettings = field(default_factory=ReplaySettings)
    network: RecoNN = field(default_factory=RecoNN)

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise InputError(expected("method", " or ".join(METHODS), repr(self.method)))
        if self.paper and self.method != "reconn":
            raise InputError(expected("paper", "method reconn beside it", self.method))

    @computed_there
    def __call__(self, target: Target, *, generator: torch.Generator) -> Candidates:
        target = with_labels(target)
        missing = self.unmet(target)
        if missing:
            return nothing(target, Status.NOT_APPLICABLE, missing)
        if self.method == "replay":
            return self.replay(target, generator)
        return self.learn(target, generator)

    def why_not(self, scene: Scene) -> str | None:
        target, known = scene.target, scene.records - 1
        if scene.linear:
            return LINEAR
        if target.knowledge.recipe is None:
            return "the training recipe was not given"
        if scene.regression:
            return "labels are numbers, not classes: replay finds inputs, not targets"
        if not known:
            return "with one record there is none that is known"
        stand_ins = blank_records(target, known)
        return self.unmet(all_but_one(target, stand_ins, stand_ins.labels[:1], 0)) or None

    def cost(self, scene: Scene) -> Cost:
        """Some 100 evaluations through all steps and back, with kinks four times as many.

        Of small batches memory sets the pace: a step costs as much as 200 records more would.
        """
        recipe, count = scene.target.knowledge.recipe, scene.parameters
        steps = step_count(recipe, scene.records) if isinstance(recipe, FixedStep) else 0
        kinks = any(isinstance(m, nn.ReLU | nn.LeakyReLU) for m in scene.target.model.modules())
        each = seconds_of(9 * (scene.records + 200) * count * 1e-9, STEP)
        memory = min(12.0 * count * steps, 2.0**30) + 40.0 * count
        return Cost(seconds=(400 if kinks else 100) * steps * each, memory=memory)

    def twin(self, scene: Scene, strangers: Examples, generator: torch.Generator) -> Target:
        """The same run, by the same recipe from the same weights, on other records."""
        target, known = scene.target, scene.target.knowledge
        model = copy.deepcopy(target.model)
        if known.initial is None:
            model = fresh_model(model, generator)
        else:
            model.load_state_dict(known.initial, strict=False)
        assert isinstance(known.recipe, FixedStep)
        if norms_in_training(target):
            return trained_by(self.run_of, target, strangers)
        own = generator if isinstance(known.recipe, PrivateDescent) else self.order()
        trained = train(model, strangers, known.recipe, scaling=target.scaling, generator=own)
        initial = None if known.initial is None else trained.initial
        held = Knowledge(initial=initial, recipe=known.recipe, loss=scene.loss)
        return replace(target, model=trained.model, knowledge=held)

    def unmet(self, target: Target) -> str:
        """What the attack would need and does not have, in a sentence; empty if nothing."""
        held = target.knowledge
        if held.initial is None and self.method == "replay":
            return (
                "the weights before training are unknown, and replay starts there; give --initial, "
                "or --method ridge or reconn"
            )
        try:
            recipe = check_recipe(held.recipe)
        except InputError as error:
            return f"the training recipe must be known: {error}"
        if isinstance(recipe, PrivateDescent):
            if self.method == "replay":
                return (
                    "training was private: replay cannot know what noise was added; --method ridge "
                    "or reconn learns from shadow models trained as privately"
                )
            try:
                check_private(target.model, recipe)
            except InputError as error:
                return str(error)
        if batched(recipe) and self.order_seed is None:
            return "the order of mini-batches is unknown; give the seed that shuffled them"
        if norms_in_training(target) and (self.method != "replay" or self.probes):
            return "batch norm was in training mode: that only replay of weights follows"
        told = (
            [] if held.labels is None or held.labels.is_floating_point() else held.labels.tolist()
        )
        classes = max(2, len(list(target.weights.values())[-1]))  # one output has two
        if any(not 0 <= label < classes for label in told):
            return f"labels must be classes 0 to {classes - 1}; they are {told}"
        if held.known is None and (held.labels is None or self.method != "replay"):
            return "no record is known: only replay works then, and needs --labels, those of all"
        if (self.probes or self.method != "replay") and held.public is None:
            return f"{'probes' if self.probes else 'shadow models'} need public inputs"
        if held.known is not None:
            extra = unknown_count(target)
            if extra < 1:
                return f"{held.records} records were trained on and all are known"
            if extra > 1 and (self.method != "replay" or unknown_labels(target, extra) is None):
                return f"{extra} records are unknown; only replay works, and needs their labels"
        return ""

    def run_of(self, target: Target, dtype: torch.dtype) -> SharedRun:
        """The known training run with the unknown records left open, in this precision."""
        held = target.knowledge
        return share(
            target.model,
            blank_records(target, 0) if held.known is None else held.known,
            held.recipe,
            scaling=target.scaling,
            extra=unknown_count(target),
            initial=held.initial,
            order=self.order(),
            dtype=dtype,
            joint=norms_in_training(target),
        )

    def order(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.order_seed or 0)

    def observation(self, target: Target) -> Observation:
        """What the adversary sees of the released model: all weights, some layers, or logits on
        public inputs."""
        public = target.knowledge.public
        probes = None
        if self.probes and public is not None:
            probes = target.scaling.to_model(public[: self.probes])
        return Observation(layers=self.layers, probes=probes)

    def replay(self, target: Target, generator: torch.Generator) -> Candidates:
        hard = bool(self.probes) or self.layers is not None or unknown_count(target) > 1
        hard |= isinstance(target.knowledge.recipe, Adam)
        double = hard if self.double is None else self.double
        run = self.run_of(target, torch.float64 if double else torch.float32)
        labels = unknown_labels(target, run.extra)
        if not len(run.inputs):
            assert labels is not None
            low, high = ends_of(target)
            found = replay_update(
                run, target.weights, labels, shape=target.input_shape, generator=generator,
                restarts=self.restarts, centres=(0.9 * low + 0.1 * high, 0.5 * low + 0.5 * high),
                spread=(high - low) / 10,
                settings=self.replaying,
                box=model_box(target),
            )  # fmt: skip
        else:
            starts = class_starts(run.inputs, run.labels, outputs_of(target))
            found = replay(
                run,
                stacked(target.weights),
                starts=starts if labels is None else starts[labels][None],
                labels=None if labels is None else labels[None],
                observation=self.observation(target),
                settings=self.replaying,
                box=model_box(target),
            )
        return conclude_replay(target, found, self.replay_errors(target, found))

    def replay_errors(self, target: Target, found: Replayed) -> Tensor:
        """Squared errors to expect of the best answer's records, if it is to be certified."""
        if not bool(found.matched[0] & found.determined[0]):
            return torch.full((len(found.records[0]),), torch.inf)
        initial = target.knowledge.initial
        assert initial is not None
        return squared_errors(
            self.run_of(target, torch.float64),
            stacked(target.weights),
            found.records[0],
            found.labels[0],
            observation=self.observation(target),
            precision=max(stored_precision(target.weights), stored_precision(initial)),
            memory=self.replaying.memory,
        )

    def learn(self, target: Target, generator: torch.Generator) -> Candidates:
        held = target.knowledge
        assert held.public is not None
        assert held.known is not None
        count = min(self.shadows, len(held.public))
        public, labels = held.public[:count], public_labels(target)[:count]
        run = self.run_of(target, torch.float32)
        wanted = Fleet(
            model=target.model, fixed=held.known, inputs=public, labels=labels, recipe=run.recipe,
            scaling=target.scaling, order_seed=self.order_seed or 0, initial=held.initial,
        )  # fmt: skip
        if held.initial is None:
            wanted = replace(wanted, initial=fresh_starts(target.model, count, generator))
        fleet = trained(wanted)
        observation = self.observation(target)
        seen, mine = observation.seen(run, fleet), observation.seen(run, stacked(target.weights))
        figures: dict[str, Any] = {"found": 1, "shadows": count}
        if self.method == "ridge":
            guess, label = fit_per_label(seen, public, labels)(mine, unknown_labels(target, 1))
        else:
            network = RecoNN.paper() if self.paper else self.network
            learned = fit_reconn(seen, public, network, generator=generator, labels=labels)
            guess, label = learned(mine), None
            figures |= {"loss": learned.losses[-1]}
        if target.bounds is not None:
            guess = guess.clamp(*target.bounds)
        return Candidates(
            inputs=guess.float(),
            confidence=torch.zeros(1),
            labels=label,
            status=Status.INCONCLUSIVE,
            reason="a learned reconstruction has no certificate; replay has one",
            stated=Stated(counted=1, certified=0),
            figures=figures,
        )
