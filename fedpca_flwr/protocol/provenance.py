"""Provenance of a model: entries of its log on the run that made it, as far as the server knows the run."""

import platform
from importlib import metadata
from typing import Any

from flwr.serverapp import Grid

from fedpca_flwr.errors import excerpt
from fedpca_flwr.state.files import utc_time

PACKAGES = ("fedpca-flwr", "flwr", "numpy", "scipy")
"""Packages whose versions the log of a model names."""


def describe_run(grid: Grid, settings: str) -> dict[str, Any]:
    """Return the entries of a model's log that the server knows at a run's start: number, app, settings, versions."""
    run = grid.run
    versions = {name: metadata.version(name) for name in PACKAGES} | {"python": platform.python_version()}
    texts = {
        "app": " ".join(filter(None, (run.fab_id, run.fab_version))),
        "app_hash": run.fab_hash,
        "account": run.account_name,
    }
    filled = {name: excerpt(text) for name, text in texts.items() if text}
    began = run.starting_at or utc_time()
    return {"run": str(run.run_id), "began": began, "settings": settings, "versions": versions, **filled}
