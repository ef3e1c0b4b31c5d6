"""The defence table: rows defences, columns attacks, cells recovered / of, beside the accuracy.

Every attack is one that recovers its records where nothing is done about it (the row "none").
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from remnant.experiments.defence_targets import MEASURES, Sizes
from remnant.report.lines import Panel, line_panels
from remnant.types import Examples

Row = dict[str, Any]
ATTACKS = tuple(MEASURES)
WEIGHTS = ("kkt", "ntk", "informed")

# (defence, strength); what the strength says is in MEANING.
DEFENCES: tuple[tuple[str, float | str], ...] = (
    ("none", ""),
    ("noise", 0.01),
    ("noise", 0.1),
    ("noise", 1.0),
    ("rounding", "float16"),
    ("rounding", "bfloat16"),
    ("rounding", "sign"),
    ("pruning", 0.5),
    ("pruning", 0.1),
    ("early stopping", 10),
    ("Adam", ""),
    ("mini-batches", 5),
    ("more records", 5),
    ("more records", 15),
    ("weight decay", 0.0),
    ("weight decay", 5e-3),
    ("clip only", 1.0),
    ("private", 1000.0),
    ("private", 8.0),
)
MEANING: Mapping[str, str] = {
    "none": "",
    "noise": "Gaussian, a share of each tensor's deviation: of what training changed, or of the "
    "gradient",
    "rounding": "the format of the numbers that are released",
    "pruning": "the share of weights or gradient entries kept, the largest",
    "early stopping": "a loss, or time, so many times nearer to the start",
    "Adam": "in place of gradient descent",
    "mini-batches": "their size in place of full batches (informed: ten times it, unknown order)",
    "more records": "so many times; for a gradient that is a larger batch",
    "weight decay": "in place of the base's, 5e-3 for kkt and none for the others",
    "clip only": "largest norm of a record's gradient, no noise",
    "private": "epsilon at delta 1e-5, clip 1: of training, or of the one gradient",
}

# Why a defence has no say over an attack's release. None as strength: all of them.
NOT_FOR: Mapping[tuple[str, float | str | None, str], str] = {
    **{("rounding", "sign", name): "a model of signs is no model" for name in WEIGHTS},
    **{
        (kind, None, "gradient"): "one gradient is sent, whatever trains on it"
        for kind in ("early stopping", "Adam", "mini-batches", "weight decay")
    },
    **{("weight decay", 0.0, name): "trained without it" for name in ("ntk", "informed")},
    ("weight decay", 5e-3, "kkt"): "trained with it",
    ("more records", 15, "kkt"): "not measured: minutes",
    ("more records", 15, "informed"): "not measured: more than there are",
}


@dataclass(frozen=True, kw_only=True)
class DefenceTable:
    """Which defences meet which attacks, and how large the releases are."""

    defences: tuple[tuple[str, float | str], ...] = DEFENCES
    attacks: tuple[str, ...] = ATTACKS
    sizes: Sizes = field(default_factory=Sizes)
    repeats: int = 1  # seeds; counts are added, accuracies averaged
    data: tuple[str, ...] = ("mnist",)


QUICK_TABLE = DefenceTable(
    defences=(
        ("none", ""),
        ("noise", 0.01),
        ("rounding", "bfloat16"),
        ("early stopping", 10),
        ("clip only", 1.0),
        ("private", 8.0),
    ),
    sizes=Sizes(
        records=10, kkt_width=100, kkt_steps=300, ntk_width=256, known=100, targets=3, epochs=15,
        evaluations=52, rounds=20,
    ),
    repeats=1,
)  # fmt: skip


def table_cells(settings: DefenceTable, seed: int) -> list[Row]:
    return [{"defence": kind, "strength": s, "seed": seed} for kind, s in settings.defences]


def why_not(kind: str, strength: float | str, attack: str) -> str | None:
    """The reason why the defence does not apply to what the attack sees, or None."""
    return NOT_FOR.get((kind, strength, attack)) or NOT_FOR.get((kind, None, attack))


def measure_table(settings: DefenceTable, cell: Row, data: Mapping[str, Examples]) -> list[Row]:
    """One row: for each attack "recovered/of" (or "-"), and its null, accuracy and statuses."""
    began = time.process_time()
    row, examples = dict(cell), data[settings.data[0]]
    kind, strength, seed = cell["defence"], cell["strength"], cell["seed"]
    for attack in ATTACKS:
        asked = attack in settings.attacks
        reason = why_not(kind, strength, attack) if asked else "not asked for"
        if reason is not None:
            row |= {attack: "-", f"{attack}_reason": reason, f"{attack}_accuracy": None}
            continue
        each = [
            MEASURES[attack](settings.sizes, kind, strength, examples, seed + k)
            for k in range(settings.repeats)
        ]
        recovered, records = sum(m.recovered for m in each), sum(m.records for m in each)
        row |= {
            attack: f"{recovered}/{records}",
            f"{attack}_recovered": recovered,
            f"{attack}_records": records,
            f"{attack}_null": sum(m.null for m in each),
            f"{attack}_accuracy": sum(m.accuracy for m in each) / len(each),
            f"{attack}_status": ", ".join(m.status for m in each),
        }
    return [row | {"cpu_seconds": round(time.process_time() - began, 2)}]


def stopped(rows: Sequence[Row], attack: str, *, most: float = 0.05) -> list[str]:
    """Names of the defences under which no more than that share of records, or the null's count,
    came back."""
    found = []
    for row in rows:
        if f"{attack}_recovered" in row:
            enough = max(most * row[f"{attack}_records"], row[f"{attack}_null"])
            if row[f"{attack}_recovered"] <= enough:
                found.append(named(row))
    return found


def named(row: Row) -> str:
    strength = row["strength"]
    text = strength if isinstance(strength, str) else f"{strength:g}"
    return f"{row['defence']} {text}".strip()


def plot_table(rows: Sequence[Row]) -> tuple[Panel, ...]:
    """A panel for each attack: shares of records back, of the null, and the accuracy."""
    drawn = []
    for attack in ATTACKS:
        for row in rows:
            if f"{attack}_recovered" not in row:
                continue
            heights = {
                "recovered": row[f"{attack}_recovered"] / row[f"{attack}_records"],
                "null": row[f"{attack}_null"] / row[f"{attack}_records"],
                "test accuracy": row[f"{attack}_accuracy"],
            }
            about = {"attack": attack, "name": named(row)}
            drawn += [about | {"line": line, "height": y} for line, y in heights.items()]
    return line_panels(
        drawn,
        panel="attack",
        line="line",
        x="name",
        y="height",
        across="defence",
        up="share",
        log_x=False,
        log_y=False,
    )
