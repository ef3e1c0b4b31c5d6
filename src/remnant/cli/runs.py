"""`remnant runs`: what has been run: list, compare, remove."""

from __future__ import annotations

import argparse
import json
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remnant.cli.common import VERBS, Answer, add_verb, print_line, print_table
from remnant.cli.flags import Parser
from remnant.errors import InputError, StoreError, expected, printable

if TYPE_CHECKING:
    from remnant.store import Run

FOLDER = Path("remnant-runs")  # where runs without --out go
# What runs write besides the files that `run.json` lists; all else in their folders is the user's.
UNLISTED = ("run.json", "state-*.safetensors", ".remnant-*", "report.html", "search.journal")
LOCK = "search.journal.lock*"  # a link, which a search that was killed leaves behind
PAGE = "audit"  # the folder of a demo's page, itself a run
MODEL = "model"  # the folder of a text demo's model, and what lies in it
MODEL_FILES = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"}


def add(verbs: Any) -> None:
    group = verbs.add_parser("runs", help=VERBS["runs"])
    group.set_defaults(run=run_list, folder=FOLDER, json=False, quiet=False)
    actions = group.add_subparsers(dest="action", metavar="ACTION")

    def action(name: str, example: str, summary: str, run: Any, *flags: str) -> Parser:
        words = f"remnant runs {name} {example}"
        return add_verb(actions, name, words, summary=summary, shared=("quiet", *flags), run=run)

    summary = "the runs in a folder and below it"
    listing = action("list", "remnant-runs", summary, run_list, "json")
    listing.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    compare = action("compare", "found other", "where two runs differ", run_compare, "json")
    compare.add_argument("one", type=Path)
    compare.add_argument("other", type=Path)
    remove = action("remove", "found --yes", "delete runs, and nothing else", run_remove)
    remove.add_argument("folders", nargs="+", type=Path, metavar="folder")
    remove.add_argument("--yes", action="store_true", help="do not ask")


def run_list(arguments: argparse.Namespace) -> Answer:
    from remnant.store import RUN_FILE

    folder = arguments.folder
    if not folder.is_dir():
        raise InputError(expected(f"{folder}", "a folder of runs", "none"))
    found = (about(path.parent) for path in sorted(folder.rglob(RUN_FILE)))
    rows = [row for row in found if row is not None]
    lines = [list(map(str, row.values())) for row in rows]
    return Answer(
        figures=rows,
        show=lambda: (
            print_table(list(rows[0]), lines) if rows else print_line(f"no runs in {folder}")
        ),
    )


def about(folder: Path) -> dict[str, Any] | None:
    """A run in a line: what it was, whether it is done, what came of it, how large it is. None
    where there is no run."""
    from remnant.store import read_run

    try:
        run = read_run(folder, verify=False)
    except StoreError:
        return None
    files = [path for path in run.path.iterdir() if path.is_file()]
    try:
        state = "done" if read_run(run.path).finished else "unfinished"
    except StoreError:
        state = "altered"
    return {
        "run": str(run.path),
        "verb": str(run.spec.get("verb", "?")),
        "seed": run.record.get("seeds", {}).get("seed", run.spec.get("seed", "")),
        "state": state,
        "result": outcome(run) if state == "done" else "",
        "megabytes": round(sum(path.stat().st_size for path in files) / 1e6, 2),
    }


def outcome(run: Run) -> str:
    """What the run found, in a few words: a verdict, a status, or how many rows."""
    finding, rows = read_result(run), run.path / "rows.jsonl"
    if not finding and rows.is_file():
        return f"{len(rows.read_text().splitlines())} rows"
    return str(finding.get("verdict") or finding.get("status") or "")


def read_result(run: Run) -> dict[str, Any]:
    """Its finding but for long lists."""
    from remnant.store import FINDING_FILE

    try:
        values = dict(json.loads((run.path / FINDING_FILE).read_text()))
    except (OSError, ValueError, TypeError):
        return {}
    long = ("per_record", "trace", "figures", "spec", "advice", "versions", "hashes")
    return {name: value for name, value in values.items() if name not in long}


def run_compare(arguments: argparse.Namespace) -> Answer:
    from remnant.store import read_run
    from remnant.store.files import differences, spelt

    sides = [read_run(path) for path in (arguments.one, arguments.other)]
    parts = ("spec", "versions", "hashes", "timings")
    found = {part: differences(*(side.record.get(part, {}) for side in sides)) for part in parts}
    found["finding"] = differences(*map(read_result, sides))
    lines = [
        f"{part} {name}: {spelt(one)} | {spelt(other)}"
        for part, rows in found.items()
        for name, (one, other) in rows.items()
    ]
    return Answer(figures=found, show=lambda: print_line(*(lines or ["no difference"])))


def run_remove(arguments: argparse.Namespace) -> Answer:
    for folder in arguments.folders:
        check_removable(folder)
    removed = [folder for folder in arguments.folders if arguments.yes or _confirmed(folder)]
    for folder in removed:
        for path in files_of(folder):  # one by one, so that a file that appears now stays
            if path.is_dir() and not path.is_symlink():
                path.rmdir()
            else:
                path.unlink()
        folder.rmdir()
    lines = [f"{'removed' if f in removed else 'kept'} {f}" for f in arguments.folders]
    return Answer(show=lambda: print_line(*lines))


def check_removable(folder: Path) -> None:
    """A run's own directory with nothing in it but what a run writes, or an error."""
    from remnant.store import take_lock

    if folder.is_symlink():
        raise StoreError(expected(f"{folder}", "a run's own directory", "a link to one"))
    files_of(folder)
    take_lock(folder).release()  # nobody is at work in it
    if folder.resolve() in (Path.cwd(), *Path.cwd().parents):
        raise StoreError(expected(f"{folder}", "a folder that we are not in", "this one"))


def files_of(folder: Path) -> list[Path]:
    """All that lies in a run's directory, `run.json` last; what no run writes is an error."""
    from remnant.store import RUN_FILE, read_run

    run = read_run(folder, verify=False)  # what was altered may go too
    demo = run.spec.get("verb") == "demo"
    found: list[Path] = []
    for path in sorted(folder.iterdir(), key=lambda path: (path.name == RUN_FILE, path.name)):
        linked = path.is_symlink()
        nested = (demo and path.name == PAGE) or path.name.startswith("fleet-")  # shadow models
        if nested and path.is_dir() and not linked:
            found += [*files_of(path), path]
        elif demo and path.name == MODEL and not linked and _holds_model(path):
            found += [*path.iterdir(), path]
        elif fnmatchcase(path.name, LOCK) if linked else _wrote(run, path):
            found.append(path)
        else:
            do = "it is no file of a run; move it, or remove the folder by hand"
            raise StoreError(expected(f"{folder}", "a run's files alone", f"also {path.name}", do))
    return found


def _wrote(run: Run, path: Path) -> bool:
    """Whether the run wrote this file, as far as `run.json` and its name tell."""
    listed = {**run.record.get("files", {}), **run.record.get("written", {})}
    own = path.name in listed or any(fnmatchcase(path.name, known) for known in UNLISTED)
    return own and path.is_file()


def _holds_model(folder: Path) -> bool:
    """Whether a folder has the files of a saved model and no others."""
    return folder.is_dir() and all(p.is_file() and p.name in MODEL_FILES for p in folder.iterdir())


def _confirmed(folder: Path) -> bool:
    import sys

    if not sys.stdin.isatty():
        raise InputError(expected("runs remove", "--yes", "nobody to ask"))
    return input(f"remove {printable(str(folder))}? [y/N] ").strip().lower() in ("y", "yes")
