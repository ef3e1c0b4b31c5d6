"""The numbers that a search behind one gradient trades by."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Tolerances:
    """Nothing depends on the clock, so a seed decides the result."""

    # How long to search.
    walkers: int = 32  # points searched for at a time: more of them share a product
    iterations: int = 8000  # of reflections, before a round counts as lost
    patience: int = 5  # lost rounds in a row before giving up
    enough: float = 0.5  # share of walkers to wait for, while they arrive quickly
    hurry: int = 200  # iterations after which one walker is enough
    solves: int = 400  # iterations of conjugate gradients
    passes: int = 4  # of a record's features with new signs
    # What counts as a record.
    arrived: float = 1e-3  # gap of a walker below which it is tried as a record
    roughly: float = 0.15  # the same under noise, which keeps walkers from arriving
    clean: float = 1e-4  # share of M1 outside its leading directions, above which it is noisy
    exact: float = 1e-4  # residual; right records stay below 1e-5, one wrong sign costs 1e-3
    noisy: float = 0.3  # residual under noise: only all records together tell there
    smooth: float = 1e-3  # deviation of a smooth layer's record; wrong ones are above 1e-2
    returned: float = 1e-4  # share of the gradients that all records may leave unexplained
    # Distances in s = f(t), and in a dual a, count so many times those in t: silent neurons then
    # stay silent. Weights of 2 to 3 take half to a sixth of the iterations of 1.
    weight: float = 2.0
    # Smooth layers. Before a record is known, |t| is looked for from its least possible value up; a
    # start of half to 1.1 times the right size finds a record.
    starts: int = 16  # of a round
    largest: float = 40.0  # times the least size, up to which the first records are looked for
    known_sizes: tuple[float, float] = (0.6, 1.0)  # of found records: where others are looked for
    form: int = 15  # Levenberg-Marquardt steps on the sphere of a fixed size
    finish: int = 12  # and off it
    near: float = 2.0  # residual below which a point is worth refining; lost ones end at 4
    refinements: int = 12  # Gauss-Newton steps on both sides of a record
    still: float = 1e-6  # relative length of a step that changes nothing
    chunk: int = 16  # records refined at a time: k x w x 3n numbers are held
