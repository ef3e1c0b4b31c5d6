"""The certificate of records found in any order: the gradient computed again, and the labels.

The loss is not told. What it sends back to the outputs is read off the gradient: of a classifier by
least squares on its last layer, of a language model from the last block, where each token's share
is known, against every label that its bias names. All else must then follow: millions of equations
in which nothing is left to choose.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from remnant.models.tokens import outputs_for
from remnant.solvers.numerics import best_fit, with_one
from remnant.solvers.sequence.certificate import compare
from remnant.solvers.sequence.layouts import Layout, Linear, stacked, watched
from remnant.solvers.sequence.tolerances import Tolerances
from remnant.types import Evidence


@dataclass(frozen=True, kw_only=True, eq=False)
class Again:
    """The gradient computed again from what was found, once in float64 and once in the model's own
    precision.

    error: of the one in float64, relative to the gradient that is held. rounding: how far the two
    are apart, relative. gradient: the one in the model's precision, by name. labels: classes (n),
    or tokens (n x length, -1 where the loss does not look); None where they could not be told."""

    error: float
    rounding: float
    gradient: dict[str, Tensor]
    labels: Tensor | None


Guess = tuple[Tensor, Tensor | None]
"""A gradient at the outputs, and the labels that it means."""


def compute_again(
    model: nn.Module, layout: Layout, evidence: Evidence, inputs: Tensor, tolerances: Tolerances
) -> Again | str:
    """The best of what these inputs (n x shape, in the model's scale, or n x length tokens with -1
    after the end) give back, by its relative error over all parameters."""
    if layout.head is None:
        return "no output layer was recognised, so the gradient cannot be computed again"
    exact = copy.deepcopy(model).double().eval()
    parts = {"head": layout.head.weight, "down": layout.blocks[-1].down.weight}
    with torch.enable_grad(), watched(exact, parts) as seen:
        outputs = outputs_for(exact, inputs.double() if inputs.is_floating_point() else inputs)
        assert isinstance(outputs, Tensor)
        if outputs.ndim == 2:
            features = seen["head"][0].detach()
            guesses = _of_classes(layout.head, evidence, outputs.detach(), features)
        else:
            guesses = [_of_tokens(layout, evidence, outputs, seen, inputs >= 0, tolerances)]
        again = [_backward(exact, outputs, signals) for signals, _ in guesses]
    fits = [compare(evidence.vector, gradient) for gradient in again]
    errors = [fit.error if fit.scale > 0 else torch.inf for fit in fits]
    best = errors.index(min(errors))
    signals, labels = guesses[best]
    # As training computed it: where records' shares cancel each other it is off by far more than
    # one number's rounding.
    like, own = next(model.parameters()), copy.deepcopy(model).eval()
    with torch.enable_grad():
        outputs = outputs_for(own, inputs.to(like) if inputs.is_floating_point() else inputs)
        assert isinstance(outputs, Tensor)
        coarse = _backward(own, outputs, signals.to(like))
    return Again(
        error=errors[best],
        rounding=compare(again[best], coarse).error,
        gradient={name: fits[best].scale * value.double() for name, value in coarse.items()},
        labels=labels,
    )


def _backward(model: nn.Module, outputs: Tensor, signals: Tensor) -> dict[str, Tensor]:
    """The parameters' gradient, by their names, where the outputs' is `signals`."""
    named = dict(model.named_parameters())
    found = torch.autograd.grad(
        outputs, list(named.values()), signals, retain_graph=True, materialize_grads=True
    )
    return dict(zip(named, found, strict=True))


def _of_classes(head: Linear, evidence: Evidence, outputs: Tensor, features: Tensor) -> list[Guess]:
    """Of a classifier: as the last layer has it, and as cross-entropy of the labels it means."""
    matrix, biased = stacked(evidence.vector, [head])
    known = with_one(features) if biased else features
    signals = best_fit(known.T, matrix)
    labels = signals.argmin(1) if outputs.shape[1] > 1 else None
    if labels is None:
        return [(signals, labels)]
    exact = outputs.softmax(1) - nn.functional.one_hot(labels, outputs.shape[1])
    return [(signals, labels), (exact, labels)]


def _of_tokens(
    layout: Layout,
    evidence: Evidence,
    outputs: Tensor,
    seen: dict[str, list[Tensor]],
    here: Tensor,
    tolerances: Tolerances,
) -> Guess:
    """Of a language model: for each token the label and the weight of its loss that fit best.

    here: n x length, where tokens stand.
    """
    assert layout.head is not None
    (features, _), (acts, states) = seen["head"], seen["down"]
    known = with_one(acts[here]).detach()
    coming = best_fit(known.T, stacked(evidence.vector, [layout.blocks[-1].down])[0])  # T x width
    table = stacked(evidence.start, [layout.head])[0][: features.shape[-1]].T  # outputs x width
    chance = outputs[here].detach().softmax(1)

    def back(rows: Tensor) -> Tensor:
        """What gradients at the head's inputs (T x width) are at the last block's outputs."""
        whole = torch.zeros_like(features)
        whole[here] = rows
        return torch.autograd.grad(features, states, whole, retain_graph=True)[0][here]

    pull = back(chance @ table)
    length = coming.norm(dim=1)
    loud = length > tolerances.silent * length.max()
    best = torch.full_like(length, torch.inf)
    label, weight = torch.full_like(best, -1).long(), torch.zeros_like(best)
    for token in _named(layout, evidence, chance, loud):
        wanted = pull - back(table[token].expand(len(coming), -1))
        fit = (coming * wanted).sum(1) / wanted.square().sum(1).clamp_min(1e-300)
        left = (coming - fit[:, None] * wanted).norm(dim=1)
        better = (left < best) & loud & (fit > 0)
        best, label = best.where(~better, left), label.where(~better, token)
        weight = weight.where(~better, fit)
    mean = weight[loud].mean()
    if float((weight[loud] - mean).square().mean().sqrt()) < tolerances.even * float(mean):
        weight = mean * loud
    signals, labels = torch.zeros_like(outputs).detach(), torch.full(here.shape, -1)
    exact = chance - nn.functional.one_hot(label.clamp_min(0), outputs.shape[-1])
    signals[here], labels[here] = weight[:, None] * exact, label
    return signals, labels


def _named(layout: Layout, evidence: Evidence, chance: Tensor, loud: Tensor) -> list[int]:
    """Labels that there may be: the head's bias falls where a token was a label."""
    assert layout.head is not None
    if layout.head.bias is None:
        assert layout.embedding is not None
        return evidence.vector[layout.embedding].any(1).nonzero()[:, 0].tolist()
    bias = evidence.vector[layout.head.bias]
    share = 1 / max(1, int(loud.sum()))
    meant = bias - share * chance[loud].sum(0) < -share / 2
    found: list[int] = ((bias < 0) | meant).nonzero()[:, 0].tolist()
    return found
