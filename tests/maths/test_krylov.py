"""Tests of a basis made of products, its errors and restarts, and of bounds on eigenvalues beside a block."""

import itertools

import numpy as np
import pytest

from fedpca_flwr.maths import angle_bounds, krylov
from fedpca_flwr.maths.angle_bounds import LEVEL_SHARES, least_overlap, presumed_bound, proven_bound
from fedpca_flwr.maths.block_iteration import BlockIteration
from fedpca_flwr.maths.eigen import principal_angles, rounding_bound, sine_theorem
from fedpca_flwr.maths.krylov import FirstBlock, ProductBasis, Ritz, random_block
from tests.families import with_spectrum


def known_of(*products, error=0.0):
    known = ProductBasis(len(products[0][0]))
    for block, product in products:
        known.add(block, product, error=error)
    return known


def test_errors_of_products_of_pairs_and_of_a_vector():
    """A product with a short vector, wrong by as much, is wrong by more of its direction."""
    E = np.eye(5)
    known = known_of((0.1 * E[:, :2], 0.1 * E[:, :2]), error=1e-6)
    assert known.error == pytest.approx(1e-5)
    known.add(E[:, 2:3], E[:, 2:3], error=2e-5)
    assert known.error == pytest.approx(np.hypot(1e-5, 2e-5))
    assert known.ritz().error == pytest.approx(known.error, rel=1e-6)
    known = known_of((E[:, :1], E[:, :1]), error=1e-6)
    block = np.array([[1.0, 1e-3, 0.0, 0.0, 0.0]]).T
    known.add(block, block)
    assert known.error >= 1e-6 / 1e-3
    # Rounding counts in units of the largest value, and adds up over blocks.
    short, long = (E[:, :2] * lengths for lengths in ([1.0, 0.01], [10.0, 10.0]))
    for blocks, times in (((short,), 100), ((long,), 1), ((long, E[:, 2:3]), np.sqrt(2))):
        found = known_of(*((block, 7 * block) for block in blocks)).ritz().error
        assert found == pytest.approx(times * rounding_bound(5) * 7, rel=1e-6, abs=0)
    ritz = pairs_with(np.array([3.0, 2.0, 1.0]), np.array([[0.0, 0, 0]] * 3 + [[3, 4, 12]]), 0.25)
    assert [ritz.residual_norm(k) for k in (1, 2, 3)] == pytest.approx([3.25, 5.25, 13.25])
    assert [ritz.pairs(k).following for k in (1, 2, 3)] == [2, 1, 0]
    turned = np.array([[0.8, -0.6], [0.6, 0.8]])
    ritz = Ritz(np.array([2.0, 1.0]), turned, np.eye(2), np.eye(2), 1.0, 0.1, 1)
    assert (ritz.error_bound(1), ritz.error_bound(2)) == (pytest.approx(0.1 + 0.6), 1.0)
    signed = Ritz(np.array([2.0, 1.0]), -turned, np.eye(2), np.eye(2), 0.0)
    np.testing.assert_array_equal(signed.pairs(2).vectors, turned)


def pairs_with(values, residuals, error=0.0):
    """Return Ritz pairs of given values (m,) and residuals (d, m), whose vectors are the first unit vectors."""
    basis = np.eye(len(residuals))[:, : values.size]
    return Ritz(values, np.eye(values.size), basis, residuals + basis * values, error)


@pytest.mark.parametrize("left", [1.0, 1e-4, 1e-7])
def test_a_block_almost_in_the_span_loses_no_digits(left):
    rng, A = np.random.default_rng(3), np.diag(1.0 / np.arange(1, 41))
    first, others = rng.standard_normal((40, 4)), rng.standard_normal((40, 3)) * [1, 1e-3, 1e-5]
    second = first @ rng.standard_normal((4, 3)) + left * others
    known = known_of((first, A @ first), (second, A @ second))
    assert np.abs(known.Q.T @ known.Q - np.eye(known.Q.shape[1])).max() <= 1e-14
    assert known.Q.shape[1] == (7 if left > 1e-7 else 5)  # the shorter directions are rounding then
    true = np.linalg.eigvalsh(known.Q.T @ A @ known.Q)[::-1]
    np.testing.assert_allclose(known.ritz().values, true, atol=1e-4 * rounding_bound(40) / left**2)


