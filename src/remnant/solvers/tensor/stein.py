"""Moments of one gradient of a two-layer network, by Stein's lemma (paper 002, section 4.1).

For w ~ N(0, I) and unit u, E[s(beta u.w) H_k(w)] = c_k(beta) u^(x k) with
c_k(beta) = E[s(beta z) He_k(z)]. So with x_i = beta_i u_i and residuals r_i,

    sum_j g_j H_k(w_j)        from the head's gradient  g_j = sum_i r_i s(w_j.x_i),
    sum_j G_j (x) H_{k-1}(w_j)  from the first layer's    G_j = sum_i r_i s'(w_j.x_i) x_i,

both estimate sum_i r_i c_k(beta_i) u_i^(x k). Both gradients come here with the neurons' weights
already in (g / m, and a_j G_j / |a|^2): moments are plain sums over neurons. Nothing larger than
m x d, d x d, m x B^2 or B^3 is formed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import permutations

import torch
from torch import Tensor

from remnant.solvers.numerics import best_fit

Activation = Callable[[Tensor], Tensor]


def coefficient(activation: Activation, order: int, beta: Tensor) -> Tensor:
    """c_k(beta) = E[s(beta z) He_k(z)] = beta^k E[s^(k)(beta z)] for each entry of beta.

    A fine trapezoid rule, not Gauss-Hermite: activations may have kinks.
    """
    z = torch.linspace(-12, 12, 24001, dtype=torch.float64)
    weight = torch.exp(-(z**2) / 2) * torch.special.hermite_polynomial_he(z, order)
    weight = weight * (z[1] - z[0]) / (2 * torch.pi) ** 0.5
    values = activation(beta.reshape(-1, 1) * z)
    means: Tensor = (values @ weight).reshape(beta.shape)
    return means


def vanishing(activation: Activation, order: int) -> bool:
    """Whether c_k is zero at every scale, as for k = 2 of odd activations and k = 3 of ReLU."""
    beta = torch.tensor([0.1, 1.0, 3.0], dtype=torch.float64)
    sizes = [coefficient(activation, k, beta).abs() for k in (1, 2, 3, 4)]
    return bool((sizes[order - 1] < 1e-6 * sum(sizes)).all())


# --- the span ------------------------------------------------------------------------------


def head_matrix(g: Tensor, w: Tensor, vector: Tensor | None = None) -> Tensor:
    """sum_j g_j H_2(w_j), d x d, or sum_j g_j H_3(w_j)(I, I, vector) (Remark 3). g: m. w: m x d."""
    along = g if vector is None else g * (w @ vector)
    matrix = w.T @ (along[:, None] * w) - along.sum() * torch.eye(w.shape[1], dtype=w.dtype)
    if vector is None:
        return matrix
    beside = torch.outer(w.T @ g, vector)
    return matrix - beside - beside.T


def layer_matrix(gradient: Tensor, w: Tensor, vector: Tensor | None = None) -> Tensor:
    """The same from the first layer's gradient (m x d), symmetrised as in Appendix B."""
    if vector is None:
        return symmetric(gradient.T @ w)
    matrix = 2 * symmetric(gradient.T @ ((w @ vector)[:, None] * w))
    matrix = matrix - 2 * symmetric(torch.outer(gradient.sum(0), vector))
    along = gradient @ vector
    eye = torch.eye(w.shape[1], dtype=w.dtype)
    return (matrix + w.T @ (along[:, None] * w) - along.sum() * eye) / 3


def symmetric(matrix: Tensor) -> Tensor:
    return (matrix + matrix.T) / 2


def leading_span(matrix: Tensor, count: int) -> Tensor:
    """d x count: eigenvectors of the largest |eigenvalues|."""
    values, vectors = torch.linalg.eigh(matrix)
    leading: Tensor = vectors[:, values.abs().argsort(descending=True)[:count]]
    return leading


# --- moments inside the span: w is m x B from here on ---------------------------------------


def turns(tensor: Tensor) -> Tensor:
    """The sum over the three places of the first mode of a B x B x B tensor."""
    return tensor + tensor.permute(1, 0, 2) + tensor.permute(1, 2, 0)


def with_identity(vector: Tensor) -> Tensor:
    """v (x~) I: v_a d_bc + v_b d_ca + v_c d_ab."""
    eye = torch.eye(len(vector), dtype=vector.dtype)
    return turns(vector[:, None, None] * eye)


def pairs(w: Tensor) -> Tensor:
    """m x B^2: all products of two entries of each row."""
    return (w[:, :, None] * w[:, None, :]).reshape(len(w), -1)


def head_moment(g: Tensor, w: Tensor, order: int, vector: Tensor | None = None) -> Tensor:
    """sum_j g_j H_k(w_j) for k = 1, 2, 3, or for k = 4 contracted with `vector` (B). g: m."""
    size = w.shape[1]
    if order == 1:
        return w.T @ g
    if order == 2:
        return head_matrix(g, w)
    if order == 3:
        cube = ((g[:, None] * w).T @ pairs(w)).reshape(size, size, size)
        return cube - with_identity(w.T @ g)
    assert vector is not None, "the fourth order is taken along a vector"
    along = g * (w @ vector)
    square = (g[:, None] * w).T @ w
    cube = ((along[:, None] * w).T @ pairs(w)).reshape(size, size, size)
    rest = turns(vector[:, None, None] * square)
    return cube - rest - with_identity(w.T @ along) + g.sum() * with_identity(vector)


