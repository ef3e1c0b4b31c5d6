"""How often each class occurs: in a batch, from the gradient of the output layer; among the records
of a short training, from how far the output layer moved."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from scipy.optimize import nnls
from torch import Tensor, nn

from remnant.errors import InputError, expected
from remnant.training.fleet import rows_of
from remnant.training.losses import loss_named
from remnant.training.recipes import FixedStep
from remnant.training.steps import first_state, update
from remnant.types import Weights


def infer_labels(
    model: nn.Module,
    loss: str,
    gradient: Weights,
    *,
    count: int,
    probes: Tensor,
    sizes: Sequence[float] = (0.1, 0.2, 0.4, 0.7, 1.0),
) -> Tensor:
    """Classes (count, ascending) from the gradient of the output layer's bias, or its weights.

    That gradient is the mean over records of dL/d(outputs) times features, and depends on the
    class: for cross-entropy it is probabilities minus one-hot, negative only where the class
    occurs (iDLG). How often each occurs is the non-negative mixture, over classes, of what the
    model gives for `probes` (p x shape, inputs of no class in particular) that comes nearest;
    of the `sizes` that probes are scaled by, the one is taken where it comes nearest of all.
    """
    layer, name = _output_layer(model)
    held = [f"{name}.{kind}" for kind in ("weight", "bias") if f"{name}.{kind}" in gradient]
    if not held:
        got = "neither its weight nor its bias in the gradient"
        raise InputError(expected(f"labels: output layer {name}", "its gradient", got))
    observed = torch.cat([gradient[key].reshape(layer.out_features, -1) for key in held], dim=1)
    classes, fits = max(2, layer.out_features), []
    for size in sizes:
        outputs, features = _outputs(model, layer, size * probes)
        parts = {f"{name}.weight": features, f"{name}.bias": features.new_ones(len(features), 1)}
        met = torch.cat([parts[key] for key in held], dim=1)
        columns = torch.stack([_signals(loss, outputs, c).T @ met for c in range(classes)])
        mixture, distance = _mixture(columns, observed)
        signal = observed @ met.mean(0)
        if f"{name}.bias" in held:  # it needs no guess at the features
            mixture, _ = _mixture(columns[:, :, -1:], observed[:, -1:])
            signal = observed[:, -1]
        fits.append((distance, mixture, signal))
    _, mixture, signal = min(fits, key=lambda fit: fit[0])
    if loss == "ce" and count == 1:
        return signal.argmin()[None]
    least = (signal < 0).long() if loss == "ce" else torch.zeros(classes, dtype=torch.long)
    return torch.arange(classes).repeat_interleave(_counts(mixture, least, count))


def labels_of_run(
    model: nn.Module, initial: Weights, recipe: FixedStep, *, count: int, shape: tuple[int, ...]
) -> Tensor:
    """Classes (count, ascending) of the records of a short full-batch descent from the initial
    weights to those of the model.

    Steps move the output's bias against gradients that are taken to be one: that halfway between
    both ends, where a constant input (zero in the model's scale) stands for every record.
    """
    layer, name = _output_layer(model)
    if layer.bias is None:
        do = "give the labels"
        raise InputError(expected(f"labels: output layer {name}", "a bias", "none", do))
    unit = [torch.ones(1, dtype=torch.float64)]
    state = first_state(recipe, [torch.zeros_like(unit[0])])
    for step in range(len(rows_of(recipe, 1, None))):
        state = update(recipe, step, state, unit)
    halfway, start = copy.deepcopy(model).double().eval(), initial[f"{name}.bias"].double()
    moved = layer.bias.detach().double() - start
    with torch.no_grad():
        for key, value in halfway.named_parameters():
            value.lerp_(initial[key].double(), 0.5)
    probes = torch.zeros(1, *shape, dtype=torch.float64)
    gradient = {f"{name}.bias": moved / state[0]}
    return infer_labels(halfway, recipe.loss, gradient, count=count, probes=probes)


def _mixture(columns: Tensor, observed: Tensor) -> tuple[Tensor, float]:
    """Shares of the classes (c, adding up to 1) whose mean column is nearest, and how near."""
    rows = columns.flatten(1).T.double()
    heavy = 1e3 * float(rows.abs().max())
    rows = torch.cat([rows, rows.new_full((1, rows.shape[1]), heavy)])
    wanted = torch.cat([observed.flatten().double(), rows.new_tensor([heavy])])
    shares, distance = nnls(rows.numpy(), wanted.numpy())
    return torch.as_tensor(shares), float(distance)


def _signals(loss: str, outputs: Tensor, label: int) -> Tensor:
    """dL/d(outputs) of n records of that class (n x c), divided by n."""
    free = outputs.detach().requires_grad_()
    (signals,) = torch.autograd.grad(loss_named(loss)(free, torch.full((len(free),), label)), free)
    return signals


def _counts(mixture: Tensor, least: Tensor, count: int) -> Tensor:
    """Whole numbers that add up to `count`, near count * mixture, `least` or more of each."""
    share = mixture / mixture.sum() if float(mixture.sum()) > 0 else mixture + 1 / len(mixture)
    whole = torch.zeros_like(least)
    for _ in range(count):  # each goes where most is missing, first where one is known to be
        missing = share * count - whole
        whole[(missing + (whole < least) * (count + 1)).argmax()] += 1
    return whole


def _output_layer(model: nn.Module) -> tuple[nn.Linear, str]:
    layers = [(m, name) for name, m in model.named_modules() if isinstance(m, nn.Linear)]
    if not layers:
        do = "give the labels, or optimise them jointly"
        raise InputError(expected("labels", "a dense output layer", "none", do))
    return layers[-1]


def _outputs(model: nn.Module, layer: nn.Linear, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """The model's outputs, and what enters that layer."""
    seen: list[Tensor] = []
    hook = layer.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))
    try:
        with torch.no_grad():
            return model(inputs), seen[-1]
    finally:
        hook.remove()
