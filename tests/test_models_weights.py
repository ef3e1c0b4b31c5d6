"""Weights files: what is saved comes back; what is broken or unsafe is one line and never runs."""

import os
import pickle
import struct
import sys
import zipfile

import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from remnant.errors import WeightsError
from remnant.models import build, read_weights, save_weights
from seeding import seeded


@pytest.fixture
def model():
    return build("mlp:4-3-2", generator=seeded())


def refused(path):
    with pytest.raises(WeightsError) as caught:
        read_weights(path)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    assert str(path) in message
    return message


def same(got, wanted):
    assert set(got) == set(wanted)
    for name, value in wanted.items():
        assert got[name].dtype == value.dtype
        assert torch.equal(got[name], value)


def test_saved_weights_come_back_private_and_alone(tmp_path, model):
    path = tmp_path / "w.safetensors"
    path.write_text("what was there before")
    wide = nn.Parameter(torch.randn(3, 4, generator=seeded(1)).double())
    tied = {**model.state_dict(), "wide": wide, "turned": wide.T, "count": torch.tensor(7)}
    save_weights(path, tied)
    same(read_weights(path), tied)
    assert not any(value.requires_grad for value in read_weights(path).values())
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]
    first = path.read_bytes()
    save_weights(path, tied)
    assert path.read_bytes() == first


def test_a_failed_save_leaves_what_was_there(tmp_path, model, monkeypatch):
    path = tmp_path / "w.safetensors"
    save_weights(path, model.state_dict())
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(WeightsError, match="cannot be written: No space left on device"):
        save_weights(path, {"a": torch.zeros(3)})
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(WeightsError, match="cannot be written: No such file or directory"):
        save_weights(tmp_path / "gone" / "w.safetensors", {"a": torch.zeros(3)})


@pytest.mark.parametrize("suffix", ["pt", "pth", "ckpt"])
@pytest.mark.parametrize("zipped", [True, False])
def test_a_state_dict_is_read(tmp_path, model, suffix, zipped):
    path = tmp_path / f"w.{suffix}"
    torch.save(model.state_dict(), path, _use_new_zipfile_serialization=zipped)
    same(read_weights(path), model.state_dict())


@pytest.mark.parametrize("prefix", ["", "model.", "module.", "model.module."])
@pytest.mark.parametrize("wrapper", ["state_dict", "model_state_dict", None])
def test_a_checkpoint_is_unwrapped(tmp_path, model, prefix, wrapper):
    state = {prefix + name: value for name, value in model.state_dict().items()}
    held = {"epoch": 3, wrapper: state, "lr": [0.1]} if wrapper else state
    torch.save(held, tmp_path / "last.ckpt")
    same(read_weights(tmp_path / "last.ckpt"), model.state_dict())


def test_a_prefix_that_only_some_names_have_stays(tmp_path):
    held = {"model.a": torch.zeros(2), "head.a": torch.zeros(2)}
    torch.save(held, tmp_path / "w.pt")
    same(read_weights(tmp_path / "w.pt"), held)


class Bomb:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return (open, (str(self.marker), "w"))


@pytest.mark.parametrize("kind", ["alone", "in a dict", "bare pickle", "old format"])
def test_a_pickle_never_runs(tmp_path, kind):
    marker, path = tmp_path / "ran", tmp_path / "w.pt"
    bomb = Bomb(marker)
    if kind == "bare pickle":
        path.write_bytes(pickle.dumps(bomb, protocol=2))
    else:
        held = {"1.weight": torch.zeros(2), "x": bomb} if kind == "in a dict" else bomb
        torch.save(held, path, _use_new_zipfile_serialization=kind != "old format")
    message = refused(path)
    assert "refused because loading it could run code; save model.state_dict()" in message
    assert not marker.exists()
    pickle.loads(pickle.dumps(bomb)).close()  # noqa: S301  (the bomb is live: it does run there)
    assert marker.exists()


