"""The defence table: rows defences, columns attacks, cells recovered / of, beside the accuracy.

One release per attack that gives its records away (the row "none"), and the same release under each
defence. kkt: final weights of a network trained with weight decay to a stationary point. ntk: final
and initial weights. gradient: one gradient. informed: final weights, all records but one known.
Records are counted whose candidate correlates above .9, beside a null and the accuracy on records
that were not trained on.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from remnant.attacks import NTK, Gradient
from remnant.attacks.kkt import KKT
from remnant.capturing import capture
from remnant.experiments import private_descent as private
from remnant.experiments.informed_targets import (
    Factor,
    InformedSizes,
    Released,
    assumed_run,
    by_replay,
    release,
)
from remnant.experiments.study import Figure, Rows, Study, listed
from remnant.experiments.targets import (
    Scene,
    above,
    accuracy_on,
    attack,
    dense,
    draw_parts,
    draw_sides,
    place,
    train_scene,
)
from remnant.models import build
from remnant.scoring import THRESHOLD, score_oracle
from remnant.scoring.distances import correlation_of_pairs
from remnant.seeds import generator_for
from remnant.sweep.table import Row
from remnant.training import DecayTime, GradientDescent
from remnant.training import defences as defend
from remnant.training.private import PerRecord
from remnant.training.recipes import PrivateDescent
from remnant.types import Candidates, Examples, Scaling, Status, Target, Weights

WEIGHTS = ("kkt", "ntk", "informed")
ATTACKS = ("kkt", "ntk", "gradient", "informed")

DEFENCES: Mapping[str, tuple[float | str, ...]] = {
    "none": ("",),
    # Gaussian, a share of each tensor's deviation: of what training changed, or of the gradient.
    "noise": (0.01, 0.1, 1.0),
    # The format of the numbers that are released.
    "rounding": ("float16", "bfloat16", "sign"),
    # The share of weights or gradient entries kept, the largest.
    "pruning": (0.5, 0.1),
    # A loss, or time, so many times nearer to the start.
    "early stopping": (10,),
    # In place of gradient descent.
    "Adam": ("",),
    # Their size in place of full batches (informed: ten times it, unknown order).
    "mini-batches": (5,),
    # So many times; for a gradient that is a larger batch.
    "more records": (5, 15),
    # In place of the base's, 5e-3 for kkt and none for the others.
    "weight decay": (0.0, 5e-3),
    # The largest norm of a record's gradient, no noise.
    "clip only": (1.0,),
    # Epsilon at delta 1e-5, clip 1: of training, or of the one gradient.
    "private": (1000.0, 8.0),
}
"""Each defence and its strengths."""

# Why a defence cannot change what an attack sees. None stands for every strength.
NOT_FOR: Mapping[tuple[str, float | str | None, str], str] = {
    **{("rounding", "sign", name): "a model of signs is no model" for name in WEIGHTS},
    **{
        (kind, None, "gradient"): "one gradient is sent, whatever trains on it"
        for kind in ("early stopping", "Adam", "mini-batches", "weight decay")
    },
    **{("weight decay", 0.0, name): "trained without it" for name in ("ntk", "informed")},
    ("weight decay", 5e-3, "kkt"): "trained with it",
    ("more records", 15, "kkt"): "not measured: minutes",
    ("more records", 15, "informed"): "not measured: more than there are",
}


@dataclass(frozen=True, kw_only=True)
class ReleaseSizes:
    """How large the four releases are. width: of the first three, in place of their own."""

    records: int  # of kkt, ntk, gradient
    width: int | None = None
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
    test: int = 1000  # records that accuracies are measured on

    def wide(self, attack: str) -> int:
        own: int = getattr(self, f"{attack}_width")
        return self.width or own


def recipe_under(attack: str, kind: str, strength: Any, epochs: int, *, clip: float = 1.0) -> Any:
    """The recipe that trains an attack's target under a defence. epochs: of informed. clip: the
    largest norm of a record's gradient where training is private."""
    decay = DecayTime()
    falling = GradientDescent(lr=0.05, momentum=0.9, steps=3000, stop_loss=0.02)
    short = GradientDescent(lr=0.2, momentum=0.9, steps=epochs)
    long = GradientDescent(lr=decay.lr, weight_decay=decay.weight_decay, steps=3000)
    plain = {"kkt": long, "ntk": falling, "informed": short}[attack]
    if kind == "early stopping":
        return {
            "kkt": replace(decay, decay_time=decay.decay_time / strength),
            "ntk": replace(falling, stop_loss=0.02 * strength),
            "informed": defend.stopped_early(short, 1 / strength),
        }[attack]
    if kind == "Adam":
        return defend.by_adam(plain, lr=2e-3 if attack == "informed" else 1e-3)
    if kind == "mini-batches":  # smaller steps; for kkt as long a decay time
        rate, times, passes = {
            "kkt": (0.1, 1, 3750), "ntk": (0.02, 1, 300), "informed": (0.05, 10, epochs),
        }[attack]  # fmt: skip
        return defend.in_batches(replace(plain, lr=rate), times * strength, epochs=passes)
    if kind == "weight decay":
        return replace(plain, weight_decay=strength)
    # For ntk as many steps as the loss takes to fall to the base's.
    steps = 60 if attack == "ntk" else plain.steps
    if kind == "clip only":
        return defend.made_private(plain, noise=0.0, clip=clip, steps=steps)
    if kind == "private":
        steps = 100 if attack == "kkt" else steps
        noise = private.noise_for(strength, steps)
        return defend.made_private(plain, noise=noise, clip=clip, steps=steps)
    return decay if attack == "kkt" else plain


