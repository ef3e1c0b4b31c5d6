"""Paper 001, Figure 9: private descent over epsilon, accuracy, what comes back, and the bounds.

Released models share their known records and differ in one target each, with noise of their own.
Both attacks know all records but the target, the initial weights, the recipe and its label,
and not the noise. `replay` runs the clipped training without noise and solves for the record whose
end is nearest to the released weights; `ridge` learns from shadow models that were trained
privately too. The oracle is the nearest record that the adversary had already.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from remnant.bounds import (
    Ledger,
    blow_up,
    candidates,
    clopper_pearson,
    compare,
    empirical,
    from_renyi,
    noise_for_epsilon,
)
from remnant.experiments.informed_targets import Factor, Released, assumed_run, release
from remnant.experiments.study import Figure, Rows, Study
from remnant.experiments.targets import dense, draw_parts
from remnant.models import build
from remnant.progress import task
from remnant.scoring import nearest_public
from remnant.seeds import generator_for
from remnant.solvers.numerics import minimise
from remnant.solvers.reconstructor.ridge import fit_per_label
from remnant.solvers.replay.run import Observation, misfit
from remnant.solvers.replay.solve import class_starts
from remnant.sweep.table import Row
from remnant.training import accuracy
from remnant.training.fleet import SharedRun
from remnant.training.private import privacy
from remnant.training.recipes import PrivateDescent
from remnant.training.stacked import stacked_forward
from remnant.types import Examples, Weights

CLIP_ONLY, NO_DP = "clip only", "no DP"


def measure_private(
    examples: Examples, *, budget: str, records: int, width: int, targets: int, shadows: int,
    test: int, lr: float, momentum: float, steps: int, clip: float, evaluations: int, near: float,
    candidates: int, seed: int,
) -> Rows:  # fmt: skip
    """One budget: an epsilon, or one of the controls.

    records: known ones. near: mean squared error that counts as a reconstruction, for the bound.
    candidates: of the other prior, one of so many.
    """
    began = time.process_time()
    unknown, known, tested, public = draw_parts(examples, seed, targets, records, test, shadows)
    recipe = recipe_for(budget, lr=lr, momentum=momentum, steps=steps, clip=clip)
    text = dense(examples, width, options=":elu")
    model = build(text, generator=generator_for(seed, "weights"))
    scene = Released(
        factor=Factor(), fixed=known, targets=unknown, public=public, rest=tested, text=text,
        model=model, recipe=recipe, released={}, seed=seed,
    )  # fmt: skip
    run, released = assumed_run(scene), release(scene, f"noise {budget}").released
    fleet = release(replace(scene, targets=public), f"shadows {recipe.noise:g}").released
    guesses = {
        "replay": by_replay(run, released, unknown, evaluations).clamp(0, 1),
        "ridge": by_ridge(run, fleet, public, released, unknown),
    }
    truth, pool = unknown.inputs, torch.cat([known.inputs, public.inputs])
    nearest = nearest_public(truth, pool)[1] / truth[0].numel()
    row: Row = {
        "epsilon": None if budget in (CLIP_ONLY, NO_DP) else float(budget),
        "noise": recipe.noise,
        "accuracy": fleet_accuracy(model, released, tested),
        "oracle": float(nearest.mean()),
        "targets": len(truth),
    }
    for name, guess in guesses.items():
        error = (guess - truth).flatten(1).square().mean(1)
        row[name] = float(error.mean())
        row[f"{name}_success"] = float((error < nearest).double().mean())
        row[f"{name}_near"] = int((error <= near).sum())
    better = max(row["replay_near"], row["ridge_near"])
    row |= promises(recipe, public, near, better, len(truth), candidates)
    return [row | {"cpu_seconds": round(time.process_time() - began, 2)}]


def recipe_for(
    budget: str, *, lr: float, momentum: float, steps: int, clip: float
) -> PrivateDescent:
    """The noise that the budget asks for, or one of the controls."""
    noise = 0.0 if budget in (CLIP_ONLY, NO_DP) else noise_for(float(budget), steps, clip)
    return PrivateDescent(
        lr=lr, momentum=momentum, steps=steps, clip=clip, noise=noise, clipping=budget != NO_DP
    )


def noise_for(budget: float, steps: int, clip: float = 1.0, delta: float = 1e-5) -> float:
    """The noise multiplier of an epsilon at `delta`, full batches."""
    template = Ledger(noise_multiplier=1.0, steps=steps, clip=clip)
    return noise_for_epsilon(template, budget, delta).noise_multiplier


def fleet_accuracy(model: nn.Module, weights: Weights, test: Examples) -> float:
    """On records that nobody trained on; the mean over the released models."""
    with torch.no_grad():
        outputs = stacked_forward(model)(list(weights.values()), test.inputs, True)
    return accuracy(outputs, test.labels)


def by_replay(
    run: SharedRun, released: Weights, targets: Examples, evaluations: int, at_once: int = 10
) -> Tensor:
    """k x shape: from the mean of each target's class, which is told. at_once: targets whose runs
    are differentiated together; ten take half a gigabyte."""
    means = class_starts(run.inputs, run.labels, int(run.labels.max()) + 1)
    found = []
    for rows in torch.arange(len(targets)).split(at_once):
        labels, weights = targets.labels[rows], [w[rows] for w in released.values()]
        starts = means[labels].flatten(1)
        found.append(replay_private(run, weights, starts, labels, evaluations=evaluations))
    return torch.cat(found).reshape(targets.inputs.shape)


def replay_private(
    run: SharedRun, released: Sequence[Tensor], starts: Tensor, labels: Tensor, *, evaluations: int
) -> Tensor:
    """K x d: the records whose noiseless runs end nearest to the released weights (K x shape)."""
    observe = Observation().of(run)
    wanted, scale = observe(released), float(run.records)  # one record's influence is 1 / n

    def objective(point: Tensor) -> tuple[Tensor, Tensor]:
        records = point.view(-1, 1, *run.inputs.shape[1:])
        value, gradient = misfit(run, records, labels[:, None], observe, wanted, scale=scale)
        return value, gradient.flatten(1)

    with task("replay", evaluations) as step:
        return minimise(objective, starts, evaluations=evaluations, each=step).points


def by_ridge(
    run: SharedRun, shadows: Weights, public: Examples, released: Weights, targets: Examples
) -> Tensor:
    """k x shape, learned from shadow models that were trained with each public record."""
    seen = partial(Observation().seen, run)
    learned = fit_per_label(seen(shadows), public.inputs, public.labels)
    guess, _ = learned(seen(released), targets.labels)
    return guess.float().clamp(0, 1)


def promises(
    recipe: PrivateDescent, public: Examples, near: float, count: int, targets: int, k: int
) -> Row:
    """Two priors, gamma by two bounds for each, and the better attack's rate beside the first.

    `gamma`: an error of `near` or less, by either of two guesses whatever, the record from the
    public records' law given its label. `gamma_of_k`: the record is one of k, and has to be named.
    count: targets that came so near.
    """
    books = privacy(recipe)
    kappa = kappa_of(public, near)
    low, high = clopper_pearson(count, targets, 0.975)
    row: Row = {"near": count, "near_low": low, "near_high": high, "kappa": kappa}
    for name, log_kappa in (("gamma", math.log(kappa)), ("gamma_of_k", candidates(k))):
        for kind, bound in (("", blow_up), ("_renyi", from_renyi)):
            held = None if books is None else math.exp(bound(Ledger(**books), log_kappa))
            row[name + kind] = held
    gamma = row["gamma"]
    told = None if gamma is None else compare(count, targets, min(gamma, 1.0))
    return row | {
        "violated": told is not None and told.violated,
        "said": "nothing is promised" if told is None else told.text,
    }


def kappa_of(public: Examples, near: float) -> float:
    """The chance of either of two guesses that know the label, for the worst label."""
    rows, labels = public.inputs.flatten(1).double(), public.labels
    radius = math.sqrt(near * rows.shape[1])
    classes = [rows[labels == c].numpy() for c in labels.unique()]
    # Of a label with a single public record nothing is known.
    each = [empirical(some, radius).high_anywhere if len(some) > 1 else 1.0 for some in classes]
    return min(2 * max(each), 1 - 1e-12)


def as_shares(rows: Rows) -> Rows:
    """Errors as shares of the oracle's; without a promise gamma is 1."""
    drawn = []
    for row in rows:
        shares = {f"{name}_share": row[name] / row["oracle"] for name in ("replay", "ridge")}
        held = {name: 1.0 if row[name] is None else row[name] for name in ("gamma", "gamma_renyi")}
        drawn.append(row | shares | held | {"oracle_share": 1.0})
    return drawn


