"""Honest parties on a ring: what the formula says, against every placement of the colluders and the graph itself."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations
from math import comb

import numpy as np
import pytest
from scipy.sparse.csgraph import connected_components

from fedpca_flwr.maths.secure import expected_arcs, least_degree


def gaps(parties, colluding, degree):
    """By placement of the colluders: how many intervals between honest parties hold degree / 2 of them or more."""
    for places in combinations(range(parties), colluding):
        honest = [place for place in range(parties) if place not in places]
        steps = np.diff([*honest, honest[0] + parties])
        yield honest, int(np.count_nonzero(steps - 1 >= degree // 2))


def connected(honest, parties, degree):
    """Whether these are in one piece where everybody is tied to the degree / 2 next ones on either side."""
    apart = np.abs(np.subtract.outer(honest, honest))
    return connected_components(np.minimum(apart, parties - apart) <= degree // 2)[0] == 1


SMALL = [(9, 6, 2), (10, 6, 4), (11, 7, 4), (12, 8, 4), (12, 8, 6), (13, 6, 2)]


@pytest.mark.parametrize(("parties", "colluding", "degree"), SMALL)
def test_the_honest_are_apart_exactly_where_there_are_two_gaps(parties, colluding, degree):
    for honest, found in gaps(parties, colluding, degree):
        assert connected(honest, parties, degree) == (found < 2)


@pytest.mark.parametrize(("parties", "colluding", "degree"), SMALL)
def test_the_mean_number_of_arcs_is_that_of_all_placements_and_bounds_the_probability(parties, colluding, degree):
    found = [number for _, number in gaps(parties, colluding, degree)]
    assert expected_arcs(parties, colluding, degree) == Fraction(sum(n * (n - 1) for n in found), len(found))
    assert Fraction(sum(n >= 2 for n in found), len(found)) <= expected_arcs(parties, colluding, degree) / 2


def probability_apart(parties, colluding, degree):
    """That of two gaps or more, by inclusion and exclusion."""
    honest, half = parties - colluding, degree // 2
    ways = [comb(honest, j) * comb(colluding - j * half + honest - 1, honest - 1) for j in range(colluding // half + 1)]
    apart = sum((-1) ** j * (j - 1) * number for j, number in enumerate(ways) if j >= 2)
    return Fraction(apart, comb(colluding + honest - 1, honest - 1))


def test_the_bound_is_within_a_bit_or_so_of_the_probability():
    for parties, colluding, degree in SMALL:
        found = [number for _, number in gaps(parties, colluding, degree)]
        apart = Fraction(sum(n >= 2 for n in found), len(found))
        assert probability_apart(parties, colluding, degree) == apart
    for parties, degree in ((60, 40), (100, 54), (1000, 92)):
        colluding = 2 * parties // 3
        exact = probability_apart(parties, colluding, degree)
        assert 0 < exact <= expected_arcs(parties, colluding, degree) / 2 <= exact * Fraction(1001, 1000)


@pytest.mark.parametrize("parties", [51, 60, 100, 300])
def test_fewer_colluders_are_no_worse_and_fewer_neighbours_are_too_few(parties):
    colluding = 2 * parties // 3
    degree = least_degree(parties, colluding, 40)
    assert all(expected_arcs(parties, some, degree) * 2**40 <= 1 for some in range(colluding + 1))
    assert expected_arcs(parties, colluding, degree - 2) * 2**40 > 1


def test_where_hardly_anybody_is_honest_there_is_nobody_to_be_apart_from():
    assert expected_arcs(10, 9, 2) == 0
    assert expected_arcs(10, 3, 4) == 0


def test_a_degree_is_even():
    """Half of the neighbours stand on either side."""
    assert {least_degree(60, colluding, 20) % 2 for colluding in range(2, 50)} == {0}
