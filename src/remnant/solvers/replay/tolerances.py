"""The numbers that decide when a training run is replayed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Tolerances:
    """The numbers that replay trades by, but for those that a caller sets (`ReplaySettings`)."""

    # Coordinates of the record.
    clear: float = 1e3  # how far a direction must stand above the next: its error is the inverse
    least_scale: float = 0.03  # of an entry, over the mean scale: rare entries are not frozen
    # Column by column.
    grid_even: int = 16  # values of an entry that are tried, evenly over its range
    grid_fine: int = 6  # and by half decades towards 0
    column_steps: int = 3  # Gauss-Newton steps for each column and round
    # Rounds that look at the whole range of an entry, that search the brightness, and after which
    # they are extrapolated: too few miss the basin, more only take longer.
    far_rounds: tuple[int, int, int] = (3, 8, 3)
    near_rounds: tuple[int, int, int] = (0, 0, 12)  # where a Gauss-Newton step brought it near
    brighter: float = 0.06  # change of brightness that is tried either way
    history: int = 10  # rounds that Anderson's extrapolation remembers
    patience: int = 12  # rounds without a smaller misfit
    # Several records of a training by Adam: its eps is made to fall from `eps_from` to `eps_to`
    # times the gradient's size over `smooth_steps`. A smaller first one has no slope to follow, and
    # one that falls further or faster freezes records before they are right.
    eps_from: float = 1.0
    eps_to: float = 1e-3
    smooth_steps: int = 600
    smooth_rate: float = 0.05  # of the first step, of the spread of entries; falls to 0
    # Whether the run holds its records.
    sense_draws: int = 2  # random combinations of what is seen; one could miss an entry by chance
    move: float = 0.05  # of the spread of the data: a move that must be seen
    far: float = 10.0  # times what counts as matched; runs that hold their records left 50 and more
    # Stated errors.
    noise_draws: int = 2  # of noise, next to what is really left over
    error_steps: int = 24  # of conjugate gradients: weak directions come late
    error_move: float = 1e-6  # of a record's size: short, so that no unit switches
    safety: float = 36.0  # of squared errors: weak directions may be missed, rounding is not even


TOLERANCES = Tolerances()
