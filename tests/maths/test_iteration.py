"""Block iteration and refined sketches: certified pairs, whatever the spectrum, the blocks and the wire."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.typing import NDArray

from fedpca_flwr.maths import refine
from fedpca_flwr.maths.angle_bounds import LEVEL_SHARES, AngleBounds, describe_cuts
from fedpca_flwr.maths.block_iteration import BlockIteration, certificate_measurements, shortfall_notes
from fedpca_flwr.maths.codecs import encode_block, quantise
from fedpca_flwr.maths.eigen import Eigenpairs, leading_eigenpairs, polar_factor, principal_angles, sine_theorem
from fedpca_flwr.maths.factors import Factor
from fedpca_flwr.maths.krylov import FirstBlock, random_block
from fedpca_flwr.maths.marchenko_pastur import MarchenkoPastur, largest_gap
from fedpca_flwr.maths.moments import Head
from fedpca_flwr.maths.refine import Corrections, RefinedSketch, correct_on_block, corrected_angle_bound
from tests.families import with_spectrum
from tests.maths.test_inference import counted, scatter


def begin(values, *, k, width, **options):
    return BlockIteration(random_block(len(values), width, 1), k, trace=float(np.sum(values)), **options)


def run(found, A, rounds):
    while not found.add(found.block, A @ found.block) and found.product_count < rounds:
        pass
    return found


def iterate(values, *, k, width, **options):
    A, basis = with_spectrum(values)
    found = run(begin(values, k=k, width=width, **options), A, 200)
    assert found.product_count < 200, f"no end: {certificate_measurements(found)}"
    return found, principal_angles(found.pairs.vectors, basis[:, :k]).max()


def on_axes(k, values, width, *, trace, error=0.0):
    """Return an iteration after one round from the first axes of a matrix, or of a diagonal matrix."""
    A = np.diag(values) if np.ndim(values) == 1 else values
    found = BlockIteration(np.eye(len(A))[:, :width], k, trace=trace)
    return found, found.add(np.eye(len(A))[:, :width], A[:, :width], error=error)


def lost(values, vectors, basis):
    """Return the angle in degrees to the nearest subspace that the eigenvalues allow: ties may be swapped."""
    k, last = vectors.shape[1], values[vectors.shape[1] - 1]
    below, upto = int((values > last * (1 + 1e-9)).sum()), int((values >= last * (1 - 1e-9)).sum())
    upto = len(values) if last <= 1e-12 * values[0] else upto
    outside = principal_angles(vectors, basis[:, :upto]).max()
    return max(outside, principal_angles(basis[:, :below], vectors).max() if below else 0.0) if k < len(values) else 0.0


def spectrum(kind, d, rng):
    values = {
        "geometric": rng.uniform(0.3, 0.99) ** np.arange(d),
        "slow": np.arange(1, d + 1) ** -rng.uniform(0.2, 2.5),
        "tied": np.repeat(rng.uniform(0, 1, d), 4)[:d],
        "nearly isotropic": 1 + rng.uniform(0, 10 ** rng.uniform(-6, 0), d),
        "two levels": np.concatenate([np.repeat([5.0, 4.0], rng.integers(1, 4, 2)), np.ones(d)])[:d],
        "twelve decades": 10.0 ** rng.uniform(-12, 0, d),
    }[kind]
    values = np.sort(values)[::-1]
    values[int(rng.integers(2, d)) if rng.random() < 0.2 else d :] = 0
    return values * 10.0 ** rng.integers(-8, 8)


KINDS = ["geometric", "slow", "tied", "nearly isotropic", "two levels", "twelve decades"]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("kind", KINDS)
def test_no_angle_is_larger_than_what_is_told(kind, seed):
    """Random spectra, blocks of more than k columns, few rounds or many, plain or not, float32 down and up."""
    rng = np.random.default_rng([seed, KINDS.index(kind)])
    d = int(rng.integers(3, 90))
    values = spectrum(kind, d, rng)
    A, basis = with_spectrum(values, seed)
    k = int(rng.integers(1, min(d, 9)))
    block = random_block(d, min(d, k + int(rng.choice([1, 2, 5, 10]))), seed)
    tolerance, accelerated = 10.0 ** rng.uniform(-6, 1.5), bool(rng.random() < 0.8)
    found = BlockIteration(block, k, trace=float(np.trace(A)), tolerance=tolerance, accelerated=accelerated)
    rough, done = rng.random() < 0.3, False
    while not done and found.product_count < 40:
        V = found.block
        if found.allows_float32 and found.product_count:
            V = V.astype(np.float32).astype(np.float64)
        AV, error = A @ V, 0.0
        if rough:
            error = 2.0**-24 * float(np.linalg.norm(AV))
            AV = AV.astype(np.float32).astype(np.float64) if 1e-20 < values[0] < 1e20 else AV
        done = found.add(V, AV, error=error)
        if found.certificate < 90:
            assert lost(values, found.pairs.vectors, basis) <= found.certificate + 1e-8


@pytest.mark.parametrize("width", [1, 2, 3])
def test_narrow_blocks_are_certified_and_look_longer(width):
    found, angle = iterate(0.8 ** np.arange(60), k=8, width=width)
    assert angle <= found.certificate + 1e-9
    assert found.exact
    values = np.repeat([9.0, 4.0, 1.0, 0.0], [1, 6, 5, 88])
    for k in (2, 3, 5):  # one vector sees one direction of each eigenvalue, and then nothing more: that is not the end
        np.testing.assert_allclose(iterate(values, k=k, width=width)[0].pairs.values, values[:k], rtol=1e-9)
    for columns in (width, 12) if width > 1 else ():
        found, angle = iterate(np.r_[9.0, 5.0, 3.0, np.linspace(1, 0.9, 97)], k=3, width=columns)
        assert angle <= found.certificate <= 1e-6
        assert found.proven


@pytest.mark.parametrize(("copies", "apart"), [(2, 0.0), (3, 0.0), (4, 0.0), (3, 1e-9)])
@pytest.mark.parametrize(("width", "k"), [(1, 1), (1, 2), (2, 2), (3, 3), (2, 4)])
@pytest.mark.parametrize("others", [(8, 6), (9.9, 1)])
def test_repeated_variances_are_not_certified_away(others, width, k, copies, apart):
    """Take many variances that follow closely: three rounds from a random block do not show hidden components."""
    values = np.concatenate([np.repeat(10.0, copies), np.linspace(*others, 120)])
    values[copies - 1] -= apart
    A, basis = with_spectrum(values)
    found = run(begin(values, k=k, width=width), A, 120)
    if found.certificate < 90:
        assert copies <= k or apart
        assert lost(values, found.pairs.vectors, basis) <= found.certificate + 1e-8
    elif copies <= k:
        assert found.product_count == 120
        assert shortfall_notes(found, "max-rounds = 120")[0].startswith("stopped after max-rounds")
    if copies > k:
        np.testing.assert_allclose(found.pairs.values, 10.0, rtol=1e-8)
        assert not found.exact


def test_the_plain_iteration_takes_longer_and_product_errors_end_one():
    values = 0.7 ** np.arange(40)
    plain, angle = iterate(values, k=4, width=8, accelerated=False)
    assert angle <= plain.certificate + 1e-10
    assert plain.product_count > iterate(values, k=4, width=8)[0].product_count
    assert not on_axes(2, [4.0, 3.0, 1.0], 1, trace=8.0)[0].proven  # of one vector no bound was tried
    # They are not random: what the sketch has left out they do not show.
    rows = np.diag([2.0, 1.0])[:, [0, 1, 1, 1]] * [1, 1, 0, 0]
    sketch = RefinedSketch(Factor(Head(9, np.zeros(4), np.zeros(4)), rows, 10.0, 5.0))
    found = run(BlockIteration(sketch, 1, width=2, trace=10.0), np.diag([4.0, 1.0, 5.0, 0.0]), 1)
    assert certificate_measurements(found)["certified_angle_degrees"] == 90
    A, basis = with_spectrum(0.7 ** np.arange(200))
    found, done = begin(0.7 ** np.arange(200), k=4, width=14), False
    while not done:
        AV = A @ found.block
        done = found.add(found.block, AV.astype(np.float32).astype(float), error=2.0**-24 * float(np.linalg.norm(AV)))
    assert found.product_count < 12
    assert found.precision_limited
    assert principal_angles(found.pairs.vectors, basis[:, :4]).max() <= found.certificate
    told = "stopped after reaching the products' precision, 9e-08 of the largest variance, with an angle"
    assert [note.startswith(told) for note in shortfall_notes(found, "max-rounds = 100")] == [True]
    # What float16 leaves is mended by products in full of the first vectors, once no other product helps.
    A, basis = with_spectrum(0.8 ** np.arange(60))
    found, done = begin(0.8 ** np.arange(60), k=3, width=6, rounded=True), False
    while not done:
        AV, again = A @ found.block, None if found.renewal_vectors is None else A @ found.renewal_vectors
        short = AV.astype(np.float16).astype(float)
        done = found.add(found.block, short, error=float(np.linalg.norm(short - AV)), renewal_product=again)
    assert principal_angles(found.pairs.vectors, basis[:, :3]).max() <= found.certificate <= 1e-6


@pytest.mark.parametrize("error", [1e-7, 1e-5, 1e-3])
def test_product_errors_count_in_the_trace_outside(error):
    """sin(angle) <= (|R| + error) / (theta_k - theta_{k+1} - 2 error), with no residual left where all is spanned."""
    found, done = on_axes(2, [4.0, 3.0, 1.5, 0.5], 4, trace=9.0, error=error)
    assert done
    assert found.certificate == pytest.approx(sine_theorem(error, 1.5 - 2 * error), rel=1e-3)
    assert not found.exact
    # Of the trace of three pairs each value may be wrong, by sqrt(3) errors together; then the ceiling, by two.
    found, _ = on_axes(3, [4.0, 3.0, 2.0, 0.25], 3, trace=9.25, error=error)
    expected = sine_theorem(error, 2 - 0.25 - (2 + np.sqrt(3)) * error)
    assert found.certificate == pytest.approx(expected, rel=1e-7, abs=2e-12)


@pytest.mark.parametrize(("k", "cut"), [(2, True), (3, False)])
def test_a_cut_tie_is_certified_at_both_ends(k, cut):
    """Values 4, 2, 2 with residuals x, y and 0: three together are turned by hypot(x, y), the first alone by x."""
    x, y = 0.02, 0.1
    A = np.diag([4.0, 2.0, 2.0, 0.0])
    A[3, :2] = A[:2, 3] = x, y
    found, _ = on_axes(k, A, 3, trace=8.0)
    first = sine_theorem(x, 4 - (2 + LEVEL_SHARES[-1] * 2)) if cut else 0.0
    assert found.certificate == pytest.approx(sine_theorem(np.hypot(x, y), 2) + first)
    assert certificate_measurements(found)["certified_components"] == (1 if cut else 3)


def test_of_a_tie_at_the_cut_nothing_is_certified_and_spans_of_all_are_proven():
    """Refuse a certificate of 1e-14 degrees for a subspace of which there are many; as any is as good, the run ends."""
    values = np.repeat([5.0, 2.0, 1.0], [1, 3, 8])
    for k, certified in ((1, 1), (2, 1), (3, 1), (4, 4), (5, 4)):
        found, _ = iterate(values, k=k, width=k + 3)
        assert certificate_measurements(found)["certified_components"] == certified
        assert (found.exact, shortfall_notes(found, "")) == (True, [])
    found, _ = iterate(values[1:], k=1, width=4)
    assert certificate_measurements(found) == {"certified_angle_degrees": 90, "certified_components": 0}
    assert shortfall_notes(found, "") == []
    pairs = on_axes(1, [400.0, 200.0, 100.0], 3, trace=700.0)[0].pairs
    assert (pairs.values.tolist(), pairs.following) == ([400], 200)
    found, _ = on_axes(1, np.ones(3), 3, trace=3.0, error=1e-6)
    assert certificate_measurements(found)["certified_angle_degrees"] == 90
    found, done = on_axes(1, np.ones(3), 3, trace=3.0)
    assert done
    assert shortfall_notes(found, "") == []
    found, angle = iterate(np.repeat([2.0, 0.0], [3, 37]), k=3, width=2)
    assert found.proven
    assert angle <= found.certificate + 1e-10 <= 1e-6
    found, _ = iterate(np.repeat([3.0, 2.0, 1.0, 0.0], [1, 1, 1, 37]), k=5, width=10)
    assert found.exact
    assert certificate_measurements(found)["certified_components"] == 3
    assert found.product_count <= 3
    found, _ = on_axes(2, [4.0, 0.0, 3.0, 0.0], 2, trace=7.0)
    assert certificate_measurements(found)["certified_components"] == 1  # what is left of the trace is less than it has


def ended(A, k, width, noise, *, tolerance=1e-3, seed=0):
    block, trace = random_block(len(A), width, seed), float(np.trace(A))
    return run(BlockIteration(block, k, trace=trace, tolerance=tolerance, noise=noise), A, 60)


@pytest.mark.parametrize("correlated", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_what_is_told_is_what_the_whole_spectrum_says(correlated, seed):
    """The fault that this would find: eigenvalues that have not converged look like noise."""
    n, d, k = 100, 300, 6
    A = scatter(n, d, tuple(np.random.default_rng(seed).uniform(2.0, 12.0, 3)), seed=seed, correlated=correlated)
    values, above = counted(A, n, k)
    found = ended(A, k, k + 10, MarchenkoPastur(n - 1, d), seed=seed)
    first = certificate_measurements(found)["certified_components"]
    if found.above_edge:
        assert found.above_edge == first == min(above, largest_gap(values, k)[0]) < k
    angle = principal_angles(found.pairs.vectors[:, :first], np.linalg.eigh(A)[1][:, ::-1][:, :first]).max(initial=0.0)
    assert angle <= certificate_measurements(found)["certified_angle_degrees"] <= 1e-3


def test_the_iteration_reaches_all_components():
    A = scatter(300, 600, (12.0, 9.0), seed=3)
    early, whole = (ended(A, 6, 16, noise, tolerance=1e-6) for noise in (MarchenkoPastur(299, 600), None))
    assert early.product_count < whole.product_count
    assert (early.above_edge, whole.above_edge) == (2, 0)
    assert early.certificate == 90.0 > whole.certificate
    for width in (1, 2):
        found = ended(scatter(60, 300, (20.0, 15.0, 12.0), seed=1), 6, width, MarchenkoPastur(59, 300))
        assert found.above_edge == 0  # what hides could stand out too, and before that is settled all are certified
        assert found.certificate <= 1e-3
        assert found.products.Q.shape[1] > 30  # of 59 directions that rows have


def test_notes_say_what_ended_an_iteration():
    """What lies between two cuts turns by both."""
    assert describe_cuts([(1, 1e-7), (2, 2e-7), (3, 1e-8)]) == "1 to 3 each, to 3e-07 degrees"
    cuts = [(1, 1e-7), (4, 1e-7), (5, 1e-7), (7, 3e-7)]
    assert describe_cuts(cuts) == "1, 5 each, 2 to 4 and 6 to 7 as subspaces, to 4e-07 degrees"
    assert describe_cuts([(3, 0.5)]) == "1 to 3 as a subspace, to 0.5 degrees"
    assert describe_cuts([(1, 0.25), (2, 0.25), (4, 0.125)]) == "1 to 2 each, 3 to 4 as a subspace, to 0.5 degrees"
    for k, rest in ((4, "component 4 lies"), (5, "components 4 to 5 lie")):
        ended_by_noise = SimpleNamespace(converged=False, above_edge=3, k=k, cuts=[(3, 1e-7)])
        told = f"3 of {k} components certified: 1 to 3 as a subspace, to 1e-07 degrees; {rest} in the noise"
        assert shortfall_notes(ended_by_noise, "") == [told]
    by_all = SimpleNamespace(converged=False, above_edge=0, precision_limited=False, accelerated=True, cuts=[], k=4)
    vars(by_all).update(determined_count=3, products=SimpleNamespace(room=0), certificate=0.5, tolerance=1e-6)
    told = "an angle of 0.5 degrees at most, of the first 3 components; wanted 1e-06 degrees"
    assert shortfall_notes(by_all, "") == [f"stopped after asking for all directions with {told}"]


def sketch_of(A, rank):
    """Return the best float32 factor of a scatter, and half of what follows assumed elsewhere."""
    values, vectors = np.linalg.eigh(A)
    rows = (vectors[:, -rank:] * np.sqrt(values[-rank:])).T
    head = Head(10, np.zeros(len(A)), np.zeros(len(A)))
    factor = Factor(head, rows, float(np.trace(A)), values[-rank - 1]).with_floor()
    return RefinedSketch(replace(factor, rows=factor.rows.astype(np.float32).astype(float)))


def matrix(d):
    return with_spectrum(1 / np.arange(1, d + 1) ** 2.0)


@pytest.mark.parametrize("d", [60, 120])  # through the matrix itself, and through the span of few rows
def test_a_refined_sketch_agrees_with_all_products(d):
    A, basis = matrix(d)
    refined = sketch_of(A, 12)
    for step in range(4):
        block, ritz = refined.next_block(15), refined.products.ritz() if step else None
        if step == 3:
            refined.renew(ritz, A @ ritz.vectors[:, :5])
        else:
            refined.products.add(block, A @ block)
        # On the span of the known products the refined sketch is the matrix.
        Q, every = refined.products.Q, refined.leading(d)
        M = every.vectors * every.values @ every.vectors.T
        np.testing.assert_allclose(M @ Q, A @ Q, atol=1e-12)
        corrected = correct_on_block(refined.product(np.eye(d)), Q, A @ Q - refined.product(Q))
        np.testing.assert_allclose(refined.leading(5).values, np.linalg.eigvalsh(corrected)[:-6:-1], rtol=1e-10)
    assert principal_angles(refined.leading(5).vectors, basis[:, :5]).max() < 1e-6


def test_sketches_err_by_what_they_say():
    """lambda_max(P M_0 P) + the error of M_0, in closed form on a diagonal matrix."""
    rows = np.diag([3.0, 2.0, 1.0])[:, [0, 1, 2, 2, 2]] * [1, 1, 1, 0, 0]
    sketch = RefinedSketch(Factor(Head(9, np.zeros(5), np.zeros(5)), rows, 14.5, 0.5, 0.25))
    assert sketch.error == pytest.approx(0.25, rel=1e-4)
    sketch.products.add(np.eye(5)[:, :1], 9.25 * np.eye(5)[:, :1])
    assert sketch.outside_bound == pytest.approx(2.0**2 + 0.25 + sketch.error)
    sketch.products.add(np.eye(5)[:, 1:3], np.eye(5)[:, 1:3] * [4.25, 1.25])
    assert sketch.outside_bound == pytest.approx(0.25 + sketch.error)
    for size in (0.0, 1e-40):
        assert RefinedSketch(Factor(Head(9, np.zeros(4), np.zeros(4)), np.full((2, 4), size), 1e-92)).error > 1e-92
    # What an answer differs from the Ritz pairs counts in its certificate.
    A, _ = matrix(40)
    found = BlockIteration(sketch := sketch_of(A, 3), 5, width=8, trace=float(np.trace(A)))
    bounds, start = AngleBounds(5, float(np.trace(A)), accelerated=True, sketch=sketch), FirstBlock(found.block)
    for _ in range(3):
        found.add(found.block, A @ found.block)
    bounds.update(found.products, found.ritz, start, found.product_count)
    apart = principal_angles(found.pairs.vectors, found.ritz.vectors[:, :5]).max()
    assert apart > 1
    assert found.certificate == pytest.approx(bounds.leading_bound()[0] + apart)


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
    assert degrees == pytest.approx(np.degrees(np.arcsin(np.hypot(beside, (0.01 + 0.02 * beside) / to_rest))), rel=1e-9)
    # An error of 0.1, of 0.005 and 0.01 on what the block has of the first vectors and the next, 0.3 and 0.2 beside it.
    norms = refine.CorrectionErrors(0.1, 0.01, 0.005, 0.3, 0.2)
    found = [norms.norm_first, norms.norm_next, norms.inner_first, norms.inner_next, norms.cross_norm]
    np.testing.assert_allclose(found, [0.035, 0.03, 0.017, 0.018, 0.015])
    pairs = leading_eigenpairs(np.diag([3.0, 2.0, 2.0, 1.0]), 3)
    assert corrected_angle_bound(pairs, 2, 1e-9, 1e-9, None)[0] == 90.0
    values = SPECTRUM.copy()
    for end in (K, WIDTH):
        values[K : end + 1] = values[K - 1]
        assert Corrections(values, K, WIDTH, PARTIES, 1e-4).count_needed(1.0, 6) is None


D, K, WIDTH, PARTIES = 120, 4, 14, 5
SPECTRUM = np.sort(np.random.default_rng(5).gamma(0.3, 1.0, D))[::-1] + 1e-3
SPECTRUM[:K] += 2.0


def bounds(values: NDArray, step: float, most: int, seed: int) -> list[float]:
    """Correct parties' scatters with rounding errors by the method's own update, and hold the truth against bounds."""
    noise = np.triu(np.random.default_rng(seed).uniform(-step / 2, step / 2, (PARTIES, D, D)))
    (A, basis), missing, block, told = with_spectrum(values), noise + np.triu(noise, 1).mT, None, []
    approximate = A - missing.sum(axis=0)
    for number in range(most + 1):
        pairs = leading_eigenpairs(np.asfortranarray(approximate), WIDTH)
        wrong = np.linalg.norm(missing, 2, axis=(1, 2)).sum()
        on_block = wrong if block is None else np.linalg.norm(missing @ block, 2, axis=(1, 2)).sum()
        bound, value_error = corrected_angle_bound(pairs, K, wrong, on_block, block)
        assert principal_angles(pairs.vectors[:, :K], basis[:, :K]).max() <= bound
        assert np.abs(pairs.values[:K] - values[:K]).max() <= value_error + wrong * (bound == 90)
        block = polar_factor(encode_block(pairs.vectors, refine.block_bits(number))[1])
        said = np.array([encode_block(part @ block, refine.CORRECTION_BITS)[1] for part in missing])
        approximate = correct_on_block(approximate, block, said.sum(axis=0))
        missing = np.array([correct_on_block(part, block, -one) for part, one in zip(missing, said, strict=True)])
        told.append(bound)
    return told


@pytest.mark.parametrize("gap", [0.3, 0.01])
@pytest.mark.parametrize("step", [1e-4, 1e-6])
def test_the_bound_of_a_corrected_matrix_holds(gap, step):
    values = np.array([9.0, 7.0, 5.0, 3.0, 3.0 - gap, 2.5, *np.linspace(1.0, 0.5, D - 6)])
    found = [bounds(values, step, 7, seed) for seed in range(4)]
    assert max(told[-1] for told in found) < 1e-6 < min(told[0] for told in found)


@pytest.mark.parametrize("step", [1e-4, 1e-3, 2e-3])
def test_a_run_needs_as_many_as_are_forecast(step):
    for tolerance, count in ((1e-6, 5), (1.001e-6, 4)):
        assert Corrections(SPECTRUM, K, WIDTH, PARTIES, 1e-3).count_needed(tolerance, 9) == count
    fell, corrections = np.array(bounds(SPECTRUM, step, 6, 1)), Corrections(SPECTRUM, K, WIDTH, PARTIES, step)
    for tolerance in (10.0, 0.5, 0.02, 1e-4):
        assert 0 <= corrections.count_needed(tolerance, 6) - (fell <= tolerance).argmax() <= 1
        assert fell.min() <= tolerance


def test_rounding_and_entropy_of_numbers_that_share_a_scale():
    values = np.random.default_rng(0).standard_normal(20000)
    off = quantise(values, 8, 20000)[1] - values
    assert refine.relative_rounding(8) / 2 < off.std() / values.std() < refine.relative_rounding(8)
    shares = np.unique(np.rint(values / (refine.PEAK_TO_RMS * values.std() / 127)), return_counts=True)[1] / values.size
    assert -(shares * np.log2(shares)).sum() == pytest.approx(refine.entropy_bits(8), abs=0.05)
