"""Exact recovery of the records between two consecutive dense ReLU layers.

The adversary holds the change of both layers. The first one's gives the records' number and span
(`spans`); the second one's row space nearly holds their features at the initial weights. Search
for points of the span whose features lie in it (`graph`), turn each point into its exact dual
(`duals`), remove what is found from the space, go on. All duals together give all records at once:
X~ = Z^-1 diag(scale) right, each divided by its last coordinate, which is the bias' 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from remnant.progress import task
from remnant.solvers.algebra import complement, distinct
from remnant.solvers.certificate import Certificate, certify
from remnant.solvers.duals import FORGIVING, GRADUAL, leaning, null_vectors, share_of_zeros
from remnant.solvers.graph import find_points, refine_points
from remnant.solvers.problem import Problem
from remnant.solvers.spans import Span

NEARLY_ZERO = 0.03  # of a dual's root-mean-square, while the dual is still rough
SAME_DUAL = 0.995  # cosine; two similar records of one class reach 0.96
REFITS = (5e-3, 2e-3, 5e-4, 1.25e-4)  # the exact zeros sharpen from one refit to the next


@dataclass(frozen=True, kw_only=True)
class Search:
    """Settings of the search. Nothing depends on the clock, so a seed decides the result."""

    starts: int = 32  # points searched for at a time
    iterations: int = 300  # of RRR, tripled while nothing new is found
    patience: int = 25  # rounds without a new record before giving up


@dataclass(frozen=True, kw_only=True, eq=False)
class Found:
    """Records found so far: duals z (k x n) and points y (k x n), unit rows."""

    z: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.z)


@dataclass(frozen=True, kw_only=True, eq=False)
class Recovery:
    """inputs: k x d in the model's scale; duals: k x w, what each neuron learned of each record.

    complete: as many as the spectrum counts were found.
    """

    inputs: Tensor
    duals: Tensor
    certificate: Certificate
    complete: bool
    rounds: int
    found: list[float]  # after each round


def recover(problem: Problem, search: Search, *, generator: torch.Generator) -> Recovery:
    """Search, take duals, deflate until every record is found or nothing new comes."""
    n = problem.count
    found = Found(
        z=torch.zeros(0, n, dtype=torch.float64), y=torch.zeros(0, n, dtype=torch.float64)
    )
    most, rounds, stall, barren, best_score, series = found, 0, 0, 0, 0.0, [0.0]
    with task("searching for records", n) as step:
        while len(found) < n and barren < search.patience:
            y, z, score = propose(problem, found, stall, search, generator)
            top = score.sort()[0][-max(1, len(score) // 4) :].median()
            best_score = max(best_score, float(top))
            before = len(found)
            found = accept(problem, found, y, z, score, best_score, stall)
            rounds, stall = rounds + 1, 0 if len(found) > before else stall + 1
            barren = 0 if len(found) > len(most) else barren + 1
            most = found if len(found) > len(most) else most
            if stall and stall % 6 == 0 and len(found) > n // 2:
                found = give_back(problem, found)
            step(len(found) - before, note=f"{len(found)} of {n}")
            series.append(float(len(found)))
    found = most
    inputs, z = finish(problem, found, generator)
    certificate = certify(problem, inputs, z)
    return Recovery(
        inputs=inputs[:, :-1],
        duals=oriented(problem, inputs, z) @ problem.span.left.T,
        certificate=certificate,
        complete=len(found) == n,
        rounds=rounds,
        found=series,
    )


def propose(
    problem: Problem, found: Found, stall: int, search: Search, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """New points y (k x n), their duals z (k x n) and a score that is high for real ones."""
    n = problem.count
    basis = complement(found.z / problem.span.scale, n)  # other records are orthogonal to z / scale
    start = problem.start @ basis
    if basis.shape[1] == 1:
        y = torch.stack([basis[:, 0], -basis[:, 0]])  # one record left: the space is the record
    else:
        orthonormal, triangle = torch.linalg.qr(start)
        points = find_points(
            orthonormal.float(),
            problem.soft,
            min(search.starts, max(4, 2 * basis.shape[1])),
            generator=generator,
            iterations=search.iterations * (3 if stall else 1),
        )
        near = points.t[: max(4, int((points.gap < 0.25).sum()))]
        near = near[distinct(near, 0.95)].double()
        y = torch.linalg.solve_triangular(triangle, (near @ orthonormal).T, upper=True).T
        sharp = float(points.gap.median()) < 0.02
        y, quotient = refine_points(
            start, problem.penalty, normalize(y, dim=1), iterations=3 if sharp else 5
        )
        y = y[quotient.argsort()]
        y = y[distinct(y @ start.T, 0.99)] @ basis.T
    margin = problem.margin(y)
    # A stalled search takes fewer neurons for silent, by a wider margin, and forgives more of them.
    silent = clearly_silent(margin, 0.1 * (1 + stall % 4), n)
    left = problem.span.left
    # Points are found more surely than duals: what is known of the others leads to the right one.
    away = leaning(problem.span.scale, found.y, y if stall % 2 else None)
    z = null_vectors(
        left,
        silent,
        generator=generator,
        widths=FORGIVING if stall % 3 == 2 else GRADUAL,
        away=len(left) * away,
    )
    return y, z, share_of_zeros(left, z, NEARLY_ZERO) - wrongly_active(left, z, margin)


def clearly_silent(margin: Tensor, by: float, count: int) -> Tensor:
    """k x w of 0 and 1: silent neurons by that margin, but enough of them to fix a dual."""
    enough = min(margin.shape[1], int(1.5 * count) + 4)
    least = margin.sort(1).values[:, enough - 1 : enough]
    return (margin <= torch.maximum(least, torch.full_like(least, -by))).double()


def wrongly_active(left: Tensor, z: Tensor, margin: Tensor) -> Tensor:
    """Share of the clearly silent neurons whose dual entry is not small."""
    silent = margin < -0.1
    active = (z @ left.T).abs() > NEARLY_ZERO
    return (active & silent).sum(1).double() / silent.sum(1).clamp(min=1)


def accept(
    problem: Problem, found: Found, y: Tensor, z: Tensor, score: Tensor, best: float, stall: int
) -> Found:
    """Take the proposals, best first, whose score is near the best seen and whose dual is new."""
    n, width = problem.count, len(problem.start)
    floor = max(0.05, n / width - 0.02 * stall)  # a generic vector of the span has n / w zeros
    threshold = max(floor, best * (0.6 - 0.1 * min(stall, 8)))
    for i in score.argsort(descending=True).tolist():
        if len(found) == n or float(score[i]) <= threshold:
            break
        if len(found) == 0 or float((found.z @ z[i]).abs().max()) < SAME_DUAL:
            found = Found(
                z=torch.cat([found.z, z[i : i + 1]]), y=torch.cat([found.y, y[i : i + 1]])
            )
    return found


def give_back(problem: Problem, found: Found) -> Found:
    """Stuck near the end: a wrong dual may block the rest, so drop the least sparse ones."""
    keep = len(found) - max(2, problem.count // 20)
    order = share_of_zeros(problem.span.left, found.z, NEARLY_ZERO).argsort(descending=True)[:keep]
    return Found(z=found.z[order], y=found.y[order])


def finish(problem: Problem, found: Found, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """x~ (k x (d+1)) and duals z (k x n): exact if all records were found, else approximate."""
    z = found.z
    if len(found) < problem.count:
        return to_inputs(refine_found(problem, found) @ problem.span.right), z
    for _ in range(3):
        better = repair(problem, z, generator)
        if better is None:
            break
        z = better
    for below in REFITS:
        z = refit_on_zeros(problem, z, below, generator)
    return solve_records(problem.span, z), z


def refine_found(problem: Problem, found: Found) -> Tensor:
    """Points y (k x n) once more, each in the space that the other records' duals leave to it."""
    if not len(found):
        return found.y
    rows = found.z / problem.span.scale
    rest, own = complement(rows, problem.count), torch.linalg.pinv(rows).T
    points = []
    for y, direction in zip(found.y, own, strict=True):
        basis = torch.linalg.qr(torch.cat([rest, direction[:, None]], dim=1))[0]
        near = normalize(y[None] @ basis, dim=1)
        better, _ = refine_points(problem.start @ basis, problem.penalty, near, iterations=3)
        points.append(better[0] @ basis.T)
    return torch.stack(points)


