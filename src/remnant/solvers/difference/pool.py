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
    duals_at,
    freed,
    ground_of,
    refined,
    upright,
)
from remnant.solvers.difference.problem import Problem
from remnant.solvers.difference.zeros import settle

SAME_DUAL = 0.995  # cosine; two similar records of one class reach 0.96
# Cosines that a search's point is held below in one round after the other, with older searches' and
# with those found. Some records are like others, so once less than LITTLE of the span is left,
# points come in the end as near to those found as they like: what keeps them from there is that
# another record's dual has nothing of theirs. With 851 of 1000 CIFAR-10 records found, 200
# iterations of 32 searches came to 12 new duals with all cosines 0.8, to 20 with those found left
# out, and to 25 with 0.4, then 0.6 among themselves alone (one draw). Half of the new searches
# begin a stage later then, since either way alone leaves some out; with 979 found, neither comes to
# many, and the last are searched for near each other.
EARLY = ((0.4, 0.4), (0.6, 0.6), (0.8, 0.8), (0.8, 0.8))
LATE = ((0.4, 0.4), (0.8, 0.8), (0.6, 1.0), (0.8, 1.0))
LAST_ONES = ((0.8, 1.0), (0.9, 1.0), (0.9, 1.0), (0.9, 1.0))
LITTLE = 0.5
# Records left for each search: more at a time take less time each, since a product with large
# spaces waits for memory, but among few records they get into each other's way.
MANY = 8
FREED = 15  # iterations after which points that were kept apart are near their records
# The widths of null vectors: from rough points' silent neurons alone to what vanishes there, and a
# last one at once for those that have arrived.
WIDE = (1.0, 1.0, 0.3, 0.1, 0.05, 0.05)
LAST = (0.001,)
SURELY = 2  # neurons for each record that a rough point leaves silent, the most silent ones
CLEARLY = 0.5  # margin of silent neurons
# The share of them where a dual vanishes: roughly (so much of its root-mean-square), and nearly.
ROUGH_ZERO, NEARLY_ZERO = 0.1, 5e-3
ALMOST, MOSTLY = 0.8, 0.65
TRIED = 5  # widths after which those that are hopeless are left alone
FEW = 0.25  # share of all that are sure, below which small steps, which take long, are worth it


@dataclass(frozen=True, kw_only=True)
class Way:
    """From rough duals to sharp ones."""

    widths: tuple[float, ...]  # of null vectors, ever finer
    steps: int  # for each
    iterations: int  # of conjugate gradients, for each step
    hopeless: float  # share of silent neurons where a dual vanishes nearly, after a few widths
    arrived: float  # and where it needs no more


