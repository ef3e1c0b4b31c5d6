"""Texts become Examples of tokens: one text a line, or JSON lines; by a tokenizer in one JSON file.

The library `tokenizers` is optional (`remnant[text]`) and imported only when a tokenizer is read.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from remnant.data.reading import LIMIT, RECORD, check_id
from remnant.data.sources import find
from remnant.errors import DataError, InputError, expected
from remnant.types import Examples
from remnant.untrusted.files import Budget, file_bytes, shown

ENDINGS = (".txt", ".jsonl")


@dataclass(frozen=True, kw_only=True, eq=False)
class Tokenizer:
    """Words to tokens and back, as a `tokenizer.json` says."""

    inner: Any
    source: Path

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, special ones added as the model was trained with them."""
        return list(self.inner.encode(text).ids)

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """What each token adds to the text; those that are no token of this tokenizer say so."""
        from tokenizers.decoders import DecodeStream

        stream, said = DecodeStream(skip_special_tokens=False), list[str]()
        for token in tokens:
            known = self.inner.id_to_token(token) is not None
            said.append((stream.step(self.inner, token) or "") if known else f"⟨{token}⟩")
        return said


def numbered(tokens: Sequence[int]) -> list[str]:
    """Tokens as numbers, for want of a tokenizer."""
    return [f"{token} " for token in tokens]


def read_tokenizer(path: str | Path, *, largest: int = 64 * 1024**2) -> Tokenizer:
    """The tokenizer in a JSON file of at most `largest` bytes; nothing is fetched."""
    source = Path(path)
    try:
        from tokenizers import Tokenizer as Read
    except ImportError:
        do = "pip install 'remnant[text]'"
        raise InputError(expected("a tokenizer", "tokenizers installed", "none", do)) from None
    raw = file_bytes(source, Budget(largest))
    try:
        inner = Read.from_str(raw.decode())
        inner.no_truncation()
        inner.no_padding()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a panic of the library is no Exception
        said = " ".join(f"{error}"[:400].split())[:120] or type(error).__name__
        do = "give the tokenizer.json that was saved beside the model"
        raise DataError(expected(f"{source}", "a tokenizer", f"a fault ({said})", do)) from None
    return Tokenizer(inner=inner, source=source)


def load_texts(
    source: str | Path,
    tokenizer: Tokenizer | None,
    *,
    vocabulary: int,
    longest: int,
    field: str = "text",
    data_dir: str | Path | None = None,
    limit: int = LIMIT,
) -> Examples:
    """The texts of a file as tokens: `.txt` has one a line, each line of `.jsonl` is an object with
    the text under `field`, or its `tokens`, and perhaps a `label` and an `id`.

    vocabulary, longest: how many tokens the model knows, and how many it takes at a time.
    """
    path, budget = find(source, data_dir), Budget(limit)
    rows, labels, ids = list[list[int]](), list[int](), dict[str, None]()
    for where, held in read_lines(path, budget, field):
        rows.append(_tokens(held, field, tokenizer, where))
        _check_tokens(rows[-1], vocabulary, longest, where)
        label, name = held.get("label", 0), held.get("id", f"{path.stem}-{len(labels):05d}")
        if type(label) is not int or not 0 <= label < 2**31:
            raise DataError(expected(f"{where}: label", "a class 0, 1, ...", shown(label)))
        if not isinstance(name, str | int) or isinstance(name, bool):
            raise DataError(expected(f"{where}: id", "a text", shown(name)))
        check_id(str(name), where)
        if str(name) in ids:
            raise DataError(expected(f"{path}: ids", "different ones", f"{shown(str(name))} twice"))
        ids[str(name)] = None
        labels.append(label)
    budget.take(path, 16 * len(rows) * max(map(len, rows)))
    return Examples(
        inputs=padded(rows), labels=torch.tensor(labels), ids=tuple(ids), bounds=None,
        name=path.stem,
    )  # fmt: skip


def read_lines(path: Path, budget: Budget, field: str) -> list[tuple[str, dict[str, Any]]]:
    """Where each line of a file of texts stands, and what it holds: of `.jsonl` its object, of
    `.txt` the line as an object with `field` alone."""
    objects = path.suffix.lower() == ".jsonl"
    if not path.is_file() or path.suffix.lower() not in ENDINGS:
        got = path.suffix or "a folder or a file without an ending"
        raise DataError(expected(str(path), "texts, a .txt or .jsonl file", shown(got)[1:-1]))
    try:
        lines = file_bytes(path, budget).decode("utf-8-sig").replace("\r\n", "\n").split("\n")
    except UnicodeDecodeError as error:
        got = f"other bytes at {error.start}"
        raise DataError(expected(f"{path}", "UTF-8 text", got)) from None
    lines = lines[:-1] if not lines[-1] else lines
    if not lines:
        raise DataError(expected(f"{path}", "a text a line", "an empty file"))
    budget.take(path, RECORD * len(lines))
    named = [(f"{path}, line {number}", line) for number, line in enumerate(lines, start=1)]
    return [(at, _object(line, at) if objects else {field: line}) for at, line in named]


def padded(rows: Sequence[Sequence[int]]) -> Tensor:
    """n x length of tokens, -1 after the end of each; the longest decides."""
    width = max(map(len, rows))
    table = torch.full((len(rows), width), -1, dtype=torch.int64)
    for row, tokens in zip(table, rows, strict=True):
        row[: len(tokens)] = torch.tensor(tokens, dtype=torch.int64)
    return table


def _object(line: str, where: str) -> dict[str, Any]:
    try:
        held = json.loads(line)
    except (ValueError, RecursionError):
        held = None
    if not isinstance(held, dict):
        raise DataError(expected(where, 'an object such as {"text": "..."}', shown(line)))
    return held


def _tokens(held: dict[str, Any], field: str, tokenizer: Tokenizer | None, where: str) -> list[int]:
    """The tokens that a line gives, or those of its text."""
    given = held.get("tokens")
    if field not in held and given is not None:
        numbers = isinstance(given, list) and all(type(token) is int for token in given)
        if not given or not numbers:
            raise DataError(expected(f"{where}: tokens", "whole numbers", shown(given)))
        return list(given)
    text = held.get(field)
    if not isinstance(text, str):
        do = "name it with --text-field" if field == "text" else ""
        got = "nothing" if text is None else shown(text)
        raise DataError(expected(f"{where}: {field[:40]}", "a text", got, do))
    if not text.strip():
        raise DataError(expected(where, "a text", "an empty one", "leave it out"))
    if tokenizer is None:
        do = "give --tokenizer tokenizer.json"
        raise InputError(expected("texts", "a tokenizer to read them with", "none", do))
    tokens = tokenizer.encode(text)
    if not tokens:
        raise DataError(expected(where, "a text of one token or more", shown(text)))
    return tokens


def _check_tokens(tokens: list[int], vocabulary: int, longest: int, where: str) -> None:
    if not 0 <= min(tokens) <= max(tokens) < vocabulary:
        worst = max(tokens) if max(tokens) >= vocabulary else min(tokens)
        wanted = f"tokens below the model's vocabulary, {vocabulary}"
        do = "give the tokenizer that the model was trained with"
        raise DataError(expected(where, wanted, shown(worst), do))
    if len(tokens) > longest:
        do = "cut it as training did"
        raise DataError(expected(where, f"at most {longest} tokens", len(tokens), do))
