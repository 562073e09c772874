"""The vault: a party's rows, and the functions of their moments that an answer may have instead of the rows.

The vault offers functions of the site's own moments about its own mean, so whatever the request, rows with the same
count, mean and scatter give the same answers up to rounding (`tests/attacks`). The request enters the algebra of the
sums: subtracted from rows, a centre near 2^53 would tell each row above a threshold. A vault can be wrapped.

The scatter is formed once if that is cheaper than multiplying the rows each time, and at a site with its own file
whenever it fits into memory, since products of rows with the server's columns round within the row. It is stored in the
state that Flower holds for a party between messages, and that never leaves the site.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpca_flwr.errors import ContractError
from fedpca_flwr.maths import factors
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.moments import (
    Head,
    Moments,
    constant_features,
    head_and_diagonal,
    packed_size,
    scale_columns,
    scatter_product,
    two_sum,
)
from fedpca_flwr.maths.rows import Blocks, Rows, centred_chunks, in_order, pair_with_weights, weighted_count
from fedpca_flwr.maths.sums import two_product
from fedpca_flwr.protocol.journal import State

if TYPE_CHECKING:
    from fedpca_flwr.maths.forecast import Survey

MAX_SCATTER_BYTES = 2**29  # of the scatters of all parties together: in a simulation one process holds them
ROUNDING_SHARE = 2.0**-43  # of a sum of squares, up to which a remainder is rounding
MAX_CENTRE_DISTANCE = 2.0**22
"""Largest distance of a server's centre from the site's mean, in the feature's deviation at the site: a difference of
the two is then rounded by less than 2^-30 of the deviation."""
MOMENTS_NAME, MEANS_NAME = "own moments", "own means"  # in the state of the run


class Vault:
    """Access to a party's rows only by functions of their moments: mean, scatter products, factors.

    Parameters
    ----------
    rows : Rows
        Rows of shape (n, d).
    state : State
        Arrays that last for the run.
    columns : int
        Approximate number of columns with which the run will multiply the scatter; 0 if the run needs the scatter once.
    parties : int
        Number of parties that store a scatter each.
    threads : int
        Number of threads that compute with dense rows.
    always_form : bool
        Form the scatter wherever it fits into `MAX_SCATTER_BYTES`, whatever the cost. Then rows never meet columns of
        the server, whose large entries would round the small products of a row.

    Attributes
    ----------
    formed : bool
        Whether the scatter is formed and stored for the run.
    """

    def __init__(
        self, rows: Rows, state: State, *, columns: int, parties: int, threads: int = 1, always_form: bool = False
    ) -> None:
        """Store the rows, and decide by cost and memory whether to form their scatter (d, d)."""
        self._rows, self._state, self._threads = rows, state, threads
        stored = self._stored(MOMENTS_NAME)
        self._moments = Moments(stored[0].item(), *stored[1:]) if stored else None
        self._means: tuple[Head, Array] | None = None  # loaded for this message
        n, d = rows.shape
        dense = not (isinstance(rows, Blocks) and rows.sparse)
        fits = parties * packed_size(d) * np.float64().nbytes <= MAX_SCATTER_BYTES
        self._is_cheaper = fits and dense and worth_forming(n, d, columns)
        self._is_small = fits and d <= n  # a scatter that multiplies faster than the rows
        self.formed = self._is_cheaper or (fits and always_form) or self._moments is not None

    def __repr__(self) -> str:
        """Write the numbers of rows and of features."""
        return f"{type(self).__name__}({self.count} rows of {self.features} features)"

    @property
    def count(self) -> int | float:
        """Number of rows, or the sum of the rows' weights."""
        return weighted_count(self._rows)

    @property
    def features(self) -> int:
        """Number of features d."""
        return int(self._rows.shape[1])

    def moments(self) -> Moments:
        """Return count, mean and scatter (sum of outer products of the centred rows) of the rows.

        Returns
        -------
        Moments
            Stored for the run, of a scatter that is larger than the rows and not `formed` the diagonal only.
        """
        if self._moments is not None:
            return self._moments
        moments = Moments.from_rows(self._rows, self._threads)
        if self.formed or self._is_small:
            self._moments, self.formed = moments, True
            self._state[MOMENTS_NAME] = [moments.count, moments.mean, moments.remainder, moments.scatter]
        else:
            self._store_means(moments.head, moments.diagonal())
        return moments

    def head_and_diagonal(self) -> tuple[Head, Array]:
        """Return count and mean (a `Head`), and each feature's sum of squared deviations.

        Returns
        -------
        head : Head
        diagonal : array of shape (d,)
        """
        if self.formed:
            moments = self.moments()
            return moments.head, moments.diagonal()
        if self._means is None and (stored := self._stored(MEANS_NAME)):
            count, mean, remainder, diagonal = stored
            self._means = Head(count.item(), mean, remainder), diagonal
        return self._means or self._store_means(*head_and_diagonal(self._rows, self._threads))

    def _store_means(self, head: Head, diagonal: Array) -> tuple[Head, Array]:
        """Store count, mean and the scatter's diagonal (d,) for the run, and return them as `head_and_diagonal`."""
        self._means = head, diagonal
        self._state[MEANS_NAME] = [head.n, head.mean, head.remainder, diagonal]
        return self._means

    def deviation(self, centre: Array) -> Array:
        """Return the mean of the rows minus the given centre, a vector (d,).

        Parameters
        ----------
        centre : array of shape (d,)

        Returns
        -------
        array of shape (d,)
        """
        head, _ = self.head_and_diagonal()
        return np.asarray((head.mean - centre) + head.remainder)

    def times(self, V: Array) -> Array:
        """Return the product of the scatter about the site's own mean and the block ``V``.

        Parameters
        ----------
        V : array of shape (d, b)

        Returns
        -------
        array of shape (d, b)
        """
        if self.formed:
            return self.moments().times(V)
        head, _ = self.head_and_diagonal()
        block, exponents = scale_columns(V)
        with np.errstate(over="ignore"):  # an infinite value is refused before the reply leaves
            return np.ldexp(scatter_product(self._rows, head, block, self._threads), exponents)

    def centred_product(self, centre: Array, V: Array) -> Array:
        """Return the product of the scatter about the given centre and the block ``V``.

        Parameters
        ----------
        centre : array of shape (d,)
        V : array of shape (d, b)

        Returns
        -------
        array of shape (d, b)
        """
        deviation = self.deviation(centre)
        with np.errstate(over="ignore", invalid="ignore"):
            return self.times(V) + weighted_count(self._rows) * np.outer(deviation, deviation @ V)

    def squares(self, directions: Array, deviation: Array) -> float:
        """Return the sum, over all rows and all k directions, of the squared scores about a shifted centre.

        Parameters
        ----------
        directions : array of shape (k, d)
            Directions of the scores.
        deviation : array of shape (d,)
            Mean of the rows minus the point about which scores are taken.

        Returns
        -------
        float
        """
        head, _ = self.head_and_diagonal()
        block, exponents = scale_columns(directions.T)
        if self.formed:
            sums = np.einsum("ij,ij->j", block, self.moments().times(block))
        else:
            # chunks are centred at the rounded mean; the remainder of the mean adds n (remainder @ block)^2
            sums = -head.n * (head.remainder @ block) ** 2
            for part in in_order(partial(_squares, block), centred_chunks(self._rows, head.mean), self._threads):
                sums += part
        with np.errstate(over="ignore", invalid="ignore"):
            total = np.ldexp(sums, 2 * exponents).sum() + head.n * np.square(directions @ deviation).sum()
        return float(total)

    def squared_error(self, mean: Array, scale: Array, components: Array) -> float:
        """Return the sum over rows and features of squared residuals after projection to the components.

        Parameters
        ----------
        mean : array of shape (d,)
            Mean that is subtracted from the rows.
        scale : array of shape (d,) or (0,)
            Scale that divides the rows; empty for no scaling.
        components : array of shape (k, d)
            Orthonormal components.

        Returns
        -------
        float
            The residual sum of squares; 0 if it is as small as rounding.
        """
        head, diagonal = self.head_and_diagonal()
        deviation, unit = self.deviation(mean), scale if scale.size else np.ones_like(mean)
        with np.errstate(over="ignore", invalid="ignore"):
            total = ((diagonal + head.n * deviation**2) / unit**2).sum()
        return residual_sum(float(total), self.squares(components / unit, deviation))

    def fourth_powers(self, directions: Array, centre: Array | None) -> Array:
        """Return the sum of the fourth powers of the scores along each direction, about a centre.

        With s the scores about the site's own mean and u those of the shift from there to the centre, the sum of
        (s + u)^4 follows from the sums of s, s^2, s^3 and s^4.

        Parameters
        ----------
        directions : array of shape (k, d)
            Directions of the scores.
        centre : array of shape (d,), optional
            Point about which scores are taken; the site's own mean without it.

        Returns
        -------
        array of shape (k,)
        """
        head, _ = self.head_and_diagonal()
        block, exponents = scale_columns(directions.T)
        sums = np.zeros((4, block.shape[1]))
        rows = replace(self._rows, weights=None) if isinstance(self._rows, Blocks) else self._rows
        for centred, weights in pair_with_weights(self._rows, centred_chunks(rows, head.mean)):
            scores = centred @ block
            powers = np.stack([scores, scores**2, scores**3, scores**4])
            sums += powers.sum(axis=1) if weights is None else np.einsum("i,pik->pk", weights, powers)
        shift = head.remainder @ -block if centre is None else _exact_scores(head.mean, centre, block)
        first, second, third, fourth = sums
        with np.errstate(over="ignore", invalid="ignore"):
            total = fourth + 4 * shift * third + 6 * shift**2 * second + 4 * shift**3 * first + head.n * shift**4
            return np.ldexp(total, 4 * exponents)

    def require_near(self, centre: Array, scale: Array | float, directions: Array | None = None) -> None:
        """Refuse a centre so far from the site's mean that differences from rows would be rounded.

        Parameters
        ----------
        centre : array of shape (d,)
            A centre that the server chose.
        scale : array of shape (d,) or float
            Divisor of the features in lengths of rows.
        directions : array of shape (k, d), optional
            Directions of scores in the unit of the vault; none by default.

        Raises
        ------
        ContractError
            If the distance exceeds `MAX_CENTRE_DISTANCE` deviations of the site, of a constant feature those beside it.
        """
        head, diagonal = self.head_and_diagonal()
        require_near(self.deviation(centre), diagonal, head.n, head.mean, scale, directions)

    def triangular(self) -> tuple[Head, Array]:
        """Return count and mean, and a triangular ``R`` with ``R' R`` equal to the scatter of the rows.

        Returns
        -------
        head : Head
        factor : array of shape (min(n - 1, d), d)
        """
        return factors.triangular_factor(self._rows)

    def truncated(self, rank: int) -> factors.Factor:
        """Return the factor with `rank` rows whose Gram matrix (d, d) best approximates the scatter.

        Parameters
        ----------
        rank : int
            Number of rows of the factor (rank x d).

        Returns
        -------
        Factor
        """
        if self._is_cheaper:
            return factors.truncate_moments(self.moments(), rank)
        return factors.truncated_factor(self._rows, rank)

    def survey(self, block: Array, max_features: int) -> Survey:
        """Return the scatter's eigenvalues and its product with ``block`` (d, s), to forecast each method's cost.

        Parameters
        ----------
        block : array of shape (d, s)
            Random vectors with which the scatter is multiplied for the sketch.
        max_features : int
            Number of features above which no scatter is formed for a forecast.

        Returns
        -------
        Survey
        """
        from fedpca_flwr.maths import forecast  # which loads the mathematics of several methods

        return forecast.make_survey(self._rows, block, max_features)

    def _stored(self, name: str) -> list[Array] | None:
        """Return arrays stored under a name, or None if none are stored or their count is not that of the rows."""
        if name not in self._state:
            return None
        stored = self._state[name]
        return stored if math.isclose(stored[0].item(), weighted_count(self._rows), rel_tol=1e-12) else None

    def drop(self) -> None:
        """Delete the stored moments and means from the run's state."""
        self._moments = self._means = None
        self._state.drop(MOMENTS_NAME)
        self._state.drop(MEANS_NAME)


