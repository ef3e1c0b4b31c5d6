"""Images out of one gradient of a vision transformer."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from remnant.attacks.gradient import Gradient
from remnant.evidence import one_gradient
from remnant.solvers.sequence.families import read_layout
from remnant.solvers.sequence.heads import Again, compute_again
from remnant.solvers.sequence.layouts import Layout
from remnant.solvers.sequence.tolerances import Tolerances
from remnant.solvers.sequence.vision import recover_images
from remnant.training.batch_gradient import batch_gradient
from remnant.types import Candidates, Knowledge, Scaling, Status, Target

transformers = pytest.importorskip("transformers")
SHAPE = (3, 16, 16)
SCALING = Scaling(mean=torch.tensor(0.5), std=torch.tensor(0.25))


def small_vit(seed: int, width: int = 64, layers: int = 2) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = transformers.ViTConfig(
            hidden_size=width, num_hidden_layers=layers, num_attention_heads=4,
            intermediate_size=4 * width, image_size=16, patch_size=8, num_labels=5,
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, initializer_range=0.1,
        )  # fmt: skip
        config._attn_implementation = "eager"
        model: nn.Module = transformers.ViTForImageClassification(config).eval()
    return model


def some_images(count: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, *SHAPE), generator=generator).float() / 255


def target_of(model: nn.Module, images: Tensor, labels: Tensor) -> Target:
    gradient = batch_gradient(model, "ce", (SCALING.to_model(images), labels))
    known = Knowledge(gradient=gradient)
    return Target(model=model, input_shape=SHAPE, scaling=SCALING, knowledge=known)


def attacked(target: Target, seed: int = 0) -> Candidates:
    return Gradient()(target, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_batch_comes_back_byte_for_byte_with_its_labels(count: int) -> None:
    images, labels = some_images(count, 10 + count), torch.arange(count) + 1
    found = attacked(target_of(small_vit(count), images, labels))
    assert found.status is Status.COMPLETE, found.reason
    assert found.stated.passed == [True] * count
    assert found.labels is not None
    order = found.labels.argsort()
    assert torch.equal(found.labels[order], labels)
    assert torch.equal((found.inputs[order] * 255).round(), (images * 255).round())


def test_images_that_are_no_bytes_come_back_within_the_stated_error() -> None:
    generator = torch.Generator().manual_seed(3)
    for seed in range(3):
        images = torch.rand(2, *SHAPE, generator=generator)
        found = attacked(target_of(small_vit(seed), images, torch.tensor([0, 3])))
        assert found.status is Status.COMPLETE, found.reason
        apart = torch.cdist(found.inputs.flatten(1), images.flatten(1)).min(1).values
        actual = apart / SCALING.std / images[0].numel() ** 0.5
        for error, stated in zip(actual.tolist(), found.stated.error, strict=True):
            assert stated is not None
            assert error < stated < 1e-2


def test_one_wrong_byte_is_told_by_the_gradient_computed_again() -> None:
    images, labels = some_images(2, 8), torch.tensor([1, 4])
    target = target_of(small_vit(8), images, labels)
    layout = read_layout(target.model)
    assert isinstance(layout, Layout)
    wrong = images.clone()
    wrong[1, 2, 5, 7] += 1 / 255 if wrong[1, 2, 5, 7] < 0.5 else -1 / 255
    errors = []
    for given in (images, wrong):
        inputs, evidence = SCALING.to_model(given), one_gradient(target)
        again = compute_again(target.model, layout, evidence, inputs, Tolerances())
        assert isinstance(again, Again)
        assert torch.equal(again.labels, labels) if again.labels is not None else False
        errors.append(again.error / again.rounding)
    assert errors[0] < 3
    assert errors[1] > 10


def test_nothing_is_certified_of_random_gradients_or_of_another_model() -> None:
    generator = torch.Generator().manual_seed(5)
    for seed in range(50):
        model = small_vit(seed % 5, width=32)
        right = target_of(model, some_images(2, seed), torch.tensor([0, 1]))
        assert right.knowledge.gradient is not None
        gradient = dict(right.knowledge.gradient)
        if seed % 2:
            model = small_vit(100 + seed, width=32)
        else:
            gradient = {
                name: torch.randn(value.shape, generator=generator) * value.std(correction=0)
                for name, value in gradient.items()
            }
        known = Knowledge(gradient=gradient)
        found = attacked(
            Target(model=model, input_shape=SHAPE, scaling=SCALING, knowledge=known), seed
        )
        assert found.status is not Status.COMPLETE
        assert not any(found.stated.passed)


def test_too_many_tokens_for_the_width_are_said_to_be() -> None:
    images = some_images(14, 6)  # 70 tokens in a model of width 64
    found = attacked(target_of(small_vit(6), images, torch.arange(14) % 5))
    assert found.status is Status.INCONCLUSIVE
    assert "first block" in found.reason


def test_a_shape_that_the_model_does_not_take_is_named() -> None:
    target = target_of(small_vit(1), some_images(2, 1), torch.tensor([0, 1]))
    layout = read_layout(target.model)
    assert isinstance(layout, Layout)
    generator = torch.Generator().manual_seed(0)
    found = recover_images(
        target.model, layout, one_gradient(target), (3, 32, 32), generator=generator
    )
    assert not len(found.inputs)
    assert "4 patches of 3 x 8 x 8" in found.reason
