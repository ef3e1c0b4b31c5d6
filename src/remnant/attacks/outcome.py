"""What attacks share when they say how they ended; convolutions before dense layers undone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from remnant.models.stack import drops_inputs
from remnant.solvers.convolutions.convolution import Inversion, invert_features
from remnant.solvers.dense.tolerances import TOLERANCES
from remnant.solvers.spans import Spectrum
from remnant.types import Candidates, Stated, Status, Target


def nothing(target: Target, status: Status, reason: str, **more: Any) -> Candidates:
    """No candidates, and why."""
    return Candidates(
        inputs=torch.zeros(0, *target.input_shape),
        confidence=torch.zeros(0),
        status=status,
        reason=reason,
        **more,
    )


def seen(spectrum: Spectrum, counted: int | None) -> dict[str, Any]:
    """What a spectrum of singular values says, as fields of `Candidates`."""
    return {
        "stated": Stated(counted=counted),
        "figures": {"gap": spectrum.gap, "gap_clear": spectrum.clear},
        "trace": {"singular_values": spectrum.values.tolist()},
    }


def status_of(certified: int, count: int) -> Status:
    if certified == count:
        return Status.COMPLETE
    return Status.PARTIAL if certified else Status.INCONCLUSIVE


def stated_errors(
    target: Target, data: Tensor, squared: Tensor, passed: Tensor
) -> list[float | None]:
    """What `Stated.error` holds: the root-mean-square error of each of k candidates (k x shape,
    in the data's own scale) over its entries, in the model's scale; None for one not certified.

    squared: k, the squared L2 error to expect, in the model's scale. None is below what rounding
    does to an entry before and after it is shifted and scaled.
    """
    scaling, flat = target.scaling, data.double().flatten(1)
    mean, std = (
        t.double().expand(target.input_shape).flatten() for t in (scaling.mean, scaling.std)
    )
    least = torch.finfo(torch.float32).eps * (torch.maximum(flat.abs(), mean.abs()) / std).clamp(
        min=1.0
    )
    error = (squared.double() / flat.shape[1] + least.square().mean(1)).sqrt()
    return [
        value if sure else None for value, sure in zip(error.tolist(), passed.tolist(), strict=True)
    ]


def worst_of(stated: list[float | None]) -> str:
    """The largest stated error, in words."""
    worst = max((value for value in stated if value is not None), default=0.0)
    return f"to about {worst:.0e} (root mean square, in the model's scale)"


def in_box(data: Tensor, bounds: tuple[float, float] | None) -> Tensor:
    """k, bool: no entry leaves the data's box by more than `box_room` of its size."""
    if bounds is None or not len(data):
        return torch.ones(len(data), dtype=torch.bool)
    low, high = bounds
    room = TOLERANCES.box_room * (high - low)
    flat = data.flatten(1)
    return (flat.min(1).values >= low - room) & (flat.max(1).values <= high + room)


def in_data_scale(target: Target, inputs: Tensor) -> Tensor:
    return target.scaling.to_data(inputs.reshape(-1, *target.input_shape)).float()


def model_box(target: Target) -> tuple[Tensor, Tensor] | None:
    """The data's bounds in the model's scale, each of the shape of an input."""
    if target.bounds is None:
        return None
    low, high = (
        target.scaling.to_model(torch.full(target.input_shape, end, dtype=torch.float64))
        for end in target.bounds
    )
    return low, high


def undo_convolutions(
    target: Target,
    features: Tensor,
    passed: Tensor,
    error: Tensor,
    *,
    precision: float,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor, Tensor, str]:
    """Inputs from what enters the first dense layer, which of them to trust, their squared errors
    (k) from those of the features, and a word on it.

    A network without convolutions is its own inverse: everything comes back as it is. precision:
    rounding of the evidence; a unit that it alone lifts above zero must not pass for an active one.
    """
    if drops_inputs(target.model):
        words = "; dropout before the first dense layer may have erased entries: none is certified"
        return features, torch.zeros_like(passed), error, words
    convolved = any(isinstance(m, nn.Conv2d) for m in target.model.modules())
    if not convolved or not len(features):
        return features, passed, error, ""
    rounding = TOLERANCES.silent_unit * precision
    images = invert_features(
        target.model,
        features.clamp(min=0),
        input_shape=target.input_shape,
        bounds=model_box(target),
        settings=Inversion(silent=rounding, fits=max(1e-6, rounding)),
        generator=generator,
    )
    determined = int(images.determined.sum())
    words = f"; the convolutions determine {determined} of {len(passed)} images"
    return images.inputs, passed & images.determined, images.off(error), words
