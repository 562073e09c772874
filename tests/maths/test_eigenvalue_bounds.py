"""Eigenvalues of matrices and of what lies beside a block: ceilings, angles at ties, and what they presume."""

import numpy as np
import pytest

from fedpca_flwr.maths import angle_bounds
from fedpca_flwr.maths.angle_bounds import SHARES, AngleBounds, Hidden, least_overlap, presumed_bound, proven_bound
from fedpca_flwr.maths.block_iteration import BlockIteration
from fedpca_flwr.maths.eigen import sine_theorem
from fedpca_flwr.maths.krylov import FirstBlock, KnownProducts, random_block
from tests.families import with_spectrum
from tests.maths.test_krylov import pairs_with


def known_of(A, Q, error=0.0):
    known = KnownProducts(len(A))
    known.add(Q, A @ Q, error=error)
    return known.ritz()


def test_a_proven_ceiling_is_above_what_the_span_leaves_outside():
    """Of [[4, 0, 0], [0, 1, b], [0, b, c]] two columns are known: what is outside is tied to the second."""
    b, c = 0.9, 1.4
    ritz = known_of(np.array([[4, 0, 0], [0, 1, b], [0, b, c]]), np.eye(3)[:, :2])
    second, ceiling = (1 + c) / 2 + np.hypot((c - 1) / 2, b), proven_bound(ritz, 1, c)
    assert second <= ceiling == pytest.approx(c + SHARES[0] * (4 - c))
    assert second > c + SHARES[1] * (4 - c)  # so no lower share may pass
    A, start = np.diag([4.0, 2.0, 1.0, 0.5]), np.eye(4)[:, :2]
    ritz = known_of(A, start)
    assert proven_bound(ritz, 2, 1.0) == pytest.approx(1.0)
    assert 2.0 <= proven_bound(ritz, 1, 1.0) <= 2 + SHARES[-1] * 2 + 1e-12
    assert proven_bound(ritz, 2, 2.0) == proven_bound(ritz, 1, 4.5) == np.inf
    assert proven_bound(known_of(A, np.eye(4)[:, :3]), 1, 0.5) == pytest.approx(2 + SHARES[-1] * 2)
    for error in (1e-3, 1e-2):  # what the wire did
        for k in (1, 2):
            more = proven_bound(known_of(A, start, error), k, 1.0) - proven_bound(ritz, k, 1.0)
            assert more == pytest.approx(2 * error, rel=1e-3)


def test_a_presumed_ceiling_holds_and_comes_near_but_not_before_the_block_would_show_it():
    values, found = 0.7 ** np.arange(80), []
    A, _ = with_spectrum(values)
    for seed in range(10):
        known, start = KnownProducts(80), random_block(80, 6, seed)
        block = start
        for _ in range(7):
            known.add(block, A @ block)
            ceiling = presumed_bound(known.ritz(), 3, FirstBlock(start))
            assert values[3] <= ceiling
            block = known.next_block(known.ritz(), 6, 3)
        found.append(ceiling)
    assert max(found) <= values[3] + (values[2] - values[3]) / 32
    # The first Ritz values of a random block are averages, and say nothing of what is above them.
    A, start = np.diag(np.linspace(2, 1, 80)), random_block(80, 6, 1)
    assert presumed_bound(known_of(A, start), 1, FirstBlock(start)) == np.inf
    A, start = np.diag(0.5 ** np.arange(30)), random_block(30, 12, 0)
    known, block = KnownProducts(30), start
    for _ in range(2):
        known.add(block, A @ block)
        block = known.next_block(known.ritz(), 12, 1)
    ritz = known.ritz()
    assert presumed_bound(ritz, 1, FirstBlock(start)) < np.inf
    ritz.error = 1e-1
    assert presumed_bound(ritz, 1, FirstBlock(start)) == np.inf


def two_pairs(*, first=0.0, second=0.0, error=0.0):
    """Ritz values 5 and 1 with residuals of these lengths, in two directions outside."""
    return pairs_with(np.array([5.0, 1.0]), np.eye(4)[:, 2:] * [first, second], error)


