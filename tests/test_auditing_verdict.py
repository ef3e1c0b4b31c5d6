"""The verdict is right on small targets whose truth is known."""

import dataclasses
import tempfile
from pathlib import Path

import pytest
import torch
from torch import nn

from remnant.auditing import Case, Plan, audit
from remnant.auditing.proof import Proof
from remnant.auditing.run import run_audit
from remnant.auditing.verdict import (
    certain,
    exposed_records,
    exposure_list,
    judge,
    likely,
    overall,
)
from remnant.bounds import Ledger
from remnant.bundle import Attacked, Control, Verdict
from remnant.capturing import capture
from remnant.data import load, split
from remnant.errors import InputError
from remnant.models import build
from remnant.store import open_run
from remnant.training import Adam, GradientDescent, train
from remnant.types import Finding, Knowledge, Scaling, Target
from seeding import seeded

SIDES = split(load("digits"), train=12, public=None, holdout=200, seed=0)
OTHERS = split(load("digits"), train=12, public=None, holdout=200, seed=5).train
MIRRORED, ROTATED = (
    dataclasses.replace(SIDES.train, inputs=turned(SIDES.train.inputs))
    for turned in (lambda x: x.flip(-1), lambda x: x.rot90(1, (-2, -1)))
)
SCALING = Scaling(mean=SIDES.public.inputs.mean(0))
GD = GradientDescent(lr=0.1, momentum=0.9, steps=2000, stop_loss=0.02)


def trained(recipe=GD, *, on=SIDES.train, model="mlp:64-192-192-10", seed=1):
    network = build(model, generator=seeded(seed)) if isinstance(model, str) else model
    result = train(network, on, recipe, scaling=SCALING, generator=seeded(2))
    known = Knowledge(initial=result.initial)
    return Target(model=result.model, input_shape=(1, 8, 8), scaling=SCALING, knowledge=known)


def gradient_target(on=SIDES.train, *, change=lambda g: g):
    model = build("mlp:64-128-128-10", generator=seeded(1))
    gradient = capture(model, "ce", (SCALING.to_model(on.inputs), on.labels))
    known = Knowledge(gradient={name: change(g) for name, g in gradient.items()})
    return Target(model=model, input_shape=(1, 8, 8), scaling=SCALING, knowledge=known)


def shuffled(target):
    """The same numbers in each layer, in another order: nothing of the data is left."""
    model = build("mlp:64-192-192-10", generator=seeded(1))
    with torch.no_grad():
        for mine, theirs in zip(model.parameters(), target.model.parameters(), strict=True):
            order = torch.randperm(mine.numel(), generator=seeded(9))
            mine.copy_(theirs.flatten()[order].reshape(mine.shape))
    return dataclasses.replace(target, model=model)


def with_batch_norm():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10)
    )


def large_noise(g):
    return g + g.std() * torch.randn(g.shape, generator=seeded(3))


