"""Losses of dataset distillation as functions of kernel matrices (paper 000, section 7, Theorem 2).

T are the n records trained on, R (in KIP: S) the m distilled images; y their targets, n x c and
m x c; alpha = K^-1 y the duals of kernel regression on either.

    KIP              |y_T - K_TR K_RR^-1 y_R|^2
    RKIP             the same residual in the norm of K_TT^-1, plus lambda_var:
                     alpha_R^T (K_RR - K_RT K_TT^-1 K_TR) alpha_R, the variance of R given T
    reconstruction   |sum_T alpha_i k(x_i, .) - sum_R alpha_j k(x_j, .)|^2 in the kernel's own norm

Theorem 2: the last two are equal. RKIP is therefore computed as a reconstruction, which needs no
more of K_TT than alpha_T. Both are differentiable in the kernels.
"""

from __future__ import annotations

from torch import Tensor

from remnant.kernels import regress


def kip(
    k_rt: Tensor, k_rr: Tensor, y_t: Tensor, y_r: Tensor | None, *, ridge: float = 1e-12
) -> tuple[Tensor, Tensor]:
    """The loss, without the half that the literature sometimes adds, and the labels m x c it is at.

    y_R None = the labels that make it least; at a least value they need no derivative. ridge: of
    their least-squares fit, whose matrix K_RT K_TR squares the kernel's condition.
    """
    if y_r is None:
        alpha = regress(k_rt @ k_rt.T, k_rt @ y_t, ridge=ridge).detach()
        labels = k_rr.detach() @ alpha
    else:
        alpha, labels = regress(k_rr, y_r), y_r
    return (y_t - k_rt.T @ alpha).square().sum(), labels


def rkip(
    k_rt: Tensor, k_rr: Tensor, alpha_t: Tensor, y_r: Tensor | None, square: float
) -> tuple[Tensor, Tensor]:
    """The loss and the labels m x c it is at, from alpha_T and square = alpha_T^T K_TT alpha_T.

    y_R None = the labels that make it least: what the records' regression says of the images.
    """
    seen = k_rt @ alpha_t
    labels = seen if y_r is None else y_r
    return square + ((labels - 2 * seen) * regress(k_rr, labels)).sum(), labels.detach()
