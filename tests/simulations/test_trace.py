"""The command `trace` shows the questions of a run, what travels, and the code that answers."""

import re
from pathlib import Path

import pytest

from fedpca_flwr import cli

ROOT = Path(__file__).parents[2]
ANSWER = re.compile(r"^  answered by   (\S+) \((\S+):(\d+)\)$", re.M)
ARRAY = re.compile(r"^  (request|reply) +(\w+) +(\(.*?\)) +(\w+) +([\d,]+) bytes$", re.M)


@pytest.mark.parametrize("method", ["p-cov", "sub-it block-size=3", "vfedpca", "qr-pca"])
def test_every_question_names_the_function_that_answers(capsys, method):
    assert cli.main(["trace", method]) == 0
    shown = capsys.readouterr().out
    answers = ANSWER.findall(shown)
    assert len(answers) == shown.count("\nround ") >= 2
    for name, path, line in answers:
        code = (ROOT / path).read_text().splitlines()[int(line) - 1]
        assert name.split(".")[-1] in code or "lambda" in code


def test_sizes_are_those_of_the_data_or_of_masked_words(capsys):
    assert cli.main(["trace", "p-cov", "--features", "7", "--n-components", "3", "--rows", "60"]) == 0
    shown = capsys.readouterr().out
    assert re.match(r"p-cov: 3 parties, 60 x 7 drawn values; as party .+ of 3 meets it\n\nround 1: ", shown)
    arrays = {(way, name): (shape, size) for way, name, shape, _, size in ARRAY.findall(shown)}
    assert arrays["reply", "scatter"] == ("(28,)", "224")
    assert arrays["request", "components"] == ("(3, 7)", "168")
    assert cli.main(["trace", "p-cov", "--secure-aggregation"]) == 0
    shown = capsys.readouterr().out
    replies = {name for way, name, *_ in ARRAY.findall(shown) if way == "reply"}
    assert replies == {"public", "signature", "masked"}
    assert "answered by   the transport" in shown


def test_a_method_that_there_is_not_is_one_line(capsys):
    assert cli.main(["trace", "p-cow"]) == 2
    captured = capsys.readouterr()
    assert "p-cow" in captured.err
    assert captured.err.count("\n") == 1
