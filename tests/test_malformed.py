"""Malformed specs, weights and data: one clear line, exit code 2, soon, and little memory.

Every case runs in a forked child whose address space may grow by 2 GB and which is killed after
five seconds of CPU time.
"""

import gzip
import io
import json
import math
import os
import pickle
import resource
import signal
import struct
import subprocess
import sys
import tarfile
import traceback
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image
from torch import nn

from remnant.auditing.adversaries import make_attack
from remnant.cli import main
from remnant.data import load
from remnant.errors import InputError

SECONDS, BYTES = 5, 2 * 1024**3
STATE = {
    "1.weight": torch.linspace(-1, 1, 640).reshape(10, 64),
    "1.bias": torch.zeros(10),
    "3.weight": torch.linspace(-1, 1, 100).reshape(10, 10),
    "3.bias": torch.ones(10),
}
DIGITS = load("digits")
X, Y = DIGITS.inputs[:20].numpy(), DIGITS.labels[:20].numpy()
IDX = struct.pack(">4B3I", 0, 0, 8, 3, 20, 8, 8) + bytes(20 * 64)
LABELS = struct.pack(">4BI", 0, 0, 8, 1, 20) + bytes(20)


class Bomb:
    """Unpickling it writes a file."""

    def __reduce__(self):
        return (open, ("/tmp/remnant-test-bomb", "w"))


# What writes a file: bytes, or a function of the path.


def tensors(**changes):
    whole = {**STATE, **{name.replace("_", "."): value for name, value in changes.items()}}
    return safetensors.torch.save({k: v for k, v in whole.items() if v is not None})


def header(text, body=b"\0" * 8):
    raw = text if isinstance(text, bytes) else json.dumps(text).encode()
    return struct.pack("<Q", len(raw)) + raw + body


def one(**fields):
    return header({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | fields})


def by_torch(value, **how):
    file = io.BytesIO()
    torch.save(value, file, **how)
    return file.getvalue()


def packed_torch():
    """A state dict's archive again, its pickle deflated together with zeros."""
    file = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(by_torch(STATE))) as old,
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for info in old.infolist():
            body = old.read(info)
            more = bytes(2**22) if info.filename.endswith("data.pkl") else b""
            new.writestr(info.filename, body + more)
    return file.getvalue()


def scripted(path):
    torch.jit.trace(nn.Linear(2, 2), torch.zeros(1, 2)).save(str(path))


def sparse(path):
    with path.open("wb") as file:
        file.truncate(20 * 1024**3)


def npz(packed=False, **changes):
    file = io.BytesIO()
    arrays = {k: v for k, v in ({"x": X, "y": Y} | changes).items() if v is not None}
    (np.savez_compressed if packed else np.savez)(file, **arrays)
    return file.getvalue()


def npy(shape, descr="|u1", body=b"", order="False"):
    text = f"{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}"
    text = text.ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode() + body


