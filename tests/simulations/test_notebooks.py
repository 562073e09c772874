"""The notebooks run from top to bottom, as a reader would run them, and show what they then find."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parents[2] / "simulations" / "notebooks"
WRITE = "run `.ci/notebooks` in the repository's folder"
NAMES = sorted(path.name for path in NOTEBOOKS.glob("*.ipynb"))


def kinds(outputs: Sequence[Any]) -> list[tuple[str, ...]]:
    """Return tables, pictures, and the first word of each line that a cell shows: numbers depend on the machine."""
    shown: list[tuple[str, ...]] = []
    for output in outputs:
        if output["output_type"] == "display_data" or output.get("name") == "stderr":  # progress, and Ray's remarks
            continue
        text = output.get("text", output.get("data", {}).get("text/plain", ""))
        words = [line.split()[0] for line in text.splitlines() if line.strip() and line[:1].isspace()]
        if output["output_type"] == "stream" and shown and shown[-1][0] == "stream":  # parted by such a progress
            shown[-1] += (*words,)
        else:
            shown.append((output["output_type"], *sorted(output.get("data", {})), *words))
    return shown


def read(name: str) -> Any:
    return nbformat.read(NOTEBOOKS / name, as_version=4)


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_stored_with_what_it_shows(name):
    """And with nothing of the machine that ran it, nor too large for a page."""
    cells = [cell for cell in read(name).cells if cell.cell_type == "code"]
    assert all(cell.execution_count == number for number, cell in enumerate(cells, 1)), WRITE
    shown = [output for cell in cells for output in cell.outputs]
    assert [output for output in shown if "image/png" in output.get("data", {})], WRITE
    assert not [output for output in shown if output.output_type == "error" or "Warning" in output.get("text", "")]
    text = (NOTEBOOKS / name).read_text(encoding="utf-8")
    assert not [folder for folder in ("/home/", "/root/", "/tmp/", "/dev/shm/", "site-packages") if folder in text]
    assert len(text) < 300_000


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs_and_shows_what_is_stored(name):
    stored, notebook = read(name), read(name)
    NotebookClient(notebook, resources={"metadata": {"path": str(NOTEBOOKS.parents[1])}}).execute()
    for before, now in zip(stored.cells, notebook.cells, strict=True):
        assert kinds(before.get("outputs", [])) == kinds(now.get("outputs", [])), (now.source, WRITE)
    shown = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert [output for output in shown if "(exact)" in str(output) or "PCAModel(p-cov" in str(output)]
