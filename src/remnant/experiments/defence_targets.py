"""One release per attack that gives its records away, and the same release under each defence.

kkt: final weights of a network trained with weight decay to a stationary point. ntk: final and
initial weights. gradient: one gradient. informed: final weights, all records but one known. Each
measure returns counts of records whose candidate correlates above .9, of a null beside them, and
the accuracy on records that were not trained on.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from remnant.attacks import NTK, Gradient
from remnant.attacks.kkt import KKT
from remnant.bounds import Ledger, noise_for_epsilon
from remnant.capturing import capture
from remnant.data import Split, mean_image, split
from remnant.experiments.informed_scenes import Factor, Factors, Scene, by_replay
from remnant.experiments.private_study import replay_private
from remnant.models import build
from remnant.scoring import THRESHOLD, score, score_oracle
from remnant.scoring.distances import correlation_of_pairs
from remnant.seeds import generator_for
from remnant.solvers.replay.solve import class_starts
from remnant.training import DecayTime, GradientDescent, train
from remnant.training import defences as defend
from remnant.training.fleet import FixedStep, train_fleet
from remnant.training.private_fleet import clipped_sum, share_private, train_private_fleet
from remnant.training.recipes import PrivateDescent, Recipe
from remnant.training.stacked import stacked_forward
from remnant.types import Candidates, Examples, Knowledge, Scaling, Status, Target, Weights

Row = dict[str, Any]
DELTA, CLIP, TEST = 1e-5, 1.0, 1000
APPROXIMATE = 40  # records up to which the approximate attack is tried: more take minutes


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How large the four releases are."""

    records: int = 20  # of kkt, ntk, gradient
    kkt_width: int = 200
    kkt_starts: int = 2
    kkt_steps: int = 400
    ntk_width: int = 384
    gradient_width: int = 256
    rounds: int = 60  # federated ones, for the gradient's cost in accuracy
    known: int = 120  # of informed
    targets: int = 5
    epochs: int = 20
    evaluations: int = 72


@dataclass(frozen=True, kw_only=True, eq=False)
class Measured:
    """Records back, of how many; the null's count; accuracy of the defended model."""

    recovered: int
    records: int
    null: int
    accuracy: float
    status: str


def noise_for(epsilon: float, steps: int) -> float:
    template = Ledger(noise_multiplier=1.0, steps=steps, clip=CLIP)
    return noise_for_epsilon(template, epsilon, DELTA).noise_multiplier


def after_training(
    kind: str, strength: Any, final: Weights, initial: Weights, seed: int
) -> dict[str, Tensor]:
    """What is released of a trained model: defences that need no other training."""
    if kind == "noise":
        generator = generator_for(seed, "defence")
        return defend.noisy(final, strength, generator=generator, since=initial)
    if kind == "rounding":
        return defend.rounded(final, strength)
    return defend.pruned(final, strength) if kind == "pruning" else dict(final)


def with_weights(model: nn.Module, weights: Weights) -> nn.Module:
    mine = copy.deepcopy(model)
    mine.load_state_dict(mine.state_dict() | dict(weights))
    return mine


def accuracy_of(model: nn.Module, scaling: Scaling, test: Examples) -> float:
    with torch.no_grad():
        guess = model(scaling.to_model(test.inputs[:TEST])).argmax(1)
    return float((guess == test.labels[:TEST]).double().mean())


def counted(sides: Split, found: Candidates, accuracy: float) -> Measured:
    """Candidates against the records, and the held-out ones in their place."""

    def above(inputs: Tensor) -> int:
        return int((score(sides.train, inputs).correlation > THRESHOLD).sum())

    return Measured(
        recovered=above(found.inputs),
        records=len(sides.train),
        null=above(sides.holdout.inputs),
        accuracy=accuracy,
        status=str(found.status),
    )


def draw_sides(data: Examples, records: int, seed: int) -> tuple[Split, Scaling]:
    """Twice as many held-out records, since the attack on final weights has two candidates each."""
    sides = split(data, train=records, public=None, holdout=2 * records, seed=seed)
    return sides, Scaling(mean=mean_image(sides.public))


