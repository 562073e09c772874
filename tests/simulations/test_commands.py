"""What people type, its help, and what is wrong with it."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from fedpca_flwr import cli
from tests.refusals import unnamed


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_argument_is_explained(command):
    parameters = cli.load(cli.COMMANDS[command][0]).params
    assert parameters
    assert [parameter.name for parameter in parameters if not parameter.help] == []


def test_without_arguments_the_commands_are_listed(capsys):
    assert cli.main([]) == 0
    text = capsys.readouterr().out
    assert text.isascii(), "no box in a pipe"
    for command, (_, line) in cli.COMMANDS.items():
        if " " not in command:
            assert f"  {command:<11}{line}\n" in text
    assert cli.main(["--version"]) == 0
    assert re.fullmatch(r"fedpca-flwr \d+\.\d+\.\d+\S*\n", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("nothing", ["'nothing'", "compare", "site"]),
        ("site nothing", ["'nothing'", "journal"]),
        ("site", ["keys", "status"]),
        ("compare --clients many", ["'--clients'", "'many'"]),
        ("compare --methods --clients 3", ["'--methods'"]),
        ("compare --datasets cats", ["'cats'", "'digits'"]),
        *(("compare rows.csv", ["rows.csv"]), ("cells a.h5ad", ["'--output'"]), ("methods read", ["read"])),
    ],
)
def test_a_wrong_command_line_is_one_line(words, named, capsys):
    assert cli.main(words.split()) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert [text for text in [*named, "-h' lists"] if text not in printed.err] == []


SUBSTITUTES = {"monitor": "analyses.drift(model, rows)", "rehearse": "site rehearse", "associate": "docs/genotypes.md"}


@pytest.mark.parametrize(("name", "substitute"), SUBSTITUTES.items())
def test_a_removed_command_is_answered_by_what_to_do_instead(name, substitute, capsys):
    assert cli.main([name, "some", "words"]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert not unnamed(printed.err, f"'{name}'", substitute)


@pytest.mark.parametrize(
    ("words", "code", "keys"),
    [
        ("methods", 0, {"method", "split"}),
        ("compare --methods p-cov --datasets wine --n-components 2", 0, {"max angle", "measured"}),
        ("compare --methods 'qr-pca rank=2' --datasets wine --n-components 3", 1, {"error"}),
        ("site doctor --node-config partition-id=0", 1, {"status", "text"}),
        ("trace p-cov", 0, {"phase", "answer", "request", "reply"}),
    ],
)
def test_json_has_the_rows_of_the_table(words, code, keys, capsys):
    assert cli.main([*shlex.split(words), "--json"]) == code
    assert keys <= json.loads(capsys.readouterr().out)[0].keys()


FILES_ONLY = {"launch", "download", "site init", "site node", "site certificates", "site ids-secret", "site rehearse"}
FILES_ONLY |= {"post start", "post continue", "site answer", "site forget"}


def test_commands_that_print_a_result_print_json_too():
    for name, (target, _) in cli.COMMANDS.items():
        words = {word for option in cli.load(target).params for word in option.opts}
        assert ("--json" in words) == (name not in FILES_ONLY), name


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_the_example_in_a_commands_help_is_understood(name, capsys):
    assert cli.main([*name.split(), "--help"]) == 0
    text = capsys.readouterr().out.replace("\\\n", " ")
    examples = re.findall(rf"^ {{6}}fedpca {name} ([^>\n]*)", text, re.M)
    assert examples
    for words in map(shlex.split, examples):
        cli.load(cli.COMMANDS[name][0]).make_context(name, words)


def test_quiet_commands_print_errors_only(capsys):
    """A result and its finding are silent, a value that cannot be used is not."""
    for words, code in (("methods", 0), ("site doctor --node-config partition-id=0", 1)):
        assert cli.main([*words.split(), "--quiet"]) == code
        assert capsys.readouterr() == ("", "")
    assert cli.main(["compare", "--methods", "none", "--quiet"]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("'none'")) == ("", 1)
    assert cli.main(["methods"]) == 0
    assert "p-cov" in capsys.readouterr().out


ROOT = Path(__file__).parents[2]
PAGES = [page for folder in ("docs", "simulations", "paper", "containers") for page in (ROOT / folder).rglob("*.md")]


def test_command_lines_of_the_documentation_are_understood():
    understood = set()
    for page in [*ROOT.glob("*.md"), *PAGES]:
        whole = page.read_text(encoding="utf-8")
        for block in re.findall(r"^```bash\n(.*?)^```", whole, re.M | re.S) + re.findall(r"`(fedpca \w+ -.*)`", whole):
            text = block.replace("\\\n", " ").replace("$i", "0")
            for line in re.findall(r"(?:python -m fedpca_flwr|(?:^|[;{] | do )\s*fedpca) ([^>#|;)\n]+)", text, re.M):
                name = max((name for name in cli.COMMANDS if f"{line} ".startswith(f"{name} ")), key=len)
                cli.load(cli.COMMANDS[name][0]).make_context(name, shlex.split(line.removeprefix(name)))
                understood.add(name)
    assert {"compare", "cells", "launch", "site doctor", "site certificates"} <= understood


@pytest.mark.engine
@pytest.mark.parametrize(("words", "completed"), [("site k", ["keys"]), ("compare --partitions s", ["shards"])])
def test_a_shell_completes_commands_and_values(words, completed):
    code = "import sys\nfrom fedpca_flwr import cli\nsys.argv = ['fedpca']\ncli.main()"
    count = str(words.count(" ") + 1)
    question = {"_FEDPCA_COMPLETE": "complete_bash", "COMP_WORDS": f"fedpca {words}", "COMP_CWORD": count}
    ended = subprocess.run([sys.executable, "-c", code], env={**os.environ, **question}, capture_output=True, text=True)
    assert ended.stdout.split() == completed, ended.stderr


@pytest.mark.engine
def test_a_fault_shows_no_value_of_a_variable():
    """Tracebacks of typer have a box with local variables, which hold data."""
    code = "from fedpca_flwr import cli, site\nsite.certificates = None\ncli.main(['site', 'ids-secret', 'secret\\0'])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "ValueError" in ended.stderr
    assert "locals" not in ended.stderr
    assert ended.stderr.isascii()


@pytest.mark.parametrize("command", ["cells", "genotypes"])
def test_files_of_the_same_name_are_refused(command, tmp_path, capsys):
    files = [str(tmp_path / folder / "north.bed") for folder in "ab"]
    assert cli.main([command, *files, "--output", str(tmp_path / "out")]) == 2
    assert not unnamed(capsys.readouterr().err, files[0], files[1])
