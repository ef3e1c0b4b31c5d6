"""The certificate of records found in any order: the gradient computed again, and the labels.

The loss is not told. What it sends back to the outputs is read off the gradient: of a classifier by
least squares on its last layer, of a language model from the last block, where each token's share
is known, against every label that its bias names. All else must then follow: millions of equations
in which nothing is left to choose.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from remnant.solvers.sequence.certificate import compare
from remnant.solvers.sequence.layouts import Layout, Linear, at_path, stacked
from remnant.solvers.sequence.states import solve
from remnant.types import Evidence

Run = Callable[[nn.Module, Tensor], object]
"""The logits that a model gives for inputs, or for tokens with -1 after each text's end."""


@dataclass(frozen=True, kw_only=True)
class Tolerances:
    """When the gradient computed again is the one that is held."""

    exact: float = 5.0  # times its own rounding: right records leave 1, a byte off by one 40
    least: float = 1e-9  # error of the computation itself, in double precision
    plausible: float = 0.5  # above, texts are not even worth showing
    near: float = 1e-3  # records that are no whole numbers: theirs is told by solving once more
    safety: float = 25.0  # of a squared error by one more solution: 20 batches stayed below 8
    silent: float = 1e-3  # share of the largest loss at a token that counts as none
    even: float = 1e-2  # weights of tokens' losses that differ by less are one and the same


@dataclass(frozen=True, kw_only=True, eq=False)
class Again:
    """The gradient computed again in the model's own precision, and exactly: the exact one's error
    relative to what is held, and how far the two are apart, relative. labels: classes (n), or
    tokens (n x length, -1 where the loss does not look); None where they could not be told."""

    error: float
    rounding: float
    gradient: dict[str, Tensor]
    labels: Tensor | None


@dataclass(frozen=True, kw_only=True, eq=False)
class _Guess:
    """A gradient at the outputs, and the labels that it means."""

    signals: Tensor
    labels: Tensor | None


def compute_again(
    model: nn.Module,
    layout: Layout,
    evidence: Evidence,
    inputs: Tensor,
    run: Run,
    tolerances: Tolerances | None = None,
) -> Again | str:
    """The best of what these inputs (n x shape, in the model's scale, or n x length tokens with -1
    after the end) give back, by its relative error over all parameters."""
    tolerances = tolerances or Tolerances()
    if layout.head is None:
        return "no output layer was recognised, so the gradient cannot be computed again"
    exact = copy.deepcopy(model).double().eval()
    numbers = inputs.double() if inputs.is_floating_point() else inputs
    down = layout.blocks[-1].down
    with torch.enable_grad(), _watched(exact, layout.head, down) as seen:
        outputs = run(exact, numbers)
        assert isinstance(outputs, Tensor)
        if outputs.ndim == 2:
            features = seen["head"][0].detach()
            guesses = _of_classes(layout.head, evidence, outputs.detach(), features)
        else:
            guesses = [
                _of_tokens(layout, evidence, outputs.detach(), seen, inputs >= 0, tolerances)
            ]
        tried = [(guess, _backward(exact, outputs, guess.signals)) for guess in guesses]
    fits = [compare(evidence.vector, gradient) for _, gradient in tried]
    best = min(range(len(fits)), key=lambda k: fits[k].error if fits[k].scale > 0 else torch.inf)
    (guess, gradient), fit = tried[best], fits[best]
    own = _in_own_precision(model, inputs, guess.signals, run)
    return Again(
        error=fit.error if fit.scale > 0 else float("inf"),
        rounding=compare(gradient, own).error,
        gradient={name: fit.scale * value.double() for name, value in own.items()},
        labels=guess.labels,
    )


def _backward(model: nn.Module, outputs: Tensor, signals: Tensor) -> dict[str, Tensor]:
    """The parameters' gradient, by their names, where the outputs' is `signals`."""
    named = dict(model.named_parameters())
    found = torch.autograd.grad(
        outputs, list(named.values()), signals, retain_graph=True, allow_unused=True
    )
    pairs = zip(named.items(), found, strict=True)
    return {name: torch.zeros_like(p) if g is None else g for (name, p), g in pairs}


def _in_own_precision(
    model: nn.Module, inputs: Tensor, signals: Tensor, run: Run
) -> dict[str, Tensor]:
    """The gradient as training computed it: where records' shares cancel each other it is off by
    far more than one number's rounding."""
    like = next(model.parameters())
    own = copy.deepcopy(model).eval()
    with torch.enable_grad():
        outputs = run(own, inputs.to(like) if inputs.is_floating_point() else inputs)
        assert isinstance(outputs, Tensor)
        return _backward(own, outputs, signals.to(like))


@contextmanager
def _watched(model: nn.Module, head: Linear, down: Linear) -> Iterator[dict[str, list[Tensor]]]:
    """The inputs and outputs of the head and of the last block's last layer, as they pass."""
    seen: dict[str, list[Tensor]] = {}
    hooks = []
    for name, layer in (("head", head), ("down", down)):
        module = _module_with(model, layer)
        hooks.append(module.register_forward_hook(
            lambda m, given, out, name=name: seen.__setitem__(name, [given[0], out])))  # fmt: skip
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _module_with(model: nn.Module, layer: Linear) -> nn.Module:
    """The linear module whose weight this is; a weight shared with an embedding has two modules."""
    weight = dict(model.named_parameters())[layer.weight]
    for module in model.modules():
        if getattr(module, "weight", None) is weight and not isinstance(module, nn.Embedding):
            return module
    found: nn.Module = at_path(model, layer.weight.removesuffix(".weight"))
    return found


def _of_classes(
    head: Linear, evidence: Evidence, outputs: Tensor, features: Tensor
) -> list[_Guess]:
    """Of a classifier: as the last layer has it, and as cross-entropy of the labels it means."""
    ones = torch.ones(len(features), 1, dtype=features.dtype)
    matrix, biased = stacked(evidence.vector, [head])
    known = torch.cat([features, ones], 1) if biased else features
    signals = solve(known.T, matrix)
    labels = signals.argmin(1) if outputs.shape[1] > 1 else None
    guesses = [_Guess(signals=signals, labels=labels)]
    if labels is not None:
        exact = outputs.softmax(1) - nn.functional.one_hot(labels, outputs.shape[1])
        guesses.append(_Guess(signals=exact, labels=labels))
    return guesses


def _of_tokens(
    layout: Layout,
    evidence: Evidence,
    outputs: Tensor,
    seen: dict[str, list[Tensor]],
    here: Tensor,
    tolerances: Tolerances,
) -> _Guess:
    """Of a language model: for each token the label and the weight of its loss that fit best.

    here: n x length, where tokens stand.
    """
    assert layout.head is not None
    (features, _), (acts, states) = seen["head"], seen["down"]
    known = torch.cat([acts[here], torch.ones_like(acts[here][:, :1])], 1).detach()
    coming = solve(known.T, stacked(evidence.vector, [layout.blocks[-1].down])[0])  # T x width
    table = stacked(evidence.start, [layout.head])[0][: features.shape[-1]].T  # outputs x width
    chance = outputs[here].softmax(1)

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
    signals, labels = torch.zeros_like(outputs), torch.full(here.shape, -1)
    exact = chance - nn.functional.one_hot(label.clamp_min(0), outputs.shape[-1])
    signals[here], labels[here] = weight[:, None] * exact, label
    return _Guess(signals=signals, labels=labels)


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
