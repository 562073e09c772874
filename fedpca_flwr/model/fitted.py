"""Attributes of a fitted PCA, numbers that follow from the attributes, and the projection of rows."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpca_flwr.data.categories import count_other_cells, encoded, indicator_names
from fedpca_flwr.data.frames import align_rows, column_names, finite_matrix
from fedpca_flwr.data.transforms import TRANSFORMS, transform_array
from fedpca_flwr.errors import ContractError, DataError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.moments import max_row_count
from fedpca_flwr.maths.rows import Rows, chunks

if TYPE_CHECKING:
    from fedpca_flwr.maths.adjustment import Adjustment
    from fedpca_flwr.model.second_moments import SecondMoments


@dataclass(frozen=True, eq=False)
class FittedPCA:
    """Attributes of a fitted PCA, which `fedpca_flwr.model.model.PCAModel` documents, and what needs nothing else."""

    components_: Array | None
    mean_: Array | None
    explained_variance_: Array
    explained_variance_ratio_: Array
    singular_values_: Array
    noise_variance_: float
    n_samples_: int | float
    scale_: Array | None = None
    scores_: Array | None = None
    feature_names_in_: NDArray[Any] | None = None
    covariance_: Array | None = None
    factors_: Array | None = None
    adjustment_: Adjustment | None = None
    moments_: SecondMoments | None = None
    own_components_: dict[str, Array] | None = None
    log: dict[str, Any] = field(default_factory=dict)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Complete and return a log that `leave_log_open` has left open; a model lacks nothing else."""
            if name != "log" or "_open_log" not in vars(self):
                return self.__getattribute__(name)  # which raises
            log, complete = vars(self)["_open_log"]
            complete()
            vars(self)["log"] = log
            vars(self).pop("_open_log", None)
            return log

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes for a pickle or a copy, with a complete log: neither holds what completes it."""
        return {"log": self.log, **vars(self)}

    @property
    def n_components_(self) -> int:
        """Number of components."""
        return self.explained_variance_.size

    @property
    def n_features_in_(self) -> int:
        """Number of features, of all parties if the parties hold different columns."""
        if self.components_ is None:
            return sum(party["features"] for party in open_log(self)["parties"])
        return int(self.components_.shape[1])

    @property
    def rounds(self) -> int:
        """Number of rounds of the fit, without the phase "project", in which parties project their own rows."""
        return len(self._fit_rounds)

    @property
    def bytes_up(self) -> int:
        """Bytes that all parties sent in the fit, without the phase "project", Flower's envelope and TLS."""
        return sum(self.bytes_up_by_party)

    @property
    def bytes_up_by_party(self) -> list[int]:
        """Bytes that each party sent in the fit (without the phase "project"), in order of the partitions."""
        return [sum(sent) for sent in zip(*(entry["up"] for entry in self._fit_rounds), strict=True)]

    @property
    def bytes_down(self) -> int:
        """Bytes that all parties received, also in the phase "project", in which parties project their own rows."""
        return sum(sum(entry["down"]) for entry in open_log(self).get("rounds", []))

    @property
    def _fit_rounds(self) -> list[dict[str, Any]]:
        """Log entries of all rounds except those of the phase "project", in which parties project their own rows."""
        return [entry for entry in open_log(self).get("rounds", []) if entry["phase"] != "project"]

    def loadings(self) -> tuple[Array, Array]:
        """Return the components (k, d) and the mean (d,), or raise a ContractError if only the parties have them."""
        if self.components_ is None or self.mean_ is None:
            raise ContractError(
                f"the run of '{self.log.get('method', '')}' leaves the loadings with the parties: in a blind run each "
                "has the model (node-config 'model'); with data split by columns each has those of its own columns, "
                "so use 'scores_', or let every party compute its part of new scores (fedpca_flwr.model.loadings)"
            )
        return self.components_, self.mean_

    @property
    def total_variance(self) -> float:
        """Sum of the variances of all features (divisor n - 1), inside and outside the components."""
        first, share = float(self.explained_variance_[0]), float(self.explained_variance_ratio_[0])
        if share > 0:
            return first / share
        remaining = min(max_row_count(self.n_samples_), self.n_features_in_) - self.n_components_
        return float(self.explained_variance_.sum()) + remaining * self.noise_variance_

    @property
    def divisor(self) -> float:
        """Number by which the scatter was divided for the variances: n - 1, or n if the run's option says so."""
        by_rows = open_log(self).get("options", {}).get("divisor") == "n"
        return self.n_samples_ if by_rows else self.n_samples_ - 1

    @property
    def squared_error(self) -> float:
        """Expected squared error of a row after projection: the variance outside the components, divisor n."""
        remaining = self.total_variance - float(self.explained_variance_.sum())
        return float(np.maximum(remaining, 0.0)) * self.divisor / self.n_samples_

    def aligned(self, X: ArrayLike) -> Rows:
        """Return rows (n, d) in the order of the model's features, matched by name, or raise a DataError.

        Declared categories become indicators; a level that the model does not know counts as 'other', with a warning.
        """
        names = () if self.feature_names_in_ is None else tuple(self.feature_names_in_)
        levels = open_log(self).get("levels", {})
        table: Any = X
        if levels and column_names(X) and not set(indicator_names(levels)) <= set(column_names(X)):
            table = encoded(X, levels, "X")
            if unknown_cells := count_other_cells(table, levels):
                text = f"X has {unknown_cells} cells of levels that the model does not know: they count as 'other'"
                warnings.warn(text, UserWarning, stacklevel=3)
        return align_rows(table, self.n_features_in_, names, digest=open_log(self).get("columns", ""))

    def centred(self, X: ArrayLike) -> Array:
        """Return rows (n, d) after the run's `transform`, minus the mean, over the scale, with missing values filled.

        Raise DataError for other columns, infinity, text, and values that the model cannot fill or transform.
        """
        return self._centre_rows(self.aligned(X))

    def _centre_rows(self, aligned: Rows, *, keep_gaps: bool = False) -> Array:
        """Centre aligned rows as `centred` does; with ``keep_gaps`` only a model of `em` fills missing values.

        A category that no row of the run lacks is a gap then. Raise ContractError if the run harmonised the parties.
        """
        _, mean = self.loadings()
        options = open_log(self).get("options", {})
        of_genotypes = bool(options.get("genotypes"))
        incomplete = of_genotypes or keep_gaps or self.covariance_ is not None or self.factors_ is not None
        names = () if self.feature_names_in_ is None else self.feature_names_in_.tolist()
        rows = finite_matrix(aligned, mean.size, "X", names, incomplete=incomplete)
        if step := open_log(self).get("transform"):
            rows = transform_array(rows, step, names)
        centred: Array = np.subtract(rows, mean, dtype=np.float64)
        if self.covariance_ is not None or self.factors_ is not None:
            from fedpca_flwr.maths.incomplete_rows import fill_rows  # of models of `em` only

            centred = fill_rows(centred, self.covariance_, self.factors_)
        elif keep_gaps:
            last = mean.size
            for declared in reversed(open_log(self).get("levels", {}).values()):
                first, last = last - len(declared) - 2, last - 1
                if mean[last] == 0:  # the indicator of missing cells, which the run had none of
                    centred[rows[:, last] == 1, first : last + 1] = np.nan
                last = first
        elif of_genotypes:
            centred = np.nan_to_num(centred)
        if self.adjustment_ is not None:
            if np.isnan(centred[:, self.adjustment_.covariate_columns]).any():
                raise DataError("rows of X have gaps in covariates ('adjust-for'): fill or drop these rows first")
            harmonised = options.get("harmonise", "nothing")
            if harmonised != "nothing":
                raise ContractError(
                    f"the run took out what differs between the parties (harmonise='{harmonised}'), so new rows are a "
                    "party's: each projects its own by the file of its 'loadings' (fedpca_flwr.model.loadings)"
                )
            centred = self.adjustment_.residuals(centred)
        return centred if self.scale_ is None else centred / self.scale_

    def transform(self, X: ArrayLike) -> Array:
        """Compute the scores (n, k) of rows (n, d), in chunks: the centred and scaled rows times the components.

        Raise DataError as `centred`, and ContractError if the loadings lie at the parties.
        """
        components, _ = self.loadings()
        return np.vstack([self._centre_rows(part) @ components.T for part in chunks(self.aligned(X))])

    def seen_scores(self, X: ArrayLike) -> tuple[Array, Array]:
        """Compute the scores (n, k) of rows (n, d) with gaps (NaN) from what they have, and their standard errors.

        A model of `em` fills the gaps, and its errors are 0. Raise DataError as `centred`, but of gaps for covariates
        alone.
        """
        from fedpca_flwr.maths.incomplete_rows import least_squares_scores  # of new rows only

        components, _ = self.loadings()
        centred = (self._centre_rows(part, keep_gaps=True) for part in chunks(self.aligned(X)))
        scores, errors = zip(*(least_squares_scores(rows, components) for rows in centred), strict=True)
        return np.vstack(scores), np.vstack(errors)

    def inverse_transform(self, scores: ArrayLike) -> Array:
        """Compute rows (n, d) in the units of the data from their scores (n, k): scores times components plus mean.

        The inverse of the run's `transform` follows: of 'sqrt' with negative roots as 0, and of 'clr', which loses the
        sum of each row, with a sum of 1. Raise DataError unless the scores are finite numbers in k columns,
        ContractError if only parties have loadings.
        """
        components, mean = self.loadings()
        rows = finite_matrix(scores, self.n_components_, "scores") @ components
        if self.scale_ is not None:
            rows *= self.scale_
        if step := open_log(self).get("transform"):
            return TRANSFORMS[step].inverse(rows + mean)
        return rows + mean

    @property
    def shrinkage_(self) -> Array:
        """Size of new rows' scores over that of fitted rows' scores (k,); NaN for components that are noise."""
        from fedpca_flwr.maths.inference import score_shrinkage  # a run with more rows than features needs none of it

        components, _ = self.loadings()
        first, share = float(self.explained_variance_[0]), float(self.explained_variance_ratio_[0])
        if np.isnan(share):
            return np.full(self.n_components_, np.nan)
        total = first / share if share > 0 else 0.0
        return score_shrinkage(self.explained_variance_, total, self.n_samples_, int(components.any(axis=0).sum()))


def leave_log_open(model: FittedPCA, complete: Callable[[], None]) -> None:
    """Let a model call ``complete``, which fills in its log, when the log is first read, saved, pickled or copied."""
    vars(model)["_open_log"] = vars(model).pop("log"), complete


def open_log(model: FittedPCA) -> dict[str, Any]:
    """Return a model's log as the run left it; numbers of the parties' influence may be open."""
    log: dict[str, Any] = vars(model)["_open_log"][0] if "_open_log" in vars(model) else model.log
    return log
