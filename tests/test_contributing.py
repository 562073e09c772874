"""CONTRIBUTING.md, followed to the letter in a copy of the project, gives a method that works, and tests that pass."""

import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
STEPS = TEXT[TEXT.index("### 1.") : TEXT.index("### Before")]
NEW_FILES = dict(re.findall(r"`(\S+\.py)`:\n\n```python\n(.*?)^```", STEPS, re.S | re.M))
*_, EXAMPLE, MASKED_EXAMPLE = re.findall(r"^```python\n(.*?)^```", STEPS, re.S | re.M)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    copy = tmp_path_factory.mktemp("project")
    for folder in ("fedpca_flwr", "strategies", "simulations", "tests"):
        # With the bytecode, which is right for files of the same times, but for what is being written.
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("*.pyc.*"), symlinks=True)
    shutil.copytree(ROOT / "docs", copy / "docs")
    for path in (ROOT / "pyproject.toml", *ROOT.glob("*.md")):
        shutil.copy(path, copy)
    for file, code in NEW_FILES.items():
        assert not (copy / file).exists(), file
        (copy / file).write_text(code)
    registry = copy / "strategies" / "__init__.py"
    diff = STEPS[STEPS.index("```diff") :]
    for above, added, below in re.findall(r"((?:^ .*\n)*)^\+(.*\n)((?:^ .*\n)*)", diff, re.M):
        # the lines of a diff without its first column
        old, new = (re.sub(r"^ ", "", f"{above}{line}{below}", flags=re.M) for line in ("", f" {added}"))
        assert registry.read_text().count(old) == 1, old
        registry.write_text(registry.read_text().replace(old, new))
    return copy


def outcome(project, *command, code=0):
    environment = {**os.environ, "PYTHONPATH": str(project), "OMP_NUM_THREADS": "1"}
    run = subprocess.run([sys.executable, *command], cwd=project, env=environment, capture_output=True, text=True)
    assert run.returncode == code, run.stdout + run.stderr
    return run.stdout


def passed(project, *command):
    """Files and functions of tests of which at least one case passes, where none fails."""
    return set(re.findall(r"^PASSED tests/(\S+)\.py::(\w+)", outcome(project, *command, "-rp"), re.M))


def test_an_author_meets_few_names():
    nodes = ast.walk(ast.parse(NEW_FILES["strategies/two_sums.py"]))
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    ours = [alias.name for node in imports if node.module.startswith("fedpca_flwr") for alias in node.names]
    assert 0 < len(ours) <= 8, ours


@pytest.mark.nightly
def test_the_batteries_pass_for_the_new_method(project):
    command = shlex.split(re.search(r"^python (-m pytest .*)$", STEPS, re.M)[1])
    file = "strategies/test_every_method"
    every = re.findall(r"^@every_method\n.*?^def (\w+)", (project / f"tests/{file}.py").read_text(), re.S | re.M)
    assert every
    every.append("test_exact_methods_give_the_pooled_components")
    assert {(file, name) for name in every} <= passed(project, *command)
    assert {"two-sums: exact", "two-sums: masked"} <= set(outcome(project, "-c", MASKED_EXAMPLE).splitlines())


@pytest.mark.engine
def test_the_new_method_runs_and_is_listed(project):
    said = outcome(project, "-c", f"{EXAMPLE}\nfrom fedpca_flwr import cli; cli.main(['methods'])")
    assert "two-sums (exact)" in said
    assert "\n| [`two-sums`](methods/two-sums.md) | exact | 2 |" in said


@pytest.mark.nightly
def test_nothing_is_missing_before_it_is_merged(project):
    """Once the pages are made anew, the tests that go through all methods are green, and no other file was edited."""
    outcome(project, *shlex.split(re.search(r"^python (docs/method_pages.py write)$", TEXT, re.M)[1]))
    files = ["test_readme", "test_house", "test_package", "attacks/test_where_rows_are_read"]
    files += ["protocol/test_hostile_server", "strategies/test_every_kind_of_rows"]
    of_it = "two-sums or two_sums or page_of or (pages and not links) or its_room or that_is_shown or what_an_answer"
    command = ["-m", "pytest", *(f"tests/{file}.py" for file in files), "-k", of_it]
    assert {file for file, _ in passed(project, *command)} == {*files}
