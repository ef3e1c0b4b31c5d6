"""One text and one hash for one value: specs, tensors, files, and what computed them."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from remnant.errors import StoreError, expected


def spec_hash(spec: Mapping[str, Any]) -> str:
    """SHA-256 of the canonical JSON of a spec."""
    return hash_text(canonical(spec))


def canonical(value: Any) -> str:
    """JSON with sorted keys and no spaces: one text for one value."""
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise StoreError(expected("spec", "JSON values, finite numbers", error)) from None


def hash_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_tensors(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, types, shapes and bytes; the order of the mapping does not matter."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        head = [name, str(value.dtype), list(value.shape)]  # fixes how many bytes follow
        digest.update(json.dumps(head).encode() + b"\n")
        digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def versions() -> dict[str, str]:
    """What the figures of a run depend on."""
    packages = ("torch", "numpy", "scipy", "remnant")
    return {"python": platform.python_version()} | {name: version(name) for name in packages}
