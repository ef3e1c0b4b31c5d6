"""The demo: train on a few records, keep the initial weights, take the records back out.

It ends in the page of an audit, of a small model that four adversaries play against.

Stages leave their result in the run's directory, so an interrupted demo goes on where it was.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

import remnant.store as store
from remnant.attacks import NTK
from remnant.attacks.about import setting
from remnant.auditing import assess
from remnant.data import Split, binary_task, load, mean_image, split
from remnant.errors import InputError, expected, in_one_line
from remnant.experiments.demo_page import write_demo_page
from remnant.experiments.targets import dense
from remnant.models import build, load_weights
from remnant.progress import task
from remnant.report.charts import curve_chart, spectrum_chart, svg_file
from remnant.report.figures import curve_data, spectrum_data
from remnant.report.sheet import draw_sheet, drawable, finding_sheet
from remnant.seeds import generator_for
from remnant.store import Run
from remnant.training import SGD, GradientDescent, train
from remnant.types import Candidates, Examples, Finding, Knowledge, Scaling, Target

Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**31)]


@in_one_line("--")
@dataclass(frozen=True, kw_only=True)
class Demo:
    """What is trained and on what. JSON values only: it is the run's spec."""

    data: str = setting("faces", "a bundled name, a file or a folder; or text: sentences")
    task: str | None = setting(None, "a binary task: odd-even or animal-vehicle")
    records: Count = setting(50, "how many records to train on")
    balanced: bool = setting(True, "as many records of each class (default: balanced)")
    width: Count = setting(1024, "neurons of each hidden layer")
    depth: Count = setting(2, "how many hidden layers")
    loss: str = setting("ce", "ce, mse, bce, power2.5 or huber")
    lr: float = setting(0.05, "learning rate")
    momentum: float = setting(0.9, "of the descent")
    weight_decay: float = setting(0.0, "of the descent")
    batch_size: int | None = setting(None, "records in a mini-batch (default: all of them)")
    stop_loss: float = setting(0.02, "stop training at this loss")
    epochs: Count = setting(5000, "stop training at the latest then")
    seed: Seed = 0
    page: bool = setting(
        True, "end in a page: four adversaries against a small model (default: yes)"
    )
    attack: dict[str, Any] = field(default_factory=lambda: asdict(NTK()))

    def __post_init__(self) -> None:
        recipe(self)  # a fault in it is better known now than after reading the data


def run_demo(demo: Demo, sides: Split, run: Run) -> Finding:
    """Everything, stage by stage; returns the finding that it wrote."""
    timings: dict[str, float] = {}
    scaling = scaling_by(sides.public)
    with timed(timings, "training"):
        target = trained_target(demo, run, sides.train, scaling)
    with timed(timings, "attack"):
        candidates = attacked(demo, run, target)
    with timed(timings, "scoring"):
        finding = assess(
            candidates,
            attack="ntk",
            truth=sides.train,
            holdout=sides.holdout,
            public=sides.public,
            generator=generator_for(demo.seed, "nulls"),
        )
    with timed(timings, "pictures"):
        write_pictures(run, finding, sides.train, candidates.inputs)
    if demo.page:
        with timed(timings, "page"):
            write_demo_page(sides, scaling, demo.loss, demo.seed, run)
    store.write_finding(run, finding)
    hashes = {
        "weights": store.hash_tensors(target.weights),
        "initial": store.hash_tensors(target.knowledge.initial or {}),
        "data": data_hash(sides),
    }
    store.finish(run, seeds={"seed": demo.seed}, hashes=hashes, timings=timings)
    return finding


def data_hash(sides: Split) -> str:
    return store.hash_tensors({"inputs": sides.train.inputs, "labels": sides.train.labels})


@contextmanager
def timed(timings: dict[str, float], stage: str) -> Iterator[None]:
    begun = time.process_time()
    yield
    timings[stage] = round(time.process_time() - begun, 3)


