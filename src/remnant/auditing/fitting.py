"""How well the released model fits each record: is what it fits best what it gives away?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from remnant.attacks.glm_case import codes
from remnant.auditing.case import Case
from remnant.auditing.texts import losses_of_texts
from remnant.bundle import Attacked
from remnant.models.foreign import real_outputs
from remnant.models.linear_model import LinearModel
from remnant.training import loss_named
from remnant.types import Examples


def with_fit(case: Case, attacks: Sequence[Attacked]) -> list[Attacked]:
    """Each record's margin and loss under the released model, beside its scores."""
    fit = fit_of_records(case)
    rows = []
    for row in attacks:
        finding = row.finding
        if finding is not None:
            records = [{**record, **fit[record["id"]]} for record in finding.per_record]
            row = replace(row, finding=replace(finding, per_record=records))
        rows.append(row)
    return rows


def fit_of_records(case: Case) -> dict[str, dict[str, float]]:
    """By id: the loss, and for classes the margin, of each record under the released model."""
    truth = case.truth
    losses = losses_of(case, truth)
    told = [{} if losses is None else {"loss": loss} for loss in (losses or [0.0] * len(truth))]
    if not truth.are_texts:
        outputs, labels, _ = _outputs(case, truth, case.target.model)
        if not labels.is_floating_point():
            for row, margin in zip(told, margins(outputs, labels).tolist(), strict=True):
                row["margin"] = margin
    return dict(zip(truth.ids, told, strict=True))


def losses_of(case: Case, examples: Examples, model: nn.Module | None = None) -> list[float] | None:
    """The loss of each record under the released model, or another of its kind; None where a loss
    of texts is not known. From outputs in double precision, so that small losses differ too."""
    model = (model or case.target.model).eval()
    if examples.are_texts:
        return losses_of_texts(model, examples)
    outputs, labels, name = _outputs(case, examples, model)
    loss = loss_named(name)
    return [float(loss(outputs[i : i + 1], labels[i : i + 1])) for i in range(len(examples))]


def _outputs(case: Case, examples: Examples, model: nn.Module) -> tuple[Tensor, Tensor, str]:
    """Outputs n x c, labels as a loss takes them, and which loss that is."""
    like = next(model.parameters())
    inputs = case.target.scaling.to_model(examples.inputs.reshape(-1, *case.target.input_shape))
    with torch.no_grad():
        parts = [
            real_outputs(model(part.to(like)), len(part), "model") for part in inputs.split(1000)
        ]
    outputs = torch.cat(parts).reshape(len(examples), -1).double()
    if isinstance(model, LinearModel):
        return _as_network(model, outputs, examples.labels)
    return outputs, examples.labels, case.loss


def margins(outputs: Tensor, labels: Tensor) -> Tensor:
    """n: the label's output less the largest other; of one output, its value on the right side."""
    if outputs.shape[1] == 1:
        return outputs[:, 0] * (2 * labels - 1)
    own = outputs.gather(1, labels[:, None])[:, 0]
    return own - outputs.scatter(1, labels[:, None], -torch.inf).max(1).values


def _as_network(model: LinearModel, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, str]:
    """Outputs and labels as a network's (every class an output, labels by position), and the loss.

    Of Poisson and Gamma regression it is the squared error of the prediction.
    """
    if model.family == "gamma":
        return 1 / outputs, labels.double(), "mse"
    if not model.classes:
        return outputs.exp() if model.family == "poisson" else outputs, labels.double(), "mse"
    if model.reference:
        outputs = torch.cat([torch.zeros(len(outputs), 1), outputs], 1)
    positions = (labels[:, None] == torch.tensor(codes(model))).long().argmax(1)
    return outputs, positions, "bce" if outputs.shape[1] == 1 else "ce"
