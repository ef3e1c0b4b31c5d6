"""The table of layouts, and how one is read off a module's parameter names.

An attack needs to know which parameters are the embedding, the norms, the projections of attention
and of the multilayer perceptron. `read_layout` finds that in models of Hugging Face `transformers`
and in models around `nn.TransformerEncoder`; of any other it says which part was not recognised.
Only names are read here: whether the parts also act as their names say is for the solver to probe.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor, nn

from remnant.solvers.sequence.layouts import Block, Kind, Layout, Linear, Norm, at_path
from remnant.types import Weights


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
    positions="embeddings.position_embeddings", embedding_norm="embeddings.LayerNorm",
    blocks="encoder.layer", norm_first=False,
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
    names = [name for name, _ in model.named_parameters()]
    found: tuple[Family, str] | str | None = _around_stack(model)
    for family in FAMILIES if found is None else ():
        begin = f"{family.embedding or family.patches}.weight"
        prefix = next((n.removesuffix(begin) for n in names if f".{n}".endswith(f".{begin}")), None)
        blocks = f"{prefix}{family.blocks}.0."
        if prefix is not None and any(name.startswith(blocks) for name in names):
            found = family, prefix
            break
    if found is None:
        known = ", ".join(family.name for family in (*FAMILIES, TORCH))
        return f"not a transformer of a known layout ({known}): no embedding with blocks was found"
    if isinstance(found, str):
        return found
    family, prefix = found
    try:
        layout = _parts(model, family, prefix)
    except _Missing as error:
        return f"{family.name}'s layout was begun but not recognised: {error}"
    left = _left_over(model, layout, f"{prefix}{family.blocks}.")
    if left:
        return f"{family.name}'s layout, but {left} is a part of a block that was not recognised"
    return layout


def is_transformer(model: nn.Module) -> bool:
    """Whether the model is meant for these solvers: its layout is known, or it begins with tokens
    or attends to its own states."""
    kinds = (nn.Embedding, nn.MultiheadAttention)
    return any(isinstance(module, kinds) for module in model.modules()) or (
        not isinstance(read_layout(model), str)
    )


class _Missing(Exception):
    """A part of a layout that the model does not have, by its path."""


def _parts(model: nn.Module, family: Family, prefix: str) -> Layout:
    weights = dict(model.named_parameters(remove_duplicate=False))
    at = f"{prefix}{family.blocks}."
    count = len({n[len(at) :].split(".")[0] for n in weights if n.startswith(at)})
    blocks = tuple(_block(model, family, f"{at}{i}.") for i in range(count))
    table = f"{prefix}{family.positions}"
    positions = next((n for n in (f"{table}.weight", table) if n in weights), None)
    if family.positions and positions is None:
        raise _Missing(f"no positions at {table}")
    embedding = f"{prefix}{family.embedding}.weight" if family.embedding else None
    head = next((h for h in family.heads if f"{h}.weight" in weights), None)
    inner = family.head_block
    if inner and f"{inner[0]}.weight" not in weights:
        inner = None

    def norm(path: str | None) -> Norm | None:
        return _norm(model, f"{prefix}{path}") if path else None

    return Layout(
        name=family.name,
        kind=family.kind,
        **_sizes(model, weights, blocks[0]),
        embedding=embedding,
        positions=positions,
        first_position=_first_position(model),
        embedding_norm=norm(family.embedding_norm),
        patches=_linear(model, f"{prefix}{family.patches}") if family.patches else None,
        class_token=f"{prefix}{family.class_token}" if family.class_token else None,
        rotary=f"{prefix}{family.rotary}" if family.rotary else None,
        norm_first=family.norm_first,
        blocks=blocks,
        final_norm=norm(family.final_norm),
        head=_named_once(model, _linear(model, head)) if head else None,
        head_block=(_linear(model, inner[0]), _norm(model, inner[1])) if inner else None,
        tied=bool(head and embedding and weights[f"{head}.weight"] is weights[embedding]),
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


def _sizes(model: nn.Module, weights: Weights, block: Block) -> dict[str, int]:
    down = weights[block.down.weight]
    width = int(down.shape[1] if block.down.inputs_first else down.shape[0])
    config = getattr(model, "config", None)
    told = (m.num_heads for m in model.modules() if isinstance(m, nn.MultiheadAttention))
    heads = getattr(config, "num_attention_heads", None) or next(told, None)
    if not isinstance(heads, int):
        raise _Missing("the number of heads is nowhere stated")
    keys = getattr(config, "num_key_value_heads", None) or heads
    each = getattr(config, "head_dim", None) or width // heads
    return {"width": width, "heads": heads, "key_heads": keys, "head_width": each}


def _first_position(model: nn.Module) -> int:
    """RoBERTa and its like count from behind the padding token."""
    config = getattr(model, "config", None)
    shifted = "roberta" in str(getattr(config, "model_type", ""))
    return int(getattr(config, "pad_token_id", 0)) + 1 if shifted else 0


def _left_over(model: nn.Module, layout: Layout, at: str) -> str | None:
    """A parameter of the blocks that is no part of the layout."""
    named = set[str | None]()
    for block in layout.blocks:
        layers = (*block.reads, block.out, *block.up, block.down)
        named |= {name for layer in layers for name in (layer.weight, layer.bias)}
        norms = (block.attention_norm, block.perceptron_norm)
        named |= {name for norm in norms for name in (norm.weight, norm.bias)}
    names = (name for name, _ in model.named_parameters() if name.startswith(at))
    return next((name for name in names if name not in named), None)


def _around_stack(model: nn.Module) -> tuple[Family, str] | str | None:
    """The family of a model around nn.TransformerEncoder: its first embedding takes tokens, a
    second one or a parameter of the same width holds positions, the last linear layer is the
    head."""
    modules = dict(model.named_modules())
    stack = next((n for n, m in modules.items() if isinstance(m, nn.TransformerEncoder)), None)
    if stack is None:
        return None
    at = f"{stack}." if stack else ""
    tables = [n for n, m in modules.items() if isinstance(m, nn.Embedding)]
    if not tables:
        return "a model around nn.TransformerEncoder, but no nn.Embedding of tokens was recognised"
    inner = f"{at}layers."
    heads = [n for n, m in modules.items() if isinstance(m, nn.Linear) and not n.startswith(inner)]
    width, encoder = modules[tables[0]].embedding_dim, modules[stack]
    loose = [n for n, p in model.named_parameters() if p.ndim >= 2 and p.shape[-1] == width
             and not n.startswith((inner, *(f"{t}." for t in (*tables, *heads))))]  # fmt: skip
    family = replace(
        TORCH,
        blocks=f"{at}layers",
        embedding=tables[0],
        positions=next(iter((*tables[1:], *loose)), None),
        norm_first=bool(encoder.layers[0].norm_first),
        final_norm=None if encoder.norm is None else f"{at}norm",
        heads=tuple(heads[-1:]),
    )
    return family, ""
