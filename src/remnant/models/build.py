"""From a model string to a network whose weights come from one explicit generator."""

from __future__ import annotations

import copy
import importlib.util
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import torch
from torch import nn

from remnant.errors import InputError, expected
from remnant.models.foreign import USER_MODULES, check_module, guarded
from remnant.models.spec import ModelSpec, parse_model
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
    if spec.stack is None:
        if init != "standard" or first_layer_scale is not None:
            got = "an initialisation for it"
            raise InputError(expected(f"model {spec.text}", "weights from its factory", got))
        return _from_file(spec, generator).to(dtype)
    model = copy.deepcopy(spec.stack).to(dtype).to_empty(device="cpu")
    layers = [layer for layer in model if isinstance(layer, nn.Linear | nn.Conv2d)]
    for index, layer in enumerate(layers):
        _initialise(layer, generator, init, first_layer_scale if index == 0 else None)
    return model


@torch.no_grad()
def _initialise(
    layer: nn.Linear | nn.Conv2d, generator: torch.Generator, init: Init, scale: float | None
) -> None:
    fan_in = layer.weight[0].numel()
    # Either law is its unit form times a number: the uniform's std is bound / sqrt(3).
    factor = fan_in**-0.5 if scale is None else scale
    if init == "standard" and scale is not None:
        factor = scale * math.sqrt(3)
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
    what = f"model {spec.text}"
    seed = torch.randint(2**62, (), generator=generator, device=generator.device)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(seed))
        factory = _factory(spec, what)
        with guarded(f"{what}: the factory failed"):
            model = factory()
    return unwrapped(check_module(model, what))


def _factory(spec: ModelSpec, what: str) -> Callable[[], object]:
    path = Path(spec.file)
    name = f"{USER_MODULES}{path.stem}"
    found = importlib.util.spec_from_file_location(name, path)
    if not path.is_file() or found is None or found.loader is None:
        got = "a folder" if path.is_dir() else "no such file"
        raise InputError(expected(what, f"a Python file at {path}", got))
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module  # dataclasses in the file look their own module up here
    try:
        with guarded(f"{what}: importing the file failed"):
            found.loader.exec_module(module)
    except InputError:
        del sys.modules[name]
        raise
    with guarded(f"{what}: reading {spec.factory} failed"):
        factory: object = getattr(module, spec.factory, None)
    if not callable(factory):
        got = "no such name" if factory is None else f"a {type(factory).__name__}"
        raise InputError(expected(what, f"a function {spec.factory} without arguments", got))
    return factory
