"""Every record's features from the training of a lone output layer on a front that did not move.

A head fine-tuned by full-batch gradient descent under cross-entropy moves by a sum of gradients,

    W_T - W_0 = - sum_t lr sum_i r_it [h_i, 1]^T,    r_it = (softmax(W_t h_i + b_t) - e_{y_i}) / n,

in which features h_i stay as they are. So they lie in the row space of the change, as behind one
gradient (`output_layer`): n^2 numbers M, from which all steps follow, and the rate beside them. A
run of two long steps is solved first, from many starts; from its features each number of steps is
tried. Only the right one explains the change to its rounding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from remnant.solvers.dense.output_layer import (
    Features,
    first_guesses,
    likely_labels,
    newton,
)
from remnant.solvers.dense.output_layer import Tolerances as Starts
from remnant.solvers.spans import count_records


@dataclass(frozen=True, kw_only=True)
class Tolerances:
    rough: int = 2
    """Steps of the run that is solved first. More are nearer to the run, and slower from all
    starts."""
    near: float = 0.1
    """Root-mean-square residual of that run above which its labels are given up."""
    tried: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 16, 20, 25, 30, 32, 40, 50, 64, 100)
    """Numbers of steps that a run may have. Others are told only roughly."""
    polish: int = 40
    """Newton's steps for each of them."""
    exact: float = 20.0
    """Times the rounding of the change: the residual of a right answer."""


TOLERANCES = Tolerances()


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """The equations of a run. reduced: c x n, W_0 in the frame; bias: c; hot: n x c, labels;
    target: c x n and scale: n, of the change, U and S; frame: n x (d + 1), V; time: the rate times
    the steps, about."""

    reduced: Tensor
    bias: Tensor
    hot: Tensor
    target: Tensor
    scale: Tensor
    frame: Tensor
    time: float

    def residual(self, point: Tensor, steps: int) -> Tensor:
        """Of features M and the logarithm of the rate (n^2 + 1), if so many steps were done."""
        n = len(self.scale)
        m, rate = point[:-1].view(n, n), self.time / steps * point[-1].exp()
        weight, bias, total = self.reduced, self.bias, torch.zeros_like(self.hot)
        inner = self.frame[:, :-1] @ self.frame[:, :-1].T
        for _ in range(steps):
            signals = rate * ((m @ weight.T + bias).softmax(1) - self.hot) / n
            weight = weight - signals.T @ m @ inner
            bias, total = bias - signals.sum(0), total + signals
        explained = total.T @ m / self.scale - self.target
        return torch.cat([explained.flatten(), m @ self.frame[:, -1] - 1])


def recover_output_run(
    weight: Tensor,
    bias: Tensor,
    change: Tensor,
    *,
    precision: float,
    generator: torch.Generator,
    count: int | None = None,
    labels: Tensor | None = None,
    starts: Starts | None = None,
) -> Features | str:
    """The features behind a change c x (d + 1) of the output layer from its weight (c x d) and
    bias, or in a sentence why they are not told. precision: of an entry of the change."""
    left, values, right = torch.linalg.svd(-change, full_matrices=False)
    spectrum = count_records(values, weight, precision)
    n = count or spectrum.count
    if not count and not spectrum.clear:
        return "no gap among the singular values of the output layer's change; give --records"
    level = precision * float(weight.abs().max()) * math.sqrt(change.numel())
    if not 0 < n < len(weight):
        return f"{n} records need more than {n} outputs, and there are {len(weight)}"
    if values[n - 1] <= level:
        seen = int((values[:n] > level).sum())
        return f"of {n} records only {seen} stand out above the rounding of the stored weights"
    # A class that no record has loses 1 / c of each step's rate, while the model is undecided.
    time = -len(weight) * float(change[:, -1].min())
    if not time > 0:
        return "no output lost bias: that is no training under cross-entropy"
    run = Run(
        reduced=weight @ right[:n, :-1].T,
        bias=bias,
        hot=torch.zeros(n, len(weight), dtype=torch.float64),
        target=left[:, :n],
        scale=values[:n],
        frame=right[:n],
        time=time,
    )
    settings = starts or Starts()
    guesses = [labels.long()] if labels is not None else None
    best: Features | None = None
    for guess in guesses or likely_labels(-change[:, -1] / time, n, settings):
        mine = replace(run, hot=one_hot(guess, len(weight)).double())
        found = solved(mine, guess, settings, level / float(values[n - 1]), generator)
        if best is None or found.residual < best.residual:
            best = found
        if best.exact:
            break
    assert best is not None
    return best


def solved(
    run: Run, guess: Tensor, settings: Starts, rounding: float, generator: torch.Generator
) -> Features:
    """The run's features with those labels, by the number of steps that explains most."""
    n = len(guess)
    first = first_guesses(run.hot, run.target * run.scale / run.time, settings, generator)
    start = torch.cat([first, torch.zeros_like(first[:, :1])], 1)
    point, least = newton(partial(run.residual, steps=TOLERANCES.rough), start, settings.steps)
    best, rough = point, point
    for steps in TOLERANCES.tried if least < TOLERANCES.near else ():
        of_run = partial(run.residual, steps=steps)
        end, worst = newton(of_run, rough[None], TOLERANCES.polish)
        if worst < least:
            best, least = end, worst
    enough = TOLERANCES.exact * max(rounding, torch.finfo(torch.float64).eps)
    return Features(
        inputs=best[:-1].view(n, n) @ run.frame[:, :-1],
        labels=guess,
        residual=least,
        exact=least < min(enough, settings.exact),
    )
