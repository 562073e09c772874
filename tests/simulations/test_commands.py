"""What people type, its help, what is wrong with it, and what `trace` shows of a run."""

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

COMMANDS = {name: cli.load(target) for name, (target, _) in cli.COMMANDS.items()}
ONE_FAILS = "compare --methods 'qr-pca rank=2' --datasets wine --n-components 3"


def test_without_arguments_commands_are_listed_and_quiet_ones_print_errors_only(capsys):
    assert cli.main([]) == 0
    text = capsys.readouterr().out
    assert text.isascii(), "no box in a pipe"
    for command, (_, line) in cli.COMMANDS.items():
        assert " " in command or f"  {command:<11}{line}\n" in text
    assert cli.main(["--version"]) == 0
    assert re.fullmatch(r"fedpca-flwr \d+\.\d+\.\d+\S*\n", capsys.readouterr().out)
    # A result and its finding are silent; of a value that cannot be used another test shows that it is told.
    for words, code in (("methods", 0), (ONE_FAILS, 1)):
        assert (cli.main([*shlex.split(words), "--quiet"]), capsys.readouterr()) == (code, ("", ""))
    assert cli.main(["methods"]) == 0
    assert "p-cov" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "named"),
    [
        *(("nothing", ["'nothing'", "compare", "site"]), ("site nothing", ["'nothing'", "journal"])),
        *(("site", ["keys", "status"]), ("compare --clients many", ["'--clients'", "'many'"])),
        *(("compare --methods --clients 3", ["'--methods'"]), ("compare --datasets cats", ["'cats'", "'digits'"])),
        *(("compare rows.csv", ["rows.csv"]), ("cells a.h5ad", ["'--output'"]), ("methods read", ["read"])),
        # What was a command is answered by what to do instead.
        ("monitor some words", ["'monitor'", "analyses.drift(model, rows)"]),
        ("rehearse some words", ["'rehearse'", "site rehearse"]),
        ("associate some words", ["'associate'", "docs/genotypes.md"]),
        *(("trace p-cow", ["p-cow"]), ("compare --methods none --quiet", ["'none'"])),
        *((f"{name} a/n.bed b/n.bed --output o", ["a/n.bed", "b/n.bed"]) for name in ("cells", "genotypes")),
    ],
)
def test_a_wrong_command_line_is_one_line(words, named, capsys):
    assert cli.main(words.split()) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert not unnamed(printed.err, *named)
    assert ("-h' lists" in printed.err) != bool({"p-cow", "none", "a/n.bed"} & {*words.split()})


@pytest.mark.parametrize(
    ("words", "code", "keys"),
    [
        ("methods", 0, {"method", "split"}),
        ("compare --methods p-cov --datasets wine --n-components 2", 0, {"max angle", "measured"}),
        (ONE_FAILS, 1, {"error"}),
        pytest.param("site doctor --node-config partition-id=0", 1, {"status", "text"}, marks=pytest.mark.nightly),
        ("trace p-cov", 0, {"phase", "answer", "request", "reply"}),
    ],
)
def test_json_has_the_rows_of_the_table(words, code, keys, capsys):
    assert cli.main([*shlex.split(words), "--json"]) == code
    assert keys <= json.loads(capsys.readouterr().out)[0].keys()


FILES_ONLY = {"launch", "download", "site init", "site node", "site certificates", "site ids-secret", "site rehearse"}
FILES_ONLY |= {"post start", "post continue", "site answer", "site forget"}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_explains_its_arguments_and_its_example_is_understood(name, capsys):
    parameters = COMMANDS[name].params
    assert [parameter.name for parameter in parameters if not parameter.help] == []
    assert ("--json" in {word for option in parameters for word in option.opts}) == (name not in FILES_ONLY)
    assert cli.main([*name.split(), "--help"]) == 0
    examples = re.findall(rf"^ {{6}}fedpca {name} ([^>\n]*)", capsys.readouterr().out.replace("\\\n", " "), re.M)
    assert examples
    for words in map(shlex.split, examples):
        COMMANDS[name].make_context(name, words)


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


ARRAY = re.compile(r"^  (request|reply) +(\w+) +(\(.*?\)) +(\w+) +([\d,]+) bytes$", re.M)


@pytest.mark.parametrize("method", ["p-cov", "sub-it block-size=3", "vfedpca", "qr-pca"])
def test_every_question_names_the_function_that_answers(capsys, method):
    assert cli.main(["trace", method]) == 0
    shown = capsys.readouterr().out
    answers = re.findall(r"^  answered by   (\S+) \((\S+):(\d+)\)$", shown, re.M)
    assert len(answers) == shown.count("\nround ") >= 2
    for name, path, line in answers:
        code = Path(__file__).parents[2].joinpath(path).read_text().splitlines()[int(line) - 1]
        assert name.split(".")[-1] in code or "lambda" in code


def test_sizes_are_those_of_the_data_or_of_masked_words(capsys):
    assert cli.main(["trace", "p-cov", "--features", "7", "--n-components", "3", "--rows", "60"]) == 0
    shown = capsys.readouterr().out
    assert re.match(r"p-cov: 3 parties, 60 x 7 drawn values; as party .+ of 3 meets it\n\nround 1: ", shown)
    arrays = {(way, name): (shape, size) for way, name, shape, _, size in ARRAY.findall(shown)}
    assert (arrays["reply", "scatter"], arrays["request", "components"]) == (("(28,)", "224"), ("(3, 7)", "168"))
    assert cli.main(["trace", "p-cov", "--secure-aggregation"]) == 0
    shown = capsys.readouterr().out
    assert {name for way, name, *_ in ARRAY.findall(shown) if way == "reply"} == {"public", "signature", "masked"}
    assert "answered by   the transport" in shown
