"""Paper 002's figures: pairs of records from one gradient of a wide two-layer network.

f(x) = (1/m) sum_j s(w_j.x) + M, w_j ~ N(0, I), square loss. `paper` is the tensor decomposition,
`exact` our solver in the span. Both are told the number of records (inputs e_i leave a gradient
that is zero elsewhere, so its rank tells nothing) and that M makes every residual positive
(Remark 1).
Errors are root-mean-square L2 over the records, whose norm is 1.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from remnant.capturing import capture
from remnant.data import draw
from remnant.models.activations import activation as named_activation
from remnant.report.lines import Panel, line_panels
from remnant.scoring import greedy, squared_l2
from remnant.seeds import generator_for
from remnant.solvers.tensor.deep import read_deep
from remnant.solvers.tensor.span_lm import SpanSettings, recover_span
from remnant.solvers.tensor.two_layer import (
    BatchGradient,
    TensorSettings,
    TwoLayer,
    tensor_attack,
)
from remnant.types import Examples

Row = dict[str, Any]
NAMES = {"cubic": "x² + x³", "tanh": "tanh", "sigmoid": "sigmoid"}


@dataclass(frozen=True, kw_only=True)
class Dimension:
    """002, Figure 2: x_i = e_i, y = 1 and -1, error against the dimension d."""

    width: int = 5000
    dimensions: tuple[int, ...] = (20, 50, 100, 200, 500)
    # (activation, method, what is seen)
    curves: tuple[tuple[str, str, str], ...] = (
        ("cubic", "paper", "dL/da"),
        ("cubic", "paper", "dL/dW"),
        ("cubic", "exact", "dL/dW"),
        ("tanh", "paper", "dL/dW"),
        ("tanh", "exact", "dL/dW"),
        ("sigmoid", "paper", "dL/dW"),
        ("sigmoid", "exact", "dL/dW"),
    )
    output_bias: float = 30.0
    repeats: int = 5
    data: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """002, Figure 3: two MNIST digits of norm 1, with labels that agree or not, against m."""

    widths: tuple[int, ...] = (500, 1000, 2000, 5000, 10000)
    activation: str = "cubic"
    methods: tuple[str, ...] = ("paper", "exact")
    output_bias: float = 30.0
    repeats: int = 5
    data: tuple[str, ...] = ("mnist",)


QUICK_DIMENSION = Dimension(dimensions=(20, 100), repeats=1)
QUICK_PAIRS = Pairs(widths=(500, 5000), repeats=1)


def dimension_cells(settings: Dimension, seed: int) -> list[Row]:
    return [
        {"activation": activation, "method": method, "seen": seen, "d": d, "seed": seed + k}
        for activation, method, seen in settings.curves
        for d in settings.dimensions
        for k in range(settings.repeats)
    ]


def measure_dimension(settings: Dimension, cell: Row, data: Mapping[str, Examples]) -> list[Row]:
    network = gaussian_network(
        cell["d"], settings.width, cell["activation"], settings.output_bias, cell["seed"]
    )
    truth = torch.eye(cell["d"], dtype=torch.float64)[:2]
    labels = torch.tensor([1.0, -1.0], dtype=torch.float64)
    outcome = solve_pair(network, truth, labels, cell["method"], cell["seen"], cell["seed"])
    return [cell | {"m": settings.width} | outcome]


def plot_dimension(rows: Sequence[Row]) -> tuple[Panel, ...]:
    return line_panels(
        rows,
        panel=lambda row: NAMES[row["activation"]],
        line=lambda row: f"{row['method']}, {row['seen']}",
        x="d",
        y="l2_error",
        across="dimension d",
        up="L2 error (records of norm 1)",
    )


def pairs_cells(settings: Pairs, seed: int) -> list[Row]:
    return [
        {"labels": labels, "method": method, "m": m, "seed": seed + k}
        for labels in ("same", "different")
        for method in settings.methods
        for m in settings.widths
        for k in range(settings.repeats)
    ]


def measure_pairs(settings: Pairs, cell: Row, data: Mapping[str, Examples]) -> list[Row]:
    digits = data[settings.data[0]]
    truth = digit_pair(digits, same=cell["labels"] == "same", seed=cell["seed"])
    d = truth.shape[1]
    network = gaussian_network(
        d, cell["m"], settings.activation, settings.output_bias, cell["seed"]
    )
    second = 1.0 if cell["labels"] == "same" else -1.0
    labels = torch.tensor([1.0, second], dtype=torch.float64)
    outcome = solve_pair(network, truth, labels, cell["method"], "dL/dW", cell["seed"])
    return [cell | {"d": d} | outcome]


def plot_pairs(rows: Sequence[Row]) -> tuple[Panel, ...]:
    return line_panels(
        rows,
        panel=lambda row: f"{row['labels']} labels",
        line="method",
        x="m",
        y="l2_error",
        across="width m",
        up="L2 error (images of norm 1)",
    )


def digit_pair(digits: Examples, *, same: bool, seed: int) -> Tensor:
    """Two images of norm 1, 2 x d float64: of one class, or of two."""
    generator = generator_for(seed, "pair")
    order = draw(digits, len(digits), generator=generator, balanced=False)
    agrees = (order.labels == order.labels[0]) == same
    agrees[0] = False
    other = int(agrees.nonzero()[0])
    pair = order.inputs[[0, other]].flatten(1).double()
    return nn.functional.normalize(pair, dim=1)


def gaussian_network(
    d: int, m: int, activation: str, output_bias: float, seed: int
) -> nn.Sequential:
    """002's network in float64: w ~ N(0, I), a = 1/m, no first bias, M as the output's bias."""
    generator = generator_for(seed, "weights")
    # By way of `meta`, so that no global draw is spent.
    first = nn.Linear(d, m, bias=False, dtype=torch.float64, device="meta").to_empty(device="cpu")
    head = nn.Linear(m, 1, dtype=torch.float64, device="meta").to_empty(device="cpu")
    with torch.no_grad():
        first.weight.normal_(generator=generator)
        head.weight.fill_(1 / m)
        head.bias.fill_(output_bias)
    return nn.Sequential(first, named_activation(activation), head)


def solve_pair(
    model: nn.Module, truth: Tensor, labels: Tensor, method: str, seen: str, seed: int
) -> Row:
    """Attack one gradient, then score what came back."""
    read = read_deep(model, capture(model, "mse", (truth, labels)))
    assert not isinstance(read, str), read
    network, gradient = read.network, read.gradient
    observed = BatchGradient(
        weights=gradient.weights if seen == "dL/dW" else None,
        head=gradient.head if seen == "dL/da" else None,
    )
    generator = generator_for(seed, "attack")
    begun = time.process_time()
    found, certified = attack_pair(network, observed, method, len(truth), generator)
    seconds = time.process_time() - begun
    error = greedy(squared_l2(truth, found)).distance
    return {
        "l2_error": finite(float(error.mean().sqrt())),
        "max_l2_error": finite(float(error.max().sqrt())),
        "certified": certified,
        "cpu_seconds": round(seconds, 3),
    }


def attack_pair(
    network: TwoLayer, seen: BatchGradient, method: str, count: int, generator: torch.Generator
) -> tuple[Tensor, bool]:
    """Records and whether they certify themselves."""
    if method == "exact":
        found = recover_span(
            network, seen, SpanSettings(), generator=generator, count=count, residual_sign=1
        )
        return found.inputs, found.certified and found.sign_known
    settings = TensorSettings(
        source="head" if seen.weights is None else "layer", norm=1.0, residual_sign=1
    )
    return tensor_attack(network, seen, count, settings, generator=generator).inputs, False


def finite(value: float) -> float | None:
    """JSON knows no infinity: None stands for a record without a candidate."""
    return value if math.isfinite(value) else None
