"""The paper's descent: the fast loss is the naive one, batches are the whole, records come back."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from remnant.errors import InputError
from remnant.models import build
from remnant.scoring import centred_correlation
from remnant.solvers.descent import paper
from remnant.solvers.descent.paper import SHARPENED, Descent, descend, objective
from remnant.training import solve_linearised
from remnant.types import Evidence, Examples, Scaling
from seeding import seeded


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
def test_the_loss_is_that_of_single_gradients_and_its_slopes_are_differences(kind, features):
    torch.manual_seed(0)
    model = MODELS[kind]().eval()
    evidence = between(model)
    points = Descent(features=features).points(evidence)
    inputs, duals = drawn(3, 3 * len(points))
    goal = objective(model, evidence.vector, points, temperature=7.0, dtype=torch.float64)
    total = {name: value.clone() for name, value in goal.vector.items()}
    for part, point in zip(duals.chunk(len(points), dim=1), points, strict=True):
        mine = copy.deepcopy(goal.model).requires_grad_()
        mine.load_state_dict(point, strict=False)
        for x, a in zip(inputs, part, strict=True):
            mine.zero_grad()
            (mine(x[None])[0] @ a).backward()
            for name, parameter in mine.named_parameters():
                total[name] -= parameter.grad
    naive = sum(value.square().sum() for value in total.values()).item()
    x, a = inputs.clone().requires_grad_(), duals.clone().requires_grad_()
    loss = goal.loss(x, a)
    assert loss.item() == pytest.approx(naive, rel=1e-10)
    slopes = torch.autograd.grad(loss, (x, a))
    steps = drawn(3, 3 * len(points), seed=9)
    ends = [goal.loss(inputs + h * steps[0], duals + h * steps[1]).item() for h in (1e-6, -1e-6)]
    along = sum((slope * step).sum() for slope, step in zip(slopes, steps, strict=True))
    assert (ends[0] - ends[1]) / 2e-6 == pytest.approx(along.item(), rel=1e-5)


def test_frozen_parameters_are_left_out_and_the_model_is_left_alone():
    model = MODELS["mlp"]()
    evidence = between(model)
    vector = evidence.vector | {"1.weight": torch.zeros_like(evidence.vector["1.weight"])}
    goal = objective(model, vector, [evidence.end], temperature=7.0)
    assert "1.weight" not in goal.vector
    torch.testing.assert_close(goal.model[1].weight, evidence.end["1.weight"].float())
    assert any(isinstance(m, nn.ReLU) for m in model.modules())
    torch.testing.assert_close(model[1].weight.detach().double(), evidence.start["1.weight"])


def test_annealing_leaves_the_users_own_softplus():
    goal = objective(
        nn.Sequential(
            nn.Flatten(), nn.Linear(36, 5), nn.Softplus(beta=2.0), nn.Linear(5, 5), nn.ReLU(),
            nn.Linear(5, 1),
        ),
        {"1.weight": torch.ones(5, 36).double()}, [{}], temperature=3.0,
    )  # fmt: skip
    goal.anneal(50.0)
    betas = [m.beta for m in goal.model.modules() if isinstance(m, nn.Softplus)]
    assert betas == [2.0, 50.0]


@pytest.mark.parametrize("kind", ["conv", "residual"])
def test_descent_falls_on_any_model(kind):
    torch.manual_seed(0)
    model = MODELS[kind]().eval()
    result = descend(
        model, between(model), Descent(steps=30, features="hybrid", dual_range=0.05),
        shape=(1, 6, 6), records=3, generator=seeded(),
    )  # fmt: skip
    assert result.inputs.shape == (6, 1, 6, 6)
    assert result.duals.shape == (6, 6)
    assert result.trace[-1] < result.trace[0]
    assert result.loss == min(result.trace[23:])  # every step is traced


def test_same_seed_same_bytes():
    model = MODELS["mlp"]()
    evidence = between(model)
    given = {"shape": (1, 6, 6), "records": 2}
    one, two = (
        descend(model, evidence, Descent(steps=5), generator=seeded(3), **given) for _ in range(2)
    )
    assert torch.equal(one.inputs, two.inputs)


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


def test_temperatures_rise_evenly():
    sums = Descent(temperature=(10.0, 1000.0), steps=5)
    assert [paper.temperature_at(sums, t) for t in range(5)] == [10, 257.5, 505, 752.5, 1000]


def test_no_change_is_no_evidence():
    model = MODELS["mlp"]()
    start = {n: p.detach().double() for n, p in model.named_parameters()}
    still = Evidence(
        vector={n: torch.zeros_like(p) for n, p in start.items()}, start=start, end=start,
        precision=1e-16,
    )  # fmt: skip
    with pytest.raises(InputError, match="evidence: expected numbers other than zero, got zeros"):
        descend(model, still, Descent(steps=1), shape=(36,), records=1, generator=seeded())


def test_own_duals_do_not_see_the_size_of_the_evidence():
    model = build("mlp:36-24-20-3", generator=seeded())
    evidence = between(model)
    longer = replace(evidence, vector={n: 1000 * v for n, v in evidence.vector.items()})
    settings = replace(SHARPENED, own_duals=True, steps=8, features="initial", double=True)
    ends = [
        descend(model, e, settings, shape=(36,), records=2, generator=seeded(3))
        for e in (evidence, longer)
    ]
    assert torch.allclose(ends[0].inputs, ends[1].inputs, atol=1e-4)
    assert torch.allclose(1000 * ends[0].duals, ends[1].duals, rtol=1e-3)
    assert ends[0].loss == pytest.approx(ends[1].loss, rel=1e-4)


def test_parts_of_all_candidates_are_the_whole_and_smaller_ones_fall_too():
    model = MODELS["mlp"]()
    given = {"shape": (1, 6, 6), "records": 3}
    settings = Descent(steps=10, double=True)
    ends = {
        batch: descend(
            model, between(model), replace(settings, batch=batch), generator=seeded(), **given
        )
        for batch in (None, 6, 2)
    }
    torch.testing.assert_close(ends[None].inputs, ends[6].inputs, rtol=0, atol=1e-4)
    assert ends[2].trace[-1] < 0.99 * ends[2].trace[0]
    with pytest.raises(InputError, match="descent: batch: expected 1 or more"):
        Descent(batch=0)


def test_the_kept_sum_is_that_of_all_candidates():
    model = MODELS["conv"]()
    evidence = between(model)
    goal = objective(model, evidence.vector, [evidence.end], temperature=10.0, dtype=torch.float64)
    inputs, duals = drawn(6, 3)
    part = paper.Part(goal, 2, seeded())
    for _ in range(3):  # before and after a part has moved
        whole = goal.loss(inputs, duals)
        torch.testing.assert_close(part.loss(inputs, duals), whole)
        inputs = inputs.clone()
        inputs[part.rows] += 0.1


def test_own_duals_take_the_size_of_the_evidence():
    model = MODELS["mlp"]()
    evidence = between(model)
    small = replace(evidence, vector={n: 1e-2 * v for n, v in evidence.vector.items()})
    settings = Descent(steps=30, own_duals=True, double=True)
    ends = [
        descend(model, each, settings, shape=(1, 6, 6), records=3, generator=seeded())
        for each in (replace(evidence, end=evidence.start), replace(small, end=evidence.start))
    ]
    torch.testing.assert_close(ends[0].duals, 1e2 * ends[1].duals, rtol=0.05, atol=1e-3)
