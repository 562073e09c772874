"""Pruning by linkage (option ``prune``): which variants take part, from sums over pairs of neighbours.

After the allele counts the server asks the parties for the products of each variant with those after it in a window: a
band, and never d x d numbers. Where a call is missing the server also asks for what the correlation among the people
called at both variants needs (`fedpca_flwr.maths.linkage`). The sums are integers, so masked sums open exactly, and the
retained variants are those that PLINK retains of all people together. With the frequencies the server tells the parties
which variants are left out. From then on these count for nothing, as constant variants do.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.errors import ContractError
from fedpca_flwr.maths import linkage
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.genotypes import AlleleCounts
from fedpca_flwr.protocol.payload import Field, Fields, Payload
from fedpca_flwr.protocol.question import SERVER, Public, Question, Questions, Round, SumRound, Total
from fedpca_flwr.questions.row_limits import MAX_ROWS

if TYPE_CHECKING:
    from fedpca_flwr.questions.rows_client import RowsClient

MAX_PAIRS = 2**21
"""Largest number of pairs of a question: 16 MiB for each number of a pair."""

COMPLETE, GAPPED = "neighbours", "gapped_neighbours"

WHOLE_NUMBERS = "uint8 or uint16 or uint32 or uint64"
"""Dtypes of sums over pairs: the smallest dtype that fits the largest sum. In secure sums all travel in words."""


def linkage_questions() -> Questions:
    """Return the questions for sums over pairs of neighbouring variants, without and with missing calls.

    Returns
    -------
    mapping of str to Question
        ``neighbours`` and ``gapped_neighbours``.
    """
    return {COMPLETE: _question(1), GAPPED: _question(linkage.PAIR_SUMS)}


def _question(numbers: int) -> Question:
    """Return the question for some sums over each pair of neighbouring variants, and where chromosomes begin.

    A chromosome begins where names CHROMOSOME:POSITION:ALLELE:ALLELE change, without such names at the first variant.
    """

    def answer(party: RowsClient, request: Fields) -> Fields:
        """Return a party's sums over pairs of variants in a band, and marks where chromosomes begin."""
        features, names = party.public.features, party.site.table.names
        start, width, window = int(request["start"]), _width(party.public), int(party.options.prune_window)
        if start >= features:
            raise ContractError(f"{SERVER}: 'start' is {start}, expected a variant below {features}")
        sums = linkage.band_sums(party.raw_rows, start, width, window, numbers)
        chromosomes = [name.split(":")[0] if name.count(":") == 3 else "" for name in names] or [""] * features
        begins = np.array([float(i == 0 or chromosomes[i] != chromosomes[i - 1]) for i in range(features)])
        return {"sums": _narrow(sums), "chromosomes": _narrow(begins)}

    return Question(
        request=Payload((Field("start", (), "int64", kind="size"),)),
        reply=Payload(
            (
                Field("sums", (str(numbers), "v", "w"), WHOLE_NUMBERS, kind="size"),
                Field("chromosomes", ("d",), WHOLE_NUMBERS, kind="size"),
            )
        ),
        answer=answer,
        needs="groups",
        limits=lambda request, public: {"sums": np.array(4.0 * MAX_ROWS), "chromosomes": np.array(float(MAX_ROWS))},
        sizes=lambda public: {"v": _width(public), "w": public.options.prune_window - 1},
        times=lambda public: len(_starts(public)) or 1,
        optional=True,
    )


def _narrow(sums: Array) -> NDArray[np.unsignedinteger[Any]]:
    """Return whole numbers in the smallest of the dtypes `WHOLE_NUMBERS` that holds the largest of them."""
    return sums.astype(np.min_scalar_type(int(sums.max(initial=0.0))))


def _starts(public: Public) -> range:
    """Return the index of the first variant of each question's band."""
    return range(0, public.features, _width(public))


def _width(public: Public) -> int:
    """Return the number of variants per question, so that no question has more than about `MAX_PAIRS` pairs."""
    d = max(public.features, 1)
    questions = -(-d * (int(public.options.prune_window) - 1) // MAX_PAIRS)  # -(-a // b) is a / b rounded up
    return -(-d // questions)


def pruned_variants(public: Public, counts: AlleleCounts, options: Any) -> Generator[Round, Any, NDArray[np.bool_]]:
    """Return a mask of the variants that linkage pruning leaves out: all False without the option ``prune``.

    Parameters
    ----------
    public : Public
    counts : AlleleCounts
        Allele counts of all rows.
    options : GenotypeOptions

    Returns
    -------
    ndarray of bool of shape (d,)

    Raises
    ------
    ContractError
        If no genotypes have such sums, or the parties' variants are of other chromosomes.
    """
    d = public.features
    if not options.prune:
        return np.zeros(d, dtype=bool)
    linked = np.zeros((d, options.prune_window - 1), dtype=bool)
    phase = COMPLETE if (counts.called == counts.rows).all() else GAPPED
    for start in _starts(public):
        total: Total = yield SumRound(phase, {"start": np.asarray(start)})
        try:
            correlated = linkage.correlated_pairs(np.rint(total["sums"]), start, counts, options.prune)
        except ValueError:
            raise ContractError(
                "the parties' sums over pairs of variants are such as no genotypes have: the share of one of them is "
                "false, or was altered on its way"
            ) from None
        linked[start : start + len(correlated)] = correlated[: d - start]
    begins = np.rint(total["chromosomes"])  # every party adds 1 where a chromosome begins
    if not ((begins == 0) | (begins == total.parties)).all() or begins[0] == 0:
        raise ContractError("the parties' variants are not of the same chromosomes: give all sites the same 'variants'")
    return ~linkage.prune_variants(linked, counts, begins > 0, options.prune_window, options.prune_step)
