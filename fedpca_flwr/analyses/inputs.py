"""Checked inputs of analyses: moments or a model, blocks of a scatter, numbers, and rows."""

from collections.abc import Callable, Mapping
from functools import wraps
from inspect import signature
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpca_flwr.data import frames
from fedpca_flwr.errors import ConfigError, ContractError, DataError, value_text
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.inference import MIN_VARIANCE_SHARE
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.second_moments import Features, SecondMoments

Analysis = TypeVar("Analysis", bound=Callable[..., Any])
Source = SecondMoments | PCAModel  # of an analysis: moments, or a model that keeps them
P = ParamSpec("P")
R = TypeVar("R")


MOMENTS_ADVICE = "give a model of run('p-cov', parties, keep='moments'), its 'moments_', or SecondMoments.of(rows)"


def takes_moments(analysis: Callable[Concatenate[SecondMoments, P], R]) -> Callable[Concatenate[Source, P], R]:
    """Decorate an analysis by `takes`; a model stands for its ``moments_``, and one without raises a ConfigError."""

    @takes("moments", (SecondMoments, PCAModel), MOMENTS_ADVICE)
    @wraps(analysis)
    def of_model(moments: Source, /, *args: P.args, **options: P.kwargs) -> R:
        if isinstance(moments, PCAModel):
            if moments.moments_ is None:
                raise ConfigError(f"'moments' is of type PCAModel, without SecondMoments of its rows; {MOMENTS_ADVICE}")
            moments = moments.moments_
        return analysis(moments, *args, **options)

    return of_model


def takes_model(analysis: Analysis) -> Analysis:
    """Decorate an analysis or a plot by `takes`: an argument ``model`` that is no `PCAModel` raises a ConfigError."""
    return takes("model", PCAModel, MODEL_ADVICE)(analysis)


MODEL_ADVICE = "make one with analyses.pca(moments, k), or take the model of a run"


def takes(name: str, kind: type | tuple[type, ...], advice: str) -> Callable[[Analysis], Analysis]:
    """Return a decorator of analyses and plots that checks the type of the argument ``name``, and that flags are bools.

    An estimator stands for its model. Another type raises a ConfigError whose text ends with ``advice``.
    """
    kinds = kind if isinstance(kind, tuple) else (kind,)
    expected = " or ".join(allowed.__name__ for allowed in kinds)

    def decorate(analysis: Analysis) -> Analysis:
        parameters = signature(analysis).parameters
        place = list(parameters).index(name)
        flags = {name: one.default for name, one in parameters.items() if str(one.annotation).startswith("bool")}

        @wraps(analysis)
        def wrapper(*args: Any, **options: Any) -> Any:
            if place == 0 and name in options:
                args = (options.pop(name), *args)
            args = tuple(model_of(arg) if position == place else arg for position, arg in enumerate(args))
            options = {option: model_of(arg) if option == name else arg for option, arg in options.items()}
            value = args[place] if len(args) > place else options.get(name)
            if not isinstance(value, kinds):
                raise ConfigError(f"'{name}' is of type {type(value).__name__}, expected {expected}; {advice}")
            for option, default in flags.items():
                if not isinstance(flag := options.get(option, default), bool | np.bool_) and flag is not default:
                    raise ConfigError(f"'{option}' is {value_text(flag)}, expected True or False")
            return analysis(*args, **options)

        return cast(Analysis, wrapper)

    return decorate


def in_unit(moments: SecondMoments, scale: bool | None) -> SecondMoments:
    """Return moments with features divided by their deviations if the analysis, or by default the run, divides them."""
    return moments.scaled() if moments.preparation.must_divide(scale) else moments


def component_count(moments: SecondMoments, k: int | None, maximum: float) -> int:
    """Return the number of components, by default the run's; raise ConfigError unless it is from 1 to the maximum."""
    count = moments.preparation.n_components if k is None else k
    require_count("k", count, maximum)
    return cast(int, count)


def model_of(value: Any) -> Any:
    """Return the model of a fitted `FederatedPCA`, also in a mapping by names; any other object unchanged."""
    if isinstance(value, Mapping):
        return {name: model_of(item) for name, item in value.items()}
    return getattr(value, "model_", value)


class ScatterBlocks(NamedTuple):
    """Positions, means and blocks of the scatter for two groups of features, such as predictors x and responses y."""

    x: NDArray[np.intp]  # (p,) positions
    y: NDArray[np.intp]  # (r,) positions
    mean_x: Array  # (p,)
    mean_y: Array  # (r,)
    S_xx: Array  # (p, p) sums of the products of centred features
    S_xy: Array  # (p, r)
    S_yy: Array  # (r, r)


def scatter_blocks(moments: SecondMoments, y: Features, x: Features | None = None) -> ScatterBlocks:
    """Return the scatter blocks of two groups, by default x all but y; ConfigError if one is empty or they overlap."""
    columns_y = moments.places(y)
    columns_x = np.setdiff1d(np.arange(moments.n_features), columns_y) if x is None else moments.places(x)
    shared = np.intersect1d(columns_x, columns_y)
    if shared.size:
        names = ", ".join(map(str, moments.names(shared) or shared.tolist()))
        raise ConfigError(f"the features {names} are on both sides; leave them out of one")
    if not columns_x.size:
        raise ConfigError("there are no other features; name fewer")
    S, mean = moments.scatter, moments.mean
    pairs = (columns_x, columns_x), (columns_x, columns_y), (columns_y, columns_y)
    blocks = [S[np.ix_(*pair)] for pair in pairs]
    return ScatterBlocks(columns_x, columns_y, mean[columns_x], mean[columns_y], *blocks)


def require_varying(moments: SecondMoments, columns: NDArray[np.intp]) -> None:
    """Raise DataError if features, given by their positions, have the same value in all rows."""
    if constant := [column for column in columns if moments.is_constant[column]]:
        names = moments.names(constant) or tuple(map(str, constant))
        raise DataError(f"the features {', '.join(names)} are constant: `select` the others")


def require_count(option: str, k: int | None, maximum: float) -> None:
    """Raise ConfigError unless an option's value is a whole number from 1 to a maximum."""
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or not 1 <= k <= maximum:
        raise ConfigError(f"'{option}' is {value_text(k)}, expected 1 to {int(maximum)}")


def require_share(option: str, share: float, example: float) -> None:
    """Raise ConfigError, with an example of a value, unless an option's value is a float between 0 and 1."""
    if not (isinstance(share, float) and 0 < share < 1):
        raise ConfigError(f"'{option}' is {value_text(share)}, expected a fraction between 0 and 1, as {example}")


def require_resolved(values: Array) -> None:
    """Raise ContractError if descending variances (k,) are NaN (all noise), or the last is no more than rounding."""
    if np.isnan(values).any():
        advice = "no component stands out of the noise; take more rows or epsilon"
        raise ContractError(f"the model's variances are unknown: {advice}")
    if values[-1] <= MIN_VARIANCE_SHARE * values[0]:
        last = f"the last of the {len(values)} components"
        raise ContractError(f"{last} has no variance but rounding; take fewer of them")


def finite_rows(X: ArrayLike, names: tuple[str, ...], width: int, name: str = "X") -> NDArray[Any]:
    """Return rows (n, width) as finite numbers in the order of an analysis' features, or raise a DataError."""
    rows = frames.align_rows(X, width, names, name=name, model_name="the analysis")
    return frames.finite_matrix(rows, width, name, names)
