"""Clusters of real processes on this machine, for tests."""

import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

TESTS = Path(__file__).parent
ENVIRONMENT = os.environ | {"PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1"}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def end(process):
    """The process and those that it started."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def start(*words, cwd):
    return subprocess.Popen(
        [sys.executable, *map(str, words)],
        cwd=cwd,
        env=ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


@contextmanager
def dask_cluster(folder, workers=2):
    """(address, workers): a scheduler and its workers, one thread and no nanny each."""
    port = free_port()
    scheduler = start(
        "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", port,
        "--no-dashboard", cwd=folder,
    )  # fmt: skip
    address = f"127.0.0.1:{port}"
    mine = [
        start(
            "-m", "distributed.cli.dask_worker", f"tcp://{address}", "--nthreads", 1,
            "--no-nanny", "--no-dashboard", "--name", f"w{i}", cwd=folder,
        )
        for i in range(workers)
    ]  # fmt: skip
    try:
        yield address, mine
    finally:
        for process in (*mine, scheduler):
            end(process)
