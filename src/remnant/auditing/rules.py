"""The numbers on which a verdict rests, in one place; none of them is a user's to set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Each with what it trades.

    Shares of the first dense layer were measured with weight decay on digits: records trained on
    left 0.11 to 0.26 of it unexplained as a sum of gradients and none in the span of inputs, their
    nearest neighbours 0.48 to 0.68 and 0.13 to 0.37; as shares of what the strangers left, records
    came to 0.23 to 0.40 and neighbours to 0.73 to 0.88.
    """

    # A false *exposed* in one audit, shared among its attacks. Less asks for more strangers.
    chance_of_error: float = 0.01
    # A comparison with strangers that came so near to proof clears nobody. More clears fewer.
    hint: float = 0.05
    # Strangers, below which likeness proves nothing: their kind cannot be told either.
    fewest_strangers: int = 20
    # How sure it must be that records and strangers differ in kind. More mistrusts honest ones.
    differ_by_chance: float = 1e-3
    # A stranger nearer to a record than this share of the usual distance between strangers is its
    # copy. Noise of 2 to 5% lies at 0.1; a larger share loses honest strangers.
    copy_within: float = 0.25
    # A stranger that has this share of its tokens in common with a record, each at its place, is
    # its copy. Less loses honest texts that begin alike.
    copied_tokens: float = 0.8
    # Candidates that must be declared records before a scaling is taken for that of training: two
    # numbers fitted to one record make it any other of its kind. More overlooks small batches.
    bear_out_scaling: int = 3
    # A scaling is fitted to candidates and the records that they correlate with so much, over so
    # many numbers for each two that are fitted. Fewer would let any records pass for each other.
    same_but_scaled: float = 0.9
    numbers_fitted: int = 100
    # What declared records may leave of the first dense layer, by what is known of it, and as a
    # share of what strangers leave. More takes neighbours for the records themselves.
    left_unexplained: Mapping[str, float] = field(
        default_factory=lambda: {"sum": 0.35, "span": 0.1}
    )
    share_of_strangers: float = 0.55
    # What strangers must leave: where they explain all, so would any records.
    strangers_leave: float = 0.05
    # Another preparation must leave this share of what is left as given. In the right one spans
    # are exact to rounding; a wrong mean leaves little in them.
    better_preparation: Mapping[str, float] = field(
        default_factory=lambda: {"sum": 0.55, "span": 0.1}
    )
    # Records past which a sum of gradients is not solved, and preparations are not tried: seconds.
    largest_sum: int = 2000
    most_prepared: int = 500
    # A mean loss below this share of another is clearly lower: a mistake is named, nothing else
    # follows. Weights of a layer of at least `tell_alike` numbers that correlate less than `unlike`
    # are not those of one training: it moves them, but not all the way.
    clearly_lower: float = 0.5
    poor_fit: float = 0.3  # a mean loss below it needs no other preparation to explain it
    tell_alike: int = 500
    unlike: float = 0.15
    # Correlation at which a row of the weights is a record; float16 and 4% of noise still pass.
    # Rows of fewer numbers than `shortest_row` resemble records by chance.
    written: float = 0.999
    shortest_row: int = 20
    # Correlation that counts as success beside a privacy ledger: a bound has to hold for any guess.
    near: float = 0.999
    # Public records that the chance of such a guess is measured on: more cost their square.
    prior_points: int = 2000
    # Chance of a guess from which a count says nothing of the ledger, and the least that strangers
    # can tell of.
    coarse: float = 0.5
    least_chance: float = 1e-12
    # A count less likely than this under the ledger is an accounting error.
    accounting_error: float = 0.001
    # Strangers that membership's threshold may take for members. Less asks for more strangers.
    false_alarms: float = 0.01
    # Shadow models for a likelihood ratio (even: each record is in half of them), and the billions
    # of multiply-adds that all of them may take: a minute on one core. More tell members better.
    shadows: int = 32
    shadow_work: float = 2000.0
    # Share of the free memory that an attack may ask for.
    memory: float = 0.9


RULES = Rules()
