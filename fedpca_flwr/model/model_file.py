"""A model's file: an archive of its arrays (`fedpca_flwr.state.files`) and ``model.json`` with everything else.

JSON has no infinity, so an infinite measured number is a text there, spelt as in the methods' options.
"""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.errors import ContractError, DataError, value_text
from fedpca_flwr.model.history import history_of
from fedpca_flwr.state import files

INFINITY = "infinity"


def to_json(measured: Mapping[str, float]) -> dict[str, float | str]:
    """Numbers by name as JSON can hold them."""
    return {name: INFINITY if value == math.inf else value for name, value in measured.items()}


def from_json(measured: Mapping[str, float | str]) -> dict[str, float]:
    """The numbers that `to_json` was given."""
    return {name: float(value) if value == INFINITY else value for name, value in measured.items()}  # type: ignore[misc]


MOST_ROWS = 2**62
FORMAT = 2  # in files of format 1, of the first versions, ``measured`` held texts
TEXT = "model.json"
# these may be NaN, all of them and the noise variance together: a release that is noise alone has no variances
VARIANCES = ("explained_variance_", "explained_variance_ratio_", "singular_values_")


# the arrays that a model's file may hold
ARRAYS = (
    "components_",
    "mean_",
    "scale_",
    *VARIANCES,
    "scores_",
    "covariance_",
    "factors_",
    "adjustment_places",
    "adjustment_slopes",
)

# the warning when a model that kept moments is saved
WITHOUT_MOMENTS = (
    "this file leaves out the model's 'moments_': they tell far more than a model, and have a file of their own: "
    "model.moments_.save(path)"
)


def model_file(path: str | os.PathLike[str]) -> Path:
    """The file that a model of this name is written to: ``.npz`` is appended where missing."""
    return files.archive_at(path, "a model")


def write(path: str | os.PathLike[str], arrays: Mapping[str, NDArray[Any]], about: Mapping[str, Any]) -> Path:
    """Write arrays, and whatever JSON can hold, to the file of this name: whole or not at all."""
    target = model_file(path)
    if np.isnan(about.get("noise_variance_", 0.0)):  # JSON has no such number
        about = {**about, "noise_variance_": None}
    log = {**about["log"], "measured": to_json(about["log"].get("measured", {}))}
    files.write(target, arrays, {"format": FORMAT, **about, "log": log}, text=TEXT)
    return target


def read(path: str | os.PathLike[str], most_bytes: int | None = None) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """What `write` wrote; `DataError` where there is no such file, `ContractError` where it holds something else."""
    target = model_file(path)
    if not target.exists():
        raise DataError(f"there is no model at {target}")
    try:
        arrays, about = files.read(target, text=TEXT, names=ARRAYS, most_bytes=most_bytes)
        version = about.pop("format")
    except files.TooLargeError:
        raise
    except Exception as error:  # a damaged file can make its readers fail in any way
        raise not_whole(path, error) from None
    if version not in (1, FORMAT):
        raise ContractError(f"{target}: the model's format is {version!r}, not 1 or {FORMAT}; which version wrote it?")
    about = _without_texts(about, path) if version == 1 else about
    if about.get("noise_variance_", 0.0) is None:
        about["noise_variance_"] = float("nan")
    try:
        _require_whole(arrays, about)
        about["log"]["measured"] = from_json(about["log"].get("measured", {}))
    except ContractError:
        raise
    except Exception as error:  # what is in the file may be anything
        raise not_whole(path, error) from None
    return arrays, about


def _without_texts(about: dict[str, Any], path: str | os.PathLike[str]) -> dict[str, Any]:
    """What a file of format 1 says, its measurements as notes: no number is read out of a text."""
    try:
        log = about["log"]
        texts = [f"{name}: {text}" for name, text in log.get("measured", {}).items()]
        return {**about, "log": {**log, "measured": {}, "notes": [*log.get("notes", []), *texts]}}
    except Exception as error:
        raise not_whole(path, error) from None


def _require_whole(arrays: Mapping[str, NDArray[Any]], about: Mapping[str, Any]) -> None:
    """Refuse arrays of other shapes than a model's, or that are not finite; and what is no history."""
    log, n, names = about["log"], about["n_samples_"], about.get("feature_names_in_")
    if not isinstance(log, dict) or isinstance(n, bool) or not isinstance(n, int | float) or not 0 < n <= MOST_ROWS:
        raise ContractError("the model's history is not whole")
    (k,) = arrays["explained_variance_"].shape
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(VARIANCES, (k,))
    if "components_" in arrays:
        _, d = arrays["components_"].shape
        further = {"scale_": (d,), "covariance_": (d, d), "factors_": (len(arrays.get("factors_", ())), d)}
        shapes |= {"components_": (k, d), "mean_": (d,)} | {x: shape for x, shape in further.items() if x in arrays}
    else:
        d = sum(party["features"] for party in log["parties"])
        shapes |= {"scores_": (int(n), k)}
    if "adjustment_slopes" in arrays:
        (q,) = arrays["adjustment_places"].shape
        shapes |= {"adjustment_slopes": (q, d), "adjustment_places": (q,)}
        if not ((arrays["adjustment_places"] >= 0) & (arrays["adjustment_places"] < d)).all():
            raise ContractError("the model's covariates are no columns")
    for name, shape in shapes.items():
        array, unknown = arrays.get(name), np.isnan(about["noise_variance_"]) and name in VARIANCES
        whole = array is not None and array.shape == shape and array.dtype == np.float64
        if array is None or not whole or not (unknown or np.isfinite(array).all()):
            raise ContractError(f"the model's {name} is not a finite float64 array of shape {shape}")
    history_of(log, k, d)
    if names is not None and not (len(names) == d and all(isinstance(one, str) for one in names)):
        raise ContractError("the model's feature_names_in_ are not a text for each feature")


def require_pooled_means(log: Mapping[str, Any]) -> None:
    """Refuse new rows of nobody, where each party's own mean was taken out, by a `ContractError`."""
    harmonised = log.get("options", {}).get("harmonise", "nothing")
    if harmonised != "nothing":
        raise ContractError(
            f"the run took out what differs between the parties (harmonise='{harmonised}'), so new rows are a party's: "
            "each projects its own by the file of its 'loadings' (fedpca_flwr.model.loadings)"
        )


def not_whole(path: str | os.PathLike[str], error: Exception) -> ContractError:
    """What to raise for a file that holds something else."""
    why = (
        f"it has no {value_text(error.args[0])}" if isinstance(error, KeyError) and error.args else type(error).__name__
    )
    return ContractError(f"{model_file(path)} is not a whole model file ({why})")
