"""Flower's command, called by a program: what it prints and when, and what a run's end means for `launch`."""

import io
import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from unittest.mock import Mock

import pytest

from fedpca_flwr.cli import main
from fedpca_flwr.errors import FedPCAError
from fedpca_flwr.site.node import flower_command
from fedpca_flwr.site.node.flower_command import FlowerCommand
from tests.harness import Clock
from tests.refusals import refused

WAITS = """
import pathlib, time
print("\\x1b[92mINFO \\x1b[0m: first")
until = time.monotonic() + 10
while not pathlib.Path("{heard}").exists() and time.monotonic() < until:
    time.sleep(0.05)
print("second" if pathlib.Path("{heard}").exists() else "nobody heard the first line")
"""
RUNS = """
import json, pathlib, sys
arguments = sys.argv[1:]
if arguments[0] == "run":
    print("INFO : started run 7", *arguments, {printed!r}, sep="\\n")
    sys.exit({code!r})
status = {status!r} if arguments == ["ls", *{link!r}, "--run-id", "7", "--format", "json"] else "of another run"
looked = pathlib.Path(sys.argv[0] + ".looked")
if not looked.exists():
    looked.touch()
    status = "running"
print(json.dumps({{"runs": [{{"status": status, "status-details": "why it failed"}}]}}))
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))

    def written(text):
        (tmp_path / "flwr").write_text(f"#!{sys.executable}\n{text}")
        (tmp_path / "flwr").chmod(0o755)
        return FlowerCommand({"PATH": str(tmp_path), "PYTHONUNBUFFERED": "1"})

    return written


def test_a_line_is_heard_when_it_is_written_and_a_command_ends_with_its_listener_or_its_time(program, tmp_path):
    signal_file, heard = tmp_path / "heard", []
    flwr = program(WAITS.format(heard=signal_file))
    assert flwr("run", on_line=lambda line: heard.append(line) or signal_file.touch()) == "INFO : first\nsecond\n"
    assert heard == ["INFO : first", "second"]  # without colours
    with refused(FedPCAError, "half", "why"):
        program("import sys\nprint('half')\nsys.exit('why')\n")("run", ".")
    text = f"import time\nprint('first')\ntime.sleep(8)\nopen({str(tmp_path / 'ended')!r}, 'w')\n"
    with pytest.raises(ZeroDivisionError):
        program(text)("run", on_line=lambda line: 1 // 0)
    assert not (tmp_path / "ended").exists()
    hangs = "import time\nprint('first')\ntime.sleep(60)\n"
    with pytest.raises(FedPCAError):
        program(hangs)("run", timeout=0.3)
    assert program("print('done')")("run") == "done\n"
    timers = [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]
    for timer in timers:
        timer.join(20)
    assert not any(timer.is_alive() for timer in timers)
    flwr, started = program(hangs), threading.Barrier(3, timeout=60)
    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(flwr, "run", on_line=lambda _: started.wait()) for _ in range(2)]
        started.wait()
        flwr.kill()
        assert [type(call.exception()) for call in calls] == [FedPCAError] * 2


@pytest.mark.parametrize("seconds", [1.0, 2000.0])
def test_looks_at_a_run_become_rarer_and_end_with_its_time(seconds, monkeypatch):
    clock, times = Clock(), []

    class Command(FlowerCommand):
        def __call__(self, *arguments, timeout=0.0, **_):
            times.append(timeout if arguments[0] == "run" else clock.now)
            return "started run 7" + json.dumps({"runs": [{"status": "running", "status-details": ""}]})

    monkeypatch.setattr(flower_command, "time", clock)
    assert Command({}).run(".", [], timeout=seconds).status == "running"
    limit, *looks = times
    pauses = [after - before for before, after in pairwise(looks)]
    assert limit == seconds < looks[-1] < seconds + 11
    assert pauses[0] == pytest.approx(0.3)
    assert all(later > earlier - 1e-9 for earlier, later in pairwise([*pauses, 10.0]))


def test_a_launch_ends_with_0_and_all_lines_of_its_run_or_with_1_and_one_line(program, capsys, monkeypatch):
    """The line does not repeat an error that the stream has shown."""

    def launch(*arguments, status="finished:completed", printed="", code=0, link=("lab",)):
        program(RUNS.format(printed=printed, code=code, link=list(link), status=status))
        return (main(["launch", *arguments]), *capsys.readouterr())

    monkeypatch.setattr(flower_command, "time", Clock())
    for link in (["lab"], []):
        code, printed, errors = launch(".", *link, "--run-config", "seed=1", link=link)
        assert (code, errors) == (0, "")
        run = ["run", ".", *link, "--stream", "--run-config", "seed=1"]
        assert printed.split("\n")[:-2] == ["INFO : started run 7", *run]
    shown = "The run failed, and no model was written. ConfigError"
    for printed, line in (("", "finished:failed: why it failed"), (shown, "finished:failed")):
        code, _, errors = launch(".", "lab", status="finished:failed", printed=printed)
        assert (code, errors) == (1, f"run 7 ended as {line}\n")
    code, printed, errors = launch(".", "lab", printed="said", code="the reason")  # it does not start
    assert (code, printed.count("said"), errors.count("the reason"), errors.count("said")) == (1, 1, 1, 0)
    for words, advised in (("within 15s", True), (": exited with 1", False)):  # nor does its SuperLink
        program(f"import sys\nsys.exit('Error: Failed to start local SuperLink {words}')")
        assert main(["launch", "."]) == 1
        assert ("docs/flower-app.md" in capsys.readouterr().err) == advised
    for arguments, code in ((["--help"], 0), ([], 2), (["--run-config", "seed=1"], 2)):
        assert main(["launch", *arguments]) == code
        printed = capsys.readouterr()
        assert ("fedpca launch . lab" in printed.out) if code == 0 else (printed.err.count("\n") == 1)
    run = Mock(return_value=flower_command.FinishedRun("7", "finished:stopped", "by a person", ""))
    monkeypatch.setattr(FlowerCommand, "run", run)
    assert main(["launch", "."]) == 1
    assert [call.kwargs["timeout"] for call in run.call_args_list] == [threading.TIMEOUT_MAX]  # it may go on for days
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(heard := io.BytesIO(), encoding="utf-8"))
    run.call_args.kwargs["on_line"]("a line")
    assert heard.getvalue().split() == [b"a", b"line"]  # before the run ends
