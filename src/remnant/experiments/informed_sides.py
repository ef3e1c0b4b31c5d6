"""Paper 001's appendices: the pool of the oracle, membership without the start, another fixed set.

Three measures beside the tables of `paper_001`: how far a target is from all records that the
adversary had (Figure 3), what a record's loss tells of its membership where the start of training
is known or not (Figure 11), and a reconstructor that is tuned for another fixed set (Figure 12).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from remnant.experiments.informed_targets import (
    FACTORS,
    InformedSizes,
    Released,
    assumed_run,
    make_released,
    observation_of,
    on_other_records,
    starts_of,
    train_shadows,
)
from remnant.experiments.study import Rows
from remnant.experiments.targets import draw_parts
from remnant.scoring.criteria import membership_auc, mse_each, oracle, order_statistics
from remnant.seeds import generator_for
from remnant.solvers.reconstructor.reconn import RecoNN, fit_reconn
from remnant.training.fleet import train_fleet
from remnant.types import Examples, Scaling


def measure_pool(
    examples: Examples, *, bins: int, targets: int, records: int, shadows: int, seed: int
) -> Rows:
    """Figure 3: a row a bin of the error between a target and a record that the adversary had, and
    the share of pairs in it; each row repeats the order statistics."""
    began = time.process_time()
    unknown, *known = draw_parts(examples, seed, targets, records, shadows)
    truth, pool = unknown.inputs, torch.cat([part.inputs for part in known])
    errors = torch.cdist(truth.flatten(1), pool.flatten(1)).square() / truth[0].numel()
    counts = torch.histc(errors, bins, 0.0, float(errors.max()))
    width = float(errors.max()) / bins
    about = order_statistics(truth, pool) | {"targets": len(truth), "pool": len(pool)}
    seconds = round(time.process_time() - began, 3)
    return [
        about
        | {"error": (k + 0.5) * width, "share": float(counts[k] / counts.sum())}
        | {"cpu_seconds": seconds if k == 0 else 0.0}
        for k in range(bins)
    ]


def measure_membership(
    examples: Examples, *, start: str, models: int, seed: int, **sizes: Any
) -> Rows:
    """Figure 11: `models` models trained with a target and as many with another record in its
    place, all from one start or each from its own; a row a target with the area under the curve of
    telling them by the target's loss."""
    scene = make_released(InformedSizes(**sizes), FACTORS["default"], examples, seed)
    others = scene.public.take(range(models))
    rows = []
    for k in range(len(scene.targets)):
        began = time.process_time()
        own = replace(
            others,
            inputs=scene.targets.inputs[k].expand_as(others.inputs),
            labels=scene.targets.labels[k].expand_as(others.labels),
        )
        losses = {}
        for side, last in (("with", own), ("without", others)):
            fresh = starts_of(scene, len(last), f"start {side} {k}") if start == "fresh" else None
            fleet = train_fleet(
                scene.model, scene.fixed, last.inputs, last.labels, scene.recipe,
                scaling=Scaling(), generator=generator_for(seed, "order"), initial=fresh,
            )  # fmt: skip
            losses[side] = losses_of(scene, fleet, scene.targets.take([k]))
        means = {f"{side}_loss": float(loss.mean()) for side, loss in losses.items()}
        told = {"target": k, "auc": membership_auc(losses["with"], losses["without"])}
        rows.append(told | means | {"cpu_seconds": round(time.process_time() - began, 2)})
    return rows


def losses_of(scene: Released, fleet: dict[str, Tensor], record: Examples) -> Tensor:
    """The loss of one record under each of K models, K."""
    run = assumed_run(scene)
    with torch.no_grad():
        outputs = run.forward([fleet[name] for name in run.names], record.inputs, True)[:, :, 0]
    return F.cross_entropy(outputs, record.labels.expand(len(outputs)), reduction="none")


def measure_transfer(
    examples: Examples, *, counts: Sequence[int], seed: int, reconn_epochs: int, **sizes: Any
) -> Rows:
    """Figure 12: a reconstructor for one fixed set, used on models of another, after tuning on few
    shadow models of that one, and beside it one trained on those few alone; a row for each."""
    asked = InformedSizes(reconn_epochs=reconn_epochs, **sizes)
    scene = make_released(asked, FACTORS["default"], examples, seed)
    other = on_other_records(scene)
    run, observation = assumed_run(other), observation_of(other)
    truth, public = scene.targets.inputs, scene.public.inputs
    near = oracle(truth, torch.cat([other.fixed.inputs, public]))
    settings = RecoNN(epochs=reconn_epochs)
    generator = generator_for(seed, "reconn")
    began = time.process_time()
    seen = observation.seen(assumed_run(scene), train_shadows(scene))
    first = fit_reconn(seen, public, settings, generator=generator, labels=scene.public.labels)
    few = replace(other, public=other.public.take(range(max(counts))))
    seen, mine = observation.seen(run, train_shadows(few)), observation.seen(run, other.released)
    rows = []
    for count in (0, *counts):
        for method, start in (("tuned", first), ("from scratch", None)):
            if count:
                learned = fit_reconn(
                    seen[:count], public[:count], settings, generator=generator, start=start,
                    labels=scene.public.labels[:count],
                )  # fmt: skip
            elif start is not None:
                learned = start
            else:
                continue
            error = mse_each(learned(mine).clamp(0, 1), truth)
            row = {"method": method, "shadows": count, "mse": float(error.mean())}
            row |= {"oracle": float(near.mean()), "targets": len(truth)}
            row["success"] = float((error < near).double().mean())
            rows.append(row | {"cpu_seconds": round(time.process_time() - began, 2)})
            began = time.process_time()
    return rows
