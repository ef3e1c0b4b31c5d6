"""A limit on time, kept at the steps that a computation reports."""

from __future__ import annotations

import contextvars
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from remnant.progress import Step, listening, task


class OutOfTimeError(Exception):
    """Not an error of the user's: what was begun is not finished, and nothing is broken."""


@contextmanager
def at_most(seconds: float | None) -> Iterator[None]:
    """End what runs inside, once it has had so many CPU seconds, at its next step.

    Whoever listened to progress before still hears of it.
    """
    if seconds is None:
        yield
        return
    end = time.process_time() + seconds
    outside = contextvars.copy_context()

    def listener(name: str, total: float | None) -> tuple[Step, Callable[[], None]]:
        opened = outside.run(task, name, total)
        report = outside.run(opened.__enter__)

        def step(amount: float = 1.0, *, note: str = "") -> None:
            report(amount, note=note)
            if time.process_time() > end:
                raise OutOfTimeError

        def close() -> None:
            outside.run(opened.__exit__, None, None, None)

        return step, close

    with listening(listener):
        yield
