"""Fine-tuned networks: features exactly, images from them, the paper's objective through blocks."""

import functools

import pytest
import torch
from torch import nn

from remnant.data import load
from remnant.evidence import weight_difference
from remnant.experiments import fine_tuning as tuning
from remnant.gradients import weighted_sum
from remnant.models.residual import freeze_norms, residual
from remnant.solvers.descent import features
from remnant.solvers.descent.features import FeatureInversion, invert_by_descent
from remnant.solvers.descent.paper import objective
from seeding import seeded

SMALL = dict(tuning.STUDY.settings) | {
    "widths": (4, 16), "epochs": 1, "width": 128, "per_class": 1, "tuning": 20,
    "cnn": "c4k3s2p1-64-10", "records": 3, "steps": 10, "inversion": 40, "seed": 0,
}  # fmt: skip
del SMALL["case attack data"]


@functools.cache
def digits():
    return load("digits")


@functools.cache
def scene(case):
    model, scaling = tuning.pretrained(digits(), SMALL["widths"], SMALL["known"], 1)
    recipe = tuning.GradientDescent(lr=SMALL["rate"], steps=SMALL["tuning"])
    return tuning.tuned(model, scaling, digits(), case, SMALL["known"], 128, 1, recipe, 0)


def test_fine_tuning_moves_what_it_says_and_nothing_else():
    for case, moved in (("all layers", "0.0.weight"), ("dense head", "1.1.weight")):
        evidence = weight_difference(scene(case).target)
        changed = {name for name, value in evidence.vector.items() if value.any()}
        assert moved in changed
        assert all(name.startswith("1.") for name in changed) == (case == "dense head")
        norms = [n for n, m in scene(case).target.model.named_modules() if "BatchNorm" in str(m)]
        leaves = {f"{n}.{leaf}" for n in norms for leaf in ("weight", "bias")}
        assert not leaves & changed


def test_features_of_a_frozen_backbone_come_back_exactly():
    (row,) = tuning.measure_tuning(digits(), case="dense head", attack="exact", **SMALL)
    assert row["features"] == row["counted"] == row["records"], row["reason"]
    assert row["certified"] == 0  # of the images nothing is proved
    assert row["status"] == "inconclusive"


def test_the_objective_is_zero_at_a_step_through_blocks_and_frozen_norms():
    model = freeze_norms(residual((1, 8, 8), (4, 6), (3,), generator=seeded(0))).double()
    for module in model.modules():  # no kinks: softplus in place of ReLU changes nothing then
        for name, child in module.named_children():
            if isinstance(child, nn.ReLU):
                setattr(module, name, nn.Tanh())
    inputs = torch.rand(2, 1, 8, 8, generator=seeded(1), dtype=torch.float64)
    duals = torch.randn(2, 3, generator=seeded(2), dtype=torch.float64)
    vector = weighted_sum(model, inputs, duals)
    for name, parameter in model.named_parameters():
        vector[name] = vector[name] if parameter.requires_grad else 0 * vector[name]
    weights = {name: p.detach() for name, p in model.named_parameters()}
    goal = objective(model, vector, [weights], temperature=10, dtype=torch.float64)
    assert "1.weight" not in goal.vector  # a frozen norm
    assert goal.loss(inputs, duals).item() < 1e-20 * goal.square
    assert goal.loss(inputs.flip(0), duals).item() > 1e-3 * goal.square


def test_a_backbone_whose_features_are_pooled_keeps_no_pass():
    pooled = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    features._misfit(pooled, torch.ones(1, 1, 4, 4), 1e-4)
    assert not pooled[1]._forward_pre_hooks


def test_images_come_back_from_wide_features_before_the_last_relu():
    backbone = freeze_norms(residual((1, 8, 8), (16,), (), generator=seeded(0), pool=False))
    truth = digits().inputs[:3] - 0.3
    with torch.no_grad():
        features = backbone(truth).flatten(1)
    settings = FeatureInversion(evaluations=150, roughness=0.0)
    found, misfit = invert_by_descent(
        backbone, features, settings, shape=(1, 8, 8), generator=seeded(0), bounds=(-0.3, 0.7)
    )
    assert misfit.max() < 1e-4
    assert (found - truth).square().flatten(1).sum(1).max() < 1e-2
    assert not any(module._forward_pre_hooks for module in backbone.modules())


@pytest.mark.parametrize(("case", "attack"), [("all layers", "hybrid"), ("cnn 3", "hybrid")])
def test_a_row_has_its_null_beside_it_and_its_picture(case, attack):
    (row,) = tuning.measure_tuning(digits(), case=case, attack=attack, **SMALL)
    ((name, picture),) = row["files"].items()
    assert name == f"sheet-{case}-{attack}-0.png".replace(" ", "-")
    assert picture.startswith(b"\x89PNG")
    assert row["status"] == "inconclusive"
    assert row["mean_error"] > 0
    assert 0 < row["null_correlation"] < 1
    assert row["records"] == (4 if case == "all layers" else 3)


def test_replay_goes_through_a_network_whose_norms_were_frozen():
    settings = SMALL | {"tuning": 1}
    target = scene("all layers").target
    (row,) = tuning.measure_tuning(digits(), case="all layers", attack="replay", **settings)
    assert not all(parameter.requires_grad for parameter in target.model.parameters())
    assert row["status"] == "inconclusive"
    assert "leaves" in row["reason"]  # a share of the misfit: the run was followed


def test_replay_finds_what_a_short_cnn_training_saw():
    settings = SMALL | {"cnn": "c6k3-24-10:elu", "records": 2, "cnn_rate": 0.05}
    (row,) = tuning.measure_tuning(digits(), case="cnn 5", attack="replay", **settings)
    assert row["status"] == "complete", row["reason"]
    assert row["recovered"] == row["certified"] == 2
    assert row["mean_error"] < 1e-6


def test_panels_show_what_was_found_beside_held_out_images():
    rows = [
        {"case": case, "attack": "hybrid", "correlation": 0.5, "null_correlation": 0.4}
        for case in ("all layers", "cnn 10")
    ]
    panels = tuning.STUDY.figures[0].panels(tuning.STUDY.condense(rows))
    assert [panel.title for panel in panels] == ["residual network", "cnn"]
    assert [line.name for line in panels[0].lines] == ["found", "held-out images"]
