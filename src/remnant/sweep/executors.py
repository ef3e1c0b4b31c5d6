"""One function mapped over many specs: in this process, on others here, on Dask or on Ray.

A place is written `jobs:N`, `dask://HOST:PORT` or `ray://HOST:PORT` (`ray://local`: Ray, started
here). `run_tasks` gives results back as they finish and runs a dead worker's task again.
`map_tasks` keeps each in a run's directory before it asks for the next, so that a task that has
ended is never run twice, whoever is killed. Only the process that calls them writes files.

Processes are joblib's (loky). On Dask and Ray the libraries' own futures are used and not joblib's
backends for them: when a worker dies, futures keep what others had done, and what was done but not
yet asked for need not be run again.
"""

from __future__ import annotations

import os
import pickle
import re
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, as_completed
from dataclasses import dataclass, field
from typing import Any

import cloudpickle
import safetensors.torch
import torch
from torch import Tensor

from remnant.checkpoints import pack, unpack
from remnant.errors import InputError, RemnantError, StoreError, expected
from remnant.progress import task
from remnant.store import Run, load_state, save_state, spec_hash
from remnant.types import finite

Spec = Mapping[str, Any]
Function = Callable[[Spec, Any], Any]
"""(spec, shared) -> JSON values, or a pair of those and named tensors. Found by its module's name,
so that a worker elsewhere can import it."""

USER_MODULES = "_remnant_user_"  # how a model's own file is named once it is imported
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
_GO_ON = "the same command goes on with the rest"
_shared: dict[str, Any] = {}  # in a worker: what its tasks share, and the bytes of it
_joined: list[str] = []  # the Ray cluster that this process is on


@dataclass(frozen=True, kw_only=True)
class Patience:
    """deaths: how often in a row workers may die before any task is finished. answer: seconds that
    a scheduler may take to answer."""

    deaths: int = 3
    answer: float = 15


PATIENCE = Patience()


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """What became of one spec: a value with tensors, or an error in one line.

    fault: the error was none of the user's; it is not kept, so that another start tries again.
    """

    spec: Spec
    digest: str
    value: Any = None
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    error: str | None = None
    fault: bool = False


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def read_place(on: str | None) -> tuple[str, str]:
    """`jobs:2` as ("jobs", "2"), `dask://host:8786` as ("dask", "host:8786"); None: every core."""
    if on is None:
        return "jobs", str(cores())
    for place in (r"(jobs):(0*[1-9]\d*)", r"(dask)://(.+:\d{1,5})", r"(ray)://(.+)"):
        if read := re.fullmatch(place, on, re.ASCII):
            return read[1], read[2]
    raise InputError(
        expected("place of tasks", "jobs:N, dask://HOST:PORT or ray://HOST:PORT", repr(on))
    )


def task_hash(function: Function, spec: Spec) -> str:
    """What names a task's result: the function and its spec."""
    return spec_hash({"task": f"{function.__module__}.{function.__qualname__}", "spec": dict(spec)})


def map_tasks(
    function: Function,
    specs: Sequence[Spec],
    *,
    run: Run,
    on: str | None = None,
    shared: Any = None,
    name: str = "tasks",
) -> list[Outcome]:
    """Each spec's outcome, in their order; `run` keeps each as soon as it is there.

    shared: what all tasks need and a spec does not say, sent to the workers. It is no part of a
    task's name, so a spec must hold the hash of whatever in it decides the result. An error that a
    user can mend is an outcome; any other is one too, but is not kept, so that a second start tries
    again.
    """
    names = [task_hash(function, spec) for spec in specs]
    wanted = dict(zip(names, specs, strict=True))
    kept = {digest: load_state(run, digest) for digest in wanted}
    done = {digest: held for digest, held in kept.items() if held is not None and "tree" in held}
    rest = [digest for digest in wanted if digest not in done]
    with task(name, len(wanted)) as step:
        step(len(done))
        todo = [wanted[digest] for digest in rest]
        for at, packed in run_tasks(_Packed(function), todo, on=on, shared=shared):
            tensors = safetensors.torch.load(packed)
            if not unpack(tensors)["fault"]:
                save_state(run, rest[at], tensors)
            done[rest[at]] = tensors
            step()
    return [Outcome(spec=wanted[n], digest=n, **unpack(done[n])) for n in names]


def run_tasks(
    function: Function, specs: Sequence[Spec], *, on: str | None = None, shared: Any = None
) -> Iterator[tuple[int, Any]]:
    """(place in `specs`, result) as each finishes. An error of the function is raised."""
    kind, where = read_place(on)
    if not specs:
        return
    if kind == "jobs" and int(where) == 1:
        for at, spec in enumerate(specs):
            yield at, _plainly(function, spec, shared)
        return
    blob = _pickled(shared)
    places = {"jobs": _on_processes, "dask": _on_dask, "ray": _on_ray}
    yield from places[kind](where, function, specs, blob)


def _pickled(shared: Any) -> bytes:
    """What tasks share as bytes. Workers can import installed packages but not the user's own
    files, so code from those is sent along."""
    for name, module in list(sys.modules.items()):
        if name.startswith(USER_MODULES):
            cloudpickle.register_pickle_by_value(module)
    blob: bytes = cloudpickle.dumps(shared)
    return blob


