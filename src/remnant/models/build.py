"""From a model string to a network whose weights come from one explicit generator."""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import torch
from torch import nn

from remnant.errors import InputError, expected
from remnant.models.activations import activation
from remnant.models.foreign import USER_MODULES, check_module, guarded
from remnant.models.spec import Conv, Dense, ModelSpec, Pool, parse_model
from remnant.models.unwrap import unwrapped

Init = Literal["standard", "normal"]


def build(
    spec_or_text: ModelSpec | str,
    *,
    generator: torch.Generator,
    dtype: torch.dtype = torch.float32,
    init: Init = "standard",
    first_layer_scale: float | None = None,
) -> nn.Module:
    """The network of a spec, on the CPU: a plain nn.Sequential, or the user's own module.

    init="standard": weights and biases uniform in +-1/sqrt(fan_in), PyTorch's own law.
    init="normal": weights N(0, 1/fan_in), biases 0.
    first_layer_scale=s: the first layer's weights and biases are multiplied by one number that
    makes the standard deviation of their law s (for "standard": uniform in +-s*sqrt(3)). This
    is the small first layer of Haim et al. (2022), s = 1e-4.

    Draws are float64, then cast, so that every dtype starts at the same weights. The global
    random state is neither read nor changed.
    """
    spec = parse_model(spec_or_text) if isinstance(spec_or_text, str) else spec_or_text
    if first_layer_scale is not None and not 0 < first_layer_scale < math.inf:
        raise InputError(expected("first-layer scale", "a positive number", first_layer_scale))
    if init not in ("standard", "normal"):
        raise InputError(expected("initialisation", "standard or normal", repr(init)))
    if spec.file:
        if init != "standard" or first_layer_scale is not None:
            got = "an initialisation for it"
            raise InputError(expected(f"model {spec}", "weights from its factory", got))
        return _from_file(spec, generator).to(dtype)
    model = _skeleton(spec, dtype)
    layers = [layer for layer in model if isinstance(layer, nn.Linear | nn.Conv2d)]
    for index, layer in enumerate(layers):
        _initialise(layer, generator, init, first_layer_scale if index == 0 else None)
    return model


def _skeleton(spec: ModelSpec, dtype: torch.dtype) -> nn.Sequential:
    """The layers with unset weights. Made on `meta`, where PyTorch's own draws cost nothing."""
    modules: list[nn.Module] = []
    flat = False
    for layer, before in zip(spec.layers, spec.shapes, strict=False):
        match layer:
            case Conv(out, kernel, stride, padding):
                modules.append(
                    nn.Conv2d(
                        before[0], out, kernel, stride, padding, bias=spec.bias, device="meta"
                    )
                )
            case Pool(kind, size):
                modules.append(nn.MaxPool2d(size) if kind == "m" else nn.AvgPool2d(size))
                continue
            case Dense(width):
                if not flat:
                    modules.append(nn.Flatten())
                    flat = True
                modules.append(nn.Linear(math.prod(before), width, bias=spec.bias, device="meta"))
        modules.append(activation(spec.activation))
    return nn.Sequential(*modules[:-1]).to(dtype).to_empty(device="cpu")


@torch.no_grad()
def _initialise(
    layer: nn.Linear | nn.Conv2d, generator: torch.Generator, init: Init, scale: float | None
) -> None:
    fan_in = layer.weight[0].numel()
    # Either law is its unit form times a number: the uniform's std is bound / sqrt(3).
    if init == "standard":
        factor = fan_in**-0.5 if scale is None else scale * math.sqrt(3)
    else:
        factor = fan_in**-0.5 if scale is None else scale
    for name, parameter in layer.named_parameters():
        draw = torch.empty(parameter.shape, dtype=torch.float64, device=generator.device)
        if init == "standard":
            draw.uniform_(-1.0, 1.0, generator=generator)
        elif name == "weight":
            draw.normal_(generator=generator)
        else:
            draw.zero_()
        parameter.copy_(draw.mul_(factor))


def _from_file(spec: ModelSpec, generator: torch.Generator) -> nn.Module:
    """Import that one file and call its factory, with a seed that the generator draws."""
    seed = torch.randint(2**62, (), generator=generator, device=generator.device)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(seed))
        factory = _factory(spec)
        with guarded(f"model {spec}: the factory failed"):
            model = factory()
    return unwrapped(check_module(model, f"model {spec}"))


def _factory(spec: ModelSpec) -> Callable[[], object]:
    path = Path(spec.file)
    if not path.is_file():
        got = "a folder" if path.is_dir() else "no such file"
        raise InputError(expected(f"model {spec}", f"a Python file at {path}", got))
    name = f"{USER_MODULES}{path.stem}"
    found = importlib.util.spec_from_file_location(name, path)
    if found is None or found.loader is None:
        raise InputError(expected(f"model {spec}", "a Python file", path.name))
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module  # dataclasses in the file look their own module up here
    try:
        with guarded(f"model {spec}: importing the file failed"):
            found.loader.exec_module(module)
    except InputError:
        del sys.modules[name]
        raise
    with guarded(f"model {spec}: reading {spec.factory} failed"):
        factory = getattr(module, spec.factory, None)
    if not callable(factory):
        got = "no such name" if factory is None else f"a {type(factory).__name__}"
        wanted = f"a function {spec.factory} without arguments"
        raise InputError(expected(f"model {spec}", wanted, got))
    found_factory: Callable[[], object] = factory
    return found_factory
