"""idx files and folders of pictures, whole and broken."""

import gzip
import struct

import numpy as np
import pytest
import torch
from PIL import Image

from remnant.data import load
from remnant.errors import DataError

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 5, 4), dtype=np.uint8)
LABELS = np.array([3, 1, 2, 0, 1, 3], dtype=np.uint8)
IMAGES = "train-images-idx3-ubyte"


def idx(array, shape=None, magic=None):
    sizes = array.shape if shape is None else shape
    start = bytes((0, 0, 8, array.ndim)) if magic is None else magic
    return start + struct.pack(f">{array.ndim}I", *sizes) + array.tobytes()


def write(folder, images, labels, packed=False, name=IMAGES):
    folder.mkdir(exist_ok=True)
    for stem, body in (
        (name, images),
        (name.replace("images", "labels").replace("idx3", "idx1"), labels),
    ):
        path = folder / (stem + ".gz" * packed)
        path.write_bytes(gzip.compress(body) if packed else body)
    return folder


def refused(path, match, **options):
    with pytest.raises(DataError, match=match) as caught:
        load(path, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("packed", [False, True])
def test_idx_by_folder_and_by_file(tmp_path, packed):
    folder = write(tmp_path / "mnist-own", idx(PIXELS), idx(LABELS), packed)
    for source in (folder, folder / (IMAGES + ".gz" * packed)):
        examples = load(source)
        assert torch.equal(examples.inputs, torch.from_numpy(PIXELS[:, None]).float() / 255)
        assert examples.labels.tolist() == LABELS.tolist()
    assert load(folder).ids[5] == "mnist-own-00005"


def test_idx_of_the_test_part_and_labels_packed_differently(tmp_path):
    write(tmp_path, idx(PIXELS), idx(LABELS), name="t10k-images.idx3-ubyte")
    labels = tmp_path / "t10k-labels.idx1-ubyte"
    (tmp_path / "t10k-labels.idx1-ubyte.gz").write_bytes(gzip.compress(labels.read_bytes()))
    labels.unlink()
    assert len(load(tmp_path / "t10k-images.idx3-ubyte")) == 6


@pytest.mark.parametrize(
    ("images", "labels", "match"),
    [
        (idx(PIXELS, magic=b"\0\0\x0d\x03"), idx(LABELS), "magic: expected 00000803, got 00000d03"),
        (idx(PIXELS), idx(PIXELS), "magic: expected 00000801, got 00000803"),
        (b"", idx(LABELS), "got an empty file"),
        (idx(PIXELS)[:9], idx(LABELS), "fault"),
        (idx(PIXELS)[:-1], idx(LABELS), "expected 120 bytes, got 119 bytes"),
        (idx(PIXELS) + b"1", idx(LABELS), "expected 120 bytes, got more"),
        (idx(PIXELS, shape=(2**31, 2**31, 2**31)), idx(LABELS), "expected at most 4 GB"),
        (idx(PIXELS), idx(LABELS[:4]), "labels: expected 6, one a record, got 4"),
        (idx(PIXELS[:0]), idx(LABELS[:0]), "records: expected at least 1"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_broken_idx_is_one_line(tmp_path, images, labels, match, packed):
    refused(write(tmp_path, images, labels, packed), match)


def test_cut_and_damaged_gzip_is_one_line(tmp_path):
    path = write(tmp_path, idx(PIXELS), idx(LABELS), packed=True) / (IMAGES + ".gz")
    whole = path.read_bytes()
    for body in (whole[:4], whole[:60], whole[:-3], whole[:50] + bytes(20) + whole[70:]):
        path.write_bytes(body)
        refused(path, "expected a whole file")


def test_labels_that_are_missing_or_given_alone(tmp_path):
    write(tmp_path, idx(PIXELS), idx(LABELS))
    refused(tmp_path / "train-labels-idx1-ubyte", "give the images' file")
    (tmp_path / "train-labels-idx1-ubyte").unlink()
    refused(tmp_path, "expected train-labels-idx1-ubyte or train-labels-idx1-ubyte.gz beside it")


def picture(path, mode="RGB", size=(4, 5), seed=0):
    shape = (size[1], size[0], *(() if mode in ("L", "P") else (len(mode),)))
    values = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(values)
    (image.convert(mode) if image.mode != mode else image).save(path)
    return torch.from_numpy(values.reshape(size[1], size[0], -1)).permute(2, 0, 1).float() / 255


def test_a_folder_of_classes(tmp_path):
    wanted = [
        picture(tmp_path / name, seed=i)
        for i, name in enumerate(("cat/a.png", "cat/b.BMP", "dog/a.png"))
    ]
    (tmp_path / "cat" / "notes.txt").write_text("not a picture")
    (tmp_path / ".hidden").mkdir()
    examples = load(tmp_path)
    assert examples.ids == ("cat/a.png", "cat/b.BMP", "dog/a.png")
    assert examples.labels.tolist() == [0, 0, 1]
    assert torch.equal(examples.inputs, torch.stack(wanted))


def test_a_flat_folder_is_one_class_and_grey_if_all_are(tmp_path):
    wanted = picture(tmp_path / "a.png", mode="L")
    for name in ("b.jpg", "c.jpeg", "d.webp"):
        picture(tmp_path / name, mode="L" if name != "d.webp" else "RGB")
    mixed = load(tmp_path)
    assert mixed.shape == (3, 5, 4)
    assert torch.equal(mixed.inputs[0], wanted.expand(3, 5, 4))
    (tmp_path / "d.webp").unlink()
    grey = load(tmp_path)
    assert grey.shape == (1, 5, 4)
    assert torch.equal(grey.inputs[0], wanted)
    assert grey.labels.tolist() == [0, 0, 0]


def test_folders_that_do_not_fit(tmp_path):
    refused(tmp_path, "records: expected at least 1: pictures .* got none")
    picture(tmp_path / "cat" / "a.png")
    picture(tmp_path / "dog" / "odd.png", size=(4, 6))
    refused(tmp_path, r"odd\.png: expected 4 x 5 pixels as in a\.png, got 4 x 6")
    picture(tmp_path / "top.png")
    refused(tmp_path, "expected pictures or one folder a class, got top.png beside the folder cat")


def test_pictures_that_do_not_open(tmp_path):
    picture(tmp_path / "a.png", size=(40, 50))
    whole = (tmp_path / "a.png").read_bytes()
    refused(tmp_path, "expected at most", limit=40 * 50 * 3 * 4 - 1)
    for body in (b"", b"no picture", whole[:20], whole[: len(whole) // 2]):
        (tmp_path / "b.png").write_bytes(body)
        refused(tmp_path, r"b\.png: expected a whole file")
    Image.fromarray(np.zeros((50, 40), dtype=np.uint16)).save(tmp_path / "b.png")
    refused(tmp_path, "expected an 8-bit picture, got mode I;16")
    Image.new("RGB", (40, 50)).save(tmp_path / "b.png", format="GIF")
    refused(tmp_path, r"b\.png: expected a whole file")


def test_the_pictures_of_a_class_may_lie_one_folder_below(tmp_path):
    """Tiny-ImageNet: train/class/images/*.JPEG beside a list of boxes."""
    for number, name in enumerate(("n02", "n01")):
        (tmp_path / "train" / name / "images").mkdir(parents=True)
        (tmp_path / "train" / name / f"{name}_boxes.txt").write_text("0 0 1 1")
        picture(tmp_path / "train" / name / "images" / f"{name}_0.JPEG", seed=number)
    found = load(tmp_path / "train")
    assert found.ids == ("n01/images/n01_0.JPEG", "n02/images/n02_0.JPEG")
    assert found.labels.tolist() == [0, 1]
    refused(tmp_path, "pictures of a class: expected one folder, got several")
