"""A limit on time, kept at the steps that a computation reports."""

from __future__ import annotations

import contextvars
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from remnant.progress import Step, listening, task


class OutOfTimeError(Exception):
    """The time given to a computation ran out: it is not finished, and nothing is broken. No
    RemnantError, since it is no error of the user's."""


@contextmanager
def at_most(seconds: float | None) -> Iterator[None]:
    """Stop what runs inside the block, at the next step that it reports, once it has used so many
    CPU seconds.

    Progress is still shown by whoever showed it before.
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
