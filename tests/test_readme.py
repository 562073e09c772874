"""The README and the pages in docs do not fall behind the code."""

import importlib.util
import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import tomllib
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import sklearn.datasets
from flwr.common.config import parse_config_args

import fedpca_flwr
from docs.method_pages import descriptions, pages
from fedpca_flwr import LocalGrid, PCAModel, cli, run
from fedpca_flwr.cli import COMMANDS, GROUPS
from fedpca_flwr.config.method_text import method_option_keys, parse_options
from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.data.datasets import DATASETS
from fedpca_flwr.errors import ConfigError
from fedpca_flwr.simulations.benchmarks import __main__ as benchmarks
from fedpca_flwr.strategies import METHODS
from fedpca_flwr.transports.recommendation import EXAMPLE_CONFIGS, script_or_none, transports_of
from tests.families import cut, rows
from tests.figures import docs_figures
from tests.harness import forget_classes
from tests.needed import need
from tests.options import option_values

ROOT = Path(__file__).parents[1]
PATTERNS = ("*.md", "docs/**/*.md", "*/README.md", "simulations/*/README.md")
PAGES = {str(path.relative_to(ROOT)): path.read_text() for pattern in PATTERNS for path in ROOT.glob(pattern)}
CONFIG = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGES[page], re.S | re.M)


def commands(page):
    lines = "\n".join(blocks(page, "bash")).replace("\\\n", " ").splitlines()
    return lines + [re.sub(r"\s+", " ", text) for text in re.findall(r"`([^`]*)`", prose(page))]


def prose(page):
    return re.sub(r"^```.*?^```", "", PAGES[page], flags=re.S | re.M).replace("``", "`")


def test_a_page_of_the_code_is_that_of_the_cards():
    made = pages()
    old = [page for page, text in made.items() if PAGES[page] != text]
    assert (bool(made), old) == (True, []), (
        f"{old} are made from the methods' cards: run `python docs/method_pages.py write`"
    )


def test_a_run_enters_the_functions_of_the_call_path_in_their_order():
    entered: dict[str, None] = {}

    def record(frame, event, argument):
        if event == "call":
            file = frame.f_code.co_filename.replace("\\", "/").rpartition("/fedpca_flwr/")[2]
            entered.setdefault(f"{file}:{frame.f_code.co_firstlineno}")

    with ExitStack() as stack:
        for module in (threading, sys):
            module.setprofile(record)
            stack.callback(module.setprofile, None)
        run("p-cov", cut(rows(60, 4), 30, 30), n_components=2)
    steps = re.findall(r"`([\w/]+\.py:\d+)`", PAGES["docs/call-path.md"])
    assert [place for place in entered if place in steps] == steps


def test_every_method_has_a_page_of_its_own_and_every_name_and_data_set_its_line():
    assert {Path(page).stem for page in PAGES if page.startswith("docs/methods/")} == set(METHODS)
    for name, method in METHODS.items():
        page, card = PAGES[f"docs/methods/{name}.md"], method.strategy.card
        assert f"| [`{name}`](methods/{name}.md) |" in PAGES["docs/which-method.md"]
        assert ("ith secure aggregation" in page) == ("masked" in transports_of(method))
        assert ("or `survivors`" in page) == ("surviving" in transports_of(method))
        assert card.disclosure.server[:40] in page
        assert (card.summed_disclosure or card.disclosure).server[:40] in page
    assert re.findall("^## `(.+)`$", PAGES["docs/security/questions.md"], re.M) == list(METHODS)
    assert not [dataset for dataset in DATASETS if f"`{dataset}`" not in PAGES["docs/data.md"]]
    names = re.findall(r"^::: fedpca_flwr\.(\w+)$|`(\w+)`", PAGES["docs/api.md"], re.M)
    assert set(fedpca_flwr.__all__) <= set(itertools.chain(*names))
    assert len(PAGES["SECURITY.md"].encode()) <= 8192
    assert len(PAGES["README.md"].splitlines()) <= 90