def _exact_scores(mean: Array, centre: Array, block: Array) -> Array:
    """Return ``(mean - centre) @ block``, each score rounded once, however far the centre is.

    Shapes: mean and centre (d,), block (d, k) -> (k,).
    """
    terms = [part for value in two_sum(mean, -centre) for part in two_product(value[:, None], block)]
    return np.array([math.fsum(chain.from_iterable(part[:, j] for part in terms)) for j in range(block.shape[1])])


def _squares(block: Array, centred: Any) -> Array:
    """Return the sums (b,) of squared scores of centred rows (m, d) along each column of ``block`` (d, b)."""
    scores = centred @ block
    return np.asarray(np.einsum("ij,ij->j", scores, scores))


def require_near(
    distance: Array, diagonal: Array, count: float | Array, mean: Array, scale: Array | float, directions: Array | None
) -> None:
    """Raise ContractError if a centre of the server's is so far from the mean that rows about it would be rounded.

    The limits follow from the site's moments. A feature that is constant but for rounding must round no other in scores
    or lengths. Shapes: distance and diagonal (d,), count and the divisor `scale` () or (d,), directions (k, d).
    """
    deviation = np.sqrt(diagonal / count)
    constant = constant_features(diagonal, count, mean)
    lengths = np.ones((1, distance.size)) / scale
    sizes = lengths if directions is None else np.abs(np.vstack([lengths, directions]))
    within = MAX_CENTRE_DISTANCE * (sizes @ np.where(constant, 0.0, deviation))[:, None]
    beside = (sizes * np.abs(distance) > within) & (within > 0)
    far = np.where(constant, beside.any(axis=0), np.abs(distance) > MAX_CENTRE_DISTANCE * deviation)
    if far.any():
        raise ContractError(
            f"the server's centre is more than {MAX_CENTRE_DISTANCE:.0f} deviations from this site's mean in "
            f"{far.sum()} features, where rows about the centre would be rounded; the mean of all rows is nearer"
        )


def residual_sum(total: float, explained: float) -> float:
    """Return total minus explained sum of squares; 0 where that is rounding, which other rows of the moments change."""
    residual = total - explained
    return 0.0 if residual <= ROUNDING_SHARE * total else residual


def worth_forming(rows: int, features: int, columns: int) -> bool:
    """Check that forming the scatter once, and products with the scatter, cost less than multiplying with rows.

    For c columns that is n d^2 + 2 d^2 c < 4 n d c multiplications and additions, divided by d.
    """
    return rows * features + 2 * features * columns < 4 * rows * columns
