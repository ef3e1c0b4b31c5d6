"""Scores of texts against slow obvious ways, and what an audit proves by them."""

import json
import random
from dataclasses import replace

import pytest
import torch

from remnant.attacks import Gradient
from remnant.auditing import Case, Plan, preflight
from remnant.auditing.case import same_length
from remnant.auditing.run import run_audit
from remnant.auditing.strangers import near_texts
from remnant.cli import main
from remnant.data import load_texts
from remnant.report.page import page
from remnant.report.page.facts import cards, text_pair
from remnant.report.page.files import read_bundle, redact
from remnant.scoring.texts import (
    likeness,
    longest_run,
    most_frequent,
    score_texts,
    share_right,
    token_set,
)
from remnant.store import open_run
from remnant.types import Candidates, Knowledge, Stated, Status, Target, token_rows
from text_case import OTHERS, SENTENCES, write_case

pytest.importorskip("transformers")
pytest.importorskip("tokenizers")


def slow_run(a, b):
    pieces = {tuple(a[i:j]) for i in range(len(a)) for j in range(i + 1, len(a) + 1)}
    theirs = {tuple(b[i:j]) for i in range(len(b)) for j in range(i + 1, len(b) + 1)}
    return max(map(len, pieces & theirs), default=0)


def test_runs_and_shares_are_those_of_the_obvious_way():
    draws = random.Random(0)
    for _ in range(60):
        a, b = ([draws.randrange(4) for _ in range(draws.randrange(0, 12))] for _ in range(2))
        assert longest_run(a, b) == slow_run(a, b)
        same = sum(i < len(a) and i < len(b) and a[i] == b[i] for i in range(12))
        assert share_right(a, b) == same / max(1, len(a), len(b))


def test_only_equal_texts_are_fully_alike_and_are_matched_first():
    records = [[1, 2, 3], [4, 5, 6, 7], [1, 2, 3, 9]]
    found = [[4, 5, 6, 7], [3, 2, 1], [1, 2, 3], [4, 5, 6]]
    values = likeness(records, found)
    assert (values == 1).nonzero().tolist() == [[0, 2], [1, 0]]
    assert values[0, 1] == pytest.approx((1 + 1 / 3) / 2)  # all its tokens, one at its place
    scores = score_texts(records, found)
    assert scores.candidate[:2] == [2, 0]
    assert scores.exact == [True, True, False]
    assert scores.tokens[:2] == [1.0, 1.0]
    assert scores.run[:2] == [3, 4]
    none = score_texts(records, [])
    assert (none.candidate, none.tokens, none.run) == ([-1] * 3, [0.0] * 3, [0] * 3)


def test_nulls_guess_by_frequency():
    public = [[1, 2, 2], [1, 3], [4, 2, 5]]
    assert most_frequent([[9, 9, 9, 9], [9]], public) == [[1, 2, 2, 2], [1]]
    told = token_set([7, 1], [[1, 2], [7, 8]], public)
    assert told == {"named": 2, "right": 2, "in_data": 4, "frequent_right": 2}


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    model, train, tokenizer = write_case(folder, records=4, others=10)
    limits = {"vocabulary": 300, "longest": 48}
    others = load_texts(folder / "holdout.txt", tokenizer, **limits)
    parts = same_length(train, others.take(range(5)), others.take(range(5, 10)))
    truth, holdout, public = parts
    target = Target(
        model=model, input_shape=(48,), bounds=None, knowledge=Knowledge(gradient={
            name: torch.ones_like(p) for name, p in model.named_parameters()
        }),
    )  # fmt: skip
    return Case(
        target=target, truth=truth, holdout=holdout, public=public, loss="ce",
        words=tokenizer.pieces,
    )  # fmt: skip


def answer(rows, passed):
    """An attack's result: rows as floats, certified where said."""
    width = max(map(len, rows))
    inputs = torch.tensor([[*row, *[-1] * (width - len(row))] for row in rows]).float()
    return Candidates(
        inputs=inputs,
        confidence=torch.tensor(passed).float(),
        status=Status.PARTIAL,
        reason="as told",
        stated=Stated(counted=len(rows), certified=sum(passed), passed=passed),
        figures={"tokens": sorted({token for row in rows for token in row})},
    )


def audited(case, found, folder, monkeypatch, **plan):
    monkeypatch.setattr(Gradient, "__call__", lambda self, target, *, generator: found)
    monkeypatch.setattr(Gradient, "why_not", lambda self, scene: None)
    monkeypatch.setattr(Gradient, "twin", lambda self, scene, strangers, generator: scene.target)
    run = open_run(folder, {"verb": "audit"})
    return run_audit(case, Plan(attacks=("gradient", "kkt"), **plan), run)


