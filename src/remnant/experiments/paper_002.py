"""Paper 002: two records from one gradient of a wide network, f(x) = (1/m) sum_j s(w_j.x) + M.

w_j ~ N(0, I), square loss. `paper` is the tensor decomposition, `exact` our solver in the span.
Both are told the number of records (inputs e_i leave a gradient that is zero elsewhere, so its rank
tells nothing) and that M makes every residual positive (Remark 1). Errors are root-mean-square L2
over the records, whose norm is 1; the null's are those of two other records of norm 1.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from remnant.capturing import capture
from remnant.data import draw
from remnant.experiments.study import Figure, Rows, Study
from remnant.models import build, trap
from remnant.models.activations import activation as named_activation
from remnant.report.sheet import draw_sheet
from remnant.scoring import greedy, squared_l2
from remnant.seeds import generator_for
from remnant.solvers.tensor.deep import Deep, read_deep
from remnant.solvers.tensor.span_lm import SpanSettings, recover_span
from remnant.solvers.tensor.two_layer import TensorSettings, tensor_attack
from remnant.sweep.table import Row
from remnant.training import defences as defend
from remnant.types import Examples, Weights, finite

# measures


def measure_dimension(
    *, activation: str, method: str, seen: str, d: int, width: int, output_bias: float, seed: int
) -> Rows:
    """Figure 2: x_i = e_i, y = 1 and -1, of d dimensions."""
    model = gaussian_network(d, width, activation, output_bias, seed)
    truth = torch.eye(d, dtype=torch.float64)[:2]
    gradient = gradient_of(model, truth, -1.0)
    row, _ = solve_pair(model, gradient, truth, method, seen, seed)
    return [{"m": width} | row | null_of(truth, unit_pair(d, seed, "null"))]


def measure_pairs(
    digits: Examples,
    *,
    labels: str,
    method: str,
    width: int,
    activation: str,
    output_bias: float,
    seed: int,
) -> Rows:
    """Figure 3: two digits of norm 1, with labels that agree or not."""
    asked = (labels, method, width, activation, output_bias, seed)
    truth, _, row = digits_found(digits, *asked)
    others = digit_pair(digits, same=labels == "same", seed=seed + 10_000)
    return [{"m": width, "d": truth.shape[1]} | row | null_of(truth, others)]


def digits_found(
    digits: Examples, labels: str, method: str, width: int, activation: str, output_bias: float,
    seed: int,
) -> tuple[Tensor, Tensor, Row]:  # fmt: skip
    """The pair (2 x d), what comes back of it in its order, and the row."""
    same = labels == "same"
    truth = digit_pair(digits, same=same, seed=seed)
    model = gaussian_network(truth.shape[1], width, activation, output_bias, seed)
    gradient = gradient_of(model, truth, 1.0 if same else -1.0)
    row, found = solve_pair(model, gradient, truth, method, "dL/dW", seed)
    return truth, found, row


def measure_deep(
    *, network: str, method: str, noise: float, d: int, width: int, output_bias: float, seed: int
) -> Rows:
    """Section 4.2: a server's network whose first layers pass the batch through (`server NAME`), or
    honest random layers that are undone (`eavesdropper NAME`); `two layers NAME` for comparison.

    noise: Gaussian, as a share of the standard deviation of each tensor of the gradient.
    """
    kind, _, name = network.rpartition(" ")
    truth, chance = unit_pair(d, seed, "pair"), generator_for(seed, "weights")
    if kind == "server":
        sent = trap(d, width, 3, generator=chance, activation=name, output_bias=output_bias,
                    last_activation="relu" if name == "relu" else "cubic")  # fmt: skip
        model = sent.model
    elif kind == "eavesdropper":
        front = build(f"mlp:{d}-{2 * d}-{2 * d}:{name}", generator=chance, dtype=torch.float64)
        last = gaussian_network(2 * d, width, "cubic", output_bias, seed)
        model = nn.Sequential(front, named_activation(name), *last)
    else:
        model = gaussian_network(d, width, name, output_bias, seed)
    gradient = gradient_of(model, truth, -1.0)
    if noise:
        gradient = defend.noisy(gradient, noise, generator=generator_for(seed, "noise"))
    row, _ = solve_pair(model, gradient, truth, method, "dL/dW", seed)
    return [{"m": width} | row | null_of(truth, unit_pair(d, seed, "null"))]


# pairs and networks


def digit_pair(digits: Examples, *, same: bool, seed: int) -> Tensor:
    """Two images of norm 1, 2 x d float64: of one class, or of two."""
    order = draw(digits, len(digits), generator=generator_for(seed, "pair"), balanced=False)
    agrees = (order.labels == order.labels[0]) == same
    agrees[0] = False
    pair = order.inputs[[0, int(agrees.nonzero()[0])]].flatten(1).double()
    return nn.functional.normalize(pair, dim=1)


def unit_pair(d: int, seed: int, purpose: str) -> Tensor:
    pair = torch.randn(2, d, generator=generator_for(seed, purpose), dtype=torch.float64)
    return nn.functional.normalize(pair, dim=1)


def gaussian_network(
    d: int, m: int, activation: str, output_bias: float, seed: int
) -> nn.Sequential:
    """002's network in float64: w ~ N(0, I), a = 1/m, no first bias, M as the output's bias."""
    # By way of `meta`, so that no global draw is spent.
    first = nn.Linear(d, m, bias=False, dtype=torch.float64, device="meta").to_empty(device="cpu")
    head = nn.Linear(m, 1, dtype=torch.float64, device="meta").to_empty(device="cpu")
    with torch.no_grad():
        first.weight.normal_(generator=generator_for(seed, "weights"))
        head.weight.fill_(1 / m)
        head.bias.fill_(output_bias)
    return nn.Sequential(first, named_activation(activation), head)


def gradient_of(model: nn.Module, truth: Tensor, second: float) -> Weights:
    """Of records with labels 1 and `second`."""
    return capture(model, "mse", (truth, torch.tensor([1.0, second], dtype=torch.float64)))


# attacks


def solve_pair(
    model: nn.Module, gradient: Weights, truth: Tensor, method: str, seen: str, seed: int
) -> tuple[Row, Tensor]:
    """Attack one gradient of records of norm 1, then score what came back; in the truth's order."""
    read = read_deep(model, gradient)
    assert not isinstance(read, str), read
    unseen = {"dL/dW": {"head": None, "head_bias": None}, "dL/da": {"weights": None, "bias": None}}
    if read.kind == "two layers":
        read = replace(read, gradient=replace(read.gradient, **unseen[seen]))
    begun = time.process_time()
    found, certified = attack_pair(read, method, len(truth), generator_for(seed, "attack"))
    seconds = time.process_time() - begun
    matches = greedy(squared_l2(truth, found))
    error = matches.distance
    return {
        "l2_error": finite(float(error.mean().sqrt())),
        "max_l2_error": finite(float(error.max().sqrt())),
        "certified": certified,
        "cpu_seconds": round(seconds, 3),
    }, found[matches.candidate]