def _plainly(function: Function, spec: Spec, shared: Any) -> Any:
    """One thread and no denormals everywhere: the same bytes wherever a task runs."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    try:
        return function(spec, shared)
    finally:
        torch.set_num_threads(threads)


@dataclass(frozen=True)
class _Packed:
    """A function whose result, or error, comes back as bytes of safetensors."""

    function: Function

    def __call__(self, spec: Spec, shared: Any) -> bytes:
        held: dict[str, Any] = {"fault": False}
        try:
            result = self.function(spec, shared)
            value, tensors = result if isinstance(result, tuple) else (result, {})
            held |= {"value": finite(value), "tensors": dict(tensors)}
        except RemnantError as error:
            held["error"] = str(error)
        except Exception as error:  # a fault of one task must not take the others with it
            held |= {"error": f"{type(error).__name__}: {error}", "fault": True}
        return safetensors.torch.save(pack(held))


def _on_processes(
    where: str, function: Function, specs: Sequence[Spec], blob: bytes
) -> Iterator[tuple[int, Any]]:
    from joblib.externals.loky import get_reusable_executor
    from joblib.externals.loky.process_executor import BrokenProcessPool

    todo, deaths = dict(enumerate(specs)), 0
    while todo:
        # Kept for the next call: a process takes seconds to start.
        pool = get_reusable_executor(
            min(int(where), len(specs)),
            timeout=60,
            env=ONE_THREAD,
            initializer=_end_with_parent,
            initargs=(os.getpid(),),
        )
        before = len(todo)
        try:
            futures = {pool.submit(_work, function, spec, blob): at for at, spec in todo.items()}
            for future in as_completed(futures):
                # Where a worker died, the pool is broken, but what others had done is not lost.
                if isinstance(future.exception(), BrokenProcessPool):
                    continue
                del todo[futures[future]]
                yield futures[future], future.result()
        finally:
            if todo:  # broken, or nobody waits for the rest
                pool.shutdown(wait=False, kill_workers=True)
        deaths = 0 if len(todo) < before else deaths + 1
        if deaths == PATIENCE.deaths:
            raise StoreError(_dead(len(todo)))


def _end_with_parent(parent: int) -> None:
    """In a worker: end as soon as the process that asked for its tasks is gone, killed or not."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the command's own handler is not for workers
    threading.Thread(target=watch, daemon=True).start()


def _on_dask(
    where: str, function: Function, specs: Sequence[Spec], blob: bytes
) -> Iterator[tuple[int, Any]]:
    distributed = _library("distributed", "dask")
    try:
        client = distributed.Client(f"tcp://{where}", timeout=PATIENCE.answer, set_as_default=False)
    except OSError:
        raise InputError(
            expected(f"dask://{where}", "a scheduler", "no answer", "start `dask scheduler` there")
        ) from None
    with client:
        # A task's result and not scattered data: if all that hold it die, Dask makes it again.
        held = client.submit(bytes, blob, pure=False)
        futures = {
            client.submit(_work, function, spec, held, pure=False): at
            for at, spec in enumerate(specs)
        }
        for future in distributed.as_completed(list(futures), loop=client.loop):
            try:
                result = future.result()
            except distributed.KilledWorker:
                raise StoreError(_dead(1)) from None
            except CancelledError:
                do = f"is the scheduler at {where} still there? {_GO_ON}"
                raise StoreError(expected("tasks on Dask", "a result", "none", do)) from None
            yield futures.pop(future), result
            future.release()


def _on_ray(
    where: str, function: Function, specs: Sequence[Spec], blob: bytes
) -> Iterator[tuple[int, Any]]:
    ray = _library("ray", "ray")
    _join(ray, where)
    work = ray.remote(num_cpus=1, max_retries=PATIENCE.deaths, retry_exceptions=False)(_work)
    held = ray.put(blob)
    pending = {work.remote(function, spec, held): at for at, spec in enumerate(specs)}
    while pending:
        ready, _ = ray.wait(list(pending), num_returns=1)
        for reference in ready:
            try:
                result = ray.get(reference)
            except ray.exceptions.RayTaskError as error:
                raise error.cause from None
            except ray.exceptions.RayError:
                raise StoreError(_dead(1)) from None
            yield pending.pop(reference), result


def _join(ray: Any, where: str) -> None:
    """Connect to Ray and stay so, since it takes seconds, until another cluster is asked for."""
    if ray.is_initialized():
        if _joined == [where]:
            return
        ray.shutdown()
    os.environ.setdefault(
        "RAY_USAGE_STATS_ENABLED", "0"
    )  # Ray tells its makers, unless told not to
    quiet = {"log_to_driver": False, "configure_logging": False}
    try:
        if where == "local":
            here = {"num_cpus": cores(), "include_dashboard": False}
            ray.init(address="local", object_store_memory=2**29, **here, **quiet)
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the same again as what is raised, in six lines
                ray.init(address="auto" if where == "auto" else f"ray://{where}", **quiet)
        _joined[:] = [where]
    except (ConnectionError, RuntimeError, ImportError) as error:
        got = str(error).splitlines()[0] if str(error) else type(error).__name__
        do = "start `ray start --head` there"
        if where not in ("auto", "local"):  # the client is told of a refusal as of silence
            do += "; if it runs, it may want a token (its ray_client_server.err says so): on a "
            do += "machine of the cluster use ray://auto"
        raise InputError(expected(f"ray://{where}", "a Ray cluster", got, do)) from None


def _library(name: str, extra: str) -> Any:
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError:
        do = f"pip install 'remnant[{extra}]'"
        raise InputError(expected(f"{extra}://", f"the package {name}", "none", do)) from None


def _dead(tasks: int) -> str:
    got = f"workers that died {PATIENCE.deaths} times in a row, {tasks} tasks left"
    return expected("workers", "a result", got, f"are they out of memory? {_GO_ON}")


def _work(function: Function, spec: Spec, blob: bytes) -> Any:
    """In a worker. What is shared comes with every task and is unpacked once."""
    if _shared.get("bytes") != blob:
        _shared["value"] = pickle.loads(blob)  # noqa: S301  sent by who started us, no file
        _shared["bytes"] = blob
    return _plainly(function, spec, _shared["value"])
