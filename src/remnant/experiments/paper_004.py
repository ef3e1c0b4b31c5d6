"""Papers 003 and 004: what final weights alone give away, and when.

Targets are D-W-W-C networks trained by plain descent with weight decay (or from a small first layer
without). The attack gets the weights, the number of records and the loss. Records are counted whose
candidate correlates above .9 (and .8), and by 004's protocol those of SSIM above .4 (`good`); each
beside the same count with 2N held-out records in the candidates' place (`null`).
"""

from __future__ import annotations

import resource
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from remnant.attacks.kkt import KKT
from remnant.data import binary_task
from remnant.errors import InputError, expected
from remnant.experiments.study import Figure, Rows, Study
from remnant.experiments.targets import (
    Scene,
    above,
    attack,
    dense,
    draw_sides,
    of_classes,
    train_scene,
)
from remnant.models import build
from remnant.report.sheet import draw_sheet
from remnant.scoring import centred_correlation, papers_ssim, score
from remnant.seeds import generator_for
from remnant.solvers.kkt.network import read_network
from remnant.sweep.table import Row
from remnant.training import DecayTime, LossProportional, loss_named
from remnant.types import Candidates, Examples

CASES: Mapping[str, dict[str, Any]] = {  # what breaks an assumption
    "none": {},
    "unfinished": {"decay_time": 0.5},
    "not separated": {"weight_decay": 0.13},  # margins give way, the weights not yet
    "biases": {"bias": True},
    "small first layer": {"loss": "bce", "init": 1e-4},
    "untrained": {"decay_time": 1e-6},
}
FIFTHS = ("closest", "second", "third", "fourth", "farthest")


def make_victim(
    examples: Examples,
    *,
    records: int,
    width: int,
    loss: str = "ce",
    task: str = "auto",
    seed: int,
    weight_decay: float = 5e-3,
    decay_time: float = 7.5,
    lr: float | None = None,
    bias: bool = False,
    init: float = 1.0,
    model: str | None = None,
    tell: Sequence[str] = ("records", "loss"),
) -> Scene:
    """task: `classes` as they are, or two of them (`odd-even`, `animal-vehicle`); `auto`: as they
    are for `ce`, else the papers' two. Losses but `ce` have one output.

    init: the first layer's scale; below 1 it is trained without decay, far past separation (Haim et
    al. 2022).
    """
    if task == "auto":
        two = "animal-vehicle" if examples.shape == (3, 32, 32) else "odd-even"
        task = "classes" if loss == "ce" else two
    if task != "classes":
        examples = binary_task(examples, task)
    elif loss != "ce":
        raise InputError(expected("--task", f"two classes for the loss {loss}", task))
    sides, scaling = draw_sides(examples, records, seed)
    outputs = examples.classes if loss == "ce" else 1
    options = "" if bias else ":nobias"
    text = model or dense(examples, width, width, outputs=outputs, options=options)
    small = None if init == 1 else init
    start = build(text, generator=generator_for(seed, "weights"), first_layer_scale=small)
    recipe: DecayTime | LossProportional = DecayTime(
        lr=lr or (0.5 if loss in ("ce", "bce") else 0.2),
        weight_decay=weight_decay,
        decay_time=decay_time,
        loss=loss,
    )
    if small is not None:
        recipe = LossProportional(loss=loss)
    return train_scene(start, sides, scaling, recipe, seed=seed, tell=tell)


def counts(victim: Scene, inputs: Tensor) -> dict[str, int]:
    """Records that these candidates show: correlation above .9 and .8 (one to one), 004's SSIM
    above .4 (means of the nearest; for convolutions from farther off)."""
    conv = any(isinstance(module, nn.Conv2d) for module in victim.target.model.modules())
    ssim = papers_ssim(
        victim.truth, inputs, mean=victim.target.scaling.mean, factor=1.5 if conv else 1.1
    )
    found = {name: above(victim.truth, inputs, at) for name, at in (("", 0.9), ("_above_0.8", 0.8))}
    return found | {"_good": int((ssim > 0.4).sum())}


