"""A target out of its spec: a model, its weights, how its data looks and was scaled."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from remnant.cli.spec import AttackSpec, TargetSpec, read_yaml
from remnant.data import Tokenizer, load, load_texts, mean_image, read_tokenizer
from remnant.data.texts import numbered
from remnant.errors import InputError, WeightsError, expected
from remnant.models import align, build, infer_model, load_weights, parse_model, read_weights
from remnant.models.foreign import check_outputs, real_outputs
from remnant.models.linear_estimators import recipe
from remnant.models.linear_files import linear_target, read_linear
from remnant.models.optimizers import Saved, read_optimizer
from remnant.models.tokens import give_logits, longest_of, takes_tokens, vocabulary_of
from remnant.models.weights import read_tensors
from remnant.store.files import hash_file, hash_tensors
from remnant.training import recipe_from
from remnant.training.losses import loss_named
from remnant.types import Examples, Knowledge, Scaling, Target
from remnant.untrusted.files import json_file

HF = "hf:"
TOKENIZER = "tokenizer.json"
Released = tuple[nn.Module, tuple[int, ...]]
"""A model in evaluation mode and the shape of its inputs, () if it is not known."""


def read_target(
    spec: TargetSpec, released: Released | None = None, like: Examples | None = None
) -> tuple[Target, dict[str, str]]:
    """The target that a spec describes, and hashes of all that was read.

    released: what `read_released` gave, if it was asked before. like: records whose shape and
    bounds its records have, unless the spec says otherwise (pixels lie between 0 and 1, which is no
    secret).
    """
    model, shape = released or read_released(spec)
    tokens = takes_tokens(model)
    public = load(spec.public, data_dir=spec.data_dir) if spec.public and not tokens else None
    if tokens:
        unused = ("public",) if isinstance(spec, AttackSpec) else ()
        refuse(spec, "of a model of tokens", ("mean", "std", "bounds", "shape", *unused))
        shape = shape or (longest_of(model),)
        probe = torch.zeros(2, min(2, *shape), dtype=torch.int64)
    else:
        shape = read_shape(spec, public if like is None else like, shape)
        probe = torch.randn(2, *shape, generator=torch.Generator().manual_seed(0))
    scaling = read_scaling(spec.mean, spec.std, public, shape)
    check_outputs(model, probe)
    target = Target(
        model=model,
        input_shape=shape,
        bounds=spec.bounds or (None if like is None else like.bounds),
        scaling=scaling,
        knowledge=Knowledge(
            **read_held(spec, model),
            records=spec.records,
            loss=spec.loss,
            public=None if public is None else public.inputs,
            public_labels=None if public is None else public.labels,
            **read_told(spec),
        ),
    )
    check_labels(target)
    hashes = hash_model_file(spec) | hash_target(target)
    tokenizer = tokenizer_of(spec) if tokens else None
    return target, hashes | ({"tokenizer": hash_file(tokenizer.source)} if tokenizer else {})


def read_released(spec: TargetSpec) -> Released:
    """The released model, and the most tokens of a text, or the shape of a record."""
    directory = directory_of(spec)
    if directory is None:
        final = read_weights(spec.weights)
        model, shape = read_model(spec.model, final)
        load_weights(model, final, what=f"--weights {spec.weights}")
    else:
        from remnant.models.hf import read_hf

        model = read_hf(directory)
        if spec.weights.resolve() != directory.resolve():
            load_weights(model, read_weights_of(spec.weights), what=f"--weights {spec.weights}")
        config = getattr(model, "config", None)
        side, channels = (getattr(config, name, None) for name in ("image_size", "num_channels"))
        shape = (longest_of(model),) if takes_tokens(model) else ()
        if isinstance(side, int) and isinstance(channels, int):
            shape = (channels, side, side)
    return give_logits(model.eval()), shape  # statistics of batch norm and dropout are part of it


def read_weights_of(path: Path) -> dict[str, Tensor]:
    """Weights by name, as the file has them; or out of a Hugging Face directory."""
    from remnant.models.hf import read_hf

    if not path.is_dir():
        return read_tensors(path)
    return {name: value.detach() for name, value in read_hf(path).named_parameters()}


def read_held(spec: TargetSpec, model: nn.Module) -> dict[str, Any]:
    """Other weights and a gradient, from their own files or out of an optimizer's state."""
    saved: Saved | None = None
    if spec.gradient is not None:
        saved = read_optimizer(spec.gradient, model)
    elif directory_of(spec) is None:
        try:
            saved = read_optimizer(spec.weights, model)  # kept beside the weights
        except WeightsError:  # of some parameters alone
            saved = None
    read = read_weights if directory_of(spec) is None else read_weights_of
    some = not takes_tokens(model)  # one layer's gradient may be all that is seen
    held: dict[str, Any] = {"initial": None, "gradient": None}
    if saved is not None:
        held = {"initial": saved.before, "gradient": saved.gradient, "gradient_of": saved.whose}
    elif spec.gradient is not None:
        what = f"--gradient {spec.gradient}"
        held["gradient"] = align(model, read(spec.gradient), what=what, some=some)
        own = dict(model.named_parameters())
        if all(torch.equal(own[n], g.to(own[n])) for n, g in held["gradient"].items() if n in own):
            do = "give what remnant.capture or a client's step saved"
            raise WeightsError(expected(what, "a gradient", "the released weights again", do))
    if spec.initial is not None:
        held["initial"] = align(model, read(spec.initial), what=f"--initial {spec.initial}")
    return held


