"""Images from their features and from the gradient of the layers before these.

With the features of every record known, so is what comes back from the layers after them: the
front's gradient is a sum over records, sum_i J(x_i)^T g_i, in which only the images x_i are not
known. Labels, order and scale are settled; that the images come near is not.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from remnant.models.fronts import Parts
from remnant.progress import task
from remnant.solvers.descent.images import Bounds, sign_descent, total_variation
from remnant.training.losses import loss_named


@dataclass(frozen=True, kw_only=True)
class FrontMatching:
    """Settings of the descent: Adam on the sign of the slope, its rate falling to a tenth after
    3/8, 5/8 and 7/8 of the evaluations, on the box after every step (as in `matching`)."""

    evaluations: int = 1000
    rate: float = 0.1
    features: float = 0.1  # weight of the features' misfit beside that of the gradient
    tv: float = 1e-2  # weight of total variation: smooth until the equations say otherwise


@dataclass(frozen=True, kw_only=True, eq=False)
class FrontMatched:
    """inputs n x shape; the share of the features that they leave open, and 1 - cosine of the
    gradient."""

    inputs: Tensor
    misfit: float
    distance: float


def match_front(
    parts: Parts,
    gradient: Mapping[str, Tensor],
    features: Tensor,
    labels: Tensor,
    *,
    loss: str,
    shape: tuple[int, ...],
    settings: FrontMatching,
    generator: torch.Generator,
    bounds: Bounds | None = None,
    training: bool = False,
) -> FrontMatched:
    """Images whose features are `features` (n x f) and whose gradient in the front is `gradient`.

    training: the gradient was taken in training mode, where batch norm mixes the batch.
    """
    front, rest = (copy.deepcopy(part).float() for part in (parts.front, parts.rest))
    front.train(training)
    wanted, n = features.detach().float(), len(features)
    entered = wanted.clone().requires_grad_()
    (back,) = torch.autograd.grad(loss_named(loss)(rest.eval()(entered), labels), entered)
    named = {k: p for k, p in front.named_parameters() if k in gradient and bool(gradient[k].any())}
    observed = torch.cat([gradient[name].to(wanted).flatten() for name in named])

    def terms(images: Tensor) -> tuple[Tensor, Tensor]:
        made = front(images).flatten(1)
        misfit = (made - wanted).square().sum() / wanted.square().sum()
        found = torch.autograd.grad(
            (made * back).sum(), list(named.values()), create_graph=True, materialize_grads=True
        )
        here = torch.cat([g.flatten() for g in found])
        return misfit, 1 - F.cosine_similarity(here, observed, dim=0, eps=1e-30)

    box = None if bounds is None else [torch.as_tensor(end).to(wanted) for end in bounds]
    # Alike images would have no spread that batch norm could divide by.
    images = 0.1 * torch.randn(n, *shape, generator=generator, dtype=torch.float64).to(wanted)
    adam, falling = sign_descent(images.requires_grad_(), settings.rate, settings.evaluations)
    with task("images from features and gradient", settings.evaluations) as step:
        for _ in range(settings.evaluations):
            misfit, distance = terms(images)
            total = settings.features * misfit + distance + settings.tv * total_variation(images)
            images.grad = torch.autograd.grad(total, images)[0].sign()
            adam.step()
            falling.step()
            if box is not None:
                images.data.clamp_(*box)
            step()
    misfit, distance = terms(images)
    return FrontMatched(inputs=images.detach(), misfit=misfit.item(), distance=distance.item())
