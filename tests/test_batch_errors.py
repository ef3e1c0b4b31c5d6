"""Stated errors of a batch's records, against slow ways to the same figures and drawn noise."""

import pytest
import torch
from torch.autograd.functional import jacobian

from remnant.solvers.dense.batch_errors import (
    dual_errors,
    graph_errors,
    outside_span,
    scale_errors,
    solution_noise,
    upright,
)
from remnant.solvers.dense.batch_search import Spaces
from remnant.solvers.dense.frames import Frames
from remnant.solvers.dense.rounds import Found

COUNT, WIDTH, INPUTS, LEAK = 4, 60, 9, 0.1
SAFETY = 36  # times the noise that equations are charged with


def draw(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def frame(seed):
    return torch.linalg.qr(draw(WIDTH, COUNT, seed=seed))[0]


def held(rows, basis, own, noise):
    """The variance of an equation "rows v is in the span of the basis", and all equations' Gram
    matrix: with a projector, and own's length no unknown."""
    apart = (torch.eye(WIDTH) - basis @ torch.linalg.pinv(basis)) @ rows
    used = int((rows.abs().sum(1) > 0).sum())
    variance = (apart @ own).square().sum() / (used - 2 * COUNT)
    length = apart.square().sum() * torch.outer(own, own) / own.square().sum()
    return variance, apart.T @ apart - SAFETY * noise + length


def upright_one(record, bias):
    return record / (record[-1] if bias else record.norm())


def test_equations_are_held_by_what_noise_leaves_of_them():
    rows, basis, own = draw(WIDTH, COUNT), draw(WIDTH, COUNT, seed=1), draw(COUNT, seed=2)
    noise = torch.diag(torch.tensor([0.1, 0.2, 0.0, 0.05], dtype=torch.float64))
    used = torch.tensor(float(WIDTH))
    variance, factor = solution_noise(rows, basis, used, own, noise)
    wanted, gram = held(rows, basis, own, noise)
    assert float(variance) == pytest.approx(float(wanted))
    assert torch.allclose(factor @ factor.T, gram)
    # A direction that noise alone could make up holds nothing.
    much = noise + torch.outer(*[torch.eye(COUNT).double()[1]] * 2) * WIDTH / 20
    assert float(solution_noise(rows, basis, used, own, much)[0]) == torch.inf
    # Fewer equations than unknowns are no reason to divide by less than one.
    few = solution_noise(rows, basis, torch.tensor(3.0), own, noise)[0]
    assert float(few) == pytest.approx(float(variance) * (WIDTH - 2 * COUNT))


def test_a_direction_that_the_basis_holds_is_free():
    basis = draw(WIDTH, COUNT, seed=1)
    rows = draw(WIDTH, COUNT)
    rows[:, 1] = 1e3 * basis @ draw(COUNT, seed=3)
    none = torch.zeros(COUNT, COUNT, dtype=torch.float64)
    own = torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    assert float(solution_noise(rows, basis, torch.tensor(60.0), own, none)[0]) == torch.inf


@pytest.mark.parametrize("bias", [True, False])
def test_errors_by_features_follow_the_records_own_slope(bias):
    t_frame, h_frame, to_record = frame(1), frame(2), draw(COUNT, INPUTS, seed=3)
    frames = Frames(t=t_frame, h=h_frame, a=frame(4), p=frame(5), inverse1=None, inverse2=None)
    y = draw(3, COUNT, seed=6)
    t, found = y @ t_frame.T, Found(y=y, z=y, residual=y[:, 0])
    noise = 1e-3 * torch.eye(COUNT).double()
    errors = graph_errors(frames, to_record, found, LEAK, bias, noise)
    for i, y in enumerate(t @ t_frame):
        sure = (t[i].abs() > 0.02 * t[i].square().mean().sqrt()).double()
        slope = torch.where(t[i] > 0, 1.0, LEAK) * sure
        variance, gram = held(slope[:, None] * t_frame, sure[:, None] * h_frame, y, noise)
        way = jacobian(lambda v: upright_one(v @ to_record, bias), y)
        wanted = variance * (way @ torch.linalg.inv(gram) @ way.T).trace()
        assert float(errors[i]) == pytest.approx(float(wanted), rel=1e-6)


def test_errors_by_duals_are_what_each_dual_mixes_in():
    spaces = Spaces(t=frame(1), a=frame(2), p=frame(3), inverse1=None)
    core = draw(COUNT, INPUTS, seed=4)
    core[:, -1] += 3
    duals, y = draw(COUNT, COUNT, seed=5), draw(COUNT, COUNT, seed=6)
    found, t = Found(y=y, z=duals, residual=y[:, 0]), y @ spaces.t.T
    noise = 1e-3 * torch.eye(COUNT).double()

    def records(z):
        return torch.linalg.inv(z.T) @ core

    errors = dual_errors(spaces, found, records(duals), LEAK, True, noise)
    wanted = torch.zeros(COUNT, dtype=torch.float64)
    ways = jacobian(lambda z: upright(records(z), True), duals)  # n x (d+1) x n x n
    for j, z in enumerate(duals):
        sure = (t[j].abs() > 1e-3 * t[j].square().mean().sqrt()).double()
        slope = torch.where(t[j] > 0, 1.0, LEAK) * sure
        rows, basis = sure[:, None] * spaces.a, slope[:, None] * spaces.p
        variance, gram = held(rows, basis, z, noise)
        across = torch.eye(COUNT).double() - torch.outer(z, z) / z.square().sum()
        for i in range(COUNT):
            way = ways[i, :, j] @ across
            wanted[i] += variance * (way @ torch.linalg.inv(gram) @ way.T).trace()
    assert torch.allclose(errors, wanted, rtol=1e-6)


@pytest.mark.parametrize("bias", [True, False])
def test_noise_outside_the_span_moves_records_so_far(bias):
    inputs, noise = 300, 1e-4
    records, shares = draw(3, inputs + 1), draw(3, COUNT, seed=1)
    records[:, -1] = torch.tensor([1.0, 2.0, -3.0])
    said = outside_span(records, shares, noise, bias)
    moved = []
    for seed in range(600):
        off = records + noise * shares @ draw(COUNT, inputs + 1, seed=seed + 2)
        moved.append((upright(off, bias) - upright(records, bias)).square().sum(1))
    seen = torch.stack(moved).mean(0)
    assert torch.allclose(said, seen, rtol=0.1)


@pytest.mark.parametrize(("rest", "least"), [(0.0, 1.0), (0.01, 100.0)])
def test_scales_are_as_sure_as_the_signals_that_add_up(rest, least):
    """By the noise of the sum, or by what the features left over if that is more."""
    signals, inverse = draw(3, 200), torch.tensor([[1.0], [2.0], [-4.0]], dtype=torch.float64)
    noise, said, seen = 1e-3, [], []
    for seed in range(60):
        wanted = signals.T @ inverse + noise * draw(200, 1, seed=seed + 1)
        got = torch.linalg.lstsq(signals.T, wanted).solution
        left = torch.full((200, 2), rest * 2**0.5, dtype=torch.float64)
        left[:100] = 0
        said.append(scale_errors(signals, got, wanted, left))
        seen.append(((got - inverse) / inverse).square()[:, 0])
    said, seen = torch.stack(said).mean(0), torch.stack(seen).mean(0)
    assert torch.allclose(said / seen, torch.full_like(seen, least), rtol=0.5)
    wanted = signals.T @ inverse + noise * draw(200, 1, seed=1)
    exact = scale_errors(signals, inverse, wanted, torch.zeros(1, 1).double())
    level = (signals.T @ inverse - wanted).square().sum() / 197
    spread = torch.linalg.inv(signals @ signals.T).diagonal()
    assert torch.allclose(exact, level * spread / inverse[:, 0].square())


def test_a_record_without_its_one_is_not_divided_by_nothing():
    records = torch.tensor([[2.0, 4.0], [1.0, 0.0]], dtype=torch.float64)
    assert upright(records, True).tolist() == [[0.5, 1.0], [1e12, 0.0]]
    assert torch.allclose(upright(records, False).norm(dim=1), torch.ones(2).double())
