"""Scores and their nulls, as plain numbers that make a Finding."""

import json
import math

import pytest
import torch
from scipy.stats import binom
from skimage.data import lfw_subset

from remnant.errors import InputError
from remnant.scoring.distances import squared_l2, ssim
from remnant.scoring.score import (
    excess,
    papers_ssim,
    rate_interval,
    score,
    score_oracle,
    score_with_nulls,
    summarise,
)
from remnant.types import Candidates, Examples, Finding, Status
from seeding import seeded


def examples(inputs, bounds=(0.0, 1.0)):
    ids = tuple(f"face-{i}" for i in range(len(inputs)))
    return Examples(
        inputs=inputs, labels=torch.arange(len(inputs)) % 2, ids=ids, bounds=bounds, name="faces"
    )


FACES = torch.as_tensor(lfw_subset()[:60]).float()[:, None]
TRUTH = examples(FACES[:20])
HOLDOUT, PUBLIC = examples(FACES[20:40]), examples(FACES[40:60])


def candidates(inputs):
    confidence = torch.linspace(1.0, 0.0, len(inputs))
    return Candidates(inputs=inputs, confidence=confidence, status=Status.PARTIAL, reason="some")


def test_exact_copies_in_another_order_are_all_found():
    order = torch.randperm(20, generator=seeded())
    scores = score(TRUTH, FACES[:20][order])
    assert order[scores.candidate].tolist() == list(range(20))
    assert float(scores.squared_l2.max()) < 1e-24
    assert float(scores.correlation.min()) == pytest.approx(1.0)
    assert float(scores.ssim.min()) == pytest.approx(1.0)
    assert float(scores.psnr.min()) > 250.0
    summary = summarise(scores)
    assert summary["recovered"] == summary["good_ssim"] == summary["matched"] == 20
    assert summary["mean_squared_l2"] < 1e-24
    assert summary["protocol"] == "greedy"


def test_figures_are_those_of_the_matched_pairs():
    noisy = FACES[:5] + 0.1 * torch.randn(5, 1, 25, 25, generator=seeded())
    scores = score(TRUTH, noisy)
    found = scores.candidate >= 0
    assert int(found.sum()) == 5
    matrix = squared_l2(TRUTH.inputs, noisy)
    for i in found.nonzero().flatten().tolist():
        gap = float(matrix[i, scores.candidate[i]])
        assert float(scores.squared_l2[i]) == pytest.approx(gap)
        assert float(scores.mse[i]) == pytest.approx(gap / 625)
        assert float(scores.psnr[i]) == pytest.approx(10 * math.log10(625 / gap))
    assert bool(scores.squared_l2[~found].isinf().all())
    assert bool(scores.correlation[~found].isnan().all())
    middle = scores.squared_l2[found].sort().values[2]
    assert summarise(scores)["median_squared_l2"] == pytest.approx(float(middle))
    four = score(TRUTH, FACES[[0, 1, 30, 31]])
    half = four.squared_l2.sort().values[1:3].mean()
    assert summarise(four)["median_squared_l2"] == pytest.approx(float(half))
    assert summarise(scores)["max_squared_l2"] == pytest.approx(
        float(scores.squared_l2[found].max())
    )


@pytest.mark.parametrize("bad", [math.nan, math.inf, None])
def test_no_candidates_and_broken_candidates_find_nothing(bad):
    inputs = FACES[:0] if bad is None else torch.full((3, 1, 25, 25), bad)
    scored = score_with_nulls(
        TRUTH, candidates(inputs), holdout=HOLDOUT, public=PUBLIC, generator=seeded()
    )
    assert scored["recovered"] == scored["summary"]["matched"] == 0
    assert scored["summary"]["mean_squared_l2"] is None
    assert {row["squared_l2"] for row in scored["per_record"]} == {None}
    assert {row["candidate"] for row in scored["per_record"]} == {None}
    assert scored["nulls"]["nearest_public"]["matched"] == 20
    json.dumps(scored, allow_nan=False)


def test_tables_have_no_image_figures():
    table = examples(torch.randn(8, 5, generator=seeded()), bounds=None)
    scores = score(table, table.inputs)
    assert scores.ssim is None
    assert scores.psnr is None
    summary = summarise(scores)
    assert summary["recovered"] == 8
    assert summary["good_ssim"] is summary["median_psnr"] is None
    scored = score_with_nulls(table, candidates(table.inputs), generator=seeded())
    assert scored["per_record"][0]["ssim"] is None
    assert set(scored["nulls"]) == {"blends", "span_noise"}
    assert scored["nulls"]["blends"]["ssim"] is None


