"""Provenance of a model: the run that made it, and a digest of each question and reply for the log.

A site's journal has the same digests, so that `fedpca_flwr.site.comparison` can lay both side by side.
"""

import hashlib
import platform
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import numpy as np
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedpca_flwr.state.store import utc_time

PACKAGES = ("fedpca-flwr", "flwr", "numpy", "scipy")
"""Packages whose versions the log of a model names."""


def content_digest(phase: str, arrays: Sequence[NDArray[Any]]) -> str:
    """Compute the SHA-256 of a question or of a reply, equal where it was sent and where it has arrived.

    Parameters
    ----------
    phase : str
        Name of the question.
    arrays : sequence of ndarray
        Fields of the question or of the reply, in the order in which they are sent.

    Returns
    -------
    str
        64 hexadecimal digits.
    """
    digest = hashlib.sha256(phase.encode())
    for array in arrays:
        digest.update(f"|{array.dtype.str}{array.shape}|".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def describe_run(grid: Grid, settings: str) -> dict[str, Any]:
    """Return what the server can say of a run at its start, for the model's log.

    Parameters
    ----------
    grid : Grid
        Flower's grid of the run.
    settings : str
        Digest of the settings that server and parties share.

    Returns
    -------
    dict
        ``run`` (Flower's number), ``began`` (time), ``settings``, ``versions`` by package; where Flower tells it
        ``app`` (name and version), ``app_hash``, and ``account`` (who started the run).
    """
    run = grid.run
    versions = {name: metadata.version(name) for name in PACKAGES} | {"python": platform.python_version()}
    texts = {
        "app": " ".join(filter(None, (run.fab_id, run.fab_version))),
        "app_hash": run.fab_hash,
        "account": run.account_name,
    }
    filled = {name: text for name, text in texts.items() if text}
    return {"run": str(run.run_id), "began": utc_time(), "settings": settings, "versions": versions, **filled}
