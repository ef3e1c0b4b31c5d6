"""Membership: how well records trained on are told from others, and canaries that were planted."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from torch import nn

from remnant.auditing import Case, Plan, audit
from remnant.auditing.membership import exposures, tell
from remnant.auditing.preflight import preflight
from remnant.auditing.shadow_models import forward_work, why_none
from remnant.auditing.strangers import strangers_of
from remnant.cli import main
from remnant.data import load, split
from remnant.models import build
from remnant.scoring.criteria import membership_auc
from remnant.scoring.score import wilson
from remnant.training import Adam, train
from remnant.types import Knowledge, Scaling, Target
from seeding import seeded

SIDES = split(load("digits"), train=60, public=None, holdout=150, seed=0)
RECIPE = Adam(lr=3e-3, steps=120, batch_size=20)


def target(epochs_long=True, recipe=None):
    model = build("mlp:64-64-10", generator=seeded(1))
    how = RECIPE if epochs_long else Adam(steps=1, lr=1e-9)
    made = train(model, SIDES.train, how, scaling=Scaling(), generator=seeded(2))
    return Target(model=made.model, input_shape=(1, 8, 8), knowledge=Knowledge(recipe=recipe))


def case_of(aim):
    sides = {"truth": SIDES.train, "holdout": SIDES.holdout, "public": SIDES.public}
    return Case(target=aim, loss="ce", **sides)


def test_the_curve_is_the_share_of_pairs_in_order():
    draws = seeded(0)
    mine, theirs = torch.randn(80, generator=draws) - 1, torch.randn(300, generator=draws)
    told = tell("loss", "", mine.tolist(), theirs.tolist())
    assert told["auc"] == pytest.approx(membership_auc(mine, theirs))
    assert told["auc_low"] < told["auc"] < told["auc_high"]
    threshold = theirs.sort().values[3]  # 1% of 300
    assert told["tpr"] == pytest.approx(float((mine < threshold).double().mean()))
    assert told["fpr"] == pytest.approx(3 / 300)


def test_intervals_hold_the_truth_nearly_always():
    """Members one deviation lower: the area is Phi(1 / sqrt 2)."""
    true, held = 0.7602, 0
    for seed in range(200):
        draw = np.random.default_rng(seed)
        told = tell("loss", "", draw.normal(-1, 1, 30), draw.normal(0, 1, 60))
        held += told["auc_low"] <= true <= told["auc_high"]
    assert held >= 188
    assert wilson(1.0, 50)[0] < 0.95  # separated by luck, too


def test_exposure_is_the_rank_among_strangers_in_bits():
    assert exposures([-1.0, 1.5, 9.0], [1.0, 2.0, 3.0]) == [2.0, 1.0, 0.0]


def test_a_model_that_has_learnt_its_records_by_heart_shows_it_and_another_does_not():
    shown = audit(target(), SIDES.train, holdout=SIDES.holdout, plan=Plan(attacks=("glm",)))
    assert shown.membership["verdict"] == "shown"
    assert shown.verdict == "inconclusive"  # membership is no reconstruction
    assert [row["id"] for row in shown.membership["per_record"]] != []
    fresh = audit(target(False), SIDES.train, holdout=SIDES.holdout, plan=Plan(attacks=("glm",)))
    assert fresh.membership["verdict"] == "not shown"


def test_too_few_strangers_tell_nothing():
    few = SIDES.holdout.take(range(10))
    said = audit(target(), SIDES.train, holdout=few, plan=Plan(attacks=("glm",)))
    assert said.membership["verdict"] == "not known"


def test_shadow_models_tell_more_than_the_loss():
    case = case_of(target(recipe=RECIPE))
    strangers = strangers_of(case)
    assert why_none(case, strangers) == ""
    said = audit(case.target, SIDES.train, holdout=SIDES.holdout, plan=Plan(attacks=("glm",)))
    areas = {test["score"]: test["auc"] for test in said.membership["tests"]}
    assert areas["likelihood"] > areas["loss"] > 0.6


def test_shadow_models_are_refused_where_they_would_take_too_long():
    case = case_of(target(recipe=Adam(steps=10**7)))
    assert "multiply-adds" in why_none(case, strangers_of(case))
    assert why_none(case_of(target()), strangers_of(case)) == "no recipe was given"


def test_the_work_of_layers_is_counted():
    assert forward_work(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), torch.zeros(1, 64)) == 640
    convolution = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1))
    assert forward_work(convolution, torch.zeros(1, 1, 8, 8)) == 9 * 4 * 64
    encoder = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval()
    assert forward_work(encoder, torch.zeros(1, 16, 32)) >= 16 * (4 * 32 * 32 + 2 * 32 * 64)
    memory = nn.LSTM(16, 32).eval()
    assert forward_work(memory, torch.zeros(1, 20, 16)) >= 4 * 32 * (16 + 32)


def test_canaries_that_were_planted_stand_out(tmp_path, monkeypatch):
    """Through the command line: made, added to the training, asked for."""
    monkeypatch.chdir(tmp_path)
    for name, part in (("train", SIDES.train), ("test", SIDES.holdout)):
        np.savez(f"{name}.npz", x=part.inputs.numpy(), y=part.labels.numpy())
    assert main(["canaries", "--data", "train.npz", "--count", "12", "--quiet"]) == 0
    planted, others = load("./canaries.npz"), load("./canaries-unplanted.npz")
    assert planted.shape == SIDES.train.shape
    assert len(others) == 200
    inputs = torch.cat([SIDES.train.inputs, planted.inputs])
    labels = torch.cat([SIDES.train.labels, planted.labels])
    model = build("mlp:64-128-10", generator=seeded(1))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(150):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs.flatten(1)), labels).backward()
        optimizer.step()
    torch.save(model.state_dict(), "model.pt")
    words = ["audit", "--weights", "model.pt", "--model", "mlp:64-128-10", "--data", "train.npz",
             "--holdout", "test.npz", "--attacks", "glm", "--out", "found", "--quiet"]  # fmt: skip
    assert main([*words, "--canaries", "canaries.npz"]) == 0
    found = json.loads((tmp_path / "found" / "finding.json").read_text())
    assert found["membership"]["canaries"]["stand_out"] >= 10
    assert found["membership"]["canaries"]["p"] < 1e-6
    assert len(found["membership"]["per_record"]) == 60  # the canaries are counted by themselves
    assert found["target"]["records"] == 72
    assert "canaries stand out" in (tmp_path / "found" / "report.html").read_text()


@pytest.mark.parametrize("name", ["t.csv", "t.txt", "t.jsonl"])
def test_canaries_are_of_the_kind_of_the_data(tmp_path, name):
    lines = {
        "t.csv": "age,town,label\n" + "".join(f"{20 + i},t{i % 3},{i % 2}\n" for i in range(30)),
        "t.txt": "".join(f"word{i} other{i}\n" for i in range(30)),
        "t.jsonl": "".join(
            json.dumps({"text": f"a{i} b", "label": i % 2}) + "\n" for i in range(9)
        ),
    }
    (tmp_path / name).write_text(lines[name])
    out = tmp_path / f"c{name}"
    flags = ["--data", str(tmp_path / name), "--out", str(out), "--count", "5", "--quiet"]
    assert main(["canaries", *flags]) == 0
    made = out.read_text().splitlines()
    assert len(made) == (6 if name == "t.csv" else 5)
    if name == "t.csv":
        table = load(out)
        assert made[0] == "age,town,label"
        assert float(table.inputs[:, 0].min()) >= 20
    if name == "t.jsonl":
        assert {json.loads(line)["label"] for line in made} <= {0, 1}
    assert main(["canaries", *flags]) == 2  # nothing is overwritten


def test_advice_fits_the_case():
    """No recipe is asked for where it would be refused; what stands in the way is named."""
    rows = preflight(case_of(target()))
    assert any("--recipe" in (row["stronger"] or "") for row in rows)
    alone = dataclasses.replace(case_of(target()), truth=SIDES.train.take([0]))
    assert not any("--recipe" in (row["stronger"] or "") for row in preflight(alone))
    normed = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.LayerNorm(8), nn.Linear(8, 10))
    rows = preflight(case_of(dataclasses.replace(target(), model=normed)))
    kkt = next(row for row in rows if row["attack"] == "kkt")
    assert "LayerNorm" in kkt["why"]