def test_a_whole_model_is_refused_by_name(tmp_path, model):
    torch.save(model, tmp_path / "w.pt")
    assert "a pickle with torch.nn.modules.container.Sequential" in refused(tmp_path / "w.pt")


@pytest.mark.parametrize(
    ("held", "why"),
    [
        (torch.zeros(3), "expected a state dict, got a Tensor; save model.state_dict()"),
        ([torch.zeros(3)], "got a list"),
        ({}, "got an empty state dict"),
        ({"state_dict": {}}, "got an empty state dict"),
        ({"epoch": 3, "net": torch.zeros(3)}, "got a int under 'epoch'; save model.state_dict()"),
        ({"other": {"0.weight": torch.zeros(3)}}, "got a dict under 'other'"),
        ({3: torch.zeros(3)}, "got a Tensor under 3"),
        ({"a\nb": torch.zeros(3)}, "got a Tensor under 'a\\nb'"),
        (
            {"a": torch.tensor([1.0, float("nan"), float("inf")])},
            "a: expected finite numbers, got 2 of 3",
        ),
        (
            {"a": torch.zeros(3, dtype=torch.complex64)},
            "a: expected a dense tensor of real numbers",
        ),
        ({"a": torch.eye(3).to_sparse()}, "torch.sparse_coo"),
        ({"a": torch.zeros(3, device="meta")}, "on meta"),
        ({"a": torch.zeros(1).expand(10**12)}, "a: expected a tensor stored in full"),
    ],
    ids=str,
)
def test_what_is_not_a_state_dict_is_refused(tmp_path, held, why):
    torch.save(held, tmp_path / "w.pt")
    assert why in refused(tmp_path / "w.pt")


def test_not_a_number_is_found_in_every_format_and_width(tmp_path):
    for dtype in (torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn):
        value = torch.tensor([[0.0, float("nan")], [1.0, 2.0]]).to(dtype)
        save_weights(tmp_path / "w.safetensors", {"3.weight": value, "ok": torch.zeros(2)})
        message = refused(tmp_path / "w.safetensors")
        assert "3.weight: expected finite numbers, got 1 of 4 NaN or infinite" in message


BROKEN = {
    "empty": (b"", "expected weights, got an empty file"),
    "short": (b"abc", "header too small"),
    "text": (b"hello, this is not a model", "got a damaged or other file"),
    "huge header": (struct.pack("<Q", 2**60) + b"{}", "header too large"),
    "long header": (struct.pack("<Q", 2**26) + b"{}", "invalid header length"),
    "bad json": (struct.pack("<Q", 8) + b"{{{{{{{{", "got a damaged or other file"),
}


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_file_is_refused(tmp_path, kind, suffix):
    data, why = BROKEN[kind]
    path = tmp_path / f"w.{suffix}"
    path.write_bytes(data)
    message = refused(path)
    assert suffix == "pt" or why in message


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_torchscript_archive_is_refused(tmp_path, model):
    scripted = torch.jit.trace(model, torch.zeros(1, 4))
    scripted.save(tmp_path / "w.pt")
    assert "got TorchScript; save model.state_dict()" in refused(tmp_path / "w.pt")


