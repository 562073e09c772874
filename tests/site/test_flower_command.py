"""`launch`: what a run's end means for its exit code."""

import sys

import pytest

from fedpca_flwr.cli import main

PROGRAM = """#!{python}
import json, sys
arguments = sys.argv[1:]
if arguments[0] == "run":
    print("INFO : started run 7", *arguments, {printed!r}, sep="\\n")
    sys.exit({code!r})
status = {status!r} if arguments == ["ls", *{link!r}, "--run-id", "7", "--format", "json"] else "of another run"
print(json.dumps({{"runs": [{{"status": status, "status-details": "why it failed"}}]}}))
"""


@pytest.fixture
def launch(tmp_path, monkeypatch, capsys):
    """Run the command with a `flwr` of this test; its exit code, what it prints, and what of it is an error."""
    monkeypatch.setenv("PATH", str(tmp_path))

    def launched(*arguments, status="finished:completed", printed="", code=0, link=("lab",)):
        told = {"printed": printed, "code": code, "link": list(link), "status": status}
        (tmp_path / "flwr").write_text(PROGRAM.format(python=sys.executable, **told))
        (tmp_path / "flwr").chmod(0o755)
        return (main(["launch", *arguments]), *capsys.readouterr())

    return launched


@pytest.mark.parametrize("link", [["lab"], []])
def test_a_run_that_is_completed_ends_with_0_and_all_its_lines(launch, link):
    code, printed, errors = launch(".", *link, "--run-config", "seed=1", link=link)
    assert (code, errors) == (0, "")
    assert printed.split("\n")[:-2] == ["INFO : started run 7", "run", ".", *link, "--stream", "--run-config", "seed=1"]


@pytest.mark.parametrize(
    ("printed", "line"),
    [
        ("", "run 7 ended as finished:failed: why it failed"),
        ("The run failed, and no model was written. ConfigError", "run 7 ended as finished:failed"),
    ],
)
def test_a_run_that_fails_ends_with_1_and_one_line(launch, printed, line):
    """Which repeats no error that the stream has told."""
    code, _, errors = launch(".", "lab", status="finished:failed", printed=printed)
    assert (code, errors) == (1, f"{line}\n")


def test_a_run_that_flower_does_not_start_ends_with_1_and_its_reason_once(launch):
    code, printed, errors = launch(".", "lab", printed="said", code="the reason")
    assert (code, printed.count("said"), errors.count("the reason"), errors.count("said")) == (1, 1, 1, 0)
