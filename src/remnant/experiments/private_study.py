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
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

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
from remnant.models import build
from remnant.progress import task
from remnant.report.lines import Panel, line_panels
from remnant.scoring import nearest_public
from remnant.seeds import generator_for
from remnant.solvers.reconstructor.ridge import fit_per_label
from remnant.solvers.replay.lbfgs import minimise
from remnant.solvers.replay.solve import class_starts
from remnant.training.private import privacy
from remnant.training.private_fleet import (
    PrivateRun,
    private_end,
    share_private,
    train_private_fleet,
)
from remnant.training.recipes import PrivateDescent
from remnant.training.stacked import stacked_forward
from remnant.types import Examples, Scaling

Row = dict[str, Any]
CLIP_ONLY, NO_DP = "clip only", "no DP"
AT_ONCE = 10  # targets whose runs are differentiated together: half a gigabyte


@dataclass(frozen=True, kw_only=True)
class PrivateStudy:
    """The budgets, and the scene: 001's model, full batches, clip 1, delta 1e-5."""

    epsilons: tuple[float, ...] = (1.0, 10.0, 100.0, 1e3, 1e4, 1e5, 1e6)
    controls: tuple[str, ...] = (CLIP_ONLY, NO_DP)
    model: str = "mlp:784-10-10:elu"
    known: int = 500
    targets: int = 8
    shadows: int = 500
    test: int = 1000
    lr: float = 0.5
    momentum: float = 0.9
    steps: int = 30
    clip: float = 1.0
    delta: float = 1e-5
    evaluations: int = 40  # of replay
    near: float = 0.005  # mean squared error that counts as a reconstruction, for the bound
    candidates: int = 10  # of the other prior: one of so many
    data: tuple[str, ...] = ("mnist",)


QUICK_PRIVATE = PrivateStudy(
    epsilons=(10.0, 1e3, 1e5), known=300, targets=4, shadows=200, steps=20, evaluations=25
)


def private_cells(settings: PrivateStudy, seed: int) -> list[Row]:
    budgets = [*(f"{epsilon:g}" for epsilon in settings.epsilons), *settings.controls]
    return [{"budget": budget, "seed": seed} for budget in budgets]


def measure_private(settings: PrivateStudy, cell: Row, data: Mapping[str, Examples]) -> list[Row]:
    began = time.process_time()
    scene = make_scene(settings, cell["budget"], data[settings.data[0]], cell["seed"])
    truth = scene.targets.inputs
    pool = torch.cat([scene.known.inputs, scene.public.inputs])
    guesses = {"replay": by_replay(settings, scene), "ridge": by_ridge(scene, cell["seed"])}
    nearest = nearest_public(truth, pool)[1] / truth[0].numel()
    row = cell | {
        "epsilon": None if scene.ledger is None else float(cell["budget"]),
        "noise": scene.run.recipe.noise,
        "accuracy": accuracy(scene),
        "oracle": float(nearest.mean()),
        "targets": len(truth),
    }
    for name, guess in guesses.items():
        error = (guess - truth).flatten(1).square().mean(1)
        row[name] = float(error.mean())
        row[f"{name}_success"] = float((error < nearest).double().mean())
        row[f"{name}_near"] = int((error <= settings.near).sum())
    row |= promises(settings, scene, max(row["replay_near"], row["ridge_near"]))
    return [row | {"cpu_seconds": round(time.process_time() - began, 2)}]


@dataclass(frozen=True, kw_only=True, eq=False)
class Scene:
    """Models released for each target (k x shape each) under one budget."""

    known: Examples
    targets: Examples
    public: Examples
    test: Examples
    run: PrivateRun
    ledger: Ledger | None  # None: nothing is promised
    released: Mapping[str, Tensor]


def make_scene(settings: PrivateStudy, budget: str, data: Examples, seed: int) -> Scene:
    sizes = (settings.targets, settings.known, settings.test, settings.shadows)
    order = torch.randperm(len(data), generator=generator_for(seed, "split"))[: sum(sizes)]
    targets, known, test, public = (data.take(part) for part in order.split(sizes))
    recipe = recipe_for(settings, budget)
    books = privacy(recipe)
    model = build(settings.model, generator=generator_for(seed, "weights"))
    run = share_private(model, known, recipe, scaling=Scaling())
    noise = generator_for(seed, f"noise {budget}")
    released = train_private_fleet(
        run, targets.inputs, targets.labels, scaling=Scaling(), generator=noise
    )
    return Scene(
        known=known,
        targets=targets,
        public=public,
        test=test,
        run=run,
        ledger=None if books is None else Ledger(**books),
        released=released,
    )


def recipe_for(settings: PrivateStudy, budget: str) -> PrivateDescent:
    """The noise that the budget asks for, or one of the controls."""
    noise = 0.0
    if budget not in (CLIP_ONLY, NO_DP):
        template = Ledger(noise_multiplier=1.0, steps=settings.steps, clip=settings.clip)
        noise = noise_for_epsilon(template, float(budget), settings.delta).noise_multiplier
    return PrivateDescent(
        lr=settings.lr,
        momentum=settings.momentum,
        steps=settings.steps,
        clip=settings.clip,
        noise=noise,
        clipping=budget != NO_DP,
    )


