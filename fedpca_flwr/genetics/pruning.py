"""Pruning by linkage (option ``prune``): which variants take part, from sums over pairs of neighbours.

After the allele counts the server asks the parties for the products of each variant with those after it in a window: a
band, and never d x d numbers. Of variants that miss calls the server also asks for sums over the people who miss them,
which the correlation among the people called at both variants needs (`fedpca_flwr.genetics.linkage`). The sums are
whole numbers, so masked sums open exactly in short words, and the retained variants are those that PLINK retains of all
people together. The others count for nothing, as constant variants do.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.errors import ContractError
from fedpca_flwr.genetics import linkage
from fedpca_flwr.genetics.genotypes import AlleleCounts
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.short_words import WordSharing, max_residual, values_per_word
from fedpca_flwr.protocol.payload import Field, Fields, Payload
from fedpca_flwr.protocol.question import SERVER, Public, Question, Questions, Round, SumLimits, SumRound, Total
from fedpca_flwr.questions.row_limits import MAX_ROWS

if TYPE_CHECKING:
    from fedpca_flwr.questions.rows_client import RowsClient

IMPOSSIBLE = "are such as no genotypes have: the share of one of them is false, or was altered on its way"
MAX_PAIRS = 2**21  # largest number of pairs of a question: 16 MiB for each number of a pair

WHOLE_NUMBERS = "uint8 or uint16 or uint32 or uint64"
"""Dtypes of sums over pairs: the smallest that holds the largest of them. Secure sums share words in the same way."""


def linkage_questions() -> Questions:
    """Return the question for sums over pairs of neighbouring variants, and over the people who miss a call.

    A chromosome begins where names CHROMOSOME:POSITION:ALLELE:ALLELE change, without such names at the first variant.
    In secure sums the request's ``ranges`` say how far a sum may lie from the server's estimate. They decide how many
    sums share a word, and no more: every site's sums open whatever they are.
    """
    question = Question(
        request=Payload(
            (
                Field("start", (), "int64", kind="size"),
                Field("ranges", ("2",), "int64", kind="size"),
                Field("gapped", ("<=g",), "int64", kind="size"),
            )
        ),
        reply=Payload(
            (
                Field("products", ("v", "w"), WHOLE_NUMBERS, kind="size"),
                Field("gaps", (str(linkage.GAP_SUMS), "g", "w"), WHOLE_NUMBERS, kind="size"),
                Field("chromosomes", ("v",), WHOLE_NUMBERS, kind="size"),
            )
        ),
        answer=_local_sums,
        needs="groups",
        limits=_limits,
        short=_sharing,
        sizes=lambda public: {"v": _width(public), "w": _reach(public), "g": _width(public) + _reach(public)},
        times=lambda public: len(_starts(public)) or 1,
        optional=True,
    )
    return {"neighbours": question}


def _local_sums(party: RowsClient, request: Fields) -> Fields:
    """Return a party's sums over pairs in a band, and marks of chromosomes; ContractError for variants outside it."""
    features, names = party.public.features, party.site.table.names
    start, width, window = int(request["start"]), _width(party.public), int(party.options.prune_window)
    if start >= features:
        raise ContractError(f"{SERVER}: 'start' is {start}, expected a variant below {features}")
    gapped = request["gapped"]
    if gapped.size and not start <= gapped.min() <= gapped.max() < min(start + width + window - 1, features):
        raise ContractError(f"{SERVER}: 'gapped' names variants outside the band from {start} on")
    products = linkage.product_sums(party.participants.rows, start, width, window)
    gaps = linkage.gap_sums(party.participants.rows, start, width, window, gapped)
    chromosomes = [name.split(":")[0] if name.count(":") == 3 else "" for name in names] or [""] * features
    begins = np.zeros(width)
    for i in range(start, min(start + width, features)):
        begins[i - start] = float(i == 0 or chromosomes[i] != chromosomes[i - 1])
    return {"products": _narrow(products), "gaps": _narrow(gaps), "chromosomes": _narrow(begins)}


def _limits(request: Fields, public: Public) -> SumLimits:
    """Return limits by which every sum is a whole number of steps, and that of the chromosomes' marks."""
    shared = _sharing(request, public)
    limits = {name: np.array(max_residual(sharing.values_per_word, public.parties)) for name, sharing in shared.items()}
    return {**limits, "chromosomes": np.array(float(MAX_ROWS))}


def _sharing(request: Fields, public: Public) -> Mapping[str, WordSharing]:
    """Return how many sums share a word of 64 bits: as many as have room for residuals within the ``ranges``."""
    names = ("products", "gaps")
    return {
        name: WordSharing(values_per_word(int(size), public.parties), residual=True)
        for name, size in zip(names, request["ranges"], strict=True)
    }


def _narrow(sums: Array) -> NDArray[np.unsignedinteger[Any]]:
    """Return whole numbers in the smallest of the dtypes `WHOLE_NUMBERS` that holds the largest of them."""
    return sums.astype(np.min_scalar_type(int(sums.max(initial=0.0))))


def _starts(public: Public) -> range:
    """Return the index of the first variant of each question's band; empty without variants."""
    return range(0, public.features, _width(public))


def _reach(public: Public) -> int:
    """Return the number of neighbours after a variant with which it is compared."""
    return int(public.options.prune_window) - 1


def _width(public: Public) -> int:
    """Return the number of variants per question, so that no question has more than about `MAX_PAIRS` pairs."""
    d = max(public.features, 1)
    questions = -(-d * (int(public.options.prune_window) - 1) // MAX_PAIRS)  # -(-a // b) is a / b rounded up
    return -(-d // questions)


def pruned_variants(public: Public, counts: AlleleCounts, options: Any) -> Generator[Round, Any, NDArray[np.bool_]]:
    """Return the mask (d,) of variants that pruning leaves out; ContractError for sums that no genotypes have."""
    d, reach = public.features, options.prune_window - 1
    if not options.prune:
        return np.zeros(d, dtype=bool)
    linked, begins, parties = np.zeros((d, reach), dtype=bool), np.zeros(d), 0
    missing = counts.rows - counts.called
    # by Cauchy and Schwarz a sum of products lies so near to that of unrelated variants
    ranges = np.array([np.ceil(counts.scatter.max(initial=0.0)) + 1, 2 * missing.max(initial=0.0)]).astype(np.int64)
    for start in _starts(public):
        gapped = start + np.flatnonzero(missing[start : start + _width(public) + reach])
        estimate = {
            "products": linkage.unrelated_products(counts, start, (_width(public), reach)),
            "gaps": np.full((linkage.GAP_SUMS, gapped.size, reach), float(ranges[1])),
        }
        request = {"start": np.asarray(start), "ranges": ranges, "gapped": gapped}
        total: Total = yield SumRound("neighbours", request, estimate=estimate)
        products, gaps = np.rint(total["products"]), np.rint(total["gaps"])
        try:
            correlated = linkage.correlated_pairs(products, gaps, gapped, start, counts, options.prune)
        except ValueError:
            raise ContractError(f"the parties' sums over pairs of variants {IMPOSSIBLE}") from None
        linked[start : start + len(correlated)] = correlated[: d - start]
        begins[start : start + len(correlated)] = np.rint(total["chromosomes"])[: d - start]
        parties = total.parties
    if not ((begins == 0) | (begins == parties)).all() or begins[0] == 0:  # every party adds 1 where one begins
        raise ContractError("the parties' variants are not of the same chromosomes: give all sites the same 'variants'")
    return ~linkage.prune_variants(linked, counts, begins > 0, options.prune_window, options.prune_step)
