"""One seed, many independent streams."""

from __future__ import annotations

import hashlib

import torch


def generator_for(seed: int, purpose: str) -> torch.Generator:
    """An independent stream per purpose, so that changing one stage leaves the others alone."""
    digest = hashlib.sha256(f"{seed}:{purpose}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
