"""Every record of a batch from one gradient at known weights, for networks that begin dense.

M1, the gradient of the first layer with its bias, has the number of records as its rank and their
span as its row space. What the next dense layer adds decides the rest: its gradient M2 if it has as
many rows as the batch has records (`graph_search`; `smooth_graph` for smooth activations), only its
weight otherwise (`output_search`). A single record needs neither. Nothing is called complete unless
the records, put through the layers again, give back both gradients (`resimulate`).
"""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from remnant.errors import InputError, expected
from remnant.solvers.batch.errors import (
    SAFETY,
    dual_errors,
    graph_errors,
    outside_span,
    scale_doubt,
    unknown,
    upright,
)
from remnant.solvers.batch.frames import first_side, pose_frames
from remnant.solvers.batch.graph_search import Found, search_graph, settle
from remnant.solvers.batch.output_search import Spaces, polish, search_signals
from remnant.solvers.batch.resimulate import Resimulation, resimulate
from remnant.solvers.batch.smooth_graph import search_smooth
from remnant.solvers.batch.smooth_problem import SmoothProblem
from remnant.solvers.batch.tolerances import Tolerances
from remnant.solvers.difference.certificate import SURE, spread_of
from remnant.solvers.spans import Decomposition, Parts, Spectrum, count_in_noise, decompose


@dataclass(frozen=True, kw_only=True, eq=False)
class Layers:
    """What the adversary holds of two consecutive dense layers. float64.

    first, first_gradient: w x (d+1) with the bias last, or w x d without one. next_weight: v x w.
    next_gradient: v x w, or v x (w+1) with the bias last.
    """

    first: Tensor
    first_gradient: Tensor
    next_weight: Tensor
    next_gradient: Tensor
    activation: nn.Module
    bias: bool

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
    duals: Tensor  # k x w, up to scale
    graph_residual: Tensor  # k: how far f(t) is from the features, or the deviation if f is smooth
    dual_residual: Tensor  # k: how far the dual is from f'(t) times a signal, relative
    passed: Tensor  # k, bool
    counted: int
    spectrum: Spectrum
    complete: bool
    rounds: int
    found: list[float]  # after each round
    resimulation: Resimulation | None
    error: Tensor  # k: the squared error to expect (L2, in the model's scale)
    reason: str  # in a sentence


def recover_batch(
    first: Tensor,
    first_gradient: Tensor,
    next_weight: Tensor,
    next_gradient: Tensor,
    activation: nn.Module,
    *,
    count: int | None = None,
    precision: float,
    last: bool,
    generator: torch.Generator,
    settings: Tolerances | None = None,
    bias: bool = True,
) -> BatchRecovery:
    """All records of the batch behind one gradient.

    first, first_gradient: w x (d+1), the bias as last column (w x d with bias=False, where only
    the next layer's bias can fix the records' scale). next_weight: v x w, of the next dense layer;
    next_gradient: v x w, or v x (w+1) with its bias. count: None = read it off the spectrum.
    precision: relative rounding of the gradient as stored. last: the next layer is the output.
    """
    layers = Layers(
        first=first,
        first_gradient=first_gradient,
        next_weight=next_weight,
        next_gradient=next_gradient,
        activation=deepcopy(activation).double(),
        bias=bias,
    )
    check_shapes(layers)
    parts = decompose(first_gradient)
    spectrum = count_in_noise(parts.values, first_gradient, precision)
    counted = count or spectrum.count
    if counted > 1:
        obstacle = undetermined(layers, counted, last)
        if obstacle:
            return nothing(layers, spectrum, counted, obstacle)
    # Where columns differ in size, rounding is that of the largest.
    least = precision * float(first_gradient.square().mean().sqrt())
    noise = max(least, parts.noise(counted))
    settings = settings or Tolerances()
    outcome = solve(layers, parts, noise, counted, last, settings, generator)
    return conclude(layers, parts, spectrum, counted, outcome, settings)


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """What a search found, records (k x (d+1)) that are `exact` or only near, and their squared
    errors (k), one standard deviation, with a bias' 1 or else at unit length."""

    found: Found
    records: Tensor
    exact: bool
    error: Tensor