def finish(
    model: nn.Module, sides: Split, recipe: Recipe | PrivateDescent, scaling: Scaling, seed: int
) -> tuple[Weights, Weights]:
    """Final and initial weights of training by any recipe; private ones as a fleet of one."""
    initial = {name: p.detach().clone() for name, p in model.named_parameters()}
    generator, records = generator_for(seed, "training"), sides.train
    if not isinstance(recipe, PrivateDescent):
        return train(model, records, recipe, scaling=scaling, generator=generator).final, initial
    known, last = records.take(range(len(records) - 1)), records.take([len(records) - 1])
    run = share_private(model, known, recipe, scaling=scaling)
    stacked = train_private_fleet(
        run, last.inputs, last.labels, scaling=scaling, generator=generator
    )
    return {name: value[0] for name, value in stacked.items()}, initial


def more(kind: str, strength: Any) -> int:
    return int(strength) if kind == "more records" else 1


# Final weights alone


def kkt_recipe(kind: str, strength: Any) -> Recipe | PrivateDescent:
    base = DecayTime()
    plain = GradientDescent(lr=base.lr, weight_decay=base.weight_decay, steps=3000)
    if kind == "early stopping":
        return replace(base, decay_time=base.decay_time / strength)
    if kind == "Adam":
        return defend.by_adam(plain, lr=1e-3)
    if kind == "mini-batches":  # a smaller step, for as long a decay time
        return defend.in_batches(replace(plain, lr=0.1), strength, epochs=3750)
    if kind == "weight decay":
        return replace(plain, weight_decay=strength)
    if kind == "clip only":
        return defend.made_private(plain, noise=0.0, clip=CLIP)
    if kind == "private":
        return defend.made_private(plain, noise=noise_for(strength, 100), clip=CLIP, steps=100)
    return base


def measure_kkt(sizes: Sizes, kind: str, strength: Any, data: Examples, seed: int) -> Measured:
    sides, scaling = draw_sides(data, sizes.records * more(kind, strength), seed)
    widths = f"{math.prod(data.shape)}-{sizes.kkt_width}-{sizes.kkt_width}-{data.classes}"
    model = build(f"mlp:{widths}:nobias", generator=generator_for(seed, "kkt weights"))
    final, initial = finish(model, sides, kkt_recipe(kind, strength), scaling, seed)
    released = with_weights(model, after_training(kind, strength, final, initial, seed))
    known = Knowledge(records=len(sides.train), loss="ce")
    target = Target(model=released, input_shape=data.shape, scaling=scaling, knowledge=known)
    how = KKT(starts=sizes.kkt_starts, steps=sizes.kkt_steps)
    found = how(target, generator=generator_for(seed, "attack"))
    return counted(sides, found, accuracy_of(released, scaling, sides.public))


# Final and initial weights


def ntk_recipe(kind: str, strength: Any) -> Recipe | PrivateDescent:
    base = GradientDescent(lr=0.05, momentum=0.9, steps=3000, stop_loss=0.02)
    if kind == "early stopping":
        return replace(base, stop_loss=0.02 * strength)
    if kind == "Adam":
        return defend.by_adam(base, lr=1e-3)
    if kind == "mini-batches":
        return defend.in_batches(replace(base, lr=0.02), strength, epochs=300)
    if kind == "weight decay":
        return replace(base, weight_decay=strength)
    if kind == "clip only":  # as many steps as the loss takes to fall to the base's
        return defend.made_private(base, noise=0.0, clip=CLIP, steps=60)
    if kind == "private":
        return defend.made_private(base, noise=noise_for(strength, 60), clip=CLIP, steps=60)
    return base


def measure_ntk(sizes: Sizes, kind: str, strength: Any, data: Examples, seed: int) -> Measured:
    sides, scaling = draw_sides(data, sizes.records * more(kind, strength), seed)
    widths = f"{math.prod(data.shape)}-{sizes.ntk_width}-{sizes.ntk_width}-{data.classes}"
    model = build(f"mlp:{widths}", generator=generator_for(seed, "ntk weights"))
    final, initial = finish(model, sides, ntk_recipe(kind, strength), scaling, seed)
    released = with_weights(model, after_training(kind, strength, final, initial, seed))
    known = Knowledge(initial=initial, records=len(sides.train))
    target = Target(model=released, input_shape=data.shape, scaling=scaling, knowledge=known)
    found = best_of_ntk(target, generator_for(seed, "attack"))
    return counted(sides, found, accuracy_of(released, scaling, sides.public))


