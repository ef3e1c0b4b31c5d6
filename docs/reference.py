"""Write docs/reference.md from the parser and the attacks' fields: python docs/reference.py."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from remnant.attacks import ATTACKS
from remnant.cli import parser

HEAD = """# Verbs and settings

`remnant VERB --help` has all flags of a verb and their defaults. Flags of `audit` are fields of
`audit.yaml` too; settings of an attack are fields in Python too, and stand under
`settings: {attack: {...}}` in a file.
"""


def verbs() -> list[str]:
    """A line for each verb: its name and the line of `remnant --help`."""
    (choice,) = (a for a in parser()._actions if isinstance(a, argparse._SubParsersAction))
    return [f"- `{verb.dest}`: {verb.help}" for verb in choice._choices_actions]


def settings(name: str) -> list[str]:
    """A line for each setting of an attack that a flag gives."""
    rows = []
    for field in dataclasses.fields(ATTACKS[name]):  # type: ignore[arg-type]
        words, flag = field.metadata.get("help"), field.metadata.get("flag", True)
        if not words or flag is False:
            continue
        shown = flag if isinstance(flag, str) else field.name
        rows.append(f"- `--{shown.replace('_', '-')}`: {words}")
    return rows


def page() -> str:
    """The whole page, as Markdown."""
    parts = [HEAD, *verbs()]
    for name, attack in ATTACKS.items():
        needs = ", ".join(f"`--{need}`" for need in attack.about.needs)
        parts += ["", f"## `{name}`", "", f"Needs {needs}. See [{name}.md]({name}.md).", ""]
        parts += settings(name)
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    Path(__file__).with_name("reference.md").write_text(page())
