import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from remnant.errors import InputError
from remnant.solvers.convolutions.convolution import Inversion, invert_features
from remnant.solvers.convolutions.prefix import jacobian, matrix, read_prefix
from seeding import seeded


def net(*layers, seed=0):
    """Layers with PyTorch's own law of weights, then a dense one."""
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(1, 1)).double()
    g = seeded(seed)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Conv2d):
                bound = module.weight[0].numel() ** -0.5
                for p in module.parameters():
                    p.copy_((2 * torch.rand(p.shape, generator=g) - 1) * bound)
    return model


def features(model, x):
    with torch.no_grad():
        return model[:-1](x)


def images(n, shape, seed=7):
    """Smooth random images in 0..1."""
    coarse = torch.rand(n, shape[0], 4, 4, generator=seeded(seed), dtype=torch.float64)
    return nn.functional.interpolate(coarse, shape[1:], mode="bilinear")


def digits(n):
    """Handwritten digits on a black ground, 28 x 28."""
    small = torch.tensor(load_digits().images[:n] / 16).view(-1, 1, 8, 8)
    return nn.functional.pad(nn.functional.interpolate(small, (20, 20), mode="bilinear"), [4] * 4)


def invert(model, x, **more):
    return invert_features(
        model, features(model, x), input_shape=tuple(x.shape[1:]), generator=seeded(0), **more
    )


def errors(found, x):
    return (found.inputs - x).square().flatten(1).sum(1)


@pytest.mark.parametrize(
    "conv",
    [
        nn.Conv2d(2, 6, 3, stride=2, padding=1),
        nn.Conv2d(2, 4, (3, 2), padding="same", dilation=2),
        nn.Conv2d(4, 6, 3, groups=2, bias=False),
        nn.Conv2d(2, 4, 3, padding=2, padding_mode="reflect"),
    ],
)
def test_the_matrix_is_the_convolution(conv):
    conv = conv.double()
    x = torch.rand(1, conv.in_channels, 7, 6, dtype=torch.float64)
    flat = torch.from_numpy(matrix(conv, tuple(x.shape[1:])) @ x.flatten().numpy())
    wanted = conv(x) - (0 if conv.bias is None else conv.bias.view(1, -1, 1, 1))
    torch.testing.assert_close(flat, wanted.flatten())


def test_the_jacobian_is_autograds():
    model = net(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.LeakyReLU(0.2),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 3, padding=1),
        nn.ReLU(),
        nn.AvgPool2d(2),
    )
    x = images(1, (1, 8, 8))
    prefix = read_prefix(model, (1, 8, 8))
    values = [x]
    for step in prefix.steps:
        values.append(step(values[-1]))
    wanted = torch.autograd.functional.jacobian(lambda v: model[:-1](v)[0], x).flatten(1)
    rows = torch.arange(len(wanted)) % 3 > 0
    found = torch.from_numpy(jacobian(prefix, values, rows.numpy()).toarray())
    torch.testing.assert_close(found, wanted[rows])


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.LeakyReLU(0.1), nn.Identity()])
def test_one_layer_gives_the_digits_back(activation):
    model, x = net(nn.Conv2d(1, 16, 3, stride=2, padding=1), activation, seed=1), digits(6)
    found = invert(model, x)
    assert errors(found, x).max() < 1e-18
    assert found.determined.all()
    assert found.residual.max() < 1e-12


def test_colour_images_come_back():
    x = images(3, (3, 16, 16))
    found = invert(net(nn.Conv2d(3, 48, 3, stride=2, padding=1), nn.ReLU()), x, bounds=(0.0, 1.0))
    assert found.determined.all()
    assert errors(found, x).max() < 1e-18


def test_the_condition_is_that_of_the_dense_jacobian():
    model, x = net(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU()), images(1, (1, 9, 9))
    active = features(model, x)[0] > 0
    rows = torch.autograd.functional.jacobian(lambda v: model[:-1](v)[0], x).flatten(1)[active]
    values = torch.linalg.svdvals(rows)
    found = invert(model, x)
    assert float(found.condition) == pytest.approx(float(values[0] / values[-1]), rel=0.05)


