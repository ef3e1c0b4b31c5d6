import os

import pytest
import torch
from hypothesis import settings

# A landing must not hang on a lucky draw: the same examples each time, unless asked to explore.
settings.register_profile("same", derandomize=True)
settings.register_profile("explore")
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


@pytest.fixture(autouse=True)
def plain_torch():
    """One thread (two on busy cores are many times slower), and what a command sets is undone."""
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(1)
    torch.set_flush_denormal(False)
