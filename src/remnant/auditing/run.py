"""Run an audit: every adversary that applies, its control, a verdict, a bundle, a page.

Each attack and each control leaves its result in the run's directory as soon as it is done, so
that an audit that was interrupted goes on with the next one and ends with the same finding.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, cast

from remnant.attacks import Attack
from remnant.attacks.made import make_attack
from remnant.auditing.advice import advice
from remnant.auditing.assess import assess
from remnant.auditing.budget import OutOfTimeError, at_most
from remnant.auditing.case import Case
from remnant.auditing.described import about
from remnant.auditing.disguises import better_preparation
from remnant.auditing.fitting import with_fit
from remnant.auditing.grounds import Proof
from remnant.auditing.membership import membership
from remnant.auditing.mistakes import fits_better, mistakes
from remnant.auditing.playing import Plan, file_of, play, unbounded
from remnant.auditing.preflight import preflight
from remnant.auditing.prepared import Prepared, prepared
from remnant.auditing.promise import promise, promised
from remnant.auditing.proof import prove, undisguised
from remnant.auditing.shadow_models import likelihood
from remnant.auditing.strangers import Strangers, strangers_of
from remnant.auditing.texts import assess_texts
from remnant.auditing.verdict import exposed_records, exposure_list, judge, overall
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
from remnant.types import Candidates, Examples, Finding, Target


def run_audit(case: Case, plan: Plan, run: Run) -> Audit:
    """Everything, attack by attack; returns what it wrote as finding.json, with the page."""
    case = replace(case, target=_told(case))
    rows = preflight(case, attacks=plan.attacks, settings=plan.settings, targets=plan.targets)
    strangers, wrong = strangers_of(case), mistakes(case)
    case, strangers, attacks, candidates, timings = _attack_in_turn(
        case, plan, run, rows, strangers
    )
    left = None if plan.budget is None else plan.budget - sum(timings.values())
    with keeping_states(run):
        members = membership(case, strangers, likelihood(case, strangers, plan.seed, left))
    attacks = with_fit(case, attacks)
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
        notes=[*wrong, *_notes(case, strangers, attacks)],
        membership=members,
        privacy=None if case.ledger is None else promised(case.ledger, case.delta),
        images=plan.images,
        redacted=plan.redacted,
    )
    words = case.words if case.truth.are_texts else None
    result, pictures = write_bundle(run, result, case.truth, candidates, words)
    write_text(run, PAGE_FILE, page(result, pictures))
    if not plan.images:  # what an interrupted audit would have gone on with
        for row in rows:
            (run.path / file_of(row["attack"])).unlink(missing_ok=True)
    finish(run, seeds={"seed": plan.seed}, hashes=hashes, timings=timings)
    return result


def _notes(case: Case, strangers: Strangers, attacks: Sequence[Attacked]) -> list[str]:
    """Sentences about the data for the top of the page; for attacks that proved nothing also how
    the records may have to be prepared."""
    said = [*strangers.notes, *case.assumed]
    if case.prepared:
        said.append(
            f"Training saw your records {case.prepared}, which was not given: they came back so, "
            "and the audit applied it. Give --mean and --std to have it from the start."
        )
    for row in attacks:
        if row.verdict == Verdict.INCONCLUSIVE and row.finding is not None:
            better = better_preparation(case, row.attack)
            said += [better] if better and better not in said else []
    if not case.prepared and all(row.verdict != Verdict.EXPOSED for row in attacks):
        better = None if said else fits_better(case)
        said += [better] if better else []
    return said


def _told(case: Case) -> Target:
    """The adversary is told the loss, and how many records there are unless the user says it.

    Neither is much of a secret, and attacks that need them would otherwise prove nothing.
    """
    held = case.target.knowledge
    told = replace(held, records=held.records or len(case.truth), loss=held.loss or case.loss)
    return replace(case.target, knowledge=told)


def _attack_in_turn(
    case: Case, plan: Plan, run: Run, rows: Sequence[Mapping[str, Any]], strangers: Strangers
) -> tuple[Case, Strangers, list[Attacked], dict[str, Candidates], dict[str, float]]:
    """Each attack of the preflight within the budget; candidates by file, CPU seconds by attack.

    The case and its strangers come back with the scaling that an attack may have brought to light.
    """
    attacks: list[Attacked] = []
    candidates: dict[str, Candidates] = {}
    begun, timings = time.process_time(), dict[str, float]()
    among = 1 + sum(row["applies"] for row in rows)  # tests that share the chance of error
    # Under a budget the quick ones first, so that a slow one does not take their time.
    quick = sorted(rows, key=lambda row: row["seconds"] or 0.0)
    with task("auditing", len(rows)) as step:
        for row in rows if plan.budget is None else quick:
            start = time.process_time()
            left = None if plan.budget is None else plan.budget - (start - begun)
            attacked, found, better = _attack(case, plan, run, row, left, strangers, among)
            if better is not None:
                case, strangers = better.case, better.strangers
            timings[attacked.attack] = round(time.process_time() - start, 3)
            attacks.append(attacked)
            if found is not None and attacked.candidates is not None:
                candidates[attacked.candidates] = found
            step(note=attacked.attack)
    turn = [row["attack"] for row in rows]
    attacks.sort(key=lambda attacked: turn.index(attacked.attack))
    read = _written(case, plan, strangers, among)
    if read is not None:
        attacks.append(read[0])
        if read[0].candidates is not None:
            candidates[read[0].candidates] = read[1]
    return case, strangers, attacks, candidates, timings


def _attack(
    case: Case,
    plan: Plan,
    run: Run,
    row: Mapping[str, Any],
    left: float | None,
    strangers: Strangers,
    among: int,
) -> tuple[Attacked, Candidates | None, Prepared | None]:
    name = row["attack"]
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
        return blank, None, None
    each = attack.about.leave_one is not None  # then as many records as there is time for
    if left is not None and row["seconds"] > left and not (each and left > 0):
        reason = (
            f"left out by the budget of {plan.budget:g} s: it takes some {row['seconds']:g} s and "
            f"{max(left, 0):.0f} s are left"
        )
        return replace(blank, verdict=Verdict.INCONCLUSIVE, reason=reason), None, None
    try:
        with at_most(left):
            case, found, better, finding, control = _tried(
                case, name, attack, plan, run, strangers, among
            )
    except OutOfTimeError:
        reason = (
            f"stopped by the budget of {plan.budget:g} s, of which it had the last {left:.0f} s"
        )
        return replace(blank, verdict=Verdict.INCONCLUSIVE, reason=reason), None, None
    verdict, reason = judge(finding, control, attacks=among, assumed=case.assumed)
    file = file_of(name) if plan.images and len(found) else None
    bound = None
    if case.ledger is not None:
        alone = attack.about.leave_one is not None
        bound = promise(finding, case.truth, case.public, case.ledger, case.delta, left_out=alone)
        if bound["violated"]:
            reason = f"{bound['text']}; {reason}"
    return (
        replace(
            blank,
            verdict=verdict,
            reason=reason,
            finding=finding,
            control=control,
            candidates=file,
            bound=bound,
        ),
        found,
        better,
    )


def _tried(
    case: Case,
    name: str,
    attack: Attack,
    plan: Plan,
    run: Run,
    strangers: Strangers,
    among: int,
) -> tuple[Case, Candidates, Prepared | None, Finding, Control | None]:
    """Play the attack and score it, on the records as they turn out to have been prepared, and its
    control where the plan wants one."""
    found = play(case, name, attack, plan, run)
    better = prepared(case, found, strangers)
    if better is None:
        better = unbounded(case, name, attack, plan, run, strangers, found)
    if better is not None:
        case, found, strangers = better.case, better.found, better.strangers
    finding = _score(case, name, found, plan, strangers)
    if better is not None:
        proof = Proof.read(finding).among(better.tries, case.prepared)
        finding = proof.added_to(finding, finding.per_record)
    control = None
    unsure = judge(finding, None, attacks=among)[0] == Verdict.INCONCLUSIVE
    if plan.control or (unsure and plan.control is None):
        control = _control(case, name, attack, plan, run, among)
    return case, found, better, finding, control


def _score(case: Case, name: str, found: Candidates, plan: Plan, strangers: Strangers) -> Finding:
    """Scores beside nulls, and what they prove; of records as training saw them, if that shows."""
    if case.truth.are_texts:
        chance = generator_for(plan.seed, f"nulls {name}")
        return assess_texts(case, found, strangers, attack=name, generator=chance)
    truth, disguise = undisguised(case, found, strangers)
    case = replace(case, truth=truth)
    shaped = replace(found, inputs=found.inputs.reshape(-1, *truth.shape))
    finding = _beside_nulls(case, name, shaped, plan, strangers)
    finding = prove(case, found, finding, strangers, disguise)
    if found.labels is None:
        return finding
    labels = found.labels.tolist()
    rows = [
        {**row, "found_label": None if row["candidate"] is None else labels[row["candidate"]]}
        for row in finding.per_record
    ]
    return replace(finding, per_record=rows)


def _beside_nulls(
    case: Case, name: str, found: Candidates, plan: Plan, strangers: Strangers
) -> Finding:
    return assess(
        found,
        attack=name,
        truth=case.truth,
        holdout=strangers.holdout,
        public=strangers.public,
        generator=generator_for(plan.seed, f"nulls {name}"),
        threshold=plan.threshold,
    )


def _written(
    case: Case, plan: Plan, strangers: Strangers, among: int
) -> tuple[Attacked, Candidates] | None:
    """Records that stand in the weights as they are, if any do."""
    read = written(case, strangers)
    if read is None:
        return None
    found, claims = read
    finding = _beside_nulls(case, NAME, found, plan, strangers)
    proof = Proof(
        claimed=len(found),
        certified=len(found),
        chance=claims.chance,
        by_chance=claims.by_chance,
        strangers=len(strangers.inputs),
    )
    rows = [{**row, "claimed": True, "above": False} for row in finding.per_record]
    finding = proof.added_to(finding, rows)
    if judge(finding, None, attacks=among)[0] != Verdict.EXPOSED:
        return None
    return Attacked(
        attack=NAME,
        title=TITLE,
        holds=HOLDS,
        settings={},
        verdict=Verdict.EXPOSED,
        reason=found.reason,
        finding=finding,
        candidates=file_of(NAME) if plan.images else None,
    ), found


def _control(case: Case, name: str, attack: Attack, plan: Plan, run: Run, among: int) -> Control:
    """Play the attack on a twin that must leak, and score it in the same way: there the strangers
    are the training records."""
    file = f"control-{name}.json"
    if (run.path / file).exists():
        return Control(**read_json(run, file))
    with task(f"control of {name}"), keeping_states(run):
        try:
            generator = generator_for(plan.seed, f"twin {name}")
            truth = case.strangers
            target = attack.twin(case.scene, truth, generator)
            # To the twin the records audited are strangers, and so are those it was not given.
            rest = _not_in(case.others, truth) or case.truth
            twin = replace(case, target=target, truth=truth, holdout=case.truth, public=rest)
            count = len(plan.targets) if isinstance(plan.targets, tuple) else plan.targets
            found = play(twin, name, attack, replace(plan, targets=count), run, on="control")
            finding = _score(twin, name, found, plan, strangers_of(twin))
            verdict, reason = judge(finding, None, attacks=among)
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
            count = len(case.strangers)
            control = Control(recovered=0, records=count, status="failed", reason=str(error))
        write_json(run, file, asdict(control))
    return control


def _not_in(examples: Examples, taken: Examples) -> Examples | None:
    gone = set(taken.ids)
    left = [i for i, one in enumerate(examples.ids) if one not in gone]
    return examples.take(left) if left else None
