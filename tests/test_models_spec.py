"""Model strings: what parses says what it said; what does not is one line."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from remnant.errors import InputError
from remnant.models import ACTIVATIONS, activation, parse_model


def test_the_parts_of_a_spec():
    spec = parse_model("cnn:3x32x32-c16k4s2-m2-c32k4p1-10-7:elu")
    assert spec.input_shape == (3, 32, 32)
    assert [type(layer) for layer in spec.stack] == [
        nn.Conv2d, nn.ELU, nn.MaxPool2d, nn.Conv2d, nn.ELU, nn.Flatten, nn.Linear, nn.ELU, nn.Linear
    ]  # fmt: skip
    assert (spec.stack[0].stride, spec.stack[3].padding) == ((2, 2), (1, 1))
    assert spec.stack[6].in_features == 32 * 6 * 6
    assert spec.parameters == 3 * 16 * 16 + 16 * 32 * 16 + 1152 * 10 + 70
    plain = parse_model(" mlp:784-300-10:nobias:relu ")
    assert (plain.input_shape, plain.parameters) == ((784,), 784 * 300 + 3000)
    assert not any(name.endswith("bias") for name, _ in plain.stack.named_parameters())
    own = parse_model("dir/my net.py:make")
    assert (own.file, own.factory, own.input_shape) == ("dir/my net.py", "make", ())
    assert own.parameters == 0


MALFORMED = {
    "": "expected mlp:784-300-10, cnn:",
    "mlp": "expected mlp:784-300-10",
    "mlp:": "a positive width, got ''",
    "mlp:784": "a dense width last",
    "mlp:784-x-10": "expected a positive width, got 'x'",
    "mlp:784-0-10": "got '0'",
    "mlp:784--10": "got ''",
    "mlp:784-10:swish": "expected one of relu, leaky",
    "mlp:784-10:leaky0.0": "expected one of relu, leaky",
    "mlp:784-10:relu:tanh": "at most one activation",
    "mlp:784-10:nobias:nobias": "at most one activation and one nobias",
    "mlp:99999999-99999999": "at most 1000000000 parameters",
    "mlp:784-c3k3-10": "got 'c3k3'",
    "cnn:32x32-c3k3-10": "an input shape such as 3x32x32, got '32x32'",
    "cnn:3x32x32": "a dense width last",
    "cnn:3x32x32-c3k3": "a dense width last",
    "cnn:3x8x8-c4k9-10": "c4k9: expected an input that it fits in, got an input of 3x8x8",
    "cnn:3x8x8-c4k3-m7-10": "m7: expected an input that it fits in, got an input of 4x6x6",
    "cnn:3x8x8-10-c4k3-10": "dense widths last, got 'c4k3' after 10",
    "cnn:3x8x8-c4k3-10-m2-10": "dense widths last, got 'm2' after 10",
    "cnn:3x8x8-c4-10": "c<out>k<kernel>, m<size>, a<size> or a positive width, got 'c4'",
    "net.py": "file.py:factory, got 'net.py'; name the factory",
    "net.py:": "expected mlp:784-300-10",
    "net.txt:make": "expected mlp:784-300-10",
    "ml\np:3-4": "got 'ml\\np:3-4'",
    "mlp:" + "9-" * 5000: "10004 characters",
}


@pytest.mark.parametrize("text", MALFORMED)
def test_a_malformed_string_is_one_line_that_says_why(text):
    with pytest.raises(InputError) as caught:
        parse_model(text)
    message = str(caught.value)
    assert MALFORMED[text] in message
    assert len(message.splitlines()) == 1
    assert len(message) < 400


PIECES = ["mlp:", "cnn:", "3x8x8", "784", "-", "c4", "k3", "s2", "p1", "m2", "a3", ":", "elu"]
PIECES += ["nobias", "leaky0.2", "10", "0", "net", ".py", "٣", "\u2028", "x"]


@settings(max_examples=400, deadline=None)
@given(st.one_of(st.text(), st.lists(st.sampled_from(PIECES), max_size=14).map("".join)))
def test_any_string_parses_or_is_refused(text):
    try:
        parse_model(text)
    except InputError as error:
        assert len(str(error).splitlines()) == 1  # noqa: PT017


def test_activations_are_the_functions_they_name():
    x = torch.linspace(-3, 3, 61, dtype=torch.float64)
    values = {
        "relu": x.clamp(min=0),
        "leaky": torch.where(x > 0, x, 0.01 * x),
        "tanh": torch.tanh(x),
        "sigmoid": 1 / (1 + torch.exp(-x)),
        "elu": torch.where(x > 0, x, torch.expm1(x)),
        "celu": torch.where(x > 0, x, torch.expm1(x)),
        "selu": 1.0507009873554805 * torch.where(x > 0, x, 1.6732632423543772 * torch.expm1(x)),
        "gelu": x * (1 + torch.erf(x / 2**0.5)) / 2,
        "silu": x / (1 + torch.exp(-x)),
        "softplus": torch.log1p(torch.exp(x)),
        "cubic": x**2 + x**3,
        "floor": torch.maximum(x, torch.tensor(-0.5, dtype=x.dtype)),
        "identity": x,
    }
    assert set(values) == set(ACTIVATIONS)
    for name, value in values.items():
        torch.testing.assert_close(activation(name)(x), value)
    leaky = activation("leaky0.25")
    assert isinstance(leaky, nn.LeakyReLU)
    assert leaky.negative_slope == 0.25
