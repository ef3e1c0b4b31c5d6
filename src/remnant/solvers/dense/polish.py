"""All points of a smooth network at once, along the path that its training took.

The next layer's change is sum_t d_i(t) [f(W(t) y_i), 1]^T. With the first layer's path W(t) known,
that is linear in the signals d_i(t), which are solved for, and nearly linear in the points: a
least-squares problem without a search, which rounding hardly disturbs. The path is that of a run
again from the points themselves (`rerun`), bent so that it ends at the released weights; so that
better points give a better path, and so on, while the run ends ever nearer to those weights.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from scipy.sparse.linalg import LinearOperator, lsmr
from torch import Tensor, nn

from remnant.models.stack import leaves
from remnant.progress import task
from remnant.solvers.dense.certificate import spread_of
from remnant.solvers.dense.exact import Recovery, duals_of
from remnant.solvers.dense.rerun import (
    Budget,
    Fit,
    Training,
    fit_recipe,
    fit_steps,
    guesses,
    run_again,
    with_steps,
)
from remnant.solvers.dense.smooth import images_of, tangent
from remnant.solvers.dense.tolerances import TOLERANCES
from remnant.solvers.layers import Pair, read_labels
from remnant.solvers.numerics import slope_at
from remnant.solvers.spans import Span
from remnant.training.recipes import SGD, GradientDescent
from remnant.types import Evidence, Target


def polished(
    target: Target, evidence: Evidence, pair: Pair, span: Span, recovery: Recovery
) -> Recovery:
    """The recovery with better points, if all were found and full-batch descent from them ends at
    the released weights; else the recovery itself."""
    told = target.knowledge.recipe
    tail = tail_after(target.model, pair)
    if recovery.duals is None or tail is None:
        return recovery
    if not isinstance(told, GradientDescent | SGD | None):
        return recovery
    y = torch.nn.functional.pad(recovery.inputs, (0, 1), value=1.0) @ span.right.T
    training = training_of(tail, evidence, pair, span, torch.zeros(len(y), dtype=torch.long))
    inputs = recovery.inputs.reshape(-1, *target.input_shape)
    read = read_labels(target.model, evidence, inputs, recovery.duals)
    known = target.knowledge.loss if told is None else told.loss
    outputs = final_outputs(training, y)
    losses = ("bce", "mse") if outputs.shape[1] == 1 else ("ce", "mse")
    for labels in likely_labels(outputs, read):
        for loss in losses if known is None else (known,):
            better = polish(
                pair.activation,
                replace(training, labels=labels),
                pair.next.affine(evidence.vector),
                span.right[:, -1],
                y,
                loss=loss,
                # The order of mini-batches is not known: small steps are those of a full batch.
                told=told if isinstance(told, GradientDescent) else None,
            )
            if better is not None and better.error < float(recovery.error.max()):
                told_apart = labels if outputs.shape[1] > 1 else None
                result = replace(with_points(recovery, better, span), labels=told_apart)
                if int(result.passed.sum()) >= int(recovery.passed.sum()):
                    return result
    return recovery


def final_outputs(training: Training, y: Tensor) -> Tensor:
    """n x c: what the released model says of points y (n x n)."""
    with torch.no_grad():
        return training.outputs(training.end, y.to(training.end[0]))


def likely_labels(outputs: Tensor, read: Tensor | None) -> list[Tensor]:
    """Guesses of the records' labels, the likelier first: what the released model says of them,
    then what their duals say."""
    if outputs.shape[1] == 1:
        return [(outputs[:, 0] > 0).long()]
    said = outputs.argmax(1)
    return [said] if read is None or torch.equal(said, read) else [said, read]


def with_points(recovery: Recovery, better: Polished, span: Span) -> Recovery:
    """The recovery with the polished points, and the error that these are stated with."""
    error = torch.full_like(recovery.confidence, better.error)
    sure = error < TOLERANCES.sure * spread_of(better.y)
    return replace(
        recovery,
        inputs=(better.y @ span.right)[:, :-1],
        duals=duals_of(span.left, span.scale, better.y),
        passed=sure,
        confidence=(1 - better.fit.gap) * (0.5 + 0.5 * sure),
        error=error,
        rerun=better.fit,
    )


def tail_after(model: nn.Module, pair: Pair) -> nn.Sequential | None:
    """The layers after the first dense one, in float32; None where others are trained before it."""
    if next(iter(model.named_parameters()))[0] != pair.first.weight:
        return None
    layers = list(leaves(model))
    first = next(
        i for i, (prefix, _) in enumerate(layers) if f"{prefix}weight" == pair.first.weight
    )
    return (
        copy.deepcopy(nn.Sequential(*(module for _, module in layers[first + 1 :]))).float().eval()
    )


def training_of(
    tail: nn.Sequential, evidence: Evidence, pair: Pair, span: Span, labels: Tensor
) -> Training:
    """Both ends of the training, the first layer seen from the records' span. In float32, which is
    twice as fast and exact enough to tell how a run ends."""
    later = [n for n in evidence.start if n not in (pair.first.weight, pair.first.bias)]
    ends = [
        [(pair.first.affine(weights) @ span.right.T).float(), *(weights[n].float() for n in later)]
        for weights in (evidence.start, evidence.end)
    ]
    names = tuple(name for name, _ in tail.named_parameters())
    return Training(tail=tail, names=names, start=ends[0], end=ends[1], labels=labels)


@dataclass(frozen=True, kw_only=True, eq=False)
class Polished:
    """Points (n x n), the recipe that explains the weights with them, and how far it ends off."""

    y: Tensor
    fit: Fit
    moved: float  # the farthest that a point moved in the last step, squared

    @property
    def error(self) -> float:
        """The squared error of a record to expect at most, in spreads: the last step, since each
        step halves the error; and a multiple of the squared gap, which the worst record's error
        stayed below in all measured runs."""
        return TOLERANCES.safety * self.fit.gap**2 * spread_of(self.y) + self.moved


@dataclass(frozen=True, kw_only=True, eq=False)
class Layers:
    """What is to be explained: the next layer's change (v x (w+1), or v x w without a bias)."""

    activation: nn.Module
    training: Training
    change: Tensor
    moves: Tensor  # n x m: directions in which a point may move
    free: bool  # the number of steps is not told
    budget: Budget


