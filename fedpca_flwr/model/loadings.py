"""`Loadings`: the components by which a party projects its rows, and scores of new ones."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from fedpca_flwr.data.frames import check_names_digest, finite_matrix
from fedpca_flwr.errors import ConfigError, ContractError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.state.files import open_site_file


@dataclass(frozen=True, eq=False)
class Loadings:
    """What a party needs to project rows: the components of its columns.

    With data split by rows the party has all columns; these are the components of its model, or its own where each
    party has its own. With data split by columns, those of the party's own columns: side by side with those of the
    other parties they are the components (k, d) of all columns.
    """

    components: Array  # (k, f)
    mean: Array  # (f,), what is subtracted from the columns
    scale: Array  # (f,), what they are divided by
    run: int = 0  # `run_digest` of the run that they are of, the same at all parties; 0 where nobody said
    columns: str = ""  # digest of the names of the party's columns; empty where its file has none

    def part_of_scores(self, X: ArrayLike) -> Array:
        """This party's part (n, k) of the scores of new rows, of which ``X`` (n, f) has this party's columns.

        With data split by rows that is all of the scores. Else the scores are the sum over all parties; a part alone
        tells much about the rows: the method 'vertical-scores' adds parts, with secure aggregation so that nobody sees
        them.
        """
        return self.scaled(X) @ self.components.T

    def scaled(self, X: ArrayLike) -> Array:
        """New rows ``X`` (n, f) of this party's columns, centred and scaled as those of the run."""
        check_names_digest(X, self.columns)
        rows = finite_matrix(X, self.mean.size, "X")
        scaled: Array = np.subtract(rows, self.mean, dtype=np.float64) / self.scale
        return scaled

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write them to one file, whole or not at all, readable by its owner only.

        A `ConfigError` for a name that does not end in ``.npz``.
        """
        target = Path(path).expanduser()
        if target.suffix != ".npz":
            raise ConfigError(f"node-config: 'loadings' ends in '{target.suffix}', expected .npz")
        with open_site_file("loadings", target) as stream:
            run = np.asarray(self.run, np.uint64)
            columns = np.asarray(self.columns)
            np.savez(stream, components=self.components, mean=self.mean, scale=self.scale, run=run, columns=columns)
        return target

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Loadings:
        """Read what `save` wrote; nothing in the file is executed (no pickle).

        A `ContractError` where it holds something else.
        """
        try:
            with np.load(Path(path).expanduser(), allow_pickle=False) as archive:
                run = int(archive["run"]) if "run" in archive else 0
                columns = str(archive["columns"]) if "columns" in archive else ""
                stored_arrays = (
                    np.asarray(archive[name]) for name in ("components", "mean", "scale")
                )  # NumPy may give bytes
                components, mean, scale = stored_arrays
                loadings = cls(components, mean, scale, run, columns)
        except Exception as error:  # a damaged file can make its readers fail in any way
            raise ContractError(f"{path} is not a whole file of loadings ({type(error).__name__})") from None
        if (
            loadings.components.ndim != 2
            or not loadings.mean.shape == loadings.scale.shape == loadings.components.shape[1:]
        ):
            raise ContractError(f"{path} is not a whole file of loadings: its shapes do not fit together")
        arrays = (loadings.components, loadings.mean, loadings.scale)
        if (
            not all(array.dtype == np.float64 and np.isfinite(array).all() for array in arrays)
            or loadings.scale.min() <= 0
        ):
            raise ContractError(
                f"{path} is not a whole file of loadings: they are not finite numbers, or the scale is 0"
            )
        return loadings


def run_digest(U: Array, singular: Array) -> int:
    """What all parties know a run by: 64 bits of SHA-256 of the directions (n, k) and singular values that all got."""
    return int.from_bytes(hashlib.sha256(U.tobytes() + singular.tobytes()).digest()[:8], "little")
