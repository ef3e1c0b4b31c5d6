"""Weights and data that are malformed, each with what the line about it must say."""

import gzip
import io
import json
import math
import os
import pickle
import struct
import tarfile
import zipfile
import zlib

import numpy as np
import safetensors.torch
import torch
from PIL import Image
from torch import nn

from remnant.data import load

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
    "20 GB of nothing": ("w.safetensors", sparse, "all there"),
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
    "20 GB of zeros": ("w.pt", sparse, "all there"),
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
    "a symlink loop": ("w.pt", loop, "symbolic links"),
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
    "a zip bomb": ("d.npz", bomb("x", (2**17, 640), y=saved(np.zeros(2**17))), "400 to 1"),
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
    "idx bomb": ("t-images-idx3-ubyte", idx_bomb, "400 to 1"),
    "idx gz cut short": ("t-images-idx3-ubyte", images(pixels=gzip.compress(IDX)[:30]), "a fault"),
    "CIFAR of half a record": ("data_batch_1.bin", bytes(3073 + 5), "records of 3073 bytes"),
    "CIFAR with a foreign name": ("data_batch_1", pickle.dumps(Bomb(), protocol=2), "open"),
    "CIFAR cut short": ("data_batch_1", pickle.dumps({b"data": 1}, protocol=2)[:-4], "binary"),
    "CIFAR without arrays": ("data_batch_1", pickle.dumps({b"data": [1]}), "binary archive"),
    "CIFAR with a memo bomb": ("data_batch_1", b"\x80\x02Nr\xff\xff\xff\xff.", "memo larger"),
    "tar without CIFAR": ("c.tar.gz", tar_of(readme=b"hello"), "CIFAR batches"),
    "tar with a link": ("c.tar.gz", link_in_tar, "a link or a device"),
    "tar bomb": ("c.tar.gz", lambda path: path.write_bytes(zeros(80)), "header of a tar"),
    "tar that is none": ("c.tar", b"\0" * 100, "header of a tar"),
    "a folder without pictures": ("pictures", folder, "at least 1"),
    "pictures that are none": ("pictures", pictures(a=(0, b"not a picture")), "a fault"),
    "a picture cut short": ("pictures", pictures(a=(0, png()[:44])), "a fault"),
    "pictures of two sizes": ("pictures", pictures(a=(0, png()), b=(1, png(size=(9, 9)))), "size"),
    "a picture of 16 bits": ("pictures", pictures(a=(0, png("I;16"))), "8-bit"),
    "a picture bomb": ("pictures", pictures(a=(0, wide_png())), "a fault"),
    "another ending": ("d.xlsx", b"1,2\n", "got .xlsx"),
    "a pipe": ("d.npz", pipe, "a device or a pipe"),
    "a device": ("d.npz", device, "a device or a pipe"),
    "a symlink loop": ("d.npz", loop, "looked at"),
    "a folder named npz": ("d.npz", folder, "at least 1"),
}


def cases(seed):
    """Generated ones: (name, files, argv, codes)."""
    import malformed_mutations

    return malformed_mutations.cases(seed)
