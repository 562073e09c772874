"""`Loadings`: the components by which a party projects its rows, and scores of new rows."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.data.frames import check_names_digest, finite_matrix
from fedpca_flwr.data.transforms import transform_array
from fedpca_flwr.errors import ConfigError, ContractError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.description import represent_by_shapes
from fedpca_flwr.state.files import open_site_file


@represent_by_shapes
@dataclass(frozen=True, eq=False)
class Loadings:
    """Components, mean and scale of a single party's f columns, by which the party projects its rows.

    With data split by rows the party has all columns; the components are those of its model, or its own if each party
    has its own. With data split by columns, the parties' components side by side are those (k, d) of all columns.
    """

    components: Array  # (k, f)
    mean: Array  # (f,) subtracted from the columns
    scale: Array  # (f,) divides the centred columns
    run: int = 0  # `run_digest` of the run that made the loadings, equal at all parties; 0 if unknown
    columns: str = ""  # digest of the names of the party's columns; empty if its file has no names
    remainder: Array | float = 0.0  # (f,) or 0: what rounding the mean lost, subtracted from the columns too
    transform: str = ""  # function of new rows before that (`fedpca_flwr.data.transforms`); empty: none

    def part_of_scores(self, X: ArrayLike) -> Array:
        """Compute this party's summand (n, k) of the scores of new rows (n, f): its scaled columns times its loadings.

        With data split by rows the part is the scores. Otherwise the scores are the sum over all parties; a part alone
        tells much about the rows, so the method 'vertical-scores' adds the parts by secure aggregation, too. Raise
        errors as `scaled`.
        """
        return self.scaled(X) @ self.components.T

    def scaled(self, X: ArrayLike) -> Array:
        """Transform, centre and scale new rows (n, f) as the run did, or raise a DataError."""
        check_names_digest(X, self.columns)
        rows = finite_matrix(X, self.mean.size, "X")
        if self.transform:
            rows = transform_array(rows, self.transform)
        centred: Array = np.subtract(rows, self.mean, dtype=np.float64)
        return (centred - self.remainder) / self.scale

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write an ``.npz`` file that only its owner can read, completely or not at all; ConfigError if that fails."""
        target = Path(path).expanduser()
        if target.suffix != ".npz":
            raise ConfigError(f"node-config: 'loadings' ends in '{target.suffix}', expected .npz")
        with open_site_file("loadings", target) as stream:
            arrays: dict[str, Any] = {"components": self.components, "mean": self.mean, "scale": self.scale}
            remainder = np.zeros_like(self.mean) + self.remainder
            arrays |= {"columns": self.columns, "transform": self.transform}
            np.savez(stream, **arrays, remainder=remainder, run=np.asarray(self.run, np.uint64))
        return target

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Loadings:
        """Read a file that `save` wrote, without pickle, or raise ContractError if it holds something else."""
        try:
            with np.load(Path(path).expanduser(), allow_pickle=False) as archive:
                run = int(archive["run"]) if "run" in archive else 0
                columns, step = (str(archive[name]) if name in archive else "" for name in ("columns", "transform"))
                # NumPy may give bytes instead of an array
                components, mean, scale = (np.asarray(archive[name]) for name in ("components", "mean", "scale"))
                remainder = np.asarray(archive["remainder"]) if "remainder" in archive else np.zeros_like(mean)
                loadings = cls(components, mean, scale, run, columns, remainder, step)
            RunConfig.parse({"transform": step})
        except Exception as error:  # a damaged file can make its readers fail in any way
            raise ContractError(f"{path} is not a whole file of loadings ({type(error).__name__})") from None
        if components.ndim != 2 or not mean.shape == remainder.shape == scale.shape == components.shape[1:]:
            raise ContractError(f"{path} is not a whole file of loadings: its shapes do not fit together")
        arrays = (components, mean, scale, remainder)
        if not all(array.dtype == np.float64 and np.isfinite(array).all() for array in arrays) or scale.min() <= 0:
            fault = "they are not finite numbers, or the scale is 0"
            raise ContractError(f"{path} is not a whole file of loadings: {fault}")
        return loadings


def run_digest(U: Array, singular: Array) -> int:
    """Compute 64 bits of SHA-256 of a run's directions U (n, k) and singular values (k,), equal at every party."""
    return int.from_bytes(hashlib.sha256(U.tobytes() + singular.tobytes()).digest()[:8], "little")
