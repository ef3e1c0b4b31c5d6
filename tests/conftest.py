import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    """Two torch threads on busy cores are many times slower than one."""
    torch.set_num_threads(1)
