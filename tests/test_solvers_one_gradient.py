"""Exact recovery of a batch from one gradient: every path, and honesty where it must fail."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from remnant.errors import InputError
from remnant.solvers.dense import one_gradient
from remnant.solvers.dense.batch_search import (
    Limits,
    Spaces,
    add_last,
    search_graph,
    solve_features,
    solve_pairs,
)
from remnant.solvers.dense.frames import Coordinates, deflate, first_side, pose_frames
from remnant.solvers.dense.one_gradient import leak_of, recover_batch
from remnant.solvers.dense.reflections import Graph, Signals
from remnant.solvers.dense.resimulate import resimulate
from remnant.solvers.dense.rounds import Found, Search
from remnant.solvers.dense.smooth import pose_smooth
from remnant.solvers.dense.smooth_refine import refine, slope_and_curvature
from remnant.solvers.dense.tolerances import TOLERANCES
from remnant.solvers.numerics import slope_at
from remnant.solvers.spans import count_in_noise, decompose

INPUTS = 60


def leaked(count, widths, activation, *, seed=0, dtype=torch.float64, bias=True, noise=0.0):
    """A batch and what one gradient of a freshly made network gives away."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(count, INPUTS, generator=generator, dtype=torch.float64) * 4 - 2
    labels = torch.randint(0, 5, (count,), generator=generator)
    layers = []
    sizes = [INPUTS, *widths, 5]
    for fan_in, fan_out in pairwise(sizes):
        linear = nn.Linear(fan_in, fan_out, bias=bias or fan_in != INPUTS).to(dtype)
        with torch.no_grad():
            for p in linear.parameters():
                draw = torch.rand(p.shape, generator=generator, dtype=torch.float64)
                p.copy_((draw * 2 - 1) / fan_in**0.5)
        layers += [linear, activation]
    model = nn.Sequential(*layers[:-1])
    nn.functional.cross_entropy(model(x.to(dtype)), labels).backward()

    def affine(layer, values):
        parts = [values(layer.weight)] + (
            [values(layer.bias)[:, None]] if layer.bias is not None else []
        )
        return torch.cat(parts, dim=1).detach().double()

    def grads(p):
        g = p.grad.double()
        return g + noise * g.std() * torch.randn(g.shape, generator=generator, dtype=g.dtype)

    return x, {
        "first": affine(layers[0], lambda p: p),
        "first_gradient": affine(layers[0], grads),
        "next_weight": layers[2].weight.detach().double(),
        "next_gradient": affine(layers[2], grads),
        "activation": activation,
        "precision": torch.finfo(dtype).eps,
        "last": len(widths) == 1,
        "bias": bias,
    }


def recover(held, **more):
    given = {"generator": torch.Generator().manual_seed(1)} | more
    return recover_batch(one_gradient.Layers(**held), **given)


def errors(x, inputs):
    """Squared distance of each record to the nearest recovered one."""
    return torch.cdist(x, inputs).min(1).values ** 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize(
    ("count", "widths", "activation"),
    [
        (20, (64, 64), nn.ReLU()),
        (12, (96, 64), nn.LeakyReLU(0.1)),
        (12, (96,), nn.ReLU()),
        (8, (96,), nn.LeakyReLU(0.1)),
        (12, (96, 64), nn.Tanh()),
        (12, (96, 64), nn.GELU()),
        (12, (96, 64), nn.SiLU()),
        (12, (96, 64), nn.ELU()),
        (12, (96, 64), nn.Softplus()),
        (12, (128, 6), nn.ReLU()),  # the next layer is narrower than the batch
        (1, (16,), nn.Tanh()),
        (1, (16, 16), nn.ReLU()),
    ],
    ids=lambda v: str(v).split("(")[0] if isinstance(v, nn.Module) else str(v),
)
def test_every_record_comes_back_and_is_certified(count, widths, activation, dtype):
    x, held = leaked(count, widths, activation, dtype=dtype)
    got = recover(held)
    assert got.counted == count
    assert got.spectrum.clear
    assert got.complete, got.reason
    assert bool(got.passed.all())
    assert got.inputs.shape == (count, INPUTS)
    assert float(errors(x, got.inputs).max()) < (1e-5 if dtype == torch.float32 else 1e-12)


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-4), (torch.float64, 1e-12)])
def test_a_nearly_linear_activation_comes_back_too(dtype, most):
    x, held = leaked(10, (96, 64), nn.Sigmoid(), dtype=dtype)
    got = recover(held)
    assert got.complete, got.reason
    assert float(errors(x, got.inputs).max()) < most