def archive(kind=zipfile.ZIP_STORED, **members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", kind) as made:
        for name, body in members.items():
            made.writestr(f"{name}.npy", body)
    return file.getvalue()


def saved(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def encrypted():
    whole = bytearray(npz())
    for mark, at in ((b"PK\x01\x02", 8), (b"PK\x03\x04", 6)):
        place = whole.find(mark)
        while place >= 0:
            whole[place + at] |= 1
            place = whole.find(mark, place + 1)
    return bytes(whole)


def zeros(megabytes, before=b""):
    """Zero bytes, packed by gzip without ever being there."""
    pack = zlib.compressobj(1, zlib.DEFLATED, 31)
    chunks = [pack.compress(before), *(pack.compress(bytes(2**20)) for _ in range(megabytes))]
    return b"".join([*chunks, pack.flush()])


def bomb(name, shape, **members):
    """An archive with an array of zero bytes of that shape."""

    def write(path):
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as made:
            with made.open(f"{name}.npy", "w") as member:
                member.write(npy(shape))
                for _ in range(math.prod(shape) // 2**20):
                    member.write(bytes(2**20))
            for other, body in members.items():
                made.writestr(f"{other}.npy", body)

    return write


def idx_bomb(path):
    pixels = IDX[:4] + struct.pack(">3I", 80 * 2**10, 32, 32)
    images(pixels=zeros(80, pixels))(path)


def tar_of(**members):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as made:
        for name, body in members.items():
            info = tarfile.TarInfo(name.replace("__", "/"))
            info.size = len(body)
            made.addfile(info, io.BytesIO(body))
    return file.getvalue()


def link_in_tar(path):
    with tarfile.open(path, "w:gz") as made:
        info = tarfile.TarInfo("cifar-10-batches-bin/data_batch_1.bin")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
        made.addfile(info)


def images(labels=LABELS, pixels=IDX):
    def write(path):
        path.write_bytes(pixels)
        path.with_name(path.name.replace("images", "labels").replace("idx3", "idx1")).write_bytes(
            labels
        )

    return write


def pictures(**files):
    def write(path):
        for number, body in files.values():
            folder = path / f"class{number}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "a.png").write_bytes(body)

    return write


def png(mode="L", size=(8, 8)):
    file = io.BytesIO()
    Image.new(mode, size).save(file, "png")
    return file.getvalue()


def wide_png():
    """A picture of 2 kB that says it is 12000 x 12000."""
    raw = bytearray(png())
    raw[16:24] = struct.pack(">II", 12000, 12000)
    raw[29:33] = struct.pack(">I", zlib.crc32(raw[12:29]))
    return bytes(raw)


def pipe(path):
    os.mkfifo(path)


def device(path):
    path.symlink_to("/dev/zero")


def loop(path):
    path.symlink_to(path)


def folder(path):
    path.mkdir()


WEIGHTS = {
    # file name, its content, what the line must say
    "empty": ("w.safetensors", b"", "empty file"),
    "short": ("w.safetensors", b"abc", "header too small"),
    "text": ("w.safetensors", b"hello, this is not a model", "damaged or other"),
    "truncated": ("w.safetensors", tensors()[:-100], "damaged or other"),
    "cut in the header": ("w.safetensors", tensors()[:40], "damaged or other"),
    "header of 2**60": ("w.safetensors", struct.pack("<Q", 2**60) + b"{}", "header too large"),
    "header past the end": ("w.safetensors", struct.pack("<Q", 2**26) + b"{}", "header length"),
    "header not JSON": ("w.safetensors", header(b"{{{{{{{{"), "damaged or other"),
    "header not UTF-8": ("w.safetensors", header(b'{"\xff": 1}'), "damaged or other"),
    "header nested": ("w.safetensors", header(b"[" * 100_000), "damaged or other"),
    "20 GB of nothing": ("w.safetensors", sparse, "begin otherwise"),
    "negative size": ("w.safetensors", one(shape=[-2]), "damaged or other"),
    "huge shape": ("w.safetensors", one(shape=[2**40]), "damaged or other"),
    "shape that overflows": ("w.safetensors", one(shape=[2**40, 2**40]), "damaged or other"),
    "offsets turned": ("w.safetensors", one(data_offsets=[8, 0]), "damaged or other"),
    "offsets outside": ("w.safetensors", one(data_offsets=[0, 800]), "damaged or other"),
    "unknown dtype": ("w.safetensors", one(dtype="F99"), "damaged or other"),
    "no tensors": ("w.safetensors", header({}, b""), "empty state dict"),
    "NaN": ("w.safetensors", tensors(**{"1_bias": torch.full((10,), torch.nan)}), "NaN or inf"),
    "infinity": ("w.safetensors", tensors(**{"3_bias": torch.full((10,), torch.inf)}), "NaN or"),
    "int32": ("w.safetensors", tensors(**{"1_weight": torch.ones(10, 64).int()}), "floats"),
    "all int32": (
        "w.safetensors",
        safetensors.torch.save({k: v.int() for k, v in STATE.items()}),
        "expected floats, got torch.int32",
    ),
    "bool": ("w.safetensors", tensors(**{"3_bias": torch.ones(10).bool()}), "floats"),
    "complex": ("w.pt", by_torch({"a": torch.zeros(3, dtype=torch.complex64)}), "real numbers"),
    "a bias too long": ("w.safetensors", tensors(**{"1_bias": torch.ones(11)}), "dense layers"),
    "a layer missing": ("w.safetensors", tensors(**{"3_weight": None}), "dense layers"),
    "layers that do not meet": (
        "w.safetensors",
        tensors(**{"3_weight": torch.ones(10, 7)}),
        "dense layers",
    ),
    "another input": ("w.safetensors", tensors(**{"1_weight": torch.ones(10, 63)}), "63 numbers"),
    "no width at all": ("w.safetensors", tensors(**{"1_weight": torch.ones(0, 64)}), "dense"),
    "a name with a line": ("w.safetensors", one()[:9] + b"a\\nb" + one()[10:], "damaged or other"),
    "a pickle bomb": ("w.pt", pickle.dumps(Bomb(), protocol=2), "could run code"),
    "a newer pickle bomb": ("w.pth", pickle.dumps(Bomb(), protocol=4), "w.pth"),
    "a bomb by torch": ("w.pt", by_torch({"a": Bomb()}), "could run code"),
    "a bomb in the old format": (
        "w.ckpt",
        by_torch(Bomb(), _use_new_zipfile_serialization=False),
        "could run code",
    ),
    "a whole model": ("w.pt", by_torch(nn.Linear(2, 2)), "could run code"),
    "TorchScript": ("w.pt", scripted, "TorchScript"),
    "a zip bomb by torch": ("w.pt", packed_torch(), "packed archive"),
    "20 GB of zeros": ("w.pt", sparse, "begin otherwise"),
    "a truncated archive": ("w.pt", by_torch(STATE)[:-200], "damaged or other"),
    "a claimed view": ("w.pt", by_torch({"a": torch.zeros(1).expand(10**12)}), "stored in full"),
    "sparse tensor": ("w.pt", by_torch({"a": torch.eye(3).to_sparse()}), "dense tensor"),
    "meta tensor": ("w.pt", by_torch({"a": torch.zeros(3, device="meta")}), "on meta"),
    "a list": ("w.pt", by_torch([torch.ones(3)]), "got a list"),
    "numbers for tensors": ("w.pt", by_torch({"epoch": 3}), "a int under 'epoch'"),
    "a name that climbs": ("w.pt", by_torch({"../../a\n": torch.ones(3)}), "under"),
    "another suffix": ("w.h5", b"\x89HDF", "got .h5"),
    "no suffix": ("weights", b"x", "no suffix"),
    "a folder": ("w.pt", folder, "a folder"),
    "a pipe": ("w.pt", pipe, "a device or a pipe"),
    "a device": ("w.safetensors", device, "a device or a pipe"),
    "a symlink loop": ("w.pt", loop, "no such file"),
}

DATA = {
    "empty": ("d.npz", b"", "not a zip"),
    "not a zip": ("d.npz", b"x,y\n1,2\n", "not a zip"),
    "truncated": ("d.npz", npz()[:-300], "cut short"),
    "no y": ("d.npz", npz(y=None), "x and y"),
    "objects": ("d.npz", npz(x=np.array([{}, []] * 10, dtype=object)), "Python objects"),
    "a pickle in place of x": ("d.npz", archive(x=pickle.dumps(Bomb()), y=saved(Y)), "a fault"),
    "huge shape": ("d.npz", archive(x=npy((10**6, 10**6)), y=saved(Y)), "GB declared"),
    "shape that overflows": ("d.npz", archive(x=npy((2**40, 2**40)), y=saved(Y)), "GB declared"),
    "negative shape": ("d.npz", archive(x=npy((-5, 64)), y=saved(Y)), "at least 0"),
    "shape of text": ("d.npz", archive(x=npy(("'a'", 3)), y=saved(Y)), "a fault"),
    "header that nests": ("d.npz", archive(x=npy("(" * 90), y=saved(Y)), "a fault"),
    "long header": ("d.npz", archive(x=npy((20, *[1] * 9000)), y=saved(Y)), "a fault"),
    "too short for its shape": ("d.npz", archive(x=npy((20, 64)), y=saved(Y)), "a fault"),
    "a zip bomb": ("d.npz", bomb("x", (2**17, 640), y=saved(np.zeros(2**17))), "100 to 1"),
    "encrypted": ("d.npz", encrypted(), "another packing"),
    "packed by LZMA": ("d.npz", archive(zipfile.ZIP_LZMA, x=saved(X), y=saved(Y)), "packing"),
    "NaN": ("d.npz", npz(x=np.where(X > 0.9, np.nan, X)), "NaN or infinity"),
    "beyond float32": ("d.npz", npz(x=X.astype(float) * 1e300), "finite float32"),
    "complex": ("d.npz", npz(x=X.astype(complex)), "uint8 0..255 or floats"),
    "texts for x": ("d.npz", npz(x=np.array([["a"] * 64] * 20)), "uint8 0..255 or floats"),
    "no records": ("d.npz", npz(x=X[:0], y=Y[:0]), "at least 1"),
    "records of nothing": ("d.npz", npz(x=np.zeros((20, 0))), "at least 1"),
    "one number a record": ("d.npz", npz(x=np.zeros(20)), "n x shape"),
    "records of another shape": ("d.npz", npz(x=X[:, :, :7]), "64 numbers"),
    "too few labels": ("d.npz", npz(y=Y[:5]), "one a record"),
    "texts for labels": ("d.npz", npz(y=np.array(["cat"] * 20)), "integers"),
    "negative labels": ("d.npz", npz(y=Y - 5), "classes 0, 1"),
    "labels past the outputs": ("d.npz", npz(y=Y + 5), "--data"),
    "labels past int64": ("d.npz", npz(y=np.full(20, 2**64 - 1, dtype=np.uint64)), "classes"),
    "NaN labels": ("d.npz", npz(y=np.full(20, np.nan)), "NaN or infinity"),
    "ids that climb": (
        "d.npz",
        npz(id=np.array([f"../../etc/{i}" for i in range(20)])),
        "leads upward",
    ),
    "ids from the root": ("d.npz", npz(id=np.array([f"/etc/{i}" for i in range(20)])), "upward"),
    "ids that climb in Windows": (
        "d.npz",
        npz(id=np.array([f"a\\..\\..\\{i}" for i in range(20)])),
        "leads upward",
    ),
    "ids with a line": ("d.npz", npz(id=np.array([f"a\n{i}" for i in range(20)])), "printable"),
    "empty ids": ("d.npz", npz(id=np.array([""] + [str(i) for i in range(19)])), "printable"),
    "long ids": ("d.npz", npz(id=np.array([f"{i:0600d}" for i in range(20)])), "1 to 512"),
    "ids twice": ("d.npz", npz(id=np.array(["a"] * 20)), "20 different ones"),
    "too few ids": ("d.npz", npz(id=np.arange(3)), "20 different ones"),
    "ids that are no text": ("d.npz", npz(id=np.array([b"\xff\xfe"] * 20)), "a fault"),
    "real ids": ("d.npz", npz(id=np.linspace(0, 1, 20)), "not n texts or integers"),
    "idx of another magic": ("t-images-idx3-ubyte", images(pixels=b"\1" + IDX[1:]), "magic"),
    "idx cut short": ("t-images-idx3-ubyte", images(pixels=IDX[:-9]), "bytes"),
    "idx too long": ("t-images-idx3-ubyte", images(pixels=IDX + b"\0"), "got more"),
    "idx header cut": ("t-images-idx3-ubyte", images(pixels=IDX[:10]), "a fault"),
    "idx of 2**96 pixels": (
        "t-images-idx3-ubyte",
        images(pixels=IDX[:4] + b"\xff" * 12),
        "GB declared",
    ),
    "idx without labels": ("t-images-idx3-ubyte", IDX, "beside it"),
    "idx with too few labels": (
        "t-images-idx3-ubyte",
        images(labels=struct.pack(">4BI", 0, 0, 8, 1, 5) + bytes(5)),
        "one a record",
    ),
    "idx bomb": ("t-images-idx3-ubyte", idx_bomb, "100 to 1"),
    "idx gz cut short": ("t-images-idx3-ubyte", images(pixels=gzip.compress(IDX)[:30]), "a fault"),
    "CIFAR of half a record": ("data_batch_1.bin", bytes(3073 + 5), "records of 3073 bytes"),
    "CIFAR with a foreign name": ("data_batch_1", pickle.dumps(Bomb(), protocol=2), "open"),
    "CIFAR cut short": ("data_batch_1", pickle.dumps({b"data": 1}, protocol=2)[:-4], "binary"),
    "CIFAR without arrays": ("data_batch_1", pickle.dumps({b"data": [1]}), "binary archive"),
    "CIFAR with a memo bomb": ("data_batch_1", b"\x80\x02Nr\xff\xff\xff\xff.", "memo larger"),
    "tar without CIFAR": ("c.tar.gz", tar_of(readme=b"hello"), "CIFAR batches"),
    "tar with a link": ("c.tar.gz", link_in_tar, "a link or a device"),
    "tar bomb": ("c.tar.gz", lambda path: path.write_bytes(zeros(80)), "unpacked"),
    "tar that is none": ("c.tar", b"\0" * 100, "truncated header"),
    "a folder without pictures": ("pictures", folder, "at least 1"),
    "pictures that are none": ("pictures", pictures(a=(0, b"not a picture")), "a fault"),
    "a picture cut short": ("pictures", pictures(a=(0, png()[:44])), "a fault"),
    "pictures of two sizes": ("pictures", pictures(a=(0, png()), b=(1, png(size=(9, 9)))), "size"),
    "a picture of 16 bits": ("pictures", pictures(a=(0, png("I;16"))), "8-bit"),
    "a picture bomb": ("pictures", pictures(a=(0, wide_png())), "a fault"),
    "another ending": ("d.csv", b"1,2\n", "got .csv"),
    "a pipe": ("d.npz", pipe, "a device or a pipe"),
    "a device": ("d.npz", device, "a device or a pipe"),
    "a symlink loop": ("d.npz", loop, "looked at"),
    "a folder named npz": ("d.npz", folder, "at least 1"),
}

SPECS = {
    "empty": (b"", "fields such as"),
    "a list": (b"- weights: w", "fields such as"),
    "half a list": (b"weights: [", "expected YAML"),
    "a tab": (b"weights:\tw\n\tdata: x", "expected YAML"),
    "a Python object": (b"weights: !!python/object/apply:os.system ['true']", "expected YAML"),
    "a million laughs": (b"a: &a [x, x]\nb: &b [*a, *a]\nweights: *b\n", "an alias"),
    "latin-1": (b"weights: \xe9t\xe9\ndata: x", "UTF-8"),
    "UTF-16": ("weights: w\ndata: x".encode("utf-16"), "UTF-8"),
    "zeros": (bytes(100), "expected YAML"),
    "two megabytes": (b"# " + b"x" * 2**21, "at most"),
    "deep": (b"weights: " + b"[" * 50_000, "more than 20 levels"),
    "two documents": (b"weights: w\n---\ndata: x", "expected YAML"),
    "an unknown key": (b"weights: w\ndata: x\ncolour: red", "colour: expected one of weights"),
    "a number for a key": (b"weights: w\ndata: x\n1: 2", "names as keys"),
    "seed below 0": (b"weights: w\ndata: x\nseed: -1", "seed: expected"),
    "NaN": (b"weights: w\ndata: x\nthreshold: .nan", "threshold: expected"),
    "no steps of privacy": (b"weights: w\ndata: x\nprivacy: {noise: 1}", "privacy.steps"),
    "noise below 0": (b"weights: w\ndata: x\nprivacy: {noise: -1, steps: 3}", "privacy.noise"),
    "an endless budget": (b"weights: w\ndata: x\nbudget: .inf", "budget: expected"),
    "an unknown attack": (b"weights: w\ndata: x\nattacks: [magic]", "attacks.0"),
    "a folder": (folder, "a folder, a device or a pipe"),
    "a pipe": (pipe, "a folder, a device or a pipe"),
    "a device": (device, "a folder, a device or a pipe"),
    "a symlink loop": (loop, "symbolic links"),
}

FLAGS = {
    "no holdout": ({"holdout": None}, "a verdict needs a null"),
    "holdout trained on": ({"holdout": "{good}/train.npz"}, "must not have been trained on"),
    "no such data": ({"data": "{good}/none.npz"}, "looked at"),
    "data with a zero": ({"data": "a\0b"}, "looked at"),
    "data of 5000 letters": ({"data": "x" * 5000}, "expected"),
    "no such weights": ({"weights": "none.pt"}, "no such file"),
    "width 0": ({"model": "mlp:64-0-10"}, "a positive width"),
    "width below 0": ({"model": "mlp:64--3-10"}, "a positive width"),
    "an absurd width": ({"model": "mlp:64-999999999-10"}, "at most 1000000000 parameters"),
    "a model of 900 million": ({"model": "mlp:64-30000-30000-10"}, "the model of these weights"),
    "another model": ({"model": "mlp:64-10-9"}, "--weights"),
    "convolutions past the input": ({"model": "cnn:1x8x8-c4k9-10"}, "an input that it fits in"),
    "a model of words": ({"model": "resnet"}, "mlp:784-300-10"),
    "a factory that is not there": ({"model": "none.py:make"}, "none.py"),
    "a factory that raises": ({"model": "{good}/broken.py:make"}, "broken.py"),
    "a file that does not parse": ({"model": "{good}/syntax.py:make"}, "syntax.py"),
    "a factory of no module": ({"model": "{good}/broken.py:number"}, "broken.py"),
    "std 0": ({"std": "0"}, "positive numbers"),
    "mean NaN": ({"mean": "nan"}, "numbers such as"),
    "mean of another shape": ({"mean": "1,2,3"}, "1 or 1 numbers"),
    "mean of nothing": ({"mean": "none.safetensors"}, "no such file"),
    "bounds that fall": ({"bounds": "1,0"}, "two rising numbers"),
    "shape below 0": ({"shape": "-1x64"}, "sizes such as"),
    "another shape": ({"shape": "1x9x9"}, "64 numbers"),
    "an unknown loss": ({"loss": "hinge"}, "hinge"),
    "a gradient of another model": ({"gradient": "{good}/other.safetensors"}, "--gradient"),
    "a recipe that is none": ({"recipe": "{good}/broken.py"}, "a JSON file"),
    "a recipe of nothing": ({"recipe": "{good}/list.json"}, "fields of a recipe"),
}

LINEAR = {
    "not JSON": ("m.json", b"{", "a JSON file"),
    "not UTF-8": ("m.json", b'{"\xff"', "a JSON file"),
    "nested": ("m.json", b"[" * 100_000, "a JSON file"),
    "a list": ("m.json", b"[]", "a JSON object"),
    "no coef": ("m.json", b'{"family": "linear"}', "no coef"),
    "NaN": ("m.json", b'{"family": "linear", "coef": [NaN]}', "finite numbers"),
    "1e999": ("m.json", b'{"family": "linear", "coef": [1e999]}', "finite numbers"),
    "uneven rows": ("m.json", b'{"family": "linear", "coef": [[1], [1, 2]]}', "even rows"),
    "texts": ("m.json", b'{"family": "linear", "coef": ["a"]}', "finite numbers"),
    "a number of 9000 digits": ("m.json", b'{"coef": ' + b"9" * 9000 + b"}", "a JSON file"),
    "an unknown name": ("m.json", b'{"family": "linear", "coef": [1], "x": 1}', "names"),
    "an unknown family": ("m.json", b'{"family": "cox", "coef": [1]}', "linear or logistic"),
    "objects": ("m.npz", npz(x=np.array([{}], dtype=object)), "an npz archive"),
    "an npz bomb": ("m.npz", bomb("coef", (2**29,)), "at most"),
    "an array that is not there": ("m.npz", archive(coef=npy((10**12,))), "an npz archive"),
    "a solver that is none": (
        "m.npz",
        archive(coef=saved(np.ones(64)), family=saved(np.array("linear")), solver=saved("{")),
        "solver: expected JSON",
    ),
    "a skops file that is none": ("m.skops", b"PK\x03\x04", "m.skops"),
    "a skops file of code": (
        "m.skops",
        archive(a=b"x").replace(b"a.npy", b"b.npy"),
        "m.skops",
    ),
    "a pipe": ("m.skops", pipe, "m.skops"),
    "a pickled estimator": ("m.pkl", pickle.dumps(Bomb()), ".pkl"),
}

TABLES = {"weights": WEIGHTS, "data": DATA, "spec": SPECS, "flags": FLAGS, "linear": LINEAR}
CASES = [(table, name) for table, cases in TABLES.items() for name in cases]
BROKEN_FILE = "def make():\n    raise RuntimeError('two\\nlines')\ndef number():\n    return 3\n"


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """Files with which an audit would begin."""
    path = tmp_path_factory.mktemp("good")
    (path / "w.safetensors").write_bytes(tensors())
    (path / "other.safetensors").write_bytes(tensors(**{"1_weight": torch.ones(9, 64)}))
    (path / "train.npz").write_bytes(npz())
    held = DIGITS.take(range(100, 140))
    (path / "test.npz").write_bytes(npz(x=held.inputs.numpy(), y=held.labels.numpy()))
    (path / "broken.py").write_text(BROKEN_FILE)
    (path / "syntax.py").write_text("def make(:\n")
    (path / "list.json").write_text("[]")
    # What verbs import on first use is imported once here, and not in every child.
    assert main(["preflight", *whole(path), "--quiet", "--attacks=kkt"]) == 0
    return path


def whole(good):
    """The flags of an audit that would begin."""
    files = {"weights": "w.safetensors", "data": "train.npz", "holdout": "test.npz"}
    return [f"--{flag}={good / file}" for flag, file in files.items()]


def written(path, content):
    if callable(content):
        content(path)
    else:
        path.write_bytes(content)
    return str(path)


def arguments(table, name, good, tmp_path):
    """What a user types, and what the line has to say."""
    flags = dict(flag.removeprefix("--").split("=") for flag in whole(good))
    *file, content, words = TABLES[table][name]
    if table == "spec":
        return ["audit", written(tmp_path / "audit.yaml", content)], words
    if table == "flags":
        changes = {
            flag: value and value.replace("{good}", str(good)) for flag, value in content.items()
        }
        flags |= changes
    else:
        flags["data" if table == "data" else "weights"] = written(tmp_path / file[0], content)
    given = [f"--{flag}={value}" for flag, value in flags.items() if value]
    return ["audit", *given], words


def limited(given, out):
    """Exit code and both outputs of a forked child, within SECONDS and BYTES."""
    child = os.fork()
    if not child:  # nothing of the parent's is touched from here on
        code = 1
        try:
            for stream in (1, 2):
                os.dup2(os.open(out / f"stream{stream}", os.O_CREAT | os.O_WRONLY), stream)
            sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
            now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (now + BYTES, now + BYTES))
            resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))
            signal.alarm(120)  # of waiting for what never comes
            code = main([*given, "--out", str(out / "found")])
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status, (out / "stream1").read_text(), (out / "stream2").read_text()


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="limits are Linux's")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # TorchScript; fork beside threads
@pytest.mark.parametrize(("table", "name"), CASES, ids=lambda part: part.replace(" ", "_"))
def test_a_malformed_file_is_one_clear_line(good, tmp_path, table, name):
    given, words = arguments(table, name, good, tmp_path)
    code, out, err = limited(given, tmp_path)
    assert (code, out) == (2, ""), err
    assert err.startswith("remnant: ")
    assert err.count("\n") == 1, err
    assert words in err
    assert len(err) < 1200
    assert not Path("/tmp/remnant-test-bomb").exists()
    assert not (tmp_path / "found").exists()