def test_the_next_block_fills_an_invariant_span():
    A, basis = with_spectrum(np.r_[3.0, 2.0, 1.0, np.zeros(57)])
    known, V, widths = ProductBasis(60), random_block(60, 8, 0), []
    for _ in range(3):
        known.add(V, A @ V)
        V = known.next_block(known.ritz(), 8, 3)
        widths.append(V.shape[1])
        inner = np.eye(known.Q.shape[1] + V.shape[1])[:, -V.shape[1] :]
        np.testing.assert_allclose(np.c_[known.Q, V].T @ V, inner, atol=1e-12)
    assert widths == [3, 8, 8]
    assert principal_angles(known.ritz().vectors[:, :3], basis[:, :3]).max() < 1e-9
    # It is as wide as room and components need.
    V = random_block(6, 3, 0)
    assert known_of((V, 2 * V), (V @ np.ones((3, 2)), 2 * V @ np.ones((3, 2)))).Q.shape == (6, 3)
    # One direction has a residual, but blocks of two must span seven in four rounds.
    known = known_of((np.eye(10)[:, :2], np.eye(10)[:, 2:4] * [1, 0]))
    assert [known.next_block(known.ritz(), 2, k).shape for k in (7, 3)] == [(10, 2), (10, 1)]
    known = known_of((random_block(10, 8, 0), random_block(10, 8, 0)))
    assert known.next_block(known.ritz(), 8, 2).shape == (10, 2)


def test_random_blocks_are_the_same_everywhere_and_show_enough():
    """Compare bits from SHAKE-256, which must never change, so that a party with another NumPy makes the same block."""
    block = random_block(50, 7, 1)
    np.testing.assert_array_equal(block.astype(np.float32), block)
    assert 0.9 < np.abs(block).max() < 1
    assert abs(block.mean()) < 0.15
    assert block[0, 0] == -0.40750110149383545
    np.testing.assert_array_equal(random_block(7, 7, 1), np.eye(7))
    # At most as many singular values are below the bound as its probability says.
    rng = np.random.default_rng(0)
    for columns, directions in ((1, 1), (5, 1), (8, 4), (6, 6)):
        least = np.linalg.svd(rng.uniform(-1, 1, (4000, columns, directions)), compute_uv=False)[:, -1]
        assert 0.001 < np.mean(least < least_overlap(columns, directions, 0.02)) < 0.03
    assert sine_theorem(0.1, 0.2) == pytest.approx(30)
    assert sine_theorem(0.3, 0.2) == sine_theorem(0.1, 0.0) == sine_theorem(0.1, -1.0) == 90
    assert sine_theorem(0.1, np.inf) == 0


def test_full_products_remove_the_error_of_short_ones():
    """Without what symmetry tells of the others, half of their error would stay in the first vectors."""
    A = np.diag(np.r_[9.0, 8.0, np.linspace(1, 0, 18)])
    wrong = 1e-6 * np.random.default_rng(0).standard_normal((20, 20))
    known = known_of((np.eye(20)[:, :12], (A + wrong)[:, :12]), error=float(np.linalg.norm(wrong)))
    before = known.ritz()
    known.renew(before, A @ before.vectors[:, :2])
    known.add(np.eye(20)[:, 12:], (A + wrong)[:, 12:], error=float(np.linalg.norm(wrong)))
    for ritz, least, most in ((before, 1e-7, np.inf), (known.ritz(), 0.0, 1e-11)):
        true = np.linalg.norm(A @ ritz.vectors[:, :2] - ritz.vectors[:, :2] * ritz.values[:2], 2)
        assert least <= true <= ritz.residual_norm(2) < most
    # Two rounds before the tolerance: of 0.6 and 0.006 degrees two more rounds of this rate reach a millionth.
    renewal = krylov.Renewal(1, 1e-6)
    ritz = [pairs_with(np.array([2.0, 1.0]), residual * np.eye(3)[:, :2], 1e-7) for residual in (1e-2, 1e-4)]
    assert [renewal.is_due(one, last=False) for one in ritz] == [False, True]
    assert krylov.Renewal(1, 1e-6).is_due(ritz[0], last=True)  # nothing else will tell more
    ritz[0].fine_error = 0.6e-7  # no better than what there is
    exact = pairs_with(np.array([2.0, 1.0]), 1e-2 * np.eye(3)[:, :2], 1e-12)
    assert not any(krylov.Renewal(1, 1e-6).is_due(one, last=True) for one in (ritz[0], exact))


