"""Known products: the basis, its errors, the next block, and what is carried over restarts."""

import numpy as np
import pytest

from fedpca_flwr.maths import krylov
from fedpca_flwr.maths.angle_bounds import presumed_bound
from fedpca_flwr.maths.block_iteration import BlockIteration
from fedpca_flwr.maths.eigen import principal_angles, rounding
from fedpca_flwr.maths.krylov import FirstBlock, KnownProducts, Renewal, Restart, Ritz, columns_kept, random_block


def test_errors_of_products_count_by_the_size_of_their_block():
    """A product with a short vector, wrong by as much, is wrong by more of its direction."""
    known = KnownProducts(5)
    known.add(0.1 * np.eye(5)[:, :2], 0.1 * np.eye(5)[:, :2], error=1e-6)
    assert known.error == pytest.approx(1e-5)
    known.add(np.eye(5)[:, 2:3], np.eye(5)[:, 2:3], error=2e-5)
    assert known.error == pytest.approx(np.hypot(1e-5, 2e-5))
    assert known.ritz().error == pytest.approx(known.error, rel=1e-6)
    known = KnownProducts(4)
    known.add(np.eye(4)[:, :1], np.eye(4)[:, :1], error=1e-6)
    block = np.array([[1.0, 1e-3, 0.0, 0.0]]).T
    known.add(block, block)
    assert known.error >= 1e-6 / 1e-3


def test_rounding_counts_in_units_of_the_largest_value_and_adds_up_over_blocks():
    known = KnownProducts(5)
    known.add(
        np.diag([1.0, 0.01])[[0, 1, 1, 1, 1]][:, :2] * [[1], [1], [0], [0], [0]], np.diag([7.0, 0.07, 0, 0, 0])[:, :2]
    )
    assert known.ritz().error == pytest.approx(rounding(5) * 100 * 7.0, rel=1e-6, abs=0)
    known = KnownProducts(5)
    known.add(10 * np.eye(5)[:, :2], 70 * np.eye(5)[:, :2])
    assert known.ritz().error == pytest.approx(rounding(5) * 7, rel=1e-6, abs=0)
    known.add(np.eye(5)[:, 2:3], 7 * np.eye(5)[:, 2:3])
    assert known.ritz().error == pytest.approx(np.sqrt(2) * rounding(5) * 7, rel=1e-6, abs=0)


def pairs_with(values, residuals, error=0.0):
    """Pairs of these values (m,) and residuals (d, m); their vectors are the first unit vectors."""
    basis = np.eye(len(residuals))[:, : values.size]
    return Ritz(values, np.eye(values.size), basis, residuals + basis * values, error)


@pytest.mark.parametrize("left", [1.0, 1e-4, 1e-7])
def test_a_block_almost_in_the_span_loses_no_digits(left):
    rng = np.random.default_rng(3)
    A = np.diag(1.0 / np.arange(1, 41))
    first, others = rng.standard_normal((40, 4)), rng.standard_normal((40, 3)) * [1, 1e-3, 1e-5]
    second = first @ rng.standard_normal((4, 3)) + left * others
    known = KnownProducts(40)
    known.add(first, A @ first)
    known.add(second, A @ second)
    assert np.abs(known.Q.T @ known.Q - np.eye(known.Q.shape[1])).max() <= 1e-14
    assert known.Q.shape[1] == (7 if left > 1e-7 else 5)  # the shorter directions are rounding then
    values = known.ritz().values
    np.testing.assert_allclose(
        values, np.linalg.eigvalsh(known.Q.T @ A @ known.Q)[::-1], atol=1e-4 * rounding(40) / left**2
    )


