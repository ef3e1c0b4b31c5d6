"""Values check themselves: every fault says what was expected and what came."""

import dataclasses
import math

import pytest
import torch
from torch import nn

from remnant.errors import InputError
from remnant.types import (
    Candidates,
    Evidence,
    Examples,
    Finding,
    Knowledge,
    Scaling,
    Stated,
    Status,
    Target,
)


def examples(**changes):
    given = {
        "inputs": torch.rand(3, 1, 2, 2),
        "labels": torch.tensor([0, 2, 1]),
        "ids": ("a", "b", "c"),
    }
    return Examples(**(given | changes))


def finding(**changes):
    given = {
        "attack": "ntk",
        "status": "complete",
        "reason": "",
        "counted": 1,
        "records": 1,
        "recovered": 1,
        "threshold": 0.9,
        "per_record": [{"id": "a", "correlation": float("nan")}],
        "nulls": {},
        "summary": {"best": float("inf")},
    }
    return Finding(**(given | changes))


def test_values_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        examples().name = "other"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"inputs": torch.zeros(3, 2, dtype=torch.int32)}, "expected floats, n x shape, or"),
        ({"inputs": torch.tensor([[1, -1, 2]] * 3)}, "tokens from 0, -1 only after the end"),
        ({"inputs": torch.tensor([[-1, -1]] * 3)}, "tokens from 0, -1 only after the end"),
        ({"inputs": torch.rand(3)}, "n x shape"),
        ({"labels": torch.zeros(2)}, "labels: expected 3, one a record, got 2"),
        ({"ids": ("a", "b", "b")}, "3 different ones, got 3, of which 2 differ"),
        ({"inputs": torch.full((3, 2), float("nan"))}, "expected finite numbers"),
    ],
)
def test_examples_say_what_is_wrong(changes, words):
    with pytest.raises(InputError, match=words):
        examples(**changes)


def test_examples_take_keeps_ids_with_their_records():
    taken = examples().take([2, 0])
    assert taken.ids == ("c", "a")
    assert taken.labels.tolist() == [1, 0]
    assert (taken.shape, taken.classes, len(taken)) == ((1, 2, 2), 2, 2)
    assert examples(labels=torch.rand(3)).classes == 0


@pytest.mark.parametrize(
    ("mean", "std"), [(1e39, 1.0), (math.inf, 1.0), (math.nan, 1.0), (3e38, 1e-30), (0.0, 1e-45),
                      (0.0, math.inf)],
)  # fmt: skip
def test_scaling_keeps_inputs_finite(mean, std):
    with pytest.raises(InputError, match="scaling: mean and std: expected finite inputs"):
        Scaling(mean=torch.tensor(mean), std=torch.tensor(std))


def test_scaling_goes_there_and_back():
    scaling = Scaling(mean=torch.rand(1, 2, 2), std=torch.tensor(0.5))
    data = torch.rand(5, 1, 2, 2, dtype=torch.float64)
    torch.testing.assert_close(scaling.to_data(scaling.to_model(data)), data)
    with pytest.raises(InputError, match="std: expected positive"):
        Scaling(std=torch.zeros(()))


def test_targets_check_what_the_adversary_holds():
    model = nn.Linear(4, 2)
    weights = {name: p.detach() for name, p in model.named_parameters()}
    target = Target(model=model, input_shape=(4,), knowledge=Knowledge(initial=weights))
    assert target.weights.keys() == weights.keys()
    with pytest.raises(InputError, match=r"initial weights, bias: expected \(2,\), got nothing"):
        Target(
            model=model,
            input_shape=(4,),
            knowledge=Knowledge(initial={"weight": weights["weight"]}),
        )
    wrong = weights | {"weight": torch.zeros(3, 3)}
    with pytest.raises(InputError, match="gradient weights, weight"):
        Target(model=model, input_shape=(4,), knowledge=Knowledge(gradient=wrong))
    with pytest.raises(InputError, match="public inputs"):
        Target(model=model, input_shape=(4,), knowledge=Knowledge(public=torch.rand(2, 5)))
    with pytest.raises(InputError, match="input shape: expected positive"):
        Target(model=model, input_shape=())


def test_evidence_is_float64_and_of_one_shape():
    whole = {"w": torch.zeros(2, 3, dtype=torch.float64)}
    assert Evidence(vector=whole, start=whole, end=whole, precision=1e-7).precision == 1e-7
    with pytest.raises(InputError, match=r"w: expected \(2, 3\), got \(3,\)"):
        Evidence(vector=whole, start={"w": torch.zeros(3)}, end=whole, precision=1e-7)
    single = {"w": torch.zeros(2, 3)}
    with pytest.raises(InputError, match=r"expected float64, got torch\.float32"):
        Evidence(vector=single, start=whole, end=whole, precision=1e-7)


def test_candidates_check_their_shapes():
    ok = {"status": Status.COMPLETE, "reason": ""}
    assert len(Candidates(inputs=torch.rand(2, 3), confidence=torch.rand(2), **ok)) == 2
    with pytest.raises(InputError, match=r"confidence: expected \(2,\)"):
        Candidates(inputs=torch.rand(2, 3), confidence=torch.rand(3), **ok)
    with pytest.raises(InputError, match="labels: expected 2, one a candidate, got 1"):
        Candidates(inputs=torch.rand(2, 3), confidence=torch.rand(2), labels=torch.zeros(1), **ok)
    with pytest.raises(InputError, match="m x shape"):
        Candidates(inputs=torch.rand(2), confidence=torch.rand(2), **ok)


def test_a_finding_is_json_and_comes_back():
    text = finding().to_json()
    assert "NaN" not in text
    assert "Infinity" not in text
    again = Finding.from_json(text)
    assert again.per_record == [{"id": "a", "correlation": None}]
    assert again.to_json() == text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "expected JSON"),
        ("[]", "got list"),
        ('{"schema": "remnant.finding/0"}', r"expected remnant\.finding/1, got remnant\.finding/0"),
        ('{"schema": "remnant.finding/1"}', "fields do not fit"),
    ],
)
def test_a_malformed_finding_is_refused(text, words):
    with pytest.raises(InputError, match=words):
        Finding.from_json(text)


def test_what_an_attack_states_is_kept_among_the_figures_and_read_back():
    stated = Stated(counted=3, certified=1, passed=(True, False), error=(1e-6, None))
    found = Candidates(
        inputs=torch.zeros(2, 4),
        confidence=torch.zeros(2),
        status=Status.PARTIAL,
        reason="",
        stated=stated,
        figures={"gap": 2.0},
    )
    tensors, about = found.parts()
    assert about["figures"] == {
        "gap": 2.0,
        "counted": 3,
        "certified": 1,
        "passed": (True, False),
        "error": (1e-6, None),
    }
    back = Candidates.from_parts(tensors, about)
    assert (back.stated, back.figures) == (stated, {"gap": 2.0})
    assert Stated.read({}) == Stated()
    assert Stated().figures() == {}


@pytest.mark.parametrize(
    "wrong",
    [
        {"figures": {"certified": 2}},
        {"stated": Stated(passed=(True,))},
        {"stated": Stated(error=(0.1, 0.1, 0.1))},
    ],
)
def test_candidates_refuse_what_does_not_fit_them(wrong):
    whole = {"inputs": torch.zeros(2, 4), "confidence": torch.zeros(2)}
    with pytest.raises(InputError, match="candidates: "):
        Candidates(**whole, status=Status.PARTIAL, reason="", **wrong)