def solve(
    layers: Layers,
    parts: Decomposition,
    noise: float,
    counted: int,
    last: bool,
    settings: Tolerances,
    generator: torch.Generator,
) -> Outcome:
    """The search that fits the activation and the next layer. noise: of an entry of M1."""
    leak = leak_of(layers.activation)
    tail = parts.tail(counted)
    clean = tail < settings.clean
    tolerance = settings.exact if clean else settings.noisy
    if not clean:
        settings = replace(settings, arrived=settings.roughly)
    leading = parts.parts(counted)
    if counted == 1:
        return single(layers, parts, noise)
    if leak is None:
        problem = pose_smooth(layers, leading)
        tolerance = settings.smooth if clean else settings.noisy
        found = search_smooth(problem, settings, tolerance, generator)
        records = (found.t @ problem.t) @ problem.to_record
        error = found.graph_residual.square() * upright(records, layers.bias).square().sum(1)
        shares = found.t @ problem.t @ problem.inverse1
        beside = outside_span(records, shares, noise, layers.bias)
        return Outcome(found=found, records=records, exact=True, error=error + beside)
    if last or counted > len(layers.next_weight):
        frame, inverse, to_record = first_side(layers.first, leading)
        signals = torch.linalg.qr(layers.next_weight.T)[0]
        spaces = Spaces(t=frame, a=leading[0], p=signals, inverse1=inverse)
        found = search_signals(spaces, leak, settings, tolerance, generator)
        if len(found) < counted:
            records = (found.t @ frame) @ to_record
            return Outcome(found=found, records=records, exact=False, error=unknown(found))
        found, records = polish(spaces, to_record, found, layers.first, leak, settings)
        blur = layers.width * (noise / leading[1]).square().diag()
        error = dual_errors(spaces, found, records, leak, layers.bias, blur)
        own = torch.linalg.pinv((found.a @ spaces.a).T)
        beside = outside_span(records, own, noise, layers.bias)
        return Outcome(found=found, records=records, exact=True, error=error + beside)
    next_parts = decompose(layers.next_gradient[:, : layers.width]).parts(counted)
    frames, to_record = pose_frames(layers.first, layers.next_weight, leading, next_parts)
    found = search_graph(frames, leak, settings, tolerance, generator)
    inexact = len(found) > 0 and float(found.graph_residual.max()) > 0.1 * settings.exact
    if len(found) < counted or not clean or inexact:
        found = settle(frames, found, leak, settings)
    records = (found.t @ frames.t) @ to_record
    blur = layers.first.square().sum() * noise**2 * frames.inverse1 @ frames.inverse1.T
    error = graph_errors(frames, to_record, found, leak, layers.bias, blur)
    beside = outside_span(records, found.t @ frames.t @ frames.inverse1, noise, layers.bias)
    return Outcome(found=found, records=records, exact=True, error=error + beside)


def pose_smooth(layers: Layers, parts: Parts) -> SmoothProblem:
    """The problem of a smooth activation."""
    frame, inverse, to_record = first_side(layers.first, parts)
    left, _, right = decompose(layers.next_gradient).parts(len(parts[1]))
    gradient = layers.first_gradient
    if layers.bias:  # the nearest point to 0 whose record ends with 1
        size = 1 / float(to_record[:, -1].norm())
    else:
        share = (gradient @ layers.first.T).norm() / gradient.norm()
        size = 0.1 * float(share) * math.sqrt(gradient.shape[1])
    return SmoothProblem(
        activation=layers.activation,
        t=frame,
        to_record=to_record,
        bias=layers.bias,
        features=right.T.contiguous(),
        a=parts[0],
        p=torch.linalg.qr(layers.next_weight.T @ left)[0],
        inverse1=inverse,
        size=size / math.sqrt(layers.width),
    )


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


