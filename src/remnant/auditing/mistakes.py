"""Ordinary mistakes, noticed where the data can tell: they are named, and change no verdict."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import nn
from torch.nn.functional import cosine_similarity

from remnant.auditing.case import Case
from remnant.auditing.disguises import preparations
from remnant.auditing.fitting import losses_of
from remnant.auditing.rules import RULES
from remnant.models import load_weights
from remnant.models.linear_model import LinearModel


def mistakes(case: Case) -> list[str]:
    """What may have been given wrongly, in sentences."""
    return list(_of_initial(case))


def _of_initial(case: Case) -> Iterator[str]:
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
    before = copy.deepcopy(model)
    load_weights(before, {**dict(before.named_buffers()), **initial})
    first, last = (_mean_loss(case, part) for part in (before, model))
    if first is not None and last is not None and first < RULES.clearly_lower * last:
        yield (
            f"The initial weights fit your records better than the released ones (a mean loss of "
            f"{first:.2g} against {last:.2g}): were the two swapped?"
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
    told = []
    for words, records, scaling in preparations(case):
        other = replace(case, truth=records, target=replace(case.target, scaling=scaling))
        loss = _mean_loss(other)
        told += [] if loss is None else [(loss, words)]
    loss, words = min(told, default=(usual, ""))
    if loss > RULES.clearly_lower * usual:
        return None
    return (
        f"The model fits your records far better if they are {words}: a mean loss of {loss:.2g}, "
        f"as given {usual:.2g}. Was it trained so? Then give data, --mean and --std as in training."
    )


def _mean_loss(case: Case, model: nn.Module | None = None) -> float | None:
    losses = losses_of(case, case.truth, model)
    return None if losses is None else float(torch.tensor(losses).nanmean())
