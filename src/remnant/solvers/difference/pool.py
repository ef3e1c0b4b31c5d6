"""Records searched for where there are many, and far more silent neurons than a dual needs.

Of points that are kept apart nearly all come to a record, but some sooner than others. So searches
go on from round to round until their dual is found, in the space that the others have left by then,
and ever nearer to what was found: some records are like others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import normalize

from remnant.solvers.algebra import complement
from remnant.solvers.difference.duals import clearly_silent, null_vectors
from remnant.solvers.difference.graph import Spaces, carried_on, random_parts
from remnant.solvers.difference.ground import (
    LEAST_ROOM,
    Found,
    Search,
    freed,
    ground_of,
    refined,
    upright,
)
from remnant.solvers.difference.problem import Problem
from remnant.solvers.difference.zeros import settle

SAME_DUAL = 0.995  # cosine; two similar records of one class reach 0.96
# Cosines that a search's point is held below, with those found and with older searches', one after
# the other. Of 32 searches at 1000 CIFAR-10 records, 300 found, 14 end at new ones in 100
# iterations at 0.4, 13 of the others in 75 at 0.6 and 4 in 75 at 0.8; 850 found, 10, 14 and 3.
STAGES = (0.4, 0.6, 0.8, 1.0)
# Share of the new searches that end at a new record in their first round. With 0.4 instead, 525 of
# 1000 CIFAR-10 records are found after 34 rounds, not 578.
FEW_END = 0.25
FIRST = 2  # stages that searches begin at
FREED = 15  # iterations after which points that were kept apart are near their records
CLEARLY = 0.5  # margin of silent neurons
ALMOST, MOSTLY = 0.75, 0.65  # and the share of them where a dual vanishes, roughly, then nearly
ROUGH_ZERO, NEARLY_ZERO = 0.1, 5e-3  # what counts as vanishing, of a dual's root-mean-square
HOPELESS, ARRIVED = 0.6, 0.85
LAST = (0.001,)
ITERATIONS = 15  # of each null vector: the next step goes on
TRIES = 8  # null vectors of the widest penalty, each from the one before
WIDEST = 0.05
# Of 32 points at 500 CIFAR-10 records 22 duals get sure by these, 15 by six of them, 11 by four.
FINER = (0.03, 0.02, 0.01, 0.005, 0.003, 0.002, 0.001)


@dataclass(frozen=True, kw_only=True, eq=False)
class Pool:
    """Searches under way."""

    parts: Tensor  # 4 x k x w: t, u, s, a of each
    stage: Tensor  # k: of STAGES
    new: Tensor  # k, bool: begun in this round
    first: int = 0  # the stage that the next ones begin at

    def after(self, parts: Tensor, sure: Tensor, again: Tensor) -> Pool:
        """Without searches that have ended, the others a stage further. If few of the new ones
        ended, the next begin nearer to what was found, or if these did, as far as before."""
        last = self.stage + 1 >= len(STAGES)
        on = ~(sure | again | last) & parts.isfinite().all(2).all(0)
        fresh = sure[self.new]
        few = len(fresh) > 0 and float(fresh.double().mean()) < FEW_END
        return Pool(
            parts=parts[:, on],
            stage=self.stage[on] + 1,
            new=torch.zeros(int(on.sum()), dtype=torch.bool),
            first=(self.first + few) % FIRST,
        )


def empty_pool(problem: Problem) -> Pool:
    none = torch.zeros(0)
    return Pool(parts=torch.zeros(4, 0, len(problem.start)), stage=none.long(), new=none.bool())


def find_in_pool(
    problem: Problem,
    found: Found,
    pool: Pool,
    search: Search,
    generator: torch.Generator,
    *,
    barren: int,
    silent_below: float,
) -> tuple[Tensor, Tensor, Tensor, Pool]:
    """Points y (k x n) in the space that the found duals leave, duals z (k x n), whether sure, and
    the searches that go on. barren: rounds without a new record."""
    basis = complement(found.z / problem.span.scale, problem.count)
    ground = ground_of(problem, basis, found, STAGES[0])
    assert isinstance(ground.spaces, Spaces)
    pool = topped_up(pool, ground.spaces, search.starts_in(basis.shape[1]), generator)
    apart = torch.tensor(STAGES)[pool.stage][:, None] if basis.shape[1] >= LEAST_ROOM else 1.0
    iterations = search.iterations if barren else max(1, search.iterations // 3)
    parts, points = carried_on(replace(ground.spaces, cosine=apart), pool.parts, iterations)
    y = upright(problem, ground.points(points.coordinates))
    z = normalize(points.dual.double() @ problem.span.left, dim=1)
    z, sure, again = take_duals(problem, found, y, z, silent_below)
    if barren >= len(STAGES) and not bool(sure.any()):
        whole = y.isfinite().all(1)
        y[whole] = refined(problem, basis, y[whole])
        z, sure, again = take_duals(problem, found, y, z, silent_below)
    y[sure] = freed(problem, ground, y[sure], z[sure], FREED)
    return y, z, sure, pool.after(parts, sure, again)


def topped_up(pool: Pool, spaces: Spaces, starts: int, generator: torch.Generator) -> Pool:
    """With new searches after the old ones, as many as starts in all."""
    old = min(starts, len(pool.stage))
    fresh = random_parts(spaces, starts - old, generator)
    return replace(
        pool,
        parts=torch.cat([pool.parts[:, :old], fresh], dim=1),
        stage=torch.cat([pool.stage[:old], torch.full((starts - old,), pool.first)]),
        new=torch.arange(starts) >= old,
    )


def take_duals(
    problem: Problem, found: Found, y: Tensor, z: Tensor, margin: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Duals (k x n) near z that vanish where the points y (k x n) are silent; which are sure, and
    which are those of records found, or sure before them.

    What is not near a dual's zeros after a few steps is left alone: its search may go on.
    """
    margins = problem.margin(y)
    silent = clearly_silent(margins, -margin, problem.count)
    near, share = z.clone(), torch.zeros(len(z))

    def step(rows: Tensor, width: float, small: float, precision: torch.dtype) -> None:
        if not bool(rows.any()):
            return
        near[rows] = null_vectors(
            problem.span.left,
            near[rows],
            silent[rows],
            widths=(width,),
            precision=precision,
            most=ITERATIONS,
        )
        share[rows] = silent_share(problem, margins[rows], near[rows], small)

    for trial in range(TRIES):
        hopeful = share > HOPELESS if trial > 1 else near.isfinite().all(1)
        step(hopeful & (share <= ALMOST), WIDEST, ROUGH_ZERO, problem.coarse)
    there = share > ALMOST
    known = there & ((near @ found.z.T).abs() > SAME_DUAL).any(1)
    like = ((near @ near.T).abs() > SAME_DUAL).tril(-1) & there & there[:, None]
    fresh, sure = there & ~known & ~like.any(1), torch.zeros(len(z), dtype=torch.bool)
    share[fresh] = 0.0
    for width in FINER:
        step(fresh & (share <= ARRIVED), width, NEARLY_ZERO, torch.float32)
    fresh = fresh & (share > MOSTLY)
    for width in LAST:
        step(fresh, width, NEARLY_ZERO, torch.float32)
    near[fresh], sure[fresh] = settle(problem, near[fresh], problem.not_firing(y[fresh]))
    return near, sure, known | (like & sure).any(1)


def silent_share(problem: Problem, margins: Tensor, z: Tensor, small: float) -> Tensor:
    """k: of the neurons that points leave silent by far, the share where duals z (k x n) vanish.

    Mixtures of several records' duals may vanish on more neurons than there are records. At 1000
    records of CIFAR-10 and width 8192 wrong duals had 0.56 or less of NEARLY_ZERO, right ones 0.59
    and more, all but a few 0.69; of ROUGH_ZERO, 0.67 or less, and 0.84 and more.
    """
    silent = margins < -CLEARLY
    zero = (z @ problem.span.left.T).abs() < max(small, problem.zero)
    return (zero & silent).sum(1) / silent.sum(1).clamp(min=1)