def test_residuals_of_pairs_and_the_error_of_a_vector():
    ritz = pairs_with(np.array([3.0, 2.0, 1.0]), np.array([[0.0, 0, 0]] * 3 + [[3, 4, 12]]), 0.25)
    assert [ritz.residual(k) for k in (1, 2, 3)] == pytest.approx([3.25, 5.25, 13.25])
    assert [ritz.pairs(k).following for k in (1, 2, 3)] == [2, 1, 0]
    turned = np.array([[0.8, -0.6], [0.6, 0.8]])
    ritz = Ritz(np.array([2.0, 1.0]), turned, np.eye(2), np.eye(2), 1.0, 0.1, 1)
    assert ritz.error_of(1) == pytest.approx(0.1 + 0.6)
    assert ritz.error_of(2) == 1.0


def test_the_next_block_is_what_room_and_components_need():
    known, V = KnownProducts(6), random_block(6, 3, 0)
    known.add(V, 2 * V)
    known.add(V @ np.ones((3, 2)), 2 * V @ np.ones((3, 2)))
    assert known.Q.shape == (6, 3)
    # One direction has a residual, but blocks of two must span seven in four rounds.
    known = KnownProducts(10)
    known.add(np.eye(10)[:, :2], np.eye(10)[:, 2:4] * [1, 0])
    assert known.next_block(known.ritz(), 2, 7).shape == (10, 2)
    assert known.next_block(known.ritz(), 2, 3).shape == (10, 1)
    known = KnownProducts(10)
    known.add(random_block(10, 8, 0), random_block(10, 8, 0))
    assert known.next_block(known.ritz(), 8, 2).shape == (10, 2)


def test_an_invariant_span_is_filled_with_random_directions():
    basis, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((60, 60)))
    A = (basis[:, :3] * [3.0, 2.0, 1.0]) @ basis[:, :3].T
    known, V, widths = KnownProducts(60), random_block(60, 8, 0), []
    for _ in range(3):
        known.add(V, A @ V)
        V = known.next_block(known.ritz(), 8, 3)
        widths.append(V.shape[1])
        np.testing.assert_allclose(V.T @ V, np.eye(V.shape[1]), atol=1e-12)
        np.testing.assert_allclose(known.Q.T @ V, 0, atol=1e-12)
    assert widths == [3, 8, 8]
    assert principal_angles(known.ritz().vectors[:, :3], basis[:, :3]).max() < 1e-9


def test_the_shared_block_is_the_same_everywhere():
    """Bits from SHAKE-256, so a party with another NumPy makes the same block: these must never change."""
    block = random_block(50, 7, 1)
    np.testing.assert_array_equal(block.astype(np.float32), block)
    assert 0.9 < np.abs(block).max() < 1
    assert abs(block.mean()) < 0.15
    assert block[0, 0] == -0.40750110149383545
    np.testing.assert_array_equal(random_block(7, 7, 1), np.eye(7))


def test_products_had_again_in_full_take_the_error_of_the_others_away_but_for_an_angle():
    """Without what symmetry tells of the others, half of their error would stay in the first vectors."""
    rng = np.random.default_rng(0)
    A = np.diag(np.r_[9.0, 8.0, np.linspace(1, 0, 18)])
    wrong = 1e-6 * rng.standard_normal((20, 20))
    known = KnownProducts(20)
    known.add(np.eye(20), A + wrong, error=float(np.linalg.norm(wrong)))
    before = known.ritz()
    U = before.vectors[:, :2]
    known.renew(before, A @ U)
    after = known.ritz()
    true = [float(np.linalg.norm(A @ r.vectors[:, :2] - r.vectors[:, :2] * r.values[:2], 2)) for r in (before, after)]
    assert true[0] > 1e-7
    assert true[1] <= after.residual(2) < 1e-11
    assert before.residual(2) >= true[0]


def test_products_are_asked_again_two_rounds_before_the_tolerance():
    """Angles of 0.6 and 0.006 degrees: two more rounds of this rate reach a millionth, one does not."""
    renewal = Renewal(1, 1e-6)

    def wanted(residual):
        ritz = pairs_with(np.array([2.0, 1.0]), residual * np.eye(3)[:, :2], 1e-7)
        return renewal.wanted(ritz, last=False)

    assert [wanted(1e-2), wanted(1e-4)] == [False, True]