def perturbed(
    kind: str, strength: Any, weights: Weights, generator: torch.Generator,
    since: Weights | None = None,
) -> dict[str, Tensor]:  # fmt: skip
    """Weights or a gradient as they are let out: defences that need no other training."""
    if kind == "noise":
        return defend.noisy(weights, strength, generator=generator, since=since)
    if kind == "rounding":
        return defend.rounded(weights, strength)
    return defend.pruned(weights, strength) if kind == "pruning" else dict(weights)


def more(kind: str, strength: Any) -> int:
    return int(strength) if kind == "more records" else 1


def counted(scene: Scene, found: Candidates, accuracy: float) -> Row:
    """How many records correlate with a candidate, and how many do with held-out records scored
    alike."""
    return {
        "recovered": above(scene.truth, found.inputs, THRESHOLD),
        "records": len(scene.truth),
        "null": above(scene.truth, scene.holdout.inputs, THRESHOLD),
        "accuracy": accuracy,
        "status": str(found.status),
    }


# one release of each kind


def measure_weights(
    name: str, sizes: ReleaseSizes, kind: str, strength: Any, examples: Examples, seed: int
) -> Row:
    """kkt: final weights alone. ntk: final and initial weights."""
    sides, scaling = draw_sides(examples, sizes.records * more(kind, strength), seed)
    wide, options = sizes.wide(name), ":nobias" if name == "kkt" else ""
    text = dense(examples, wide, wide, options=options)
    scene = train_scene(
        build(text, generator=generator_for(seed, f"{name} weights")),
        sides,
        scaling,
        recipe_under(name, kind, strength, sizes.epochs),
        seed=seed,
        tell=("records", "loss") if name == "kkt" else ("records", "initial"),
        release=lambda final, initial: perturbed(
            kind, strength, final, generator_for(seed, "defence"), since=initial
        ),
    )
    how = KKT(starts=sizes.kkt_starts, steps=sizes.kkt_steps) if name == "kkt" else best_of_ntk
    found, _ = attack(how, scene.target, seed)
    return counted(scene, found, accuracy_on(scene.target, sides.public.take(range(sizes.test))))