@pytest.mark.parametrize(
    ("attack", "settings"),
    [
        ("ntk", {"starts": "many"}),
        ("ntk", {"starts": -3}),
        ("ntk", {"patience": None}),
        ("ntk", {"speed": 3}),
        ("ntk", {"preset": "magic"}),
        ("kkt", {"steps": 0.5}),
        ("kkt", {"steps": [1]}),
        ("kkt", {"whiten": float("nan")}),
        ("gradient", {"walkers": {"a": 1}}),
        ("informed", {"replaying": {"evaluations": "a\nb"}}),
        ("glm", {"trusted": float("inf")}),
    ],
    ids=str,
)
def test_a_malformed_setting_is_one_clear_line(attack, settings):
    with pytest.raises(InputError) as caught:
        make_attack(attack, settings)
    said = str(caught.value)
    assert attack in said or "expected" in said
    assert len(said.splitlines()) == 1


def test_there_are_many_of_them():
    assert len(CASES) >= 150
    assert {name: len(cases) for name, cases in TABLES.items()}["spec"] >= 20


@pytest.mark.parametrize("name", ["20 GB of nothing", "a zip bomb by torch"])
def test_a_fresh_command_says_the_same(good, tmp_path, name):
    given, words = arguments("weights", name, good, tmp_path)
    command = [sys.executable, "-m", "remnant", *given, "--out", str(tmp_path / "found")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert words in done.stderr
