"""Before an audit: which attacks apply, why not, what they cost, what would make it stronger."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from remnant.attacks import ATTACKS, Attack
from remnant.attacks.about import Cost
from remnant.attacks.made import kind_of, make_attack
from remnant.auditing.case import Case
from remnant.auditing.playing import Targets, check_targets, rows_left_out
from remnant.auditing.rules import RULES
from remnant.training import GradientDescent


def preflight(
    case: Case,
    *,
    attacks: Sequence[str] | None = None,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    targets: Targets = None,
) -> list[dict[str, Any]]:
    """One row per adversary (JSON values): attack, title, applies, why, megabytes, stronger; CPU
    seconds of the attack (`at_most`: where it finds nothing), and of its control."""
    check_targets(case, targets)
    case, rows = told(case), []
    for name in chosen(attacks):
        attack = make_attack(name, (settings or {}).get(name, {}))
        about, leave = attack.about, attack.about.leave_one
        other = case.truth.are_texts and "tokenizer" not in about.takes
        why_not = "it reconstructs numbers, and these records are texts" if other else None
        why_not = why_not or attack.why_not(case.scene)
        cost = Cost(seconds=0.0, memory=0.0) if why_not else attack.cost(case.scene)
        runs = 1 if leave is None or why_not else len(rows_left_out(case, leave, targets, 0))
        if cost.memory >= RULES.memory * free_memory():
            why_not = f"it needs some {cost.memory / 1e9:.1f} GB, more than is free here"
        rows.append(
            {
                "attack": name,
                "title": about.title,
                "applies": why_not is None,
                "why": why_not or about.limit(case.scene) or "applies",
                "seconds": None if why_not else _rounded(runs * cost.seconds),
                "at_most": None if why_not or cost.most is None else _rounded(runs * cost.most),
                "control": None if why_not else _rounded(cost.twin + runs * cost.seconds),
                "megabytes": None if why_not else _rounded(cost.memory / 1e6),
                "stronger": about.stronger if not other and _would_help(attack, case) else None,
            }
        )
    return rows


def told(case: Case) -> Case:
    """The case whose adversary knows the loss, and how many records there are unless the user says
    it: hardly a secret, and attacks that need them would otherwise prove nothing."""
    held = case.target.knowledge
    known = replace(held, records=held.records or len(case.truth), loss=held.loss or case.loss)
    return replace(case, target=replace(case.target, knowledge=known))


def _would_help(attack: Attack, case: Case) -> bool:
    """Whether the attack does not apply because a part of `Knowledge` is missing, and would with
    it."""
    held, like = case.target.knowledge, dict(case.target.weights)
    missing = attack.about.missing
    if not missing or getattr(held, missing) is not None:
        return False
    any_such: Mapping[str, Any] = {
        "initial": like,
        "gradient": like,
        "recipe": GradientDescent(lr=0.1, steps=1),
    }
    had = {"initial": held.initial or like, missing: any_such.get(missing, like)}
    target = replace(case.target, knowledge=replace(held, **had))
    return attack.why_not(replace(case.scene, target=target)) is None


def chosen(attacks: Sequence[str] | None) -> list[str]:
    """The attacks asked for, or all; a name that is not in the table is refused."""
    for name in attacks or ():
        kind_of(name)
    return list(dict.fromkeys(attacks)) if attacks else list(ATTACKS)


def free_memory() -> float:
    """Free memory in bytes, as far as the system tells."""
    try:
        text = Path("/proc/meminfo").read_text()
        return float(text.partition("MemAvailable:")[2].split()[0]) * 1024
    except (OSError, IndexError):
        pages = os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 2**20
        return float(pages) * 4096


def _rounded(value: float) -> float:
    """Two digits: it is an estimate."""
    return float(f"{value:.2g}")
