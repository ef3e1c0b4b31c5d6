"""How an audit is done, and one attack played: once, or once for each record left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from remnant.attacks import Attack
from remnant.attacks.made import make_attack
from remnant.auditing.case import Case
from remnant.auditing.left_out import Targets, joined, rows_left_out, targets_without
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
            found = joined(case, rows, _each(case, name, attack, rows, plan, run, on))
        write_candidates(run, found, kept)
    return read_candidates(run, kept)  # as a resumed audit has them, to the order of figures


def _each(
    case: Case, name: str, attack: Attack, rows: Sequence[int], plan: Plan, run: Run, on: str
) -> list[Candidates]:
    """What the attack finds for each record left out, kept in the run as soon as it is found."""
    found = []
    leave = attack.about.leave_one
    assert leave is not None
    with task(f"records left out, {name}", len(rows)) as step:
        for row, target in zip(rows, targets_without(case, leave, rows), strict=True):
            kept = f"{STATE}{on}-{name}-{row}.safetensors"
            if not (run.path / kept).exists():
                generator = generator_for(plan.seed, f"{on} {name} {row}")
                write_candidates(run, attack(target, generator=generator), kept)
            found.append(read_candidates(run, kept))
            step()
    return found


def file_of(name: str) -> str:
    """The file in the run that holds an attack's candidates."""
    return f"candidates-{name}.safetensors"
