"""Distillation measured: one run (`Distilling`), and 000's Table 1 as rows of runs (`TABLE`).

A row says how well networks do that saw the distilled images alone, and how near these images are
to the records they came from, beside sets that cannot have copied anything.
"""

from __future__ import annotations

import io
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

import remnant.store as store
from remnant.attacks.about import setting
from remnant.data import binary_task, draw, load, mean_image, split
from remnant.distill import (
    Distillation,
    Distilled,
    Problem,
    distil,
    distil_network,
    flow,
    judge,
)
from remnant.distill import problem as kernel_problem
from remnant.errors import InputError, expected
from remnant.experiments.study import Figure
from remnant.experiments.targets import dense
from remnant.kernels import Dense
from remnant.models import Linearised, build
from remnant.progress import task
from remnant.report.lines import draw_lines
from remnant.report.sheet import draw_sheet, drawable
from remnant.scoring import THRESHOLD, blends, centred_correlation
from remnant.seeds import generator_for
from remnant.solvers.descent.paper import Descent
from remnant.store import Run
from remnant.sweep.table import FIGURE_FILE, TABLE_FILE, Row, as_csv, read_rows, write_rows
from remnant.training import solve_linearised
from remnant.types import Examples, Knowledge, Scaling, Target

METHODS = ("full", "kip", "rkip", "rkip-finite", "random")
NETWORKS = ("standard", "linearised", "infinite")
STEPS = {"kip": (5000, 0.003), "rkip": (1000, 0.02), "rkip-finite": (2000, 0.02)}  # and rates
ACCURACIES = Figure(
    x="method", lines={name: name for name in NETWORKS}, across="trained on", up="%",
    panel="Test accuracy", log_x=False, log_y=False,
)  # fmt: skip
RESULT_FILE, IMAGES_FILE, SHEET_FILE = "result.json", "distilled.npz", "sheet.png"


@dataclass(frozen=True, kw_only=True)
class Distilling:
    """One distillation. JSON values only: it is the run's spec.

    kernel: of infinite width; ntk is the usual limit, matched that of the very networks that are
    trained. steps, lr: None = STEPS.
    """

    method: str = "rkip"
    data: str = setting("mnist", "a bundled name, a file or a folder")
    task: str | None = setting(
        "odd-even", "a binary task, odd-even or animal-vehicle; none: the data's own classes"
    )
    records: int = setting(500, "how many records to distil")
    images: int = setting(20, "how many images to distil them to")
    test: int = setting(4000, "records to test on, at most")
    width: int = setting(1024, "neurons of each hidden layer of the networks that are trained")
    depth: int = setting(2, "how many hidden layers")
    kernel: Literal["ntk", "matched"] = setting(
        "ntk", "ntk: every layer alike, no biases; matched: the trained networks' own limit"
    )
    steps: int | None = setting(
        None, "of the search (default: kip 5000, rkip 1000, rkip-finite 2000)"
    )
    lr: float | None = setting(None, "of the search (default: kip 0.003, others 0.02)")
    start: Literal["noise", "data"] = setting("noise", "what the search starts from")
    learn_labels: bool = setting(False, "labels that fit best in place of the classes'")
    trained: Literal["linearised", "standard"] = setting(
        "linearised", "the network that rkip-finite takes the images from"
    )
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("records", "images", "test", "width", "depth"):
            if getattr(self, name) < 1:
                raise InputError(expected(f"--{name}", "at least 1", getattr(self, name)))
        if self.depth > 100:
            raise InputError(expected("--depth", "at most 100 hidden layers", self.depth))
        if self.images > self.records:
            wanted = f"at most the {self.records} records"
            raise InputError(expected("--images", wanted, self.images))
        if self.method in STEPS:  # a fault in them is better known now than after reading the data
            settings_of(self)


@dataclass(frozen=True, kw_only=True, eq=False)
class Material:
    """Disjoint records: distilled, held out (as many), tested on. scaling: less the mean image."""

    train: Examples
    held_out: Examples
    test: Examples
    scaling: Scaling

    def seen(self, examples: Examples) -> Tensor:
        """n x d, as the networks see them."""
        return self.scaling.to_model(examples.inputs).flatten(1)


def settings_of(scene: Distilling) -> Distillation | Descent:
    steps, lr = STEPS[scene.method]
    steps = steps if scene.steps is None else scene.steps
    lr = lr if scene.lr is None else scene.lr
    if scene.method == "rkip-finite":
        return Descent(steps=steps, lr=lr, cosine=True)
    return Distillation(
        method=scene.method,  # type: ignore[arg-type]
        images=scene.images,
        steps=steps,
        lr=lr,
        start=scene.start,
        learn_labels=scene.learn_labels,
    )


