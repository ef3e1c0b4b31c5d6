"""`remnant canaries`: records to add to training, and others like them to compare them with."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from remnant.cli.common import Answer, add_verb, check_new, print_line, write_new
from remnant.cli.flags import whole
from remnant.errors import InputError, expected


def add(verbs: Any) -> None:
    example = "remnant canaries --data train.npz --count 20 --out canaries.npz"
    parser = add_verb(verbs, "canaries", example, shared=("seed", "quiet"), run=run)
    parser.add_argument("--data", type=Path, required=True, help="npz, csv, txt or jsonl")
    count = whole(1, 100_000)
    words = "how many are planted (default: 20)"
    parser.add_argument("--count", type=count, default=20, help=words)
    words = "how many are kept for comparison: chance is measured on them (default: 200)"
    parser.add_argument("--unplanted", type=count, default=200, help=words)
    words = "the file to add to the training; the others go beside it"
    parser.add_argument("--out", metavar="FILE", type=Path, help=words)


def run(arguments: argparse.Namespace) -> Answer:
    from remnant.data.canaries import make_canaries, unplanted_beside

    data: Path = arguments.data
    if not data.is_file():
        raise InputError(expected("--data", "a file", f"{data}"))
    planted: Path = arguments.out or Path(f"canaries{data.suffix}")
    if planted.suffix != data.suffix:
        raise InputError(expected("--out", f"a name that ends in {data.suffix}", planted.name))
    places = (planted, unplanted_beside(planted))
    for path in places:
        check_new(path)
    made = make_canaries(data, (arguments.count, arguments.unplanted), arguments.seed)
    for path, body in zip(places, made, strict=True):
        write_new(path, body)
    words = (
        f"wrote {planted}, {arguments.count} records to add to {data} before training, and "
        f"{places[1]}, which no training may see",
        f"after training: remnant audit ... --canaries {planted}",
    )
    return Answer(show=lambda: print_line(*words))