def smooth_problem(count, activation, dtype):
    """The truth in the coordinates of the problem, and the problem."""
    x, held = leaked(count, (96, 64), activation, dtype=dtype)
    problem = pose_smooth(
        decompose(held["first_gradient"]).parts(count),
        activation,
        held["first"],
        held["next_gradient"],
        level=1e-7,
        next_weight=held["next_weight"],
    )
    whole = torch.cat([x, torch.ones(count, 1, dtype=torch.float64)], dim=1)
    return whole, whole @ problem.right.T, problem


def test_both_sides_refine_a_record_and_say_how_far_off_it_may_be():
    whole, y, problem = smooth_problem(12, nn.Tanh(), torch.float32)
    generator = torch.Generator().manual_seed(0)
    away = torch.randn(y.shape, generator=generator, dtype=y.dtype) * 1e-3 * y.norm() / 12
    start = y + away
    start = start / (start @ problem.last)[:, None]
    got = refine(problem, start)
    error = ((got.y @ problem.right) - whole).norm(dim=1) / whole.norm(dim=1)
    before = ((start @ problem.right) - whole).norm(dim=1) / whole.norm(dim=1)
    assert float((error / before).max()) < 0.05
    assert float(got.residual.max()) < 1e-3
    assert float((error / got.residual).max()) < 5


def test_a_point_that_is_no_record_is_never_vouched_for():
    _, y, problem = smooth_problem(12, nn.Tanh(), torch.float32)
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(40, 12, generator=generator, dtype=y.dtype)
    got = refine(problem, start / (start @ problem.last)[:, None])
    nearest = torch.cdist(got.y, y).min(1).values / got.y.norm(dim=1)
    wrong = nearest > 1e-2
    assert bool(wrong.any())
    assert float(got.residual[wrong].min()) > TOLERANCES.deviation


def test_slope_and_curvature_are_the_derivatives():
    t = torch.linspace(-2, 2, 9, dtype=torch.float64)
    slope, curvature = slope_and_curvature(nn.Tanh(), t)
    assert torch.allclose(slope, 1 - torch.tanh(t) ** 2)
    assert torch.allclose(curvature, -2 * torch.tanh(t) * (1 - torch.tanh(t) ** 2))


def test_the_last_record_before_the_output_needs_no_search():
    x, held = leaked(6, (64,), nn.ReLU())
    frame, inverse, to_record = first_side(
        held["first"], decompose(held["first_gradient"]).parts(6)
    )
    left = decompose(held["first_gradient"]).parts(6)[0]
    spaces = Spaces(t=frame, a=left, p=torch.linalg.qr(held["next_weight"].T)[0], inverse1=inverse)
    whole = torch.cat([x, torch.ones(6, 1, dtype=torch.float64)], dim=1)
    duals = torch.linalg.lstsq(whole.T, held["first_gradient"].T).solution
    known = Found(
        y=(whole @ held["first"].T)[:5] @ frame,
        z=nn.functional.normalize(duals[:5] @ left, dim=1),
        residual=torch.zeros(5, dtype=torch.float64),
    )
    got = add_last(known, spaces, 0.0, Limits(residual=1e-6))
    assert len(got) == 6
    cosine = nn.functional.cosine_similarity(got.z[5] @ left.T, duals[5], dim=0)
    assert float(cosine.abs()) > 1 - 1e-10
    record = got.y[5] @ to_record
    assert torch.allclose(record / record[-1], whole[5], atol=1e-6)


def test_features_with_wrong_signs_are_solved_again():
    x, held = leaked(20, (64, 64), nn.ReLU())
    parts = decompose(held["first_gradient"]).parts(20)
    next_parts = decompose(held["next_gradient"][:, :-1]).parts(20)
    frames, _ = pose_frames(held["first"], held["next_weight"], parts, next_parts)
    t = torch.cat([x, torch.ones(20, 1, dtype=torch.float64)], dim=1) @ held["first"].T
    generator = torch.Generator().manual_seed(0)
    rough = t + 0.02 * t.std() * torch.randn(t.shape, generator=generator, dtype=t.dtype)
    got = solve_features(frames, rough @ frames.t, 0.0)
    image = (got.inner @ frames.t.T).relu()
    outside = image - (image @ frames.h) @ frames.h.T
    assert torch.allclose(got.residual, outside.norm(dim=1) / image.norm(dim=1))
    right = nn.functional.cosine_similarity(got.inner, t @ frames.t, dim=1) > 1 - 1e-8
    assert int(right.sum()) >= 15
    assert float(got.residual[right].max()) < 1e-6
    assert not bool((got.residual[~right] < TOLERANCES.exact).any())