def solve_records(span: Span, z: Tensor) -> Tensor:
    """All x~ from all duals (rows of z): Z^-1 diag(scale) right."""
    return to_inputs(torch.linalg.solve(z.T, span.scale[:, None] * span.right))


def oriented(problem: Problem, records: Tensor, z: Tensor) -> Tensor:
    """Duals with their scale and sign: M = sum_i a_i x~_i^T makes (z_i / scale) . y_i = 1."""
    product = (z / problem.span.scale * (records @ problem.span.right.T)).sum(1, keepdim=True)
    return z / torch.where(product.abs() < 1e-12, torch.ones_like(product), product)


def to_inputs(directions: Tensor) -> Tensor:
    """Divide each row by its last coordinate, which stands for the bias' 1."""
    last = directions[:, -1:]
    return directions / torch.where(last.abs() < 1e-12, torch.full_like(last, 1e-12), last)


def repair(problem: Problem, z: Tensor, generator: torch.Generator) -> Tensor | None:
    """Take suspicious duals anew from the masks of the current records. None = nothing improved."""
    left = problem.span.left
    margin = problem.margin(solve_records(problem.span, z) @ problem.span.right.T)
    wrong = wrongly_active(left, z, margin)
    suspects = (wrong > max(0.05, 2 * float(wrong.median()))).nonzero()[:, 0]
    if not len(suspects):
        return None
    silent = clearly_silent(margin[suspects], 0.05, problem.count)
    fresh = null_vectors(left, silent, generator=generator, widths=GRADUAL)
    overlap = (fresh @ z.T).abs()
    overlap[torch.arange(len(suspects)), suspects] = 0
    sparser = _log_size(left, fresh) < _log_size(left, z[suspects]) - 1e-6
    take = sparser & (overlap.max(1).values < SAME_DUAL)
    if not bool(take.any()):
        return None
    z = z.clone()
    z[suspects[take]] = fresh[take]
    return z


def _log_size(left: Tensor, z: Tensor) -> Tensor:
    return torch.log((z @ left.T) ** 2 + 1e-4).mean(1)


def refit_on_zeros(problem: Problem, z: Tensor, below: float, generator: torch.Generator) -> Tensor:
    """Fit each dual again on its own zeros, where they are more than a generic vector has."""
    left = problem.span.left
    zeros = (z @ left.T).abs() < below
    fresh = null_vectors(left, zeros.double(), generator=generator)
    same = (fresh * z).sum(1).abs() > 0.999
    enough = zeros.double().mean(1) > problem.count / len(left) + 0.01
    return torch.where((same & enough)[:, None], fresh, z)
