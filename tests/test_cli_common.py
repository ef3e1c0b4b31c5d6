"""What verbs share: tables and progress, where there is a terminal and where not."""

import argparse
import io
import shlex
import shutil
import subprocess
import threading

import pytest
from rich.table import Table

from remnant.cli import main
from remnant.cli.common import Answer, carry_out, console
from remnant.progress import bars, task


@pytest.mark.parametrize("terminal", [False, True])
def test_only_a_terminal_limits_the_width_of_a_table(monkeypatch, terminal):
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: terminal)
    monkeypatch.setattr("sys.stdout", stream)
    monkeypatch.setenv("COLUMNS", "60")
    table = Table(box=None)
    for i in range(20):
        table.add_column(f"a long heading {i}")
    table.add_row(*(f"value {i}" for i in range(20)))
    console().print(table)
    lines = stream.getvalue().splitlines()
    whole = "a long heading 0" in lines[0] and "a long heading 19" in lines[0]
    assert whole is not terminal


class Watched(io.StringIO):
    """No terminal; knows when something was written."""

    def __init__(self):
        super().__init__()
        self.written = threading.Event()

    def write(self, text):
        count = super().write(text)
        self.written.set()
        return count


def test_a_file_gets_lines_of_progress_even_within_a_step(monkeypatch):
    stream = Watched()
    monkeypatch.setattr("sys.stderr", stream)
    with bars(soon=0.01, every=0.01), task("cells", 12) as step, task("reading"):
        with task("over"):
            pass
        step(3)
        for _ in range(2):  # the first may have been put together before the step
            stream.written.clear()
            assert stream.written.wait(60)
    said = stream.getvalue()
    assert said.endswith("\nremnant: cells 3 of 12, reading\n")


def test_quiet_starts_nothing_that_could_tell(monkeypatch):
    monkeypatch.setattr("sys.stderr", Watched())
    before = threading.active_count()
    found = []

    def run(arguments):
        with task("cells", 12) as step:
            step()
            found.append(threading.active_count() - before)
        return Answer(show=lambda: None)

    for quiet in (True, False):
        carry_out(argparse.Namespace(threads=1, quiet=quiet, run=run))
    assert found == [0, 1]
    assert threading.active_count() == before


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
@pytest.mark.parametrize(
    ("typed", "wanted"),
    [("de", "demo"), ("runs rem", "remove"), ("reconstruct ntk --ini", "--initial"), ("x --", "")],
)
def test_a_shell_completes_verbs_and_flags(capsys, typed, wanted):
    assert main(["completion", "bash"]) == 0
    words = " ".join(shlex.quote(word) for word in ("remnant", *typed.split()))
    last = len(typed.split())
    asked = f'COMP_WORDS=({words}); COMP_CWORD={last}; _remnant; echo "${{COMPREPLY[@]}}"'
    script = capsys.readouterr().out + asked
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert wanted in done.stdout.split() or (not wanted and "--version" in done.stdout)
