"""The best duals for given candidates: each layer's misfit is quadratic in them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from scipy.optimize import nnls
from torch import Tensor

from remnant.solvers.kkt.duals import Duals
from remnant.solvers.kkt.optimisers import Moment
from remnant.solvers.kkt.problem import Pass, Problem, Term, forward, signals

RIDGE = 1e-6  # of the Gram matrix's mean diagonal: candidates may be alike


def best_duals(problem: Problem, duals: Duals, s: Tensor, raw: Tensor, at: Moment) -> Tensor:
    """Raw duals at which the misfit is least for these candidates: non-negative least squares."""
    with torch.no_grad():
        seen = forward(problem, s)
        direction = duals.directions(raw, seen.outputs[-1])
        arrived = signals(problem, seen, direction, at.sharpness, at.spreads)
        grams, sides = normal_equations(problem, seen, arrived, s.shape[1], at.whiten)
    free, solved = duals.objective == "free", []
    for gram, side in zip(grams.double(), sides.double(), strict=True):
        eye = torch.eye(len(gram), dtype=torch.float64)
        factor = torch.linalg.cholesky(gram + RIDGE * gram.diagonal().mean() * eye)
        right = torch.linalg.solve_triangular(factor, side[:, None], upper=False)
        if free:
            solved.append(torch.linalg.solve_triangular(factor.T, right, upper=True)[:, 0])
        else:
            solved.append(torch.from_numpy(nnls(factor.T.numpy(), right[:, 0].numpy())[0]))
    values = torch.stack(solved)
    if not free:
        return duals.raw(values).to(s)
    if duals.outputs == 1:
        return values.to(s)
    length: Tensor = raw.norm(dim=2, keepdim=True).clamp(min=1e-12)
    return raw * (values.to(raw)[..., None] / length)


def normal_equations(
    problem: Problem, seen: Pass, arrived: list[Tensor], m: int, whiten: float
) -> tuple[Tensor, Tensor]:
    """k x m x m and k x m: all layers' misfit is constant - 2 side . dual + dual . gram dual."""
    gram, side = torch.tensor(0.0), torch.tensor(0.0)
    for i, (term, h, d) in enumerate(zip(problem.terms, seen.inputs, arrived, strict=True)):
        h, d = (x.view(-1, m, *x.shape[1:]) for x in (h, d))
        unit = 1.0
        if term.conv:
            more, target = _conv_products(term, h, d)
        else:
            weights = h.new_ones(h.shape[2])
            if i == 0 and problem.scale is not None:
                weights = (problem.scale ** (-2 * whiten)).to(h)
                held = term.left.square()
                unit = float((held * weights).sum() / held.sum())
            whole = term.left if term.right is None else term.left @ term.right
            more = (d @ d.transpose(1, 2)) * ((h * weights) @ h.transpose(1, 2))
            target = ((d @ (whole * weights)) * h).sum(2)
        if term.bias_target is not None:
            own = d.flatten(3).sum(3) if term.conv else d
            more = more + unit * own @ own.transpose(1, 2)
            target = target + unit * own @ term.bias_target
        gram, side = gram + more / (unit * term.norm), side + target / (unit * term.norm)
    return gram, side


def _conv_products(term: Term, h: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    """Between candidates, and with the weights, of each candidate's own gradient."""
    size = (term.left.shape[2], term.left.shape[3])
    patches = F.unfold(h.flatten(0, 1), size, padding=term.padding, stride=term.stride)
    own = (d.flatten(0, 1).flatten(2) @ patches.transpose(1, 2)).flatten(1).view(*h.shape[:2], -1)
    return own @ own.transpose(1, 2), own @ term.left.flatten()
