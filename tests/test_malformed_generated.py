"""A sample of generated malformed inputs; `python tests/malformed_run.py` runs all of them."""

import os
from pathlib import Path

import pytest

import malformed_words
from malformed_run import all_cases, make_good, run_cases, sampled

SAMPLE = 150
SEED = int(os.environ.get("REMNANT_MALFORMED_SEED", "0"))


@pytest.fixture(scope="module")
def room(tmp_path_factory):
    path = tmp_path_factory.mktemp("malformed")
    make_good(path / "good")
    return path


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="limits are Linux's")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # TorchScript; fork beside threads
def test_a_sample_of_malformed_inputs_is_one_line_each(room):
    done = list(run_cases(sampled(SEED, SAMPLE), room / "good", room / "work", jobs=1))
    failed = [f"{case[0]}: {'; '.join(wrong)}" for case, wrong in done if wrong]
    assert not failed, "\n".join(failed)
    assert len(done) == SAMPLE


def test_there_are_a_thousand_of_them_and_another_seed_has_others():
    names = [[case[0] for case in all_cases(seed)] for seed in (0, 1)]
    assert min(map(len, names)) >= 1000
    assert names[0] != names[1]
    words = [case[0] for case in malformed_words.cases(0)]
    assert words == names[0][-len(words) :]
    assert len(words) >= 400
