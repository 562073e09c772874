"""What is left of a spectrum when the noise is known."""

import numpy as np
import pytest

from fedpca_flwr.maths.moments import pack, unpack
from fedpca_flwr.maths.privacy import clip
from fedpca_flwr.maths.private_scatter import NoisyCentre, denoised, without_noise

D = 300


def symmetric(d, *seed):
    """Normal noise of deviation 1 on the diagonal, as a packed triangle."""
    noise = np.random.default_rng(seed).standard_normal((d, d))
    return pack((noise + noise.T) / 2)


def planted(*values, width=D):
    """A packed scatter with these eigenvalues on the first ``width`` features, and its vectors."""
    basis, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((width, len(values))))
    vectors = np.vstack([basis, np.zeros((D - width, len(values)))])
    return pack((vectors * values) @ vectors.T), vectors


def test_eigenvalues_lose_what_the_noise_adds_and_those_above_it_are_counted():
    edge = np.sqrt(D / 2)
    truth = np.array([6.0, 4.0, 2.0]) * edge
    scatter, _ = planted(*truth)
    plain = denoised(scatter, D, 3, 0.0)
    np.testing.assert_allclose(plain.pairs.values, truth, rtol=1e-10)
    noisy = denoised(scatter + symmetric(D, 3), D, 3, 1.0)
    np.testing.assert_allclose(noisy.pairs.values, truth, rtol=0.1)
    biased = truth + edge**2 / truth
    assert biased[-1] > 1.2 * truth[-1]
    scatter, _ = planted(6 * edge, 3 * edge, 0.3 * edge)
    assert denoised(scatter + symmetric(D, 4), D, 5, 1.0).detectable == 2
    theta = np.linspace(5, -1, 601)
    values = without_noise(theta, 1.0)
    assert (values >= 0).all()
    assert (np.diff(values) <= 0).all()


def test_noise_alone_shows_no_component():
    """Also where the noise chooses which features stay; 2 of 200 may be above the 99 % level, 8 are not chance."""
    d = 20
    found = [denoised(symmetric(d, 7, i), d, 2, 1.0).detectable for i in range(200)]
    assert sum(count > 0 for count in found) < 8


@pytest.mark.parametrize("times", [0.5, 1.0, 1.5, 4.0])
def test_what_the_centre_adds_is_no_component(times):
    """An eigenvalue of known size beside the noise, around the edge at which it shows; and one that it does not give.

    2 of 200 may be above the 99 % level, 8 are not chance.
    """
    d, edge = 20, np.sqrt(10)
    excess = times * edge
    spike = pack(np.diag([excess, *np.zeros(d - 1)]))
    alarms = [denoised(spike + symmetric(d, 8, i), d, 2, 1.0, excess=excess).detectable for i in range(200)]
    assert sum(count > 0 for count in alarms) < 8
    more = pack(np.diag([2 * excess + 3 * edge, *np.zeros(d - 1)])) + symmetric(d, 9)
    assert denoised(more, d, 2, 1.0, excess=excess).detectable == 1


@pytest.mark.parametrize("of_rows", [0.0, 3.0])
@pytest.mark.parametrize("length", [0.0, 1.0, 2.0])
def test_a_noisy_centre_is_as_far_off_as_it_says(length, of_rows):
    """And what it shows of rows without variance is no more than it says: about it, and by its square."""
    d, n, bound, rng = 6, 40, 2.0, np.random.default_rng(3)
    mean = np.array([length, *np.zeros(d - 1)])
    missed = np.zeros(3)
    for _ in range(500):
        told = n + round(of_rows * rng.standard_normal())
        value = clip((n * mean + 2.0 * rng.standard_normal(d))[None] / told, bound)[0]
        centre = NoisyCentre(value, told, bound, of_rows=of_rows, of_sum=2.0)
        off = mean - value
        left = np.linalg.eigvalsh(n * np.outer(mean, mean) - told * np.outer(value, value))[-1]
        seen = off @ off, n * off @ off, left
        missed += np.greater(seen, [centre.radius**2, centre.seen_about(10.0), centre.seen_by_subtraction()])
    assert (missed <= 10).all()  # 5 are one in a hundred


def test_features_without_signal_are_left_out_where_the_components_come_nearer():
    """Beside the eigenvectors of the whole matrix."""
    scatter, vectors = planted(480.0, 400.0, 320.0, width=30)
    noisy = scatter + symmetric(D, 5)
    found = denoised(noisy, D, 3, 1.0)
    whole = np.linalg.eigh(unpack(noisy, D))[1][:, -3:]

    def lost(estimated):
        return 3 - np.linalg.norm(vectors.T @ estimated) ** 2

    assert found.kept < D / 3
    assert lost(found.pairs.vectors) < lost(whole) / 2


def test_which_features_stay():
    """Each has less than its own noise, and all of them a component."""
    scatter, vectors = planted(60.0)
    found = denoised(scatter + symmetric(D, 5), D, 1, 1.0)
    assert found.kept == D
    assert abs(vectors[:, 0] @ found.pairs.vectors[:, 0]) > 0.95
    # As rows that are far off make one: beside it, twenty components of few features.
    scatter, vectors = planted(*[25.0] * 20, width=40)
    everywhere = pack(np.full((D, D), 300.0 / D))
    found = denoised(scatter + everywhere + symmetric(D, 5), D, 21, 1.0)
    assert found.kept < D / 2
    assert np.linalg.norm(vectors.T @ found.pairs.vectors) ** 2 > 17
    found = denoised(-np.abs(symmetric(D, 6)), D, 7, 1.0)
    assert found.kept == 7
    np.testing.assert_allclose(found.pairs.vectors.T @ found.pairs.vectors, np.eye(7), atol=1e-12)
    assert (found.pairs.values >= 0).all()