def attack_pair(
    read: Deep, method: str, count: int, generator: torch.Generator
) -> tuple[Tensor, bool]:
    """Records and whether they certify themselves."""
    seen = read.gradient
    if method == "exact":
        found = recover_span(
            read.network, seen, SpanSettings(), generator=generator, count=count, residual_sign=1
        )
        return read.to_inputs(found.inputs), found.certified and found.sign_known
    source: Literal["head", "layer"] = "head" if seen.weights is None else "layer"
    norm = None if read.front else read.scale
    settings = TensorSettings(source=source, norm=norm, residual_sign=1)
    rough = tensor_attack(read.network, seen, count, settings, generator=generator)
    return read.directions_to_inputs(rough.inputs, 1.0), False


def null_of(truth: Tensor, others: Tensor) -> Row:
    return {"null_error": float(greedy(squared_l2(truth, others)).distance.mean().sqrt())}


def pairs_sheet(data: Mapping[str, Examples], values: Mapping[str, Any]) -> bytes:
    """Figure 3's images: both methods at the least and the largest width, labels as given."""
    digits = next(iter(data.values()))
    widths = values["width"] if isinstance(values["width"], list) else [values["width"]]
    rest = (values["activation"], values["output_bias"], values["seed"][0])
    originals, back, captions = [], [], []
    for labels in values["labels"]:
        for method in values["method"]:
            for width in dict.fromkeys((min(widths), max(widths))):
                truth, found, _ = digits_found(digits, labels, method, width, *rest)
                originals.append(truth)
                back.append(found)
                errors = (truth - found).norm(dim=1)
                captions += [(f"{method}, m = {width}", f"{float(e):.1e}", labels) for e in errors]
    every, top = torch.cat(originals), float(torch.cat(originals).max())
    return draw_sheet(
        every.reshape(-1, *digits.shape), torch.cat(back).reshape(-1, *digits.shape), captions,
        rows=("method, width", "L2 error", "labels"), bounds=(0.0, top),
        title="Pairs of digits out of one gradient", footer="images of norm 1",
    )  # fmt: skip


