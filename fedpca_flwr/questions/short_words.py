"""The scatter of all rows where only sums open, in short words, and corrections of what these round off.

After the first two sums all know the pooled mean and the roots s of the scatter's diagonal, so ``|S_ij| <= s_i s_j``,
and several values share a word of 64 bits (`fedpca_flwr.maths.short_words`). A correction asks for the scatter's
products with the leading vectors V so far. The server knows them but for what rounding took off, so three values share
a word, in steps of what that can be. Each party measures what rounding takes off its scatter and off its products
(spectral norms). Only the sums of these norms are shown. They bound the error of the whole, everywhere and on a block
B, and so the residuals of the next correction: ``|(S - A) v| <= on_block |B'v| + everywhere |v - B B'v|``.
"""

from collections.abc import Callable, Generator
from typing import Any

import numpy as np
from scipy.linalg import qr

from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.errors import ConfigError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.eigen import spectral_norm
from fedpca_flwr.maths.moments import Head, symmetric, unpack
from fedpca_flwr.maths.refine import corrected
from fedpca_flwr.maths.short_words import EXACT, WORD_BITS, Short, ShortWords
from fedpca_flwr.protocol.payload import Field, Fields, Payload
from fedpca_flwr.protocol.question import Ask, Public, Question, Questions, Sum, SumLimits, Total
from fedpca_flwr.questions.row_limits import require_bound, scatter_limits
from fedpca_flwr.questions.rows import CENTRE, SCATTER, SPREAD, centre_phases, pooled_centre
from fedpca_flwr.questions.rows_run import Evidence, RowsClient, RowsStrategy

WRONG = Field("wrong", ("2",), kind="size")
"""Spectral norms of what rounding took off a party's numbers: off all, and off those of the first components."""
FEATURES, COLUMNS = Field("features", ("d",), kind="size"), Field("columns", ("b",), kind="size")
"""Their products bound the residual of the sum, and so say its steps."""

CORRECTION = Short(3, residual=True)

UNSEEN = 2.0**-48
"""Share of the largest deviation below which a feature does not travel: beside it, rounding in float64 is as large."""


