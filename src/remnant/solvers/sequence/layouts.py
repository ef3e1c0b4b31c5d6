"""Where a transformer keeps its parts: a table of layouts, read off a module's parameter names.

An attack needs to know which parameters are the embedding, the norms, the projections of attention
and of the multilayer perceptron. `read_layout` finds that in models of Hugging Face `transformers`
and in models around `nn.TransformerEncoder`; of any other it says which part was not recognised.
Only names are read here: whether the parts also act as their names say is for the solver to probe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

Kind = Literal["decoder", "encoder", "vision"]
Weights = Mapping[str, Tensor]


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
    types: a table whose row 0 is added to every token (BERT). norm_first: norms stand before
    attention and perceptron (GPT-2, Llama, ViT), not after them (BERT). key_heads: heads of keys
    and values, fewer than `heads` where they are shared. rotary: path of the module that gives
    cosines and sines of rotated positions. patches, class_token: of images. head: the output layer.
    head_block: dense layer and norm before the head (BERT's masked language model).
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
    types: str | None = None
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


@dataclass(frozen=True, kw_only=True)
class Family:
    """A layout as its authors name its modules; all paths but `head`'s are relative to a prefix."""

    name: str
    kind: Kind
    blocks: str
    attention_norm: str
    reads: tuple[str, ...]
    out: str
    perceptron_norm: str
    up: tuple[str, ...]
    down: str
    activation: str
    embedding: str | None = None
    positions: str | None = None
    types: str | None = None
    embedding_norm: str | None = None
    patches: str | None = None
    class_token: str | None = None
    rotary: str | None = None
    norm_first: bool = True
    final_norm: str | None = None
    heads: tuple[str, ...] = ("lm_head",)
    head_block: tuple[str, str] | None = None


GPT2 = Family(
    name="gpt2", kind="decoder", embedding="wte", positions="wpe", blocks="h",
    attention_norm="ln_1", reads=("attn.c_attn",), out="attn.c_proj", perceptron_norm="ln_2",
    up=("mlp.c_fc",), down="mlp.c_proj", activation="mlp.act", final_norm="ln_f",
)  # fmt: skip
LLAMA = Family(
    name="llama", kind="decoder", embedding="embed_tokens", rotary="rotary_emb", blocks="layers",
    attention_norm="input_layernorm",
    reads=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), out="self_attn.o_proj",
    perceptron_norm="post_attention_layernorm", up=("mlp.gate_proj", "mlp.up_proj"),
    down="mlp.down_proj", activation="mlp.act_fn", final_norm="norm",
)  # fmt: skip
BERT = Family(
    name="bert", kind="encoder", embedding="embeddings.word_embeddings",
    positions="embeddings.position_embeddings", types="embeddings.token_type_embeddings",
    embedding_norm="embeddings.LayerNorm", blocks="encoder.layer", norm_first=False,
    reads=("attention.self.query", "attention.self.key", "attention.self.value"),
    out="attention.output.dense", attention_norm="attention.output.LayerNorm",
    up=("intermediate.dense",), activation="intermediate.intermediate_act_fn", down="output.dense",
    perceptron_norm="output.LayerNorm", heads=("cls.predictions.decoder", "classifier"),
    head_block=("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm"),
)  # fmt: skip
VIT = Family(
    name="vit", kind="vision", patches="embeddings.patch_embeddings.projection",
    positions="embeddings.position_embeddings", class_token="embeddings.cls_token",
    blocks="layers", attention_norm="layernorm_before",
    reads=("attention.q_proj", "attention.k_proj", "attention.v_proj"), out="attention.o_proj",
    perceptron_norm="layernorm_after", up=("mlp.fc1",), activation="mlp.activation_fn",
    down="mlp.fc2", final_norm="layernorm", heads=("classifier",),
)  # fmt: skip
TORCH = Family(
    name="nn.TransformerEncoder", kind="encoder", blocks="layers", attention_norm="norm1",
    reads=("self_attn.in_proj",), out="self_attn.out_proj", perceptron_norm="norm2",
    up=("linear1",), activation="activation", down="linear2",
)  # fmt: skip
FAMILIES = (GPT2, LLAMA, BERT, VIT)


def read_layout(model: nn.Module) -> Layout | str:
    """The layout of a transformer, or a sentence that says which part was not recognised."""
    stack = next(
        (n for n, m in model.named_modules() if isinstance(m, nn.TransformerEncoder)), None
    )
    if stack is not None:
        return _around_stack(model, stack)
    names = dict(model.named_parameters())
    for family in FAMILIES:
        begin = family.embedding or family.patches
        ends = [name for name in names if f".{name}".endswith(f".{begin}.weight")]
        prefix = ends[0].removesuffix(f"{begin}.weight") if ends else ""
        if ends and any(name.startswith(f"{prefix}{family.blocks}.0.") for name in names):
            return _read_family(model, family, prefix)
    known = ", ".join(family.name for family in (*FAMILIES, TORCH))
    return f"not a transformer of a known layout ({known}): no embedding with blocks was recognised"


