"""The demo's page: four adversaries play against one small model, trained the way that leaks.

The model is small and its training short, so that replaying it takes a minute; its weight decay
takes it on the way to a stationary point, which the adversary with nothing but the weights needs.
"""

from __future__ import annotations

from typing import Any

from remnant.auditing import Case, Plan
from remnant.auditing.run import run_audit
from remnant.bundle import Audit
from remnant.capturing import capture
from remnant.data import Split, draw
from remnant.errors import InputError, expected
from remnant.experiments.targets import dense
from remnant.models import build
from remnant.progress import task
from remnant.report.page.files import read_bundle
from remnant.seeds import generator_for
from remnant.store import Run, open_run
from remnant.training import GradientDescent, train
from remnant.types import Examples, Knowledge, Scaling, Target

FOLDER = "audit"
ATTACKS = ("kkt", "ntk", "gradient", "informed")
# Fewer starts, steps and labels than by default: near enough to be recognised, in two minutes.
SETTINGS: dict[str, dict[str, Any]] = {
    "kkt": {"starts": 3, "steps": 300},
    "informed": {
        "replaying": {
            "labels_tried": 2,
            "bends": (3.0, 3.0, 10.0, 10.0, 30.0, 30.0, 100.0, 100.0, 300.0, 0.0, 0.0),
            "evaluations": 10,
        }
    },
}


def write_demo_page(
    sides: Split, scaling: Scaling, loss: str, seed: int, run: Run, *, most: int = 10,
    left_out: int = 2,
) -> Audit:  # fmt: skip
    """Audit a small model of `most` of the demo's records, in a folder of the demo's own.

    left_out: records that the informed adversary is after, one at a time.
    """
    stored = open_run(run.path / FOLDER, {"verb": "demo-page", "demo": run.spec_hash})
    if stored.finished:
        return read_bundle(stored.path, images=False)[0]
    count = min(most, len(sides.train))
    chance = generator_for(seed, "small records")
    records = draw(sides.train, count, generator=chance, balanced=sides.train.classes > 0)
    with task("a small model"):
        target = small_target(records, scaling, loss, seed)
    case = Case(target=target, truth=records, holdout=sides.holdout, public=sides.public, loss=loss)
    plan = Plan(
        attacks=ATTACKS,
        settings=SETTINGS,
        targets=min(left_out, len(records)),
        seed=seed,
        control=True,
        command=f"remnant demo --seed {seed}",
    )
    return run_audit(case, plan, stored)


def small_target(
    records: Examples, scaling: Scaling, loss: str, seed: int, width: int = 200,
    rates: tuple[float, ...] = (0.2, 0.1, 0.03, 0.01),
) -> Target:  # fmt: skip
    """Trained on the records by the first of the rates at which training does not diverge, with
    everything that the four adversaries may hold."""
    classes = records.classes
    outputs = 1 if loss in ("bce", "mse") and classes <= 2 else max(1, classes)
    text = dense(records, width, width, outputs=outputs)
    for lr in rates:
        recipe = GradientDescent(lr=lr, momentum=0.9, weight_decay=0.12, steps=10, loss=loss)
        model = build(text, generator=generator_for(seed, "small weights"))
        order = generator_for(seed, "small batches")
        trained = train(model, records, recipe, scaling=scaling, generator=order)
        if trained.ledger["outcome"] != "diverged":
            break
    else:
        raise InputError(expected("training of a small model", "a falling loss", "divergence"))
    batch = (scaling.to_model(records.inputs), records.labels)
    return Target(
        model=trained.model,
        input_shape=records.shape,
        bounds=records.bounds,
        scaling=scaling,
        knowledge=Knowledge(
            initial=trained.initial, gradient=capture(trained.model, loss, batch), recipe=recipe
        ),
    )
