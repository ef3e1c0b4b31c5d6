import dataclasses
import json
import math

import numpy as np
import pytest
import torch
from torch import nn

from matched_filter import MatchedFilter
from remnant import bounds
from remnant.data import load
from remnant.errors import InputError
from remnant.models import build, parse_model
from remnant.training import GradientDescent, loss_named, train
from remnant.training.private import PerRecord, clip_each
from remnant.training.recipes import PrivateDescent
from remnant.types import Examples, Scaling
from seeding import seeded

DIGITS = load("digits").take(range(40))


def network(text="mlp:64-8-10:tanh"):
    return nn.Sequential(nn.Flatten(), build(parse_model(text), generator=seeded()).double())


def private(model, recipe, examples=DIGITS, seed=0, **more):
    return train(model, examples, recipe, scaling=Scaling(), generator=seeded(seed), **more)


def recipe(**changes):
    values = {"lr": 0.5, "steps": 5, "noise": 1.0, "clip": 0.5} | changes
    return PrivateDescent(**values)


def flat(weights):
    return torch.cat([w.flatten() for w in weights.values()])


def gradients_one_by_one(model, inputs, labels):
    """n x P, by an ordinary backward pass for each record."""
    rows = []
    for x, y in zip(inputs, labels, strict=True):
        loss = loss_named("ce")(model(x[None]), y[None])
        grads = torch.autograd.grad(loss, list(model.parameters()))
        rows.append(torch.cat([g.flatten() for g in grads]))
    return torch.stack(rows)


@pytest.mark.parametrize("text", ["mlp:64-8-10:tanh", "mlp:64-6-6-10"])
def test_clipped_sum_is_the_obvious_one(text):
    model, x, y = network(text), DIGITS.inputs.double(), DIGITS.labels
    weights = [p.detach() for p in model.parameters()]
    per_record = PerRecord(model=model, inputs=x, labels=y, recipe=recipe(), at_once=5000)
    sums, losses = per_record.total(weights, torch.arange(len(x)))  # in several chunks
    rows = gradients_one_by_one(model, x, y)
    norms = rows.norm(dim=1)
    assert (norms > 0.5).any()
    wanted = (rows * (0.5 / norms).clamp(max=1)[:, None]).sum(0)
    assert torch.allclose(torch.cat([s.flatten() for s in sums]), wanted, atol=1e-12)
    assert losses == pytest.approx(len(x) * loss_named("ce")(model(x), y).item())


@pytest.mark.filterwarnings("ignore:Full backward hook")
def test_clipped_sum_is_that_of_opacus():
    grad_sample = pytest.importorskip("opacus.grad_sample", reason="opacus is not installed")
    model, x, y = network(), DIGITS.inputs.double(), DIGITS.labels
    weights = [p.detach().clone() for p in model.parameters()]
    wrapped = grad_sample.GradSampleModule(network(), loss_reduction="sum")
    nn.functional.cross_entropy(wrapped(x), y, reduction="sum").backward()
    theirs = torch.cat([p.grad_sample.flatten(1) for p in wrapped.parameters()], dim=1)
    factors = (0.5 / (theirs.norm(dim=1) + 1e-6)).clamp(max=1)  # as DPOptimizer clips
    per_record = PerRecord(model=model, inputs=x, labels=y, recipe=recipe())
    ours = torch.cat([s.flatten() for s in per_record.total(weights, torch.arange(len(x)))[0]])
    assert torch.allclose(ours, (factors[:, None] * theirs).sum(0), atol=1e-4)
    assert ours.norm() > 0.1


def test_without_noise_and_with_room_it_is_gradient_descent():
    settings = {"lr": 0.5, "steps": 7, "momentum": 0.9, "weight_decay": 1e-3}
    plain = train(
        network(), DIGITS, GradientDescent(**settings), scaling=Scaling(), generator=seeded()
    )
    ours = private(network(), PrivateDescent(**settings, noise=0, clip=1e6))
    assert torch.allclose(flat(plain.final), flat(ours.final), atol=1e-10)
    assert ours.trace["loss"] == pytest.approx(plain.trace["loss"])
    assert ours.ledger["loss"] == pytest.approx(plain.ledger["loss"])


def test_no_record_moves_a_step_further_than_its_clip():
    one = recipe(steps=1, noise=0, lr=1.0, clip=0.1)
    # Zero-out: a record whose gradient is not finite counts as 0, under the same divisor.
    outlier = DIGITS.inputs.clone()
    outlier[0] = 1e4
    moved = dataclasses.replace(DIGITS, inputs=outlier)
    gap = flat(private(network(), one).final) - flat(private(network(), one, moved).final)
    assert 1e-6 < gap.norm().item() * len(DIGITS) <= 2 * 0.1 + 1e-9
    unclipped = dataclasses.replace(one, clipping=False)
    gap = flat(private(network(), unclipped).final) - flat(
        private(network(), unclipped, moved).final
    )
    assert gap.norm().item() * len(DIGITS) > 1


