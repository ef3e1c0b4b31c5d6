"""The adversaries that an audit plays: what each holds, when it applies, what it costs.

One line in the table per attack. `why_not` says in a sentence why there is no such adversary here;
`twin` makes a target that must leak to this attack, and the records that it leaks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from remnant.auditing.case import Case, twin_of_checkpoints, twin_of_gradient, twin_of_weights
from remnant.solvers.layers import Pair, first_pair
from remnant.types import Examples, Target

Twin = Callable[[Case, torch.Generator], tuple[Target, Examples]]


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Billions of multiply-adds and the most bytes that an attack is expected to take."""

    work: float
    memory: float


@dataclass(frozen=True, kw_only=True)
class Adversary:
    title: str
    holds: str
    why_not: Callable[[Case], str | None]
    stronger: Callable[[Case], str | None]  # what would make the audit stronger
    cost: Callable[[Case], Cost]
    twin: Twin


def _no_initial(case: Case) -> str | None:
    if case.target.knowledge.initial is None:
        return "the weights before training were not given"
    return _first_layers(case)


def _no_gradient(case: Case) -> str | None:
    return "no gradient was given" if case.target.knowledge.gradient is None else None


def _first_layers(case: Case) -> str | None:
    pair = first_pair(case.target.model, after_convolutions=True)
    return pair if isinstance(pair, str) else None


def _kkt_assumptions(case: Case) -> str | None:
    norms = [
        m for m in case.target.model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)
    ]
    return "batch norm: stationarity says nothing about the weights before it" if norms else None


def _first_width(case: Case) -> tuple[int, int]:
    """(inputs, neurons) of the first dense layer."""
    pair = first_pair(case.target.model, after_convolutions=True)
    if not isinstance(pair, Pair):
        return math.prod(case.target.input_shape), 1
    w, d = case.target.weights[pair.first.weight].shape
    return d, w


def _graph_cost(factor: float) -> Callable[[Case], Cost]:
    """Fitted by eye to measured runs: the searches take some `factor` N^2 W multiply-adds."""

    def cost(case: Case) -> Cost:
        d, w = _first_width(case)
        n = len(case.truth)
        return Cost(
            work=factor * n * n * w * 1e-9, memory=8.0 * (6 * d * w + 40 * n * w + 4 * w * w)
        )

    return cost


def _kkt_cost(case: Case) -> Cost:
    count = sum(p.numel() for p in case.target.model.parameters())
    n = len(case.truth)
    return Cost(work=4 * 1000 * 6 * 2 * n * count * 1e-9, memory=40.0 * (count + n * n))


ADVERSARIES: Mapping[str, Adversary] = {
    "ntk": Adversary(
        title="Weights before and after training",
        holds="the released weights and the weights that training began with: a public model that "
        "was fine-tuned, an earlier round of federated training, or a known random seed",
        why_not=_no_initial,
        stronger=lambda case: (
            "give --initial, the weights before training, if anyone else may have them"
            if case.target.knowledge.initial is None
            else None
        ),
        cost=_graph_cost(2.5e4),
        twin=twin_of_checkpoints,
    ),
    "gradient": Adversary(
        title="One gradient",
        holds="the model and one gradient of a batch, as a federated client sends it",
        why_not=_no_gradient,
        stronger=lambda case: (
            "give --gradient, what a client would send (remnant.capture), for federated training"
            if case.target.knowledge.gradient is None
            else None
        ),
        cost=_graph_cost(6e3),
        twin=twin_of_gradient,
    ),
    "kkt": Adversary(
        title="The released weights alone",
        holds="nothing but the released weights",
        why_not=_kkt_assumptions,
        stronger=lambda case: None,
        cost=_kkt_cost,
        twin=twin_of_weights,
    ),
}
