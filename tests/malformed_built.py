"""Files built to be too much: small ones that would become gigabytes or take forever, holes, links.

Each is (name, file, content) for `malformed_mutations.py`, or a whole case.
"""

import io
import json
import pickle
import struct
import tarfile
import warnings
import zipfile
import zlib
from functools import partial

import numpy as np
import torch
from PIL import Image

import malformed_files as made
from malformed_valid import DEEP, READ, REFUSED, VALUES, given, old, skops, valid


def late(make, *given):
    """Made when it is written: large ones would fill the memory of whoever lists the cases."""
    return lambda path: path.write_bytes(make(*given))


def shape_of(shape):
    """A CIFAR batch in Python 2's spelling, with this program in the place of its shape."""
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    dtype = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNN" + b"J\xff\xff\xff\xff" * 2
    data = array + b"(K\x01" + shape + dtype + b"K\x00tb\x89" + b"U\x04abcd" + b"tb"
    return b"\x80\x02}(U\x06labels](K\x01eU\x04data" + data + b"u."


def labels_of(program):
    return b"\x80\x02}(U\x04dataNU\x06labels" + program + b"u."


def pickles(rng):
    for depth in (20, 45, 200, 2000):
        deep = b")" + b"q\x01h\x01\x86" * depth
        lists = b"K\x01" + b"q\x01](h\x01h\x01h\x01h\x01h\x01h\x01h\x01h\x01e" * depth
        for name, body in {
            "shape": shape_of(deep),
            "sizes": shape_of(deep + b"M\x00\x0c\x86"),
            "labels": labels_of(lists),
            "label in labels": labels_of(b"](" + lists + b"e"),
            "key": b"\x80\x02}" + deep + b"K\x01s.",
            "state": b"\x80\x02cnumpy\nndarray\n)R" + deep + b"b.",
        }.items():
            yield f"shared {name} {depth}", "data_batch_1", body
    text = b"X" + struct.pack("<I", 2**20) + b"a" * 2**20
    again = b"(h\x01h\x02tR" * 2000
    encode = b"c_codecs\nencode\nq\x00" + text + b"q\x01X\x06\0\0\0latin1q\x02"
    yield "bytes for a size", "data_batch_1", shape_of(b"U\x03abcM\x00\x0c\x86")
    yield "texts for a size", "data_batch_1", shape_of(b"](K\x01eM\x00\x0c\x86")
    yield "negative size", "data_batch_1", shape_of(b"J\xff\xff\xff\xffM\x00\x0c\x86")
    yield "long size", "data_batch_1", shape_of(b"\x8a\xff" + b"\x7f" * 255 + b"M\x00\x0c\x86")
    yield (
        "one text encoded often",
        "data_batch_1",
        (b"\x80\x02(" + encode + again.replace(b"(h\x01", b"h\x00(h\x01") + b"t."),
    )
    yield "no end", "data_batch_1", b")q\x01h\x01h\x01\x86q\x01" * 1000
    yield "marks alone", "data_batch_1", b"\x80\x02" + b"(" * 10**5 + b"."


def zipped(members, how=zipfile.ZIP_STORED):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", how) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a name comes twice is meant
        for name, body in members:
            archive.writestr(name, body)
    return file.getvalue()


def states(rng):
    """By torch.save: views, keys and sizes that the file does not hold."""
    base = torch.zeros(2**20)
    views = {str(i): base[: 2**20 - i] for i in range(1500)}
    flat = {"base": base} | {str(i): base[:1].expand(2**20) for i in range(1500)}
    for name, held in {"views": views, "views of stride 0": flat}.items():
        yield f"1500 {name}", "w.pt", late(made.by_torch, held)
        yield f"1500 {name}, old", "w.pt", late(old, held)
    for program in (
        b"c__builtin__\nbytearray\nJ\xff\xff\xff\x7f\x85R.",
        b"ctorch\nFloatTensor\nJ\xff\xff\xff\x7f\x85R.",
        b"ctorch\nTensor\nJ\xff\xff\xff\x7f\x85R.",
        b"}(" + b")" + b"q\x01h\x01\x86" * 60 + b"K\x01u.",
        b"c__builtin__\nset\n](" + b")" + b"q\x01h\x01\x86" * 60 + b"e\x85R.",
        b"cos\nsystem\nU\x04true\x85R.",
        pickle.dumps(made.Bomb(), protocol=2)[2:],
    ):
        for kind in (b"\x80\x02" + program, zipped([("w/data.pkl", b"\x80\x02" + program)])):
            yield f"program {program[:20]!r}", "w.pt", kind
    with zipfile.ZipFile(io.BytesIO(made.by_torch({"a": base}))) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    root = next(iter(members)).split("/")[0]
    one = members[f"{root}/data.pkl"]
    tensor = one[one.index(b"ctorch") : one.index(b"s.")]
    keyed = [tensor.replace(b"X\x01\0\0\x000", b"X\x03\0\0\0" + key) for key in CASED]
    many = b"".join(b"X\x03\0\0\0" + key + part for key, part in zip(CASED, keyed, strict=True))
    members[f"{root}/data/abc"] = members.pop(f"{root}/data/0")
    members[f"{root}/data.pkl"] = b"\x80\x02}(" + many + b"u."
    yield "keys that differ in case", "w.pt", zipped(members.items())
    doubled = [(f"{root}/data/{key.decode()}", b"x") for key in CASED]
    yield "members that differ in case", "w.pt", zipped([*members.items(), *doubled])


