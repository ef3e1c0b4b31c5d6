"""Residual networks: shapes, draws, and what freezing batch norm leaves to train."""

import pytest
import torch
from torch import nn

from remnant.models.residual import Block, freeze_norms, residual
from seeding import seeded


@pytest.mark.parametrize(("pool", "features"), [(True, 6), (False, 6 * 4 * 4)])
def test_shapes_and_what_enters_the_dense_layers(pool, features):
    model = residual((3, 8, 7), (4, 6), (5, 2), generator=seeded(0), pool=pool)
    assert model(torch.zeros(2, 3, 8, 7)).shape == (2, 2)
    dense = [module for module in model if isinstance(module, nn.Linear)]
    assert [layer.in_features for layer in dense] == [features, 5]


def test_one_generator_draws_everything_and_the_global_state_does_not_matter():
    torch.manual_seed(1)
    first = residual((1, 8, 8), (4, 8), (3,), generator=seeded(5))
    torch.manual_seed(2)
    second = residual((1, 8, 8), (4, 8), (3,), generator=seeded(5))
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_block_adds_its_input():
    block = Block(4, 4, 1).eval()
    nn.init.zeros_(block.body[4].weight)  # the last norm's scale: nothing is added
    inputs = torch.rand(2, 4, 5, 5, generator=seeded(0))
    assert torch.equal(block(inputs), inputs)
    assert isinstance(Block(4, 8, 2).shortcut, nn.Sequential)


def test_frozen_norms_are_not_trained_and_keep_their_statistics():
    model = residual((1, 8, 8), (4,), (3,), generator=seeded(0)).train()
    assert freeze_norms(model) is model
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    norms = {
        f"{name}.{leaf}"
        for name, module in model.named_modules()
        if isinstance(module, nn.BatchNorm2d)
        for leaf in ("weight", "bias")
    }
    assert frozen == norms
    before = model[1].running_mean.clone()
    model(torch.rand(4, 1, 8, 8, generator=seeded(1)))
    assert torch.equal(model[1].running_mean, before)
