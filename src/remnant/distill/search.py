"""Distilled images by Adam on KIP or RKIP, with the infinite-width kernel in closed form."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from remnant.distill.losses import Slopes, kip_slopes, rkip_slopes
from remnant.errors import InputError, expected
from remnant.kernels import Dense, kernels, kernels_of_products, regress, squares
from remnant.progress import task
from remnant.training import targets
from remnant.training.steps import adam

TRACE_POINTS = 200
State = Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Distillation:
    """Settings of the search. The paper's own (Appendix J.4) are `PAPER`."""

    method: Literal["kip", "rkip"] = "rkip"
    images: int = 20
    steps: int = 1000
    lr: float = 0.02
    cosine: bool = True  # the rate falls to 0 as a cosine
    image_std: float = 0.2
    start: Literal["noise", "data"] = "noise"
    learn_labels: bool = False  # at every step the labels that make the loss least

    def __post_init__(self) -> None:
        for name, known in (("method", ("kip", "rkip")), ("start", ("noise", "data"))):
            if getattr(self, name) not in known:
                wanted = " or ".join(known)
                raise InputError(expected(f"distil: {name}", wanted, repr(getattr(self, name))))
        for name in ("images", "steps"):
            if getattr(self, name) < 1:
                raise InputError(expected(f"distil: {name}", "1 or more", getattr(self, name)))
        for name in ("lr", "image_std"):
            if not 0 < getattr(self, name) < math.inf:
                raise InputError(expected(f"distil: {name}", "more than 0", getattr(self, name)))


PAPER = {"steps": 50_000, "lr": 1e-3, "cosine": False}


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


def problem(network: Dense, inputs: Tensor, classes: Tensor) -> Problem:
    """inputs n x shape in the model's scale; classes n, two of them as one output of -1 and 1."""
    flat = inputs.detach().flatten(1).double()
    wanted = targets(flat.new_zeros(len(flat), outputs_for(classes)), classes)
    duals = regress(kernels(network, flat).ntk, wanted)
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


def distil(
    about: Problem,
    settings: Distillation,
    *,
    generator: torch.Generator,
    state: State | None = None,
    keep: Callable[[State], object] | None = None,
    keep_every: int = 500,
) -> Distilled:
    """Search from `state`, or from a start that the generator draws; `keep` gets states to resume.

    A search that goes on from any of them ends at the same bytes as one that was never stopped.
    """
    images, wanted = begin(about, settings, generator)
    held = dict(state) if state is not None else fresh(images)
    every = max(1, settings.steps // TRACE_POINTS)
    scale = about.square if settings.method == "rkip" else float(about.targets.square().sum())
    begun = int(held["step"])
    with task(f"distilling ({settings.method})", settings.steps) as advance:
        advance(begun)
        for step in range(begun, settings.steps):
            found, slope = _checked(about, settings, held["images"], wanted)
            share = float(found.loss) / scale
            if step % every == 0:
                held["trace"] = torch.cat([held["trace"], held["trace"].new_tensor([share])])
            move(held, slope, settings, step)
            if keep is not None and (step + 1) % keep_every == 0:
                keep(dict(held))
            advance(note=f"loss {share:.4f}")
    found, _ = _checked(about, settings, held["images"], wanted)
    loss = float(found.loss) / scale
    return Distilled(
        images=held["images"],
        labels=found.labels,
        loss=loss,
        trace=[*held["trace"].tolist(), loss],
    )


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


def slopes(
    about: Problem, settings: Distillation, images: Tensor, wanted: Tensor
) -> tuple[Slopes, Tensor]:
    """The loss at images m x d with its slopes in the kernels, and the slope in the images.

    Both kernels go through the layers as one m x (n + m) matrix, half as many small operations,
    and autograd is asked for that part alone.
    """
    n, m = len(about.inputs), len(images)
    products = torch.cat([images @ about.inputs.T, images @ images.T], dim=1).requires_grad_()
    squared = squares(images).requires_grad_()
    lengths = torch.cat([about.squared, squared])
    both = kernels_of_products(about.network, products, squared, lengths, images.shape[1]).ntk
    k_rt, k_rr = both.detach().split([n, m], dim=1)
    labels = None if settings.learn_labels else wanted
    if settings.method == "kip":
        found = kip_slopes(k_rt, k_rr, about.targets, labels)
    else:
        found = rkip_slopes(k_rt, k_rr, about.duals, labels, about.square)
    outside = torch.cat([found.by_rt, found.by_rr], dim=1)
    by_products, by_squared = torch.autograd.grad(both, (products, squared), outside)
    by_rt, by_rr = by_products.split([n, m], dim=1)
    slope = by_rt @ about.inputs
    slope += (by_rr + by_rr.T + 2 * by_squared.diag()) @ images
    return found, slope


def _checked(
    about: Problem, settings: Distillation, images: Tensor, wanted: Tensor
) -> tuple[Slopes, Tensor]:
    """`slopes`, or an error that says what to do where the images have run away or together."""
    if bool(images.isfinite().all()):
        with suppress(InputError):
            found, slope = slopes(about, settings, images, wanted)
            if math.isfinite(float(found.loss)):
                return found, slope
    do = "use a smaller --lr"
    raise InputError(expected("distil: images", "a kernel that can be inverted", "none", do))


def fresh(images: Tensor) -> dict[str, Tensor]:
    return {
        "images": images,
        "first": torch.zeros_like(images),
        "second": torch.zeros_like(images),
        "step": torch.tensor(0),
        "trace": torch.zeros(0, dtype=torch.float64),
    }


def move(held: dict[str, Tensor], slope: Tensor, settings: Distillation, step: int) -> None:
    """One step of Adam; the held tensors are replaced, so that a kept state stands still."""
    direction, held["first"], held["second"] = adam(slope, held["first"], held["second"], step + 1)
    rate = settings.lr * (
        0.5 + 0.5 * math.cos(math.pi * step / settings.steps) if settings.cosine else 1
    )
    held["images"] = held["images"] - rate * direction
    held["step"] = torch.tensor(step + 1)