def is_transformer(model: nn.Module) -> bool:
    """Whether the model is meant for these solvers: its layout is known, or it begins with tokens
    or attends to its own states."""
    kinds = (nn.Embedding, nn.MultiheadAttention)
    return any(isinstance(module, kinds) for module in model.modules()) or (
        not isinstance(read_layout(model), str)
    )


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
    if norm.centred:
        states = states - states.mean(-1, keepdim=True)
    size = (states.square().mean(-1, keepdim=True) + norm.eps).sqrt()
    scaled = states / size * weights[norm.weight]
    return scaled if norm.bias is None else scaled + weights[norm.bias]


def at_path(model: nn.Module, path: str) -> Any:
    """The module or function at a dotted path."""
    found: Any = model
    for part in path.split("."):
        found = found[int(part)] if part.isdigit() else getattr(found, part)
    return found


def activation_of(model: nn.Module, block: Block) -> Any:
    """What the perceptron applies between `up` and `down`."""
    return at_path(model, block.activation)


class _Missing(Exception):
    """A part of a layout that the model does not have, by its path."""


def _read_family(model: nn.Module, family: Family, prefix: str) -> Layout | str:
    try:
        layout = _parts(model, family, prefix)
    except _Missing as error:
        return f"{family.name}'s layout was begun but not recognised: {error}"
    left = _left_over(model, layout, f"{prefix}{family.blocks}.")
    if left:
        return f"{family.name}'s layout, but {left} is a part of a block that was not recognised"
    return layout


def _parts(model: nn.Module, family: Family, prefix: str) -> Layout:
    names = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    count = len({n[len(prefix) :].split(".")[len(family.blocks.split("."))]
                 for n in names if n.startswith(f"{prefix}{family.blocks}.")})  # fmt: skip
    blocks = tuple(_block(model, family, f"{prefix}{family.blocks}.{i}.") for i in range(count))
    embedding = f"{prefix}{family.embedding}.weight" if family.embedding else None
    table = f"{prefix}{family.positions}"
    positions = next((n for n in (f"{table}.weight", table) if n in names), None)
    if family.positions and positions is None:
        raise _Missing(f"no positions at {table}")
    head = next((h for h in family.heads if f"{h}.weight" in names), None)
    weights = dict(model.named_parameters(remove_duplicate=False))
    tied = head is not None and embedding is not None and (
        weights[f"{head}.weight"] is weights[embedding]
    )  # fmt: skip
    width, heads, key_heads, head_width = _sizes(model, weights, blocks[0])
    inner = family.head_block
    has_inner = inner is not None and f"{inner[0]}.weight" in names
    return Layout(
        name=family.name,
        kind=family.kind,
        width=width,
        heads=heads,
        key_heads=key_heads,
        head_width=head_width,
        embedding=embedding,
        positions=positions,
        first_position=_first_position(model),
        types=f"{prefix}{family.types}.weight" if family.types else None,
        embedding_norm=_norm(model, f"{prefix}{family.embedding_norm}")
        if family.embedding_norm
        else None,
        patches=_linear(model, f"{prefix}{family.patches}") if family.patches else None,
        class_token=f"{prefix}{family.class_token}" if family.class_token else None,
        rotary=f"{prefix}{family.rotary}" if family.rotary else None,
        norm_first=family.norm_first,
        blocks=blocks,
        final_norm=_norm(model, f"{prefix}{family.final_norm}") if family.final_norm else None,
        head=_named_once(model, _linear(model, head)) if head else None,
        head_block=(_linear(model, inner[0]), _norm(model, inner[1]))
        if inner and has_inner
        else None,
        tied=tied,
    )


def _block(model: nn.Module, family: Family, at: str) -> Block:
    return Block(
        attention_norm=_norm(model, at + family.attention_norm),
        reads=tuple(_linear(model, at + name) for name in family.reads),
        out=_linear(model, at + family.out),
        perceptron_norm=_norm(model, at + family.perceptron_norm),
        up=tuple(_linear(model, at + name) for name in family.up),
        down=_linear(model, at + family.down),
        activation=at + family.activation,
    )


def _linear(model: nn.Module, path: str) -> Linear:
    """A linear layer at a path; nn.MultiheadAttention keeps its first without a module."""
    names = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    for mark in (".", "_"):
        weight, bias = f"{path}{mark}weight", f"{path}{mark}bias"
        if weight in names:
            first = mark == "." and type(at_path(model, path)).__name__ == "Conv1D"
            return Linear(weight=weight, bias=bias if bias in names else None, inputs_first=first)
    raise _Missing(f"no linear layer at {path}")


