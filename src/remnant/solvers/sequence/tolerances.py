"""The numbers that decide when sequences are read out of gradients."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Tolerances:
    """Residuals are relative: 0 for a state that was an input of a layer, 1 for a random one."""

    above: float = 1.5  # a singular value that is no rounding is so many times what rounding leaves
    # Directions of a null space, below which it tells nothing: every state after a LayerNorm passes
    # one of them, and too much passes a few.
    fewest: int = 4
    probes: int = 64  # directions of a null space that are looked at: more cost time, fewer chance
    near: float = 1e-5  # residuals below are rounding of float32: never told apart
    noise: float = 2.0  # the same of coarser numbers, in units of their rounding
    # Where numbers are off by more than their rounding (drift of weights between gradients, noise):
    # what is tried in turn, as (noise of the numbers, residual that is near).
    levels: tuple[tuple[float, float], ...] = (
        (0.0, 0.01), (0.0, 0.03), (0.0, 0.06), (1e-3, 0.01), (1e-3, 0.03), (1e-2, 0.03),
    )  # fmt: skip
    far: float = 0.3  # residuals above are of others, whatever the noise; below, a gap decides
    room: float = 30.0  # how many times the usual residual of a right prefix another may have
    most_tokens: int = 4000  # candidates for a place; more than that and the test tells nothing
    most_prefixes: int = 2000  # kept at a time: more come only of a null space that is too small
    block: int = 1 << 24  # numbers held at a time in products over the vocabulary
    places: int = 64  # positions tried at a time where nothing says how long texts are
    labels: int = 8  # different next tokens of one prefix that no longer prefix shows
    explained: float = 3.0  # a further label must make what is unexplained so many times smaller
    silent: float = 1e-3  # weight of a prefix's loss, against the usual, that counts as none
    share: float = 0.3  # of the usual loss weight, above which a sequence ends at a prefix
    whole: float = 0.05  # how far from a whole number a sequence's count may be
    returned: float = 1e-4  # relative error of the gradient computed again, from float32 and better
    plausible: float = 0.5  # the same above which texts are not even worth showing
    loosest: float = 1e-2  # never more: one wrong token of 250 leaves some 5 times that
    rounded: float = 1.0  # the same from coarser numbers, in units of their rounding
    # The same where records are put together in any order: error against what computing in the
    # model's own precision leaves (right records leave 1, a byte off by one 40), and at least.
    exact: float = 5.0
    least: float = 1e-9
    close: float = 1e-3  # records that are no whole numbers: theirs is told by solving once more
    safety: float = 25.0  # of a squared error by one more solution: 20 batches stayed below 8
    even: float = 1e-2  # weights of tokens' losses that differ by less are one and the same
