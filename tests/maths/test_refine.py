"""Sketch and refine, and corrections: what they agree with, what they may lack, and how many a run needs."""

from dataclasses import replace

import numpy as np
import pytest

from fedpca_flwr.maths import refine
from fedpca_flwr.maths.block_iteration import BlockIteration
from fedpca_flwr.maths.codecs import encode_block, quantise
from fedpca_flwr.maths.eigen import Eigenpairs, leading_eigenpairs, polar_factor, principal_angles
from fedpca_flwr.maths.factors import Factor
from fedpca_flwr.maths.moments import Head
from fedpca_flwr.maths.refine import Corrections, RefinedSketch, correct_on_block, corrected_angle_bound
from tests.families import with_spectrum


def sketch_of(A, rank):
    """Return the best float32 factor of a scatter, and half of what follows assumed elsewhere."""
    values, vectors = np.linalg.eigh(A)
    rows = (vectors[:, -rank:] * np.sqrt(values[-rank:])).T
    head = Head(10, np.zeros(len(A)), np.zeros(len(A)))
    factor = Factor(head, rows, float(np.trace(A)), values[-rank - 1]).with_floor()
    return RefinedSketch(replace(factor, rows=factor.rows.astype(np.float32).astype(float)))


def matrix(d):
    return with_spectrum(1 / np.arange(1, d + 1) ** 2.0)


def assert_knows(refined, A):
    """On the span of the known products the refined sketch is the matrix."""
    Q, change = refined.products.Q, refined._change()
    np.testing.assert_allclose(refined.product(Q) + change + Q @ (change.T @ Q), A @ Q, atol=1e-12)
    return Q, change


@pytest.mark.parametrize("d", [60, 120])  # through the matrix itself, and through the span of few rows
def test_a_refined_sketch_agrees_with_all_products(d):
    A, basis = matrix(d)
    refined = sketch_of(A, 12)
    for _ in range(3):
        block = refined.next_block(15)
        refined.products.add(block, A @ block)
        Q, change = assert_knows(refined, A)
        M = refined.product(np.eye(d)) + change @ Q.T + Q @ change.T
        np.testing.assert_allclose(refined.leading(5).values, np.linalg.eigvalsh(M)[:-6:-1], rtol=1e-10)
    assert principal_angles(refined.leading(5).vectors, basis[:, :5]).max() < 1e-6
    refined = sketch_of(A, 12)
    block = refined.next_block(15)
    refined.products.add(block, A @ block)
    refined.leading(5)
    ritz = refined.products.ritz()
    refined.renew(ritz, A @ ritz.vectors[:, :5])
    assert_knows(refined, A)


def test_sketches_err_by_what_they_say():
    """lambda_max(P M_0 P) + the error of M_0, in closed form on a diagonal matrix."""
    rows = np.diag([3.0, 2.0, 1.0])[:, [0, 1, 2, 2, 2]] * [1, 1, 1, 0, 0]
    sketch = RefinedSketch(Factor(Head(9, np.zeros(5), np.zeros(5)), rows, 14.5, 0.5, 0.25))
    assert sketch.error == pytest.approx(0.25, rel=1e-4)
    sketch.products.add(np.eye(5)[:, :1], 9.25 * np.eye(5)[:, :1])
    assert sketch.outside_bound == pytest.approx(2.0**2 + 0.25 + sketch.error)
    sketch.products.add(np.eye(5)[:, 1:3], np.eye(5)[:, 1:3] * [4.25, 1.25])
    assert sketch.outside_bound == pytest.approx(0.25 + sketch.error)
    tiny = RefinedSketch(Factor(Head(9, np.zeros(4), np.zeros(4)), np.zeros((2, 4)), 1e-92))
    assert tiny.error > 1e-92
    # What an answer differs from the Ritz pairs counts in its certificate.
    A, _ = matrix(40)
    found = BlockIteration(sketch_of(A, 3), 5, width=8, trace=float(np.trace(A)))
    for _ in range(3):
        found.add(found.block, A @ found.block)
    apart = principal_angles(found.pairs.vectors, found.ritz.vectors[:, :5]).max()
    assert apart > 1
    assert found.certificate == pytest.approx(found._angles.leading_bound()[0] + apart)


