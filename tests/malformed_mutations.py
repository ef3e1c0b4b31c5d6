"""Valid files of every format that is read, broken by seed: flipped, cut, repeated, spliced, with
other numbers in their headers, with other values in their JSON.

`cases(seed)` gives (name, files, argv, codes) for `malformed_run.py`.
"""

import json
import random
import re

from malformed_built import built, large, places
from malformed_valid import DEEP, LINEAR, READ, RECIPE, REFUSED, VALUES, given, valid

EACH = 14  # random mutations of each valid file


# Mutations of bytes: each takes a random generator, the bytes and those of another file.


def flip(rng, raw, other):
    for _ in range(rng.choice((1, 1, 2, 8))):
        raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
    return raw


def cut(rng, raw, other):
    return raw[: rng.randrange(len(raw))]


def lengthen(rng, raw, other):
    return raw + rng.randbytes(rng.choice((1, 100, 5000)))


def repeat(rng, raw, other):
    start = rng.randrange(len(raw))
    return raw[:start] + raw[start : start + rng.randrange(1, 600)] * rng.choice((2, 50, 2000))


def splice(rng, raw, other):
    return raw[: rng.randrange(len(raw))] + other[rng.randrange(len(other)) :]


def blank(rng, raw, other):
    start = rng.randrange(len(raw))
    size = min(rng.choice((1, 4, 64)), len(raw) - start)
    raw[start : start + size] = rng.choice((b"\0", b"\xff", b"0", b"(")) * size
    return raw


def number(rng, raw, other):
    """A number of 4 or 8 bytes near the beginning or the end, where headers are, made another."""
    value = rng.choice((0, 1, 2**16, 2**30, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1))
    width = 8 if value >= 2**32 else 4
    near = rng.randrange(min(400, len(raw)))
    place = max(0, near if rng.random() < 0.6 else len(raw) - near - width)
    raw[place : place + width] = value.to_bytes(width, rng.choice(("little", "big")))
    return raw


def digits(rng, raw, other):
    """A number in letters, as in headers of arrays and in JSON, made another."""
    found = list(re.finditer(rb"\d+", bytes(raw)))
    if not found:
        return number(rng, raw, other)
    one = rng.choice(found[: 5 if rng.random() < 0.5 else None])
    longer = rng.choice((b"0", b"-1", b"9" * 18, b"9" * 4000, b"9" * 9000, b"1e999", b"1.5"))
    if rng.random() < 0.5:  # of the same length, so that nothing else moves
        longer = b"9" * len(one[0])
    return raw[: one.start()] + longer + raw[one.end() :]


MUTATIONS = (flip, flip, cut, lengthen, repeat, splice, blank, number, number, digits, digits)


def broken(rng):
    """Each valid file as it is, and EACH times broken."""
    whole = valid()
    for kind, file, beside, raw in whole:
        argv = given(kind, "pictures" if file.startswith("pictures") else file)
        yield f"file: {file} whole", {**beside, file: raw}, argv, READ
        for at in range(EACH):
            change, other = MUTATIONS[at % len(MUTATIONS)], rng.choice(whole)[3]
            body = bytes(change(rng, bytearray(raw), other))
            yield f"file: {file} {change.__name__} {at}", {**beside, file: body}, argv, READ


def of_values(rng):
    for kind, file, base in (("linear", "m.json", LINEAR), ("recipe", "r.json", RECIPE)):
        for field in base:
            for value in rng.sample(VALUES, 6):
                raw = json.dumps(base | {field: value}).encode()
                yield f"file: {file} {field}", {file: raw}, given(kind, file), READ
            raw = json.dumps(base | {field: "@"}).encode()
            for word in (
                b"9" * 5000,
                b"[" * DEEP + b"]" * DEEP,
                b'{"a":' * DEEP + b"1" + b"}" * DEEP,
            ):
                held = {file: raw.replace(b'"@"', word)}
                yield f"file: {file} {field} {word[:4]}", held, given(kind, file), REFUSED


def cases(seed):
    rng = random.Random(seed)
    for maker in (broken, of_values, built, places, large):
        yield from maker(rng)
