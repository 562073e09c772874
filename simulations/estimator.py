"""`FederatedPCA`: a run as a scikit-learn estimator, for pipelines and searches."""

import re
from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.decomposition import PCA
from sklearn.pipeline import Pipeline
from sklearn.utils import Tags, _safe_indexing
from sklearn.utils._set_output import _get_output_config
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
from typing_extensions import override

from fedpca_flwr.data.frames import as_array, as_rows, is_frame, is_table, open_frame
from fedpca_flwr.data.table import Table, labels_text
from fedpca_flwr.errors import ConfigError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.second_moments import SecondMoments
from fedpca_flwr.model.tables import import_pandas
from fedpca_flwr.protocol.card import MethodCard, MomentsOptions
from fedpca_flwr.simulations.engines import run
from fedpca_flwr.simulations.parties import is_name, read_parties
from fedpca_flwr.simulations.python_words import RunSignature, in_words_of_python, run_keywords
from fedpca_flwr.strategies import METHODS

# what a fitted estimator has of its model
SPECTRUM = ("explained_variance_", "explained_variance_ratio_", "singular_values_", "noise_variance_")
FITTED = ("components_", *SPECTRUM, "mean_", "n_components_", "n_samples_", "scale_")
# options of which a run computes more than moments of rows as they are
FIT_ONLY_OPTIONS = ("genotypes", "adjust-for", "harmonise", "clusters")