def short_phases(config: RunConfig, bits: int, width: Callable[[Public], int], *, corrections: int) -> Questions:
    """The questions of `ShortScatter`: a scatter in so many ``bits``, and corrections on blocks of a ``width``."""
    require_bound(config)
    words = Short(WORD_BITS // bits)
    scatter = Question(
        asked=Payload((CENTRE, SPREAD)),
        reply=Payload((SCATTER, WRONG)),
        answer=lambda party, asked: _scatter(party, asked, words),
        limits=_scatter_limits,
        short={"scatter": words},
    )
    correction = Question(
        asked=Payload((CENTRE, Field("block", ("d", "b"), "float32", kind="orthonormal columns"), FEATURES, COLUMNS)),
        reply=Payload((Field("product", ("d", "b")), WRONG)),
        answer=_product,
        sizes=lambda public: {"b": width(public)},
        limits=_product_limits,
        short={"product": CORRECTION},
        times=corrections,
        optional=True,
    )
    return {**centre_phases(), "scatter": scatter, **({"correction": correction} if corrections else {})}


def _scatter_limits(asked: Fields, public: Public) -> SumLimits:
    spread = asked["spread"]
    return {**scatter_limits(_travelling(spread)), "wrong": np.full(2, spread @ spread)}


def _travelling(spread: Array) -> Array:
    """The roots of the scatter's diagonal (d,), with 0 for features that are constant but for rounding."""
    return np.where(spread > UNSEEN * spread.max(), spread, 0.0)


def _product_limits(asked: Fields, public: Public) -> SumLimits:
    across, along = asked["features"], asked["columns"]
    largest = np.linalg.norm(across) * np.linalg.norm(along) * public.parties
    return {"product": np.outer(across, along), "wrong": np.full(2, largest)}


def _scatter(party: RowsClient, asked: Fields, words: Short) -> Fields:
    """Packed scatter about the centre, and what rounding makes of it."""
    scatter = party.own.moments().scatter_about(asked["centre"])
    limits = _scatter_limits(asked, party.public)["scatter"]
    shown = ShortWords(limits, words, party.public.parties).rounded(scatter)
    wrong = spectral_norm(unpack(scatter - shown, asked["spread"].size))
    return {"scatter": scatter, "wrong": np.array([wrong, wrong])}


def _product(party: RowsClient, asked: Fields) -> Fields:
    """The scatter's product with a block, and what rounding makes of that."""
    product = party.own.times_about(asked["centre"], asked["block"].astype(np.float64))
    limit = np.outer(asked["features"], asked["columns"])
    shown = ShortWords(limit, CORRECTION, party.public.parties).rounded(product)
    lost, k = product - shown, party.options.n_components
    return {"product": product, "wrong": np.array([np.linalg.norm(lost, 2), np.linalg.norm(lost[:, :k], 2)])}


class ShortScatter:
    """An approximation ``matrix`` (d, d) of the scatter of all rows, which corrections mend.

    Attributes
    ----------
    head : Head
        Count and mean of all rows.
    total : float
        Trace of their scatter.
    wrong, on_block, on_first : float
        Bounds on the spectral norm of what is wrong: everywhere, on the last `block` (d, b), and on its first columns,
        as many as components are wanted.
    """

    head: Head
    total: float
    matrix: Array
    block: Array | None = None
    wrong: float
    on_block: float
    on_first: float

    def __init__(self, run: RowsStrategy) -> None:
        self.run = run
        self.evidence = Evidence()

    def ask(self) -> Generator[Ask, Any, None]:
        """Ask for the centre, and for the scatter in short words."""
        pooled = yield from pooled_centre(self.run)
        self.head, self.total = pooled.head, float(pooled.diagonal.sum())
        self.evidence = Evidence(missed=pooled.missed, cautions=pooled.cautions)
        self._centre, self._every, self._spread = pooled.centre, pooled.spread, _travelling(pooled.spread)
        words = self.run.phases["scatter"].short["scatter"]
        try:
            self._share = float(ShortWords(np.ones(1), words, self.run.public.parties).missed[0])
        except ValueError as error:
            raise ConfigError(
                f"run-config: 'bits' is too small for {self.run.public.parties} parties: {error}"
            ) from None
        sums: Total = yield Sum("scatter", {"centre": pooled.centre, "spread": pooled.spread})
        self.matrix = symmetric(sums["scatter"], pooled.spread.size)
        # the sum is about the centre, which the mean is beside by rounding
        beside = pooled.rows * float(pooled.remainder @ pooled.remainder)
        self.wrong = self.on_block = self.on_first = float(_norms(sums)[0]) + beside

    def correct(self, vectors: Array, number: int) -> Generator[Ask, Any, None]:
        """Ask what is wrong about the leading ``vectors`` (d, b), and mend it."""
        block = vectors.astype(np.float32)
        V = block.astype(np.float64)
        known, (features, columns) = self.matrix @ V, self._reach(V)
        asked: Fields = {"centre": self._centre, "block": block, "features": features, "columns": columns}
        sums: Total = yield Sum("correction", asked, near={"product": known})
        Q, R = qr(V, mode="economic")  # float32 numbers are orthonormal but for rounding
        inverse = np.linalg.inv(R)
        self.matrix = corrected(self.matrix, Q, (sums["product"] - known) @ inverse)
        lost, first = (float(np.linalg.norm(inverse, 2)) * _norms(sums)).tolist()
        # rounding makes Q'E unsymmetric, and the half of that which the update keeps mixes the block's columns
        self.on_block, self.on_first = 1.5 * lost, first + lost / 2
        self.wrong += 3 * lost
        self.block = Q

    def _reach(self, V: Array) -> tuple[Array, Array]:
        """Numbers (d,) and (b,) whose products bound what is wrong about each entry of the product with ``V``."""
        largest, unsent = self._every @ np.abs(V), (self._every - self._spread) @ np.abs(V)
        half = ShortWords(np.ones(1), CORRECTION, self.run.public.parties).base / 2
        finest = half / EXACT * largest  # float64 has no smaller steps
        if self.block is None:
            return self._spread, np.maximum(self._share * largest + unsent, finest)
        inside = self.block.T @ V
        beside = np.linalg.norm(V - self.block @ inside, axis=0)
        wrong = self.on_block * np.linalg.norm(inside, axis=0) + self.wrong * beside
        return (self._spread > 0).astype(np.float64), np.maximum(wrong, float(self._spread.max()) * finest)


def _norms(sums: Total) -> Array:
    """The parties' norms, added up."""
    return np.asarray(sums["wrong"] + sums.missed["wrong"])
