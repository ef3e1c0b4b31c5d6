"""Run an audit: every adversary that applies, its control, a verdict, a bundle, a page.

What each attack finds and each control leaves lies in the run's directory as soon as it is done, so
that an audit that was interrupted goes on with the next one and ends with the same finding.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from math import floor
from typing import Any, cast

from remnant.attacks import Attack
from remnant.attacks.made import make_attack
from remnant.auditing.case import Case
from remnant.auditing.fitting import fit_of_records
from remnant.auditing.membership import membership
from remnant.auditing.playing import OutOfTimeError, Plan, Stage, at_most, play
from remnant.auditing.preflight import preflight, told
from remnant.auditing.preparation import (
    Prepared,
    explains_better,
    fits_better,
    mistaken_initial,
    prepared,
)
from remnant.auditing.promise import beside_measured, promised_of_any
from remnant.auditing.proof import proved
from remnant.auditing.strangers import strangers_of
from remnant.auditing.verdict import exposed_records, exposure_list, judge, overall
from remnant.auditing.words import about, advice
from remnant.auditing.written import HOLDS, NAME, TITLE, written
from remnant.bundle import Attacked, Audit, Control, Verdict
from remnant.errors import RemnantError
from remnant.progress import task
from remnant.report.page import PAGE_FILE, page
from remnant.report.page.files import write_bundle
from remnant.seeds import generator_for
from remnant.store import (
    Run,
    finish,
    hash_tensors,
    keeping_states,
    read_json,
    versions,
    write_json,
    write_text,
)
from remnant.types import Candidates, Examples, Finding


def run_audit(case: Case, plan: Plan, run: Run) -> Audit:
    """The whole audit, attack by attack, with its bundle and page; returns what it wrote as
    finding.json."""
    case = told(case)
    rows = preflight(case, attacks=plan.attacks, settings=plan.settings, targets=plan.targets)
    # The tests that share the chance of error: each attack, and reading the weights.
    among = 1 + sum(row["applies"] for row in rows)
    stage = Stage(case=case, strangers=strangers_of(case), plan=plan, run=run, among=among)
    notes = [*stage.strangers.notes, *case.assumed]
    stage, attacks, candidates, timings = _play_all(stage, rows)
    case = stage.case
    left = None if plan.budget is None else plan.budget - sum(timings.values())
    with keeping_states(run):
        members = membership(case, stage.strangers, plan.seed, left)
    attacks = _with_fit(case, attacks)
    verdict, sentence = overall(attacks, len(case.truth))
    records = {"inputs": case.truth.inputs, "labels": case.truth.labels}
    hashes = {"weights": hash_tensors(case.target.weights), "data": hash_tensors(records)}
    result = Audit(
        verdict=verdict,
        sentence=sentence,
        target=about(case),
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
        notes=[
            *mistaken_initial(case),
            *notes,
            *_of_preparation(case, attacks, said=bool(notes)),
        ],
        membership=members,
        privacy=None if case.ledger is None else promised_of_any(case.ledger, case.delta),
        images=plan.images,
        redacted=plan.redacted,
    )
    words = case.words if case.truth.are_texts else None
    result, pictures = write_bundle(run, result, case.truth, candidates, words)
    write_text(run, PAGE_FILE, page(result, pictures))
    finish(run, seeds={"seed": plan.seed}, hashes=hashes, timings=timings)
    return result


def _of_preparation(case: Case, attacks: Sequence[Attacked], *, said: bool) -> list[str]:
    """Sentences on how the records were prepared, or may have to be where nothing was proved.
    said: whether anything else was noticed, beside which a poor fit needs no words."""
    notes = []
    if case.prepared:
        notes.append(
            f"Training saw your records {case.prepared}, which was not given: they came back so, "
            "and the audit applied it. Give --mean and --std to have it from the start."
        )
    for row in attacks:
        if row.verdict == Verdict.INCONCLUSIVE and row.finding is not None:
            notes.append(explains_better(case, row.attack) or "")
    if not case.prepared and all(row.verdict != Verdict.EXPOSED for row in attacks):
        notes.append("" if said or any(notes) else fits_better(case) or "")
    return [note for note in dict.fromkeys(notes) if note]


def _with_fit(case: Case, attacks: Sequence[Attacked]) -> list[Attacked]:
    """Each record's margin and loss under the released model, beside its scores."""
    fit = fit_of_records(case)

    def fitted(finding: Finding) -> Finding:
        return replace(finding, per_record=[{**r, **fit[r["id"]]} for r in finding.per_record])

    return [a if a.finding is None else replace(a, finding=fitted(a.finding)) for a in attacks]