def best_of_ntk(target: Target, generator: torch.Generator) -> Candidates:
    """Exact, and where that gives nothing approximate; the number of records is known."""
    found = NTK(preset="exact")(target, generator=generator)
    if len(found) or (target.knowledge.records or 0) > APPROXIMATE:
        return found
    return NTK(preset="projected", runs=1, steps=200)(target, generator=generator)


# One gradient


def send(kind: str, strength: Any, model: nn.Module, batch: Examples, scaling: Scaling,
         generator: torch.Generator) -> dict[str, Tensor]:  # fmt: skip
    """A client's gradient under one defence."""
    inputs = scaling.to_model(batch.inputs)
    if kind in ("clip only", "private"):
        noise = noise_for(strength, 1) if kind == "private" else 0.0
        recipe = PrivateDescent(lr=1.0, steps=1, noise=noise, clip=CLIP)
        run = share_private(model, batch, recipe, scaling=scaling)
        weights = [w[None] for w in run.start]
        sums = clipped_sum(run, weights, run.inputs, run.labels, graph=False)
        draws = [torch.randn(s.shape, generator=generator) for s in sums]
        moves = [(s + noise * CLIP * d)[0] / len(batch) for s, d in zip(sums, draws, strict=True)]
        return dict(zip(run.names, moves, strict=True))
    gradient = capture(model, "ce", (inputs, batch.labels))
    if kind == "noise":
        return defend.noisy(gradient, strength, generator=generator)
    if kind == "rounding":
        return defend.rounded(gradient, strength)
    return defend.pruned(gradient, strength) if kind == "pruning" else gradient