@pytest.mark.parametrize("method", METHODS)
def test_every_option_is_described(method):
    """All values of every option, and of every two, that tests draw from."""
    known = METHODS[method]
    card = known.strategy.card
    told = descriptions(card.options)
    assert not [name for name in card.options.model_fields if not told.get(name)]

    def script(travel, options):
        with suppress(ConfigError):  # of options that do not go together
            return script_or_none(known, EXAMPLE_CONFIGS[travel], options) or {}
        return {}

    shown = {(travel, name) for travel in EXAMPLE_CONFIGS for own in card.examples for name in script(travel, own)}
    drawn = option_values(method, 2, 50, 6)
    single = [(name.replace("_", "-"), value) for name, values in drawn.items() for value in values]
    missing = {
        name: options
        for travel in EXAMPLE_CONFIGS
        for options in map(dict, itertools.combinations(single, 2))
        for name in script(travel, {**card.examples[0], **options})
        if (travel, name) not in shown
    }
    assert not missing, f"card.examples of '{method}' needs options as these, which ask more: {missing}"


def test_the_readmes_numbers_are_what_its_commands_print(capsys, monkeypatch, tmp_path):
    """But for angles that are rounding."""
    monkeypatch.chdir(tmp_path)
    page, example = PAGES["README.md"], blocks("README.md", "python")[0]
    exec(compile(example, "README.md", "exec"), {})
    *summary, numbers = capsys.readouterr().out.splitlines()[:4]
    assert summary == [line[1:].removeprefix(" ") for line in example.splitlines() if line.startswith("#")]
    (claim,) = re.findall(r"\*\*(\d+) round, ([\d,]+) bytes from a site, less than (\S+) degrees\*\*", page)
    rounds, nbytes, angle = numbers.split()
    assert (rounds, nbytes) == (claim[0], claim[1].replace(",", ""))
    assert float(angle) < float(claim[2])
    assert benchmarks.main(["alternatives"]) == 0
    _, _, ours, *others = capsys.readouterr().out.splitlines()
    assert "\n".join(others) in page
    assert float(ours.split("|")[3]) < 1e-12


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python") and page != "CONTRIBUTING.md"])
def test_the_python_examples_run(page, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    forget_classes(monkeypatch)
    run("p-cov", cut(rows(60), 40, 20), n_components=2).save("model")  # as the first command does
    for example in blocks(page, "python"):
        if any(example in text for text in APPS.values()):  # which the test of examples runs
            continue
        names = {}
        exec(compile(example, page, "exec"), names)
        if "server" in names:  # a Flower app of three clients
            LocalGrid(names["client"], 3).run_app(names["server"])
        assert capsys.readouterr().out


@pytest.mark.engine
@pytest.mark.parametrize("name", docs_figures.FIGURES)
def test_a_pages_figure_is_what_its_example_draws(name):
    """Its marks and words; where they stand depends on matplotlib's version."""
    drawn, shown = docs_figures.FIGURES[name](), (ROOT / "docs" / f"{name}.svg").read_text()
    fewest, largest = (178, 50_000) if name == "scores" else (10, 80_000)
    assert drawn.count("<use ") == shown.count("<use ") > fewest
    assert re.findall(r"<text[^>]*>([^<]+)<", drawn) == re.findall(r"<text[^>]*>([^<]+)<", shown)
    assert len(shown) < largest


APPS = {path.stem: path.read_text() for path in ROOT.glob("simulations/examples/*/*.py")}


def test_apps_on_the_page_are_examples():
    """Without their first lines, which the page says in its own words."""
    page = PAGES["docs/flower-app.md"]
    apps = {block for block in blocks("docs/flower-app.md", "python") if "server = " in block}
    assert len(apps) == 2
    assert apps < {text.split('"""\n\n', 1)[1] for text in APPS.values()}
    assert not [name for name in APPS if f"`{name.replace('_', '-')}`" not in page]


@pytest.mark.parametrize("name", APPS)
def test_the_example_apps_run(name, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sklearn.datasets, "load_digits", cache(sklearn.datasets.load_digits))  # in place of 90 times
    names = {}
    exec(compile(APPS[name], name, "exec"), names)
    LocalGrid(names["client"], 3).run_app(names["server"])
    printed = "accuracy 0.967" if name == "components_then_model" else "64 features in 1797 rows"
    assert printed in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of skl2onnx
@pytest.mark.parametrize("by", ["onnx", pytest.param("r", marks=pytest.mark.nightly)])
def test_a_model_gives_the_same_scores_elsewhere(by, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(blocks("docs/results.md", "python")[1], names)
    if by == "onnx":
        reference = pytest.importorskip("onnx.reference")
        exec(blocks("docs/results.md", "python")[2], {})
        onnx = reference.ReferenceEvaluator("model.onnx")
        (scores,) = onnx.run(None, {onnx.input_names[0]: names["X"]})
    else:
        need(shutil.which("Rscript"), "r-cran-reticulate")
        (block,) = blocks("docs/results.md", "r")
        keys = {**os.environ, "RETICULATE_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
        subprocess.run(["Rscript", "-e", block], env=keys, check=True)
        scores = np.loadtxt("scores.csv", delimiter=",", skiprows=1)
    np.testing.assert_allclose(scores, PCAModel.load("model.npz").transform(names["X"]), atol=1e-12)


def faults_of_runs(page):
    """Yield commands with keys that there are not; a wrong value is refused."""
    variables = {"PWD": ".", **dict(re.findall(r'^(\w+)="([^"]*)"', "\n".join(blocks(page, "bash")), re.M))}
    for command in commands(page):
        told = re.search(r"--run-config \"((?:[^\"\\]|\\.)*)\"", command)
        if command.startswith("flwr run") and told:
            text = told[1].replace('\\"', '"')
            for _ in range(2):  # a variable may hold another
                text = re.sub(r"\$(\w+)", lambda name: variables[name[1]], text)
            given = parse_config_args([text])
            if not set(given) <= set(CONFIG):
                yield command
            config = RunConfig.parse({**CONFIG, **given})
            kind = METHODS.parse_method(config.method).strategy.card.options
            parse_options(config.method, kind, {"n-components": config.n_components})


def faults_of_keys(page):
    options = {key for method in METHODS.values() for key in method_option_keys(method.strategy.card.options)}
    known = {*CONFIG, *NodeConfig.keys(), *options, "engine"}
    for text in re.findall(r"`([^`\n]*)`", prose(page)):
        if not text.startswith(("python", "PCA(", "flwr", "flower-")):
            keys = {key.replace("_", "-") for key in re.findall(r"(?:^|\s)([a-z][\w-]*)=", text)}
            yield from [text] if keys - known else []
    for table in map(tomllib.loads, blocks(page, "toml")):
        yield from table.get("site", table).keys() - NodeConfig.keys()


def faults_of_commands(page):
    for command in itertools.chain(*(re.split(r"\s*&&\s*", line) for line in commands(page))):
        command = re.sub(r"^fedpca ", "python -m fedpca_flwr ", command)
        if not re.match(r"(\S*/)?python3? -m \w", command):
            continue
        _, _, module, *words = shlex.split(command, posix=False)
        tests = [ROOT / word for word in words if word.startswith("tests/")]
        name = " ".join(words[: 1 + (words[:1] in [[group] for group in GROUPS])]) if module == "fedpca_flwr" else ""
        is_command = name in {*COMMANDS, *GROUPS, "", "COMMAND"}
        if not (importlib.util.find_spec(module) and all(path.exists() for path in tests) and is_command):
            yield command


def test_command_lines_are_understood():
    """Those of ours in blocks, or with an option between backticks; and those of benchmarks."""
    understood = set()
    for quotes, line in ((PAGES[page], line) for page in PAGES for line in commands(page)):
        text = line.replace("$i", "0")
        ours = r"(?:python -m fedpca_flwr|(?:^|[;{] | do )\s*fedpca) ([^>#|;)]+)"
        for found in re.findall(ours, text) if f"`{line}`" not in quotes or re.match(r"fedpca \w+ -", line) else ():
            name = max((name for name in COMMANDS if f"{found} ".startswith(f"{name} ")), key=len)
            cli.load(COMMANDS[name][0]).make_context(name, shlex.split(found.removeprefix(name)))
            understood.add(name)
        for name, words in re.findall(r"simulations\.benchmarks +([a-z-]+)([^`#;)]*)", text):
            if name in benchmarks.NAMES:
                benchmarks.load(name).make_context(name, shlex.split(words))
                understood.add(name)
    assert {"compare", "cells", "launch", "site doctor", "site certificates"} <= understood
    assert len(understood & {*benchmarks.NAMES}) > 15


def faults_of_links(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", PAGES[page]):
        file, _, anchor = target.partition("#")
        path = ((ROOT / page).parent / file).resolve() if file else ROOT / page
        titles = re.findall(r"^#+ (.+)$", prose(str(path.relative_to(ROOT))), re.M) if anchor and path.exists() else ()
        anchors = {"", *(re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles)}
        exists = path.exists() and anchor in anchors
        yield from [target] if "://" not in target and not exists else []


@pytest.mark.parametrize("faults", [faults_of_runs, faults_of_keys, faults_of_commands, faults_of_links])
def test_what_pages_name_exists(faults):
    """Run-configs, keys, modules and tests that are run, and links."""
    assert [f"{page}: {fault}" for page in PAGES for fault in faults(page)] == []
