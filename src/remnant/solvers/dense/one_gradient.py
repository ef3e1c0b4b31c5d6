"""Every record of a batch from one gradient at known weights, for networks that begin dense.

M1, the gradient of the first layer with its bias, has the number of records as its rank and their
span as its row space. What the next dense layer adds decides the rest: its gradient M2 if it has as
many rows as the batch has records (`batch_search`; `smooth` for smooth activations), only its
weight otherwise. A single record needs neither. Nothing is called complete unless
the records, put through the layers again, give back both gradients (`resimulate`).
"""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from remnant.errors import InputError, expected
from remnant.solvers.dense.batch_errors import (
    dual_errors,
    graph_errors,
    infinite_errors,
    outside_span,
    scale_errors,
    upright,
)
from remnant.solvers.dense.batch_search import (
    Limits,
    Spaces,
    search_graph,
    search_signals,
    settle,
    settle_duals,
)
from remnant.solvers.dense.certificate import spread_of
from remnant.solvers.dense.frames import first_side, pose_frames
from remnant.solvers.dense.resimulate import Resimulation, resimulate
from remnant.solvers.dense.rounds import Found, Search
from remnant.solvers.dense.smooth import pose_smooth, search_smooth
from remnant.solvers.dense.smooth_refine import refine
from remnant.solvers.dense.tolerances import TOLERANCES
from remnant.solvers.numerics import best_fit
from remnant.solvers.spans import (
    Decomposition,
    Parts,
    Spectrum,
    count_in_noise,
    decompose,
    rounding_level,
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Layers:
    """What the adversary holds of two consecutive dense layers. float64.

    first, first_gradient: w x (d+1) with the bias last, or w x d without one, where only the next
    layer's bias can fix the records' scale. next_weight: v x w. next_gradient: v x w, or v x (w+1)
    with the bias last.
    """

    first: Tensor
    first_gradient: Tensor
    next_weight: Tensor
    next_gradient: Tensor
    activation: nn.Module
    bias: bool
    last: bool  # the next layer is the output
    precision: float  # relative rounding of the gradients

    @property
    def width(self) -> int:
        return len(self.first)


@dataclass(frozen=True, kw_only=True, eq=False)
class BatchRecovery:
    """What was recovered, and what says so without the truth.

    `passed` records are exact up to the noise of the gradient. In a complete recovery the records
    give back both gradients; `resimulation` holds how well.
    """

    inputs: Tensor  # k x d
    residual: Tensor  # k: how far features and dual are from their equations, or the deviation
    passed: Tensor  # k, bool
    counted: int
    spectrum: Spectrum
    complete: bool
    found: list[float]  # number of records after each round
    resimulation: Resimulation | None
    error: Tensor  # k: the squared error to expect (L2, in the model's scale)
    reason: str  # in a sentence
    doubt: str = ""  # goes after the reason and its error


def recover_batch(
    layers: Layers,
    *,
    count: int | None = None,
    search: Search | None = None,
    generator: torch.Generator,
) -> BatchRecovery:
    """All records of the batch behind one gradient. count: None = read it off the spectrum."""
    layers = replace(layers, activation=deepcopy(layers.activation).double())
    check_shapes(layers)
    parts = decompose(layers.first_gradient)
    gradient = layers.first_gradient
    spectrum = count_in_noise(parts.values, gradient, layers.precision)
    counted = spectrum.counted(count)
    if counted > 1:
        obstacle = undetermined(layers, counted, known=spectrum.clear or count is not None)
        if obstacle:
            return nothing(layers, spectrum, counted, obstacle)
    # Where columns differ in size, rounding is that of the largest.
    least = layers.precision * float(gradient.square().mean().sqrt())
    noise = max(least, parts.noise(counted))
    search = search or Search(iterations=8000, patience=5)
    outcome = solve(layers, parts, noise, counted, search, generator)
    return conclude(layers, parts, spectrum, counted, outcome)


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """What a search found, records (k x (d+1)) that are `exact` or only near, and their squared
    errors (k), one standard deviation, with a bias' 1 or else at unit length."""

    found: Found
    series: list[float]  # number of records after each round
    records: Tensor
    exact: bool
    error: Tensor


def solve(
    layers: Layers,
    parts: Decomposition,
    noise: float,
    counted: int,
    search: Search,
    generator: torch.Generator,
) -> Outcome:
    """The search that fits the activation and the next layer. noise: of an entry of M1."""
    leak, clean = leak_of(layers.activation), parts.tail(counted) < TOLERANCES.clean
    limits = Limits()
    if not clean:
        limits = Limits(arrived=TOLERANCES.roughly, residual=TOLERANCES.noisy)
    if counted == 1:
        return single(layers, parts, noise)
    if leak is None:
        limit = TOLERANCES.deviation if clean else TOLERANCES.noisy
        return solve_smooth(layers, parts.parts(counted), noise, search, limit, generator)
    if layers.last or counted > len(layers.next_weight):
        given = (search, limits, generator)
        return solve_signals(layers, parts.parts(counted), noise, leak, *given)
    next_parts = decompose(layers.next_gradient[:, : layers.width]).parts(counted)
    leading = parts.parts(counted)
    frames, to_record = pose_frames(layers.first, layers.next_weight, leading, next_parts)
    found, series = search_graph(frames, leak, search, limits, generator)
    inexact = len(found) > 0 and float(found.residual.max()) > 0.1 * TOLERANCES.exact
    if len(found) < counted or not clean or inexact:
        found = settle(frames, found, leak)
    records = found.y @ to_record
    blur = layers.first.square().sum() * noise**2 * frames.inverse1 @ frames.inverse1.T
    error = graph_errors(frames, to_record, found, leak, layers.bias, blur)
    beside = outside_span(records, found.y @ frames.inverse1, noise, layers.bias)
    return Outcome(found=found, series=series, records=records, exact=True, error=error + beside)


def solve_smooth(
    layers: Layers,
    leading: Parts,
    noise: float,
    search: Search,
    limit: float,
    generator: torch.Generator,
) -> Outcome:
    """Every record of a smooth activation is exact on its own. limit: its largest deviation."""
    n = len(leading[1])
    values = torch.linalg.svdvals(layers.next_gradient)
    rounding = rounding_level(layers.next_gradient, layers.precision)
    level = max(rounding, *values[n : n + 1].tolist())
    problem = pose_smooth(
        leading,
        layers.activation,
        layers.first,
        layers.next_gradient,
        level=level,
        next_weight=layers.next_weight,
    )
    narrower = replace(search, starts=min(search.starts, 16))  # each costs a matrix
    found, series = search_smooth(problem, narrower, limit, generator, refine)
    records = found.y @ problem.right
    error = found.residual.square() * upright(records, layers.bias).square().sum(1)
    beside = outside_span(records, found.y / problem.scale, noise, layers.bias)
    return Outcome(found=found, series=series, records=records, exact=True, error=error + beside)


def solve_signals(
    layers: Layers,
    leading: Parts,
    noise: float,
    leak: float,
    search: Search,
    limits: Limits,
    generator: torch.Generator,
) -> Outcome:
    """Before the output layer, or one too narrow for the batch: all duals give all records."""
    frame, inverse, to_record = first_side(layers.first, leading)
    signals = torch.linalg.qr(layers.next_weight.T)[0]
    spaces = Spaces(t=frame, a=leading[0], p=signals, inverse1=inverse)
    found, series = search_signals(spaces, leak, search, limits, generator)
    if len(found) < len(leading[1]):
        rough, error = found.y @ to_record, infinite_errors(found)
        return Outcome(found=found, series=series, records=rough, exact=False, error=error)
    found, records = settle_duals(spaces, to_record, found, layers.first, leak)
    blur = layers.width * (noise / leading[1]).square().diag()
    error = dual_errors(spaces, found, records, leak, layers.bias, blur)
    beside = outside_span(records, torch.linalg.pinv(found.z.T), noise, layers.bias)
    return Outcome(found=found, series=series, records=records, exact=True, error=error + beside)


def check_shapes(layers: Layers) -> None:
    """Raise on matrices that do not belong together."""
    width = layers.width
    if layers.first.shape != layers.first_gradient.shape:
        shapes = tuple(layers.first.shape), tuple(layers.first_gradient.shape)
        raise InputError(expected("one gradient: first layer's gradient", *shapes))
    rows, columns = layers.next_gradient.shape
    if layers.next_weight.shape != (rows, width) or columns not in (width, width + 1):
        got = f"{tuple(layers.next_weight.shape)} and {tuple(layers.next_gradient.shape)}"
        wanted = f"v x {width} and v x {width} or v x {width + 1}"
        raise InputError(expected("one gradient: next layer's weight and gradient", wanted, got))


def leak_of(activation: nn.Module) -> float | None:
    """The slope below 0 of a piecewise linear activation with slope 1 above; None for others."""
    if isinstance(activation, nn.ReLU):
        return 0.0
    if isinstance(activation, nn.LeakyReLU):
        return float(activation.negative_slope)
    if isinstance(activation, nn.PReLU) and activation.weight.numel() == 1:
        return float(activation.weight.detach())
    return None


def undetermined(layers: Layers, count: int, *, known: bool) -> str:
    """Why so many records cannot be told apart, or nothing. known: False = there may be more."""
    width, columns = layers.first.shape
    records = f"{count} records" if known else f"{count} or more records"
    outputs = len(layers.next_weight)
    if count >= min(width, columns):
        return f"{records} fill the first layer ({width} x {columns}): no span to search in"
    smooth = leak_of(layers.activation) is None
    if smooth and not layers.bias:
        return "without a bias in the first layer this search settles neither size nor sign"
    if layers.last or count > outputs:
        if smooth:
            name = type(layers.activation).__name__
            return f"{name} before the output layer leaves nothing exact to search on"
        if count + outputs >= width:
            return f"{records} and {outputs} outputs need a layer wider than {width}"
    elif 2 * count >= width:
        return f"{records} need a layer wider than {2 * count}, it is {width}"
    return ""


def single(layers: Layers, parts: Decomposition, noise: float) -> Outcome:
    """One record, from M1 = a x~^T: rows of weights over their biases, weighted by the biases."""
    gradient = layers.first_gradient
    if layers.bias:
        record = gradient[:, -1] @ gradient / gradient[:, -1].square().sum()
    else:
        record = parts.right[0]
        t = layers.first @ record
        # A dual is larger on neurons that fire, which tells the record from its negative.
        record = record * torch.sign((parts.left[:, 0].abs() * t).sum())
    residual = torch.tensor([parts.tail(1)], dtype=torch.float64)
    one = torch.ones(1, 1, dtype=torch.float64)
    found = Found(y=one, z=one, residual=residual)
    share = record.norm() / parts.values[:1, None]
    error = outside_span(record[None], share, noise, layers.bias)
    series = [0.0, 1.0]
    return Outcome(found=found, series=series, records=record[None], exact=True, error=error)


def conclude(
    layers: Layers,
    parts: Decomposition,
    spectrum: Spectrum,
    counted: int,
    outcome: Outcome,
) -> BatchRecovery:
    """Scale the records, put them through the layers again, and say what holds."""
    found, tail = outcome.found, parts.tail(counted)
    full = len(found) == counted
    records, scaled, doubt = fix_scale(layers, outcome.records, full)
    smooth = leak_of(layers.activation) is None
    tolerance = TOLERANCES.exact if tail < TOLERANCES.clean else TOLERANCES.noisy
    tolerance = TOLERANCES.deviation if smooth else tolerance
    # Without the others no gradient is given back, which would betray a mixture of like records.
    alone = tolerance if full else 0.1 * tolerance
    passed = (found.residual < alone) & torch.isfinite(records).all(1)
    passed &= torch.tensor(outcome.exact and scaled)
    again, complete = None, False
    if full and scaled:
        again = resimulate(
            records,
            layers.first,
            layers.first_gradient,
            layers.next_weight,
            layers.next_gradient,
            layers.activation,
        )
        # Under noise signs near 0 flip and cost more than the noise, but less than a wrong record.
        noise = min(20 * tail, 0.3 / math.sqrt(counted))
        complete = max(again.first, again.next) < max(TOLERANCES.returned, noise)
        # Where f is nearly linear, mixtures of records give back nearly the same gradient.
        complete = complete and (bool(passed.all()) or not smooth)
        passed = passed | complete
    if tail > TOLERANCES.clean:  # one record tells too little there, all records together do
        passed = passed & torch.tensor(complete)
    size = records.square().sum(1)
    error = TOLERANCES.batch_safety * (
        outcome.error * (1.0 if layers.bias else size) + doubt * size
    )
    passed = passed & (error < TOLERANCES.sure * spread_of(records))
    return BatchRecovery(
        inputs=records[:, :-1] if layers.bias else records,
        residual=found.residual,
        passed=passed,
        counted=counted,
        spectrum=spectrum,
        complete=complete,
        found=outcome.series,
        resimulation=again,
        error=error,
        reason=reason_of(len(found), int(passed.sum()), counted, complete, scaled, smooth),
    )


def fix_scale(layers: Layers, records: Tensor, full: bool) -> tuple[Tensor, bool, Tensor]:
    """Records with their true scale, whether it could be told, and its squared relative errors.

    With a bias the last coordinate is 1. Without one M2 = sum_i d_i [h_i, 1]^T still fixes it: the
    weights give d_i times the scale of h_i, and these over the scales must add up to the bias.
    """
    if layers.bias:
        last = records[:, -1:]
        one = torch.where(last.abs() < 1e-12, torch.full_like(last, 1e-12), last)
        return records / one, True, torch.zeros_like(last[:, 0])
    width = layers.width
    rows, columns = layers.next_gradient.shape
    if not full or columns == width or rows < len(records) or leak_of(layers.activation) is None:
        return records, False, torch.full_like(records[:, 0], math.inf)
    with torch.no_grad():
        features = layers.activation(records @ layers.first.T)
    seen, wanted = layers.next_gradient[:, :width], layers.next_gradient[:, width:]
    signals = best_fit(features.T, seen.T)
    inverse = best_fit(signals.T, wanted)
    doubt = scale_errors(signals, inverse, wanted, signals.T @ features - seen)
    return records / inverse, bool((inverse > 0).all()), doubt


def reason_of(
    found: int, passed: int, counted: int, complete: bool, scaled: bool, smooth: bool
) -> str:
    if complete and passed < counted:
        mixed = counted - passed
        return f"{counted} candidates give back the gradient; {mixed} of them may be mixed or noisy"
    if complete:
        return f"all {counted} records, which give back the gradient"
    if not scaled and smooth:
        fixes = "the activation fixes the size, which this search does not use"
        return f"{found} of {counted} records up to size and sign: {fixes}"
    if not scaled:
        return f"{found} of {counted} records up to scale: no bias fixes it"
    if found == counted:
        return f"{counted} candidates, which do not give back the gradient; {passed} fit alone"
    return f"{found} of {counted} records found, {passed} of them fit on their own"


def nothing(layers: Layers, spectrum: Spectrum, counted: int, reason: str) -> BatchRecovery:
    columns = layers.first.shape[1] - int(layers.bias)
    none = torch.zeros(0, dtype=torch.float64)
    return BatchRecovery(
        inputs=torch.zeros(0, columns, dtype=torch.float64),
        residual=none,
        passed=torch.zeros(0, dtype=torch.bool),
        counted=counted,
        spectrum=spectrum,
        complete=False,
        found=[0.0],
        resimulation=None,
        error=none,
        reason=reason,
    )