DEEP = [
    *((network, method, 0.0) for network in ("two layers cubic", "server leaky", "server tanh",
      "eavesdropper tanh", "eavesdropper sigmoid") for method in ("paper", "exact")),
    ("two layers relu", "paper", 0.0), ("server relu", "paper", 0.0),  # by Remark 4
    *(("two layers cubic", method, noise) for noise in (0.01, 0.1, 1.0)
      for method in ("paper", "exact")),
]  # fmt: skip
SHOWN = ("l2_error", "max_l2_error", "null_error", "certified", "cpu_seconds")

STUDIES: Mapping[str, Study] = {
    "gradient-dimension": Study(
        title="Two records from one gradient of a two-layer network, m = 5000",
        measure=measure_dimension,
        settings={
            "activation method seen": [
                ("cubic", "paper", "dL/da"),
                ("cubic", "paper", "dL/dW"),
                ("cubic", "exact", "dL/dW"),
                ("tanh", "paper", "dL/dW"),
                ("tanh", "exact", "dL/dW"),
                ("sigmoid", "paper", "dL/dW"),
                ("sigmoid", "exact", "dL/dW"),
                ("relu", "paper", "dL/dW"),
            ],
            "d": [20, 50, 100, 200, 500],
            "width": 5000,
            "output_bias": 30.0,
        },
        quick={"d": [20, 100]},
        columns=(
            "activation", "method", "seen", "d", "seed", *SHOWN,
        ),
        figures=(
            Figure(
                x="d", lines={"l2_error": "{method}, {seen}", "null_error": "null"},
                across="dimension d",
                up="L2 error (records of norm 1)", panel="{activation}",
            ),
        ),
        seeds=5,
    ),
    "gradient-pairs": Study(
        title="Two MNIST digits from one gradient of a two-layer network, x² + x³",
        measure=measure_pairs,
        settings={
            "labels": ["same", "different"],
            "method": ["paper", "exact"],
            "width": [500, 1000, 2000, 5000, 10000],
            "activation": "cubic",
            "output_bias": 30.0,
            "data": "mnist",
        },
        quick={"width": [500, 5000]},
        columns=(
            "labels", "method", "m", "seed", *SHOWN,
        ),
        figures=(
            Figure(
                x="m", lines={"l2_error": "{method}", "null_error": "other digits"},
                across="width m",
                up="L2 error (images of norm 1)", panel="{labels} labels",
            ),
        ),
        seeds=5,
        sheet=pairs_sheet,
    ),
    "gradient-deep": Study(
        title="Two records from one gradient of a deep network, and of a noisy one",
        measure=measure_deep,
        settings={
            "network method noise": DEEP, "d": 20, "width": 3000, "output_bias": 30.0,
        },
        quick={"network method noise": DEEP, "width": 1500},
        columns=("network", "method", "noise", "seed", *SHOWN),
        figures=(
            Figure(
                x="network", lines={"l2_error": "{method}", "null_error": "null"}, across="network",
                up="L2 error (records of norm 1)", panel="no noise", only={"noise": 0.0},
            ),
            Figure(
                x="noise", lines={"l2_error": "{method}", "null_error": "null"},
                across="noise / standard deviation", up="L2 error (records of norm 1)",
                panel="two layers", only={"network": "two layers cubic"},
            ),
        ),
        seeds=3,
    ),
}  # fmt: skip
