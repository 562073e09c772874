"""`FederatedPCA`: a run as a scikit-learn estimator, for pipelines and searches."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import Tags, _safe_indexing
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from fedpca_flwr.data.frames import is_cells, is_frame
from fedpca_flwr.errors import ConfigError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.rows import Blocks
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.packages import strategies
from fedpca_flwr.protocol.card import MethodCard

from .engines import run
from .parties import is_name
from .python_words import in_words_of_python

FITTED = (
    "components_",
    "explained_variance_",
    "explained_variance_ratio_",
    "mean_",
    "n_components_",
    "noise_variance_",
    "scale_",
    "singular_values_",
)
"""What a fitted estimator has of its model."""


class FederatedPCA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]  # no types
    """Principal components of the rows that several parties hold, by one of the methods for rows.

    Parameters
    ----------
    n_components : int, float, "auto" or None
        How many, or for some methods the fraction of the variance that they must exceed, or those that stand out of
        noise. None: as many as there can be, the smaller of rows and features.
    method : str
        A name in `strategies.METHODS`, and its own options: ``"sub-it block-size=10"``.
    engine : {"loopback", "ray"}
        This process, or Flower's simulation.
    run_options : dict, optional
        What else `run` takes, by name: ``{"secure_aggregation": True, "bound": 100.0}``.

    Attributes
    ----------
    model_ : PCAModel
        The result with all that is known of it: bytes, rounds, notes, certificates.
    components_, mean_, explained_variance_, explained_variance_ratio_, singular_values_, noise_variance_, scale_
        As in `PCAModel`.
    n_components_, n_features_in_, feature_names_in_
        As in scikit-learn.

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
    """

    def __init__(
        self,
        n_components: int | float | str | None = None,
        *,
        method: str = "p-cov",
        engine: str = "loopback",
        run_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.n_components = n_components
        self.method = method
        self.engine = engine
        self.run_options = run_options

    def fit(self, X: Any, y: object = None, *, groups: ArrayLike | None = None) -> Self:
        """Find the components of all rows.

        Parameters
        ----------
        X : list or mapping of tables, or one table of shape (n, d)
            A list of arrays, data frames or sparse matrices, or a mapping from names to these: one party each. One
            table: all rows, which ``groups`` puts to parties.
        y : object
            Ignored.
        groups : array-like of shape (n,), optional
            With one table: which party holds each row. None: one party holds all.

        Raises
        ------
        FedPCAError
        ValueError
            As scikit-learn's, for a table.
        """
        card = self._card()
        if parties_in(X):
            if groups is not None:
                raise ConfigError("'X' is a list of parties and 'groups' is given too; groups are of one table's rows")
            parties = X
        else:
            parties = self._split(X, groups, card)
        self.model_: PCAModel = run(
            self.method,
            parties,
            n_components=_most(parties) if self.n_components is None else self.n_components,
            engine=self.engine,
            **{"min_rows": 1, **(self.run_options or {})},
        )
        if parties is not X and len(parties) == 1:
            self.model_.log["notes"].append("one party holds all rows: 'groups' of fit says which party holds each")
        for name in FITTED:
            setattr(self, name, getattr(self.model_, name))
        self._n_features_out = self.model_.n_components_
        self.n_features_in_ = self.model_.n_features_in_
        if self.model_.feature_names_in_ is not None:
            self.feature_names_in_ = self.model_.feature_names_in_
        elif hasattr(self, "feature_names_in_"):  # of an earlier fit
            del self.feature_names_in_
        return self

    def transform(self, X: Any) -> Array:
        """Scores (n, k) of rows ``X`` (n, d), or of all parties' rows, one party below the other."""
        check_is_fitted(self)
        if parties_in(X):
            return np.vstack([self.model_.transform(party) for party in tables_of(X)])
        if not is_cells(X):  # which scikit-learn does not know; the model checks its names
            finite = "allow-nan" if self._card().incomplete else True
            validate_data(self, X, reset=False, accept_sparse=True, ensure_all_finite=finite)
        return self.model_.transform(X)

    def inverse_transform(self, X: ArrayLike) -> Array:
        """Rows (n, d) that scores (n, k) stand for."""
        check_is_fitted(self)
        return self.model_.inverse_transform(X)

    def score(self, X: Any, y: object = None) -> float:
        """Mean log-likelihood of rows under the probabilistic model (Tipping and Bishop 1999), as scikit-learn's."""
        check_is_fitted(self)
        if np.isnan(self.model_.explained_variance_).any():  # none stands out of the noise: no likelihood is known
            self.transform(X)  # or X is refused
            return float("nan")
        return float(self.model_.to_sklearn().score(X))

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = self._card().incomplete
        return tags

    def _card(self) -> MethodCard:
        with in_words_of_python():
            card = strategies.method_of(self.method).strategy.card
        if card.split == "columns":
            raise ConfigError(
                f"method '{card.name}' is for parties that hold columns and keep their loadings: nothing is left "
                "to transform rows with; use fedpca_flwr.run, and its model's 'scores_'"
            )
        return card

    def _split(self, X: Any, groups: ArrayLike | None, card: MethodCard) -> Any:
        """The table's rows by party, in the order of the labels, which are the parties' names where they can be."""
        finite = "allow-nan" if card.incomplete else True
        checked = X
        if not is_cells(X):
            checked = validate_data(self, X, accept_sparse=["csr"], ensure_all_finite=finite, ensure_min_samples=2)
        table = X if is_frame(X) else checked  # a data frame's names travel with it
        if groups is None:
            return [table]
        labels = column_or_1d(np.asarray(groups)).tolist()
        if len(labels) != checked.shape[0]:
            rows = checked.shape[0]
            raise ConfigError(f"'groups' has {len(labels)} labels, but there are {rows} rows; give one for each")
        nobody = [place for place, label in enumerate(labels) if not _named(label)]
        if nobody:
            raise ConfigError(
                f"'groups' names no party for {len(nobody)} of {len(labels)} rows, the first of them row {nobody[0]} "
                "(None or NaN); give each row the party that holds it, or leave these rows out"
            )
        places: dict[Any, list[int]] = {}
        for place, label in enumerate(labels):
            places.setdefault(label, []).append(place)
        ordered = sorted(places, key=lambda label: (type(label).__name__, label))
        taken = type(table).__getitem__ if is_cells(table) else _safe_indexing
        parts = [taken(table, np.array(places[label])) for label in ordered]
        return dict(zip(ordered, parts, strict=True)) if all(map(is_name, ordered)) else parts


def _named(label: object) -> bool:
    """Whether a label is one: not None, nor NaN in any of its kinds (pandas' ``NA`` and ``NaT`` too)."""
    return label is not None and type(label).__name__ not in {"NAType", "NaTType"} and label == label


def parties_in(X: object) -> bool:
    """Whether ``X`` is several tables, and not one table as a list of rows."""
    tables = tables_of(X)
    two_axes = (isinstance(one, Blocks) or is_frame(one) or getattr(one, "ndim", 0) == 2 for one in tables)
    return bool(tables) and all(two_axes)


def tables_of(X: object) -> Sequence[Any]:
    """The tables in a list, or in a mapping from the parties' names; empty for anything else."""
    if isinstance(X, Mapping):
        return list(X.values())
    return X if isinstance(X, list | tuple) else ()


def _most(parties: object) -> int:
    """So many components all parties' rows have."""
    tables = tables_of(parties)
    shapes: list[tuple[int, int]] = [(len(p), p.width) if isinstance(p, Blocks) else p.shape for p in tables]
    return min(sum(rows for rows, _ in shapes), shapes[0][1])
