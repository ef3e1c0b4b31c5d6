"""The attack on final weights alone: end to end on small targets, and what it says of itself."""

import functools
from dataclasses import replace

import pytest
import torch
from torch import nn

from remnant.attacks.kkt import KKT, duals_for, objective_for
from remnant.attacks.kkt_outcome import outcome
from remnant.data import load, split
from remnant.errors import InputError
from remnant.models import build
from remnant.scoring import score
from remnant.solvers.kkt.duals import Duals, balanced_labels
from remnant.solvers.kkt.network import read_network
from remnant.solvers.kkt.paper import RANGES, Descent, descend_on_pixels, drawn
from remnant.solvers.kkt.problem import pose
from remnant.solvers.kkt.search import Found, Search, descend, expecting, pool, settled
from remnant.training import DecayTime, train
from remnant.types import Knowledge, Scaling, Status, Target
from seeding import seeded


@functools.cache
def digits_target(model="mlp:64-80-80-10:nobias", records=10, loss="ce", decay_time=4.0):
    """A network trained on digits of 8 x 8 with weight decay, and its records."""
    examples = load("digits")
    sides = split(examples, train=records, public=200, holdout=20, seed=3)
    scaling = Scaling(mean=sides.public.inputs.mean(0))
    recipe = DecayTime(lr=0.5, weight_decay=0.01, decay_time=decay_time, loss=loss)
    start = build(model, generator=seeded())
    trained = train(start, sides.train, recipe, scaling=scaling, generator=seeded())
    target = Target(
        model=trained.model,
        input_shape=examples.shape,
        scaling=scaling,
        knowledge=Knowledge(records=records, loss=loss),
    )
    return target, sides.train


def test_records_come_back_from_the_weights_and_starts_agree_on_them():
    target, truth = digits_target()
    found = KKT(starts=3, steps=400)(target, generator=seeded())
    right = score(truth, found.inputs).correlation
    assert int((right > 0.8).sum()) >= 9
    assert 10 <= len(found) <= 20
    assert found.status is Status.PARTIAL
    assert "not a certificate" in found.reason
    assert found.figures["imbalance"] < 0.01
    assert found.figures["agreed"] >= 8
    assert found.figures["misclassified"] == 0
    assert found.figures["sure"] > 0
    assert f"for {found.figures['sure']} two starts agree above 0.95" in found.reason
    assert (found.confidence.diff() <= 0).all()
    assert found.inputs.min() >= 0
    assert found.inputs.max() <= 1
    assert torch.isin(found.labels, torch.arange(10)).all()


def test_the_same_seed_gives_the_same_bytes_and_the_target_stays_as_it_was():
    target, _ = digits_target()
    before = {name: w.clone() for name, w in target.weights.items()}
    torch.manual_seed(5)
    state = torch.get_rng_state()
    runs = [KKT(starts=2, steps=20)(target, generator=seeded(4)) for _ in range(2)]
    assert torch.equal(runs[0].inputs, runs[1].inputs)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[name], w) for name, w in target.weights.items())


def test_an_unfinished_model_is_called_so():
    target, _ = digits_target(decay_time=0.05)
    found = KKT(starts=2, steps=20)(target, generator=seeded())
    assert found.figures["imbalance"] > 0.05
    assert found.status is Status.INCONCLUSIVE
    assert "not trained to a stationary point" in found.reason


