"""`SecondMoments`: count, mean and scatter of rows as a thing of its own, from which much more than a PCA follows.

``run("p-cov", parties, keep="moments")`` leaves them at ``model.moments_``, and `fedpca_flwr.analyses` takes them. They
tell far more than a model of a few components: every mean, variance and covariance of the features. Who has the moments
of all rows and those of all but one party has that party's; of fewer rows than features, moments nearly give the rows
back. So a model's file does not hold them, and their own file can be read by its owner only.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpca_flwr import second_moments_file
from fedpca_flwr.column_labels import column_names
from fedpca_flwr.errors import ConfigError, ContractError, DataError
from fedpca_flwr.maths import moment_parts
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.moments import Moments
from fedpca_flwr.maths.pooling import pool
from fedpca_flwr.maths.scaling import constant_features, safe_deviation
from fedpca_flwr.member_moments import checked_moments
from fedpca_flwr.second_moments_file import Kept

Features = Sequence[str] | Sequence[int]
"""Features by their names, or by their places from 0."""


@dataclass(frozen=True, eq=False)
class SecondMoments:
    """Count, mean and scatter of rows.

    Attributes
    ----------
    moments : Moments
        Of all rows together, about their mean.
    features : tuple of str
        Names of the d features; empty where nobody told them.
    parties : mapping of str to Moments
        Those of each party, where the run kept them (``keep="parties"``).
    missed : ndarray of shape (d,)
        Bound on what a secure sum in fixed point rounded off the diagonal of the scatter; zero in clear.

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
    missed: Array = field(default_factory=lambda: np.zeros(0))

    def __post_init__(self) -> None:
        d = self.moments.n_features
        if self.features and (len(self.features) != d or len(set(self.features)) != d):
            raise ConfigError(
                f"there are {len(set(self.features))} different names for {d} features; give each its own"
            )
        if not self.missed.size:
            object.__setattr__(self, "missed", np.zeros(d))

    @classmethod
    def of(cls, rows: ArrayLike) -> SecondMoments:
        """Moments of rows (n, d), an array or a data frame: those of a party that joins late, say, or leaves.

        Raises
        ------
        DataError
        """
        return cls(checked_moments("these rows", rows), column_names(rows))

    # What they are

    @property
    def n_samples(self) -> int:
        return self.moments.count

    @property
    def n_features(self) -> int:
        return self.moments.n_features

    @property
    def mean(self) -> Array:
        """Shape (d,)."""
        return self.moments.mean + self.moments.remainder

    @property
    def scatter(self) -> Array:
        """Sum of the products of centred rows, shape (d, d)."""
        return moment_parts.dense(self.moments)

    @property
    def covariance(self) -> Array:
        """Divisor n - 1, shape (d, d); a `DataError` for a single row, which has none."""
        if self.n_samples < 2:
            raise DataError("these are the moments of 1 row, expected at least 2: one row has no covariance")
        return self.scatter / (self.n_samples - 1)

    @property
    def is_constant(self) -> NDArray[np.bool_]:
        """Which features are the same in all rows, but for rounding, shape (d,)."""
        diagonal = self.moments.diagonal()
        return (diagonal <= self.missed) | constant_features(diagonal, self.n_samples, self.moments.mean)

    def places(self, features: Features) -> NDArray[np.intp]:
        """Where features stand, by their names or places, in the order in which they were named.

        Raises
        ------
        ConfigError
            With all that are unknown, and for one that is named twice.
        """
        if isinstance(features, str) or not isinstance(features, Sequence | np.ndarray):
            raise ConfigError(f"features are {features!r}, expected a list of names, or of places from 0")
        known: dict[Any, int] = {**dict(zip(self.features, range(self.n_features), strict=False))}
        known |= {place: place for place in range(self.n_features)}
        kinds = (str, int, np.integer)
        strangers = [x for x in features if not isinstance(x, kinds) or isinstance(x, bool) or x not in known]
        if strangers:
            named = ", ".join(self.features[:20]) + (", ..." if self.n_features > 20 else "")
            there = f"names: {named}" if self.features else "they have no names"
            raise ConfigError(f"there are no features {strangers!r} among the {self.n_features} ({there})")
        found = [known[one] for one in features]
        if not found or len(set(found)) < len(found):
            raise ConfigError(f"features are {list(features)!r}, expected at least one, and each once")
        return np.array(found)

    def names(self, places: ArrayLike) -> tuple[str, ...]:
        """The names of features by their places; empty where there are none."""
        return tuple(self.features[place] for place in np.asarray(places)) if self.features else ()

    # What can be made of them without asking anybody

    def select(self, features: Features) -> SecondMoments:
        """The moments of some features, in this order."""
        places = self.places(features)
        return SecondMoments(
            moment_parts.of_features(self.moments, places),
            self.names(places),
            {key: moment_parts.of_features(party, places) for key, party in self.parties.items()},
            self.missed[places],
        )

    def scaled(self) -> SecondMoments:
        """The moments of rows whose features were divided by their deviation (divisor n); constant ones by 1."""
        unit = safe_deviation(self.moments.diagonal(), self.n_samples, self.moments.mean)
        return SecondMoments(
            moment_parts.in_units(self.moments, unit),
            self.features,
            {key: moment_parts.in_units(party, unit) for key, party in self.parties.items()},
            self.missed / unit**2,
        )

    def merge(self, other: SecondMoments) -> SecondMoments:
        """The moments of these rows and those of ``other`` together; rows that are in both count twice.

        Raises
        ------
        ConfigError, ContractError
            If the features differ, or a party is in both.
        """
        self._require_same_features(other)
        twice = sorted(self.parties.keys() & other.parties.keys())
        if twice:
            raise ConfigError(f"the parties {', '.join(twice)} are in both: their rows would count twice")
        return SecondMoments(
            pool([self.moments, other.moments]),
            self.features or other.features,
            {**self.parties, **other.parties} if self.parties and other.parties else {},
            self.missed + other.missed,
        )

    def subtract(self, part: SecondMoments) -> SecondMoments:
        """The moments of the rows that remain without those of ``part``, which are among them.

        Digits that the two share are lost: `without` loses none.

        Raises
        ------
        ConfigError, ContractError
            If the features differ, or these rows cannot be among those.
        """
        self._require_same_features(part)
        if part.n_samples >= self.n_samples:
            raise ContractError(
                f"{part.n_samples} rows cannot be taken out of {self.n_samples}: at least 1 must remain"
            )
        rest = moment_parts.without(self.moments, part.moments)
        if (rest.diagonal() < -1e-9 * self.moments.diagonal() - self.missed - part.missed).any():
            raise ContractError(
                "what is to be taken out varies more than the rows that it is taken out of: it is not part of them"
            )
        return SecondMoments(rest, self.features or part.features, missed=self.missed + part.missed)

    def without(self, party: str) -> SecondMoments:
        """The moments of all other parties, added up anew: nothing is subtracted, so no digit is lost.

        Raises
        ------
        ConfigError
            Where there is no such party, or the parties' own moments were not kept.
        """
        if party not in self.parties or len(self.parties) < 2:
            held = f"parties: {', '.join(self.parties)}" if self.parties else "no party's own moments were kept"
            raise ConfigError(f"the rows of '{party}' cannot be left out ({held}); run with keep='parties'")
        others = {key: moments for key, moments in self.parties.items() if key != party}
        return SecondMoments(pool(others.values()), self.features, others)

    def pooled(self) -> SecondMoments:
        """The same without the parties' own, to hand on."""
        return replace(self, parties={})

    # The file

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write one file, whole or not at all, readable by its owner only; ``.npz`` is appended."""
        return second_moments_file.write(path, Kept(self.moments, self.features, self.parties, self.missed))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> SecondMoments:
        """Read what `save` wrote; errors as of `second_moments_file.read`. Nothing in it is executed (no pickle)."""
        return cls(*second_moments_file.read(path))

    def _require_same_features(self, other: SecondMoments) -> None:
        if self.n_features != other.n_features:
            raise ContractError(f"the rows have {self.n_features} and {other.n_features} features, expected as many")
        if self.features and other.features and self.features != other.features:
            raise ConfigError("the names of the features, or their order, differ; `select` brings them into one order")
