"""EM with a model of few factors, for wide rows: the server's half, in the unit of the data at the end."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np

from fedpca_flwr.errors import ConfigError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.eigen import Eigenpairs, fix_signs
from fedpca_flwr.maths.factor_em import FactorEM
from fedpca_flwr.maths.krylov import random_block
from fedpca_flwr.maths.moments import two_sum
from fedpca_flwr.maths.subspace import principal_angles
from fedpca_flwr.protocol.phase import Ask
from fedpca_flwr.solution import Solution, check_components, require_variance
from fedpca_flwr.statistics.checked_sums import sums_of_rows
from fedpca_flwr.statistics.incomplete import ObservedValues
from fedpca_flwr.statistics.incomplete_factors import expected_products, unit_of
from fedpca_flwr.statistics.rows_strategy import RowsStrategy

from .options import MORE, EMOptions


def by_factors(
    run: RowsStrategy, observed: ObservedValues, options: EMOptions
) -> Generator[Ask, Any, tuple[Solution, Array, Array, float]]:
    """The components; the model's loadings and noise (q + 1, d); a bound on what fixed point rounded off each
    feature's variance, times rows (d,); and the larger of the last two steps' turns, in degrees."""
    k, spread = int(options.n_components), observed.spread
    require_variance(observed.rows * spread**2, observed.rows, observed.centre)
    q = _factors(k, options.factors, observed.rows, spread.size)
    unit = unit_of(spread, scale=options.scale)
    found = FactorEM(
        observed.rows, observed.lost / unit, random_block(spread.size, q, run.config.seed), prior=options.prior
    )
    turns: list[float] = []
    while True:
        model = found.model
        sums, missed = yield from expected_products(run, observed, model)
        with sums_of_rows():
            found.add(sums)
        turns.append(float(principal_angles(model.basis[:, :k], found.model.basis[:, :k]).max()))
        ahead = max(turns[-2:]) if len(turns) > 2 else 90.0
        if ahead <= options.tolerance or len(turns) == options.max_rounds:
            break
    scale = np.where(observed.constant & options.scale, 1.0, unit)
    foretold = np.where(observed.constant, 0.0, unit)
    loadings = np.vstack([(model.loadings * foretold[:, None]).T, model.noise * scale**2])
    mean, _ = two_sum(observed.centre, np.where(observed.constant, observed.lost, unit * found.mean))
    return _solution(found, mean, scale, k, scaled=options.scale), loadings, missed * unit**2, ahead


def _factors(k: int, wanted: int, rows: int, features: int) -> int:
    """How many factors, of which one less than rows and features must be left for noise."""
    check_components(k, rows, features)
    most = min(rows, features) - 1
    if max(k, wanted) > most:
        key = "factors" if wanted > k else "n-components"
        raise ConfigError(
            f"run-config: '{key}' is {max(k, wanted)}, at most {most} with "
            f"model='factors', one less than there are rows ({rows}) and features ({features}): the noise needs one; "
            "model='gaussian' has no such limit"
        )
    return min(wanted or k + MORE, most)


def _solution(found: FactorEM, mean: Array, scale: Array, k: int, *, scaled: bool) -> Solution:
    squared = 1.0 if scaled else float(scale[0]) ** 2
    left = (found.total - float(found.values.sum())) / (scale.size - found.values.size)
    following = found.values[k] if found.values.size > k else left
    return Solution(
        pairs=Eigenpairs(found.values[:k] * squared, fix_signs(found.vectors[:, :k]), float(following) * squared),
        mean=mean,
        total=found.total * squared,
        rows=found.rows,
        scale=scale if scaled else None,
    )
