"""`remnant.audit`: the audit of a model that is in memory."""

from __future__ import annotations

import tempfile
from pathlib import Path

from remnant.auditing.case import Case
from remnant.auditing.run import Plan, run_audit
from remnant.bundle import Audit
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
    as public. out: a directory for the bundle and the page; without one nothing is kept.
    """
    if public is None:
        middle = len(holdout) // 2
        holdout, public = holdout.take(range(middle)), holdout.take(range(middle, len(holdout)))
    case = Case(
        target=target, truth=truth, holdout=holdout, public=public, loss=loss, recipe=recipe
    )
    plan = plan or Plan()
    spec = {
        "verb": "audit",
        "seed": plan.seed,
        "threshold": plan.threshold,
        "attacks": list(plan.attacks) if plan.attacks else None,
        "settings": {name: dict(values) for name, values in plan.settings.items()},
        "loss": loss,
        "weights": hash_tensors(target.weights),
        "data": hash_tensors({"x": truth.inputs, "y": truth.labels}),
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
