"""What a release is: metadata that agree, a paper, and what publishes it; and what CI runs: the README's own tests."""

import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager

import fedpca_flwr
from tests.needed import need

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
ADDRESS, VERSION = "https://github.com/a-group/its-fork", PROJECT["project"]["version"]
FILES = ("pyproject.toml", "CITATION.cff", "codemeta.json", "conda-recipe/recipe.yaml", "README.md", "hatch_build.py")
README = (ROOT / "README.md").read_text()
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text()) for path in ROOT.glob(".github/workflows/*.yml")}


@pytest.fixture(scope="module")
def addressed(tmp_path_factory):
    if sys.platform == "win32":
        pytest.skip("a release is made by Linux's shell")
    folder = tmp_path_factory.mktemp("release")
    for name in (*FILES, ".ci/address"):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    for address in ("https://example.org/an/earlier", ADDRESS):  # the second replaces the first
        subprocess.run([folder / ".ci" / "address", address], check=True)
    return folder


def test_one_command_writes_the_address_of_the_repository_into_every_file_and_link(addressed):
    project, citation, codemeta, recipe, *_ = texts = [(addressed / name).read_text() for name in FILES]
    urls, about = tomllib.loads(project)["project"]["urls"], yaml.safe_load(recipe)["about"]
    others = {about["homepage"], about["repository"], urls["Repository"], json.loads(codemeta)["codeRepository"]}
    assert others | {yaml.safe_load(citation)["repository-code"]} == {ADDRESS}
    assert all(url.startswith(ADDRESS) for url in urls.values())
    assert not any("an/earlier" in text for text in texts)
    readme, here = (ProjectMetadata(str(root), PluginManager()).core.readme for root in (addressed, ROOT))
    raw = f"{ADDRESS.replace('//github.com', '//raw.githubusercontent.com')}/v{VERSION}/"
    found = re.findall(r"(!?)\[[^\]]*\]\(([^)\s]+)\)", readme)
    assert len(found) > 10
    for picture, target in found:
        beginning = raw if picture else f"{ADDRESS}/blob/v{VERSION}/"
        assert target == "https://flower.ai" or target.startswith(beginning), target
        assert (ROOT / target.removeprefix(beginning).split("#")[0]).exists() or target == "https://flower.ai", target
    assert here == README
    assert re.sub(r"\([^)\s]+\)", "", readme) == re.sub(r"\([^)\s]+\)", "", README)


def test_every_file_names_this_version_and_the_recipe_what_the_project_needs():
    """Ray is an extra for pip, and no run on sites needs it."""
    citation, recipe = (
        yaml.safe_load((ROOT / name).read_text()) for name in ("CITATION.cff", "conda-recipe/recipe.yaml")
    )
    codemeta = json.loads((ROOT / "codemeta.json").read_text())
    changes = re.findall(r"^## (\S+) \((\S+)\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    versions = {fedpca_flwr.__version__, citation["version"], codemeta["version"], recipe["context"]["version"]}
    assert versions == {VERSION}
    assert changes[0] == (VERSION, citation["date-released"].isoformat()) == (VERSION, codemeta["datePublished"])
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    wanted = set(PROJECT["project"]["dependencies"])
    # conda-forge writes some with "_"
    told = {text.replace(" ", "", 1).replace("_", "-") for text in recipe["requirements"]["run"]}
    assert told == {"python>=3.11", *wanted}
    assert set(codemeta["softwareRequirements"]) == {re.split(r"[<>=]", text)[0] for text in wanted}
    assert PROJECT["tool"]["flwr"]["app"]["fab-format-version"] == 1
    assert PROJECT["project"]["license"] == {"file": "LICENSE"}


def test_the_paper_has_the_table_parts_and_sources_that_it_names():
    paper, sources = ((ROOT / "paper" / name).read_text() for name in ("paper.md", "paper.bib"))
    head, text = paper.split("---\n", 2)[1:]
    assert {"title", "tags", "authors", "affiliations", "date", "bibliography"} <= set(yaml.safe_load(head))
    parts = set(re.findall(r"^# (.+)$", text, re.MULTILINE))
    assert {"Summary", "Statement of need", "State of the field", "Software design", "References"} <= parts
    assert set(re.findall(r"@(\w+)", text)) == set(re.findall(r"^@\w+\{(\w+),", sources, re.MULTILINE))
    sizes = [(ROOT / "paper" / name).stat().st_size for name in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text)]
    assert len(sizes) == 2
    assert max(sizes) < 200_000
    pytest.importorskip("matplotlib")
    figure = runpy.run_path(str(ROOT / "paper" / "figure.py"))
    assert figure["table"](figure["records"]()) in paper


