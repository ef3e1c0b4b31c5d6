"""Training losses by name: f(outputs n x c, labels) -> the mean over records.

Integer labels are classes. A regression loss turns them into targets: 2y - 1 for one output
(labels 0 and 1), one-hot minus 0.1 for several (0.9 / -0.1, paper 000). Float labels, n or n x c,
are targets as they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from remnant.errors import InputError, expected

Loss = Callable[[Tensor, Tensor], Tensor]


def targets(outputs: Tensor, labels: Tensor) -> Tensor:
    """What a regression loss compares the outputs with: n x c, in the outputs' dtype."""
    n, c = _sizes("targets", outputs, labels)
    if labels.is_floating_point():
        if labels.numel() != n * c:
            raise InputError(expected("labels: targets", f"{n} x {c}", tuple(labels.shape)))
        return labels.reshape(n, c).to(outputs)
    if labels.ndim != 1:
        raise InputError(expected("labels: classes", f"{n} integers", tuple(labels.shape)))
    if c == 1:
        return (2 * labels - 1)[:, None].to(outputs)
    return (labels[:, None] == torch.arange(c, device=labels.device)).to(outputs) - 0.1


def bce(outputs: Tensor, labels: Tensor) -> Tensor:
    """Binary cross-entropy of one logit; labels 0 and 1."""
    n, c = _sizes("bce", outputs, labels)
    if c != 1:
        raise InputError(expected("loss bce", "one output", f"{c} outputs", "use ce"))
    return F.binary_cross_entropy_with_logits(outputs[:, 0], labels.reshape(n).to(outputs))


def ce(outputs: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of c logits; labels are classes."""
    _, c = _sizes("ce", outputs, labels)
    if c < 2:
        raise InputError(expected("loss ce", "two outputs or more", "one output", "use bce"))
    if labels.is_floating_point() or labels.ndim != 1:
        got = f"{labels.dtype} of shape {tuple(labels.shape)}"
        raise InputError(expected("loss ce: labels", "n integers", got, "use mse, power or huber"))
    return F.cross_entropy(outputs, labels.long())


def mse(outputs: Tensor, labels: Tensor) -> Tensor:
    """The squared residual, summed over outputs, without a half: `power` with p = 2."""
    return (outputs - targets(outputs, labels)).square().sum(1).mean()


def power(outputs: Tensor, labels: Tensor, p: float = 2.5) -> Tensor:
    """|residual|^p, summed over outputs (paper 004)."""
    return (outputs - targets(outputs, labels)).abs().pow(p).sum(1).mean()


def huber(outputs: Tensor, labels: Tensor, delta: float = 1.0) -> Tensor:
    """r^2 / 2 up to |r| = delta, then delta (|r| - delta / 2), summed over outputs."""
    wanted = targets(outputs, labels)
    return F.huber_loss(outputs, wanted, reduction="none", delta=delta).sum(1).mean()


def next_token(outputs: Tensor, labels: Tensor, *, shifted: bool = True) -> Tensor:
    """Cross-entropy of the logits n x length x c at each place, the mean over all places that have
    a label (n x length; negative = none). shifted: the outputs at a place are compared with the
    label after it, as a model that predicts the next token is trained."""
    if outputs.ndim != 3 or outputs.shape[:2] != labels.shape:
        got = f"{tuple(outputs.shape)} and {tuple(labels.shape)}"
        wanted = "n x length x c and n x length"
        raise InputError(expected("loss ce of tokens: outputs and labels", wanted, got))
    if shifted:
        outputs, labels = outputs[:, :-1], labels[:, 1:]
    if not bool((labels >= 0).any()):
        got = "none (sequences of one token?)"
        raise InputError(expected("loss ce of tokens: labels", "one or more", got))
    chosen = labels.long().clamp_min(-1)
    return F.cross_entropy(outputs.flatten(0, 1), chosen.flatten(), ignore_index=-1)


def predicted(outputs: Tensor) -> Tensor:
    """The classes (n) that outputs n x c say: one output by its sign, several by the largest."""
    return outputs.argmax(1) if outputs.shape[1] > 1 else (outputs[:, 0] > 0).long()


def accuracy(outputs: Tensor, labels: Tensor) -> float:
    """The share of records (labels: n classes) that outputs n x c, or k x c x n of k models, put in
    their class."""
    return float((predicted(outputs).cpu() == labels.cpu()).double().mean())


LOSSES: Mapping[str, Loss] = {"bce": bce, "ce": ce, "mse": mse, "power": power, "huber": huber}


def loss_named(name: str) -> Loss:
    """The loss of that name; `power` and `huber` take a parameter, as in power2.5 and huber1."""
    if name in LOSSES:
        return LOSSES[name]
    match = re.fullmatch(r"(power|huber)(\d+(?:\.\d+)?)", name)
    value = float(match[2]) if match else 0.0
    if match and match[1] == "power" and 1 <= value <= 100:
        return lambda outputs, labels: power(outputs, labels, value)
    if match and match[1] == "huber" and 0 < value <= 1e6:
        return lambda outputs, labels: huber(outputs, labels, value)
    known = f"{', '.join(LOSSES)}, power2.5 (1 to 100) or huber1 (above 0, to 1e6)"
    raise InputError(expected("loss", known, name[:40]))


def check_labels(name: str, outputs: Tensor, labels: Tensor) -> None:
    """Raise in one line if `labels` do not fit `outputs` (n x c) under the loss `name`.

    The losses themselves look at shapes only, so that they can be mapped and differentiated;
    the values are looked at here, once.
    """
    loss_named(name)(outputs.detach(), torch.zeros_like(labels))
    low, high = labels.min().item(), labels.max().item()
    got = f"{low:g} to {high:g}"
    if labels.is_floating_point():
        if name == "bce" and not 0 <= low <= high <= 1:
            raise InputError(expected("loss bce: labels", "0 to 1", got))
    elif not 0 <= low <= high < max(outputs.shape[1], 2):
        wanted = f"classes 0 to {max(outputs.shape[1], 2) - 1}"
        raise InputError(expected(f"loss {name}: labels", wanted, got, "relabel or widen the head"))


def _sizes(name: str, outputs: Tensor, labels: Tensor) -> tuple[int, int]:
    if outputs.ndim != 2 or len(outputs) != len(labels):
        got = f"{tuple(outputs.shape)} and {tuple(labels.shape)}"
        raise InputError(expected(f"{name}: outputs and labels", "n x c and n", got))
    return outputs.shape[0], outputs.shape[1]
