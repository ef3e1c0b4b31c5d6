"""Whether certified candidates are as near to a trained record as they say.

    python benchmarks/stated_errors.py --cases 300 --seed 0 [--only ntk] [--out rows.jsonl]

Each case draws data, network, attack and precision from its own seed, trains by plain PyTorch (or
takes one gradient, or fits a linear model), attacks, and compares every certified candidate with
the nearest record: the root-mean-square distance in the model's scale over the error stated. A case
does not depend on the others: `--case 17` runs the 17th alone.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from remnant.attacks import GLM, NTK, Gradient, Informed
from remnant.data import load
from remnant.models.linear_estimators import from_estimator
from remnant.models.linear_files import linear_target
from remnant.training import GradientDescent, solve_linearised, train
from remnant.types import Candidates, Examples, Knowledge, Scaling, Target

EXACT = 1e-8  # true errors below are taken for this, or ratios would mean nothing
WRONG = 0.1  # of the records' spread: a certified candidate farther off is no record
Case = tuple[dict[str, Any], Target, Tensor, Callable[..., Candidates]]
ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU, "leaky": nn.LeakyReLU}


@functools.cache
def table(name: str) -> tuple[Tensor, Tensor]:
    """Inputs n x d and classes."""
    if name == "wine":
        from sklearn.datasets import load_wine

        x, y = load_wine(return_X_y=True)
        return torch.tensor(x).float(), torch.tensor(y)
    if name == "gaussian":
        x = torch.randn(400, 5, generator=torch.Generator().manual_seed(5))
        return x, (x[:, 0] > 0).long()
    held = load(name)
    labels = held.labels
    if labels.is_floating_point():
        labels = (labels > labels.median()).long()
    return held.inputs.flatten(1).float(), labels


def dense(sizes: list[int], activation: str, draw: torch.Generator) -> nn.Sequential:
    torch.manual_seed(int(torch.randint(2**31, (1,), generator=draw)))
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes[:-1]):
        layers += [nn.Linear(before, after), ACTIVATIONS[activation]()]
    return nn.Sequential(*layers, nn.Linear(sizes[-2], sizes[-1]))


def drawn(rng: random.Random, draw: torch.Generator) -> tuple[dict[str, Any], Scaling, Any]:
    """What most cases share: a few records of a set, and how they are scaled."""
    name = rng.choice(
        ["digits", "digits", "faces", "breast_cancer", "wine", "diabetes", "gaussian"]
    )
    x, y = table(name)
    images = name in ("digits", "faces")
    count = rng.choice([2, 4, 6, 8, 12] if images else [2, 3, 4, 6, 8])
    count = min(count, 3 if x.shape[1] == 5 else 7 if x.shape[1] == 10 else count)
    rows = torch.randperm(len(x), generator=draw)
    scaled = rng.choice(["scaled", "scaled", "raw"])
    mean, std = x.mean(0), torch.ones(()) if images else x.std(0)
    if scaled == "raw":
        mean, std = torch.zeros(x.shape[1]), torch.ones(())
    say = {"data": name, "records": count, "scaled": scaled}
    return say, Scaling(mean=mean, std=std), (x[rows[:count]], y[rows[:count]])


def rounded(value: Tensor, how: str, draw: torch.Generator) -> Tensor:
    """A weight or gradient as it was stored."""
    if how == "noise":
        return value + 0.01 * value.std() * torch.randn(value.shape, generator=draw)
    kind = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(how, torch.float32)
    return value.to(kind).float()


def fit(model: nn.Module, x: Tensor, y: Tensor, rng: random.Random) -> None:
    """Descent with momentum, at a rate that the inputs' size allows."""
    size = float(x.square().sum(1).mean()) + 1
    rate, decay = rng.choice([0.3, 1.0]) / size, rng.choice([0.0, 0.0, 1e-3])
    steps = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9, weight_decay=decay)
    for _ in range(rng.choice([50, 400, 1500])):
        loss = nn.functional.cross_entropy(model(x), y)
        if not loss.item() > 0.02:
            break
        steps.zero_grad()
        loss.backward()
        steps.step()


