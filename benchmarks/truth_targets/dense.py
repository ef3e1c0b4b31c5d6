"""Targets that are dense networks: two checkpoints, one gradient, weights alone, a known run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from truth_targets.making import Made, write_json, write_records, write_weights
from truth_targets.networks import (
    Shape,
    State,
    Training,
    clipped_sum,
    gradient,
    model_text,
    network,
    state_of,
    train,
)
from truth_targets.scenes import Drawn, Scene, draw
from truth_targets.sets import SETS, Array

ATTACKS = {"initial": "ntk", "gradient": "gradient", "weights": "kkt", "recipe": "informed"}


@dataclass(frozen=True, kw_only=True)
class Dense:
    """A network's target.

    gives: "initial" (two checkpoints), "gradient", "weights" (alone) or "recipe" (with initial).
    centre: what training subtracted, "mean" of the set ("standard": and divided by its spread),
    "template" (.8 of a pattern, then divided by .2) or "none". told: whether that is declared:
    "all", "no mean", "no std" or "nothing". after: what is done to the released state and the
    initial one, with the records as the model sees them. every: not one adversary is played but
    all that apply, as `remnant audit` does if not told otherwise. extra: more of audit.yaml.
    """

    scene: Scene = field(default_factory=Scene)
    shape: Shape = field(default_factory=Shape)
    how: Training = field(default_factory=Training)
    gives: str = "initial"
    loss: str = "ce"
    centre: str = "mean"
    told: str = "all"
    model: str | None = None  # in place of the true one; "" leaves it out
    suffix: str = ".pt"
    double: bool = False
    after: Callable[[State, State, Tensor], tuple[State, State]] | None = None
    gradient_noise: float = 0.0  # in standard deviations of the gradient's entries
    private: bool = False  # the gradient is of clipped records, with noise how.noise
    ids: bool = False
    every: bool = False
    extra: dict[str, Any] = field(default_factory=dict)


def make_dense(what: Dense, folder: Path, seed: int) -> Made:
    torch.manual_seed(seed)
    records = draw(what.scene, np.random.default_rng(seed))
    if what.centre == "template":
        records = as_template(records, np.random.default_rng(seed + 1))
    mean, std = scaling_of(what, records)
    dtype = torch.float64 if what.double else torch.float32
    x = torch.as_tensor((records.trained - mean) / std, dtype=dtype).flatten(1)
    labels = labels_of(what.loss, records.trained_labels)
    outputs = int(SETS[what.scene.data]()[1].max()) + 1 if what.loss == "ce" else 1
    model = network(what.shape, x.shape[1], outputs).to(dtype)
    initial = state_of(model)
    options = _release(what, folder, model, initial, x, labels)
    options |= _scaling_files(what, folder, mean, std)
    if what.model != "":
        options["model"] = what.model or model_text(what.shape, x.shape[1], outputs)
    ids = tuple(f"r{i}" for i in range(len(records.declared))) if what.ids else ()
    files = (
        ("train.npz", records.declared, records.labels),
        ("test.npz", records.holdout, records.holdout_labels),
        ("public.npz", records.public, records.public_labels),
    )
    for name, part, y in files:
        named = ids if name == "train.npz" else ()
        if len(part):
            write_records(folder / name, part, labels_of(what.loss, y).numpy(), named)
    if len(records.public):
        options["public"] = "public.npz"
    return Made(
        options={"data": "train.npz", "holdout": "test.npz"} | options | what.extra,
        declared=records.declared,
        used=records.used,
        trained=_in_declared_scale(what, records, mean, std),
        unit=unit_of(records),
        std=std if what.told in ("all", "no mean") else 1.0,
        ids=ids,
    )


def unit_of(records: Drawn) -> Array | float:
    """Pixels are compared as they are, features of a table by their spread."""
    if records.declared.ndim > 2:
        return float(records.pool.max())
    spread = records.pool.std(0)
    return np.where(spread > 0, spread, 1.0)


def as_template(records: Drawn, drawn: np.random.Generator) -> Drawn:
    """Every image as .8 of one smooth pattern and .2 of itself: then all look alike."""
    side = records.pool.shape[-1]
    at = np.linspace(0, 2 * np.pi, side)
    pattern = 0.5 + 0.25 * (np.sin(at + drawn.uniform(0, 6))[:, None] + np.cos(at * 1.5)[None])
    values = vars(records).copy()
    for name in ("trained", "declared", "holdout", "public", "pool"):
        values[name] = (0.8 * pattern + 0.2 * values[name]).astype(np.float32)
    return Drawn(**values)


def scaling_of(what: Dense, records: Drawn) -> tuple[Any, Any]:
    if what.centre == "none":
        return 0.0, 1.0
    mean = records.pool.mean(0, keepdims=True)
    if what.centre == "template":
        return mean, 0.2
    if what.centre == "mean":
        return mean, 1.0
    std = records.pool.std(0, keepdims=True)
    if records.pool.ndim > 2:
        std = records.pool.std()  # of all pixels: as is usual for images
    return mean, np.where(std > 0, std, 1.0)


def labels_of(loss: str, y: Array) -> Tensor:
    """Labels as the loss wants them; one output tells odd from even."""
    if loss == "ce":
        return torch.as_tensor(y)
    odd = torch.as_tensor(y % 2)
    return odd if loss == "bce" else odd.float() * 2 - 1


def _release(
    what: Dense, folder: Path, model: nn.Module, initial: State, x: Tensor, y: Tensor
) -> dict[str, Any]:
    """The files of what is released, and their fields in the spec."""
    weights, options = f"model{what.suffix}", dict[str, Any]()
    if what.gives == "gradient":
        released = _gradient(what, model, x, y)
        write_weights(folder / "update.safetensors", released)
        options["gradient"] = "update.safetensors"
    else:
        train(model, x, y, what.loss, what.how)
    final = state_of(model)
    if what.after is not None:
        final, initial = what.after(final, initial, x)
    write_weights(folder / weights, final)
    options["weights"] = weights
    if what.gives in ("initial", "recipe"):
        write_weights(folder / f"before{what.suffix}", initial)
        options["initial"] = f"before{what.suffix}"
    if what.gives == "recipe":
        write_json(folder / "recipe.json", recipe_of(what))
        options["recipe"] = "recipe.json"
    if not what.every:
        options["attacks"] = ATTACKS[what.gives]
    return options


def recipe_of(what: Dense) -> dict[str, Any]:
    how = what.how
    values = {"lr": how.lr, "momentum": how.momentum, "steps": how.steps, "loss": what.loss}
    return {"name": "gradient-descent", "weight_decay": how.decay} | values


def _gradient(what: Dense, model: nn.Module, x: Tensor, y: Tensor) -> State:
    if what.private:
        names = [name for name, _ in model.named_parameters()]
        total = clipped_sum(model, x, y, what.loss, what.how.clip)
        scale = what.how.noise * what.how.clip
        return {
            name: (part + scale * torch.randn_like(part)) / len(x)
            for name, part in zip(names, total, strict=True)
        }
    released = gradient(model, x, y, what.loss)
    if what.gradient_noise:
        released = {
            name: g + what.gradient_noise * g.std() * torch.randn_like(g)
            for name, g in released.items()
        }
    return released


def _scaling_files(what: Dense, folder: Path, mean: Any, std: Any) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for name, value, idle in (("mean", mean, 0.0), ("std", std, 1.0)):
        if what.told in ("nothing", f"no {name}") or (np.ndim(value) == 0 and value == idle):
            continue
        if np.ndim(value) == 0:
            options[name] = float(value)
        else:
            tensor = torch.as_tensor(np.asarray(value)[0], dtype=torch.float32)
            write_weights(folder / f"{name}.safetensors", {name: tensor})
            options[name] = f"{name}.safetensors"
    return options


def _in_declared_scale(what: Dense, records: Drawn, mean: Any, std: Any) -> Array:
    """The model's inputs, brought back to data by what was declared of mean and std."""
    inputs = (records.trained - mean) / std
    if what.told in ("all", "no mean"):
        inputs = inputs * std
    if what.told in ("all", "no std"):
        inputs = inputs + mean
    return np.asarray(inputs)
