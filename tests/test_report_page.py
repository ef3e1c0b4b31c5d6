"""What is on an audit's page, as data; and the bundle that it is read from."""

import json
import stat
from dataclasses import replace

import pytest
import torch

from audits import EVIL, KKT, NTK, N, audit, evil_audit, sides
from remnant.bundle import Attacked, Verdict
from remnant.errors import InputError, RemnantError, StoreError
from remnant.report.figures import Rate, bound_data, exposure_data, rates
from remnant.report.page.facts import cards, choices, feature_table, headline, verdict_of
from remnant.report.page.files import (
    Pictures,
    blur,
    read_bundle,
    redact,
    without_images,
    write_bundle,
)
from remnant.store import open_run
from remnant.types import Finding


def bundle(tmp_path, name="faces", **changes):
    run = open_run(tmp_path / "run", {"verb": "audit"})
    written = write_bundle(run, *audit(name, **changes))
    return run.path, written


def test_a_bundle_comes_back_as_it_was_written(tmp_path):
    path, (whole, shown) = bundle(tmp_path)
    again, pictures = read_bundle(path)
    assert again.to_json() == whole.to_json()
    assert pictures.ids == shown.ids
    assert pictures.bounds == (0.0, 1.0)
    train = sides("faces").train
    assert torch.equal(pictures.originals, train.inputs)
    assert torch.equal(pictures.candidates[NTK], train.inputs.flip(0))
    assert pictures.are_images
    assert pictures.shape == train.shape
    files = sorted(p.name for p in path.iterdir())
    assert files == [KKT, NTK, "finding.json", "originals.safetensors", "run.json"]
    assert {stat.S_IMODE(p.stat().st_mode) for p in path.iterdir()} == {0o600}


def test_only_records_that_can_be_shown_are_copied(tmp_path):
    whole, train, candidates = audit()
    attacks = [
        replace(row, finding=row.finding and replace(row.finding, per_record=rows))
        for row, rows in zip(
            whole.attacks, (whole.attacks[0].finding.per_record[:3], [], []), strict=True
        )
    ]
    run = open_run(tmp_path / "run", {})
    _, shown = write_bundle(run, replace(whole, attacks=attacks), train, candidates)
    assert set(shown.ids) == {row["id"] for row in attacks[0].finding.per_record}
    assert len(read_bundle(run.path)[1].originals) == 3


def test_without_images_nothing_of_the_data_is_written(tmp_path):
    path, (whole, shown) = bundle(tmp_path, images=False)
    assert sorted(p.name for p in path.iterdir()) == ["finding.json", "run.json"]
    assert shown.shape is None
    assert whole.originals is None
    assert [row.candidates for row in read_bundle(path)[0].attacks] == [None] * 3


def test_left_out_pictures_need_no_files(tmp_path):
    path, _ = bundle(tmp_path)
    (path / NTK).unlink()
    (path / "originals.safetensors").unlink()
    whole, pictures = read_bundle(path, images=False)
    assert not whole.images
    assert pictures.shape is None
    with pytest.raises(StoreError, match=r"originals.safetensors.*--no-images"):
        read_bundle(path)


def test_redacted_originals_are_blurred_on_disk(tmp_path):
    path, (whole, _) = bundle(tmp_path, redacted=True)
    train = sides("faces").train.inputs
    kept = read_bundle(path)[1]
    assert whole.redacted
    assert torch.equal(kept.originals, blur(train))
    assert torch.equal(kept.candidates[NTK], train.flip(0))
    again, twice = redact(*read_bundle(path))
    assert again.redacted
    assert torch.equal(twice.originals, kept.originals)


@pytest.mark.parametrize("shape", [(25, 25), (1, 28, 28), (3, 32, 20), (3, 4, 4), (1, 1)])
def test_a_blur_keeps_a_few_averages_and_no_more(shape):
    images = torch.rand(200, *shape, generator=torch.Generator().manual_seed(0))
    blurred = blur(images)
    assert blurred.shape == images.shape
    channels = shape[0] if len(shape) == 3 else 1
    rank = int(torch.linalg.matrix_rank(blurred.flatten(1).double(), tol=1e-4))
    assert rank <= channels * 5**2
    assert torch.allclose(blurred.mean(), images.mean(), atol=0.02)


def test_originals_of_a_table_are_left_out(tmp_path):
    path, (whole, shown) = bundle(tmp_path, "breast_cancer", redacted=True)
    assert shown.originals is None
    assert whole.originals is None
    assert not (path / "originals.safetensors").exists()
    pictures = read_bundle(path)[1]
    assert not pictures.are_images
    assert pictures.shape == (30,)


def test_flat_candidates_take_the_shape_of_the_records(tmp_path):
    whole, train, candidates = audit()
    flat = {name: replace(c, inputs=c.inputs.flatten(1)) for name, c in candidates.items()}
    run = open_run(tmp_path / "run", {})
    write_bundle(run, whole, train, flat)
    assert torch.equal(read_bundle(run.path)[1].candidates[NTK], candidates[NTK].inputs)


