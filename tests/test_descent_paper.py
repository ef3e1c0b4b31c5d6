"""The paper's descent: the fast loss is the naive one, batches are the whole, records come back."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from remnant.errors import InputError
from remnant.gradients import weighted_sum
from remnant.models import build
from remnant.scoring import centred_correlation
from remnant.solvers.descent import paper
from remnant.solvers.descent.objective import objective
from remnant.solvers.descent.paper import (
    SCALED,
    Descent,
    RowAdam,
    descend,
    iterates,
    slopes,
    traced_slopes,
)
from remnant.solvers.descent.stack import stack_of, stack_slopes
from remnant.training import solve_linearised
from remnant.types import Evidence, Examples, Scaling


class Residual(nn.Module):
    """A small residual net with batch norm, which layerwise rules do not know."""

    def __init__(self):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.conv, self.act, self.head = (
            nn.Conv2d(4, 4, 3, padding=1),
            nn.ReLU(True),
            nn.Linear(4, 3),
        )

    def forward(self, x):
        h = self.act(self.norm(self.stem(x)))
        h = self.act(h + self.conv(h))
        return self.head(h.mean((2, 3)))


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


MODELS = {
    "mlp": lambda: build("mlp:36-24-20-3", generator=seeded()),
    "narrow": lambda: build("mlp:36-4-4-3", generator=seeded()),  # the sums themselves are smaller
    "conv": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 3)
    ),
    "residual": Residual,
    "own softplus": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(36, 9), nn.Softplus(beta=2.0), nn.Linear(9, 3)
    ),
}


def between(model, seed=1, rank=None):
    """Evidence of that model: random changes of all its weights, of that rank where they can."""
    generator = seeded(seed)
    start = {n: p.detach().double() for n, p in model.named_parameters()}
    vector = {}
    for name, p in start.items():
        change = torch.randn(p.shape, generator=generator, dtype=torch.float64)
        if rank and p.ndim == 2 and min(p.shape) > rank:
            sides = [torch.randn(s, rank, generator=generator).double() for s in p.shape]
            change = sides[0] @ sides[1].T
        vector[name] = 0.1 * change
    end = {n: start[n] + vector[n] for n in start}
    return Evidence(vector=vector, start=start, end=end, precision=1e-16)


def drawn(count, width, seed=2):
    generator = seeded(seed)
    inputs = torch.randn(count, 1, 6, 6, generator=generator, dtype=torch.float64)
    return inputs, torch.randn(count, width, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("features", ["initial", "final", "hybrid"])
@pytest.mark.parametrize("kind", MODELS)
def test_the_fast_loss_is_the_naive_one_in_value_and_gradient(kind, features):
    torch.manual_seed(0)
    model = MODELS[kind]()
    evidence = between(model, rank=2)
    points = Descent(features=features).points(evidence)
    inputs, duals = drawn(5, 3 * len(points))
    goal = objective(
        model, evidence.vector, points, inputs[:1], temperature=7.0, dtype=torch.float64, rank=3
    )
    loss, by_input, by_dual = slopes(goal, inputs, duals, None, 0.0)

    x, a = inputs.clone().requires_grad_(), duals.clone().requires_grad_()
    found = dict.fromkeys(evidence.vector, 0.0)
    for part, weights in zip(a.chunk(len(points), dim=1), points, strict=True):
        sums = weighted_sum(goal.model, x, part, weights=weights, create_graph=True)
        found = {name: found[name] + sums[name] for name in found}
    naive = sum((evidence.vector[n] - found[n]).square().sum() for n in found)
    assert loss == pytest.approx(naive.item(), rel=1e-10)
    for fast, slow in zip((by_input, by_dual), torch.autograd.grad(naive, (x, a)), strict=True):
        torch.testing.assert_close(fast, slow, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("features", ["final", "hybrid"])
@pytest.mark.parametrize("kind", ["mlp", "narrow", "own softplus"])
def test_slopes_by_hand_are_autograds(kind, features):
    """Also with important biases, a frozen layer, and another vector than the objective's own."""
    model = MODELS[kind]()
    evidence = between(model)
    moved = {name: value for name, value in evidence.vector.items() if name != "1.weight"}
    points = Descent(features=features).points(evidence)
    inputs, duals = drawn(5, 3 * len(points))
    given = {"temperature": 7.0, "dtype": torch.float64}
    whole = objective(model, evidence.vector, points, inputs[:1], **given).balanced(inputs)
    goals = [
        whole,
        whole.against({name: 2 * value for name, value in evidence.vector.items()}),
        objective(model, moved, points, inputs[:1], **given),
    ]
    for goal in goals:
        loss, *by_hand = stack_slopes(goal, inputs, duals)
        wanted, *traced = traced_slopes(goal, inputs, duals)
        assert loss == pytest.approx(wanted, rel=1e-12)
        for here, there in zip(by_hand, traced, strict=True):
            torch.testing.assert_close(here, there, rtol=1e-10, atol=1e-12)


