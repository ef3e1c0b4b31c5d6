"""The adversaries that an audit plays: what each holds, when it applies, what it costs.

One line in the table per attack. `why_not` says in a sentence why there is no such adversary here;
`twin` makes a target that must leak to this attack, and the records that it leaks. Who knows all
records but one plays once for each that is left out: `rows` chooses, `without` says what is held.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from remnant.attacks import Attack
from remnant.attacks.made import make_attack
from remnant.auditing.case import Case, twin_of_checkpoints, twin_of_gradient, twin_of_weights
from remnant.auditing.left_out import (
    LINEAR,
    Targets,
    chosen_rows,
    informed_rows,
    steps_of,
    twin_of_linear,
    twin_of_run,
    why_not_informed,
    why_not_linear,
    without_informed,
    without_linear,
)
from remnant.models.linear_files import LinearModel
from remnant.solvers.layers import Pair, first_pair
from remnant.types import Examples, Target

__all__ = ["ADVERSARIES", "Adversary", "Cost", "make_attack"]
SMALL = 0.03  # billions of multiply-adds in the time that any small step takes
Twin = Callable[[Case, Attack, torch.Generator], tuple[Target, Examples]]


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Billions of multiply-adds and the most bytes that an attack is expected to take."""

    work: float
    memory: float


@dataclass(frozen=True, kw_only=True)
class Adversary:
    title: str
    holds: str
    why_not: Callable[[Case, Attack], str | None]
    stronger: Callable[[Case], str | None]  # what would make the audit stronger
    cost: Callable[[Case], Cost]  # of one run
    twin: Twin
    most: int = 0  # records left out in turn unless told otherwise; 0 = none is, all are sought
    rows: Callable[[Case, Targets, int, int], list[int]] = chosen_rows
    without: Callable[[Case, Sequence[int]], Iterator[Target]] | None = None


def _is_linear(case: Case) -> bool:
    return isinstance(case.target.model, LinearModel)


def _no_initial(case: Case, attack: Attack) -> str | None:
    if _is_linear(case):
        return LINEAR
    if case.target.knowledge.initial is None:
        return "the weights before training were not given"
    return _first_layers(case)


def _no_gradient(case: Case, attack: Attack) -> str | None:
    if _is_linear(case):
        return LINEAR
    return "no gradient was given" if case.target.knowledge.gradient is None else None


def _first_layers(case: Case) -> str | None:
    pair = first_pair(case.target.model, after_convolutions=True)
    return pair if isinstance(pair, str) else None


def _kkt_assumptions(case: Case, attack: Attack) -> str | None:
    if _is_linear(case):
        return LINEAR
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


def _replay_cost(case: Case) -> Cost:
    """Some 100 evaluations through all steps and back, with kinks four times as many.

    Of small batches memory sets the pace: a step costs as much as 200 records more would.
    """
    model, steps = case.target.model, steps_of(case)
    count = sum(p.numel() for p in model.parameters())
    kinks = any(isinstance(m, nn.ReLU | nn.LeakyReLU) for m in model.modules())
    each = max(9 * (len(case.truth) + 200) * count * 1e-9, SMALL)
    memory = min(12.0 * count * steps, 2.0**30) + 40.0 * count
    return Cost(work=(400 if kinks else 100) * steps * each, memory=memory)


def _linear_cost(case: Case) -> Cost:
    d = math.prod(case.target.input_shape)
    n = len(case.truth)
    return Cost(work=max(1e-8 * n * d * d, SMALL), memory=8.0 * 20 * n * d)


ADVERSARIES: Mapping[str, Adversary] = {
    "ntk": Adversary(
        title="Weights before and after training",
        holds="the released weights and the weights that training began with: a public model that "
        "was fine-tuned, an earlier round of federated training, or a known random seed",
        why_not=_no_initial,
        stronger=lambda case: (
            "give --initial, the weights before training, if anyone else may have them"
            if case.target.knowledge.initial is None and not _is_linear(case)
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
            if case.target.knowledge.gradient is None and not _is_linear(case)
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
    "informed": Adversary(
        title="The training run and every record but one",
        holds="all training records but the one in question, the weights before and after, and how "
        "the model was trained: the strongest adversary, whom differential privacy assumes",
        why_not=why_not_informed,
        stronger=lambda case: (
            "give --recipe, how it was trained, and --initial for the adversary who knows all else"
            if case.target.knowledge.recipe is None and not _is_linear(case)
            else None
        ),
        cost=_replay_cost,
        twin=twin_of_run,
        most=3,
        rows=informed_rows,
        without=without_informed,
    ),
    "glm": Adversary(
        title="The coefficients and every record but one",
        holds="the coefficients, how they were fitted, and all training records but the one in "
        "question",
        why_not=why_not_linear,
        stronger=lambda case: None,
        cost=_linear_cost,
        twin=twin_of_linear,
        most=100,
        without=without_linear,
    ),
}
