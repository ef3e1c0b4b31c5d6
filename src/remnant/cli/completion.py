"""`remnant completion bash`: a script by which a shell completes verbs and flags."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from typing import Any

from remnant.cli.common import Answer, add_verb
from remnant.cli.flags import Parser

SCRIPT = """_remnant() {{
    local at=remnant words= word
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        case "$at $word" in
            {verbs}) at="$at $word" ;;
        esac
    done
    case "$at" in
        {flags}
    esac
    COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _remnant remnant
"""
ZSH = "autoload -U +X bashcompinit && bashcompinit\n"


def add(verbs: Any) -> None:
    example = 'eval "$(remnant completion bash)", in ~/.bashrc'
    parser = add_verb(verbs, "completion", example, shared=(), run=run)
    parser.add_argument("shell", choices=("bash", "zsh"))


def run(arguments: argparse.Namespace) -> Answer:
    from remnant.cli import parser

    words = dict(walk(parser(), "remnant"))
    verbs = " | ".join(shlex.quote(at) for at in words if at != "remnant")
    lines = (f"{shlex.quote(at)}) words={shlex.quote(' '.join(w))} ;;" for at, w in words.items())
    script = SCRIPT.format(verbs=verbs, flags="\n        ".join(lines))
    whole = ZSH * (arguments.shell == "zsh") + script
    return Answer(show=lambda: print(whole, end=""))


def walk(parser: Parser, at: str) -> Iterator[tuple[str, list[str]]]:
    """Each verb with those above it, and what may follow it."""
    below: dict[str, Any] = {}
    words = []
    for action in parser.filled()._actions:
        words += [flag for flag in action.option_strings if flag.startswith("--")]
        if action.choices and not action.option_strings:
            words += map(str, action.choices)
            below |= action.choices if isinstance(action.choices, dict) else {}
    yield at, words
    for name, verb in below.items():
        yield from walk(verb, f"{at} {name}")
