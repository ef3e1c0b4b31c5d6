"""Who is trained on, what is public, who is held out: draws that never overlap.

And the papers' tasks with two classes. Their labels follow Haim et al. (2022), whose protocol the
later papers keep: odd digits are 1 and even ones 0; animals are 1 and vehicles 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b

import torch
from torch import Tensor

from remnant.errors import DataError, InputError, expected
from remnant.types import Examples

TASKS: Mapping[str, tuple[int, ...]] = {
    "odd-even": (0, 1, 0, 1, 0, 1, 0, 1, 0, 1),  # by digit
    # airplane, automobile, bird, cat, deer, dog, frog, horse, ship, truck
    "animal-vehicle": (0, 0, 1, 1, 1, 1, 1, 1, 0, 0),
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Split:
    """Three sets that share no record and no input.

    `duplicates` counts the records left out because an earlier one has the same input.
    """

    train: Examples
    public: Examples
    holdout: Examples
    duplicates: int


def draw(
    examples: Examples, n: int, *, generator: torch.Generator, balanced: bool = True
) -> Examples:
    """`n` records without replacement, in random order.

    Balanced: each class that occurs gives n // classes records, the remainder comes from random
    classes, one each. Real labels have no classes, so the draw is plain.
    """
    return examples.take(_draw_rows(examples, torch.arange(len(examples)), n, generator, balanced))


def split(
    examples: Examples,
    *,
    train: int,
    public: int | None,
    holdout: int,
    seed: int,
    balanced: bool = True,
) -> Split:
    """Disjoint draws of `train`, `holdout`, `public` records; public=None takes all that is left.

    Drawn in that order, so one seed gives one training set whatever the other sizes are. Records
    with equal inputs count once: a copy on the other side would pass for a reconstruction.
    """
    if not 0 <= seed < 2**63:
        raise InputError(expected("seed", "0 to 2**63 - 1", seed))
    generator = torch.Generator().manual_seed(seed)
    rows = _first_of_each(examples)
    duplicates = len(examples) - len(rows)
    sides = {}
    for side, n in (("train", train), ("holdout", holdout), ("public", public)):
        if n is None and len(rows) < 1:
            do = "ask for fewer training or held-out records"
            raise DataError(expected("split: public records", "at least 1 left", 0, do))
        count, even = (len(rows), False) if n is None else (n, balanced)
        taken = _draw_rows(examples, rows, count, generator, even)
        sides[side] = examples.take(taken)
        rows = rows[~torch.isin(rows, taken)]
    return Split(**sides, duplicates=duplicates)


def _first_of_each(examples: Examples) -> Tensor:
    """The rows whose input no earlier row has."""
    flat = examples.inputs.detach().cpu().flatten(1).numpy()
    first: dict[bytes, int] = {}
    for row, values in enumerate(flat):
        content = (values + 0.0).tobytes()  # -0.0 and 0.0 are one value
        first.setdefault(blake2b(content, digest_size=16).digest(), row)
    return torch.tensor(list(first.values()), dtype=torch.long)


def _draw_rows(
    examples: Examples, rows: Tensor, n: int, generator: torch.Generator, balanced: bool
) -> Tensor:
    """`n` of `rows` in random order."""
    if n < 1:
        raise InputError(expected("records to draw", "at least 1", n))
    if n > len(rows):
        got = f"{len(rows)} left of {len(examples)}"
        raise DataError(expected(f"{examples.name}: different records", f"at least {n}", got))
    shuffled = rows[torch.randperm(len(rows), generator=generator)]
    if not balanced or examples.labels.is_floating_point():
        return shuffled[:n]
    labels = examples.labels[shuffled]
    quotas = _quotas(labels, n, generator, examples.name)
    taken = torch.cat([(labels == c).nonzero()[:quota, 0] for c, quota in quotas.items()])
    return shuffled[taken.sort().values]  # sorted positions keep the random order


def _quotas(labels: Tensor, n: int, generator: torch.Generator, name: str) -> dict[int, int]:
    """How many records each class gives: as even as possible, the remainder at random."""
    counts = Counter(labels.tolist())
    classes = sorted(counts)
    each, rest = divmod(n, len(classes))
    wider = [c for c in classes if counts[c] > each]
    small = min(classes, key=counts.__getitem__)
    if counts[small] < each or len(wider) < rest:
        want = f"{-(-n // len(classes))} for a balanced draw of {n} from {len(classes)} classes"
        do = "draw fewer, or set balanced=False"
        raise DataError(expected(f"{name}: records of class {small}", want, counts[small], do))
    order = torch.randperm(len(wider), generator=generator)[:rest].tolist()
    extra = {wider[i] for i in order}
    return {c: each + (c in extra) for c in classes}


def binary_task(examples: Examples, name: str) -> Examples:
    """The same records with labels 0 and 1 of the task `name`, one of TASKS."""
    if name not in TASKS:
        raise InputError(expected("task", " or ".join(TASKS), repr(name)))
    if examples.classes != len(TASKS[name]):
        got = examples.classes or "real numbers"
        do = "relabel the whole set, before drawing from it"
        raise DataError(expected(f"{examples.name}: classes", len(TASKS[name]), got, do))
    return replace(examples, labels=torch.tensor(TASKS[name])[examples.labels])


def mean_image(examples: Examples) -> Tensor:
    """The mean of the inputs, in the shape of one; summed in float64."""
    if len(examples) < 1:
        raise DataError(expected(f"{examples.name}: records", "at least 1", 0))
    return examples.inputs.mean(0, dtype=torch.float64).to(examples.inputs.dtype)
