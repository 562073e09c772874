"""Watch that ends a ClientApp after the end of its SuperNode, so that the app frees journal and memory.

Flower's own watch interrupts the main thread, which may be in BLAS or SQLite, and takes a zombie as living.
"""

import os
import threading
import time
from pathlib import Path

WATCH_SECONDS = 1.0  # between two looks at the processes
GRACE_SECONDS = 10.0  # for Flower to end the process itself, which takes at most five seconds
PROCESS_FOLDER = Path("/proc")


def end_with_node() -> None:
    """Start a thread that ends this process once its SuperNode or SuperExec has ended; do nothing without Linux."""
    try:
        parent = os.getppid()
        arguments = (PROCESS_FOLDER / str(parent) / "cmdline").read_bytes().split(b"\0")
        parents = [parent, int(arguments[arguments.index(b"--parent-pid") + 1])]  # its parent is the SuperNode
    except (OSError, ValueError, IndexError):  # another system, or started by hand
        return
    threading.Thread(target=_watch, args=(parents,), daemon=True).start()


def _watch(parents: list[int]) -> None:
    """Wait until any of the processes has ended, and after ten more seconds end this process."""
    while all(map(_is_alive, parents)):
        time.sleep(WATCH_SECONDS)
    time.sleep(GRACE_SECONDS)
    os._exit(1)


def _is_alive(process: int) -> bool:
    """Check by Linux' /proc that a process exists and is not a zombie."""
    try:
        # the state follows the program's name in parentheses: Z is a zombie, X is dead
        state = (PROCESS_FOLDER / str(process) / "stat").read_bytes().rpartition(b")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state not in (b"Z", b"X")
