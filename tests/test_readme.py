"""The README does not fall behind the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedpca_flwr.data import DATASETS
from strategies import METHODS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_a_row_there_and_in_security(method):
    assert f"| `{method}` |" in README
    assert f"`{method}`" in (ROOT / "SECURITY.md").read_text()


@pytest.mark.parametrize("dataset", DATASETS)
def test_every_data_set_is_in_its_table(dataset):
    assert f"`{dataset}`" in README


@pytest.mark.parametrize("part", ["loopback", "Federation.open"])
def test_the_python_examples_run(part, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    example = next(block for block in re.findall(r"```python\n(.*?)```", README, re.S) if part in block)
    exec(compile(example, "README.md", "exec"), {})
    assert capsys.readouterr().out
