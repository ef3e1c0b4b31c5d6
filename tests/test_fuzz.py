"""Any text and any bytes: a value or one short line, never another exception.

A few seconds, the same each time; REMNANT_FUZZ_SECONDS=120 looks for new ones so long.
"""

import os
import random
import tempfile
import time
from pathlib import Path

import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from malformed_files import by_torch, npz, tensors
from malformed_words import BASES, VALUES, mutated, options, spec
from remnant.cli import parser
from remnant.cli.spec import AuditSpec, read_spec
from remnant.data import load
from remnant.errors import LONGEST, InputError, RemnantError, brief, cut, expected
from remnant.models import read_weights

SECONDS = float(os.environ.get("REMNANT_FUZZ_SECONDS", "0"))


def one_line(function, *given):
    """The function's value, or None where it refuses in one short line; anything else is raised."""
    try:
        return function(*given)
    except RemnantError as error:
        said = str(error)
        assert said.isprintable(), said
        assert len(said) <= LONGEST
        return None


def in_file(name, raw, read):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(raw)
        return one_line(read, path)


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
fields = st.sampled_from([*AuditSpec.model_fields, "other"])


def a_spec_of_any_values(values):
    in_file("audit.yaml", yaml.safe_dump(values).encode("utf-8", "surrogatepass"), read_spec)


def a_spec_of_any_text(field, text):
    in_file("audit.yaml", spec(**{field: text}).encode("utf-8", "surrogatepass"), read_spec)


def flags_of_any_text(verb, data):
    flag = data.draw(st.sampled_from(options(verb))).option_strings[-1]
    value = data.draw(st.text(max_size=40) | st.integers().map(str) | st.floats().map(str))
    base = BASES[verb]
    words = base if base[0] == verb.split()[0] else [*verb.split(), *base]
    one_line(parser().parse_args, [*words, f"{flag}={value}"])


WEIGHTS = {"w.safetensors": tensors(), "w.pt": by_torch({"a": torch.ones(3), "b": torch.ones(2)})}


def weights_of_any_bytes(name, seed):
    in_file(name, mutated(random.Random(seed), WEIGHTS[name]), read_weights)


def data_of_any_bytes(seed, packed):
    raw = mutated(random.Random(seed), npz(packed=packed))
    in_file("d.npz", raw, lambda path: load(str(path)))


def a_message_of_any_values_is_one_short_line(value, text, digits):
    huge = 10**digits
    for got in (value, text, huge, [huge], brief(huge), brief({"a": [huge]})):
        said = str(InputError(expected(text, "a number", got, "give another")))
        assert said.isprintable()
        assert len(said) <= LONGEST
    assert len(cut(text, 30)) <= 30


FUZZED = {
    a_spec_of_any_values: (st.dictionaries(fields, plain, max_size=6),),
    a_spec_of_any_text: (
        fields,
        st.sampled_from(VALUES) | st.text(max_size=60),
    ),
    flags_of_any_text: (
        st.sampled_from([verb for verb in sorted(BASES) if options(verb)]),
        st.data(),
    ),
    weights_of_any_bytes: (
        st.sampled_from(sorted(WEIGHTS)),
        st.integers(0, 2**32),
    ),
    data_of_any_bytes: (
        st.integers(0, 2**32),
        st.booleans(),
    ),
    a_message_of_any_values_is_one_short_line: (
        plain,
        st.text(),
        st.integers(0, 10_000),
    ),
}


@pytest.mark.parametrize("function", FUZZED, ids=lambda function: function.__name__)
def test_one_line_or_a_value(function):
    few = settings(max_examples=60, deadline=None, database=None)
    few(given(*FUZZED[function])(function))()


@pytest.mark.skipif(not SECONDS, reason="REMNANT_FUZZ_SECONDS is not set")
def test_for_some_time():
    """All of the above with new examples each time, in turn, until the time is over."""
    longer = settings(max_examples=200, derandomize=False, deadline=None, database=None)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        for function, strategies in FUZZED.items():
            if time.monotonic() < end:
                longer(given(*strategies)(function))()