QUICKLY = Way(
    widths=(0.03, 0.02, 0.01, 0.005, 0.003, 0.002, 0.001, 0.001, 0.0005, 0.0005, 0.0005),
    steps=1,
    iterations=15,
    hopeless=0.5,
    arrived=0.85,
)
# For records that leave few neurons silent throughout, 1.8 for each record where others leave 2.8.
SLOWLY = Way(
    widths=(0.3, 0.1, 0.05, 0.03, 0.02, 0.01, 0.005, 0.002, 0.001),
    steps=3,
    iterations=40,
    hopeless=0.4,
    arrived=1.0,
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Pool:
    """Searches under way."""

    parts: Tensor  # 4 x k x w: t, u, s, a of each
    stage: Tensor  # k: of EARLY, LATE or LAST_ONES

    def after(self, parts: Tensor, sure: Tensor, again: Tensor) -> Pool:
        """Without searches that have ended, the others a stage further."""
        last = self.stage + 1 >= len(LATE)
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
) -> tuple[Tensor, Tensor, Tensor, Pool]:
    """Points y (k x n) in the space that the found duals leave, duals z (k x n), whether sure, and
    the searches that go on. barren: rounds without a new record."""
    basis = complement(found.z / problem.span.scale, problem.count)
    ground = ground_of(problem, basis, found, EARLY[0][0])
    assert isinstance(ground.spaces, Spaces)
    room = basis.shape[1]
    few = room < 2 * search.starts
    late = few or bool(barren) or room < LITTLE * problem.count
    starts = max(search.starts_in(room), room // MANY)
    pool = topped_up(pool, ground.spaces, starts, 1 + late, generator)
    spaces = replace(ground.spaces, hold=float(late))
    if room >= LEAST_ROOM:
        stages = LAST_ONES if few else LATE if late else EARLY
        cosine, apart = torch.tensor(stages)[pool.stage].split(1, dim=1)
        spaces = replace(spaces, cosine=cosine, apart=apart)
    iterations = search.iterations if barren else max(1, search.iterations // 3)
    parts, points = carried_on(spaces, pool.parts, iterations)
    y = upright(problem, ground.points(points.coordinates))
    z = normalize(points.dual.double() @ problem.span.left, dim=1)
    later, whole = pool.stage > 0, y.isfinite().all(1)
    z, sure, again = take_duals(problem, found, y, z, later)
    if barren and not bool(sure.any()):
        if barren >= len(LATE):
            y[whole] = refined(problem, basis, y[whole])
        z[whole] = duals_at(problem, found, y[whole])
        z, sure, again = take_duals(problem, found, y, z, later)
    y[sure] = freed(problem, ground, y[sure], z[sure], FREED)
    return y, z, sure, pool.after(parts, sure, again)


def topped_up(
    pool: Pool, spaces: Spaces, starts: int, stages: int, generator: torch.Generator
) -> Pool:
    """With new searches after the old ones, as many as starts in all, begun at the first `stages`
    in turn."""
    old = min(starts, len(pool.stage))
    fresh = random_parts(spaces, starts - old, generator)
    return Pool(
        parts=torch.cat([pool.parts[:, :old], fresh], dim=1),
        stage=torch.cat([pool.stage[:old], torch.arange(starts - old) % stages]),
    )


def take_duals(
    problem: Problem,
    found: Found,
    y: Tensor,
    z: Tensor,
    later: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Duals (k x n) near z that vanish where the points y (k x n) are silent; which are sure, and
    which are those of records found, or sure before them.

    What is not near a dual's zeros after a few steps is left alone: its search may go on. Duals of
    searches at a later stage (k, bool) are looked for once more in smaller steps, if few are sure.
    """
    margins, near, share = problem.margin(y), z.clone(), torch.zeros(len(z))
    whole = z.isfinite().all(1)
    surely = most_silent(margins[whole], SURELY * problem.count)
    near[whole] = null_vectors(
        problem.span.left,
        z[whole],
        surely,
        widths=WIDE,
        precision=problem.coarse,
        most=QUICKLY.iterations,
    )
    share[whole] = silent_share(problem, margins[whole], near[whole], ROUGH_ZERO)
    there = share > ALMOST
    known = there & ((near @ found.z.T).abs() > SAME_DUAL).any(1)
    like = ((near @ near.T).abs() > SAME_DUAL).tril(-1) & there & there[:, None]
    fresh, sure = there & ~known & ~like.any(1), torch.zeros(len(z), dtype=torch.bool)
    rough = near.clone()
    near[fresh], sure[fresh] = sharpened(problem, y[fresh], rough[fresh], QUICKLY)
    if later is not None and int(sure.sum()) < FEW * len(z):
        left = fresh & later & ~sure
        near[left], sure[left] = sharpened(problem, y[left], rough[left], SLOWLY)
    return near, sure, known | (like & sure).any(1)


def sharpened(problem: Problem, y: Tensor, z: Tensor, way: Way) -> tuple[Tensor, Tensor]:
    """Duals (k x n) near rough ones z that vanish where points y (k x n) are silent; which are
    sure."""
    margins, near, share = problem.margin(y), z.clone(), torch.zeros(len(z))
    silent = clearly_silent(margins, problem.count)

    def step(rows: Tensor, widths: Sequence[float]) -> None:
        if bool(rows.any()):
            near[rows] = null_vectors(
                problem.span.left, near[rows], silent[rows], widths=widths, most=way.iterations
            )
            share[rows] = silent_share(problem, margins[rows], near[rows], NEARLY_ZERO)

    for i, width in enumerate(way.widths):
        hopeful = share >= (way.hopeless if i >= TRIED else 0.0)
        step(hopeful & (share <= way.arrived), (width,) * way.steps)
    there, sure = share > MOSTLY, torch.zeros(len(z), dtype=torch.bool)
    step(there, LAST)
    near[there], sure[there] = settle(problem, near[there], problem.not_firing(y[there]))
    return near, sure


def silent_share(problem: Problem, margins: Tensor, z: Tensor, small: float) -> Tensor:
    """k: of the neurons that points leave silent by far, the share where duals z (k x n) vanish.

    Mixtures of several records' duals may vanish on more neurons than there are records. At 1000
    records of CIFAR-10 and width 8192 wrong duals had 0.56 or less of NEARLY_ZERO, right ones 0.59
    and more, all but a few 0.69; of ROUGH_ZERO, 0.67 or less, and 0.84 and more.
    """
    silent = margins < -CLEARLY
    zero = (z @ problem.span.left.T).abs() < max(small, problem.zero)
    return (zero & silent).sum(1) / silent.sum(1).clamp(min=1)
