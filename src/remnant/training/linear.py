"""Where gradient flow on the squared loss takes a linearised model: in closed form."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from remnant.errors import InputError, expected
from remnant.gradients import gram, weighted_sum
from remnant.models import Linearised
from remnant.training.losses import loss_named, targets
from remnant.training.run import Trained, measures, named, prepare
from remnant.types import Examples, Scaling


def solve_linearised(
    model: nn.Module,
    examples: Examples,
    *,
    scaling: Scaling,
    ridge: float = 0.0,
    loss: str = "mse",
) -> Trained:
    """theta = theta_0 + J^T (J J^T + ridge I)^-1 (y - f_0), in float64 (paper 000, section 3).

    It minimises sum |f - y|^2 + ridge |theta - theta_0|^2 over the linearised model; without a
    ridge it is the limit of gradient descent from theta_0, with or without momentum. `model` is a
    Linearised, which starts at its present parameters, or a network, which is linearised where it
    is. A singular kernel (duplicate records) is solved by its pseudo-inverse.
    """
    _check(ridge, loss)
    line = model if isinstance(model, Linearised) else Linearised(model)
    solved, inputs, labels = prepare(line, examples, loss, scaling, torch.float64)
    initial = named(solved)
    with torch.no_grad():
        before = solved(inputs)
        change, rank = _step(solved, inputs, targets(before, labels) - before, ridge)
        for name, value in change.items():
            solved.get_parameter(name).add_(value)
        outputs = solved(inputs)
    first, last = (loss_named(loss)(f, labels).item() for f in (before, outputs))
    ledger = {
        "recipe": {"name": "linearised-solution", "ridge": ridge, "loss": loss},
        "outcome": "complete",
        "stopped": "solved",
        "steps": 0,
        "reduced_basis": False,
        "rank": rank,
        **measures(examples, outputs, last),
    }
    trace = {"step": [0.0, 1.0], "loss": [first, last]}
    return Trained(model=solved, initial=initial, final=named(solved), trace=trace, ledger=ledger)


def _check(ridge: float, loss: str) -> None:
    if loss not in ("mse", "power2"):
        raise InputError(expected("solve_linearised: loss", "mse", loss, "train by a recipe"))
    if not 0 <= ridge < math.inf:
        raise InputError(expected("solve_linearised: ridge", "0 or more", ridge))


def _step(
    model: nn.Module, inputs: Tensor, missing: Tensor, ridge: float
) -> tuple[dict[str, Tensor], int]:
    """J^T (J J^T + ridge I)^-1 missing (n x c), by parameter name, and the kernel's rank."""
    assert isinstance(model, Linearised)
    about = {name: model.start[name] for name, p in model.named_parameters() if p.requires_grad}
    kernel = gram(model.base, inputs, weights=about, per_class=True).detach()
    size = missing.numel()
    dual, rank = _solve(kernel.reshape(size, size), ridge, missing.reshape(size))
    return weighted_sum(model.base, inputs, dual.reshape(missing.shape), weights=about), rank


def _solve(kernel: Tensor, ridge: float, wanted: Tensor) -> tuple[Tensor, int]:
    """(K + ridge I)^-1 wanted, and the rank that was used."""
    size = len(kernel)
    shifted = kernel + ridge * torch.eye(size).to(kernel)
    factor, fault = torch.linalg.cholesky_ex(shifted)
    pivots = factor.diagonal()
    # Squared pivots below 1e-12 of the largest one are rounding rather than rank.
    if not fault and pivots.min() > 1e-6 * pivots.max():
        return torch.cholesky_solve(wanted[:, None], factor)[:, 0], size
    values, vectors = torch.linalg.eigh(shifted)
    kept = values > size * torch.finfo(values.dtype).eps * values[-1]
    basis = vectors[:, kept]
    return basis @ ((basis.T @ wanted) / values[kept]), int(kept.sum())
