"""Malformed specs, flags, sweeps, run files and users' own modules, by seed; see malformed_run.py.

`cases(seed)` takes some of each table at random, so that another seed tries others.
"""

import argparse
import random
import shutil
import string
from pathlib import Path

from remnant.cli import parser
from remnant.cli.spec import AuditSpec, Privacy

GARBAGE = (2,)
MAYBE = (0, 2, 5)  # what is still valid, or is read without being believed; 5: no attack applies
LONG = "9" * 5000
WHOLE = {
    "weights": "{good}/w.safetensors",
    "data": "{good}/train.npz",
    "holdout": "{good}/test.npz",
}
HOLDS = [f"--{name}={place}" for name, place in WHOLE.items()]

# YAML that is no value of any field of a spec.
VALUES = (
    LONG, f"-{LONG}", "0x" + "f" * 5000, "0b" + "1" * 5000, "1" + ":1" * 2000, f"[{LONG}]", "1e400",
    "!!binary aGVsbG8=", "!!bool maybe", "!!int x", "!!float x", "!!timestamp x", "!!set {a, b}",
    "!!omap [a: 1]", "!!python/name:os.system", "!local x", "*a", "[1, [2, [3]]]",
    "{a: {b: {c: d}}}", "[{a: 1}]", "2020-01-01", "2020-01-01 10:00:00", ".nan", "-.inf", "-1",
    "'" + "x" * 5000 + "'", '"\\0"', "''", "{1: 2}", "? [a]\n: b", "<<: {a: b}", "@x", "`x`", "%x",
    "[", "}", '"', "\t", "- - -", "\ud7ff", "\x07", '"\\x1b[31mred"',
)  # fmt: skip
# Texts for a name of a file or of data; some file systems would even take them.
NAMES = (
    "x" * 300, "x" * 300 + ".npz", "x/" * 1000, "../" * 500, "\\x1b[31m.npz", "=cmd()|'x'!A0",
    "@sum(1)", "[/x]", "[bold]", "$\\\\frac{$.npz", "~nobody/x", "~", "/", ".", "/dev/zero",
    "/dev/stdin", "/proc/self/mem", "http://localhost/x", "file:///x", "😀.npz", "%s%n", "{0}",
    "\\n\\n", "a\\0b", "\\ud800", " ", "-", "--", "public", "none",
)  # fmt: skip
SETTINGS = {
    "ntk": ("preset", "starts", "iterations", "patience", "steps", "features", "runs", "double"),
    "kkt": ("objective", "candidates", "starts", "steps", "rank", "lr", "tv_weight"),
    "gradient": ("walkers", "patience", "source", "norm", "steps", "restarts"),
    "informed": ("method", "layers", "probes", "order_seed", "restarts", "shadows", "replaying"),
    "glm": ("weights", "trusted", "attempts", "use_scaler"),
}
REAL = ("lr", "tv_weight", "norm", "weights", "trusted", "order_seed")  # may be large
NOT_SETTINGS = ("-1", "1e400", ".nan", "-.inf", "x", "[-1]", "{a: 1}", LONG, "10000000000000")


def specs(rng):
    """audit.yaml with one field wrong, or wrong as a whole."""
    for field in AuditSpec.model_fields:
        numbers = field in ("mean", "std", "bounds")  # -1 is a mean
        for value in rng.sample([v for v in VALUES if not (numbers and v == "-1")], 4):
            yield f"{field} {value[:20]}", spec(**{field: value})
    for field in ("weights", "data", "holdout", "initial", "model", "recipe", "mean", "shape"):
        for value in rng.sample(NAMES, 4):
            yield f"{field} {value[:20]}", spec(**{field: f'"{value}"'})
    for field in Privacy.model_fields:
        for value in rng.sample(VALUES[:20], 2):
            yield f"privacy.{field} {value[:20]}", spec(privacy=f"{{steps: 2, {field}: {value}}}")
    for attack, names in SETTINGS.items():
        for name in rng.sample(names, 3):
            value = rng.choice(NOT_SETTINGS[: -1 if name in REAL else None])
            text = f"{{{attack}: {{{name}: {value}}}}}"
            yield f"settings.{attack}.{name} {value[:20]}", spec(settings=text)
    for _ in range(25):
        yield "mutated", mutated(rng, spec(seed="3", loss="ce").encode())