def test_cut_keeps_short_gradients_and_drops_broken_ones():
    grads = [torch.tensor([[3.0, 0.0], [0.1, 0.0], [math.inf, 1.0], [math.nan, 1.0], [0.0, 0.0]])]
    assert torch.equal(
        clip_each(grads, 1.5)[0],
        torch.tensor([[1.5, 0.0], [0.1, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]]),
    )


@pytest.mark.parametrize("clipping", [True, False])
def test_noise_has_the_promised_size(clipping):
    big = nn.Sequential(nn.Flatten(), nn.Linear(64, 200), nn.Linear(200, 10)).double()
    sums = []
    for noise in (0.0, 2.0):
        seen = recipe(steps=1, noise=noise, clip=0.3, clipping=clipping)
        private(
            big,
            seen,
            watch=lambda _, s, rows: sums.append(torch.cat([x.flatten() for x in s]).clone()),
        )
    noise = sums[1] - sums[0]
    assert noise.std().item() == pytest.approx(0.6, rel=0.03)
    assert abs(noise.mean().item()) < 0.03


def test_poisson_sampling_draws_each_record_by_itself():
    drawn = recipe(steps=200, noise=0, sampling=0.25, lr=1e-9, clip=1e9)
    size = []
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).double()
    nn.init.zeros_(model[1].weight)
    nn.init.zeros_(model[1].bias)
    # At zero weights every record's gradient for its own class's bias is -0.9, the others' 0.1.
    count = lambda _, sums, rows: size.append(sums[1].abs().sum().item())  # noqa: E731
    one_class = dataclasses.replace(DIGITS, labels=torch.zeros(40, dtype=torch.long))
    ran = private(model, drawn, one_class, watch=count)
    sizes = np.array(size) / 1.8
    assert np.allclose(sizes, sizes.round(), atol=1e-4)
    assert sizes.mean() == pytest.approx(10, abs=0.8)
    assert sizes.var() == pytest.approx(40 * 0.25 * 0.75, rel=0.4)
    assert ran.ledger["steps"] == 200


def test_same_seed_same_bytes_and_nothing_touched():
    model = network()
    before = flat(dict(model.named_parameters())).clone()
    state = torch.get_rng_state()
    settings = recipe(sampling=0.5)
    first, second = private(model, settings), private(model, settings)
    assert torch.equal(flat(first.final), flat(second.final))
    assert not torch.equal(flat(first.final), flat(private(model, settings, seed=1).final))
    assert torch.equal(flat(dict(model.named_parameters())), before)
    assert torch.equal(torch.get_rng_state(), state)


def test_ledger_is_what_accounting_takes():
    ran = private(network(), recipe(noise=4.0, steps=20))
    ledger = bounds.Ledger(**ran.ledger["privacy"])
    assert ledger == bounds.Ledger(noise_multiplier=4.0, steps=20, clip=0.5)
    assert bounds.epsilon(ledger, 1e-5) == pytest.approx(4.983, abs=1e-3)
    assert json.loads(json.dumps(ran.ledger)) == ran.ledger
    for control in (recipe(noise=0), recipe(clipping=False)):
        assert private(network(), control).ledger["privacy"] is None


def test_private_training_learns_where_noise_is_small():
    many = load("digits").take(range(300))
    learnt = private(network(), recipe(steps=60, lr=2.0, noise=0.5, clip=1.0), many)
    assert learnt.ledger["accuracy"] > 0.8
    drowned = private(network(), recipe(steps=60, lr=2.0, noise=300.0, clip=1.0), many)
    assert drowned.ledger["accuracy"] < 0.4
    assert learnt.ledger["outcome"] == "complete"


def test_divergence_is_an_outcome():
    ran = private(network(), recipe(lr=1e308, noise=1e3, steps=9))
    assert ran.ledger["outcome"] == "diverged"
    assert flat(ran.final).isfinite().all()
    assert ran.ledger["privacy"]["steps"] == 9  # the books count what was promised


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("noise", -1.0),
        ("noise", math.nan),
        ("clip", 0.0),
        ("sampling", 2.0),
        ("sampling", 0.0),
        ("lr", 0.0),
        ("steps", 0),
        ("momentum", 1.0),
        ("loss", "none"),
    ],
)
def test_bad_settings_are_one_line(field, value):
    with pytest.raises(InputError, match=f"{field}.*expected") as error:
        recipe(**{field: value})
    assert "\n" not in str(error.value)