def test_what_is_not_a_readable_file_is_refused(tmp_path, monkeypatch):
    assert "got no such file" in refused(tmp_path / "gone.pt")
    (tmp_path / "folder.pt").mkdir()
    assert "got a folder" in refused(tmp_path / "folder.pt")
    assert "expected a .safetensors, .pt, .pth, .pth.tar, .ckpt or .bin file, got .h5" in refused(
        tmp_path / "w.h5"
    )
    assert "got no suffix" in refused(tmp_path / "w")
    (tmp_path / "w.pt").write_bytes(b"x")

    def denied(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", denied)
    assert "cannot be read: Permission denied" in refused(tmp_path / "w.pt")


@pytest.mark.skipif(sys.platform == "win32", reason="no named pipes there")
def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "w.pt")
    assert "got a device or a pipe" in refused(tmp_path / "w.pt")


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_a_damaged_file_reads_or_is_refused(tmp_path, data):
    state = {"0.weight": torch.ones(3, 2), "0.bias": torch.ones(3)}
    suffix = data.draw(st.sampled_from(["safetensors", "pt"]))
    path = tmp_path / f"w.{suffix}"
    if suffix == "pt":
        torch.save(state, path)
    else:
        path.write_bytes(safetensors.torch.save(state))
    whole = bytearray(path.read_bytes())
    for place in data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=3)):
        whole[place] = data.draw(st.integers(0, 255))
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole)) | st.just(len(whole)))])
    try:
        read = read_weights(path)
    except WeightsError as error:
        assert len(str(error).splitlines()) == 1  # noqa: PT017
    else:
        assert all(isinstance(value, torch.Tensor) for value in read.values())


def test_a_large_file_is_judged_by_its_first_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr("remnant.models.weights.LARGE", 10)
    good = safetensors.torch.save({"a": torch.ones(3)})
    for name, data in (("w.safetensors", b"\0" * 99), ("w.pt", b"\0" * 99)):
        (tmp_path / name).write_bytes(data)
        assert "expected weights, got 99 bytes that begin otherwise" in refused(tmp_path / name)
    (tmp_path / "w.safetensors").write_bytes(good)
    same(read_weights(tmp_path / "w.safetensors"), {"a": torch.ones(3)})
    for zipped in (True, False):
        torch.save({"a": torch.ones(3)}, tmp_path / "w.pt", _use_new_zipfile_serialization=zipped)
        same(read_weights(tmp_path / "w.pt"), {"a": torch.ones(3)})


