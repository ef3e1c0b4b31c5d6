"""npz archives: layouts, scales, ids, and archives that are broken or meant to hurt."""

import io
import zipfile

import numpy as np
import pytest
import torch

from remnant.data import load
from remnant.data.reading import RECORD, VALUE
from remnant.errors import DataError
from remnant.untrusted.files import RATIO, SMALL, Budget

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (5, 4, 6, 3), dtype=np.uint8)
Y = np.arange(5) % 2


def save(tmp_path, **arrays):
    np.savez(tmp_path / "own.npz", **arrays)
    return tmp_path / "own.npz"


def header(shape, descr="|u1"):
    """The first bytes of an npy file that declares `shape`, with nothing after them."""
    file = io.BytesIO()
    declared = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, declared)
    return file.getvalue()


def raw(tmp_path, x, packing=zipfile.ZIP_STORED):
    """An npz whose x holds any bytes."""
    labels = io.BytesIO()
    np.save(labels, Y)
    with zipfile.ZipFile(tmp_path / "own.npz", "w", packing) as archive:
        archive.writestr("x.npy", x)
        archive.writestr("y.npy", labels.getvalue())
    return tmp_path / "own.npz"


def refused(path, match, **options):
    with pytest.raises(DataError, match=match) as caught:
        load(path, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("save_as", [np.savez, np.savez_compressed])
def test_bytes_become_0_to_1_and_channels_go_first(tmp_path, save_as):
    save_as(tmp_path / "own.npz", x=PIXELS, y=Y)
    examples = load(tmp_path / "own.npz")
    wanted = torch.from_numpy(PIXELS).permute(0, 3, 1, 2).float() / 255
    assert torch.equal(examples.inputs, wanted)
    assert examples.bounds == (0.0, 1.0)
    assert examples.labels.tolist() == [0, 1, 0, 1, 0]
    assert examples.labels.dtype == torch.int64


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ((5, 4, 6), (5, 1, 4, 6)),
        ((5, 4, 6, 1), (5, 1, 4, 6)),
        ((5, 4, 6, 3), (5, 3, 4, 6)),
        ((5, 3, 4, 6), (5, 3, 4, 6)),
        ((5, 1, 4, 6), (5, 1, 4, 6)),
        ((5, 3, 6, 3), (5, 3, 6, 3)),  # could be either: kept
        ((5, 4, 6, 2), (5, 4, 6, 2)),
        ((5, 7), (5, 7)),
    ],
)
@pytest.mark.parametrize("dtype", [np.uint8, np.float64])
def test_layouts(tmp_path, given, made, dtype):
    values = RNG.integers(0, 2, given).astype(dtype)
    assert tuple(load(save(tmp_path, x=values, y=Y)).inputs.shape) == made


@pytest.mark.parametrize(
    ("values", "bounds"),
    [
        (np.linspace(0, 1, 45).reshape(5, 3, 3), (0.0, 1.0)),
        (np.linspace(-1, 1, 45).reshape(5, 3, 3), None),
        (np.linspace(0, 1.1, 45).reshape(5, 3, 3), None),
        (np.linspace(0, 1, 45).reshape(5, 9), None),  # a table
        (np.arange(45).reshape(5, 9), None),
        (np.linspace(0, 1, 45).reshape(5, 3, 3).astype(">f4"), (0.0, 1.0)),
    ],
)
def test_floats_are_kept_and_bounds_follow_the_values(tmp_path, values, bounds):
    examples = load(save(tmp_path, x=values, y=Y))
    kept = np.float64 if values.ndim == 2 else np.float32  # tables keep every digit
    wanted = torch.from_numpy(values.astype(kept)).reshape(examples.inputs.shape)
    assert torch.equal(examples.inputs, wanted)
    assert examples.bounds == bounds


def test_the_training_part_is_read_where_there_are_two(tmp_path):
    path = save(tmp_path, x_test=PIXELS[:1], y_test=Y[:1], x_train=PIXELS, y_train=Y)
    assert len(load(path)) == 5
    assert len(load(save(tmp_path, x_train=PIXELS[:2], y_train=Y[:2]))) == 2


@pytest.mark.parametrize("ids", [np.array(list("edcba")), np.array([b"e", b"d", b"c", b"b", b"a"])])
def test_ids_are_kept_as_text(tmp_path, ids):
    assert load(save(tmp_path, x=PIXELS, y=Y, id=ids)).ids == ("e", "d", "c", "b", "a")


def test_number_ids_become_text(tmp_path):
    assert load(save(tmp_path, x=PIXELS, y=Y, id=np.arange(5) + 7)).ids == (
        "7",
        "8",
        "9",
        "10",
        "11",
    )


def test_labels_as_a_column_and_as_targets(tmp_path):
    column = load(save(tmp_path, x=PIXELS, y=Y[:, None]))
    assert column.labels.tolist() == Y.tolist()
    targets = load(save(tmp_path, x=PIXELS, y=np.ones((5, 2))))
    assert targets.labels.dtype == torch.float32
    assert tuple(targets.labels.shape) == (5, 2)
    assert targets.classes == 0


