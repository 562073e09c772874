"""What an analysis is of: kept moments, or a model; whatever else is handed over is refused in words."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from fedpca_flwr.errors import ConfigError
from fedpca_flwr.model import PCAModel
from fedpca_flwr.second_moments import SecondMoments

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