def test_a_finding_is_made_of_it_and_survives_json():
    noise = 0.2 * torch.randn(4, 1, 25, 25, generator=seeded(5))
    inputs = torch.cat([FACES[:6], FACES[6:10] + noise])
    scored = score_with_nulls(
        TRUTH, candidates(inputs), holdout=HOLDOUT, public=PUBLIC, generator=seeded()
    )
    finding = Finding(attack="kkt", status="partial", reason="some", counted=None, **scored)
    assert Finding.from_json(finding.to_json()).recovered == scored["recovered"]
    rows = scored["per_record"]
    assert len(rows) == scored["records"] == 20
    assert {row["id"] for row in rows[:6]} == {f"face-{i}" for i in range(6)}  # most exposed first
    assert all(row["recovered"] and row["confidence"] is not None for row in rows[:6])
    known = [row["correlation"] for row in rows if row["correlation"] is not None]
    assert known == sorted(known, reverse=True) or max(known) - min(known[:6]) < 1e-6
    assert [row["candidate"] for row in rows[10:]] == [None] * 10
    assert set(scored["nulls"]) == {
        "held_out", "blends", "span_noise", "nearest_public", "public_mean",
    }  # fmt: skip
    for name in ("held_out", "blends", "span_noise"):
        assert scored["nulls"][name]["candidates"] == 10
        assert scored["nulls"][name]["matched"] == 10
    oracle = {row["id"]: row["public_squared_l2"] for row in rows}
    assert [oracle[row["id"]] for row in rows] == scored["nulls"]["nearest_public"]["squared_l2"]


def test_a_null_scored_as_candidates_is_no_finding():
    held = candidates(HOLDOUT.inputs)
    scored = score_with_nulls(TRUTH, held, holdout=HOLDOUT, public=PUBLIC, generator=seeded())
    assert scored["summary"]["recovered"] == scored["nulls"]["held_out"]["recovered"]
    interval = scored["summary"]["excess"]["held_out"]
    assert interval["records"] == 0
    assert interval["low"] < 0 < interval["high"]


def test_the_seed_decides_and_a_small_holdout_is_used_whole():
    def run(seed):
        return score_with_nulls(
            TRUTH, candidates(FACES[:20]), holdout=PUBLIC.take(range(7)), generator=seeded(seed)
        )

    assert run(1) == run(1)
    assert run(1)["nulls"]["blends"] != run(2)["nulls"]["blends"]
    assert run(1)["nulls"]["held_out"]["candidates"] == 7


def test_the_oracle_may_use_a_public_point_twice():
    scores = score_oracle(TRUTH, PUBLIC.inputs)
    whole = squared_l2(TRUTH.inputs, PUBLIC.inputs)
    torch.testing.assert_close(scores.squared_l2, whole.min(1).values)
    assert len(set(scores.candidate.tolist())) < 20


@pytest.mark.parametrize(("count", "n"), [(0, 20), (3, 20), (20, 20), (1, 1)])
def test_the_rate_interval_is_clopper_and_pearsons(count, n):
    low, high = rate_interval(count, n)
    assert low <= count / n <= high
    if count:
        assert binom.sf(count - 1, n, low) == pytest.approx(0.025)
    if count < n:
        assert binom.cdf(count, n, high) == pytest.approx(0.025)


def test_the_excess_is_newcombes_interval():
    # Newcombe (1998), table II, method 10: 10 of 10 against 0 of 10, 9 of 10 against 3 of 10.
    interval = excess(10, 0, 10)
    assert interval["records"] == 10
    assert interval["low"] / 10 == pytest.approx(0.6075, abs=1e-4)
    assert interval["high"] / 10 == pytest.approx(1.0)
    assert excess(9, 3, 10)["low"] / 10 == pytest.approx(0.1705, abs=1e-4)
    assert excess(9, 3, 10)["high"] / 10 == pytest.approx(0.8090, abs=1e-4)
    assert excess(0, 0, 0) == {"records": 0, "low": 0.0, "high": 0.0}


def test_candidates_of_another_shape_are_refused():
    with pytest.raises(InputError, match=r"score: candidates: expected m x \(1, 25, 25\)"):
        score(TRUTH, torch.zeros(3, 625))


def test_papers_ssim_averages_near_ties_and_stretches():
    generator = seeded()
    inputs = torch.rand(4, 1, 12, 12, generator=generator)
    truth = Examples(inputs=inputs, labels=torch.arange(4), ids=("a", "b", "c", "d"))
    noise = 0.02 * torch.randn(inputs.shape, generator=generator)
    pale = 0.2 + 0.3 * torch.cat([inputs + noise, inputs - noise])  # two of each, low contrast
    found = papers_ssim(truth, pale)
    assert float(found.min()) > 0.99  # their mean, stretched, is the record
    assert float(ssim(inputs, pale[:4]).max()) < 0.95