def _norm(model: nn.Module, path: str) -> Norm:
    try:
        module = at_path(model, path)
    except (AttributeError, IndexError, TypeError):
        raise _Missing(f"no norm at {path}") from None
    eps = getattr(module, "eps", getattr(module, "variance_epsilon", None))
    if not isinstance(getattr(module, "weight", None), Tensor) or eps is None:
        raise _Missing(f"no norm with a weight at {path}")
    bias = f"{path}.bias" if getattr(module, "bias", None) is not None else None
    return Norm(
        weight=f"{path}.weight", bias=bias, eps=float(eps), centred=isinstance(module, nn.LayerNorm)
    )


def _named_once(model: nn.Module, layer: Linear) -> Linear:
    """By the names under which shared parameters are listed."""
    every = dict(model.named_parameters(remove_duplicate=False))
    own = {id(p): name for name, p in model.named_parameters()}
    bias = None if layer.bias is None else own[id(every[layer.bias])]
    return replace(layer, weight=own[id(every[layer.weight])], bias=bias)


def _sizes(model: nn.Module, weights: Weights, block: Block) -> tuple[int, int, int, int]:
    """Width, heads, heads of keys, width of a head."""
    down = weights[block.down.weight]
    width = int(down.shape[1] if block.down.inputs_first else down.shape[0])
    config = getattr(model, "config", None)
    heads = getattr(config, "num_attention_heads", None)
    if heads is None:
        found = (m.num_heads for m in model.modules() if isinstance(m, nn.MultiheadAttention))
        heads = next(found, None)
    if not isinstance(heads, int):
        raise _Missing("the number of heads is nowhere stated")
    keys = getattr(config, "num_key_value_heads", None) or heads
    return width, heads, keys, getattr(config, "head_dim", None) or width // heads


def _first_position(model: nn.Module) -> int:
    """RoBERTa and its like count from behind the padding token."""
    config = getattr(model, "config", None)
    shifted = "roberta" in str(getattr(config, "model_type", ""))
    return int(getattr(config, "pad_token_id", 0)) + 1 if shifted else 0


def _left_over(model: nn.Module, layout: Layout, at: str) -> str | None:
    """A parameter of the blocks that is no part of the layout."""
    named = set[str | None]()
    for block in layout.blocks:
        for layer in (*block.reads, block.out, *block.up, block.down):
            named |= {layer.weight, layer.bias}
        for norm in (block.attention_norm, block.perceptron_norm):
            named |= {norm.weight, norm.bias}
    names = (name for name, _ in model.named_parameters() if name.startswith(at))
    return next((name for name in names if name not in named), None)


def _around_stack(model: nn.Module, stack: str) -> Layout | str:
    """A model around nn.TransformerEncoder: its first embedding takes tokens, a second embedding or
    a parameter of the same width holds positions, the last linear layer is the head."""
    at = f"{stack}." if stack else ""
    tables = [n for n, m in model.named_modules() if isinstance(m, nn.Embedding)]
    if not tables:
        return "a model around nn.TransformerEncoder, but no nn.Embedding of tokens was recognised"
    outside = {n: p for n, p in model.named_parameters() if not n.startswith(f"{at}layers.")}
    encoder: Any = at_path(model, stack) if stack else model
    norm = f"{at}norm" if encoder.norm is not None else None
    heads = [n for n, m in model.named_modules() if isinstance(m, nn.Linear)
             and not n.startswith(f"{at}layers.")]  # fmt: skip
    width = at_path(model, tables[0]).embedding_dim
    loose = [n for n, p in outside.items() if p.ndim >= 2 and p.shape[-1] == width
             and not any(n.startswith(f"{t}.") for t in (*tables, *heads))]  # fmt: skip
    positions = f"{tables[1]}.weight" if len(tables) > 1 else next(iter(loose), None)
    causal = replace(TORCH, norm_first=bool(encoder.layers[0].norm_first), heads=())
    try:
        blocks = tuple(
            _block(model, causal, f"{at}layers.{i}.") for i in range(len(encoder.layers))
        )
        every = dict(model.named_parameters(remove_duplicate=False))
        _, count, keys, head_width = _sizes(model, every, blocks[0])
        head = _linear(model, heads[-1]) if heads else None
        return Layout(
            name=TORCH.name, kind=TORCH.kind, width=width, heads=count, key_heads=keys,
            head_width=head_width, embedding=f"{tables[0]}.weight", positions=positions,
            norm_first=causal.norm_first, blocks=blocks,
            final_norm=_norm(model, norm) if norm else None,
            head=_named_once(model, head) if head else None,
            tied=head is not None and every[head.weight] is every[f"{tables[0]}.weight"],
        )  # fmt: skip
    except _Missing as error:
        return f"a model around nn.TransformerEncoder, not recognised: {error}"