class FederatedPCA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]  # no types
    """Principal components of the rows that several parties hold, by a method for rows.

    Parameters
    ----------
    n_components : int, float, "auto" or None
        Number of components. Some methods also take the fraction of the variance that the components must exceed, or
        "auto": the components that stand out of the noise. None stands for the smaller of the numbers of rows and
        features.
    method : str
        Name of a method in `fedpca_flwr.METHODS`, alone or with its options, such as ``"sub-it block-size=10"``.
    engine : {"loopback", "ray"}
        "loopback" runs in this process, "ray" in Flower's simulation.
    whiten : bool
        Divide scores by their standard deviations, here and in `to_sklearn`; ``model_`` and its file do not have it.
    **options
        Options of the method and keys of the run, as of `run`, such as ``scale=True``. Default Ellipsis: the method's.

    Attributes
    ----------
    model_ : PCAModel
        Model of the run, with its log of bytes, rounds, notes and certificates. ``model_.save(path)`` writes it to a
        file that `PCAModel.load` reads.
    components_, mean_, explained_variance_, explained_variance_ratio_, singular_values_, noise_variance_, scale_
        Attributes as in `PCAModel`; float32 if all rows are float32.
    n_components_, n_features_in_, n_samples_, feature_names_in_
        Attributes as in scikit-learn.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca_flwr import FederatedPCA
    >>> rows = np.random.default_rng(0).standard_normal((300, 6)) * [6, 5, 4, 3, 2, 1]
    >>> FederatedPCA(n_components=2).fit([rows[:200], rows[200:]]).components_.shape
    (2, 6)
    >>> sites = np.repeat(["north", "south"], 150)
    >>> FederatedPCA(n_components=2).fit_transform(rows, groups=sites).shape
    (300, 2)
    >>> from sklearn.model_selection import cross_val_score  # whose own ``groups`` go to the splitter
    >>> from sklearn.pipeline import make_pipeline
    >>> cross_val_score(make_pipeline(FederatedPCA(2)), rows, params={"federatedpca__groups": sites}).shape
    (5,)
    """

    def __init__(
        self,
        n_components: int | float | str | None = None,
        *,
        method: str = "p-cov",
        engine: str = "loopback",
        whiten: bool = False,
        **options: Any,
    ) -> None:
        """Store the parameters unchanged, as scikit-learn requires."""
        self.n_components = n_components
        self.method = method
        self.engine = engine
        self.whiten = whiten
        self._options = options

    __signature__ = RunSignature([*signature(__init__).parameters.values()][1:])

    @override
    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters, and the options that were given, by name."""
        return {**super().get_params(deep), **self._options}

    @override
    def set_params(self, **params: Any) -> Self:
        """Set parameters and options; raise ConfigError for a name that is no parameter and no keyword of a run."""
        own = {name: params.pop(name) for name in self._get_param_names() if name in params}
        options = {name: params.pop(name) for name in params.keys() & {*run_keywords(), *self._options}}
        if params:
            names = f"it has {labels_text(self._get_param_names())}, the options of its method and the keys of a run"
            raise ConfigError(f"FederatedPCA has no parameter {labels_text([*params])}: {names}")
        self._options = {**self._options, **options}
        return super().set_params(**own)  # type: ignore[no-any-return]

    def fit(self, X: Any, y: object = None, *, groups: ArrayLike | None = None) -> Self:
        """Fit the PCA to the rows of all parties, by a run of the method.

        Parameters
        ----------
        X : list or mapping of tables, or one table of shape (n, d)
            Tables of the parties (arrays, data frames, sparse matrices or files), in a list or a mapping by the names
            of the parties; or one table of all rows, which ``groups`` divides among the parties.
        y : object
            Ignored.
        groups : array-like of shape (n,), optional
            Party of each row of a single table. None stands for one party with all rows.

        Returns
        -------
        FederatedPCA

        Raises
        ------
        FedPCAError, ValueError
            If the run or a party refuses something; if a table is not what scikit-learn accepts.
        """
        parties = self._parties(X := read_parties(X), groups, partial=False)
        self._moments: SecondMoments | None = None
        target = _max_components(parties) if self.n_components is None else self.n_components
        self._set_fitted(self._run(parties, target), parties)
        return self

    @available_if(lambda self: issubclass(self._card().options, MomentsOptions))  # type: ignore[untyped-decorator]
    def partial_fit(self, X: Any, y: object = None, *, groups: ArrayLike | None = None) -> Self:
        """Update the components by further rows, whose moments are added to those of earlier calls.

        Only methods that leave the moments of all rows have it (``p-cov``). `fit` keeps no moments: its rows have no
        part in what follows, and a note says so.

        Parameters
        ----------
        X, y, groups
            As of `fit`.

        Returns
        -------
        FederatedPCA

        Raises
        ------
        FedPCAError, ValueError
            As `fit`, and for options with which a run computes more than moments.
        """
        earlier: SecondMoments | None = getattr(self, "_moments", None)
        after_fit = earlier is None and hasattr(self, "model_")
        parties = self._parties(read_parties(X), groups, partial=True)
        result = self._run(parties, 1, keep="moments")
        moments, options = result.moments_, result.log["options"]
        refused = [key for key in FIT_ONLY_OPTIONS if options.get(key, "nothing") not in (False, "", "nothing")]
        refused += [key for key in ("levels", "transform") if result.log.get(key)]
        if refused:
            names = labels_text(refused).replace("-", "_")
            raise ConfigError(f"partial_fit adds moments of rows as they are, and takes no {names}: use fit")
        assert moments is not None
        log = {key: result.log[key] for key in ("method", "columns", "parties", "rounds")}
        if earlier is not None:
            is_reordered = moments.features and set(moments.features) == set(earlier.features)
            moments = earlier.merge(moments.select(earlier.features) if is_reordered else moments)
            for key in ("parties", "rounds"):
                log[key] = [*self.model_.log[key], *log[key]]
        target = self.n_components
        model = PCAModel.of_moments(
            moments.moments,
            log,
            n_components=min(moments.n_samples, moments.n_features) if target is None else target,
            center=options["center"],
            scale=options["scale"],
            error_bound=moments.error_bound,
        )
        self._set_fitted(model.named(moments.features), parties)
        self._moments = moments
        if after_fit:
            self.model_.log["notes"].append("rows of an earlier 'fit' have no part: it keeps no moments to add to")
        return self

    def transform(self, X: Any) -> Any:
        """Compute the scores of rows; the scores of several parties are stacked.

        Parameters
        ----------
        X : table of shape (n, d), or a list or mapping of tables

        Returns
        -------
        array or data frame of shape (n, k)
            Scores, in the order of the parties. A data frame if `set_output` says so.
        """
        check_is_fitted(self)
        if parties_in(X):
            tables = tables_of(X)
            scores = np.vstack([self._scores(party) for party in tables])
            indexes = [getattr(table, "index", None) for table in tables if hasattr(type(table), "iloc")]
            if len(indexes) < len(tables) or _get_output_config("transform", self)["dense"] != "pandas":
                return scores
            index = indexes[0].append(indexes[1:])  # type: ignore[union-attr]  # of pandas
            return import_pandas().DataFrame(scores, index=index, columns=self.get_feature_names_out())
        table = _for_scikit_learn(X)
        if not _is_labelled_array(table):  # which scikit-learn does not know; the model checks its names
            finite = "allow-nan" if self._card().incomplete else True
            _validate(self, table, reset=False, accept_sparse=True, ensure_all_finite=finite)
        return self._scores(table)

    def _scores(self, table: Any) -> Array:
        """Return the scores (n, k) of a single table, in float32 if the table and the components are float32."""
        scores = self.model_.transform(table)
        if self.whiten:
            scores = scores / self._deviations()
        return scores.astype(np.float32) if self.components_.dtype == np.float32 and _is_single(table) else scores

    def _deviations(self) -> Array:
        """Return the standard deviations (k,) of the scores, at least float64's epsilon."""
        return np.maximum(np.sqrt(self.model_.explained_variance_), np.finfo(np.float64).eps)

    def inverse_transform(self, X: ArrayLike) -> Array:
        """Compute the rows, in the units of the data, that have the given scores.

        Parameters
        ----------
        X : array-like of shape (n, k)

        Returns
        -------
        ndarray of shape (n, d)
        """
        check_is_fitted(self)
        rows = self.model_.inverse_transform(np.asarray(X) * self._deviations() if self.whiten else X)
        return rows.astype(np.float32) if self.components_.dtype == np.float32 and _is_single(X) else rows

    def to_sklearn(self) -> PCA | Pipeline:
        """Convert the estimator to scikit-learn's fitted PCA, as `PCAModel.to_sklearn`, with its own `whiten`.

        Returns
        -------
        sklearn.decomposition.PCA or sklearn.pipeline.Pipeline
        """
        check_is_fitted(self)
        converted = self.model_.to_sklearn()
        (converted if isinstance(converted, PCA) else converted[-1]).whiten = self.whiten
        return converted

    def score_samples(self, X: Any) -> Array:
        """Compute log-likelihoods of rows under the probabilistic model, as scikit-learn's (Tipping and Bishop 1999).

        Parameters
        ----------
        X : table of shape (n, d), or a list or mapping of tables
            Rows, in the order of the parties.

        Returns
        -------
        ndarray of shape (n,)
            Log-likelihoods. They are NaN if no component of a private run stands out of the noise.
        """
        check_is_fitted(self)
        if parties_in(X):
            return np.concatenate([self.score_samples(party) for party in tables_of(X)])
        if np.isnan(self.model_.explained_variance_).any():  # none stands out of the noise: no likelihood is known
            return np.full(len(self.transform(X)), np.nan)  # or X is refused
        result: Array = self._probabilistic().score_samples(self.model_.centred(X))
        return result

    def score(self, X: Any, y: object = None) -> float:
        """Compute the mean log-likelihood of all rows under the probabilistic model.

        Parameters
        ----------
        X : table of shape (n, d), or a list or mapping of tables
        y : object
            Ignored.

        Returns
        -------
        float
        """
        return float(np.mean(self.score_samples(X)))

    def get_covariance(self) -> Array:
        """Return the covariance of the features, in the units of the data, under the probabilistic model.

        Returns
        -------
        ndarray of shape (d, d)
        """
        check_is_fitted(self)
        return self._in_units(self._probabilistic().get_covariance())

    def get_precision(self) -> Array:
        """Return the inverse of the features' covariance under the probabilistic model.

        Returns
        -------
        ndarray of shape (d, d)
        """
        check_is_fitted(self)
        return self._in_units(self._probabilistic().get_precision(), power=-1)

    def _in_units(self, matrix: Array, power: int = 1) -> Array:
        """Multiply each entry (i, j) of a matrix by ``(scale[i] * scale[j]) ** power``, in the components' dtype."""
        scale = self.model_.scale_
        result: Array = matrix if scale is None else matrix * np.outer(scale, scale) ** power
        return result.astype(self.components_.dtype, copy=False)

    def _probabilistic(self) -> PCA:
        """Return scikit-learn's PCA with this model's components, for rows already centred and scaled."""
        model = self.model_
        pca = PCA(n_components=model.n_components_, whiten=self.whiten)
        for name in ("components_", "explained_variance_", "noise_variance_", "n_components_", "n_features_in_"):
            setattr(pca, name, getattr(model, name))
        pca.components_, pca.mean_ = model.loadings()[0], np.zeros(model.n_features_in_)
        return pca

    def _run(self, parties: Any, n_components: int | float | str, **options: Any) -> PCAModel:
        """Run the method on the parties with the estimator's options, and return the model."""
        options = {"min_rows": 1, **self._options, **options}
        return run(self.method, parties, n_components=n_components, engine=self.engine, **options)

    def _set_fitted(self, model: PCAModel, parties: Any) -> None:
        """Set scikit-learn's fitted attributes by a model; in float32 if all parties' tables are float32."""
        self.model_ = model
        single = all(map(_is_single, tables_of(parties)))
        for name in FITTED:
            value = getattr(model, name)
            is_float = single and name != "n_samples_" and getattr(value, "dtype", None) == np.float64
            setattr(self, name, value.astype(np.float32) if is_float else value)
        self._n_features_out, self.n_features_in_ = model.n_components_, model.n_features_in_
        self.__dict__.pop("feature_names_in_", None)  # of an earlier fit
        if model.feature_names_in_ is not None:
            self.feature_names_in_ = model.feature_names_in_

    def __sklearn_tags__(self) -> Tags:
        """Return scikit-learn's tags: sparse rows are allowed, and NaN if the method takes missing values."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = self._card().incomplete
        return tags

    def _card(self) -> MethodCard:
        """Return the method's card (its options and properties); raise ConfigError for a method for columns."""
        with in_words_of_python():
            card = METHODS.parse_method(self.method).strategy.card
        if card.split == "columns":
            raise ConfigError(
                f"method '{card.name}' is for parties that hold columns and keep their loadings: nothing is left "
                "to transform rows with; use fedpca_flwr.run, and its model's 'scores_'"
            )
        return card

    def _parties(self, X: Any, groups: ArrayLike | None, *, partial: bool) -> Any:
        """Return the tables of a fit by party; a ``partial`` fit checks a single table against earlier features."""
        card = self._card()
        if parties_in(X):
            if groups is not None:
                raise ConfigError("'X' is a list of parties and 'groups' is given too; groups are of one table's rows")
            return X
        return self._split(_for_scikit_learn(X), groups, card, first=not (partial and hasattr(self, "model_")))

    def _split(self, X: Any, groups: ArrayLike | None, card: MethodCard, *, first: bool) -> Any:
        """Split a table's rows by party label, into a mapping if all labels are valid party names, else a list."""
        validated = X
        if not _is_labelled_array(X):
            rules = {"ensure_all_finite": "allow-nan" if card.incomplete else True, "accept_sparse": ["csr"]}
            validated = _validate(self, X, reset=first, ensure_min_samples=2 if first else 1, **rules)
        table = X if is_frame(X) else validated  # a data frame's names travel with it
        if groups is None:
            return [table]
        labels = column_or_1d(np.asarray(groups)).tolist()
        rows = validated.shape[0]
        if len(labels) != rows:
            raise ConfigError(f"'groups' has {len(labels)} labels, but there are {rows} rows; give one for each")
        unlabelled = [place for place, label in enumerate(labels) if not _is_label(label)]
        if unlabelled:
            raise ConfigError(
                f"'groups' names no party for {len(unlabelled)} of {len(labels)} rows, the first of them row "
                f"{unlabelled[0]} (None or NaN); give each row the party that holds it, or leave these rows out"
            )
        places: dict[Any, list[int]] = {}
        for place, label in enumerate(labels):
            places.setdefault(label, []).append(place)
        ordered = sorted(places, key=lambda label: (type(label).__name__, label))
        select = type(table).__getitem__ if _is_labelled_array(table) else _safe_indexing
        parts = [select(table, np.array(places[label])) for label in ordered]
        return dict(zip(ordered, parts, strict=True)) if all(map(is_name, ordered)) else parts