def test_starts_that_did_not_come_to_rest_are_left_out_and_most_starts_go_first():
    target, _ = digits_target()
    problem = pose(read_network(target.model), (1, 8, 8), records=10, rank=10, inner_rank=40)
    rows = torch.tensor([[0, 1], [0, 2], [3, 2], [0, 1]])
    u = 3 * torch.eye(10)[rows]  # 4 starts x 2 candidates x 10 coordinates
    s = u * problem.sizes
    total = torch.tensor([[1.0], [2.0], [9.0], [2.9]])
    raw, inputs = torch.zeros(4, 2), problem.inputs(s)
    found = Found(
        inputs=inputs, outputs=u, duals=raw, s=s, raw=raw, misfit=total, worth=raw, trace=[]
    )
    sizes = expecting(problem, found).sizes  # of the first start's two candidates
    assert torch.equal(sizes.argsort(descending=True)[:2].sort().values, torch.tensor([0, 1]))
    assert expecting(replace(problem, rows={}), found).sizes is problem.sizes
    kept = settled(found)
    assert torch.equal(kept.inputs, inputs[[0, 1, 3]])
    assert len(settled(replace(found, misfit=total**4)).inputs) == 2
    duals = Duals(objective="soft", labels=torch.tensor([4, 7]), outputs=10)
    pooled = pool(problem, duals, Search(last_steps=1), kept, seeded())
    assert pooled.starts.tolist() == [3, 2]
    assert pooled.labels.tolist() == [4, 7]
    assert pooled.agreement[0] > 0.95
    assert pooled.agreement[1] == 0.95  # the third start misses it; two are as good as the same
    # where each start errs in a direction of its own, the mean and the share of starts speak
    own = problem.basis.T[5:8][:, None] * kept.inputs.norm(dim=2, keepdim=True)
    apart = replace(kept, inputs=kept.inputs + 0.4 * own)
    pooled_apart = pool(problem, duals, Search(last_steps=1), apart, seeded())
    assert 0.6 < pooled_apart.agreement[0] < 0.95
    assert pooled_apart.agreement[1] <= 2 / 3
    # one step moves next to nothing: the centres are what was agreed on
    wanted = torch.nn.functional.normalize(inputs[0], dim=1)
    assert (
        (torch.nn.functional.normalize(pooled.inputs.float(), dim=1) * wanted).sum(1) > 0.9
    ).all()


def test_biases_and_regression_and_convolutions_run():
    with_bias, _ = digits_target("mlp:64-30-30-10")
    found = KKT(starts=2, steps=10)(with_bias, generator=seeded())
    assert found.figures["bias_decayed"] is True
    regression, _ = digits_target("mlp:64-30-30-10:nobias", loss="mse")
    found = KKT(starts=2, steps=10)(regression, generator=seeded())
    assert found.status is Status.INCONCLUSIVE
    assert "unreliable" in found.reason
    assert found.labels is None
    images, _ = digits_target("cnn:1x8x8-c4k3s2-20-10", decay_time=1.0)
    found = KKT(starts=2, steps=10, tv_weight=0.01)(images, generator=seeded())
    assert found.inputs.shape == (20, 1, 8, 8)


def test_the_descent_falls_and_duals_stay_positive():
    target, _ = digits_target()
    problem = pose(read_network(target.model), (64,), records=10, rank=10, inner_rank=40)
    duals = Duals(objective="soft", labels=balanced_labels(20, 10), outputs=10)
    search = Search(steps=60, columns=1.0, rows=(5.0, 10.0))
    found = descend(problem, duals, search, starts=2, generator=seeded())
    assert found.inputs.shape == (2, 20, 64)
    assert (found.misfit.sum(1) < 2).all()  # 3 at zero duals
    assert (found.duals >= 0).all()


@pytest.mark.parametrize(("lr", "finest", "odd"), [(0.2, 1e-6, 1), (30.0, 0.2, 0)])
def test_starts_take_the_step_that_ended_with_the_lesser_misfit(lr, finest, odd):
    target, _ = digits_target()
    problem = pose(read_network(target.model), (64,), records=10, rank=10, inner_rank=40)
    duals = Duals(objective="soft", labels=balanced_labels(20, 10), outputs=10)
    search = Search(steps=60, columns=1.0, rows=(5.0, 10.0), lr=lr, finest_lr=finest)
    ended = descend(problem, duals, search, starts=4, generator=seeded()).misfit.sum(1)
    good = ended[torch.arange(4) != odd]
    assert len(ended) == 4
    assert good.max() < 1  # 3 at zero duals
    assert not ended[odd] < 2 * good.max()


def test_the_paper_descends_on_pixels():
    target, _ = digits_target()
    settings = {"preset": "paper", "lr": 1e-3, "sigma": 0.01, "alpha": 100.0, "lambda_min": 0.05}
    found = KKT(**settings, steps=200)(target, generator=seeded())
    assert found.status is Status.INCONCLUSIVE
    assert found.trace["loss"][-1] < 0.5 * found.trace["loss"][0]
    assert found.figures["objective"] == "margin"
    assert found.figures["settings"]["lr"] == 1e-3
    many = KKT(preset="paper", steps=2, trials=3)(target, generator=seeded())
    assert many.figures["trials"] == 3
    assert len(many) == 3 * 20  # pooled over the trials, as the papers do


def test_the_papers_random_search_stays_in_its_ranges():
    generator = seeded()
    for _ in range(50):
        one = drawn(generator, steps=5)
        for name, (low, high) in RANGES.items():
            assert low <= getattr(one, name) <= high
    assert drawn(generator, steps=5, alpha=7.0).alpha == 7.0


