"""What training may have done to records that the declared data does not show.

A model trained on mirrored images gives mirrored images back. If what came back is nothing that was
declared, it is compared with the declared records mirrored, turned, in other channel or column
order, or negative; and the loss is asked which of these, or which scaling, fits the model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from remnant.auditing.case import Case
from remnant.models.linear_files import LinearModel
from remnant.training import loss_named
from remnant.types import Examples

BETTER = 0.5  # a loss must fall to this share before another preparation is suggested


def as_images(examples: Examples) -> Tensor | None:
    """n x c x h x w where records are square images, also those that are kept flat."""
    shape, n = examples.shape, len(examples)
    if len(shape) in (2, 3) and shape[-1] == shape[-2] > 1:
        return examples.inputs.reshape(n, -1, *shape[-2:])
    d = math.prod(shape)
    for channels in (1, 3):
        side = math.isqrt(d // channels)
        if len(shape) == 1 and side >= 8 and channels * side * side == d:
            return examples.inputs.reshape(n, channels, side, side)
    return None


def disguises(examples: Examples) -> Iterator[tuple[str, Tensor]]:
    """(in words, records n x shape as training may have seen them)."""
    shape = examples.inputs.shape
    images = as_images(examples)
    if images is not None:
        yield "mirrored", images.flip(-1).reshape(shape)
        yield "upside down", images.flip(-2).reshape(shape)
        yield "rotated by 180 degrees", images.flip(-1, -2).reshape(shape)
        yield "rotated by 90 degrees", images.rot90(1, (-2, -1)).reshape(shape)
        yield "rotated by 270 degrees", images.rot90(3, (-2, -1)).reshape(shape)
        yield "transposed", images.transpose(-1, -2).reshape(shape)
        if images.shape[1] == 3:
            yield "in the other order of channels (RGB, BGR)", images.flip(1).reshape(shape)
    if examples.bounds is not None:
        yield "as negatives", sum(examples.bounds) - examples.inputs


def reordered(records: Tensor, candidates: Tensor, within: float) -> int:
    """How many records have the very numbers of a candidate in another order (rows k x d)."""
    if not len(candidates):
        return 0
    a, b = (rows.double().sort(1).values for rows in (records, candidates))
    return int((torch.cdist(a, b).min(1).values / math.sqrt(a.shape[1]) < within).sum())


def better_preparation(case: Case) -> str | None:
    """What would make the model fit the declared records far better, in words."""
    if isinstance(case.target.model, LinearModel):
        return None
    usual = _loss(case, case.target.scaling.to_model(case.truth.inputs))
    told = [(_loss(case, inputs), words) for words, inputs in _preparations(case)]
    best = min(told, default=(math.inf, ""))
    if not best[0] < BETTER * usual:
        return None
    return (
        f"The model fits your records better {best[1]} (loss {best[0]:.2g} instead of "
        f"{usual:.2g}): was it trained so? Then give the data, --mean and --std as in training."
    )


def _preparations(case: Case) -> Iterator[tuple[str, Tensor]]:
    """(in words, inputs in the model's scale)."""
    truth, public = case.truth, case.public.inputs.reshape(-1, *case.truth.shape)
    for words, inputs in disguises(truth):
        yield words, case.target.scaling.to_model(inputs)
    spread = torch.where(public.std(0) > 0, public.std(0), torch.ones(()))
    x = truth.inputs
    yield "less the mean of public records (--mean public)", x - public.mean(0)
    yield f"less one mean (--mean {public.mean():.3g})", x - public.mean()
    yield "standardised by public records, each number", (x - public.mean(0)) / spread
    yield (
        f"standardised (--mean {public.mean():.3g} --std {public.std():.3g})",
        (x - public.mean()) / public.std(),
    )
    yield "times 255", 255 * x
    yield "as they are (no --mean, no --std)", x


def _loss(case: Case, inputs: Tensor) -> float:
    model = case.target.model.eval()
    like = next(model.parameters())
    with torch.no_grad():
        outputs = model(inputs.reshape(-1, *case.target.input_shape).to(like)).double()
    value = float(loss_named(case.loss)(outputs.reshape(len(inputs), -1), case.truth.labels))
    return value if math.isfinite(value) else math.inf
