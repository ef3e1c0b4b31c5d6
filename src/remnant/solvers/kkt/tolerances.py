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
    # Imbalance above which the next layers' row spaces hold more than the records' features, as
    # after a few steps from large weights, and are left out. A larger one trusts them there.
    far_off: float = 0.2
    # Where duals begin, above their least. Larger ones begin with a worse misfit.
    first_dual: float = 0.01
    # The same for one output, at most, as a share of |last layer|^2 / records, which is the mean
    # of dual times margin. Begun too large, the sum overshoots and candidates shrink before they
    # have turned to records; too small, they take longer.
    first_share: float = 0.025
    # Times a layer's median singular value: where noise ends that fills the layer. A larger one
    # takes directions of records for noise, a smaller one noise for records.
    noise_edge: float = 2.5
    # Directions above that edge for each record, at least, for a row space to say where records
    # are. With fewer, many records share a direction.
    spanned: float = 0.25
    # Length over which neighbouring pixels are alike, as a share of a picture's side, and how far
    # channels are. Longer ones expect smoother pictures.
    smooth_length: float = 0.1875
    alike_channels: float = 0.9
    # The least variance of a coordinate, as a share of the mean. A larger one forgives a wrong
    # expectation, and slows the descent.
    least_size: float = 1e-4
    # Pixels of a candidate that a step holds against the box, at random. More cost time.
    box_pixels: int = 512
    # Candidates that are carried through a step at once. More cost memory, fewer time.
    rows: int = 2048
    # Steps between looks at the pre-activations' spread. More are cheaper, and lag behind.
    refresh: int = 50
    # A start whose misfit is above that many times the least has not come to rest. A larger factor
    # keeps starts that agree with nothing.
    settled: float = 3.0
    # Correlation of two starts' candidates from which their agreement is strong evidence. A lower
    # one calls more candidates so, and some that are no record.
    sure: float = 0.95
    # What full agreement of the starts adds to what the weights say of a candidate, in deviations.
    # More puts what starts agree on before what explains more.
    agreement_worth: float = 6.0
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
