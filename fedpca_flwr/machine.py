"""What this machine has."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

CONTAINER = Path("/sys/fs/cgroup/memory.max")
"""Where Linux says what a container may use."""


@cache
def memory() -> int | None:
    """Bytes of memory of this machine or container; None where nobody says (Windows)."""
    known = []
    if hasattr(os, "sysconf"):
        known.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    if CONTAINER.is_file() and (text := CONTAINER.read_text(encoding="utf-8").strip()).isdigit():
        known.append(int(text))
    return min(known, default=None)
