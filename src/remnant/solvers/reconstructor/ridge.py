"""Ridge regression from shadow models to their records, one for each label, in closed form.

With few shadow models and many weights the dual form is the cheap one: s x s for s shadows. The
penalty is the one with the smallest leave-one-out error over the shadows, which the same
eigenvectors give for every penalty at once; no target is looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from remnant.errors import InputError, expected

Kernel = Literal["linear", "rbf"]
PENALTIES = tuple(10.0**k for k in range(-8, 2))  # relative to the kernel's mean diagonal


@dataclass(frozen=True, kw_only=True, eq=False)
class Standard:
    """Zero mean and unit variance in every coordinate that varies, as over the shadows."""

    mean: Tensor
    std: Tensor

    @classmethod
    def of(cls, features: Tensor) -> Standard:
        std = features.std(0)
        # A coordinate that never moves, or moves by rounding only, tells nothing.
        still = std <= 1e-6 * features.abs().mean(0)
        return cls(mean=features.mean(0), std=torch.where(still, torch.inf, std))

    def __call__(self, features: Tensor) -> Tensor:
        return (features - self.mean) / self.std


@dataclass(frozen=True, kw_only=True, eq=False)
class RidgeMap:
    """features (k x q, standardised) -> k x p."""

    features: Tensor
    duals: Tensor
    mean: Tensor
    kernel: Kernel
    penalty: float
    error: float  # leave-one-out mean squared error over the shadows

    def __call__(self, features: Tensor) -> Tensor:
        return kernel_of(features, self.features, self.kernel) @ self.duals + self.mean


def kernel_of(a: Tensor, b: Tensor, kernel: Kernel) -> Tensor:
    if kernel == "linear":
        return a @ b.T / a.shape[1]
    # Standardised features lie sqrt(2 q) apart, so that is the width.
    return torch.exp(-torch.cdist(a, b).square() / (2 * a.shape[1]))


def fit_ridge(features: Tensor, wanted: Tensor, kernel: Kernel = "linear") -> RidgeMap:
    """features: s x q, standardised; wanted: s x p."""
    mean = wanted.mean(0)
    gram = kernel_of(features, features, kernel)
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
    return RidgeMap(
        features=features, duals=duals, mean=mean, kernel=kernel, penalty=penalty, error=error
    )


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


def fit_per_label(
    seen: Tensor, inputs: Tensor, labels: Tensor, kernel: Kernel = "linear"
) -> RidgeReconstructor:
    """seen: s x q of the shadow models, inputs: s x shape and labels: s of their records."""
    if not len(seen) == len(inputs) == len(labels):
        got = f"{len(seen)}, {len(inputs)} and {len(labels)}"
        raise InputError(expected("ridge: models, records and labels", "as many of each", got))
    standard = Standard.of(seen.double())
    features, flat = standard(seen.double()), inputs.double().flatten(1)
    counts = torch.bincount(labels)
    maps = {
        label: fit_ridge(features[labels == label], flat[labels == label], kernel)
        for label in counts.nonzero()[:, 0].tolist()
        if counts[label] > 1
    }
    if not maps:
        raise InputError(expected("ridge: shadow models", "two or more of one label", len(seen)))
    hot = torch.nn.functional.one_hot(labels).double()
    return RidgeReconstructor(
        standard=standard,
        maps=maps,
        to_label=fit_ridge(features, hot, kernel),
        shape=tuple(inputs.shape[1:]),
    )
