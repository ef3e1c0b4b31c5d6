"""The rooms of the design: who may import whom. An attack must not be able to see the truth."""

import ast
from pathlib import Path

import pytest

import remnant

ROOT = Path(remnant.__file__).parent
BASE = {"types", "errors", "devices", "progress", "checkpoints", "seeds", "untrusted"}
GROUND = BASE | {"data", "models", "gradients"}
MAY_IMPORT = {
    "errors": set(),
    "devices": set(),
    "progress": set(),
    "checkpoints": {"devices"},
    "seeds": set(),
    "untrusted": {"errors"},
    "types": {"errors"},
    "data": BASE,
    "models": BASE,
    "gradients": BASE,
    "training": BASE | {"models", "gradients", "kernels"},
    "evidence": BASE | {"gradients"},
    "solvers": BASE | {"models", "evidence", "gradients", "training"},
    "attacks": BASE | {"models", "gradients", "kernels", "training", "evidence", "solvers"},
    "scoring": BASE,
    "store": BASE,
    "capturing": BASE | {"models", "training"},
    "bundle": BASE,
    "report": BASE | {"store", "bundle"},
    "bounds": {"errors"},  # floats only
    "kernels": BASE,
    "distill": BASE | {"models", "gradients", "kernels", "training", "evidence", "solvers"},
    "auditing": GROUND
    | {"training", "evidence", "solvers", "attacks", "capturing"}
    | {"scoring", "store", "bundle", "bounds", "report"},
    "experiments": GROUND
    | {"training", "evidence", "solvers", "attacks", "capturing", "bounds", "kernels", "distill"}
    | {"scoring", "store", "bundle", "auditing", "report", "sweep"},
    "sweep": BASE | {"training", "solvers", "attacks", "store", "bundle", "auditing", "report"},
    "cli": None,  # everything
    "__init__": None,
    "__main__": None,
}


def room(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported_rooms(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: import by full name, so that rooms can be checked"
            names = [node.module or ""]
            if node.module == "remnant":
                names = [f"remnant.{alias.name}" for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("remnant.")}
    return found


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_a_room_imports_only_what_it_may(path):
    mine = room(path)
    assert mine in MAY_IMPORT, f"{mine} is a new room: say in MAY_IMPORT what it may import"
    allowed = MAY_IMPORT[mine]
    if allowed is not None:
        assert imported_rooms(path) <= allowed | {mine}


@pytest.mark.parametrize("start", ["attacks", "solvers"])
def test_an_attack_cannot_see_the_truth(start):
    reached, todo = set(), {start}
    while todo:
        mine = todo.pop()
        reached.add(mine)
        todo |= MAY_IMPORT.get(mine, set()) - reached
    assert not reached & {"data", "scoring", "store", "auditing"}
