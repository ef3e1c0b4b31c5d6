"""The numbers that decide when sequences are read out of gradients."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Tolerances:
    """Residuals are relative: 0 for a state that was an input of a layer, 1 for a random one."""

    above: float = 1.5  # singular values this many times rounding's count as signal
    # A null space of fewer directions is not used: states after a LayerNorm pass one by themselves,
    # and with a few wrong states pass by chance.
    fewest: int = 4
    probes: int = 64  # random directions of a null space that are tested: more cost time, with
    # fewer a wrong state passes by chance
    near: float = 1e-5  # residuals below this are float32's rounding: never told apart
    noise: float = 2.0  # the same for coarser numbers, in units of their rounding
    # Tried in turn where numbers are off by more than their rounding (noise, or weights that
    # drifted between gradients): (noise of the numbers, residual below which a state passes).
    levels: tuple[tuple[float, float], ...] = (
        (0.0, 0.01), (0.0, 0.03), (0.0, 0.06), (1e-3, 0.01), (1e-3, 0.03), (1e-2, 0.03),
    )  # fmt: skip
    far: float = 0.3  # states with a larger residual never pass; below, the widest gap decides
    room: float = 30.0  # a prefix passes at up to so many times the residual usual so far
    most_tokens: int = 4000  # more candidate tokens than this mean that the test tells nothing
    most_prefixes: int = 2000  # more at a time come only of a null space that is too small
    block: int = 1 << 24  # numbers held at a time in products over the vocabulary
    places: int = 64  # positions tried at a time where nothing says how long texts are
    labels: int = 8  # most labels of one prefix that are looked for besides those of the leaves
    explained: float = 3.0  # a further label must leave so many times less unexplained
    silent: float = 1e-3  # a token whose loss weighs less, against the largest, has no label
    share: float = 0.3  # of the usual loss weight, above which a sequence ends at a prefix
    whole: float = 0.05  # how far from a whole number a sequence's count may be
    returned: float = 1e-4  # relative error of the gradient computed again, from float32 and better
    plausible: float = 0.5  # the same above which texts are not even worth showing
    loosest: float = 1e-2  # never more: one wrong token of 250 leaves some 5 times that
    rounded: float = 1.0  # the same from coarser numbers, in units of their rounding
    # The same where records are put together in any order: the error may be so many times what
    # computing in the model's own precision leaves (right records leave 1, a byte off by one 40).
    exact: float = 5.0
    least: float = 1e-9  # and is never asked to be smaller than this
    close: float = 1e-3  # images that are no bytes: above this error none is certified
    safety: float = 25.0  # their squared error is stated as so many times that of solving once more
    # with as much rounding: 20 batches stayed below 8
    even: float = 1e-2  # loss weights of tokens that differ by less are taken to be equal