def best_of_ntk(target: Target, *, generator: torch.Generator, most: int = 40) -> Candidates:
    """Exact, and where that gives nothing approximate, which takes minutes for over `most` records;
    their number is known."""
    found = NTK(preset="exact")(target, generator=generator)
    if len(found) or (target.knowledge.records or 0) > most:
        return found
    return NTK(preset="projected", runs=1, steps=200)(target, generator=generator)


def send(
    kind: str, strength: Any, model: nn.Module, batch: Examples, scaling: Scaling,
    generator: torch.Generator, clip: float = 1.0,
) -> dict[str, Tensor]:  # fmt: skip
    """A client's gradient under one defence. clip: the largest norm of a record's gradient."""
    if kind not in ("clip only", "private"):
        inputs = scaling.to_model(batch.inputs)
        gradient = capture(model, "ce", (inputs, batch.labels))
        return perturbed(kind, strength, gradient, generator)
    noise = private.noise_for(strength, 1) if kind == "private" else 0.0
    recipe = PrivateDescent(lr=1.0, steps=1, noise=noise, clip=clip)
    names, weights = zip(*model.named_parameters(), strict=True)
    inputs = scaling.to_model(batch.inputs)
    each = PerRecord(model=model, inputs=inputs, labels=batch.labels, recipe=recipe)
    sums, _ = each.total([w.detach() for w in weights], torch.arange(len(batch)))
    draws = [torch.randn(s.shape, generator=generator) for s in sums]
    moves = [(s + noise * clip * d) / len(batch) for s, d in zip(sums, draws, strict=True)]
    return dict(zip(names, moves, strict=True))


def measure_gradient(
    name: str, sizes: ReleaseSizes, kind: str, strength: Any, examples: Examples, seed: int
) -> Row:
    """One gradient. The adversary is told how many records there are, since noise hides it."""
    sides, scaling = draw_sides(examples, sizes.records * more(kind, strength), seed)
    wide = sizes.wide(name)
    text = dense(examples, wide, wide)
    model = build(text, generator=generator_for(seed, "gradient weights"))
    gradient = send(kind, strength, model, sides.train, scaling, generator_for(seed, "defence"))
    count = len(sides.train)
    scene = place(model, sides, scaling, gradient=gradient, records=count, loss="ce")
    found, _ = attack(Gradient(patience=5), scene.target, seed)
    return counted(scene, found, federated_accuracy(sizes, kind, strength, scene, seed))


