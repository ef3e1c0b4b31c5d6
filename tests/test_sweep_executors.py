"""One function over many specs: the same results wherever, nothing lost and nothing run twice."""

import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from types import SimpleNamespace

import pytest
import torch

from remnant.errors import InputError, StoreError
from remnant.experiments.studies import STUDIES
from remnant.experiments.study import run_study, study_data, study_spec
from remnant.models import build
from remnant.store import open_run
from remnant.sweep import executors
from remnant.sweep.executors import cores, map_tasks, read_place, run_tasks, task_hash
from sweep_clusters import ENVIRONMENT, dask_cluster, end
from sweep_tasks import deadly, faulty, marked, marks, outputs, square, wait_for

SPECS = [{"n": n} for n in range(6)]


@pytest.fixture
def run(tmp_path):
    return open_run(tmp_path / "run", {"verb": "test"})


def as_bytes(outcomes):
    return [(o.digest, o.value, o.tensors["draws"].numpy().tobytes(), o.error) for o in outcomes]


def test_places_are_read_and_others_refused():
    assert read_place("jobs:3") == ("jobs", "3")
    assert read_place("dask://10.0.0.1:8786") == ("dask", "10.0.0.1:8786")
    assert read_place("ray://local") == ("ray", "local")
    assert read_place(None) == ("jobs", str(cores()))
    for wrong in ("jobs:0", "jobs:x", "dask://", "dask://nope", "slurm://a", "4", ""):
        with pytest.raises(InputError, match="expected jobs:N, dask://HOST:PORT or ray"):
            read_place(wrong)


def test_processes_return_what_this_process_does(tmp_path):
    here, there = (
        map_tasks(square, SPECS, run=open_run(tmp_path / on, {}), on=on, shared="also")
        for on in ("jobs:1", "jobs:2")
    )
    assert as_bytes(here) == as_bytes(there)
    assert [o.value for o in here] == [{"square": n * n, "plus": "also"} for n in range(6)]
    assert torch.equal(here[2].tensors["draws"], square({"n": 2}, None)[1]["draws"])


def test_a_task_that_ended_is_never_run_again(run, tmp_path):
    first = map_tasks(marked, SPECS[:4], run=run, on="jobs:1", shared=tmp_path)
    again = map_tasks(marked, [*SPECS, *SPECS], run=run, on="jobs:2", shared=tmp_path)
    assert marks(tmp_path, "ended") == list(range(6))
    assert [o.value["n"] for o in again] == [*range(6), *range(6)]
    assert [o.value for o in first] == [o.value for o in again[:4]]


def test_a_damaged_result_is_as_good_as_missing(run, tmp_path):
    map_tasks(marked, SPECS[:2], run=run, on="jobs:1", shared=tmp_path)
    file = run.path / f"state-{task_hash(marked, SPECS[0])}.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    map_tasks(marked, SPECS[:2], run=run, on="jobs:1", shared=tmp_path)
    assert marks(tmp_path, "ended") == [0, 0, 1]


def test_names_depend_on_function_and_spec():
    assert len({task_hash(f, s) for f in (marked, square) for s in SPECS[:2]}) == 4


@pytest.mark.parametrize("on", ["jobs:1", "jobs:2"])
def test_errors_are_outcomes_and_faults_are_tried_again(run, tmp_path, on):
    for _ in range(2):
        outcomes = map_tasks(faulty, SPECS[:4], run=run, on=on, shared=tmp_path)
        assert [o.error for o in outcomes] == [
            None, "n: expected another, got 1", "ZeroDivisionError: a fault", None,
        ]  # fmt: skip
        assert outcomes[0].value is None  # NaN, as JSON has it
    assert marks(tmp_path, "begun") == [0, 1, 2, 2, 3]
    with pytest.raises(InputError, match="got 1"):
        list(run_tasks(faulty, SPECS[:2], on=on, shared=tmp_path))


def test_the_task_of_a_process_that_dies_is_run_again(run, tmp_path):
    specs = [{"n": n, "dies": "once" if n in (1, 4) else None} for n in range(6)]
    outcomes = map_tasks(deadly, specs, run=run, on="jobs:2", shared=tmp_path)
    assert [o.value for o in outcomes] == list(range(6))
    # What had ended when the pool broke, but had not been told, is run again too.
    assert set(marks(tmp_path, "ended")) == set(range(6))


def test_a_task_that_always_kills_its_process_ends_the_attempts(run, tmp_path):
    specs = [{"n": 0}, {"n": 1, "dies": "always"}]
    with pytest.raises(StoreError, match="workers that died 3 times in a row"):
        map_tasks(deadly, specs, run=run, on="jobs:2", shared=tmp_path)
    assert map_tasks(deadly, specs[:1], run=run, on="jobs:2", shared=tmp_path)[0].value == 0
    assert marks(tmp_path, "ended") == [0]


