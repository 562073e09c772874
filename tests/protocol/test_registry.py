"""A method of another package is found by its entry point, and run by its name as ours are."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.refusals import unnamed

ROOT = Path(__file__).parents[2]
MODULE = """
from dataclasses import replace

from strategies import METHODS
from fedpca_flwr.protocol.registry import Method

strategy, client = METHODS["p-cov"]


class Foreign(strategy):
    card = replace(strategy.card, name="foreign", title="A method of somebody else's")


METHOD = Method(Foreign, client)
NONE = Foreign
"""
RUN = """
import numpy as np
from fedpca_flwr import METHODS, ConfigError, battery, run

parties = [np.random.default_rng(i).normal(size=(20, 3)) for i in range(2)]
try:
    model = run("foreign scale=true", parties, n_components=2)
    print(model.log["method"], "foreign" in METHODS, list(METHODS)[-1], model.rounds)
    checks = battery("foreign")
    for check in checks.values():
        check()
    print(list(checks))
except ConfigError as error:
    print(error)
"""


def said(folder: Path, **points: str) -> str:
    """What a fresh process prints beside a package with these entry points."""
    (folder / "foreign_pca.py").write_text(MODULE)
    about = folder / "foreign_pca-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: foreign-pca\nVersion: 1.0\n")
    lines = [f"{name} = {value}" for name, value in points.items()]
    (about / "entry_points.txt").write_text("\n".join(["[fedpca_flwr.methods]", *lines]))
    code = f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(folder)!r}]\n{RUN}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, check=True)
    return done.stdout.strip()


def test_a_method_of_another_package_runs_by_its_name(tmp_path):
    first, checks = said(tmp_path, foreign="foreign_pca:METHOD").splitlines()
    assert first == "foreign True foreign 1"
    assert "exact" in checks
    assert "masked" in checks


def test_what_is_no_method_is_refused_with_its_package(tmp_path):
    text = said(tmp_path, foreign="foreign_pca:NONE")
    assert "'foreign'" in text
    assert "foreign_pca:NONE" in text
    assert "foreign-pca" in text


@pytest.mark.parametrize("name", ["p-cov"])
def test_no_method_of_ours_is_replaced(name, tmp_path):
    assert not unnamed(said(tmp_path, **{name: "foreign_pca:METHOD"}), name)