VALUES = np.r_[3.0, 2.5, 2.2, np.linspace(2, 0, 197)]


def restarted(cycles, *, kept=20, blocks=5, seed=0, rounded=False):
    """After so many restarts of a Krylov space of blocks of 8: the first block, and what is known."""
    known, block = KnownProducts(200), random_block(200, 8, seed)
    first = FirstBlock(block)
    for step in range(1 + blocks * (cycles + 1)):
        if step and step % blocks == 0 and len(first.restarts) < cycles:
            first.restart(known.ritz(), kept, block)
            known.keep(known.ritz(), kept)
        V = block.astype(np.float32).astype(np.float64) if rounded and step else block
        known.add(V, VALUES[:, None] * V)
        first.asked(known)
        block = known.next_block(known.ritz(), 8, 3)
    return first, known


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("cycles", [0, 1, 2, 4])
def test_what_the_first_block_shows_of_eigenvectors_is_carried_over_restarts(cycles, rounded):
    first, known = restarted(cycles, rounded=rounded)
    shown, ritz = random_block(200, 8, 0), known.ritz()
    for i in range(8):
        seen, outside = first.seen(ritz, VALUES[i])
        assert np.linalg.norm(shown[i] - seen.T @ ritz.vectors[i]) <= 1.01 * outside
        assert outside < (1e-1 if rounded else 1e-6)
    assert np.abs(shown).max() > 0.5


@pytest.mark.parametrize("cycles", [1, 3, 6])
def test_a_ceiling_holds_after_restarts_and_comes_near(cycles):
    for seed in range(5):
        first, known = restarted(cycles, kept=30, blocks=8, seed=seed)
        ceiling = presumed_bound(known.ritz(), 3, first)
        assert VALUES[3] <= ceiling <= VALUES[3] + (VALUES[2] - VALUES[3]) / 2


def test_restarts_count_what_they_leave_outside():
    first, known = restarted(1, kept=8, blocks=2)
    assert presumed_bound(known.ritz(), 3, first) == np.inf
    assert columns_kept(784, 50, 60)[0] > 784  # never restarted
    assert columns_kept(54_051, 10, 20)[0] > 1000
    assert columns_kept(10**6, 10, 20) == (220, 110)
    # Of a vector that is given up a half is shown; 0.3 of its residual lies outside, and 0.2 of the quarter within.
    first = FirstBlock(np.ones((5, 1)))
    last = np.array([[0.0], [1.0]])
    first.restarts = [Restart(last, np.array([1.0]), np.array([[0.5]]), 0.3, last, 0.2)]
    ritz = pairs_with(np.array([2.0, 1.0]), np.zeros((5, 2)))
    seen, outside = first.seen(ritz, 3.0)
    np.testing.assert_allclose(seen, [[0.0], [0.25]])
    assert outside == pytest.approx(0.3 * 0.5 + 0.2 * 0.25)


def iterated(values, k, width):
    found, most = BlockIteration(random_block(len(values), width, 1), k, trace=float(values.sum())), 0
    while not found.add(found.block, values[:, None] * found.block):
        most = max(most, found.known.Q.shape[1])
        assert found.asked < 200
    return found, max(most, found.known.Q.shape[1])


@pytest.mark.parametrize(("k", "width"), [(3, 8), (4, 2)])
def test_a_restarted_basis_stays_bounded_and_certifies_the_same(monkeypatch, k, width):
    """A proof that took the first block for lost would never end."""
    values = np.r_[3.0, 2.8, 2.6, 2.4, np.linspace(2.2, 0, 596)]
    whole, columns = iterated(values, k, width)
    monkeypatch.setattr(krylov, "BASIS_BYTES", 0)
    bounded, fewer = iterated(values, k, width)
    assert fewer <= 2 * k + 10 * width < columns
    for found in (whole, bounded):
        assert principal_angles(found.pairs.vectors, np.eye(600)[:, :k]).max() <= found.certificate <= 1e-6
    assert bounded.asked <= 1.5 * whole.asked
