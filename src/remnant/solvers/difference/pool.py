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
    ROOM,
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
APART = (0.4, 0.6, 0.8, 1.0)
FEW = 0.2  # share of the new searches that end after their first round
FREED = 15  # iterations after which points that were kept apart are near their records
# The share of clearly silent neurons where a dual vanishes, roughly (ALMOST), then precisely.
CLEARLY, ALMOST, MOSTLY = 0.5, 0.75, 0.65
ROUGHLY, NEARLY_ZERO = 0.1, 5e-3  # what counts as vanishing, of a dual's root-mean-square
TRIES = 8  # null vectors of the widest penalty, each from the one before
WIDEST = 0.05
# Of 32 points at 500 CIFAR-10 records 22 duals get sure by these, 15 by six of them, 11 by four.
FINER = (0.03, 0.02, 0.01, 0.005, 0.003, 0.002, 0.001, 0.001, 0.0005, 0.0005)


@dataclass(frozen=True, kw_only=True, eq=False)
class Pool:
    """Searches under way."""

    parts: Tensor  # 4 x k x w: t, u, s, a of each
    age: Tensor  # k: in rounds
    first: int = 0  # of APART, for new ones

    @property
    def stage(self) -> Tensor:
        """k: of APART."""
        return (self.first + self.age).clamp(max=len(APART) - 1)

    def after(self, parts: Tensor, sure: Tensor, again: Tensor) -> Pool:
        """Without searches that have ended; if few of the new ones did, others begin nearer."""
        on = ~(sure | again) & (self.age + 1 < len(APART)) & parts.isfinite().all(2).all(0)
        new = sure[self.age == 0]
        few = len(new) > 0 and float(new.double().mean()) < FEW
        first = (self.first + few) % len(APART)
        return Pool(parts=parts[:, on], age=self.age[on] + 1, first=first)


def empty_pool(problem: Problem) -> Pool:
    return Pool(parts=torch.zeros(4, 0, len(problem.start)), age=torch.zeros(0, dtype=torch.long))


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
    ground = ground_of(problem, basis, found, APART[0])
    assert isinstance(ground.spaces, Spaces)
    pool = topped_up(pool, ground.spaces, search.starts_in(basis.shape[1]), generator)
    apart = torch.tensor(APART)[pool.stage][:, None] if basis.shape[1] >= ROOM else 1.0
    iterations = search.iterations if barren else search.iterations // 3
    parts, points = carried_on(replace(ground.spaces, cosine=apart), pool.parts, iterations)
    y = upright(problem, ground.points(points.coordinates))
    z = normalize(points.dual.double() @ problem.span.left, dim=1)
    z, sure, again = take_duals(problem, found, y, z, silent_below)
    if barren >= len(APART) and not bool(sure.any()):
        y = refined(problem, basis, y)
        z, sure, again = take_duals(problem, found, y, z, silent_below)
    y[sure] = freed(problem, ground, y[sure], z[sure], FREED)
    return y, z, sure, pool.after(parts, sure, again)


def topped_up(pool: Pool, spaces: Spaces, starts: int, generator: torch.Generator) -> Pool:
    """With new searches after the old ones, as many as starts in all."""
    old = min(starts, len(pool.age))
    fresh = random_parts(spaces, starts - old, generator)
    age = torch.zeros(starts - old, dtype=torch.long)
    return replace(
        pool,
        parts=torch.cat([pool.parts[:, :old], fresh], dim=1),
        age=torch.cat([pool.age[:old], age]),
    )


def take_duals(
    problem: Problem, found: Found, y: Tensor, z: Tensor, margin: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Duals (k x n) near z that vanish where the points y (k x n) are silent; which are sure, and
    which are found or among the others already.

    What is not near a dual's zeros after a few steps is left alone: its search may go on.
    """
    margins, left = problem.margin(y), problem.span.left
    silent = clearly_silent(margins, -margin, problem.count)
    near, there = z.clone(), torch.zeros(len(z), dtype=torch.bool)
    for _ in range(TRIES):
        rest = ~there & near.isfinite().all(1)
        near[rest] = null_vectors(left, near[rest], silent[rest], widths=(WIDEST,))
        there[rest] = silent_share(problem, margins[rest], near[rest], ROUGHLY) > ALMOST
    known = torch.cat([found.z, near])
    again = ((near @ known.T).abs() > SAME_DUAL).tril(len(found) - 1).any(1) & there
    fresh, sure = there & ~again, torch.zeros(len(z), dtype=torch.bool)
    near[fresh] = null_vectors(left, near[fresh], silent[fresh], widths=FINER)
    fresh[fresh.clone()] = silent_share(problem, margins[fresh], near[fresh], NEARLY_ZERO) > MOSTLY
    near[fresh], sure[fresh] = settle(problem, near[fresh], problem.not_firing(y[fresh]))
    return near, sure, again


def silent_share(problem: Problem, margins: Tensor, z: Tensor, small: float) -> Tensor:
    """k: of the neurons that points leave silent by far, the share where duals z (k x n) vanish.

    Mixtures of several records' duals may vanish on more neurons than there are records. At 1000
    records of CIFAR-10 and width 8192 wrong duals had 0.56 or less of NEARLY_ZERO, right ones 0.59
    and more, all but a few 0.69; of ROUGHLY, 0.67 or less, and 0.84 and more.
    """
    silent = margins < -CLEARLY
    zero = (z @ problem.span.left.T).abs() < max(small, problem.zero)
    return (zero & silent).sum(1) / silent.sum(1).clamp(min=1)
