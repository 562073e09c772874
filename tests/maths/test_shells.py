"""Shells of distances: which there are by noisy numbers of rows, and what their sums say together."""

from __future__ import annotations

import numpy as np

from fedpca_flwr.maths.moments import pack
from fedpca_flwr.maths.private_scatter import LOWEST, OCTAVES, beyond, directions, lengths, reach, shell_of
from fedpca_flwr.maths.shells import MOST_SHELLS, combined, one_shell, shells_of

D = 6


def counts(**rows):
    """Numbers of rows by octave: ``o3=50`` has fifty at distances from 4 to 8."""
    told = np.zeros(OCTAVES)
    for octave, number in rows.items():
        told[int(octave[1:]) - LOWEST] = number
    return told


def test_a_shell_needs_many_rows_and_what_is_left_joins_the_innermost():
    """With an edge of 1 and two components a shell has 6 rows at least; rows of 80 times that keep their length."""
    told = counts(o0=3, o1=40, o3=400, o4=5, o7=4)
    expected = [[0.0, 4.0, 0.0], [4.0, 8.0, 8.0], [8.0, 128.0, 0.0]]
    np.testing.assert_array_equal(shells_of(told, 0.1, 1.0, 2), expected)
    np.testing.assert_array_equal(shells_of(told, 0.1, 50.0, 2), one_shell(128.0))
    blurred = [[0.0, 8.0, 0.0], [8.0, 128.0, 0.0]]
    np.testing.assert_array_equal(shells_of(told, 0.1, 1.0, 2, moved=2.0)[:, :2], np.array(blurred)[:, :2])


def test_there_are_six_shells_at_most_and_one_where_nothing_stands_out():
    many = shells_of(counts(**{f"o{i}": 1e6 for i in range(12)}), 1.0, 1.0, 2)
    assert len(many) == MOST_SHELLS
    np.testing.assert_array_equal(many[1:, 0], many[:-1, 1])
    np.testing.assert_array_equal(shells_of(counts(o4=5.0), 1.0, 1.0, 2), one_shell(16.0))


def heavy():
    """Rows whose axes depend on how far they are: near ones lie along the last, far ones along the first."""
    rng = np.random.default_rng(3)
    near = rng.standard_normal((3000, D)) * [0.3, 0.3, 0.3, 0.3, 1.0, 2.0]
    return np.vstack([near, rng.standard_normal((600, D)) * [12.0, 6.0, 0.3, 0.3, 0.3, 0.3]])


def test_shells_find_the_components_of_the_covariance_where_directions_do_not():
    rows = heavy()
    shells = shells_of(counts(o1=1200, o2=1300, o3=700, o4=400), 0.1, 1.0, 2) * [1, 1, 0]
    held = {}
    for name, asked in (("shells", shells), ("one", one_shell(32.0))):
        shell, unit, length = shell_of(lengths(rows), asked), directions(rows), lengths(rows)
        sums = np.array([pack(unit[shell == i].T @ unit[shell == i]) for i in range(len(asked))])
        share = np.minimum(length / asked[shell, 1], 1.0) ** 2
        found = combined(sums, np.bincount(shell, share, minlength=len(asked)), asked, D, 2, 0.01).found
        held[name] = ((rows @ found.pairs.vectors) ** 2).sum() / (np.linalg.svd(rows)[1][:2] ** 2).sum()
    assert held["shells"] > 0.99
    assert held["one"] < 0.9


def test_what_is_below_the_edge_of_its_shell_adds_nothing():
    """The outer shell holds noise only, which would be sixteen times the inner one's components."""
    inner, noise = np.diag([900.0, 500.0, 30.0, 0.0, 0.0, 0.0]), np.diag([0.0, 0.0, 0.0, 0.0, 60.0, 60.0])
    shells = np.array([[0.0, 4.0, 0.0], [4.0, 64.0, 0.0]])
    found = combined(np.array([pack(inner), pack(noise)]), np.array([1000.0, 100.0]), shells, D, 2, 20.0).found
    assert np.abs(found.pairs.vectors[:2]).sum() > 2 - 1e-3


def test_a_bound_reaches_farther_where_noise_is_small_and_no_farther_for_outliers():
    told = counts(o2=900, o3=60, o5=40)
    assert reach(told, 1.0).bound == 4.0
    assert reach(told, 1.0, noise=0.01).bound == 32.0
    assert reach(counts(o2=900, o3=60, o300=40), 1.0, noise=0.01).bound <= 8.0


def test_what_lies_beyond_a_bound_is_reckoned_by_octaves():
    """Lengths of 4 to 8 have a mean of 4 / ln 2 where their logarithms are even, a mean square of 24 / ln 4."""
    told = counts(o2=10, o3=5)
    assert abs(beyond(told, 2 - LOWEST, 1) * 4 - 5 * (4 / np.log(2) - 4)) < 1e-9
    assert abs(beyond(told, 2 - LOWEST, 2) * 16 - 5 * (24 / np.log(2) - 16)) < 1e-9
