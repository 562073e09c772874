"""Allele counts of all parties: which of them genotypes can have."""

import numpy as np
import pytest

from fedpca_flwr.errors import ContractError
from fedpca_flwr.protocol.question import Total
from fedpca_flwr.questions.genotypes import ALLELES, pooled_counts
from fedpca_flwr.questions.row_limits import ROWS
from tests.refusals import refused


def opened(called, alleles, squares):
    """What the counts of two parties with five rows, one of one variant, are taken for."""
    program = pooled_counts()
    next(program)
    counts = {"called": called, "alleles": alleles, "squares": squares}
    each = {name: np.array([value], float) for name, value in counts.items()}
    with pytest.raises(StopIteration) as end:
        program.send(Total({"count": np.asarray(5.0), **each}, 2))
    return end.value.value


@pytest.mark.parametrize(("called", "alleles", "squares"), [(5, 10, 20), (5, 4, 4), (5, 4, 8), (5, 3, 5), (0, 0, 0)])
def test_counts_that_genotypes_have_are_taken(called, alleles, squares):
    counts = opened(called, alleles, squares)
    assert (counts.rows, counts.called, counts.alleles, counts.squares) == (5, called, alleles, squares)


@pytest.mark.parametrize(
    ("called", "alleles", "squares"),
    [(6, 4, 4), (5, 11, 20), (2, 5, 8), (5, 4, 3), (5, 4, 9)],
    ids=["calls", "copies", "copies of calls", "small squares", "large squares"],
)
def test_counts_that_no_genotypes_have_are_a_false_share(called, alleles, squares):
    """The square of 0, 1 or 2 copies is at least their number, and at most twice that."""
    with refused(ContractError, 1, match="allele"):
        opened(called, alleles, squares)


def test_all_people_that_can_be_may_have_two_copies_of_every_allele():
    limits = ALLELES["alleles"].limits({}, None)
    assert {name: float(limit) / ROWS for name, limit in limits.items()} == {
        "count": 1,
        "called": 1,
        "alleles": 2,
        "squares": 2**2,
    }
