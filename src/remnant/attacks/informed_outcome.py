"""What a replay found, as candidates and in words."""

from __future__ import annotations

import torch
from torch import Tensor

from remnant.attacks.outcome import in_box, stated_errors, status_of, worst_of
from remnant.solvers.dense.certificate import spread_of
from remnant.solvers.dense.tolerances import TOLERANCES
from remnant.solvers.replay.solve import Replayed
from remnant.training.recipes import Adam
from remnant.types import Candidates, Stated, Target


def conclude_replay(target: Target, found: Replayed, error: Tensor) -> Candidates:
    """The best answer's records, certified if the run with them ends at the released weights and
    would not with others near them. error: their squared errors."""
    records, labels = found.records[0], found.labels[0]
    residual, count = float(found.residual[0]), len(found.records[0])
    data = target.scaling.to_data(records).float()
    boxed = bool(in_box(data, target.bounds).all())
    matched = bool(found.matched[0] & found.determined[0]) and boxed
    passed = (error < TOLERANCES.sure * spread_of(records.flatten(1).double())) & torch.tensor(
        matched
    )
    stated, sure = stated_errors(target, data, error, passed), int(passed.sum())
    words = replay_reason(found, boxed, isinstance(target.knowledge.recipe, Adam))
    if matched:
        words += f", {worst_of(stated)}" if sure else ", but not closely enough to vouch for any"
    return Candidates(
        inputs=data,
        confidence=passed * (1.0 - min(1.0, residual)),
        labels=labels,
        status=status_of(sure, count),
        reason=words,
        stated=Stated(counted=count, certified=sure, passed=passed.tolist(), error=stated),
        figures={
            "found": count,
            "residual": residual,
            "determined": bool(found.determined[0]),
            "evaluations": found.evaluations,
        },
        trace={"residual": list(found.trace)},
    )


def replay_reason(found: Replayed, boxed: bool, adam: bool) -> str:
    """The finding's reason: why the best answer is certified, or why it is not. boxed: it lies
    in the box of the data. adam: training was by Adam."""
    count, idle = len(found.records[0]), int(found.idle[0].sum())
    left = f"leaves {float(found.residual[0]):.1e} of the misfit"
    words = f"the run with {'it' if count == 1 else 'them'} {left}"
    if not bool(found.matched[0]) and adam and count > 1:
        return (
            f"{words}: the run was not matched. Adam moves a weight by whole steps whatever its "
            f"gradient, which tells of {count} records little more than signs, so that candidates "
            "come near at best; fewer records, all but one of them (--known), or the optimizer's "
            "state as the --gradient of attack gradient would change that"
        )
    if not bool(found.matched[0]):
        return (
            f"{words}: the run was not matched; initial weights, order or recipe may be wrong, "
            "noise may have been added, or more evaluations are needed"
        )
    if idle:
        which = "the record" if count == 1 else f"{idle} of {count} records"
        return (
            f"{words}, but the run does not depend on {which}: all units, or all that read some "
            "entries, are silent there or nearly so, and other records would fit as well"
        )
    if not bool(found.determined[0]):
        return f"{words}, but too little is seen to hold every entry: others would fit as well"
    if not boxed:
        return f"{words}, but entries leave the box of the data"
    return f"{words}: the records are those of the run"
