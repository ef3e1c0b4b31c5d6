"""What each prefix was to continue with, how much that counted, and so where sequences end.

The last block's `down` layer has the gradient sum_t d_t a_t^T over all prefixes t, with the inputs
a_t known, so that least squares gives every d_t. The loss of a prefix whose next token is y is
    d_t = weight * J^T W^T (softmax - onehot(y)),
J of the last norm and W the output layer: a sum over the different next tokens y that the batch has
after this prefix, each found by its direction among those of the whole vocabulary. Where more loss
goes into a longer prefix than leaves it, a sequence ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from remnant.models.tokens import logits_of
from remnant.progress import task
from remnant.solvers.numerics import best_fit, with_one
from remnant.solvers.sequence.layouts import Layout, Linear, Norm, centred, stacked, watched
from remnant.solvers.sequence.prefixes import Text
from remnant.solvers.sequence.tolerances import Tolerances
from remnant.types import Weights

Flows = dict[Text, dict[int, float]]
"""The loss weight of every prefix, by its next token."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _End:
    """The last norm and the output layer at n prefixes: what a label's loss sends back there."""

    unit: Tensor  # n x width, the normed states
    rows: Tensor  # vocabulary x width, each token's row of the output layer times the norm's weight
    middle: Tensor  # n x width, the mean of these rows by the softmax at each prefix
    even: Tensor  # width, their plain mean: what smoothed labels add
    centred: bool  # the norm takes the mean off first

    def project(self, vectors: Tensor, at: Tensor | slice) -> Tensor:
        """Back through the norm, but for its scale: vectors (n x ... x width) at its outputs."""
        unit = self.unit[at]
        while unit.ndim < vectors.ndim:
            unit = unit.unsqueeze(1)
        vectors = centred(vectors) if self.centred else vectors
        return vectors - unit * (vectors * unit).mean(-1, keepdim=True)

    def atoms(self, at: int, tokens: Sequence[int], smoothing: float) -> Tensor:
        """What the loss sends back at one prefix for each of these k next tokens, k x width."""
        rows = (1 - smoothing) * self.rows[list(tokens)].double() + smoothing * self.even
        return self.project((self.middle[at] - rows)[None], slice(at, at + 1))[0]


def output_norm(layout: Layout) -> Norm | None:
    """The only norm between the last block's `down` and the output layer, if it is the only one."""
    if layout.norm_first:
        return layout.final_norm
    return None if layout.final_norm else layout.blocks[-1].perceptron_norm


@torch.no_grad()
def find_labels(
    model: nn.Module,
    layout: Layout,
    vector: Weights,
    leaves: Sequence[Text],
    tolerances: Tolerances,
) -> tuple[Flows, float] | str:
    """Labels and loss weights of every prefix of the leaves, and the share of each label that was
    spread over the vocabulary; a sentence where the model's end is none that is known."""
    norm, head = output_norm(layout), layout.head
    if norm is None or head is None or layout.head_block is not None:
        return "the norm and the output layer at the end were not recognised, so no label is known"
    down = layout.blocks[-1].down
    prefixes, inner, ends, logits = _seen(model, down, norm, leaves)
    matrix, biased = stacked(vector, [down])
    known = with_one(inner) if biased else inner
    received = best_fit(known.double().T, matrix.double())
    weights = {name: p.detach() for name, p in model.named_parameters()}
    end, size = _end(weights, norm, head, ends, logits)
    children: dict[Text, dict[int, None]] = {prefix: {} for prefix in prefixes}
    for prefix in prefixes:
        if len(prefix) > 1:
            children[prefix[:-1]][prefix[-1]] = None
    support = [list(after) for after in children.values()]
    support, weight, smoothing = _explained(end, received * size, support, tolerances)
    flows = [dict(zip(*each, strict=True)) for each in zip(support, weight, strict=True)]
    return dict(zip(prefixes, flows, strict=True)), smoothing


def _seen(
    model: nn.Module, down: Linear, norm: Norm, leaves: Sequence[Text]
) -> tuple[list[Text], Tensor, Tensor, Tensor]:
    """Every prefix of the leaves, and at each: the input of `down`, the state before the last norm,
    the logits."""
    found: dict[Text, tuple[Tensor, Tensor, Tensor]] = {}
    with task("outputs of the prefixes", len(leaves)) as advance:
        for leaf in leaves:
            with watched(model, {"down": down.weight, "norm": norm.weight}) as seen:
                logits = logits_of(model(torch.tensor([leaf])))
            assert isinstance(logits, Tensor)
            for k in range(len(leaf)):
                each = seen["down"][0][0, k], seen["norm"][0][0, k], logits[0, k]
                found.setdefault(leaf[: k + 1], each)
            advance()
    inner, ends, logits = (torch.stack(parts) for parts in zip(*found.values(), strict=True))
    return list(found), inner, ends, logits


def _end(
    weights: Weights, norm: Norm, head: Linear, states: Tensor, logits: Tensor
) -> tuple[_End, Tensor]:
    """The end of the model at these states, and the size that its norm divides by (n x 1)."""
    states = states.double()
    states = centred(states) if norm.centred else states
    size = (states.square().mean(1, keepdim=True) + norm.eps).sqrt()
    rows = weights[head.weight] * weights[norm.weight]
    middle = (logits.softmax(1) @ rows).double()
    even = rows.mean(0).double()
    end = _End(unit=states / size, middle=middle, even=even, rows=rows, centred=norm.centred)
    return end, size