CASED = [bytes(x) for x in zip(*(b"aAaAaAaA", b"bbBBbbBB", b"ccccCCCC"), strict=True)]


def schemas(rng):
    """skops files that name one member again and again, or nest."""
    with zipfile.ZipFile(io.BytesIO(skops())) as archive:
        held = {info.filename: archive.read(info) for info in archive.infolist()}
    schema = json.loads(held.pop("schema.json"))
    large = made.saved(np.zeros(2**23))
    node = {"__loader__": "NdArrayNode", "type": "numpy", "file": "big.npy", "__class__": "ndarray"}
    for count in (120, 200_000):
        schema["content"]["content"] |= {f"a{i}": node for i in range(count)}
        members = [*held.items(), ("big.npy", large), ("schema.json", json.dumps(schema).encode())]
        yield f"one member {count} times", "m.skops", zipped(members, zipfile.ZIP_DEFLATED)
    deep = b'{"__loader__": "ListNode", "content": [' * DEEP + b"]}" * DEEP
    yield "deep", "m.skops", zipped([("schema.json", deep)])
    for value in VALUES:
        coef = {"__loader__": "JsonNode", "content": json.dumps(value)}
        schema["content"]["content"] = {"coef_": coef, "intercept_": coef, "alpha": coef}
        yield f"coef {str(value)[:9]}", "m.skops", zipped([("schema.json", json.dumps(schema))])


def wide(size, mode="L"):
    """A picture of one colour, packed well."""
    file = io.BytesIO()
    Image.new(mode, size).save(file, "png")
    return file.getvalue()


def arrays(rng):
    for name in ("d.npz", "m.npz"):
        key, rest = ("x", {"y": made.saved(made.Y)}) if name == "d.npz" else ("coef", {})
        for shape in (
            (10**6, 10**6),
            (2**62, 2**62),
            (0, 10**18),
            (10**9, 0),
            (-1, 64),
            "9" * 4000,
        ):
            yield f"shape {str(shape)[:20]}", name, made.archive(**{key: made.npy(shape)}, **rest)
        for descr in ("|V4000000000", "<U500000000", "<M8[ns]", "|O", "<f16", "|S0", "<c16", "a"):
            held = {key: made.npy((1, 64), descr, bytes(64)), **rest}
            yield f"type {descr}", name, made.archive(**held)
        lzma = bytearray(made.archive(zipfile.ZIP_LZMA, **{key: made.saved(made.X)}, **rest))
        lzma[60:90] = b"\xff" * 30
        yield "corrupt LZMA", name, bytes(lzma)
        bzip = made.archive(zipfile.ZIP_BZIP2, **{key: made.saved(made.X)}, **rest)
        yield "another packing", name, bzip
        names = [(f"{'n' * 9000}{i}.npy", b"") for i in range(20)]
        yield "long names", name, zipped([*names, ("\x1b[31m.npy", b"")])
        yield "a name twice", name, zipped([(f"{key}.npy", made.saved(made.X))] * 2)
    many = np.zeros(2**22, np.uint8)
    for name, held in {"records": {"x": many[:, None], "y": many}, "ids": {"id": many}}.items():
        yield f"millions of {name}", "d.npz", late(partial(made.npz, packed=True, **held))
    pixels = made.IDX[:4] + struct.pack(">3I", 2**23, 1, 1)
    yield "millions of pixels", "t-images-idx3-ubyte", late(made.zeros, 8, pixels)
    header = tarfile.TarInfo("cifar-10-batches-bin/data_batch_1.bin")
    for size in (2**20, 2**30, 2**33 - 1):
        header.size = size
        yield f"tar of {size}", "c.tar.gz", late(made.zeros, 300, header.tobuf())
    pax = tarfile.TarInfo("GNUSparseFile.0/data_batch_1.bin")
    pax.pax_headers = {"GNU.sparse.map": "0,0", "GNU.sparse.realsize": "9" * 15}
    yield "sparse tar", "c.tar", pax.tobuf(tarfile.PAX_FORMAT) + bytes(1024)


