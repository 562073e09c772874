"""A draw, run on the loopback engine: a model, or an error, and what else was seen."""

import logging
import signal
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.simulations.engines import run
from tests.properties.strategies import WEIGHT, Draw

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
        run(draw.method, _arguments(draw, draw.earlier), engine="loopback", **first)
    if draw.card.loadings_source:
        loadings = [str(folder / f"{party}.npz") for party in range(len(draw.parties))]
        fit = {"n_components": options["n_components"], "min_rows": 1, "loadings": loadings}
        run(draw.card.loadings_source, draw.earlier, engine="loopback", **fit)
        options.setdefault("loadings", loadings)
    return _in_order(run(draw.method, _arguments(draw, draw.parties), engine="loopback", **options))


def has_frames(draw: Draw) -> bool:
    """Return True if the parties are data frames."""
    return bool(draw.orders or draw.times or draw.levels) and find_spec("pandas") is not None


def names_of(features: int) -> list[str]:
    """Return the names of features in data frames, in the drawn order."""
    return [f"f{number}" for number in range(features)]


def _arguments(draw: Draw, parties: Sequence[Any]) -> Sequence[Any]:
    """Return the parties, as data frames if the draw has orders of columns."""
    if not has_frames(draw):
        return parties
    from pandas import DataFrame  # here: it may be missing

    if draw.levels:
        return [DataFrame(_cells(draw, part)) for part in parties]
    frames = [DataFrame(part, columns=names_of(part.shape[1])) for part in parties]
    if draw.times:
        return [frame.assign(**{WEIGHT: times}) for frame, times in zip(frames, draw.times, strict=True)]
    return [frame[[frame.columns[j] for j in order]] for frame, order in zip(frames, draw.orders, strict=True)]


def _cells(draw: Draw, part: Any) -> dict[str, Any]:
    """Return the columns of a data frame with categories as texts, of a level that nobody declared, or empty."""
    numbers = part.shape[1] - len(draw.indicators)
    columns = dict(zip(names_of(numbers), part[:, :numbers].T, strict=True))
    place = numbers
    for name, levels in draw.levels.items():
        cells = [*levels, "of no level", None]
        columns[name] = [cells[code] for code in part[:, place : place + len(cells)].argmax(axis=1)]
        place += len(cells)
    return columns


def _in_order(model: PCAModel) -> PCAModel:
    """Return the model with features by name in the drawn order; unchanged without names."""
    names = [] if model.feature_names_in_ is None else [str(name) for name in model.feature_names_in_]
    if not names or sorted(names) != sorted(names_of(len(names))) or model.components_ is None:
        return model
    order = [names.index(name) for name in names_of(len(names))]
    return replace(
        model,
        components_=model.components_[:, order],
        mean_=None if model.mean_ is None else model.mean_[order],
        scale_=None if model.scale_ is None else model.scale_[order],
        feature_names_in_=np.array(names_of(len(names)), dtype=object),
    )


def _hangs(signum: int, frame: Any) -> None:
    raise HangError(f"no result after {LONGEST} seconds")