def test_a_trial_that_diverges_is_counted():
    target, _ = digits_target()
    duals = duals_for(target, 10, 20, "margin")
    run = descend_on_pixels(
        target.model, (1, 8, 8), duals, Descent(lr=1e9, steps=50), box=None, generator=seeded()
    )
    assert run.loss == float("inf")
    found = KKT(preset="paper", lr=1e9, steps=50)(target, generator=seeded())
    assert found.status is Status.INCONCLUSIVE
    assert "diverged" in found.reason


def test_models_that_the_default_cannot_read():
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
    target = Target(model=model, input_shape=(4,), knowledge=Knowledge(records=2))
    found = KKT()(target, generator=seeded())
    assert found.status is Status.NOT_APPLICABLE
    assert "--preset paper" in found.reason
    found = KKT(preset="paper", steps=3)(target, generator=seeded())
    assert len(found) == 4
    normed = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2))
    target = Target(model=normed, input_shape=(4,), knowledge=Knowledge(records=2))
    found = KKT(preset="paper", steps=3, lr=1e-4)(target, generator=seeded())
    assert "batch norm" in found.reason


@pytest.mark.parametrize(
    ("scale", "status", "reason"),
    [
        (0.0, Status.NOT_APPLICABLE, "all weights of layer 1 are 0"),
        (1e-40, Status.INCONCLUSIVE, "left the range of numbers"),
        (1e38, Status.INCONCLUSIVE, "left the range of numbers"),
    ],
)
def test_weights_that_hold_nothing_have_a_reason(scale, status, reason):
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.ReLU(), nn.Linear(10, 10))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale)
    found = KKT(steps=5)(Target(model=model, input_shape=(1, 8, 8)), generator=seeded())
    assert (found.status, len(found)) == (status, 0)
    assert reason in found.reason


def test_labels_and_objectives_follow_what_is_known():
    assert objective_for("bce", 1) == "margin"
    assert objective_for("ce", 10) == "soft"
    assert objective_for("huber1", 1) == "free"
    assert objective_for(None, 10) == "soft"
    target, _ = digits_target()
    known = Knowledge(labels=torch.tensor([3, 3, 7]))
    told = Target(model=target.model, input_shape=(1, 8, 8), knowledge=known)
    assert duals_for(told, 10, 6, None).labels.tolist() == [3, 3, 7, 3, 3, 7]
    found = KKT(starts=1, steps=2)(told, generator=seeded())
    assert found.stated.counted == 3
    assert set(found.labels.tolist()) <= {3, 7}


@pytest.mark.parametrize(
    ("found", "status", "reason"),
    [
        (("soft", 1, 5), Status.INCONCLUSIVE, "one start has nothing to agree with, and "),
        (("soft", 4, 0), Status.INCONCLUSIVE, "no candidate came back alike from at least 3 of 4 "),
        (("margin", 4, 1), Status.PARTIAL, "1 candidate came back alike from at least 3 of 4 "),
        (("soft", 4, 5, 0.0, 2), Status.PARTIAL, "5 candidates came back alike from at least 3 "),
        (("free", 4, 9), Status.INCONCLUSIVE, "agreement is unreliable for free duals "),
        (("soft", 4, 9, 0.2), Status.INCONCLUSIVE, "the model was not trained to a stationary "),
        (("soft", 4, 9, 0.0, 0, 9, 3), Status.INCONCLUSIVE, "with those alike taken as one there "),
        (("margin", 4, 9, 0.0, 0, 0, 0, 1), Status.INCONCLUSIVE, "9 candidates came back alike "),
        (("margin", 4, 9, 0.0, 0, 3, 0, 1), Status.PARTIAL, "9 candidates came back alike from "),
        (("soft", 1, 9, 0.2), Status.INCONCLUSIVE, "the model was not trained to a stationary "),
    ],
)
def test_agreement_is_partial_at_best_and_the_reason_begins_with_what_decides(
    found, status, reason
):
    said, words = outcome(*found)
    assert said is status
    assert words.startswith(reason)
    assert ("2 of them another label" in words) == (found[-1] == 2)


def test_bad_fields_are_refused():
    for fields in ({"preset": "best"}, {"starts": 0}, {"objective": "x"}):
        with pytest.raises(InputError, match=next(iter(fields))):
            KKT(**fields)
