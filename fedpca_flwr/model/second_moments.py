"""`SecondMoments`: count, mean and scatter of rows, from which much more than a PCA follows.

They tell far more than a model of a few components: whoever has the moments of all rows and those of all parties but a
single party has that party's moments; of fewer rows than features, moments nearly give the rows back. So a model's file
does not hold moments. Their own file is an archive (`fedpca_flwr.state.files`) that only its owner can read.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpca_flwr.config.run_config import RowTransform
from fedpca_flwr.data.frames import as_rows, column_names
from fedpca_flwr.data.table import check_rows, labels_text, require_complete
from fedpca_flwr.data.transforms import transform_table
from fedpca_flwr.errors import ConfigError, ContractError, DataError
from fedpca_flwr.maths import moments as maths
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.moments import Moments
from fedpca_flwr.maths.sums import pool
from fedpca_flwr.model.tables import DisplayTable, display_as, feature_rows, import_pandas
from fedpca_flwr.state import files

if TYPE_CHECKING:
    import pandas

Features = Sequence[str] | Sequence[int]  # features by their names, or by their positions from 0

MOMENTS_JSON, MOMENTS_FORMAT = "second-moments.json", 1
MAX_ROWS = 2**53  # the largest number of rows that float64 counts
MOMENTS_ARRAYS = ("mean", "remainder", "scatter")


class Preparation(NamedTuple):
    """Steps of a run before its PCA, which analyses of its moments repeat unless their arguments say otherwise."""

    n_components: int | None = None
    center: bool = True
    scale: bool | None = None  # whether features were divided by their deviations; None without a run
    indicators: tuple[int, ...] = ()  # positions of indicators of levels, which have a unit of their own
    divisor: Literal["n-1", "n"] = "n-1"  # of the scatter, for variances
    divided: bool = False  # whether the features of the moments are divided already
    transform: RowTransform = ""  # function of each row before the moments
    adjusted: bool = False  # whether the run took out covariates or differences of parties, which the moments have

    def unit(self, scale: bool | None = None) -> str:
        """Write in which unit an analysis about the mean takes the features, and in what it differs from the run."""
        text = "features divided by their deviations" if self.divides(scale) else "features in their own units"
        text += f" after {self.transform}" if self.transform else ""
        return f"{text} ({'; '.join(differences)})" if (differences := self.differences(scale)) else text

    def divides(self, scale: bool | None) -> bool:
        """Return whether an analysis takes features that are divided by their deviations, by it or before it."""
        return self.divided or bool(self.scale if scale is None else scale)

    def must_divide(self, scale: bool | None) -> bool:
        """Return whether an analysis still has to divide features: it `divides`, and nothing has before it."""
        return self.divides(scale) and not self.divided

    def differences(self, scale: bool | None, *, center: bool = True) -> list[str]:
        """Write in what an analysis differs from the PCA of the run, a text each; none without a run."""
        if self.scale is None:
            return []
        texts = {
            f"the run {'divided them by their deviations' if self.scale else 'did not divide them'}": (
                self.divides(scale) != self.scale
            ),
            f"the run {'subtracted' if self.center else 'did not subtract'} the mean": center != self.center,
            "the run took out covariates or differences between parties, as analyses.adjusted does": self.adjusted,
        }
        return [text for text, differs in texts.items() if differs]


NO_RUN = Preparation()


def _moments_table(result: SecondMoments) -> DisplayTable:
    """Return the display of moments: a table with name, mean and standard deviation of each feature."""
    parties = f", of {len(result.parties)} parties" if result.parties else ""
    prepared, unit = result.preparation, Preparation(divided=result.preparation.divided).unit()
    title = f"SecondMoments: {result.n_samples} rows of {result.n_features} {unit}{parties}"
    title += "; analyses divide them, as the run did" if prepared.scale and not prepared.divided else ""
    deviation = np.sqrt(result.moments.diagonal().clip(min=0.0) / max(1, result.n_samples - 1))
    return DisplayTable(title, ["feature", "mean", "deviation"], feature_rows(result.features, result.mean, deviation))


@display_as(_moments_table)
@dataclass(frozen=True, eq=False)
class SecondMoments:
    """Count, mean and scatter (sum of products of centred rows) of all parties' rows, and optionally of each party's.

    Parameters
    ----------
    moments : Moments
        Moments of all rows about their common mean.
    features : tuple of str, default ()
        Names of the d features; empty if the names are unknown.
    parties : mapping of str to Moments, optional
        Moments of each party, if the run kept them (``keep="parties"``).
    error_bound : ndarray of shape (d,), optional
        Bound on the amount by which the fixed-point rounding of a secure sum reduced the diagonal of the scatter; zero
        in clear.
    preparation : Preparation
        What the run did to the features before its PCA.

    Raises
    ------
    ConfigError
        If there are names, but not d different ones.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca_flwr import run
    >>> rows = np.random.default_rng(0).standard_normal((300, 6)) * [6, 5, 4, 3, 2, 1]
    >>> model = run("p-cov", [rows[:200], rows[200:]], n_components=2, keep="moments")
    >>> model.moments_.select([0, 5]).covariance.shape
    (2, 2)
    """

    moments: Moments
    features: tuple[str, ...] = ()
    parties: Mapping[str, Moments] = field(default_factory=dict)
    error_bound: Array = field(default_factory=lambda: np.zeros(0))
    preparation: Preparation = NO_RUN

    def __post_init__(self) -> None:
        """Raise ConfigError unless there are no names, or d different ones; set a missing error bound to zeros."""
        d = self.moments.n_features
        if self.features and (len(self.features) != d or len(set(self.features)) != d):
            different = len(set(self.features))
            raise ConfigError(f"there are {different} different names for {d} features; give each its own")
        if not self.error_bound.size:
            object.__setattr__(self, "error_bound", np.zeros(d))

    @classmethod
    def of(cls, rows: ArrayLike, *, transform: RowTransform = "") -> SecondMoments:
        """Compute the moments of rows, such as the rows of a party that joins late or leaves.

        Parameters
        ----------
        rows : array-like of shape (n, d)
            Array or data frame. The moments keep the column names of a data frame.
        transform : {"", "log1p", "sqrt", "asinh", "clr"}
            Function of each row before that, as in a run.

        Returns
        -------
        SecondMoments

        Raises
        ------
        DataError
            If the rows are not finite numbers, or have values that the function does not take.
        """
        names = column_names(rows)
        if transform:
            rows = cast(ArrayLike, transform_table(check_rows(as_rows(rows, "these rows"), names), transform))
        return cls(validate_moments("these rows", rows), names, preparation=NO_RUN._replace(transform=transform))

    # Contents

    @property
    def n_samples(self) -> int:
        """Number of rows."""
        return int(self.moments.count)

    @property
    def n_features(self) -> int:
        """Number d of features."""
        return self.moments.n_features

    @property
    def mean(self) -> Array:
        """Mean of the rows, shape (d,)."""
        return self.moments.mean + self.moments.remainder

    @property
    def scatter(self) -> Array:
        """Sum of the products of centred rows, shape (d, d)."""
        return maths.dense_scatter(self.moments)

    @property
    def covariance(self) -> Array:
        """Covariance of the features (divisor n - 1), shape (d, d); a single row raises a `DataError`."""
        if self.n_samples < 2:
            raise DataError("these are the moments of 1 row, expected at least 2: one row has no covariance")
        return self.scatter / (self.n_samples - 1)

    @property
    def deviation(self) -> Array:
        """Divisors (d,) of scaled features: deviations (divisor n), 1 if constant, and the unit of levels."""
        diagonal, indicators = self.moments.diagonal(), self.preparation.indicators
        return maths.safe_deviation(diagonal, self.moments.count, self.moments.mean, indicators)

    @property
    def correlation(self) -> Array:
        """Correlations of the features, shape (d, d); those of a constant feature with others are 0."""
        unit = np.sqrt(np.where(self.is_constant, np.inf, self.moments.diagonal()))
        correlation: Array = self.scatter / unit / unit[:, None]
        np.fill_diagonal(correlation, 1.0)
        return correlation

    def correlation_frame(self) -> pandas.DataFrame:
        """Return the correlations as a data frame with the names of the features.

        Returns
        -------
        pandas.DataFrame of shape (d, d)
        """
        names = list(self.features) or None
        return import_pandas().DataFrame(self.correlation, index=names, columns=names)

    @property
    def is_constant(self) -> NDArray[np.bool_]:
        """Mask (d,) of the features that are equal in all rows, up to rounding."""
        diagonal = self.moments.diagonal()
        return (diagonal <= self.error_bound) | maths.constant_features(diagonal, self.n_samples, self.moments.mean)

    def places(self, features: Features) -> NDArray[np.intp]:
        """Return the positions (from 0) of features that are given by name or position.

        Parameters
        ----------
        features : sequence of str or sequence of int
            Names, or positions from 0.

        Returns
        -------
        ndarray of int

        Raises
        ------
        ConfigError
            If features are unknown (the error lists all of them), or a feature is named twice.
        """
        if isinstance(features, str) or not isinstance(features, Sequence | np.ndarray):
            raise ConfigError(f"features are {features!r}, expected a list of names, or of places from 0")
        positions: dict[Any, int] = {**dict(zip(self.features, range(self.n_features), strict=False))}
        positions |= {place: place for place in range(self.n_features)}
        kinds = (str, int, np.integer)
        unknown = [x for x in features if not isinstance(x, kinds) or isinstance(x, bool) or x not in positions]
        if unknown:
            hint = f"names: {labels_text(self.features)}" if self.features else "they have no names"
            raise ConfigError(f"there are no features {unknown!r} among the {self.n_features} ({hint})")
        selected = [positions[feature] for feature in features]
        if not selected or len(set(selected)) < len(selected):
            raise ConfigError(f"features are {list(features)!r}, expected at least one, and each once")
        return np.array(selected)

    def names(self, places: ArrayLike) -> tuple[str, ...]:
        """Return the names of features by their positions.

        Parameters
        ----------
        places : array-like of int
            Positions from 0.

        Returns
        -------
        tuple of str
            Empty if the names are unknown.
        """
        return tuple(self.features[place] for place in np.asarray(places)) if self.features else ()

    # Moments that follow without asking any party

    def select(self, features: Features) -> SecondMoments:
        """Return the moments of some features, in the given order.

        Parameters
        ----------
        features : sequence of str or sequence of int
            Names, or positions from 0.

        Returns
        -------
        SecondMoments

        Raises
        ------
        ConfigError
            As `places`.
        """
        places = self.places(features)
        names, bound = self.names(places), self.error_bound[places]
        indicators = tuple(np.flatnonzero(np.isin(places, self.preparation.indicators)).tolist())
        preparation = self.preparation._replace(indicators=indicators)
        return self._transform_each(lambda moments: maths.select_features(moments, places), names, bound, preparation)

    def scaled(self, divisors: ArrayLike | None = None) -> SecondMoments:
        """Return the moments of rows whose features are divided by their deviation (divisor n), or by other numbers.

        Parameters
        ----------
        divisors : array-like of shape (d,), optional
            Positive numbers, such as the ``scale_`` of a model, which for indicators of categories are no deviations.
            By default the deviations, and the unit of levels for indicators; constant features are divided by 1.

        Returns
        -------
        SecondMoments

        Raises
        ------
        ConfigError
            If ``divisors`` are not d positive finite numbers.
        """
        if divisors is None:
            unit = self.deviation
        else:
            unit = np.asarray(divisors, dtype=np.float64)
            if unit.shape != (self.n_features,) or not (np.isfinite(unit) & (unit > 0)).all():
                raise ConfigError(
                    f"'divisors' has shape {unit.shape}, expected {self.n_features} positive finite numbers, one for "
                    "each feature; they are a model's 'scale_' after a run with scale=True"
                )
        by_deviation = np.allclose(unit, self.deviation, rtol=1e-9, atol=0.0)
        preparation = self.preparation._replace(**{"divided": True} if by_deviation else {"scale": None})
        how = self.features, self.error_bound / unit**2, preparation
        return self._transform_each(lambda moments: maths.rescale_features(moments, unit), *how)

    def _transform_each(
        self, change: Callable[[Moments], Moments], features: tuple[str, ...], bound: Array, preparation: Preparation
    ) -> SecondMoments:
        """Return moments with the function ``change`` applied to the moments of all rows and of each party."""
        parties = {key: change(party) for key, party in self.parties.items()}
        return SecondMoments(change(self.moments), features, parties, bound, preparation)

    def merge(self, other: SecondMoments) -> SecondMoments:
        """Return the moments of two sets of rows together; rows that are in both count twice.

        Parameters
        ----------
        other : SecondMoments

        Returns
        -------
        SecondMoments

        Raises
        ------
        ConfigError, ContractError
            If the features' names differ, or a party is in both; if the numbers of features differ.
        """
        self._require_same_features(other)
        twice = sorted(self.parties.keys() & other.parties.keys())
        if twice:
            raise ConfigError(f"the parties {', '.join(twice)} are in both: their rows would count twice")
        return SecondMoments(
            pool([self.moments, other.moments]),
            self.features or other.features,
            {**self.parties, **other.parties} if self.parties and other.parties else {},
            self.error_bound + other.error_bound,
            other.preparation if self.preparation.scale is None else self.preparation,
        )

    def subtract(self, part: SecondMoments) -> SecondMoments:
        """Return the moments of the rows that remain after a part of the rows is removed.

        The subtraction loses digits if the part is most of the rows. `without` loses none.

        Parameters
        ----------
        part : SecondMoments
            Moments of rows that are among these rows.

        Returns
        -------
        SecondMoments

        Raises
        ------
        ConfigError, ContractError
            If the features' names differ; if the numbers of features differ, or the part cannot be among these rows.
        """
        self._require_same_features(part)
        if part.n_samples >= self.n_samples:
            rows = f"{part.n_samples} rows"
            raise ContractError(f"{rows} cannot be taken out of {self.n_samples}: at least 1 must remain")
        rest = maths.subtract_part(self.moments, part.moments)
        # rounding of the subtraction may leave variances slightly below 0
        if (rest.diagonal() < -1e-9 * self.moments.diagonal() - self.error_bound - part.error_bound).any():
            fault = "varies more than the rows that it is taken out of: it is not part of them"
            raise ContractError(f"what is to be taken out {fault}")
        bound, features = self.error_bound + part.error_bound, self.features or part.features
        return SecondMoments(rest, features, error_bound=bound, preparation=self.preparation)

    def without(self, party: str) -> SecondMoments:
        """Return the moments of all parties except one, as a new sum over the remaining parties.

        The method subtracts nothing, so no digit is lost.

        Parameters
        ----------
        party : str

        Returns
        -------
        SecondMoments

        Raises
        ------
        ConfigError
            If there is no such party, or the parties' own moments were not kept.
        """
        if party not in self.parties or len(self.parties) < 2:
            parties = f"parties: {', '.join(self.parties)}" if self.parties else "no party's own moments were kept"
            raise ConfigError(f"the rows of '{party}' cannot be left out ({parties}); run with keep='parties'")
        remaining = {key: moments for key, moments in self.parties.items() if key != party}
        return SecondMoments(pool(remaining.values()), self.features, remaining, preparation=self.preparation)

    def pooled(self) -> SecondMoments:
        """Return a copy that has the moments of all rows only, without each party's moments.

        Returns
        -------
        SecondMoments
        """
        return replace(self, parties={})

    # The file

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the moments to an ``.npz`` file that only its owner can read, completely or not at all.

        Parameters
        ----------
        path : str or path
            Path of the file. The method appends ``.npz`` if it is missing.

        Returns
        -------
        Path
        """
        target, groups = files.archive_path(path, "a set of moments"), (self.moments, *self.parties.values())
        arrays = {"missed": self.error_bound}
        for prefix, moments in zip(_array_prefixes(len(self.parties)), groups, strict=True):
            arrays |= {f"{prefix}{name}": getattr(moments, name) for name in MOMENTS_ARRAYS}
        names = {"features": list(self.features), "parties": list(self.parties)}
        about = {"format": MOMENTS_FORMAT, "preparation": self.preparation._asdict()}
        metadata = {**about, **names, "rows": [moments.count for moments in groups]}
        files.write(target, arrays, metadata, text=MOMENTS_JSON)
        return target

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> SecondMoments:
        """Read moments from a file that `save` wrote; nothing in the file is executed (no pickle).

        Parameters
        ----------
        path : str or path

        Returns
        -------
        SecondMoments

        Raises
        ------
        DataError, ContractError
            If the file does not exist; if the file does not hold moments.
        """
        target = files.archive_path(path, "a set of moments")
        if not target.exists():
            raise DataError(f"there are no moments at {target}")
        try:
            arrays, metadata = files.read(target, text=MOMENTS_JSON)
            version = metadata["format"]
            contents = _parse_archive(arrays, metadata) if version == MOMENTS_FORMAT else None
        except files.TooLargeError:
            raise
        except Exception as error:  # what is in the file may be anything
            raise ContractError(f"{target} is not a whole file of moments ({type(error).__name__})") from None
        if contents is None:
            raise ContractError(f"{target}: the format is {version!r}, not {MOMENTS_FORMAT}; which version wrote it?")
        return cls(*contents)

    @property
    def missed(self) -> Array:
        """Deprecated name of ``error_bound``; warns."""
        warnings.warn("'missed' is called 'error_bound' now", DeprecationWarning, stacklevel=2)
        return self.error_bound

    def _require_same_features(self, other: SecondMoments) -> None:
        """Raise ContractError for another number of features, ConfigError for another `transform`, names or order."""
        steps = [moments.preparation.transform or "none" for moments in (self, other)]
        if steps[0] != steps[1]:
            raise ConfigError(f"the rows had the transforms {' and '.join(steps)}: SecondMoments.of takes 'transform'")
        if self.n_features != other.n_features:
            raise ContractError(f"the rows have {self.n_features} and {other.n_features} features, expected as many")
        numbers = tuple(map(str, range(self.n_features)))  # of columns without names
        names, other_names = self.features or numbers, other.features or numbers
        if names != other_names and (set(names) == set(other_names) or (self.features and other.features)):
            raise ConfigError("the names of the features, or their order, differ; `select` brings them into one order")


