"""The scatter of all rows where only sums open, in short words, and corrections of what these round off.

After the first two sums all know the pooled mean and the roots s of the scatter's diagonal, so ``|S_ij| <= s_i s_j``,
and several values share a word of 64 bits (`fedpca_flwr.maths.short_words`). A correction asks for the scatter's
products with the leading vectors V so far. The server knows them but for what rounding took off, so three values share
a word, in steps of what that can be.

**The error is bounded by what everybody knows**: the steps, the number of parties P and the sizes of the entries. Each
party rounds by half a step at most, and an entry's step is a share of ``s_i s_j``. So rounding takes off no more than
``P / 2`` steps, whose matrix has the spectral norm ``share s's``; of a product, whose steps are ``f_i c_j``, it is
``share |f| |c|``. No party's own rounding is opened: a norm of it tells of that party alone. The true errors are some
``sqrt(3 P)`` times smaller (independent roundings), which costs bits or corrections and leaves the bound a bound.

These bound the error of the whole, everywhere and on a block B, and so the residuals of the next correction:
``|(S - A) v| <= on_block |B'v| + everywhere |v - B B'v|``.

The parties' sums are about the centre c that all were told, which the mean is beside by its rounding, r. The server
knows r and takes ``N r r'`` off. It computes in a unit, a power of two, in which the largest deviation is about 1.
"""

from collections.abc import Callable, Generator
from typing import Any

import numpy as np
from scipy.linalg import qr

from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.errors import ConfigError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.eigen import rounding
from fedpca_flwr.maths.moments import Head, symmetric
from fedpca_flwr.maths.refine import corrected
from fedpca_flwr.maths.short_words import EXACT, WORD_BITS, Short, ShortWords
from fedpca_flwr.protocol.payload import Field, Fields, Payload
from fedpca_flwr.protocol.question import Ask, Public, Question, Questions, Sum, SumLimits, Total
from fedpca_flwr.questions.pooling import Evidence
from fedpca_flwr.questions.row_limits import reach, require_bound, scatter_limits
from fedpca_flwr.questions.rows import CENTRE, SCATTER, SPREAD, centre_phases, pooled_centre
from fedpca_flwr.questions.rows_run import Party, RowsStrategy

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
        reply=Payload((SCATTER,)),
        answer=_scatter,
        limits=_scatter_limits,
        short={"scatter": words},
    )
    correction = Question(
        asked=Payload((CENTRE, Field("block", ("d", "b"), "float32", kind="orthonormal columns"), FEATURES, COLUMNS)),
        reply=Payload((Field("product", ("d", "b")),)),
        answer=_product,
        sizes=lambda public: {"b": width(public)},
        limits=_product_limits,
        short={"product": CORRECTION},
        times=corrections,
        optional=True,
    )
    return {**centre_phases(), "scatter": scatter, **({"correction": correction} if corrections else {})}


def _scatter_limits(asked: Fields, public: Public) -> SumLimits:
    reach(asked, public)  # or the centre is none of rows within `bound`
    return scatter_limits(_travelling(asked["spread"]))


def _travelling(spread: Array) -> Array:
    """The roots of the scatter's diagonal (d,), with 0 for features that are constant but for rounding."""
    return np.where(spread > UNSEEN * spread.max(), spread, 0.0)


def _product_limits(asked: Fields, public: Public) -> SumLimits:
    reach(asked, public)
    return {"product": np.outer(asked["features"], asked["columns"])}


def _scatter(party: Party, asked: Fields) -> Fields:
    """Packed scatter about the centre."""
    return {"scatter": party.vault.moments().scatter_about(asked["centre"])}


def _product(party: Party, asked: Fields) -> Fields:
    """The scatter's product with a block."""
    return {"product": party.vault.times_about(asked["centre"], asked["block"].astype(np.float64))}