@pytest.mark.parametrize("share", SHARES)
def test_a_presumed_ceiling_needs_what_hides_to_be_less_than_a_random_block_shows(share):
    """2 |F(mu)| + |S' W| error / (mu - theta) is the bound there, of which rounding the start takes its part off."""
    start = FirstBlock(np.array([[1.0, 2.0, 0.5], [3.0, -1.0, 2.0], [0.0, 1e-6, 0.0], [0.0, 0.0, 0.0]]))
    bound, seen, level = least_overlap(3, 2) / np.sqrt(2) - 1e-6, np.sqrt(14.0), 4 * share
    for error in (0.0, 1e-9):
        hidden = (bound * level - error * seen) / (2 * seen)
        at_most = presumed_bound(two_pairs(second=hidden * (1 - 1e-9), error=error), 1, start)
        assert at_most == pytest.approx(1 + level + 2 * error, abs=1e-12)
        assert presumed_bound(two_pairs(second=hidden * (1 + 1e-9), error=error), 1, start) > 1 + 2 * level
    # A narrow block shows half as much, and less of what is near the first.
    start, bound = FirstBlock(np.array([[0.5, 2.0, 0.0, 0.0]]).T), least_overlap(1, 1, angle_bounds.MISSED / 2) / 2
    near = bound / (10 * 0.5)  # takes one off the first value
    hidden = bound * 3 * share / (2 * 2.0)
    at_most = presumed_bound(two_pairs(first=near, second=hidden * (1 - 1e-9)), 1, start)
    assert at_most == pytest.approx(1 + 3 * share)
    assert presumed_bound(two_pairs(first=near, second=hidden * (1 + 1e-9)), 1, start) > 1 + 4 * share


def test_what_hides_counts_in_full():
    """Residuals of no Krylov space do not lie in two directions for each column of the block: the rest counts, too."""
    rng = np.random.default_rng(0)
    ritz = pairs_with(np.linspace(2, 1, 20), rng.standard_normal((60, 20)))
    hidden = Hidden(ritz, 3, FirstBlock(rng.standard_normal((60, 2))))
    weights = hidden.start.seen(ritz, 4.0)[0][3:] / (4.0 - ritz.values[3:, None])
    assert np.linalg.norm(ritz.residuals[:, 3:] @ weights) <= hidden.norm(4.0)
    # |1 / (x - 1) - 2 / x| is zero at 2, and largest at 2 + sqrt(2).
    ritz = pairs_with(np.array([1.0, 0.0]), np.array([[0, 0], [0, 0], [1.0, 1.0]]))
    hidden = Hidden(ritz, 0, FirstBlock(np.array([[1.0], [-2.0], [0.0]])))
    assert 3 - np.sqrt(8) <= angle_bounds._largest_norm_above(hidden, 2.0) <= 2 * (3 - np.sqrt(8))


def test_the_sine_theorem_and_a_random_block_in_numbers():
    """Singular values of blocks are below the bound as often as it says, or less."""
    rng = np.random.default_rng(0)
    for columns, directions in ((1, 1), (5, 1), (8, 4), (6, 6)):
        blocks = rng.uniform(-1, 1, (4000, columns, directions))
        least = np.linalg.svd(blocks, compute_uv=False)[:, -1]
        assert 0.001 < np.mean(least < least_overlap(columns, directions, 0.02)) < 0.03
    assert sine_theorem(0.1, 0.2) == pytest.approx(30)
    assert sine_theorem(0.3, 0.2) == sine_theorem(0.1, 0.0) == sine_theorem(0.1, -1.0) == 90
    assert sine_theorem(0.1, np.inf) == 0