def measured(victim: Scene, how: KKT, seed: int) -> tuple[Candidates, Row]:
    """What comes back, and its figures beside the null's."""
    found, seconds = attack(how, victim.target, seed)
    mine, null, n = (
        counts(victim, found.inputs),
        counts(victim, victim.holdout.inputs),
        victim.truth,
    )
    row: Row = {"recovered" if not k else k[1:]: value for k, value in mine.items()}
    row |= {f"null{k}": value for k, value in null.items()}
    row |= {"share": mine[""] / len(n), "null_share": null[""] / len(n)}
    for name in ("agreed", "sure", "misclassified", "imbalance"):
        row[name] = found.figures.get(name)
    row["sure_right"] = sure_and_right(victim, found)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    about = {"status": str(found.status), "reason": found.reason, "cpu_seconds": seconds}
    return found, row | about | {"peak_mb": round(peak / 1024)}


def sure_and_right(victim: Scene, found: Candidates) -> int:
    """Of the candidates that two starts agree on all but perfectly, which go first, those above .8
    with some record."""
    sure = found.inputs[: found.figures.get("sure", 0)]
    if not len(sure):
        return 0
    return int((centred_correlation(sure, victim.truth.inputs).max(1).values > 0.8).sum())


def stationarity(victim: Scene) -> Row:
    """How far the weights are from what their own records explain; needs the truth.

    residual: |W_l + grad_l / decay| / |W_l| per layer (None without decay). cosine: of W_l and
    -grad_l. kinks: the share of (record, neuron) pairs of the first hidden layer within 1% of a
    deviation of zero, where ReLU has no slope. errors: records on the wrong side.
    """
    model, loss_name = victim.target.model, victim.target.knowledge.loss or "ce"
    inputs = victim.target.scaling.to_model(victim.truth.inputs)
    loss = loss_named(loss_name)(model(inputs), victim.truth.labels)
    weights = [p for p in model.parameters() if p.ndim > 1]
    slopes = torch.autograd.grad(loss, weights)
    pairs = [(w.detach().double(), g.double()) for w, g in zip(weights, slopes, strict=True)]
    decay = victim.training["recipe"].get("weight_decay", 0.0)
    layers = read_network(model)
    assert not isinstance(layers, str), layers
    z = inputs.flatten(1).double() @ layers[0].weight.T
    z = z if layers[0].bias is None else z + layers[0].bias
    return {
        "residual": [float((w + g / decay).norm() / w.norm()) for w, g in pairs] if decay else None,
        "cosine": [
            float(-(w * g).sum() / (w.norm() * g.norm()).clamp(min=1e-30)) for w, g in pairs
        ],
        "kinks": float((z.abs() < 0.01 * z.std()).double().mean()),
        "errors": int((hardness(victim) <= 0).sum()) if loss_name in ("ce", "bce") else None,
    }


def hardness(victim: Scene) -> Tensor:
    """n: the margin to the nearest boundary (classes), or the negative loss (regression)."""
    labels, loss = victim.truth.labels, victim.target.knowledge.loss
    with torch.no_grad():
        outputs = victim.target.model(victim.target.scaling.to_model(victim.truth.inputs)).double()
    if loss == "ce":
        mine = nn.functional.one_hot(labels, outputs.shape[1]).bool()
        margin: Tensor = outputs[mine] - outputs.masked_fill(mine, -torch.inf).max(1).values
        return margin
    signed: Tensor = outputs[:, 0] * (2 * labels - 1)
    return signed if loss == "bce" else -(1 - signed).abs()


def measure_target(
    examples: Examples,
    *,
    starts: int,
    steps: int,
    seed: int,
    case: str = "none",
    classes: int | None = None,
    training_steps: int | None = None,
    **target: Any,
) -> Rows:
    """One row of one target. case: of `CASES`. classes: only the first ones. training_steps: how
    long it is trained, where that is not by the decay time."""
    if classes is not None:
        examples = of_classes(examples, classes)
    if training_steps is not None:
        target["decay_time"] = training_steps * target["weight_decay"] * 0.5
    victim = make_victim(examples, seed=seed, **target | CASES[case])
    _, row = measured(victim, KKT(starts=starts, steps=steps), seed)
    return [{"decay_time": target.get("decay_time")} | stationarity(victim) | row]


