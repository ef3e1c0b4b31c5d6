"""The same measurements with two versions of the code, in one table.

    python benchmarks/side_by_side.py BEFORE AFTER [ROW ...] [--data-dir DIR] [--out table.md]

BEFORE and AFTER are checkouts; each version runs its own benchmarks on its own code, one thread,
one after the other, so that both find the same machine. A row is a command below; what it prints
for each target stands side by side, with the CPU seconds of the whole command.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

NTK = (
    "mnist-100-1024-ce", "mnist-200-1024-ce", "mnist-300-2048-ce", "cifar10-100-1024",
    "cifar10-200-1024", "cifar10-500-4096", "mnist-20-512-fp16", "mnist-50-512-decay",
    "mnist-20-384-noise", "mnist-20-512-tanh", "faces-50-512", "mnist-60-256",
)  # fmt: skip
GRADIENT = (
    "relu-200-512", "cifar-500-2048", "tanh-100-1024", "gelu-100-1024", "cnn-mnist-32",
    "one-layer-100-1024",
)  # fmt: skip
ROWS = {
    **{f"demo-{seed}": f"-m remnant demo --seed {seed} --no-page --out OUT" for seed in range(3)},
    **{f"ntk-{row}": f"ntk_table.py {row} --seeds 1" for row in NTK},
    **{f"gradient-{row}": f"gradient_table.py {row} --seeds 1" for row in GRADIENT},
    "kkt-ten-classes": "kkt.py table --records 50 --seeds 1",
    "kkt-two-classes": "kkt.py table --task bce --records 50 --seeds 1",
    "replay": "informed.py replay --targets 20",
    "replay-relu": "informed.py relu --targets 5",
    "glm": "glm.py --targets 10 --refits 1 --art 0 --sets wine,diabetes",
    "distill": "distill.py",
    "stated-errors": "stated_errors.py --seed 5 --cases 120",
}
"""Arguments of Python; a script is one of the version's own benchmarks."""
LINES = 4  # of what a command says, those with figures
NO_DATA = ("kkt.py", "informed.py", "glm.py", "distill.py", "stated_errors.py", "-m")


def measure(root: Path, command: str, data_dir: Path | None) -> tuple[str, float]:
    """What the first lines with figures say, and its CPU seconds."""
    with tempfile.TemporaryDirectory() as folder:
        words = command.replace("OUT", f"{folder}/out").split()
        if words[0].endswith(".py"):
            if data_dir is not None and words[0] not in NO_DATA:
                words += ["--data-dir", str(data_dir)]
            words[0] = str(root / "benchmarks" / words[0])
        around = os.environ | {"PYTHONPATH": str(root / "src"), "OMP_NUM_THREADS": "1"}
        before = used()
        ran = subprocess.run(
            [sys.executable, *words], env=around, capture_output=True, text=True, check=False
        )
    said = [line for line in ran.stdout.splitlines() if any(sign.isdigit() for sign in line)]
    if ran.returncode:
        return f"exit {ran.returncode}: {ran.stderr.strip()[-200:]}", used() - before
    return "<br>".join(line.strip("| ").replace("|", ";") for line in said[:LINES]), used() - before


def used() -> float:
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("rows", nargs="*", choices=[*ROWS, []], metavar="ROW")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--out", type=Path, help="append every row as it is known")
    given = parser.parse_args()
    lines = ["| row | before | CPU s | after | CPU s |", "|---|---|---|---|---|"]
    for line in lines:
        print(line)
    for name in given.rows or ROWS:
        cells = [name]
        for root in (given.before.resolve(), given.after.resolve()):
            said, seconds = measure(root, ROWS[name], given.data_dir)
            cells += [said, f"{seconds:.0f}"]
        lines.append(f"| {' | '.join(cells)} |")
        print(lines[-1], flush=True)
        if given.out is not None:
            given.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
