"""How far a reconstruction is from a record.

Pairwise measures compare n records with m candidates and return n x m; paired measures compare
n records with n images and return n. Inputs are in the data's own scale (0..1 for images), the
arithmetic is float64, and n x m x d is never formed. A NaN in an input is a NaN in its figures.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from skimage.metrics import structural_similarity
from torch import Tensor

from remnant.errors import InputError, expected


def squared_l2(records: Tensor, candidates: Tensor) -> Tensor:
    """Squared L2 distance, n x m, from differences: |a|^2 + |b|^2 - 2ab cancels near 1e-14."""
    return _squared(*as_rows(records, candidates))


def standardised_l2(records: Tensor, candidates: Tensor) -> Tensor:
    """Squared L2 after each input has lost its own mean and deviation (004, Eq. 16), n x m."""
    a, b = as_rows(records, candidates)
    scale = math.sqrt(max(a.shape[1] - 1, 1))  # the paper divides by the d - 1 deviation
    return _squared(_unit(a) * scale, _unit(b) * scale)


def centred_correlation(records: Tensor, candidates: Tensor) -> Tensor:
    """Pearson correlation across the entries of an input, n x m; 0 where either is constant."""
    a, b = as_rows(records, candidates)
    return (_unit(a) @ _unit(b).T).clamp(-1.0, 1.0)


def psnr(
    records: Tensor, images: Tensor, *, data_range: float = 1.0, least: float = 1e-30
) -> Tensor:
    """Peak signal-to-noise ratio of n pairs in decibels.

    Mean squared errors below `least` count as this: an exact copy has 300 dB, a finite number.
    """
    require_images(records, images, "psnr")
    error = (records.double() - images.double()).flatten(1).square().mean(1)
    return 10.0 * torch.log10(data_range**2 / error.clamp_min(least))


def ssim(records: Tensor, images: Tensor, *, data_range: float = 1.0) -> Tensor:
    """Structural similarity of n pairs of images (h x w, or channels x h x w), larger is better."""
    require_images(records, images, "ssim")
    window, axis = ssim_window(tuple(records.shape[1:])), 0 if records.ndim == 4 else None
    compare = partial(
        structural_similarity, win_size=window, data_range=data_range, channel_axis=axis
    )
    pairs = zip(*(x.detach().cpu().double().numpy() for x in (records, images)), strict=True)
    return torch.tensor([compare(a, b) for a, b in pairs], dtype=torch.float64)


def ssim_window(shape: tuple[int, ...], *, usual: int = 7) -> int:
    """7 pixels as is usual, or the odd number that fits twice in a smaller image (3 for 8 x 8).

    The border of half a window is not averaged, so a window of the image's size sees one place.
    """
    half = min(shape[-2:]) // 2
    return min(usual, max(3, half if half % 2 else half - 1))


def is_image(shape: tuple[int, ...]) -> bool:
    """Whether one input is h x w or channels x h x w, and large enough for a 3 x 3 window."""
    return len(shape) in (2, 3) and min(shape[-2:]) >= 3


def require_images(records: Tensor, images: Tensor, measure: str) -> None:
    """Refuse tables, and pairs that are not of one shape."""
    shape = tuple(records.shape[1:])
    if not is_image(shape):
        do = "use squared_l2, mse or centred_correlation for tables"
        raise InputError(expected(measure, "images, h x w or channels x h x w", shape, do))
    if records.shape != images.shape:
        raise InputError(expected(measure, tuple(records.shape), tuple(images.shape)))


def correlation_of_pairs(records: Tensor, images: Tensor) -> Tensor:
    """The diagonal of `centred_correlation` for n records and n images, n."""
    a, b = as_rows(records, images)
    return (_unit(a) * _unit(b)).sum(1).clamp(-1.0, 1.0)


def as_rows(records: Tensor, candidates: Tensor) -> tuple[Tensor, Tensor]:
    """Both as float64 on the processor, n x d and m x d."""
    if records.shape[1:] != candidates.shape[1:]:
        wanted, got = tuple(records.shape[1:]), tuple(candidates.shape[1:])
        raise InputError(expected("distance: candidates", f"m x {wanted}", f"m x {got}"))
    d = math.prod(records.shape[1:])
    a, b = (x.detach().cpu().double().reshape(len(x), d) for x in (records, candidates))
    return a, b


def _squared(a: Tensor, b: Tensor) -> Tensor:
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist").square()


def _unit(rows: Tensor, *, flat: float = 1e-12) -> Tensor:
    """Each row less its mean, over its norm; a row whose spread is below a share `flat` of its norm
    counts as constant and becomes zero, not rounding noise."""
    centred = rows - rows.mean(1, keepdim=True)
    norm = centred.norm(dim=1, keepdim=True)
    constant = norm <= flat * rows.norm(dim=1, keepdim=True)
    return torch.where(constant, torch.zeros_like(centred), centred / norm)
