"""`ntk`: the adversary holds final and initial weights (000: fine-tuning, federated rounds)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch

from remnant.attacks.ntk_exact import UNMOVED, recover_exactly
from remnant.attacks.ntk_replay import replay_instead, why_no_replay
from remnant.attacks.outcome import (
    in_data_scale,
    model_box,
    nothing,
    stated_errors,
    status_of,
    worst_of,
)
from remnant.errors import InputError, expected
from remnant.evidence import weight_difference
from remnant.solvers.descent.paper import SHARPENED, descend
from remnant.solvers.descent.projected import Projected, search
from remnant.solvers.difference.certificate import SURE, spread_of
from remnant.solvers.difference.search import Search
from remnant.solvers.lifted import recover_linearised
from remnant.types import Candidates, Evidence, Status, Target

Preset = Literal["auto", "exact", "paper", "projected"]
PRESETS: tuple[Preset, ...] = ("auto", "exact", "paper", "projected")
FOUND = (Status.COMPLETE, Status.PARTIAL)


@dataclass(frozen=True, kw_only=True)
class NTK:
    """Reconstruct the records whose training moved one set of weights to another.

    exact: through the first two dense layers (`solvers.difference`), or for a linearised network
    through the lifted equations (`solvers.lifted`); certified, no public data, the count is found.
    paper: 000's descent on images and duals. projected: the same objective with its duals solved
    for, in the first layer's span, from several starts whose agreement is the confidence. auto:
    exact; where that proves nothing, replay of a known, short training (`attacks.ntk_replay`), or
    projected where the number of records is known.
    """

    preset: Preset = "auto"
    starts: int = 32  # exact: points searched for at a time, at the least; more of many records
    iterations: int = 300  # exact: of each search
    patience: int = 12  # exact: rounds without a new record before giving up
    steps: int | None = None  # paper: 16000, projected: 400
    features: Literal["initial", "final", "hybrid"] | None = (
        None  # paper: final, projected: initial
    )
    runs: int = 4  # projected: independent starts
    double: bool = False  # paper: float64

    def __post_init__(self) -> None:
        if self.preset not in PRESETS:
            raise InputError(expected("preset", " or ".join(PRESETS), repr(self.preset)))
        if self.features == "hybrid" and self.preset != "paper":
            raise InputError(
                expected("features", "initial or final, unless preset paper", "hybrid")
            )

    def __call__(self, target: Target, *, generator: torch.Generator) -> Candidates:
        if target.knowledge.initial is None:
            reason = "the initial weights are unknown; give --initial"
            return nothing(target, Status.NOT_APPLICABLE, reason)
        evidence = weight_difference(target)
        moved = any(bool(change.any()) for change in evidence.vector.values())
        if self.preset in ("auto", "exact"):
            found = self.exact(target, evidence, generator)
            if self.preset == "exact" or found.status in FOUND or not moved:
                return found
            return self.fall_back(target, evidence, found, generator)
        if not moved:
            return nothing(target, Status.INCONCLUSIVE, UNMOVED)
        if self.preset == "paper":
            return self.paper(target, evidence, generator)
        return self.project(target, evidence, generator)

    def exact(self, target: Target, evidence: Evidence, generator: torch.Generator) -> Candidates:
        """By the layers' graph; what that does not solve may be a linearised network."""
        how = Search(starts=self.starts, iterations=self.iterations, patience=self.patience)
        found = recover_exactly(target, evidence, how, generator)
        count = found.figures.get("counted")
        if found.status in FOUND or count is None:
            return found
        lifted = recover_linearised(target.model, evidence, generator=generator, count=count)
        if isinstance(lifted, str) or not lifted.exact:
            return found
        passed = lifted.error < SURE * spread_of(lifted.inputs)
        if not bool(passed.any()):
            return found
        n, sure, data = lifted.count, int(passed.sum()), in_data_scale(target, lifted.inputs)
        stated = stated_errors(target, data, lifted.error, passed)
        figures = {"counted": n, "certified": sure, "passed": passed.tolist(), "error": stated}
        return Candidates(
            inputs=data,
            confidence=passed.float(),
            status=status_of(sure, n),
            reason=f"{sure} of {n} records found and certified without the truth, "
            f"{worst_of(stated)}: training was linear about the initial weights, and they explain "
            f"all of it to {lifted.residual:.0e}",
            figures=dict(found.figures) | figures,
            trace=found.trace,
        )

    def fall_back(
        self, target: Target, evidence: Evidence, found: Candidates, generator: torch.Generator
    ) -> Candidates:
        """What the exact solver said, and the records by replay where the training is known and
        short, or approximate candidates where the count is known."""
        lacking = why_no_replay(target)
        if not lacking:
            return replay_instead(target, found, generator=generator)
        if target.knowledge.recipe is not None:
            found = replace(found, reason=f"{found.reason} (nor by replay: {lacking})")
        if target.knowledge.records is None:
            reason = f"{found.reason}; give --records for approximate candidates"
            return replace(found, reason=reason)
        rough = self.project(target, evidence, generator)
        said = f"not exact, since {found.reason}; instead {rough.reason}"
        lapsed = ("passed", "error")  # they were about other candidates
        figures = {k: v for k, v in found.figures.items() if k not in lapsed} | dict(rough.figures)
        figures["certified"] = 0  # it could have certified some, and did not
        return replace(rough, reason=said, figures=figures, trace=found.trace)

    def paper(self, target: Target, evidence: Evidence, generator: torch.Generator) -> Candidates:
        count = target.knowledge.records
        if count is None:
            reason = "the paper's descent needs the number of records; give --records"
            return nothing(target, Status.NOT_APPLICABLE, reason)
        steps = self.steps or SHARPENED.steps
        settings = replace(
            SHARPENED, features=self.features or "final", steps=steps, double=self.double
        )
        found = descend(
            target.model,
            evidence,
            settings,
            shape=target.input_shape,
            records=count,
            generator=generator,
            bounds=model_box(target),
        )
        return Candidates(
            inputs=in_data_scale(target, found.inputs),
            confidence=torch.zeros(len(found.inputs)),
            status=Status.INCONCLUSIVE,
            reason="the paper's descent has no certificate; its residual is not evidence",
            figures={"counted": None, "loss": found.loss},
            trace={"loss": list(found.trace)},
        )

    def project(self, target: Target, evidence: Evidence, generator: torch.Generator) -> Candidates:
        count = target.knowledge.records
        if count is None:
            reason = "the projected descent needs the number of records; give --records"
            return nothing(target, Status.NOT_APPLICABLE, reason)
        features: Literal["initial", "final"] = "final" if self.features == "final" else "initial"
        settings = Projected(features=features, steps=self.steps or 400, starts=self.runs)
        found = search(
            target.model,
            evidence,
            settings,
            shape=target.input_shape,
            records=count,
            generator=generator,
            bounds=model_box(target),
        )
        agreed = int((found.confidence > 0.9).sum())
        return Candidates(
            inputs=in_data_scale(target, found.inputs),
            confidence=found.confidence.float(),
            status=Status.INCONCLUSIVE,
            reason=f"{len(found.inputs)} approximate candidates, {agreed} of which came back alike "
            f"(correlation above 0.9) from {self.runs} independent starts; that is no proof",
            figures={"candidates": len(found.inputs), "agreed": agreed, "losses": found.losses},
        )
