"""What a spec of an audit describes, read: the released model, its records, and strangers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from remnant.auditing.api import hash_examples
from remnant.auditing.case import Canaries, Case, check_labels_of, halves, same_length, with_planted
from remnant.bounds import Ledger
from remnant.cli.spec import AuditSpec, is_linear
from remnant.cli.target import (
    directory_of,
    read_linear_target,
    read_records,
    read_released,
    read_target,
    words_of,
)
from remnant.data import load
from remnant.data.canaries import unplanted_beside
from remnant.data.csv_table import with_columns
from remnant.errors import InputError, expected
from remnant.models.foreign import check_outputs
from remnant.models.tokens import takes_tokens
from remnant.types import Examples

GUESSED = "no --model was given and dense layers were taken for ReLU: give --model to be sure"


def read_case(spec: AuditSpec) -> tuple[Case, dict[str, str]]:
    """The case that the spec describes, and hashes of all that was read."""
    linear = is_linear(spec.weights)
    released = None if linear else read_released(spec)
    tokens = released is not None and takes_tokens(released[0])
    if tokens and spec.loss not in (None, "ce"):
        raise InputError(expected("--loss of a model of tokens", "ce", spec.loss))
    read = partial(load, data_dir=spec.data_dir)
    if released is not None:
        read = partial(read_records, spec, released[0])
    parts = read_parts(spec, read)
    truth = parts["data"]
    like = None if tokens else truth
    target, hashes = read_linear_target(spec) if linear else read_target(spec, released, like)
    if tokens:
        parts = dict(zip(parts, same_length(*parts.values()), strict=True))
    else:
        parts = {name: with_columns(part, truth.features) for name, part in parts.items()}
        parts = {name: _shaped(part, target.input_shape) for name, part in parts.items()}
    few = parts["data"].inputs[:2]
    outputs = check_outputs(target.model, few if tokens else target.scaling.to_model(few))
    loss = "mse" if linear or truth.labels.is_floating_point() else "ce"
    loss = "bce" if loss == "ce" and outputs.shape[1] == 1 and not tokens else loss
    loss = loss if linear else spec.loss or loss  # a linear model's own stands in its file
    check_labels_of(target.model, loss, outputs, {f"--{name}": p for name, p in parts.items()})
    hashes |= {name: hash_examples(part) for name, part in parts.items()}
    truth, canaries = parts["data"], None
    if spec.canaries is not None:
        canaries = Canaries(planted=parts["canaries"], unplanted=parts["unplanted"])
        truth, canaries = with_planted(truth, canaries)
    given = spec.model or linear or tokens or directory_of(spec)
    case = Case(
        target=target,
        truth=truth,
        canaries=canaries,
        holdout=parts["holdout"],
        public=parts["public"],
        ledger=_ledger(spec),
        delta=spec.privacy.delta if spec.privacy else 1e-5,
        loss=loss,
        assumed=() if given else (GUESSED,),
        words=words_of(spec, target.model) if tokens else None,
    )
    return case, hashes


def read_parts(spec: AuditSpec, read: Callable[[str | Path], Examples]) -> dict[str, Examples]:
    """The records trained on; the held-out and the public ones, or half of either; and canaries by
    `remnant canaries`, those that were planted and the others beside them."""
    truth = read(spec.data)
    named = {"holdout": spec.holdout, "public": spec.public}
    others = {name: read(source) for name, source in named.items() if source is not None}
    if not others:
        do = "a verdict needs a null; give --holdout or --public"
        raise InputError(expected("audit", "records that were not trained on", "none", do))
    if len(others) == 1:
        (only,) = others.values()
        if len(only) < 2:
            raise InputError(expected("--holdout", "two records or more", len(only)))
        others = dict(zip(("holdout", "public"), halves(only), strict=True))
    planted = spec.canaries
    if planted is not None:
        others |= {"canaries": read(planted), "unplanted": read(unplanted_beside(planted))}
    return {"data": truth, **others}


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
