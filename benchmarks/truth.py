"""Audits of known truth: targets by plain PyTorch and scikit-learn through the command line.

    python benchmarks/truth.py                          # the fixed sample of `make truth`
    python benchmarks/truth.py --all --jobs 2           # every target; goes on where it stopped
    python benchmarks/truth.py --only 'leaky_kkt*'      # those of a pattern (several: comma)
    python benchmarks/truth.py --all --seed 1           # every target drawn anew
    python benchmarks/truth.py --list

Each target is built once from its name and the seed, audited with `remnant audit --gate` in a
process of its own, and its exit code is compared with the truth. Ends in a table of truth and
verdict and in every wrong verdict; exit code 1 if there is one.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from fnmatch import fnmatch
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from truth_judging import judge
from truth_targets.making import TRUTHS, arguments, write_truth
from truth_targets.table import TARGETS

HERE = Path(__file__).resolve().parent
LONGEST = 900  # seconds of an audit; the slowest takes a tenth of it on a free core
EXITS = {0: "not exposed", 3: "exposed", 4: "inconclusive", 2: "refused"}
MARKS = ("right", "missed", "wrong")
RED = ("false red", "never trained on", "not back")  # how the judge's word on a false red ends
Row = dict[str, Any]


def main() -> int:
    options = parse()
    names = chosen(options)
    if options.list:
        for name in names:
            print(f"{name:44} {TARGETS[name].row:13} {TARGETS[name].note}")
        return 0
    os.umask(0o077)  # reconstructions are the data
    options.work.mkdir(parents=True, exist_ok=True)
    begun, rows = time.monotonic(), []
    for row in run_all(names, options):
        rows.append(row)
        print(line(row), flush=True)
    rows.sort(key=lambda row: names.index(row["name"]))
    told = summary(rows, time.monotonic() - begun)
    print("\n" + told)
    if options.out:
        options.out.write_text(told + "\n" + whole_table(rows), "utf-8")
    return int(any(row["mark"] == "wrong" for row in rows))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--all", action="store_true", help="every target, not the sample alone")
    parser.add_argument("--only", help="patterns of names, such as 'leaky_kkt*,cannot_*'")
    parser.add_argument("--seed", type=int, default=0, help="another draws every target anew")
    parser.add_argument("--jobs", type=int, default=1, help="audits at a time, one core each")
    parser.add_argument("--work", type=Path, help="where targets and results are kept")
    parser.add_argument("--out", type=Path, help="a Markdown file for the tables")
    parser.add_argument("--list", action="store_true", help="names, truths and what they are")
    parser.add_argument(
        "--source", type=Path, default=HERE.parent / "src", help="code to audit with"
    )
    parser.add_argument("--again", action="store_true", help="audit anew even if nothing changed")
    parser.add_argument("--stale", action="store_true", help="take results of other code as well")
    options = parser.parse_args()
    if options.work is None:
        options.work = Path(tempfile.gettempdir()) / f"remnant-truth-{os.getuid()}"
    return options


def chosen(options: argparse.Namespace) -> list[str]:
    if options.only:
        patterns = options.only.split(",")
        names = [n for n in TARGETS if any(fnmatch(n, pattern) for pattern in patterns)]
    else:
        names = [n for n in TARGETS if options.all or options.list or TARGETS[n].sample]
    if not names:
        sys.exit(f"--only: expected a pattern of some name, got {options.only}; see --list")
    return names


def run_all(names: Sequence[str], options: argparse.Namespace) -> Iterable[Row]:
    """One row a target, as they come."""
    code = hash_tree(options.source)
    jobs = [(name, options, code) for name in names]
    if options.jobs == 1:
        yield from (run_one(*job) for job in jobs)
        return
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        for done in as_completed([pool.submit(run_one, *job) for job in jobs]):
            yield done.result()


def run_one(name: str, options: argparse.Namespace, code: str) -> Row:
    """Build the target unless it is there, audit it unless this code has, and judge."""
    folder = options.work / (name if options.seed == 0 else f"{name}-seed{options.seed}")
    built = build(name, options.seed, folder)
    kept = folder / "result.json"
    key = {"code": code, "target": built["hash"]}
    if kept.exists() and not options.again:
        ran = json.loads(kept.read_text("utf-8"))
        if ran["target"] == key["target"] and (options.stale or ran["code"] == code):
            return judged(name, folder, ran)
    ran = key | audit(folder, built["arguments"], options.source)
    if ran["exit"] >= 0:  # one that was killed says nothing, and is run again the next time
        kept.write_text(json.dumps(ran), "utf-8")
    return judged(name, folder, ran)


def build(name: str, seed: int, folder: Path) -> Row:
    """The target's files, made again only where the code that makes them has changed."""
    import torch

    torch.set_num_threads(1)
    done, maker = folder / "built.json", hash_tree(HERE / "truth_targets")
    if done.exists():
        built: Row = json.loads(done.read_text("utf-8"))
        if built["maker"] == maker:
            return built
    for path in folder.glob("*") if folder.exists() else ():
        if path.is_file() and path.name != "result.json":
            path.unlink()
    folder.mkdir(parents=True, exist_ok=True)
    made = TARGETS[name].make(folder, zlib.crc32(f"{name} {seed}".encode()))
    given = arguments(folder, made.options)
    files = sorted(p for p in folder.iterdir() if p.is_file() and p.name != "result.json")
    digest = hashlib.sha256(" ".join(given).encode())
    for path in files:
        digest.update(path.name.encode() + _content(path))
    write_truth(folder, made)
    built = {"maker": maker, "hash": digest.hexdigest(), "arguments": given}
    done.write_text(json.dumps(built), "utf-8")
    return built


