"""A ClientApp that outlives its SuperNode is ended: nobody takes its answer, and it would hold the journal and memory.

Flower's own watch interrupts the main thread, which notices after its present call into BLAS or SQLite, and takes a
SuperNode that was killed but not yet fetched by its parent for a living one. This watch reads Linux' list of processes
and ends the whole process. Elsewhere Flower's watch stands alone.
"""

import os
import threading
import time
from pathlib import Path

LOOKS = 1.0  # seconds from look to look
GRACE = 10.0  # seconds in which Flower may end the process itself, which needs at most five
PROCESSES = Path("/proc")


def end_with_node() -> None:
    """End this process once the SuperNode to which it belongs, or the SuperExec between them, has ended."""
    elders = _elders()
    if elders:
        threading.Thread(target=_watch, args=(elders,), daemon=True).start()


def _elders() -> list[int]:
    """The process that has started this one, and the one that its command line names as its own parent."""
    try:
        parent = os.getppid()
        words = (PROCESSES / str(parent) / "cmdline").read_bytes().split(b"\0")
        return [parent, int(words[words.index(b"--parent-pid") + 1])]
    except (OSError, ValueError, IndexError):  # another system, or started by hand
        return []


def _watch(elders: list[int]) -> None:
    while all(map(_lives, elders)):
        time.sleep(LOOKS)
    time.sleep(GRACE)
    os._exit(1)


def _lives(process: int) -> bool:
    """Whether there is such a process, and it has not ended."""
    try:
        state = (PROCESSES / str(process) / "stat").read_bytes().rpartition(b")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state not in (b"Z", b"X")
