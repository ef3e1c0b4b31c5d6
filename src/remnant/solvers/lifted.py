"""Linearised targets, solved by linear algebra alone: no search, no start, no iteration.

A linearised network (000, section 3) changes by sum_i sum_k alpha_ik grad f_k(x_i) *exactly*, all
gradients at the initial weights. The last hidden layer of a ReLU network then changes by

    D = sum_i a_i h_i^T,    a_i = b_i * (V^T alpha_i),    b_i in {0, 1}^w (which neurons fire)

with V (c x w) the output layer and h_i = [features, 1]. With U a basis of D's column space,
a_i = U z_i, and a neuron is silent or has its full signal: (u_j z_i) (u_j z_i - v_j alpha_i) = 0.
That is linear in the products Z = z z^T and Y = z alpha^T. Its solutions are all mixtures
sum_i r_i (z_i z_i^T, z_i alpha_i^T), so two random ones, diagonalised together, give every z_i. The
features follow by least squares, then layer by layer down to the input, each in the span that its
own layer's change leaves.

It needs n (n + 1) / 2 + c n - n < w for n records and w neurons, and a bias in every hidden layer.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from remnant.gradients.ntk import gram
from remnant.gradients.sums import inner_products, weighted_sum
from remnant.models.stack import working
from remnant.progress import task
from remnant.solvers.layers import Dense
from remnant.solvers.numerics import best_fit
from remnant.solvers.spans import Decomposition, count_records, decompose
from remnant.types import Evidence, Weights


@dataclass(frozen=True, kw_only=True)
class Tolerances:
    """When a solution of the lifted equations is believed."""

    room: float = 30.0  # times what rounding the weights leaves: a residual below is exact
    draws: int = 3  # of noise, to see how far it moves the records: more tell it better
    safety: float = 36.0  # of squared errors: rounding is not as even as the noise that is drawn


TOLERANCES = Tolerances()


@dataclass(frozen=True, kw_only=True, eq=False)
class Lifted:
    """inputs n x d in the model's scale (flat), duals n x c, and the proof, which needs no truth.

    residual: |evidence - sum_i alpha_i grad f(x_i)| / |evidence| over *all* parameters, duals
    refitted. level: what rounding the weights alone would leave of it. gap: between the n-th
    smallest singular value of the lifted equations and the next. exact: the residual is at that
    level, so the candidates explain every number of the evidence.
    """

    inputs: Tensor
    duals: Tensor
    count: int
    gap: float
    residual: float
    level: float
    error: Tensor  # n: squared L2, to expect

    @property
    def exact(self) -> bool:
        """Whether the records explain every number of the evidence up to the rounding of the
        weights."""
        return self.residual <= TOLERANCES.room * self.level


@dataclass(frozen=True, kw_only=True)
class Stack:
    """A dense ReLU network: hidden layers, first to last, and the output layer."""

    hidden: tuple[Dense, ...]
    output: Dense


def dense_stack(model: nn.Module) -> Stack | str:
    """The model as such, or in a sentence why it is not."""
    layers = working(model)
    while layers and isinstance(layers[0][1], nn.Flatten):
        layers = layers[1:]
    found = []
    for i, (prefix, module) in enumerate(layers):
        wanted = nn.ReLU if i % 2 else nn.Linear
        if not isinstance(module, wanted):
            kind = type(module).__name__
            return f"the lifted solver needs dense layers with ReLU between them; there is {kind}"
        if isinstance(module, nn.Linear):
            if module.bias is None and i + 1 < len(layers):
                return "a hidden layer has no bias, so the scale of its features is not determined"
            bias = None if module.bias is None else f"{prefix}bias"
            found.append(Dense(weight=f"{prefix}weight", bias=bias))
    if len(found) < 2 or len(layers) % 2 == 0:
        return "the lifted solver needs a hidden layer and an output layer without activation"
    return Stack(hidden=tuple(found[:-1]), output=found[-1])


def unknowns(count: int, outputs: int) -> int:
    """How wide the last hidden layer must be for that many records and outputs."""
    return count * (count + 1) // 2 + outputs * count - count


def recover_linearised(
    model: nn.Module, evidence: Evidence, *, generator: torch.Generator, count: int | None = None
) -> Lifted | str:
    """All records of a linearised target, or a sentence on why they cannot be told.

    model: the network that was linearised. count: the number of records; None reads it off the
    first layer's spectrum. Whether the target was linearised at all need not be known: if it was
    not, the residual shows it.
    """
    stack = dense_stack(model)
    if isinstance(stack, str):
        return stack
    with task("decomposing layers"):
        parts = [decompose(layer.affine(evidence.vector)) for layer in stack.hidden]
    if count is None:
        first = stack.hidden[0]
        end = first.affine(evidence.end)
        spectrum = count_records(parts[0].values, end, evidence.precision)
        if not spectrum.clear:
            return "no gap among the singular values of the first layer's change: count unknown"
        count = spectrum.count
    head = evidence.start[stack.output.weight]
    need, width = unknowns(count, len(head)), head.shape[1]
    if need >= width:
        shape = f"{count} records and {len(head)} outputs"
        return f"{shape} need a last hidden layer wider than {need}; it has {width}"
    with task("lifted equations"):
        inputs, gap = _solve(stack, parts, count, evidence, generator)
        if inputs is None or not bool(torch.isfinite(inputs).all()):
            return "the lifted equations have no real solution: the target was not linearised"
    duals, residual = explain(model, evidence, inputs)
    return Lifted(
        error=_errors(stack, inputs, max(residual, rounding(evidence)), evidence),
        inputs=inputs,
        duals=duals,
        count=count,
        gap=gap,
        residual=residual,
        level=rounding(evidence),
    )


def _solve(
    stack: Stack,
    parts: Sequence[Decomposition],
    count: int,
    evidence: Evidence,
    generator: torch.Generator,
) -> tuple[Tensor | None, float]:
    """The records (n x d) of these decomposed changes, and the gap."""
    head = evidence.start[stack.output.weight]
    signals, gap = _signals(parts[-1].parts(count)[0], head, generator)
    if signals is None:
        return None, gap
    features = best_fit(signals, stack.hidden[-1].affine(evidence.vector))
    features = features[:, :-1] / features[:, -1:]
    return _down(stack.hidden[:-1], parts, features, evidence.start), gap


def _errors(stack: Stack, inputs: Tensor, size: float, evidence: Evidence) -> Tensor:
    """n: squared errors to expect of the inputs: how far they move under noise as large as what is
    not explained (relative `size`)."""
    total = torch.zeros(len(inputs), dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)  # its own: it changes no other result
    whole = sum(float(v.square().sum()) for v in evidence.vector.values())
    each = size * math.sqrt(whole / sum(v.numel() for v in evidence.vector.values()))
    for _ in range(TOLERANCES.draws):
        noisy = {
            name: v + each * torch.randn(v.shape, generator=generator, dtype=v.dtype)
            for name, v in evidence.vector.items()
        }
        parts = [decompose(layer.affine(noisy)) for layer in stack.hidden]
        moved, _ = _solve(stack, parts, len(inputs), replace(evidence, vector=noisy), generator)
        if moved is None:
            return torch.full_like(total, torch.inf)
        total += torch.cdist(inputs, moved).square().min(1).values / TOLERANCES.draws
    return TOLERANCES.safety * total.nan_to_num(nan=math.inf)


def _signals(left: Tensor, head: Tensor, generator: torch.Generator) -> tuple[Tensor | None, float]:
    """w x n signals a_i, up to their scales, from a basis of their space (w x n); and the gap."""
    width, n = left.shape
    basis, weights = left * width**0.5, head / head.square().mean().sqrt()
    i, j = torch.triu_indices(n, n)
    twice = torch.where(i == j, 1.0, 2.0**0.5).to(left)
    products = basis[:, i] * basis[:, j] * twice
    crossed = (basis[:, :, None] * weights.T[:, None, :]).flatten(1)
    equations = torch.cat([products, -crossed], dim=1)
    values, vectors = torch.linalg.eigh(equations.T @ equations)
    values = values.clamp(min=torch.finfo(values.dtype).eps ** 2 * values[-1])
    gap = float((values[n] / values[n - 1]).sqrt()) if n < len(values) else float("inf")
    mixtures = []
    for _ in range(2):
        mixed = vectors[:, :n] @ torch.randn(n, generator=generator, dtype=left.dtype)
        square = torch.zeros(n, n, dtype=left.dtype)
        square[i, j] = mixed[: len(i)] / twice
        mixtures.append(square + square.T - square.diagonal().diag())
    # One over the other has the z_i as eigenvectors, with the ratios of their shares as values.
    try:
        found = torch.linalg.eig(torch.linalg.solve(mixtures[1], mixtures[0], left=False))[1]
    except RuntimeError:
        return None, gap
    return _clean(basis, basis @ found.real, head), gap


def _clean(basis: Tensor, signals: Tensor, head: Tensor) -> Tensor:
    """The same signals (w x n) without the rounding of the lifted equations.

    Which neurons are silent is a matter of yes or no, and fixes a signal: the vector of the basis'
    space that vanishes on them.
    """
    cleaned = torch.zeros_like(signals)
    for i, signal in enumerate(signals.T):
        on = _firing(signal, head)
        if bool(on.all()):
            cleaned[:, i] = signal
            continue
        direction = torch.linalg.svd(basis[~on])[2][-1]
        cleaned[:, i] = (basis @ direction) * on
    return cleaned


def _firing(signal: Tensor, head: Tensor) -> Tensor:
    """w, bool: where the signal is V^T alpha rather than 0, with alpha fitted on those neurons."""
    on = signal.abs() > 0.05 * signal.abs().max()
    for _ in range(5):
        dual = best_fit(head[:, on].T, signal[on])
        full = head.T @ dual
        now = (signal * full) > 0.5 * full.square()
        if torch.equal(now, on) or int(now.sum()) <= len(head):
            break
        on = now
    return on


def _down(
    hidden: Sequence[Dense], parts: Sequence[Decomposition], features: Tensor, start: Weights
) -> Tensor:
    """From features n x w of the last hidden layer's input to the network's input, n x d.

    A neuron that fires shows its preactivation: linear equations for what went into its layer,
    which lies in the span of that layer's change.
    """
    n = len(features)
    for depth in range(len(hidden) - 1, -1, -1):
        span = parts[depth].parts(n)[2]
        seen = hidden[depth].affine(start) @ span.T
        below = []
        for row in features:
            firing = row > 1e-3 * row.max()
            whole = best_fit(seen[firing], row[firing]) @ span
            below.append(whole[:-1] / whole[-1])
        features = torch.stack(below)
    return features


def explain(model: nn.Module, evidence: Evidence, inputs: Tensor) -> tuple[Tensor, float]:
    """Duals n x c that explain the evidence best by these inputs, and the relative residual."""
    model = copy.deepcopy(model).double().eval()
    shaped = inputs.double()
    products = inner_products(model, shaped, evidence.vector, weights=evidence.start)
    kernel = gram(model, shaped, weights=evidence.start, per_class=True)
    size = products.numel()
    fit = best_fit(kernel.reshape(size, size), products.reshape(size, 1), rcond=1e-14)
    duals = fit.reshape(products.shape)
    found = weighted_sum(model, shaped, duals, weights=evidence.start)
    missing = sum(float((evidence.vector[k] - found[k]).square().sum()) for k in found)
    whole = sum(float(v.square().sum()) for v in evidence.vector.values())
    return duals.detach(), math.sqrt(missing / whole)


def rounding(evidence: Evidence) -> float:
    """The relative residual that storing both ends' weights leaves, about."""
    both = sum(
        float((evidence.start[k].square() + evidence.end[k].square()).sum())
        for k in evidence.vector
    )
    whole = sum(float(v.square().sum()) for v in evidence.vector.values())
    return evidence.precision * math.sqrt(both / 12 / whole)