def federated_accuracy(
    sizes: Sizes, kind: str, strength: Any, model: nn.Module, sides: Split, scaling: Scaling,
    seed: int,
) -> float:  # fmt: skip
    """Of a model that clients train, each sending one gradient of as many records of its own."""
    mine, generator = copy.deepcopy(model), generator_for(seed, "rounds")
    size = min(len(sides.train), (len(sides.public) - TEST) // sizes.rounds)
    rate = 1e-3 if strength == "sign" else 0.3
    for k in range(sizes.rounds):
        batch = sides.public.take(range(TEST + k * size, TEST + (k + 1) * size))
        gradient = send(kind, strength, mine, batch, scaling, generator)
        with torch.no_grad():
            for name, parameter in mine.named_parameters():
                parameter.sub_(gradient[name], alpha=rate)
    return accuracy_of(mine, scaling, sides.public)


def measure_gradient(sizes: Sizes, kind: str, strength: Any, data: Examples, seed: int) -> Measured:
    sides, scaling = draw_sides(data, sizes.records * more(kind, strength), seed)
    widths = f"{math.prod(data.shape)}-{sizes.gradient_width}-{sizes.gradient_width}-{data.classes}"
    model = build(f"mlp:{widths}", generator=generator_for(seed, "gradient weights"))
    gradient = send(kind, strength, model, sides.train, scaling, generator_for(seed, "defence"))
    # Noise hides where the spectrum ends, so the adversary is told how many records there are.
    known = Knowledge(gradient=gradient, records=len(sides.train), loss="ce")
    target = Target(model=model, input_shape=data.shape, scaling=scaling, knowledge=known)
    found = Gradient(patience=5)(target, generator=generator_for(seed, "attack"))
    accuracy = federated_accuracy(sizes, kind, strength, model, sides, scaling, seed)
    return counted(sides, found, accuracy)


# All records but one


def informed_recipe(sizes: Sizes, kind: str, strength: Any) -> FixedStep | PrivateDescent:
    base = GradientDescent(lr=0.2, momentum=0.9, steps=sizes.epochs)
    if kind == "early stopping":
        return defend.stopped_early(base, 1 / strength)
    if kind == "Adam":
        return defend.by_adam(base, lr=2e-3)
    if kind == "mini-batches":
        return defend.in_batches(replace(base, lr=0.05), 10 * strength)
    if kind == "weight decay":
        return replace(base, weight_decay=strength)
    if kind == "clip only":
        return defend.made_private(base, noise=0.0, clip=CLIP)
    if kind == "private":
        return defend.made_private(base, noise=noise_for(strength, sizes.epochs), clip=CLIP)
    return base


@dataclass(frozen=True, kw_only=True, eq=False)
class Informed:
    """One model for each target, trained on the known records and it."""

    model: nn.Module
    known: Examples
    targets: Examples
    sizes: Sizes
    seed: int

    def private(self, recipe: PrivateDescent) -> tuple[Weights, Tensor, str]:
        """Released weights, what replay makes of them if told the labels, and its status."""
        run = share_private(self.model, self.known, recipe, scaling=Scaling())
        inputs, labels = self.targets.inputs, self.targets.labels
        noise = generator_for(self.seed, "training")
        weights = train_private_fleet(run, inputs, labels, scaling=Scaling(), generator=noise)
        starts = class_starts(run.inputs, run.labels, int(run.labels.max()) + 1)[labels]
        guess = replay_private(
            run, list(weights.values()), starts, labels, evaluations=self.sizes.evaluations
        )
        return weights, guess.reshape(inputs.shape), str(Status.INCONCLUSIVE)

    def plain(self, recipe: FixedStep, kind: str, strength: Any) -> tuple[Weights, Tensor, str]:
        """The same of other recipes; replay tells the labels itself."""
        trained = train_fleet(
            self.model, self.known, self.targets.inputs, self.targets.labels, recipe,
            scaling=Scaling(), generator=generator_for(self.seed, "order"),
        )  # fmt: skip
        initial = {name: p.detach() for name, p in self.model.named_parameters()}
        each = [
            after_training(
                kind, strength, {n: w[k] for n, w in trained.items()}, initial, self.seed + k
            )
            for k in range(len(self.targets))
        ]
        weights = {name: torch.stack([one[name] for one in each]) for name in trained}
        scene = Scene(
            factor=Factor(order_known=kind != "mini-batches"), fixed=self.known,
            targets=self.targets, public=self.known, model=self.model, recipe=recipe,
            released=weights, seed=self.seed,
        )  # fmt: skip
        guess, figures = by_replay(scene, Factors(evaluations=self.sizes.evaluations))
        return weights, guess, f"{figures['certified']} certified"


def measure_informed(sizes: Sizes, kind: str, strength: Any, data: Examples, seed: int) -> Measured:
    """The null is the nearest record that the adversary had already."""
    counts = (sizes.targets, sizes.known * more(kind, strength), TEST)
    order = torch.randperm(len(data), generator=generator_for(seed, "split"))[: sum(counts)]
    targets, known, test = (data.take(part) for part in order.split(counts))
    text = f"mlp:{math.prod(data.shape)}-10-{data.classes}:elu"
    model = build(text, generator=generator_for(seed, "informed weights"))
    scene = Informed(model=model, known=known, targets=targets, sizes=sizes, seed=seed)
    recipe = informed_recipe(sizes, kind, strength)
    if isinstance(recipe, PrivateDescent):
        weights, guess, status = scene.private(recipe)
    else:
        weights, guess, status = scene.plain(recipe, kind, strength)
    with torch.no_grad():
        outputs = stacked_forward(model)(list(weights.values()), test.inputs, True)
    return Measured(
        recovered=int((correlation_of_pairs(targets.inputs, guess) > THRESHOLD).sum()),
        records=len(targets),
        null=int((score_oracle(targets, known.inputs).correlation > THRESHOLD).sum()),
        accuracy=float((outputs.argmax(1) == test.labels).double().mean()),
        status=status,
    )


MEASURES: Mapping[str, Callable[[Sizes, str, Any, Examples, int], Measured]] = {
    "kkt": measure_kkt,
    "ntk": measure_ntk,
    "gradient": measure_gradient,
    "informed": measure_informed,
}
