"""Run an audit: every adversary that applies, its control, a verdict, a bundle, a page.

Each attack and each control leaves its result in the run's directory as soon as it is done, so
that an audit that was interrupted goes on with the next one and ends with the same finding.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, cast

from remnant.attacks import ATTACKS, Attack
from remnant.auditing.adversaries import ADVERSARIES, Adversary
from remnant.auditing.advice import advice
from remnant.auditing.assess import assess
from remnant.auditing.case import Case
from remnant.auditing.preflight import preflight
from remnant.auditing.promise import promise
from remnant.auditing.verdict import exposed_records, exposure_list, judge, overall, shifted
from remnant.bundle import Attacked, Audit, Control, Verdict
from remnant.errors import InputError, RemnantError, expected
from remnant.progress import task
from remnant.report.page import write_bundle, write_page
from remnant.scoring.score import THRESHOLD
from remnant.seeds import generator_for
from remnant.store import (
    Run,
    finish,
    hash_tensors,
    read_candidates,
    read_json,
    versions,
    write_candidates,
    write_json,
)
from remnant.types import Candidates, Examples, Target


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How an audit is done. `settings`: fields of attacks, by attack. `budget`: CPU seconds."""

    attacks: Sequence[str] | None = None
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    threshold: float = THRESHOLD
    seed: int = 0
    budget: float | None = None
    images: bool = True
    redacted: bool = False
    control: bool = True
    command: str = ""

    def __post_init__(self) -> None:
        for name in self.settings:
            make_attack(name, self.settings[name])


def make_attack(name: str, settings: Mapping[str, Any]) -> Attack:
    """The attack with these fields, or an error that names the fields that it has."""
    kind = ATTACKS.get(name)
    if kind is None:
        raise InputError(expected("attack", f"one of {', '.join(ATTACKS)}", repr(name)))
    try:
        return kind(**settings)
    except TypeError:
        has = ", ".join(f.name for f in fields(cast(Any, kind)))
        raise InputError(
            expected(f"settings of {name}", f"some of {has}", dict(settings))
        ) from None


def run_audit(case: Case, plan: Plan, run: Run) -> Audit:
    """Everything, attack by attack; returns what it wrote as finding.json, with the page."""
    case = replace(case, target=_told(case))
    rows = preflight(case, attacks=plan.attacks)
    begun, timings = time.process_time(), {}
    attacks: list[Attacked] = []
    candidates: dict[str, Candidates] = {}
    with task("auditing", len(rows)) as step:
        for row in rows:
            left = None if plan.budget is None else plan.budget - (time.process_time() - begun)
            start = time.process_time()
            attacked, found = _attack(case, plan, run, row, left)
            timings[attacked.attack] = round(time.process_time() - start, 3)
            attacks.append(attacked)
            if found is not None and attacked.candidates is not None:
                candidates[attacked.candidates] = found
            step(note=attacked.attack)
    verdict, sentence = overall(attacks)
    hashes = {"weights": hash_tensors(case.target.weights), "data": _data_hash(case.truth)}
    result = Audit(
        verdict=verdict,
        sentence=sentence,
        target=_about(case),
        attacks=attacks,
        exposed=exposure_list(attacks),
        advice=advice(case, attacks, rows),
        command=plan.command,
        spec=run.spec,
        seeds={"seed": plan.seed},
        versions=versions(),
        hashes=hashes,
        preflight=[
            {k: row[k] for k in ("attack", "title", "applies", "why", "stronger")} for row in rows
        ],
        trials=[{"attack": a.attack, "verdict": a.verdict, "reason": a.reason} for a in attacks],
        images=plan.images,
        redacted=plan.redacted,
    )
    result, pictures = write_bundle(run, result, case.truth, candidates)
    write_page(run.path, result, pictures)
    if not plan.images:  # what an interrupted audit would have gone on with
        for row in rows:
            (run.path / _file(row["attack"])).unlink(missing_ok=True)
    finish(run, seeds={"seed": plan.seed}, hashes=hashes, timings=timings)
    return result


def _told(case: Case) -> Target:
    """The adversary is told the loss, and how many records there are unless the user says it.

    Neither is much of a secret, and attacks that need them would otherwise prove nothing.
    """
    held = case.target.knowledge
    told = replace(held, records=held.records or len(case.truth), loss=held.loss or case.loss)
    return replace(case.target, knowledge=told)


