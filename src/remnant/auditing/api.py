"""`remnant.audit`: the audit of a model that is in memory."""

from __future__ import annotations

import inspect
import math
import re
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from remnant.auditing.case import Case, check_labels_of, halves, same_length
from remnant.auditing.playing import Plan
from remnant.auditing.run import run_audit
from remnant.bundle import Audit
from remnant.models.foreign import check_outputs
from remnant.models.tokens import giving_logits
from remnant.models.unwrap import unwrapped
from remnant.store import hash_tensors, open_run, spec_hash
from remnant.training import Recipe
from remnant.types import Examples, Target


def audit(
    target: Target,
    truth: Examples,
    *,
    holdout: Examples,
    public: Examples | None = None,
    loss: str = "ce",
    recipe: Recipe | None = None,
    out: str | Path | None = None,
    plan: Plan | None = None,
) -> Audit:
    """Play every adversary that applies to `target` and score it against `truth`.

    holdout: records like the truth that were not trained on; without `public`, half of them serve
    as public. recipe: how the model was trained, if the adversary knows it. out: a directory for
    the bundle and the page; without one nothing is kept.
    """
    if public is None:
        holdout, public = halves(holdout)
    if truth.are_texts:
        truth, holdout, public = same_length(truth, holdout, public)
    held = target.knowledge if recipe is None else replace(target.knowledge, recipe=recipe)
    target = replace(target, model=unwrapped(target.model), knowledge=held)
    few = target.scaling.to_model(truth.inputs[:2])
    outputs = check_outputs(target.model, few, "audit: model")
    parts = {"audit: truth": truth, "audit: holdout": holdout, "audit: public": public}
    check_labels_of(target.model, loss, outputs, parts)
    target = replace(target, model=giving_logits(target.model, few))
    case = Case(target=target, truth=truth, holdout=holdout, public=public, loss=loss)
    plan = plan or Plan()
    # Every field of both, so that no other audit is taken for this one.
    spec = {"verb": "audit", "data": truth.name, "plan": key_of(plan), "case": key_of(case)}
    if out is not None:
        return _run(case, plan, Path(out), spec)
    with tempfile.TemporaryDirectory() as folder:
        return _run(case, plan, Path(folder) / "audit", spec)


def _run(case: Case, plan: Plan, path: Path, spec: Mapping[str, Any]) -> Audit:
    run = open_run(path, spec)
    if run.finished:
        return Audit.from_json((run.path / "finding.json").read_text())
    return run_audit(case, plan, run)


def key_of(value: Any) -> Any:
    """A value as JSON that is different wherever the value is; tensors, records and models stand
    there as hashes."""
    if isinstance(value, Tensor):
        return hash_tensors({"": value})
    if isinstance(value, nn.Module):
        return hash_model(value)
    if isinstance(value, Examples):
        return hash_examples(value)
    if is_dataclass(value) and not isinstance(value, type):
        named = {field.name: key_of(getattr(value, field.name)) for field in fields(value)}
        return {"kind": type(value).__name__, **named}
    if isinstance(value, Mapping):
        if value and all(isinstance(item, Tensor) for item in value.values()):
            return hash_tensors(value)
        return {str(name): key_of(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [key_of(item) for item in value]
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))  # an address is another in each process


def hash_examples(examples: Examples) -> str:
    """A hash of inputs, labels, ids and bounds, all that a finding tells of records."""
    records = hash_tensors({"x": examples.inputs, "y": examples.labels})
    rest = {"ids": list(examples.ids), "bounds": key_of(examples.bounds)}
    return spec_hash({"records": records, **rest})


def hash_model(model: nn.Module) -> str:
    """A hash of a model's weights and buffers, of the kind and settings of every layer, and of
    the user's own code."""
    layers = []
    for name, module in model.named_modules():
        kind = type(module)
        code = ""
        if kind.__module__.split(".")[0] not in ("torch", "remnant"):
            with suppress(OSError, TypeError):  # typed into a shell
                code = inspect.getsource(kind)
        # `training` is no setting: attacks see the model in evaluation mode.
        held = {k: v for k, v in vars(module).items() if k[0] != "_" and k != "training"}
        layers.append([name, kind.__qualname__, key_of(held), code])
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    return spec_hash({"layers": layers, "tensors": hash_tensors(tensors)})
