"""How training saw the records, where that is not as they were declared.

Training on mirrored images, or a --mean that was forgotten, leaves certified candidates that are no
declared record. If one preparation, the same for all, makes them the declared records within their
stated errors, it is what training did. Strangers are prepared alike, so that what chance may do is
measured as ever. Where nothing is certified the first dense layer and the loss are asked which
preparation fits better; that, and other ordinary mistakes, are said and change no verdict.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, normalize

from remnant.auditing.case import Case
from remnant.auditing.explained import known_of_layer, unexplained
from remnant.auditing.fitting import losses_of
from remnant.auditing.proof import claims_of, marks
from remnant.auditing.rules import RULES
from remnant.auditing.strangers import Strangers, strangers_of, turned, turns_of
from remnant.models import load_weights
from remnant.models.linear_model import LinearModel
from remnant.types import Candidates, Scaling


@dataclass(frozen=True, kw_only=True, eq=False)
class Prepared:
    """A case with its records as training saw them, with strangers prepared alike and the
    candidates.

    tries: how many preparations were compared: chance had as many tries, and proofs count them.
    """

    case: Case
    strangers: Strangers
    found: Candidates
    tries: int = 1


def prepared(case: Case, found: Candidates, strangers: Strangers) -> Prepared:
    """The preparation under which most certified candidates are declared records; the case as it is
    given, unless another makes more of them so.

    A scaling is believed only if at least `RULES.bear_out_scaling` of the certified candidates, and
    most of them, become declared records by it, and none was as given.
    """
    best = given = Prepared(case=case, strangers=strangers, found=found)
    passed, _ = marks(found)
    if case.truth.are_texts or found.stated.targets is not None or not passed.any():
        return given
    usual = claims_of(found, case.truth, strangers)
    if not usual.foreign.any():
        return given
    most, tries = usual.count, 1
    for words in turns_of(case.truth):
        tries += 1
        other = strangers.turned(words)
        count = claims_of(found, turned(case.truth, words), other).count
        if count > most:
            most, best = count, replace(given, case=_turned(case, words), strangers=other)
    seen = case.target.scaling.to_model(found.inputs.double())
    for words, scaling in [] if usual.count else scalings(case, seen[passed]):
        tries += 1
        moved = replace(found, inputs=scaling.to_data(seen).to(found.inputs))
        count = claims_of(moved, case.truth, strangers.scaled(scaling)).count
        if count > max(most, RULES.bear_out_scaling - 1, int(passed.sum()) // 2):
            most, best = count, replace(given, case=_scaled(case, words, scaling), found=moved)
    if best.case.target is not case.target:
        best = replace(best, strangers=strangers_of(best.case))
    return best if best is given else replace(best, tries=tries)


def _turned(case: Case, words: str) -> Case:
    """The case with all its records turned in this way."""
    truth, holdout, public = (
        turned(part, words) for part in (case.truth, case.holdout, case.public)
    )
    return replace(case, truth=truth, holdout=holdout, public=public, prepared=words)


def _scaled(case: Case, words: str, scaling: Scaling) -> Case:
    return replace(case, target=replace(case.target, scaling=scaling), prepared=words)


def scalings(case: Case, seen: Tensor) -> Iterator[tuple[str, Scaling]]:
    """(in words, a scaling that training may have used). seen: certified candidates, m x shape, as
    the model takes them."""
    truth = case.truth.inputs.double()
    one, each = truth.mean(), truth.mean(0)
    yield "taken as they are", Scaling()
    yield "less their mean, number by number", Scaling(mean=each)
    for correction in (0, 1) if len(truth) > 1 else ():
        spread = truth.std(0, correction=correction)
        spread = torch.where(spread > 0, spread, torch.ones_like(spread))
        yield "standardised, each number by itself", Scaling(mean=each, std=spread)
        whole = truth.std(correction=correction)
        if whole > 0:
            yield f"less {one:.4g} and divided by {whole:.4g}", Scaling(mean=one, std=whole)
    yield from _fitted(truth, seen.reshape(-1, *truth.shape[1:]))


def _fitted(truth: Tensor, seen: Tensor) -> Iterator[tuple[str, Scaling]]:
    """One mean and deviation, or one a channel, by least squares over candidates and the records
    that they resemble, whatever their scale."""
    rows = [part.flatten(1) for part in (truth, seen)]
    if rows[0].shape[1] < 2:
        return
    units = [normalize(part - part.mean(1, keepdim=True), dim=1) for part in rows]
    likeness, nearest = (units[1] @ units[0].T).max(1)
    alike = likeness > RULES.same_but_scaled
    pairs = truth[nearest[alike]], seen[alike]
    colours = truth.ndim == 4 and truth.shape[1] == 3
    for channels in (1, 3) if colours else (1,):
        if pairs[0].numel() < channels * RULES.numbers_fitted:
            continue
        x, z = (part.reshape(len(part), channels, -1) for part in pairs)
        x, z = (part.transpose(0, 1).flatten(1) for part in (x, z))
        off = x - x.mean(1, keepdim=True)
        slope = (off * (z - z.mean(1, keepdim=True))).sum(1) / off.square().sum(1).clamp_min(1e-300)
        if not bool((slope > 1e-6).all()):
            continue
        mean, std = x.mean(1) - z.mean(1) / slope, 1 / slope
        told = [", ".join(f"{value:.4g}" for value in part) for part in (mean, std)]
        words = f"less {told[0]} and divided by {told[1]}"
        shape = (3, 1, 1) if channels == 3 else ()
        yield (
            words + (", channel by channel" if channels == 3 else ""),
            Scaling(mean=mean.reshape(shape), std=std.reshape(shape)),
        )


def preparations(case: Case) -> Iterator[tuple[str, Case]]:
    """The case as its records may have been prepared otherwise, without any candidate at hand."""
    for words in turns_of(case.truth):
        yield words, _turned(case, words)
    public = case.public.inputs.reshape(-1, *case.truth.shape)
    each, one = public.mean(0), public.mean()
    spread = torch.where(public.std(0) > 0, public.std(0), torch.ones(()))
    for words, scaling in {
        "taken as they are (no --mean, no --std)": Scaling(),
        "less the mean of public records (--mean public)": Scaling(mean=each),
        f"less one number (such as --mean {one:.3g})": Scaling(mean=one),
        "standardised, each number by itself": Scaling(mean=each, std=spread),
    }.items():
        yield words, _scaled(case, words, scaling)


def _best(case: Case, measure: Callable[[Case], float | None]) -> tuple[float, str]:
    """The least of a measure over all preparations, and that one in words."""
    told = ((measure(other), words) for words, other in preparations(case))
    known = [(value, words) for value, words in told if value is not None]
    return min(known, default=(math.inf, ""))


def explains_better(case: Case, attack: str) -> str | None:
    """A preparation with which the declared records explain what this adversary holds, if as given
    they do not."""
    held = None if case.truth.are_texts else next(iter(known_of_layer(case, attack)), None)
    if held is None or len(case.truth) > RULES.most_prepared:
        return None
    usual = unexplained(case, held, case.truth)
    if usual is None:
        return None
    left, words = _best(case, lambda other: unexplained(other, held, other.truth))
    if left > min(RULES.better_preparation[held.form] * usual, RULES.left_unexplained[held.form]):
        return None
    return (
        f"Your records would explain the first dense layer if they were {words} ({left:.1g} of it "
        f"would be left, as given {usual:.1g}). Was it trained so? Then give the data, --mean and "
        "--std as in training."
    )


def fits_better(case: Case) -> str | None:
    """A preparation of the records with which the model fits them far better than as given."""
    if case.truth.are_texts or isinstance(case.target.model, LinearModel):
        return None
    some = case.truth.take(range(min(len(case.truth), RULES.most_prepared)))
    case = replace(case, truth=some, canaries=None)
    usual = _mean_loss(case)
    if usual is None or usual < RULES.poor_fit:
        return None
    loss, words = _best(case, _mean_loss)
    if loss > RULES.clearly_lower * usual:
        return None
    return (
        f"The model fits your records far better if they are {words}: a mean loss of {loss:.2g}, "
        f"as given {usual:.2g}. Was it trained so? Then give data, --mean and --std as in training."
    )


def mistaken_initial(case: Case) -> Iterator[str]:
    """What speaks against the initial weights that were given, in sentences."""
    initial, model = case.target.knowledge.initial, case.target.model
    if initial is None or isinstance(model, LinearModel):
        return
    likeness = [
        cosine_similarity(p.detach().flatten(), initial[name].flatten().to(p), 0)
        for name, p in model.named_parameters()
        if p.ndim > 1 and p.numel() >= RULES.tell_alike
    ]
    if likeness and float(max(likeness)) < RULES.unlike:
        yield (
            f"The released and the initial weights have nothing in common (correlation "
            f"{max(likeness):.2f}): are the initial ones of another run, by another seed?"
        )
    first, last = _mean_loss(case, initial_model(case)), _mean_loss(case)
    if first is not None and last is not None and first < RULES.clearly_lower * last:
        yield (
            f"The initial weights fit your records better than the released ones (a mean loss of "
            f"{first:.2g} against {last:.2g}): were the two swapped?"
        )


def initial_model(case: Case) -> nn.Module:
    """The model before training, by the initial weights that are known."""
    before = copy.deepcopy(case.target.model)
    load_weights(before, dict(before.named_buffers()) | dict(case.target.knowledge.initial or {}))
    return before


def _mean_loss(case: Case, model: nn.Module | None = None) -> float | None:
    losses = losses_of(case, case.truth, model)
    return None if losses is None else float(torch.tensor(losses).nanmean())
