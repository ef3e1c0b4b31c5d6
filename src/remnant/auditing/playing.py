"""An attack in an audit: how it is planned and run within its time, and kept so that an interrupted
audit goes on. An adversary who knows all records but one is played once for each record left out.
"""

from __future__ import annotations

import contextvars
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch

from remnant.attacks import Attack
from remnant.attacks.about import LeaveOne
from remnant.attacks.made import make_attack
from remnant.attacks.outcome import status_of
from remnant.auditing.case import Case
from remnant.auditing.strangers import Strangers
from remnant.errors import InputError, expected
from remnant.progress import Step, listening, task
from remnant.scoring.score import THRESHOLD
from remnant.seeds import generator_for
from remnant.store import STATE, Run, keeping_states, read_candidates, write_candidates
from remnant.types import Candidates, Stated, Status

Targets = int | tuple[str, ...] | None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How an audit is to be done.

    settings: by attack, fields that differ from the defaults. budget: CPU seconds for all attacks.
    targets: for adversaries who know all records but one, how many records are left out in turn, or
    which (ids). control: whether each attack is tried on a twin: always, never, or (None) where
    that decides the verdict.
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

    @classmethod
    def of(cls, spec: Mapping[str, Any], **more: Any) -> Plan:
        """The plan in the fields of an audit's spec, which has others too."""
        known = {one.name: spec[one.name] for one in fields(cls) if one.name in spec}
        if isinstance(known["targets"], list):  # as JSON has them
            known["targets"] = tuple(known["targets"])
        return cls(**known | {"redacted": spec["redact"]} | more)


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Where attacks are played: the case, records that were never trained on, the plan, the run
    that keeps what is found, and how many tests share the chance of error."""

    case: Case
    strangers: Strangers
    plan: Plan
    run: Run
    among: int = 1


def play(stage: Stage, name: str, attack: Attack, *, on: str = "attack") -> Candidates:
    """What the attack finds, or what an interrupted audit kept of it. An adversary who knows all
    records but one is played once for each record left out.

    on: "attack" or "control"; it names the random draws and what is kept.
    """
    case, plan = stage.case, stage.plan
    leave = attack.about.leave_one
    if leave is None:
        with task(f"{on} {name}"):
            return _kept(stage, on, name, lambda chance: attack(case.target, generator=chance))
    rows, found = rows_left_out(case, leave, plan.targets, plan.seed), list[Candidates]()
    with task(f"{on} {name}"), task(f"records left out, {name}", len(rows)) as step:
        # Drawn: those that a budget had time for stand for all. The first turns may be slow ones
        # (`glm` refits), and come last.
        for turn, row in reversed([*enumerate(rows)]):
            known = case.truth.take([i for i in range(len(case.truth)) if i != row])
            target = leave.target(case.target, known, case.truth.labels[row : row + 1], turn)
            try:
                found.append(_kept(stage, on, f"{name} {row}", _attacking(attack, target)))
                step()
            except OutOfTimeError:
                if not found or on != "attack":
                    raise
                break
    tried = len(found)
    whole = joined(case, rows[len(rows) - tried :], found[::-1])
    if len(found) < len(rows):
        left = f"the budget of {plan.budget:g} s left out {len(rows) - len(found)} more"
        whole = replace(whole, reason=f"{whole.reason}; {left}")
    return whole


def _attacking(attack: Attack, target: Any) -> Callable[[torch.Generator], Candidates]:
    return lambda chance: attack(target, generator=chance)


def _kept(
    stage: Stage, on: str, name: str, work: Callable[[torch.Generator], Candidates]
) -> Candidates:
    """What the work finds, kept in the run's states until the run is finished."""
    file = f"{STATE}{on}-{name.replace(' ', '-')}.safetensors"
    if not (stage.run.path / file).exists():
        with keeping_states(stage.run):
            found = work(generator_for(stage.plan.seed, f"{on} {name}"))
        write_candidates(stage.run, found, file)
    return read_candidates(stage.run, file)  # as a resumed audit has them, to the order of figures


def check_targets(case: Case, targets: Targets) -> None:
    """Records that are named are among those given."""
    missing = set(targets) - set(case.truth.ids) if isinstance(targets, tuple) else None
    if missing:
        raise InputError(expected("targets", "ids of records", repr(min(missing))))


def rows_left_out(case: Case, leave: LeaveOne, targets: Targets, seed: int) -> list[int]:
    """Rows of the records that are left out in turn: those named, or as many as asked, by the
    seed; the last alone where no other can be."""
    ids = case.truth.ids
    if leave.last_alone(case.target):
        if isinstance(targets, tuple) and targets != ids[-1:]:
            do = "mini-batches are replayed with the unknown record at the end of the data"
            got = ", ".join(targets[:5])
            raise InputError(
                expected("targets of informed", f"the last record alone, {ids[-1]}", got, do)
            )
        return [len(ids) - 1]
    if isinstance(targets, tuple):
        check_targets(case, targets)
        return [ids.index(name) for name in dict.fromkeys(targets)]
    order = torch.randperm(len(ids), generator=generator_for(seed, "left out"))
    return order[: leave.most if targets is None else targets].tolist()


def joined(case: Case, rows: Sequence[int], found: Sequence[Candidates]) -> Candidates:
    """The best candidate for each record that was left out, in the order of `Stated.targets`.

    Records without a candidate come last there.
    """
    order = sorted(range(len(found)), key=lambda k: not len(found[k]))
    some = [found[k] for k in order if len(found[k])]
    passed = [bool(part.stated.certified) for part in some]
    certified, nowhere = sum(passed), {part.status for part in found} == {Status.NOT_APPLICABLE}
    labels = [part.labels[:1] for part in some if part.labels is not None]
    best = [part.inputs[0].reshape(case.truth.shape) for part in some]
    said = f"of {len(case.truth)} records {len(found)} were left out in turn, "
    said += f"{certified} of them certified"
    rest = [part.reason for part in found if not part.stated.certified]
    if rest:
        said += f"; {'another' if certified else 'the first'}: {rest[0]}"
    return Candidates(
        inputs=torch.stack(best) if best else torch.zeros(0, *case.truth.shape),
        confidence=torch.tensor([float(part.confidence[0]) for part in some]),
        labels=torch.cat(labels) if len(labels) == len(some) > 0 else None,
        status=Status.NOT_APPLICABLE if nowhere else status_of(certified, len(rows)),
        reason=said,
        stated=Stated(
            targets=[case.truth.ids[rows[k]] for k in order],
            certified=certified,
            passed=passed,
            error=[(part.stated.error or [None])[0] for part in some],
        ),
        figures={"reasons": [found[k].reason for k in order]},
    )


class OutOfTimeError(Exception):
    """The time given to a computation ran out: it is not finished, and nothing is broken. No
    RemnantError, since it is no error of the user's."""


@contextmanager
def at_most(seconds: float | None) -> Iterator[None]:
    """Stop what runs inside the block, at the next step that it reports, once it has used so many
    CPU seconds. Progress is still shown by whoever showed it before."""
    if seconds is None:
        yield
        return
    end = time.process_time() + seconds
    outside = contextvars.copy_context()

    def listener(name: str, total: float | None) -> tuple[Step, Callable[[], None]]:
        opened = outside.run(task, name, total)
        report = outside.run(opened.__enter__)

        def step(amount: float = 1.0, *, note: str = "") -> None:
            report(amount, note=note)
            if time.process_time() > end:
                raise OutOfTimeError

        def close() -> None:
            outside.run(opened.__exit__, None, None, None)

        return step, close

    with listening(listener):
        yield
