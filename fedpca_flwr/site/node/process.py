"""The process of a site, `fedpca site node`: it starts the SuperNode, and forks for each message.

Flower starts a program for each message, and loads the code that the run has brought. Here the site's own installation
answers: what a run brings is neither unpacked nor imported, and another app or version is refused. The process has one
thread, and never reads the rows: a forked process hands them back (`fedpca_flwr.site.held_rows`). This file alone knows
Flower's inside (flwr 1.41 and 1.42).
"""

import ctypes
import hashlib
import math
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

from flwr.app import Context
from flwr.clientapp import ClientApp
from flwr.common.serde import context_from_proto
from flwr.supercore.constant import TaskType
from flwr.supercore.superexec import run_superexec
from flwr.supercore.superexec.executor import ExecutionSpec, LaunchResult
from flwr.supernode.runtime import run_clientapp

from fedpca_flwr.config.site_file import SiteFile, read_site_file, toml_lines
from fedpca_flwr.errors import ConfigError, FedPCAError, excerpt, value_text
from fedpca_flwr.protocol.site_log import site_logger
from fedpca_flwr.site import held_rows
from fedpca_flwr.site.custodian import AppName
from fedpca_flwr.site.node.deployment import HOST, free_port
from fedpca_flwr.site.node.flower_command import FLOWER_SETTINGS, local_path, program_path
from fedpca_flwr.site.node.metrics import write_metrics
from fedpca_flwr.site.rules.audit import DEFAULT_DEADLINE
from fedpca_flwr.site.watch import show_log
from fedpca_flwr.state.files import write_new

APP_NAME = "fedpca-flwr"
VERSION = metadata.version(APP_NAME)
START_SECONDS = 120.0  # for the SuperNode to listen, on a busy machine
STOP_SECONDS = 10.0
REST_SECONDS, REST_PAUSE_SECONDS = 60.0, 2.5  # without a message until this process rests, and between its looks then
FIRST_CHECK_SECONDS, LAST_CHECK_SECONDS = 60.0, 2 * 86400.0  # after a message, for the numbers of a silent run
DEATH_SIGNAL_OPTION = 1  # PR_SET_PDEATHSIG of Linux' prctl


def run_site(config: Path, app_for: Callable[[ConfigError | None], ClientApp]) -> None:
    """Run a site in its file's folder until it is stopped, or raise SystemExit when its SuperNode ends."""
    site = read_site_file(config)
    os.chdir(config.parent)
    for key, value in {**FLOWER_SETTINGS, "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5"}.items():
        os.environ.setdefault(key, value)
    show_log()
    with TemporaryDirectory(prefix="fedpca-site-") as folder:
        SiteProcess(site, Path(folder), app_for).serve()


