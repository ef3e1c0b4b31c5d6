"""A target out of its spec: a model, its weights, how its data looks and was scaled."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from remnant.cli.spec import AttackSpec, TargetSpec, read_yaml
from remnant.cli.texts import (
    directory_of,
    read_directory,
    read_held,
    read_texts,
    refuse_numbers,
    tokenizer_hash,
)
from remnant.data import load, mean_image
from remnant.errors import InputError, WeightsError, expected
from remnant.models import align, build, infer_model, load_weights, parse_model, read_weights
from remnant.models.foreign import check_outputs, real_outputs
from remnant.models.linear_estimators import recipe
from remnant.models.linear_files import linear_target, read_linear
from remnant.models.optimizers import Saved, read_optimizer
from remnant.models.tokens import give_logits, longest_of, takes_tokens
from remnant.store import hash_tensors
from remnant.store.files import hash_file
from remnant.training import recipe_from
from remnant.training.losses import loss_named
from remnant.types import Examples, Knowledge, Scaling, Target
from remnant.untrusted import json_file


def read_target(
    spec: TargetSpec,
    released: tuple[nn.Module, tuple[int, ...]] | None = None,
    like: Examples | None = None,
) -> tuple[Target, dict[str, str]]:
    """The target that a spec describes, and hashes of all that was read. released: its model and
    the shape of an input, if they were read before. like: records whose shape and bounds its
    records have, unless the spec says otherwise (pixels lie between 0 and 1, which is no secret).
    """

    model, shape = released or read_released(spec)
    read = read_weights if directory_of(spec) is None else read_held
    saved = None if spec.gradient is None else read_optimizer(spec.gradient, model)
    if spec.gradient is None and directory_of(spec) is None:
        saved = kept_beside(spec.weights, model)
    part = not takes_tokens(model)  # one layer's gradient may be all that is seen
    held = {
        kind: align(model, read(path), what=f"--{kind} {path}", some=part and kind == "gradient")
        for kind in ("initial", "gradient")
        if (path := getattr(spec, kind)) is not None and (kind == "initial" or saved is None)
    }
    if saved is not None:
        held = {"initial": saved.before} | held | {"gradient": saved.gradient}
    tokens = takes_tokens(model)
    public = read_records(spec, model, spec.public) if spec.public else None
    if tokens:
        refuse_numbers(spec)
        shape = shape or (longest_of(model),)
        probe = torch.zeros(2, min(2, *shape), dtype=torch.int64)
    else:
        shape = read_shape(spec.shape, public if like is None else like, shape)
        probe = torch.randn(2, *shape, generator=torch.Generator().manual_seed(0))
    scaling = read_scaling(spec.mean, spec.std, public, shape)
    check_outputs(model, probe)
    target = Target(
        model=model,
        input_shape=shape,
        bounds=read_bounds(spec.bounds) if spec.bounds or like is None else like.bounds,
        scaling=scaling,
        knowledge=Knowledge(
            initial=held.get("initial"),
            gradient=held.get("gradient"),
            gradient_of="" if saved is None else saved.whose,
            records=spec.records,
            loss=spec.loss,
            public=None if public is None or tokens else public.inputs,
            public_labels=None if public is None or tokens else public.labels,
            **read_told(spec),
        ),
    )
    hashes = hash_model_file(spec) | hash_target(target)
    if tokens:
        return target, hashes | tokenizer_hash(spec)
    check_labels(target.knowledge.labels, model, shape)
    return target, hashes


def kept_beside(path: Path, model: nn.Module) -> Saved | None:
    """The optimizer in a checkpoint, where it is one of all the model's parameters."""
    try:
        return read_optimizer(path, model)
    except WeightsError:
        return None


def read_released(spec: TargetSpec) -> tuple[nn.Module, tuple[int, ...]]:
    """The released model in evaluation mode, and the shape of its inputs, () if it is not known."""
    directory = directory_of(spec)
    if directory is not None:
        model, shape = read_directory(directory, spec.weights)
        return give_logits(model), shape
    final = read_weights(spec.weights)
    model, shape = read_model(spec.model, final)
    load_weights(model, final, what=f"--weights {spec.weights}")
    return give_logits(model.eval()), shape  # statistics of batch norm and dropout are part of it


def read_records(spec: TargetSpec, model: nn.Module, source: str) -> Examples:
    """Records of numbers, or texts where the model takes tokens."""
    if takes_tokens(model):
        return read_texts(spec, model, source)
    return load(source, data_dir=spec.data_dir)


