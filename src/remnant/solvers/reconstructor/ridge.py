"""Ridge regression from shadow models to their records, one for each label, in closed form.

With few shadow models and many weights the dual form is the cheap one: s x s for s shadows. The
penalty is the one with the smallest leave-one-out error over the shadows, which the same
eigenvectors give for every penalty at once; no target is looked at.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from remnant.errors import InputError, expected

LABEL_ROWS = 2000  # shadows that tell the label: its one system for all labels is the largest
PENALTIES = tuple(10.0**k for k in range(-8, 2))  # relative to the kernel's mean diagonal


@dataclass(frozen=True, kw_only=True, eq=False)
class Standard:
    """What is seen of a model, made comparable with the shadows: zero mean and unit variance in
    every coordinate that varies over them.

    even: besides, large entries are flattened (asinh) and all models brought to one length. A
    record that the model fits badly moves its weights a hundred times as far as one that it fits
    well, but in nearly the direction that its entries give.
    """

    mean: Tensor
    std: Tensor
    even: bool = False

    @classmethod
    def of(cls, features: Tensor) -> Standard:
        std = features.std(0)
        # A coordinate that never moves, or moves by rounding only, tells nothing.
        still = std <= 1e-6 * features.abs().mean(0)
        return cls(mean=features.mean(0), std=torch.where(still, torch.inf, std))

    def __call__(self, features: Tensor) -> Tensor:
        flat = (features - self.mean) / self.std
        if not self.even:
            return flat
        flat = torch.asinh(flat)
        return flat / flat.square().mean(1, keepdim=True).sqrt().clamp(min=1e-12)


def best_standard(
    seen: Tensor, inputs: Tensor, labels: Tensor | None = None, *, rows: int = 1000
) -> Standard:
    """Even or not: what predicts better the records of the first shadows, each left out once, by
    one map for each label."""
    plain = Standard.of(seen)
    options = (plain, replace(plain, even=True))
    wanted = inputs[:rows].flatten(1).to(seen)
    mine = torch.zeros(len(wanted)).long() if labels is None else labels[:rows]

    def error(option: Standard) -> float:
        maps = label_maps(option(seen[:rows]), wanted, mine)
        return sum(one.error * len(one.features) for one in maps.values())

    return min(options, key=error)


@dataclass(frozen=True, kw_only=True, eq=False)
class RidgeMap:
    """features (k x q, standardised) -> k x p."""

    features: Tensor
    duals: Tensor
    mean: Tensor
    penalty: float
    error: float  # leave-one-out mean squared error over the shadows

    def __call__(self, features: Tensor) -> Tensor:
        return kernel_of(features, self.features) @ self.duals + self.mean


def kernel_of(a: Tensor, b: Tensor) -> Tensor:
    """Inner products of rows, of order 1 for standardised features."""
    return a @ b.T / a.shape[1]


def fit_ridge(features: Tensor, wanted: Tensor) -> RidgeMap:
    """features: s x q, standardised; wanted: s x p."""
    mean = wanted.mean(0)
    gram = kernel_of(features, features)
    values, vectors = torch.linalg.eigh(gram)
    rotated = vectors.T @ (wanted - mean)
    unit = float(gram.diagonal().mean().clamp(min=1e-30))
    fits = []
    for share in PENALTIES:
        inverse = 1 / (values.clamp(min=0) + share * unit)
        duals = vectors @ (inverse[:, None] * rotated)
        held_out = duals / (vectors.square() @ inverse)[:, None]  # residual of each when left out
        fits.append((float(held_out.square().mean()), share * unit, duals))
    error, penalty, duals = min(fits, key=lambda fit: fit[0])
    return RidgeMap(features=features, duals=duals, mean=mean, penalty=penalty, error=error)


@dataclass(frozen=True, kw_only=True, eq=False)
class RidgeReconstructor:
    """One map for each label, and one that tells the label."""

    standard: Standard
    maps: dict[int, RidgeMap]
    to_label: RidgeMap
    shape: tuple[int, ...]

    def __call__(self, seen: Tensor, labels: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """k x shape and k labels from what is seen of k models, k x q."""
        features = self.standard(seen.double())
        if labels is None:
            known = torch.tensor(sorted(self.maps))
            labels = known[self.to_label(features)[:, known].argmax(1)]
        rows = []
        for one, label in zip(features, labels.tolist(), strict=True):
            if label not in self.maps:
                wanted = f"one of {sorted(self.maps)}, which the shadows have"
                raise InputError(expected("ridge: label", wanted, label))
            rows.append(self.maps[label](one[None]))
        return torch.cat(rows).reshape(-1, *self.shape), labels


def label_maps(features: Tensor, wanted: Tensor, labels: Tensor) -> dict[int, RidgeMap]:
    """One map for each label that two shadows or more have."""
    return {
        label: fit_ridge(features[labels == label], wanted[labels == label])
        for label, count in enumerate(torch.bincount(labels).tolist())
        if count > 1
    }


def fit_per_label(seen: Tensor, inputs: Tensor, labels: Tensor) -> RidgeReconstructor:
    """seen: s x q of the shadow models, inputs: s x shape and labels: s of their records."""
    if not len(seen) == len(inputs) == len(labels):
        got = f"{len(seen)}, {len(inputs)} and {len(labels)}"
        raise InputError(expected("ridge: models, records and labels", "as many of each", got))
    standard = best_standard(seen.double(), inputs, labels)
    features = standard(seen.double())
    maps = label_maps(features, inputs.double().flatten(1), labels)
    if not maps:
        raise InputError(expected("ridge: shadow models", "two or more of one label", len(seen)))
    hot = torch.nn.functional.one_hot(labels).double()
    return RidgeReconstructor(
        standard=standard,
        maps=maps,
        to_label=fit_ridge(features[:LABEL_ROWS], hot[:LABEL_ROWS]),
        shape=tuple(inputs.shape[1:]),
    )
