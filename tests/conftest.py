import pytest
import torch


@pytest.fixture(autouse=True)
def plain_torch():
    """One thread (two on busy cores are many times slower), and what a command sets is undone."""
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(1)
    torch.set_flush_denormal(False)
