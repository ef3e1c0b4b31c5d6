"""Sets of inputs that know nothing of the model, scored exactly as candidates are.

A score without its null says nothing: held-out digits look like recovered ones to SSIM, blends of
records correlate with them. What an attack found is what it found beyond these.
"""

from __future__ import annotations

import torch
from torch import Tensor

from remnant.errors import DataError, expected
from remnant.scoring.distances import as_rows


def held_out(holdout: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """`n` inputs drawn without replacement from data of the same kind that was never trained on."""
    if n > len(holdout):
        do = "hold out more records"
        raise DataError(expected("held-out null", f"at least {n} inputs", len(holdout), do))
    return holdout[torch.randperm(len(holdout), generator=generator)[:n]]


def blends(train: Tensor, m: int, generator: torch.Generator, k: int = 2) -> Tensor:
    """`m` random convex blends (uniform weights on the simplex) of `k` records each, m x shape."""
    k = min(k, len(train))
    order = torch.rand(m, len(train), generator=generator, dtype=torch.float64)
    weights = torch.empty(m, k, dtype=torch.float64).exponential_(generator=generator)
    mix = torch.zeros(m, len(train), dtype=torch.float64)
    mix.scatter_(1, order.topk(k, dim=1).indices, weights / weights.sum(1, keepdim=True))
    return (mix @ _rows(train)).reshape(m, *train.shape[1:]).to(train.dtype)


def span_noise(train: Tensor, m: int, generator: torch.Generator) -> Tensor:
    """`m` random vectors in the span of the records, each as long as some record, m x shape."""
    rows = _rows(train)
    vectors = torch.randn(m, len(train), generator=generator, dtype=torch.float64) @ rows
    drawn = rows.norm(dim=1)[torch.randint(len(train), (m,), generator=generator)]
    norms = vectors.norm(dim=1).clamp_min(torch.finfo(torch.float64).tiny)
    scaled: Tensor = vectors * (drawn / norms)[:, None]
    return scaled.reshape(m, *train.shape[1:]).to(train.dtype)


def nearest_public(train: Tensor, public: Tensor, *, block: int = 256) -> tuple[Tensor, Tensor]:
    """The oracle: for each record the nearest public point, as index and squared L2 distance.

    It chooses with the records in hand, so nobody who guesses from public data can do better.
    Points are found by the fast form of the distance; the figure comes from differences.
    """
    if len(public) == 0:
        raise DataError(expected("nearest public point", "at least one public input", 0))
    a, b = as_rows(train, public)
    centred = b - b.mean(0)  # fewer digits cancel
    norms = centred.square().sum(1)
    near = [
        (norms - 2.0 * rows @ centred.T).argmin(1) for rows in torch.split(a - b.mean(0), block)
    ]
    index = torch.cat(near) if near else torch.zeros(0, dtype=torch.long)
    return index, (a - b[index]).square().sum(1)


def _rows(train: Tensor) -> Tensor:
    return train.detach().cpu().double().flatten(1)
