"""What nobody foresaw is one line and never exit 0; what a file says is never a command."""

import csv
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
import yaml

from malformed_files import npz, tensors
from remnant.cli import Parser, init, main, runs
from remnant.cli.common import in_yaml
from remnant.errors import InputError, expected
from remnant.report.lines import Point, draw_lines, line_panels
from remnant.store import open_run
from remnant.sweep.table import as_csv
from remnant.sweep.trials import mend_journal, with_driver


def run_raising(monkeypatch, error):
    def raising(arguments):
        raise error

    monkeypatch.setattr(runs, "run_list", raising)
    return main(["runs", "list", "."])


@pytest.mark.parametrize(
    "error",
    [
        ZeroDivisionError("two\nlines"),
        RecursionError("deep"),
        OverflowError("x" * 100_000),
        KeyError("\x1b[31m"),
        ValueError(10**20),
        SystemExit(0),
        SystemExit(),
        GeneratorExit(),
        OSError(36, "File name too long", "x" * 5000),
        OSError(28, "No space left on device"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"),
        MemoryError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_any_fault_is_one_line_and_exit_2(monkeypatch, capsys, error):
    assert run_raising(monkeypatch, error) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("remnant: ")
    assert said.err.count("\n") == 1
    assert said.err[:-1].isprintable()
    assert len(said.err) < 500


def test_a_traceback_is_for_who_asks_for_it(monkeypatch, capsys):
    monkeypatch.setenv("REMNANT_DEBUG", "1")
    assert run_raising(monkeypatch, ZeroDivisionError("why")) == 2
    said = capsys.readouterr().err
    assert "Traceback" in said
    assert said.splitlines()[-1].startswith("remnant: internal fault: ZeroDivisionError: why")


def test_the_umask_and_the_handler_are_as_before(monkeypatch, capsys):
    before = signal.getsignal(signal.SIGTERM), os.umask(0o022)
    try:
        run_raising(monkeypatch, ZeroDivisionError())
        assert signal.getsignal(signal.SIGTERM) == before[0]
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before[1])


@pytest.mark.parametrize("gate", [True, False])
def test_a_reader_that_left_opens_no_gate(tmp_path, gate):
    script = (
        "import sys; from remnant.cli import audit, main\n"
        "def run(given): raise BrokenPipeError\n"
        "audit.run = run; sys.exit(main(sys.argv[1:]))"
    )
    words = ["audit", "none.yaml", *(["--gate"] if gate else [])]
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, check=False)
    assert done.returncode == (2 if gate else 0)


def test_sigterm_ends_like_ctrl_c():
    script = (
        "import sys, time; from remnant.cli import main, runs\n"
        "def run(given): print('here', flush=True); time.sleep(60)\n"
        "runs.run_list = run; sys.exit(main(['runs', 'list', '.']))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "here\n"
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=30)
    assert process.returncode == 143
    assert said == "remnant: terminated; the same command goes on from here\n"


def test_workers_end_with_the_process_that_asked(tmp_path):
    script = (
        "import time\nfrom remnant.sweep.executors import run_tasks\n"
        "from sweep_tasks import patient\n"
        "for _ in run_tasks(patient, [{'file': f'{i}'} for i in range(2)], on='jobs:2'): pass\n"
    )
    (tmp_path / "sweep_tasks.py").write_text(
        "import os, time\nfrom pathlib import Path\n"
        "def patient(spec, shared):\n"
        "    Path(spec['file']).write_text(str(os.getpid()))\n    time.sleep(300)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL
    ) as process:
        wait_for(lambda: (tmp_path / "0").exists() and (tmp_path / "0").read_text(), 60)
        process.kill()
    worker = int((tmp_path / "0").read_text())
    wait_for(lambda: not alive(worker), 20)


def wait_for(there, seconds):
    end = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < end
        time.sleep(0.1)


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_messages_are_cut_and_their_parts_stay():
    said = str(InputError(expected("w" * 9000, "x" * 9000, 10**5000, "do " + "z" * 9000)))
    assert len(said) <= 480
    for part in ("www", ": expected xxx", ", got a whole number of 16610 bits", "; do zzz"):
        assert part in said


def test_names_are_no_markup_and_no_commands(tmp_path, capsys):
    folder = tmp_path / "[/x]\x1b[31m"
    open_run(folder, {"verb": "=1+1"})
    assert main(["runs", "list", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "[/x]\\x1b[31m" in said
    assert "\x1b" not in said


def test_a_cell_is_no_formula():
    rows = [{"data": "=cmd()|'x'", "=name": "+1", "n": -1.5, "m": "a=b"}]
    head, row = csv.reader(as_csv(rows).splitlines())
    assert head == ["data", "'=name", "n", "m"]
    assert row == ["'=cmd()|'x'", "'+1", "-1.5", "a=b"]


def test_a_name_is_no_formula_in_a_figure():
    names = ("$\\frac{$.npz", "$x^$", "a\x1b[31m\n", "😀", "\ud800", "x" * 3000)
    points = [Point(panel=name, line=name, x=name, y=0.5) for name in names]
    drawn = line_panels(points, across="$", up="share", log_x=False, log_y=False)
    assert draw_lines(drawn).startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["😀.npz", 'a"b\\c', "tab\t", "\x7f", "\ud8ff", "ü: # x"])
def test_init_writes_what_yaml_reads_back(name):
    assert yaml.safe_load(f"a: {in_yaml(name)}  # words") == {"a": name}


def test_init_of_a_path_with_an_emoji(tmp_path, capsys):
    folder = tmp_path / "😀"
    folder.mkdir()
    (folder / "w.safetensors").write_bytes(tensors())
    (folder / "d.npz").write_bytes(npz())
    given = [f"--weights={folder / 'w.safetensors'}", f"--data={folder / 'd.npz'}"]
    assert main(["init", *given, f"--out={tmp_path}"]) == 0
    assert yaml.safe_load((tmp_path / init.FILE).read_text("utf-8"))["data"] == str(
        folder / "d.npz"
    )


def test_a_torn_journal_keeps_what_is_whole(tmp_path):
    path = tmp_path / "search.journal"
    path.write_bytes(b'{"op_code": 0}\n{"op_code": 1}\n{"op_co')
    mend_journal(path)
    assert path.read_bytes() == b'{"op_code": 0}\n{"op_code": 1}\n'
    path.write_bytes(b'{"op_code": 0}\n[\n{"op_code": 1}\n')
    mend_journal(path)
    assert path.read_bytes() == b'{"op_code": 0}\n'


def test_postgresql_names_the_driver_that_is_installed():
    assert with_driver("postgresql://a/b") == "postgresql+psycopg2://a/b"
    assert with_driver("postgresql+psycopg2://a/b") == "postgresql+psycopg2://a/b"
    assert with_driver("sqlite:////a") == "sqlite:////a"


@pytest.mark.parametrize("setting", ["starts: 0", "steps: -1", "candidates: 10000000"])
def test_a_refused_setting_leaves_no_run_behind(tmp_path, capsys, setting):
    (tmp_path / "w.safetensors").write_bytes(tensors())
    (tmp_path / "d.npz").write_bytes(npz())
    (tmp_path / "h.npz").write_bytes(npz(x=torch.rand(20, 1, 8, 8).numpy()))
    text = f"weights: w.safetensors\ndata: d.npz\nholdout: h.npz\nsettings: {{kkt: {{{setting}}}}}"
    (tmp_path / "audit.yaml").write_text(text)
    assert main(["audit", str(tmp_path / "audit.yaml"), f"--out={tmp_path / 'found'}"]) == 2
    assert setting.split(":")[0] in capsys.readouterr().err
    assert not (tmp_path / "found").exists()


def test_help_still_leaves_with_0(capsys):
    with pytest.raises(SystemExit) as left:
        main(["--version"])
    assert left.value.code == 0
    assert Parser(prog="x").prog == "x"
