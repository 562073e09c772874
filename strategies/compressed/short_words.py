"""Scatter of all rows in short words, where only sums open, and corrections of the rounding.

After the first two sums all know the pooled mean and the roots s of the scatter's diagonal, so ``|S_ij| <= s_i s_j``,
and several values share a word of 64 bits (`fedpca_flwr.maths.short_words`). A correction asks for the scatter's
products with the leading vectors V so far. The server knows these products up to the rounding, so three values share
a word, in steps of the largest possible rounding.

**The error is bounded by public numbers**: the steps, the number of parties P and the sizes of the entries. Each
party rounds by half a step at most, and an entry's step is a share of ``s_i s_j``. So rounding changes a sum by no more
than ``P / 2`` steps, whose matrix has the spectral norm ``share s's``; of a product, whose steps are ``f_i c_j``, it is
``share |f| |c|``. No party's own rounding is opened: a norm of it tells of that party alone. The true errors are some
``sqrt(3 P)`` times smaller (independent roundings), which costs bits or corrections and leaves the bound a bound.

These bound the total error, everywhere and on a block B, and so the residuals of the next correction:
``|(S - A) v| <= block_error_bound |B'v| + error_bound |v - B B'v|``.

The parties' sums are about the centre c that all received, from which the mean differs by its rounding, r. The server
knows r and subtracts ``N r r'``. It computes in a unit, a power of two, in which the largest deviation is about 1.
"""

from collections.abc import Callable, Generator
from typing import Any

import numpy as np
from scipy.linalg import qr

from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.errors import ConfigError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.eigen import rounding_bound
from fedpca_flwr.maths.moments import Head, unpack_symmetric
from fedpca_flwr.maths.refine import correct_on_block
from fedpca_flwr.maths.short_words import MAX_EXACT_MULTIPLE, WORD_BITS, ShortWords, WordSharing
from fedpca_flwr.protocol.payload import Field, Fields, Payload
from fedpca_flwr.protocol.question import Public, Question, Questions, Round, SumLimits, SumRound, Total
from fedpca_flwr.questions.pooling import Evidence
from fedpca_flwr.questions.row_limits import reach, require_bound, scatter_limits
from fedpca_flwr.questions.rows import CENTRE, SCATTER, SPREAD, centre_questions, pooled_centre
from fedpca_flwr.questions.rows_client import Party
from fedpca_flwr.questions.rows_run import RowsStrategy

FEATURE_STEPS, COLUMN_STEPS = Field("features", ("d",), kind="size"), Field("columns", ("b",), kind="size")
"""Fields whose products bound the residual of the sum, and so determine its steps."""

CORRECTION = WordSharing(3, residual=True)

MIN_SPREAD_SHARE = 2.0**-48  # of the largest deviation, below which a feature does not travel: it may be rounding


