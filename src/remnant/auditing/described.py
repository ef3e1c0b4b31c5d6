"""What was audited, as JSON values for the page."""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch import nn

from remnant.auditing.case import Case
from remnant.models.linear_model import LinearModel


def about(case: Case) -> dict[str, Any]:
    model = case.target.model
    own = model.features if isinstance(model, LinearModel) else ()
    features = case.truth.features or own
    return {
        "model": type(model).__name__,
        "parameters": sum(p.numel() for p in model.parameters()),
        "layers": layers_of(model),
        "records": len(case.truth),
        "data": case.truth.name,
        "shape": list(case.truth.shape),
        **({"text": True} if case.truth.are_texts else {}),
        **({"features": list(features)} if features else {}),
    }


def layers_of(model: nn.Module, most: int = 24) -> list[str]:
    """The kinds of all layers in turn; past `most` how many of each there are."""
    kinds = [type(m).__name__ for m in model.modules() if not list(m.children())]
    if len(kinds) <= most:
        return kinds
    return [f"{count} {kind}" for kind, count in Counter(kinds).items()]
