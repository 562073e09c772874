"""The choice of mu by the rows that parties hold out."""

from __future__ import annotations

import math

import numpy as np

from fedpca_flwr.errors import ConfigError
from fedpca_flwr.maths.arrays import Array

from .script import GRID


def require_enough_rows(k: int, rows: int) -> None:
    """Refuse more components than there are rows, while some are held out.

    Raises
    ------
    ConfigError
    """
    if k > rows:
        raise ConfigError(
            f"run-config: 'n-components' is {k}, and all parties together have {rows} rows while some are held out to "
            "choose 'mu'; ask for so many at most, or set 'mu'"
        )


def best_mu(errors: Array, total: float) -> tuple[tuple[float], int]:
    """The mu of the least error on the rows held out, and its place; of equals the one that shares most."""
    best = int(np.flatnonzero(errors <= errors.min() + 1e-9 * total)[-1])
    return ((0.0, *GRID, math.inf)[best],), best


def held_out_errors(errors: Array, held: int) -> dict[str, float]:
    """What the rows held out say of the local, the personal and the pooled components."""
    local, personal, pooled = map(float, errors / max(held, 1))
    return {
        "held_out_rows": held,
        "held_out_squared_error_per_row": personal,
        "local_held_out_squared_error_per_row": local,
        "global_held_out_squared_error_per_row": pooled,
    }