def test_faults_of_a_bundle_are_one_line(tmp_path):
    whole, train, candidates = audit()
    run = open_run(tmp_path / "run", {})
    with pytest.raises(InputError, match="bundle: candidates of"):
        write_bundle(run, whole, train, {NTK: candidates[NTK]})
    wrong = {name: replace(c, inputs=c.inputs[:, :, :3]) for name, c in candidates.items()}
    with pytest.raises(StoreError, match="expected m x"):
        write_bundle(run, whole, train, wrong)
    with pytest.raises(StoreError, match=r"finding.json: expected an audit.*remnant audit wrote"):
        read_bundle(tmp_path / "nowhere")
    (run.path / "finding.json").write_bytes(b"\xff\xfe")
    with pytest.raises(StoreError, match="expected an audit"):
        read_bundle(run.path)


@pytest.mark.parametrize(
    ("key", "value"), [("originals", "../run/originals.safetensors"), ("originals", NTK)]
)
def test_a_bundle_reads_only_its_own_files(tmp_path, key, value):
    path, _ = bundle(tmp_path)
    values = json.loads((path / "finding.json").read_text())
    (path / "finding.json").write_text(json.dumps(values | {key: value}))
    with pytest.raises(StoreError, match="originals"):
        read_bundle(path)
    values["attacks"][0]["candidates"] = "/etc/passwd"
    (path / "finding.json").write_text(json.dumps(values))
    with pytest.raises(StoreError, match="a plain name"):
        read_bundle(path)


def test_damaged_files_are_refused(tmp_path):
    path, _ = bundle(tmp_path)
    for name in ("originals.safetensors", NTK):
        whole = (path / name).read_bytes()
        (path / name).write_bytes(whole[:100])
        with pytest.raises(RemnantError, match=name):
            read_bundle(path)
        (path / name).write_bytes(whole)
    assert read_bundle(path)[0].verdict == "exposed"


def test_cards_are_sorted_by_exposure_over_all_adversaries(tmp_path):
    whole, pictures = read_bundle(bundle(tmp_path)[0])
    shown, total = cards(whole, pictures)
    assert total == len(shown) == 2 * N
    exposures = [-2.0 if c.exposure is None else round(c.exposure, 6) for c in shown]
    assert exposures == sorted(exposures, reverse=True)
    assert [c.attack for c in shown[:N]] == [0] * N
    assert all(c.recovered for c in shown[:N])
    for card in shown:  # a card's rows are those of its record
        assert pictures.ids[card.original] == card.name
    top = shown[0]
    assert torch.equal(pictures.originals[top.original], pictures.candidates[NTK][top.candidate])
    assert dict(top.scores)["correlation"] == "1.0000"
    assert sum(c.candidate is None for c in shown) == N - 9  # the poor attack has nine


def test_every_adversary_has_its_share_of_the_cards(tmp_path):
    whole, pictures = read_bundle(bundle(tmp_path)[0])
    shown, total = cards(whole, pictures, limit=6)
    assert (len(shown), total) == (6, 2 * N)
    assert [c.attack for c in shown].count(1) == 3


def test_an_attack_without_candidates_has_no_cards(tmp_path):
    whole, pictures = read_bundle(bundle(tmp_path)[0])
    bare = replace(whole.attacks[1], candidates=None)
    shown, total = cards(replace(whole, attacks=[whole.attacks[0], bare]), pictures)
    assert (len(shown), total, {card.attack for card in shown}) == (N, N, {0})


def test_cards_without_truth_have_a_confidence():
    finding = Finding(
        attack="ntk", status="partial", reason="", counted=2, records=None, recovered=None,
        threshold=None, nulls={}, summary={},
        per_record=[{"candidate": 0, "confidence": 0.9}, {"candidate": 7, "confidence": 0.1}],
    )  # fmt: skip
    whole = audit()[0]
    whole = replace(whole, attacks=[replace(whole.attacks[0], finding=finding)])
    (first, last), _ = cards(whole, Pictures(candidates={NTK: torch.rand(2, 1, 4, 4)}))
    assert (first.exposure, first.recovered, first.candidate) == (0.9, None, 0)
    assert (last.name, last.candidate, last.original) == ("candidate 7", None, None)
    assert rates(whole.attacks[0]) == []


def test_classes_are_few_and_numbers_in_order(tmp_path):
    whole, pictures = read_bundle(bundle(tmp_path)[0])
    shown, _ = cards(whole, pictures)
    one = shown[0]
    labelled = [replace(one, label=label) for label in ("10", "9", "cat", "9", None)]
    assert choices(whole, labelled) == [
        ("label", "Class", "every class", [("9", "9"), ("10", "10"), ("cat", "cat")])
    ]
    assert choices(whole, [one, one]) == []
    assert choices(whole, [replace(one, label=str(k)) for k in range(1000)]) == []
    fields = {name: [text for _, text in options] for name, _, _, options in choices(whole, shown)}
    assert fields["attack"] == [row.title for row in whole.attacks[:2]]
    assert fields["recovered"] == ["recovered", "not recovered"]


