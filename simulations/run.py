"""Run one method on data in this process: to explore, to compare, to test."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedpca_flwr.config import NodeConfig
from fedpca_flwr.errors import ConfigError
from fedpca_flwr.model import PCAModel
from simulations.loopback import on_loopback
from simulations.ray_engine import on_ray

ENGINES = {"loopback": on_loopback, "ray": on_ray}


def run(method: str, parties: Sequence[ArrayLike], *, engine: str = "ray", **options: Any) -> PCAModel:
    """Federated PCA of the rows that ``parties`` hold.

    Parameters
    ----------
    method : str
        A name in `strategies.METHODS`, e.g. ``"p-cov"``.
    parties : sequence of array-like of shape (n_i, d)
        One party each.
    engine : {"ray", "loopback"}
        Flower's simulation (a process pool, about ten seconds to start), or this process (milliseconds). Same
        strategies, same clients, same bits.
    **options
        Keys of the run-config with underscores (``n_components=5``, ``scale=True``), and keys of a node-config
        (``min_rows=1``), which then hold for every party.

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
    >>> from simulations import run
    >>> rows = np.random.default_rng(0).standard_normal((300, 6)) * [6, 5, 4, 3, 2, 1]
    >>> model = run("p-cov", [rows[:200], rows[200:280], rows[280:]], n_components=2, engine="loopback")
    >>> model.components_.shape
    (2, 6)
    """
    if engine not in ENGINES:
        raise ConfigError(f"engine is '{engine}', expected one of: {', '.join(ENGINES)}")
    arrays = [np.asarray(party) for party in parties]
    if not arrays:
        raise ConfigError("there are no parties; give at least one array of rows")
    site_keys = set(NodeConfig.model_fields) - {"partition_id", "num_partitions", "data"}
    values = {key.replace("_", "-"): value for key, value in options.items()}
    site = {key: values.pop(key) for key in list(values) if key.replace("-", "_") in site_keys}
    with _quiet():
        return ENGINES[engine]({**values, "method": method, "clients": len(arrays)}, arrays, site)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the some twenty log lines of a start of Flower; ``model.log`` has what matters."""
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
