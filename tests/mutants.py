"""Small wrong changes in the modules that say what is proved: do the tests notice each?

`make mutants` changes one comparison, sign, constant, `and` or `min` at a time, runs the few tests
that use the module, and expects one to fail. A change that all tests bear is either explained in
docs/research/mutants.md (it alters nothing that matters) or an error of the tests.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib.abc
import importlib.util
import os
import random
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "research" / "mutants.md"
LEAST = 0.9  # share of the changes that tests must notice
EACH = 16  # changes of a module at the most, drawn with a fixed seed
LIMIT = 90  # seconds of CPU time; a change that makes its tests run longer is noticed

TESTS: dict[str, str] = {
    "auditing/verdict": "test_auditing_verdict.py -k not(known|mean|constant|promise|holdout|span)",
    "scoring/claims": "test_scoring_claims.py",
    "scoring/ranks": "test_scoring_ranks.py -k not(seldom)",
    "solvers/dense/certificate": "test_difference_certificate.py test_difference_second.py",
    "solvers/dense/resimulate": "test_solvers_one_gradient.py -k kink|residuals|wrong_record",
    "solvers/dense/batch_errors": "test_batch_errors.py",
    "solvers/consensus": "test_consensus.py",
    "auditing/proof": "test_auditing_proof.py -k not(first_layer|stand|kind|copies|slow)",
    "bounds/accounting": "test_bounds_accounting.py -k not(monotone|torch|template1)",
    "bounds/priors": "test_bounds_rero.py -k ball|gaussian|prior|points|kappa|distance|many",
    "bounds/robustness": "test_bounds_rero.py test_bounds_blowup.py test_bounds_game.py "
    "-k not(monotone|template1|always)",
    "bounds/verdict": "test_bounds_game.py -k verdicts|clopper|accused|one_run",
    "auditing/membership": "test_membership.py -k curve|exposure|heart|too_few|stand_out",
    "solvers/dense/dropout": "test_dropout.py",
}
"""Module -> the test files that are run for it, and which tests of them."""

ONLY: dict[str, tuple[str, ...]] = {
    "solvers/dense/dropout": ("recover_dropped", "settle", "resimulate"),
    "auditing/membership": ("tell", "exposures", "_unknown", "canaries"),
}
"""Of these modules only the functions that decide; the rest searches, or finds words."""

NAMED: tuple[tuple[str, str, str, str], ...] = (
    (
        "solvers/spans",
        "test_solvers_exact.py -k edge",
        "len(values) // 4",
        "len(values) // 2",
    ),
    (
        "solvers/dense/duals",
        "test_difference_certificate.py -k silent_neurons",
        "int(1.5 * count)",
        "int(.5 * count)",
    ),
    (
        "solvers/numerics",
        "test_replay_parts.py -k climbs",
        "step * slope)",
        "step * slope + 1)",
    ),
    (
        "solvers/dense/certificate",
        "test_difference_certificate.py",
        "~(sure & agrees & near)",
        "~(sure & agrees | near)",
    ),
    (
        "solvers/dense/certificate",
        "test_difference_certificate.py",
        "(zero & firing)",
        "(zero | firing)",
    ),
    (
        "solvers/dense/resimulate",
        "test_solvers_one_gradient.py -k kink",
        "1e-5 * spread",
        "1e-1 * spread",
    ),
)
"""Module, tests, a line's part and a wrong one: changes that once passed all tests, made whatever
the draw."""

SWAPS: dict[type, type] = {
    ast.Lt: ast.GtE, ast.LtE: ast.Gt, ast.Gt: ast.LtE, ast.GtE: ast.Lt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
}  # fmt: skip
NAMES = {
    "mean": "amax", "min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum",
    "argmin": "argmax", "argmax": "argmin", "any": "all", "all": "any", "floor": "ceil",
    "ceil": "floor", "median": "amax", "log": "log2", "exp": "expm1",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Mutant:
    module: str
    tests: str
    where: str  # function or constant
    line: int
    change: str
    source: str  # the whole module

    @property
    def name(self) -> str:
        return f"{self.module}.py {self.where}: {self.change}"


def sites(tree: ast.Module) -> Iterator[tuple[str, ast.AST, str]]:
    """Every place that can be changed: the function around it, the node, and one way to do it."""

    def walk(node: ast.AST, where: str) -> Iterator[tuple[str, ast.AST, str]]:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            where = node.name
        for way in ways(node):
            yield where, node, way
        for field, value in ast.iter_fields(node):
            if field in ("annotation", "returns", "decorator_list", "slice") or isinstance(
                node, ast.JoinedStr | ast.Raise | ast.Import | ast.ImportFrom
            ):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from walk(child, where)

    for statement in tree.body:
        yield from walk(statement, "module")


def ways(node: ast.AST) -> list[str]:
    """How a node can be changed."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
        return ["swap"]
    if isinstance(node, ast.BinOp | ast.BoolOp | ast.AugAssign) and type(node.op) in SWAPS:
        return ["swap"]
    if isinstance(node, ast.Attribute) and node.attr in NAMES:
        return ["rename"]
    if isinstance(node, ast.Name) and node.id in NAMES:
        return ["rename"]
    if isinstance(node, ast.Constant) and type(node.value) in (int, float, bool):
        return ["constant"]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.Invert | ast.USub):
        return ["drop"]
    if isinstance(node, ast.IfExp):
        return ["other branch"]
    return []


