"""Dataset distillation with kernels: KIP, RKIP, and RKIP-finite, from a trained network alone.

A few images that do for training what all records do. Theorem 2 of paper 000 makes the link: to
reconstruct fewer images than there were records is to distil them.
"""

from remnant.distill.evaluate import Judged, infinite_accuracy, judge, linearised_accuracy
from remnant.distill.finite import distil_network
from remnant.distill.flow import Flowed, flow
from remnant.distill.losses import kip, rkip
from remnant.distill.search import Distillation, Distilled, Problem, distil, problem

__all__ = [
    "Distillation",
    "Distilled",
    "Flowed",
    "Judged",
    "Problem",
    "distil",
    "distil_network",
    "flow",
    "infinite_accuracy",
    "judge",
    "kip",
    "linearised_accuracy",
    "problem",
    "rkip",
]
