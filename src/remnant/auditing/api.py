"""`remnant.audit`: the audit of a model that is in memory."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from remnant.auditing.case import Case
from remnant.auditing.run import Plan, run_audit
from remnant.bundle import Audit
from remnant.models.unwrap import unwrapped
from remnant.store import hash_tensors, open_run
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
        middle = len(holdout) // 2
        holdout, public = holdout.take(range(middle)), holdout.take(range(middle, len(holdout)))
    held = target.knowledge if recipe is None else replace(target.knowledge, recipe=recipe)
    target = replace(target, model=unwrapped(target.model), knowledge=held)
    case = Case(target=target, truth=truth, holdout=holdout, public=public, loss=loss)
    plan = plan or Plan()
    spec: dict[str, object] = {
        "verb": "audit",
        "seed": plan.seed,
        "threshold": plan.threshold,
        "attacks": list(plan.attacks) if plan.attacks else None,
        "targets": list(plan.targets) if isinstance(plan.targets, tuple) else plan.targets,
        "recipe": repr(held.recipe) if held.recipe else None,
        "settings": {name: dict(values) for name, values in plan.settings.items()},
        "loss": loss,
        "weights": hash_tensors(target.weights),
        "initial": hash_tensors(held.initial or {}),
        "gradient": hash_tensors(held.gradient or {}),
        **{
            name: hash_tensors({"x": part.inputs, "y": part.labels})
            for name, part in (("data", truth), ("holdout", holdout), ("public", public))
        },
    }
    if out is not None:
        return _run(case, plan, Path(out), spec)
    with tempfile.TemporaryDirectory() as folder:
        return _run(case, plan, Path(folder) / "audit", spec)


def _run(case: Case, plan: Plan, path: Path, spec: dict[str, object]) -> Audit:
    run = open_run(path, spec)
    if run.finished:
        return Audit.from_json((run.path / "finding.json").read_text())
    return run_audit(case, plan, run)
