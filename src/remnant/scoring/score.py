"""Candidates against the truth, and beside the nulls, as plain numbers.

Records and candidates are matched one-to-one on squared L2; every other figure is then taken on
the matched pairs. What is missing (no candidate, or not an image) is None.

`score_with_nulls` returns records, recovered, threshold, per_record, nulls and summary, so that
`Finding(attack=..., status=..., reason=..., counted=..., **scored)` is whole:

- per_record: one mapping a record, most exposed first: id, label, recovered, correlation,
  squared_l2, mse, psnr, ssim, candidate, confidence, public_squared_l2 (the oracle's distance).
- nulls: "held_out", "blends", "span_noise", "nearest_public" (those whose data were given), each
  what `summarise` says plus the lists squared_l2, correlation and ssim in per_record's order. The
  first three have as many inputs as there are candidates, or all of a smaller hold-out
  ("candidates" says how many).
- summary: `summarise` of the candidates plus "excess": null -> records, low, high (see `excess`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.stats import binomtest, norm
from torch import Tensor

from remnant.errors import InputError, expected
from remnant.scoring.distances import correlation_of_pairs, is_image, psnr, squared_l2, ssim
from remnant.scoring.matching import average_of_nearest, greedy, stretch
from remnant.scoring.nulls import blends, held_out, nearest_public, span_noise
from remnant.types import Candidates, Examples

THRESHOLD = 0.9  # centred correlation; at 0.8 even public data is often "recovered"
FIGURES = ("correlation", "squared_l2", "mse", "psnr", "ssim")  # of a record and its candidate


@dataclass(frozen=True, kw_only=True, eq=False)
class Scores:
    """Figures per record, each n in the order of the truth; NaN (distances: infinity) = no match.

    `candidate` is the index of the match, -1 for none. `psnr` and `ssim` are None for tables.
    """

    protocol: str
    candidates: int
    candidate: Tensor
    squared_l2: Tensor
    mse: Tensor
    correlation: Tensor
    psnr: Tensor | None
    ssim: Tensor | None

    def __len__(self) -> int:
        return len(self.candidate)


def score(truth: Examples, candidates: Tensor, *, in_order: bool = False) -> Scores:
    """Match candidates to records one-to-one, the closest first, and score the pairs.

    Candidates are m x shape in the data's own scale; m may be 0. in_order: candidate i was sought
    for record i and stands for no other.
    """
    if tuple(candidates.shape[1:]) != truth.shape:
        got = tuple(candidates.shape[1:])
        raise InputError(expected("score: candidates", f"m x {truth.shape}", f"m x {got}"))
    distance = squared_l2(truth.inputs, candidates)
    if in_order:
        distance[~torch.eye(*distance.shape, dtype=torch.bool)] = torch.inf
    index = greedy(distance).candidate
    images = torch.full(truth.inputs.shape, torch.nan, dtype=torch.float64)
    images[index >= 0] = candidates.detach().cpu().double()[index[index >= 0]]
    protocol = "in order" if in_order else "greedy"
    return _score_pairs(truth, images, index, len(candidates), protocol)


def score_oracle(truth: Examples, public: Tensor) -> Scores:
    """The nearest public point of each record (one point may serve several) as its candidate."""
    index, _ = nearest_public(truth.inputs, public)
    images = public.detach().cpu().double()[index]
    return _score_pairs(truth, images, index, len(public), "nearest")


def papers_ssim(
    truth: Examples, candidates: Tensor, *, mean: Tensor | None = None, factor: float = 1.1
) -> Tensor:
    """004's score of each record, n: nearest candidates averaged, stretched to 0..1, SSIM.

    `mean` is the image that training subtracted; `factor` is 1.5 for convolutional networks.
    """
    images = average_of_nearest(truth.inputs, candidates, factor=factor, mean=mean)
    return ssim(truth.inputs, stretch(images))


def summarise(
    scores: Scores, threshold: float = THRESHOLD, *, good_ssim: float = 0.4
) -> dict[str, Any]:
    """Plain numbers about `scores`: `counts` of correlations above `threshold`; median, mean and
    max squared L2 over matched records; good_ssim (above the mark of 003 and 004) and median psnr,
    None for tables."""
    recovered = int((scores.correlation > threshold).sum())
    distance = scores.squared_l2[torch.isfinite(scores.squared_l2)]
    noise = None if scores.psnr is None else scores.psnr[~scores.psnr.isnan()]
    return counts(scores.protocol, scores.candidates, scores.candidate.tolist(), recovered) | {
        "median_squared_l2": _over(np.median, distance),
        "mean_squared_l2": _over(torch.mean, distance),
        "max_squared_l2": _over(torch.max, distance),
        "good_ssim": None if scores.ssim is None else int((scores.ssim > good_ssim).sum()),
        "median_psnr": None if noise is None else _over(np.median, noise),
    }


def counts(protocol: str, candidates: int, match: Sequence[int], recovered: int) -> dict[str, Any]:
    """What is counted of scores of any kind, with the rate's exact 95% interval. match: of each
    record, -1 for none."""
    low, high = rate_interval(recovered, len(match))
    return {
        "protocol": protocol,
        "records": len(match),
        "candidates": candidates,
        "matched": sum(j >= 0 for j in match),
        "recovered": recovered,
        "rate": recovered / len(match) if match else 0.0,
        "rate_low": low,
        "rate_high": high,
    }


def score_with_nulls(
    truth: Examples,
    candidates: Candidates,
    *,
    holdout: Examples | None = None,
    public: Examples | None = None,
    generator: torch.Generator,
    threshold: float = THRESHOLD,
    in_order: bool = False,
) -> dict[str, Any]:
    """Score candidates and every null alike: the truth-bearing fields of a Finding.

    The keys are those of the module's text. `holdout` and `public` are never trained on. in_order:
    see `score`; nulls go by whichever record they are nearest to, which is in their favour.
    """
    scores, m = score(truth, candidates.inputs, in_order=in_order), len(candidates)
    nulls: dict[str, Scores] = {}
    if holdout is not None:
        drawn = held_out(holdout.inputs, min(m, len(holdout)), generator)
        nulls["held_out"] = score(truth, drawn)
    nulls["blends"] = score(truth, blends(truth.inputs, m, generator))
    nulls["span_noise"] = score(truth, span_noise(truth.inputs, m, generator))
    if public is not None and len(public):
        nulls["nearest_public"] = score_oracle(truth, public.inputs)
        nulls["public_mean"] = score_oracle(truth, means_of(public))
    # By falling correlation (to six digits), then by distance; unmatched records last.
    known, distance = scores.correlation.nan_to_num(-math.inf), scores.squared_l2
    order = sorted(
        range(len(truth)), key=lambda i: (-round(float(known[i]), 6), float(distance[i]))
    )
    rows, oracle = [], nulls.get("nearest_public")
    for i in order:
        j = int(scores.candidate[i])
        rows.append({
            "id": truth.ids[i],
            "label": truth.labels[i].tolist(),
            **figures_of_pair(scores, i, threshold),
            "candidate": j if j >= 0 else None,
            "confidence": _plain(candidates.confidence, j) if j >= 0 else None,
            "public_squared_l2": _plain(oracle.squared_l2, i) if oracle else None,
        })  # fmt: skip
    null_rows = {name: _null(null, threshold, order) for name, null in nulls.items()}
    return beside_nulls(summarise(scores, threshold), rows, null_rows, threshold)


def beside_nulls(
    summary: dict[str, Any],
    per_record: Sequence[Mapping[str, Any]],
    nulls: Mapping[str, Mapping[str, Any]],
    threshold: float | None,
) -> dict[str, Any]:
    """The truth-bearing fields of a Finding, with how far the count of records exceeds each null's.

    summary: of the candidates, and what it says of them `nulls` say of each null.
    """
    n, found = summary["records"], summary["recovered"]
    by_null = {name: excess(found, null["recovered"], n) for name, null in nulls.items()}
    return {
        "records": n,
        "recovered": found,
        "threshold": threshold,
        "per_record": per_record,
        "nulls": nulls,
        "summary": summary | {"excess": by_null},
    }


def means_of(public: Examples) -> Tensor:
    """The mean of the public records and of each class of them: nearer to most records than any
    other record is. A null, since whoever begins at such a mean and stays there has recovered
    nothing."""
    inputs, labels = public.inputs.detach().cpu().double(), public.labels.cpu()
    classes = [] if labels.is_floating_point() else labels.unique()
    return torch.stack([inputs.mean(0), *(inputs[labels == c].mean(0) for c in classes)])


def rate_interval(count: int, n: int, *, confidence: float = 0.95) -> tuple[float, float]:
    """The exact 95% interval (Clopper-Pearson) of a rate of `count` in `n`."""
    if not n:
        return 0.0, 1.0
    interval = binomtest(count, n).proportion_ci(confidence, method="exact")
    return float(interval.low), float(interval.high)


def wilson(share: float, n: int, *, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's 95% interval of a share of `n` trials, which need not be a whole number of them."""
    z2 = float(norm.ppf((1 + confidence) / 2)) ** 2
    middle = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = math.sqrt(z2 * (share * (1 - share) / n + z2 / (4 * n**2))) / (1 + z2 / n)
    return max(0.0, middle - half), min(1.0, middle + half)


