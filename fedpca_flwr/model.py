"""`PCAModel`: the result of every run, with scikit-learn's names and meanings, and how it was made."""

from __future__ import annotations

import io
import json
import os
import zipfile
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpca_flwr.errors import ConfigError, ContractError, DataError
from fedpca_flwr.files import written_whole
from fedpca_flwr.maths.eigen import Eigenpairs
from fedpca_flwr.solution import Solution

if TYPE_CHECKING:
    from sklearn.decomposition import PCA
    from sklearn.pipeline import Pipeline

Array = NDArray[np.float64]

FORMAT = 1


@dataclass(frozen=True, eq=False)
class PCAModel:
    """Principal components of all parties' rows together.

    Attributes
    ----------
    components_ : ndarray of shape (k, d) or None
        Rows are components by descending variance; the largest absolute loading of each is positive. None where the
        parties hold different columns: each keeps the loadings of its own (`fedpca_flwr.loadings`).
    mean_ : ndarray of shape (d,) or None
        Zero where the run asked for ``center=false``. None where ``components_`` is.
    explained_variance_ : ndarray of shape (k,)
        Divisor n - 1, in squared units of the (scaled) data.
    explained_variance_ratio_ : ndarray of shape (k,)
        Against the TOTAL variance, not that of the k kept components.
    singular_values_ : ndarray of shape (k,)
    noise_variance_ : float
        Mean of the min(n, d) - k variances left out (Tipping and Bishop 1999), as in scikit-learn.
    n_samples_ : int
        Rows of all parties.
    scale_ : ndarray of shape (d,) or None
        What each centred feature is divided by (``scale=true``).
    scores_ : ndarray of shape (n, k) or None
        Where the parties hold different columns: the scores of the rows, which they share, in the order of the rows
        (with an id column: of its digests); the largest absolute score of each component is positive.
    log : dict
        How the model was made: ``method``, ``exact``, ``parties``, ``rounds`` (bytes and seconds of each), ``notes``
        (what a reader must know), ``measured``.
    """

    components_: Array | None
    mean_: Array | None
    explained_variance_: Array
    explained_variance_ratio_: Array
    singular_values_: Array
    noise_variance_: float
    n_samples_: int
    scale_: Array | None = None
    scores_: Array | None = None
    log: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, solution: Solution, log: dict[str, Any]) -> PCAModel:
        """The model of what a method found."""
        return cls.from_eigenpairs(
            solution.pairs,
            mean=solution.mean,
            total=solution.total,
            rows=solution.rows,
            scale=solution.scale,
            log=log,
        )

    @classmethod
    def from_eigenpairs(
        cls, pairs: Eigenpairs, *, mean: Array, total: float, rows: int, scale: Array | None, log: dict[str, Any]
    ) -> PCAModel:
        """The model of a scatter matrix's leading eigenpairs.

        Parameters
        ----------
        pairs : Eigenpairs
            Of the scatter (not divided by anything).
        mean : ndarray of shape (d,)
        total : float
            Trace of the scatter.
        rows : int
            Rows of all parties, at least 2.
        scale : ndarray of shape (d,) or None
        log : dict
        """
        return cls(
            components_=np.ascontiguousarray(pairs.vectors.T),
            mean_=mean,
            scale_=scale,
            log=log,
            **_variances(pairs.values, total, rows, len(pairs.vectors)),
        )

    @classmethod
    def of_scores(cls, pairs: Eigenpairs, *, total: float, features: int, log: dict[str, Any]) -> PCAModel:
        """The model of the leading eigenpairs of ``X X'`` for n rows X whose columns lie at different parties.

        Parameters
        ----------
        pairs : Eigenpairs
            Vectors (n, k): the directions of the scores.
        total : float
            Trace of ``X X'``.
        features : int
            Columns of all parties.
        log : dict
        """
        variances = _variances(pairs.values, total, len(pairs.vectors), features)
        scores = pairs.vectors * variances["singular_values_"]
        return cls(components_=None, mean_=None, scores_=scores, log=log, **variances)

    @classmethod
    def of_new_scores(cls, scores: Array, *, total: float, features: int, log: dict[str, Any]) -> PCAModel:
        """The scores (n, k) of new rows by the components of an earlier run.

        Variances are of the new rows, about the means of the fitted ones.

        Parameters
        ----------
        scores : ndarray of shape (n, k)
        total : float
            Energy of the new rows about those means.
        features : int
            Columns of all parties.
        log : dict
        """
        values = np.einsum("ij,ij->j", scores, scores)
        variances = _variances(values, total, len(scores), features)
        return cls(components_=None, mean_=None, scores_=scores, log=log, **variances)

    @property
    def n_components_(self) -> int:
        return self.explained_variance_.size

    @property
    def n_features_in_(self) -> int:
        if self.components_ is None:
            return sum(party["features"] for party in self.log["parties"])
        return self.components_.shape[1]

    def loadings(self) -> tuple[Array, Array]:
        """Components (k, d) and mean (d,).

        Raises
        ------
        ContractError
            Where they lie at the parties.
        """
        if self.components_ is None or self.mean_ is None:
            raise ContractError(
                f"method '{self.log['method']}' leaves the loadings with the parties, each those of its own columns: "
                "use 'scores_', or let every party compute its part of new scores (fedpca_flwr.loadings)"
            )
        return self.components_, self.mean_

    @property
    def total_variance(self) -> float:
        """Sum of the variances of all features (divisor n - 1), kept components or not."""
        return float(self.explained_variance_[0] / self.explained_variance_ratio_[0])

    @property
    def squared_error(self) -> float:
        """Mean squared error per row that projection leaves, by the eigenvalues: the variance of what is left out."""
        left = self.total_variance - float(self.explained_variance_.sum())
        return max(0.0, left) * (self.n_samples_ - 1) / self.n_samples_

    def transform(self, X: ArrayLike) -> Array:
        """Scores (n, k) of rows ``X`` (n, d)."""
        components, mean = self.loadings()
        rows = np.asarray(X)
        if rows.ndim != 2 or rows.shape[1] != self.n_features_in_:
            raise DataError(f"X has shape {rows.shape}, expected (n, {self.n_features_in_}), the model's features")
        centred = np.subtract(rows, mean, dtype=np.float64)
        if self.scale_ is not None:
            centred /= self.scale_
        return centred @ components.T

    def inverse_transform(self, scores: ArrayLike) -> Array:
        """Rows (n, d) that the scores (n, k) stand for, in the units of the data."""
        components, mean = self.loadings()
        rows = np.asarray(scores) @ components
        if self.scale_ is not None:
            rows *= self.scale_
        return rows + mean

    def to_sklearn(self) -> PCA | Pipeline:
        """A fitted `sklearn.decomposition.PCA`; with ``scale_`` a pipeline of `StandardScaler` and that PCA."""
        # Here, for a party's sake: its SuperNode starts a process for every message, and this import takes seconds.
        from sklearn.decomposition import PCA
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        _, mean = self.loadings()
        pca = PCA(n_components=self.n_components_)
        for name in ("components_", "explained_variance_", "explained_variance_ratio_", "singular_values_"):
            setattr(pca, name, getattr(self, name).copy())
        pca.mean_ = mean.copy() if self.scale_ is None else np.zeros_like(mean)
        pca.noise_variance_ = self.noise_variance_
        pca.n_samples_ = self.n_samples_
        pca.n_components_ = self.n_components_
        pca.n_features_in_ = self.n_features_in_
        if self.scale_ is None:
            return pca
        scaler = StandardScaler()
        scaler.mean_, scaler.scale_, scaler.var_ = mean.copy(), self.scale_.copy(), self.scale_**2
        scaler.n_samples_seen_, scaler.n_features_in_ = self.n_samples_, self.n_features_in_
        return make_pipeline(scaler, pca)

    def save(self, path: str | os.PathLike) -> Path:
        """Write the model to one file: a zip of ``.npy`` arrays and ``model.json``, which `numpy.load` opens too.

        The file appears whole or not at all. ``.npz`` is appended where missing.
        """
        target = model_file(path)
        arrays = {f.name: getattr(self, f.name) for f in fields(self) if isinstance(getattr(self, f.name), np.ndarray)}
        about = {
            "format": FORMAT,
            "noise_variance_": self.noise_variance_,
            "n_samples_": self.n_samples_,
            "log": self.log,
        }
        with written_whole(target) as stream, zipfile.ZipFile(stream, "w") as archive:
            for name, array in arrays.items():
                buffer = io.BytesIO()
                np.save(buffer, array, allow_pickle=False)
                archive.writestr(f"{name}.npy", buffer.getvalue())
            archive.writestr("model.json", json.dumps(about, indent=2))
        return target

    @classmethod
    def load(cls, path: str | os.PathLike) -> PCAModel:
        """Read a model that `save` wrote. Nothing in the file is executed (no pickle)."""
        target = model_file(path)
        if not target.exists():
            raise DataError(f"there is no model at {target}")
        try:
            with zipfile.ZipFile(target) as archive:
                about = json.loads(archive.read("model.json"))
                arrays = {
                    name.removesuffix(".npy"): np.load(io.BytesIO(archive.read(name)), allow_pickle=False)
                    for name in archive.namelist()
                    if name.endswith(".npy")
                }
            if about.pop("format") != FORMAT:
                raise ContractError(f"{target}: the model's format is not {FORMAT}; which version wrote it?")
            return cls(**{"components_": None, "mean_": None, **arrays}, **about)._checked()
        except ContractError:
            raise
        except Exception as error:  # a damaged file can make its readers fail in any way
            raise ContractError(f"{target} is not a whole model file ({type(error).__name__})") from None

    def _checked(self) -> PCAModel:
        k, n = self.n_components_, self.n_samples_
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(
            ("explained_variance_", "explained_variance_ratio_", "singular_values_"), (k,)
        )
        if self.components_ is None:
            shapes |= {"scores_": (n, k)}
        else:
            d = self.n_features_in_
            shapes |= {"components_": (k, d), "mean_": (d,)} | ({} if self.scale_ is None else {"scale_": (d,)})
        for name, shape in shapes.items():
            array = getattr(self, name)
            if array is None or array.shape != shape or array.dtype != np.float64 or not np.isfinite(array).all():
                raise ContractError(f"the model's {name} is not a finite float64 array of shape {shape}")
        if not isinstance(self.log, dict) or not isinstance(self.n_samples_, int):
            raise ContractError("the model's history is not whole")
        return self

    def summary(self) -> str:
        """What a person wants to know first, as lines of text."""
        log = self.log
        parties = log["parties"]
        by_columns = self.components_ is None
        rows = [] if by_columns else [party["rows"] for party in parties if party["rows"] is not None]
        here = f", {sum(rows)} of them at these parties" if rows and sum(rows) != self.n_samples_ else ""
        held = f", with {min(rows)} to {max(rows)} rows" if rows else ""
        if by_columns:
            widths = [party["features"] for party in parties]
            held = f", with {min(widths)} to {max(widths)} features of the same rows"
        ratio = self.explained_variance_ratio_
        lines = [
            ("method", f"{log['method']} ({'exact' if log['exact'] else 'approximate'})"),
            ("parties", f"{len(parties)}{held}"),
            ("rows", f"{self.n_samples_} of {self.n_features_in_} features{here}"),
            *self._traffic(),
            ("components", f"{self.n_components_}"),
            ("explained variance", f"{ratio.sum():.4%} (first: {', '.join(f'{r:.2%}' for r in ratio[:5])})"),
        ]
        lines += [(name, text) for name, text in log.get("measured", {}).items()]
        lines += [("note", note) for note in log.get("notes", [])]
        return "\n".join(f"  {name:<22}{text}" for name, text in lines)

    def _traffic(self) -> list[tuple[str, str]]:
        """Lines of the summary about what travelled; none where the model was made of what was there."""
        rounds = self.log["rounds"]
        if not rounds:
            return []
        fit = [entry for entry in rounds if entry["phase"] != "project"]
        up = [sum(sent) for sent in zip(*(entry["up"] for entry in fit), strict=True)]
        return [
            ("rounds", f"{len(fit)}, and one in which each party projects its own rows"),
            ("bytes up", f"{max(up):,} at most per party, {sum(up):,} in all"),
            ("bytes down", f"{sum(sum(entry['down']) for entry in rounds):,} in all"),
        ]


def _variances(values: Array, total: float, rows: int, features: int) -> dict[str, Any]:
    """The fields of a model that follow from the eigenvalues of the scatter and its trace."""
    scatter = values.clip(min=0.0)
    left = min(rows, features) - scatter.size
    divisor = max(1, rows - 1)  # a single new row has scores too
    return {
        "explained_variance_": scatter / divisor,
        "explained_variance_ratio_": scatter / total if total > 0 else np.zeros_like(scatter),
        "singular_values_": np.sqrt(scatter),
        "noise_variance_": max(0.0, total - scatter.sum()) / divisor / left if left > 0 else 0.0,
        "n_samples_": rows,
    }


def model_file(path: str | os.PathLike) -> Path:
    """The file that a model of this name is written to: ``.npz`` is appended where missing."""
    path = Path(path).expanduser()
    if path.is_dir() or not path.name:
        raise ConfigError(f"a model is a file, and {path} is a folder; give a name in it")
    return path if path.suffix == ".npz" else path.with_name(path.name + ".npz")
