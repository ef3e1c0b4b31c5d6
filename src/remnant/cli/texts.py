"""Hugging Face directories and texts on the command line: the model, its tokenizer, its data."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from remnant.errors import InputError, expected

if TYPE_CHECKING:
    from torch import Tensor, nn

    from remnant.cli.spec import TargetSpec
    from remnant.data import Tokenizer
    from remnant.store import Run
    from remnant.types import Candidates, Examples

HF = "hf:"
TOKENIZER = "tokenizer.json"
TEXTS_FILE = "texts.jsonl"


def directory_of(spec: TargetSpec) -> Path | None:
    """The Hugging Face directory that holds the model, by --model hf:DIR or --weights, if any."""
    if spec.model is not None:
        return Path(spec.model.removeprefix(HF)) if spec.model.startswith(HF) else None
    return spec.weights if spec.weights.is_dir() else None


def read_directory(directory: Path, weights: Path) -> tuple[nn.Module, tuple[int, ...]]:
    """The model of a directory with the released weights, and the shape of one input: the most
    tokens of a text, or an image's; () where its configuration does not say."""
    from remnant.models import load_weights
    from remnant.models.hf import read_hf
    from remnant.models.tokens import longest_of, takes_tokens

    model = read_hf(directory)
    if weights.resolve() != directory.resolve():
        load_weights(model, read_held(weights), what=f"--weights {weights}")
    if takes_tokens(model):
        return model, (longest_of(model),)
    config = getattr(model, "config", None)
    side, channels = (getattr(config, name, None) for name in ("image_size", "num_channels"))
    known = isinstance(side, int) and isinstance(channels, int)
    return model, (channels, side, side) if known else ()  # type: ignore[return-value]


def read_held(path: Path) -> dict[str, Tensor]:
    """Weights by name, as the file has them; or out of a Hugging Face directory."""
    from remnant.models.hf import read_hf
    from remnant.models.weights import read_tensors

    if not path.is_dir():
        return read_tensors(path)
    return {name: value.detach() for name, value in read_hf(path).named_parameters()}


def tokenizer_of(spec: TargetSpec) -> Tokenizer | None:
    """The tokenizer of --tokenizer, or that in the model's directory, or none."""
    from remnant.data import read_tokenizer

    if spec.tokenizer is not None:
        inside = spec.tokenizer / TOKENIZER
        return read_tokenizer(inside if spec.tokenizer.is_dir() else spec.tokenizer)
    directory = directory_of(spec)
    own = None if directory is None else directory / TOKENIZER
    return read_tokenizer(own) if own is not None and own.is_file() else None


def read_texts(spec: TargetSpec, model: nn.Module, source: str) -> Examples:
    """The texts of a file as tokens of the model."""
    from remnant.data import load_texts
    from remnant.models.tokens import longest_of, vocabulary_of

    return load_texts(
        source,
        tokenizer_of(spec),
        vocabulary=vocabulary_of(model),
        longest=longest_of(model),
        field=getattr(spec, "text_field", None) or "text",
        data_dir=spec.data_dir,
    )


def tokenizer_hash(spec: TargetSpec) -> dict[str, str]:
    """The hash of the tokenizer that texts are read and shown with, if there is one."""
    import hashlib

    tokenizer = tokenizer_of(spec)
    if tokenizer is None:
        return {}
    return {"tokenizer": hashlib.sha256(tokenizer.source.read_bytes()).hexdigest()}


def words_of(spec: TargetSpec, model: nn.Module) -> Callable[[Sequence[int]], list[str]] | None:
    """What tokens mean, piece by piece: by the tokenizer, else as numbers; None without tokens."""
    from remnant.data.texts import numbered
    from remnant.models.tokens import takes_tokens

    if not takes_tokens(model):
        return None
    tokenizer = tokenizer_of(spec)
    return numbered if tokenizer is None else tokenizer.pieces


def write_texts(
    run: Run, candidates: Candidates, words: Callable[[Sequence[int]], list[str]]
) -> None:
    """What came back as texts.jsonl: a text a line, its tokens, and whether it is certified."""
    from remnant.store import write_text
    from remnant.types import token_rows

    passed = list(candidates.stated.passed) or [False] * len(candidates)
    lines = []
    for tokens, certified in zip(token_rows(candidates.inputs), passed, strict=True):
        held = {"text": "".join(words(tokens)), "certified": bool(certified), "tokens": tokens}
        lines.append(json.dumps(held, ensure_ascii=False) + "\n")
    if lines:
        write_text(run, TEXTS_FILE, "".join(lines))


def refuse_numbers(spec: TargetSpec) -> None:
    """Flags that describe records of numbers say nothing of texts."""
    for name in ("mean", "std", "bounds", "shape"):
        if getattr(spec, name) is not None:
            do = "leave it out"
            raise InputError(expected(f"--{name} of a model of tokens", "nothing", "a value", do))
