"""Scatter of all rows, known only through products with blocks of vectors: no covariance is formed or sent.

In clear every party k returns S_k V, with S_k its own centred scatter, and the server adds the scatter between the
means, which it knows: ``A V = sum S_k V + sum n_k (m_k - m)(m_k - m)^T V``. Where only sums may be shown the products
are about the pooled mean, ``(X - m)^T (X - m) V``, of orthonormal blocks, each orthogonal to those before.
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
from fedpca_flwr.protocol.payload import ORTHONORMALITY_TOLERANCE, Field, Fields, Payload
from fedpca_flwr.protocol.question import SERVER, Public, Question, Questions, Round, SumRound, Total, by_transport
from fedpca_flwr.protocol.replies import StreamingSum, stream_replies
from fedpca_flwr.questions.digits import digits_questions, sum_in_digits
from fedpca_flwr.questions.influence import scatter_unit_entries
from fedpca_flwr.questions.pooling import HEAD, Evidence, head_fields, read_head
from fedpca_flwr.questions.row_limits import product_limits, reach, require_bound
from fedpca_flwr.questions.rows import CENTRE, centre_questions, pooled_centre
from fedpca_flwr.questions.rows_client import Party
from fedpca_flwr.questions.rows_run import RowsStrategy

DIAGONAL = Field("diagonal", ("d",), kind="size")
SCALE = Field("scale", ("d",), kind="positive", optional=True, constant="scale")

BLOCKS_KEY = "blocks"  # key in a party's state: columns (d, b) of the blocks in earlier questions

FLOAT_DTYPES = "float32 or float64"

MIN_BLOCK_SHARE = 1e-14  # share of a block below which the new part of the block is rounding
MAX_PRODUCT_RATIO = 1e6  # ratio of a product to the trace that rounding cannot explain


def product_questions(
    config: RunConfig, width: Callable[[Public], int], *, rounds: int, variances_first: bool = False
) -> Questions:
    """Return the questions for count, mean and variances of the rows, and for products of the scatter with blocks.

    A block has at most ``width`` columns, and a run ``rounds`` products; of masked ones, orthonormal and orthogonal to
    the blocks before, at most d columns. With ``variances_first`` the variances come before the first product, as
    scaling needs. Raise ConfigError if secure sums lack a `bound`.
    """
    block, product = Field("block", ("d", "<=b"), FLOAT_DTYPES), Payload((Field("product", ("d", "b")),))
    plain = Question(request=Payload((block,)), reply=product, answer=_local_product, times=rounds)
    plain = replace(plain, sizes=lambda public: {"b": width(public)})
    require_bound(config)
    masked = replace(
        plain,
        request=Payload((CENTRE, SCALE, replace(block, kind="orthonormal columns"))),
        answer=_local_masked_product,
        limits=lambda request, public: product_limits(reach(request, public), request["block"].shape[1]),
    )
    start = Question(
        reply=Payload((*HEAD, DIAGONAL, *product.fields)),
        answer=lambda party, request: _local_start(party, request, width(party.public)),
        sizes=plain.sizes,
    )
    clear = {"start": start, "product": replace(plain, times=max(1, rounds - 1), optional=True)}
    if variances_first:
        clear = {"heads": Question(reply=Payload((*HEAD, DIAGONAL)), answer=_local_heads), "product": plain}
    sums = {**centre_questions(), **digits_questions(config, "product", masked)}
    return by_transport(config, clear=clear, masked=sums)


def _local_heads(party: Party, request: Fields) -> Fields:
    """Return count and mean of a party's rows, and the diagonal (d,) of their centred scatter."""
    head, diagonal = party.vault.head_and_diagonal()
    return {**head_fields(head, diagonal), "diagonal": diagonal}


def _local_start(party: Party, request: Fields, width: int) -> Fields:
    """Return count, mean, diagonal of the scatter, and the scatter's product with a seeded random block."""
    first = random_block(party.public.features, width, party.public.config.seed)
    return {**_local_heads(party, request), "product": party.vault.times(first)}


def _local_product(party: Party, request: Fields) -> Fields:
    """Return the product of a party's scatter, about its own mean, with the requested block (d, b)."""
    return {"product": party.vault.times(request["block"].astype(np.float64))}