def _content(path: Path) -> bytes:
    """Bytes; of a zip archive its members, since np.savez and torch.save write the time too."""
    import zipfile

    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            return b"".join(archive.read(name) for name in sorted(archive.namelist()))
    return path.read_bytes()


def audit(folder: Path, given: Sequence[str], source: Path) -> Row:
    """`remnant audit --gate` in a process of its own."""
    shutil.rmtree(folder / "found", ignore_errors=True)
    command = [sys.executable, "-m", "remnant", "audit", *given, "--gate", "--quiet"]
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    around = os.environ | threads | {"PYTHONPATH": str(source.resolve())}
    begun = cpu_of_children()
    try:
        done = subprocess.run(
            [*command, "--out", "found"],
            cwd=folder,
            env=around,
            capture_output=True,
            text=True,
            timeout=LONGEST,
        )
        code, said = done.returncode, (done.stderr.strip().splitlines() or [""])[-1]
    except subprocess.TimeoutExpired:
        code, said = -9, f"more than {LONGEST} s"
    return {"exit": code, "said": said, "seconds": cpu_of_children() - begun}


def cpu_of_children() -> float:
    """CPU seconds: of a busy machine the clock says little."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def judged(name: str, folder: Path, ran: Row) -> Row:
    target = TARGETS[name]
    verdict = judge(target.truth, target.ledger, folder, folder / "found", ran["exit"], ran["said"])
    return {"name": name, "truth": target.row, "note": target.note} | ran | asdict(verdict)


def hash_tree(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return digest.hexdigest()


def line(row: Row) -> str:
    mark = row["mark"] if not row["why"] else f"{row['mark']} ({row['why']})"
    return (
        f"{row['name']:40} {row['truth']:12} {row['exit']:2} {mark:8} {row['seconds']:5.1f} s  "
        f"{row['sentence'][:160]}"
    )


def summary(rows: Sequence[Row], seconds: float) -> str:
    """The confusion table, what was certified, and every wrong verdict."""
    columns = [*EXITS.values(), "other"]
    told = [f"| truth | {' | '.join(columns)} | {' | '.join(MARKS)} |"]
    told.append("|" + "---|" * (1 + len(columns) + len(MARKS)))
    truths = [*TRUTHS, "ledger_false", "ledger_true"]
    for truth in [t for t in truths if any(row["truth"] == t for row in rows)]:
        some = [row for row in rows if row["truth"] == truth]
        verdicts = [EXITS.get(row["exit"], "other") for row in some]
        counts = [verdicts.count(name) for name in columns]
        counts += [sum(row["mark"] == mark for row in some) for mark in MARKS]
        told.append(f"| {truth} | {' | '.join(map(str, counts))} |")
    wrong = [row for row in rows if row["mark"] == "wrong"]
    told += ["", _totals(rows, seconds), ""]
    told += [f"WRONG {line(row)}" for row in wrong] or ["no wrong verdict"]
    return "\n".join(told)


def _totals(rows: Sequence[Row], seconds: float) -> str:
    def total(key: str) -> int:
        return sum(row[key] for row in rows)

    green = sum(row["why"].startswith("false green") for row in rows)
    red = sum(row["mark"] == "wrong" and row["why"].endswith(RED) for row in rows)
    false = [row for row in rows if row["truth"] == "ledger_false"]
    noticed = sum(row["violated"] for row in false)
    return (
        f"{len(rows)} targets in {seconds:.0f} s ({total('seconds'):.0f} CPU s of audits): "
        f"{green} false green, {red} false red, {noticed} of {len(false)} false ledgers noticed; "
        f"{total('certified')} certified candidates, {total('false')} of them no training record, "
        f"{total('beyond')} farther off than stated"
    )


def whole_table(rows: Sequence[Row]) -> str:
    told = ["", "| target | truth | exit | | what was said |", "|---|---|---|---|---|"]
    for row in rows:
        said = row["sentence"][:200].replace("|", "/").replace("\n", " ")
        cells = (row["name"], f"{row['truth']}: {row['note']}", row["exit"], row["mark"], said)
        told.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(told) + "\n"


if __name__ == "__main__":
    sys.exit(main())
