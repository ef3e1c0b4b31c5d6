"""What a spec of an audit describes, read: the released model, its records, and strangers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn

from remnant.auditing.api import hash_examples
from remnant.auditing.case import Canaries, Case, check_labels_of, halves, same_length, with_planted
from remnant.bounds import Ledger
from remnant.cli.spec import AuditSpec, is_linear
from remnant.cli.target import read_linear_target, read_released, read_target
from remnant.cli.texts import directory_of, read_texts, refuse_numbers, words_of
from remnant.data import load
from remnant.data.canaries import unplanted_beside
from remnant.data.csv_table import with_columns
from remnant.data.texts import ENDINGS
from remnant.errors import InputError, expected
from remnant.models.foreign import check_outputs
from remnant.models.tokens import takes_tokens
from remnant.types import Examples, Target

GUESSED = "no --model was given and dense layers were taken for ReLU: give --model to be sure"


def read_case(spec: AuditSpec) -> tuple[Case, dict[str, str]]:
    """The case that the spec describes, and hashes of all that was read."""
    texts = spec.data.lower().endswith(ENDINGS) or directory_of(spec) is not None
    released = read_released(spec) if texts and not is_linear(spec.weights) else None
    if released is not None and takes_tokens(released[0]):
        return read_text_case(spec, released)
    truth = load(spec.data, data_dir=spec.data_dir)
    parts = {"data": truth, **read_others(spec), **read_canaries(spec)}
    parts = {name: with_columns(part, truth.features) for name, part in parts.items()}
    linear = is_linear(spec.weights)
    target, hashes = read_linear_target(spec) if linear else read_target(spec, released, like=truth)
    parts = {name: _shaped(part, target.input_shape) for name, part in parts.items()}
    outputs = check_outputs(target.model, target.scaling.to_model(parts["data"].inputs[:2]))
    loss = spec.loss or _loss_by(truth.labels.is_floating_point(), outputs.shape[1])
    loss = "mse" if linear else loss  # a linear model's own objective stands in its file
    check_labels_of(target.model, loss, outputs, {f"--{name}": p for name, p in parts.items()})
    assumed = () if spec.model or linear or released else (GUESSED,)
    return _case(spec, target, parts, loss=loss, assumed=assumed), hashes | _hashes(parts)


def read_text_case(
    spec: AuditSpec, released: tuple[nn.Module, tuple[int, ...]]
) -> tuple[Case, dict[str, str]]:
    """The case of a model of tokens: its texts, in rows of one length."""
    model = released[0]
    if spec.loss not in (None, "ce"):
        raise InputError(expected("--loss of a model of tokens", "ce", spec.loss))
    refuse_numbers(spec)
    target, hashes = read_target(spec.model_copy(update={"public": None}), released)
    truth = read_texts(spec, model, spec.data)
    others = read_others(spec, partial(read_texts, spec, model))
    outputs = check_outputs(model, truth.inputs[:2])
    parts = {"data": truth, **others, **read_canaries(spec, partial(read_texts, spec, model))}
    check_labels_of(model, "ce", outputs, {f"--{name}": part for name, part in parts.items()})
    parts = dict(zip(parts, same_length(*parts.values()), strict=True))
    case = _case(spec, target, parts, loss="ce", words=words_of(spec, model))
    return case, hashes | _hashes(parts)


def _case(spec: AuditSpec, target: Target, parts: Mapping[str, Examples], **about: Any) -> Case:
    """parts: the records trained on, held-out and public ones, and canaries if there are any; those
    planted were trained on as well. about: other fields of a case."""
    canaries, truth = None, parts["data"]
    if spec.canaries is not None:
        canaries = Canaries(planted=parts["canaries"], unplanted=parts["unplanted"])
        truth, canaries = with_planted(truth, canaries)
    return Case(
        target=target,
        truth=truth,
        canaries=canaries,
        holdout=parts["holdout"],
        public=parts["public"],
        ledger=_ledger(spec),
        delta=spec.privacy.delta if spec.privacy else 1e-5,
        **about,
    )


def read_canaries(
    spec: AuditSpec, read: Callable[[str], Examples] | None = None
) -> dict[str, Examples]:
    """Canaries by `remnant canaries`: those that were planted, and the others beside them.

    read: how a file becomes records, where they are texts.
    """
    if spec.canaries is None:
        return {}
    places = {"canaries": spec.canaries, "unplanted": unplanted_beside(spec.canaries)}
    return {k: load(path) if read is None else read(str(path)) for k, path in places.items()}


def _hashes(parts: Mapping[str, Examples]) -> dict[str, str]:
    return {name: hash_examples(part) for name, part in parts.items()}


def read_others(
    spec: AuditSpec, read: Callable[[str], Examples] | None = None
) -> dict[str, Examples]:
    """Records that were not trained on: the held-out and the public ones, or half of either.

    read: how a file becomes records, where they are texts.
    """
    others = {
        name: load(source, data_dir=spec.data_dir) if read is None else read(source)
        for name in ("holdout", "public")
        if (source := getattr(spec, name)) is not None
    }
    if not others:
        do = "a verdict needs a null; give --holdout or --public"
        raise InputError(expected("audit", "records that were not trained on", "none", do))
    if len(others) == 1:
        (only,) = others.values()
        if len(only) < 2:
            raise InputError(expected("--holdout", "two records or more", len(only)))
        others = dict(zip(("holdout", "public"), halves(only), strict=True))
    return others


def _ledger(spec: AuditSpec) -> Ledger | None:
    if spec.privacy is None:
        return None
    return Ledger(
        noise_multiplier=spec.privacy.noise,
        steps=spec.privacy.steps,
        sampling_rate=spec.privacy.sampling,
        clip=spec.privacy.clip,
        adjacency=spec.privacy.adjacency,
    )


def _shaped(examples: Examples, shape: tuple[int, ...]) -> Examples:
    """The records in the model's shape, which some files keep flat."""
    if math.prod(examples.shape) != math.prod(shape):
        raise InputError(expected(examples.name, f"records of shape {shape}", examples.shape))
    return replace(examples, inputs=examples.inputs.reshape(-1, *shape))


def _loss_by(real: bool, outputs: int) -> str:
    if real:
        return "mse"
    return "bce" if outputs == 1 else "ce"
