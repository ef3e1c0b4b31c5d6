"""What independent starts of a search agree on. Agreement needs no truth; it is evidence, not
proof.

How well a candidate fits is no evidence: searches fit better than the true records do. But a wrong
candidate is wrong in another way in each start, so what several starts return alike is likely a
record. Runs with other settings count as starts too: `pool` puts what they agree on in one list.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from remnant.errors import InputError, expected
from remnant.types import Candidates, Scaling, Stated, Status


@dataclass(frozen=True, kw_only=True)
class Tolerances:
    """When candidates are alike, and when enough starts agree."""

    # Correlation at which two candidates count as one. A higher one splits what starts return of
    # one record; a lower one joins records that are like each other.
    alike: float = 0.8
    # Share of the starts that must return a candidate alike. A higher share is surer, and misses
    # records that some starts lost.
    agreed: float = 0.75


TOLERANCES = Tolerances()


def enough(starts: int) -> int:
    """How many of so many starts must return a candidate alike before it is believed."""
    return math.ceil(TOLERANCES.agreed * starts)


def came_back(agreed: int, starts: int, what: str = "independent starts") -> str:
    """A sentence: how many candidates came back alike from enough starts."""
    count = "no candidate" if not agreed else f"{agreed} candidate{'s' if agreed > 1 else ''}"
    return f"{count} came back alike from at least {enough(starts)} of {starts} {what}"


@dataclass(frozen=True, kw_only=True, eq=False)
class Clusters:
    """Groups of candidates that are alike, the most agreed on first: c groups of n candidates of d
    entries.

    centres: c x d, the mean of the group. agreement: c, from 0 to 1, the mean over the other starts
    of their best correlation with the group's seed; closest: c, the best of these. starts: c, how
    many starts have a member. member: the group of each candidate (k x m, or flat where runs differ
    in length). seed: c, the candidate around which the group was gathered, by its number among all.
    """

    centres: Tensor
    agreement: Tensor
    closest: Tensor
    starts: Tensor
    member: Tensor
    seed: Tensor

    def __len__(self) -> int:
        return len(self.centres)


def unit_rows(rows: Tensor) -> Tensor:
    """Each row less its mean, at length one; a constant row becomes zero."""
    centred = rows - rows.mean(1, keepdim=True)
    length: Tensor = centred.norm(dim=1, keepdim=True).clamp(min=1e-12)
    return centred / length


def cluster(candidates: Tensor, alike: float = TOLERANCES.alike) -> Clusters:
    """Group k x m x d candidates of k starts by correlation of at least `alike`.

    Seeds are taken by falling agreement; a seed gathers all that are alike and not gathered yet.
    A centre is the mean of each start's member that is closest to the seed.
    """
    k, m, _ = candidates.shape
    groups = _grouped(candidates.flatten(0, 1), torch.arange(k).repeat_interleave(m), alike)
    return replace(groups, member=groups.member.view(k, m))


def pooled(runs: Sequence[Tensor], alike: float = TOLERANCES.alike) -> Clusters:
    """The same for runs with any number of candidates each (m_i x d); groups that most runs have
    a member of come first."""
    run = torch.arange(len(runs)).repeat_interleave(torch.tensor([len(rows) for rows in runs]))
    return most_starts_first(_grouped(torch.cat(list(runs)), run, alike), len(runs))


def _grouped(rows: Tensor, run: Tensor, alike: float) -> Clusters:
    """Groups of n x d candidates. run (n): which run each came from."""
    rows = rows.detach().double()
    rows = torch.where(torch.isfinite(rows).all(1, keepdim=True), rows, torch.zeros_like(rows))
    unit = unit_rows(rows)
    similar = unit @ unit.T
    n, k = len(rows), int(run.max()) + 1
    best = similar.new_full((n, k), -2.0)  # with each run
    best.scatter_reduce_(1, run.expand(n, n), similar, "amax")
    others = best.clamp(min=-1.0).scatter(1, run[:, None], 0.0)
    agreement, closest = (others.sum(1) / max(k - 1, 1)).clamp(0, 1), others.amax(1).clamp(0, 1)
    free = torch.ones(n, dtype=torch.bool)
    member = torch.full((n,), -1)
    centres: list[Tensor] = []
    seeds: list[int] = []
    starts: list[int] = []
    for seed in agreement.argsort(descending=True, stable=True).tolist():
        if not free[seed]:
            continue
        mine = (similar[seed] >= alike) & free
        mine[seed] = True
        free &= ~mine
        member[mine] = len(seeds)
        picked = _closest(similar[seed], mine.nonzero().flatten(), run)
        centres.append(rows[picked].mean(0))
        seeds.append(seed)
        starts.append(len(picked))
    seed_rows = torch.tensor(seeds, dtype=torch.long)
    return Clusters(
        centres=torch.stack(centres),
        agreement=agreement[seed_rows],
        closest=closest[seed_rows],
        starts=torch.tensor(starts),
        member=member,
        seed=seed_rows,
    )


def _closest(similar: Tensor, rows: Tensor, run: Tensor) -> Tensor:
    """Of these rows, the one of each run that is most similar to the group's seed."""
    picked: dict[int, int] = {}
    for row in rows[similar[rows].argsort(descending=True, stable=True)].tolist():
        picked.setdefault(int(run[row]), row)
    return torch.tensor([picked[k] for k in sorted(picked)])