def spec(**changes):
    return "".join(f"{name}: {value}\n" for name, value in (WHOLE | changes).items())


def mutated(rng, raw):
    """Bytes cut, repeated, replaced; a mapping that is none comes of most."""
    raw = bytearray(raw)
    for _ in range(rng.randint(1, 6)):
        at, end = sorted(rng.randrange(len(raw) + 1) for _ in range(2))
        kind = rng.randrange(4)
        if kind == 0 and end - at < len(raw):
            del raw[at:end]
        elif kind == 1:
            raw[at:at] = raw[at:end] * rng.randint(1, 20)
        elif kind == 2:
            raw[at:at] = rng.choice((b"\0", b"\xff\xfe", b"\x1b[2J", b"!!", b"&a *a ", b"{", b"\t"))
        else:
            raw[at : at + 1] = bytes([rng.randrange(256)])
    return bytes(raw) or b"\0"


def of_specs(rng):
    for name, text in specs(rng):
        raw = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
        verb = rng.choice((["audit", "--gate"], ["preflight"]))
        here = {"audit.yaml": filled(raw)}
        codes = MAYBE if name == "mutated" else GARBAGE
        argv = ["preflight"] if name == "mutated" else verb
        yield f"spec: {name}", here, [*argv, "{dir}/audit.yaml", "--quiet"], codes


def filled(raw):
    """What a spec says of {good}, which lies beside the cases' folder."""

    def write(path):
        good = path.parents[3] / "good"
        path.write_bytes(raw.replace(b"{good}", str(good).encode()))

    return write


BASES = {
    "demo": ["demo", "--no-page"],
    "init": ["init", *HOLDS],
    "audit": ["audit", *HOLDS, "--gate"],
    "preflight": ["preflight", *HOLDS],
    "bound": ["bound", "--noise=4", "--steps=20", "--prior=ball:9", "--radius=0.5"],
    "reconstruct ntk": ["--weights={good}/w.safetensors", "--initial={good}/i.safetensors"],
    "reconstruct kkt": ["--weights={good}/w.safetensors", "--records=3"],
    "reconstruct gradient": ["--weights={good}/w.safetensors", "--gradient={good}/g.safetensors"],
    "reconstruct informed": [
        "--weights={good}/w.safetensors", "--initial={good}/i.safetensors",
        "--recipe={good}/recipe.json", "--known={good}/train.npz",
    ],
    "reconstruct glm": ["--coefficients={good}/linear.json", "--known={good}/train.npz"],
    "distill kip": ["distill", "kip"],
    "distill table": ["distill", "table"],
    "sweep": ["sweep", "{good}/search.yaml"],
    "report": ["report", "{good}/audited"],
    "study gradient-dimension": ["study", "gradient-dimension", "--quick"],
    "runs list": ["runs", "list", "{good}"],
    "runs compare": ["runs", "compare", "{good}/audited", "{good}/searched"],
}  # fmt: skip
NOT_WHOLE = ("-1", LONG, f"-{LONG}", "1e5", "nan", "", "0x10", "9" * 30, "1.5", "one", "\x1b[31m")
NOT_REAL = ("nan", "-inf", "1e999", LONG, "", "one", "--", "0x1p", "-1e308", "\x1b[31m")
NOT_ONE = ("nonsense", "", "x" * 3000, "\x1b[2J", "\n")
# Any text is a name; of these no file and no data is called so.
NOT_THERE = ("x" * 300, "x" * 5000, "a\0b", "\x1b[31mred", "../" * 500, "[/x]", "~nobody", "\ud800")


def options(verb):
    """The options of a verb that take a value."""
    found = parser()
    for word in verb.split():
        actions = found.filled()._actions
        groups = [a for a in actions if isinstance(a, argparse._SubParsersAction)]
        found = groups[0].choices[word]
    return [a for a in found.filled()._actions if a.option_strings and a.nargs != 0]


