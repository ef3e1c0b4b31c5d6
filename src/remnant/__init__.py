"""Remnant: what remains of your training data in the model you release?

The names below load on first use, so that `import remnant` and `remnant --help` are quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from remnant.attacks import ATTACKS, GLM, KKT, NTK, Gradient, Informed
    from remnant.auditing import assess, audit
    from remnant.capturing import GradientHook, capture, capture_step, save_gradient
    from remnant.data import load, mean_image, split
    from remnant.models import build, read_weights, save_weights, trap
    from remnant.training import train
    from remnant.types import (
        Candidates,
        Examples,
        Finding,
        Knowledge,
        Scaling,
        Status,
        Target,
    )

__all__ = [
    "ATTACKS",
    "GLM",
    "KKT",
    "NTK",
    "Candidates",
    "Examples",
    "Finding",
    "Gradient",
    "GradientHook",
    "Informed",
    "Knowledge",
    "Scaling",
    "Status",
    "Target",
    "assess",
    "audit",
    "build",
    "capture",
    "capture_step",
    "load",
    "mean_image",
    "read_weights",
    "save_gradient",
    "save_weights",
    "split",
    "train",
    "trap",
]

_ROOMS = {
    "attacks": ("ATTACKS", "GLM", "KKT", "NTK", "Gradient", "Informed"),
    "auditing": ("assess", "audit"),
    "capturing": ("GradientHook", "capture", "capture_step", "save_gradient"),
    "data": ("load", "mean_image", "split"),
    "models": ("build", "read_weights", "save_weights", "trap"),
    "training": ("train",),
    "types": ("Candidates", "Examples", "Finding", "Knowledge", "Scaling", "Status", "Target"),
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _ROOM_OF:
        raise AttributeError(f"module 'remnant' has no attribute {name!r}")
    return getattr(import_module(f"remnant.{_ROOM_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