VALUES = np.r_[3.0, 2.5, 2.2, np.linspace(2, 0, 197)]


def restarted(cycles, *, kept=20, blocks=5, seed=0, rounded=False):
    """After so many restarts of a Krylov space of blocks of 8: the first block, and what is known."""
    known, block = ProductBasis(200), random_block(200, 8, seed)
    first = FirstBlock(block)
    for step in range(1 + blocks * (cycles + 1)):
        if step and step % blocks == 0 and len(first.restarts) < cycles:
            first.restart(known.ritz(), kept, block)
            known.truncate(known.ritz(), kept)
        V = block.astype(np.float32).astype(np.float64) if rounded and step else block
        known.add(V, VALUES[:, None] * V)
        first.locate_block(known)
        block = known.next_block(known.ritz(), 8, 3)
    return first, known


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("cycles", [0, 1, 2, 4])
def test_restarts_carry_the_first_block_over(cycles, rounded):
    first, known = restarted(cycles, rounded=rounded)
    shown, ritz = random_block(200, 8, 0), known.ritz()
    for i in range(8):
        seen, outside = first.coordinates(ritz, VALUES[i])
        assert np.linalg.norm(shown[i] - seen.T @ ritz.vectors[i]) <= 1.01 * outside
        assert outside < (1e-1 if rounded else 1e-6)
    assert np.abs(shown).max() > 0.5


def test_restarts_count_what_they_leave_outside():
    first, known = restarted(1, kept=8, blocks=2)
    assert presumed_bound(known.ritz(), 3, first) == np.inf
    assert krylov.basis_limits(784, 50, 60)[0] > 784  # never restarted
    assert krylov.basis_limits(54_051, 10, 20)[0] > 1000
    assert krylov.basis_limits(10**6, 10, 20) == (220, 110)
    # Of a residual of 0.5 in the next block and 0.4 beside it, of products that are wrong by 0.1.
    first, residuals = FirstBlock(np.ones((5, 1))), np.zeros((5, 2))
    residuals[2:4, 1] = 0.5, 0.4
    first.restart(pairs_with(np.array([2.0, 1.0]), residuals, 0.1), 1, np.eye(5)[:, 2:3])
    assert (first.restarts[0].into, first.restarts[0].wrong) == (0.5, pytest.approx(0.4 + 0.1))
    # Of a vector that is given up a half is shown; 0.3 of its residual lies outside, and 0.2 of the quarter within.
    first, last = FirstBlock(np.ones((5, 1))), np.array([[0.0], [1.0]])
    first.restarts = [krylov.Restart(last, np.array([1.0]), np.array([[0.5]]), 0.3, last, 0.2)]
    seen, outside = first.coordinates(pairs_with(np.array([2.0, 1.0]), np.zeros((5, 2))), 3.0)
    np.testing.assert_allclose(seen, [[0.0], [0.25]])
    assert outside == pytest.approx(0.3 * 0.5 + 0.2 * 0.25)


def iterated(values, k, width):
    found, most = BlockIteration(random_block(len(values), width, 1), k, trace=float(values.sum())), 0
    while not found.add(found.block, values[:, None] * found.block):
        most = max(most, found.products.Q.shape[1])
        assert found.product_count < 200
    return found, max(most, found.products.Q.shape[1])


@pytest.mark.parametrize(("k", "width"), [(3, 8), (4, 2)])
def test_a_restarted_basis_stays_bounded_and_certifies_the_same(monkeypatch, k, width):
    """A proof that took the first block for lost would never end."""
    values = np.r_[3.0, 2.8, 2.6, 2.4, np.linspace(2.2, 0, 596)]
    whole, columns = iterated(values, k, width)
    monkeypatch.setattr(krylov, "MAX_BASIS_BYTES", 0)
    bounded, fewer = iterated(values, k, width)
    assert fewer <= 2 * k + 10 * width < columns
    for found in (whole, bounded):
        assert principal_angles(found.pairs.vectors, np.eye(600)[:, :k]).max() <= found.certificate <= 1e-6
    assert bounded.product_count <= 1.5 * whole.product_count