def of_flags(rng):
    for verb, base in BASES.items():
        words = base if base[0] == verb.split()[0] else [*verb.split(), *base]
        known = options(verb)
        for action in rng.sample(known, min(9, len(known))):
            flag = action.option_strings[-1]
            if flag in ("--out", "--storage", "--on", "--fleets", "--data-dir"):
                continue  # any name is a place to write to
            kind = action.type or str
            bad = {int: NOT_WHOLE, float: NOT_REAL, str: NOT_THERE, Path: NOT_THERE}
            table = NOT_ONE if action.choices else bad.get(kind, NOT_THERE)
            value = rng.choice(table)
            codes = MAYBE if verb.startswith("runs") or not used(verb, flag) else GARBAGE
            argv = [*words, f"{flag}={value}", "--quiet"]
            yield f"flags: {verb} {flag} {value[:20]!r}", {}, argv, codes
        name = "".join(rng.choices(string.printable, k=rng.randint(1, 400)))
        yield f"flags: {verb} unknown", {}, [*words, f"--{name}"], GARBAGE
    yield from odd_flags()


def used(verb, flag):
    """Whether the verb looks at what the flag says, as it is called here."""
    if flag == "--layers" or (verb in ("init", "report") and flag != "--weights"):
        return False
    idle = {"sweep": ("--seed",), "bound": ("--seed", "--records", "--delta", "--gamma")}
    return flag not in idle.get(verb, ())


def odd_flags():
    """Flags that are well formed each, and ask for what cannot be."""
    held = BASES["reconstruct kkt"]
    asked = [
        ["bound", "--noise=4", "--steps=20", f"--prior=ball:{LONG[:400]}", "--radius=0.5"],
        ["bound", "--noise=4", "--steps=20", f"--prior=candidates:{LONG[:4000]}"],
        ["bound", "--noise=1e-300", f"--steps={'9' * 18}", "--prior=ball:9", "--radius=0.5"],
        ["reconstruct", "kkt", *held, "--candidates=1000000000000"],
        ["reconstruct", "kkt", *held, "--steps=-1"],
        ["reconstruct", "kkt", *held[:1], f"--records={'9' * 17}"],
        ["reconstruct", "gradient", *BASES["reconstruct gradient"], "--restarts=0"],
        ["reconstruct", "informed", *BASES["reconstruct informed"], "--shadows=0"],
        ["reconstruct", "informed", *BASES["reconstruct informed"], "--shadows=-1"],
        ["reconstruct", "glm", *BASES["reconstruct glm"], "--records=-1"],
        ["reconstruct", "glm", *BASES["reconstruct glm"], "--label=nan"],
        ["audit", *HOLDS, "--gate", "--mean=1e39"],
        ["audit", *HOLDS, "--gate", "--shape=" + "1x" * 3000 + "64"],
        ["audit", *HOLDS, "--gate", f"--model=mlp:{LONG}"],
        ["audit", *HOLDS, "--gate", "--model=mlp:64" + "-10" * 5000],
        ["audit", *HOLDS, "--gate", f"--targets={LONG}"],
        ["audit", *HOLDS, "--gate", "--attacks="],
        ["demo", "--records=0"],
        ["demo", "--width=1000000000"],
        ["distill", "kip", "--images=0"],
        ["distill", "kip", "--records=1000000000000"],
        ["sweep", "{good}/search.yaml", "--jobs=1000000"],
        ["sweep", "{good}/search.yaml", "--storage=sqlite:////proc/none/x.db"],
        ["sweep", "{good}/search.yaml", "--storage=magic://x"],
        ["runs", "remove", "{good}", "--yes"],
        ["runs", "list", "{dir}/none"],
        ["nonsense"],
        [],
        ["\x1b[31m" * 1000],
    ]
    for words in asked:
        quiet = ["--quiet"] if len(words) > 1 else []
        yield f"flags: odd {' '.join(words)[-30:]!r}", {}, [*words, *quiet], GARBAGE