def ntk(rng: random.Random, draw: torch.Generator) -> Case:
    say, scaling, (x, y) = drawn(rng, draw)
    hidden = [rng.choice([60, 100, 150, 200])] * rng.choice([1, 1, 2])
    activation = rng.choice(["relu", "relu", "relu", "tanh", "gelu"])
    stored = rng.choice(["float32"] * 5 + ["fp16", "bf16", "noise"])
    model = dense([x.shape[1], *hidden, 10], activation, draw)
    initial = {n: p.detach().clone() for n, p in model.named_parameters()}
    fit(model, scaling.to_model(x), y, rng)
    with torch.no_grad():
        for name, p in model.named_parameters():
            change = p - initial[name]
            if stored == "noise":
                p.copy_(initial[name] + rounded(change, "noise", draw))
            else:
                p.copy_(rounded(p, stored, draw))
    initial = {n: rounded(w, stored, draw) if stored != "noise" else w for n, w in initial.items()}
    say |= {"width": hidden[0], "layers": len(hidden), "activation": activation, "stored": stored}
    told = rng.choice([None, len(x)])
    held = Knowledge(initial=initial, records=told)
    target = Target(
        model=model.eval(), input_shape=(x.shape[1],), bounds=None, scaling=scaling, knowledge=held
    )
    return say, target, x, NTK(preset="exact")


def gradient(rng: random.Random, draw: torch.Generator) -> Case:
    say, scaling, (x, y) = drawn(rng, draw)
    hidden = [rng.choice([60, 100, 150, 200])] * rng.choice([1, 2])
    activation = rng.choice(["relu", "relu", "leaky", "tanh", "gelu"])
    stored = rng.choice(["float32"] * 5 + ["fp16", "bf16", "noise"])
    model = dense([x.shape[1], *hidden, 10], activation, draw)
    return finish_gradient(say, model, scaling, x, y, hidden, activation, stored, draw)


def finish_gradient(
    say: dict[str, Any],
    model: nn.Module,
    scaling: Scaling,
    x: Tensor,
    y: Tensor,
    hidden: list[int],
    activation: str,
    stored: str,
    draw: torch.Generator,
) -> Case:
    nn.functional.cross_entropy(model(scaling.to_model(x)), y).backward()
    seen = {n: rounded(p.grad, stored, draw) for n, p in model.named_parameters()}
    say |= {"width": hidden[0], "layers": len(hidden), "activation": activation, "stored": stored}
    target = Target(
        model=model.eval(),
        input_shape=tuple(x.shape[1:]),
        bounds=(0.0, 1.0) if say["data"] in ("digits", "faces") else None,
        scaling=scaling,
        knowledge=Knowledge(gradient=seen, records=len(x)),
    )
    return say, target, x, Gradient()


def convolved(rng: random.Random, draw: torch.Generator) -> Case:
    count, channels, width = rng.choice([1, 2, 4]), rng.choice([8, 12]), rng.choice([100, 200])
    x, y = table("digits")
    rows = torch.randperm(len(x), generator=draw)[:count]
    torch.manual_seed(int(torch.randint(2**31, (1,), generator=draw)))
    front = [nn.Conv2d(1, channels, 3, padding=1), nn.ReLU(), nn.Flatten()]
    model = nn.Sequential(
        *front, nn.Linear(64 * channels, width), nn.ReLU(), nn.Linear(width, 60), nn.ReLU(),
        nn.Linear(60, 10),
    )  # fmt: skip
    say = {"data": "digits", "records": count, "scaled": "scaled"}
    scaling = Scaling(mean=torch.tensor(0.3), std=torch.tensor(0.4))
    x = x[rows].reshape(-1, 1, 8, 8)
    stored = rng.choice(["float32", "float32", "fp16"])
    return finish_gradient(say, model, scaling, x, y[rows], [width, 60], "conv", stored, draw)