Played = tuple[Stage, list[Attacked], dict[str, Candidates], dict[str, float]]


def _play_all(stage: Stage, rows: Sequence[Mapping[str, Any]]) -> Played:
    """Each attack of the preflight within the budget; candidates by file, CPU seconds by attack.

    The stage comes back with the scaling that an attack may have brought to light.
    """
    plan, attacks = stage.plan, dict[str, Attacked]()
    candidates: dict[str, Candidates] = {}
    begun, timings = time.process_time(), dict[str, float]()
    # Under a budget the quick ones first, so that a slow one does not take their time.
    quick = sorted(rows, key=lambda row: row["seconds"] or 0.0)
    with task("auditing", len(rows)) as step:
        for row in rows if plan.budget is None else quick:
            start = time.process_time()
            left = None if plan.budget is None else plan.budget - (start - begun)
            attacked, found, stage = _attack(stage, row, left)
            timings[attacked.attack] = round(time.process_time() - start, 3)
            attacks[attacked.attack] = attacked
            if found is not None and attacked.candidates is not None:
                candidates[attacked.candidates] = found
            step(note=attacked.attack)
    in_turn = [attacks[row["attack"]] for row in rows]
    read = _written(stage)
    if read is not None:
        in_turn.append(read[0])
        if read[0].candidates is not None:
            candidates[read[0].candidates] = read[1]
    return stage, in_turn, candidates, timings


def file_of(name: str) -> str:
    """The file of an attack's candidates."""
    return f"candidates-{name}.safetensors"


def _attack(
    stage: Stage, row: Mapping[str, Any], left: float | None
) -> tuple[Attacked, Candidates | None, Stage]:
    """One attack and its verdict, within the CPU seconds that are left (None = any)."""
    name, plan = row["attack"], stage.plan
    attack = make_attack(name, plan.settings.get(name, {}))
    blank = Attacked(
        attack=name,
        title=attack.about.title,
        holds=attack.about.holds,
        settings=asdict(cast(Any, attack)),
        verdict=Verdict.NOT_APPLICABLE,
        reason=row["why"],
    )
    if not row["applies"]:
        return blank, None, stage
    alone = attack.about.leave_one is not None  # then as many records as there is time for
    reason = ""
    if left is not None and row["seconds"] > left and not (alone and left > 0):
        reason = f"left out by the budget of {plan.budget:g} s: it takes some {row['seconds']:g} s "
        reason += f"and {floor(max(left, 0))} s are left; give a larger --budget"
    else:
        try:
            with at_most(left):
                seen, finding, control, whole = _tried(stage, name, attack)
        except OutOfTimeError:
            reason = f"stopped by the budget of {plan.budget:g} s, of which it had the last "
            reason += f"{left:.0f} s; give a larger --budget"
    if reason:
        return replace(blank, verdict=Verdict.INCONCLUSIVE, reason=reason), None, stage
    case = seen.case
    verdict, reason = judge(finding, control, attacks=stage.among, assumed=case.assumed)
    if not whole and verdict == Verdict.INCONCLUSIVE:
        reason += f"; the budget of {plan.budget:g} s stopped its control"
    bound = None
    if case.ledger is not None:
        bound = beside_measured(
            finding, case.truth, case.public, case.ledger, case.delta, left_out=alone
        )
        if bound["violated"]:
            reason = f"{bound['text']}; {reason}"
    attacked = replace(
        blank,
        verdict=verdict,
        reason=reason,
        finding=finding,
        control=control,
        candidates=file_of(name) if plan.images and len(seen.found) else None,
        bound=bound,
    )
    if case.target is not stage.case.target:  # a scaling holds for the attacks to come, too
        stage = replace(stage, case=case, strangers=seen.strangers)
    return attacked, seen.found, stage


