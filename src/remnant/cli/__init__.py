"""The command line: verbs, each a file with `add` (its flags) and `run`."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from remnant.cli.common import BAD_INPUT, DONE, INTERRUPTED
from remnant.errors import InputError, RemnantError


class Parser(argparse.ArgumentParser):
    """argparse, but a fault is one line like every other error."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """A verb refuses what it does not know itself, so that its own help is pointed to."""
        given, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return given, unknown

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; see {self.prog} --help")


def parser() -> Parser:
    from remnant.cli import (
        audit,
        bound,
        demo,
        distill,
        init,
        reconstruct,
        report,
        runs,
        study,
        sweep,
    )  # fmt: skip

    top = Parser(
        prog="remnant",
        description="What remains of your training data in the model you release?",
        epilog="example: remnant demo",
    )
    top.add_argument("--version", action="version", version=f"remnant {_version()}")
    verbs = top.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=Parser)
    for verb in (demo, init, audit, reconstruct, bound, distill, report, study, sweep, runs):
        verb.add(verbs)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit code. Errors that a user can mend are one line on stderr."""
    try:
        given = parser().parse_args(arguments)
        words = sys.argv[1:] if arguments is None else arguments
        given.command = shlex.join(["remnant", *words])
        code: int = given.run(given)
        return code
    except RemnantError as error:
        _say(str(error))
        return BAD_INPUT
    except KeyboardInterrupt:
        _say("interrupted; the same command goes on from here")
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has left; do not complain while closing it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except MemoryError:
        _say("out of memory: expected room for the model's layers; use a smaller width or model")
        return BAD_INPUT


def _say(message: str) -> None:
    print(f"remnant: {' '.join(message.split())}", file=sys.stderr)


def _version() -> str:
    from importlib.metadata import version

    return version("remnant")