def replayed(rng: random.Random, draw: torch.Generator) -> Case:
    """A short known training: of all records but one, or of nothing but their labels."""
    alone = rng.random() < 0.4
    name = rng.choice(["digits", "digits", "breast_cancer", "wine"])
    inputs, labels = table(name)
    rows = torch.randperm(len(inputs), generator=draw)
    count = rng.choice([1, 2, 3]) if alone else rng.choice([10, 30])
    x, y = inputs[rows[:count]], labels[rows[:count]]
    std = torch.tensor(0.5) if name == "digits" else inputs.std(0)
    scaling = Scaling(mean=inputs.mean(0), std=std)
    activation = rng.choice([nn.ELU, nn.Tanh, nn.ReLU])
    width = rng.choice([16, 32]) if alone else rng.choice([8, 16])
    torch.manual_seed(int(torch.randint(2**31, (1,), generator=draw)))
    model = nn.Sequential(nn.Linear(x.shape[1], width), activation(), nn.Linear(width, 10))
    recipe = GradientDescent(lr=rng.choice([0.05, 0.2]), momentum=0.9, steps=rng.choice([5, 12]))
    ids = tuple(map(str, range(count)))
    records = Examples(inputs=x, labels=y, ids=ids, bounds=None)
    dtype = rng.choice([torch.float32, torch.float64])
    trained = train(model.to(dtype), records, recipe, scaling=scaling, generator=draw)
    say = {"data": name, "records": count, "activation": activation.__name__.lower()}
    say |= {"stored": str(dtype)[6:], "alone": alone, "width": width}
    held = Knowledge(
        initial=trained.initial,
        recipe=recipe,
        records=count,
        known=None if alone else records.take(range(count - 1)),
        labels=y if alone else None,
    )
    target = Target(
        model=trained.model, input_shape=(x.shape[1],), bounds=None, scaling=scaling, knowledge=held
    )
    return say, target, x if alone else x[-1:], Informed()


def lifted(rng: random.Random, draw: torch.Generator) -> Case:
    count, width = rng.choice([3, 5, 7]), rng.choice([96, 128])
    inputs, labels = table(rng.choice(["digits", "faces"]))
    rows = torch.randperm(len(inputs), generator=draw)[:count]
    ids = tuple(map(str, range(count)))
    records = Examples(inputs=inputs[rows], labels=labels[rows] % 2, ids=ids)
    model = dense([inputs.shape[1], *[width] * rng.choice([1, 2]), 1], "relu", draw).double()
    trained = solve_linearised(model, records, scaling=Scaling(), ridge=rng.choice([0.0, 1.0]))
    dtype = rng.choice([torch.float32, torch.float64])
    initial, final = (
        {n: w.to(dtype).double() for n, w in ws.items()} for ws in (trained.initial, trained.final)
    )
    model.load_state_dict(model.state_dict() | final)
    held = Knowledge(initial=initial)
    target = Target(model=model, input_shape=(inputs.shape[1],), knowledge=held)
    say = {"records": count, "width": width, "stored": str(dtype)[6:]}
    return say, target, records.inputs, NTK(preset="exact")


def linear(rng: random.Random, draw: torch.Generator) -> Case:
    from sklearn.linear_model import LinearRegression, LogisticRegression, PoissonRegressor, Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    name = rng.choice(["breast_cancer", "wine", "diabetes", "gaussian"])
    inputs, labels = table(name)
    rows = torch.randperm(len(inputs), generator=draw)[: rng.choice([60, 120])]
    x, y = inputs[rows].double().numpy(), labels[rows].numpy()
    tolerance = rng.choice([1e-4, 1e-8, 1e-10])
    kinds: dict[str, Any] = {
        "logistic": LogisticRegression(tol=tolerance, max_iter=20000),
        "newton": LogisticRegression(solver="newton-cholesky", tol=tolerance),
        "ridge": Ridge(alpha=1.0),
        "linear2": LinearRegression(),
        "poisson": PoissonRegressor(alpha=1e-2, tol=tolerance, max_iter=20000),
    }
    kind = rng.choice(list(kinds))
    aim: Any = y
    if kind in ("ridge", "linear2"):
        noise = np.random.default_rng(rng.randrange(2**31)).normal(size=(len(x), 2))
        aim = y[:, None] + noise if kind == "linear2" else y + noise[:, 0]
    known = rng.choice([True, False])
    plain = StandardScaler().fit(x) if known else StandardScaler().fit(x[:-1])
    fitted = kinds[kind]
    scaled = rng.choice(["scaled", "outer"])
    estimator = (
        make_pipeline(plain, fitted.fit(plain.transform(x), aim))
        if scaled == "scaled"
        else fitted.fit((x - x.mean(0)) / x.std(0), aim)
    )
    seen = x if scaled == "scaled" else (x - x.mean(0)) / x.std(0)
    model = from_estimator(estimator)
    records = Examples(
        inputs=torch.tensor(seen[:-1]), labels=torch.tensor(aim[:-1]),
        ids=tuple(map(str, range(len(x) - 1))), bounds=None,
    )  # fmt: skip
    say = {"data": name, "activation": kind, "tolerance": tolerance, "scaled": scaled}
    target = linear_target(model, records, records=len(x))
    return say, target, torch.tensor(seen[-1:]), GLM(use_scaler=rng.random() < 0.5)


