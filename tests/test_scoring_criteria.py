"""Criteria for one reconstructed record, against slow ones."""

import pytest
import torch

from remnant.scoring import criteria
from seeding import seeded


def draws(*shape, seed=0):
    return torch.rand(*shape, generator=seeded(seed))


def test_the_oracle_is_the_nearest_record_and_order_statistics_grow():
    truth, pool = draws(5, 1, 3, 3), draws(40, 1, 3, 3, seed=1)
    slow = [sorted(float((t - p).square().mean()) for p in pool) for t in truth]
    assert criteria.oracle(truth, pool).tolist() == pytest.approx([s[0] for s in slow], rel=1e-4)
    found = criteria.order_statistics(truth, pool, shares=(0.1, 0.5))
    assert found["nearest"] == pytest.approx(sum(s[0] for s in slow) / 5, rel=1e-4)
    middle = sum((s[19] + s[20]) / 2 for s in slow) / 5
    assert found["q0.5"] == pytest.approx(middle, rel=1e-4)
    assert found["nearest"] < found["q0.1"] < found["q0.5"]


def test_membership_by_reconstruction_and_by_loss():
    truth = draws(6, 4)
    assert criteria.membership_game(truth + 1e-3, truth, truth.roll(1, 0)) == 1.0
    assert criteria.membership_game(truth.roll(1, 0), truth, truth.roll(1, 0)) == 0.0
    assert criteria.membership_auc(torch.tensor([0.0, 1.0]), torch.tensor([2.0, 3.0])) == 1.0
    assert criteria.membership_auc(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0])) == 0.5
    assert criteria.membership_auc(torch.tensor([2.0]), torch.tensor([1.0, 3.0, 4.0, 0.0])) == 0.5


def test_the_divergence_is_that_of_the_outputs():
    model = torch.nn.Linear(4, 3)
    guess, truth = draws(5, 4), draws(5, 4, seed=1)
    p, q = (model(x).softmax(1).detach() for x in (truth, guess))
    slow = (p * (p / q).log()).sum(1)
    assert torch.allclose(criteria.kl_each(model, guess, truth), slow, atol=1e-6)
    assert float(criteria.kl_each(model, truth * (1 + 1e-7), truth).min()) >= 0
    assert torch.allclose(criteria.kl_each(model, truth, truth), torch.zeros(5), atol=1e-6)
