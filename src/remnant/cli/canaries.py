"""`remnant canaries`: records to add to training, and others like them to compare them with."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from remnant.cli.common import Answer, add_verb, say
from remnant.errors import InputError, StoreError, expected


def add(verbs: Any) -> None:
    example = "remnant canaries --data train.npz --count 20 --out canaries.npz"
    parser = add_verb(verbs, "canaries", example, shared=("seed", "quiet"), run=run)
    parser.add_argument("--data", type=Path, required=True, help="npz, csv, txt or jsonl")
    parser.add_argument("--count", type=int, default=20, help="how many are planted")
    words = "how many are kept for comparison: chance is measured on them"
    parser.add_argument("--unplanted", type=int, default=200, help=words)
    words = "the file to add to the training; the others go beside it"
    parser.add_argument("--out", metavar="FILE", type=Path, help=words)


def run(arguments: argparse.Namespace) -> Answer:
    from remnant.data.canaries import make_canaries, unplanted_beside

    data: Path = arguments.data
    if not data.is_file():
        raise InputError(expected("--data", "a file", f"{data}"))
    if arguments.seed < 0:
        raise InputError(expected("--seed", "0 or more", arguments.seed))
    for flag in ("count", "unplanted"):
        if not 1 <= getattr(arguments, flag) <= 100_000:
            raise InputError(expected(f"--{flag}", "1 to 100000", getattr(arguments, flag)))
    planted: Path = arguments.out or Path(f"canaries{data.suffix}")
    if planted.suffix != data.suffix:
        raise InputError(expected("--out", f"a name that ends in {data.suffix}", planted.name))
    places = (planted, unplanted_beside(planted))
    for path in places:
        if path.exists():
            raise StoreError(expected(f"{path}", "no file yet", "one", "remove it, or give --out"))
    made = make_canaries(data, (arguments.count, arguments.unplanted), arguments.seed)
    for path, body in zip(places, made, strict=True):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
                out.write(body)
        except OSError as error:
            raise InputError(expected(f"{path}", "a place to write", error.strerror)) from None
    words = (
        f"wrote {planted}, {arguments.count} records to add to {data} before training, and "
        f"{places[1]}, which no training may see",
        f"after training: remnant audit ... --canaries {planted}",
    )
    return Answer(show=lambda: say(*words))
