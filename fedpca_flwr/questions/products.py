"""The scatter of all rows, known only through products with blocks of vectors: no covariance is formed or sent.

In clear every party k returns S_k V, with S_k its own centred scatter, and the server adds what lies between the means,
which it knows: ``A V = sum S_k V + sum n_k (m_k - m)(m_k - m)^T V``. Where only sums may be shown the products are
about the pooled mean, ``(X - m)^T (X - m) V``, whose limits follow from the variances.
"""

from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.errors import ContractError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.krylov import random_block
from fedpca_flwr.maths.moments import Head, head_order, pool_heads
from fedpca_flwr.maths.secure import Layout
from fedpca_flwr.protocol.payload import Field, Fields, Payload
from fedpca_flwr.protocol.question import Ask, Public, Question, Questions, Sum, Total, by_transport
from fedpca_flwr.protocol.replies import StreamingSum, as_they_come
from fedpca_flwr.questions.fields import HEAD, head_fields, head_in
from fedpca_flwr.questions.influence import units_of_scatters
from fedpca_flwr.questions.row_limits import product_limits, require_bound
from fedpca_flwr.questions.rows import CENTRE, SPREAD, centre_phases, pooled_centre
from fedpca_flwr.questions.rows_run import Evidence, RowsClient, RowsStrategy

DIAGONAL = Field("diagonal", ("d",), kind="size")

EITHER = "float32 or float64"

BEYOND = 1e6
"""So many times a trace is more than rounding makes of any product."""


def product_phases(
    config: RunConfig, width: Callable[[Public], int], *, rounds: int, variances_first: bool = False
) -> Questions:
    """The questions of `ScatterProducts`: so many ``rounds`` at most, with blocks of at most ``width`` columns.

    With ``variances_first`` the variances are asked before the first product, as scaling needs them.
    """

    def sizes(public: Public) -> dict[str, int]:
        return {"b": width(public)}

    block, product = Field("block", ("d", "<=b"), EITHER), Payload((Field("product", ("d", "b")),))
    further = Question(asked=Payload((block,)), reply=product, answer=_product, sizes=sizes, times=rounds)
    require_bound(config)
    limited = replace(
        further,
        asked=Payload((CENTRE, SPREAD, block)),
        limits=lambda asked, public: product_limits(asked["spread"], asked["block"].astype(np.float64)),
    )
    start = Question(
        reply=Payload((*HEAD, DIAGONAL, *product.fields)),
        answer=lambda party, asked: _start(party, asked, width(party.public)),
        sizes=sizes,
    )
    from_each = {"start": start, "product": replace(further, times=max(1, rounds - 1), optional=True)}
    if variances_first:
        from_each = {"heads": Question(reply=Payload((*HEAD, DIAGONAL)), answer=_heads), "product": further}
    return by_transport(config, clear=from_each, masked={**centre_phases(), "product": limited})


def _heads(party: RowsClient, asked: Fields) -> Fields:
    """Count, mean, and the scatter's diagonal."""
    head, diagonal = party.own.head_and_diagonal()
    return {**head_fields(head, diagonal), "diagonal": diagonal}


def _start(party: RowsClient, asked: Fields, width: int) -> Fields:
    """The same, and the scatter's product with the first block, which all parties make alike."""
    first = random_block(party.public.features, width, party.site.config.seed)
    return {**_heads(party, asked), "product": party.own.times(first)}


def _product(party: RowsClient, asked: Fields) -> Fields:
    """The scatter's product with a block: about the centre that all share, or else about this party's own mean."""
    V = asked["block"].astype(np.float64)
    return {"product": party.own.times_about(asked["centre"], V) if "centre" in asked else party.own.times(V)}


class ScatterProducts:
    """The scatter A (d, d) of all rows about their mean.

    Attributes
    ----------
    head : Head
        Count and mean of all rows, once asked for.
    diagonal : ndarray of shape (d,)
        Of A.
    evidence : Evidence
    """

    head: Head
    diagonal: Array

    def __init__(self, run: RowsStrategy) -> None:
        self.run = run
        self.evidence = Evidence()
        self._between: Array = np.empty((0, 0))
        self._asked: dict[str, Array] = {}  # with every product
        self._remainder: Array = np.empty(0)  # what the mean has beyond the centre that is asked with it

    def variances(self) -> Generator[Ask, Any, None]:
        """Ask for `head` and `diagonal` alone."""
        if "heads" in self.run.phases:
            yield from self._heads("heads")
            return
        pooled = yield from pooled_centre(self.run)
        self.head, self.diagonal, self._remainder = pooled.head, pooled.diagonal, pooled.remainder
        self._asked = {"centre": pooled.centre, "spread": pooled.spread}
        missed = pooled.missed + self.run.public.parties * Layout({}).resolution * pooled.spread**2
        self.evidence = Evidence(missed=missed, cautions=pooled.cautions)

    def start(self, V: Array) -> Generator[Ask, Any, tuple[Array, Array]]:
        """The same and the first product, with a block that every party makes for itself where it can."""
        if "start" not in self.run.phases:
            yield from self.variances()
            return (yield from self.times(V.astype(np.float32)))  # exact: see `random_block`
        sums = yield from self._heads("start")
        return self._with_between(sums["product"], V), np.zeros(1)

    def times(self, V: NDArray[Any]) -> Generator[Ask, Any, tuple[Array, Array]]:
        """``A V`` (d, b), and a bound on what fixed point rounded off in each entry."""
        total: Total = yield Sum("product", {**self._asked, "block": V})
        block = V.astype(np.float64)
        if not self._asked:
            return self._with_between(total["product"], block), np.zeros(1)
        lost = self.head.n * np.outer(self._remainder, self._remainder @ block)
        return total["product"] - lost, total.missed["product"]

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


def require_possible(product: Array, V: Array, trace: float) -> None:
    """Refuse a product (d, b) with a block by far larger than that of any scatter with this trace."""
    largest = float(np.abs(product).max())
    if trace > 0 and not largest <= BEYOND * trace * float(np.linalg.norm(V)):
        raise ContractError(
            f"the parties' products with a block are up to {largest:.1g}, and their variances add up to {trace:.1g}: "
            "no rows have such ones. Some party sends what is not so; where rows are split, 'p-cov' with 'max-share' "
            "tells which"
        )
