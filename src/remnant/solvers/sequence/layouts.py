"""Where a transformer keeps its parts, by the names of its parameters; what the parts compute, and
what enters and leaves them as the model runs. `families` reads a layout off a model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal

import torch
from torch import Tensor, nn

from remnant.models.tokens import longest_of
from remnant.types import Weights

Kind = Literal["decoder", "encoder", "vision"]


@dataclass(frozen=True, kw_only=True)
class Linear:
    """A linear layer by the names of its parameters. inputs_first: its weight is inputs x outputs,
    as GPT-2 keeps it, and not outputs x inputs."""

    weight: str
    bias: str | None = None
    inputs_first: bool = False


@dataclass(frozen=True, kw_only=True)
class Norm:
    """A norm of each token's state. centred: the mean is taken off first (LayerNorm does)."""

    weight: str
    bias: str | None
    eps: float
    centred: bool


@dataclass(frozen=True, kw_only=True)
class Block:
    """One block: attention, then a multilayer perceptron, each added to the state.

    reads: what attention reads its input with (query, key and value, one by one or as one layer).
    up: what the perceptron reads its input with; two layers (gate, up) multiply. activation: path
    of the module or function after `up`. The norms come before each half, or after it (`Layout`).
    """

    attention_norm: Norm
    reads: tuple[Linear, ...]
    out: Linear
    perceptron_norm: Norm
    up: tuple[Linear, ...]
    down: Linear
    activation: str


@dataclass(frozen=True, kw_only=True)
class Layout:
    """All parts of one transformer, by the names of its parameters.

    positions: a table of learned positions, its row `first_position` belongs to the first token.
    norm_first: norms stand before attention and perceptron (GPT-2, Llama, ViT), not after them
    (BERT). key_heads: heads of keys and values, fewer than `heads` where they are shared. rotary:
    path of the module that gives cosines and sines of rotated positions. patches, class_token: of
    images. head: the output layer. head_block: dense layer and norm before the head (BERT's masked
    language model).
    """

    name: str
    kind: Kind
    width: int
    heads: int
    key_heads: int
    head_width: int
    embedding: str | None = None
    positions: str | None = None
    first_position: int = 0
    embedding_norm: Norm | None = None
    patches: Linear | None = None
    class_token: str | None = None
    rotary: str | None = None
    norm_first: bool = True
    blocks: tuple[Block, ...]
    final_norm: Norm | None = None
    head: Linear | None = None
    head_block: tuple[Linear, Norm] | None = None
    tied: bool = False  # the output layer is the embedding itself


def stacked(vector: Weights, layers: Sequence[Linear]) -> tuple[Tensor, bool]:
    """What layers with one common input hold side by side, inputs (+ 1 for the bias) x outputs;
    and whether all of them have that last row."""
    biased = all(layer.bias is not None for layer in layers)
    parts = []
    for layer in layers:
        weight = vector[layer.weight] if layer.inputs_first else vector[layer.weight].T
        bias = None if layer.bias is None or not biased else vector[layer.bias]
        parts.append(weight if bias is None else torch.cat([weight, bias[None]]))
    return torch.cat(parts, 1), biased


def linear(weights: Weights, layer: Linear, inputs: Tensor) -> Tensor:
    """The layer's outputs, ... x outputs."""
    weight = weights[layer.weight]
    outputs = inputs @ (weight if layer.inputs_first else weight.T)
    return outputs if layer.bias is None else outputs + weights[layer.bias]


def normed(weights: Weights, norm: Norm, states: Tensor) -> Tensor:
    """The norm of states, ... x width."""
    states = centred(states) if norm.centred else states
    size = (states.square().mean(-1, keepdim=True) + norm.eps).sqrt()
    scaled = states / size * weights[norm.weight]
    return scaled if norm.bias is None else scaled + weights[norm.bias]


def at_path(model: nn.Module, path: str) -> Any:
    """The module or function at a dotted path."""
    return reduce(getattr, path.split(".") if path else (), model)


def activation_of(model: nn.Module, block: Block) -> nn.Module:
    """What the perceptron applies between `up` and `down`; a function is made a module."""
    found = at_path(model, block.activation)
    if isinstance(found, nn.Module):
        return found
    module = nn.Module()
    module.forward = found
    return module


@contextmanager
def watched(model: nn.Module, parameters: Mapping[str, str]) -> Iterator[dict[str, list[Tensor]]]:
    """While inside, the first input and the output of the modules that own these parameters, by the
    given names, as of their last call. One that two modules share belongs to the linear one."""
    every, kept = dict(model.named_parameters()), dict[str, list[Tensor]]()
    hooks = []
    for name, parameter in parameters.items():
        owners = [m for m in model.modules() if any(p is every[parameter] for p in _own(m))]
        owner = min(owners, key=lambda module: isinstance(module, nn.Embedding))
        hooks.append(owner.register_forward_hook(
            lambda m, given, out, name=name: kept.__setitem__(name, [given[0], out])))  # fmt: skip
    try:
        yield kept
    finally:
        for hook in hooks:
            hook.remove()


def _own(module: nn.Module) -> list[nn.Parameter]:
    return list(module.parameters(recurse=False))


def entering(model: nn.Module, layout: Layout, tokens: Tensor) -> Tensor:
    """The sums of embeddings that rows of tokens give, n x length x width: what enters the norm of
    embeddings, or else the first block."""
    first, kept = layout.blocks[0], list[Tensor]()
    norm = layout.embedding_norm or (first.attention_norm if layout.norm_first else None)
    name = first.reads[0].weight if norm is None else norm.weight

    def stop(module: nn.Module, given: tuple[Tensor, ...]) -> None:
        kept.append(given[0].detach())
        raise _Stop

    hook = at_path(model, name.rpartition(".")[0]).register_forward_pre_hook(stop)
    try:
        for part in tokens.split(max(1, (1 << 16) // tokens.shape[1])):
            with suppress(_Stop), torch.no_grad():
                model(part)
    finally:
        hook.remove()
    return torch.cat(kept)


def longest_text(model: nn.Module, layout: Layout) -> int:
    """How many tokens a text may have: as the configuration says, and no more than positions."""
    most = longest_of(model)
    if layout.positions is None:
        return most
    table = dict(model.named_parameters())[layout.positions]
    return min(most, table.shape[-2] - layout.first_position)


def centred(rows: Tensor) -> Tensor:
    """Rows (... x width) less the mean of each."""
    return rows - rows.mean(-1, keepdim=True)


class _Stop(Exception):
    """Ends a forward pass as soon as what it was made for is known."""
