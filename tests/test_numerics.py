"""Shared iterations, each against a slow and obvious way."""

import torch

from remnant.solvers.numerics import least_squares, levenberg_marquardt


def normal(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def solved(matrices, wanted, **how):
    return least_squares(
        lambda x: torch.einsum("kqn,kn->kq", matrices, x),
        lambda y: torch.einsum("kqn,kq->kn", matrices, y),
        wanted,
        **how,
    )


def test_conjugate_gradients_are_least_squares_row_by_row():
    matrices, wanted = normal(4, 9, 5), normal(4, 9, seed=1)
    exact = torch.linalg.lstsq(matrices, wanted[:, :, None]).solution[:, :, 0]
    torch.testing.assert_close(solved(matrices, wanted, iterations=30), exact)
    early = solved(matrices, wanted, iterations=30, tolerance=0.5)
    assert 1e-3 < (early - exact).norm() < 0.5 * exact.norm()


def test_a_row_does_not_depend_on_the_others():
    matrices, wanted = normal(3, 9, 5), normal(3, 9, seed=1)
    matrices[1] *= 1e6
    together = solved(matrices, wanted, iterations=20, tolerance=1e-10)
    for k in range(3):
        alone = solved(matrices[k : k + 1], wanted[k : k + 1], iterations=20, tolerance=1e-10)
        torch.testing.assert_close(together[k : k + 1], alone)


def test_what_no_direction_reaches_stays_at_zero():
    matrices, wanted = normal(2, 6, 4), normal(2, 6, seed=1)
    matrices[0] = 0.0
    matrices[1, :, 2:] = 0.0  # singular: the shortest solution is asked for
    found = solved(matrices, wanted, iterations=50)
    assert not found[0].any()
    shortest = torch.linalg.lstsq(matrices[1], wanted[1, :, None], driver="gelsd").solution[:, 0]
    torch.testing.assert_close(found[1], shortest)
    assert not solved(matrices, torch.zeros(2, 6).double(), iterations=5).any()


def rosenbrock(points):
    """Residuals k x 2 and their Jacobian k x 2 x 2; both vanish at (1, 1) alone."""
    x, y = points.T
    zero = torch.zeros_like(x)
    jacobian = torch.stack(
        [torch.stack([-20 * x, zero + 10], 1), torch.stack([zero - 1, zero], 1)], 1
    )
    return torch.stack([10 * (y - x**2), 1 - x], 1), jacobian


def cost(points):
    return rosenbrock(points)[0].square().sum(1)


def linearise(points):
    rest, jacobian = rosenbrock(points)
    return jacobian.mT @ jacobian, torch.einsum("kqn,kq->kn", jacobian, rest)


def test_levenberg_marquardt_finds_the_end_of_the_valley_from_every_start():
    start = torch.tensor([[-1.2, 1.0], [3.0, -4.0], [1.0, 1.0], [0.0, 30.0]], dtype=torch.float64)
    found = levenberg_marquardt(cost, linearise, start, steps=100)
    torch.testing.assert_close(found, torch.ones(4, 2).double(), rtol=0, atol=1e-9)
    few = levenberg_marquardt(cost, linearise, start, steps=3)
    assert (cost(few) <= cost(start)).all()
    alone = levenberg_marquardt(cost, linearise, start[1:2], steps=3)
    torch.testing.assert_close(few[1:2], alone)


def test_a_step_may_keep_to_a_surface():
    """On the sphere |A y| is least along the last singular vector."""
    matrix = normal(6, 4)
    gram = matrix.T @ matrix

    def along(points, step):
        moved = points + step
        return moved / moved.norm(dim=1, keepdim=True)

    def tangent(points):
        outer = points[:, :, None] * points[:, None, :]
        flat = torch.eye(4).double() - outer
        return flat @ gram @ flat + outer, ((points @ gram)[:, None] @ flat)[:, 0]

    start = torch.nn.functional.normalize(normal(3, 4, seed=2), dim=1)
    found = levenberg_marquardt(
        lambda y: (y @ matrix.T).square().sum(1), tangent, start, steps=200, move=along
    )
    torch.testing.assert_close(found.norm(dim=1), torch.ones(3).double())
    least = torch.linalg.eigvalsh(gram)[0]
    torch.testing.assert_close((found @ matrix.T).square().sum(1), least.expand(3))


def test_it_ends_where_no_step_helps():
    calls = []

    def flat(points):
        calls.append(1)
        return torch.ones(len(points), dtype=torch.float64)

    start = normal(2, 3)
    eye = torch.eye(3).double().expand(2, 3, 3)
    found = levenberg_marquardt(flat, lambda y: (eye, y), start, steps=1000)
    assert torch.equal(found, start)
    assert len(calls) < 30
