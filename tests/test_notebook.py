"""The notebook and the quick start run as they stand."""

import json
import shlex
from pathlib import Path

import nbformat
import numpy as np
import pytest
import torch
from nbclient import NotebookClient

from remnant.cli import main
from remnant.data import load, split

PATH = Path(__file__).parents[1] / "docs" / "remnant.ipynb"


@pytest.mark.slow
def test_the_notebook_runs_top_to_bottom(tmp_path, monkeypatch):
    notebook = nbformat.read(PATH, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in code)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    where = {"metadata": {"path": str(tmp_path)}}
    client = NotebookClient(notebook, timeout=300, kernel_name="python3", resources=where)
    client.execute()
    outputs = [output for cell in code for output in cell.outputs]
    text = "".join(output.get("text", "") for output in outputs)
    assert "complete - 20 of 20 records found" in text
    assert "20 of 20 records recovered" in text
    assert "exposed: " in text
    pictures = [o for o in outputs if "image/png" in o.get("data", {})]
    assert len(pictures) == 2  # singular values, contact sheet
    assert any("image/svg+xml" in o.get("data", {}) for o in outputs)  # curve
    assert any("report.html" in o.get("data", {}).get("text/html", "") for o in outputs)


@pytest.mark.slow
def test_the_quick_start_ends_in_a_page(tmp_path, monkeypatch, capsys):
    """Its script as it stands, then its commands."""
    text = (PATH.parent / "quick-start.md").read_text()
    script = text.split("```python\n")[1].split("```")[0]
    commands = text.split("```sh\n")[1].split("```")[0].splitlines()
    sides = split(load("mnist"), train=20, public=None, holdout=100, seed=0)
    for name, part in (("train", sides.train), ("test", sides.holdout)):
        np.savez(tmp_path / f"{name}.npz", x=part.inputs.numpy(), y=part.labels.numpy())
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    exec(compile(script, "quick-start.md", "exec"), {})
    assert len(commands) == 3
    for line in commands:
        program, *words = shlex.split(line, comments=True)
        more = ["--attacks", "ntk"] if words[0] == "audit" else []
        assert program == "remnant"
        assert main([*words, *more]) == 0
    assert "exposed: " in capsys.readouterr().out
    assert "<html" in (tmp_path / "found" / "report.html").read_text()
    finding = json.loads((tmp_path / "found" / "finding.json").read_text())
    assert len(finding["exposed"]) == 20