def undetermined(layers: Layers, count: int, last: bool) -> str:
    """Why so many records cannot be told apart, or nothing."""
    width, columns = layers.first.shape
    outputs = len(layers.next_weight)
    if count >= min(width, columns):
        return f"{count} records fill the first layer ({width} x {columns}): no span to search in"
    if last or count > outputs:
        if leak_of(layers.activation) is None:
            name = type(layers.activation).__name__
            return f"{name} before the output layer leaves nothing exact to search on"
        if count + outputs >= width:
            return f"{count} records and {outputs} outputs need a layer wider than {width}"
    elif 2 * count >= width:
        return f"{count} records need a layer wider than {2 * count}, it is {width}"
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
    found = Found(
        t=(layers.first @ record)[None],
        a=parts.left[:, :1].T,
        graph_residual=residual,
        dual_residual=residual,
        series=[0.0, 1.0],
    )
    share = record.norm() / parts.values[:1, None]
    error = outside_span(record[None], share, noise, layers.bias)
    return Outcome(found=found, records=record[None], exact=True, error=error)


def conclude(
    layers: Layers,
    parts: Decomposition,
    spectrum: Spectrum,
    counted: int,
    outcome: Outcome,
    settings: Tolerances,
) -> BatchRecovery:
    """Scale the records, put them through the layers again, and say what holds."""
    found, tail = outcome.found, parts.tail(counted)
    full = len(found) == counted
    records, scaled, doubt = fix_scale(layers, outcome.records, full)
    smooth = leak_of(layers.activation) is None
    tolerance = settings.exact if tail < settings.clean else settings.noisy
    tolerance = settings.smooth if smooth else tolerance
    # Without the others no gradient is given back, which would betray a mixture of like records.
    alone = tolerance if full else 0.1 * tolerance
    passed = (found.graph_residual < alone) & (found.dual_residual < alone)
    passed &= torch.isfinite(records).all(1) & torch.tensor(outcome.exact and scaled)
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
        complete = max(again.first, again.next) < max(settings.returned, noise)
        # Where f is nearly linear, mixtures of records give back nearly the same gradient.
        complete = complete and (bool(passed.all()) or not smooth)
        passed = passed | complete
    if (
        tail > settings.clean
    ):  # one record's residual tells too little there, all records together do
        passed = passed & torch.tensor(complete)
    size = records.square().sum(1)
    error = SAFETY * (outcome.error * (1.0 if layers.bias else size) + doubt * size)
    passed = passed & (error < SURE * spread_of(records))
    return BatchRecovery(
        inputs=records[:, :-1] if layers.bias else records,
        duals=found.a,
        graph_residual=found.graph_residual,
        dual_residual=found.dual_residual,
        passed=passed,
        counted=counted,
        spectrum=spectrum,
        complete=complete,
        rounds=found.rounds,
        found=found.series,
        resimulation=again,
        error=error,
        reason=reason_of(len(found), int(passed.sum()), counted, complete, scaled),
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
    signals = torch.linalg.lstsq(features.T, seen.T, driver="gelsd").solution
    inverse = torch.linalg.lstsq(signals.T, wanted, driver="gelsd").solution
    doubt = scale_doubt(signals, inverse, wanted, signals.T @ features - seen)
    return records / inverse, bool((inverse > 0).all()), doubt


def reason_of(found: int, passed: int, counted: int, complete: bool, scaled: bool) -> str:
    if complete and passed < counted:
        mixed = counted - passed
        return f"{counted} candidates give back the gradient; {mixed} of them may be mixed or noisy"
    if complete:
        return f"all {counted} records, which give back the gradient"
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
        duals=torch.zeros(0, layers.width, dtype=torch.float64),
        graph_residual=none,
        dual_residual=none,
        passed=torch.zeros(0, dtype=torch.bool),
        counted=counted,
        spectrum=spectrum,
        complete=False,
        rounds=0,
        found=[0.0],
        resimulation=None,
        error=none,
        reason=reason,
    )