def test_too_few_filters_are_said_to_be_too_few():
    model, x = net(nn.Conv2d(1, 3, 3, stride=2, padding=1), nn.ReLU()), images(2, (1, 12, 12))
    found = invert(model, x, bounds=(0.0, 1.0))
    assert not found.determined.any()
    assert torch.isinf(found.condition).all()
    assert found.residual.max() < 1e-9  # it fits, and so would others
    assert 0 - 1e-9 <= float(found.inputs.min()) <= float(found.inputs.max()) <= 1 + 1e-9


def test_open_directions_are_filled_smoothly():
    x = torch.full((1, 1, 12, 12), 0.6, dtype=torch.float64)
    x[0, 0, 3, 3] = 0.0
    model = net(nn.Conv2d(1, 6, 3, stride=2, padding=1), nn.ReLU())
    found = invert(model, x)
    assert not found.determined.any()
    assert found.residual.max() < 1e-10
    nothing = (x - x.mean()).square().sum()
    assert errors(found, x).max() < nothing


@pytest.mark.parametrize(
    "layers",
    [
        (nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 24, 3, stride=2, padding=1)),
        (nn.Conv2d(1, 24, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        (nn.Conv2d(1, 24, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2)),
    ],
    ids=["two layers", "max pooling", "average pooling"],
)
def test_unknown_masks_and_maxima(layers):
    last = [nn.ReLU()] if isinstance(layers[-1], nn.Conv2d) else []
    model, x = net(*layers, *last), images(2, (1, 14, 14))
    found = invert(model, x, bounds=(0.0, 1.0))
    assert found.determined.all()
    assert errors(found, x).max() < 1e-12


def test_a_fit_that_failed_is_not_called_determined():
    model = net(nn.Conv2d(3, 24, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
    x = torch.rand(1, 3, 10, 10, generator=seeded(0), dtype=torch.float64)
    found = invert(model, x, settings=Inversion(steps=2, shakes=0))
    assert float(found.residual) > 1e-6
    assert not found.determined.any()


def test_features_that_are_nearly_exact():
    model, x = net(nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.ReLU(), seed=1), digits(2)
    h = features(model, x)
    h = h + 1e-7 * torch.randn(h.shape, generator=seeded(3), dtype=torch.float64)
    found = invert_features(
        model,
        h,
        input_shape=(1, 28, 28),
        settings=Inversion(silent=1e-5, fits=1e-4),
        generator=seeded(0),
    )
    assert found.determined.all()
    assert errors(found, x).max() < 1e-8


def test_the_same_seed_gives_the_same_bytes_and_the_model_stays():
    model = net(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2)).float()
    x = images(1, (1, 8, 8))
    h = features(model, x.float())
    one, two = (
        invert_features(
            model,
            h,
            input_shape=(1, 8, 8),
            settings=Inversion(shakes=1, steps=10),
            generator=seeded(0),
        )
        for _ in range(2)
    )
    assert one.inputs.numpy().tobytes() == two.inputs.numpy().tobytes()
    assert model[1].inplace
    assert model[0].weight.dtype == torch.float32


def test_no_features_give_no_images():
    model = net(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU())
    assert invert(model, torch.zeros(0, 1, 5, 5, dtype=torch.float64)).inputs.shape == (0, 1, 5, 5)


def test_faults_are_one_line():
    def attempt(model, size=4, shape=(1, 4, 4), **more):
        invert_features(model, torch.ones(1, size), input_shape=shape, generator=seeded(0), **more)

    conv = nn.Conv2d(1, 2, 3, padding=1)
    with pytest.raises(InputError, match=r"features: expected k x 32, got \(1, 4\)"):
        attempt(net(conv))
    with pytest.raises(InputError, match="before the first Linear, got Tanh"):
        attempt(net(conv, nn.Tanh()))
    with pytest.raises(InputError, match="a convolution before the first Linear, got none"):
        attempt(net(nn.ReLU()))
    with pytest.raises(InputError, match=r"an nn\.Sequential with"):
        attempt(conv)
    with pytest.raises(InputError, match="channels x height x width"):
        attempt(net(conv), shape=(16,))
    with pytest.raises(InputError, match="no padding and no ceil_mode"):
        attempt(net(conv, nn.AvgPool2d(2, padding=1)))
    with pytest.raises(InputError, match="low <= high"):
        attempt(net(conv), size=32, bounds=(1.0, 0.0))
