"""Are the declared records those that the model was trained on? The owner can ask, who has both.

What an adversary holds is a sum of gradients at the training records (`remnant.evidence`). In the
first dense layer that sum has a simple form, so how much of it the declared records explain can be
computed, beside how much the strangers do that are most like them. Records that were trained on
explain nearly all of it; their likenesses explain hardly more than other likenesses.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor, nn

from remnant.auditing.case import Case
from remnant.auditing.rules import RULES
from remnant.auditing.strangers import Strangers
from remnant.models.foreign import real_outputs
from remnant.models.linear_model import LinearModel
from remnant.models.stack import dense_layers
from remnant.scoring.claims import rms_distance
from remnant.training import loss_named
from remnant.types import Examples

Form = Literal["sum", "span"]


@dataclass(frozen=True, kw_only=True)
class Explained:
    """How much of the first dense layer is left unexplained, as shares."""

    left: float  # by the declared records
    by_strangers: float  # by the strangers most like them
    holds: bool  # the declared records are those trained on, as far as this layer tells
    stationary: bool  # the layer is a sum of their gradients: what `kkt` assumes


@dataclass(frozen=True, kw_only=True, eq=False)
class Held:
    """One thing that the adversary knows of the first dense layer, as a matrix, and what follows
    from it about the records.

    form `span`: each row of `matrix` is a combination of the training inputs, apart from a multiple
    of `start` that weight decay took off. form `sum`: `matrix` is a sum of the records' gradients,
    all with weights of 0 or more.
    """

    form: Form
    matrix: Tensor  # w x d
    start: Tensor | None = None  # w x d


def explained(case: Case, attack: str, strangers: Strangers) -> Explained | None:
    """How much of the first dense layer the declared records explain, compared with as many
    strangers that resemble them most.

    None where the model has no such layer, or where strangers explain it as well. The initial
    weights tell most and are used even if the adversary lacks them: it is the owner who asks.
    """
    if not len(strangers.inputs) or not dense_layers(case.target.model):
        return None
    near = strangers.examples.take(_most_alike(case, strangers))
    told = None
    for held in known_of_layer(case, attack):
        left, by_strangers = (unexplained(case, held, part) for part in (case.truth, near))
        if left is None or by_strangers is None or by_strangers < RULES.strangers_leave:
            continue
        holds = (
            left < RULES.left_unexplained[held.form]
            and left < RULES.share_of_strangers * by_strangers
        )
        first = told or Explained(
            left=left, by_strangers=by_strangers, holds=holds, stationary=False
        )
        told = replace(first, stationary=holds and held.form == "sum")
    return told


def known_of_layer(case: Case, attack: str) -> list[Held]:
    """All that is known of the first dense layer (see `Held`), the most telling first."""
    layers, known = dense_layers(case.target.model), case.target.knowledge
    if not layers or isinstance(case.target.model, LinearModel):
        return []
    name = f"{layers[0][0]}weight"
    if attack == "gradient" and known.gradient is not None:
        held = [Held(form="span", matrix=known.gradient[name].double())]
    else:
        end, held = case.target.weights[name].double(), list[Held]()
        if known.initial is not None:
            start = known.initial[name].double()
            held.append(Held(form="span", matrix=end - start, start=start))
        if attack == "kkt" and len(case.truth) <= RULES.largest_sum:
            held.append(Held(form="sum", matrix=end))
    return [part for part in held if float(part.matrix.norm()) > 0]


def unexplained(case: Case, held: Held, records: Examples) -> float | None:
    """The share of the layer that these records leave, None where its inputs cannot be told."""
    _, layer = dense_layers(case.target.model)[0]
    factors = _factors(case, layer, records)
    if factors is None:
        return None
    inputs, signals = factors
    return _beside_span(held, inputs) if held.form == "span" else _of_sum(held, inputs, signals)


def _beside_span(held: Held, inputs: Tensor) -> float:
    """The share of the layer outside the span of these inputs (n x d), once the part of the start
    that weight decay took is fitted and taken off."""
    basis, values, _ = torch.linalg.svd(inputs.T, full_matrices=False)
    basis = basis[:, values > 1e-9 * values.max()]
    whole, rest = held.matrix, held.matrix - held.matrix @ basis @ basis.T
    if held.start is not None:
        decayed = held.start - held.start @ basis @ basis.T
        share = (rest * decayed).sum() / decayed.square().sum().clamp_min(1e-300)
        whole, rest = whole - share * held.start, rest - share * decayed
    return float(rest.norm() / whole.norm().clamp_min(1e-300))


def _of_sum(held: Held, inputs: Tensor, signals: Tensor) -> float:
    """The share left by the best sum of the records' gradients with weights of 0 or more, by
    non-negative least squares on their Gram matrix."""
    whole = float(held.matrix.norm())
    gram = ((signals @ signals.T) * (inputs @ inputs.T)).numpy()
    products = ((signals @ held.matrix) * inputs).sum(1).numpy()
    values, vectors = np.linalg.eigh(gram)
    sure = values > 1e-12 * max(values.max(), 1e-300)
    root = np.sqrt(values[sure])[:, None] * vectors[:, sure].T
    duals, _ = nnls(root, (vectors[:, sure].T @ products) / np.sqrt(values[sure]), maxiter=10**5)
    rest = whole**2 - 2 * duals @ products + duals @ gram @ duals
    return float(np.sqrt(max(rest, 0.0))) / whole


def _factors(case: Case, layer: nn.Linear, records: Examples) -> tuple[Tensor, Tensor] | None:
    """The layer's inputs for these records (n x d), and for each record the direction of its loss's
    negative gradient at the layer's outputs (n x w, length one).

    Only the directions matter, since records enter a sum with unknown positive weights. None where
    the layer is not called exactly once a record.
    """
    model, seen = case.target.model, list[Tensor]()

    def keep(module: nn.Module, given: tuple[Tensor, ...], out: Tensor) -> Tensor:
        seen.extend([given[0].detach(), out])
        return out

    handle = layer.register_forward_hook(keep)
    try:
        like = next(model.parameters())
        inputs = case.target.scaling.to_model(records.inputs.reshape(-1, *case.target.input_shape))
        with torch.enable_grad():
            outputs = real_outputs(model.eval()(inputs.to(like)), len(records), "model")
            outputs = outputs.reshape(len(records), -1)
            if len(seen) != 2 or seen[1].ndim != 2 or len(seen[1]) != len(records):
                return None
            fall = -_separable(case.loss, outputs, records.labels)
            (signals,) = torch.autograd.grad(fall, seen[1:])
    finally:
        handle.remove()
    rows = signals.flatten(1).double()
    return seen[0].flatten(1).double(), torch.nn.functional.normalize(rows, dim=1)


def _separable(loss: str, outputs: Tensor, labels: Tensor) -> Tensor:
    """A sum over records that has gradients in the direction of the loss's, but does not underflow
    where a record is fitted well."""
    if loss == "ce":
        own = outputs.gather(1, labels[:, None].long())[:, 0]
        others = outputs.scatter(1, labels[:, None].long(), -torch.inf)
        return (others.logsumexp(1) - own).sum()
    if loss == "bce":
        return -(outputs[:, 0] * (2 * labels.to(outputs) - 1)).sum()
    return loss_named(loss)(outputs, labels) * len(outputs)


def _most_alike(case: Case, strangers: Strangers) -> list[int]:
    """For each record in turn the nearest stranger that is not taken yet, of its own class where
    one is left."""
    distance = rms_distance(strangers.rows_of(case.truth), strangers.inputs)
    labels = strangers.examples.labels
    if not labels.is_floating_point() and not case.truth.labels.is_floating_point():
        other = case.truth.labels[:, None] != labels[None]
        distance = distance + other * (1 + distance.max())
    taken: list[int] = []
    for row in distance[: len(strangers.inputs)]:
        row[taken] = torch.inf
        taken.append(int(row.argmin()))
    return taken