def _local_masked_product(party: Party, request: Fields) -> Fields:
    """Return the product of a party's scaled scatter about the request's centre with the block, and store the block.

    Raise ContractError for a block not orthogonal to those before: products of nearly equal blocks show roundings.
    """
    scale = request["scale"][:, None] if request["scale"].size else 1.0
    V = request["block"].astype(np.float64)
    (previous,) = party.state[BLOCKS_KEY] if BLOCKS_KEY in party.state else [np.empty((len(V), 0))]
    if np.abs(previous.T @ V).max(initial=0.0) > ORTHONORMALITY_TOLERANCE:
        raise ContractError(f"{SERVER}: 'block' is not orthogonal to those that it asked about before in this run")
    blocks = np.hstack([previous, V])
    if blocks.shape[1] > len(V):
        raise ContractError(f"{SERVER}: it asked for {blocks.shape[1]} products with vectors of {len(V)} features")
    party.state[BLOCKS_KEY] = [blocks]
    return {"product": party.vault.centred_product(request["centre"], V / scale) / scale}


class ScatterProducts:
    """Scatter A (d, d) of all rows about their mean, known only through products with blocks of vectors.

    The first question sets ``head``, ``diagonal`` (d,) and ``evidence``; set ``scale`` (d,) before the first product.
    """

    head: Head
    diagonal: Array

    def __init__(self, run: RowsStrategy) -> None:
        """Store the run, without scale, opened products or scatter between means yet."""
        self.run = run
        self.evidence = Evidence()
        self.scale: Array = np.empty(0)
        self._between: Array = np.empty((0, 0))
        self._opened: OpenedProducts | None = None

    def variances(self) -> Generator[Round, Any, None]:
        """Ask for count, mean and variances of all rows, and set `head`, `diagonal` and `evidence`."""
        if "heads" in self.run.script:
            yield from self._ask_heads("heads")
            return
        pooled = yield from pooled_centre(self.run)
        self.head, self.diagonal = pooled.head, pooled.diagonal
        self._opened = OpenedProducts(pooled.diagonal.size)
        self.evidence = Evidence(error_bound=pooled.error_bound, cautions=pooled.cautions)

    def start(self, V: Array) -> Generator[Round, Any, tuple[Array, Array]]:
        """Ask as `variances`, and return A's product with the first block V (d, b), and a bound as `times` does."""
        if "start" not in self.run.script:
            yield from self.variances()
            return (yield from self.times(V.astype(np.float32)))  # exact: `random_block` draws float32 numbers
        sums = yield from self._ask_heads("start")
        return self._with_between(sums["product"], V), np.zeros(1)

    def times(self, V: NDArray[Any]) -> Generator[Round, Any, tuple[Array, Array]]:
        """Return A's product with a block V (d, b), and a bound (d, b) or (1,) on each entry's fixed-point rounding.

        Where only sums open, the parties are asked about the new part of the block, for rows divided by the `scale`.
        Raise ContractError for products that no rows have, and ConfigError if `bound` leaves them unresolved.
        """
        block = V.astype(np.float64)
        if self._opened is None:
            total: Total = yield SumRound("product", {"block": V})
            return self._with_between(total["product"], block), np.zeros(1)
        scale, opened = self.scale[:, None] if self.scale.size else 1.0, self._opened
        earlier_part, new, new_part = opened.decompose(block * scale)
        if new.shape[1]:
            narrow = np.array_equal(new, V)
            request = {"centre": self.head.mean, "scale": self.scale, "block": V if narrow else new}
            squared_means = 0.0 if self.run.options.centred else self.head.n * self.head.mean**2
            variance = float(((self.diagonal + squared_means) / np.ravel(scale) ** 2).sum())
            total = yield from sum_in_digits(self.run, "product", request, variance)
            opened.add(new, total["product"], total.error_bounds["product"][:, :1])
        centre_error = self.head.n * np.outer(self.head.remainder, self.head.remainder @ block)
        product, error_bound = opened.product(earlier_part, new_part)
        return product * scale - centre_error, error_bound * scale

    def _ask_heads(self, phase: str) -> Generator[Round, Any, Total]:
        """Ask for count, mean and diagonals, store their pooled values and units, and return sums of other fields."""
        heads, arriving, parties = list[Head](), StreamingSum(), dict[str, tuple[Head, Array]]()

        def take(fields: Fields, sender: str) -> None:
            """Add a party's additive fields, and store its count, mean and diagonal."""
            head_names = {field.name for field in HEAD}
            arriving.add({name: array for name, array in fields.items() if name not in head_names}, sender)
            heads.append(head := read_head(fields))
            parties[sender] = head, fields["diagonal"]

        sums = arriving.total((yield from stream_replies(Round(phase), take)))
        self.evidence = Evidence(units=scatter_unit_entries(parties))
        heads.sort(key=head_order)
        self.head, deviations = pool_heads(heads)
        self._between = np.array([np.sqrt(h.n) * dev for h, dev in zip(heads, deviations, strict=True)])
        self.diagonal = sums["diagonal"] + np.einsum("ij,ij->j", self._between, self._between)
        return sums

    def _with_between(self, product: Array, V: Array) -> Array:
        """Add the scatter between means times V (d, b) to summed products (d, b); ContractError for wrong ones."""
        require_possible_product(product, V, float(self.diagonal.sum()))
        return product + self._between.T @ (self._between @ V)


