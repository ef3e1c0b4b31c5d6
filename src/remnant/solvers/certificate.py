"""Which recovered records are right, told without the truth.

Three things agree on a right record and hardly can on a wrong one:
- its dual has clearly more exact zeros than a generic vector of an n-dimensional space, n - 1;
- no neuron that the record fires at the initial weights has a zero entry: what fires, learns;
- few neurons that are silent at both ends have a non-zero entry (some fire in mid-training).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from remnant.solvers.problem import Problem


@dataclass(frozen=True, kw_only=True, eq=False)
class Certificate:
    """One figure a record (k each); shares between 0 and 1."""

    zeros: Tensor  # of all neurons
    zero_but_firing: Tensor  # of the zeros
    silent_but_active: Tensor  # of the silent neurons
    passed: Tensor  # k, bool


# Found by mixing right duals: a mixture of two records' duals leaves at least 0.2 of the silent
# neurons active from a share of 0.3 on, and a record contaminated as much fires 0.04 of its zeros.
# Right ones stay below 0.1 and 0.013. A few neurons are always forgiven, for narrow layers.
ZERO_BUT_FIRING = 0.02
SILENT_BUT_ACTIVE = 0.15


def certify(problem: Problem, records: Tensor, z: Tensor) -> Certificate:
    """records: k x (d+1) with the bias' 1. z: k x n, their duals."""
    y = records @ problem.span.right.T
    dual = (z @ problem.span.left.T).abs()
    zero, firing = dual < 1e-3, problem.start_margin(y) > 0.02
    active, silent = dual > 0.03, problem.margin(y) < -0.1
    count, width = problem.count, len(problem.start)
    zero_but_firing, zeros = (zero & firing).sum(1).double(), zero.sum(1).double()
    silent_but_active, silents = (active & silent).sum(1).double(), silent.sum(1).double()
    passed = (
        (zeros > count + 0.02 * width)
        & (zero_but_firing <= (ZERO_BUT_FIRING * zeros).clamp(min=2))
        & (silent_but_active <= (SILENT_BUT_ACTIVE * silents).clamp(min=2))
    )
    return Certificate(
        zeros=zeros / width,
        zero_but_firing=zero_but_firing / zeros.clamp(min=1),
        silent_but_active=silent_but_active / silents.clamp(min=1),
        passed=passed,
    )
