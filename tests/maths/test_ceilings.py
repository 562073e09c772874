"""Ceilings: above the eigenvalue that they bound, in closed forms and at random, and not far above it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedpca_flwr.maths.ceilings import SHARES, least_seen, outside_last, presumed_ceiling, proven_ceiling
from fedpca_flwr.maths.certificate import sine_theorem
from fedpca_flwr.maths.krylov import KnownProducts, random_block


def known_of(A, Q, error=0.0):
    known = KnownProducts(len(A))
    known.add(Q, A @ Q, error=error)
    return known.ritz()


def test_a_proven_ceiling_takes_in_the_residual_of_what_follows():
    """Of [[4, 0, 0], [0, 1, b], [0, b, c]] two columns are known: what is outside is tied to the second."""
    b, c = 0.9, 1.4
    ritz = known_of(np.array([[4, 0, 0], [0, 1, b], [0, b, c]]), np.eye(3)[:, :2])
    second = (1 + c) / 2 + np.hypot((c - 1) / 2, b)
    ceiling = proven_ceiling(ritz, 1, c)
    assert second <= ceiling == pytest.approx(c + SHARES[0] * (4 - c))
    assert second > c + SHARES[1] * (4 - c)  # so no lower share may pass


def test_an_invariant_span_leaves_what_is_outside():
    ritz = known_of(np.diag([4.0, 2.0, 1.0, 0.5]), np.eye(4)[:, :2])
    assert proven_ceiling(ritz, 2, 1.0) == pytest.approx(1.0)
    assert 2.0 <= proven_ceiling(ritz, 1, 1.0) <= 2 + SHARES[-1] * 2 + 1e-12
    assert proven_ceiling(ritz, 2, 2.0) == proven_ceiling(ritz, 1, 4.5) == np.inf


@pytest.mark.parametrize("error", [1e-3, 1e-2])
def test_a_ceiling_takes_in_what_the_wire_did(error):
    A, start = np.diag([4.0, 2.0, 1.0, 0.5]), np.eye(4)[:, :2]
    for ceiling in (lambda ritz: proven_ceiling(ritz, 2, 1.0), lambda ritz: proven_ceiling(ritz, 1, 1.0)):
        assert ceiling(known_of(A, start, error)) - ceiling(known_of(A, start)) == pytest.approx(2 * error, rel=1e-3)


def test_hidden_directions_are_not_presumed_away_before_the_block_would_show_them():
    """The first Ritz values of a random block are averages, and say nothing of what is above them."""
    A = np.diag(np.linspace(2, 1, 80))
    assert presumed_ceiling(known_of(A, random_block(80, 6, 1)), 1, random_block(80, 6, 1)) == np.inf


def test_a_presumed_ceiling_holds_and_comes_near():
    values = 0.7 ** np.arange(80)
    basis, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((80, 80)))
    A, found = (basis * values) @ basis.T, []
    for seed in range(10):
        known, start = KnownProducts(80), random_block(80, 6, seed)
        block = start
        for _ in range(7):
            known.add(block, A @ block)
            ceiling = presumed_ceiling(known.ritz(), 3, start)
            assert values[3] <= ceiling
            block = known.next_block(known.ritz(), 6, 3)
        found.append(ceiling)
    assert max(found) <= values[3] + (values[2] - values[3]) / 32


def test_an_error_in_the_products_weakens_what_may_be_presumed():
    A, start = np.diag(0.5 ** np.arange(30)), random_block(30, 12, 0)
    known, block = KnownProducts(30), start
    for _ in range(2):
        known.add(block, A @ block)
        block = known.next_block(known.ritz(), 12, 1)
    ritz = known.ritz()
    assert presumed_ceiling(ritz, 1, start) < presumed_ceiling(replace(ritz, error=1e-1), 1, start) == np.inf


def test_a_random_block_shows_what_it_must():
    """Singular values of blocks are below the bound as often as it says, or less."""
    rng = np.random.default_rng(0)
    for columns, directions in ((1, 1), (5, 1), (8, 4), (6, 6)):
        blocks = rng.uniform(-1, 1, (4000, columns, directions))
        least = np.linalg.svd(blocks, compute_uv=False)[:, -1]
        assert 0.001 < np.mean(least < least_seen(columns, directions, 0.02)) < 0.03


def test_a_plain_block_bounds_the_outside_once_it_has_had_time():
    values = 0.5 ** np.arange(30)
    A, start = np.diag(values), random_block(30, 6, 0)
    block, bounds = start, []
    for asked in range(1, 60):
        ritz = known_of(A, block)
        P = np.eye(30) - ritz.vectors @ ritz.vectors.T
        bounds.append(outside_last(ritz, start, asked))
        assert np.linalg.norm(P @ A @ P, 2) <= bounds[-1]
        block, _ = np.linalg.qr(A @ block)
    assert bounds[0] == np.inf
    assert bounds[-1] < values[3]


def test_the_sine_theorem_in_closed_form():
    assert sine_theorem(0.1, 0.2) == pytest.approx(30)
    assert sine_theorem(0.3, 0.2) == sine_theorem(0.1, 0.0) == sine_theorem(0.1, -1.0) == 90
    assert sine_theorem(0.1, np.inf) == 0
