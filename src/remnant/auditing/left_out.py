"""Adversaries who know every training record but one: who is left out, and what they then hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from remnant.attacks.about import LeaveOne
from remnant.attacks.outcome import status_of
from remnant.auditing.case import Case
from remnant.errors import InputError, expected
from remnant.seeds import generator_for
from remnant.types import Candidates, Stated, Status, Target

Targets = int | tuple[str, ...] | None


def chosen_rows(case: Case, targets: Targets, most: int, seed: int) -> list[int]:
    """Rows of the records to leave out in turn: those named, or as many as asked, by the seed."""
    ids = case.truth.ids
    if isinstance(targets, tuple):
        missing = [name for name in targets if name not in ids]
        if missing:
            raise InputError(expected("targets", "ids of records", repr(missing[0])))
        return [ids.index(name) for name in dict.fromkeys(targets)]
    order = torch.randperm(len(ids), generator=generator_for(seed, "left out"))
    return order[: most if targets is None else targets].tolist()


def rows_left_out(case: Case, leave: LeaveOne, targets: Targets, seed: int) -> list[int]:
    """Rows of the records that are left out, one after the other."""
    if not leave.last_alone(case.target):
        return chosen_rows(case, targets, leave.most, seed)
    last = len(case.truth) - 1
    if isinstance(targets, tuple) and targets != case.truth.ids[last:]:
        do = "mini-batches are replayed with the unknown record at the end of the data"
        wanted = f"the last record alone, {case.truth.ids[last]}"
        raise InputError(expected("targets of informed", wanted, ", ".join(targets[:5]), do))
    return [last]


def targets_without(case: Case, leave: LeaveOne, rows: Sequence[int]) -> Iterator[Target]:
    """For each row a target as seen by an adversary who knows every record but that one."""
    truth = case.truth
    for turn, row in enumerate(rows):
        known = truth.take([i for i in range(len(truth)) if i != row])
        yield leave.target(case.target, known, truth.labels[row : row + 1], turn)


def joined(case: Case, rows: Sequence[int], found: Sequence[Candidates]) -> Candidates:
    """The best candidate for each record that was left out, in the order of `Stated.targets`.

    Records without a candidate come last there.
    """
    order = sorted(range(len(found)), key=lambda k: not len(found[k]))
    some = [found[k] for k in order if len(found[k])]
    passed = [bool(part.stated.certified) for part in some]
    count, certified = len(rows), sum(passed)
    statuses = {part.status for part in found}
    labels = [part.labels for part in some if part.labels is not None]
    best = [part.inputs[0].reshape(case.truth.shape) for part in some]
    return Candidates(
        inputs=torch.stack(best) if best else torch.zeros(0, *case.truth.shape),
        confidence=torch.tensor([float(part.confidence[0]) for part in some]),
        labels=torch.cat([part[:1] for part in labels]) if len(labels) == len(some) > 0 else None,
        status=Status.NOT_APPLICABLE
        if statuses == {Status.NOT_APPLICABLE}
        else status_of(certified, count),
        reason=_words(found, certified, len(case.truth)),
        stated=Stated(
            targets=[case.truth.ids[rows[k]] for k in order],
            certified=certified,
            passed=passed,
            error=[(part.stated.error or [None])[0] for part in some],
        ),
        figures={"reasons": [found[k].reason for k in order]},
    )


def _words(found: Sequence[Candidates], certified: int, records: int) -> str:
    count = len(found)
    said = f"of {records} records {count} were left out in turn, {certified} of them certified"
    rest = [part.reason for part in found if not part.stated.certified]
    return f"{said}; {'another' if certified else 'the first'}: {rest[0]}" if rest else said
