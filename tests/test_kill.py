"""kill -9 in the middle of an audit: the same command goes on and ends with the same bytes."""

import importlib.util
import shutil
import time
from pathlib import Path

import pytest

from remnant.cli import main

PATH = Path(__file__).parents[1] / "benchmarks" / "kill.py"


@pytest.fixture
def kill():
    spec = importlib.util.spec_from_file_location("kill", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_killed_three_times_it_ends_with_the_same_bytes(tmp_path, kill):
    arguments = kill.make_case(tmp_path, steps=10)
    out = tmp_path / "out"
    begun = time.monotonic()
    assert main(arguments) == 0
    took, whole = time.monotonic() - begun, kill.results(out)
    assert {"finding.json", "candidates-kkt.safetensors", "report.html"} <= set(whole)
    shutil.rmtree(out)
    for share in (0.2, 0.5, 0.8):
        assert "run.json" in kill.kill_after(arguments, share * took)
    assert kill.start(arguments).wait() == 0
    assert kill.results(out) == whole
    assert not list(out.glob("state-*"))
    assert not list(out.glob(".remnant-*"))
