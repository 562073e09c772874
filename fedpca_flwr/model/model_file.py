"""File of a model: an archive of its arrays (`fedpca_flwr.state.files`) and ``model.json`` with everything else.

JSON has no infinity, so an infinite measured number is a text there, spelt as in the methods' options.
"""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from fedpca_flwr.errors import ContractError, DataError, value_text
from fedpca_flwr.model.history import History, history_of
from fedpca_flwr.state import files

INFINITY_TEXT = "infinity"


def measurements_to_json(measured: Mapping[str, float]) -> dict[str, float | str]:
    """Replace infinity in measurements by a text, since JSON has no infinity."""
    return {name: INFINITY_TEXT if value == math.inf else value for name, value in measured.items()}


def measurements_from_json(measured: Mapping[str, float | str]) -> dict[str, float]:
    """Replace the text "infinity" in measurements by the float infinity."""
    return {name: float(value) if value == INFINITY_TEXT else value for name, value in measured.items()}  # type: ignore[misc]


MAX_ROWS = 2**62
MODEL_FORMAT = 2  # in files of format 1, of the first versions, ``measured`` held texts
MODEL_JSON = "model.json"
# these may be NaN, all of them and the noise variance together: a release that is noise alone has no variances
VARIANCES = ("explained_variance_", "explained_variance_ratio_", "singular_values_")
ADJUSTMENT_ARRAYS = ("adjustment_places", "adjustment_slopes")
MODEL_ARRAYS = ("components_", "mean_", "scale_", *VARIANCES, "scores_", "covariance_", "factors_", *ADJUSTMENT_ARRAYS)

# the warning when a model that kept moments is saved
MOMENTS_OMITTED_WARNING = (
    "this file leaves out the model's 'moments_': they tell far more than a model, and have a file of their own: "
    "model.moments_.save(path)"
)


def model_path(path: str | os.PathLike[str]) -> Path:
    """Return the path of a model's file, with ``.npz`` appended if missing, and "~" replaced by the home folder."""
    return files.archive_path(path, "a model")


def write(
    path: str | os.PathLike[str], arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, Any], access: files.Access
) -> Path:
    """Write a model's arrays and metadata completely or not at all, and return the path; ConfigError for a folder."""
    target = model_path(path)
    if np.isnan(metadata.get("noise_variance_", 0.0)):  # JSON has no such number
        metadata = {**metadata, "noise_variance_": None}
    log = {**metadata["log"], "measured": measurements_to_json(metadata["log"].get("measured", {}))}
    files.write(target, arrays, {"format": MODEL_FORMAT, **metadata, "log": log}, text=MODEL_JSON, access=access)
    return target


def read(
    path: str | os.PathLike[str], most_bytes: int | None = None
) -> tuple[dict[str, NDArray[Any]], dict[str, Any], History]:
    """Read and check arrays, metadata and log from a file that `write` wrote, of at most ``most_bytes`` unpacked."""
    target = model_path(path)
    if not target.exists():
        raise DataError(f"there is no model at {target}")
    try:
        arrays, metadata = files.read(target, text=MODEL_JSON, names=MODEL_ARRAYS, max_bytes=most_bytes)
        version = metadata.pop("format")
    except files.TooLargeError:
        raise
    except Exception as error:  # a damaged file can make its readers fail in any way
        raise damaged_file_error(path, error) from None
    if version not in (1, MODEL_FORMAT):
        expected = f"not 1 or {MODEL_FORMAT}; which version wrote it?"
        raise ContractError(f"{target}: the model's format is {version!r}, {expected}")
    try:
        if version == 1:  # its measurements are texts, which become notes: no number is read out of a text
            log = metadata["log"]
            texts = [f"{name}: {text}" for name, text in log.get("measured", {}).items()]
            metadata["log"] = {**log, "measured": {}, "notes": [*log.get("notes", []), *texts]}
        if metadata.get("noise_variance_", 0.0) is None:
            metadata["noise_variance_"] = float("nan")
        history = _check_contents(arrays, metadata)
        metadata["log"]["measured"] = measurements_from_json(metadata["log"].get("measured", {}))
    except ContractError as error:
        raise ContractError(f"{target}: {error}") from None
    except Exception as error:  # what is in the file may be anything
        raise damaged_file_error(path, error) from None
    return arrays, metadata, history


def _check_contents(arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, Any]) -> History:
    """Return the checked log; raise ContractError for arrays of other shapes or values, ValueError for another log."""
    log, n, names = metadata["log"], metadata["n_samples_"], metadata.get("feature_names_in_")
    if not isinstance(log, dict) or isinstance(n, bool) or not isinstance(n, int | float) or not 0 < n <= MAX_ROWS:
        raise ContractError("the model's history is not whole")
    (k,) = arrays["explained_variance_"].shape
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(VARIANCES, (k,))
    if "components_" in arrays:
        _, d = arrays["components_"].shape
        optional = {"scale_": (d,), "covariance_": (d, d), "factors_": (len(arrays.get("factors_", ())), d)}
        at_parties = "mean_" not in arrays  # the server of a blind run has the spectrum alone
        shapes |= {"components_": (0, d)} if at_parties else {"components_": (k, d), "mean_": (d,)}
        shapes |= {x: shape for x, shape in optional.items() if x in arrays}
    else:
        d = sum(party["features"] for party in log["parties"])
        shapes |= {"scores_": (int(n), k)}
    if "adjustment_slopes" in arrays:
        (q,) = arrays["adjustment_places"].shape
        shapes |= {"adjustment_slopes": (q, d), "adjustment_places": (q,)}
        if not ((arrays["adjustment_places"] >= 0) & (arrays["adjustment_places"] < d)).all():
            raise ContractError("the model's covariates are no columns")
    for name, shape in shapes.items():
        array, unknown = arrays.get(name), np.isnan(metadata["noise_variance_"]) and name in VARIANCES
        valid = array is not None and array.shape == shape and array.dtype == np.float64
        if array is None or not valid or not (unknown or np.isfinite(array).all()):
            raise ContractError(f"the model's {name} is not a finite float64 array of shape {shape}")
    history = history_of(log, k, d)
    if names is not None and not (len(names) == d and all(isinstance(feature, str) for feature in names)):
        raise ContractError("the model's feature_names_in_ are not a text for each feature")
    return history


def damaged_file_error(path: str | os.PathLike[str], error: Exception) -> ContractError:
    """Return the error for a file that does not hold a whole model."""
    why = type(error).__name__
    if isinstance(error, KeyError) and error.args:
        why = f"it has no {value_text(error.args[0])}"
    elif isinstance(error, ValidationError):
        entry = ".".join(map(str, error.errors()[0]["loc"][:2])) or "log"
        why = f"the entry {value_text(entry)} of its log is not what it must be"
    return ContractError(f"{model_path(path)} is not a whole model file ({why}); get the file again from who saved it")
