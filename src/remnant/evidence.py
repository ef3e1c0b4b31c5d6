"""What the adversary holds, as evidence: a sum of parameter gradients at unknown inputs."""

from __future__ import annotations

from dataclasses import replace

import torch

from remnant.errors import InputError
from remnant.types import Evidence, Target, Weights

# From the coarsest: the first format that holds every number exactly is how it was stored.
_FORMATS = (torch.bfloat16, torch.float16, torch.float32)


def stored_precision(weights: Weights) -> float:
    """The relative rounding of numbers as stored, even where they have been widened since."""
    for dtype in _FORMATS:
        if all(torch.equal(w.to(dtype).to(w.dtype), w) for w in weights.values()):
            return float(torch.finfo(dtype).eps)
    return float(torch.finfo(torch.float64).eps)


def one_gradient(target: Target) -> Evidence:
    """One gradient of a batch at the released weights (002), or what is seen of it."""
    gradient = target.knowledge.gradient
    if gradient is None:
        raise InputError("one gradient: expected a gradient, got none; give --gradient")
    weights = {name: w.double() for name, w in target.weights.items()}
    return Evidence(
        vector={n: gradient[n].detach().double() for n in weights if n in gradient},
        start=weights,
        end=weights,
        precision=stored_precision(gradient),
    )


def summed_gradients(target: Target) -> Evidence:
    """What an optimizer kept: gradients of several steps, added up, between the initial weights and
    the released ones. With the sign of a step, down the gradients, as a change of weights has it:
    labels are read off that sign."""
    once, initial = one_gradient(target), target.knowledge.initial
    if initial is None:
        raise InputError("summed gradients: expected initial weights, got none; give --initial")
    sizes = (
        sum(float(value.square().sum()) for value in side.values())
        for side in (once.vector, once.end)
    )
    vector, weights = sizes
    return replace(
        once,
        vector={name: -value for name, value in once.vector.items()},
        start={name: initial[name].detach().double() for name in once.start},
        # Solvers take it for that of the weights; a sum of small gradients is rounded less.
        precision=once.precision * min(1.0, (vector / weights) ** 0.5),
    )


def weight_difference(target: Target) -> Evidence:
    """Final minus initial weights: every gradient step of the training, added up (000, Eq. 4)."""
    initial = target.knowledge.initial
    if initial is None:
        raise InputError("weight difference: expected initial weights, got none; give --initial")
    end = {name: w.double() for name, w in target.weights.items()}
    start = {name: initial[name].detach().double() for name in end}
    return Evidence(
        vector={name: end[name] - start[name] for name in end},
        start=start,
        end=end,
        precision=max(stored_precision(target.weights), stored_precision(initial)),
    )