def measure_exposure(
    examples: Examples, *, starts: int, steps: int, seed: int, **target: Any
) -> Rows:
    """One row a record; the CPU time is the attack's, shared out among them."""
    victim = make_victim(examples, seed=seed, **target)
    found, row = measured(victim, KKT(starts=starts, steps=steps), seed)
    truth, distance = victim.truth, hardness(victim)
    ranks = distance.argsort().argsort() * len(FIFTHS) // len(truth)
    correlation = score(truth, found.inputs).correlation.nan_to_num(0.0)
    null = score(truth, victim.holdout.inputs).correlation.nan_to_num(0.0)
    papers = papers_ssim(truth, found.inputs, mean=victim.target.scaling.mean)
    return [
        {
            "id": truth.ids[i],
            "hardness": float(distance[i]),
            "fifth": FIFTHS[int(ranks[i])],
            "correlation": float(correlation[i]),
            "null_correlation": float(null[i]),
            "ssim": float(papers[i]),
            "cpu_seconds": row["cpu_seconds"] / len(truth),
        }
        for i in distance.argsort().tolist()
    ]


def measure_headline(
    examples: Examples, *, starts: int, steps: int, seed: int, best: int = 50, **target: Any
) -> Rows:
    """One row, and a contact sheet of the records that came back best by 004's score."""
    victim = make_victim(examples, seed=seed, **target)
    found, row = measured(victim, KKT(starts=starts, steps=steps), seed)
    truth, scores = victim.truth, score(victim.truth, found.inputs)
    ssim = papers_ssim(truth, found.inputs, mean=victim.target.scaling.mean).nan_to_num(0.0)
    order = ssim.argsort(descending=True)[:best]
    order = order[scores.candidate[order] >= 0]
    sheet = draw_sheet(
        truth.inputs[order],
        found.inputs[scores.candidate[order]],
        [(f"{float(ssim[i]):.2f}", f"{float(scores.correlation[i]):.2f}") for i in order.tolist()],
        rows=("004's SSIM", "correlation"),
        title=f"Final weights alone: the best {len(order)} of {len(truth)} records",
        footer=f"{row['good']} with SSIM > .4 (held-out {row['null_good']}), seed {seed}",
    )
    name = f"sheet-{target['loss']}-{seed}.png"
    return [row | {"files": {name: sheet}}]


def measure_convolutions(
    examples: Examples, *, kernel: int, channels: int, starts: int, steps: int, seed: int,
    width: int, **target: Any,
) -> Rows:  # fmt: skip
    """One row of a network CONV(kernel, channels)-width-1 with biases; its kernels as pictures."""
    side = "x".join(map(str, examples.shape))
    model = f"cnn:{side}-c{channels}k{kernel}-{width}-1"
    victim = make_victim(examples, seed=seed, width=width, model=model, bias=True, **target)
    _, row = measured(victim, KKT(starts=starts, steps=steps), seed)
    kernels = next(p for p in victim.target.model.parameters() if p.ndim == 4).detach().float()
    most = kernels.flatten(1).abs().max(1).values.clamp(min=1e-12)[:, None, None, None]
    sheet = draw_sheet(
        None,
        kernels / most,
        [(f"{float(one):.1e}",) for one in most.flatten()],
        rows=("largest weight",),
        title=f"First-layer kernels: size {kernel}, {channels} channels",
        footer=f"each by its own largest weight, seed {seed}",
        bounds=(-1.0, 1.0),
    )
    name = f"kernels-{kernel}-{channels}-{seed}.png"
    return [row | {"files": {name: sheet}}]


def shares(x: str, across: str, panel: str, line: str = "", *, log_x: bool = False) -> Figure:
    """Shares of records above .9, and the null's."""
    lines = {"share": f"attack{line}", "null_share": f"held-out{line}"}
    up = "share of records above .9"
    return Figure(x=x, lines=lines, across=across, up=up, panel=panel, log_x=log_x, log_y=False)


COUNTS = (
    "recovered", "null", "above_0.8", "null_above_0.8", "good", "null_good", "agreed", "imbalance",
    "status", "cpu_seconds", "peak_mb",
)  # fmt: skip
BASE: Mapping[str, Any] = {
    "data": "mnist", "loss": "ce", "task": "auto", "width": 300, "weight_decay": 5e-3, "init": 1.0,
    "starts": 2, "steps": 600,
}  # fmt: skip

