"""Models as strings.

    mlp:784-300-300-10              input, hidden and output widths
    mlp:784-10-10:elu:nobias        options: an activation (relu without one), nobias
    cnn:3x32x32-c32k3-m2-1000-1     input shape, convolutions, pooling, dense widths
    net.py:factory                  the user's own nn.Module

A convolution is `c<out>k<kernel>[s<stride>][p<padding>]`, pooling is `m<size>` (maximum) or
`a<size>` (average). Every layer with weights but the last is followed by the activation.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from remnant.errors import InputError, expected
from remnant.models.activations import activation as named_activation

EXAMPLES = "mlp:784-300-10, cnn:3x32x32-c32k3-1000-1, hf:DIR or net.py:factory"
INPUT = {"mlp": r"[1-9][0-9]{0,8}", "cnn": r"[1-9][0-9]{0,5}(x[1-9][0-9]{0,5}){2}"}
CONVOLUTION = (
    r"c([1-9][0-9]{0,5})k([1-9][0-9]{0,3})(?:s([1-9][0-9]{0,3}))?(?:p(0|[1-9][0-9]{0,3}))?"
)


@dataclass(frozen=True, kw_only=True, eq=False)
class ModelSpec:
    """What a model string says: a stack of layers, still without memory for its weights, or the
    file and function that make the user's own module, of which only its code knows more."""

    text: str
    input_shape: tuple[int, ...] = ()
    stack: nn.Sequential | None = None
    file: str = ""
    factory: str = ""

    @property
    def parameters(self) -> int:
        """The number of weights, without biases; 0 where only the user's code knows it."""
        held = () if self.stack is None else self.stack.named_parameters()
        return sum(value.numel() for name, value in held if name.endswith("weight"))


def parse_model(text: str, *, longest: int = 4096, most: int = 10**9) -> ModelSpec:
    """The model that `text` describes; or an InputError.

    longest: characters. most: parameters; a typing error is refused before it asks for the memory.
    """
    text = text.strip()
    if len(text) > longest or not text.isprintable():
        got = f"{len(text)} characters" if len(text) > longest else ascii(text[:60])
        raise InputError(expected("model", EXAMPLES, got))
    what = f"model {_quote(text)}"
    kind, colon, rest = text.partition(":")
    if kind in INPUT and colon:
        body, *options = rest.split(":")
        first, *tokens = body.split("-")
        if not re.fullmatch(INPUT[kind], first, re.ASCII):
            wanted = "a positive width" if kind == "mlp" else "an input shape such as 3x32x32"
            raise InputError(expected(what, wanted, _quote(first)))
        shape = tuple(map(int, first.split("x")))
        stack = _stack(what, shape, tokens, *_options(what, options))
        spec = ModelSpec(text=text, input_shape=shape, stack=stack)
        if spec.parameters > most:
            raise InputError(expected(what, f"at most {most} parameters", spec.parameters))
        return spec
    file, _, factory = text.rpartition(":")
    if file.endswith(".py") and factory.isidentifier():
        return ModelSpec(text=text, file=file, factory=factory)
    if text.endswith(".py"):
        raise InputError(expected("model", "file.py:factory", _quote(text), "name the factory"))
    raise InputError(expected("model", EXAMPLES, _quote(text)))


def _quote(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")


@torch.no_grad()
def _stack(
    what: str, shape: tuple[int, ...], tokens: list[str], activation: str, bias: bool
) -> nn.Sequential:
    """The layers on `meta`, where shapes are computed and nothing takes memory."""
    layers, place = list[nn.Module](), torch.empty(1, *shape, device="meta")
    if not tokens or not tokens[-1].isdigit():
        do = f"write {EXAMPLES}"
        raise InputError(expected(what, "a dense width last", repr("-".join(tokens[-1:])), do))
    for token in tokens:
        made = _layer(what, token, place, bias)
        if isinstance(made, nn.Linear) and not any(isinstance(m, nn.Linear) for m in layers):
            layers.append(nn.Flatten())
            place = place.flatten(1)
        try:
            place = made(place)
        except RuntimeError:
            got = f"an input of {'x'.join(map(str, place.shape[1:]))}"
            wanted = "an input that it fits in"
            raise InputError(expected(f"{what}, {token}", wanted, got)) from None
        layers.append(made)
        if not isinstance(made, nn.MaxPool2d | nn.AvgPool2d):
            layers.append(named_activation(activation))
    return nn.Sequential(*layers[:-1])


def _layer(what: str, token: str, before: Tensor, bias: bool) -> nn.Module:
    """The layer of one part of the string, to stand behind one whose output is `before`."""
    if re.fullmatch(INPUT["mlp"], token, re.ASCII):
        return nn.Linear(before[0].numel(), int(token), bias=bias, device="meta")
    convolution, pool = (
        re.fullmatch(CONVOLUTION, token),
        re.fullmatch("([ma])([1-9][0-9]{0,3})", token),
    )
    if before.ndim < 4:
        wanted = "a positive width" + (", dense widths last" if convolution or pool else "")
        raise InputError(expected(what, wanted, f"{_quote(token)} after {before[0].numel()}"))
    if convolution:
        out, kernel, stride, padding = (int(size or 0) for size in convolution.groups())
        sizes = (before.shape[1], out, kernel, stride or 1, padding)
        return nn.Conv2d(*sizes, bias=bias, device="meta")
    if pool:
        return (nn.MaxPool2d if pool[1] == "m" else nn.AvgPool2d)(int(pool[2]))
    wanted = "c<out>k<kernel>, m<size>, a<size> or a positive width"
    raise InputError(expected(what, wanted, _quote(token)))


def _options(what: str, options: list[str]) -> tuple[str, bool]:
    """The activation, and whether layers have biases."""
    names = [option for option in options if option != "nobias"]
    if len(names) > 1 or len(options) - len(names) > 1:
        got = _quote(":".join(options))
        raise InputError(expected(what, "at most one activation and one nobias", got))
    try:
        named_activation(*names or ["relu"])
    except InputError as error:
        raise InputError(f"{what}: {error}") from None
    return (names[0] if names else "relu"), len(names) == len(options)
