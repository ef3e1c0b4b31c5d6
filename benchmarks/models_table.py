"""The table of docs/research/models.md: ordinary models, each read, preflighted and audited.

    python benchmarks/models_table.py                       # all, a minute or two each at most
    python benchmarks/models_table.py --only 'dense*,GRU'
    python benchmarks/models_table.py --into docs/research/models.md  # between its two marks

Ends with exit code 1 if any command ended in a fault, or a verdict is not true.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch
import yaml
from ordinary_models import FILES, MODELS

HERE = Path(__file__).resolve().parent
MARKS = ("<!-- table -->\n", "<!-- end -->\n")
Row = dict[str, Any]


def main() -> int:
    options = parse()
    os.umask(0o077)
    names = [n for n in MODELS if any(fnmatch(n, p) for p in options.only.split(","))]
    rows = []
    for name in names:
        rows.append(run_one(name, options))
        print(line(rows[-1]), flush=True)
    text = whole(rows)
    print(text)
    if options.into:
        page = options.into.read_text("utf-8")
        before, rest = page.split(MARKS[0])
        after = rest.split(MARKS[1])[1]
        options.into.write_text(before + MARKS[0] + text + MARKS[1] + after, "utf-8")
    return int(any(row["fault"] for row in rows))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="*", help="patterns of names, by comma")
    parser.add_argument("--work", type=Path, help="where models and results are kept")
    parser.add_argument("--budget", default="10s", help="of each audit's attacks")
    parser.add_argument("--into", type=Path, help="a Markdown file to put the table into")
    options = parser.parse_args()
    options.work = options.work or Path(tempfile.mkdtemp(prefix="remnant-models-"))
    return options


def run_one(name: str, options: argparse.Namespace) -> Row:
    """Make the model, then init, preflight and audit; what each said and took."""
    saved, make = MODELS[name]
    folder = options.work / "".join(c if c.isalnum() else "-" for c in name)
    kept = folder / "row.json"
    if kept.exists():  # of an earlier run that was interrupted
        done: Row = json.loads(kept.read_text("utf-8"))
        return done
    row: Row = {"name": name, "saved": saved, "fault": ""}
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "audit.yaml").exists():
        torch.manual_seed(0)
        fields = FILES | make(folder)
        (folder / "audit.yaml").write_text(yaml.safe_dump(fields))
    spec = str(folder / "audit.yaml")
    before = remnant(["preflight", spec, "--json"])
    row["reads"] = before["code"] == 0
    applies = json.loads(before["out"]) if row["reads"] else []
    row["applies"] = [one["attack"] for one in applies if one["applies"]]
    row["said"] = {a["attack"]: a for a in applies if a["applies"]}
    out = str(folder / f"found-{os.getpid()}")
    after = remnant(["audit", spec, "--out", out, "--gate", "--budget", options.budget, "--json"])
    row |= {"seconds": after["seconds"], "code": after["code"], "verdict": "refused"}
    row["words"] = (after["err"] or before["err"]).strip().split("\n")[-1]
    if after["code"] in (0, 3, 4):
        told = json.loads(after["out"])
        row |= {"verdict": told["verdict"], "sentence": told["sentence"], "told": told}
        row["took"] = json.loads((Path(out) / "run.json").read_text("utf-8"))["timings"]
    row["fault"] = fault_of(row, after)
    kept.write_text(json.dumps(row), "utf-8")
    return row


def remnant(arguments: list[str]) -> Row:
    """The command in a process of its own: exit code, output, CPU seconds."""
    env = os.environ | {"PYTHONPATH": str(HERE.parent / "src"), "OMP_NUM_THREADS": "1"}
    begun = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "remnant", *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = ended.ru_utime + ended.ru_stime - begun.ru_utime - begun.ru_stime
    return {"code": done.returncode, "out": done.stdout, "err": done.stderr, "seconds": spent}


def fault_of(row: Row, after: Row) -> str:
    """What must not be: a traceback, a fault of ours, or a verdict that its records belie."""
    if "Traceback" in after["err"] or "internal fault" in after["err"] or row["code"] == 2:
        return after["err"].strip().split("\n")[-1]
    if row["verdict"] == "exposed":
        return false_red(row["told"])
    found = [a for a in row["told"]["attacks"] if a["finding"] and a["finding"]["recovered"]]
    return "cleared, but records were found" if row["verdict"] == "not exposed" and found else ""


def false_red(told: Row) -> str:
    """All records were trained on: a claim is wrong only if nothing like it came back."""
    bad = [one["id"] for one in told["exposed"] if one["squared_l2"] is None]
    return f"exposed without a reconstruction: {bad[0]}" if bad else ""


def line(row: Row) -> str:
    words = row.get("sentence", row["words"])
    return f"{row['name']:36} {row['verdict']:13} {row['seconds']:6.1f} s  {words}  {row['fault']}"


def whole(rows: list[Row]) -> str:
    heads = (
        "model",
        "saved as",
        "reads",
        "attacks that apply",
        "verdict",
        "membership",
        "attacks, s",
        "s",
    )
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for row in rows:
        cells = (
            row["name"],
            row["saved"],
            "yes" if row["reads"] else "no",
            ", ".join(row["applies"]) or "none",
            verdict(row),
            membership(row.get("told", {})),
            estimates(row),
            f"{row['seconds']:.0f}",
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def verdict(row: Row) -> str:
    stopped = [a for a in row.get("told", {}).get("attacks", ()) if "the budget" in a["reason"]]
    if row["verdict"] != "exposed":
        return row["verdict"] + (", stopped by the budget" if stopped else "")
    return f"exposed, {len(row['told']['exposed'])} of {row['told']['target']['records']}"


def estimates(row: Row) -> str:
    """CPU seconds that preflight said, with the control where one was played, and those taken; "to"
    what it said of a search that finds nothing."""
    words = []
    for attack in row.get("told", {}).get("attacks", ()):
        name = attack["attack"]
        if name not in row["applies"] or name not in row["took"]:
            continue
        cost = row["said"][name]
        more = cost["control"] if attack["control"] else 0
        said = f"{cost['seconds'] + more:.2g}"
        if cost["at_most"]:
            said += f" to {cost['at_most'] + more:.2g}"
        took = f"{row['took'][name]:.2g}" + ("" if attack["finding"] else " until stopped")
        words.append(f"{name}: {said} said, {took}")
    return "; ".join(words)


def membership(told: Row) -> str:
    held = told.get("membership")
    if not held or not held["tests"]:
        return held["verdict"] if held else ""
    area = next(test["auc"] for test in held["tests"] if test["score"] == held["by"])
    return f"{held['verdict']} (AUC {area:.2f})"


if __name__ == "__main__":
    sys.exit(main())
