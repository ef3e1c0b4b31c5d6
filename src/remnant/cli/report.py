"""`remnant report DIR`: an audit's page, drawn again from its bundle."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from remnant.cli.common import Answer, add_verb, print_line
from remnant.errors import InputError, StoreError, expected


def add(verbs: Any) -> None:
    example = "remnant report found --redact --out to-share"
    parser = add_verb(verbs, "report", example, shared=("out", "quiet", "json"), run=run)
    parser.add_argument("directory", metavar="DIR", type=Path, help="what remnant audit wrote")
    words = "leave reconstructions and originals out"
    parser.add_argument("--no-images", action="store_true", help=words)
    words = "blur the originals in the file; leave a table's out"
    parser.add_argument("--redact", action="store_true", help=words)


def run(arguments: argparse.Namespace) -> Answer:
    from remnant.report.page import write_page
    from remnant.report.page.files import read_bundle, redact
    from remnant.store import make_private, read_run, take_lock

    run = read_run(arguments.directory)
    verb = str(run.spec.get("verb", "audit"))
    if verb not in ("audit", "demo-page"):
        inner = arguments.directory / "audit"
        do = f"give {inner}" if inner.is_dir() else "report draws what remnant audit wrote"
        got = f"a run of {verb.replace('-', ' ', 1)}"
        raise StoreError(expected(f"{arguments.directory}", "an audit", got, do))
    if not run.finished:
        do = "the command that began it goes on with it"
        raise StoreError(expected(f"{arguments.directory}", "a finished audit", "a begun one", do))
    audit, pictures = read_bundle(arguments.directory, images=not arguments.no_images)
    if arguments.redact:
        audit, pictures = redact(audit, pictures)
    place = arguments.out or arguments.directory
    make_private(place)
    lock = take_lock(place)  # so that nobody takes a file that is being written for a scrap
    try:
        written = write_page(place, audit, pictures)
    except (AttributeError, LookupError, TypeError, ValueError) as error:  # edited by hand
        raise InputError(
            expected(f"{arguments.directory}", f"values of {audit.schema}", f"others ({error})")
        ) from error
    finally:
        lock.release()
    figures = {"page": str(written), "verdict": audit.verdict}
    words = (f"{audit.verdict}: {audit.sentence}", f"{written}")
    return Answer(figures=figures, show=lambda: print_line(*words))
