"""The scatter of all rows, known only through products with blocks of vectors: no covariance is formed or sent.

In clear every party k returns S_k V, with S_k its own centred scatter, and the server adds what lies between the means,
which it knows: ``A V = sum S_k V + sum n_k (m_k - m)(m_k - m)^T V``. Where only sums may be shown the products are
about the pooled mean, ``(X - m)^T (X - m) V``, of orthonormal blocks, each orthogonal to those before.
"""

from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import qr

from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.errors import ContractError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.krylov import random_block
from fedpca_flwr.maths.moments import Head, head_order, pool_heads
from fedpca_flwr.protocol.journal import State
from fedpca_flwr.protocol.payload import ORTHONORMAL, Field, Fields, Payload
from fedpca_flwr.protocol.question import SERVER, Ask, Public, Question, Questions, Sum, Total, by_transport
from fedpca_flwr.protocol.replies import StreamingSum, as_they_come
from fedpca_flwr.questions.digits import in_digits, summed
from fedpca_flwr.questions.fields import HEAD, head_fields, head_in
from fedpca_flwr.questions.influence import units_of_scatters
from fedpca_flwr.questions.pooling import Evidence
from fedpca_flwr.questions.row_limits import product_limits, reach, require_bound
from fedpca_flwr.questions.rows import CENTRE, centre_phases, pooled_centre
from fedpca_flwr.questions.rows_run import Party, RowsStrategy

DIAGONAL = Field("diagonal", ("d",), kind="size")
SCALE = Field("scale", ("d",), kind="positive", optional=True, fixed="scale")

BLOCKS = "blocks"
"""Where a party keeps the columns that it was asked about (d, b)."""

EITHER = "float32 or float64"

NOTHING = 1e-14
"""Share of a block below which what is new of it is rounding."""

BEYOND = 1e6
"""So many times a trace is more than rounding makes of any product."""


def product_phases(
    config: RunConfig, width: Callable[[Public], int], *, rounds: int, variances_first: bool = False
) -> Questions:
    """The questions of `ScatterProducts`: so many ``rounds`` at most, with blocks of at most ``width`` columns.

    With ``variances_first`` the variances are asked before the first product, as scaling needs them. Where only sums
    open a block is orthonormal, and orthogonal to those before it: a run has at most d columns.
    """

    def sizes(public: Public) -> dict[str, int]:
        return {"b": width(public)}

    block, product = Field("block", ("d", "<=b"), EITHER), Payload((Field("product", ("d", "b")),))
    further = Question(asked=Payload((block,)), reply=product, answer=_product, sizes=sizes, times=rounds)
    require_bound(config)
    limited = replace(
        further,
        asked=Payload((CENTRE, SCALE, replace(block, kind="orthonormal columns"))),
        answer=_limited_product,
        limits=lambda asked, public: product_limits(reach(asked, public), asked["block"].shape[1]),
    )
    start = Question(
        reply=Payload((*HEAD, DIAGONAL, *product.fields)),
        answer=lambda party, asked: _start(party, asked, width(party.public)),
        sizes=sizes,
    )
    from_each = {"start": start, "product": replace(further, times=max(1, rounds - 1), optional=True)}
    if variances_first:
        from_each = {"heads": Question(reply=Payload((*HEAD, DIAGONAL)), answer=_heads), "product": further}
    return by_transport(config, clear=from_each, masked={**centre_phases(), **in_digits(config, "product", limited)})


def _heads(party: Party, asked: Fields) -> Fields:
    """Count, mean, and the scatter's diagonal."""
    head, diagonal = party.vault.head_and_diagonal()
    return {**head_fields(head, diagonal), "diagonal": diagonal}


def _start(party: Party, asked: Fields, width: int) -> Fields:
    """The same, and the scatter's product with the first block, which all parties make alike."""
    first = random_block(party.public.features, width, party.public.config.seed)
    return {**_heads(party, asked), "product": party.vault.times(first)}