def polish(
    activation: nn.Module,
    training: Training,
    change: Tensor,
    last: Tensor,
    y: Tensor,
    *,
    loss: str,
    told: GradientDescent | None = None,
    rounds: int = 12,
    falls: float = 0.9,
    enough: float = 1e-5,
    far: float = 0.3,
) -> Polished | None:
    """Points nearer to the records than y (n x n), or None where no run explains the weights.

    change: as in `Layers`. last: n, with y . last the bias' 1. told: the recipe, where it is known.
    A run that ends farther than `far` from the released weights explains nothing; rounds end once
    the squared error to expect is below `enough` spreads, or one lowers the gap by less than the
    factor `falls`.
    """
    free = told is None or told.stop_loss is not None  # then its steps are only the most
    layers = Layers(
        activation=activation,
        training=training,
        change=change,
        moves=tangent(last),
        free=free,
        budget=Budget(),
    )
    with task("running the training again", rounds) as step:
        firsts = guesses(loss, told) if told is None or free else [told]
        if firsts[0].steps > layers.budget.steps:
            return None
        fits = [fit_recipe(training, y, first, layers.budget) for first in firsts]
        fit = with_strides(layers, y, min(fits, key=lambda fit: fit.gap), (2, 4, 8))
        best = Polished(y=y, fit=fit, moved=0.0)
        for _ in range(rounds):
            step(note=f"ends {best.fit.gap:.0e} off")
            if best.fit.gap > far or best.error < enough * spread_of(best.y):
                break
            trials = (moved(layers, best, *one) for one in tries(layers, best.fit.recipe))
            better = next((one for one in trials if one.fit.gap < falls * best.fit.gap), None)
            if better is None:
                break
            best = better
    return best if best.fit.gap < far else None