def sparse(size, head=b"", tail=b""):
    def write(path):
        with path.open("wb") as file:
            file.write(head)
            file.truncate(size)
            file.seek(0, 2)
            file.write(tail)

    return write


def places(rng):
    """Holes, devices, pipes, loops and folders in the place of every file."""
    end = made.npz()[-22:]
    for kind, file, beside, raw in valid():
        argv = given(kind, "pictures" if file.startswith("pictures") else file)
        for name, write in {
            "3 GB of holes": sparse(3 * 2**30, raw[:64], end),
            "900 MB of holes": sparse(900 * 2**20, raw),
            "a device": made.device,
            "a pipe": made.pipe,
            "a loop": made.loop,
            "a folder": made.folder,
        }.items():
            # Beside other pictures, what is no picture is passed over.
            codes = READ if file.startswith("pictures") else REFUSED
            yield f"file: {file} {name}", {**beside, file: write}, argv, codes
    header = json.dumps({"a": {"dtype": "F32", "shape": [2**28], "data_offsets": [0, 2**30]}})
    head = struct.pack("<Q", len(header)) + header.encode()
    held = {"w.safetensors": sparse(len(head) + 2**30, head)}
    yield "file: a tensor of holes", held, given("weights", "w.safetensors"), REFUSED
    head = made.IDX[:4] + struct.pack(">3I", 900, 1000, 1000)
    held = {"t-images-idx3-ubyte": sparse(16 + 9 * 10**8, head), "t-labels-idx1-ubyte": made.LABELS}
    yield "file: images of holes", held, given("data", "t-images-idx3-ubyte"), REFUSED


def lists(count):
    return b'{"family": "linear", "coef": [' + b"[]," * count + b"[]]}"


def large(rng):
    for size, count in (
        ((9400, 9400), 3),
        ((9400, 9400), 1),
        ((60_000, 1400), 2),
        ((4000, 4000), 60),
    ):
        held = {f"pictures/a/{i}.png": late(wide, size) for i in range(count)}
        yield f"file: {count} pictures {size}", held, given("data", "pictures"), REFUSED
    for size in (15, 240):
        held = {"m.json": late(lists, size // 3 * 2**20)}
        yield f"file: {size} MB of JSON", held, given("linear", "m.json"), REFUSED
    bomb = zlib.compress(bytes(2**26))
    yield "file: deflate alone", {"d.npz": bomb}, given("data", "d.npz"), REFUSED
    zero = {name: torch.zeros_like(value) for name, value in made.STATE.items()}
    words = ["--weights={dir}/w.pt", "--shape=1x8x8", "--steps=2", "--quiet"]
    yield (
        "file: weights of zeros",
        {"w.pt": made.by_torch(zero)},
        ["reconstruct", "kkt", *words],
        (0,),
    )
    for mean, std in (("1e39", "1"), ("3e38", "1e-30"), ("0", "1e-45"), ("0", "1e39")):
        argv = [*given("data", "d.npz"), f"--mean={mean}", f"--std={std}"]
        yield f"file: mean {mean} std {std}", {"d.npz": made.npz()}, argv, REFUSED


BUILT = {"data": (pickles, arrays), "weights": (states,), "linear": (schemas, arrays)}
OF_LINEAR = ("m.npz", "m.skops")


def built(rng):
    for kind, makers in BUILT.items():
        for maker in makers:
            for name, file, body in maker(rng):
                if (file in OF_LINEAR) == (kind == "linear"):
                    beside = {"t-labels-idx1-ubyte": made.LABELS} if "idx3" in file else {}
                    yield f"file: {file} {name}", {**beside, file: body}, given(kind, file), READ
