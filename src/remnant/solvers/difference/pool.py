"""Records searched for where there are many, and far more silent neurons than a dual needs.

Of points that are kept apart nearly all come to a record, but some sooner than others. So searches
go on from round to round until their dual is found, in the space that the others have left by then,
and nearer to what was found: some records are like others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import normalize

from remnant.solvers.algebra import complement
from remnant.solvers.difference.duals import clearly_silent, most_silent, null_vectors
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
# Cosines that a search's point is held below, with those found and with older searches', in one
# round after the other: far while most of the span is left, nearer at the end, since some records
# are like others. Of 1000 CIFAR-10 records, with 700 found seven rounds of either bring about as
# many (75 and 70), with 860 found 54 and 83, and with 940 found eight bring 18 and 41.
FAR = (0.4, 0.6, 0.8, 0.8)
NEARER = (0.8, 0.9, 1.0, 1.0)
LITTLE = 0.3  # of the span
FREED = 15  # iterations after which points that were kept apart are near their records
# The widths of null vectors: from rough points' silent neurons alone to what vanishes there, then
# ever finer, a last one at once for those that have arrived.
WIDE = (1.0, 1.0, 0.3, 0.1, 0.05, 0.05)
FINER = (0.03, 0.02, 0.01, 0.005, 0.003, 0.002, 0.001, 0.001, 0.0005, 0.0005, 0.0005)
LAST = (0.001,)
ITERATIONS = 15  # of conjugate gradients, for each
SURELY = 2  # neurons for each record that a rough point leaves silent, the most silent ones
CLEARLY = 0.5  # margin of silent neurons
# The share of them where a dual vanishes: roughly (so much of its root-mean-square), and nearly.
ROUGH_ZERO, NEARLY_ZERO = 0.1, 5e-3
ALMOST, MOSTLY, ARRIVED = 0.8, 0.65, 0.85
HOPELESS, TRIED = 0.5, 5  # after so many of FINER


@dataclass(frozen=True, kw_only=True, eq=False)
class Pool:
    """Searches under way."""

    parts: Tensor  # 4 x k x w: t, u, s, a of each
    stage: Tensor  # k: of FAR, or NEARER

    def after(self, parts: Tensor, sure: Tensor, again: Tensor) -> Pool:
        """Without searches that have ended, the others a stage further."""
        last = self.stage + 1 >= len(FAR)
        on = ~(sure | again | last) & parts.isfinite().all(2).all(0)
        return Pool(parts=parts[:, on], stage=self.stage[on] + 1)


def empty_pool(problem: Problem) -> Pool:
    return Pool(parts=torch.zeros(4, 0, len(problem.start)), stage=torch.zeros(0).long())


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
    ground = ground_of(problem, basis, found, FAR[0])
    assert isinstance(ground.spaces, Spaces)
    pool = topped_up(pool, ground.spaces, search.starts_in(basis.shape[1]), generator)
    little = bool(barren) or basis.shape[1] < LITTLE * problem.count
    apart = torch.tensor(NEARER if little else FAR)[pool.stage][:, None]
    if basis.shape[1] < LEAST_ROOM:
        apart[:] = 1.0
    iterations = search.iterations if barren else max(1, search.iterations // 3)
    parts, points = carried_on(replace(ground.spaces, cosine=apart), pool.parts, iterations)
    y = upright(problem, ground.points(points.coordinates))
    z = normalize(points.dual.double() @ problem.span.left, dim=1)
    z, sure, again = take_duals(problem, found, y, z, silent_below)
    if barren >= len(FAR) and not bool(sure.any()):
        whole = y.isfinite().all(1)
        y[whole] = refined(problem, basis, y[whole])
        z, sure, again = take_duals(problem, found, y, z, silent_below)
    y[sure] = freed(problem, ground, y[sure], z[sure], FREED)
    return y, z, sure, pool.after(parts, sure, again)


def topped_up(pool: Pool, spaces: Spaces, starts: int, generator: torch.Generator) -> Pool:
    """With new searches after the old ones, as many as starts in all."""
    old = min(starts, len(pool.stage))
    fresh = random_parts(spaces, starts - old, generator)
    return Pool(
        parts=torch.cat([pool.parts[:, :old], fresh], dim=1),
        stage=torch.cat([pool.stage[:old], torch.zeros(starts - old).long()]),
    )


def take_duals(
    problem: Problem, found: Found, y: Tensor, z: Tensor, margin: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Duals (k x n) near z that vanish where the points y (k x n) are silent; which are sure, and
    which are those of records found, or sure before them.

    What is not near a dual's zeros after a few steps is left alone: its search may go on.
    """
    margins, left = problem.margin(y), problem.span.left
    silent = clearly_silent(margins, -margin, problem.count)
    near, share = z.clone(), torch.zeros(len(z))

    def step(rows: Tensor, widths: Sequence[float]) -> None:
        if bool(rows.any()):
            near[rows] = null_vectors(
                left, near[rows], silent[rows], widths=widths, most=ITERATIONS
            )
            share[rows] = silent_share(problem, margins[rows], near[rows], NEARLY_ZERO)

    whole = z.isfinite().all(1)
    surely = most_silent(margins[whole], SURELY * problem.count)
    near[whole] = null_vectors(
        left, z[whole], surely, widths=WIDE, precision=problem.coarse, most=ITERATIONS
    )
    share[whole] = silent_share(problem, margins[whole], near[whole], ROUGH_ZERO)
    there = share > ALMOST
    known = there & ((near @ found.z.T).abs() > SAME_DUAL).any(1)
    like = ((near @ near.T).abs() > SAME_DUAL).tril(-1) & there & there[:, None]
    fresh, sure = there & ~known & ~like.any(1), torch.zeros(len(z), dtype=torch.bool)
    share[fresh] = 0.0
    for i, width in enumerate(FINER):
        hopeful = share >= (HOPELESS if i >= TRIED else 0.0)
        step(fresh & hopeful & (share <= ARRIVED), (width,))
    fresh = fresh & (share > MOSTLY)
    step(fresh, LAST)
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