def accuracy(scene: Scene) -> float:
    """On records that nobody trained on; the mean over the released models."""
    forward = stacked_forward(torch.nn.Sequential(*scene.run.layers))
    with torch.no_grad():
        outputs = forward(list(scene.released.values()), scene.test.inputs, True)
    return float((outputs.argmax(1) == scene.test.labels).double().mean())


def by_replay(settings: PrivateStudy, scene: Scene) -> Tensor:
    """k x shape: from the mean of each target's class."""
    classes = int(scene.run.labels.max()) + 1
    means = class_starts(scene.run.inputs, scene.run.labels, classes)
    found = []
    for at in range(0, len(scene.targets), AT_ONCE):
        part = slice(at, at + AT_ONCE)
        labels = scene.targets.labels[part]
        released = [w[part] for w in scene.released.values()]
        found.append(
            replay_private(
                scene.run, released, means[labels], labels, evaluations=settings.evaluations
            )
        )
    return torch.cat(found).reshape(scene.targets.inputs.shape).clamp(0, 1)


def replay_private(
    run: PrivateRun, released: Sequence[Tensor], starts: Tensor, labels: Tensor, *, evaluations: int
) -> Tensor:
    """K x d: the records whose noiseless runs end nearest to the released weights (K x shape)."""
    size = len(run.inputs) + 1  # one record's influence is 1 / n, hence the factor

    def objective(point: Tensor) -> tuple[Tensor, Tensor]:
        record = point.detach().requires_grad_()
        ends = private_end(run, record, labels)
        gaps = [(size * (e - r)).flatten(1) for e, r in zip(ends, released, strict=True)]
        value = torch.cat(gaps, 1).square().sum(1)
        (gradient,) = torch.autograd.grad(value.sum(), record)
        return value.detach(), gradient

    with task("replay", evaluations) as step:
        return minimise(objective, starts, evaluations=evaluations, each=step).points


def by_ridge(scene: Scene, seed: int) -> Tensor:
    """k x shape, by shadow models that were trained with each public record, privately."""
    shadows = train_private_fleet(
        scene.run,
        scene.public.inputs,
        scene.public.labels,
        scaling=Scaling(),
        generator=generator_for(seed, f"shadows {scene.run.recipe.noise:g}"),
    )
    learned = fit_per_label(seen(shadows), scene.public.inputs, scene.public.labels)
    guess, _ = learned(seen(scene.released), scene.targets.labels)
    return guess.float().clamp(0, 1)


def seen(weights: Mapping[str, Tensor]) -> Tensor:
    """k x q: all the weights of k models."""
    return torch.cat([w.flatten(1) for w in weights.values()], 1)


def promises(settings: PrivateStudy, scene: Scene, near: int) -> Row:
    """Two priors, gamma by two bounds for each, and the better attack's rate beside the first.

    `gamma`: an error of `settings.near` or less, by either of two guesses whatever, the record from
    the public records' law given its label. `gamma_of_k`: the record is one of k, and has to be
    named.
    """
    kappa = kappa_of(scene.public, settings.near)
    low, high = clopper_pearson(near, len(scene.targets), 0.975)
    row: Row = {"near": near, "near_low": low, "near_high": high, "kappa": kappa}
    kappas = {
        "gamma": math.log(kappa),
        "gamma_of_k": candidates(settings.candidates),
    }
    for name, log_kappa in kappas.items():
        for kind, bound in (("", blow_up), ("_renyi", from_renyi)):
            held = None if scene.ledger is None else math.exp(bound(scene.ledger, log_kappa))
            row[name + kind] = held
    gamma = row["gamma"]
    told = None if gamma is None else compare(near, len(scene.targets), min(gamma, 1.0))
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


LINES = {
    "test accuracy": {"accuracy": "released model"},
    "mean squared error / oracle's": {
        "replay": "replay",
        "ridge": "ridge",
        "oracle": "nearest known record",
    },
    "gamma for kappa {kappa:.2g}": {"gamma": "blow-up", "gamma_renyi": "Renyi"},
}


def plot_private(rows: Sequence[Row]) -> tuple[Panel, ...]:
    """Accuracy, errors as shares of the oracle's, and gamma; without a promise gamma is 1."""
    drawn = []
    for title, lines in LINES.items():
        for key, name in lines.items():
            for row in rows:
                height = 1.0 if row[key] is None else row[key]
                if "error" in title:
                    height /= row["oracle"]
                drawn.append(row | {"panel": title.format(**row), "line": name, "height": height})
    return line_panels(
        drawn,
        panel="panel",
        line="line",
        x="budget",
        y="height",
        across="epsilon at delta 1e-5",
        up="",
        log_x=False,
        log_y=False,
    )
