"""A target as files and the truth about it: what was declared, and what was really trained on."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from truth_targets.sets import Array

TRUTHS = {
    "leaks": "declared records were trained on and an attack of the literature gets them back",
    "cannot": "no declared record was trained on",
    "defended": "trained on, and noise keeps the attacks from them",
    "misdeclared": "trained on, and something that was declared is not so",
    "unsettled": "what would settle it was not given, or there was no time",
}
Ledger = str | None  # None, "true" or "false": whether what the privacy ledger claims was done
Options = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Made:
    """What a builder leaves besides its files.

    options: fields of audit.yaml; a value that names a file does so within the target's folder.
    declared: the records of the data file. used: which of them were trained on, if need be in
    another form. trained: what really went into the training, in the scale that was declared (the
    model's inputs times the declared std plus the declared mean). unit: by which differences are
    divided before they are measured; a number, or one for each feature of a table. std: what the
    audit was told to divide by, and so the model's scale, in which errors are stated.
    """

    options: Options
    declared: Array
    used: Array
    trained: Array
    unit: Array | float = 1.0
    std: Array | float = 1.0
    ids: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Target:
    """`make` writes files into the folder. `sample`: among the few that `make truth` runs."""

    name: str
    truth: str
    note: str
    make: Callable[[Path, int], Made]
    ledger: Ledger = None
    sample: bool = field(default=False)

    @property
    def row(self) -> str:
        """The row of the confusion table."""
        return self.truth if self.ledger is None else f"ledger_{self.ledger}"


def write_records(path: Path, x: Array, y: Array, ids: tuple[str, ...] = ()) -> None:
    named = {"id": np.array(ids)} if ids else {}
    np.savez(path, x=x, y=y, **named)


def write_weights(path: Path, state: Mapping[str, Tensor]) -> None:
    """A state dict as torch.save writes it, or safetensors, by the name's end."""
    plain = {name: value.detach().clone().contiguous() for name, value in state.items()}
    if path.suffix == ".safetensors":
        save_file(plain, path)
    else:
        torch.save(plain, path)


def write_json(path: Path, values: Any) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n", "utf-8")


def write_truth(folder: Path, made: Made) -> None:
    """For the judge; no audit is told of these files."""
    n, numbers = len(made.declared), made.declared[0].size
    np.savez(
        folder / "truth.npz",
        declared=np.reshape(made.declared, (n, -1)).astype(float),
        used=made.used,
        trained=np.reshape(made.trained, (len(made.trained), -1)).astype(float),
        unit=np.broadcast_to(np.reshape(made.unit, -1), numbers).astype(float),
        std=np.broadcast_to(np.reshape(made.std, -1), numbers).astype(float),
        ids=np.array(made.ids or [""] * n),
    )


def arguments(folder: Path, options: Options) -> list[str]:
    """For `remnant audit` in that folder: flags where flags can say it, an audit.yaml otherwise."""
    values = dict(options)
    if any(isinstance(value, dict) for value in values.values()):
        for key in ("attacks", "targets"):  # lists, which flags write with commas
            if isinstance(values.get(key), str):
                values[key] = values[key].split(",")
        write_json(folder / "audit.yaml", values)  # JSON is YAML
        return ["audit.yaml"]
    return [text for key, value in values.items() for text in (f"--{key}", str(value))]
