"""The checked inputs of analyses: kept moments or a model, blocks of a scatter, numbers, and rows."""

from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpca_flwr.data import frames
from fedpca_flwr.errors import ConfigError, ContractError, DataError, value_text
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.inference import MIN_VARIANCE_SHARE
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.second_moments import Features, SecondMoments

Analysis = TypeVar("Analysis", bound=Callable[..., Any])


def takes_moments(analysis: Analysis) -> Analysis:
    """Let an analysis refuse a first argument that is no `SecondMoments`."""
    advice = "they are a model's 'moments_' after run('p-cov', parties, keep='moments'), or SecondMoments.of(rows)"
    return _require_first_argument(analysis, "moments", SecondMoments, advice)


def takes_model(analysis: Analysis) -> Analysis:
    """Let an analysis refuse a first argument that is no `PCAModel`."""
    return _require_first_argument(
        analysis, "model", PCAModel, "make one with analyses.pca(moments, k), or take the model of a run"
    )


def _require_first_argument(analysis: Analysis, name: str, kind: type, advice: str) -> Analysis:
    @wraps(analysis)
    def wrapper(*args: Any, **options: Any) -> Any:
        value = args[0] if args else options.get(name)
        if not isinstance(value, kind):
            raise ConfigError(f"'{name}' is of type {type(value).__name__}, expected {kind.__name__}; {advice}")
        return analysis(*args, **options)

    return cast(Analysis, wrapper)


class ScatterBlocks(NamedTuple):
    """Features ``x`` (p,) and ``y`` (r,), such as predictors and responses: places, means, blocks of the scatter."""

    x: NDArray[np.intp]
    y: NDArray[np.intp]
    mean_x: Array
    mean_y: Array
    S_xx: Array
    S_xy: Array
    S_yy: Array


def scatter_blocks(moments: SecondMoments, y: Features, x: Features | None = None) -> ScatterBlocks:
    """The blocks of the scatter for features ``y`` and ``x``; without ``x`` for ``y`` and all others.

    A `ConfigError` for unknown features, and for one that is in both.
    """
    y_columns = moments.places(y)
    x_columns = np.setdiff1d(np.arange(moments.n_features), y_columns) if x is None else moments.places(x)
    shared = np.intersect1d(x_columns, y_columns)
    if shared.size or not x_columns.size:
        names = moments.names(shared) or tuple(shared.tolist())
        raise ConfigError(
            f"the features {', '.join(map(str, names))} are on both sides; leave them out of one"
            if shared.size
            else "there are no other features; name fewer"
        )
    S, mean = moments.scatter, moments.mean
    return ScatterBlocks(
        x_columns,
        y_columns,
        mean[x_columns],
        mean[y_columns],
        S[np.ix_(x_columns, x_columns)],
        S[np.ix_(x_columns, y_columns)],
        S[np.ix_(y_columns, y_columns)],
    )


def require_varying(moments: SecondMoments, columns: NDArray[np.intp]) -> None:
    """Refuse features that are the same in all rows, by a `DataError`."""
    constant = [column for column in columns if moments.is_constant[column]]
    if constant:
        names = moments.names(constant) or tuple(map(str, constant))
        raise DataError(f"the features {', '.join(names)} are constant: `select` the others")


def require_count(option: str, k: int, maximum: int) -> None:
    """Refuse a number that is no count, or too large, by a `ConfigError`."""
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or not 1 <= k <= maximum:
        raise ConfigError(f"'{option}' is {value_text(k)}, expected 1 to {maximum}")


def require_share(option: str, share: float, example: float) -> None:
    """Refuse a number that is no fraction between 0 and 1, by a `ConfigError`."""
    if not (isinstance(share, float) and 0 < share < 1):
        raise ConfigError(f"'{option}' is {value_text(share)}, expected a fraction between 0 and 1, as {example}")


def require_resolved(values: Array) -> None:
    """Refuse variances (k,), descending, of which the last is rounding: so is all that is said of its component.

    Unknown ones (NaN, of a private model whose components are all noise) are refused too, by a `ContractError`.
    """
    if np.isnan(values).any():
        raise ContractError(
            "the model's variances are unknown: no component stands out of the noise; take more rows or epsilon"
        )
    if values[-1] <= MIN_VARIANCE_SHARE * values[0]:
        raise ContractError(
            f"the last of the {len(values)} components has no variance but rounding; take fewer of them"
        )


def finite_rows(X: ArrayLike, names: tuple[str, ...], width: int, name: str = "X") -> NDArray[Any]:
    """Finite rows (n, width) for a fitted analysis of features with these names; errors: `fedpca_flwr.data.frames`."""
    rows = frames.align_rows(X, width, names, name=name, model_name="the analysis")
    return frames.finite_matrix(rows, width, name)
