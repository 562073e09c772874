"""Run one method on data in this process: to explore, to compare, to test."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedpca_flwr.errors import ConfigError
from fedpca_flwr.frames import as_rows, column_labels, column_names
from fedpca_flwr.maths.blocks import Blocks, Rows
from fedpca_flwr.model import PCAModel
from fedpca_flwr.protocol.progress import flower_from
from simulations.loopback import FILES, on_loopback
from simulations.progress import shown
from strategies import method_of, run_config_of

POLICY = (
    "min-rows",
    "round-rows",
    "allowed-methods",
    "max-reply-bytes",
    "secure-only",
    "min-parties",
    "may-show",
)
"""Keys of a node-config that `run` sets for every party."""


def _on_ray(run_config: dict[str, Any], parties: Sequence[Rows], site: dict[str, Any]) -> PCAModel:
    from simulations.ray_engine import on_ray  # here, since nobody else should wait for it

    return on_ray(run_config, parties, site)


ENGINES = {"loopback": on_loopback, "ray": _on_ray}
"""Where a run's parties are: in this process, or in Flower's simulation."""


def run(
    method: str,
    parties: Sequence[ArrayLike | Blocks],
    *,
    engine: str = "loopback",
    progress: bool = True,
    **options: Any,
) -> PCAModel:
    """Federated PCA of the data that ``parties`` hold.

    Parameters
    ----------
    method : str
        A name in `strategies.METHODS`, e.g. ``"p-cov"``; it may say options too: ``"sub-it block-size=10"``.
    parties : sequence of array-like, `scipy.sparse` or `Blocks` of shape (n_i, d)
        One party each; the model keeps the column names of data frames. For the methods whose card says
        ``split="columns"``: (n, f_i), features of the same n rows.
    engine : {"loopback", "ray"}
        This process (milliseconds), or Flower's simulation, which `flwr run` uses too (a process pool, about ten
        seconds to start). Same strategies, same clients, same bits.
    progress : bool
        Show how far the run is, once it takes longer than a second, in a terminal or a notebook.
    **options
        The method's options and keys of the run, with underscores (``n_components=5``, ``scale=True``), and a site's
        policy (``min_rows``, ``allowed_methods``, ``max_reply_bytes``, ``secure_only``, ``min_parties``,
        ``may_show``), which then holds for every party. ``scores`` and ``loadings`` are lists of
        paths, one for each party's file.
        Keys that say where a simulation's rows come from or where its model goes have no effect here.

    Returns
    -------
    PCAModel

    Raises
    ------
    FedPCAError
        What the strategy or a party raised, under its own name.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca_flwr import run
    >>> rows = np.random.default_rng(0).standard_normal((300, 6)) * [6, 5, 4, 3, 2, 1]
    >>> model = run("p-cov", [rows[:200], rows[200:280], rows[280:]], n_components=2)
    >>> model.components_.shape
    (2, 6)
    """
    if not isinstance(engine, str) or engine not in ENGINES:
        raise ConfigError(f"engine is {engine!r}, expected one of: {', '.join(ENGINES)}")
    if not isinstance(method, str | None):
        raise ConfigError(f"method is {method!r}, expected a name such as 'p-cov'")
    one_table = getattr(parties, "ndim", None) == 2  # an array, a data frame or a sparse matrix
    if one_table or isinstance(parties, str | bytes | Mapping) or not isinstance(parties, Iterable):
        kind = f"{type(parties).__name__}, one table" if one_table else type(parties).__name__
        raise ConfigError(f"'parties' is of type {kind}, expected a list of arrays, one for each party")
    arrays = [as_rows(party, f"party {i}") for i, party in enumerate(parties)]
    if not arrays:
        raise ConfigError("there are no parties; give at least one array of rows")
    method = method or "(none)"
    by_rows = method_of(method).strategy.card.split == "rows"
    frames = [party for party in parties if by_rows and column_labels(party)]
    if len(set(map(column_labels, frames))) > 1:
        raise ConfigError("the parties' column names, or their order, differ")
    values = {key.replace("_", "-"): v.item() if isinstance(v, np.generic) else v for key, v in options.items()}
    site = {key: values.pop(key) for key in POLICY if key in values}
    site |= {key: _paths(key, values.pop(key), len(arrays)) for key in FILES if key in values}
    if not np.array_equal(values.setdefault("clients", len(arrays)), len(arrays)):
        raise ConfigError(f"'clients' is {values['clients']!r}, but there are {len(arrays)} parties")
    with shown(method) if progress else nullcontext(), flower_from(logging.ERROR):  # `model.log` has what matters
        model = ENGINES[engine](run_config_of({**values, "method": method}), arrays, site)
    names = column_names(frames[0]) if frames else ()
    if not names:
        return model
    moments = model.moments_ and replace(model.moments_, features=names)
    return replace(model, feature_names_in_=np.array(names, dtype=object), moments_=moments)


def _paths(key: str, paths: Sequence[str | os.PathLike[str]], parties: int) -> list[str]:
    """Absolute, since the parties' processes may be at home elsewhere."""
    a_list = isinstance(paths, Sequence) and not isinstance(paths, str | bytes)
    if not a_list or len(paths) != parties or not all(isinstance(path, str | os.PathLike) for path in paths):
        raise ConfigError(f"'{key}' is {paths!r}, expected a list of {parties} paths, one for each party")
    return [str(Path(path).expanduser().absolute()) for path in paths]