def test_only_plain_stacks_are_done_by_hand():
    layer = nn.Linear(4, 4)
    tied = nn.Sequential(nn.Linear(4, 4), nn.Softplus(), nn.Linear(4, 4))
    tied[2].weight = tied[0].weight
    others = [
        Residual(), tied, nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(32, 3)),
        nn.Sequential(layer, nn.Softplus(), layer), nn.Sequential(layer, nn.Tanh(), layer),
        nn.Sequential(layer, nn.Softplus()), nn.Sequential(nn.Flatten()),
    ]  # fmt: skip
    assert [stack_of(model) for model in others] == [None] * len(others)
    plain = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.Softplus(), nn.Linear(3, 1))
    assert stack_of(plain) == [("1", plain[2]), ("3", None)]
    vector = {"1.weight": torch.ones(3, 4)}
    goal = objective(plain, vector, [{}], torch.zeros(1, 4), temperature=1.0)
    assert stack_slopes(goal, torch.zeros(2, 4), torch.zeros(2, 1)) is not None
    goal = replace(goal, dense=["3"])  # the first takes sequences, say
    assert stack_slopes(goal, torch.zeros(2, 4), torch.zeros(2, 1)) is None


def test_low_rank_changes_are_kept_in_factors_and_the_model_is_left_alone():
    model = MODELS["mlp"]()
    evidence = between(model, rank=2)
    inputs, _ = drawn(1, 3)
    goal = objective(
        model, evidence.vector, [evidence.end], inputs, temperature=7.0,
        dtype=torch.float64, rank=3,
    )  # fmt: skip
    assert "1.weight" in goal.thin
    left, right = goal.thin["1.weight"]
    assert left.shape[1] == right.shape[1] == 3
    torch.testing.assert_close(left @ right.T, evidence.vector["1.weight"])
    assert any(isinstance(m, nn.ReLU) for m in model.modules())
    assert not any(m._forward_hooks for m in model.modules())


def test_annealing_leaves_the_users_own_softplus():
    goal = objective(
        nn.Sequential(
            nn.Flatten(), nn.Linear(36, 5), nn.Softplus(beta=2.0), nn.Linear(5, 5), nn.ReLU(),
            nn.Linear(5, 1),
        ),
        {"1.weight": torch.ones(5, 36).double()}, [{}], torch.zeros(1, 36), temperature=3.0,
    )  # fmt: skip
    goal.anneal(50.0)
    betas = [m.beta for m in goal.model.modules() if isinstance(m, nn.Softplus)]
    assert betas == [2.0, 50.0]


def test_row_adam_is_adam():
    start = torch.randn(4, 3, generator=seeded(), dtype=torch.float64)
    ours, theirs = RowAdam(start.clone()), start.clone().requires_grad_()
    adam = torch.optim.Adam([theirs], lr=0.02)
    for seed in range(5):
        gradient = torch.randn(4, 3, generator=seeded(seed), dtype=torch.float64)
        theirs.grad = gradient
        adam.step()
        ours.move(gradient, 0.02)
    torch.testing.assert_close(ours.values, theirs.detach())


