"""Losses of dataset distillation as functions of kernel matrices (paper 000, section 7, Theorem 2).

T are the n records trained on, R (in KIP: S) the m distilled images; y their targets, n x c and
m x c; alpha = K^-1 y the duals of kernel regression on either.

    KIP              |y_T - K_TR K_RR^-1 y_R|^2
    RKIP             the same residual in the norm of K_TT^-1, plus lambda_var:
                     alpha_R^T (K_RR - K_RT K_TT^-1 K_TR) alpha_R, the variance of R given T
    reconstruction   |sum_T alpha_i k(x_i, .) - sum_R alpha_j k(x_j, .)|^2 in the kernel's own norm

Theorem 2: the last two are equal. RKIP is therefore computed as a reconstruction, which needs no
more of K_TT than alpha_T. `kip_slopes` and `rkip_slopes` give the loss with its slopes in the
kernels.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from remnant.kernels import regress

RIDGE = 1e-12  # of the squared kernel, in a least-squares fit of duals


class Terms(NamedTuple):
    """RKIP's two terms (matching: the label residual; variance: lambda_var), each at least 0."""

    matching: Tensor
    variance: Tensor

    @property
    def loss(self) -> Tensor:
        return self.matching + self.variance


class Slopes(NamedTuple):
    """A loss, its slopes in K_RT (m x n) and K_RR (m x m), and the labels m x c it is at."""

    loss: Tensor
    by_rt: Tensor
    by_rr: Tensor
    labels: Tensor


def kip(k_rt: Tensor, k_rr: Tensor, y_t: Tensor, y_r: Tensor) -> Tensor:
    """|y_T - K_TR K_RR^-1 y_R|^2, without the half that the literature sometimes adds."""
    return (y_t - k_rt.T @ regress(k_rr, y_r)).square().sum()


def rkip(k_tt: Tensor, k_rt: Tensor, k_rr: Tensor, y_t: Tensor, y_r: Tensor) -> Terms:
    """Both terms as they stand in Theorem 2, from the whole of K_TT."""
    alpha = regress(k_rr, y_r)
    missing = y_t - k_rt.T @ alpha
    given = k_rr - k_rt @ regress(k_tt, k_rt.T)
    return Terms((missing * regress(k_tt, missing)).sum(), (alpha * (given @ alpha)).sum())


def reconstruction(
    k_tt: Tensor, k_rt: Tensor, k_rr: Tensor, alpha_t: Tensor, alpha_r: Tensor
) -> Tensor:
    """The squared distance of the two sums of features, by inner products (Appendix F)."""
    between = (alpha_r * (k_rt @ alpha_t)).sum()
    return (alpha_t * (k_tt @ alpha_t)).sum() - 2 * between + (alpha_r * (k_rr @ alpha_r)).sum()


def kip_slopes(k_rt: Tensor, k_rr: Tensor, y_t: Tensor, y_r: Tensor | None) -> Slopes:
    """KIP with its slopes; y_R None = the labels that make it least, which costs no slope."""
    if y_r is None:
        alpha = regress(k_rt @ k_rt.T, k_rt @ y_t, ridge=RIDGE)
        missing, by_rr, labels = y_t - k_rt.T @ alpha, torch.zeros_like(k_rr), k_rr @ alpha
    else:
        alpha, labels = regress(k_rr, y_r), y_r
        missing = y_t - k_rt.T @ alpha
        by_rr = 2 * regress(k_rr, k_rt @ missing) @ alpha.T
    return Slopes(missing.square().sum(), -2 * alpha @ missing.T, by_rr, labels)


def rkip_slopes(
    k_rt: Tensor, k_rr: Tensor, alpha_t: Tensor, y_r: Tensor | None, square: float
) -> Slopes:
    """RKIP with its slopes, from alpha_T and square = alpha_T^T K_TT alpha_T.

    y_R None = the labels that make it least: what the records' regression says of the images.
    """
    seen = k_rt @ alpha_t
    if y_r is None:
        alpha = regress(k_rr, seen)
        loss, by_rr = square - (seen * alpha).sum(), alpha @ alpha.T
        return Slopes(loss, -2 * alpha @ alpha_t.T, by_rr, seen)
    alpha, other = regress(k_rr, torch.cat([y_r, seen], dim=1)).chunk(2, dim=1)
    loss = square + ((y_r - 2 * seen) * alpha).sum()
    return Slopes(loss, -2 * alpha @ alpha_t.T, (2 * other - alpha) @ alpha.T, y_r)