def tries(layers: Layers, recipe: GradientDescent) -> Iterator[tuple[GradientDescent, float]]:
    """Recipes for the path, and how exactly to solve for points along it, while budget lasts.

    Similar records are told apart by a step that is solved more exactly, which carries points away
    while the path is off; so it comes second. Points that were fitted with a wrong number of steps
    hold on to it, so other numbers come last.
    """
    roughly, closely = 1e-4, 1e-5
    strides = dict.fromkeys((max(1, recipe.steps // 8), 1))
    others = [recipe.steps + sign * stride for stride in strides for sign in (-1, 1)]
    chosen = [(recipe, exactness) for exactness in (roughly, closely)]
    chosen += [(with_steps(recipe, s), roughly) for s in others if layers.free and s > 0]
    return (one for one in chosen if layers.budget.steps > 0)


def moved(layers: Layers, best: Polished, recipe: GradientDescent, exactness: float) -> Polished:
    """One step of the points along the path of the recipe, and the recipe that fits best
    afterwards; its number of steps is tried anew only where the gap falls slowly."""
    path = path_of(layers.training, best.y, recipe, layers.budget)
    y = fit_points(layers, path, best.y, exactness)
    fit = fit_recipe(layers.training, y, recipe, layers.budget)
    if fit.gap > 0.7 * best.fit.gap:
        fit = with_strides(layers, y, fit, (8, 1000))
    return Polished(y=y, fit=fit, moved=float((y - best.y).square().sum(1).max()))


def with_strides(layers: Layers, y: Tensor, fit: Fit, parts: Sequence[int]) -> Fit:
    """The number of steps too, changed by each part of it in turn, unless it is told."""
    strides = [max(1, fit.recipe.steps // part) for part in parts] if layers.free else []
    return fit_steps(layers.training, y, fit, layers.budget, strides)


def path_of(
    training: Training, y: Tensor, recipe: GradientDescent, budget: Budget, *, knots: int = 24
) -> list[Tensor]:
    """The first layer's weights (w x n) at `knots` of the run, bent to end at the released ones."""
    path = [training.start[0].double()]
    run_again(training, y, recipe, budget, lambda knot: path.append(knot.double()))
    way = torch.stack([(knot - path[0]).norm() for knot in path])
    share = way.cummax(0).values / way.max().clamp(min=1e-300)
    wanted = torch.linspace(0, 1, min(knots, len(path)), dtype=torch.float64)
    chosen = torch.searchsorted(share, wanted).clamp(max=len(path) - 1).unique()
    miss = training.end[0] - path[-1]
    return [path[k] + share[k] * miss for k in chosen.tolist()]


def fit_points(layers: Layers, path: list[Tensor], y: Tensor, exactness: float) -> Tensor:
    """y (n x n) of the features along the path that explain the change best, signals free.

    One Gauss-Newton step, whose least squares are solved to `exactness`.
    """
    activation, change = layers.activation, layers.change
    along = [y @ knot.T for knot in path]
    images = torch.cat([images_of(activation, t, change.shape[1]) for t in along])  # (q n) x (w+1)
    left, sizes, right = torch.linalg.svd(images, full_matrices=False)
    kept = sizes > 1e-6 * sizes[0]  # directions that the features have, beside rounding
    kept[change.shape[1] // 2 :] = False  # or nothing would be left to tell points by
    inside = change @ right[kept].T
    operator = Sensitivity(
        right=right[kept],
        signals=inside @ (left[:, kept] / sizes[kept]).T,
        slopes=[slope_at(activation, t) for t in along],
        frames=[knot @ layers.moves for knot in path],
    )
    rest = change - inside @ right[kept]
    linear, wanted = operator.linear(), rest.flatten().numpy()
    step = lsmr(linear, wanted, atol=exactness, btol=exactness, maxiter=200)[0]
    return y + torch.as_tensor(step).reshape(len(y), -1) @ layers.moves.T


@dataclass(frozen=True, kw_only=True, eq=False)
class Sensitivity:
    """How the explained change answers to moves e (n x m) of the points, signals free.

    It moves by sum over knots of signals^T (slope * (e frame^T)), but for what other signals take
    up: the part in the features' space, spanned by `right` (r x (w+1)).
    """

    right: Tensor
    signals: Tensor  # v x (q n)
    slopes: list[Tensor]  # n x w each
    frames: list[Tensor]  # w x m each

    def forth(self, e: Tensor) -> Tensor:
        """v x (w+1) of e (n x m)."""
        rows = [s * (e @ frame.T) for s, frame in zip(self.slopes, self.frames, strict=True)]
        return self.signals @ self.outside(torch.cat(rows))

    def outside(self, rows: Tensor) -> Tensor:
        """k x (w+1): without the features' space; a bias feels no move."""
        padded = torch.nn.functional.pad(rows, (0, self.right.shape[1] - rows.shape[1]))
        return padded - (padded @ self.right.T) @ self.right

    def back(self, rest: Tensor) -> Tensor:
        """n x m of rest (v x (w+1)): the transpose of `forth`."""
        width = self.frames[0].shape[0]
        rows = self.outside(self.signals.T @ rest)[:, :width].split(len(self.slopes[0]))
        parts = zip(rows, self.slopes, self.frames, strict=True)
        return torch.stack([(row * s) @ frame for row, s, frame in parts]).sum(0)

    def linear(self) -> LinearOperator:
        n, m = len(self.slopes[0]), self.frames[0].shape[1]
        v, wide = len(self.signals), self.right.shape[1]
        return LinearOperator(
            (v * wide, n * m),
            matvec=lambda e: self.forth(torch.as_tensor(e).reshape(n, m)).flatten().numpy(),
            rmatvec=lambda r: self.back(torch.as_tensor(r).reshape(v, wide)).flatten().numpy(),
            dtype=float,
        )