def test_a_second_start_of_a_killed_driver_runs_only_the_rest(tmp_path):
    """Tasks 3 and up wait for a file that appears only after the driver was killed."""
    marked_in, gate = tmp_path / "marks", tmp_path / "gate"
    marked_in.mkdir()
    code = (
        "import sys\nfrom sweep_tasks import marked\nfrom remnant.store import open_run\n"
        "from remnant.sweep.executors import map_tasks\n"
        "folder, gate, out = sys.argv[1:]\n"
        "specs = [{'n': n, 'until': gate if n > 2 else None} for n in range(8)]\n"
        "map_tasks(marked, specs, run=open_run(out, {}), on='jobs:2', shared=folder)\n"
    )
    words = [sys.executable, "-c", code, str(marked_in), str(gate), str(tmp_path / "run")]
    driver = subprocess.Popen(words, env=ENVIRONMENT, start_new_session=True)
    specs = [{"n": n, "until": str(gate) if n > 2 else None} for n in range(8)]
    names = [task_hash(marked, spec) for spec in specs]
    try:
        for name in names[:3]:
            wait_for(tmp_path / "run" / f"state-{name}.safetensors")
        os.kill(driver.pid, signal.SIGKILL)
    finally:
        end(driver)
    gate.touch()
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").glob("state-*")}
    assert len(before) == 3
    subprocess.run(words, env=ENVIRONMENT, check=True)
    assert [n for n in marks(marked_in, "ended") if n < 3] == [0, 1, 2]
    assert set(marks(marked_in, "ended")) == set(range(8))
    for name, content in before.items():
        assert (tmp_path / "run" / name).read_bytes() == content


def test_dask_returns_the_same_and_survives_a_killed_worker(tmp_path):
    pytest.importorskip("distributed")
    gate = tmp_path / "gate"
    folder = tmp_path / "marks"
    folder.mkdir()
    specs = [{"n": n, "until": str(gate) if n >= 4 else None} for n in range(24)]
    run = open_run(tmp_path / "run", {})
    with dask_cluster(tmp_path) as (address, workers):
        on = f"dask://{address}"
        there = map_tasks(square, SPECS, run=open_run(tmp_path / "a", {}), on=on, shared="also")
        here = map_tasks(
            square, SPECS, run=open_run(tmp_path / "b", {}), on="jobs:1", shared="also"
        )
        assert as_bytes(there) == as_bytes(here)
        kept = []

        def kill_one():
            """Once both workers wait inside a task and all that had ended was told."""
            limit = time.monotonic() + 25
            while time.monotonic() < limit:
                waiting = [n for n in marks(folder, "begun") if n >= 4]
                if len(waiting) == 2 and len(kept) == len(marks(folder, "ended")):
                    break
                time.sleep(0.05)
            end(workers[0])
            gate.touch()

        killer = threading.Thread(target=kill_one)
        killer.start()
        for at, result in run_tasks(marked, specs, on=on, shared=folder):
            kept.append((at, result))
        killer.join()
        assert sorted(at for at, _ in kept) == list(range(24))
        assert marks(folder, "ended") == list(range(24))  # none twice
        assert len({result["pid"] for at, result in kept if at >= 4}) == 1
        outcomes = map_tasks(faulty, SPECS[:3], run=run, on=on, shared=folder)
        assert outcomes[2].error == "ZeroDivisionError: a fault"


def test_a_cluster_that_does_not_answer_is_one_line(monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.setattr(executors, "PATIENCE", executors.Patience(answer=0.2))
    with pytest.raises(InputError, match="got no answer; start `dask scheduler` there"):
        list(run_tasks(square, SPECS, on="dask://127.0.0.1:9"))


def test_a_study_goes_through_the_executor_with_the_same_rows(tmp_path):
    study = STUDIES["gradient-noise"]
    small = {"noise": [0.0, 0.01], "width records": [(64, 4)], "data": "digits", "seed": [0]}
    values = dict(study.settings) | small
    data, _ = study_data(values, None)
    spec = study_spec("gradient-noise", values, data)
    rows = []
    for on in ("jobs:1", "jobs:2"):
        run = open_run(tmp_path / on, spec)
        rows.append(run_study(study, values, data, run, on=on))
    plain = [[{**row, "cpu_seconds": None} for row in one] for one in rows]
    assert plain[0] == plain[1]
    assert len(plain[0]) == 2


def test_a_model_of_the_users_own_file_reaches_the_workers(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from torch import nn\n"
        "class Own(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.layer = nn.Linear(4, 2)\n"
        "    def forward(self, x):\n"
        "        return 3 * self.layer(x)\n"
        "def make():\n"
        "    return Own()\n"
    )
    model = build(f"{file}:make", generator=torch.Generator().manual_seed(0))
    there = dict(run_tasks(outputs, SPECS[:2], on="jobs:2", shared=model))
    assert there == {n: outputs({"n": n}, model) for n in range(2)}


def test_a_ray_client_that_is_turned_away_is_told_so_in_one_line(recwarn):
    def init(**_):
        warnings.warn("Ray Client connection timed out.\nEnsure that", stacklevel=1)
        raise ConnectionError("ray client connection timeout")

    ray = SimpleNamespace(is_initialized=lambda: False, init=init)
    with pytest.raises(InputError) as error:
        executors._join(ray, "10.0.0.1:10001")
    text = str(error.value)
    assert text.startswith(
        "ray://10.0.0.1:10001: expected a Ray cluster, got ray client connection"
    )
    assert "may want a token" in text
    assert "use ray://auto" in text
    assert "\n" not in text
    assert not recwarn.list
    with pytest.raises(InputError, match=r"start `ray start --head` there$"):
        executors._join(ray, "auto")