class SiteProcess:
    """The site's SuperNode and the processes of its messages: an executor of Flower's SuperExec that forks."""

    def __init__(self, site: SiteFile, folder: Path, app_for: Callable[[ConfigError | None], ClientApp]) -> None:
        self.site = site
        self.app_for = app_for
        self.folder = folder
        self.rows = held_rows.resident = held_rows.RowStore()
        self.archive_hash = ""
        self.messages: set[int] = set()
        self.message_time = time.monotonic()  # of the last message
        self.check_seconds = math.inf  # from it to the next look at a silent run
        self.supernode: subprocess.Popen[bytes] | None = None

    def serve(self) -> None:
        """Start the SuperNode, and answer messages until it ends (SystemExit); FedPCAError if it does not listen."""
        secret, connection = secrets.token_bytes(32), self.site.supernode
        write_new(self.folder / "secret", secret)
        write_new(self.folder / "node.toml", toml_lines(self.site.node_config).encode())
        port = connection.port or free_port()
        command = [program_path("flower-supernode", {"PATH": local_path()}), "--superlink", connection.superlink]
        command += ["--isolation", "process", "--superexec-auth-secret-file", str(self.folder / "secret")]
        command += ["--host", HOST, "--port", str(port), "--node-config", str(self.folder / "node.toml")]
        certificates = connection.root_certificates
        command += ["--root-certificates", certificates] if certificates else ["--insecure"]
        command += ["--auth-supernode-private-key", connection.node_key] if connection.node_key else []
        self._fork(self.examine_link)
        self.supernode = subprocess.Popen(command, preexec_fn=_end_with_parent(signal.SIGTERM))
        self._wait_for(port)
        vars(run_clientapp)["install_from_fab"] = self.inspect_archive  # and unpack nothing
        vars(run_clientapp)["context_from_proto"] = limit_wait
        vars(run_clientapp)["get_load_client_app_fn"] = lambda **options: self.load_app
        vars(run_superexec)["get_executor"] = lambda *args, **options: self
        if len(list(Path("/proc/self/task").iterdir())) > 1:
            raise FedPCAError("this process has several threads, and must have one: it forks for each message")
        name = self.site.node.name or f"partition {self.site.node.partition_id}"
        site_logger.info("%s answers with fedpca-flwr %s", name, VERSION)
        run_superexec.run_superexec(f"{HOST}:{port}", insecure=True, superexec_auth_secret=secret)

    def examine_link(self) -> None:
        """Log what is wrong with the SuperLink's certificate, clock or address, about which a SuperNode is silent."""
        from fedpca_flwr.site.node.doctor import SiteSetup, check_superlink  # for a process of its own

        try:
            check_superlink(SiteSetup(self.site.node_config, "", *self.site.supernode.connection))
        except FedPCAError as error:
            site_logger.error("%s", error)

    def inspect_archive(self, content: bytes, **options: Any) -> None:
        """Store the SHA-256 of the archive that a run has brought (in place of Flower's installation of it)."""
        self.archive_hash = hashlib.sha256(content).hexdigest()

    def load_app(self, identifier: str, version: str, digest: str) -> ClientApp:
        """Return the installed app for a message, or one that refuses the app of the run by its archive's hash."""
        requested = f"{excerpt(identifier)} {excerpt(version)} {self.archive_hash[:8]}"
        signal.alarm(0)  # the message is here
        AppName.text = f"app of this site, {VERSION}, for {requested}"
        try:
            require_compatible_app(self.site, identifier, version, self.archive_hash)
        except ConfigError as error:
            return self.app_for(error)
        return self.app_for(None)

    # The executor of Flower's SuperExec

    def get_eligible_capacity(
        self, supported_task_types: set[TaskType], **connection: Any
    ) -> tuple[set[TaskType], set[str]]:
        """Return the kinds of task that this process takes, messages to a ClientApp, and no archives of agents."""
        return supported_task_types & {TaskType.CLIENT_APP}, set()

    def wait_for_capacity(self, task_type: TaskType | None = None, **connection: Any) -> None:
        """Return immediately, because a process can be forked at any time."""

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        """Fork a process that answers a message, after taking over rows; return that the message is accepted."""
        self.rows.receive()
        self._fork(lambda: run_clientapp.run_clientapp(spec.runtime_api_address, spec.token, insecure=True))
        self.message_time, self.check_seconds = time.monotonic(), FIRST_CHECK_SECONDS
        return LaunchResult.accepted()

    def reconcile(self) -> None:
        """Collect ended processes and the rows that they have read; raise SystemExit once the SuperNode has ended."""
        for process in list(self.messages):
            if os.waitpid(process, os.WNOHANG)[0]:
                self.messages.discard(process)
        self.rows.receive()
        silence = time.monotonic() - self.message_time
        if silence > REST_SECONDS and not self.messages:
            time.sleep(REST_PAUSE_SECONDS)
        if self.site.node.metrics and self.check_seconds < min(silence, LAST_CHECK_SECONDS):
            self.check_seconds *= 2
            self._fork(lambda: write_metrics(self.site.node_config))
        if self.supernode and (code := self.supernode.poll()) is not None:
            raise SystemExit(code)

    def close(self) -> None:
        """Stop the SuperNode and all processes of messages."""
        for process in self.messages:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        if self.supernode:
            self.supernode.terminate()
            try:
                self.supernode.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.supernode.kill()

    # Inside

    def _fork(self, work: Callable[[], None]) -> None:
        """Fork a process that works and ends."""
        process = os.fork()
        if process == 0:
            _answer(work)
        self.messages.add(process)

    def _wait_for(self, port: int) -> None:
        """Wait until the SuperNode listens; SystemExit if it ends, else stop it after a time and raise FedPCAError."""
        deadline = time.monotonic() + START_SECONDS
        while self.supernode and time.monotonic() < deadline:
            if (code := self.supernode.poll()) is not None:
                raise SystemExit(code)
            with suppress(OSError), socket.create_connection((HOST, port), timeout=1):
                return
            time.sleep(0.1)
        self.close()
        raise FedPCAError(f"the SuperNode did not listen on port {port} within {START_SECONDS:.0f} s")


def require_compatible_app(site: SiteFile, identifier: str, version: str, digest: str) -> None:
    """Raise ConfigError, which names all that differs, for an app of another name, minor version or pinned hash."""
    faults = []
    if identifier.rpartition("/")[2] != APP_NAME:
        faults.append(f"its name is {value_text(identifier)}, expected '{APP_NAME}'")
    if version.split(".")[:2] != VERSION.split(".")[:2]:
        faults.append(f"its version is {value_text(version)}, and this site has {VERSION}")
    if site.supernode.app_hash and not digest.startswith(site.supernode.app_hash):
        faults.append(f"its hash is {digest[:16]}..., and this site answers {site.supernode.app_hash[:16]}... only")
    if faults:
        raise ConfigError(f"this site does not answer the app of this run: {'; '.join(faults)}")


def limit_wait(message: Any) -> Context:
    """Return a run's context, as Flower's function does; let this process end if its message is not there in time."""
    context = context_from_proto(message)
    deadline = context.run_config.get("round-deadline")
    if not isinstance(deadline, int | float) or not 1 <= deadline <= LAST_CHECK_SECONDS:
        deadline = DEFAULT_DEADLINE
    signal.alarm(int(deadline))
    return context


def _answer(answer_message: Callable[[], None]) -> NoReturn:
    """Answer a message in the process that was forked for it, and end that process: with 1 after an error."""
    code = 1
    try:
        _end_with_parent(signal.SIGKILL)()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        answer_message()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _end_with_parent(sent: signal.Signals) -> Callable[[], None]:
    """Return a function by which a new process is sent a signal when its parent has ended."""
    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(DEATH_SIGNAL_OPTION, int(sent), 0, 0, 0)
