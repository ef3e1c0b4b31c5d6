"""Distilled images by Adam on KIP or RKIP, with the infinite-width kernel in closed form."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass as checked_dataclass
from torch import Tensor

from remnant.checkpoints import checkpoint
from remnant.devices import computed_there
from remnant.distill.losses import kip, rkip
from remnant.errors import InputError, expected, in_one_line
from remnant.kernels import Dense, ntk, ntk_of_products, regress, squares
from remnant.progress import task
from remnant.training import targets

Count = Annotated[int, Field(ge=1)]
Size = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@in_one_line("distil: ")
@checked_dataclass(frozen=True, kw_only=True)
class Distillation:
    """Settings of the search. The paper's own (Appendix J.4): 50,000 steps at a constant 1e-3."""

    method: Literal["kip", "rkip"] = "rkip"
    images: Count = 20
    steps: Count = 1000
    lr: Size = 0.02
    cosine: bool = True  # the rate falls to 0 as a cosine
    image_std: Size = 0.2
    start: Literal["noise", "data"] = "noise"
    learn_labels: bool = False  # at every step the labels that make the loss least


@dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    """The records as the kernel sees them, all in float64.

    inputs n x d in the model's scale, classes n, targets n x c, duals n x c = K_TT^-1 targets,
    squared n: the inputs' squared lengths. square: targets^T duals, RKIP's loss of no image at all.
    """

    network: Dense
    inputs: Tensor
    classes: Tensor
    targets: Tensor
    duals: Tensor
    squared: Tensor
    square: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Distilled:
    """images m x d in the model's scale, labels m x c, float64; the loss there and along the way.

    The loss is over that of no image at all: |y_T|^2 for KIP, y_T^T K_TT^-1 y_T for RKIP.
    """

    images: Tensor
    labels: Tensor
    loss: float
    trace: list[float]


@computed_there
def problem(network: Dense, inputs: Tensor, classes: Tensor) -> Problem:
    """inputs n x shape in the model's scale; classes n, two of them as one output of -1 and 1."""
    flat = inputs.detach().flatten(1).double()
    wanted = targets(flat.new_zeros(len(flat), outputs_for(classes)), classes)
    duals = regress(ntk(network, flat), wanted)
    return Problem(
        network=network,
        inputs=flat,
        classes=classes,
        targets=wanted,
        duals=duals,
        squared=squares(flat),
        square=float((wanted * duals).sum()),
    )


def outputs_for(classes: Tensor) -> int:
    count = int(classes.max()) + 1
    return 1 if count <= 2 else count


@computed_there
def distil(
    about: Problem,
    settings: Distillation,
    *,
    generator: torch.Generator,
    trace_points: int = 200,
) -> Distilled:
    """Search from a start that the generator draws. trace_points: losses that are kept, at most.

    Where states are kept (`checkpoints`), a search that was stopped goes on to the same bytes.
    """
    kept = checkpoint("distil", about, settings, generator.get_state())
    images, wanted = begin(about, settings, generator)
    images.requires_grad_()
    adam, first, trace = torch.optim.Adam([images], lr=settings.lr), 0, list[float]()
    if kept.state is not None:
        first, trace, moments, there = kept.state
        images.data.copy_(there)
        adam.load_state_dict(moments)
    every = max(1, settings.steps // trace_points)
    scale = about.square if settings.method == "rkip" else float(about.targets.square().sum())
    with task(f"distilling ({settings.method})", settings.steps) as advance:
        advance(first)
        for step in range(first, settings.steps):
            if kept.due():
                kept.save([step, trace, adam.state_dict(), images])
            loss, _ = _checked(about, settings, images, wanted)
            share = loss.item() / scale
            if step % every == 0:
                trace.append(share)
            images.grad = torch.autograd.grad(loss, images)[0]
            if settings.cosine:
                fall = 0.5 + 0.5 * math.cos(math.pi * step / settings.steps)
                adam.param_groups[0]["lr"] = settings.lr * fall
            adam.step()
            advance(note=f"loss {share:.4f}")
    images = images.detach()
    loss, labels = _checked(about, settings, images, wanted)
    share = loss.item() / scale
    return Distilled(images=images, labels=labels, loss=share, trace=[*trace, share])


def begin(
    about: Problem, settings: Distillation, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Images m x d, of noise or of records, and the targets m x c of as many of each class."""
    m, n = settings.images, len(about.inputs)
    if m > n:
        raise InputError(expected("distil: images", f"at most the {n} records", m))
    present = about.classes.unique()
    classes = present[torch.arange(m) % len(present)]
    wanted = targets(about.targets[:m], classes)
    if settings.start == "noise":
        noise = torch.randn(m, about.inputs.shape[1], generator=generator, dtype=torch.float64)
        return settings.image_std * noise, wanted
    order = torch.randperm(n, generator=generator)
    queues = {int(c): iter(order[about.classes[order] == c].tolist()) for c in present}
    rows = [next(queues[int(c)], None) for c in classes]
    chosen = [row for row in rows if row is not None]
    if len(chosen) < m:
        do = "start from noise"
        raise InputError(
            expected("distil: records of each class", -(-m // len(present)), "fewer", do)
        )
    return about.inputs[chosen].clone(), wanted


def loss_at(
    about: Problem, settings: Distillation, images: Tensor, wanted: Tensor
) -> tuple[Tensor, Tensor]:
    """The loss at images m x d, differentiable in them, and the labels m x c that it is at.

    Both kernels go through the layers as one m x (n + m) matrix: half as many small operations.
    """
    products = torch.cat([images @ about.inputs.T, images @ images.T], dim=1)
    squared = squares(images)
    lengths = torch.cat([about.squared, squared])
    both = ntk_of_products(about.network, products, squared, lengths, images.shape[1])
    k_rt, k_rr = both.split([len(about.inputs), len(images)], dim=1)
    labels = None if settings.learn_labels else wanted
    if settings.method == "kip":
        return kip(k_rt, k_rr, about.targets, labels)
    return rkip(k_rt, k_rr, about.duals, labels, about.square)


def _checked(
    about: Problem, settings: Distillation, images: Tensor, wanted: Tensor
) -> tuple[Tensor, Tensor]:
    """`loss_at`, or an error that says what to do where the images have run away or together."""
    if bool(images.isfinite().all()):
        with suppress(InputError):
            loss, labels = loss_at(about, settings, images, wanted)
            if math.isfinite(loss.item()):
                return loss, labels
    do = "use a smaller --lr"
    raise InputError(expected("distil: images", "a kernel that can be inverted", "none", do))