def layer_moment(gradient: Tensor, w: Tensor, order: int, vector: Tensor | None = None) -> Tensor:
    """sum_j G_j (x) H_{k-1}(w_j), symmetrised (Appendix B). gradient: m x B."""
    size = w.shape[1]
    eye = torch.eye(size, dtype=w.dtype)
    if order == 1:
        return gradient.sum(0)
    if order == 2:
        return layer_matrix(gradient, w)
    if order == 3:
        cube = (gradient.T @ pairs(w)).reshape(size, size, size)
        return turns(cube - gradient.sum(0)[:, None, None] * eye) / 3
    assert vector is not None, "the fourth order is taken along a vector"
    along = (w @ vector)[:, None] * gradient
    mixed = (gradient.T @ w)[:, :, None] * vector  # G (x) w (x) vector
    cube = (along.T @ pairs(w)).reshape(size, size, size)
    free = cube - along.sum(0)[:, None, None] * eye - mixed - mixed.permute(0, 2, 1)
    return (turns(free) + head_moment(gradient @ vector, w, 3)) / 4


# --- the same moments by regression ---------------------------------------------------------


def regress_moments(
    gradient: Tensor, head: Tensor, w: Tensor, orders: Sequence[int]
) -> list[Tensor]:
    """Moments sum_i r_ik c_o(beta_i) u_i^(x o), c x B^o each, by least squares over neurons.

    gradient: m x B. head: c x m. w: m x B, whitened. orders: ascending. G_j = sum_k head_kj
    p_k(w_j) with p_k a polynomial in Hermite features; a fit leaves out what a plain average (the
    other functions here) picks up from other orders. Orders with too many features for the neurons
    are fitted to what the lower ones leave, with a ridge.
    """
    blocks = [hermite_features(w, order - 1) for order in orders]
    columns = [(head.T[:, :, None] * f[:, None, :]).reshape(len(w), -1) for f, _ in blocks]
    few = 0
    while few < len(columns) and 1.2 * sum(c.shape[1] for c in columns[: few + 1]) < len(w):
        few += 1
    fits: list[Tensor] = []
    if few:
        together = torch.cat(columns[:few], dim=1)
        fit = best_fit(together, gradient)
        gradient = gradient - together @ fit
        fits += fit.split([c.shape[1] for c in columns[:few]])
        basis = torch.linalg.qr(together)[0]
        columns = [c if i < few else c - basis @ (basis.T @ c) for i, c in enumerate(columns)]
    for column in columns[few:]:
        fit = _ridge(column, gradient)
        gradient = gradient - column @ fit
        fits.append(fit)
    return [
        _unfold(fit.reshape(len(head), block.shape[1], -1), places, order)
        for fit, (block, places), order in zip(fits, blocks, orders, strict=True)
    ]


def _ridge(columns: Tensor, right: Tensor) -> Tensor:
    """Ridge regression, the ridge by generalised cross-validation."""
    values, left = torch.linalg.eigh(columns @ columns.T)  # m x m: there are more columns than rows
    values, inside = values.clamp(min=0), left.T @ right
    best, lowest = values[-1], float("inf")
    for ridge in values[-1] * torch.logspace(-4, 2, 31, dtype=values.dtype):
        shrink = ridge / (values + ridge)
        score = float((shrink[:, None] * inside).square().sum() / shrink.sum() ** 2)
        if score < lowest:
            best, lowest = ridge, score
    solution: Tensor = columns.T @ (left @ (inside / (values + best)[:, None]))
    return solution


def hermite_features(w: Tensor, degree: int) -> tuple[Tensor, Tensor]:
    """Features of `degree`, m x f, and where they stand in a tensor B^degree (f x degree).

    Feature t of indices (b1 <= b2 ...) is the product over distinct b of He_n(w_b) / n!, n times
    b occurs: the polynomial sum T_b1b2.. H(w)_b1b2.. / degree! has coefficient T_t at feature t.
    """
    size = w.shape[1]
    if degree == 0:
        return torch.ones(len(w), 1, dtype=w.dtype), torch.zeros(1, 0, dtype=torch.long)
    places = torch.combinations(torch.arange(size), degree, with_replacement=True)
    he = [torch.ones_like(w), w, (w**2 - 1) / 2, (w**3 - 3 * w) / 6]
    counts = torch.nn.functional.one_hot(places, size).sum(1)  # f x B, how often each b occurs
    features = torch.ones(len(w), len(places), dtype=w.dtype)
    for b in range(size):
        powers = torch.stack([h[:, b] for h in he], dim=1)  # m x 4
        features = features * powers[:, counts[:, b]]
    return features, places


def _unfold(part: Tensor, places: Tensor, order: int) -> Tensor:
    """c x f x B coefficients of features at `places` -> symmetric c x B^order tensors."""
    classes, _, size = part.shape
    if order == 1:
        return part[:, 0]
    tensor = torch.zeros(classes, *([size] * order), dtype=part.dtype)
    for turn in permutations(range(order - 1)):
        index: tuple[slice | Tensor, ...] = (slice(None), *(places[:, t] for t in turn))
        tensor[index] = part
    # G is the last mode; average over its place.
    total = tensor.clone()
    for place in range(1, order):
        total = total + tensor.transpose(place, order)
    return total / order
