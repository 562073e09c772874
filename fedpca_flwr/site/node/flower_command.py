"""Flower's `flwr` command, called by a program, and the command `launch`."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from typer import Argument

from fedpca_flwr.errors import ConfigError, FedPCAError

TIMEOUT_SECONDS = 1800.0  # after which a command counts as hanging, also on a busy machine
MAX_LOOK_SECONDS = 10.0  # between two looks at whether a run has ended, after its last line
COLOUR_CODES = re.compile(r"\x1b\[[0-9;]*m")  # Flower's log has colours even without a terminal
COMPLETED_STATUS = "finished:completed"
CONTEXT_SETTINGS = {"allow_interspersed_args": False, "ignore_unknown_options": True}  # of words for `flwr run`
FLOWER_SETTINGS = dict.fromkeys(("FLWR_DISABLE_UPDATE_CHECK", "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"), "1")
FLOWER_SETTINGS["FLWR_TELEMETRY_ENABLED"] = "0"


class FinishedRun(NamedTuple):
    """Result of a Flower run."""

    number: str  # Flower's id of the run
    status: str  # last known to Flower
    details: str  # reason of the status
    log: str


class FlowerCommand:
    """Callable that runs Flower's `flwr` command in an environment; safe to use from several threads."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = environment
        self._running: set[subprocess.Popen[str]] = set()

    def __call__(
        self, *arguments: str, on_line: Callable[[str], None] | None = None, timeout: float = TIMEOUT_SECONDS
    ) -> str:
        """Run `flwr` with the arguments, and return its output without colour codes, of which `on_line` has each line.

        The command is killed after ``timeout`` seconds. Raise FedPCAError, with output not yet received, if it fails.
        """
        lines = []
        with (
            tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors,
            subprocess.Popen(
                [program_path("flwr", self.environment), *arguments],
                env=self.environment,
                stdout=subprocess.PIPE,
                stderr=errors,
                encoding="utf-8",
                errors="replace",
            ) as child,
        ):
            watchdog = threading.Timer(timeout, child.kill)
            watchdog.start()
            self._running.add(child)
            try:
                for line in child.stdout or ():
                    lines.append(COLOUR_CODES.sub("", line))
                    if on_line:
                        on_line(lines[-1].rstrip())
            except BaseException:
                child.kill()
                raise
            finally:
                self._running.discard(child)
                watchdog.cancel()
            if child.wait():
                errors.seek(0)
                output = "" if on_line else "".join(lines)
                raise FedPCAError(f"flwr {' '.join(arguments)}: {output}{COLOUR_CODES.sub('', errors.read())}")
        return "".join(lines)

    def list_json(self, *arguments: str) -> dict[str, Any]:
        """Run a `flwr` command with ``--format json``, and return the parsed output; raise FedPCAError if it fails."""
        output = self(*arguments, "--format", "json")
        listing: dict[str, Any] = json.loads(output[output.index("{") :])
        return listing

    def run(
        self,
        app: str,
        link: Sequence[str],
        *options: str,
        on_line: Callable[[str], None] | None = None,
        timeout: float = TIMEOUT_SECONDS,
    ) -> FinishedRun:
        """Run an app's folder on a SuperLink (``link``; empty: Flower's default), wait, and return status and log.

        If the run lasts ``timeout`` seconds longer than its log, the status is not final. Raise FedPCAError if the run
        does not start.
        """
        log = self("run", app, *link, "--stream", *options, on_line=on_line, timeout=timeout)
        started_line = re.search(r"started run (\d+)", log)
        if not started_line:
            raise FedPCAError(f"flwr run: {log}")
        begin = time.monotonic()
        while True:  # the stream may end before the run does
            run = self.list_json("ls", *link, "--run-id", started_line[1])["runs"][0]
            waited = time.monotonic() - begin
            if run["status"].startswith("finished") or waited > timeout:
                return FinishedRun(started_line[1], run["status"], run["status-details"], log)
            time.sleep(min(0.3 + waited / 10, MAX_LOOK_SECONDS))

    def kill(self) -> None:
        """Kill all `flwr` processes that are running now."""
        for child in self._running.copy():
            child.kill()


def local_path() -> str:
    """Return the PATH of this process, after the folder of its Python."""
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"


def program_path(name: str, environment: Mapping[str, str]) -> str:
    """Return the path of a program in the environment's PATH; raise ConfigError if the program is not installed."""
    path = shutil.which(name, path=environment.get("PATH"))
    if path is None:
        raise ConfigError(f"the program '{name}' is not installed; install this project into your environment")
    return path


def main(app: str, options: Annotated[list[str] | None, Argument(metavar="[LINK] [OPTIONS]")] = None) -> int:
    """Run an app as `flwr run --stream` does, and say by the exit code how the run ended.

        fedpca launch . lab --run-config "method='sub-it'"

    `flwr run --stream` ends with exit code 0 also if the run has failed. This command prints the same lines, ends with
    0 only if the run was completed, and with 1 and one line if it was not.

    Parameters
    ----------
    app : str
        The app's folder, or what else `flwr run` takes.
    options : list of str, optional
        Name of the SuperLink's connection, and options of `flwr run`.

    Returns
    -------
    int

    Raises
    ------
    ConfigError
        If an option stands before the app.
    """
    if app.startswith("-"):
        raise ConfigError(f"the app is '{app}', an option: name the app's folder before all options")
    further = list(options or ())
    link = [further.pop(0)] if further and not further[0].startswith("-") else []
    try:
        flwr = FlowerCommand(os.environ)
        run = flwr.run(app, link, *further, on_line=lambda line: print(line, flush=True), timeout=threading.TIMEOUT_MAX)
    except ConfigError:
        raise
    except FedPCAError as error:
        print(str(error).rstrip(), file=sys.stderr)
        if "Failed to start local SuperLink within" in str(error):
            print("this machine was busy: run the command again, or see docs/flower-app.md", file=sys.stderr)
        return 1
    if run.status == COMPLETED_STATUS:
        return 0
    reason = "" if "no model was written" in run.log else f": {run.details}"
    print(f"run {run.number} ended as {run.status}{reason}", file=sys.stderr)
    return 1
