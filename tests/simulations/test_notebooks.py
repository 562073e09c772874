"""The notebooks run from top to bottom, as a reader would run them."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parents[2] / "simulations" / "notebooks"


@pytest.mark.engine
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(path.name for path in NOTEBOOKS.glob("*.ipynb")))
def test_a_notebook_runs(name):
    notebook = nbformat.read(NOTEBOOKS / name, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "commit notebooks without outputs"
    NotebookClient(notebook, resources={"metadata": {"path": str(NOTEBOOKS.parents[1])}}).execute()
    shown = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert [output for output in shown if "image/png" in output.get("data", {})]
    assert [output for output in shown if "Federated PCA" in str(output) or "(exact)" in str(output)]