def divide(demo: Demo, data_dir: Path | None, most_public: int = 5000) -> Split:
    """Disjoint records: trained on, held out (as many, if there are), public (the rest, as far as
    they do not slow the oracle down)."""
    with task("reading data"):
        examples = load(demo.data, data_dir=data_dir)
        if demo.task:
            examples = binary_task(examples, demo.task)
    rest = len(examples) - demo.records
    holdout = min(demo.records, (4 * rest) // 5)
    if holdout < 1:
        do = f"{examples.name} has {len(examples)} in all"
        raise InputError(expected("--records", f"at most {len(examples) - 2}", demo.records, do))
    sides = split(
        examples,
        train=demo.records,
        public=None,
        holdout=holdout,
        seed=demo.seed,
        balanced=demo.balanced,
    )
    shown = min(most_public, len(sides.public))
    return replace(sides, public=sides.public.take(range(shown)))


def scaling_by(public: Examples) -> Scaling:
    """Images: less the mean image. Tables: standardised, feature by feature. From public data."""
    if public.bounds is not None:
        return Scaling(mean=mean_image(public))
    std = public.inputs.std(0)
    return Scaling(mean=mean_image(public), std=torch.where(std > 0, std, torch.ones_like(std)))


def model_string(demo: Demo, examples: Examples, classes: int) -> str:
    outputs = 1 if classes == 2 and demo.loss in ("bce", "mse") else max(1, classes)
    return dense(examples, *[demo.width] * demo.depth, outputs=outputs)


def trained_target(demo: Demo, run: Run, examples: Examples, scaling: Scaling) -> Target:
    """Train the model, or take it from an interrupted run, and hand over what leaks."""
    text = model_string(demo, examples, examples.classes)
    model = build(text, generator=generator_for(demo.seed, "weights"))
    initial = {name: p.detach().clone() for name, p in model.named_parameters()}
    final = store.load_state(run, "trained")
    if final is None:
        result = train(
            model,
            examples,
            recipe(demo),
            scaling=scaling,
            generator=generator_for(demo.seed, "batches"),
        )
        if result.ledger["outcome"] == "diverged":
            do = "use a smaller --lr"
            raise InputError(expected("training", "a falling loss", "divergence", do))
        final = result.final
        store.write_weights(run, "initial.safetensors", initial)
        store.write_weights(run, "weights.safetensors", final)
        store.write_weights(run, "mean.safetensors", {"mean": scaling.mean})
        if scaling.std.numel() > 1:
            store.write_weights(run, "std.safetensors", {"std": scaling.std})
        store.write_json(run, "training.json", {"model": text, **result.ledger})
        store.save_state(run, "trained", final)  # last: from here on an interrupted demo goes on
    load_weights(model, final)
    return Target(
        model=model,
        input_shape=examples.shape,
        bounds=examples.bounds,
        scaling=scaling,
        knowledge=Knowledge(initial=initial),
    )


def recipe(demo: Demo) -> SGD | GradientDescent:
    common: dict[str, Any] = {
        "lr": demo.lr,
        "momentum": demo.momentum,
        "weight_decay": demo.weight_decay,
        "loss": demo.loss,
        "stop_loss": demo.stop_loss,
    }
    if demo.batch_size is None:
        return GradientDescent(steps=demo.epochs, **common)
    return SGD(epochs=demo.epochs, batch_size=demo.batch_size, **common)


def attacked(demo: Demo, run: Run, target: Target) -> Candidates:
    """Run the attack, or take its candidates from an interrupted run."""
    if (run.path / store.CANDIDATES_FILE).exists():
        return store.read_candidates(run)
    candidates = NTK(**demo.attack)(target, generator=generator_for(demo.seed, "attack"))
    store.write_candidates(run, candidates)
    return store.read_candidates(run)  # as a resumed demo has them, to the order of figures


def write_pictures(run: Run, finding: Finding, truth: Examples, inputs: Tensor) -> None:
    """The contact sheet (images only), the reconstruction curve and the spectrum."""
    with task("drawing"):
        if drawable(truth.shape):
            sheet = draw_sheet(**finding_sheet(finding, truth, inputs))
            store.write_bytes(run, "sheet.png", sheet)
        store.write_bytes(run, "curve.svg", svg_file(curve_chart(curve_data(finding))))
        spectrum = spectrum_data(finding)
        if spectrum is not None:
            store.write_bytes(run, "spectrum.svg", svg_file(spectrum_chart(spectrum)))
