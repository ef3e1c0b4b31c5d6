"""How large a candidate's coordinates are expected to be.

Pictures vary most along smooth directions: over the row space of a layer that was trained on them
the deviation of a coordinate spans two orders of magnitude, and a descent that takes all alike
crawls. What is expected comes from public records where there are any, else from smoothness and the
box of the data; once a start has ended, from what it found (`sizes_of`).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from remnant.solvers.kkt.tolerances import TOLERANCES, Tolerances


def expected_sizes(
    basis: Tensor,
    shape: tuple[int, ...],
    public: Tensor | None = None,
    box: tuple[Tensor, Tensor] | None = None,
    tolerances: Tolerances = TOLERANCES,
) -> Tensor:
    """r: the deviation of each coordinate of the d x r basis, scaled to a mean square of 1.

    public: p x d, records in the model's scale. box: the least and the largest of each pixel there.
    shape: of an input; a table's columns have no neighbours, so that its coordinates are all alike
    without public records.
    """
    if public is not None and len(public):
        return sizes_of(public.double() @ basis, tolerances)
    if len(shape) not in (2, 3) or min(shape[-2:]) <= 1:
        return basis.new_ones(basis.shape[1])
    at_most = None if box is None else largest_deviations(*box)
    scaled = basis if at_most is None else basis * at_most[:, None]
    return _sizes((scaled * smoothed(scaled, shape, tolerances)).sum(0), tolerances)


def largest_deviations(low: Tensor, high: Tensor) -> Tensor | None:
    """d: what lies between low and high and has a mean of 0 deviates by at most sqrt(-low high): a
    digit's corners, of which the mean image says that they are dark, not at all. None where no
    mean was subtracted."""
    square = -(low.double() * high.double()).flatten()
    return square.sqrt() if float(square.min()) >= 0 < float(square.max()) else None


def sizes_of(coordinates: Tensor, tolerances: Tolerances = TOLERANCES) -> Tensor:
    """r: how large these coordinates (n x r) are, to a mean square of 1."""
    return _sizes(coordinates.square().mean(0), tolerances)


def _sizes(square: Tensor, tolerances: Tolerances) -> Tensor:
    square = square.clamp(min=tolerances.least_size * float(square.mean()))
    return (square / square.mean()).sqrt()


def smoothed(basis: Tensor, shape: tuple[int, ...], tolerances: Tolerances = TOLERANCES) -> Tensor:
    """Each column, a picture, times a covariance that falls with distance: exp(-distance / length),
    nearly equal channels. As a product of spectra, so that no pixel x pixel matrix is held."""
    height, width = shape[-2:]
    across = torch.fft.fftfreq(2 * width, 1 / (2 * width), dtype=basis.dtype)
    down = torch.fft.fftfreq(2 * height, 1 / (2 * height), dtype=basis.dtype)
    length = tolerances.smooth_length * math.sqrt(height * width)
    kernel = torch.exp(-torch.hypot(down[:, None], across[None]) / length)
    pictures = basis.T.reshape(basis.shape[1], -1, height, width)
    padded = (2 * height, 2 * width)
    spectrum = torch.fft.rfft2(pictures, s=padded) * torch.fft.rfft2(kernel)
    blurred = torch.fft.irfft2(spectrum, s=padded)[..., :height, :width]
    alike = tolerances.alike_channels
    mixed = (1 - alike) * blurred + alike * blurred.sum(1, keepdim=True)
    found: Tensor = mixed.reshape(len(pictures), -1).T
    return found
