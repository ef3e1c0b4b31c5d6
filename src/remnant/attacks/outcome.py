"""What attacks share when they say how they ended; convolutions before dense layers undone."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from remnant.models.stack import drops_inputs
from remnant.solvers.convolutions.convolution import Inversion, invert_features
from remnant.solvers.dense.tolerances import TOLERANCES
from remnant.solvers.spans import Spectrum
from remnant.types import Candidates, Stated, Status, Target, Weights


def nothing(target: Target, status: Status, reason: str, **more: Any) -> Candidates:
    """An answer without candidates: the status and the reason say why."""
    return Candidates(
        inputs=torch.zeros(0, *target.input_shape),
        confidence=torch.zeros(0),
        status=status,
        reason=reason,
        **more,
    )


def seen(spectrum: Spectrum, counted: int | None) -> dict[str, Any]:
    """A spectrum of singular values and the count read off it, as fields `stated`, `figures` and
    `trace` of `Candidates`."""
    return {
        "stated": Stated(counted=counted),
        "figures": {"gap": spectrum.gap, "gap_clear": spectrum.clear},
        "trace": {"singular_values": spectrum.values.tolist()},
    }


def status_of(certified: int, count: int) -> Status:
    """Complete if every counted record is certified, partial if some are, else inconclusive."""
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


def vouched(
    target: Target,
    inputs: Tensor,
    squared: Tensor,
    passed: Tensor,
    count: int,
    reason: str,
    *,
    confidence: Tensor | None = None,
    labels: Tensor | None = None,
    residuals: Tensor | None = None,
    whole: bool = True,
    figures: dict[str, Any],
    trace: dict[str, Any] | None = None,
) -> Candidates:
    """Candidates of which some are certified, the surest first, with the errors to expect.

    inputs: k x shape, in the model's scale. squared (k): their squared errors. passed (k): which of
    them are certified, unless they leave the data's box. count: the records of the batch.
    confidence: by which they are put in order. reason: may name `{sure}`, how many are certified,
    and `{worst}`, to what error. residuals: dL/df of each (k x c). whole: all records give back the
    evidence, so that the finding is complete if they are certified.
    """
    inputs = inputs.reshape(-1, *target.input_shape)
    data = target.scaling.to_data(inputs)
    passed = passed & in_box(data, target.bounds)
    confidence = passed.double() if confidence is None else confidence * (0.5 + 0.5 * passed)
    order = confidence.argsort(descending=True, stable=True)
    sure, passed = int(passed.sum()), passed[order]
    stated = stated_errors(target, data[order], squared[order], passed)
    worst = f", {worst_of(stated)}" if sure else ""
    status = status_of(sure, count)
    return Candidates(
        inputs=data[order].float(),
        confidence=confidence[order].float(),
        labels=None if labels is None else labels[order],
        status=Status.PARTIAL if status is Status.COMPLETE and not whole else status,
        reason=reason.replace("{sure}", f"{sure}").replace("{worst}", worst),
        stated=Stated(counted=count, certified=sure, passed=passed.tolist(), error=stated),
        figures=figures | {"residuals": None if residuals is None else residuals[order].tolist()},
        trace=trace or {},
    )


def worst_of(stated: list[float | None]) -> str:
    """The largest stated error, in words for a reason."""
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
    """Inputs (k x shape) from the model's scale to the data's own."""
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
    """Images out of what enters the first dense layer.

    features: k x d, found by the dense layers' equations; passed (k): which are certified; error
    (k): their squared errors. Returns the images, which of them are certified still, their squared
    errors and a word for the reason. A network without convolutions is its own inverse: everything
    comes back as it is. precision: rounding of the evidence; a unit that rounding alone lifts above
    zero must not pass for an active one.
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


def with_weights(model: nn.Module, weights: Weights) -> nn.Module:
    """A copy of the model with other weights; parts that are not named stay as they are."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        for name, value in (*other.named_parameters(), *other.named_buffers()):
            if name in weights:
                value.copy_(weights[name])
    return other
