"""The steps of a fleet of dense networks without a graph, in the fixed records' own coordinates.

All models start alike and every gradient of the first layer is a sum of delta_i x_i^T, so that W1
only moves in the span of the fixed records and of each model's own one: with Q a basis of the first
(d x r) and e the direction in which the own record leaves it, W1 Q, W1 e and the bias are all there
is to train. What lies outside only decays, by one number. It is the same training up to rounding,
in fewer numbers, and each product writes where it is wanted: momentum is the `beta` of the product
that makes a gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from remnant.training.losses import targets
from remnant.training.recipes import SGD, GradientDescent
from remnant.training.stacked import dense_layers

aten = torch.ops.aten
CHUNK = 64  # models at once, so that what a call costs is shared by many
NEAR = 8 << 20  # bytes of them at once, so that they stay in the cache

Activation = tuple[Callable[[Tensor], object], Callable[[Tensor, Tensor], object]]
"""In place: features from pre-activations, and (gradient, features) -> the gradient before them."""


def _activation(layer: nn.Module) -> Activation | None:
    if type(layer) is nn.ReLU:
        return torch.relu_, lambda g, h: aten.threshold_backward.grad_input(g, h, 0, grad_input=g)
    if type(layer) is nn.ELU:
        scale = (layer.alpha, 1.0, 1.0)
        return (
            lambda h: F.elu_(h, layer.alpha),
            lambda g, h: aten.elu_backward.grad_input(g, *scale, True, h, grad_input=g),
        )
    if type(layer) is nn.Tanh:
        return torch.tanh_, lambda g, h: aten.tanh_backward.grad_input(g, h, grad_input=g)
    if type(layer) is nn.Sigmoid:
        return torch.sigmoid_, lambda g, h: aten.sigmoid_backward.grad_input(g, h, grad_input=g)
    return None


def _softmax(outputs: Tensor) -> Tensor:
    return torch.softmax(outputs, 1, out=outputs)


# What a loss compares with what it wants (outputs K x c x b, overwritten), and by how much the
# difference is to be multiplied for the gradient of a record's loss.
SLOPES: dict[str, tuple[Callable[[Tensor], Tensor], float]] = {
    "ce": (_softmax, 1.0),
    "bce": (torch.sigmoid_, 1.0),
    "mse": (lambda outputs: outputs, 2.0),
}


def wanted_outputs(loss: str, labels: Tensor, like: Tensor) -> Tensor:
    """n x c, what SLOPES compares the outputs with. like: c outputs in the right type."""
    outputs = like.expand(len(labels), -1)
    if loss == "ce":
        return F.one_hot(labels.long(), outputs.shape[1]).to(like)
    return labels.reshape(-1, 1).to(like) if loss == "bce" else targets(outputs, labels)


@dataclass(frozen=True, kw_only=True, eq=False)
class Stack:
    """A dense network as the loop below needs it: weights before training, and what follows each
    but the last."""

    weights: tuple[Tensor, ...]
    biases: tuple[Tensor | None, ...]
    activations: tuple[Activation, ...]
    loss: str


def read_stack(model: nn.Module, start: Sequence[Tensor], loss: str) -> Stack | None:
    """None for a model or a loss that the loop below does not know."""
    layers = dense_layers(model)
    if layers is None or loss not in SLOPES:
        return None
    pairs = [type(layer) is nn.Linear for layer in layers]
    if pairs != [i % 2 == 0 for i in range(len(layers))] or not pairs[-1]:
        return None  # two linear layers in a row, or an activation at the end
    between = [_activation(layer) for layer in layers[1::2]]
    known = tuple(one for one in between if one is not None)
    if len(known) < len(between):
        return None
    left = list(start)
    weights: list[Tensor] = []
    biases: list[Tensor | None] = []
    for layer in layers[::2]:
        weights.append(left.pop(0))
        biases.append(left.pop(0) if layer.bias is not None else None)
    return Stack(weights=tuple(weights), biases=tuple(biases), activations=known, loss=loss)


@dataclass(frozen=True, kw_only=True, eq=False)
class Span:
    """The fixed records in coordinates of their own: inputs n x (r + 2), whose last two are 0 (only
    a model's own record leaves the span) and 1 (times the bias, 0 without one).

    alive: entries of a record, out of d, that are not 0 in all. basis: a x r, orthonormal, where
    the records are fewer than those; None: they are the coordinates themselves.
    """

    alive: Tensor
    basis: Tensor | None
    inputs: Tensor
    wanted: Tensor

    def coordinates(self, rows: Tensor) -> Tensor:
        """Of m x d rows, m x r."""
        kept = rows[:, self.alive]
        return kept if self.basis is None else kept @ self.basis.to(rows)

    def rows(self, coordinates: Tensor) -> Tensor:
        """... x r coordinates as ... x d rows."""
        kept = coordinates if self.basis is None else coordinates @ self.basis.T.to(coordinates)
        whole = kept.new_zeros(*kept.shape[:-1], len(self.alive))
        whole[..., self.alive] = kept
        return whole


def span_of(inputs: Tensor, wanted: Tensor, *, bias: bool) -> Span:
    flat = inputs.flatten(1)
    alive = flat.abs().amax(0) > 0  # pixels that are black in all records cost nothing
    basis = None
    if len(flat) < int(alive.sum()):
        # Householder's Q is orthonormal whatever the rank, so duplicates need no care.
        basis = torch.linalg.qr(flat[:, alive].double().T).Q
    span = Span(alive=alive, basis=basis, inputs=flat, wanted=wanted)
    ends = flat.new_tensor([0.0, float(bias)]).expand(len(flat), 2)
    exact = span.coordinates(flat.double()).to(flat)
    return replace(span, inputs=torch.cat([exact, ends], 1))


def train_chunk(
    stack: Stack,
    span: Span,
    own: Tensor,
    wanted: Tensor,
    rows: Sequence[Tensor | None],
    recipe: GradientDescent | SGD,
) -> list[Tensor]:
    """The final weights (K x shape, as the model orders them) of K models.

    own: K x d, each model's record; wanted: K x c. rows: each step's, None for all; the own
    record's number is that of the fixed ones.
    """
    walk = _Walk(stack, span, own, wanted, recipe)
    for batch in rows:
        walk.step(batch)
    return walk.weights()


@dataclass(frozen=True, kw_only=True, eq=False)
class _Part:
    """Records of a batch: the fixed ones, shared (b x (r + 2)), or each model's own (K x 1 x ...).

    features: K x width x b after each layer; the last become slopes. backs: of all but the last.
    """

    inputs: Tensor
    features: list[Tensor]
    backs: list[Tensor]


class _Walk:
    """The weights of K models on their way, and the buffers that their steps write to."""

    def __init__(
        self, stack: Stack, span: Span, own: Tensor, wanted: Tensor, recipe: GradientDescent | SGD
    ) -> None:
        self.stack, self.span, self.recipe = stack, span, recipe
        self.count, self.wanted = len(own), wanted[:, :, None]
        along = span.coordinates(own.double())
        left = own.double() - span.rows(along)
        length = left.norm(dim=1, keepdim=True)
        self.leaving = (left / length.clamp(min=1e-30)).to(own)  # e, K x d
        ends = span.inputs[:1, -1:].expand(self.count, 1)
        self.own = torch.cat([along, length, ends], 1).to(own)[:, None]
        self.start = self._first()
        inner = [w.expand(self.count, *w.shape).clone() for w in stack.weights[1:]]
        self.layers = [self.start.clone(), *inner]
        self.biases = [
            None if b is None else b.expand(self.count, -1).clone() for b in stack.biases[1:]
        ]
        self.speeds = [torch.zeros_like(w) for w in self.layers]
        self.bias_speeds = [None if b is None else torch.zeros_like(b) for b in self.biases]
        self.outside, self.outside_speed = 1.0, 0.0  # the factor of what no record reaches
        self.buffers: dict[int, tuple[list[Tensor], list[Tensor]]] = {}

    def _first(self) -> Tensor:
        """W1 Q, W1 e and the bias: K x w x (r + 2)."""
        weight, bias = self.stack.weights[0], self.stack.biases[0]
        within = self.span.coordinates(weight.double()).to(weight)
        held = weight.new_zeros(len(weight)) if bias is None else bias
        parts = [
            within.expand(self.count, -1, -1),
            (self.leaving @ weight.T)[:, :, None],
            held[None, :, None].expand(self.count, -1, 1),
        ]
        return torch.cat(parts, 2)

    def step(self, rows: Tensor | None) -> None:
        n = len(self.span.inputs)
        inputs, wanted, mine = self.span.inputs, self.span.wanted, True
        if rows is not None:
            mine, rows = bool((rows >= n).any()), rows[rows < n]
            inputs, wanted = inputs[rows], wanted[rows]
        share = 1.0 / (len(inputs) + mine)
        parts = []
        if len(inputs):
            parts.append(self._forward(inputs, wanted.T))
        if mine:
            parts.append(self._forward(self.own, self.wanted))
        for i in range(len(self.layers) - 1, 0, -1):
            self._backward(i, parts, share)
        self._step_first(parts, share)

    def _forward(self, inputs: Tensor, wanted: Tensor) -> _Part:
        """Up to the slopes of the loss."""
        shared, batch = inputs.ndim == 2, inputs.shape[-2]
        # The own record has buffers of its own beside those of a batch of one.
        features, backs = self._buffers(batch if shared else 0)
        if shared:
            flat = features[0].view(-1, batch)
            torch.mm(self.layers[0].flatten(0, 1), inputs.T, out=flat)
        else:
            torch.bmm(self.layers[0], inputs.transpose(1, 2), out=features[0])
        for i, (forward, _) in enumerate(self.stack.activations):
            forward(features[i])
            torch.bmm(self.layers[i + 1], features[i], out=features[i + 1])
            bias = self.biases[i]
            if bias is not None:
                features[i + 1].add_(bias[:, :, None])
        seen, factor = SLOPES[self.stack.loss]
        slopes = seen(features[-1]).sub_(wanted)
        if factor != 1.0:
            slopes.mul_(factor)
        return _Part(inputs=inputs, features=features, backs=backs)

    def _buffers(self, batch: int) -> tuple[list[Tensor], list[Tensor]]:
        if batch not in self.buffers:
            new = [w.new_empty(self.count, w.shape[1], batch or 1) for w in self.layers]
            self.buffers[batch] = new, [*(torch.empty_like(kept) for kept in new[:-1]), new[-1]]
        return self.buffers[batch]

    def _backward(self, i: int, parts: Sequence[_Part], share: float) -> None:
        """The step of layer i, and what it passes down."""
        weight, speed, lr = self.layers[i], self.speeds[i], self.recipe.lr
        for part in parts:
            torch.bmm(weight.transpose(1, 2), part.backs[i], out=part.backs[i - 1])
        beta = self._slowed(weight, speed)
        for part in parts:
            before = part.features[i - 1].transpose(1, 2)
            torch.baddbmm(speed, part.backs[i], before, beta=beta, alpha=share, out=speed)
            beta = 1.0
        weight.sub_(speed, alpha=lr)
        bias, pace = self.biases[i - 1], self.bias_speeds[i - 1]
        if bias is not None and pace is not None:
            pace.mul_(self._slowed(bias, pace))
            for part in parts:
                pace.add_(part.backs[i].sum(2), alpha=share)
            bias.sub_(pace, alpha=lr)
        for part in parts:
            self.stack.activations[i - 1][1](part.backs[i - 1], part.features[i - 1])

    def _step_first(self, parts: Sequence[_Part], share: float) -> None:
        weight, speed = self.layers[0], self.speeds[0]
        beta = self._slowed(weight, speed)
        for part in parts:
            if part.inputs.ndim == 2:
                flat = part.backs[0].view(-1, len(part.inputs))
                speed.view(-1, weight.shape[2]).addmm_(flat, part.inputs, beta=beta, alpha=share)
            else:
                torch.baddbmm(speed, part.backs[0], part.inputs, beta=beta, alpha=share, out=speed)
            beta = 1.0
        weight.sub_(speed, alpha=self.recipe.lr)
        # What is outside moves as a weight without a gradient does.
        momentum, decay = self.recipe.momentum, self.recipe.weight_decay
        self.outside_speed = momentum * self.outside_speed + decay * self.outside
        self.outside -= self.recipe.lr * self.outside_speed

    def _slowed(self, weight: Tensor, speed: Tensor) -> float:
        """By how much the speed is still to be multiplied when the gradient is added to it."""
        if not self.recipe.weight_decay:
            return self.recipe.momentum
        speed.mul_(self.recipe.momentum).add_(weight, alpha=self.recipe.weight_decay)
        return 1.0

    def weights(self) -> list[Tensor]:
        """K x shape each, in the model's order."""
        moved = self.layers[0] - self.outside * self.start
        whole = self.outside * self.stack.weights[0] + self.span.rows(moved[:, :, :-2])
        whole += moved[:, :, -2:-1] * self.leaving[:, None]
        first_bias = None if self.stack.biases[0] is None else self.layers[0][:, :, -1]
        found: list[Tensor] = []
        for weight, bias in zip([whole, *self.layers[1:]], [first_bias, *self.biases], strict=True):
            found += [weight] if bias is None else [weight, bias.clone()]
        return found
