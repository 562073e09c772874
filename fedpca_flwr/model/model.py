"""`PCAModel`: the result of every run, with scikit-learn's names and meanings, and a log of the run that made it."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpca_flwr.data.transforms import TRANSFORMS
from fedpca_flwr.errors import ContractError, printable_text
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.moments import Moments
from fedpca_flwr.model.fitted import FittedPCA, leave_log_open, open_log
from fedpca_flwr.model.notes import name_notes, undivided_notes
from fedpca_flwr.model.solution import SCALE_REMEDY, Solution, certainty, solve, undivided_features, variance_fields

if TYPE_CHECKING:
    import pandas
    from sklearn.decomposition import PCA
    from sklearn.frozen import FrozenEstimator
    from sklearn.pipeline import Pipeline


@dataclass(frozen=True, eq=False)
class PCAModel(FittedPCA):
    """Principal components of all parties' rows together.

    Parameters
    ----------
    components_ : ndarray of shape (k, d) or None
        Components in the rows, by descending variance. The largest absolute loading of each component is positive.
        None if the parties hold different columns, because each party keeps the loadings of its own columns
        (`fedpca_flwr.model.loadings`). At the server of a blind run the shape is (0, d), because only the parties
        have the components.
    mean_ : ndarray of shape (d,) or None
        Mean of all rows; zero if the run has ``center=false``. None if ``components_`` is None or empty.
    explained_variance_ : ndarray of shape (k,)
        Variances of the components (divisor n - 1), in squared units of the data after scaling. If no component of a
        private model stands out of its noise, they are NaN, like the shares, singular values and noise below.
    explained_variance_ratio_ : ndarray of shape (k,)
        Variances of the components as shares of the total variance of all features.
    singular_values_ : ndarray of shape (k,)
        Singular values of the components, as in scikit-learn.
    noise_variance_ : float
        Mean of the min(n, d) - k variances outside the components (Tipping and Bishop 1999), as in scikit-learn.
    n_samples_ : int or float
        Number of rows of all parties, or the sum of the weights if rows have weights.
    scale_ : ndarray of shape (d,) or None
        Divisors of the centred features with ``scale=true``: standard deviations, and 1 for features that do not
        vary. None without scaling.
    scores_ : ndarray of shape (n, k) or None
        Scores of the parties' common rows if the parties hold different columns, in the order of the rows (with an id
        column, in the order of the ids' digests). The largest absolute score of each component is positive.
    feature_names_in_ : ndarray of shape (d,) or None
        Names of the features, if the run (key `features`) or its caller (data frames) has names. Sites send only a
        digest of the names.
    covariance_ : ndarray of shape (d, d) or None
        Covariance in the unit of the data, from which expected values of missing values follow. None unless rows may
        have missing values.
    factors_ : ndarray of shape (q + 1, d) or None
        Loadings of q factors, and the noise variances in the last row: a model with factors has these instead of
        ``covariance_``.
    adjustment_ : Adjustment or None
        Regression on covariates, which the model subtracts from centred rows (``adjust_for``). New rows need the
        covariates too.
    moments_ : SecondMoments or None
        Moments of all rows, if the run kept them (``keep="moments"``). `save` does not write the moments, because they
        tell far more than the model. They have a file of their own (`SecondMoments.save`).
    own_components_ : dict of str to ndarray of shape (k, d), or None
        Components of each party by its name (or "party 0", "party 1"), if `fedpca_flwr.run` simulated a method whose
        parties have components of their own. In a real run these stay with the parties, in the file that a site's key
        `loadings` names. `save` does not write them.
    log : dict
        Log of the run: ``method``, ``exact``, ``columns`` (digest of the features' names at the sites, for checks of
        new rows), ``transform`` (of rows, if any), ``parties``, ``rounds`` (bytes and seconds of each round), ``notes``
        (texts for the reader of the model), and ``measured`` (numbers, see ``docs/measurements.md``). If the server
        sees the parties' moments, the log also has ``influence`` (of each party, see
        `fedpca_flwr.maths.influence.Influence`) and, if a party has other units, ``other_units`` (see
        `fedpca_flwr.model.notes.unit_notes`).
    """

    @classmethod
    def of(cls, solution: Solution, log: dict[str, Any]) -> PCAModel:
        """Make a model from a method's solution (eigenpairs, mean and scale) and the log of the run.

        The log gets a note on features that were to be scaled and were not.

        Parameters
        ----------
        solution : Solution
        log : dict

        Returns
        -------
        PCAModel
        """
        pairs, adjustment = solution.pairs, solution.adjustment
        features = len(pairs.vectors) - (0 if adjustment is None else adjustment.covariate_columns.size)
        if log["options"].get("scale"):
            log["notes"] += undivided_notes(undivided_features(solution.scale, adjustment, log.get("levels", {})), ())
        return cls(
            components_=np.ascontiguousarray(pairs.vectors.T),
            mean_=solution.mean,
            scale_=solution.scale,
            adjustment_=adjustment,
            log=log,
            **variance_fields(pairs.values, solution.total, solution.rows, features, solution.divisor),
        )

    @classmethod
    def of_moments(
        cls,
        moments: Moments,
        log_entries: Mapping[str, Any],
        *,
        n_components: int | float | str,
        center: bool,
        scale: bool,
        indicators: Sequence[int] = (),
        divisor: Literal["n-1", "n"] = "n-1",
        error_bound: Array | float = 0.0,
    ) -> PCAModel:
        """Make the PCA model of pooled moments, equal to the result of the exact method `p-cov` on their rows.

        Parameters
        ----------
        moments : Moments
            Moments of all rows.
        log_entries : mapping
            Entries of the log that do not follow from the moments: ``method``, ``columns``, ``parties``, ``measured``.
        n_components : int, float or str
            Number of components, fraction of the variance, or "auto" (see `fedpca_flwr.model.solution.solve`).
        center : bool
            Subtract the mean.
        scale : bool
            Divide each feature by its standard deviation (divisor n).
        indicators : sequence of int, default ()
            Positions of the indicators of levels, which have a unit of their own.
        divisor : {"n-1", "n"}
            Number by which the scatter is divided for the variances.
        error_bound : ndarray of shape (d,) or float, default 0.0
            Bound on the amount by which fixed-point rounding reduced the diagonal of the scatter.

        Returns
        -------
        PCAModel

        Raises
        ------
        ConfigError, DataError
            As `fedpca_flwr.model.solution.solve`.
        """
        how: dict[str, Any] = {"n_components": n_components, "center": center, "scale": scale}
        solution = replace(solve(moments, moments.diagonal(), indicators=indicators, **how), divisor=divisor)
        rounded = float(np.sum(error_bound if solution.scale is None else error_bound / solution.scale**2))
        pairs = replace(solution.pairs, error=rounded, rank=None if rounded else solution.pairs.rank)
        assessment = certainty(pairs, exact=True, remedies=[] if scale else [SCALE_REMEDY])
        share = {"fixed_point_variance_share": rounded / solution.total} if rounded else {}
        log = {
            **log_entries,
            "exact": assessment.exact,
            "options": {"n-components": n_components, "center": center, "scale": scale, "divisor": divisor},
            "rounds": [],
            "measured": {**solution.measurements, **share, **log_entries.get("measured", {})},
            "notes": [*solution.notes, *assessment.notes],
        }
        return cls.of(replace(solution, pairs=pairs), log)

    @classmethod
    def of_scores(cls, scores: Array, values: Array, *, total: float, features: int, log: dict[str, Any]) -> PCAModel:
        """Make the model of data split by columns from the scores of the shared rows, without loadings.

        Parameters
        ----------
        scores : ndarray of shape (n, k)
        values : ndarray of shape (k,)
            Sums of the squared scores, which are the leading eigenvalues of ``X X'``.
        total : float
            Trace of ``X X'``.
        features : int
            Number of columns of all parties.
        log : dict

        Returns
        -------
        PCAModel
        """
        variances = variance_fields(values, total, len(scores), features)
        return cls(components_=None, mean_=None, scores_=scores, log=log, **variances)

    def to_sklearn(self) -> PCA | Pipeline:
        """Convert the model to scikit-learn's fitted PCA, after steps for the run's `transform` and scaled features.

        Returns
        -------
        sklearn.decomposition.PCA or sklearn.pipeline.Pipeline
            With ``scale_`` a pipeline of a `StandardScaler` and a `PCA`; a `FunctionTransformer` comes first if the run
            had a `transform`.

        Raises
        ------
        ContractError
            If the loadings lie at the parties, or the model has an ``adjustment_``.
        """
        # Here, for a party's sake: its SuperNode starts a process for every message, and this import takes seconds.
        from sklearn.decomposition import PCA
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import FunctionTransformer, StandardScaler

        _, mean = self.loadings()
        if self.adjustment_ is not None:
            raise ContractError("scikit-learn's PCA takes no covariates out of rows: use the model's own transform")
        pca = PCA(n_components=self.n_components_)
        for name in ("components_", "explained_variance_", "explained_variance_ratio_", "singular_values_"):
            setattr(pca, name, getattr(self, name).copy())
        for name in ("noise_variance_", "n_samples_", "n_components_", "n_features_in_"):
            setattr(pca, name, getattr(self, name))
        pca.mean_ = mean.copy() if self.scale_ is None else np.zeros_like(mean)
        steps: list[Any] = [pca]
        if self.scale_ is not None:
            scaler = StandardScaler()
            scaler.mean_, scaler.scale_, scaler.var_ = mean.copy(), self.scale_.copy(), self.scale_**2
            scaler.n_samples_seen_, scaler.n_features_in_ = self.n_samples_, self.n_features_in_
            steps.insert(0, scaler)
        if transform := open_log(self).get("transform"):
            function, inverse, *_ = TRANSFORMS[transform]
            step = FunctionTransformer(function, inverse, validate=True, feature_names_out="one-to-one")
            step.n_features_in_ = self.n_features_in_
            steps.insert(0, step)
        if self.feature_names_in_ is not None:
            steps[0].feature_names_in_ = self.feature_names_in_.copy()
        return make_pipeline(*steps) if steps[1:] else pca

    def frozen(self) -> FrozenEstimator:
        """Convert the model to a scikit-learn transformer whose `fit` changes nothing, for pipelines.

        Returns
        -------
        sklearn.frozen.FrozenEstimator
            Transformer with ``set_output`` and all other methods of scikit-learn's transformers.
        """
        from sklearn.frozen import FrozenEstimator

        return FrozenEstimator(self.to_sklearn())

    def get_feature_names_out(self, input_features: ArrayLike | None = None) -> NDArray[Any]:
        """Return the names of the scores, as scikit-learn's PCA does: ``pca0``, ``pca1``.

        Parameters
        ----------
        input_features : array-like of shape (d,), optional
            Names of the features, which must be those of the model.

        Returns
        -------
        ndarray of shape (k,)
        """
        names: NDArray[Any] = self.to_sklearn().get_feature_names_out(input_features)
        return names

    def named(self, names: Sequence[str]) -> PCAModel:
        """Return a copy of the model, and of its moments, with the given names of the features.

        Parameters
        ----------
        names : sequence of str of length d
            Names of the features. If it is empty, the method returns the model unchanged.

        Returns
        -------
        PCAModel
        """
        if not names:
            return self
        moments = self.moments_ and replace(self.moments_, features=tuple(names))
        log = open_log(self)
        log = name_notes(log, undivided_features(self.scale_, self.adjustment_, log.get("levels", {})), names)
        model = replace(self, feature_names_in_=np.array(names, dtype=object), moments_=moments, log=log)
        if "_open_log" in vars(self):
            leave_log_open(model, vars(self)["_open_log"][1])
        return model

    def save(self, path: str | os.PathLike[str], *, private: bool = False) -> Path:
        """Write the model without its moments to an ``.npz`` file, completely or not at all.

        If the model has `moments_`, the method warns that the file does not contain them.

        Parameters
        ----------
        path : str or path
            Path of the file. The method appends ``.npz`` if it is missing.
        private : bool
            Whether only the owner may read the file and the folders that are made for it, as for the model of a blind
            run, which the parties keep from the server.

        Returns
        -------
        Path
        """
        from fedpca_flwr.model import model_file  # texts, tables and files when asked for, as plots in scikit-learn
        from fedpca_flwr.state.files import PRIVATE, SHARED

        if self.moments_ is not None:
            warnings.warn(model_file.MOMENTS_OMITTED_WARNING, UserWarning, stacklevel=2)
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        names = values.pop("feature_names_in_")  # objects, which an array's file cannot hold
        arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
        if (adjustment := self.adjustment_) is not None:
            arrays["adjustment_places"] = adjustment.covariate_columns.astype(np.float64)
            arrays["adjustment_slopes"] = adjustment.slopes
        metadata = {name: values[name] for name in ("noise_variance_", "n_samples_", "log")}
        if names is not None:
            metadata["feature_names_in_"] = list(names)
        return model_file.write(path, arrays, metadata, PRIVATE if private else SHARED)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, most_bytes: int | None = None) -> PCAModel:
        """Read a model from a file that `save` wrote; nothing in the file is executed (no pickle).

        Parameters
        ----------
        path : str or path
        most_bytes : int, optional
            Largest number of bytes to which the file may unpack; by default 4 times its size, and at least 1 GiB. A
            larger file is refused before it is read.

        Returns
        -------
        PCAModel

        Raises
        ------
        DataError, ContractError
            If the file does not exist; if the file does not hold a model, or is too large.
        """
        from fedpca_flwr.maths.adjustment import Adjustment
        from fedpca_flwr.model import model_file

        arrays, metadata, _ = model_file.read(path, most_bytes)
        try:
            if names := metadata.pop("feature_names_in_", None):
                arrays["feature_names_in_"] = np.array(names, dtype=object)
            values: dict[str, Any] = {"components_": None, "mean_": None, **arrays, **metadata}
            if "adjustment_slopes" in arrays:
                covariate_columns = values.pop("adjustment_places").astype(np.int64)
                values["adjustment_"] = Adjustment(covariate_columns, values.pop("adjustment_slopes"))
            return cls(**values)
        except Exception as error:  # what is in the file may be anything
            raise model_file.damaged_file_error(path, error) from None

    def summary(self, *, full: bool = False) -> str:
        """Write three lines: what the model is, how much of the variance it explains, and how sure that is.

        Parameters
        ----------
        full : bool, default False
            Write a line each of method, parties, sizes, traffic, variances, measurements and notes instead.

        Returns
        -------
        str

        Raises
        ------
        ContractError
            If the model has no history.
        """
        from fedpca_flwr.model.summary import summary

        return summary(self, full=full)

    def __repr__(self) -> str:
        """Write the model in a line: method, components, features, rows and share of the variance."""
        method = printable_text(str(open_log(self).get("method", "pooled")))
        share = self.explained_variance_ratio_.sum()
        variance_text = "none above the noise" if np.isnan(share) else f"{share:.2%} of the variance"
        return (
            f"PCAModel({method}: {self.n_components_} components of {self.n_features_in_} features, "
            f"{self.n_samples_} rows, {variance_text})"
        )

    def _repr_html_(self) -> str:
        """Write the model's page in a notebook."""
        from fedpca_flwr.model.summary import model_page

        return model_page(self)

    def loadings_frame(self) -> pandas.DataFrame:
        """Return the loadings as a data frame.

        Returns
        -------
        pandas.DataFrame of shape (d, k)
            A row for each feature, a column for each component (``PC1``, ``PC2``, ...).
        """
        from fedpca_flwr.model.tables import component_labels, import_pandas

        components, _ = self.loadings()
        labels = component_labels(len(components))
        return import_pandas().DataFrame(components.T, index=self.feature_names_in_, columns=labels)

    def table(
        self, *, sort: bool = False, blank: float = 0.0, divisor: Literal["n-1", "n"] = "n-1"
    ) -> pandas.DataFrame:
        """Make a table of the components for a paper, as a data frame of numbers.

        Each feature has a row with its correlations with ``PC1``, ``PC2``, ... and its ``communality``, the sum of
        their squares, if features are scaled by their deviations, or the moments were kept; otherwise the model does
        not know the features' variances, and the row has the loadings. The name of the columns says which. The rows
        ``variance``, ``share of variance`` and ``cumulative share`` follow, and, if the model has intervals, ``95
        percent interval from`` and ``to``. Pandas writes the table as LaTeX, HTML or a sheet of Excel, as in
        ``model.table().to_latex(float_format="%.2f", na_rep="", escape=True)``.

        Parameters
        ----------
        sort : bool, default False
            Order features by the component on which their entry is largest in size, the largest first.
        blank : float, default 0.0
            Entries smaller in size are NaN, which pandas writes as an empty cell.
        divisor : {"n-1", "n"}
            Divisor of the deviations that scale features. With "n-1", as in R, SPSS and JASP, the variances of d scaled
            features sum to d; with "n" they are ``explained_variance_``, as in scikit-learn.

        Returns
        -------
        pandas.DataFrame

        Raises
        ------
        ContractError, ConfigError
            If the loadings lie at the parties; for another divisor, or if pandas is not installed.
        """
        from fedpca_flwr.model.components_table import components_table

        return components_table(self, sort=sort, blank=blank, divisor=divisor)

    def scores_frame(self, parties: Any) -> pandas.DataFrame:
        """Compute the scores of rows as a data frame.

        Parameters
        ----------
        parties : mapping of str to table, list of tables, or one table, of shape (n_i, d)
            Rows of data frames keep their index.

        Returns
        -------
        pandas.DataFrame of shape (n, 1 + k)
            The ``party`` that holds the row, and a column for each component.
        """
        from fedpca_flwr.model.tables import component_labels, import_pandas, tables_by_name

        library, columns = import_pandas(), component_labels(self.n_components_)
        frames = []
        for name, X in tables_by_name(parties, self.log).items():
            index = X.index if hasattr(X, "iloc") else None
            frame = library.DataFrame(self.transform(X), index=index, columns=columns)
            frame.insert(0, "party", name)
            frames.append(frame)
        return library.concat(frames)


def check_squared_error(model: PCAModel, measured: float, predicted: float, tolerance: float) -> None:
    """Log the parties' mean squared error per row and its prediction; ContractError if they differ beyond tolerance."""
    difference = abs(measured - predicted)
    if not (np.isfinite(difference) and difference <= tolerance):  # one is NaN where a party has sent such numbers
        fault = f"their mean squared error is {measured:.9g}, but the eigenvalues say {predicted:.9g}"
        advice = "did a party's data change during the run?"
        raise ContractError(f"the parties' own rows do not fit the model: {fault}; {advice}")
    model.log["measured"] |= {"squared_error_per_row": measured, "predicted_squared_error_per_row": predicted}
