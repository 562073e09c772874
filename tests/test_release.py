"""What a release is: archives that install and run elsewhere, metadata that agree, files for those who run sites."""

import json
import os
import re
import runpy
import shlex
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest
import yaml
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager

import fedpca_flwr
from tests.environment import fresh_environment

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text())
CODEMETA = json.loads((ROOT / "codemeta.json").read_text())
RECIPE = yaml.safe_load((ROOT / "conda-recipe" / "recipe.yaml").read_text())


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The sdist, and the Python of a fresh environment with the wheel; what the wheel needs, it finds here."""
    folder = tmp_path_factory.mktemp("release")
    run("-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT), at=folder)
    (wheel,), (source,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return source, fresh_environment(folder / "fresh", wheel)


def run(*arguments, at, python=sys.executable):
    """Without PYTHONPATH, by which the package could be found in a repository and not in the environment."""
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([python, *arguments], cwd=at, env=own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.engine
def test_the_wheel_runs_where_there_is_no_repository(built, tmp_path):
    _, python = built
    code = (
        "import numpy as np, fedpca_flwr; from fedpca_flwr import run; "
        "print(fedpca_flwr.__file__); print(run('p-cov', [np.eye(20), 2 * np.eye(20)], n_components=2))"
    )
    where, model = run("-c", code, at=tmp_path, python=python).splitlines()
    assert Path(where).is_relative_to(Path(python).parents[1])
    assert model.startswith("PCAModel(p-cov: 2 components")
    compare = ["compare", "--methods", "p-cov", "--dataset", "wine", "--components", "2"]
    compared = run("-m", "fedpca_flwr", *compare, at=tmp_path, python=python)
    assert "p-cov" in compared


@pytest.mark.engine
def test_the_source_is_an_app_of_flowers_newest_format(built, tmp_path):
    source, _ = built
    with tarfile.open(source) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # which Python has from 3.11.4 on
        archive.extractall(tmp_path)
    (unpacked,) = tmp_path.iterdir()
    folder = unpacked.rename(tmp_path / PROJECT["project"]["name"])  # Flower takes no folder with a version in its name
    code = "from flwr.cli.app import app; app()"
    run("-c", code, "build", "--app", str(folder), at=tmp_path)
    (fab,) = tmp_path.glob("*.fab")
    with ZipFile(fab) as archive:
        held = set(archive.namelist())
    packages = ("fedpca_flwr", "strategies", "simulations")
    assert {f"{name}/__init__.py" for name in packages} <= held
    assert {name.split("/")[0] for name in held if name.endswith(".py")} == {*packages}


def test_every_file_that_names_the_version_names_this_one():
    version = PROJECT["project"]["version"]
    changes = re.findall(r"^## (\S+) \((\S+)\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert (
        fedpca_flwr.__version__ == CITATION["version"] == CODEMETA["version"] == RECIPE["context"]["version"] == version
    )
    assert changes[0] == (version, CITATION["date-released"].isoformat()) == (version, CODEMETA["datePublished"])
    assert {"cff-version", "message", "title", "authors"} <= set(CITATION)


def test_every_file_that_names_the_repository_names_one_address():
    urls, about = PROJECT["project"]["urls"], RECIPE["about"]
    repository = urls["Repository"]
    assert (
        CITATION["repository-code"]
        == CODEMETA["codeRepository"]
        == about["repository"]
        == about["homepage"]
        == repository
    )
    assert all(url.startswith(repository) for url in urls.values())


def test_the_recipe_needs_what_the_project_needs():
    """Ray is a package of its own there, which pip gets by Flower's extra."""
    wanted = {text.replace("[simulation]", "") for text in PROJECT["project"]["dependencies"]}
    told = {text.replace(" ", "", 1) for text in RECIPE["requirements"]["run"]}
    assert told == {"python>=3.11", "ray-core", *wanted}
    names = {re.split(r"[<>=]", text)[0] for text in wanted}
    assert set(CODEMETA["softwareRequirements"]) == names


def test_the_readme_of_a_package_index_has_links_and_pictures_that_it_can_show():
    readme = ProjectMetadata(str(ROOT), PluginManager()).core.readme
    address = PROJECT["project"]["urls"]["Repository"]
    tag = f"v{fedpca_flwr.__version__}"
    raw = f"{address.replace('//github.com', '//raw.githubusercontent.com')}/{tag}/"
    found = re.findall(r"(!?)\[[^\]]*\]\(([^)\s]+)\)", readme)
    assert len(found) > 20
    for picture, target in found:
        assert target.startswith("https://"), target
        beginning = raw if picture else f"{address}/blob/{tag}/"
        assert target == "https://flower.ai" or target.startswith(beginning), target
        if target.startswith(beginning):
            assert (ROOT / target.removeprefix(beginning).split("#")[0]).exists(), target
    assert re.sub(r"\([^)\s]+\)", "", readme) == re.sub(r"\([^)\s]+\)", "", (ROOT / "README.md").read_text())