def read_records(spec: TargetSpec, model: nn.Module, source: str | Path) -> Examples:
    """Records of numbers, or texts where the model takes tokens."""
    if not takes_tokens(model):
        return load(source, data_dir=spec.data_dir)
    return load_texts(
        source,
        tokenizer_of(spec),
        vocabulary=vocabulary_of(model),
        longest=longest_of(model),
        field=getattr(spec, "text_field", None) or "text",
        data_dir=spec.data_dir,
    )


def directory_of(spec: TargetSpec) -> Path | None:
    """The Hugging Face directory that holds the model, by --model hf:DIR or --weights, if any."""
    if spec.model is not None:
        return Path(spec.model.removeprefix(HF)) if spec.model.startswith(HF) else None
    return spec.weights if spec.weights.is_dir() else None


def tokenizer_of(spec: TargetSpec) -> Tokenizer | None:
    """The tokenizer of --tokenizer, or that in the model's directory, or none."""
    if spec.tokenizer is not None:
        inside = spec.tokenizer / TOKENIZER
        return read_tokenizer(inside if spec.tokenizer.is_dir() else spec.tokenizer)
    directory = directory_of(spec)
    own = None if directory is None else directory / TOKENIZER
    return read_tokenizer(own) if own is not None and own.is_file() else None


def words_of(spec: TargetSpec, model: nn.Module) -> Callable[[Sequence[int]], list[str]] | None:
    """What tokens mean, piece by piece: by the tokenizer, else as numbers; None without tokens."""
    if not takes_tokens(model):
        return None
    tokenizer = tokenizer_of(spec)
    return numbered if tokenizer is None else tokenizer.pieces


def hash_target(target: Target) -> dict[str, str]:
    """A hash for each thing that the adversary holds."""
    held, scaling = target.knowledge, target.scaling
    tensors = {
        "weights": target.weights,
        "initial": held.initial,
        "gradient": held.gradient,
        "scaling": {"mean": scaling.mean, "std": scaling.std},
        "buffers": dict(target.model.named_buffers()),
        "public": None if held.public is None else {"x": held.public},
        "public_labels": None if held.public_labels is None else {"y": held.public_labels},
        "known": None if held.known is None else {"x": held.known.inputs, "y": held.known.labels},
    }
    hashes = {kind: hash_tensors(named) for kind, named in tensors.items() if named}
    if held.recipe is not None:
        hashes["recipe"] = repr(held.recipe)
    return hashes | ({"gradient_of": held.gradient_of} if held.gradient_of else {})