def federated_accuracy(
    sizes: ReleaseSizes, kind: str, strength: Any, scene: Scene, seed: int
) -> float:
    """Of a model that clients train, each sending one gradient of as many records of its own."""
    model, generator = copy.deepcopy(scene.target.model), generator_for(seed, "rounds")
    test = sizes.test
    size = min(len(scene.truth), (len(scene.public) - test) // sizes.rounds)
    rate = 1e-3 if strength == "sign" else 0.3
    for k in range(sizes.rounds):
        batch = scene.public.take(range(test + k * size, test + (k + 1) * size))
        gradient = send(kind, strength, model, batch, scene.target.scaling, generator)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.sub_(gradient[name], alpha=rate)
    return accuracy_on(replace(scene.target, model=model), scene.public.take(range(test)))


def measure_informed(
    name: str, sizes: ReleaseSizes, kind: str, strength: Any, examples: Examples, seed: int
) -> Row:
    """All records but one are known, one model for each target; the null is the nearest record
    that the adversary had already. Against private training replay is told the labels."""
    known_count = sizes.known * more(kind, strength)
    targets, known, test = draw_parts(examples, seed, sizes.targets, known_count, sizes.test)
    text = dense(examples, 10, options=":elu")
    model = build(text, generator=generator_for(seed, "informed weights"))
    recipe = recipe_under(name, kind, strength, sizes.epochs)
    private_one = isinstance(recipe, PrivateDescent)
    scene = Released(
        factor=Factor(order_known=kind != "mini-batches"), fixed=known, targets=targets,
        public=known, rest=test, text=text, model=model, recipe=recipe, released={}, seed=seed,
    )  # fmt: skip
    scene = release(scene, "training" if private_one else "order")
    weights = scene.released
    if private_one:
        guess = private.by_replay(assumed_run(scene), weights, targets, sizes.evaluations)
        status = str(Status.INCONCLUSIVE)
    else:
        initial = {name: p.detach() for name, p in model.named_parameters()}
        each = [
            perturbed(
                kind, strength, {n: w[k] for n, w in weights.items()},
                generator_for(seed + k, "defence"), since=initial,
            )
            for k in range(len(targets))
        ]  # fmt: skip
        weights = {name: torch.stack([one[name] for one in each]) for name in weights}
        scene = replace(scene, released=weights)
        guess, figures = by_replay(scene, InformedSizes(evaluations=sizes.evaluations))
        status = f"{figures['certified']} certified"
    return {
        "recovered": int((correlation_of_pairs(targets.inputs, guess) > THRESHOLD).sum()),
        "records": len(targets),
        "null": int((score_oracle(targets, known.inputs).correlation > THRESHOLD).sum()),
        "accuracy": private.fleet_accuracy(model, weights, test),
        "status": status,
    }


MEASURES: Mapping[str, Callable[[str, ReleaseSizes, str, Any, Examples, int], Row]] = {
    "kkt": measure_weights,
    "ntk": measure_weights,
    "gradient": measure_gradient,
    "informed": measure_informed,
}


def why_not(kind: str, strength: float | str, attack: str) -> str | None:
    """The reason why the defence does not apply to what the attack sees, or None."""
    return NOT_FOR.get((kind, strength, attack)) or NOT_FOR.get((kind, None, attack))


def measure_defence(
    examples: Examples, *, defence: str, strength: Any, attacks: tuple[str, ...], seed: int,
    **sizes: Any,
) -> Rows:  # fmt: skip
    """One row: for each attack "recovered/of" (or "-"), its null, accuracy and status."""
    began, size, row = time.process_time(), ReleaseSizes(**sizes), Row()
    for name in ATTACKS:
        asked = name in attacks
        reason = why_not(defence, strength, name) if asked else "not asked for"
        if reason is not None:
            row |= {name: "-", f"{name}_reason": reason, f"{name}_accuracy": None}
            continue
        found = MEASURES[name](name, size, defence, strength, examples, seed)
        row[name] = f"{found['recovered']}/{found['records']}"
        row |= {f"{name}_{key}": value for key, value in found.items()}
        for key in ("recovered", "null"):
            row[f"{name}_{key}_share"] = found[key] / found["records"]
    return [row | {"cpu_seconds": round(time.process_time() - began, 2)}]


def named(rows: Rows) -> Rows:
    """With the defence and its strength as one name, and without what does not apply."""
    return [
        {key: value for key, value in row.items() if value is not None}
        | {"name": f"{row['defence']} {row['strength']}".strip()}
        for row in rows
    ]


STUDY = Study(
    title="Defences against every attack: records back, beside the accuracy",
    measure=measure_defence,
    settings={
        "defence strength": listed(DEFENCES), "attacks": ATTACKS, "records": 20, "width": None,
        "data": "mnist",
    },
    quick={
        "defence strength": [
            ("none", ""), ("noise", 0.01), ("rounding", "bfloat16"), ("early stopping", 10),
            ("clip only", 1.0), ("private", 8.0),
        ],
        "records": 10, "kkt_width": 100, "kkt_steps": 300, "ntk_width": 256, "known": 100,
        "targets": 3, "epochs": 15, "evaluations": 52, "rounds": 20,
    },
    columns=(
        "defence", "strength", *ATTACKS, *(f"{name}_accuracy" for name in ATTACKS), "cpu_seconds",
    ),
    figures=tuple(
        Figure(
            x="name",
            lines={
                f"{name}_recovered_share": "recovered",
                f"{name}_null_share": "null",
                f"{name}_accuracy": "test accuracy",
            },
            across="defence", up="share", panel=name, log_x=False, log_y=False,
        )
        for name in ATTACKS
    ),
    condense=named,
)  # fmt: skip