def hash_target(target: Target) -> dict[str, str]:
    """A hash for each thing that the adversary holds."""
    held, scaling = target.knowledge, target.scaling
    tensors = {
        "weights": target.weights,
        "initial": held.initial,
        "gradient": held.gradient,
        "scaling": {"mean": scaling.mean, "std": scaling.std},
        "buffers": dict(target.model.named_buffers()),
    }
    hashes = {kind: hash_tensors(named) for kind, named in tensors.items() if named}
    if held.public is not None:
        hashes["public"] = hash_tensors({"x": held.public})
    if held.public_labels is not None:
        hashes["public_labels"] = hash_tensors({"y": held.public_labels})
    if held.known is not None:
        hashes["known"] = hash_tensors({"x": held.known.inputs, "y": held.known.labels})
    if held.recipe is not None:
        hashes["recipe"] = repr(held.recipe)
    if held.gradient_of:
        hashes["gradient_of"] = held.gradient_of
    return hashes


def read_recipe(path: Path) -> Any:
    """What a recipe's file says: JSON, or YAML with comments as `remnant recipe` writes it."""
    do = "such as remnant recipe writes"
    if path.suffix.lower() not in (".yaml", ".yml"):
        return json_file(path, InputError, do)
    held = read_yaml(path)
    if not isinstance(held, dict):
        raise InputError(expected(f"{path}", "fields of a recipe", "something else", do))
    return held


def read_told(spec: TargetSpec) -> dict[str, Any]:
    """What the adversary knows of the training: its recipe, records, the others' labels."""

    told: dict[str, Any] = {}
    if spec.recipe is not None:
        told["recipe"] = recipe_from(read_recipe(spec.recipe))
    if spec.loss is not None:
        loss_named(spec.loss)
        trained = getattr(told.get("recipe"), "loss", spec.loss)
        if trained != spec.loss:
            told_twice = f"{trained}, as in --recipe"
            raise InputError(expected("--loss", told_twice, spec.loss, "leave one out"))
    if not isinstance(spec, AttackSpec):
        return told
    if spec.known is not None:
        told["known"] = load(spec.known, data_dir=spec.data_dir)
    if spec.labels is not None:
        numbers = parse_floats("--labels", spec.labels)
        if any(number != int(number) or not 0 <= number < 2**31 for number in numbers):
            raise InputError(expected("--labels", "classes such as 3,1", spec.labels))
        told["labels"] = torch.tensor([int(number) for number in numbers])
    return told


def check_labels(labels: Tensor | None, model: nn.Module, shape: tuple[int, ...]) -> None:
    """Told labels are classes of this model; one output has two."""

    if labels is None:
        return
    first = next(model.parameters())
    with torch.no_grad():
        outputs = real_outputs(model(first.new_zeros(1, *shape)), 1, "--model")
    classes = max(2, int(outputs.shape[-1]))
    if int(labels.max()) >= classes:
        got = ",".join(str(label) for label in labels.tolist())
        raise InputError(expected("--labels", f"classes 0 to {classes - 1}", got))


def read_linear_target(spec: TargetSpec) -> tuple[Target, dict[str, str]]:
    """The linear model of the spec with the records that the adversary knows, if that is said; and
    hashes of what was read."""

    for name in ("model", "initial", "gradient", "recipe", "mean", "std", "shape", "loss"):
        if getattr(spec, name) is not None:
            do = "its file says it all; leave this out"
            raise InputError(expected(f"{name} of a linear model", "nothing", "a value", do))
    model = read_linear(spec.weights)
    scaling = {"mean": model.scaling.mean, "std": model.scaling.std}
    target = Target(model=model, input_shape=(model.dense.in_features,), scaling=model.scaling)
    hashes = {
        "weights": hash_tensors(target.weights),
        "scaling": hash_tensors(scaling),
        "coefficients": hash_file(spec.weights),  # the objective too, and names
    }
    if isinstance(spec, AttackSpec) and spec.known is not None:
        known, label = load(spec.known, data_dir=spec.data_dir), spec.label
        labels = None if label is None else missing_label(label, known.labels)
        again = recipe(model) if spec.refit else None
        target = linear_target(model, known, records=spec.records, labels=labels, recipe=again)
        hashes["known"] = hash_tensors({"x": known.inputs, "y": known.labels})
    return dataclasses.replace(target, bounds=read_bounds(spec.bounds)), hashes


