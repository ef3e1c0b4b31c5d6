"""An attack in an audit: how it is planned and run, and kept so that it can go on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from remnant.attacks import Attack
from remnant.attacks.made import make_attack
from remnant.auditing.budget import OutOfTimeError
from remnant.auditing.case import Case
from remnant.auditing.left_out import Targets, joined, rows_left_out, targets_without
from remnant.auditing.prepared import Prepared, prepared
from remnant.auditing.strangers import Strangers
from remnant.progress import task
from remnant.scoring.score import THRESHOLD
from remnant.seeds import generator_for
from remnant.store import STATE, Run, keeping_states, read_candidates, write_candidates
from remnant.types import Candidates


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How an audit is done. `settings`: fields of attacks, by attack. `budget`: CPU seconds.

    `targets`: for adversaries who know all records but one, how many are left out in turn, or
    which (ids). `control`: of every attack, of none, or (None) where it decides the verdict.
    """

    attacks: Sequence[str] | None = None
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    targets: Targets = None
    threshold: float = THRESHOLD
    seed: int = 0
    budget: float | None = None
    images: bool = True
    redacted: bool = False
    control: bool | None = None
    command: str = ""

    def __post_init__(self) -> None:
        for name in self.settings:
            make_attack(name, self.settings[name])


def file_of(name: str) -> str:
    """The file of an attack's candidates."""
    return f"candidates-{name}.safetensors"


def play(
    case: Case, name: str, attack: Attack, plan: Plan, run: Run, *, on: str = "attack"
) -> Candidates:
    """Run the attack, or take what an interrupted audit left; once for each record left out."""
    kept = file_of(name) if on == "attack" else f"{STATE}{on}-{name}.safetensors"
    if (run.path / kept).exists():
        return read_candidates(run, kept)
    leave = attack.about.leave_one
    with task(f"{on} {name}"), keeping_states(run):
        if leave is None:
            found = attack(case.target, generator=generator_for(plan.seed, f"{on} {name}"))
        else:
            rows = rows_left_out(case, leave, plan.targets, plan.seed)
            each = _each(case, name, attack, rows, plan, run, on)
            found = joined(case, rows[: len(each)], each)
            if len(each) < len(rows):
                left = f"the budget of {plan.budget:g} s left out {len(rows) - len(each)} more"
                found = replace(found, reason=f"{found.reason}; {left}")
        write_candidates(run, found, kept)
    return read_candidates(run, kept)  # as a resumed audit has them, to the order of figures


def _each(
    case: Case, name: str, attack: Attack, rows: Sequence[int], plan: Plan, run: Run, on: str
) -> list[Candidates]:
    """What the attack finds for each record left out, kept in the run as soon as it is found.

    Rows are drawn, so that those that a budget had time for stand for all.
    """
    found = list[Candidates]()
    leave = attack.about.leave_one
    assert leave is not None
    with task(f"records left out, {name}", len(rows)) as step:
        for row, target in zip(rows, targets_without(case, leave, rows), strict=True):
            kept = f"{STATE}{on}-{name}-{row}.safetensors"
            try:
                if not (run.path / kept).exists():
                    generator = generator_for(plan.seed, f"{on} {name} {row}")
                    write_candidates(run, attack(target, generator=generator), kept)
                found.append(read_candidates(run, kept))
                step()
            except OutOfTimeError:
                if not found or on != "attack":
                    raise
                break
    return found


def unbounded(
    case: Case,
    name: str,
    attack: Attack,
    plan: Plan,
    run: Run,
    strangers: Strangers,
    found: Candidates,
) -> Prepared | None:
    """What comes back without the data's bounds, if that is declared records under a scaling that
    was not given: with it forgotten, no true candidate lies within them."""
    scaling, bounds = case.target.scaling, case.target.bounds
    told = bool((scaling.mean != 0).any() or (scaling.std != 1).any())
    if bounds is None or told or found.stated.certified != 0 or found.stated.targets is not None:
        return None
    free = replace(case, target=replace(case.target, bounds=None))
    again = play(free, name, attack, plan, run, on="unbounded")
    better = prepared(free, again, strangers)
    if better is None:
        return None
    case = replace(better.case, target=replace(better.case.target, bounds=bounds))
    return replace(better, case=case)