def of_sweeps(rng):
    grid = "weights: {good}/w.safetensors\ndata: {good}/train.npz\nholdout: {good}/test.npz\n"
    alone = "weights: {good}/w.safetensors\nshape: 1x8x8\nrecords: 3\n"
    wrong = ("5", "[x]", "{low: a}", LONG, "-1", "0", "x", "[[1]]", ".nan", "!!set {a}", "''")
    for field in ("attack", "space", "trials", "objective", "answer", "runs", "prune", "settings",
                  "batch", "storage", "other"):  # fmt: skip
        counts = field in ("trials", "runs", "batch")
        for value in rng.sample(wrong[counts:], 4):  # 5 is a count
            held = {"attack": "kkt", "trials": "1", field: value}
            inside = ", ".join(f"{name}: {one}" for name, one in held.items())
            yield f"search.{field} {value[:20]}", f"{alone}search: {{{inside}}}\n"
    axes = (
        "{low: a, high: 1}", "{low: 1}", "{low: 2, high: 1}", "[]", "[[]]", "[0]", "[-1, x]", "3",
        "{low: 1, high: .inf}", "{low: 1, high: 2, log: maybe}", "{low: -1, high: 1}",
    )  # fmt: skip
    for axis in axes:
        search = f"search: {{attack: kkt, trials: 1, space: {{starts: {axis}}}}}\n"
        yield f"space {axis}", alone + search
    for field in ("seed", "threshold", "attacks", "mean", "settings", "targets", "data", "records"):
        for value in ("[]", "[-1, x]", f"[{LONG}]", "[[[]]]", "[{a: b}, 1]"):
            yield f"grid {field} {value[:20]}", grid + f"{field}: {value}\n"
    many = "".join(
        f"{name}: [{', '.join(map(str, range(1, 99)))}]\n" for name in ("seed", "records")
    )
    yield "grid of a million", grid + many + "threshold: [" + "0.9, " * 200 + "0.8]\n"
    yield "grid of nothing", grid
    yield "several targets", alone.replace("records: 3", "records: [3, 4]") + "attacks: [[kkt]]\n"


def swept(rng):
    for name, text in of_sweeps(rng):
        text = (
            text.replace("data: {good}/train.npz\n", "", 1)
            if name.startswith("grid data")
            else text
        )
        here = {"sweep.yaml": filled(text.encode())}
        yield f"sweep: {name}", here, ["sweep", "{dir}/sweep.yaml", "--jobs=1", "--quiet"], GARBAGE


RUN_FILES = ("run.json", "finding.json", "candidates-kkt.safetensors")


def of_runs(rng):
    """Files of a finished run, tampered with: nothing in them is believed, and none is run."""
    for number in range(60):
        file = rng.choice(RUN_FILES)
        how = rng.choice(
            ("mutated", "emptied", "words", "deep", "huge", "escape", "removed", "folder")
        )
        here = {"run": tampered(rng.randrange(2**31), "audited", file, how)}
        verbs = (
            (["audit", "{good}/audit.yaml", "--gate", "--out={dir}/run"], (2, 3, 4)),
            (["report", "{dir}/run", "--out={dir}/page"], MAYBE),
            (["runs", "list", "{dir}"], MAYBE),
            (["runs", "compare", "{dir}/run", "{good}/audited"], MAYBE),
        )
        argv, codes = verbs[number % len(verbs)]
        yield f"runs: {argv[0]} {file} {how} {number}", here, argv, codes
    for number in range(8):
        how = rng.choice(("mutated", "emptied", "deep", "escape", "removed"))
        here = {
            "run": tampered(rng.randrange(2**31), "searched", "search.journal", how, again=True)
        }
        argv = ["sweep", "{good}/search.yaml", "--jobs=1", "--quiet", "--out={dir}/run"]
        yield f"runs: journal {how} {number}", here, argv, MAYBE


def tampered(seed, source, file, how, again=False):
    """A copy of a finished run with one file changed; again: as if it had not been finished."""

    def write(path):
        rng = random.Random(seed)
        shutil.copytree(path.parents[3] / "good" / source, path)
        if again:
            record = (
                (path / "run.json").read_text().replace('"finished": true', '"finished": false')
            )
            (path / "run.json").write_text(record)
        place = next(iter(path.glob(file)), path / file)
        raw = place.read_bytes() if place.is_file() else b"{}"
        if how in ("removed", "folder"):
            place.unlink(missing_ok=True)
        if how == "folder":
            place.mkdir()
        made = {
            "mutated": lambda: mutated(rng, raw),
            "emptied": lambda: b"",
            "words": lambda: raw.replace(b'"inconclusive"', b'"not exposed"').replace(
                b'"', b"'", 1
            ),
            "deep": lambda: b"[" * 100_000,
            "huge": lambda: raw.replace(b"0", LONG.encode(), 1),
            "escape": lambda: raw.replace(b'"', b'"\\u001b[31m[/x]=1+1', 3),
        }
        if how in made:
            place.write_bytes(made[how]())

    return write


