"""Models as strings.

    mlp:784-300-300-10              input, hidden and output widths
    mlp:784-10-10:elu:nobias        options: an activation (relu without one), nobias
    cnn:3x32x32-c32k3-m2-1000-1     input shape, convolutions, pooling, dense widths
    net.py:factory                  the user's own nn.Module

A convolution is `c<out>k<kernel>[s<stride>][p<padding>]`, pooling is `m<size>` (maximum) or
`a<size>` (average). Every layer with weights but the last is followed by the activation.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from remnant.errors import InputError, expected
from remnant.models.activations import activation as named_activation

MAX_PARAMETERS = 10**9  # a typing error should be refused before it asks for the memory
EXAMPLES = "mlp:784-300-10, cnn:3x32x32-c32k3-1000-1, hf:DIR or net.py:factory"

_SIZE = re.compile(r"[1-9][0-9]{0,8}")
_CONV = re.compile(
    r"c([1-9][0-9]{0,5})k([1-9][0-9]{0,3})(?:s([1-9][0-9]{0,3}))?(?:p(0|[1-9][0-9]{0,3}))?"
)
_POOL = re.compile(r"([ma])([1-9][0-9]{0,3})")
_SHAPE = re.compile(r"([1-9][0-9]{0,5})x([1-9][0-9]{0,5})x([1-9][0-9]{0,5})")


@dataclass(frozen=True)
class Conv:
    """A square convolution."""

    out: int
    kernel: int
    stride: int = 1
    padding: int = 0

    def __str__(self) -> str:
        stride = f"s{self.stride}" if self.stride != 1 else ""
        padding = f"p{self.padding}" if self.padding else ""
        return f"c{self.out}k{self.kernel}{stride}{padding}"


@dataclass(frozen=True)
class Pool:
    """Square pooling whose windows do not overlap."""

    kind: str  # "m" maximum, "a" average
    size: int

    def __str__(self) -> str:
        return f"{self.kind}{self.size}"


@dataclass(frozen=True)
class Dense:
    width: int

    def __str__(self) -> str:
        return str(self.width)


Layer = Conv | Pool | Dense


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """What a model string says. `str(spec)` parses back to the same value.

    A user's own module (`file`, `factory`) has no layers here: only its code knows its shapes,
    so `input_shape` is () and `outputs` is 0.
    """

    input_shape: tuple[int, ...] = ()
    layers: tuple[Layer, ...] = ()
    activation: str = "relu"
    bias: bool = True
    file: str = ""
    factory: str = ""

    def __post_init__(self) -> None:
        if self.file:
            return
        named_activation(self.activation)
        what = f"model {_quote(str(self))}"
        if not self.outputs or len(self.input_shape) not in (1, 3):
            wanted = "an input shape and a dense width last"
            raise InputError(expected(what, wanted, "something else", f"write {EXAMPLES}"))
        for layer, before, after in zip(self.layers, self.shapes, self.shapes[1:], strict=False):
            if len(before) == 1 and not isinstance(layer, Dense):
                raise InputError(expected(what, "dense widths last", f"{layer} after {before[0]}"))
            if min(after) < 1:
                got = f"an input of {'x'.join(map(str, before))}"
                raise InputError(expected(f"{what}, {layer}", "an input that it fits in", got))
        if self.parameters > MAX_PARAMETERS:
            wanted = f"at most {MAX_PARAMETERS} parameters"
            raise InputError(expected(what, wanted, self.parameters))

    @property
    def parameters(self) -> int:
        """The number of weights, without biases; 0 where only the user's code knows it."""
        return sum(map(_parameters, self.layers, self.shapes))

    @property
    def outputs(self) -> int:
        """The width of the last layer."""
        last = self.layers[-1] if self.layers else None
        return last.width if isinstance(last, Dense) else 0

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shape of one input, then of what each layer makes of it."""
        shapes = [self.input_shape]
        for layer in self.layers:
            shapes.append(_after(layer, shapes[-1]))
        return shapes

    def __str__(self) -> str:
        if self.file:
            return f"{self.file}:{self.factory}"
        kind = "mlp" if len(self.input_shape) == 1 else "cnn"
        body = "-".join(["x".join(map(str, self.input_shape)), *map(str, self.layers)])
        options = [self.activation] if self.activation != "relu" else []
        return ":".join([kind, body, *options, *([] if self.bias else ["nobias"])])


def _after(layer: Layer, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape after `layer`; sizes below 1 where it does not fit."""
    match layer:
        case Dense(width):
            return (width,)
        case Pool(_, size):
            return (*shape[:1], *(side // size for side in shape[1:]))
        case Conv(out, kernel, stride, padding):
            sides = [(side + 2 * padding - kernel) // stride + 1 for side in shape[-2:]]
            return (out, *sides)


def _parameters(layer: Layer, before: tuple[int, ...]) -> int:
    match layer:
        case Dense(width):
            return width * math.prod(before)
        case Conv(out, kernel):
            return out * before[0] * kernel**2
        case Pool():
            return 0


def parse_model(text: str, *, longest: int = 4096) -> ModelSpec:
    """The model that `text`, of at most `longest` characters, describes; or an InputError."""
    text = text.strip()
    if len(text) > longest or not text.isprintable():
        got = f"{len(text)} characters" if len(text) > longest else ascii(text[:60])
        raise InputError(expected("model", EXAMPLES, got))
    kind, colon, rest = text.partition(":")
    if kind in ("mlp", "cnn") and colon:
        body, *options = rest.split(":")
        shape, layers = (_mlp if kind == "mlp" else _cnn)(_quote(text), body)
        activation, bias = _options(_quote(text), options)
        return ModelSpec(input_shape=shape, layers=layers, activation=activation, bias=bias)
    file, _, factory = text.rpartition(":")
    if file.endswith(".py") and factory.isidentifier():
        return ModelSpec(file=file, factory=factory)
    if text.endswith(".py"):
        raise InputError(expected("model", "file.py:factory", _quote(text), "name the factory"))
    raise InputError(expected("model", EXAMPLES, _quote(text)))


def _quote(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")


def _mlp(quoted: str, body: str) -> tuple[tuple[int, ...], tuple[Layer, ...]]:
    sizes = [_size(quoted, token) for token in body.split("-")]
    return (sizes[0],), tuple(Dense(size) for size in sizes[1:])


def _cnn(quoted: str, body: str) -> tuple[tuple[int, ...], tuple[Layer, ...]]:
    first, *tokens = body.split("-")
    shape = _SHAPE.fullmatch(first)
    if not shape:
        raise InputError(
            expected(f"model {quoted}", "an input shape such as 3x32x32", _quote(first))
        )
    layers: list[Layer] = []
    for token in tokens:
        conv, pool = _CONV.fullmatch(token), _POOL.fullmatch(token)
        if conv:
            out, kernel, stride, padding = conv.groups()
            layers.append(Conv(int(out), int(kernel), int(stride or 1), int(padding or 0)))
        elif pool:
            layers.append(Pool(pool[1], int(pool[2])))
        else:
            layers.append(Dense(_size(quoted, token, "c<out>k<kernel>, m<size>, a<size> or ")))
    return tuple(int(side) for side in shape.groups()), tuple(layers)


def _size(quoted: str, token: str, other: str = "") -> int:
    if not _SIZE.fullmatch(token):
        raise InputError(expected(f"model {quoted}", f"{other}a positive width", _quote(token)))
    return int(token)


def _options(quoted: str, options: list[str]) -> tuple[str, bool]:
    names = [option for option in options if option != "nobias"]
    if len(names) > 1 or len(options) - len(names) > 1:
        got = _quote(":".join(options))
        raise InputError(expected(f"model {quoted}", "at most one activation and one nobias", got))
    for name in names:
        try:
            named_activation(name)
        except InputError as error:
            raise InputError(f"model {quoted}: {error}") from None
    return (names[0] if names else "relu"), len(names) == len(options)