def walk(model, evidence, **settings):
    rule = Descent(double=True, **settings)
    return list(iterates(model, evidence, rule, shape=(1, 6, 6), records=3, generator=seeded(5)))[
        -1
    ]


def test_batched_steps_have_the_whole_losss_gradient(monkeypatch):
    """Algorithm 2 against Algorithm 1 where it stands, step after step, to rounding."""
    model = MODELS["mlp"]()
    evidence = between(model)
    rule = Descent(double=True, steps=7, batch=2, temperature=(10.0, 20.0))
    seen = []
    plain = paper.slopes

    def spy(goal, inputs, duals, box, weight):
        found = plain(goal, inputs, duals, box, weight)
        seen.append((goal, inputs, *found))
        return found

    monkeypatch.setattr(paper, "slopes", spy)
    for it in iterates(model, evidence, rule, shape=(1, 6, 6), records=3, generator=seeded(5)):
        goal, inputs, loss, by_input, by_dual = seen[-1]
        whole, all_inputs, all_duals = plain(
            goal.against(evidence.vector), it.inputs, it.duals, None, 0.0
        )
        rows = [(it.inputs == one).flatten(1).all(1).nonzero().item() for one in inputs]
        assert loss == pytest.approx(whole, rel=1e-9)
        torch.testing.assert_close(by_input, all_inputs[rows], rtol=1e-8, atol=1e-10)
        torch.testing.assert_close(by_dual, all_duals[rows], rtol=1e-8, atol=1e-10)
    assert len(seen) == 8


def test_a_batch_of_all_is_algorithm_one():
    model = MODELS["conv"]()
    evidence = between(model)
    one, two = walk(model, evidence, steps=4), walk(model, evidence, steps=4, batch=6)
    assert torch.equal(one.inputs, two.inputs)
    assert one.step == 4


@pytest.mark.parametrize("kind", ["conv", "residual"])
@pytest.mark.parametrize("batch", [None, 4])
def test_descent_falls_on_any_model(kind, batch):
    torch.manual_seed(0)
    model = MODELS[kind]().eval()
    result = descend(
        model, between(model), Descent(steps=30, batch=batch, features="hybrid", dual_range=0.05),
        shape=(1, 6, 6), records=3, generator=seeded(),
    )  # fmt: skip
    assert result.inputs.shape == (6, 1, 6, 6)
    assert result.duals.shape == (6, 6)
    assert result.trace[-1] < result.trace[0]
    assert result.loss == min(result.trace[23:])  # every step is traced


def test_same_seed_same_bytes_and_the_box_holds():
    model = MODELS["mlp"]()
    evidence = between(model)
    given = {"shape": (1, 6, 6), "records": 2}
    one, two = (
        descend(model, evidence, Descent(steps=5), generator=seeded(3), **given) for _ in range(2)
    )
    assert torch.equal(one.inputs, two.inputs)
    boxed = descend(
        model,
        evidence,
        Descent(steps=60, box=100.0),
        generator=seeded(3),
        bounds=(-0.1, 0.1),
        **given,
    )
    free = descend(model, evidence, Descent(steps=60), generator=seeded(3), **given)
    assert boxed.inputs.abs().mean() < 0.5 * free.inputs.abs().mean()


def test_linearised_records_come_back():
    """Gaussian records of a linearised net, against as many that were not trained on."""
    inputs = torch.randn(8, 16, generator=seeded(), dtype=torch.float64)
    examples = Examples(
        inputs=inputs[:4], labels=torch.arange(4) % 2, ids=tuple("abcd"), bounds=None
    )
    model = build("mlp:16-128-128-1", generator=seeded(), init="normal", dtype=torch.float64)
    trained = solve_linearised(model, examples, scaling=Scaling())
    vector = {n: trained.final[n] - trained.initial[n] for n in trained.initial}
    evidence = Evidence(vector=vector, start=trained.initial, end=trained.final, precision=2e-16)
    rule = Descent(features="initial", steps=500, cosine=True, lr=0.05, dual_range=0.1)
    result = descend(model, evidence, rule, shape=(16,), records=4, generator=seeded(1))
    right, chance = (centred_correlation(x, result.inputs).amax(1).mean() for x in inputs.split(4))
    assert right > 0.9 > 0.75 > chance


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"features": "both"}, "descent: features: expected initial, final or hybrid"),
        ({"steps": 0}, "descent: steps: expected 1 or more, got 0"),
        ({"lr": 0.0}, "descent: lr: expected more than 0"),
        ({"temperature": (10.0, 0.0)}, "descent: temperature: expected two positive numbers"),
    ],
)
def test_settings_are_checked(change, words):
    with pytest.raises(InputError, match=words):
        Descent(**change)


