"""Progress without passing a bar around.

Long computations say `with task("search", total=n) as step: ... step()`. Nobody listens by default;
the command line shows `bars`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.progress import Progress


class Step(Protocol):
    def __call__(self, amount: float = 1.0, *, note: str = "") -> None: ...


class Listener(Protocol):
    """Starts a task and returns what advances it and what ends it."""

    def __call__(self, name: str, total: float | None) -> tuple[Step, Callable[[], None]]: ...


_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Report all progress made inside the block to `listener`."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


@contextmanager
def task(name: str, total: float | None = None) -> Iterator[Step]:
    """A piece of work of `total` units (None = unknown)."""
    listener = _listener.get()
    if listener is None:
        yield _silent
        return
    step, end = listener(name, total)
    try:
        yield step
    finally:
        end()


def _silent(amount: float = 1.0, *, note: str = "") -> None:
    pass


@contextmanager
def bars(*, soon: float = 2.0, every: float = 30.0) -> Iterator[None]:
    """Show tasks on stderr: as bars with the time left, gone when done. Where stderr is no
    terminal, as a line once a task has taken `soon` seconds, and another after `every` so many."""
    from rich import progress
    from rich.console import Console

    terminal = sys.stderr.isatty()
    shown = progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        progress.TextColumn("left"),
        progress.TimeRemainingColumn(),
        progress.TextColumn("[dim]{task.fields[note]}"),
        console=Console(stderr=True),
        transient=True,
        disable=not terminal,  # it keeps count of the tasks all the same
    )

    def listener(name: str, total: float | None) -> tuple[Step, Callable[[], None]]:
        bar = shown.add_task(name, total=total, note="")

        def step(amount: float = 1.0, *, note: str = "") -> None:
            shown.update(bar, advance=amount, note=note)

        return step, lambda: shown.remove_task(bar)

    with shown, nullcontext() if terminal else _lines(shown, soon, every), listening(listener):
        yield


@contextmanager
def _lines(shown: Progress, soon: float, every: float) -> Iterator[None]:
    """The tasks under way as lines, outermost first, by a thread, since a step may take minutes."""
    over = threading.Event()

    def tell() -> None:
        told, at = None, 0.0
        while not over.wait(soon / 2):
            tasks, now = shown.tasks, shown.get_time()
            if not tasks or now < (tasks[0].start_time or now) + soon:
                continue
            if tasks[0].id != told or now >= at + every:
                told, at = tasks[0].id, now
                words = (
                    t.description
                    if t.total is None
                    else f"{t.description} {round(t.completed, 1):g} of {round(t.total, 1):g}"
                    for t in tasks
                )
                with suppress(OSError, ValueError):  # whoever read it has left
                    sys.stderr.write(f"remnant: {', '.join(words)}\n")
                    sys.stderr.flush()

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        over.set()
        teller.join()
