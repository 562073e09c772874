"""Files that appear whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def written_whole(target: Path) -> Iterator[BinaryIO]:
    """A stream to write ``target`` through: a temporary file beside it, renamed when all went well, else removed."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with open(partial, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