def ritz_of(A, Q, error=0.0):
    return known_of((Q, A @ Q), error=error).ritz()


def test_a_proven_ceiling_is_above_what_the_span_leaves_outside():
    """Know two columns of [[4, 0, 0], [0, 1, b], [0, b, c]]: the third is tied to the second."""
    b, c = 0.9, 1.4
    ritz = ritz_of(np.array([[4, 0, 0], [0, 1, b], [0, b, c]]), np.eye(3)[:, :2])
    second, ceiling = (1 + c) / 2 + np.hypot((c - 1) / 2, b), proven_bound(ritz, 1, c)
    assert second <= ceiling == pytest.approx(c + LEVEL_SHARES[0] * (4 - c))
    assert second > c + LEVEL_SHARES[1] * (4 - c)  # so no lower share may pass
    A, start = np.diag([4.0, 2.0, 1.0, 0.5]), np.eye(4)[:, :2]
    ritz = ritz_of(A, start)
    assert proven_bound(ritz, 2, 1.0) == pytest.approx(1.0)
    assert 2.0 <= proven_bound(ritz, 1, 1.0) <= 2 + LEVEL_SHARES[-1] * 2 + 1e-12
    assert proven_bound(ritz, 2, 2.0) == proven_bound(ritz, 1, 4.5) == np.inf
    assert proven_bound(ritz_of(A, np.eye(4)[:, :3]), 1, 0.5) == pytest.approx(2 + LEVEL_SHARES[-1] * 2)
    for error in (1e-3, 1e-2):  # what the wire did
        for k in (1, 2):
            more = proven_bound(ritz_of(A, start, error), k, 1.0) - proven_bound(ritz, k, 1.0)
            assert more == pytest.approx(2 * error, rel=1e-3)


def test_a_presumed_ceiling_holds_and_comes_near():
    for cycles, seed in itertools.product((1, 6), range(3)):  # also after restarts
        first, known = restarted(cycles, kept=30, blocks=8, seed=seed)
        assert VALUES[3] <= presumed_bound(known.ritz(), 3, first) <= VALUES[3] + (VALUES[2] - VALUES[3]) / 2
    # The first Ritz values of a random block are averages, and say nothing of what is above them.
    A, start = np.diag(np.linspace(2, 1, 80)), random_block(80, 6, 1)
    assert presumed_bound(ritz_of(A, start), 1, FirstBlock(start)) == np.inf
    values, bounds = 0.5 ** np.arange(30), []
    known, block, first = ProductBasis(30), random_block(30, 12, 0), FirstBlock(random_block(30, 12, 0))
    for _ in range(3):
        known.add(block, values[:, None] * block)
        ritz = known.ritz()
        bounds.append(presumed_bound(ritz, 1, first))
        block = known.next_block(ritz, 12, 1)
    assert values[1] <= min(bounds) <= bounds[1] < np.inf
    assert bounds[-1] <= values[1] + (values[0] - values[1]) / 32
    ritz.error = 1e-1
    assert presumed_bound(ritz, 1, first) == np.inf


@pytest.mark.parametrize("share", LEVEL_SHARES)
def test_a_presumed_ceiling_fails_for_hidden_eigenvalues(share):
    """2 |F(mu)| + |S' W| error / (mu - theta) is the bound there, of which rounding the start takes its part off."""

    def at_most(start, first, second, error=0.0):
        """Return the bound of Ritz values 5 and 1 with residuals of these lengths, in two directions outside."""
        residuals = np.eye(4)[:, 2:] * [first, second]
        return presumed_bound(pairs_with(np.array([5.0, 1.0]), residuals, error), 1, FirstBlock(np.array(start)))

    start = [[1.0, 2.0, 0.5], [3.0, -1.0, 2.0], [0.0, 1e-6, 0.0], [0.0, 0.0, 0.0]]
    bound, seen, level = least_overlap(3, 2) / np.sqrt(2) - 1e-6, np.sqrt(14.0), 4 * share
    for error in (0.0, 1e-9):
        hidden = (bound * level - error * seen) / (2 * seen)
        assert at_most(start, 0.0, hidden * (1 - 1e-9), error) == pytest.approx(1 + level + 2 * error, abs=1e-12)
        assert at_most(start, 0.0, hidden * (1 + 1e-9), error) > 1 + 2 * level
    # A narrow block shows half as much, and less of what is near the first: it takes one off the first value.
    start, bound = [[0.5], [2.0], [0.0], [0.0]], least_overlap(1, 1, angle_bounds.MISS_PROBABILITY / 2) / 2
    near, hidden = bound / (10 * 0.5), bound * 3 * share / (2 * 2.0)
    assert at_most(start, near, hidden * (1 - 1e-9)) == pytest.approx(1 + 3 * share)
    assert at_most(start, near, hidden * (1 + 1e-9)) > 1 + 4 * share


