"""The informed adversary's criteria against slow ones, and its studies at a toy's size."""

from dataclasses import replace

import torch
from torch import nn

from remnant.data import load
from remnant.experiments import paper_001 as studies
from remnant.experiments.informed_targets import (
    CNN_FACTORS,
    FACTORS,
    Factor,
    InformedSizes,
    make_released,
    model_text,
    on_other_records,
    some_of,
)
from remnant.experiments.study import cells
from remnant.models import build
from remnant.scoring.criteria import kl_each
from remnant.solvers.replay.run import Observation
from remnant.training import SGD, Adam, GradientDescent
from seeding import seeded

TOY = InformedSizes(
    records=40, width=8, shadows=60, targets=2, epochs=6, evaluations=25, reconn_epochs=2,
    classifier_epochs=1,
)  # fmt: skip


def rows_of(name, **changes):
    study = studies.STUDIES[name]
    toy = {key: getattr(TOY, key) for key in TOY.__dataclass_fields__ if key != "critic_width"}
    found = []
    for _, asked in cells(dict(study.settings) | toy | changes | {"seed": [0]}):
        rest = {key: value for key, value in asked.items() if key != "data"}
        found += [asked | row for row in study.measure(load("digits"), **rest)]
    return found


def test_the_classifier_is_good_and_its_divergence_knows_classes_apart():
    mnist, settings = load("mnist"), replace(TOY, width=10, shadows=800, classifier_epochs=4)
    model, accuracy = studies.good_classifier(mnist, settings, 1)
    assert 0.7 < accuracy <= 1
    assert studies.good_classifier(mnist, settings, 1)[0] is model
    some = mnist.inputs[::50]
    assert float(kl_each(model, some.roll(25, 0), some).median()) > 1


def test_a_loss_tells_the_model_that_was_trained_on_the_record():
    overfit = replace(TOY, records=10, epochs=40, targets=6)
    scene = make_released(overfit, FACTORS["default"], load("digits"), 0)
    assert studies.about_training(scene)["loss_auc"] > 0.8


def test_factors_become_recipes_and_scenes_do_not_overlap():
    for factor, kind in [
        (Factor(), GradientDescent),
        (Factor(adam=True), Adam),
        (Factor(batch_size=16), SGD),
        (Factor(batch_size=41), GradientDescent),
    ]:
        scene = make_released(TOY, factor, load("digits"), 3)
        assert type(scene.recipe) is kind
        ids = [*scene.fixed.ids, *scene.targets.ids, *scene.public.ids]
        assert len(set(ids)) == len(ids) == 40 + 2 + 60
        assert all(len(w) == 2 for w in scene.released.values())
        second = some_of(scene, torch.tensor([1]))
        assert second.targets.ids == scene.targets.ids[1:]
        assert all(torch.equal(w[0], scene.released[n][1]) for n, w in second.released.items())


def test_models_are_made_for_the_data():
    digits = load("digits")
    assert model_text(digits, FACTORS["ReLU"], 8) == "mlp:64-8-10"
    assert model_text(digits, FACTORS["hidden layer of 30"], 8) == "mlp:64-30-10:elu"
    cnn = Factor(convolutions="c4k3", options="")
    assert model_text(digits, cnn, 8) == "cnn:1x8x8-c4k3-8-10"


def test_the_layers_that_a_factor_of_convolutions_keeps_are_those_of_its_name():
    for name, kind in [("convolutional", nn.Conv2d), ("dense", nn.Linear)]:
        factor = CNN_FACTORS[f"{name} layers only"]
        model = build(model_text(load("mnist"), factor, 8), generator=seeded())
        of_kind = {n for n, m in model.named_modules() if isinstance(m, kind)}
        names = [n for n, _ in model.named_parameters()]
        seen = Observation(layers=factor.layers).chosen(names)
        assert seen == tuple(n for n in names if n.rpartition(".")[0] in of_kind) != ()


