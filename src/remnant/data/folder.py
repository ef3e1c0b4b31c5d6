"""Folders of pictures: `folder/class/*.png`, or a flat folder, which is one class. The pictures of
a class may lie in one folder below its own, as in Tiny-ImageNet's `train/class/images/*.JPEG`.

Classes are numbered by sorted name, records are named by their path below the folder. Pictures
are 8-bit and of one size; they are greyscale if all are, else RGB (transparency is dropped).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image

from remnant.data.reading import RECORD, Raw
from remnant.errors import DataError, expected
from remnant.progress import task
from remnant.untrusted.files import Budget, reading

ENDINGS = {".png", ".jpg", ".jpeg", ".bmp", ".webp"}
FORMATS = ("PNG", "JPEG", "BMP", "WEBP")  # the only decoders that a file may reach
GREY = {"1", "L", "LA"}
COLOUR = {"P", "PA", "RGB", "RGBA", "CMYK", "YCbCr"}


def read_folder(folder: Path, budget: Budget) -> Raw:
    """The pictures of a folder, one class a subfolder."""
    with reading(folder):
        files, labels = _files(folder)
    (width, height), mode = _common(files, budget)
    shape = (len(files), 1 if mode == "L" else 3, height, width)
    budget.take(folder, math.prod(shape) + RECORD * len(files))
    pixels = np.empty(shape, dtype=np.uint8)
    with task("reading pictures", total=len(files)) as step:
        for row, path in zip(pixels, files, strict=True):
            with _picture(path) as image:
                values = np.asarray(image.convert(mode))
            row[:] = values.reshape(height, width, -1).transpose(2, 0, 1)
            step()
    ids = [path.relative_to(folder).as_posix() for path in files]
    return Raw(pixels, np.array(labels), (0.0, 1.0), ids)


@contextmanager
def _picture(path: Path) -> Iterator[Image.Image]:
    """The picture at `path`; one that would fill the memory is a fault, not a warning."""
    with reading(path), warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with Image.open(path, formats=FORMATS) as image:
            yield image


def _pictures(folder: Path, paths: Iterable[Path]) -> list[Path]:
    """Those of the paths below the folder, hidden ones and those in hidden folders aside."""
    files = (path for path in paths if path.suffix.lower() in ENDINGS and path.is_file())
    return sorted(p for p in files if not any(x[0] == "." for x in p.relative_to(folder).parts))


def _files(folder: Path) -> tuple[list[Path], list[int]]:
    """The pictures and the number of each one's class."""
    flat = _pictures(folder, folder.iterdir())
    below = sorted(p for p in folder.iterdir() if p.is_dir() and p.name[0] != ".")
    classes = [found for one in below if (found := _pictures(one, one.rglob("*")))]
    do = "give the folder whose subfolders are the classes"
    if flat and classes:
        got = f"{flat[0].name} beside the folder {classes[0][0].parent.name}"
        raise DataError(expected(str(folder), "pictures or one folder a class", got))
    if not flat and not classes:
        wanted = f"pictures ({', '.join(sorted(ENDINGS))}), idx files or CIFAR batches"
        raise DataError(expected(f"{folder}: records", f"at least 1: {wanted}", "none", do))
    for found in classes:
        if len({path.parent for path in found}) > 1:
            what = f"{found[0].parent}: pictures of a class"
            raise DataError(expected(what, "one folder", "several", do))
    classes = classes or [flat]
    labels = [label for label, pictures in enumerate(classes) for _ in pictures]
    return [path for pictures in classes for path in pictures], labels


def _common(files: list[Path], budget: Budget) -> tuple[tuple[int, int], str]:
    """The size (width, height) that all share, and the mode that holds them all: L or RGB."""
    headers = [_header(path, budget) for path in files]
    for path, (size, mode) in zip(files, headers, strict=True):
        if size != headers[0][0]:
            want = f"{headers[0][0][0]} x {headers[0][0][1]} pixels as in {files[0].name}"
            do = "bring all pictures to one size"
            raise DataError(expected(str(path), want, f"{size[0]} x {size[1]}", do))
        if mode not in GREY | COLOUR:
            raise DataError(expected(str(path), "an 8-bit picture", f"mode {mode}"))
    return headers[0][0], "L" if {mode for _, mode in headers} <= GREY else "RGB"


def _header(path: Path, budget: Budget) -> tuple[tuple[int, int], str]:
    budget.add_file(path)
    with _picture(path) as image:
        return image.size, image.mode
