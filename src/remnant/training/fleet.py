"""Many small models trained at once: the same recipe and fixed records, a few differing ones each.

The weights of K models are stacked (K x shape). The fixed records are the same for all, so that
their first layer is one matrix product for all K; what differs goes through batched products. A
step is a differentiable function of weights and differing records, so that a run can be replayed
backwards; so is a private one, but for its noise. The differing records come last in the training
order, as in `train` on the fixed records followed by them; with the same generator state the
batches are the same too.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from remnant.errors import InputError, expected
from remnant.progress import task
from remnant.training.descent import batches
from remnant.training.losses import check_labels
from remnant.training.recipes import FixedStep, PrivateDescent, Recipe, rate_share
from remnant.training.run import named, prepare
from remnant.training.stacked import (
    Forward,
    check_private,
    clipped_sum,
    stacked_forward,
    stacked_loss,
    trained_names,
)
from remnant.training.steps import first_state, slots, update
from remnant.types import Examples, Scaling, Weights

MEMORY = 1 << 30  # bytes that one chunk of a fleet may fill, roughly


@dataclass(frozen=True, kw_only=True, eq=False)
class SharedRun:
    """One training run but for `extra` records: what K models that differ in those share.

    inputs: n x shape, in the model's scale (n may be 0). start: the weights before training, in the
    model's order. rows: one entry a step, None for all records or indices, n and above for the
    extra ones; K x b where every model has its own order. names: of the parameters that are
    trained; frozen ones stay as the model has them. joint: batch norm takes the statistics of a
    step's batch, so that its records are passed through the network together.
    """

    model: nn.Module
    forward: Forward
    names: tuple[str, ...]
    start: tuple[Tensor, ...]
    inputs: Tensor
    labels: Tensor
    extra: int
    recipe: FixedStep
    rows: tuple[Tensor | None, ...]
    joint: bool = False

    @property
    def records(self) -> int:
        """All records of the run, the differing ones among them."""
        return len(self.inputs) + self.extra

    def stack(self, count: int) -> list[Tensor]:
        """The starting weights, `count` times."""
        return [w.expand(count, *w.shape).clone() for w in self.start]

    def update(self, step: int, state: Sequence[Tensor], grads: Sequence[Tensor]) -> list[Tensor]:
        """The state after that step."""
        share = rate_share(self.recipe, step, len(self.rows))
        return update(self.recipe, step, state, grads, share)

    def named(self, stacked: Sequence[Tensor]) -> dict[str, Tensor]:
        return dict(zip(self.names, stacked, strict=True))


def share(
    model: nn.Module,
    fixed: Examples,
    recipe: object,
    *,
    scaling: Scaling,
    extra: int = 1,
    initial: Weights | None = None,
    order: torch.Generator | None = None,
    dtype: torch.dtype | None = None,
    joint: bool = False,
) -> SharedRun:
    """The run of `recipe` on `fixed` and `extra` unknown records, from `initial` (None = the
    model's own weights). `order` draws the mini-batches as in `train`. joint: batch norm was in
    training mode."""
    fits = check_recipe(recipe)
    if isinstance(fits, PrivateDescent):
        check_private(model, fits)
    dtype = dtype or next(model.parameters()).dtype
    if len(fixed):
        mine, inputs, labels = prepare(model, fixed, fits.loss, scaling, dtype)
    else:
        mine = copy.deepcopy(model).to(dtype).eval()
        inputs, labels = fixed.inputs.to(dtype), fixed.labels
    if joint:
        with_own_statistics(mine)
    moved = trained_names(mine)
    if not moved:
        raise InputError(expected("fleet: parameters", "some that are trained", "all frozen"))
    own = {name: value for name, value in named(mine).items() if name in moved}
    start = own if initial is None else {name: initial[name].to(own[name]) for name in own}
    return SharedRun(
        model=mine,
        forward=stacked_forward(mine),
        names=tuple(own),
        start=tuple(start[name] for name in own),
        inputs=inputs,
        labels=labels,
        extra=extra,
        recipe=fits,
        rows=rows_of(fits, len(inputs) + extra, order),
        joint=joint,
    )


def with_own_statistics(model: nn.Module) -> None:
    """Batch norm takes the mean and variance of each batch from here on, as in training mode, and
    keeps no running ones."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.running_mean = module.running_var = module.num_batches_tracked = None


def check_recipe(recipe: object) -> FixedStep:
    """A recipe whose steps do not depend on the losses seen, or an error that says so."""
    if not isinstance(recipe, FixedStep):
        wanted, got = "GradientDescent, SGD, Adam or PrivateDescent", type(recipe).__name__
        raise InputError(expected("fleet: recipe", wanted, got))
    if (stop := getattr(recipe, "stop_loss", None)) is not None:
        got = f"stop_loss {stop:g}"
        raise InputError(expected("fleet: recipe", "a fixed number of steps", got))
    return recipe


def rows_of(
    recipe: FixedStep, records: int, order: torch.Generator | None
) -> tuple[Tensor | None, ...]:
    """The rows of every step, drawn as `train` draws them."""
    if getattr(recipe, "batch_size", None) is not None and order is None:
        raise InputError(expected("fleet: mini-batches", "a generator for their order", "none"))
    return tuple(batches(recipe, records, order or torch.Generator()))


def step_gradient(
    run: SharedRun,
    weights: Sequence[Tensor],
    step: int,
    extra: Tensor,
    labels: Tensor,
    *,
    graph: bool = False,
    noise: torch.Generator | None = None,
) -> Sequence[Tensor]:
    """The gradient of that step's mean loss, model by model; clipped where training is private.

    weights: K x shape each, requiring gradients. extra: K x m x shape, labels: K x m. noise: of
    private training, drawn for each model; None = none.
    """
    if isinstance(run.recipe, PrivateDescent):
        known = clipped_sum(run.model, run.recipe, weights, run.inputs, run.labels, graph=graph)
        own = clipped_sum(run.model, run.recipe, weights, extra, labels, graph=graph)
        sums = [a + b for a, b in zip(known, own, strict=True)]
        if noise is not None and run.recipe.noise:
            drawn = [torch.randn(s.shape, generator=noise, dtype=s.dtype) for s in sums]
            scale = run.recipe.noise * run.recipe.clip
            sums = [s + scale * n for s, n in zip(sums, drawn, strict=True)]
        return [s / run.records for s in sums]
    loss = step_loss(run, weights, step, extra, labels)
    return torch.autograd.grad(loss, list(weights), create_graph=graph)


def step_loss(
    run: SharedRun, weights: Sequence[Tensor], step: int, extra: Tensor, labels: Tensor
) -> Tensor:
    """The sum of the K models' mean losses on that step's batch."""
    return stacked_loss(run.recipe.loss, *_outputs(run, weights, run.rows[step], extra, labels))


def _outputs(
    run: SharedRun, weights: Sequence[Tensor], rows: Tensor | None, extra: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor]:
    """K x c x b outputs on the batch, and its labels K x b."""
    n, count = len(run.inputs), len(extra)
    if rows is not None and rows.ndim == 2:
        return _own_rows(run, weights, rows, extra, labels)
    inputs, wanted = run.inputs, run.labels
    if rows is not None:
        inputs, wanted = run.inputs[rows[rows < n]], run.labels[rows[rows < n]]
        extra, labels = extra[:, rows[rows >= n] - n], labels[:, rows[rows >= n] - n]
    parts, ends = [], []
    if run.joint:
        known = inputs.expand(count, *inputs.shape)
        ends = [wanted.expand(count, *wanted.shape), labels]
        return run.forward(weights, torch.cat([known, extra], 1), False), torch.cat(ends, 1)
    if len(inputs):
        parts.append(run.forward(weights, inputs, True))
        ends.append(wanted.expand(count, *wanted.shape))
    if extra.shape[1]:
        parts.append(run.forward(weights, extra, False))
        ends.append(labels)
    return torch.cat(parts, 2), torch.cat(ends, 1)


def _own_rows(
    run: SharedRun, weights: Sequence[Tensor], rows: Tensor, extra: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor]:
    """As above where every model has rows of its own (K x b)."""
    n, (count, b) = len(run.inputs), rows.shape
    models = torch.arange(count)[:, None].expand(count, b)
    mine = rows >= n
    inputs, wanted = run.inputs[rows.clamp(max=n - 1)], run.labels[rows.clamp(max=n - 1)]
    inputs[mine] = extra[models[mine], rows[mine] - n]
    wanted[mine] = labels[models[mine], rows[mine] - n]
    return run.forward(weights, inputs, False), wanted


def advance(
    run: SharedRun,
    step: int,
    state: Sequence[Tensor],
    extra: Tensor,
    labels: Tensor,
    noise: torch.Generator | None = None,
) -> list[Tensor]:
    """One step of all K models, without a graph."""
    weights = [w.detach().requires_grad_() for w in state[: len(run.start)]]
    with torch.enable_grad():
        grads = step_gradient(run, weights, step, extra.detach(), labels, noise=noise)
    return run.update(step, [s.detach() for s in state], grads)


def begin(run: SharedRun, count: int) -> list[Tensor]:
    """The state before the first step."""
    return first_state(run.recipe, run.stack(count))


def train_fleet(
    model: nn.Module,
    fixed: Examples,
    inputs: Tensor,
    labels: Tensor,
    recipe: Recipe,
    *,
    scaling: Scaling,
    generator: torch.Generator | Sequence[torch.Generator],
    initial: Weights | None = None,
    dtype: torch.dtype | None = None,
    memory: int = MEMORY,
) -> dict[str, Tensor]:
    """The weights (K x shape each) of K models, the k-th trained on `fixed` and inputs[k].

    inputs: K x shape in the data's own scale; labels: K. generator: the order of mini-batches, the
    same for all models, or one generator each; of private training the noise. initial: weights to
    start from, K x shape each where every model has its own (None = those of `model`). Equal to
    `train` up to rounding.
    """
    check_recipe(recipe)
    if len(inputs) != len(labels):
        raise InputError(expected("fleet: labels", f"{len(inputs)}, one a model", len(labels)))
    own = None if isinstance(generator, torch.Generator) else list(generator)
    first = own[0] if own else generator
    assert isinstance(first, torch.Generator)
    base = torch.Generator().set_state(first.get_state())
    stacked = initial if initial is not None and own_starts(model, initial) else None
    start = None if stacked else initial
    run = share(model, fixed, recipe, scaling=scaling, initial=start, order=base, dtype=dtype)
    rows = _stacked_rows(run, own) if own and run.rows[0] is not None else None
    extra = scaling.to_model(inputs.to(run.inputs))[:, None]
    check_labels(recipe.loss, torch.zeros(len(labels), _width(run)), labels)
    finals, chunk = [], chunk_size(run, memory)
    noise = first if isinstance(recipe, PrivateDescent) else None
    with task("training fleet", len(inputs)) as tick:
        for at in range(0, len(inputs), chunk):
            part = slice(at, at + chunk)
            mine = _part(run, rows, part)
            state = begin(mine, len(extra[part]))
            if stacked is not None:
                state[: len(run.names)] = [stacked[n][part].to(run.inputs) for n in run.names]
            for step in range(len(run.rows)):
                state = advance(mine, step, state, extra[part], labels[part, None], noise)
            finals.append(state[: len(run.start)])
            tick(len(extra[part]))
    return run.named([torch.cat(parts) for parts in zip(*finals, strict=True)])


def own_starts(model: nn.Module, initial: Weights) -> bool:
    """Whether every model has its own: there is one dimension more than the model has."""
    name, parameter = next(model.named_parameters())
    return initial[name].ndim > parameter.ndim


def _stacked_rows(run: SharedRun, generators: Sequence[torch.Generator]) -> list[Tensor]:
    each = [rows_of(run.recipe, run.records, generator) for generator in generators]
    return [torch.stack([r for r in step if r is not None]) for step in zip(*each, strict=True)]


def _part(run: SharedRun, rows: list[Tensor] | None, part: slice) -> SharedRun:
    return run if rows is None else replace(run, rows=tuple(r[part] for r in rows))


def _width(run: SharedRun) -> int:
    with torch.no_grad():
        return int(run.model(run.inputs[:1]).shape[1])


def chunk_size(run: SharedRun, memory: int) -> int:
    """How many models to train at once: their state four times, and the features of a batch."""
    rows = run.rows[0]
    batch = run.records if rows is None else rows.shape[-1]
    weights = sum(w.numel() for w in run.start) * (1 + slots(run.recipe))
    numbers = 4 * weights + 4 * batch * _features(run)
    return max(1, memory // (numbers * run.inputs.element_size()))


def _features(run: SharedRun) -> int:
    """Numbers that come out of all modules for one record."""
    sizes: list[int] = []
    hooks = [
        m.register_forward_hook(lambda _m, _i, out: sizes.append(out.numel()))
        for m in run.model.modules()
    ]
    with torch.no_grad():
        run.model(run.inputs[:1])
    for hook in hooks:
        hook.remove()
    return sum(sizes)