CASES = {
    "trained on them": (lambda: trained(), "exposed"),
    "mini-batch stop": (lambda: trained(dataclasses.replace(GD, stop_loss=0.2)), "exposed"),
    "square loss": (lambda: trained(dataclasses.replace(GD, loss="mse", lr=0.02)), "exposed"),
    "gradient of them": (lambda: gradient_target(), "exposed"),
    "gradient, rounded": (lambda: gradient_target(change=lambda g: g.half().float()), "exposed"),
    "trained on others": (lambda: trained(on=OTHERS), "inconclusive"),
    "gradient of some of them": (lambda: gradient_target(SIDES.train.take(range(6))), "exposed"),
    "gradient of others": (lambda: gradient_target(OTHERS), "inconclusive"),
    "mirrored": (lambda: trained(on=MIRRORED), "exposed"),
    "gradient, rotated": (lambda: gradient_target(ROTATED), "exposed"),
    "adam": (lambda: trained(Adam(steps=300)), "inconclusive"),
    "shuffled weights": (lambda: shuffled(trained()), "inconclusive"),
    "noisy gradient": (lambda: gradient_target(change=large_noise), "inconclusive"),
    "not trained": (lambda: trained(dataclasses.replace(GD, steps=1, lr=1e-30)), "inconclusive"),
    "batch norm": (lambda: trained(Adam(steps=200), model=with_batch_norm()), "inconclusive"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_verdict_is_right_where_the_truth_is_known(name):
    make, wanted = CASES[name]
    # Approximate candidates, where that is all there is, take no more than a glance.
    plan = Plan(attacks=("ntk", "gradient"), settings={"ntk": {"steps": 40, "runs": 2}})
    result = audit(make(), SIDES.train, holdout=SIDES.holdout, public=SIDES.public, plan=plan)
    assert result.verdict == wanted, [row.reason for row in result.attacks]
    if name in ("mirrored", "gradient, rotated"):
        assert any(name.split()[-1] in row.reason for row in result.attacks)
    assert bool(result.exposed) == (wanted == "exposed")
    if wanted == "exposed":
        assert {row["id"] for row in result.exposed} <= set(SIDES.train.ids)


def test_a_promise_stands_beside_the_measurement_and_a_broken_one_is_loud():
    """A ledger that claims much privacy for training that had none."""
    case = Case(
        target=trained(),
        truth=SIDES.train,
        holdout=SIDES.holdout,
        public=SIDES.public,
        loss="ce",
        ledger=Ledger(noise_multiplier=20.0, steps=2),
    )
    with tempfile.TemporaryDirectory() as folder:
        run = open_run(Path(folder) / "audit", {"verb": "audit"})
        result = run_audit(case, Plan(attacks=("ntk",)), run)
    attacked = result.attacks[0]
    assert attacked.bound["violated"]
    assert attacked.reason.startswith("ACCOUNTING ERROR")
    assert attacked.bound["gamma"]["tight"] <= attacked.bound["gamma"]["renyi"] + 1e-9
    assert attacked.bound["kappa"] <= attacked.bound["gamma"]["tight"] < 0.8


def proved(**proof):
    """A finding of ten records whose proof has these figures."""
    whole = {"strangers": 100, "differ": False, "certified": 0, "foreign": 0, "claimed": 0}
    holds = {"left": 0.1, "by_strangers": 0.6, "holds": True, "stationary": True}
    whole |= {"chance": 1.0, "above": 0, "rank_p": 0.5, "explained": holds} | proof
    figures = {"certified": whole["certified"]} if "certified" in proof else {}
    figures |= {"targets": ["a"]} if proof.get("tried") else {}
    count = whole["claimed"], whole["above"]
    rows = [
        {"id": str(i), "claimed": i < count[0], "above": i < count[1], "recovered": False}
        for i in range(10)
    ]
    return Finding(
        attack="kkt",
        status=proof.get("status", "partial"),
        reason="seen",
        counted=10,
        records=10,
        recovered=0,
        threshold=0.9,
        per_record=rows,
        nulls={},
        summary={"candidates": 20, "proof": whole},
        figures=figures,
    )


PASSED = Control(recovered=5, records=10, status="complete", reason="", passed=True)
FAILED = Control(recovered=5, records=10, status="inconclusive", reason="nothing")
UNMET = {"left": 0.5, "by_strangers": 0.6, "holds": False, "stationary": False}
MEMBERS = UNMET | {"holds": True}
JUDGED = {
    "a record itself": (
        {"certified": 9, "claimed": 1, "foreign": 8, "chance": 1e-6},
        None,
        "exposed",
    ),
    "coincidences": ({"certified": 9, "claimed": 3, "chance": 0.2}, PASSED, "inconclusive"),
    "certified strangers": ({"certified": 9, "foreign": 9}, PASSED, "inconclusive"),
    "likenesses": ({"above": 4, "rank_p": 1e-4}, None, "exposed"),
    "likenesses, none above all strangers": ({"rank_p": 1e-4}, PASSED, "inconclusive"),
    "likenesses of other data": (
        {"above": 4, "rank_p": 1e-4, "explained": UNMET},
        PASSED,
        "inconclusive",
    ),
    "likenesses, of another kind": (
        {"above": 4, "rank_p": 1e-4, "differ": True},
        PASSED,
        "inconclusive",
    ),
    "likenesses beside certified strangers": (
        {"above": 4, "rank_p": 1e-4, "certified": 2, "foreign": 2},
        PASSED,
        "inconclusive",
    ),
    "nothing, and the twin gives": ({}, PASSED, "not exposed"),
    "nothing, and the twin fails": ({}, FAILED, "inconclusive"),
    "nothing, and no twin": ({}, None, "inconclusive"),
    "a hint": ({"rank_p": 0.03}, PASSED, "inconclusive"),
    "few nearer than any stranger": ({"above": 2, "rank_p": 0.6}, PASSED, "not exposed"),
    "nothing to compare": ({"rank_p": None}, PASSED, "inconclusive"),
    "likenesses beside few strangers": (
        {"above": 4, "rank_p": 1e-4, "strangers": 12},
        None,
        "inconclusive",
    ),
    "an assumption unmet": ({"explained": UNMET}, PASSED, "inconclusive"),
    "no stationary point": ({"explained": MEMBERS}, PASSED, "inconclusive"),
    "likenesses, no stationary point": (
        {"above": 4, "rank_p": 1e-4, "explained": MEMBERS},
        None,
        "exposed",
    ),
    "an assumption unknown": ({"explained": None}, PASSED, "inconclusive"),
    "a blind certificate": ({"certified": 0}, PASSED, "inconclusive"),
    "a single try": ({"tried": True}, PASSED, "inconclusive"),
    "no such adversary": ({"status": "not applicable"}, None, "not applicable"),
}


@pytest.mark.parametrize("name", JUDGED)
def test_judging(name):
    proof, control, wanted = JUDGED[name]
    assert judge(proved(**proof), control)[0] == wanted


def test_records_that_resemble_and_lie_nearer_than_any_stranger_are_not_cleared():
    found = dataclasses.replace(proved(above=2, rank_p=0.6), recovered=2)
    assert judge(found, PASSED)[0] is Verdict.INCONCLUSIVE


def test_no_guess_clears_a_model():
    assert judge(proved(), PASSED, assumed=("ReLU was guessed",)) == (
        Verdict.INCONCLUSIVE,
        "ReLU was guessed",
    )


def test_attacks_share_the_chance_of_error():
    found = proved(above=4, rank_p=0.004)
    assert judge(found, None, attacks=1)[0] is Verdict.EXPOSED
    more = dataclasses.replace(found, recovered=9)  # as a sweep's row has it
    said = judge(more, None, attacks=1)[1]
    assert said.startswith("4 of 10 records came back nearer")
    assert said.endswith("not certified (9 of 10 by correlation alone)")
    assert judge(found, None, attacks=5)[0] is Verdict.INCONCLUSIVE
    exact = proved(certified=1, claimed=1, chance=0.004)
    assert judge(exact, None, attacks=1)[0] is Verdict.EXPOSED
    assert judge(exact, None, attacks=5)[0] is Verdict.INCONCLUSIVE


def test_records_that_came_back_are_those_claimed_or_else_those_above_all_strangers():
    assert [row["id"] for row in exposed_records(proved(claimed=2, above=5))] == ["0", "1"]
    assert [row["id"] for row in exposed_records(proved(above=3))] == ["0", "1", "2"]


def test_not_exposed_needs_every_attack_to_fail_where_it_could_succeed():
    def attacked(verdict):
        return Attacked(
            attack="ntk", title="T", holds="h", settings={}, verdict=verdict, reason="r"
        )

    safe, unsure = attacked(Verdict.NOT_EXPOSED), attacked(Verdict.INCONCLUSIVE)
    assert overall([safe], 5)[0] is Verdict.NOT_EXPOSED
    assert overall([safe, unsure], 5)[0] is Verdict.INCONCLUSIVE
    assert overall([attacked(Verdict.NOT_APPLICABLE)], 5)[0] is Verdict.INCONCLUSIVE


WORDS = {
    "certified": (
        {"certified": 3, "claimed": 3, "chance": 1e-6},
        "3 of 10 records recovered: certified, and within twice the stated error of the record "
        "itself",
    ),
    "some not certified": (
        {"certified": 1, "claimed": 3, "chance": 1e-6},
        "3 of 10 records recovered: certified, and within twice the stated error of the record "
        "itself",
    ),
    "none certified": (
        {"certified": 0, "claimed": 3, "chance": 1e-6},
        "3 of 10 records recovered, to within a thousandth of what records differ by",
    ),
    "others too": (
        {"certified": 5, "claimed": 3, "foreign": 2, "chance": 1e-6, "disguise": "mirrored"},
        "3 of 10 records recovered: certified, and within twice the stated error of the record "
        "itself, mirrored: training saw them so; 2 more were certified that are not among those "
        "given",
    ),
    "a few tried": (
        {"certified": 1, "claimed": 1, "chance": 1e-6, "tried": True},
        "1 of 10 records tried recovered: certified, and within twice the stated error of the "
        "record itself",
    ),
    "in another order": (
        {"certified": 4, "foreign": 4, "reordered": 2},
        "4 records were certified that are not among those given, but 2 have the very numbers of a "
        "record in another order",
    ),
    "leaning": (
        {"above": 1, "rank_p": 0.03},
        "candidates lean towards your records (p = 0.03, 1 nearer than any stranger), which "
        "neither proves nor clears: hold out more records, or give more steps",
    ),
    "leaning, unexplained": (
        {"above": 1, "rank_p": 0.03, "explained": None},
        "candidates lean towards your records (p = 0.03, 1 nearer than any stranger), but whether "
        "this attack's assumption holds for the model is not known: seen",
    ),
    "trained, not stationary": (
        {"explained": MEMBERS},
        "the model was trained on your records, but is at no stationary point, as this attack "
        "assumes: seen",
    ),
}


@pytest.mark.parametrize("name", WORDS)
def test_a_verdict_says_what_was_proved(name):
    proof, words = WORDS[name]
    assert judge(proved(**proof), PASSED)[1] == words


def test_a_certificate_that_saw_nothing_says_whether_its_control_failed():
    blind = proved(certified=0)
    assert judge(blind, FAILED)[1] == "seen; the attack failed on its control too"
    assert judge(blind, PASSED)[1] == judge(blind, None)[1] == "seen"


@pytest.mark.parametrize("strangers", [19, 20])
def test_twenty_strangers_are_enough(strangers):
    found = proved(above=4, rank_p=1e-4, strangers=strangers)
    assert (judge(found, None)[0] is Verdict.EXPOSED) is (strangers == 20)


@pytest.mark.parametrize(("p", "wanted"), [(0.06, Verdict.NOT_EXPOSED), (0.04, "inconclusive")])
def test_chance_below_a_twentieth_clears_nobody(p, wanted):
    assert judge(proved(rank_p=p), PASSED)[0] == wanted


@pytest.mark.parametrize(("chance", "exposed"), [(0.009, True), (0.011, False)])
def test_a_hundredth_is_proof(chance, exposed):
    for found in (proved(above=4, rank_p=chance), proved(certified=1, claimed=1, chance=chance)):
        assert (judge(found, PASSED)[0] is Verdict.EXPOSED) is exposed
        assert (certain(found) or likely(found)) is exposed


def test_a_finding_without_a_proof_proves_nothing():
    empty = dataclasses.replace(proved(), summary={"candidates": 20})
    assert Proof.read(empty) == Proof()
    assert judge(empty, PASSED)[0] is Verdict.INCONCLUSIVE


def attacked_by(name, rows, verdict=Verdict.EXPOSED):
    found = dataclasses.replace(proved(), per_record=rows)
    return Attacked(
        attack=name,
        title=name.upper(),
        holds="h",
        settings={},
        verdict=verdict,
        reason="r",
        finding=found,
    )


def near(name, squared, correlation=0.5, claimed=True):
    more = {"label": 1, "confidence": 1.0, "correlation": correlation}
    return {"id": name, "claimed": claimed, "squared_l2": squared} | more


def test_each_exposed_record_is_listed_under_the_attack_that_comes_nearest():
    one = attacked_by("one", [near("a", 2.0), near("b", None), near("c", 1.0, 0.9)])
    two = attacked_by("two", [near("a", 1.0), near("b", 3.0), near("d", 0.1, claimed=False)])
    safe = attacked_by("safe", [near("e", 0.0)], Verdict.NOT_EXPOSED)
    listed = exposure_list([one, two, safe])
    assert [(row["id"], row["attack"]) for row in listed] == [
        ("c", "one"),
        ("a", "two"),
        ("b", "two"),
    ]
    assert listed[0].keys() == {"id", "attack", "label", "correlation", "squared_l2", "confidence"}
    flat = attacked_by("flat", [near("f", 5.0, None), near("g", None, None)])
    assert [row["id"] for row in exposure_list([flat, one])] == ["c", "a", "b", "f", "g"]


def test_the_whole_verdict_names_who_got_how_many_and_what_was_tried():
    one = attacked_by("one", [near("a", 2.0), near("b", 1.0)])
    two = attacked_by("two", [near("a", 1.0), near("c", 1.0, claimed=False)])
    three = attacked_by("three", [near("a", 1.0)])
    words = "2 of 3 training records come back, from one, two and three."
    assert overall([one, two, three], 3) == (Verdict.EXPOSED, words)
    words = "1 of 9 training records come back, from three; only 1 was tried."
    assert overall([three], 9) == (Verdict.EXPOSED, words)
    words = "2 of 9 training records come back, from one; only 2 were tried."
    assert overall([one], 9) == (Verdict.EXPOSED, words)
    unsure = attacked_by("one", [], Verdict.INCONCLUSIVE)
    cut = dataclasses.replace(unsure, attack="two", title="TWO", finding=None)
    words = "Nothing is proved, either way, for: one, two (not finished)."
    assert overall([unsure, cut], 9) == (Verdict.INCONCLUSIVE, words)


def test_a_wrong_mean_is_never_not_exposed():
    """The records came back, but for a shift: silence about them would be a false all-clear."""
    target = dataclasses.replace(trained(), scaling=Scaling())
    plan = Plan(attacks=("ntk",))
    result = audit(target, SIDES.train, holdout=SIDES.holdout, public=SIDES.public, plan=plan)
    assert result.verdict != "not exposed"


def test_a_single_record_is_not_hidden_by_noise_in_its_own_span():
    one = SIDES.train.take([0])
    plan = Plan(attacks=("ntk",))
    target = trained(on=SIDES.train.take(range(8)))
    result = audit(target, one, holdout=SIDES.holdout, public=SIDES.public, plan=plan)
    assert result.verdict == "exposed", result.sentence


def test_near_copies_in_the_holdout_hide_nothing():
    """Held-out records are training records measured again: they are named and left out."""
    noise = 0.02 * torch.randn(SIDES.train.inputs.shape, generator=seeded(4))
    inputs = torch.cat([SIDES.train.inputs + noise, SIDES.holdout.inputs[:20]])
    some = SIDES.holdout.take(range(len(inputs)))
    copies = dataclasses.replace(some, inputs=inputs)
    plan = Plan(attacks=("gradient",))
    result = audit(gradient_target(), SIDES.train, holdout=copies, public=copies, plan=plan)
    assert result.verdict == "exposed", result.sentence
    assert any(note.startswith("12 held-out or public records are near") for note in result.notes)


def test_copies_in_the_holdout_are_refused():
    copies = dataclasses.replace(SIDES.holdout, inputs=SIDES.holdout.inputs.clone())
    copies.inputs[:3] = SIDES.train.inputs[:3] + 1e-5
    with pytest.raises(InputError, match="3 of the training set's"):
        Case(target=trained(), truth=SIDES.train, holdout=copies, public=SIDES.public, loss="ce")


def test_an_empty_id_is_refused():
    """Nobody could say which record is exposed."""
    ids = (*SIDES.train.ids[:-1], " ")
    nameless = dataclasses.replace(SIDES.train, ids=ids)
    with pytest.raises(InputError, match="ids of truth: expected a text each, got an empty one in"):
        Case(
            target=trained(), truth=nameless, holdout=SIDES.holdout, public=SIDES.public, loss="ce"
        )


def test_identical_constant_records_are_exposed_though_they_correlate_with_nothing():
    on = dataclasses.replace(SIDES.train, inputs=SIDES.train.inputs.clone())
    on.inputs[:2] = 0.0
    on = on.take([0, 1, 2, 3, 4])
    found = audit(gradient_target(on), on, holdout=SIDES.holdout, plan=Plan(attacks=("gradient",)))
    assert found.verdict == Verdict.EXPOSED, found.headline
    assert sorted(row["id"] for row in found.exposed) == sorted(on.ids)
    assert [row["correlation"] for row in found.exposed[-2:]] == [0, 0]


def test_labels_without_an_output_are_refused_by_name(tmp_path):
    wrong = dataclasses.replace(SIDES.holdout, labels=SIDES.holdout.labels + 90)
    with pytest.raises(InputError, match=r"audit: holdout: .* classes 0 to 9, got 9\d to 99"):
        audit(gradient_target(), SIDES.train, holdout=wrong, public=SIDES.public)