def test_rates_have_nulls_excess_and_control():
    attacks = audit()[0].attacks
    rows = {rate.name: rate for rate in rates(attacks[0])}
    assert list(rows) == [
        "candidates", "held_out", "nearest_public", "public_mean", "span_noise", "blends",
    ]  # fmt: skip
    mine, null = rows["candidates"], rows["held_out"]
    assert (mine.count, mine.records, mine.high, mine.excess) == (N, N, 1.0, None)
    assert mine.low == pytest.approx(0.025 ** (1 / N))  # exact interval of N of N
    assert null.excess[0] == N - null.count
    control = rates(attacks[1])[-1]
    assert (control.name, control.count, control.low) == ("control", 0, 0.0)
    assert control.high == pytest.approx(1 - 0.025 ** (1 / N))
    assert rates(attacks[2]) == []


def test_exposure_goes_by_margin_or_else_by_loss():
    finding = audit()[0].attacks[1].finding
    data = exposure_data(finding)
    want = [(r["margin"], r["correlation"]) for r in finding.per_record]
    assert data.across == "margin"
    assert data.threshold == 0.9
    assert [(x, y) for x, y, _ in data.points] == [pair for pair in want if pair[1] is not None]
    rows = [{"loss": 0.5, "correlation": 0.1, "recovered": False}, {"loss": 2, "correlation": 0.95}]
    own = replace(finding, per_record=[*rows, {"loss": None}])
    assert exposure_data(own).points == ((0.5, 0.1, False), (2.0, 0.95, False))
    assert exposure_data(own).across == "loss"
    assert exposure_data(replace(finding, per_record=rows[:1])) is None


def test_a_bound_stands_beside_its_measurement():
    row = audit()[0].attacks[1]
    data = bound_data(row)
    assert data.bounds == (("Gaussian", 0.4),)
    assert data.words == "epsilon = 8, delta = 1e-05, kappa = 0.1"
    assert not data.broken
    assert (data.measured.count, data.measured.high) == (0, 0.2)
    broken = row.bound | {"gamma": {"a": 0.9, "b": 0.5}, "violated": True}
    assert bound_data(replace(audit()[0].attacks[0], bound=broken)).broken
    assert bound_data(replace(row, bound=None)) is None
    assert bound_data(replace(row, bound={"epsilon": 8.0, "gamma": 0.25})) is None


def test_features_stand_beside_their_truth(tmp_path):
    named = {"features": ["mean radius"], "records": N}
    whole, pictures = read_bundle(bundle(tmp_path, "breast_cancer", target=named)[0])
    card = cards(whole, pictures)[0][0]
    told = feature_table(card, whole, pictures)
    assert [row.feature for row in told[:2]] == ["mean radius", "feature 2"]
    assert len(told) == 30
    assert all(row.agrees and row.true == row.recovered for row in told)
    assert not any(
        row.agrees for row in feature_table(replace(card, candidate=None), whole, pictures)
    )
    assert all(row.agrees is None for row in feature_table(card, *redact(whole, pictures)))


def test_whole_numbers_of_a_table_are_rounded_and_checked(tmp_path):
    whole, pictures = read_bundle(bundle(tmp_path, "breast_cancer")[0])
    rounded = replace(pictures, originals=pictures.originals.round())
    card = cards(whole, rounded)[0][0]
    row = feature_table(card, whole, rounded)[0]
    assert row.recovered == row.true == str(round(float(rounded.originals[card.original, 0])))


def test_the_headline_counts_each_exposed_record_once():
    whole = audit()[0]
    twice = replace(whole, exposed=[*whole.exposed, *whole.exposed])
    null = whole.attacks[0].finding.nulls["held_out"]["recovered"]
    assert [figure for figure, _ in headline(twice)] == [f"{N} of {N}", f"{null} of {N}", "1 of 2"]
    bare = Attacked(
        attack="a", title="", holds="", settings={}, verdict="not applicable", reason=""
    )
    assert [f for f, _ in headline(replace(whole, attacks=[bare], target={}))] == ["0 of 0"]


def test_an_unknown_verdict_is_inconclusive():
    assert verdict_of("safe") is Verdict.INCONCLUSIVE
    assert [verdict_of(v) for v in Verdict] == list(Verdict)


def test_a_share_of_nothing_is_nothing():
    assert Rate(name="", words="", count=0, records=0, low=0.0, high=1.0).share == 0.0


def test_evil_ids_still_find_their_records(tmp_path):
    run = open_run(tmp_path / "run", {})
    write_bundle(run, *evil_audit())
    whole, pictures = read_bundle(run.path)
    assert EVIL in {card.name for card in cards(whole, pictures)[0] if card.original is not None}
    assert without_images(whole)[1].ids == ()
