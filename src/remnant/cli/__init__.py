"""The command line: verbs, each a file with `add` (its flags) and `run`."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import NoReturn

from remnant.cli.common import VERBS, Exit, carry_out
from remnant.cli.flags import Parser
from remnant.errors import InputError, RemnantError, cut, text_of

__all__ = ["Parser", "main", "parser"]


def parser(words: Sequence[str] | None = None) -> Parser:
    """The parser of a command's words: the verb that they name with its flags, from its file's
    `add`, and the others by name. Without words all verbs have their flags."""
    from importlib.metadata import version

    top = Parser(
        prog="remnant",
        description="What remains of your training data in the model you release?",
        epilog="example: remnant demo",
    )
    top.add_argument("--version", action="version", version=f"remnant {version('remnant')}")
    verbs = top.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=Parser)
    named = VERBS if words is None else [word for word in words if not word.startswith("-")][:1]
    entered = {"audit" if verb == "preflight" else verb for verb in named}
    for verb, summary in VERBS.items():
        if verb in entered:
            import_module(f"remnant.cli.{verb}").add(verbs)
        elif verb != "preflight" or "audit" not in entered:  # which stands in the same file
            verbs.add_parser(verb, help=summary)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit code. Whatever goes wrong is one line on stderr.

    Nothing but a verb that ended decides that the code is 0: a gate must not open by accident.
    """
    given = argparse.Namespace()
    with _orderly():
        try:
            words = sys.argv[1:] if arguments is None else arguments
            # --help and --version leave from here by SystemExit; nobody else's code has run yet.
            given = parser(words).parse_args(words)
            given.command = shlex.join(["remnant", *words])
            code: int = _run(given)
            sys.stdout.flush()  # a full disk or a reader that left is told now, not after the code
            return code
        except RemnantError as error:
            return _say(str(error))
        except _Terminated:
            _say("terminated; the same command goes on from here")
            return Exit.TERMINATED
        except KeyboardInterrupt:
            _say("interrupted; the same command goes on from here")
            return Exit.INTERRUPTED
        except BrokenPipeError:
            # Whoever read our output has left; do not complain while closing it.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return Exit.BAD_INPUT if getattr(given, "gate", False) else Exit.DONE
        except Exception as error:
            return _say(_fault(error))


def _run(given: argparse.Namespace) -> int:
    try:
        return carry_out(given)
    except (KeyboardInterrupt, RemnantError, BrokenPipeError, MemoryError):
        raise
    except BaseException as error:  # a user's model may not choose our exit code
        if isinstance(error.__context__, BrokenPipeError):  # rich leaves so when its reader did
            raise BrokenPipeError from None
        from remnant.models.foreign import blamed

        theirs = blamed(error)
        if theirs is not None and os.environ.get("REMNANT_DEBUG"):
            traceback.print_exc()
        left = "expected a verb to end by itself, got a call of sys.exit in it"
        ours = error if isinstance(error, Exception) else InputError(left)
        raise theirs or ours from None


def _fault(error: Exception) -> str:
    """What nobody foresaw, in a line; the traceback is for who asks for it."""
    if os.environ.get("REMNANT_DEBUG"):
        traceback.print_exc()
    words = text_of(error)
    if isinstance(error, MemoryError) or "allocate memory" in words:
        return "out of memory: expected room for what was asked; use a smaller model or fewer of it"
    if isinstance(error, OSError) and error.strerror:
        at = "" if error.filename is None else f"{cut(text_of(error.filename), 120)}: "
        return f"{at}{error.strerror.lower()}"
    said = f"{type(error).__name__}: {' '.join(cut(words, 400).split())}"
    do = "this should not happen; REMNANT_DEBUG=1 shows where it did"
    return f"internal fault: {cut(said, 300)}; {do}"


class _Terminated(KeyboardInterrupt):
    """SIGTERM: the same orderly end as Ctrl-C, by which workers and half-written files go too."""


@contextmanager
def _orderly() -> Iterator[None]:
    """All that a command makes, parents and databases too, is its owner's alone; and SIGTERM ends
    it as Ctrl-C does."""

    def end(number: int, frame: object) -> NoReturn:
        raise _Terminated

    umask = os.umask(0o077)
    heard = threading.current_thread() is threading.main_thread()  # no other may hear signals
    before = signal.signal(signal.SIGTERM, end) if heard else None
    try:
        yield
    finally:
        os.umask(umask)
        if heard:
            signal.signal(signal.SIGTERM, before)


def _say(message: str) -> int:
    with suppress(OSError, ValueError):  # nobody hears it; the code says it
        line = str(RemnantError(" ".join(message.split())))
        print(f"remnant: {line}", file=sys.stderr, flush=True)
    return Exit.BAD_INPUT
