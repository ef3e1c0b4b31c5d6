"""Distances: against slow obvious forms, at the edge of float64, and on what has no distance."""

import itertools
import math

import pytest
import torch
from skimage.metrics import structural_similarity

from remnant.errors import InputError
from remnant.scoring.distances import (
    centred_correlation,
    correlation_of_pairs,
    is_image,
    psnr,
    squared_l2,
    ssim,
    ssim_window,
    standardised_l2,
)
from seeding import seeded

PAIRWISE = (squared_l2, standardised_l2, centred_correlation)


def images(seed, *shape, dtype=torch.float32):
    return torch.rand(*shape, generator=seeded(seed), dtype=dtype)


@pytest.mark.parametrize("shape", [(7,), (8, 8), (3, 5, 6)])
def test_pairwise_measures_agree_with_loops(shape):
    a, b = images(0, 4, *shape), images(1, 6, *shape)
    got = {measure.__name__: measure(a, b) for measure in PAIRWISE}
    for i, j in itertools.product(range(4), range(6)):
        x, y = a[i].double().flatten(), b[j].double().flatten()
        gap = float(((x - y) ** 2).sum())
        assert float(got["squared_l2"][i, j]) == pytest.approx(gap, rel=1e-12)
        x, y = (x - x.mean()) / x.std(), (y - y.mean()) / y.std()  # the d - 1 deviation
        standard = float(((x - y) ** 2).sum())
        assert float(got["standardised_l2"][i, j]) == pytest.approx(standard, rel=1e-10)
        pearson = float(torch.corrcoef(torch.stack([x, y]))[0, 1])
        assert float(got["centred_correlation"][i, j]) == pytest.approx(pearson, abs=1e-12)


def test_nearly_equal_rows_keep_their_distance():
    a = images(0, 3, 784, dtype=torch.float64) + 10.0
    b = a.clone()
    b[1, 5] += 2.0**-24  # squared: 3.6e-15, which |a|^2 + |b|^2 - 2ab cannot see
    assert float(squared_l2(a, b)[1, 1]) == pytest.approx(2.0**-48, rel=1e-6)
    assert float(squared_l2(a, b)[0, 0]) == 0.0


def test_standardised_distance_is_a_function_of_correlation():
    a, b = images(2, 5, 1, 9, 9), images(3, 4, 1, 9, 9)
    expected = 2.0 * (81 - 1) * (1.0 - centred_correlation(a, b))
    torch.testing.assert_close(standardised_l2(a, b), expected, rtol=1e-10, atol=1e-10)


def test_constant_inputs_have_no_correlation_and_no_nan():
    a = torch.cat([torch.full((1, 28, 28), 0.1), torch.zeros(1, 28, 28), images(0, 2, 28, 28)])
    values = centred_correlation(a, a)
    assert not values.isnan().any()
    assert float(values[:2].abs().max()) == 0.0
    torch.testing.assert_close(values.diagonal()[2:], torch.ones(2, dtype=torch.float64))
    assert not standardised_l2(a, a).isnan().any()
    torch.testing.assert_close(correlation_of_pairs(a, a), values.diagonal())


def test_correlation_ignores_scale_and_shift():
    a = images(4, 3, 1, 8, 8)
    torch.testing.assert_close(
        centred_correlation(a, 0.2 * a + 0.5).diagonal(), torch.ones(3, dtype=torch.float64)
    )


def test_nan_stays_with_its_candidate():
    a, b = images(0, 3, 5), images(1, 4, 5)
    b[2, 0] = math.nan
    for measure in PAIRWISE:
        values = measure(a, b)
        assert values[:, 2].isnan().all()
        assert not values[:, [0, 1, 3]].isnan().any()


def test_psnr_by_hand_and_of_an_exact_copy():
    a = torch.zeros(2, 1, 4, 4)
    assert psnr(a, a + 0.1).tolist() == pytest.approx([20.0, 20.0], rel=1e-6)
    assert psnr(a, a + 0.1, data_range=2.0).tolist() == pytest.approx([26.0206] * 2, rel=1e-5)
    assert psnr(a, a).tolist() == pytest.approx([300.0, 300.0])


@pytest.mark.parametrize("shape", [(28, 28), (1, 28, 28), (3, 32, 32)])
def test_ssim_is_the_usual_one(shape):
    a, b = images(0, 3, *shape), images(1, 3, *shape)
    for i, value in enumerate(ssim(a, b)):
        x, y = a[i].double().numpy(), b[i].double().numpy()
        axis = 0 if len(shape) == 3 else None
        whole = structural_similarity(x, y, data_range=1.0, channel_axis=axis)
        assert float(value) == pytest.approx(whole, rel=1e-12)


def test_ssim_of_small_images_by_hand():
    a, b = images(0, 1, 8, 8, dtype=torch.float64), images(1, 1, 8, 8, dtype=torch.float64)
    x, y = (t[0].unfold(0, 3, 1).unfold(1, 3, 1).reshape(36, 9) for t in (a, b))
    mx, my = x.mean(1), y.mean(1)
    cov = ((x - mx[:, None]) * (y - my[:, None])).sum(1) / 8
    luminance = (2 * mx * my + 1e-4) / (mx**2 + my**2 + 1e-4)
    structure = (2 * cov + 9e-4) / (x.var(1) + y.var(1) + 9e-4)
    assert float(ssim(a, b)) == pytest.approx(float((luminance * structure).mean()), rel=1e-10)


@pytest.mark.parametrize(
    ("side", "window"), [(3, 3), (4, 3), (8, 3), (10, 5), (14, 7), (25, 7), (64, 7)]
)
def test_the_window_fits(side, window):
    assert ssim_window((side, side)) == window
    a = images(0, 1, side, side)
    assert float(ssim(a, a)) == pytest.approx(1.0)


def test_tables_and_misshapen_candidates_are_refused():
    a = images(0, 3, 5)
    for measure in (psnr, ssim):
        with pytest.raises(InputError, match=r"expected images, h x w .* for tables"):
            measure(a, a)
    with pytest.raises(InputError, match=r"m x \(5,\), got m x \(6,\)"):
        squared_l2(a, images(0, 3, 6))
    with pytest.raises(InputError, match=r"ssim: expected \(3, 8, 8\)"):
        ssim(images(0, 3, 8, 8), images(0, 2, 8, 8))
    assert not is_image((5,))
    assert not is_image((1, 2, 8))
    assert is_image((1, 8, 8))


def test_no_candidates_is_an_empty_matrix():
    a = images(0, 3, 1, 4, 4)
    for measure in PAIRWISE:
        assert measure(a, a[:0]).shape == (3, 0)