@pytest.mark.parametrize(
    ("arrays", "match"),
    [
        ({"x": PIXELS}, "expected x and y, or x_train and y_train, got x"),
        ({"x": PIXELS, "y": Y[:3]}, "labels: expected 5, one a record, got 3"),
        ({"x": PIXELS, "y": Y - 1}, "labels: expected classes 0, 1, .*, got -1"),
        ({"x": PIXELS, "y": np.array(list("abcde"))}, "labels: expected n integers"),
        ({"x": PIXELS, "y": np.full(5, np.nan)}, "labels: expected finite"),
        ({"x": PIXELS, "y": np.full(5, 1e300)}, "labels: expected finite float32"),
        ({"x": PIXELS, "y": np.array(3)}, "expected n x shape and n"),
        ({"x": PIXELS.astype(np.int64), "y": Y}, "expected uint8 0..255 or floats 0..1, got int64"),
        ({"x": PIXELS[:, 0, 0, 0], "y": Y}, "expected n x shape and n"),
        ({"x": PIXELS[:0], "y": Y[:0]}, "records: expected at least 1"),
        ({"x": PIXELS[:, :0], "y": Y}, "records: expected at least 1"),
        ({"x": np.full((5, 3, 3), np.nan), "y": Y}, "inputs: expected finite float32"),
        ({"x": np.full((5, 3), 1e300), "y": Y}, r"npz: inputs: .* 5 of 5 .*, first at index 0"),
        ({"x": np.diag([1, 1, np.nan, 1, np.inf]), "y": Y}, "2 of 5 records, first at index 2"),
        ({"x": PIXELS, "y": Y, "id": np.zeros(5, int)}, "ids: expected 5 different ones"),
        ({"x": PIXELS, "y": Y, "id": np.arange(4)}, "ids: expected 5 different ones"),
        ({"x": PIXELS, "y": Y, "id": np.ones(5)}, "id holds float64"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(tmp_path, arrays, match):
    refused(save(tmp_path, **arrays), match)


def test_objects_are_refused_without_unpickling(tmp_path):
    marker = tmp_path / "ran"

    class Evil:
        def __reduce__(self):
            return (marker.touch, ())

    refused(save(tmp_path, x=np.array([Evil()] * 5), y=Y), "got Python objects; save it as plain")
    assert not marker.exists()


@pytest.mark.parametrize("shape", [(2**20, 2**20), (2**62, 2**62, 2**62), (5, 2**40)])
def test_a_declared_size_is_checked_before_anything_is_read(tmp_path, shape):
    refused(raw(tmp_path, header(shape)), r"expected at most 4 GB, got .* GB declared")


def test_bytes_count_as_the_floats_that_they_become(tmp_path):
    path = save(tmp_path, x=PIXELS, y=Y)
    needed = PIXELS.size * (1 + VALUE) + len(Y) * (Y.itemsize + VALUE + RECORD)
    assert len(load(path, limit=needed)) == 5
    refused(path, "raise limit", limit=needed - 1)


@pytest.mark.parametrize(
    ("x", "match"),
    [
        (header((5, 3)), "fault"),  # declares 15 bytes, holds none
        (header((-5, 3)), "sizes of at least 0"),
        (b"not an array", "fault"),
        (b"", "fault"),
        (b"\x93NUMPY\x03\x00" + bytes(200), "expected npy version 1 or 2, got 3.0"),
        (b"\x93NUMPY\x01\x00\x10\x00" + b"(" * 16, "fault"),
        (b"\x93NUMPY\x01\x00\x00\x20" + b"-" * 8191 + b"1", "fault"),
        (header((5, 3), descr=()), "fault"),
    ],
)
def test_broken_arrays_are_one_line(tmp_path, x, match):
    refused(raw(tmp_path, x), match)


def test_broken_archives_are_one_line(tmp_path):
    whole = save(tmp_path, x=PIXELS, y=Y).read_bytes()
    path = tmp_path / "cut.npz"
    for cut in (0, 10, len(whole) // 2, len(whole) - 10):
        path.write_bytes(whole[:cut])
        refused(path, "expected a whole file")
    damaged = bytearray(whole)
    damaged[whole.index(PIXELS.tobytes()[:20])] ^= 255
    path.write_bytes(damaged)
    refused(path, "CRC")
    refused(raw(tmp_path, header((1, 1)), zipfile.ZIP_LZMA), "another packing")


def test_packing_is_judged_by_what_it_would_become(tmp_path):
    budget = Budget(2**40)
    budget.take("x", SMALL)  # little enough
    with pytest.raises(DataError, match=r"x: expected at most 400 to 1 of packing, got 0\.25 GB"):
        budget.take("x", 1)
    (tmp_path / "a").write_bytes(bytes(SMALL // RATIO + 1))
    budget.add_file(tmp_path / "a")
    budget.take("x", 1)


def test_records_of_one_number_count_with_their_names(tmp_path):
    many = np.zeros(2**21, np.uint8)
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x=many[:, None], y=many)
    assert path.stat().st_size < 10_000
    refused(path, "400 to 1")


@pytest.mark.parametrize("name", ["a/b.png", "..a", "ü", "a..b/c", "x" * 512])
def test_ids_that_lead_nowhere_are_kept(tmp_path, name):
    path = save(tmp_path, x=PIXELS, y=Y, id=np.array([name, "1", "2", "3", "4"]))
    assert load(path).ids[0] == name


@pytest.mark.parametrize("name", ["..", "a/../../b", "/a", "\\\\host\\a", "a\tb", "", "x" * 513])
def test_ids_that_could_do_harm_are_refused(tmp_path, name):
    path = save(tmp_path, x=PIXELS, y=Y, id=np.array([name, "1", "2", "3", "4"]))
    refused(path, "record ids: expected 1 to 512 printable characters")
