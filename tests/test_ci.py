"""What CI runs is what it should be: the README's own tests, with all that they need, or it fails."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.needed import need

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
ASKED = 'python -m pip install ".[test]" && python -m pytest -n auto --dist loadfile'


@pytest.mark.skipif(sys.platform == "win32", reason="a script of the shell, which CI runs on Linux")
@pytest.mark.parametrize(
    ("found", "instead", "runs"),
    [
        (ASKED, ASKED, ["-m pip install .[test]", "-m pytest -n auto --dist loadfile"]),
        ("## Test\n", "## Tests\n", None),
        ("## Test\n", "### Test\n", None),
        (ASKED, "", None),
        (ASKED, "echo passed", None),
    ],
)
def test_a_readme_without_tests_fails(found, instead, runs, tmp_path):
    """The Python that stands first on the path here notes what it is asked for."""
    assert found in README
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "tests", tmp_path / ".ci")
    (tmp_path / "README.md").write_text(README.replace(found, instead))
    (tmp_path / "python").write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/commands\n')
    (tmp_path / "python").chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run([tmp_path / ".ci" / "tests"], env={**os.environ, "PATH": path}, check=False)
    assert done.returncode == (runs is None)
    commands = tmp_path / "commands"
    assert (commands.read_text().splitlines() if commands.exists() else None) == runs


def test_the_readmes_command_and_its_programs_are_part_of_all():
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    assert lines[-2:] == [".ci/tests", 'echo "done after $SECONDS s"']
    assert lines.index(".ci/programs &") < lines.index('wait "$programs"')
    assert lines.index("mypy &") < lines.index('wait "$types"')
    assert "set -euo pipefail" in lines


def test_every_file_of_a_room_without_gaps_has_its_number_of_mutants():
    files = {line.split()[0] for line in (ROOT / "tests" / "survivors.txt").read_text().splitlines()}
    assert {path.relative_to(ROOT).as_posix() for path in (ROOT / "fedpca_flwr" / "state").glob("*.py")} <= files


@pytest.mark.parametrize(
    ("ci", "platform", "outcome"),
    [("true", "linux", pytest.fail), ("", "linux", pytest.skip), ("true", "win32", pytest.skip)],
)
def test_a_program_that_ci_should_have_is_not_skipped(ci, platform, outcome, monkeypatch):
    monkeypatch.setenv("CI", ci)
    monkeypatch.setattr(sys, "platform", platform)
    need("/usr/bin/initdb", "postgresql")
    with pytest.raises(outcome.Exception) as caught:
        need(None, "postgresql")
    assert "'postgresql'" in str(caught.value)
