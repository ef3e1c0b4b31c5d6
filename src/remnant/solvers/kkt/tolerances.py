"""The numbers that the attack on final weights rests on, in one place."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Tolerances:
    """Each with what a larger value trades."""

    # Candidates for each record. More cost time; with as many as records, candidates that fall
    # together leave others unfound.
    per_record: int = 2
    # Directions for each record where their number is read off a spectrum. More leave room for
    # what is no record; fewer lose records.
    spare_rank: float = 1.25
    # Imbalance above which a model is not near a stationary point under weight decay. Starts agree
    # there as well, on what is no record (docs/research/kkt.md).
    unbalanced: float = 0.01
    # Where duals begin, above their least. Larger ones begin with a worse misfit.
    first_dual: float = 0.05
    # Steps between looks at the pre-activations' spread. More are cheaper, and lag behind.
    refresh: int = 50
    # A start whose misfit is above that many times the least has not come to rest. A larger factor
    # keeps starts that agree with nothing.
    settled: float = 3.0
    # Share of a candidate's squared length that may leave the box. A larger one makes candidates
    # longer.
    outside: float = 0.01
    # Scales of a candidate that are tried, from 1/reach to reach. A larger reach forgives starts
    # that end farther off.
    reach: float = 4.0
    # Data fill the box where the median candidate has `filled` of its pixels within `near_side` of
    # a side, as a share of the box: .65 to .85 for digits, .03 to .13 for faces.
    near_side: float = 0.05
    filled: float = 0.4


TOLERANCES = Tolerances()