def test_a_seed_decides_the_result():
    _, held = leaked(20, (64, 64), nn.ReLU())
    one, other = recover(held), recover(held)
    assert torch.equal(one.inputs, other.inputs)
    assert one.found == other.found


def test_more_records_than_the_width_can_tell_apart_are_refused():
    _, held = leaked(40, (64, 64), nn.ReLU())
    got = recover(held)
    assert got.counted == 40
    assert not got.complete
    assert len(got.inputs) == 0
    assert got.reason == "40 records need a layer wider than 80, it is 64"


def test_a_smooth_layer_before_the_output_is_not_for_this_solver():
    _, held = leaked(4, (64,), nn.Tanh())
    got = recover(held)
    assert not got.complete
    assert "Tanh before the output layer" in got.reason


def test_what_is_found_before_patience_ends_is_exact_and_incomplete(monkeypatch):
    x, held = leaked(20, (64, 64), nn.ReLU())

    def tired(*args):
        found, series = search_graph(*args)
        return found.take(slice(7)), series

    monkeypatch.setattr(one_gradient, "search_graph", tired)
    got = recover(held)
    assert len(got.inputs) == 7
    assert bool(got.passed.all())
    assert not got.complete
    assert got.resimulation is None
    assert got.reason == "7 of 20 records found, 7 of them fit on their own"
    assert float(torch.cdist(got.inputs, x).min(1).values.max()) < 1e-6


def test_a_wrong_record_among_right_ones_is_noticed(monkeypatch):
    _, held = leaked(20, (64, 64), nn.ReLU())

    def wrong(*args):
        found, series = search_graph(*args)
        found.y[3] += 0.3 * found.y[4]
        return found, series

    monkeypatch.setattr(one_gradient, "search_graph", wrong)
    got = recover(held)
    assert len(got.inputs) == 20
    assert not got.complete
    assert got.reason.startswith("20 candidates, which do not give back the gradient")


@pytest.mark.parametrize(
    ("activation", "away", "told"),
    [
        (nn.ReLU(), 3e-6, False),
        (nn.ReLU(), 3e-5, True),
        (nn.LeakyReLU(0.1), 3e-6, False),
        (nn.LeakyReLU(0.1), 3e-5, True),
        (nn.Tanh(), 3e-6, True),
    ],
)
def test_only_a_kink_within_rounding_is_forgiven(activation, away, told):
    """One neuron learned of one record as if it were on the kink's other side."""
    x, held = leaked(10, (64, 64), activation)
    records = nn.functional.pad(x, (0, 1), value=1.0)
    first, gradient = 5 * held["first"], held["first_gradient"]
    t = records @ first.T
    neuron, record = 5, 2
    spread = t[record].square().mean().sqrt()
    first[neuron, -1] -= t[record, neuron] + away * spread  # now just below the kink
    rest = (first, gradient, held["next_weight"], held["next_gradient"], activation)
    again = resimulate(records, *rest)
    own = again.duals.T @ records
    with_one = own.clone()
    with_one[neuron] += again.signals[record] @ held["next_weight"][:, neuron] * records[record]
    missed = resimulate(records, first, with_one, *rest[2:])
    assert resimulate(records, first, own, *rest[2:]).first < 1e-12
    assert (missed.first > 1e-3) is told
    assert missed.first < 1e-12 or told


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.Tanh()])
def test_residuals_are_shares_of_what_the_gradients_are(activation):
    """In units of the gradients, whatever their scale: right records leave nothing of either."""
    x, held = leaked(10, (64, 64), activation)
    records = nn.functional.pad(x, (0, 1), value=1.0)
    layers = held["first"], held["next_weight"]
    m1, m2 = held["first_gradient"], held["next_gradient"]
    right = resimulate(records, layers[0], m1, layers[1], m2, activation)
    assert right.first < 1e-10
    assert right.next < 1e-10
    assert torch.allclose(right.duals.T @ records, m1, atol=1e-12)
    off = 0.1 * torch.randn(m1.shape, generator=torch.Generator().manual_seed(1)).double()
    off *= m1.norm() / off.norm()
    spoilt = resimulate(records, layers[0], m1 + off, layers[1], m2, activation)
    assert spoilt.first == pytest.approx(float(off.norm() / (m1 + off).norm()), rel=1e-6)
    # What no signals explain of the next layer's gradient is what lies across the features.
    features = nn.functional.pad(activation(records @ layers[0].T), (0, 1), value=1.0)
    across = torch.randn(m2.shape, generator=torch.Generator().manual_seed(2)).double()
    across = across - across @ torch.linalg.pinv(features) @ features
    across *= 0.3 * m2.norm() / across.norm()
    spoilt = resimulate(records, layers[0], m1, layers[1], m2 + across, activation)
    assert spoilt.next == pytest.approx(0.3 / 1.09**0.5, rel=1e-6)
    without = resimulate(records, layers[0], m1, layers[1], m2[:, :-1], activation)
    assert without.next < 1e-10


