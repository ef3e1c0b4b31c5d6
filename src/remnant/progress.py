"""Progress without passing a bar around.

Long computations say `with task("search", total=n) as step: ... step()`. Nobody listens by default;
the command line installs a listener (a rich bar with an estimate of the time left).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol


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