def excess(found: int, by_null: int, n: int) -> dict[str, float]:
    """Records found beyond a null, with Newcombe's hybrid score interval (1998, method 10).

    It joins the two Wilson intervals, so it is honest at 0 of n and n of n, where a bootstrap has
    no width. It takes the two counts as independent; records that are easy for both make it wide.
    """
    if not n:
        return {"records": 0, "low": 0.0, "high": 0.0}
    p, q = found / n, by_null / n
    (p_low, p_high), (q_low, q_high) = wilson(p, n), wilson(q, n)
    low = p - q - math.hypot(p - p_low, q_high - q)
    high = p - q + math.hypot(p_high - p, q - q_low)
    return {"records": found - by_null, "low": n * low, "high": n * high}


def _score_pairs(
    truth: Examples, images: Tensor, index: Tensor, candidates: int, protocol: str
) -> Scores:
    """Figures of n records and the n images that stand for them (NaN where there is none)."""
    pair = truth.inputs.detach().cpu(), images
    gap = (pair[0].double() - images).flatten(1)
    distance = gap.square().sum(1).nan_to_num(nan=torch.inf, posinf=torch.inf)
    pictures = truth.bounds is not None and is_image(truth.shape)
    span = truth.bounds[1] - truth.bounds[0] if truth.bounds else 1.0
    return Scores(
        protocol=protocol,
        candidates=candidates,
        candidate=index,
        squared_l2=distance,
        mse=distance / gap.shape[1],
        correlation=correlation_of_pairs(*pair),
        psnr=psnr(*pair, data_range=span) if pictures else None,
        ssim=ssim(*pair, data_range=span) if pictures else None,
    )


def figures_of_pair(scores: Scores, i: int, threshold: float) -> dict[str, Any]:
    """Record i's distances to its candidate, None where there is none, and whether it is found."""
    found = {"recovered": bool(scores.correlation[i] > threshold)}
    return found | {name: _plain(getattr(scores, name), i) for name in FIGURES}


def _null(scores: Scores, threshold: float, order: Sequence[int]) -> dict[str, Any]:
    columns = {name: getattr(scores, name) for name in ("squared_l2", "correlation", "ssim")}
    return summarise(scores, threshold) | {
        name: None if values is None else [_plain(values, i) for i in order]
        for name, values in columns.items()
    }


def _over(statistic: Callable[[Any], Any], values: Tensor) -> float | None:
    return float(statistic(values)) if len(values) else None


def _plain(values: Tensor | None, i: int) -> float | None:
    value = math.nan if values is None else float(values[i])
    return value if math.isfinite(value) else None
