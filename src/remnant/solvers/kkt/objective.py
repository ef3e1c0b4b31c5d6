"""Stationarity as a misfit between a network's weights and gradients at candidates.

    theta = sum_i lambda_i grad_theta <direction_i, f(x_i)>          (003, 004)

Layer by layer W_l = sum_i lambda_i d_il h_il^T with inputs h and signals d; each layer's squared
misfit is divided by |W_l|^2. Three consequences tell a candidate from a record one by one, which
the misfit of all together does not once there are hundreds:

- W1 = sum_i lambda_i d_i1 x_i^T, so records lie in W1's row space, where candidates are sought;
- for the same reason every d_i1 on its own lies in W1's column space (`outside_columns`);
- and every h_i in the row space of the layer that it enters (`outside_rows`).

`k` independent starts of `m` candidates are carried through at once. What all candidates add up to
(`Parts.sums`) is kept apart from what is held against each, so that a step can take them in blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from remnant.solvers.kkt.duals import Duals
from remnant.solvers.kkt.problem import Problem


@dataclass(frozen=True, kw_only=True)
class Weights:
    """The weights, at one step of the descent, of what counts against candidates besides the misfit
    of all together.

    sharpness: of the smoothed ReLU's slope, in units of pre-activations. whiten: power of the first
    layer's singular values by which its misfit is divided. columns, rows: of the share of a
    candidate's own signal, or features, outside the spaces that hold the records'. sizes: of
    coordinates, against the sizes that are expected of them.
    """

    sharpness: float
    whiten: float
    columns: float
    rows: float
    box: float
    sizes: float
    variation: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Pass:
    """Inputs and pre-activations of every layer at km candidates; the last are the outputs."""

    inputs: list[Tensor]
    outputs: list[Tensor]

    def spreads(self) -> list[float]:
        """The deviation of each hidden layer's pre-activations: the unit of their smoothing."""
        return [float(z.detach().std()) or 1.0 for z in self.outputs[:-1]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Parts:
    """The parts of the objective. sums: for each layer what all candidates add up to, and for
    its bias if there is one. apart: k, the weighted sum of what counts against each candidate by
    itself."""

    sums: list[Tensor]
    apart: Tensor


def forward(problem: Problem, s: Tensor) -> Pass:
    """One pass through the layers at coordinates s (k x m x r); the rows of its matrices are the
    k m candidates."""
    h = s.flatten(0, 1)
    inputs: list[Tensor] = []
    outputs: list[Tensor] = []
    for i, term in enumerate(problem.terms):
        if i:
            h = outputs[-1].relu()
        if term.conv and i == 0:
            h = h.view(-1, *problem.input_shape)
        elif not term.conv:
            h = h.flatten(1)
        inputs.append(h)
        outputs.append(term.forward(h))
    return Pass(inputs=inputs, outputs=outputs)


def signals(
    problem: Problem, seen: Pass, direction: Tensor, sharpness: float, spreads: Sequence[float]
) -> list[Tensor]:
    """For each layer the derivative, along each candidate's direction, by what the layer
    returns (before batch norm, if there is any); ReLU's slope is smoothed to
    sigmoid(sharpness z / spread)."""
    found = [direction]
    for i in range(len(problem.terms) - 1, 0, -1):
        z = seen.outputs[i - 1]
        arrived = problem.terms[i].back(found[0], seen.inputs[i].shape).view_as(z)
        arrived = arrived * torch.sigmoid(sharpness / spreads[i - 1] * z)
        factor = problem.terms[i - 1].factor
        found.insert(0, arrived if factor is None else arrived * factor)
    return found


def sums(problem: Problem, seen: Pass, arrived: Sequence[Tensor], dual: Tensor) -> list[Tensor]:
    """Per layer sum_i dual_i d_il h_il^T, k x o x i (in low rank: the part in the layer's columns),
    and sum_i dual_i d_il where it has a bias."""
    k, m = dual.shape
    found = []
    for term, h, d in zip(problem.terms, seen.inputs, arrived, strict=True):
        d = d.reshape(k, m, *d.shape[1:]) * dual.view(k, m, *[1] * (d.ndim - 1))
        if term.conv:
            size = (term.left.shape[2], term.left.shape[3])
            patches = F.unfold(h, size, padding=term.padding, stride=term.stride)
            patches = patches.view(k, m, *patches.shape[1:])
            found.append(torch.einsum("kmop,kmip->koi", d.flatten(3), patches))
        else:
            seen_by = d if term.right is None else d @ term.left
            found.append(seen_by.transpose(1, 2) @ h.reshape(k, m, -1))
        if term.bias_target is not None:
            found.append(d.flatten(3).sum(3).sum(1) if term.conv else d.sum(1))
    return found


def misfits(problem: Problem, totals: Sequence[Tensor], whiten: float) -> Tensor:
    """k x layers: |W_l - total|^2 / |W_l|^2, the bias beside the weights."""
    left = list(totals)
    found = []
    for i, term in enumerate(problem.terms):
        target = term.left if term.right is None else term.right
        residual = (target.flatten(1) - left.pop(0)).square()
        unit = 1.0
        if i == 0 and problem.scale is not None:
            factor = (problem.scale ** (-2 * whiten)).to(residual)
            held = target.square()
            unit = float((held * factor).sum() / held.sum())  # the bias keeps its share
            residual = residual * factor
        total = residual.sum((1, 2))
        if term.bias_target is not None:
            total = total + unit * (term.bias_target - left.pop(0)).square().sum(1)
        found.append(total / (unit * term.norm))
    return torch.stack(found, dim=1)


def outside_columns(problem: Problem, arrived: Sequence[Tensor], dual: Tensor) -> Tensor:
    """k x m: the share of each record's own signal outside the first dense layer's columns."""
    d = arrived[problem.first_dense].view(*dual.shape, -1)
    inside = (d @ problem.columns).square().sum(2)
    return 1 - inside / d.square().sum(2).clamp(min=torch.finfo(d.dtype).tiny)


def outside_rows(problem: Problem, seen: Pass, dual: Tensor) -> Tensor:
    """k x m: the share of a candidate's features outside the row space of the layer they enter,
    summed over layers whose row space says where records are."""
    found = dual.new_zeros(dual.shape)
    for i, rows in problem.rows.items():
        h = seen.inputs[i]
        whole = h.square().sum(1).clamp(min=torch.finfo(h.dtype).tiny)
        found = found + (1 - (h @ rows.T).square().sum(1) / whole).view_as(dual)
    return found


def box_misfit(problem: Problem, s: Tensor, pixels: Tensor | None) -> Tensor:
    """k x m: squared violation of the box over all pixels; `pixels`: judged by these alone."""
    if problem.low is None or problem.high is None:
        return s.new_zeros(s.shape[:2])
    low, high = problem.low, problem.high
    if pixels is None or problem.basis is None:
        x, share = problem.inputs(s), 1.0
    else:
        x, share = s @ problem.basis[pixels].T, len(pixels) / len(low)
        low, high = low[pixels], high[pixels]
    return (x - x.clamp(low, high)).square().sum(2) / share


def variation(problem: Problem, s: Tensor) -> Tensor:
    """k x m: mean absolute difference of neighbouring pixels."""
    x = problem.inputs(s)
    x = x.view(*x.shape[:2], *problem.input_shape)
    down, across = x.diff(dim=-2).abs(), x.diff(dim=-1).abs()
    return down.flatten(2).mean(2) + across.flatten(2).mean(2)


@dataclass(frozen=True, kw_only=True, eq=False)
class Objective:
    """The objective at one step of the descent. pixels: those that are held against the box,
    None for all. spreads: of the hidden layers' pre-activations, as they were when last
    computed."""

    problem: Problem
    duals: Duals
    weights: Weights
    spreads: list[float]
    pixels: Tensor | None = None

    def parts(self, u: Tensor, raw: Tensor, all_duals: Tensor, whole: int) -> Parts:
        """Of candidates u (k x m x r, in units of expected sizes) with raw duals, some of `whole`.

        all_duals: k, the sum of all candidates' duals, by whose share each counts.
        """
        problem, by = self.problem, self.weights
        s = u * problem.sizes
        seen, dual = forward(problem, s), self.duals.values(raw)
        direction = self.duals.directions(raw, seen.outputs[-1])
        arrived = signals(problem, seen, direction, by.sharpness, self.spreads)
        share = dual.detach().abs() / all_duals[:, None]
        apart = by.columns * (share * outside_columns(problem, arrived, dual)).sum(1)
        if problem.rows:
            apart = apart + by.rows * (share * outside_rows(problem, seen, dual)).sum(1)
        apart = apart + by.box * box_misfit(problem, s, self.pixels).sum(1) / whole
        apart = apart + by.sizes * u.square().mean(2).sum(1) / whole
        if by.variation:
            apart = apart + by.variation * variation(problem, s).sum(1) / whole
        return Parts(sums=sums(problem, seen, arrived, dual), apart=apart)

    def gradient(self, u: Tensor, raw: Tensor, rows: int) -> tuple[Tensor, Tensor, Tensor]:
        """The value of each start and the gradient by u and raw, `rows` candidates at a time."""
        m, size = u.shape[1], max(1, rows // len(u))
        all_duals = self.duals.values(raw.detach()).abs().sum(1)
        cut = [self._some(u, raw, slice(a, a + size)) for a in range(0, m, size)]
        if len(cut) > 1:
            return self._in_blocks(cut, all_duals, m)
        mine, at, r = cut[0]
        parts = mine.parts(at, r, all_duals, m)
        value = self._misfit(parts.sums) + parts.apart
        du, dr = torch.autograd.grad(value.sum(), [at, r])
        return value.detach(), du, dr

    def _misfit(self, totals: Sequence[Tensor]) -> Tensor:
        return misfits(self.problem, totals, self.weights.whiten).sum(1)

    def _in_blocks(
        self, cut: Sequence[tuple[Objective, Tensor, Tensor]], all_duals: Tensor, m: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The sums of all blocks first; then each block's part of the gradient is that of its own
        sums times the misfit's slope there. Half as long again, and one block's memory."""
        totals: list[Tensor] = []
        with torch.no_grad():
            for mine, at, r in cut:
                more = mine.parts(at, r, all_duals, m).sums
                totals = [a + b for a, b in zip(totals, more, strict=True)] if totals else more
        totals = [t.requires_grad_() for t in totals]
        misfit = self._misfit(totals)
        slopes = torch.autograd.grad(misfit.sum(), totals)
        value, du, dr = misfit.detach(), [], []
        for mine, at, r in cut:
            parts = mine.parts(at, r, all_duals, m)
            along = [(a * b).sum() for a, b in zip(parts.sums, slopes, strict=True)]
            one, two = torch.autograd.grad(torch.stack(along).sum() + parts.apart.sum(), [at, r])
            value = value + parts.apart.detach()
            du.append(one)
            dr.append(two)
        return value, torch.cat(du, dim=1), torch.cat(dr, dim=1)

    def _some(self, u: Tensor, raw: Tensor, some: slice) -> tuple[Objective, Tensor, Tensor]:
        duals = replace(self.duals, labels=self.duals.labels[some])
        at, r = (t.detach()[:, some].contiguous().requires_grad_() for t in (u, raw))
        return replace(self, duals=duals), at, r