def test_model_without_gradients_is_refused():
    with pytest.raises(InputError, match="parameters that require a gradient"):
        private(nn.Sequential(nn.Flatten()), recipe())


def named_in_the_game(noise, trials, **changes):
    """How often the matched filter names the right one of 4 candidates."""
    known, four = DIGITS.take(range(12)), DIGITS.take(range(20, 24))
    settings = recipe(**{"steps": 4, "noise": noise, "clip": 0.5} | changes)
    model, right = network("mlp:64-4-10:tanh"), 0
    for trial in range(trials):
        truth = trial % 4
        together = Examples(
            inputs=torch.cat([known.inputs, four.inputs[truth : truth + 1]]),
            labels=torch.cat([known.labels, four.labels[truth : truth + 1]]),
            ids=(*known.ids, four.ids[truth]),
        )
        guess = MatchedFilter(model, known, four, settings, scaling=Scaling())
        private(model, settings, together, seed=trial, watch=guess)
        right += int(guess.scores.argmax()) == truth
    return right, settings


def test_matched_filter_on_a_real_run_stays_below_the_bound():
    certain, _ = named_in_the_game(noise=0.01, trials=4)
    assert certain == 4
    right, settings = named_in_the_game(noise=2.0, trials=40)
    ledger = bounds.Ledger(noise_multiplier=settings.noise, steps=settings.steps)
    gamma = math.exp(bounds.blow_up(ledger, bounds.candidates(4)))
    assert gamma == pytest.approx(0.628, abs=1e-3)
    assert not bounds.compare(right, 40, gamma).violated
    assert right > 12  # better than chance on average; the seeds are fixed


def test_a_run_that_broke_its_promise_is_caught():
    # Without clipping the gradients are far longer than the ledger would say.
    right, settings = named_in_the_game(noise=1.5, trials=40, clipping=False)
    claimed = bounds.Ledger(noise_multiplier=8.0, steps=settings.steps)
    gamma = math.exp(bounds.blow_up(claimed, bounds.candidates(4)))
    verdict = bounds.compare(right, 40, gamma)
    assert verdict.violated
    assert verdict.text.startswith("ACCOUNTING ERROR")


def test_matched_filter_on_a_sampled_run_stays_below_the_bound():
    certain, _ = named_in_the_game(noise=0.02, trials=4, sampling=0.5, steps=12)
    assert certain == 4
    right, settings = named_in_the_game(noise=1.0, trials=40, sampling=0.5, steps=6)
    ledger = bounds.Ledger(noise_multiplier=1.0, steps=settings.steps, sampling_rate=0.5)
    gamma = math.exp(bounds.blow_up(ledger, bounds.candidates(4)))
    assert gamma == pytest.approx(0.707, abs=1e-3)
    assert not bounds.compare(right, 40, gamma).violated
    assert right > 12


def test_scores_of_a_sampled_step_are_log_likelihood_ratios():
    known, two = DIGITS.take(range(3)), DIGITS.take(range(20, 22))
    settings, model = recipe(noise=0.7, sampling=0.3, clip=0.5), network("mlp:64-4-10:tanh")
    guess = MatchedFilter(model, known, two, settings, scaling=Scaling())
    weights = [p.detach() for p in model.parameters()]
    own, _ = guess.candidates.clipped(weights, torch.arange(2))
    drawn, _ = guess.known.total(weights, torch.tensor([0, 2]))
    noise = [0.35 * torch.randn(w.shape, generator=seeded(), dtype=w.dtype) for w in weights]
    seen = [a + g[1] + n for a, g, n in zip(drawn, own, noise, strict=True)]
    guess(weights, seen, torch.tensor([0, 2, 3]))  # row 3 is the candidate's, and not looked at
    wanted = []
    law = torch.distributions.Normal(0.0, 0.35)
    for k in range(2):
        rest = torch.cat([(s - a).flatten() for s, a in zip(seen, drawn, strict=True)])
        mine = torch.cat([g[k].flatten() for g in own])
        ratio = (law.log_prob(rest - mine) - law.log_prob(rest)).sum()
        wanted.append(math.log(0.7 + 0.3 * math.exp(ratio)))
    assert guess.scores.tolist() == pytest.approx(wanted)
    again = MatchedFilter(model, known, two, settings, scaling=Scaling())
    again(weights, seen, torch.tensor([0, 2]))
    assert torch.equal(again.scores, guess.scores)


def test_matched_filter_needs_noise():
    with pytest.raises(InputError, match="matched filter: expected some noise, got noise 0"):
        MatchedFilter(network(), DIGITS, DIGITS, recipe(noise=0), scaling=Scaling())