def _product(party: Party, asked: Fields) -> Fields:
    """The scatter's product with a block, about this party's own mean."""
    return {"product": party.vault.times(asked["block"].astype(np.float64))}


def _limited_product(party: Party, asked: Fields) -> Fields:
    """The product with a block of the scatter about the centre that all share, of rows divided by the scale."""
    scale = asked["scale"][:, None] if asked["scale"].size else 1.0
    V = asked["block"].astype(np.float64)
    _require_new(V, party.state)
    return {"product": party.vault.times_about(asked["centre"], V / scale) / scale}


def _require_new(V: Array, state: State) -> None:
    """Refuse a block that is not orthogonal to those before it; keep it.

    A sum of roundings has steps of each party. Neighbouring blocks would scan them.
    """
    (before,) = state[BLOCKS] if BLOCKS in state else [np.empty((len(V), 0))]
    if np.abs(before.T @ V).max(initial=0.0) > ORTHONORMAL:
        raise ContractError(f"{SERVER}: 'block' is not orthogonal to those that it asked about before in this run")
    every = np.hstack([before, V])
    if every.shape[1] > len(V):
        raise ContractError(f"{SERVER}: it asked for {every.shape[1]} products with vectors of {len(V)} features")
    state[BLOCKS] = [every]


class ScatterProducts:
    """The scatter A (d, d) of all rows about their mean.

    Attributes
    ----------
    head : Head
        Count and mean of all rows, once asked for.
    diagonal : ndarray of shape (d,)
        Of A.
    evidence : Evidence
    scale : ndarray of shape (d,) or (0,)
        What features are divided by before a block is multiplied; set it before the first product.
    """

    head: Head
    diagonal: Array

    def __init__(self, run: RowsStrategy) -> None:
        self.run = run
        self.evidence = Evidence()
        self.scale: Array = np.empty(0)
        self._between: Array = np.empty((0, 0))
        self._known: OpenedProducts | None = None

    def variances(self) -> Generator[Ask, Any, None]:
        """Ask for `head` and `diagonal` alone."""
        if "heads" in self.run.phases:
            yield from self._heads("heads")
            return
        pooled = yield from pooled_centre(self.run)
        self.head, self.diagonal = pooled.head, pooled.diagonal
        self._known = OpenedProducts(pooled.diagonal.size)
        self.evidence = Evidence(missed=pooled.missed, cautions=pooled.cautions)

    def start(self, V: Array) -> Generator[Ask, Any, tuple[Array, Array]]:
        """The same and the first product, with a block that every party makes for itself where it can."""
        if "start" not in self.run.phases:
            yield from self.variances()
            return (yield from self.times(V.astype(np.float32)))  # exact: see `random_block`
        sums = yield from self._heads("start")
        return self._with_between(sums["product"], V), np.zeros(1)

    def times(self, V: NDArray[Any]) -> Generator[Ask, Any, tuple[Array, Array]]:
        """``A V`` (d, b), and a bound on what fixed point rounded off in each entry.

        Where only sums open, the parties are asked about what is new of the block, for rows divided by the `scale`.
        """
        block = V.astype(np.float64)
        if self._known is None:
            total: Total = yield Sum("product", {"block": V})
            return self._with_between(total["product"], block), np.zeros(1)
        scale, known = self.scale[:, None] if self.scale.size else 1.0, self._known
        inside, new, beside = known.parts(block * scale)
        if new.shape[1]:
            narrow = np.array_equal(new, V)
            asked = {"centre": self.head.mean, "scale": self.scale, "block": V if narrow else new}
            about_zero = 0.0 if self.run.options.centred else self.head.n * self.head.mean**2
            variance = float(((self.diagonal + about_zero) / np.ravel(scale) ** 2).sum())
            total = yield from summed(self.run, "product", asked, variance)
            known.add(new, total["product"], total.missed["product"][:, :1])
        lost = self.head.n * np.outer(self.head.remainder, self.head.remainder @ block)
        product, missed = known.product(inside, beside)
        return product * scale - lost, missed * scale

    def _heads(self, phase: str) -> Generator[Ask, Any, Total]:
        """Ask for what begins a run; the sum of what adds up of it. Each reply's products are not kept."""
        heads, arriving, parties = list[Head](), StreamingSum(), dict[str, tuple[Head, Array]]()

        def take(fields: Fields, sender: str) -> None:
            own = {field.name for field in HEAD}
            arriving.add({name: array for name, array in fields.items() if name not in own}, sender)
            heads.append(head := head_in(fields))
            parties[sender] = head, fields["diagonal"]

        sums = arriving.total((yield from as_they_come(Ask(phase), take)))
        self.evidence = Evidence(units=units_of_scatters(parties))
        heads.sort(key=head_order)
        self.head, deviations = pool_heads(heads)
        self._between = np.array([np.sqrt(h.n) * dev for h, dev in zip(heads, deviations, strict=True)])
        self.diagonal = sums["diagonal"] + np.einsum("ij,ij->j", self._between, self._between)
        return sums

    def _with_between(self, product: Array, V: Array) -> Array:
        require_possible(product, V, float(self.diagonal.sum()))
        return product + self._between.T @ (self._between @ V)