def divide(scene: Distilling, examples: Examples) -> Material:
    """As many records of each class to distil and to hold out; the rest is for tests."""
    if examples.classes < 2:
        raise InputError(expected(f"{examples.name}: labels", "classes", "real numbers"))
    sides = split(
        examples, train=scene.records, public=None, holdout=scene.records, seed=scene.seed
    )
    test = sides.public.take(range(min(scene.test, len(sides.public))))
    scaling = Scaling(mean=mean_image(sides.train))
    return Material(train=sides.train, held_out=sides.holdout, test=test, scaling=scaling)


def read(scene: Distilling, data_dir: Path | None) -> Examples:
    with task("reading data"):
        examples = load(scene.data, data_dir=data_dir)
        return binary_task(examples, scene.task) if scene.task else examples


def scene_spec(scene: Distilling, examples: Examples) -> Row:
    """All that decides a run's result."""
    content = store.hash_tensors({"x": examples.inputs, "y": examples.labels})
    return {"verb": f"distill-{scene.method}", **asdict(scene), "data_hash": content}


def kernel_of(scene: Distilling) -> Dense:
    """matched: that of `network`, whose weights are N(0, 1 / fan in) and biases start at 0."""
    if scene.kernel == "ntk":
        return Dense(hidden=scene.depth)
    return Dense(
        hidden=scene.depth, weight=1.0, bias=0.0, parametrisation="standard", width=scene.width
    )


def network(scene: Distilling, material: Material, purpose: str) -> nn.Module:
    outputs = 1 if material.train.classes == 2 else material.train.classes
    text = dense(material.train, *[scene.width] * scene.depth, outputs=outputs)
    return build(text, generator=generator_for(scene.seed, purpose), init="normal")


def posed(scene: Distilling, material: Material) -> Problem:
    return kernel_problem(kernel_of(scene), material.seen(material.train), material.train.labels)


def distilled(scene: Distilling, material: Material) -> Distilled:
    generator = generator_for(scene.seed, scene.method)
    if scene.method == "rkip-finite":
        return _from_network(scene, material, generator)
    about = posed(scene, material)
    if scene.method in ("full", "random"):
        rows = torch.arange(len(material.train))
        if scene.method == "random":
            names = {name: i for i, name in enumerate(material.train.ids)}
            drawn = draw(material.train, scene.images, generator=generator)
            rows = torch.tensor([names[name] for name in drawn.ids])
        images, labels = about.inputs[rows], about.targets[rows]
        return Distilled(images=images, labels=labels, loss=math.nan, trace=[])
    settings = settings_of(scene)
    assert isinstance(settings, Distillation)
    return distil(about, settings, generator=generator)


def _from_network(scene: Distilling, material: Material, generator: torch.Generator) -> Distilled:
    model = network(scene, material, "target")
    settings = settings_of(scene)
    assert isinstance(settings, Descent)
    inputs = material.seen(material.train)
    flat = replace(material.train, inputs=inputs, bounds=None)
    if scene.trained == "linearised":
        trained = solve_linearised(Linearised(model), flat, scaling=Scaling())
        final, initial = trained.model, trained.initial
    else:
        about = posed(scene, material)
        initial = {name: p.detach().clone() for name, p in model.named_parameters()}
        final = flow(model, inputs, about.targets.to(inputs)).model
    target = Target(
        model=final, input_shape=inputs.shape[1:], knowledge=Knowledge(initial=initial), bounds=None
    )
    return distil_network(target, settings, images=scene.images, generator=generator)


def measure(scene: Distilling, material: Material, found: Distilled) -> Row:
    """Accuracies of networks trained on the distilled set, and how near it is to the records."""
    fresh = network(scene, material, "judged")  # not the one that rkip-finite started from
    judged = judge(
        fresh,
        kernel_of(scene),
        found.images,
        found.labels,
        test=material.seen(material.test),
        classes=material.test.labels,
    )
    loss = found.loss if math.isfinite(found.loss) else None
    return {
        "data": scene.data,
        "method": scene.method,
        "seed": scene.seed,
        **asdict(judged),
        "distillation_loss": loss,
        "images": len(found.images),
        "test": len(material.test),
        **nearness(scene, material, found.images),
    }


def nearness(scene: Distilling, material: Material, images: Tensor) -> Row:
    """Each image's correlation with its nearest record: the median, and how many are above 0.9.

    Beside it the same with as many held-out records in place of those distilled, and for two sets
    that know nothing of the search: held-out images, and blends of two records each. Correlations
    are taken after the mean image is subtracted, which all images share.
    """
    train, held_out = material.seen(material.train), material.seen(material.held_out)
    generator = generator_for(scene.seed, "nulls")
    count = min(len(images), scene.images)
    sides = {
        "records": (images, train),
        "held_out": (images, held_out),
        "null_held_out": (held_out[:count], train),
        "null_blends": (blends(train, count, generator), train),
    }
    row: Row = {}
    for name, (seen, records) in sides.items():
        near = centred_correlation(records, seen.to(records)).max(0).values
        row[f"near_{name}"] = float(near.median())
        row[f"copies_{name}"] = int((near > THRESHOLD).sum())
    return row


