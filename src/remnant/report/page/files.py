"""The bundle in a run's directory: `finding.json`, and the tensors that its pictures are made of.

- `originals.safetensors`: `inputs`, n x shape in the data's own scale. Its metadata key "remnant"
  is JSON: `ids`, n of them, and `bounds`, the box of the scale, or null for a table.
- `texts.json`, of texts: the pieces that each one's tokens stand for, of the originals under
  "originals" and of an attack's candidates under its file's name.
- one file per attack, named in `Attacked.candidates`: `inputs`, `confidence` and `labels` as
  `store.write_candidates` writes them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import safetensors
from pydantic import TypeAdapter, ValidationError
from torch import Tensor
from torch.nn import functional

from remnant.bundle import Audit
from remnant.errors import InputError, StoreError, expected
from remnant.report.sheet import drawable
from remnant.store import (
    FINDING_FILE,
    RUN_FILE,
    Run,
    read_candidates,
    read_json,
    read_run,
    write_bytes,
    write_candidates,
    write_json,
    write_text,
)
from remnant.store.files import pack, unpack
from remnant.types import Candidates, Examples, token_rows

ORIGINALS_FILE = "originals.safetensors"
TEXTS_FILE = "texts.json"
ORIGINALS = "originals"
Words = Callable[[Sequence[int]], list[str]]
TEXTS = TypeAdapter(dict[str, list[list[str]]])


@dataclass(frozen=True, kw_only=True, eq=False)
class Pictures:
    """What the page shows besides figures. Empty where pictures were left out. most: pairs of them
    on one page.

    `originals` is n x shape in the order of `ids`; `candidates` has m x shape by file name.
    `texts`: of texts the pieces of each, under ORIGINALS and by file name.
    """

    ids: tuple[str, ...] = ()
    originals: Tensor | None = None
    candidates: Mapping[str, Tensor] = field(default_factory=dict)
    bounds: tuple[float, float] | None = (0.0, 1.0)
    texts: Mapping[str, Sequence[Sequence[str]]] = field(default_factory=dict)
    most: ClassVar[int] = 300

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape of one input, None where there is none."""
        tensors = [*([] if self.originals is None else [self.originals]), *self.candidates.values()]
        return tuple(tensors[0].shape[1:]) if tensors else None

    @property
    def are_texts(self) -> bool:
        return bool(self.texts)

    @property
    def are_images(self) -> bool:
        return self.shape is not None and self.bounds is not None and drawable(self.shape)


def write_bundle(
    run: Run,
    audit: Audit,
    originals: Examples | None,
    candidates: Mapping[str, Candidates],
    words: Words | None = None,
) -> tuple[Audit, Pictures]:
    """Write the bundle into the run's directory; returns it as `read_bundle` would.

    `candidates` are by the file name in `Attacked.candidates`. Of the originals only those that a
    page can show are kept, and what `audit.images` and `audit.redacted` leave out or blur never
    reaches the disk. Of texts, `words` says what tokens stand for; without it they are numbers.
    """
    texts = originals is not None and originals.are_texts
    shown = Pictures()
    if originals is not None:
        kept = originals.take(_rows_to_show(audit, originals.ids))
        inputs = kept.inputs.detach().cpu()
        shown = Pictures(ids=kept.ids, originals=inputs, bounds=kept.bounds)
    found = {
        name: value.inputs.detach().cpu()
        if texts
        else _shaped(value.inputs.detach().cpu(), shown.shape, name)
        for name, value in candidates.items()
    }
    shown = replace(shown, candidates=found)
    if texts:
        shown = replace(shown, texts=_texts(shown, words))
    if audit.redacted:
        audit, shown = redact(replace(audit, redacted=False), shown)
    if not audit.images:
        audit, shown = without_images(audit)
    audit = replace(audit, originals=None if shown.originals is None else ORIGINALS_FILE)
    wanted = {row.candidates for row in audit.attacks if row.candidates is not None}
    if wanted != shown.candidates.keys():
        raise InputError(expected("bundle: candidates of", sorted(wanted), sorted(candidates)))
    for name in sorted(wanted):
        write_candidates(run, candidates[name], name)
    if shown.originals is not None:
        about = json.dumps({"ids": list(shown.ids), "bounds": shown.bounds})
        write_bytes(run, ORIGINALS_FILE, pack({"inputs": shown.originals}, about))
    if shown.texts:
        write_json(run, TEXTS_FILE, shown.texts)
    write_text(run, FINDING_FILE, audit.to_json())
    return audit, shown


def read_bundle(directory: str | Path, *, images: bool = True) -> tuple[Audit, Pictures]:
    """The audit in `directory` and its pictures, unless they are to be left out.

    A file that the audit names and the directory lacks is an error, and so is one that is not
    what a finished audit wrote.
    """
    path = Path(directory)
    if (path / RUN_FILE).exists():
        read_run(path)  # checks every file
    try:
        audit = Audit.from_json((path / FINDING_FILE).read_text("utf-8"))
    except (OSError, UnicodeDecodeError, RecursionError) as error:
        got = getattr(error, "strerror", None) or error
        do = "give the directory that remnant audit wrote"
        raise StoreError(expected(f"{path / FINDING_FILE}", "an audit", got, do)) from None
    if not images:
        return without_images(audit)
    shown = Pictures() if audit.originals is None else _read_originals(path, audit.originals)
    names = {row.candidates for row in audit.attacks if row.candidates is not None}
    found = {name: read_candidates(as_run(path), name).inputs for name in sorted(names)}
    if audit.target.get("text"):
        texts = _read_texts(path, {name: len(rows) for name, rows in found.items()}, shown)
        return audit, replace(shown, candidates=found, texts=texts)
    shaped = {name: _shaped(inputs, shown.shape, name) for name, inputs in found.items()}
    return audit, replace(shown, candidates=shaped)