def _tried(
    stage: Stage, name: str, attack: Attack
) -> tuple[Prepared, Finding, Control | None, bool]:
    """Play the attack and say what it proves, on the records as they turn out to have been
    prepared, and play its control where the plan wants one; whether there was time for all that."""
    plan, found = stage.plan, play(stage, name, attack)
    seen, whole = prepared(stage.case, found, stage.strangers), True
    if seen.found is found and found.stated.certified == 0 and found.stated.targets is None:
        try:
            seen = _unbounded(stage, name, attack) or seen
        except OutOfTimeError:
            whole = False
    stage = replace(stage, case=seen.case, strangers=seen.strangers)
    finding = _proved(stage, name, seen.found, seen.tries)
    unsure = judge(finding, None, attacks=stage.among)[0] == Verdict.INCONCLUSIVE
    control = None
    if whole and (plan.control or (unsure and plan.control is None)):
        try:
            control = _control(stage, name, attack)
        except OutOfTimeError:
            whole = False
    return seen, finding, control, whole


def _proved(stage: Stage, name: str, found: Candidates, tries: int = 1) -> Finding:
    seed, threshold = stage.plan.seed, stage.plan.threshold
    return proved(
        stage.case, name, found, stage.strangers, seed=seed, threshold=threshold, tries=tries
    )


def _unbounded(stage: Stage, name: str, attack: Attack) -> Prepared | None:
    """The preparation that comes to light when the attack runs without the data's bounds, if
    that makes declared records of its candidates: where a scaling was forgotten, no true
    candidate lies within the bounds."""
    target = stage.case.target
    given = bool((target.scaling.mean != 0).any() or (target.scaling.std != 1).any())
    if target.bounds is None or given:
        return None
    case = replace(stage.case, target=replace(target, bounds=None))
    found = play(replace(stage, case=case), name, attack, on="unbounded")
    seen = prepared(case, found, stage.strangers)
    if seen.case.target is case.target:
        return None
    bounded = replace(seen.case.target, bounds=target.bounds)
    return replace(seen, case=replace(seen.case, target=bounded))


def _written(stage: Stage) -> tuple[Attacked, Candidates] | None:
    """Records that stand in the weights as they are, if any do."""
    read = written(stage.case, stage.strangers, stage.plan.seed, stage.plan.threshold)
    if read is None or judge(read[1], None, attacks=stage.among)[0] != Verdict.EXPOSED:
        return None
    found, finding = read
    return Attacked(
        attack=NAME,
        title=TITLE,
        holds=HOLDS,
        settings={},
        verdict=Verdict.EXPOSED,
        reason=found.reason,
        finding=finding,
        candidates=file_of(NAME) if stage.plan.images else None,
    ), found


def _control(stage: Stage, name: str, attack: Attack) -> Control:
    """Play the attack on a twin that must leak, and judge it in the same way: there the strangers
    are the training records."""
    case, plan, run = stage.case, stage.plan, stage.run
    file, truth = f"control-{name}.json", case.strangers
    if (run.path / file).exists():
        return Control(**read_json(run, file))
    with task(f"control of {name}"), keeping_states(run):
        try:
            target = attack.twin(case.scene, truth, generator_for(plan.seed, f"twin {name}"))
            # To the twin the records audited are strangers, and so are those it was not given.
            rest = _not_in(case.others, truth) or case.truth
            twin = replace(case, target=target, truth=truth, holdout=case.truth, public=rest)
            twin = replace(twin, prepared="")
            count = len(plan.targets) if isinstance(plan.targets, tuple) else plan.targets
            there = replace(
                stage, case=twin, strangers=strangers_of(twin), plan=replace(plan, targets=count)
            )
            found = play(there, name, attack, on="control")
            finding = _proved(there, name, found)
            verdict, reason = judge(finding, None, attacks=stage.among)
            as_hard = len(truth) >= len(case.truth)
            if not as_hard:
                reason = f"a twin of {len(truth)} records is easier: hold out more"
            control = Control(
                recovered=len(exposed_records(finding)),
                records=finding.records or 0,
                status=str(found.status),
                reason=reason,
                passed=verdict == Verdict.EXPOSED and as_hard,
            )
        except RemnantError as error:
            control = Control(recovered=0, records=len(truth), status="failed", reason=str(error))
        write_json(run, file, asdict(control))
    return control


def _not_in(examples: Examples, taken: Examples) -> Examples | None:
    gone = set(taken.ids)
    left = [i for i, one in enumerate(examples.ids) if one not in gone]
    return examples.take(left) if left else None