KINDS: dict[str, tuple[Callable[[random.Random, torch.Generator], Case], int]] = {
    "ntk": (ntk, 10),
    "gradient": (gradient, 10),
    "convolved": (convolved, 2),
    "replayed": (replayed, 3),
    "lifted": (lifted, 1),
    "linear": (linear, 3),
}
"""How each kind is made, and its share of the cases."""


def run(index: int, seed: int, only: str | None) -> dict[str, Any] | None:
    """One case as a row: what it was and, for each certified candidate, truth and statement."""
    rng = random.Random(1_000_003 * seed + index)
    order = [kind for kind, (_, share) in KINDS.items() for _ in range(share)]
    kind = order[index % len(order)]
    if only is not None and kind != only:
        return None
    draw = torch.Generator().manual_seed(rng.randrange(2**31))
    say, target, truth, attack = KINDS[kind][0](rng, draw)
    began = time.process_time()
    try:
        found = attack(target, generator=torch.Generator().manual_seed(index))
    except RuntimeError as fault:
        print(f"case {index} ({kind}): {fault}")
        return {"case": index, "kind": kind, "certified": 0, "true": [], "stated": []} | say
    row = {"case": index, "kind": kind} | say
    row |= {"status": str(found.status), "reason": found.reason, "found": len(found)}
    row["seconds"] = round(time.process_time() - began, 2)
    if not len(found):
        return row | {"certified": 0, "true": [], "stated": []}
    mine = target.scaling.to_model(found.inputs.double()).flatten(1)
    records = target.scaling.to_model(truth.double()).flatten(1)
    apart = torch.cdist(mine, records, compute_mode="donot_use_mm_for_euclid_dist").min(1).values
    true = apart / mine.shape[1] ** 0.5
    spread = (records - records.mean(0)).square().mean().sqrt() if len(records) > 1 else 1.0
    passed = torch.tensor(list(found.stated.passed) or [False] * len(found))
    stated = list(found.stated.error) or [float("nan")] * len(found)
    chosen = passed.nonzero()[:, 0].tolist()
    return row | {
        "certified": len(chosen),
        "true": [float(true[i]) for i in chosen],
        "stated": [stated[i] for i in chosen],
        "spread": float(spread),
    }


def summary(rows: list[dict[str, Any]]) -> str:
    """A line for each kind, network and precision."""
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        words = [
            row["kind"],
            str(row.get("activation", row.get("kind", ""))),
            row.get("stored", ""),
        ]
        groups[" ".join([*words, f"{row.get('layers', '')}"])].append(row)
    groups["all"] = rows
    lines = []
    for name, some in sorted(groups.items()):
        pairs = [
            (t, s or 0.0, r)
            for r in some
            for t, s in zip(r["true"], r["stated"], strict=True)
            if s is None or s == s
        ]
        over = sum(t > s for t, s, _ in pairs)
        wrong = sum(t > WRONG * r["spread"] for r in some for t in r["true"])
        line = f"{name:36} {len(some):4} cases {sum(r['certified'] for r in some):5} certified"
        line += f" {wrong:3} wrong {over:3} exceeded"
        if pairs:
            ratio = [s / max(t, EXACT) for t, s, _ in pairs]
            line += f"  stated/true median {statistics.median(ratio):8.1f} least {min(ratio):8.2f}"
            line += (
                f"  stated {min(s for _, s, _ in pairs):.0e} to {max(s for _, s, _ in pairs):.0e}"
            )
        lines.append(line)
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--case", type=int)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=[*KINDS])
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for index in range(given.first, given.cases) if given.case is None else [given.case]:
        row = run(index, given.seed, given.only)
        if row is None:
            continue
        rows.append(row)
        if given.out is not None:
            with given.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
        elif given.case is not None:
            print(json.dumps(row, indent=1))
    print(summary(rows))


if __name__ == "__main__":
    main()