def without_images(audit: Audit) -> tuple[Audit, Pictures]:
    """The audit without a single input, neither original nor reconstruction."""
    attacks = [replace(row, candidates=None) for row in audit.attacks]
    bare = replace(audit, images=False, originals=None, attacks=attacks)
    return bare, Pictures()


def redact(audit: Audit, pictures: Pictures) -> tuple[Audit, Pictures]:
    """Originals blurred for good: averages over a few large squares. Those of tables are dropped.

    Reconstructions stay as they are: where a record was recovered they show it. Of texts the
    originals are dropped, and every letter of what came back is masked on the page.
    """
    if pictures.texts:
        masked = {
            name: [[_masked(piece) for piece in text] for text in found]
            for name, found in pictures.texts.items()
            if name != ORIGINALS
        }
        hidden = replace(pictures, ids=(), originals=None, texts=masked)
        return replace(audit, redacted=True, originals=None), hidden
    if audit.redacted or pictures.originals is None:
        return replace(audit, redacted=True), pictures
    if not pictures.are_images:
        gone = replace(pictures, ids=(), originals=None)
        return replace(audit, redacted=True, originals=None), gone
    blurred = replace(pictures, originals=blur(pictures.originals))
    return replace(audit, redacted=True), blurred


def _masked(piece: str) -> str:
    return "".join("•" if letter.isalnum() else letter for letter in piece)


def _texts(shown: Pictures, words: Words | None) -> dict[str, list[list[str]]]:
    """Every text in pieces, a piece a token: by `words`, else as numbers."""
    held = dict(shown.candidates)
    if shown.originals is not None:
        held[ORIGINALS] = shown.originals
    spell = words or (lambda tokens: [f"{token} " for token in tokens])
    return {name: [spell(row) for row in token_rows(rows)] for name, rows in held.items()}


def _read_texts(
    directory: Path, counts: Mapping[str, int], shown: Pictures
) -> dict[str, list[list[str]]]:
    """`texts.json`, if it is what an audit wrote: as many texts as there are rows."""
    wanted = dict(counts) | ({} if shown.originals is None else {ORIGINALS: len(shown.ids)})
    try:
        held = TEXTS.validate_python(read_json(as_run(directory), TEXTS_FILE))
    except ValidationError:
        held = {}
    if any(len(held.get(name, ())) != count for name, count in wanted.items()):
        do = "restore it, or leave texts out with --no-images"
        raise StoreError(expected(f"{directory / TEXTS_FILE}", "texts in pieces", "others", do))
    return {name: held.get(name, []) for name in wanted}


def blur(images: Tensor, kept: int = 5) -> Tensor:
    """n x shape, each reduced to at most `kept` pixels a side and drawn large again."""
    if not len(images):  # no attack ran, so that no record is shown
        return images
    h, w = images.shape[-2:]
    longest = max(h, w)
    tall, wide = (max(1, round(min(kept, longest) * side / longest)) for side in (h, w))
    planes = images.double().reshape(len(images), -1, h, w)
    averages = functional.adaptive_avg_pool2d(planes, (tall, wide))
    return functional.interpolate(averages, (h, w), mode="bilinear").reshape(images.shape).float()


def as_run(directory: str | Path) -> Run:
    """A directory as the store's functions take it, though it need not hold a run."""
    return Run(path=Path(directory), spec={}, spec_hash="", finished=False, record={})


def _rows_to_show(audit: Audit, ids: Sequence[str]) -> list[int]:
    """Rows of the records that a page can show: no more of the data is copied than that."""
    findings = [row.finding for row in audit.attacks if row.finding is not None]
    shown = {
        record.get("id") for finding in findings for record in finding.per_record[: Pictures.most]
    }
    return [i for i, name in enumerate(ids) if name in shown]


def _read_originals(directory: Path, name: str) -> Pictures:
    if name != Path(name).name:
        raise StoreError(expected("bundle: originals", "a plain file name", repr(name)))
    path = directory / name
    try:
        tensors, text = unpack(path)
        inputs, about = tensors["inputs"], json.loads(text)
        ids, bounds = tuple(map(str, about["ids"])), about["bounds"]
        box = None if bounds is None else (float(bounds[0]), float(bounds[1]))
    except (safetensors.SafetensorError, LookupError, TypeError, ValueError, OSError) as error:
        do = "restore it, or leave pictures out with --no-images"
        raise StoreError(expected(f"{path}", "originals", f"a fault ({error})", do)) from None
    if inputs.ndim < 2 or len(ids) != len(inputs):
        got = f"{len(ids)} and {tuple(inputs.shape)}"
        raise StoreError(expected(f"{path}: ids and inputs", "n and n x shape", got))
    return Pictures(ids=ids, originals=inputs, bounds=box)


def _shaped(inputs: Tensor, shape: tuple[int, ...] | None, name: str) -> Tensor:
    """Candidates in the shape of the originals: some attacks return them flat."""
    if shape is not None and math.prod(inputs.shape[1:]) != math.prod(shape):
        raise StoreError(expected(name, f"m x {shape}", tuple(inputs.shape)))
    return inputs if shape is None else inputs.reshape(len(inputs), *shape)
