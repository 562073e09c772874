"""A draw, run on the loopback engine: a model, or an error, and what else was seen."""

import logging
import signal
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.simulations.engines import run
from tests.properties.strategies import Draw

LONGEST = 600
"""Seconds after which a run hangs: they take milliseconds."""


class HangError(Exception):
    """A run took longer than any may."""


@dataclass(frozen=True)
class Outcome:
    """Model or error of a run, of which one is None, and its warnings."""

    model: PCAModel | None
    error: Exception | None
    warnings: tuple[str, ...] = ()


def run_draw(draw: Draw) -> Outcome:
    """Run a draw on the loopback engine."""
    model, error = None, None
    before = signal.signal(signal.SIGALRM, _hangs)
    signal.alarm(LONGEST)
    logging.disable(logging.CRITICAL)
    with warnings.catch_warnings(record=True) as seen, tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("always")
        try:
            model = _run(draw, Path(folder))
        except Exception as problem:  # all of them are to be judged
            error = problem
        finally:
            logging.disable(logging.NOTSET)
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)
    warnings_ = tuple(f"{warning.category.__name__}: {warning.message}" for warning in seen)
    return Outcome(model, error, warnings_)


def _run(draw: Draw, folder: Path) -> PCAModel:
    options: dict[str, Any] = {"min_rows": 1, **draw.options}
    if "state" in draw.card.examples[0]:
        options.setdefault("state", str(folder / "state"))
    if options.get("append") is True:
        first = {key: value for key, value in options.items() if key != "append"}
        run(draw.method, draw.earlier, engine="loopback", **first)
    if draw.card.loadings_source:
        loadings = [str(folder / f"{party}.npz") for party in range(len(draw.parties))]
        fit = {"n_components": options["n_components"], "min_rows": 1, "loadings": loadings}
        run(draw.card.loadings_source, draw.earlier, engine="loopback", **fit)
        options.setdefault("loadings", loadings)
    return run(draw.method, draw.parties, engine="loopback", **options)


def _hangs(signum: int, frame: Any) -> None:
    raise HangError(f"no result after {LONGEST} seconds")