def test_replay_beats_what_learns_and_fails_without_the_start():
    factors = ["default", "unknown initialisation"]
    found = rows_of("informed-factors", factor=factors)
    rows = {(row["factor"], row["method"]): row for row in found}
    default, lost = rows["default", "replay"], rows["unknown initialisation", "replay"]
    assert default["mse"] < 1e-3 < rows["default", "ridge"]["mse"]
    assert default["certified"] == 2
    assert default["wrongly_certified"] == 0
    assert default["success"] == 1.0
    assert lost["certified"] == 0
    assert lost["mse"] > 0.01
    assert {method for _, method in rows} == {"replay", "ridge", "reconn"}
    (panel,) = studies.STUDIES["informed-factors"].figures[0].panels(found)
    assert [line.name for line in panel.lines] == ["replay", "ridge", "reconn", "oracle"]


def test_shadows_and_batches_repeat_their_cells():
    rows = rows_of("informed-shadows", epochs=4, counts=(30, 60), methods=("ridge",))
    assert [(row["method"], row["shadows"]) for row in rows] == [("ridge", 30), ("ridge", 60)]
    rows = rows_of("informed-batch", epochs=2, lr=0.05, batch_size=20, methods=("ridge",))
    assert [(row["batch_size"], row["order_known"]) for row in rows] == [(20, True), (20, False)]
    (panel,) = studies.STUDIES["informed-batch"].figures[0].panels(rows)
    assert [line.name for line in panel.lines] == [
        "ridge, order known: True", "ridge, order known: False", "oracle",
    ]  # fmt: skip


def test_strangers_share_no_class_with_a_target_and_a_pretrained_start_is_no_fresh_one():
    digits = load("digits")
    apart = make_released(TOY, Factor(strangers=True), digits, 3)
    assert not set(apart.public.labels.tolist()) & set(apart.targets.labels.tolist())
    plain, begun = (make_released(TOY, Factor(pretrained=n), digits, 3) for n in (0, 30))
    first, second = (next(scene.model.parameters()) for scene in (plain, begun))
    assert begun.targets.ids == plain.targets.ids
    assert not torch.equal(first, second)
    right = [studies.about_training(scene)["test_accuracy"] for scene in (plain, begun)]
    assert right[1] > right[0]


def test_another_fixed_set_shares_no_record_and_keeps_the_targets():
    scene = make_released(TOY, FACTORS["default"], load("digits"), 3)
    other = on_other_records(scene)
    assert not {*scene.fixed.ids} & {*other.fixed.ids}
    assert (len(other.fixed), other.targets.ids) == (len(scene.fixed), scene.targets.ids)
    assert any(not torch.equal(w, scene.released[n]) for n, w in other.released.items())


def test_a_tuned_reconstructor_begins_where_the_first_ended():
    rows = rows_of("informed-transfer", counts=(10,), reconn_epochs=3)
    assert [(row["method"], row["shadows"]) for row in rows] == [
        ("tuned", 0), ("tuned", 10), ("from scratch", 10),
    ]  # fmt: skip
    first, tuned, scratch = (row["mse"] for row in rows)
    assert tuned < scratch
    assert len({first, tuned, scratch}) == 3


def test_a_shared_start_tells_members_and_the_bins_of_the_pool_hold_all_pairs():
    rows = rows_of("informed-membership", models=10, epochs=20, records=20)
    shared = [row["auc"] for row in rows if row["start"] == "shared"]
    fresh = [row["auc"] for row in rows if row["start"] == "fresh"]
    assert min(shared) > max(0.9, sum(fresh) / len(fresh))
    pool = studies.STUDIES["informed-pool"]
    bins = pool.measure(load("digits"), bins=6, targets=5, records=40, shadows=60, seed=0)
    assert abs(sum(row["share"] for row in bins) - 1) < 1e-6
    assert bins[0]["nearest"] < bins[0]["q0.01"] < bins[0]["q0.5"]
