"""Reconstructors: closed forms against slow ones, networks that learn, errors that say why."""

from dataclasses import replace

import pytest
import torch

from remnant.errors import InputError
from remnant.solvers.reconstructor.networks import patch_critic, transposed
from remnant.solvers.reconstructor.reconn import RecoNN, fit_reconn, principal
from remnant.solvers.reconstructor.ridge import (
    Standard,
    best_standard,
    fit_per_label,
    fit_ridge,
    kernel_of,
)
from seeding import seeded


def draws(*shape, seed=0):
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def test_the_leave_one_out_error_is_that_of_leaving_one_out():
    features, wanted = draws(12, 5), draws(12, 3, seed=1)
    fit = fit_ridge(features, wanted)
    gram = kernel_of(features, features) + fit.penalty * torch.eye(12)
    total = 0.0
    for i in range(12):
        rest = torch.arange(12) != i
        # The mean stays that of all: only the map is fitted without record i.
        duals = torch.linalg.solve(gram[rest][:, rest], (wanted - wanted.mean(0))[rest])
        total += float((gram[i, rest] @ duals + wanted.mean(0) - wanted[i]).square().mean()) / 12
    assert fit.error == pytest.approx(total, rel=1e-6)


def test_a_linear_map_is_found_for_each_label():
    labels = torch.arange(60) % 2
    inputs = draws(60, 1, 2, 2)
    mixing = draws(2, 4, 9, seed=2)
    seen = torch.einsum("sp,spq->sq", inputs.flatten(1), mixing[labels]) + 5.0 * labels[:, None]
    found = fit_per_label(seen[:50], inputs[:50], labels[:50])
    guess, told = found(seen[50:])
    assert torch.equal(told, labels[50:])
    assert (guess - inputs[50:]).square().mean() < 1e-6
    with pytest.raises(InputError, match="ridge: label: expected one of"):
        found(seen[50:51], torch.tensor([7]))


def test_standardising_drops_what_does_not_move():
    features = draws(20, 3)
    features[:, 1] = 4.0
    standard = Standard.of(features)
    assert torch.equal(standard(features)[:, 1], torch.zeros(20, dtype=torch.float64))
    assert torch.allclose(standard(features)[:, [0, 2]].std(0), torch.ones(2).double())


def test_models_are_brought_to_one_length_where_that_helps():
    inputs = torch.rand(80, 1, 3, 3, generator=seeded(0), dtype=torch.float64)
    direction = inputs.flatten(1) @ draws(9, 12, seed=1)
    far = torch.logspace(-1, 1, 80, dtype=torch.float64)[torch.randperm(80, generator=seeded(2))]
    assert not best_standard(direction, inputs).even
    chosen = best_standard(direction * far[:, None], inputs)
    assert chosen.even
    lengths = chosen(direction * far[:, None]).square().mean(1)
    assert torch.allclose(lengths, torch.ones(80, dtype=torch.float64))


def test_principal_components_keep_what_varies():
    low = draws(50, 3) @ draws(3, 20, seed=1)
    basis = principal(low, 3)
    kept = low @ basis
    assert basis.shape == (20, 3)
    assert float(kept.std()) == pytest.approx(1.0)
    again = kept @ torch.linalg.pinv(basis)
    assert torch.allclose(again, low, atol=1e-8)


def test_the_papers_network_sees_zero_mean_and_unit_variance_and_no_more():
    inputs = torch.rand(80, 1, 3, 3, generator=seeded(0))
    far = torch.logspace(-1, 1, 80)[torch.randperm(80, generator=seeded(2))]
    seen = inputs.flatten(1) @ draws(9, 12, seed=1).float() * far[:, None]
    for settings, even in [(RecoNN(), True), (RecoNN.paper(), False)]:
        small = replace(settings, epochs=1, width=8)
        assert fit_reconn(seen, inputs, small, generator=seeded(0)).standard.even is even


@pytest.mark.parametrize(
    "settings",
    [
        RecoNN(width=32, epochs=60, batch_size=16, components=3),
        replace(RecoNN.paper(), width=32, epochs=60, batch_size=16),
        RecoNN(width=32, epochs=60, batch_size=16),
        RecoNN(network="transposed", epochs=60, batch_size=16, lr=1e-3),
        RecoNN(network="transposed", epochs=4, batch_size=16, lr=1e-3, critic=0.1),
    ],
    ids=["components", "paper", "dense", "transposed", "critic"],
)
def test_a_network_learns_the_way_back_and_repeats_itself(settings):
    inputs = draws(64, 2)[:, :, None, None].repeat(1, 1, 8, 8).float()
    seen = inputs[:, :, 0, 0] @ draws(2, 6, seed=3).float()
    first, again = (fit_reconn(seen, inputs, settings, generator=seeded(4)) for _ in range(2))
    assert torch.equal(first(seen), again(seen))
    assert first(seen).shape == inputs.shape
    assert first.losses[-1] < first.losses[0] * (0.5 if settings.epochs > 10 else 1.0)


def test_a_perceptual_term_is_part_of_the_loss():
    inputs, seen = draws(16, 1, 4, 4).float(), draws(16, 6, seed=3).float()
    calls = []

    def dark(guess, truth):
        calls.append(len(guess))
        return 100.0 * guess.square().mean()

    settings = RecoNN(width=16, epochs=30, batch_size=8, constant=True)
    plain = fit_reconn(seen, inputs, settings, generator=seeded(0))
    dimmed = fit_reconn(seen, inputs, settings, generator=seeded(0), perceptual=dark)
    assert calls == [8] * 60
    assert dimmed(seen).square().mean() < 0.2 * plain(seen).square().mean()


def test_the_papers_shapes():
    image = transposed(7, (3, 32, 32))(torch.zeros(2, 7))
    assert image.shape == (2, 3, 32, 32)
    assert patch_critic(3)(image).shape[:2] == (2, 1)
    with pytest.raises(InputError, match="sides divisible by 4"):
        transposed(7, (1, 25, 25))
