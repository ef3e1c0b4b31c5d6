"""What replay solves: K runs to match, the settings of the search and the numbers it trades by."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from remnant.solvers.replay.chart import Chart, first_weight
from remnant.solvers.replay.kinks import has_kinks
from remnant.solvers.replay.run import Observation
from remnant.training.fleet import SharedRun
from remnant.training.recipes import Adam

Box = tuple[Tensor, Tensor]  # the least and the greatest value of each entry, d each


@dataclass(frozen=True, kw_only=True)
class ReplaySettings:
    """How the run is solved for its unknown records.

    A run is matched where its misfit is below `tolerance` times that at the start. The tolerance is
    taken to the power 1.5 where convolutions come first (of two targets of CIFAR-10, residuals of
    9e-5, 1e-5 and 4e-6 left an MSE of 1.4e-3, 5e-4 and 3e-4), squared for logits, for Adam and for
    several unknown records, cubed where nothing is known: mixtures of records of one class fit
    almost as well as the records.
    """

    evaluations: int = 80  # runs forward and backward for each target
    history: int = 30  # steps that L-BFGS remembers
    labels_tried: int = 10  # unknown labels that are followed up
    label_evaluations: int = 12  # of each of them
    doubt: float = 1.1  # labels whose first guess is within that of the best one's are followed up
    tolerance: float = 1e-4
    bends: tuple[float, ...] = (
        3.0, 3.0, 10.0, 10.0, 30.0, 30.0, 30.0, 100.0, 100.0, 100.0, 300.0, 300.0,
        0.0, 0.0, 0.0, 0.0,
    )  # fmt: skip
    """Gauss-Newton steps for networks with ReLU, see `newton`."""
    inner: int = 12  # conjugate gradients of each of them
    memory: int = 1 << 30  # bytes that the kept states of a run may fill


@dataclass(frozen=True, kw_only=True, eq=False)
class ReplayProblem:
    """K runs to match. seen: K x q of what is observed."""

    run: SharedRun
    observation: Observation
    settings: ReplaySettings
    seen: Tensor
    chart: Chart
    box: Box | None = None  # None = that of all known entries

    def rows(self, index: Tensor) -> ReplayProblem:
        return replace(self, seen=self.seen[index], chart=self.chart.rows(index))

    @property
    def columnar(self) -> bool:
        """Whether one record is unknown, all weights that read its entries are seen, and what it
        does to the others' signals is small (batch norm in training mode mixes a batch)."""
        told = self.observation.whole and self.run.extra == 1 and not self.run.joint
        return told and first_weight(self.run) is not None

    @property
    def adam(self) -> bool:
        return isinstance(self.run.recipe, Adam)

    @property
    def kinks(self) -> bool:
        return has_kinks(self.run)

    @property
    def tolerance(self) -> float:
        """The share of the misfit below which a run is matched; see `ReplaySettings`."""
        power = 1.0
        if not len(self.run.inputs):
            power = 3.0
        elif self.adam or self.observation.probes is not None or self.run.extra > 1:
            power = 2.0
        elif first_weight(self.run) is None:
            power = 1.5
        return float(self.settings.tolerance**power)
