"""What a verdict rests on: the figures of a proof, as they stand in `Finding.summary["proof"]`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from remnant.types import Finding


@dataclass(frozen=True, kw_only=True)
class Explained:
    """How much of the first dense layer is left unexplained, as shares."""

    left: float  # by the declared records
    by_strangers: float  # by the strangers most like them
    holds: bool  # the declared records are those trained on, as far as this layer tells
    stationary: bool  # the layer is a sum of their gradients: what `kkt` assumes


@dataclass(frozen=True, kw_only=True)
class Proof:
    """What can be proved of an attack's candidates; by default, nothing."""

    claimed: int = 0  # records that a candidate was claimed for
    certified: int = 0  # candidates
    foreign: int = 0  # certified candidates that are no declared record
    chance: float = 1.0  # that strangers would be claimed as often
    by_chance: float = 0.0  # how many strangers are expected to be
    strangers: int = 0  # records never trained on that were compared
    differ: bool = False  # they are of another kind than the records
    disguise: str = ""  # how training saw the records, in words
    reordered: int = 0  # records whose numbers came back in another order
    rank_p: float | None = None  # that chance put candidates so near; None = not compared
    above: int = 0  # records nearer to a candidate than any stranger
    explained: Explained | None = None  # None = not known
    text: bool = False  # the records are texts, which come back word for word or not at all

    @classmethod
    def read(cls, finding: Finding) -> Proof:
        """The proof in a finding, which may come from a file."""
        held: Mapping[str, Any] = finding.summary.get("proof") or {}
        known = {field.name: held[field.name] for field in fields(cls) if field.name in held}
        if known.get("explained") is not None:
            known["explained"] = Explained(**known["explained"])
        return cls(**known)

    def added_to(self, finding: Finding, rows: Sequence[Mapping[str, Any]]) -> Finding:
        """The finding with this proof, and with each record's marks in `rows`."""
        summary = {**finding.summary, "proof": asdict(self)}
        return replace(finding, per_record=rows, summary=summary)

    def among(self, tries: int, disguise: str) -> Proof:
        """Of records in this disguise, one of so many that were tried."""
        return replace(self, chance=min(1.0, tries * self.chance), disguise=disguise)

    @property
    def trained_on(self) -> bool:
        """Whether the declared records are known to be those that were trained on."""
        return self.explained is not None and self.explained.holds