def run_scene(scene: Distilling, material: Material, run: Run) -> Row:
    """Distil, measure beside all records and random ones; writes images, sheet and result."""
    begun = time.process_time()
    with store.keeping_states(run):
        found = distilled(scene, material)
    timings = {"distilling": round(time.process_time() - begun, 3)}
    rows = {scene.method: measure(scene, material, found)}
    for other in ("full", "random"):
        beside = replace(scene, method=other)
        rows[other] = measure(beside, material, distilled(beside, material))
    result = {"rows": rows, "trace": found.trace}
    write_images(run, material, found)
    if drawable(material.train.shape):
        store.write_bytes(run, SHEET_FILE, sheet(scene, material, found, rows[scene.method]))
    store.write_json(run, RESULT_FILE, result)
    timings["all"] = round(time.process_time() - begun, 3)
    store.finish(run, seeds={"seed": scene.seed}, timings=timings)
    return result


def in_data_scale(material: Material, images: Tensor) -> Tensor:
    shaped = images.reshape(-1, *material.train.shape)
    return material.scaling.to_data(shaped)


def write_images(run: Run, material: Material, found: Distilled) -> None:
    """x m x shape in the data's own scale with the mean added back, y m (or m x c): the targets."""
    labels = found.labels[:, 0] if found.labels.shape[1] == 1 else found.labels
    stream = io.BytesIO()
    np.savez(stream, x=in_data_scale(material, found.images).numpy(), y=labels.numpy())
    store.write_bytes(run, IMAGES_FILE, stream.getvalue())


def sheet(scene: Distilling, material: Material, found: Distilled, row: Row) -> bytes:
    """Every distilled image under the record that it correlates with most."""
    train = material.seen(material.train)
    near = centred_correlation(train, found.images.to(train)).max(0)
    order = near.values.argsort(descending=True)
    names = [material.train.ids[i] for i in near.indices[order].tolist()]
    captions = [
        (name, f"{float(value):.3f}", " ".join(f"{y:+.2f}" for y in labels[:2].tolist()))
        for name, value, labels in zip(names, near.values[order], found.labels[order], strict=True)
    ]
    scores = ", ".join(f"{name} {100 * row[name]:.1f}%" for name in NETWORKS)
    return draw_sheet(
        material.train.inputs[near.indices[order]],
        in_data_scale(material, found.images)[order],
        captions,
        rows=("nearest record", "correlation", "label"),
        marked=[float(value) > THRESHOLD for value in near.values[order]],
        title=f"{scene.method}: {len(material.train)} records in {len(found.images)} images",
        footer=f"test accuracy {scores}  ·  framed: correlation above {THRESHOLD:g}",
        bounds=material.train.bounds or (0.0, 1.0),
    )


def table_cells(scene: Distilling, seeds: int) -> list[Distilling]:
    return [
        replace(scene, method=method, seed=scene.seed + k)
        for k in range(seeds)
        for method in METHODS
    ]


def measure_cell(scene: Distilling, examples: Examples) -> Row:
    begun = time.process_time()
    material = divide(scene, examples)
    row = measure(scene, material, distilled(scene, material))
    return row | {"cpu_seconds": round(time.process_time() - begun, 2)}


def summary(rows: Sequence[Row]) -> list[Row]:
    """Per method the mean and deviation over seeds, in percent, as in Table 1."""
    lines = []
    for method in dict.fromkeys(row["method"] for row in rows):
        mine = [row for row in rows if row["method"] == method]
        line: Row = {"method": method, "seeds": len(mine)}
        for name in NETWORKS:
            values = [100 * row[name] for row in mine]
            line[name] = round(mean(values), 2)
            line[f"{name}_std"] = round(stdev(values), 2) if len(values) > 1 else None
        for name in ("near_records", "near_held_out", "copies_records", "copies_held_out"):
            line[name] = round(mean(row[name] for row in mine), 3)
        lines.append(line)
    return lines


def run_table(scene: Distilling, examples: Examples, run: Run, *, seeds: int) -> list[Row]:
    """Measure every cell that the run does not hold yet; writes rows, table and figure."""
    rows = read_rows(run)
    cells = table_cells(scene, seeds)
    with task("table", len(cells)) as step:
        for cell in cells:
            if not any((row["method"], row["seed"]) == (cell.method, cell.seed) for row in rows):
                rows.append(measure_cell(cell, examples))
                write_rows(run, rows)
            step(note=f"{cell.method}, seed {cell.seed}")
    lines = summary(rows)
    store.write_text(run, TABLE_FILE, as_csv(lines))
    percent = [row | {name: 100 * row[name] for name in NETWORKS} for row in rows]
    title = f"{scene.data}: {scene.records} records in {scene.images} images, width {scene.width}"
    store.write_bytes(run, FIGURE_FILE, draw_lines(ACCURACIES.panels(percent), title=title))
    store.write_json(run, RESULT_FILE, {"table": lines})
    store.finish(
        run, seeds={"seed": scene.seed}, timings={"all": sum(r["cpu_seconds"] for r in rows)}
    )
    return lines