MODULE = """
import os, sys, torch
from pathlib import Path
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.ReLU(), nn.Linear(10, 10))
        {init}
    def forward(self, x{more}):
        y = self.net(x)
        {forward}
    {methods}
def make():
    {make}
    return Net()
"""
FORWARDS = (
    "return {'logits': 'y'}", "return (y, y)", "return [y]", "return None", "return y[None]",
    "return 3", "return y * float('nan')", "return y + 1j", "return y.argmax(1)", "return y.sum()",
    "return y[:1]", "raise RuntimeError('two\\nlines')", "raise KeyError(y)", "raise MemoryError",
    "raise StopIteration", "raise SystemExit", "sys.exit(0)",
    "os._exit if False else sys.exit('bye')", "raise GeneratorExit",
    "raise BaseException('x' * 10000)", "raise Exception('\\x1b[31m' * 1000)",
    "raise RecursionError", "return self.forward(x)", "return y.to_sparse()", "return y.bool()",
    "return y.detach().numpy()", "return torch.empty(10**13)", "return y.to('meta')",
    "return y * float('inf')", "assert False",
)  # fmt: skip
OTHERS = (
    {"more": ", mask"}, {"more": ", mask, *, other"}, {"init": "self.lazy = nn.LazyLinear(3)"},
    {"init": "self.far = nn.Parameter(torch.empty(3, device='meta'))"}, {"init": "sys.exit(0)"},
    {"init": "self.net = None"}, {"init": "raise SystemExit(0)"}, {"make": "sys.exit(0)"},
    {"make": "return Net"}, {"make": "return None"}, {"make": "raise KeyboardInterrupt('no')"},
    {"make": "return torch.zeros(3)"}, {"make": "raise ValueError('x' * 100000)"},
    {"make": "return type(sys)('x')"}, {"make": "exit()"},
    {"methods": "def state_dict(self, *a, **k): return {}"},
    {"methods": "def state_dict(self, *a, **k): raise SystemExit(0)"},
    {"methods": "def load_state_dict(self, *a, **k): sys.exit(0)"},
    {"methods": "def eval(self): sys.exit(0)"},
    {"methods": "def parameters(self, *a): return iter(())"},
    {"methods": "def named_parameters(self, *a, **k): sys.exit(0)"},
)  # fmt: skip


def of_modules(rng):
    whole = {"init": "pass", "more": "", "forward": "return y", "methods": "", "make": "pass"}
    for changes in [*({"forward": line} for line in FORWARDS), *OTHERS]:
        text = MODULE
        for key, value in (whole | changes).items():
            text = text.replace(f"{{{key}}}", value)
        verb = rng.choice((["audit", "--gate"], ["preflight"]))
        held = {"w.safetensors": renamed, "net.py": text.encode()}
        ((kind, line),) = changes.items()
        flags = ["--weights={dir}/w.safetensors", "--model={dir}/net.py:make", "--quiet"]
        codes = (2, 130) if "KeyboardInterrupt" in line else GARBAGE
        if kind == "methods":  # which nobody may need
            codes = (2, 3, 4) if "--gate" in verb else MAYBE
        yield f"module: {kind} {line[:40]}", held, [*verb, *flags, "{good}/audit.yaml"], codes


def renamed(path):
    """The good weights, named as the module names them."""
    import safetensors.torch

    from malformed_files import STATE

    path.write_bytes(safetensors.torch.save({f"net.{name}": v for name, v in STATE.items()}))


def cases(seed):
    """(name, files, argv, exit codes that may come)."""
    for table in (of_specs, of_flags, swept, of_runs, of_modules):
        yield from table(random.Random(f"{seed} {table.__name__}"))
