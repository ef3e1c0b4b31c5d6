"""One valid file of every format that is read, and what a user types to have it read."""

import gzip
import io
import json
import pickle
import tarfile

import numpy as np
from PIL import Image
from sklearn.linear_model import Ridge

import malformed_files as made
from skops_format import write_skops

READ, REFUSED = (0, 2, 5), (2,)  # 5: read, and no attack applies
RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (4, 3072), dtype=np.uint8)
RECIPE = {"name": "sgd", "lr": 0.1, "epochs": 2, "batch_size": 4, "momentum": 0.5, "loss": "ce"}
LINEAR = {
    "family": "logistic", "coef": [[0.1] * 64], "intercept": [0.2], "penalty": 1.0,
    "penalty_per": "total", "penalise_intercept": False, "tolerance": 1e-4, "classes": [0, 1],
    "class_weight": "balanced", "features": [f"f{i}" for i in range(64)],
    "scaling": {"mean": 0.0, "scale": 1.0},
    "solver": {"estimator": "LogisticRegression", "parameters": {"C": 1.0}, "iterations": 9},
}  # fmt: skip


def given(kind, file):
    """What a user types to have the file read as this kind."""
    flags = {"weights": "{good}/w.safetensors", "data": "{good}/train.npz"}
    flags |= {"holdout": "{good}/test.npz", "attacks": "glm" if kind == "linear" else "kkt"}
    if kind == "recipe":
        flags |= {"initial": "{good}/i.safetensors", "attacks": "informed"}
    flags["weights" if kind == "linear" else kind] = f"{{dir}}/{file}"
    return ["preflight", *(f"--{name}={value}" for name, value in flags.items()), "--quiet"]


def picture(kind, mode="L"):
    file = io.BytesIO()
    values = RNG.integers(0, 256, (8, 8, 3) if mode == "RGB" else (8, 8), dtype=np.uint8)
    Image.fromarray(values, mode=None).save(file, kind)
    return file.getvalue()


def tar_of(name, body, how="w:gz"):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=how) as archive:
        info = tarfile.TarInfo(name)
        info.size = len(body)
        archive.addfile(info, io.BytesIO(body))
    return file.getvalue()


def batch(protocol=2, **changes):
    held = {b"data": PIXELS, b"labels": [1, 2, 3, 4]} | changes
    return pickle.dumps({k if isinstance(k, bytes) else k.encode(): v for k, v in held.items()},
                        protocol=protocol)  # fmt: skip


def skops():
    file = io.BytesIO()
    write_skops(file, Ridge().fit(made.X.reshape(20, -1).astype(float), made.Y))
    return file.getvalue()


def linear_npz():
    file = io.BytesIO()
    np.savez(file, family="linear", coef=np.full(64, 0.1), intercept=0.1, penalty=0.5)
    return file.getvalue()


def old(held):
    return made.by_torch(held, _use_new_zipfile_serialization=False)


def valid():
    """kind, name of the file that is broken, files beside it, content."""
    binary = np.concatenate([np.ones((4, 1), np.uint8), PIXELS], 1).tobytes()
    labels = {"t-labels-idx1-ubyte": made.LABELS}
    grey = {f"pictures/{c}/{i}.png": picture("png") for c in "ab" for i in range(2)}
    return [
        ("data", "d.npz", {}, made.npz()),
        ("data", "packed.npz", {}, made.npz(packed=True, id=np.arange(20))),
        ("data", "t-images-idx3-ubyte", labels, made.IDX),
        ("data", "t-images-idx3-ubyte.gz", labels, gzip.compress(made.IDX)),
        ("data", "data_batch_1.bin", {}, binary),
        ("data", "data_batch_1", {}, batch()),
        ("data", "data_batch_2", {}, batch(protocol=4)),
        ("data", "c.tar.gz", {}, tar_of("cifar-10-batches-bin/data_batch_1.bin", binary)),
        ("data", "c.tar", {}, tar_of("cifar-10-batches-py/data_batch_1", batch(), "w:")),
        ("data", "pictures/a/x.png", grey, picture("png")),
        ("data", "pictures/a/x.jpg", grey, picture("jpeg")),
        ("data", "pictures/b/x.webp", grey, picture("webp", "RGB")),
        ("data", "pictures/b/x.bmp", grey, picture("bmp")),
        ("weights", "w.safetensors", {}, made.tensors()),
        ("weights", "w.pt", {}, made.by_torch(made.STATE)),
        ("weights", "w.ckpt", {}, made.by_torch({"state_dict": made.STATE, "epoch": 3})),
        ("weights", "old.pt", {}, old(made.STATE)),
        ("linear", "m.skops", {}, skops()),
        ("linear", "m.npz", {}, linear_npz()),
        ("linear", "m.json", {}, json.dumps(LINEAR).encode()),
        ("recipe", "r.json", {}, json.dumps(RECIPE).encode()),
    ]  # fmt: skip


# Values that stand where others belong in JSON.

DEEP = 3000
VALUES = (
    None, True, -1, 0, 10**18, 10**400, 1e308, -1e308, float("nan"), float("inf"), "", "x" * 5000,
    "\x1b[31m", "=1+1", "a\nb", [], {}, [1, 2], [[1], [1, 2]], [None], ["a"] * 1000, {"a": 1},
    [[[[[1.0]]]]], [10**400], ["\ud800"], [True] * 64,
)  # fmt: skip