def short_questions(config: RunConfig, bits: int, width: Callable[[Public], int], *, corrections: int) -> Questions:
    """Return the questions for a scatter in ``bits`` per entry, and for its products with blocks of ``width`` columns.

    The products correct the rounding, at most ``corrections`` times. Raise ConfigError if `bound` is missing.
    """
    require_bound(config)
    words = WordSharing(WORD_BITS // bits)
    scatter = Question(
        request=Payload((CENTRE, SPREAD)),
        reply=Payload((SCATTER,)),
        answer=_local_scatter,
        limits=_scatter_limits,
        short={"scatter": words},
    )
    correction = Question(
        request=Payload(
            (CENTRE, Field("block", ("d", "b"), "float32", kind="orthonormal columns"), FEATURE_STEPS, COLUMN_STEPS)
        ),
        reply=Payload((Field("product", ("d", "b")),)),
        answer=_local_product,
        sizes=lambda public: {"b": width(public)},
        limits=_product_limits,
        short={"product": CORRECTION},
        times=corrections,
        optional=True,
    )
    return {**centre_questions(), "scatter": scatter, **({"correction": correction} if corrections else {})}


def _scatter_limits(request: Fields, public: Public) -> SumLimits:
    """Return the limits s_i s_j of the scatter's entries; raise ContractError for a centre beyond `bound`."""
    reach(request, public)
    return scatter_limits(_suppress_small_spread(request["spread"]))


def _suppress_small_spread(spread: Array) -> Array:
    """Return the spread (d,), with 0 in place of values that may be rounding."""
    return np.where(spread > MIN_SPREAD_SHARE * spread.max(), spread, 0.0)


def _product_limits(request: Fields, public: Public) -> SumLimits:
    """Return the limits f_i c_j of a correction's product; raise ContractError for a centre beyond `bound`."""
    reach(request, public)
    return {"product": np.outer(request["features"], request["columns"])}


def _local_scatter(party: Party, request: Fields) -> Fields:
    """Return a party's packed scatter about the request's centre."""
    return {"scatter": party.vault.moments().scatter_about(request["centre"])}


def _local_product(party: Party, request: Fields) -> Fields:
    """Return the product of a party's scatter, about the request's centre, with the requested block (d, b)."""
    return {"product": party.vault.centred_product(request["centre"], request["block"].astype(np.float64))}


class ShortScatter:
    """Approximation (d, d) of the scatter of all rows from rounded sums, with error bounds that corrections lower.

    Matrix and bounds are in ``unit``; ``total`` is the trace. Three bounds are on the spectral norm of the error:
    everywhere, on the last ``block`` (d, b), and on the block's first columns, as many as there are components.
    """

    head: Head
    evidence: Evidence
    total: float
    unit: float
    matrix: Array
    block: Array | None = None
    error_bound: float
    block_error_bound: float
    leading_error_bound: float

    def __init__(self, run: RowsStrategy) -> None:
        """Store the run; `ask` sets everything else."""
        self.run = run

    def ask(self) -> Generator[Round, Any, None]:
        """Ask for mean and variances, then for the scatter in few bits per entry, and set the error bounds.

        Raise ConfigError if ``bits`` are too few for the number of parties, and what `pooled_centre` raises.
        """
        pooled = yield from pooled_centre(self.run)
        self.head, self.total, d = pooled.head, float(pooled.diagonal.sum()), pooled.spread.size
        self.evidence = Evidence(error_bound=pooled.error_bound, cautions=pooled.cautions)
        sharing = self.run.script["scatter"].short
        assert not callable(sharing)  # no request says it
        try:
            self._scatter_share = self._rounding_share(sharing["scatter"])
        except ValueError as error:
            raise ConfigError(
                f"run-config: 'bits' is too small for {self.run.public.parties} parties: {error}"
            ) from None
        between = float(pooled.rows) * pooled.remainder**2
        spread = np.sqrt(pooled.spread**2 + between)  # about the centre
        sums: Total = yield SumRound("scatter", {"centre": pooled.centre, "spread": spread})
        root = float(2.0 ** np.frexp(spread.max())[1])  # a power of two, so that divisions are exact
        self.unit, self._root, self._centre = root**2, root, pooled.centre
        self._spread = spread / root
        self._sent_spread = _suppress_small_spread(self._spread)
        self._omitted_spread = self._spread - self._sent_spread
        self._between = float(pooled.rows) * np.outer(pooled.remainder / root, pooled.remainder / root)
        self.matrix = unpack_symmetric(sums["scatter"], d) / self.unit - self._between
        # what float64 rounds off the sums about the centre, which are larger than those about the mean
        self._rounding_error = rounding_bound(d) * float(np.trace(self._between))
        sent_norm, omitted_norm = float(np.linalg.norm(self._sent_spread)), float(np.linalg.norm(self._omitted_spread))
        omitted_error = omitted_norm * (2 * sent_norm + omitted_norm)
        self.error_bound = self._scatter_share * sent_norm**2 + omitted_error + self._rounding_error
        self.block_error_bound = self.leading_error_bound = self.error_bound

    def correct(self, vectors: Array, number: int) -> Generator[Round, Any, None]:
        """Ask for products with the leading vectors (d, b), and correct matrix and bounds; ``number`` is unused."""
        block = vectors.astype(np.float32)
        V = block.astype(np.float64)
        expected, (features, columns) = (self.matrix + self._between) @ V, self._residual_limits(V)
        steps: Fields = {"features": features * self._root, "columns": columns * self._root}
        estimate = {"product": expected * self.unit}
        sums: Total = yield SumRound("correction", {"centre": self._centre, "block": block, **steps}, estimate=estimate)
        Q, R = qr(V, mode="economic")  # float32 numbers are orthonormal but for rounding
        inverse = np.linalg.inv(R)
        self.matrix = correct_on_block(self.matrix, Q, (sums["product"] / self.unit - expected) @ inverse)
        errors = []  # spectral norms of the error of the product with ``V @ inverse``
        for width in (columns.size, self.run.options.n_components):
            rounded = self._rounding_share(CORRECTION) * np.linalg.norm(features) * np.linalg.norm(columns[:width])
            omitted = np.linalg.norm(self._omitted_spread) * np.linalg.norm(self._spread @ np.abs(V[:, :width]))
            errors.append(float((rounded + omitted) * np.linalg.norm(inverse, 2)))
        block_error, leading_error = errors
        # rounding makes Q'E unsymmetric, and the half of that which the update keeps mixes the block's columns
        self.block_error_bound = 1.5 * block_error + self._rounding_error
        self.leading_error_bound = leading_error + block_error / 2 + self._rounding_error
        self.error_bound += 3 * block_error
        self.block = Q

    def _rounding_share(self, words: WordSharing) -> float:
        """Return the largest rounding error of a sum over the parties, as a fraction of the sum's limit."""
        return float(ShortWords(np.ones(1), words, self.run.public.parties).error_bound[0])

    def _residual_limits(self, V: Array) -> tuple[Array, Array]:
        """Return f (d,), 0 for omitted features, and c (b,): f_i c_j bounds the entries of the error times ``V``."""
        max_products, omitted = self._spread @ np.abs(V), self._omitted_spread @ np.abs(V)
        half = ShortWords(np.ones(1), CORRECTION, self.run.public.parties).base / 2
        finest = half / MAX_EXACT_MULTIPLE * max_products  # float64 has no smaller steps
        if self.block is None:
            return self._sent_spread, np.maximum(self._scatter_share * max_products + omitted, finest)
        coefficients = self.block.T @ V
        outside_norms = np.linalg.norm(V - self.block @ coefficients, axis=0)
        residuals = self.block_error_bound * np.linalg.norm(coefficients, axis=0) + self.error_bound * outside_norms
        finest = float(self._sent_spread.max()) * finest
        return (self._sent_spread > 0).astype(np.float64), np.maximum(residuals, finest)
