"""The likelihood that a record was trained on, by models of ours that had it and that had not.

The owner's recipe is followed from the same start on random halves of the records and as many
strangers, so that each is in half of the shadow models. For each the confidence in its label has
one law among models that had it and one among those that had not; the released model's confidence
is compared with both (Carlini et al. 2022). Strangers are scored alike, so that a recipe that is
not quite the real one makes the test weaker, never false.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from remnant.attacks.kkt import fresh_model
from remnant.auditing.case import Case, together
from remnant.auditing.fitting import losses_of
from remnant.auditing.playing import OutOfTimeError, at_most
from remnant.auditing.rules import RULES
from remnant.auditing.strangers import Strangers
from remnant.checkpoints import checkpoint
from remnant.models import load_weights
from remnant.progress import task
from remnant.seeds import generator_for
from remnant.training import train
from remnant.training.descent import step_count
from remnant.training.recipes import SGD, Adam, GradientDescent
from remnant.types import Examples

FixedSteps = GradientDescent | SGD | Adam
Likelihood = tuple[list[float], list[float]]


def why_none(case: Case, strangers: Strangers) -> str:
    """Why no shadow models are trained, empty where they are."""
    recipe = case.target.knowledge.recipe
    if recipe is None:
        return "no recipe was given"
    if not isinstance(recipe, FixedSteps):
        return "its recipe has no fixed number of steps"
    if case.truth.are_texts:
        return "they are not trained on texts"
    if case.scene.batch_norm:
        return "batch norm is not trained by recipes"
    if len(strangers.examples) < RULES.fewest_strangers:
        return "there are too few held-out records"
    work = RULES.shadows * work_of(recipe, case)
    if work > RULES.shadow_work:
        return f"they would take {work:.2g} billion multiply-adds, more than {RULES.shadow_work:g}"
    return ""


def work_of(recipe: FixedSteps, case: Case) -> float:
    """Billions of multiply-adds of one training: forward, and backward to inputs and weights."""
    n = len(case.truth)
    batch = min(n, getattr(recipe, "batch_size", None) or n)
    each = forward_work(case.target.model, case.truth.inputs[:1])
    return 3e-9 * step_count(recipe, n) * batch * each


def forward_work(model: nn.Module, one: Tensor) -> float:
    """Multiply-adds of one record's way through the model; as many as it has weights at the least,
    since fused layers such as an LSTM are not counted."""
    with FlopCounterMode(display=False) as counted:  # without gradients encoders would be fused
        model(one.to(next(model.parameters())))
    least = sum(p.numel() for p in model.parameters() if p.ndim > 1)
    return max(float(least), float(counted.get_total_flops()) / 2)  # a multiply-add is two


def likelihood(case: Case, strangers: Strangers, seed: int, left: float | None) -> Likelihood | str:
    """Scores of the records and of strangers, minus the log likelihood ratio, lower for members; or
    why there are none. left: CPU seconds, None for any."""
    why = why_none(case, strangers)
    if why:
        return why
    try:
        with at_most(left):
            return _likelihood(case, strangers, seed)
    except OutOfTimeError:
        return "the budget ran out"


def _likelihood(case: Case, strangers: Strangers, seed: int) -> Likelihood:
    records = case.own
    some = torch.randperm(len(strangers.examples), generator=generator_for(seed, "pool"))
    others = strangers.examples.take(some[: len(records)])
    n = len(records)
    pool = together(records, [records, others], [str(i) for i in range(n + len(others))])
    draws = torch.rand(RULES.shadows, len(pool), generator=generator_for(seed, "shadow halves"))
    had = draws.argsort(0).argsort(0) < RULES.shadows // 2  # each record in half of them
    seen = _trained(case, pool, had, seed)
    score = -_ratio(_confidence(case, pool, case.target.model), seen, had)
    return score[:n].tolist(), score[n:].tolist()


def _trained(case: Case, pool: Examples, had: Tensor, seed: int) -> Tensor:
    """K x records: each shadow model's confidence in each label."""
    recipe, held = case.target.knowledge.recipe, case.target.knowledge.initial
    assert isinstance(recipe, FixedSteps)
    kept = checkpoint("shadow models", recipe, pool.inputs, pool.labels, had, case.target.weights)
    rows: list[Tensor] = list(kept.state or [])
    with task("shadow models", len(had)) as step:
        step(len(rows))
        for k in range(len(rows), len(had)):
            chance = generator_for(seed, f"shadow model {k}")
            model = copy.deepcopy(case.target.model)
            if held is None:
                model = fresh_model(model, chance)
            else:
                load_weights(model, dict(held) | dict(model.named_buffers()))
            mine = pool.take(had[k].nonzero().flatten())
            ended = train(model, mine, recipe, scaling=case.target.scaling, generator=chance)
            rows.append(_confidence(case, pool, ended.model))
            if kept.due():
                kept.save(rows)
            step()
    return torch.stack(rows)


def _confidence(case: Case, pool: Examples, model: nn.Module) -> Tensor:
    """log p / (1 - p) of each label's probability p; of a regression, minus the log of its loss.

    Both are nearly normal among models, which a loss is not.
    """
    losses = losses_of(case, pool, model)
    assert losses is not None  # texts are refused before
    loss = torch.tensor(losses, dtype=torch.float64).clamp_min(1e-30)
    return -(loss.expm1() if case.loss in ("ce", "bce") else loss).log()


def _ratio(own: Tensor, seen: Tensor, had: Tensor) -> Tensor:
    """log N(own; those that had it) - log N(own; those that had not); spreads are common to all
    records, since a few models tell a record's own mean but not its own spread."""
    logs = []
    for mask in (had, ~had):
        mean = (seen * mask).sum(0) / mask.sum(0)
        spread = ((seen - mean).square() * mask).sum() / (mask.sum() - len(own))
        spread = spread.clamp_min(1e-12)
        logs.append(-(own - mean).square() / (2 * spread) - spread.log() / 2)
    return logs[0] - logs[1]