def validate_moments(key: str, data: ArrayLike | Moments) -> Moments:
    """Return the moments of rows (n, d), or checked given ones; DataError or ContractError that names ``key``."""
    if not isinstance(data, Moments):
        table = check_rows(as_rows(data, f"the data of '{key}'"), column_names(data))
        return Moments.from_rows(require_complete(table))
    d = data.mean.size
    if data.remainder.shape != (d,) or data.scatter.shape != (maths.packed_size(d),) or data.count < 1:
        raise ContractError(
            f"the moments of '{key}' are of {data.count} rows, with a mean of {d}, a remainder of "
            f"{data.remainder.size} and a scatter of {data.scatter.size} values, expected at least 1 row and "
            f"{d}, {d} and {maths.packed_size(d)} values"
        )
    finite = all(np.isfinite(part).all() for part in (data.mean, data.remainder, data.scatter))
    if not finite or data.diagonal().min() < 0:
        raise ContractError(f"the moments of '{key}' hold NaN, infinite values or a negative variance")
    return data


MomentsFields = tuple[Moments, tuple[str, ...], dict[str, Moments], Array, Preparation]  # the fields of `SecondMoments`


def _parse_archive(arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, Any]) -> MomentsFields:
    """Return the fields of `SecondMoments`; raise an error, of any class, if an archive's parts do not fit together."""
    names, groups = metadata["parties"], []
    for prefix, rows in zip(_array_prefixes(len(names)), metadata["rows"], strict=True):
        if isinstance(rows, bool) or not isinstance(rows, int) or not 1 <= rows <= MAX_ROWS:
            raise ValueError("a number of rows is none")
        parts = (_check_floats(arrays[f"{prefix}{name}"]) for name in MOMENTS_ARRAYS)
        groups.append(validate_moments("this file", Moments(rows, *parts)))
    total, *parties = groups
    if parties and sum(party.count for party in parties) != total.count:
        raise ValueError("the parties' rows are not all rows")
    if any(moments.count == 1 and moments.diagonal().any() for moments in groups):
        raise ValueError("a single row does not vary")
    error_bound = _check_floats(arrays["missed"])
    if error_bound.shape != total.mean.shape or any(party.n_features != total.n_features for party in parties):
        raise ValueError("its parts are not of the same features")
    features = tuple(map(str, metadata["features"]))
    preparation = Preparation(**metadata.get("preparation", {}))  # an earlier version wrote none
    flags = preparation.center, preparation.scale
    if not all(isinstance(flag, bool | None) for flag in flags) or preparation.transform not in get_args(RowTransform):
        raise ValueError("the preparation is none")
    indicators = tuple(range(total.n_features)[place] for place in preparation.indicators)
    named = dict(zip(map(str, names), parties, strict=True))
    return total, features, named, error_bound, preparation._replace(indicators=indicators)


def _array_prefixes(parties: int) -> list[str]:
    """Return the prefixes of array names in the file: empty for all rows, then ``party-0-``, ``party-1-`` ..."""
    return ["", *(f"party-{i}-" for i in range(parties))]


def _check_floats(array: NDArray[Any]) -> Array:
    """Return an array unchanged, or raise ValueError if it is not a vector of finite float64."""
    if array.dtype != np.float64 or array.ndim != 1 or not np.isfinite(array).all():
        raise ValueError("an array is not one of finite float64")
    return array
