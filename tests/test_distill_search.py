"""The search for distilled images: its slope, its start, going on where it was, its worth."""

import pytest
import torch

from remnant.data import binary_task, load, split
from remnant.distill import (
    Distillation,
    distil,
    distil_network,
    infinite_accuracy,
    problem,
)
from remnant.distill.search import begin, loss_at
from remnant.errors import InputError
from remnant.gradients import gram
from remnant.kernels import Dense
from remnant.models import Linearised, build
from remnant.solvers.descent.paper import Descent
from remnant.training import solve_linearised
from remnant.types import Examples, Knowledge, Scaling, Target
from seeding import seeded


@pytest.fixture(scope="module")
def digits():
    """60 records of 8 x 8 digits, odd or even, and others to test on."""
    sides = split(
        binary_task(load("digits"), "odd-even"), train=60, public=None, holdout=60, seed=0
    )
    mean = sides.train.inputs.mean(0)
    return (
        (sides.train.inputs - mean).flatten(1),
        sides.train.labels,
        (sides.public.inputs - mean).flatten(1),
        sides.public.labels,
    )


def toy(classes=2, n=9):
    x = torch.randn(n, 5, generator=seeded(1), dtype=torch.float64)
    return problem(Dense(bias=0.1), x, torch.arange(n) % classes)


@pytest.mark.parametrize("learn", [False, True])
@pytest.mark.parametrize("method", ["kip", "rkip"])
@pytest.mark.parametrize("classes", [2, 3])
def test_loss_and_slope_agree_with_differences(method, learn, classes):
    about = toy(classes)
    settings = Distillation(method=method, images=3, learn_labels=learn)
    images, wanted = begin(about, settings, seeded())
    found, _ = loss_at(about, settings, images.requires_grad_(), wanted)
    (slope,) = torch.autograd.grad(found, images)
    step = 1e-4 * torch.randn(images.shape, generator=seeded(3), dtype=torch.float64)
    with torch.no_grad():
        ahead, behind = (loss_at(about, settings, images + s * step, wanted)[0] for s in (1, -1))
    assert float(ahead - behind) / 2 == pytest.approx(float((slope * step).sum()), rel=1e-3)


def test_starts_are_balanced_and_of_the_right_kind():
    about = toy(classes=3)
    images, wanted = begin(about, Distillation(images=6), seeded())
    assert wanted.argmax(1).tolist() == [0, 1, 2, 0, 1, 2]
    assert wanted.unique().tolist() == pytest.approx([-0.1, 0.9])
    assert torch.equal(images, begin(about, Distillation(images=6), seeded())[0])
    images, wanted = begin(about, Distillation(images=6, start="data"), seeded())
    rows = (images[:, None] == about.inputs[None]).all(2).nonzero()[:, 1]
    assert len(set(rows.tolist())) == 6
    assert about.classes[rows].tolist() == wanted.argmax(1).tolist()


def test_distilled_digits_do_better_than_as_many_random_ones(digits):
    x, y, test, classes = digits
    network = Dense()
    about = problem(network, x, y)
    scores = {}
    for method in ("kip", "rkip"):
        settings = Distillation(method=method, images=6, steps=150, lr=0.03)
        found = distil(about, settings, generator=seeded())
        scores[method] = infinite_accuracy(
            network, found.images, found.labels, test=test, classes=classes
        )
    rows, wanted = begin(about, Distillation(images=6, start="data"), seeded())
    scores["random"] = infinite_accuracy(network, rows, wanted, test=test, classes=classes)
    assert min(scores["kip"], scores["rkip"]) > scores["random"] + 0.1


def test_a_network_alone_gives_distilled_images(digits):
    x, y, test, classes = digits
    model = Linearised(build("mlp:64-128-1", generator=seeded(2), init="normal"))
    records = Examples(inputs=x, labels=y, ids=tuple(map(str, range(60))), bounds=None)
    trained = solve_linearised(model, records, scaling=Scaling())
    target = Target(
        model=trained.model,
        input_shape=(64,),
        knowledge=Knowledge(initial=trained.initial),
    )
    steps = Descent(steps=300, cosine=True)
    found = distil_network(target, steps, images=6, generator=seeded())
    assert found.images.shape == (6, 64)
    assert found.loss < 0.6 < found.trace[0]
    assert (
        infinite_accuracy(Dense(hidden=1), found.images, found.labels, test=test, classes=classes)
        > 0.75
    )
    # The labels are the kernel's answer: regression on them gives the change of weights back.
    kernel = gram(trained.model.base, found.images)
    duals = torch.linalg.solve(kernel, found.labels)
    assert float((kernel @ duals - found.labels).abs().max()) < 1e-8
    with pytest.raises(InputError, match="features: expected initial or final, got hybrid"):
        distil_network(target, Descent(features="hybrid"), images=6, generator=seeded())


def test_bad_settings_are_refused():
    with pytest.raises(InputError, match="method: expected 'kip' or 'rkip'"):
        Distillation(method="other")
    with pytest.raises(InputError, match="images: expected at least 1, got 0"):
        Distillation(images=0)
    with pytest.raises(InputError, match="lr: expected more than 0"):
        Distillation(lr=0.0)
    with pytest.raises(InputError, match="images: expected at most the 9 records, got 10"):
        distil(toy(), Distillation(images=10), generator=seeded())
    uneven = problem(Dense(), torch.eye(5).double(), torch.tensor([0, 0, 0, 0, 1]))
    with pytest.raises(InputError, match="records of each class: expected 2, got fewer"):
        distil(uneven, Distillation(images=4, start="data"), generator=seeded())
    with pytest.raises(InputError, match="images: expected a kernel that can be inverted"):
        distil(toy(), Distillation(images=3, lr=1e200), generator=seeded())