def test_what_hides_counts_in_full():
    """Residuals of no Krylov space do not lie in two directions for each column of the block: the rest counts, too."""
    rng = np.random.default_rng(0)
    ritz = pairs_with(np.linspace(2, 1, 20), rng.standard_normal((60, 20)))
    hidden = angle_bounds.HiddenEigenvector(ritz, 3, FirstBlock(rng.standard_normal((60, 2))))
    weights = hidden.start.coordinates(ritz, 4.0)[0][3:] / (4.0 - ritz.values[3:, None])
    assert np.linalg.norm(ritz.residuals[:, 3:] @ weights) <= hidden.norm_bound(4.0)
    # |1 / (x - 1) - 2 / x| is zero at 2, and largest at 2 + sqrt(2).
    ritz = pairs_with(np.array([9.0, 1.0, 0.0]), np.eye(4)[:, [0, 3, 3]] * [0, 1, 1])
    shown = least_overlap(1, 1, angle_bounds.MISS_PROBABILITY / 2) / 2 / (3 - np.sqrt(8))
    starts = [FirstBlock(size * np.array([[0.0], [1.0], [-2.0], [0.0]])) for size in (shown / 2, shown)]
    assert [presumed_bound(ritz, 1, start, 2.0) for start in starts] == [pytest.approx(2.0), np.inf]


@pytest.mark.parametrize(("residual", "error"), [(0.0, 0.0), (0.75, 0.0), (0.0, 0.75), (0.75, 0.5)])
def test_the_outside_of_a_plain_block_is_bounded_in_closed_form(residual, error):
    """A block lacks a hundredth of the first eigenvector once (last / first)^(asked - 1) has made up for its luck."""
    ritz = pairs_with(np.array([4.0, 1.0]), np.array([[0, 0], [0, 0], [3.0, residual]]), error)
    start, ratio = np.diag([5.0, 4.0, 0])[:, :2], (1 + residual + error) / 4
    asked = 2 + int(np.log(0.01 * least_overlap(2, 2) / 5) / np.log(ratio))
    lacks = ratio ** (asked - 1) * 5 / least_overlap(2, 2)
    assert angle_bounds.bound_outside_last_block(ritz, start, asked - 1) == np.inf
    assert angle_bounds.bound_outside_last_block(ritz, start, asked) == pytest.approx(4.04 * (1 + lacks**2), rel=1e-12)
    # It bounds what it does not span, once it has had time.
    values = 0.5 ** np.arange(30)
    A, start, bounds = np.diag(values), random_block(30, 6, 0), []
    block = start
    for asked in range(1, 60):
        ritz = ritz_of(A, block)
        P = np.eye(30) - ritz.vectors @ ritz.vectors.T
        bounds.append(angle_bounds.bound_outside_last_block(ritz, start, asked))
        assert np.linalg.norm(P @ A @ P, 2) <= bounds[-1]
        block, _ = np.linalg.qr(A @ block)
    assert bounds[0] == np.inf
    assert bounds[-1] < values[3]