@pytest.mark.parametrize("d", [40, 300])
@pytest.mark.parametrize("rank", [6, 30])
def test_the_certificate_of_a_refined_sketch_holds(d, rank):
    A, basis = matrix(d)
    found, done = BlockIteration(sketch_of(A, rank), 5, width=8, trace=float(np.trace(A))), False
    while not done:
        done = found.add(found.block, A @ found.block)
        assert principal_angles(found.pairs.vectors, basis[:, :5]).max() <= found.certificate + 1e-9
    assert found.exact
    assert found.proven


@pytest.mark.parametrize("gap", [0.3, 0.01])
@pytest.mark.parametrize("noise", [1e-4, 1e-6])
@pytest.mark.parametrize("seed", range(4))
def test_the_bound_of_a_corrected_matrix_holds(gap, noise, seed):
    """Five components, a sixth that is `gap` behind, and an error everywhere of up to `noise` a direction."""
    d, k, rng = 60, 5, np.random.default_rng(100 + seed)
    values = np.array([9.0, 7.0, 5.0, 4.0, 3.0, 3.0 - gap, 2.5, *np.linspace(1.0, 0.5, d - 7)])
    A, basis = with_spectrum(values, seed)
    wrong = rng.standard_normal((d, d)) * noise
    M, V, bounds = A + wrong + wrong.T, None, []
    for _ in range(8):
        pairs, error = leading_eigenpairs(np.asfortranarray(M), k + 5), np.linalg.norm(A - M, 2)
        on_block = error if V is None else np.linalg.norm((A - M) @ V, 2)
        bound, value_error = corrected_angle_bound(pairs, k, error, on_block, V)
        bounds.append(bound)
        assert np.abs(pairs.values[:k] - values[:k]).max() <= value_error + np.linalg.norm(error) * (bound == 90)
        assert principal_angles(pairs.vectors[:, :k], basis[:, :k]).max() <= bounds[-1]
        V = pairs.vectors
        missed = (A - M) @ V
        M = correct_on_block(M, V, missed * (1 + 1e-3 * rng.standard_normal(missed.shape)))  # they travel rounded
    assert bounds[-1] < 1e-6 < bounds[0]


def test_ties_of_a_block_have_no_bound():
    pairs = Eigenpairs(np.array([4.0]), np.eye(3)[:, :1], 1.0)
    block, beside = np.array([[np.cos(0.3)], [np.sin(0.3)], [0.0]]), np.sin(0.3)
    degrees, wrong = corrected_angle_bound(pairs, 1, 0.1, 0.01, block)
    in_first = 0.01 * (1 + 2 * beside) + 0.1 * beside**2
    sine = (0.01 + 0.1 * beside) / (4 - in_first - 1.1)
    assert degrees == pytest.approx(np.degrees(np.arcsin(sine)), rel=1e-9)
    assert wrong == pytest.approx(in_first + 4.1 * sine**2, rel=1e-9)
    # Values 4, 3.9 and at most 0.5, wrong by 0.01 on the first vector, 0.02 on the second, and by 0.1 elsewhere.
    pairs = Eigenpairs(np.array([4.0, 3.9]), np.eye(3)[:, :2], 0.5)
    degrees, _ = corrected_angle_bound(pairs, 1, 0.1, 0.02, np.eye(3)[:, :2], on_first=0.01)
    to_next, to_rest = 4 - 0.01 - 3.9 - 0.02, 4 - 0.01 - 0.5 - 0.1
    beside = (0.01 * to_rest + 0.02 * 0.01) / (to_next * to_rest - 0.02**2)
    behind = (0.01 + 0.02 * beside) / to_rest
    assert degrees == pytest.approx(np.degrees(np.arcsin(np.hypot(beside, behind))), rel=1e-9)
    # An error of 0.1, of 0.005 and 0.01 on what the block has of the first vectors and the next, 0.3 and 0.2 beside it.
    norms = refine.CorrectionErrors(0.1, 0.01, 0.005, 0.3, 0.2)
    found = [norms.norm_first, norms.norm_next, norms.inner_first, norms.inner_next, norms.cross_norm]
    np.testing.assert_allclose(found, [0.035, 0.03, 0.017, 0.018, 0.015])
    pairs = leading_eigenpairs(np.diag([3.0, 2.0, 2.0, 1.0]), 3)
    assert corrected_angle_bound(pairs, 2, 1e-9, 1e-9, None)[0] == 90.0
    values = SPECTRUM.copy()
    values[K] = values[K - 1]
    assert Corrections(values, K, WIDTH, PARTIES, 1e-4).count_needed(1.0, 6) is None


