"""What verbs share: tables are whole where no terminal limits them."""

import io

import pytest
from rich.table import Table

from remnant.cli.common import console


@pytest.mark.parametrize("terminal", [False, True])
def test_only_a_terminal_limits_the_width_of_a_table(monkeypatch, terminal):
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: terminal)
    monkeypatch.setattr("sys.stdout", stream)
    monkeypatch.setenv("COLUMNS", "60")
    table = Table(box=None)
    for i in range(20):
        table.add_column(f"a long heading {i}")
    table.add_row(*(f"value {i}" for i in range(20)))
    console().print(table)
    lines = stream.getvalue().splitlines()
    whole = "a long heading 0" in lines[0] and "a long heading 19" in lines[0]
    assert whole is not terminal