@pytest.mark.parametrize(("residual", "error"), [(0.0, 0.0), (0.75, 0.0), (0.0, 0.75), (0.75, 0.5)])
def test_the_outside_of_a_plain_block_is_bounded_in_closed_form(residual, error):
    """A block lacks a hundredth of the first eigenvector once (last / first)^(asked - 1) has made up for its luck."""
    ritz = pairs_with(np.array([4.0, 1.0]), np.array([[0, 0], [0, 0], [3.0, residual]]), error)
    start, ratio = np.diag([5.0, 4.0, 0])[:, :2], (1 + residual + error) / 4
    asked = 2 + int(np.log(0.01 * least_overlap(2, 2) / 5) / np.log(ratio))
    lacks = ratio ** (asked - 1) * 5 / least_overlap(2, 2)
    assert angle_bounds.bound_outside_last_block(ritz, start, asked - 1) == np.inf
    at_most = angle_bounds.bound_outside_last_block(ritz, start, asked)
    assert at_most == pytest.approx(4.04 * (1 + lacks**2), rel=1e-12)
    # It bounds what it does not span, once it has had time.
    values = 0.5 ** np.arange(30)
    A, start, bounds = np.diag(values), random_block(30, 6, 0), []
    block = start
    for asked in range(1, 60):
        ritz = known_of(A, block)
        P = np.eye(30) - ritz.vectors @ ritz.vectors.T
        bounds.append(angle_bounds.bound_outside_last_block(ritz, start, asked))
        assert np.linalg.norm(P @ A @ P, 2) <= bounds[-1]
        block, _ = np.linalg.qr(A @ block)
    assert bounds[0] == np.inf
    assert bounds[-1] < values[3]


# Ties


@pytest.mark.parametrize("proven_at", [(), (2,), (4,), (2, 4)])
def test_a_tie_at_the_cut_is_proven_only_where_both_its_ends_are(proven_at):
    """Blocks of two columns prove neither by themselves: another variance that occurs twice may hide from them."""
    tied, first = np.diag(np.r_[9.0, 8.0, 5.0, 5.0, np.linspace(3, 0.5, 56)]), random_block(60, 2, seed=0)
    known, start = KnownProducts(60), FirstBlock(first)
    V = np.linalg.qr(np.column_stack([np.eye(60)[:, :4], first]))[0]
    known.add(V, tied @ V)
    start.asked(known)
    bounds = AngleBounds(3, float(np.trace(tied)), accelerated=True, sketch=None)
    bounds.take(known, known.ritz(), start, 1)
    ends = {2: 5.001, 4: 3.001}  # bounds on the values after the first two and four, where the tie begins and ends
    bounds.hold({j: ends[j] for j in proven_at})
    bounds.hold(dict.fromkeys(proven_at, 100.0))  # of two bounds the smaller one holds
    degrees, determined = bounds.wanted()
    assert (bounds.upto, determined) == (4, 2)
    assert bounds.proven == (proven_at == (2, 4))
    assert degrees < 1e-6 or not bounds.proven
    half = known.ritz().residual(4) / np.sin(np.radians(0.1))
    assert bounds.level(0.2) == pytest.approx(5.0 - 1.0001 * half, rel=1e-14)


def test_a_tie_at_the_cut_is_not_certified_while_one_of_it_hides():
    """Of the eigenvalues 9, 5, 5 the first alone is wider apart than blocks of two can miss; the first three are not:
    a third 5 may hide from them, and here does."""

    def seen(found):
        return np.isclose(found.ritz.values, 5 / 9 * found.ritz.values[0]).sum()

    A = np.diag(np.r_[9.0, 5.0, 5.0, 5.0, np.linspace(3, 0.5, 56)])
    found = BlockIteration(random_block(60, 2, seed=0), 2, trace=float(np.trace(A)))
    while not found.add(found.block, A @ found.block):
        assert found.certificate == 90.0 or seen(found) == 3
    assert found.proven
    assert (found.enough, found.determined) == (True, 1)
    assert seen(found) == 3


def test_a_probe_adds_what_the_first_vectors_get_wrong():
    """Eigenvalue 2 of a matrix whose first two vectors are wrong by 0.01: 8, and by Weyl's inequality as much more."""
    A = np.diag([9.0, 8.0, *np.linspace(1, 0.1, 8)])
    probe = angle_bounds.Probe(pairs_with(np.array([9.0, 8.0]), np.zeros((10, 2)), 0.01), 2, 5.0, 8, turn=0)
    probe.add(probe.block, A @ probe.block, error=0.0)
    assert not probe.room
    ceilings = probe.ceilings(5.0)
    assert ceilings[1] == pytest.approx(8.01, rel=1e-12)
    assert 1.0 <= ceilings[2] < 5.0
