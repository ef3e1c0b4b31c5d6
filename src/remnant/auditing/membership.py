"""Are the declared records those that the model was trained on? The owner can ask, who has both.

What an adversary holds is a sum of gradients at the training records (`remnant.evidence`). In the
first dense layer that sum has a simple form, so how much of it the declared records explain can be
computed, beside how much the strangers do that are most like them. Records that were trained on
explain nearly all of it; their likenesses explain hardly more than other likenesses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor, nn

from remnant.auditing.case import Case
from remnant.auditing.strangers import Strangers
from remnant.scoring.claims import rms_distance
from remnant.training import loss_named
from remnant.types import Examples

# What of the layer the declared records may leave unexplained, and as a share of what strangers
# leave. Records trained on left 0.11 to 0.26 (sums) and 0 (spans), their nearest neighbours 0.48 to
# 0.68 and 0.13 to 0.37; shares were 0.23 to 0.40 and 0.73 to 0.88 (weight decay, digits).
LEFT: Mapping[str, float] = {"sum": 0.35, "span": 0.1}
SHARE = 0.55
LARGEST = 2000  # records in one sum; their Gram matrix is solved with signs, some seconds there
Form = Literal["sum", "span"]


@dataclass(frozen=True, kw_only=True)
class Explained:
    """Shares of the first dense layer's norm that are left unexplained."""

    left: float
    by_strangers: float
    holds: bool  # the declared records are those trained on, as far as this layer tells


def explained(case: Case, attack: str, strangers: Strangers) -> Explained | None:
    """None where this attack's evidence, or this model, does not tell."""
    layer = first_dense(case.target.model)
    held = _held(case, attack, layer) if layer is not None else None
    if layer is None or held is None or not len(strangers.inputs) or len(case.truth) > LARGEST:
        return None
    form, matrix = held
    if float(matrix.norm()) == 0:
        return None
    near = strangers.examples.take(_most_alike(case, strangers).unique())
    left, by_strangers = (_left(case, layer, form, matrix, part) for part in (case.truth, near))
    holds = left < LEFT[form] and left < SHARE * by_strangers
    return Explained(left=left, by_strangers=by_strangers, holds=holds)


def first_dense(model: nn.Module) -> tuple[str, nn.Linear] | None:
    """The first dense layer that is a module of its own, by name."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            return name, module
    return None


def _held(
    case: Case, attack: str, layer: tuple[str, nn.Linear] | None
) -> tuple[Form, Tensor] | None:
    """What the adversary holds of that layer, w x d: a sum with signs known, or a span."""
    assert layer is not None
    name = f"{layer[0]}.weight" if layer[0] else "weight"
    known = case.target.knowledge
    end = case.target.weights[name].double()
    if attack == "kkt":
        return "sum", end
    if attack == "ntk" and known.initial is not None:
        return "span", end - known.initial[name].double()
    if attack == "gradient" and known.gradient is not None:
        return "span", known.gradient[name].double()
    return None


def _left(
    case: Case, layer: tuple[str, nn.Linear], form: Form, matrix: Tensor, records: Examples
) -> float:
    inputs, signals = _factors(case, layer[1], records)
    whole = float(matrix.norm())
    if form == "span":
        basis, values, _ = torch.linalg.svd(inputs.T, full_matrices=False)
        basis = basis[:, values > 1e-9 * values.max()]
        return float((matrix - matrix @ basis @ basis.T).norm()) / whole
    gram = ((signals @ signals.T) * (inputs @ inputs.T)).numpy()
    products = ((signals @ matrix) * inputs).sum(1).numpy()
    values, vectors = np.linalg.eigh(gram)
    sure = values > 1e-12 * max(values.max(), 1e-300)
    root = np.sqrt(values[sure])[:, None] * vectors[:, sure].T
    duals, _ = nnls(root, (vectors[:, sure].T @ products) / np.sqrt(values[sure]), maxiter=10**5)
    rest = whole**2 - 2 * duals @ products + duals @ gram @ duals
    return float(np.sqrt(max(rest, 0.0))) / whole


def _factors(case: Case, layer: nn.Linear, records: Examples) -> tuple[Tensor, Tensor]:
    """The layer's inputs (n x d) and how a fall of each record's loss acts on it (n x w).

    Each row of the signals has length one: only their sums with positive weights are asked for.
    """
    model, seen = case.target.model, list[Tensor]()

    def keep(module: nn.Module, given: tuple[Tensor, ...], out: Tensor) -> Tensor:
        seen[:] = [given[0].detach(), out]
        return out

    handle = layer.register_forward_hook(keep)
    try:
        like = next(model.parameters())
        inputs = case.target.scaling.to_model(records.inputs.reshape(-1, *case.target.input_shape))
        with torch.enable_grad():
            outputs = model.eval()(inputs.to(like)).reshape(len(records), -1)
            fall = -_separable(case.loss, outputs, records.labels)
            (signals,) = torch.autograd.grad(fall, seen[1:])
    finally:
        handle.remove()
    rows = signals.flatten(1).double()
    return seen[0].flatten(1).double(), torch.nn.functional.normalize(rows, dim=1)


def _separable(loss: str, outputs: Tensor, labels: Tensor) -> Tensor:
    """A sum over records whose gradients point as the loss's do, without their underflow."""
    if loss == "ce":
        own = outputs.gather(1, labels[:, None].long())[:, 0]
        others = outputs.scatter(1, labels[:, None].long(), -torch.inf)
        return (others.logsumexp(1) - own).sum()
    if loss == "bce":
        return -(outputs[:, 0] * (2 * labels.to(outputs) - 1)).sum()
    return loss_named(loss)(outputs, labels) * len(outputs)


def _most_alike(case: Case, strangers: Strangers) -> Tensor:
    """n: the nearest stranger of each record, of its class if there is one."""
    distance = rms_distance(strangers.rows_of(case.truth), strangers.inputs)
    labels = strangers.examples.labels
    if not labels.is_floating_point() and not case.truth.labels.is_floating_point():
        other = case.truth.labels[:, None] != labels[None]
        distance = distance + other * (1 + distance.max())
    return distance.argmin(1)