@pytest.mark.parametrize("proven_at", [(), (2,), (4,), (2, 4)])
def test_a_tie_at_the_cut_is_proven_only_where_both_its_ends_are(proven_at):
    """Take blocks of two columns, which prove neither end: another variance that occurs twice may hide."""
    tied, first = np.diag(np.r_[9.0, 8.0, 5.0, 5.0, np.linspace(3, 0.5, 56)]), random_block(60, 2, seed=0)
    known, start = ProductBasis(60), FirstBlock(first)
    V = np.linalg.qr(np.column_stack([np.eye(60)[:, :4], first]))[0]
    known.add(V, tied @ V)
    start.locate_block(known)
    bounds = angle_bounds.AngleBounds(3, float(np.trace(tied)), accelerated=True, sketch=None)
    bounds.update(known, known.ritz(), start, 1)
    ends = {2: 5.001, 4: 3.001}  # bounds on the values after the first two and four, where the tie begins and ends
    bounds.add_ceilings({j: ends[j] for j in proven_at})
    bounds.add_ceilings(dict.fromkeys(proven_at, 100.0))  # of two bounds the smaller one holds
    degrees, determined = bounds.leading_bound()
    assert (bounds.last_pair, determined) == (4, 2)
    assert bounds.proven == (proven_at == (2, 4))
    assert degrees < 1e-6 or not bounds.proven
    half = known.ritz().residual_norm(4) / np.sin(np.radians(0.1))
    assert bounds.level(0.2) == pytest.approx(5.0 - 1.0001 * half, rel=1e-14)


def test_a_tie_at_the_cut_is_not_certified_while_one_of_it_hides():
    """Take the eigenvalues 9, 5, 5: blocks of two columns certify the first component, and not the first three."""
    A, done = np.diag(np.r_[9.0, 5.0, 5.0, 5.0, np.linspace(3, 0.5, 56)]), False
    found = BlockIteration(random_block(60, 2, seed=0), 2, trace=float(np.trace(A)))
    while not done:
        done = found.add(found.block, A @ found.block)
        seen = np.isclose(found.ritz.values, 5 / 9 * found.ritz.values[0]).sum()
        assert found.certificate == 90.0 or seen == 3
    assert (found.proven, found.converged, found.determined_count, seen) == (True, True, 1, 3)


def test_a_probe_adds_what_the_first_vectors_get_wrong():
    """Eigenvalue 2 of a matrix whose first two vectors are wrong by 0.01: 8, and by Weyl's inequality as much more."""
    A = np.diag([9.0, 8.0, *np.linspace(1, 0.1, 8)])
    pairs = pairs_with(np.array([9.0, 8.0]), np.zeros((10, 2)), 0.01)
    probe = angle_bounds.Probe(pairs, 2, 5.0, 8, turn=0)
    assert (probe.block[2:] != angle_bounds.Probe(pairs, 2, 5.0, 8, turn=1).block[2:]).all()
    probe.add(probe.block, A @ probe.block, error=0.0)
    assert not probe.room
    ceilings = probe.ceilings(5.0)
    assert ceilings[1] == pytest.approx(8.01, rel=1e-12)
    assert (probe.top_value, ceilings[2]) == pytest.approx((1.01, 1.0), rel=1e-9)
    # What rounding a block leaves in the first vectors has their error, too; here these are coupled to the rest.
    A[0, 2] = A[2, 0] = 0.3
    probe = angle_bounds.Probe(pairs_with(pairs.values, (A - np.diag(A.diagonal()))[:, :2], 0.01), 2, 5.0, 8, turn=0)
    V = probe.block + 0.1 * np.eye(10)[:, :1]
    error = (0.02 + 0.01 * 0.1 * np.sqrt(8)) / np.linalg.svd(probe.block, compute_uv=False)[-1]
    probe.add(V, A @ V, error=0.02)
    assert probe.ceilings(5.0)[2] == pytest.approx(1 + 2 * error, rel=1e-9)
    known = probe.all_products()
    np.testing.assert_allclose(known.AQ, A @ known.Q, atol=1e-12)
    assert known.error == pytest.approx(np.hypot(0.01, error), rel=1e-9)
    # A column with a residual r has r / (5 - 1) of what hides above 5: twice that is no more than it shows at least.
    for shown, ceilings in ((1 - 1e-6, {1: 5.0}), (1 + 1e-6, {})):
        probe = angle_bounds.Probe(pairs_with(np.array([9.0]), np.zeros((10, 1))), 1, 5.0, 1, turn=0)
        product = np.eye(10)[:, 1:2] + 2 * shown * least_overlap(1, 1) * np.eye(10)[:, 2:3]
        probe.add(np.eye(10)[:, 1:2], product, error=0.0)
        assert probe.ceilings(5.0) == pytest.approx(ceilings)