def most_starts_first(groups: Clusters, starts: int) -> Clusters:
    """The groups ordered by agreement times the share of starts that have a member.

    By agreement alone, a candidate of a single start to which the others come near would stand
    before one that all starts but one return.
    """
    agreement = groups.agreement * groups.starts / starts
    rows = agreement.argsort(descending=True, stable=True)
    return Clusters(
        centres=groups.centres[rows],
        agreement=agreement[rows],
        closest=groups.closest[rows],
        starts=groups.starts[rows],
        member=rows.argsort()[groups.member],
        seed=groups.seed[rows],
    )


def pool(
    runs: Sequence[Candidates],
    scaling: Scaling | None = None,
    *,
    alike: float = TOLERANCES.alike,
    chosen: Candidates | None = None,
) -> Candidates:
    """What independent runs, with the same settings or others, return between them, as one list.

    As many candidates as the largest run has; inconclusive where a run is, or `chosen`, if it
    speaks for all. scaling: of the model, whose mean picture is in every candidate and would make
    all alike.
    """
    runs = [run for run in runs if len(run)]
    if not runs:
        raise InputError(expected("pool", "a run with candidates", "none"))
    scaling = scaling or Scaling()
    groups = pooled([scaling.to_model(run.inputs).flatten(1) for run in runs], alike)
    m, shape = max(len(run) for run in runs), runs[0].inputs.shape[1:]
    labels = [run.labels for run in runs if run.labels is not None]
    agreed = int((groups.starts[:m] >= enough(len(runs))).sum()) if len(runs) > 1 else 0
    sure, judges = (Status.COMPLETE, Status.PARTIAL), runs if chosen is None else [chosen]
    doubts = [run.reason for run in judges if run.status not in sure]
    words = came_back(agreed, len(runs), "runs")
    if doubts:
        who = "some are" if chosen is None else "the chosen run is"
        words += f", but {who} inconclusive: {'; '.join(dict.fromkeys(doubts))}"
    return Candidates(
        inputs=scaling.to_data(groups.centres[:m].view(-1, *shape)).float(),
        confidence=groups.agreement[:m].float(),
        labels=_majority(torch.cat(labels), groups)[:m] if len(labels) == len(runs) else None,
        status=Status.PARTIAL if agreed and not doubts else Status.INCONCLUSIVE,
        reason=words,
        stated=Stated(counted=runs[0].stated.counted),
        figures={
            "runs": len(runs),
            "agreed": agreed,
            "found_by": groups.starts[:m].tolist(),
        },
    )


def _majority(labels: Tensor, groups: Clusters) -> Tensor:
    """The label that most members of each group have; the seed's label where there is a tie."""
    said = []
    for row, seed in enumerate(groups.seed.tolist()):
        values, counts = labels[groups.member == row].unique(return_counts=True)
        said.append(values[(counts + 0.5 * (values == labels[seed])).argmax()])
    return torch.stack(said)