# parts of scikit-learn's errors that quote the data: an array that is no table, complex numbers, a text
QUOTED_VALUES = re.compile(
    r"\narray=.*(?=\nReshape)|(?<=Complex data not supported)\n.*|(?<=could not convert string to float): .*", re.DOTALL
)


def _validate(estimator: FederatedPCA, table: Any, **options: Any) -> Any:
    """Validate a table as scikit-learn's `validate_data`; raise ValueError, whose text quotes no value of the table."""
    options |= {"dtype": None, "ensure_all_finite": False} if is_frame(table) else {}  # whose columns a run names
    try:
        return validate_data(estimator, table, **options)
    except ValueError as error:
        raise ValueError(QUOTED_VALUES.sub("", str(error))) from None


def _is_label(label: object) -> bool:
    """Return whether a label names a party: not None, nor NaN in any of its kinds (pandas' ``NA`` and ``NaT`` too)."""
    return label is not None and type(label).__name__ not in {"NAType", "NaTType"} and label == label


def parties_in(X: object) -> bool:
    """Return whether ``X`` is a list or mapping of tables, a table for each party, and not a single table."""
    tables = tables_of(X)
    return bool(tables) and all(map(is_table, tables))


def tables_of(X: object) -> Sequence[Any]:
    """Return the tables in a list or mapping of tables; an empty sequence for any other object."""
    if isinstance(X, Mapping):
        return list(X.values())
    return X if isinstance(X, list | tuple) and not is_table(X) else ()