def _attack(
    case: Case, plan: Plan, run: Run, row: Mapping[str, Any], left: float | None
) -> tuple[Attacked, Candidates | None]:
    name = row["attack"]
    adversary = ADVERSARIES[name]
    settings = dict(vars(make_attack(name, plan.settings.get(name, {}))))
    blank = Attacked(
        attack=name,
        title=adversary.title,
        holds=adversary.holds,
        settings=settings,
        verdict=Verdict.NOT_APPLICABLE,
        reason=row["why"],
    )
    if not row["applies"]:
        return blank, None
    if left is not None and row["seconds"] > left:
        reason = f"left out: it takes some {row['seconds']:g} s and {max(left, 0):.0f} s are left"
        return replace(blank, verdict=Verdict.INCONCLUSIVE, reason=reason), None
    found = _candidates(case.target, name, settings, plan.seed, run)
    finding = _score(case, name, found, case.truth, plan)
    control = None
    if plan.control and not exposed_records(finding):
        control = _control(case, adversary, name, settings, plan, run)
    verdict, reason = judge(finding, control)
    if verdict != Verdict.EXPOSED and shifted(found.inputs, case.truth.inputs, case.holdout.inputs):
        verdict = Verdict.INCONCLUSIVE
        reason = (
            "what came back is your records but for one shift or scale of all: "
            "give --mean and --std as they were in training"
        )
    file = _file(name) if plan.images and len(found) else None
    bound = None
    if case.ledger is not None:
        bound = promise(finding, case.public, case.ledger, case.delta)
        if bound["violated"]:
            reason = f"{bound['text']}; {reason}"
    return replace(
        blank,
        verdict=verdict,
        reason=reason,
        finding=finding,
        control=control,
        candidates=file,
        bound=bound,
    ), found


def _candidates(
    target: Target, name: str, settings: Mapping[str, Any], seed: int, run: Run
) -> Candidates:
    """Run the attack, or take what an interrupted audit left."""
    if (run.path / _file(name)).exists():
        return read_candidates(run, _file(name))
    attack = make_attack(name, settings)
    with task(f"attack {name}"):
        found = attack(target, generator=generator_for(seed, f"attack {name}"))
    write_candidates(run, found, _file(name))
    return found


def _file(name: str) -> str:
    return f"candidates-{name}.safetensors"


def _score(case: Case, name: str, found: Candidates, truth: Examples, plan: Plan) -> Any:
    shaped = replace(found, inputs=found.inputs.reshape(-1, *truth.shape))
    return assess(
        shaped,
        attack=name,
        truth=truth,
        holdout=case.holdout,
        public=case.public,
        generator=generator_for(plan.seed, f"nulls {name}"),
        threshold=plan.threshold,
    )


def _control(
    case: Case,
    adversary: Adversary,
    name: str,
    settings: Mapping[str, Any],
    plan: Plan,
    run: Run,
) -> Control:
    """The attack on a twin that must leak, scored alike: the strangers are now the truth."""
    file = f"control-{name}.json"
    if (run.path / file).exists():
        return Control(**read_json(run, file))
    with task(f"control of {name}"):
        try:
            target, truth = adversary.twin(case, generator_for(plan.seed, f"twin {name}"))
            attack = make_attack(name, settings)
            found = attack(target, generator=generator_for(plan.seed, f"control {name}"))
        except RemnantError as error:
            found, truth = None, case.strangers
            control = Control(recovered=0, records=len(truth), status="failed", reason=str(error))
        if found is not None:
            swapped = replace(case, truth=truth, holdout=case.truth, public=case.truth)
            finding = _score(swapped, name, found, truth, plan)
            control = Control(
                recovered=len(exposed_records(finding)),
                records=len(truth),
                status=str(found.status),
                reason=found.reason,
            )
    write_json(run, file, asdict(control))
    return control


def _about(case: Case) -> dict[str, Any]:
    model = case.target.model
    return {
        "model": type(model).__name__,
        "parameters": sum(p.numel() for p in model.parameters()),
        "layers": [type(m).__name__ for m in model.modules() if not list(m.children())],
        "records": len(case.truth),
        "data": case.truth.name,
        "shape": list(case.truth.shape),
    }


def _data_hash(examples: Examples) -> str:
    return hash_tensors({"inputs": examples.inputs, "labels": examples.labels})
