"""CIFAR archives: binary and Python, packed and unpacked; hostile pickles and tars do nothing."""

import io
import os
import pickle
import struct
import tarfile

import numpy as np
import pytest
import torch

from remnant.data import load
from remnant.data.safe_pickle import ALLOWED
from remnant.errors import DataError
from remnant.untrusted.pickles import pickled

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (6, 3, 32, 32), dtype=np.uint8)
LABELS = np.array([9, 0, 3, 3, 7, 1], dtype=np.uint8)
ROWS = PIXELS.reshape(6, -1)


def binary(rows=ROWS, labels=LABELS, coarse=False):
    columns = [labels[:, None] // 5, labels[:, None]] if coarse else [labels[:, None]]
    return np.concatenate([*columns, rows], axis=1, dtype=np.uint8).tobytes()


def python(rows=ROWS, labels=LABELS, key=b"labels", protocol=2):
    batch = {b"batch_label": b"one", key: labels.tolist(), b"data": rows, b"coarse_labels": [0]}
    return pickle.dumps(batch, protocol=protocol)


def python_2(rows=ROWS, labels=LABELS):
    """A batch spelt as Python 2 wrote the published files."""
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    shape = b"K" + bytes((len(rows),)) + b"M" + struct.pack("<H", 3072) + b"\x86"
    dtype = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNN" + b"J\xff\xff\xff\xff" * 2
    body = b"T" + struct.pack("<i", rows.nbytes) + rows.tobytes()
    numbers = b"".join(b"K" + bytes((c,)) for c in labels)
    data = array + b"(K\x01" + shape + dtype + b"K\x00tb\x89" + body + b"tb"
    return b"\x80\x02}(U\x06labels](" + numbers + b"eU\x04data" + data + b"u."


def tar(path, files, change=lambda member: None):
    with tarfile.open(path, "w:gz" if path.name.endswith("gz") else "w") as archive:
        for name, body in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(body)
            change(member)
            archive.addfile(member, io.BytesIO(body) if member.isreg() else None)
    return path


def refused(path, match, **options):
    with pytest.raises(DataError, match=match) as caught:
        load(path, **options)
    assert "\n" not in str(caught.value)


KINDS = {
    "cifar-10-batches-bin": {
        "data_batch_1.bin": binary(ROWS[:4], LABELS[:4]),
        "data_batch_2.bin": binary(ROWS[4:], LABELS[4:]),
        "test_batch.bin": binary(ROWS[:1], LABELS[:1]),
    },
    "cifar-100-binary": {"train.bin": binary(coarse=True), "test.bin": binary(coarse=True)},
    "cifar-10-batches-py": {
        "data_batch_2": python(ROWS[4:], LABELS[4:]),
        "data_batch_1": python_2(ROWS[:4], LABELS[:4]),
        "test_batch": python(),
        "batches.meta": b"never read",
    },
    "cifar-100-python": {"train": python(key=b"fine_labels", protocol=4), "meta": b"never read"},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["folder", "parent", "tar.gz", "tar", "bare.tgz"])
def test_every_archive_gives_the_same_records(tmp_path, kind, form):
    if form in ("folder", "parent"):
        path = tmp_path / kind
        path.mkdir()
        for name, body in KINDS[kind].items():
            (path / name).write_bytes(body)
        path = tmp_path if form == "parent" else path
    else:
        root = "" if form == "bare.tgz" else f"{kind}/"
        files = {root + name: body for name, body in KINDS[kind].items()}
        path = tar(tmp_path / f"{kind}.{form}", files)
    examples = load(path)
    assert torch.equal(examples.inputs, torch.from_numpy(PIXELS).float() / 255)
    assert examples.labels.tolist() == LABELS.tolist()
    assert examples.labels.dtype == torch.int64
    assert examples.bounds == (0.0, 1.0)


def test_by_its_short_name_and_as_a_single_file(tmp_path):
    files = {f"cifar-10-batches-bin/{k}": v for k, v in KINDS["cifar-10-batches-bin"].items()}
    tar(tmp_path / "cifar-10-binary.tar.gz", files)
    assert load("cifar10", data_dir=tmp_path).ids[0] == "cifar-10-binary-00000"
    (tmp_path / "test_batch.bin").write_bytes(binary())
    assert load(tmp_path / "test_batch.bin").labels.tolist() == LABELS.tolist()


class Evil:
    def __init__(self, marker):
        self.marker = str(marker)

    def __reduce__(self):
        return (os.mkdir, (self.marker,))


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("place", ["whole", "labels", "data", "beside"])
def test_an_evil_pickle_does_not_run(tmp_path, protocol, place):
    marker = tmp_path / "ran"
    batch = {b"labels": LABELS.tolist(), b"data": ROWS}
    batch |= {place.encode(): Evil(marker)}
    body = pickle.dumps(Evil(marker) if place == "whole" else batch, protocol=protocol)
    path = tar(tmp_path / "cifar-10-python.tar.gz", {"cifar-10-batches-py/data_batch_1": body})
    refused(path, r"the name (posix|nt|os)\.mkdir; use the binary archive \(cifar-10-binary")
    (tmp_path / "data_batch_1").write_bytes(body)
    refused(tmp_path, "use the binary archive")
    assert not marker.exists()
    pickle.loads(body)  # noqa: S301  # the same bytes do run where nobody stops them
    assert marker.exists()


def test_no_name_is_ever_called():
    body = b"cnumpy\ndtype\n(X\x02\x00\x00\x00u1K\x00K\x01tR."
    called = pickled(io.BytesIO(body), ALLOWED.__contains__, len(body))
    assert (called.name, called.arguments) == ("numpy.dtype", ("u1", 0, 1))


@pytest.mark.parametrize(
    ("body", "match"),
    [
        (b"", "EOFError|ValueError"),
        (python()[:-50], "use the binary archive"),
        (b"\x80\x02}r\xff\xff\xff\xff.", "a memo larger than the file"),
        (b"\x80\x04\x8e" + struct.pack("<Q", 2**60) + b"1.", "use the binary archive"),
        (b"c_codecs\nencode\n(X\x01\x00\x00\x00aX\x03\x00\x00\x00hextR.", "not used for bytes"),
        (pickle.dumps([1, 2]), "use the binary archive"),
        (pickle.dumps({b"data": 1, b"labels": [1]}), "use the binary archive"),
        (pickle.dumps({b"data": ROWS}, protocol=2), "None in place of 6 labels"),
        (python(rows=ROWS[:, :100]), "data of u1, 6 x 100"),
        (python(rows=ROWS.astype(np.int16)), "data of i2"),
        (python(rows=np.asfortranarray(ROWS)), "data of u1"),
        (python(labels=LABELS[:2]), "use the binary archive"),
        (pickle.dumps({b"data": ROWS, b"labels": b"123456"}, protocol=2), "use the binary archive"),
    ],
)
def test_a_broken_batch_is_one_line(tmp_path, body, match):
    (tmp_path / "data_batch_1").write_bytes(body)
    refused(tmp_path, match)


SHARED = b")" + b"q\x01h\x01\x86" * 45  # a tuple of 2**45 parts, all of them the same


@pytest.mark.parametrize(
    "body",
    [
        python_2().replace(b"K\x06M\x00\x0c\x86", SHARED),
        python_2().replace(b"K\x06M\x00\x0c\x86", SHARED + b"M\x00\x0c\x86"),
        python_2().replace(b"K\x06M\x00\x0c\x86", b"U\x03abcM\x00\x0c\x86"),
        python_2().replace(b"](K\x09", b"](" + SHARED),
        b"\x80\x02}" + SHARED + b"K\x01s.",
    ],
)
def test_parts_that_are_shared_are_not_walked_through(tmp_path, body):
    (tmp_path / "data_batch_1").write_bytes(body)
    refused(tmp_path, "use the binary archive")


@pytest.mark.parametrize(
    ("body", "match"), [(binary()[:-1], "expected records of 3073 bytes"), (b"", "0 bytes in all")]
)
def test_a_broken_binary_batch_is_one_line(tmp_path, body, match):
    (tmp_path / "data_batch_1.bin").write_bytes(body)
    refused(tmp_path, match)


@pytest.mark.parametrize("name", ["../data_batch_1.bin", "/data_batch_1.bin", "a/data_batch_1.bin"])
def test_members_elsewhere_are_not_read_and_nothing_is_written(tmp_path, name):
    folder = tmp_path / "inner"
    folder.mkdir()
    path = tar(folder / "own.tar.gz", {name: binary()})
    refused(path, "members: expected CIFAR batches, got none")
    assert [p.name for p in tmp_path.rglob("*")] == ["inner", "own.tar.gz"]


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE]
)
def test_a_member_that_is_no_file_is_refused(tmp_path, kind):
    (tmp_path / "secret").write_bytes(binary())

    def change(member):
        member.type, member.size, member.linkname = kind, 0, str(tmp_path / "secret")

    path = tar(tmp_path / "own.tar", {"data_batch_1.bin": b""}, change)
    refused(path, "expected a regular file, got a link or a device")


def test_cut_tars_and_large_ones_are_one_line(tmp_path):
    files = {"cifar-10-batches-bin/data_batch_1.bin": binary()}
    for name in ("own.tar", "own.tar.gz"):
        path = tar(tmp_path / name, files)
        refused(path, "expected at most", limit=6 * 3073)
        whole = path.read_bytes()
        for body in (b"", whole[:100], whole[: 5 * 3073]):
            path.write_bytes(body)
            refused(path, "expected a whole file|expected 18438 bytes")
