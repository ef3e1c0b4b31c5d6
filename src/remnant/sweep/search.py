"""Optuna over an attack's fields, judged by what an adversary can see.

The value of a trial is never a score against the truth: this file imports neither data nor scoring.
`consensus` is how far independent runs (or, of one run, its own starts) agree on as many different
candidates as there are records; `residual` is how well the candidates explain the evidence, which
is weaker: wrong candidates can fit better than the records.

Trials are drawn in batches of a fixed size, each from a generator of its own, and told in their
order. So a search has the same trials and the same result on any number of workers, and after an
interruption. Several searches may share one database; their trials are then divided among them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field, SkipValidation, StrictInt
from pydantic.dataclasses import dataclass as checked_dataclass

from remnant.attacks import ATTACKS
from remnant.attacks.about import Axis, Choice, Range, Space
from remnant.attacks.made import check_names, kind_of, make_attack
from remnant.errors import InputError, StoreError, brief, expected, in_one_line, one_fault
from remnant.progress import task
from remnant.seeds import generator_for
from remnant.solvers.consensus import cluster, pool
from remnant.store import Run, spec_hash
from remnant.sweep.executors import Outcome, map_tasks
from remnant.sweep.trials import claim_batch, driver_of, open_study, ours, row_of, tell
from remnant.types import Candidates, Scaling, Status, Target

Fields = dict[Any, dict[str, Any]]
"""The fields of each trial, by its number."""

Tried = dict[Any, list[Outcome]]
"""The runs of each trial, by its number; those with the attack's own settings under `OWN`."""

Judged = dict[Any, tuple[float | None, str]]
"""A trial's value, or None and why there is none."""

OWN = "own"
Objective = Literal["consensus", "residual"]
RESIDUALS = ("residual", "residuals", "misfit", "loss")  # figures; the first there counts
STEPS = "steps"  # the field that pruning shortens


# Many more than anybody waits for, and few enough to list before the first is run.
Trials = Annotated[StrictInt, Field(ge=1, le=10**6)]
Few = Annotated[StrictInt, Field(ge=1, le=1000)]


@in_one_line("search: ")
@checked_dataclass(frozen=True, kw_only=True)
class Search:
    """What is searched for and how.

    answer: candidates that all trials agree on (pool), or the best trial's (best). runs: of each
    trial, with other seeds. prune: the share of `steps` after which the worse half of a batch ends.
    settings: fields of the attack that all trials share. batch: trials that are drawn before any of
    them is judged, so that at most batch times runs workers are busy.
    """

    attack: SkipValidation[str]
    space: SkipValidation[str | Mapping[str, Any]] = "default"
    trials: Trials = 24
    objective: Objective = "consensus"
    answer: Literal["pool", "best"] = "pool"
    runs: Few = 1
    prune: Annotated[float, Field(gt=0, lt=1)] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    batch: Few = 8
    seed: Annotated[StrictInt, Field(ge=0, lt=2**31)] = 0

    def __post_init__(self) -> None:
        space = read_space(self.attack, self.space)
        for name, axis in space.axes.items():  # what no trial could have is said before any
            for value in axis.ends:
                make_attack(self.attack, {**space.fixed, **self.settings, name: value})
        if self.prune is not None and type(self.settings.get(STEPS)) is not int:
            do = "it is what a pruned trial is spared"
            raise InputError(expected("search: prune", "settings with steps", "none", do))


@dataclass(frozen=True, kw_only=True, eq=False)
class Searched:
    """best: the candidates of the search, from this process's trials and the attack's own settings.
    disclosed: every trial, how many failed or were pruned, which was chosen, and by which value.
    seconds: CPU time of the trials."""

    best: Candidates
    disclosed: Mapping[str, Any]
    seconds: float


def read_space(attack: str, given: str | Mapping[str, Any]) -> Space:
    """What a search varies: a space that the attack's file names (`About.spaces`), or one's own.

    A space of one's own is a mapping of any of the attack's fields: a list is a choice,
    `{low, high}` a range, with `log: true` or `integer: true`.
    """
    spaces = kind_of(attack).about.spaces
    if isinstance(given, str):
        if given not in spaces:
            having = [name for name, kind in ATTACKS.items() if given in kind.about.spaces]
            named = dict.fromkeys(name for kind in ATTACKS.values() for name in kind.about.spaces)
            wanted = f"one for {', '.join(having)}" if having else f"one of {', '.join(named)}"
            do = "or give a range or a list for some of its fields"
            raise InputError(expected(f"space {given}", wanted, attack, do))
        return spaces[given]
    if not isinstance(given, Mapping) or not given:
        raise InputError(expected("space", "a name, or at least one field", brief(given)))
    check_names(attack, given)
    return Space(axes={name: _axis(name, value) for name, value in given.items()})


