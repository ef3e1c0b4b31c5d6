"""The informed adversary's criteria against slow ones, and its studies at a toy's size."""

from dataclasses import replace

import torch

from remnant.data import load
from remnant.experiments import informed_studies as studies
from remnant.experiments.informed_scenes import FACTORS, Factor, make_scene, some_of
from remnant.report.lines import draw_lines
from remnant.scoring.criteria import kl_each
from remnant.training import SGD, Adam, GradientDescent

TOY = replace(
    studies.QUICK_FACTORS,
    fixed=40,
    shadows=60,
    targets=2,
    epochs=6,
    evaluations=25,
    reconn_epochs=2,
    classifier_epochs=1,
)


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def digits_as_mnist(monkeypatch):
    """A factor's network is for 784 inputs; the toy's is for the 64 of digits."""
    for name, factor in FACTORS.items():
        small = replace(factor, model=factor.model.replace("784-10", "64-8"))
        monkeypatch.setitem(FACTORS, name, replace(small, probes=min(20, factor.probes)))
    return {"mnist": load("digits")}


def test_the_classifier_is_good_and_its_divergence_knows_classes_apart():
    mnist, settings = load("mnist"), replace(TOY, shadows=800, classifier_epochs=4)
    model, accuracy = studies.good_classifier(mnist, settings, 1)
    assert 0.7 < accuracy <= 1
    assert studies.good_classifier(mnist, settings, 1)[0] is model
    some = mnist.inputs[::50]
    assert float(kl_each(model, some.roll(25, 0), some).median()) > 1


def test_a_loss_tells_the_model_that_was_trained_on_the_record(monkeypatch):
    data = digits_as_mnist(monkeypatch)["mnist"]
    overfit = replace(TOY, fixed=10, epochs=40, targets=6)
    scene = make_scene(overfit, FACTORS["default"], data, 0)
    assert studies.loss_auc(scene) > 0.8


def test_factors_become_recipes_and_scenes_do_not_overlap(monkeypatch):
    data = digits_as_mnist(monkeypatch)["mnist"]
    for factor, kind in [
        (Factor(), GradientDescent),
        (Factor(adam=True), Adam),
        (Factor(batch_size=16), SGD),
        (Factor(batch_size=41), GradientDescent),
    ]:
        small = replace(factor, model="mlp:64-8-10:elu")
        scene = make_scene(TOY, small, data, 3)
        assert type(scene.recipe) is kind
        ids = [*scene.fixed.ids, *scene.targets.ids, *scene.public.ids]
        assert len(set(ids)) == len(ids) == 40 + 2 + 60
        assert all(len(w) == 2 for w in scene.released.values())
        second = some_of(scene, torch.tensor([1]))
        assert second.targets.ids == scene.targets.ids[1:]
        assert all(torch.equal(w[0], scene.released[n][1]) for n, w in second.released.items())


def test_replay_beats_what_learns_and_fails_without_the_start(monkeypatch):
    data = digits_as_mnist(monkeypatch)
    rows = {
        (row["factor"], row["method"]): row
        for cell in studies.factor_cells(TOY, 0)
        if cell["factor"] in ("default", "unknown initialisation")
        for row in studies.measure_factors(TOY, cell, data)
    }
    default, lost = rows["default", "replay"], rows["unknown initialisation", "replay"]
    assert default["mse"] < 1e-3 < rows["default", "ridge"]["mse"]
    assert default["certified"] == 2
    assert default["wrongly_certified"] == 0
    assert default["success"] == 1.0
    assert lost["certified"] == 0
    assert lost["mse"] > 0.01
    assert {method for _, method in rows} == {"replay", "ridge", "reconn"}
    panels = studies.plot_factors(list(rows.values()))
    assert [line.name for line in panels[0].lines] == ["replay", "ridge", "reconn", "oracle"]
    assert draw_lines(panels, title="toy").startswith(b"\x89PNG")


def test_shadows_and_batches_repeat_their_cells(monkeypatch):
    data = digits_as_mnist(monkeypatch)
    monkeypatch.setattr(studies, "Factor", lambda **k: Factor(model="mlp:64-8-10:elu", **k))
    few = replace(
        studies.QUICK_SHADOWS, fixed=40, shadows=60, targets=2, epochs=4,
        counts=(30, 60), methods=("ridge",),
    )  # fmt: skip
    (cell,) = studies.shadow_cells(few, 0)
    rows = studies.measure_shadows(few, cell, data)
    assert [(row["method"], row["shadows"]) for row in rows] == [("ridge", 30), ("ridge", 60)]
    assert len(studies.plot_shadows(rows)) == 1
    batches = replace(
        studies.QUICK_BATCHES, fixed=40, shadows=60, targets=2, epochs=2, sizes=(20,),
        methods=("ridge",),
    )  # fmt: skip
    cells = studies.batch_cells(batches, 0)
    assert [cell["order"] for cell in cells] == ["known", "unknown"]
    rows = [row for cell in cells for row in studies.measure_batches(batches, cell, data)]
    assert [row["batch_size"] for row in rows] == [20, 20]
    assert len(studies.plot_batches(rows)[0].lines) == 2