def test_the_release_is_published_without_a_password():
    workflow = WORKFLOWS["publish"]
    build, publish = workflow["jobs"]["build"], workflow["jobs"]["publish"]
    assert workflow[True] == {"push": {"tags": ["v*"]}}  # YAML 1.1 reads `on` as true
    assert ".ci/release" in [step.get("run") for step in build["steps"]]
    assert (workflow["permissions"], "permissions" in build) == ({"contents": "read"}, False)
    rights = publish["permissions"], publish["environment"], publish["needs"]
    assert rights == ({"id-token": "write"}, "pypi", "build")
    assert publish["steps"][-1] == {"uses": "pypa/gh-action-pypi-publish@release/v1"}


@pytest.mark.parametrize(("fork", "tag"), [("", ""), ("-fork", ""), ("", ".1"), ("-fork", ".1")])
@pytest.mark.skipif(sys.platform == "win32", reason="the step is run by Linux's shell")
def test_a_tag_of_another_version_or_repository_is_not_published(addressed, fork, tag):
    steps = WORKFLOWS["publish"]["jobs"]["build"]["steps"]
    (step,) = (step["run"] for step in steps if step.get("name", "").startswith("The tag"))
    repository = ADDRESS.removeprefix("https://github.com/") + fork
    told = {"GITHUB_SERVER_URL": "https://github.com", "GITHUB_REPOSITORY": repository}
    told |= {**os.environ, "GITHUB_REF_NAME": f"v{VERSION}{tag}"}
    done = subprocess.run(["bash", "-e", "-c", step], cwd=addressed, env=told, check=False)
    assert (done.returncode == 0) == (not fork and not tag)


def test_workflows_name_existing_scripts_and_ci_runs_all_that_it_begins():
    for path in [*ROOT.glob(".github/**/*.yml"), ROOT / ".pre-commit-config.yaml"]:
        assert yaml.safe_load(path.read_text())
    jobs = [job for workflow in WORKFLOWS.values() for job in workflow["jobs"].values()]
    steps = [step["run"] for job in jobs for step in job["steps"] if "run" in step]
    assert ".ci/run" in steps
    words = [word for step in steps for word in shlex.split(step) if word.startswith((".ci/", "tests/"))]
    assert all((ROOT / word).exists() for word in words)
    matrix = WORKFLOWS["nightly"]["jobs"]["versions"]["strategy"]["matrix"]["include"]
    known = re.findall(r"^  (\w+)\)", (ROOT / ".ci" / "versions").read_text(), re.MULTILINE)
    assert {one["versions"] for one in matrix} == set(known)
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    assert lines[-2:] == [".ci/tests", 'echo "done after $SECONDS s"']
    assert lines.index(".ci/programs &") < lines.index('wait "$programs"')
    assert lines.index("mypy &") < lines.index('wait "$types"')
    assert "set -euo pipefail" in lines


ASKED = 'python -m pip install ".[test]" && python -m pytest -n auto --dist loadfile'


@pytest.mark.skipif(sys.platform == "win32", reason="a script of the shell, which CI runs on Linux")
@pytest.mark.parametrize(
    ("found", "instead", "runs"),
    [
        (ASKED, ASKED, ["-m pip install .[test]", "-m pytest -n auto --dist loadfile"]),
        *(("## Test\n", instead, []) for instead in ("## Tests\n", "### Test\n")),
        *((ASKED, instead, []) for instead in ("", "echo passed")),
    ],
)
def test_a_readme_without_tests_fails(found, instead, runs, tmp_path):
    """The Python that stands first on the path here notes what it is asked for."""
    assert found in README
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "tests", tmp_path / ".ci")
    (tmp_path / "README.md").write_text(README.replace(found, instead))
    commands = tmp_path / "commands"
    commands.touch()
    (tmp_path / "python").write_text(f'#!/bin/sh\necho "$*" >> {commands}\n')
    (tmp_path / "python").chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run([tmp_path / ".ci" / "tests"], env={**os.environ, "PATH": path}, check=False)
    assert (done.returncode, commands.read_text().splitlines()) == (not runs, runs)


def test_every_file_of_a_room_without_gaps_has_its_number_of_mutants():
    files = {line.split()[0] for line in (ROOT / "tests" / "survivors.txt").read_text().splitlines()}
    rooms = "blind", "maths", "protocol", "site", "stages", "state", "transports"
    paths = [path for room in rooms for path in (ROOT / "fedpca_flwr" / room).rglob("*.py")]
    assert {path.relative_to(ROOT).as_posix() for path in paths} <= files


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