def _explained(
    end: _End, wanted: Tensor, support: list[list[int]], tolerances: Tolerances
) -> tuple[list[list[int]], list[list[float]], float]:
    """Labels by prefix, their weights, and the smoothing: those labels that longer prefixes show
    (`support`), then the best of the vocabulary for what is left, while that makes it much
    smaller. Smoothing shows at the prefixes with one label."""
    lone = [i for i, tokens in enumerate(support) if not tokens]

    def weighed(smoothing: float) -> tuple[list[list[float]], list[float]]:
        for i, token in zip(
            lone, _best(end, wanted[lone], lone, smoothing, tolerances), strict=True
        ):
            support[i] = [token]
        return _weights(end, wanted, support, smoothing)

    weight, off = weighed(0.0)
    smoothing = _smoothing(end, wanted, support)
    if smoothing:
        weight, off = weighed(smoothing)
    usual = max(sorted(off)[len(off) // 2], 1e-6)
    for _ in range(tolerances.labels):
        rest = [i for i, left in enumerate(off) if left > tolerances.explained * usual]
        left = [wanted[i] - wanted.new_tensor(weight[i]) @ end.atoms(i, support[i], smoothing)
                for i in rest]  # fmt: skip
        grown = False
        missing = torch.stack(left) if left else wanted[:0]
        for i, token in zip(rest, _best(end, missing, rest, smoothing, tolerances), strict=True):
            more = [*support[i], token]
            (found,), (less,) = _weights(end, wanted[i : i + 1], [more], smoothing, at=i)
            if token not in support[i] and less * tolerances.explained < off[i]:
                support[i], weight[i], off[i], grown = more, found, less, True
        if not grown:
            break
    return support, weight, smoothing


def _best(
    end: _End, wanted: Tensor, at: Sequence[int], smoothing: float, tolerances: Tolerances
) -> list[int]:
    """The token whose loss points most nearly where each of `wanted` does, at these prefixes."""
    wanted = wanted.to(end.rows)
    rows = centred(end.rows) if end.centred else end.rows
    squares = rows.square().sum(1)
    found = list[int]()
    width = rows.shape[1]
    step = max(1, tolerances.block // len(rows))
    for start in range(0, len(at), step):
        part = torch.tensor(list(at[start : start + step]))
        want = wanted[start : start + step]
        base = end.project(end.middle[part] - smoothing * end.even, part).to(rows)
        along = end.unit[part].to(rows) @ rows.T
        cross = (base @ rows.T) * (1 - smoothing)
        square = (squares - along.square() / width) * (1 - smoothing) ** 2
        length = (base.square().sum(1, keepdim=True) + square - 2 * cross).clamp_min(1e-300).sqrt()
        meets = (want * base).sum(1, keepdim=True) - (1 - smoothing) * (want @ rows.T)
        found += (meets / length).argmax(1).tolist()
    return found


def _weights(
    end: _End, wanted: Tensor, support: list[list[int]], smoothing: float, at: int | None = None
) -> tuple[list[list[float]], list[float]]:
    """The loss weights of the labels of all prefixes (or of one, `at`), and what they leave of each
    of `wanted`, as a share of its norm or of the usual one's, if that is larger: a prefix without a
    loss has none to explain."""
    sizes = wanted.norm(dim=1)
    least = float(sizes.median()) if at is None else 0.0
    weights, off = [], []
    for i, (want, tokens, size) in enumerate(zip(wanted, support, sizes.tolist(), strict=True)):
        atoms = end.atoms(i if at is None else at, tokens, smoothing)
        weight = best_fit(atoms.T, want)
        weights.append(weight.tolist())
        off.append(float((want - weight @ atoms).norm()) / max(size, least, 1e-300))
    return weights, off


def _smoothing(end: _End, wanted: Tensor, support: list[list[int]]) -> float:
    """The share of labels that was spread over the vocabulary, by the median over all prefixes; 0
    where the prefixes do not agree on one."""
    shares = list[float]()
    for i, tokens in enumerate(support):
        spread = end.project((end.middle[i] - end.even)[None, None], slice(i, i + 1))[0]
        atoms = torch.cat([end.atoms(i, tokens, 0.0), spread])
        weight = best_fit(atoms.T, wanted[i])
        total = float(weight.sum())
        shares.append(float(weight[-1]) / total if total else 0.0)
    values = torch.tensor(shares, dtype=torch.float64)
    middle = float(values.median())
    return middle if 10 * float((values - middle).abs().median()) < middle < 1 else 0.0


def sequences_of(flows: Flows, tolerances: Tolerances) -> tuple[list[Text], list[float]]:
    """Where more loss enters a prefix than leaves it, sequences end: each with its loss weight."""
    leaving = {prefix: sum(after.values()) for prefix, after in flows.items()}
    usual = sorted(w for after in flows.values() for w in after.values())
    unit = usual[len(usual) // 2] if usual else 0.0
    found: list[tuple[Text, float]] = []
    for prefix, after in flows.items():
        for token, weight in after.items():
            ends = weight - leaving.get((*prefix, token), 0.0)
            if ends > tolerances.share * unit:
                found.append(((*prefix, token), ends))
    return [text for text, _ in found], [weight for _, weight in found]


def counts_of(weights: Sequence[float], tolerances: Tolerances) -> list[int]:
    """How often each sequence is in the batch, where all weights are multiples of the smallest;
    else each once, since their losses were not averaged alike."""
    unit = min(weights, default=0.0)
    ratios = [weight / unit for weight in weights] if unit > 0 else []
    if all(abs(ratio - round(ratio)) < tolerances.whole * round(ratio) for ratio in ratios):
        return [round(ratio) for ratio in ratios]
    return [1] * len(weights)


def alike_flows(texts: Sequence[Text]) -> Flows:
    """The flows of texts whose tokens all count alike."""
    flows: Flows = {}
    for text in texts:
        for k in range(1, len(text)):
            after = flows.setdefault(text[:k], {})
            after[text[k]] = after.get(text[k], 0.0) + 1.0
    return flows
