"""What training may have done to records that the declared data does not show.

A model trained on mirrored images gives mirrored images back. If what came back is nothing that was
declared, it is compared with the declared records mirrored, turned, in other channel or column
order, or negative; and the first dense layer is asked which of these, or which scaling, fits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from remnant.auditing.case import Case
from remnant.auditing.explained import Held, known_of_layer, unexplained
from remnant.auditing.rules import RULES
from remnant.types import Examples, Scaling


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
    """The records as training may have seen them: pairs of a description and inputs n x shape."""
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
    """How many records (rows k x d) hold exactly the numbers of some candidate in another order."""
    if not len(candidates):
        return 0
    a, b = (rows.double().sort(1).values for rows in (records, candidates))
    return int((torch.cdist(a, b).min(1).values / math.sqrt(a.shape[1]) < within).sum())


def better_preparation(case: Case, attack: str) -> str | None:
    """What would make the declared records explain what this adversary holds, in words."""
    if case.truth.are_texts:
        return None
    held = next(iter(known_of_layer(case, attack)), None)
    if held is None or len(case.truth) > RULES.most_prepared:
        return None
    usual = unexplained(case, held, case.truth)
    if usual is None:
        return None
    told = [(_asked(case, held, records, how), words) for words, records, how in preparations(case)]
    best = min(told, default=(math.inf, ""))
    if best[0] > min(
        RULES.better_preparation[held.form] * usual, RULES.left_unexplained[held.form]
    ):
        return None
    left = f"{best[0]:.1g} of it would be left, as given {usual:.1g}"
    return (
        f"Your records would explain the first dense layer if they were {best[1]} ({left}). Was it "
        "trained so? Then give the data, --mean and --std as in training."
    )


def _asked(case: Case, held: Held, records: Examples, how: Scaling) -> float:
    left = unexplained(replace(case, target=replace(case.target, scaling=how)), held, records)
    return math.inf if left is None else left


def preparations(case: Case) -> Iterator[tuple[str, Examples, Scaling]]:
    """Other ways in which the records may have been prepared: a description, records, scaling."""
    truth, given = case.truth, case.target.scaling
    for words, inputs in disguises(truth):
        yield words, replace(truth, inputs=inputs), given
    public = case.public.inputs.reshape(-1, *truth.shape)
    each, one = public.mean(0), public.mean()
    spread = torch.where(public.std(0) > 0, public.std(0), torch.ones(()))
    yield "taken as they are (no --mean, no --std)", truth, Scaling()
    yield "less the mean of public records (--mean public)", truth, Scaling(mean=each)
    yield f"less one number (such as --mean {one:.3g})", truth, Scaling(mean=one)
    yield "standardised, each number by itself", truth, Scaling(mean=each, std=spread)