def changed(node: ast.AST, way: str) -> ast.AST:
    """A copy of the node that is wrong."""
    new = copy.deepcopy(node)
    if way == "swap" and isinstance(new, ast.Compare):
        new.ops[0] = SWAPS[type(new.ops[0])]()
    elif way == "swap" and isinstance(new, ast.BinOp | ast.BoolOp | ast.AugAssign):
        new.op = SWAPS[type(new.op)]()
    elif isinstance(new, ast.Attribute):
        new.attr = NAMES[new.attr]
    elif isinstance(new, ast.Name):
        new.id = NAMES[new.id]
    elif isinstance(new, ast.Constant):
        value = new.value
        assert isinstance(value, bool | int | float)
        if isinstance(value, bool):
            new.value = not value
        else:
            new.value = value + 1 if isinstance(value, int) or not value else value * 10
    elif isinstance(new, ast.UnaryOp):
        return new.operand
    elif isinstance(new, ast.IfExp):
        new.body, new.orelse = new.orelse, new.body
    return new


class Replace(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        return self.new if node is self.old else self.generic_visit(node)


def source_of(module: str) -> str:
    return (ROOT / "src" / "remnant" / f"{module}.py").read_text()


def named(modules: Sequence[str]) -> Iterator[Mutant]:
    """The changes of `NAMED` in these modules."""
    for module, tests, old, new in NAMED:
        if module not in modules:
            continue
        text = source_of(module)
        assert text.count(old) == 1, f"{module}: {old!r} is not there once"
        yield Mutant(
            module=module,
            tests=tests,
            where="named",
            line=text[: text.index(old)].count("\n") + 1,
            change=f"[{old}] -> {new}",
            source=text.replace(old, new),
        )


def mutants_of(module: str, each: int) -> list[Mutant]:
    """At most `each` changes of a module, in the order of its lines."""
    text, only = source_of(module), ONLY.get(module)
    places = [where for where, _, _ in sites(ast.parse(text))]
    order = [k for k, where in enumerate(places) if only is None or where in only]
    random.Random(0).shuffle(order)
    found = []
    for number in sorted(order[:each]):
        tree = ast.parse(text)
        where, node, way = list(sites(tree))[number]
        new = changed(node, way)
        mutant = Mutant(
            module=module,
            tests=TESTS[module],
            where=where,
            line=getattr(node, "lineno", 0),
            change=f"{line_of(text, node)} -> {ast.unparse(new)}",
            source=ast.unparse(ast.fix_missing_locations(Replace(node, new).visit(tree))),
        )
        found.append(mutant)
    return found


def line_of(text: str, node: ast.AST) -> str:
    """The node's line of source, with the node marked."""
    line = text.splitlines()[node.lineno - 1]  # type: ignore[attr-defined]
    end = node.end_col_offset if node.end_lineno == node.lineno else len(line)  # type: ignore[attr-defined]
    start = node.col_offset  # type: ignore[attr-defined]
    return f"{line[:start]}[{line[start:end]}]{line[end:]}".strip()


class Swapped(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from changed source."""

    def __init__(self, mutant: Mutant) -> None:
        self.name = "remnant." + mutant.module.replace("/", ".")
        self.source = mutant.source

    def find_spec(self, name: str, path: object, target: object = None) -> object:
        return importlib.util.spec_from_loader(name, self) if name == self.name else None

    def exec_module(self, module: object) -> None:
        exec(compile(self.source, self.name, "exec"), vars(module))


def run_tests(tests: str, mutant: Mutant | None) -> int:
    """pytest's exit code, in this process, which has not imported remnant yet."""
    import pytest

    assert "remnant" not in sys.modules
    if mutant is not None:
        sys.meta_path.insert(0, Swapped(mutant))
    files, _, only = tests.partition(" -k ")
    args = [str(ROOT / "tests" / name) for name in files.split()]
    only = only.replace("|", " or ").replace("not(", "not (")
    args += ["-k", only] if only else []
    return int(pytest.main([*args, "-x", "-q", "-p", "no:xdist", "--tb=no", "--no-header"]))


def start(tests: str, mutant: Mutant | None) -> int:
    """The number of a process that runs the tests and exits as pytest does."""
    process = os.fork()
    if process:
        return process
    code = 3
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (LIMIT, LIMIT))
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        code = run_tests(tests, mutant)
    except BaseException:
        code = 1
    finally:
        os._exit(code)


def run_all(mutants: Sequence[Mutant], jobs: int) -> dict[Mutant, str]:
    """How each ended: "killed", "too long" or "survived"."""
    ended: dict[Mutant, str] = {}
    waiting, going = list(mutants)[::-1], dict[int, Mutant]()
    while waiting or going:
        while waiting and len(going) < jobs:
            mutant = waiting.pop()
            going[start(mutant.tests, mutant)] = mutant
        process, status = os.waitpid(-1, 0)
        mutant = going.pop(process)
        code = os.waitstatus_to_exitcode(status)
        ended[mutant] = "survived" if code == 0 else "too long" if code < 0 else "killed"
        if code in (4, 5):
            raise SystemExit(f"no test was run for {mutant.module}: see TESTS in tests/mutants.py")
        print(f"{ended[mutant]:9} {mutant.module}:{mutant.line} {mutant.change}", flush=True)
    return ended


def preload() -> None:
    """What the tests import beside remnant, once for all processes."""
    sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]
    os.chdir(ROOT)
    import hypothesis  # noqa: F401
    import numpy  # noqa: F401
    import pydantic  # noqa: F401
    import pytest  # noqa: F401
    import scipy.optimize
    import scipy.stats  # noqa: F401
    import torch
    import torch._dynamo

    torch.set_num_threads(1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    known = list(dict.fromkeys([*TESTS, *(module for module, *_ in NAMED)]))
    parser.add_argument("modules", nargs="*", help=f"of {', '.join(known)}; all if none")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--each", type=int, default=EACH, help="changes of a module at the most")
    given = parser.parse_args()
    preload()
    modules = given.modules or known
    mutants = [*named(modules)]
    for module in modules:
        mutants += mutants_of(module, given.each) if module in TESTS else []
    for tests in dict.fromkeys(mutant.tests for mutant in mutants):
        began = time.monotonic()
        _, status = os.waitpid(start(tests, None), 0)
        if status:
            raise SystemExit(f"{tests}: fail without any change")
        print(f"{time.monotonic() - began:.1f} s: {tests}", flush=True)
    return conclude(run_all(mutants, given.jobs))


def conclude(ended: dict[Mutant, str]) -> int:
    """1 if too few were noticed, or one that was not is not explained."""
    page = PAGE.read_text() if PAGE.exists() else ""
    left = [mutant for mutant in ended if ended[mutant] == "survived"]
    for module in dict.fromkeys(mutant.module for mutant in ended):
        own = [how for mutant, how in ended.items() if mutant.module == module]
        print(f"{module}: {sum(how != 'survived' for how in own)} of {len(own)} noticed")
    share = 1 - len(left) / max(1, len(ended))
    print(f"{len(ended) - len(left)} of {len(ended)} changes noticed ({share:.0%})")
    open_ones = [mutant for mutant in left if mutant.name not in page]
    for mutant in open_ones:
        print(f"not explained in docs/research/mutants.md: {mutant.name}")
    return int(share < LEAST or bool(open_ones))


if __name__ == "__main__":
    sys.exit(main())
