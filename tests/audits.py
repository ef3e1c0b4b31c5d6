"""A small audit with real scores: an adversary that succeeds, one that fails, one that cannot."""

from dataclasses import replace
from functools import cache

import torch

from remnant.auditing.assess import assess
from remnant.bundle import Attacked, Audit, Control
from remnant.data import load, split
from remnant.store import versions
from remnant.types import Candidates, Stated, Status
from seeding import seeded

N = 14
EVIL = "\"><img src=x onerror=alert(1)></script><script>alert(2)</script>'&amp;"
NTK, KKT = "candidates-ntk.safetensors", "candidates-kkt.safetensors"


@cache
def sides(name):
    return split(load(name), train=N, public=None, holdout=N, seed=0)


def found(inputs, status=Status.COMPLETE, **more):
    confidence = torch.linspace(1, 0.5, len(inputs))
    return Candidates(inputs=inputs, confidence=confidence, status=status, reason="done", **more)


@cache
def scored(name):
    """Two attacks' candidates, exact and poor, with their findings."""
    parts, generator = sides(name), seeded()
    x = parts.train.inputs
    spectrum = torch.cat([torch.linspace(3, 1, N), torch.full((20,), 1e-7)]).tolist()
    exact = found(
        x.flip(0).contiguous(), stated=Stated(counted=N), trace={"singular_values": spectrum}
    )
    poor = found(
        x[:9] * 0.4 + 0.5 * torch.randn(9, *x.shape[1:], generator=generator) * x.std(0),
        Status.INCONCLUSIVE,
    )
    findings = [
        assess(
            candidates,
            attack=attack,
            truth=parts.train,
            holdout=parts.holdout,
            public=parts.public,
            generator=seeded(),
        )
        for attack, candidates in (("ntk", exact), ("kkt", poor))
    ]
    margins = torch.linspace(0.1, 2, N).tolist()
    rows = [
        row | {"margin": margin}
        for row, margin in zip(findings[1].per_record, margins, strict=True)
    ]
    return {NTK: exact, KKT: poor}, [findings[0], replace(findings[1], per_record=rows)]


def audit(name="faces", **changes):
    """(audit, records, candidates by file) on a bundled set."""
    candidates, (good, bad) = scored(name)
    train = sides(name).train
    attacks = [
        Attacked(
            attack="ntk", title="Weights before and after", holds="two checkpoints",
            settings={"starts": 32}, verdict="exposed", reason="14 of 14 records recovered",
            finding=good, candidates=NTK,
        ),
        Attacked(
            attack="kkt", title="The released weights alone", holds="the weights", settings={},
            verdict="inconclusive", reason="failed on the control too", finding=bad,
            control=Control(recovered=0, records=N, status="inconclusive", reason="nothing"),
            bound={
                "epsilon": 8.0, "delta": 1e-5, "kappa": 0.1, "gamma": {"Gaussian": 0.4},
                "measured": {"count": 0, "low": 0.0, "high": 0.2},
            },
            candidates=KKT,
        ),
        Attacked(
            attack="gradient", title="One gradient", holds="a gradient", settings={},
            verdict="not applicable", reason="no gradient was given",
        ),
    ]  # fmt: skip
    keep = ("id", "label", "correlation")
    whole = Audit(
        verdict="exposed",
        sentence="All 14 records come back.",
        target={"model": "mlp:625-64-64-10", "records": N, "data": name, "shape": [1, 25, 25]},
        attacks=attacks,
        exposed=[{"attack": "ntk"} | {key: row[key] for key in keep} for row in good.per_record],
        advice=["Do not release both checkpoints."],
        command="remnant audit audit.yaml --seed 0",
        spec={"verb": "audit", "data": name},
        seeds={"seed": 0},
        versions=versions(),
        hashes={"weights": "ab" * 32},
        preflight=[
            {"attack": "ntk", "title": "Weights", "applies": True, "why": "applies"},
            {"attack": "gradient", "title": "Gradient", "applies": False, "why": "no gradient"},
        ],
        trials=[{"attack": "ntk", "verdict": "exposed"}],
    )
    return replace(whole, **changes), train, candidates


def evil_audit():
    """The same with EVIL in place of every text that a user can set."""
    whole, train, candidates = audit()
    first = train.ids[0]
    train = replace(train, ids=(EVIL, *train.ids[1:]))
    finding = whole.attacks[0].finding
    rows = [
        {**row, "id": EVIL if row["id"] == first else row["id"], "label": f"{row['label']}{EVIL}"}
        for row in finding.per_record
    ]
    named = replace(finding, per_record=rows, reason=EVIL, nulls=finding.nulls | {EVIL: {}})
    attacks = [
        replace(
            whole.attacks[0], title=EVIL, holds=EVIL, reason=EVIL, attack=EVIL, finding=named,
            settings={EVIL: EVIL},
        ),
        *whole.attacks[1:],
    ]  # fmt: skip
    row = {EVIL: EVIL}
    texts = dict.fromkeys(("verdict", "sentence", "command"), EVIL)
    groups = dict.fromkeys(("spec", "versions", "hashes"), row)
    evil = replace(
        whole, **texts, **groups, seeds={EVIL: 1}, attacks=attacks, advice=[EVIL], notes=[EVIL],
        preflight=[row], trials=[row],
        target={"model": EVIL, "data": EVIL, "records": N}, exposed=[{"id": EVIL}],
    )  # fmt: skip
    return evil, train, candidates
