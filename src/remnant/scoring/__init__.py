"""Scoring: distances, matching, nulls, and what they say together."""

from remnant.scoring.distances import centred_correlation, squared_l2
from remnant.scoring.matching import greedy
from remnant.scoring.nulls import blends, nearest_public
from remnant.scoring.score import (
    THRESHOLD,
    papers_ssim,
    score,
    score_oracle,
    score_with_nulls,
    summarise,
)

__all__ = [
    "THRESHOLD",
    "blends",
    "centred_correlation",
    "greedy",
    "nearest_public",
    "papers_ssim",
    "score",
    "score_oracle",
    "score_with_nulls",
    "squared_l2",
    "summarise",
]