def test_red_needs_the_record_itself(case, tmp_path, monkeypatch):
    truth = token_rows(case.truth.inputs)
    wrong = [[*row[:-1], (row[-1] + 1) % 300] for row in truth]
    near = audited(case, answer(wrong, [False] * 4), tmp_path / "near", monkeypatch)
    assert near.verdict == "inconclusive"
    assert near.attacks[0].finding.recovered == 0
    assert near.attacks[0].finding.summary["mean_tokens"] > 0.9
    mixed = [truth[2], wrong[0], truth[1]]
    some = audited(case, answer(mixed, [True, False, True]), tmp_path / "some", monkeypatch)
    assert some.verdict == "exposed"
    assert some.attacks[0].reason == "2 of 4 records recovered, word for word, and certified"
    assert {row["id"] for row in some.exposed} == {case.truth.ids[1], case.truth.ids[2]}
    foreign = audited(case, answer(wrong[:2], [True, True]), tmp_path / "foreign", monkeypatch)
    assert foreign.verdict == "inconclusive"
    assert "2 records were certified that are not among those given" in foreign.attacks[0].reason
    finding = some.attacks[0].finding
    assert finding.nulls["held_out"]["recovered"] == 0
    assert finding.summary["token_set"]["right"] <= finding.summary["token_set"]["named"]
    assert "tokens" not in finding.figures  # of the records: not in what is handed on
    assert all(row["loss"] > 0 for row in finding.per_record)
    assert some.attacks[1].reason == "it reconstructs numbers, and these records are texts"


def test_the_page_marks_what_differs_and_redaction_hides_it(case, tmp_path, monkeypatch):
    truth = token_rows(case.truth.inputs)
    found = [[truth[0][0], 7, *truth[0][2:]], truth[1], truth[3]]
    audited(case, answer(found, [False, True, True]), tmp_path / "run", monkeypatch)
    audit, pictures = read_bundle(tmp_path / "run")
    shown, _ = cards(audit, pictures)
    card = next(card for card in shown if card.name == case.truth.ids[0])
    mine, theirs = text_pair(card, audit, pictures)
    assert [same for _, same in mine] == [same for _, same in theirs] == [True, False, True]
    assert "".join(words for words, _ in mine) == SENTENCES[0]
    html = page(audit, pictures)
    assert SENTENCES[1] in html
    assert "<mark>" in html
    assert "word for word" in html
    hidden = page(*redact(audit, pictures))
    letters = SENTENCES[1].split()[-1]
    assert letters in html
    assert letters not in hidden
    assert "letters are masked" in hidden
    assert page(*read_bundle(tmp_path / "run", images=False)).count(letters) == 0
    run = audited(case, answer(found, [False, True, True]), tmp_path / "red", monkeypatch,
                  redacted=True)  # fmt: skip
    assert run.redacted
    kept = "".join(p.read_text() for p in (tmp_path / "red").glob("*.json"))
    assert letters not in kept
    assert letters not in (tmp_path / "red" / "report.html").read_text()


def test_a_texts_file_that_is_no_such_thing_is_refused(case, tmp_path, monkeypatch, capsys):
    truth = token_rows(case.truth.inputs)
    audited(case, answer(truth, [True] * 4), tmp_path / "run", monkeypatch)
    (tmp_path / "run" / "texts.json").write_text(json.dumps({"originals": [[1]]}))
    assert main(["report", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_near_copies_of_texts_are_left_out(case):
    copy = case.truth.inputs.clone()
    copy[:, 1] = 5
    near = near_texts(replace(case.truth, inputs=copy), case.truth)
    assert near.all()
    assert not near_texts(case.holdout, case.truth).any()


def test_preflight_knows_which_attacks_read_texts(case):
    rows = {row["attack"]: row for row in preflight(case)}
    assert rows["gradient"]["applies"]
    assert not rows["kkt"]["applies"]
    assert rows["kkt"]["stronger"] is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"--data": "missing.txt"}, "data: expected"),
        ({"--holdout": "empty.txt"}, "an empty file"),
        ({"--holdout": "train.txt"}, "a null must not have been trained on"),
        ({"--tokenizer": "other.json"}, "below the model's vocabulary, 300"),
        ({"--data": "digits.npz"}, "expected texts, a .txt or .jsonl file"),
        ({"--shape": "3"}, "shape of a model of tokens"),
        ({"--loss": "mse"}, "expected ce, got mse"),
    ],
)
def test_an_audit_of_texts_refuses_in_one_line(tmp_path, capsys, changes, words):
    from text_case import tokenizer_file

    write_case(tmp_path, records=2, others=4)
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "digits.npz").write_bytes(b"PK")
    tokenizer_file(tmp_path / "other.json", SENTENCES + OTHERS, 450)
    flags = {"--weights": "model", "--data": "train.txt", "--holdout": "holdout.txt"} | changes
    capsys.readouterr()
    given = [
        word
        for name, value in flags.items()
        for word in (name, value if name in ("--shape", "--loss") else str(tmp_path / value))
    ]
    assert main(["audit", *given, "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()