class ShortScatter:
    """An approximation ``matrix`` (d, d) of the scatter of all rows, which corrections mend.

    Attributes
    ----------
    head : Head
        Count and mean of all rows.
    total : float
        Trace of their scatter.
    unit : float
        In which the matrix, and all bounds, are.
    wrong, on_block, on_first : float
        Bounds on the spectral norm of what is wrong: everywhere, on the last `block` (d, b), and on its first columns,
        as many as components are wanted.
    """

    head: Head
    total: float
    unit: float
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
        self.head, self.total, d = pooled.head, float(pooled.diagonal.sum()), pooled.spread.size
        self.evidence = Evidence(missed=pooled.missed, cautions=pooled.cautions)
        try:
            self._share = self._missed(self.run.phases["scatter"].short["scatter"])
        except ValueError as error:
            raise ConfigError(
                f"run-config: 'bits' is too small for {self.run.public.parties} parties: {error}"
            ) from None
        between = float(pooled.rows) * pooled.remainder**2
        spread = np.sqrt(pooled.spread**2 + between)  # about the centre
        sums: Total = yield Sum("scatter", {"centre": pooled.centre, "spread": spread})
        root = float(2.0 ** np.frexp(spread.max())[1])
        self.unit, self._root, self._centre = root**2, root, pooled.centre
        self._every = spread / root
        self._sent = _travelling(self._every)
        self._unsent = self._every - self._sent
        self._between = float(pooled.rows) * np.outer(pooled.remainder / root, pooled.remainder / root)
        self.matrix = symmetric(sums["scatter"], d) / self.unit - self._between
        # what float64 rounds off the sums about the centre, which are larger than those about the mean
        self._rounded = rounding(d) * float(np.trace(self._between))
        sent, unsent = float(np.linalg.norm(self._sent)), float(np.linalg.norm(self._unsent))
        self.wrong = self._share * sent**2 + unsent * (2 * sent + unsent) + self._rounded
        self.on_block = self.on_first = self.wrong

    def correct(self, vectors: Array, number: int) -> Generator[Ask, Any, None]:
        """Ask what is wrong about the leading ``vectors`` (d, b), and mend it."""
        block = vectors.astype(np.float32)
        V = block.astype(np.float64)
        known, (features, columns) = (self.matrix + self._between) @ V, self._reach(V)
        steps: Fields = {"features": features * self._root, "columns": columns * self._root}
        near = {"product": known * self.unit}
        sums: Total = yield Sum("correction", {"centre": self._centre, "block": block, **steps}, near=near)
        Q, R = qr(V, mode="economic")  # float32 numbers are orthonormal but for rounding
        inverse = np.linalg.inv(R)
        self.matrix = corrected(self.matrix, Q, (sums["product"] / self.unit - known) @ inverse)
        widths = columns.size, self.run.options.n_components
        lost, first = (self._lost(V[:, :b], features, columns[:b], inverse) for b in widths)
        # rounding makes Q'E unsymmetric, and the half of that which the update keeps mixes the block's columns
        self.on_block, self.on_first = 1.5 * lost + self._rounded, first + lost / 2 + self._rounded
        self.wrong += 3 * lost
        self.block = Q

    def _lost(self, V: Array, features: Array, columns: Array, inverse: Array) -> float:
        """Bound on the spectral norm of what is wrong with the product with ``V @ inverse``."""
        rounded = self._missed(CORRECTION) * np.linalg.norm(features) * np.linalg.norm(columns)
        unsent = np.linalg.norm(self._unsent) * np.linalg.norm(self._every @ np.abs(V))
        return float((rounded + unsent) * np.linalg.norm(inverse, 2))

    def _missed(self, words: Short) -> float:
        """What the parties' rounding takes off a sum at most, as a share of its limit."""
        return float(ShortWords(np.ones(1), words, self.run.public.parties).missed[0])

    def _reach(self, V: Array) -> tuple[Array, Array]:
        """Numbers (d,) and (b,) whose products bound what is wrong about each entry of the product with ``V``."""
        largest, unsent = self._every @ np.abs(V), self._unsent @ np.abs(V)
        half = ShortWords(np.ones(1), CORRECTION, self.run.public.parties).base / 2
        finest = half / EXACT * largest  # float64 has no smaller steps
        if self.block is None:
            return self._sent, np.maximum(self._share * largest + unsent, finest)
        inside = self.block.T @ V
        beside = np.linalg.norm(V - self.block @ inside, axis=0)
        wrong = self.on_block * np.linalg.norm(inside, axis=0) + self.wrong * beside
        return (self._sent > 0).astype(np.float64), np.maximum(wrong, float(self._sent.max()) * finest)