STUDIES: Mapping[str, Study] = {
    "kkt-headline": Study(
        title="Final weights alone: 500 images, ten and two classes",
        measure=measure_headline,
        settings={
            **BASE,
            "data": "cifar10",
            "loss": ["ce", "bce"],
            "records": 500,
            "width": 1000,
            "starts": 4,
        },
        quick={"data": "mnist", "records": 50, "width": 300, "starts": 2, "steps": 300},
        columns=("loss", "records", "seed", *COUNTS),
        figures=(shares("loss", "loss", "records {records}"),),
    ),
    "kkt-convolutions": Study(
        title="Final weights alone: a convolution before the dense layers",
        measure=measure_convolutions,
        settings={
            **BASE,
            "data": "cifar10",
            "loss": "bce",
            "weight_decay": 1e-3,
            "kernel": [3, 5, 7],
            "channels": [8, 32],
            "records": 50,
            "width": 1000,
        },
        quick={
            "data": "digits",
            "kernel": [3],
            "channels": [8],
            "records": 10,
            "width": 50,
            "weight_decay": 5e-3,
            "steps": 50,
        },
        columns=("kernel", "channels", "records", "seed", *COUNTS),
        figures=(shares("channels", "channels", "kernel {kernel}"),),
    ),
    "kkt-grid": Study(
        title="Final weights alone: width against the number of records",
        measure=measure_target,
        settings={**BASE, "loss": ["ce", "bce"], "width": [100, 300], "records": [10, 20, 50]},
        quick={"width": [100], "records": [10, 20], "steps": 300},
        columns=("loss", "width", "records", "seed", *COUNTS),
        figures=(shares("records", "records", "loss {loss}", ", width {width}"),),
    ),
    "kkt-classes": Study(
        title="Final weights alone: more classes leak more",
        measure=measure_target,
        settings={"classes": [2, 3, 5, 10], "records": 30, **BASE},
        quick={"classes": [2, 10], "records": 20, "steps": 300},
        columns=("classes", "records", "seed", *COUNTS),
        figures=(shares("classes", "classes", "records {records}"),),
        seeds=2,
    ),
    "kkt-decay": Study(
        title="Final weights alone: weight decay in a middle range leaks most",
        measure=measure_target,
        settings={
            **BASE,
            "loss": ["ce", "bce"],
            "weight_decay": [1e-4, 5e-4, 2e-3, 5e-3, 2e-2, 5e-2],
            "training_steps": 3000,
            "records": 20,
        },
        quick={"loss": ["ce"], "weight_decay": [5e-4, 5e-3, 5e-2], "width": 100, "steps": 300},
        columns=("loss", "weight_decay", "records", "seed", *COUNTS),
        figures=(
            shares(
                "weight_decay", "weight decay", "records {records}", ", loss {loss}", log_x=True
            ),
        ),
    ),
    "kkt-assumptions": Study(
        title="Final weights alone: one assumption broken at a time",
        measure=measure_target,
        settings={"case": list(CASES), "records": 20, **BASE, "starts": 3},
        quick={"records": 10, "width": 100, "starts": 2, "steps": 300},
        columns=("case", "records", "seed", *COUNTS),
        figures=(shares("case", "what is broken", "records {records}"),),
    ),
    "kkt-exposure": Study(
        title="Final weights alone: which records leak, by margin or loss",
        measure=measure_exposure,
        settings={**BASE, "loss": ["ce", "bce", "mse", "power2.5", "huber1"], "records": 50},
        quick={"loss": ["ce", "mse"], "records": 20, "width": 100, "steps": 300},
        columns=(
            "loss",
            "seed",
            "id",
            "hardness",
            "fifth",
            "correlation",
            "null_correlation",
            "ssim",
        ),
        figures=(
            Figure(
                x="fifth",
                lines={"correlation": "median of a fifth", "null_correlation": "held-out"},
                across="records by margin, or by falling loss",
                up="correlation",
                panel="{loss}",
                log_x=False,
                log_y=False,
            ),
        ),
    ),
}