def _max_components(parties: object) -> int:
    """Return the smaller of the number of all parties' rows, for which blocks may be read, and that of features."""
    shapes = [(len(rows), rows.shape[1]) for rows in (as_rows(table, "X") for table in tables_of(parties))]
    return int(min(sum(rows for rows, _ in shapes), shapes[0][1]))


def _for_scikit_learn(X: Any) -> Any:
    """Return a frame, if lazy then collected, in its own library, a `Table` as a frame or array; others unchanged."""
    if isinstance(X, Table):
        return import_pandas().DataFrame(as_array(X, "X"), columns=X.names) if X.names else as_array(X, "X")
    frame = open_frame(X)
    values = frame.values() if frame is not None and not _is_labelled_array(X) else None
    return X if values is None else values.to_native()


def _is_labelled_array(X: Any) -> bool:
    """Return whether ``X`` is an array with labels (AnnData or xarray), which is no data frame."""
    return hasattr(type(X), "var_names") or (hasattr(type(X), "dims") and hasattr(type(X), "coords"))


def _is_single(table: Any) -> bool:
    """Return whether all numbers of a table are float32 (single precision)."""
    if not _is_labelled_array(table) and (frame := open_frame(table)) is not None:
        return all(dtype == "Float32" for dtype in map(str, frame.values().schema.values()))
    values = table.rows if isinstance(table, Table) else table.X if hasattr(type(table), "var_names") else table
    return getattr(values, "dtype", None) == np.float32
