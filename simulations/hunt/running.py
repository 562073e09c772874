"""A draw, run on the loopback engine: a model, or an error, and what else was seen."""

from __future__ import annotations

import logging
import signal
import tempfile
import time
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpca_flwr.model import PCAModel

from ..engines import run
from .draw import Draw

LONGEST = 600
"""Seconds after which a run hangs: they take milliseconds."""


class HangError(Exception):
    """A run took longer than any may."""


@dataclass(frozen=True)
class Outcome:
    """Either ``model`` or ``error`` is None; ``where`` is the traceback of an error."""

    model: PCAModel | None
    error: Exception | None
    warned: tuple[str, ...]
    seconds: float
    where: str = ""


def run_draw(draw: Draw) -> Outcome:
    model, error, where, since = None, None, "", time.perf_counter()
    before = signal.signal(signal.SIGALRM, _hangs)
    signal.alarm(LONGEST)
    logging.disable(logging.CRITICAL)
    with warnings.catch_warnings(record=True) as seen, tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("always")
        try:
            model = _run(draw, Path(folder))
        except Exception as caught:  # a hunt wants to see all of them
            error, where = caught, traceback.format_exc()
        finally:
            logging.disable(logging.NOTSET)
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)
    warned = tuple(f"{warning.category.__name__}: {warning.message}" for warning in seen)
    return Outcome(model, error, warned, time.perf_counter() - since, where)


def _run(draw: Draw, folder: Path) -> PCAModel:
    options: dict[str, Any] = {"min_rows": 1, **draw.options}
    if draw.method == "streaming":
        options.setdefault("state", str(folder / "state"))
        if draw.earlier:
            first = {key: value for key, value in options.items() if key != "append"}
            run("streaming", draw.earlier, engine="loopback", **first)
    if draw.method == "vertical-scores":
        loadings = [str(folder / f"{party}.npz") for party in range(len(draw.parties))]
        fit = {"n_components": options["n_components"], "min_rows": 1, "loadings": loadings}
        run("vertical", draw.earlier, engine="loopback", **fit)
        options.setdefault("loadings", loadings)
    return run(draw.method, draw.parties, engine="loopback", **options)


def _hangs(signum: int, frame: Any) -> None:
    raise HangError(f"no result after {LONGEST} seconds")
