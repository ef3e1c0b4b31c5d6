"""How training scaled the records, where that was not said: the one common shift and scale.

A forgotten --mean leaves certified candidates that are no declared record. If one map, x to
(x - mean) / std, the same for all, makes them the declared records within their stated errors, it
is what training did, and is applied from there on. Strangers go through the same map, so that what
chance may do is measured as ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import normalize

from remnant.auditing.case import Case
from remnant.auditing.proof import claims_of, marks
from remnant.auditing.strangers import Strangers, strangers_of
from remnant.types import Candidates, Scaling


@dataclass(frozen=True, kw_only=True, eq=False)
class Prepared:
    """The case with the scaling that was found, the strangers and candidates in it, and how many
    scalings were tried."""

    case: Case
    found: Candidates
    strangers: Strangers
    tries: int


def prepared(
    case: Case, found: Candidates, strangers: Strangers, *, least: int = 3
) -> Prepared | None:
    """The scaling under which most certified candidates are declared records, if as given none is.

    least: so many records must be. Two numbers fitted to a record make it any other of its kind (a
    shape at another strength); it takes further records under the same map to tell that it is one.
    """
    found = _given_again(found)
    passed, _ = marks(found)
    if case.truth.are_texts or found.stated.targets is not None or not passed.any():
        return None
    usual = claims_of(found, case.truth, strangers)
    if usual.count or not usual.foreign.any():
        return None
    best, tries = None, 0
    seen = case.target.scaling.to_model(found.inputs.double())
    for words, scaling in scalings(case, seen[passed]):
        tries += 1
        target = replace(case.target, scaling=scaling)
        other = replace(case, target=target, prepared=words)
        moved = replace(found, inputs=scaling.to_data(seen).to(found.inputs))
        others = replace(
            strangers,
            scaling=scaling,
            inputs=scaling.to_model(strangers.examples.inputs.double()).flatten(1),
        )
        count = claims_of(moved, case.truth, others).count
        enough = count >= least and 2 * count > int(passed.sum())
        if enough and count > (0 if best is None else best[0]):
            best = count, other, moved
    if best is None:
        return None
    _, other, moved = best
    figures = {
        **found.figures,
        "as_given": _back(case.target.scaling, other.target.scaling, case.truth.shape),
    }
    return Prepared(
        case=other,
        found=replace(moved, figures=figures),
        strangers=strangers_of(other),
        tries=tries,
    )


def _given_again(found: Candidates) -> Candidates:
    """Candidates that an interrupted audit had converted, as the attack gave them."""
    kept = found.figures.get("as_given")
    if kept is None:
        return found
    scale, shift = (torch.tensor(kept[key], dtype=torch.float64) for key in ("scale", "shift"))
    flat = found.inputs.double().flatten(1) * scale + shift
    figures = {key: value for key, value in found.figures.items() if key != "as_given"}
    inputs = flat.reshape(found.inputs.shape).to(found.inputs)
    return replace(found, inputs=inputs, figures=figures)


def scalings(case: Case, seen: Tensor) -> Iterator[tuple[str, Scaling]]:
    """(in words, a scaling that training may have used). seen: certified candidates, m x shape, as
    the model takes them."""
    truth = case.truth.inputs.double()
    one, each = truth.mean(), truth.mean(0)
    yield "taken as they are", Scaling()
    yield "less their mean, number by number", Scaling(mean=each)
    for correction in (0, 1):
        if len(truth) > 1:
            spread = truth.std(0, correction=correction)
            spread = torch.where(spread > 0, spread, torch.ones_like(spread))
            yield "standardised, each number by itself", Scaling(mean=each, std=spread)
            whole = truth.std(correction=correction)
            if whole > 0:
                yield f"less {one:.4g} and divided by {whole:.4g}", Scaling(mean=one, std=whole)
    yield from _fitted(truth, seen.reshape(-1, *truth.shape[1:]))


def _fitted(
    truth: Tensor, seen: Tensor, *, alike: float = 0.9, numbers: int = 100
) -> Iterator[tuple[str, Scaling]]:
    """One number each, or one a channel, by least squares over candidates and the records that they
    resemble, whatever their scale.

    alike: the correlation of such a pair. numbers: in all pairs, for each of the two that are
    fitted; fewer would let any two records pass for each other.
    """
    rows = [part.flatten(1) for part in (truth, seen)]
    if rows[0].shape[1] < 2:
        return
    units = [normalize(part - part.mean(1, keepdim=True), dim=1) for part in rows]
    likeness, nearest = (units[1] @ units[0].T).max(1)
    a, b = truth[nearest[likeness > alike]], seen[likeness > alike]
    if a.numel() < numbers:
        return
    scaling = _line(a.reshape(1, -1), b.reshape(1, -1))
    if scaling is not None:
        mean, std = (float(part) for part in (scaling.mean, scaling.std))
        yield (
            f"less {mean:.4g} and divided by {std:.4g}",
            Scaling(mean=scaling.mean.reshape(()), std=scaling.std.reshape(())),
        )
    if truth.ndim == 4 and truth.shape[1] == 3 and a.numel() >= 3 * numbers:
        scaling = _line(*(part.transpose(0, 1).flatten(1) for part in (a, b)))
        if scaling is not None:
            told = [", ".join(f"{v:.4g}" for v in part) for part in (scaling.mean, scaling.std)]
            words = f"less {told[0]} and divided by {told[1]}, channel by channel"
            yield words, Scaling(mean=scaling.mean[:, None, None], std=scaling.std[:, None, None])


def _line(records: Tensor, seen: Tensor) -> Scaling | None:
    """k x m each: mean and std, k, of the lines by which records are seen; None where one falls."""
    x, z = (part - part.mean(1, keepdim=True) for part in (records, seen))
    slope = (x * z).sum(1) / x.square().sum(1).clamp_min(1e-300)
    if not bool((slope > 1e-6).all()):
        return None
    return Scaling(mean=records.mean(1) - seen.mean(1) / slope, std=1 / slope)


def _back(given: Scaling, found: Scaling, shape: tuple[int, ...]) -> dict[str, list[float]]:
    """What turns a record, flat, of the scaling that was found into the one given: times scale,
    plus shift."""
    scale = (given.std.double() / found.std.double()).expand(shape)
    shift = given.mean.double().expand(shape) - found.mean.double() * scale
    return {"scale": scale.flatten().tolist(), "shift": shift.flatten().tolist()}
