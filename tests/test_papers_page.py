"""Every command of the page of the five papers parses; every study that it names runs."""

import re
import shlex
from pathlib import Path

import pytest

from remnant.cli import main, parser
from remnant.cli.study import SUMMARIES

PAGE = Path(__file__).parents[1] / "docs" / "research" / "papers.md"
COMMANDS = sorted(set(re.findall(r"`(remnant [^`]+)`", PAGE.read_text())))
NAMED = sorted({found for c in COMMANDS for found in re.findall(r"study (\w[\w-]*)", c)})


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_page_parses(command):
    words = shlex.split(command)[1:]
    if "--list" in words:
        with pytest.raises(SystemExit):
            parser(words).parse_args(words)
    else:
        assert parser(words).parse_args(words).verb == words[0]


def test_every_study_of_a_paper_is_on_the_page_and_every_row_is_filled():
    of_papers = {name for name, words in SUMMARIES.items() if words.startswith("00")}
    assert of_papers <= set(NAMED)
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert len(cells) > 50
    assert all(all(row) for row in cells)


BOUNDS = re.findall(r"`(remnant bound [^`]+)` \| [a-z ]*(\.\d+) \|", PAGE.read_text())


@pytest.mark.parametrize(("command", "figure"), BOUNDS)
def test_a_bound_of_the_page_is_what_its_command_says(command, figure, capsys):
    assert main([*shlex.split(command)[1:], "--json"]) == 0
    told = capsys.readouterr().out
    numbers = [float(word) for word in re.findall(r"(?<=: )-?\d[\d.e+-]*", told)]
    assert any(f"{value:.4g}".removeprefix("0") == figure for value in numbers), told


def test_the_page_has_a_figure_for_each_bound():
    assert len(BOUNDS) == 5


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMED)
def test_a_study_of_the_page_runs_quickly(name, tmp_path):
    where = ["--data", "mnist"] if name in ("informed-cnn", "fine-tuning") else []
    words = [] if name == "fine-tuning" else where  # its networks have data of their own
    assert main(["study", name, "--quick", *words, "--quiet", "--out", str(tmp_path / "run")]) == 0