def test_a_wrong_count_is_never_called_complete():
    _, held = leaked(10, (64, 64), nn.ReLU())
    got = recover(held, count=9, search=Search(iterations=200, patience=1))
    assert not got.complete


def test_fewer_records_than_told_are_counted_as_they_are():
    """An audit tells how many were trained on, and the batch is a part of them."""
    x, held = leaked(10, (64, 64), nn.ReLU())
    for count in (11, 60):  # of 60 a layer of 64 could not tell any
        got = recover(held, count=count)
        assert got.complete
        assert got.counted == len(got.inputs) == 10
        assert float(torch.cdist(got.inputs, x.double()).min(1).values.max()) < 1e-4


def test_without_a_first_bias_the_next_bias_sets_the_scale():
    x, held = leaked(8, (64, 64), nn.ReLU(), bias=False)
    got = recover(held)
    assert got.complete, got.reason
    assert float(errors(x, got.inputs).max()) < 1e-12
    got = recover(held | {"next_gradient": held["next_gradient"][:, :-1]})
    assert not got.complete
    assert got.reason == "8 of 8 records up to scale: no bias fixes it"
    cosine = nn.functional.normalize(got.inputs, dim=1) @ nn.functional.normalize(x, dim=1).T
    assert torch.allclose(cosine.max(1).values, torch.ones(8, dtype=torch.float64))


def test_a_little_noise_moves_records_a_little():
    x, held = leaked(8, (96, 64), nn.ReLU(), noise=1e-3)
    got = recover(held)
    assert got.counted == 8
    assert len(got.inputs) == 8
    assert float(errors(x, got.inputs).max()) < 0.1


def test_shapes_that_do_not_belong_together_are_named():
    _, held = leaked(4, (16, 16), nn.ReLU())
    with pytest.raises(InputError, match=r"next layer's weight and gradient: expected v x 16"):
        recover(held | {"next_weight": held["next_weight"][:, :-1]})
    with pytest.raises(InputError, match="first layer's gradient"):
        recover(held | {"first_gradient": held["first_gradient"][:-1]})


def test_frames_hold_the_records_and_lose_those_found():
    x, held = leaked(10, (64, 64), nn.ReLU())
    ones = torch.ones(10, 1, dtype=torch.float64)
    t = torch.cat([x, ones], dim=1) @ held["first"].T
    h = t.relu()
    parts = decompose(held["first_gradient"]).parts(10)
    next_parts = decompose(held["next_gradient"][:, :-1]).parts(10)
    frames, to_record = pose_frames(held["first"], held["next_weight"], parts, next_parts)
    assert torch.allclose((t @ frames.t) @ to_record, torch.cat([x, ones], dim=1))
    again = resimulate(
        torch.cat([x, ones], dim=1),
        *(held[k] for k in ("first", "first_gradient", "next_weight", "next_gradient")),
        nn.ReLU(),
    )
    a, p = again.duals, again.signals @ held["next_weight"]
    known = Coordinates(y=t @ frames.t, e=h @ frames.h, z=a @ frames.a, c=p @ frames.p)
    assert torch.allclose(known.y @ frames.inverse1 @ known.z.T, torch.eye(10).double())
    some = Coordinates(**{k: getattr(known, k)[:4] for k in "yezc"})
    rest = deflate(frames, some)
    assert rest.remaining == 6
    for rows, frame in ((t, rest.t), (h, rest.h), (a, rest.a), (p, rest.p)):
        outside = rows - (rows @ frame) @ frame.T
        assert float((outside[4:].norm(dim=1) / rows[4:].norm(dim=1)).max()) < 1e-8
        assert float((outside[:4].norm(dim=1) / rows[:4].norm(dim=1)).min()) > 1e-3


