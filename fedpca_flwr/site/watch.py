"""Watchers of a site: its log, its journal's lines in the system's log, and a command at a refusal."""

import logging
import os
import shlex
import socket
import subprocess
from pathlib import Path

from typing_extensions import override

from fedpca_flwr.errors import excerpt
from fedpca_flwr.protocol.site_log import journal_logger, site_logger

SYSTEM_LOG = Path("/dev/log")
SYSTEM_LOG_SECONDS = 1.0
PRIORITY = 14  # of a line of a user's program: facility 1, severity 6
COMMAND_SECONDS = 30.0  # after which a command is killed, because a message waits for it


def show_log() -> None:
    """Print the site's log with times to stderr."""
    if not site_logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        site_logger.addHandler(handler)
        site_logger.setLevel(logging.INFO)


class SystemLog(logging.Handler):
    """Handler that sends each line to the system's log; a log that takes none costs a second, and no answer."""

    @override
    def emit(self, record: logging.LogRecord) -> None:
        """Send a line, or write to the site's own log why the line was not sent."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
                connection.settimeout(SYSTEM_LOG_SECONDS)
                line = f"<{PRIORITY}>fedpca[{os.getpid()}]: {record.getMessage()}"
                connection.sendto(line.encode(), str(SYSTEM_LOG))
        except (OSError, AttributeError) as error:  # AttributeError: there are no such sockets on this system
            text = "a line of the journal could not be sent to the system's log %s (%s)"
            site_logger.warning(text, SYSTEM_LOG, error)


def send_journal_to_system_log() -> None:
    """Let each line of the site's journal go to the system's log, too."""
    if not journal_logger.handlers:
        journal_logger.addHandler(SystemLog())
        journal_logger.setLevel(logging.INFO)
        journal_logger.propagate = False


def run_on_refusal(command: str, run: str, kind: str) -> None:
    """Run a site's command (empty: none), without a shell, after a refusal; a fault is logged, and costs no answer."""
    if not command:
        return
    environment = {**os.environ, "FEDPCA_RUN": excerpt(run), "FEDPCA_REFUSAL": excerpt(kind)}
    try:
        subprocess.run(
            shlex.split(command), env=environment, timeout=COMMAND_SECONDS, check=True, stdin=subprocess.DEVNULL
        )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        site_logger.warning("run %s: the command of 'on-refusal' failed (%s)", run, type(error).__name__)
