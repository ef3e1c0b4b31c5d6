"""How well the released model fits each record: the page shows beside it which records came
back, since those that are fitted best need not be those given away."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from remnant.attacks.glm_case import codes
from remnant.auditing.case import Case
from remnant.models.foreign import real_outputs
from remnant.models.linear_model import LinearModel
from remnant.models.tokens import is_causal, outputs_for
from remnant.training import loss_named
from remnant.training.losses import ce, next_token
from remnant.types import Examples


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
        return _losses_of_texts(model, examples)
    outputs, labels, name = _outputs(case, examples, model)
    loss = loss_named(name)
    return [float(loss(outputs[i : i + 1], labels[i : i + 1])) for i in range(len(examples))]


def _losses_of_texts(model: nn.Module, examples: Examples) -> list[float] | None:
    """The mean loss of the next token over each text, or of its label by a classifier; None where
    the model is neither, and NaN where a text has no next token."""
    spoken = _predicts_tokens(model, examples)
    if spoken is None or (spoken and not is_causal(model, examples.inputs)):
        return None
    told = []
    with torch.no_grad():
        for row, label in zip(examples.inputs, examples.labels, strict=True):
            text = row[row >= 0][None]
            outputs = outputs_for(model, text)
            assert isinstance(outputs, Tensor)
            if not spoken:
                told.append(float(ce(outputs.double(), label[None])))
            else:
                known = text.shape[1] > 1
                told.append(float(next_token(outputs.double(), text)) if known else math.nan)
    return told


def is_language_model(case: Case) -> bool:
    """Whether the model is a language model, which has outputs at each place of a text, so that
    labels mean nothing."""
    return bool(_predicts_tokens(case.target.model.eval(), case.truth))


def _predicts_tokens(model: nn.Module, texts: Examples) -> bool | None:
    """As `is_language_model`; None where the model's outputs are no tensor."""
    with torch.no_grad():
        outputs = outputs_for(model, texts.inputs[:1])
    return outputs.ndim == 3 if isinstance(outputs, Tensor) else None


def _outputs(case: Case, examples: Examples, model: nn.Module) -> tuple[Tensor, Tensor, str]:
    """The outputs (n x c), the labels in the form that the loss takes, and which loss that is."""
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
