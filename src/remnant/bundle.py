"""An audit's result as plain JSON values: what `finding.json` of an audit holds.

The page is drawn from this and from the pictures beside it alone; nothing is computed again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from pydantic import TypeAdapter

from remnant.errors import InputError, one_fault
from remnant.types import Finding, fields_of, json_text

AUDIT_SCHEMA = "remnant.audit/1"
NULLS: Mapping[str, tuple[str, str]] = {
    "held_out": ("held-out records", "records of the same kind that were never trained on"),
    "nearest_public": ("nearest public record", "the best that the adversary already had"),
    "frequent_tokens": (
        "the most frequent tokens",
        "at each place the token that stands there most often in public texts",
    ),
    "public_mean": ("mean of a class", "nearer to most records than any other record is"),
    "span_noise": ("noise in their span", "random combinations of the training records"),
    "blends": (
        "blends of two records",
        "mixtures of training records: a yardstick, high by construction",
    ),
}
"""The nulls of a finding in the order in which they are shown: a few words, and what it is."""


def null_words(name: str) -> tuple[str, str]:
    """A null's words and what it is; a null that is not in the table goes by its own name."""
    return NULLS.get(name, (name.replace("_", " "), ""))


class Verdict(StrEnum):
    """What an audit says. Not known is inconclusive, never not exposed."""

    EXPOSED = "exposed"  # records come back, beyond what any null explains
    NOT_EXPOSED = "not exposed"  # the attack works on a twin that leaks, and gets nothing here
    INCONCLUSIVE = "inconclusive"  # it proved nothing here, or failed on the twin as well
    NOT_APPLICABLE = "not applicable"  # the adversary of this attack does not exist here


@dataclass(frozen=True, kw_only=True)
class Control:
    """The same attack on a twin that must leak: trained by us, same shape and record count.

    `passed`: it came out *exposed* there, by the very test that the audited model is put to.
    """

    recovered: int
    records: int
    status: str
    reason: str
    passed: bool = False


@dataclass(frozen=True, kw_only=True)
class Attacked:
    """One adversary's attempt. `finding` is None where the attack did not run."""

    attack: str  # its name in the table of attacks
    title: str  # the adversary in a few words
    holds: str  # what the adversary holds, in plain words
    settings: Mapping[str, Any]
    verdict: str
    reason: str
    finding: Finding | None = None
    control: Control | None = None
    bound: Mapping[str, Any] | None = None  # epsilon, delta, kappa, gamma by each bound
    candidates: str | None = None  # the file that holds its candidates


@dataclass(frozen=True, kw_only=True)
class Audit:
    """The whole audit. `exposed`: id, label, attack, correlation of each record, worst first.

    `target`: model, parameters, records, data, shape, hashes. `trials`: every attack that was
    tried, with those that failed. `notes`: what is to be known of the data before any result.
    `membership`: whether records that were trained on can be told from others, which is no verdict
    on reconstruction. `privacy`: what the ledger promises, whatever was measured.
    `images` is False where pictures were left out, `redacted` True where originals are blurred.
    """

    verdict: str
    sentence: str
    target: Mapping[str, Any]
    attacks: Sequence[Attacked]
    exposed: Sequence[Mapping[str, Any]]
    advice: Sequence[str]
    command: str
    spec: Mapping[str, Any]
    seeds: Mapping[str, int]
    versions: Mapping[str, str]
    hashes: Mapping[str, str]
    preflight: Sequence[Mapping[str, Any]] = ()
    trials: Sequence[Mapping[str, Any]] = ()
    notes: Sequence[str] = ()
    membership: Mapping[str, Any] | None = None
    privacy: Mapping[str, Any] | None = None
    originals: str | None = None  # the file that holds the records' pictures
    images: bool = True
    redacted: bool = False
    schema: str = field(default=AUDIT_SCHEMA)

    def to_json(self) -> str:
        return json_text(self)

    @classmethod
    def from_json(cls, text: str) -> Audit:
        values = fields_of("audit", text, AUDIT_SCHEMA)
        misfit = f"audit: fields do not fit {AUDIT_SCHEMA}"
        with one_fault(f"{misfit}: "):
            made: Audit = TypeAdapter(cls).validate_python(values)
        # An audit's own fields may be missing, since some came later: these have defaults. What is
        # unknown was left out, what an attack lacks was filled in.
        if asdict(made) != asdict(made) | values:
            raise InputError(f"{misfit}: some are missing or unknown")
        return made