def _axis(name: str, value: Any) -> Axis:
    with one_fault(f"space of {name}: "):
        if isinstance(value, list | tuple):
            return Choice(tuple(value))
        if isinstance(value, Mapping):
            return Range(**value)
    raise InputError(expected(f"space of {name}", "a list, or {low, high}", brief(value)))


def search_spec(how: Search, hashes: Mapping[str, str]) -> dict[str, Any]:
    """All that decides a search: its settings and the hashes of the target."""
    return {"verb": "search", **asdict(how), **hashes}


def search(
    target: Target,
    how: Search,
    hashes: Mapping[str, str],
    *,
    run: Run,
    on: str | None = None,
    storage: str | None = None,
) -> Searched:
    """Run what is left of the search. storage: a database's URL (None: a journal in the run)."""
    space = read_space(how.attack, how.space)
    target = with_count(target, how)
    name = f"remnant-{spec_hash(search_spec(how, hashes))[:16]}"
    study = open_study(name, run, storage, maximise=how.objective == "consensus")
    driver, private = driver_of(run), storage is None

    def attempt(jobs: Fields, share: float) -> Tried:
        specs = {n: _specs(how, space, fields, n, share, hashes) for n, fields in jobs.items()}
        flat = [spec for mine in specs.values() for spec in mine]
        done = iter(map_tasks(run_trial, flat, run=run, on=on, shared=target, name="attacks"))
        return {n: [next(done) for _ in mine] for n, mine in specs.items()}

    counts = {"trials": how.trials, "batch": how.batch, "seed": how.seed}
    with task("trials", how.trials) as step:
        while batch := claim_batch(study, space, driver, private=private, **counts):
            judged, pruned = _judge_batch(batch, how, attempt)
            for number in batch:
                tell(study, number, *judged[number], pruned=number in pruned)
                step()
    there = [t for t in study.get_trials(deepcopy=False) if t.number < how.trials]
    mine = {t.number: t for t in there if ours(t, driver, private)}
    # From the store: every one of these has been run.
    whole = {OWN: {}} | {n: t.params for n, t in mine.items() if t.state.name == "COMPLETE"}
    short = {n: t.params for n, t in mine.items() if t.state.name == "PRUNED"}
    tried = attempt(whole, 1.0)
    seconds = _seconds(tried) + _seconds(attempt(short, how.prune or 1.0))
    rows = [row_of(trial) | {"here": trial.number in mine} for trial in there]
    return _conclude(how, rows, tried, seconds, target.scaling)


def with_count(target: Target, how: Search) -> Target:
    """The target with its number of records read off by the attack, where it can and nobody told
    it: some presets that a search varies need the number."""
    known, counting = target.knowledge, kind_of(how.attack).about.counting
    if counting is None or known.records is not None:
        return target
    counter = make_attack(how.attack, counting)
    found = counter(target, generator=generator_for(how.seed, "count"))
    return replace(target, knowledge=replace(known, records=found.stated.counted))


def _judge_batch(
    batch: Fields, how: Search, attempt: Callable[[Fields, float], Tried]
) -> tuple[Judged, set[int]]:
    """The value of each trial of a batch, and which of them were pruned."""
    going = {number: fields for number, fields in batch.items() if number < how.trials}
    judged: Judged = dict.fromkeys(batch.keys() - going, (None, "one too many"))
    pruned: set[int] = set()
    if how.prune is not None and len(going) > 1:
        early = _judged(attempt(going, how.prune), how.objective)
        pruned = _worse_half(early, how.objective)
        judged |= {number: early[number] for number in pruned}
    rest: Fields = {OWN: {}}
    rest |= {number: fields for number, fields in going.items() if number not in pruned}
    return judged | _judged(attempt(rest, 1.0), how.objective), pruned


def _judged(tried: Tried, objective: Objective) -> Judged:
    return {number: judge(outcomes, objective) for number, outcomes in tried.items()}


def _seconds(tried: Tried) -> float:
    return float(sum(o.value["cpu_seconds"] for mine in tried.values() for o in mine if o.value))


def run_trial(spec: Mapping[str, Any], target: Target) -> Any:
    """One run of the attack; in a worker."""
    attack = make_attack(spec["attack"], spec["settings"])
    begun = time.process_time()
    found = attack(target, generator=generator_for(spec["seed"], f"trial {spec['run']}"))
    seconds = time.process_time() - begun
    tensors, about = found.parts()
    return about | {"cpu_seconds": seconds}, tensors


def _specs(
    how: Search,
    space: Space,
    fields: Mapping[str, Any],
    number: int | str,
    share: float,
    hashes: Mapping[str, str],
) -> list[dict[str, Any]]:
    settings = {**space.fixed, **how.settings, **fields}
    if share < 1:
        settings[STEPS] = max(1, round(share * settings[STEPS]))
    return [
        {"attack": how.attack, "settings": settings, "seed": how.seed, "run": f"{number}.{i}"}
        | dict(hashes)
        for i in range(how.runs)
    ]


