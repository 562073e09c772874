"""The checked inputs of analyses: kept moments or a model, blocks of a scatter, numbers, and rows."""

from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpca_flwr.data import frames
from fedpca_flwr.errors import ConfigError, ContractError, DataError, value_text
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.inference import ROUNDING
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.second_moments import Features, SecondMoments

Analysis = TypeVar("Analysis", bound=Callable[..., Any])


def of_moments(analysis: Analysis) -> Analysis:
    """Let an analysis refuse a first argument that is no `SecondMoments`."""
    how = "they are a model's 'moments_' after run('p-cov', parties, keep='moments'), or SecondMoments.of(rows)"
    return _of(analysis, "moments", SecondMoments, how)


def of_model(analysis: Analysis) -> Analysis:
    """Let an analysis refuse a first argument that is no `PCAModel`."""
    return _of(analysis, "model", PCAModel, "make one with analyses.pca(moments, k), or take the model of a run")


def _of(analysis: Analysis, name: str, kind: type, how: str) -> Analysis:
    @wraps(analysis)
    def checked(*args: Any, **options: Any) -> Any:
        given = args[0] if args else options.get(name)
        if not isinstance(given, kind):
            raise ConfigError(f"'{name}' is of type {type(given).__name__}, expected {kind.__name__}; {how}")
        return analysis(*args, **options)

    return cast(Analysis, checked)


class ScatterBlocks(NamedTuple):
    """Features ``x`` (p,) and ``y`` (r,), such as predictors and responses: places, means, blocks of the scatter."""

    x: NDArray[np.intp]
    y: NDArray[np.intp]
    mean_x: Array
    mean_y: Array
    S_xx: Array
    S_xy: Array
    S_yy: Array


def blocks(moments: SecondMoments, y: Features, x: Features | None = None) -> ScatterBlocks:
    """The blocks of the scatter for features ``y`` and ``x``; without ``x`` for ``y`` and all others.

    A `ConfigError` for unknown features, and for one that is in both.
    """
    there = moments.places(y)
    here = np.setdiff1d(np.arange(moments.n_features), there) if x is None else moments.places(x)
    both = np.intersect1d(here, there)
    if both.size or not here.size:
        told = moments.names(both) or tuple(both.tolist())
        raise ConfigError(
            f"the features {', '.join(map(str, told))} are on both sides; leave them out of one"
            if both.size
            else "there are no other features; name fewer"
        )
    S, mean = moments.scatter, moments.mean
    return ScatterBlocks(
        here, there, mean[here], mean[there], S[np.ix_(here, here)], S[np.ix_(here, there)], S[np.ix_(there, there)]
    )


def require_varying(moments: SecondMoments, places: NDArray[np.intp]) -> None:
    """Refuse features that are the same in all rows, by a `DataError`."""
    still = [place for place in places if moments.is_constant[place]]
    if still:
        told = moments.names(still) or tuple(map(str, still))
        raise DataError(f"the features {', '.join(told)} are constant: `select` the others")


def require_count(what: str, k: int, most: int) -> None:
    """Refuse a number that is no count, or too large, by a `ConfigError`."""
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or not 1 <= k <= most:
        raise ConfigError(f"'{what}' is {value_text(k)}, expected 1 to {most}")


def require_share(what: str, share: float, example: float) -> None:
    """Refuse a number that is no fraction between 0 and 1, by a `ConfigError`."""
    if not (isinstance(share, float) and 0 < share < 1):
        raise ConfigError(f"'{what}' is {value_text(share)}, expected a fraction between 0 and 1, as {example}")


def require_resolved(values: Array) -> None:
    """Refuse variances (k,), descending, of which the last is rounding: so is all that is said of its component.

    Unknown ones (NaN, of a private model whose components are all noise) are refused too, by a `ContractError`.
    """
    if np.isnan(values).any():
        raise ContractError(
            "the model's variances are unknown: no component stands out of the noise; take more rows or epsilon"
        )
    if values[-1] <= ROUNDING * values[0]:
        raise ContractError(
            f"the last of the {len(values)} components has no variance but rounding; take fewer of them"
        )


def rows_of(X: ArrayLike, names: tuple[str, ...], width: int, what: str = "X") -> NDArray[Any]:
    """Finite rows (n, width) for a fitted analysis of features with these names; errors: `fedpca_flwr.data.frames`."""
    rows = frames.rows_of(X, width, names, name=what, fitted="the analysis")
    return frames.finite_matrix(rows, width, what)