def test_temperatures_rise_by_sums_or_by_factors():
    sums = Descent(temperature=(10.0, 1000.0), steps=5)
    assert [paper.temperature_at(sums, t) for t in range(5)] == [10, 257.5, 505, 752.5, 1000]
    factors = [paper.temperature_at(replace(sums, geometric=True), t) for t in range(5)]
    assert factors == pytest.approx([10, 10**1.5, 100, 10**2.5, 1000])


def test_no_change_is_no_evidence():
    model = MODELS["mlp"]()
    start = {n: p.detach().double() for n, p in model.named_parameters()}
    still = Evidence(
        vector={n: torch.zeros_like(p) for n, p in start.items()}, start=start, end=start,
        precision=1e-16,
    )  # fmt: skip
    with pytest.raises(InputError, match="evidence: expected numbers other than zero, got zeros"):
        descend(model, still, Descent(steps=1), shape=(36,), records=1, generator=seeded())


def test_scaled_settings_do_not_see_the_size_of_the_evidence():
    model = build("mlp:36-24-20-3", generator=seeded())
    evidence = between(model)
    longer = replace(evidence, vector={n: 1000 * v for n, v in evidence.vector.items()})
    settings = replace(SCALED, steps=8, features="initial", double=True)
    ends = [
        list(iterates(model, e, settings, shape=(36,), records=2, generator=seeded(3)))[-1]
        for e in (evidence, longer)
    ]
    assert torch.allclose(ends[0].inputs, ends[1].inputs, atol=1e-4)
    assert torch.allclose(1000 * ends[0].duals, ends[1].duals, rtol=1e-3)
    assert ends[0].loss == pytest.approx(ends[1].loss, rel=1e-4)


def test_own_units_are_the_spread_of_activations_and_the_size_of_layer_inputs():
    model = build("mlp:36-24-20-3", generator=seeded())
    goal = objective(
        model, between(model).vector, [dict(model.named_parameters())], torch.zeros(1, 36),
        temperature=5.0,
    )  # fmt: skip
    inputs = torch.randn(6, 36, generator=seeded(4))
    before = model[1](inputs)
    inside = nn.functional.softplus(before, beta=5.0)
    assert goal.spread(inputs) == pytest.approx(min(before.std(), model[3](inside).std()).item())
    balanced = goal.balanced(inputs)
    assert balanced.importance["1.bias"] == pytest.approx(inputs.square().sum(1).mean().item())
    duals = torch.randn(6, 3, generator=seeded(5))
    left = (goal.vector["1.bias"] - goal.sums(inputs, duals)["1.bias"]).square().sum()
    others = {n: v for n, v in balanced.importance.items() if n != "1.bias"}
    without = replace(balanced, importance=others).loss(inputs, duals)
    more = (balanced.importance["1.bias"] - 1) * left
    assert (balanced.loss(inputs, duals) - without).item() == pytest.approx(more.item(), rel=1e-3)


def test_scaled_batches_of_all_candidates_are_the_whole():
    model = build("mlp:36-24-20-3", generator=seeded())
    settings = replace(SCALED, steps=1, features="final", double=True)
    runs = [
        iterates(model, between(model), s, shape=(36,), records=2, generator=seeded(3))
        for s in (settings, replace(settings, batch=3))
    ]
    whole, part = (next(run).loss for run in runs)
    assert whole == pytest.approx(part, rel=1e-9)
