"""The fallback where nothing exact applies: paper 000's objective with its duals projected out.

For given images the best duals are a least-squares problem, K alpha = <grad f(x_j), evidence>, so
only images are searched for (variable projection); the gradient in them is the partial one, at
those duals. Where the first layer is dense its change spans the records, nearly so after Adam, and
candidates are held in that span. Several independent starts run; what they agree on comes first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from remnant.checkpoints import checkpoint
from remnant.errors import InputError, expected
from remnant.gradients.ntk import gram
from remnant.gradients.sums import inner_products
from remnant.models.stack import working
from remnant.progress import Step, task
from remnant.solvers.consensus import cluster
from remnant.solvers.descent.images import draw
from remnant.solvers.descent.paper import Objective, objective
from remnant.solvers.numerics import damped_cholesky
from remnant.types import Evidence


@dataclass(frozen=True, kw_only=True)
class Projected:
    """Settings of the search."""

    features: Literal["initial", "final"] = "initial"  # the final ones fit, and find, far less
    starts: int = 4
    steps: int = 400  # in each start
    lr: float = 0.05  # falls to 0 as a cosine
    per_record: float = 2.0
    image_std: float = 0.2
    temperature: tuple[float, float] = (10.0, 200.0)
    span: float | None = 1.0  # directions a record that candidates are held in; None = no limit
    ridge: float = 1e-4  # of the duals, times the kernel's mean diagonal
    within: float = 0.9  # correlation at which candidates of two starts are one

    def __post_init__(self) -> None:
        for name in ("starts", "steps"):
            if not getattr(self, name) >= 1:
                raise InputError(expected(f"projected: {name}", "1 or more", getattr(self, name)))
        for name in ("lr", "per_record", "image_std", "ridge"):
            if not getattr(self, name) > 0:
                raise InputError(expected(f"projected: {name}", "more than 0", getattr(self, name)))


@dataclass(frozen=True, kw_only=True, eq=False)
class Agreed:
    """Clusters over all starts, most agreed first: inputs k x shape (model's scale), confidence k.

    starts: candidates of each start, m x shape. losses: its last loss over |evidence|^2.
    """

    inputs: Tensor
    confidence: Tensor
    starts: list[Tensor]
    losses: list[float]


def search(
    model: nn.Module,
    evidence: Evidence,
    settings: Projected,
    *,
    shape: tuple[int, ...],
    records: int,
    generator: torch.Generator,
) -> Agreed:
    """Candidates for about `records` records."""
    if records < 1:
        raise InputError(expected("projected: records", "1 or more", records))
    count = max(1, round(settings.per_record * records))
    point = evidence.end if settings.features == "final" else evidence.start
    goal = objective(model, evidence.vector, [point], temperature=settings.temperature[0])
    basis = None
    if settings.span is not None:
        basis = first_span(model, evidence, max(1, round(settings.span * records)))
    ends, losses = [], []
    with task("projected descent", settings.starts * settings.steps) as step:
        for _ in range(settings.starts):
            start = (settings.image_std * draw(count, shape, None, generator)).float()
            free = start if basis is None else start.flatten(1) @ basis.T
            end, loss = _descend(goal, settings, free, _placed(basis, shape), step)
            ends.append(end)
            losses.append(loss)
    groups = cluster(torch.stack([end.flatten(1) for end in ends]), settings.within)
    inputs, confidence = groups.centres.reshape(-1, *shape), groups.agreement
    return Agreed(inputs=inputs, confidence=confidence, starts=ends, losses=losses)


def first_span(model: nn.Module, evidence: Evidence, count: int) -> Tensor | None:
    """count x d: leading right singular vectors of the first layer's change; None: not dense."""
    prefix, first = next(iter(working(model, nn.Flatten)), ("", model))
    if not isinstance(first, nn.Linear):
        return None
    change = evidence.vector[f"{prefix}weight"]
    if count >= min(change.shape):
        return None
    rows: Tensor = torch.linalg.svd(change, full_matrices=False)[2]
    return rows[:count].float().contiguous()


def _placed(basis: Tensor | None, shape: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    """From what is free to inputs."""
    return lambda free: free if basis is None else (free @ basis).reshape(-1, *shape)


def project(goal: Objective, inputs: Tensor, ridge: float) -> Tensor:
    """m x c duals that explain the objective's vector best at these inputs, slightly damped."""
    inputs, weights = inputs.detach(), goal.points[0]
    products = inner_products(goal.model, inputs, goal.vector, weights=weights).detach().double()
    size = products.numel()
    kernel = gram(goal.model, inputs, weights=weights, per_class=True).double().reshape(size, size)
    factor = damped_cholesky(kernel[None], ridge)[0]
    duals = torch.cholesky_solve(products.reshape(size, 1), factor)
    return duals.reshape(products.shape).to(inputs)


def _descend(
    goal: Objective,
    settings: Projected,
    free: Tensor,
    place: Callable[[Tensor], Tensor],
    step: Step,
) -> tuple[Tensor, float]:
    """The candidates that descent from `free` ends at, and their loss over |evidence|^2.

    Adam: L-BFGS with a strong Wolfe search, at equal cost, ended at worse candidates, some of them
    huge, since it follows flat directions that Adam's bounded steps do not.
    """
    first, last = settings.temperature
    kept = checkpoint("projected", goal.vector, goal.points, settings, free)
    free = free.clone().requires_grad_()
    adam, begin, loss, square = torch.optim.Adam([free]), 0, math.inf, goal.square
    if kept.state is not None:
        begin, moments, there = kept.state
        free.data.copy_(there)
        adam.load_state_dict(moments)
        step(begin)
    for t in range(begin, settings.steps + 1):
        share = t / settings.steps
        goal.anneal(first * (last / first) ** share)
        inputs = place(free)
        fit = goal.loss(inputs, project(goal, inputs, settings.ridge)) / square
        loss = fit.item()
        if t < settings.steps:
            free.grad = torch.autograd.grad(fit, free)[0]
            adam.param_groups[0]["lr"] = settings.lr * 0.5 * (1 + math.cos(math.pi * share))
            adam.step()
            if kept.due():
                kept.save([t + 1, adam.state_dict(), free])
            step()
    return place(free).detach(), loss
