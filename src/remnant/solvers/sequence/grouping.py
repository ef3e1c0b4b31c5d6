"""Which tokens stood together in one record, by what attention gathered for each.

Attention gathers a = sum_s p_s v_s over the tokens s of the same record, p_s proportional to
e^(q.k_s). So in every head sum_s m_s e^(q.k_s) (v_s - a) = 0, where m_s is 1 for tokens of the
record and 0 for others: linear in m, as many equations as the model is wide, for each token anew.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor

from remnant.progress import task
from remnant.solvers.sequence.layouts import Layout, Weights, linear

Record = tuple[int, ...]
"""One kind a place, from the first place on."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Kinds:
    """The different inputs of the first attention (N x width), and the place of each (N)."""

    inputs: Tensor
    places: Tensor


def group(
    layout: Layout, weights: Weights, kinds: Kinds, own: Tensor, gathered: Tensor
) -> Counter[Record]:
    """The records that tokens say they stood in, and how many tokens say so.

    own: T, each token's kind. gathered: T x width, what attention gathered for it. A token whose
    equations name no whole record, with one kind at each place from the first on, says nothing.
    """
    states = torch.cat([linear(weights, part, kinds.inputs) for part in layout.blocks[0].reads], 1)
    shape = (len(kinds.places), layout.heads, layout.head_width)
    query, key, value = (part.reshape(shape) for part in states.chunk(3, dim=1))
    said = Counter[Record]()
    with task("putting tokens together", len(own)) as step:
        for kind, sum_of_values in zip(own.tolist(), gathered, strict=True):
            score = torch.einsum("hd,shd->sh", query[kind], key) * layout.head_width**-0.5
            weight = (score - score.max(0).values).exp()
            aside = value - sum_of_values.reshape(shape[1:])
            columns = (weight[:, :, None] * aside).flatten(1).T  # width x N
            record = _members(columns, kinds.places, kind)
            said.update([record] if record else [])
            step(1)
    return said


def _members(columns: Tensor, places: Tensor, own: int) -> Record | None:
    """The kinds whose columns add up to 0 with that of `own`, the likeliest of each place."""
    others = (places != places[own]).nonzero()[:, 0]
    share = torch.zeros(len(places), dtype=columns.dtype)
    share[own] = 1.0
    if len(others):
        wanted = -columns[:, own : own + 1]
        solved = torch.linalg.lstsq(columns[:, others], wanted, driver="gelsd").solution
        share[others] = solved[:, 0]
    chosen = [int((share - 2.0 * (places != place)).argmax()) for place in places.unique()]
    chosen = [kind for kind in chosen if share[kind] > 0.5]
    whole = [int(places[kind]) for kind in chosen] == list(range(len(chosen)))
    return tuple(chosen) if whole else None


def most_said(said: Counter[Record]) -> list[Record]:
    """The records that most tokens speak for, each with a kind that those before it do not have.

    Tokens whose states differ by less than rounding count as one, so kinds may be in many records.
    """
    covered, kept = set[int](), list[Record]()
    for record, _ in sorted(said.items(), key=lambda item: (-item[1], item[0])):
        if not covered.issuperset(record):
            covered.update(record)
            kept.append(record)
    return kept
