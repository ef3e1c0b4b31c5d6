"""The numbers that recovery through two dense layers rests on, in one place."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Tolerances:
    """What counts as zero, as near and as proved; each field says what it trades.

    Entries of a dual are relative to its root-mean-square. Squared errors and distances of records
    are relative to the records' spread.
    """

    # The number of records
    smallest_gap: float = 5.0
    """A gap counts when the spectrum falls by this factor. Smaller counts in more noise, and
    miscounts more often."""
    rounding_room: float = 1e3
    """Times the rounding of a weight, above which what is below a gap is no rounding: that of many
    steps adds up. Larger counts in more noise."""
    noise_values: int = 8
    """Singular values that must lie below a gap (fewer in a table of few features), since the last
    few of any spectrum fall steeply."""
    hidden_fall: float = 3.0
    """Fall of neighbouring singular values beyond the count that looks like weaker records. Smaller
    doubts more right counts: of 270 none fell so far, of 24 wrong ones 8 did."""
    hidden_above: float = 30.0
    """Times the rounding of the weights, below which no fall is looked at: that of many steps adds
    up to about 4 of it."""
    other_sizes: tuple[float, float] = (1.5, 0.5)
    """Sizes of a record at which other neurons have to fire, or the layer could not have told it
    from a blend. Sizes nearer to 1 doubt more records."""
    changed_neurons: int = 2
    """So many neurons. Of 953 scaled records in networks of 60 to 200 neurons nine in ten changed 4
    and more, of 95 of unscaled tables with large values half changed none."""

    # The layers
    least_zero: float = 1e-4
    """An entry of a dual below it is an exact zero, at any precision of the weights. Larger bears
    more noise, but lets mixtures of similar records' duals pass."""
    faint: float = 1e-5
    """Singular values of the next layer's change are raised to this share of the largest. Smaller
    trusts directions that are mostly drift and rounding."""
    dense: int = 256
    """Records above which products replace a Gram matrix for each dual. Below, the matrix is
    quicker; above, its cost, the square of their number, is what limits."""

    # The search by reflections
    feature_weight: float = 2.0
    """A distance in features, or in duals where these follow from signals, counts so many times one
    in pre-activations. Larger follows the next layer more closely and keeps silent neurons silent,
    but bears less drift of the weights."""
    end_weight: float = 0.1
    """Squared distances at the final weights, and of duals, count so many times those at the
    initial weights. Larger lets duals lead: better among few records, worse near the limit."""
    cosines: tuple[float, ...] = (1.0, 0.4, 0.6, 0.8)
    """The largest cosine between points of a round, and with points found; the next one after a
    round that brought little. Smaller finds other records, larger those that are alike."""
    arrived: float = 3e-3
    """Gap below which a point has arrived. Smaller waits longer for points that are solved for
    exactly anyway."""
    roughly: float = 0.15
    """The same behind a noisy gradient, which keeps points from arriving."""
    enough: float = 0.6
    """Share of points to wait for. Smaller starts more searches, larger waits for the slowest."""
    gap: float = 0.4
    """Points between two checkpoints whose projections are farther apart are no records. Larger
    tries more of them."""
    hurry: int = 200
    """Iterations behind one gradient after which a single point is enough: where arrivals are
    rare, even one makes the rest easier."""

    # Duals between two checkpoints
    same_dual: float = 0.995
    """Duals with a larger cosine are one record's. Similar records of one class reach 0.96."""
    widths: tuple[float, ...] = (0.05, 0.03, 0.02, 0.01, 0.005, 0.002, 0.001, 5e-4, 2e-4)
    """Of the penalty that makes duals sparse. Wide ones forgive neurons wrongly taken for silent,
    narrow ones leave out small entries that are no zeros. The last four are taken only where a
    dual begins from its point alone."""
    refits: tuple[float, ...] = (5e-3, 2e-3, 5e-4, 1e-4)
    """Entries below are zeros in one refit of a dual after the other. Coarse ones bear a rough
    dual, fine ones leave out small entries that are no zeros."""

    # Records behind one gradient
    clean: float = 1e-4
    """Share of the first layer's gradient outside its leading directions, above which it is noisy
    and only all records together are evidence."""
    exact: float = 1e-4
    """Residual of a record's equations; right ones stay below 1e-5, one wrong sign costs 1e-3."""
    noisy: float = 0.3
    """The same under noise. Larger tries more points that are no records."""
    returned: float = 1e-4
    """Share of the gradients that all records together may leave unexplained."""
    solves: int = 400
    """Iterations of conjugate gradients for a record's features and dual. Fewer leave records
    inexact that fire nearly the same neurons."""

    # Smooth activations
    deviation: float = 1e-3
    """Standard deviation of a record over its size; wrong ones are above 1e-2."""
    refinements: int = 12
    """Gauss-Newton steps on both sides of a record behind one gradient. They end by themselves."""

    # The certificate
    second: float = 1e-4
    """A second direction's mean square on a dual's zeros: above, the zeros determine the dual.
    Mixtures stay below 1e-5; right duals are above 1e-2, or mostly above 1e-4 if not centred."""
    spared: int = 4
    """Zeros that must not decide, since a mixture has a few by chance. More need wider layers."""
    firing: float = 0.1
    """Share of a dual's zeros that its record may fire, since masks move between batches; of an
    estimate half of it. Right estimates reach 0.035, other records begin at 0.07."""
    active: float = 0.25
    """Share of a record's silent neurons that its dual may move, for the same reason."""
    far: float = 0.1
    """Squared distance of a record from the point that the search found for it."""
    foreign: float = 0.05
    """Share of a record's features that the next layer's change may lack, over what blends of two
    records lack. Records reach 0.03, in narrow networks 0.12, uncentred 0.3."""
    odd: float = 4.0
    """Times the median share that is lacking: above, a record is odd. Records reach 3."""
    most: float = 0.8
    """Share of all records that must pass before any does: a wrong dual spoils records other than
    its own, so that few may pass by chance."""
    sure: float = 1e-2
    """The largest squared error to expect of a certified record."""
    safety: float = 64.0
    """What a linear estimate of a squared error is multiplied by before it is stated; half as much
    again, or twice, for estimates whose error is told less well. Larger is exceeded by fewer
    records and certifies fewer."""
    box_room: float = 0.05
    """Share of the data's range by which a certified record may leave it. A record with a share of
    another mixed in leaves it by that share."""
    silent_unit: float = 32.0
    """Times the rounding: features before convolutions below it are silent units. Features of
    float32 gradients were seen 2e-7 off."""
    batch_safety: float = 36.0
    """The same behind one gradient, where nothing drifts."""


TOLERANCES = Tolerances()