def test_the_papers_table_is_what_its_command_prints():
    pytest.importorskip("matplotlib")
    figure = runpy.run_path(str(ROOT / "paper" / "figure.py"))
    assert figure["table"](figure["records"]()) in (ROOT / "paper" / "paper.md").read_text()


def test_the_paper_has_the_parts_and_sources_that_it_names():
    paper, sources = ((ROOT / "paper" / name).read_text() for name in ("paper.md", "paper.bib"))
    head, text = paper.split("---\n", 2)[1:]
    assert {"title", "tags", "authors", "affiliations", "date", "bibliography"} <= set(yaml.safe_load(head))
    assert {"Summary", "Statement of need", "State of the field", "Software design", "References"} <= set(
        re.findall(r"^# (.+)$", text, re.MULTILINE)
    )
    assert set(re.findall(r"@(\w+)", text)) == set(re.findall(r"^@\w+\{(\w+),", sources, re.MULTILINE))
    pictures = [ROOT / "paper" / name for name in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text)]
    assert len(pictures) == 2
    assert all(path.stat().st_size < 200_000 for path in pictures)


def test_what_is_published_is_what_the_release_made_and_by_no_password():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "publish.yml").read_text())
    build, publish = workflow["jobs"]["build"], workflow["jobs"]["publish"]
    assert workflow[True] == {"push": {"tags": ["v*"]}}  # YAML 1.1 reads `on` as true
    assert ".ci/release" in [step.get("run") for step in build["steps"]]
    assert "permissions" not in build
    assert workflow["permissions"] == {"contents": "read"}
    assert publish["permissions"] == {"id-token": "write"}
    assert publish["environment"] == "pypi"
    assert publish["needs"] == "build"
    *_, last = publish["steps"]
    assert last == {"uses": "pypa/gh-action-pypi-publish@release/v1"}


@pytest.mark.parametrize("repository", ["the address", "another"])
@pytest.mark.parametrize("tag", ["this version", "another"])
@pytest.mark.skipif(sys.platform == "win32", reason="the step is run by Linux's shell")
def test_a_tag_of_another_version_or_repository_is_not_published(repository, tag):
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "publish.yml").read_text())
    (step,) = (step["run"] for step in workflow["jobs"]["build"]["steps"] if step.get("name", "").startswith("The tag"))
    address = PROJECT["project"]["urls"]["Repository"]
    told = {
        "GITHUB_SERVER_URL": "https://github.com",
        "GITHUB_REPOSITORY": address.removeprefix("https://github.com/") + "-fork" * (repository == "another"),
        "GITHUB_REF_NAME": f"v{fedpca_flwr.__version__}" + ".1" * (tag == "another"),
    }
    done = subprocess.run(["bash", "-e", "-c", step], cwd=ROOT, env={**os.environ, **told}, check=False)
    assert (done.returncode == 0) == (repository == "the address" and tag == "this version")


@pytest.mark.parametrize(
    "file", [str(path.relative_to(ROOT)) for path in [*ROOT.glob(".github/**/*.yml"), ROOT / ".pre-commit-config.yaml"]]
)
def test_files_for_services_are_yaml(file):
    assert yaml.safe_load((ROOT / file).read_text())


def test_workflows_call_what_there_is():
    steps = [
        step["run"]
        for path in ROOT.glob(".github/workflows/*.yml")
        for job in yaml.safe_load(path.read_text())["jobs"].values()
        for step in job["steps"]
        if "run" in step
    ]
    assert ".ci/run" in steps
    for words in map(shlex.split, steps):
        assert all((ROOT / word).exists() for word in words if word.startswith((".ci/", "tests/")))


def test_flower_hub_has_what_it_asks_for():
    app = PROJECT["tool"]["flwr"]["app"]
    assert app["fab-format-version"] == 1
    assert PROJECT["project"]["license"] == {"file": "LICENSE"}


def test_every_set_of_versions_that_is_tested_at_night_is_one_of_the_script():
    nightly = yaml.safe_load((ROOT / ".github" / "workflows" / "nightly.yml").read_text())
    wanted = {one["versions"] for one in nightly["jobs"]["versions"]["strategy"]["matrix"]["include"]}
    assert wanted == set(re.findall(r"^  (\w+)\)", (ROOT / ".ci" / "versions").read_text(), re.MULTILINE))