def _panel(title: str, lines: Mapping[str, str]) -> Figure:
    return Figure(
        x="budget", lines=lines, across="epsilon at delta 1e-05", up="", panel=title,
        log_x=False, log_y=False,
    )  # fmt: skip


STUDY = Study(
    title="Private descent over epsilon: accuracy, what comes back, and the bounds",
    measure=measure_private,
    settings={
        "budget": ["1", "10", "100", "1000", "10000", "100000", "1e+06", CLIP_ONLY, NO_DP],
        "records": 500, "width": 10, "targets": 8, "shadows": 500, "test": 1000, "lr": 0.5,
        "momentum": 0.9, "steps": 30, "clip": 1.0, "evaluations": 40, "near": 0.005,
        "candidates": 10, "data": "mnist",
    },
    quick={
        "budget": ["10", "1000", "100000", CLIP_ONLY, NO_DP], "records": 300, "targets": 4,
        "shadows": 200, "steps": 20, "evaluations": 25,
    },
    columns=(
        "budget", "noise", "accuracy", "replay", "ridge", "oracle", "near", "gamma", "gamma_of_k",
        "violated", "cpu_seconds",
    ),
    figures=(
        _panel("test accuracy", {"accuracy": "released model"}),
        _panel(
            "mean squared error / oracle's",
            {"replay_share": "replay", "ridge_share": "ridge"}
            | {"oracle_share": "nearest known record"},
        ),
        _panel("gamma for kappa {kappa:.2g}", {"gamma": "blow-up", "gamma_renyi": "Renyi"}),
    ),
    condense=as_shares,
)  # fmt: skip