def test_pairs_agree_with_a_singular_value_decomposition():
    generator = torch.Generator().manual_seed(0)
    outer, inner = (
        torch.linalg.qr(torch.randn(40, 6, generator=generator, dtype=torch.float64))[0]
        for _ in range(2)
    )
    slope = torch.rand(3, 40, generator=generator, dtype=torch.float64)
    wanted = torch.linalg.svd(torch.cat([outer, -slope[0][:, None] * inner], dim=1))[2][-1]
    start = wanted[:6].expand(3, 6)
    got = solve_pairs(outer, inner, slope, torch.ones_like(slope), (start, 0 * start))
    # With u held along its start, v is the best there is, and u at least as good as the start.
    fit = outer @ got.outer[0] - slope[0] * (inner @ got.inner[0])
    assert torch.allclose(fit.norm(), got.residual[0], atol=1e-8)
    best = torch.linalg.lstsq(slope[0][:, None] * inner, outer @ got.outer[0]).solution
    assert torch.allclose(best, got.inner[0], atol=1e-6)


def test_a_learned_leak_is_a_leak():
    x, held = leaked(8, (64, 64), nn.PReLU(init=0.2), dtype=torch.float32)
    got = recover(held)
    assert got.complete, got.reason
    assert float(errors(x, got.inputs).max()) < 1e-6


@pytest.mark.parametrize("leak", [0.0, 0.2])
def test_the_nearest_point_of_the_graph_is_the_nearest(leak):
    generator = torch.Generator().manual_seed(0)
    t, s = torch.randn(2, 1, 50, generator=generator, dtype=torch.float64)
    frame = torch.eye(50)
    u, f = Graph(ends=frame, features=frame, leak=leak).nearest([t, s])
    assert torch.allclose(f, torch.where(u > 0, u, leak * u))
    assert float(u.square().sum() + f.square().sum()) == pytest.approx((1.5 + 0.5 * leak**2) * 50)
    grid = torch.linspace(-5, 5, 20001, dtype=torch.float64)
    line = torch.where(grid > 0, grid, leak * grid)
    cost = (t[0, :, None] - grid) ** 2 + 4 * (s[0, :, None] - line) ** 2
    wanted = grid[cost.argmin(1)]
    assert torch.allclose(u[0] / u.norm(), wanted / wanted.norm(), atol=1e-3)


def test_nearest_signals_obey_the_signs():
    generator = torch.Generator().manual_seed(0)
    parts = torch.randn(3, 1, 50, generator=generator, dtype=torch.float64)
    frame = torch.eye(50)
    near_t, near_a, near_p = Signals(t=frame, a=frame, p=frame).nearest(parts)
    assert torch.equal(near_a[near_t > 0], near_p[near_t > 0])
    assert float(near_a[near_t < 0].abs().max()) == 0


def test_noise_is_told_from_records_in_the_spectrum():
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(200, 300, generator=generator, dtype=torch.float64)
    a, b = (torch.randn(n, 7, generator=generator, dtype=torch.float64) for n in (200, 300))
    matrix = a @ b.T + noise
    spectrum = count_in_noise(torch.linalg.svdvals(matrix), matrix, 1e-16)
    assert not spectrum.clear
    assert spectrum.count == 7


def test_slopes_and_leaks():
    t = torch.linspace(-2, 2, 9, dtype=torch.float64)
    assert torch.allclose(slope_at(nn.Tanh(), t), 1 - torch.tanh(t) ** 2)
    assert leak_of(nn.ReLU()) == 0
    assert leak_of(nn.LeakyReLU(0.3)) == 0.3
    assert leak_of(nn.PReLU(init=0.25)) == 0.25
    assert leak_of(nn.GELU()) is None


def test_a_smooth_network_without_biases_is_not_called_free_of_scale():
    _, held = leaked(1, (32, 32), nn.Tanh(), bias=False)
    assert "the activation fixes the size" in recover(held).reason
    _, held = leaked(4, (32, 32), nn.Tanh(), bias=False)
    assert recover(held).reason.endswith("this search settles neither size nor sign")
