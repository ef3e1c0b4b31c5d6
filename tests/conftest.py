import os

import pytest
import torch
from hypothesis import settings

from away import AWAY, pretending
from remnant.devices import computing_on

# A landing must not hang on a lucky draw: the same examples each time, unless asked to explore.
settings.register_profile("same", derandomize=True)
settings.register_profile("explore")
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


def pytest_addoption(parser):
    words = "have attacks and training compute on a device that is not there (tests/away.py)"
    parser.addoption("--away", action="store_true", help=words)


@pytest.fixture(autouse=True)
def elsewhere(request):
    """With --away: hidden tensors of the CPU are found by tests that were written for it."""
    if not request.config.getoption("--away"):
        yield
        return
    with pretending(), computing_on(AWAY):
        yield


def pytest_unconfigure(config):
    """The very last line, after the closing one, says that the page was not looked at."""
    reporter = config.pluginmanager.getplugin("terminalreporter")
    skipped = reporter.stats.get("skipped", []) if reporter is not None else []
    count = sum("test_browser" in report.nodeid for report in skipped)
    if count:
        what, why = f"{count} browser tests", "no chromium (apt-get install chromium)"
        if count == 1:  # the whole file
            what, why = "all browser tests", "no playwright (pip install playwright)"
        reporter.write_line(f"{what} were skipped: {why}")


@pytest.fixture(autouse=True)
def plain_torch():
    """One thread (two on busy cores are many times slower), and what a command sets is undone."""
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(1)
    torch.set_flush_denormal(False)