def test_a_flipped_bit_in_an_archive_is_noticed(tmp_path):
    path = tmp_path / "w.pt"
    torch.save({"a": torch.linspace(0, 1, 500), "b": torch.ones(300)}, path)
    whole = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        spans = [(m.header_offset, m.file_size) for m in archive.infolist() if m.file_size]
    for start, size in spans:
        end = whole.index(b"PK", start + 4)
        flipped = bytearray(whole)
        flipped[end - size // 2 - 40 if size > 100 else end - 1] ^= 1
        path.write_bytes(flipped)
        if bytes(flipped) != whole:
            with zipfile.ZipFile(path) as archive:
                changed = archive.testzip()
            assert not changed or "a damaged or other file" in refused(path)


def test_memory_is_torch_s_own_and_begins_where_sums_are_the_same(tmp_path):
    state = {f"{i}.weight": torch.ones(i, 3) for i in range(1, 30)}
    torch.save(state, tmp_path / "w.pt")
    save_weights(tmp_path / "w.safetensors", state)
    for name in ("w.pt", "w.safetensors"):
        read = read_weights(tmp_path / name)
        assert {value.data_ptr() % 64 for value in read.values()} == {0}
        assert all(v.untyped_storage().nbytes() == v.numel() * 4 for v in read.values())


def test_views_and_storages_without_end_are_refused(tmp_path):
    """What a small file names again and again is counted each time."""
    path = tmp_path / "w.pt"
    base = torch.zeros(2**20)
    torch.save({str(i): base[: 2**20 - i] for i in range(100)}, path)
    assert "all tensors: expected at most" in refused(path)
    torch.save({"tied": base, "again": base}, path)
    same(read_weights(path), {"tied": base, "again": base})
    wide = torch.zeros(1).expand(2**20)  # less than the file, yet not in it
    torch.save({"base": base, **{str(i): wide for i in range(100)}}, path)
    assert "all tensors: expected at most" in refused(path)


def renamed(path, old, new):
    """An archive by torch.save whose pickle has one text for another."""
    with zipfile.ZipFile(path) as archive:
        held = {m.filename: archive.read(m) for m in archive.infolist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, body in held.items():
            archive.writestr(name, body.replace(old, new) if name.endswith(".pkl") else body)


def test_a_storage_is_the_one_of_its_name_and_size(tmp_path):
    path = tmp_path / "w.pt"
    torch.save({"a": torch.ones(5), "b": torch.ones(5)}, path)
    renamed(path, b"X\x01\0\0\x001", b"X\x01\0\0\x00A")
    assert "storage 'A': expected 20 bytes, got 0" in refused(path)
    torch.save({"a": torch.ones(5)}, path)
    renamed(path, b"X\x03\0\0\0cpuq\x06K\x05", b"X\x03\0\0\0cpuq\x06K\x06")
    assert "storage '0': expected 24 bytes, got 20" in refused(path)


@pytest.mark.parametrize(
    "program",
    [
        b"c__builtin__\nbytearray\nJ\0\0\0\x7f\x85R.",
        b"ctorch\nFloatTensor\nJ\0\0\0\x7f\x85R.",
        b"ctorch\nTensor\nJ\0\0\0\x7f\x85R.",
        b"ctorch._tensor\n_rebuild_from_type_v2\n(ctorch\nTensor\nctorch\nTensor\nK\x01\x85}tR.",
        b"}(" + b")" + b"q\0h\0\x86" * 60 + b"K\x01u.",  # a key that takes forever to hash
        b"ccollections\nOrderedDict\n](" + b")" + b"q\0h\0\x86" * 60 + b"K\x01\x86e\x85R.",
        b"ctorch._tensor\n_rebuild_from_type_v2\n(ccollections\nOrderedDict\nctorch\nTensor\n](("
        + b")"
        + b"q\0h\0\x86" * 60
        + b"K\x01te\x85}tR.",  # the same, called by another
        b"}(\x8b\x00\x00\x02\0" + b"\1" * 2**17 + b"q\0K\1" + b"h\0K\1" * 9000 + b"u.",
        # One list, table or tuple that thousands of calls would copy.
        b"ccollections\nOrderedDict\nq\0](" + b"K\1K\1\x86" * 2000 + b"e\x85q\1"
        b"](" + b"h\0h\1R" * 2000 + b"e.",
        b"ccollections\nOrderedDict\nq\0}("
        + b"".join(b"X\4\0\0\0%04dK\1" % i for i in range(2000))
        + b"uq\1]("
        + b"h\0)Rh\1b" * 2000
        + b"e.",
        b"ctorch\nSize\nq\0(" + b"K\1" * 2000 + b"t\x85q\1](" + b"h\0h\1R" * 2000 + b"e.",
    ],
)
def test_a_program_that_asks_for_too_much_is_not_begun(tmp_path, monkeypatch, program):
    monkeypatch.setattr(torch, "load", lambda *given, **more: pytest.fail("it was begun"))
    path = tmp_path / "w.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("w/data.pkl", b"\x80\x02" + program)
        archive.writestr("w/version", b"3\n")
    refused(path)


def test_a_packed_archive_is_not_unpacked(tmp_path):
    path = tmp_path / "w.pt"
    torch.save({"a": torch.zeros(5000)}, path)
    with zipfile.ZipFile(path) as old:
        members = {info.filename: old.read(info) for info in old.infolist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
        for name, body in members.items():
            new.writestr(name, body)
    assert "expected a file by torch.save, got a packed archive" in refused(path)


@pytest.mark.parametrize(
    "key", ["model", "net", "ema", "module", "state_dict", "module_state_dict"]
)
@pytest.mark.parametrize("name", ["w.pth.tar", "w.bin", "w.ckpt"])
def test_a_checkpoint_with_its_optimizer_is_read(tmp_path, model, key, name):
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    saved = {key: model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 1}
    torch.save(saved, tmp_path / name)
    same(read_weights(tmp_path / name), model.state_dict())