def hash_model_file(spec: TargetSpec) -> dict[str, str]:
    """The hash of a model's own code or configuration, for file.py:factory and hf:DIR."""
    directory, text = directory_of(spec), spec.model
    if directory is not None:
        files = [directory / name for name in ("config.json", "adapter_config.json")]
        return {f"model_{file.stem}": hash_file(file) for file in files if file.is_file()}
    file = parse_model(text).file if text is not None else ""
    return {"model_file": hash_file(Path(file))} if file else {}


def read_recipe(path: Path) -> Any:
    """What a recipe's file says: JSON, or YAML with comments as `remnant recipe` writes it."""
    if path.suffix.lower() in (".yaml", ".yml"):
        return read_yaml(path)
    return json_file(path, InputError, "such as remnant recipe writes")


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
    if isinstance(spec, AttackSpec):
        if spec.known is not None:
            told["known"] = load(spec.known, data_dir=spec.data_dir)
        if spec.labels is not None:
            told["labels"] = torch.tensor(spec.labels)
    return told


def check_labels(target: Target) -> None:
    """Told labels are classes of this model; one output has two."""
    labels = target.knowledge.labels
    if labels is None:
        return
    first = next(target.model.parameters())
    with torch.no_grad():
        outputs = target.model(first.new_zeros(1, *target.input_shape))
    classes = max(2, int(real_outputs(outputs, 1, "--model").shape[-1]))
    if int(labels.max()) >= classes:
        got = ",".join(str(label) for label in labels.tolist())
        raise InputError(expected("--labels", f"classes 0 to {classes - 1}", got))


def refuse(spec: TargetSpec, why: str, names: Sequence[str]) -> None:
    """Fields that say nothing of such a target."""
    for name in names:
        if getattr(spec, name) is not None:
            raise InputError(expected(f"{name} {why}", "nothing", "a value", "leave it out"))


def read_linear_target(spec: TargetSpec) -> tuple[Target, dict[str, str]]:
    """The linear model of the spec with the records that the adversary knows, if that is said; and
    hashes of what was read."""
    network = ("model", "initial", "gradient", "recipe", "mean", "std", "shape", "loss")
    refuse(spec, "of a linear model", network)  # its file says it all
    model = read_linear(spec.weights)
    target = Target(model=model, input_shape=(model.dense.in_features,), scaling=model.scaling)
    if isinstance(spec, AttackSpec) and spec.known is not None:
        known, labels = load(spec.known, data_dir=spec.data_dir), None
        if spec.label is not None:  # a closed form is as exact as its label
            real = known.labels.is_floating_point()
            labels = torch.tensor([spec.label], dtype=torch.float64)
            labels = labels if real else labels.to(known.labels)
        again = recipe(model) if spec.refit else None
        target = linear_target(model, known, records=spec.records, labels=labels, recipe=again)
    target = dataclasses.replace(target, bounds=spec.bounds)
    # The file's hash covers the objective and names too.
    hashes = hash_target(target) | {"coefficients": hash_file(spec.weights)}
    return target, {name: value for name, value in hashes.items() if name != "recipe"}


def read_model(text: str | None, weights: Any) -> Released:
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
    spec: TargetSpec, records: Examples | None, model: tuple[int, ...]
) -> tuple[int, ...]:
    """The shape of one record: --shape, else that of records at hand, else the model's own."""
    shape = spec.shape or (model if records is None else records.shape)
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
    try:
        numbers = torch.tensor([float(part) for part in text.split(",")])
    except ValueError:
        numbers = torch.tensor([math.nan])
    if not bool(numbers.isfinite().all()):
        raise InputError(expected(flag, "numbers such as 0.5 or 0.5,0.5,0.5", repr(text)))
    if len(numbers) not in (1, shape[0]):
        wanted = "1 number" if shape[0] == 1 else f"1 or {shape[0]} numbers"
        raise InputError(expected(flag, wanted, len(numbers)))
    return numbers[0] if len(numbers) == 1 else numbers.reshape(-1, *[1] * (len(shape) - 1))