class OpenedProducts:
    """Store of the mutually orthogonal blocks that were sent to the parties, and of the summed products."""

    def __init__(self, d: int) -> None:
        """Start without blocks of ``d`` features."""
        self._blocks, self._products, self._error_bound = np.empty((d, 0)), np.empty((d, 0)), np.zeros((d, 1))

    def decompose(self, V: Array) -> tuple[Array, Array, Array]:
        """Split a block V (d, b) into ``blocks C + W R``, with an orthonormal new part W, and return C, W and R.

        A block that is itself orthonormal and orthogonal, but for rounding in float32, is W.
        """
        Q, coefficients = self._blocks, self._blocks.T @ V
        deviation, columns = np.abs(V.T @ V - np.eye(V.shape[1])).max(), Q.shape[1] + V.shape[1]
        slant = max(deviation, np.abs(coefficients).max(initial=0.0))
        if slant < ORTHONORMALITY_TOLERANCE / 10 and columns <= len(V):
            return np.zeros_like(coefficients), V, np.eye(V.shape[1])
        remainder = V - Q @ coefficients
        W, R, order = qr(remainder, mode="economic", pivoting=True)
        rank = int((np.abs(np.diagonal(R)) > MIN_BLOCK_SHARE * np.abs(V).max()).sum())
        W, R = W[:, : min(rank, len(V) - Q.shape[1])], R[: min(rank, len(V) - Q.shape[1]), np.argsort(order)]
        for _ in range(2):  # a short remainder is orthogonal but for the rounding of all of V
            correction = Q.T @ W
            W, S = qr(W - Q @ correction, mode="economic")
            coefficients, R = coefficients + correction @ R, S @ R
        return coefficients, W, R

    def add(self, W: Array, product: Array, error_bound: Array) -> None:
        """Store the new part W (d, r) of a block (`decompose`), and the opened product (d, r) with its bound (d, 1)."""
        self._blocks, self._error_bound = np.hstack([self._blocks, W]), np.maximum(self._error_bound, error_bound)
        self._products = np.hstack([self._products, product])

    def product(self, earlier_part: Array, new_part: Array) -> tuple[Array, Array]:
        """Return A's product (d, b) with the block of coefficients C and R of `decompose`, and a rounding bound."""
        coefficients = np.vstack([earlier_part, new_part])
        return self._products @ coefficients, self._error_bound * np.abs(coefficients).sum(axis=0)


def require_possible_product(product: Array, V: Array, trace: float) -> None:
    """Raise ContractError if a product is larger than `MAX_PRODUCT_RATIO` times the trace times the norm of V."""
    max_size = float(np.abs(product).max())
    if trace > 0 and not max_size <= MAX_PRODUCT_RATIO * trace * float(np.linalg.norm(V)):
        raise ContractError(
            f"the parties' products with a block are up to {max_size:.1g}, and their variances add up to {trace:.1g}: "
            "no rows have such ones. Some party sends what is not so; where rows are split, 'p-cov' with 'max-share' "
            "tells which"
        )