def missing_label(label: float, like: Tensor) -> Tensor:
    """As a class, or in double precision: a closed form is as exact as its label."""
    dtype = torch.float64 if like.is_floating_point() else like.dtype
    return torch.tensor([label], dtype=torch.float64).to(dtype)


def hash_model_file(spec: TargetSpec) -> dict[str, str]:
    """The hash of a model's own code or configuration, for file.py:factory and hf:DIR."""
    directory, text = directory_of(spec), spec.model
    if directory is not None:
        files = [directory / name for name in ("config.json", "adapter_config.json")]
        return {f"model_{file.stem}": hash_file(file) for file in files if file.is_file()}
    file = parse_model(text).file if text is not None else ""
    return {"model_file": hash_file(Path(file))} if file else {}


def read_model(text: str | None, weights: Any) -> tuple[nn.Module, tuple[int, ...]]:
    """The model of --model, or the dense stack that the weights are; and its input shape."""

    if text is None:
        text = infer_model(weights)
        if text is None:
            do = "give --model, such as file.py:factory"
            raise InputError(expected("--weights", "a plain stack of dense layers", "another", do))
    spec = parse_model(text)
    size = sum(value.numel() for value in weights.values())
    # Before it asks for the memory; a model a little too large is told by its shapes.
    if spec.parameters > 10 * size:
        wanted = f"the model of these weights, {size} numbers"
        raise InputError(expected(f"--model {text}", wanted, f"one of {spec.parameters}"))
    model = build(spec, generator=torch.Generator().manual_seed(0))
    first = next((m for m in model.modules() if list(m.parameters(recurse=False))), None)
    chain = isinstance(model, nn.Sequential)  # elsewhere the first layer may see a part of a record
    if not spec.input_shape and chain and isinstance(first, nn.Linear):
        return model, (first.in_features,)
    return model, spec.input_shape


def read_shape(
    text: str | None, records: Examples | None, model: tuple[int, ...]
) -> tuple[int, ...]:
    """The shape of one record: --shape, else that of records at hand, else the model's own."""
    if text is not None:
        parts = text.lower().split("x")
        if not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
            raise InputError(expected("--shape", "sizes such as 1x28x28", repr(text)))
        shape = tuple(int(part) for part in parts)
    else:
        shape = model if records is None else records.shape
    if not shape:
        raise InputError("--shape: expected the shape of one record, got nothing; such as 1x28x28")
    if model and math.prod(shape) != math.prod(model):
        raise InputError(expected("shape of a record", f"{math.prod(model)} numbers", shape))
    return shape


def read_scaling(
    mean: str | None, std: str | None, public: Examples | None, shape: tuple[int, ...]
) -> Scaling:

    if mean == "public":
        if public is None:
            raise InputError("--mean public: expected public data, got none; give --public")
        middle = mean_image(public)
    else:
        middle = torch.zeros(()) if mean is None else read_numbers("--mean", mean, shape)
    spread = torch.ones(()) if std is None else read_numbers("--std", std, shape)
    return Scaling(mean=middle, std=spread)


def read_numbers(flag: str, text: str, shape: tuple[int, ...]) -> Tensor:
    """One number, one per channel (0.49,0.48,0.45), or the only tensor of a safetensors file."""

    if text.endswith(".safetensors"):
        tensors = list(read_weights(text).values())
        if len(tensors) != 1 or tensors[0].numel() not in (1, math.prod(shape)):
            got = [tuple(t.shape) for t in tensors]
            raise InputError(expected(f"{flag} {text}", f"one tensor of shape {shape}", got))
        return tensors[0].reshape(() if tensors[0].numel() == 1 else shape)
    numbers = torch.tensor(parse_floats(flag, text))
    if len(numbers) == 1:
        return numbers[0]
    if len(numbers) != shape[0]:
        raise InputError(expected(flag, f"1 or {shape[0]} numbers", len(numbers)))
    return numbers.reshape(-1, *[1] * (len(shape) - 1))


def read_bounds(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    numbers = parse_floats("--bounds", text)
    if len(numbers) != 2 or not numbers[0] < numbers[1]:
        raise InputError(expected("--bounds", "two rising numbers such as 0,1", repr(text)))
    return numbers[0], numbers[1]


def parse_floats(flag: str, text: str) -> list[float]:
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = [math.nan]
    if not all(math.isfinite(number) for number in numbers):
        raise InputError(expected(flag, "numbers such as 0.5 or 0.5,0.5,0.5", repr(text)))
    return numbers