def judge(outcomes: Sequence[Outcome], objective: Objective) -> tuple[float | None, str]:
    """A trial's value without any truth, or None and why there is none."""
    for outcome in outcomes:
        if outcome.error is not None:
            return None, outcome.error
        if outcome.value["status"] == Status.NOT_APPLICABLE or not len(outcome.tensors["inputs"]):
            return None, outcome.value["reason"]
    if (
        objective == "consensus"
        and len(outcomes) == 1
        and not outcomes[0].tensors["confidence"].any()
    ):
        return None, "one run of this attack has nothing to agree with; give runs: 2 or more"
    value = consensus(outcomes) if objective == "consensus" else residual(outcomes)
    if value is None or not math.isfinite(value):
        return None, f"no finite {objective}"
    return value, ""


def consensus(outcomes: Sequence[Outcome]) -> float:
    """0..1: the agreement of the best candidates, one per record, summed over their number.

    Candidates that are alike count once, so that runs which all return one picture do not agree
    on much. Several runs are clustered together; of one run its own confidence is taken.
    """
    count = outcomes[0].value["figures"].get("counted") or len(outcomes[0].tensors["inputs"])
    if len(outcomes) == 1:
        agreement = outcomes[0].tensors["confidence"].double()
    else:
        rows = min(len(outcome.tensors["inputs"]) for outcome in outcomes)
        stacked = torch.stack([o.tensors["inputs"][:rows].flatten(1) for o in outcomes])
        agreement = cluster(stacked).agreement
    return float(agreement.sort(descending=True).values[:count].sum() / count)


def residual(outcomes: Sequence[Outcome]) -> float | None:
    """How much of the evidence the candidates leave unexplained, as the mean over runs; None where
    the attack does not say."""
    values = []
    for outcome in outcomes:
        figures = outcome.value["figures"]
        held = next((figures[name] for name in RESIDUALS if figures.get(name) is not None), None)
        if held is None:
            return None
        values.append(float(np.mean(held)))
    return float(np.mean(values))


def _worse_half(early: Judged, objective: Objective) -> set[int]:
    """The worse half of a batch, to be pruned. Trials that have no value yet are not judged by it
    and go on with all their steps."""
    sign = -1.0 if objective == "consensus" else 1.0
    judged = sorted(
        (sign * value, number) for number, (value, _) in early.items() if value is not None
    )
    return {number for _, number in judged[math.ceil(len(judged) / 2) :]}


def _conclude(
    how: Search,
    rows: list[dict[str, Any]],
    whole: Tried,
    seconds: float,
    scaling: Scaling,
    alike: float = 0.9,
) -> Searched:
    """The answer by this process's trials, and a record of all trials, other processes' too.

    alike: the correlation at which candidates of two trials count as one; at less they may be two
    records of one class.
    """
    sign = 1.0 if how.objective == "consensus" else -1.0
    judged = _judged(whole, how.objective)
    mine: dict[Any, float] = {n: value for n, (value, _) in judged.items() if value is not None}
    if not mine:
        why = judge(whole[OWN], how.objective)[1]
        raise StoreError(expected("search", "a trial with a value", "none", why))
    # The attack's own settings come first and win a draw: nothing speaks for others then.
    best = max(mine, key=lambda number: sign * mine[number])
    valued = [row for row in rows if row["value"] is not None]
    anywhere = max(valued, key=lambda row: float(sign * row["value"]), default=None)
    states = [row["state"] for row in rows]
    answer = _candidates(whole[best][0])
    pooling = [] if how.answer == "best" or answer.stated.certified else list(mine)
    if len(pooling) > 1:
        runs = [_candidates(one) for number in pooling for one in whole[number]]
        answer = pool(runs, scaling, alike=alike, chosen=answer)
    disclosed = {
        "attack": how.attack,
        "objective": how.objective,
        "space": how.space if isinstance(how.space, str) else dict(how.space),
        "trials": len(rows),
        "complete": states.count("complete"),
        "failed": states.count("fail"),
        "pruned": states.count("pruned"),
        "unfinished": states.count("running"),
        "elsewhere": sum(not row["here"] for row in rows),
        "chosen": best,
        "chosen_value": mine[best],
        "own_value": mine.get(OWN),
        "pooled": pooling,
        "best_anywhere": None if anywhere is None else anywhere["number"],
        "settings": whole[best][0].spec["settings"],
        "rows": rows,
    }
    return Searched(best=answer, disclosed=disclosed, seconds=seconds)


def _candidates(outcome: Outcome) -> Candidates:
    return Candidates.from_parts(outcome.tensors, outcome.value)
