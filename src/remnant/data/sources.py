"""From what a user types to records: a bundled name, a path, or a name in the data directory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from remnant.data.bundled import BUNDLED
from remnant.data.csv_table import read_csv
from remnant.data.folder import read_folder
from remnant.data.npz import read_npz
from remnant.data.published import (
    LABELS,
    cifar_files,
    idx_images,
    read_cifar_archive,
    read_cifar_files,
    read_idx,
    read_mat,
)
from remnant.data.reading import LIMIT, Raw, make_examples
from remnant.errors import DataError, expected
from remnant.types import Examples
from remnant.untrusted.files import Budget, exists, shown

Reader = Callable[[Path, Budget], Raw]

ENV = "REMNANT_DATA"
TARS = (".tar.gz", ".tgz", ".tar")
ENDINGS: dict[str, Reader] = {
    ".npz": read_npz, ".csv": read_csv, ".tsv": read_csv, ".mat": read_mat,
    **dict.fromkeys(TARS, read_cifar_archive),
}  # fmt: skip

# Short names for what the sets are called as their authors publish them.
PUBLISHED = {
    "mnist-full": ("MNIST/raw",),
    "cifar10": (
        "cifar-10-batches-bin",
        "cifar-10-binary.tar.gz",
        "cifar-10-batches-py",
        "cifar-10-python.tar.gz",
    ),
    "cifar100": (
        "cifar-100-binary",
        "cifar-100-binary.tar.gz",
        "cifar-100-python",
        "cifar-100-python.tar.gz",
    ),
    "svhn": ("train_32x32.mat",),
}


def load(source: str | Path, *, data_dir: str | Path | None = None, limit: int = LIMIT) -> Examples:
    """Records from `source`: a bundled name, a file or folder, or either below the data directory.

    The data directory is `data_dir`, else the environment's REMNANT_DATA. Below it, endings may be
    left off (`cifar10` finds `cifar10.npz` or the archive as published). A bundled name goes first;
    `./mnist` or a Path is always a path. Files: npz, csv, idx, CIFAR archives, SVHN's mat, folders
    of pictures. `limit` is the most bytes that the inputs may fill as float32.
    """
    if isinstance(source, str) and source in BUNDLED:
        return BUNDLED[source]()
    path = find(source, data_dir)
    read, ending = _format(path)
    name = path.name if path.is_file() else path.resolve().name
    budget = Budget(limit)
    return make_examples(read(path, budget), name[: len(name) - len(ending)], budget, path)


def find(source: str | Path, data_dir: str | Path | None = None) -> Path:
    """The file or folder that `source` names: as it is, or below the data directory."""
    places = list(dict.fromkeys(_places(source, data_dir)))
    found = next((path for path in places if exists(path)), None)
    if found is None:
        wanted = f"a bundled name ({', '.join(BUNDLED)}), a file or a folder"
        looked = ", ".join([*map(str, places[:1]), *(p.name for p in places[1:])]) or "nowhere"
        root = data_dir or os.environ.get(ENV)
        where = f" in {root}" if root else f"; set {ENV} to the data directory"
        raise DataError(expected("data", wanted, shown(str(source)), f"looked at {looked}{where}"))
    return found


def _places(source: str | Path, data_dir: str | Path | None) -> Iterator[Path]:
    if not str(source):
        return
    path = Path(os.path.expanduser(source))
    yield path
    root = data_dir or os.environ.get(ENV)
    if root and not path.is_absolute():
        below = Path(os.path.expanduser(root))
        names = (str(path), f"{path}.npz", *(f"{path}{end}" for end in TARS))
        yield from (below / name for name in (*names, *PUBLISHED.get(str(source), ())))


def _format(path: Path) -> tuple[Reader, str]:
    """What reads the file or folder, and the ending that is no part of its name."""
    name = path.name.lower()
    if path.is_dir():
        batches = cifar_files(path)
        if idx_images(path) is not None:
            return lambda folder, budget: read_idx(idx_images(folder) or folder, budget), ""
        if batches:
            return lambda _, budget: read_cifar_files(batches, budget), ""
        return read_folder, ""
    if not path.is_file():  # a pipe would be waited for, a device never ends
        raise DataError(expected(str(path), "a file or a folder", "a device or a pipe"))
    for ending, reader in ENDINGS.items():
        if name.endswith(ending):
            return reader, ending
    if "idx3" in name or "idx1" in name:
        return read_idx, ".gz" if name.endswith(".gz") else ""
    if path.name in LABELS:
        return lambda file, budget: read_cifar_files([file], budget), ""
    if name.endswith((".txt", ".jsonl")):
        do = "give a Hugging Face directory as --weights or --model hf:DIR"
        raise DataError(expected(str(path), "data of a model of numbers", "texts", do))
    wanted = "npz, csv, idx (train-images-idx3-ubyte), a CIFAR archive (tar.gz), SVHN's mat"
    got = path.suffix or "no ending"
    raise DataError(expected(str(path), f"{wanted} or a folder of pictures", got))