D, K, WIDTH, PARTIES = 120, 4, 14, 5
SPECTRUM = np.sort(np.random.default_rng(5).gamma(0.3, 1.0, D))[::-1] + 1e-3
SPECTRUM[:K] += 2.0


def rounded(block, bits):
    return encode_block(block, bits)[1]


def bounds(step: float, most: int) -> list[float]:
    """Correct parties' scatters with rounding errors by the method's own update."""
    rng, missing = np.random.default_rng(1), []
    for _ in range(PARTIES):
        noise = np.triu(rng.uniform(-step / 2, step / 2, (D, D)))
        missing.append(noise + np.triu(noise, 1).T)
    approximate, block, found = with_spectrum(SPECTRUM)[0] - np.sum(missing, axis=0), None, []
    for number in range(most + 1):
        pairs = leading_eigenpairs(np.asfortranarray(approximate), WIDTH)
        wrong = sum(np.linalg.norm(part, 2) for part in missing)
        on_block = wrong if block is None else sum(np.linalg.norm(part @ block, 2) for part in missing)
        found.append(corrected_angle_bound(pairs, K, wrong, on_block, block)[0])
        block = polar_factor(rounded(pairs.vectors, refine.block_bits(number)))
        told = [rounded(part @ block, refine.CORRECTION_BITS) for part in missing]
        approximate = correct_on_block(approximate, block, np.sum(told, axis=0))
        missing = [correct_on_block(part, block, -one) for part, one in zip(missing, told, strict=True)]
    return found


@pytest.mark.parametrize("step", [1e-4, 1e-3, 2e-3])
def test_a_run_needs_as_many_as_are_forecast(step):
    for tolerance, count in ((1e-6, 5), (1.001e-6, 4)):
        assert Corrections(SPECTRUM, K, WIDTH, PARTIES, 1e-3).count_needed(tolerance, 9) == count
    fell = bounds(step, 6)
    for tolerance in (10.0, 0.5, 0.02, 1e-4):
        happened = next(number for number, bound in enumerate(fell) if bound <= tolerance)
        forecast = Corrections(SPECTRUM, K, WIDTH, PARTIES, step).count_needed(tolerance, 6)
        assert forecast is not None
        assert happened <= forecast <= happened + 1


def test_rounding_and_entropy_of_numbers_that_share_a_scale():
    values = np.random.default_rng(0).standard_normal(20000)
    off = quantise(values, 8, 20000)[1] - values
    assert refine.relative_rounding(8) / 2 < off.std() / values.std() < refine.relative_rounding(8)
    integers = np.rint(values / (refine.PEAK_TO_RMS * values.std() / 127))
    shares = np.unique(integers, return_counts=True)[1] / values.size
    assert -(shares * np.log2(shares)).sum() == pytest.approx(refine.entropy_bits(8), abs=0.05)
