"""Every record's features from the gradient of a lone output layer under cross-entropy.

Networks that pool and then classify have one dense layer alone. Its gradient, its bias beside its
weights, is G = sum_i r_i [h_i, 1]^T with r_i = (softmax(W h_i + b) - e_{y_i}) / n, for n records
fewer than classes a matrix of rank n: G = U S V. The features lie in its row space, [h_i, 1] = M V,
so that n^2 numbers M are unknown, and they have to obey

    R(M)^T M = U S    and    M V's last column = 1,

n (c - n) equations more than unknowns. Newton's method from many starts finds them; nothing else
obeys all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations_with_replacement, islice

import torch
from torch import Tensor
from torch.func import jacrev, vmap

from remnant.solvers.numerics import levenberg_marquardt
from remnant.solvers.spans import count_records


@dataclass(frozen=True, kw_only=True)
class Tolerances:
    """Nothing depends on the clock, so a seed decides the result."""

    starts: int = 32  # for each guess at the labels
    steps: int = 200  # of Newton's method
    guesses: int = 4  # label counts that are tried, the likeliest first
    most: int = 10_000  # label counts that are looked at
    exact: float = 1e-4  # root-mean-square residual of an answer: right ones have rounding's


@dataclass(frozen=True, kw_only=True, eq=False)
class Features:
    """Features n x d and labels n, and the root-mean-square residual of their equations."""

    inputs: Tensor
    labels: Tensor
    residual: float
    exact: bool


def recover_output(
    weight: Tensor,
    bias: Tensor,
    gradient: Tensor,
    *,
    precision: float,
    generator: torch.Generator,
    count: int | None = None,
    labels: Tensor | None = None,
    settings: Tolerances | None = None,
) -> Features | str:
    """The features behind G (c x (d+1)), or in a sentence why they are not told."""
    settings = settings or Tolerances()
    left, values, right = torch.linalg.svd(gradient, full_matrices=False)
    spectrum = count_records(values, gradient, precision)
    # Signals of all classes sum to 0: a rank of c - 1 says that it is full, not how many.
    full = spectrum.count >= len(weight) - 1
    n = count if count and (full or labels is not None) else spectrum.counted(count)
    if not count and not spectrum.clear:
        return "no gap among the singular values of the output layer's gradient; give --records"
    if not 0 < n < len(weight) or values[n - 1] <= precision * values[0]:
        return f"{n} records need more than {n} outputs, and there are {len(weight)}"
    target, frame = left[:, :n], right[:n]  # U, V
    scale, reduced = values[:n], weight @ right[:n, :-1].T  # W h = reduced m
    guesses = [labels.long()] if labels is not None else likely_labels(gradient[:, -1], n, settings)
    best: Features | None = None
    for guess in guesses:
        hot = torch.nn.functional.one_hot(guess, len(weight)).double()

        def residual(m: Tensor, hot: Tensor = hot) -> Tensor:
            m = m.view(n, n)
            signals = ((m @ reduced.T + bias).softmax(1) - hot) / n
            first = signals.T @ m / scale - target
            return torch.cat([first.flatten(), m @ frame[:, -1] - 1])

        start = first_guesses(hot, target * scale, settings, generator)
        m, worst = newton(residual, start, settings.steps)
        if best is None or worst < best.residual:
            features = m.view(n, n) @ frame[:, :-1]
            exact = worst < settings.exact
            best = Features(inputs=features, labels=guess, residual=worst, exact=exact)
        if best.exact:
            break
    assert best is not None
    return best


def first_guesses(
    hot: Tensor, wanted: Tensor, settings: Tolerances, generator: torch.Generator
) -> Tensor:
    """starts x n^2: M from the signals of an undecided model and from noisy ones. wanted: U S."""
    plain = (1.0 / hot.shape[1] - hot) / len(hot)
    noise = torch.randn(settings.starts, *hot.shape, generator=generator, dtype=torch.float64)
    size = torch.linspace(0, 1, settings.starts, dtype=torch.float64)[:, None, None]
    signals = plain + size * noise * plain.square().mean().sqrt()
    start: Tensor = torch.linalg.pinv(signals.mT) @ wanted
    return start.flatten(1)


def newton(residual: Callable[[Tensor], Tensor], start: Tensor, steps: int) -> tuple[Tensor, float]:
    """Where the best of the starts (one a row) ends, and its root-mean-square residual."""
    slopes = vmap(jacrev(residual))

    def cost(m: Tensor) -> Tensor:
        return vmap(residual)(m).square().mean(1).nan_to_num(torch.inf)

    def linearise(m: Tensor) -> tuple[Tensor, Tensor]:
        jacobian, value = slopes(m), vmap(residual)(m)
        return jacobian.mT @ jacobian, (jacobian.mT @ value[:, :, None])[:, :, 0]

    ends = levenberg_marquardt(cost, linearise, start, steps=steps, enough=0.0)
    values = cost(ends)
    best = int(values.argmin())
    return ends[best], float(values[best].sqrt())


def likely_labels(bias_gradient: Tensor, n: int, settings: Tolerances) -> list[Tensor]:
    """Labels (n, ascending), the likeliest first: a class that occurs pulls its bias up, and how
    often it occurs follows from what an undecided model would say."""
    share = n / len(bias_gradient) - n * bias_gradient
    classes = (bias_gradient < 0).nonzero()[:, 0].tolist()
    if not 0 < len(classes) <= n:
        return [share.topk(n).indices.sort().values]
    more = combinations_with_replacement(classes, n - len(classes))
    ways = [torch.tensor(sorted([*classes, *way])) for way in islice(more, settings.most)]
    off = [float((torch.bincount(way, minlength=len(share)) - share).norm()) for way in ways]
    order = torch.tensor(off).argsort(stable=True)[: settings.guesses]
    return [ways[k] for k in order.tolist()]