class OpenedProducts:
    """Blocks that all parties were asked about, each orthogonal to those before, and their products, which opened."""

    def __init__(self, d: int) -> None:
        self._blocks, self._products, self._missed = np.empty((d, 0)), np.empty((d, 0)), np.zeros((d, 1))

    def parts(self, V: Array) -> tuple[Array, Array, Array]:
        """C, W and R with ``V = blocks C + W R`` (d, b): W is orthonormal, and orthogonal to the blocks.

        A block that is so but for rounding in float32 is W itself.
        """
        Q, inside = self._blocks, self._blocks.T @ V
        off = np.abs(V.T @ V - np.eye(V.shape[1])).max()
        if max(off, np.abs(inside).max(initial=0.0)) < ORTHONORMAL / 10 and Q.shape[1] + V.shape[1] <= len(V):
            return np.zeros_like(inside), V, np.eye(V.shape[1])
        beside = V - Q @ inside
        W, R, order = qr(beside, mode="economic", pivoting=True)
        rank = int((np.abs(np.diagonal(R)) > NOTHING * np.abs(V).max()).sum())
        W, R = W[:, : min(rank, len(V) - Q.shape[1])], R[: min(rank, len(V) - Q.shape[1]), np.argsort(order)]
        for _ in range(2):  # a short remainder is orthogonal but for the rounding of all of V
            again = Q.T @ W
            W, S = qr(W - Q @ again, mode="economic")
            inside, R = inside + again @ R, S @ R
        return inside, W, R

    def add(self, W: Array, product: Array, missed: Array) -> None:
        """Take the product with what is new of a block, each entry of which has ``missed`` (d, 1) at most."""
        self._blocks, self._missed = np.hstack([self._blocks, W]), missed
        self._products = np.hstack([self._products, product])

    def product(self, inside: Array, beside: Array) -> tuple[Array, Array]:
        """The product with the block of these `parts`, and a bound on what is missed of it."""
        coefficients = np.vstack([inside, beside])
        return self._products @ coefficients, self._missed * np.abs(coefficients).sum(axis=0)


def require_possible(product: Array, V: Array, trace: float) -> None:
    """Refuse a product (d, b) with a block by far larger than that of any scatter with this trace."""
    largest = float(np.abs(product).max())
    if trace > 0 and not largest <= BEYOND * trace * float(np.linalg.norm(V)):
        raise ContractError(
            f"the parties' products with a block are up to {largest:.1g}, and their variances add up to {trace:.1g}: "
            "no rows have such ones. Some party sends what is not so; where rows are split, 'p-cov' with 'max-share' "
            "tells which"
        )
