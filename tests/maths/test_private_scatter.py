"""Directions, lengths and shells of rows; and what a server makes of noisy numbers: centres, spectra and intervals."""

import numpy as np
import pytest

from fedpca_flwr.maths.eigen import Eigenpairs
from fedpca_flwr.maths.moments import pack, unpack
from fedpca_flwr.maths.rows import row_lengths
from fedpca_flwr.strategies.dp_pca import private_scatter as module
from fedpca_flwr.strategies.dp_pca import shells as shell_module
from fedpca_flwr.strategies.dp_pca.integer_sums import clip_rows
from fedpca_flwr.strategies.dp_pca.private_scatter import MIN_EXPONENT, NoisyCentre, denoise, move_centre, row_reach
from fedpca_flwr.strategies.dp_pca.shells import choose_shells, combine_shells, single_shell, variance_intervals
from tests.families import rows


@pytest.mark.parametrize("size", [5e-324, 1e-300, 1e-5, 1.0, 1e160, 1e307])
def test_lengths_and_directions_are_those_of_rows_of_any_size(size):
    data = np.array([[3.0, 4.0], [0.0, -1.0], [0.0, 0.0]]) * size
    np.testing.assert_allclose(row_lengths(data), np.array([5.0, 1.0, 0.0]) * size, rtol=1e-12)
    np.testing.assert_allclose(module.row_directions(data), [[0.6, 0.8], [0.0, -1.0], [0.0, 0.0]], rtol=1e-12)


def counts(numbers, *, noise=0.0, seed=0):
    """Numbers of rows by octave: ``{3: 50}`` has fifty at distances from 4 to 8; with noise of some deviation."""
    told = noise * np.random.default_rng(seed).standard_normal(module.OCTAVES)
    told[np.array(list(numbers), dtype=int) - MIN_EXPONENT] += list(numbers.values())
    return told


def test_rows_and_scores_are_within_their_bounds():
    octave = {1.0: 1, 1.99: 1, 2.0: 2, 0.5: 0, 0.0: MIN_EXPONENT, 1e-200: MIN_EXPONENT, 1e200: module.MAX_EXPONENT}
    cases = [*(([length, 0.0], exponent) for length, exponent in octave.items()), ([1.7e308] * 2, module.MAX_EXPONENT)]
    with np.errstate(over="ignore"):
        for row, exponent in cases:
            np.testing.assert_array_equal(module.octave_counts(np.array([row])), counts({exponent: 1}))
    data, basis = rows(50, 6), np.linalg.qr(rows(6, 6))[0][:2]
    found = module.bounded_scores(data, basis, 1.5)
    np.testing.assert_allclose(row_lengths(found), np.minimum(row_lengths(data), 1.5), rtol=1e-12)
    np.testing.assert_allclose(found[:, :2], clip_rows(data, 1.5) @ basis.T, rtol=1e-9, atol=1e-12)
    for numbers, bound in (({3: 5000, 4: 900, 300: 650}, 16.0), ({3: 5000, 4: 900}, 16.0), ({3: 6000}, 8.0)):
        assert row_reach(counts(numbers, noise=20.0), 20.0) == (bound, True)
    # Of means 8 times as much noise would be a twelfth of the rows, of squares 64 times as much.
    ways = [{}, {"noise": 0.01}, {"noise": 10.0}, {"noise": 4.0, "power": 2}]
    assert [row_reach(counts({2: 900, 3: 60, 5: 40}), 1.0, **way).bound for way in ways] == [4.0, 32.0, 8.0, 8.0]
    assert row_reach(counts({2: 900, 3: 60, 300: 40}), 1.0, noise=0.01).bound <= 8.0
    assert row_reach(counts({3: 4}), 1.0) == (8.0, False)
    assert module.assign_shells(np.array([3.9, 4.0]), np.array([[0.0, 4.0, 0.0], [4.0, 8.0, 0.0]])).tolist() == [0, 1]
    # Lengths of 4 to 8 have a mean of 4 / ln 2 where their logarithms are even, a mean square of 24 / ln 2.
    excess = [module.excess_beyond(counts({2: 10, 3: 5}), 2 - MIN_EXPONENT, power) for power in (1, 2)]
    np.testing.assert_allclose(excess, [5 * (1 / np.log(2) - 1), 5 * (1.5 / np.log(2) - 1)], rtol=1e-10)


def test_a_noisy_centre_is_off_by_its_noise_and_moves_beyond_it_only():
    """Take a step of length 5 with noise of 3: 16 / 25 of the step remain, and the rest is uncertainty."""
    step = NoisyCentre(np.array([3.0, 4.0]), 2, 100.0, 0.0, 3 * 2 / np.sqrt(2))
    centre, radius = move_centre(np.ones(2), step)
    np.testing.assert_allclose(centre, 1 + 0.64 * step.value)
    assert radius == pytest.approx(step.radius + 0.36 * 5)
    # What noise explains stands out by nothing.
    assert sum(row_reach(counts({}, noise=20.0, seed=seed), 20.0).stands_out for seed in range(200)) <= 3
    assert not row_reach(counts({3: 60}, noise=20.0), 20.0).stands_out
    step = NoisyCentre(np.array([0.1, 0.0]), 10, 1.0, count_deviation=0.0, sum_deviation=1.0)
    assert (move_centre(np.ones(2), step)[0] == 1.0).all()
    clear = step._replace(value=np.array([100.0, 0.0]), bound=200.0)
    np.testing.assert_allclose(move_centre(np.ones(2), clear)[0], [101.0, 1.0], rtol=1e-5)
    values = module.make_descending(np.array([5.0, 7.0, 1.0, 2.0, -9.0]), 1.0)
    np.testing.assert_allclose(values, [6.0, 6.0, 1.5, 1.5, 0.5])
    # With |c| = 5, d = 4: noise of the sum up to 3 (2 + 3.04), of the number of rows up to 2 * 3.04.
    z, g = 3 * (2 + 3.04), 2 * 3.04
    noisy = NoisyCentre(np.array([3.0, 4.0, 0.0, 0.0]), 100, 10.0, count_deviation=2.0, sum_deviation=3.0)
    off, near = (z + 5 * g) / (100 - g), (z + 5 * g) / 100
    others = [{}, {"bound": 5.0}, {"rows": 5, "bound": 5.0}, {"rows": 5, "bound": 0.1, "count_deviation": 1e9}]
    found = [noisy._replace(**other).radius for other in others]
    np.testing.assert_allclose(found, [off, near, 20 * near, 0.2], rtol=1e-6)
    expected = [100 * off * (5 + off + off / 2) + g * (5 + off) ** 2, 100 * near * (5 + near / 2) + g * 5**2]
    np.testing.assert_allclose([noisy._replace(**other).subtraction_eigenvalue() for other in others[:2]], expected)


def test_shells_add_what_is_above_their_edge():
    """With an edge of 1 and two components a shell has 6 rows at least; rows of 80 times that keep their length."""
    told = counts({0: 3, 1: 40, 3: 400, 4: 5, 7: 4})
    expected = [[0.0, 4.0, 0.0], [4.0, 8.0, 8.0], [8.0, 128.0, 0.0]]
    np.testing.assert_array_equal(choose_shells(told, 0.1, 1.0, 2), expected)
    np.testing.assert_array_equal(choose_shells(told, 0.1, 50.0, 2), single_shell(128.0))
    blurred = [[0.0, 8.0], [8.0, 128.0]]
    np.testing.assert_array_equal(choose_shells(told, 0.1, 1.0, 2, centre_shift=2.0)[:, :2], blurred)
    for shift, last in ((0.0, [4.0, 8.0, 8.0]), (1.9, [0.0, 8.0, 8.0]), (2.1, [0.0, 8.0, 0.0])):
        assert choose_shells(counts({0: 3, 1: 40, 3: 400}), 0.1, 1.0, 2, centre_shift=shift)[-1].tolist() == last
    many = choose_shells(counts(dict.fromkeys(range(12), 1e6)), 1.0, 1.0, 2)
    assert len(many) == shell_module.MAX_SHELLS
    np.testing.assert_array_equal(many[1:, 0], many[:-1, 1])
    np.testing.assert_array_equal(choose_shells(counts({4: 5.0}), 1.0, 1.0, 2), single_shell(16.0))
    # The outer shell holds noise only, which would be sixteen times the inner one's components.
    inner, noise = np.diag([900.0, 500.0, 30.0, 0.0, 0.0, 0.0]), np.diag([0.0, 0.0, 0.0, 0.0, 60.0, 60.0])
    shells = np.array([[0.0, 4.0, 0.0], [4.0, 64.0, 0.0]])
    both = combine_shells(np.array([pack(inner), pack(noise)]), np.array([1000.0, 100.0]), shells, 6, 2, 20.0)
    assert np.abs(both.denoised.pairs.vectors[:2]).sum() > 2 - 1e-3
    squares = np.array([1.0, 1e9])  # which contradict the sums
    low, high = variance_intervals(both, squares, 2.0, deviation=1.0, count_deviation=0.0, cut_bound=0.0).T
    assert ((low <= both.denoised.pairs.values) & (both.denoised.pairs.values <= high)).all()


def test_shortened_rows_lose_little_and_a_bound_grows_where_noise_is_slight():
    """Take squares of lengths from half of an end to the end: with even logarithms, 0.375 / ln 2 of the squared end."""
    told = [{2: 100, 3: 10}, {2: 100, 3: 5}, {2: 100, 3: -5}, {3: 50, 4: 5}]  # of which 6 rows would stand out
    in_next, after_it = np.array([[10, 5 + 2, 0, 50], [2, 0, 0, 7]])  # what follows may hide two deviations of rows
    expected = 16 * (in_next * (1.5 / np.log(2) - 1) + after_it * (6 / np.log(2) - 1))
    found = [shell_module.clipped_squares_bound(counts(numbers), 1.0, 4.0) for numbers in told]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    # Of 1,000 rows 60 are eight times as far: their noise would be 8 times as large, and is to be 50.
    told = counts({2: 900, 3: 40, 5: 60})
    assert row_reach(told, 1.0, noise=6.0) == (32.0, True)
    assert row_reach(told, 1.0, noise=7.0).bound < 32.0
    # 500 rows from 4 to 8 are beyond 4 by 500 (1 / ln 2 - 1) times 4; to 8 the noise would be twice as large.
    told, same = counts({2: 9000, 3: 500}), 500 * (1 / np.log(2) - 1) / np.sqrt(3)
    assert [row_reach(told, 1.0, noise=times * same).bound for times in (0.99, 1.01)] == [8.0, 4.0]


D = 300


def noise(d, *seed):
    """Draw normal noise of deviation 1 on the diagonal, as a packed triangle."""
    drawn = np.random.default_rng(seed).standard_normal((d, d))
    return pack((drawn + drawn.T) / 2)


def planted(*values, width=D):
    """Return a packed scatter with given eigenvalues on the first ``width`` features, and its vectors."""
    basis, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((width, len(values))))
    vectors = np.vstack([basis, np.zeros((D - width, len(values)))])
    return pack((vectors * values) @ vectors.T), vectors


@pytest.mark.parametrize("times", [0.0, 0.5, 1.0, 1.5, 4.0])
def test_noise_alone_and_what_the_centre_adds_show_no_component(times):
    """Take eigenvalues around the edge at which they show beside the noise, and a scatter without any."""
    d, edge = 20, np.sqrt(10)
    spike = pack(np.diag([times * edge, *np.zeros(d - 1)]))
    alarms = [denoise(spike + noise(d, 8, i), d, 2, 1.0, excess=times * edge).detectable for i in range(200)]
    assert sum(count > 0 for count in alarms) < 8
    more = pack(np.diag([2 * times * edge + 3 * edge, *np.zeros(d - 1)])) + noise(d, 9)
    assert denoise(more, d, 2, 1.0, excess=times * edge).detectable == 1


def test_eigenvalues_lose_what_the_noise_adds():
    """Drop features without signal if the components come nearer, compared with the full matrix."""
    scatter, vectors = planted(480.0, 400.0, 320.0, width=30)
    found, whole = denoise(scatter + noise(D, 5), D, 3, 1.0), np.linalg.eigh(unpack(scatter + noise(D, 5), D))[1]
    lost = [3 - np.linalg.norm(vectors.T @ near) ** 2 for near in (found.pairs.vectors, whole[:, -3:])]
    assert found.coordinate_count < D / 3
    assert lost[0] < lost[1] / 2
    # Each has less than its own noise, and all of them a component.
    scatter, vectors = planted(60.0)
    found = denoise(scatter + noise(D, 5), D, 1, 1.0)
    assert found.coordinate_count == D
    assert abs(vectors[:, 0] @ found.pairs.vectors[:, 0]) > 0.95
    # As rows that are far off make one: beside it, twenty components of few features.
    scatter, vectors = planted(*[25.0] * 20, width=40)
    found = denoise(scatter + pack(np.full((D, D), 300.0 / D)) + noise(D, 5), D, 21, 1.0)
    assert found.coordinate_count < D / 2
    assert np.linalg.norm(vectors.T @ found.pairs.vectors) ** 2 > 17
    found = denoise(-np.abs(noise(D, 6)), D, 7, 1.0)
    assert found.coordinate_count == 7
    np.testing.assert_allclose(found.pairs.vectors.T @ found.pairs.vectors, np.eye(7), atol=1e-12)
    assert found.total == pytest.approx(np.abs(found.pairs.values).sum())  # the diagonal's is below zero
    # The noise makes the last eigenvalue larger by a quarter.
    truth = np.array([6.0, 4.0, 2.0]) * np.sqrt(D / 2)
    np.testing.assert_allclose(denoise(planted(*truth)[0] + noise(D, 3), D, 3, 1.0).pairs.values, truth, rtol=0.1)
    assert denoise(planted(*truth)[0], D, 1, 0.0).total == pytest.approx(truth.sum())


def test_what_noise_alone_has_and_what_is_behind_an_eigenvalue():
    """Take 8 features with noise of deviation 3: the edge is 6, and 8^(-2/3) a quarter."""
    assert module.noise_limit(8, 3.0) == pytest.approx(2 * 6 + 2.02 * 6 / 4)
    of_spike = 12 * (1 + 0.25) + 2.02 * 6 / 4 + 2.33 * 3 * np.sqrt(0.75)
    assert (module.noise_limit(8, 3.0, excess=12.0), module.noise_limit(8, 0.0)) == (pytest.approx(of_spike), 0.0)
    behind = module.denoise_eigenvalues(np.array([12 + 3, 12.0, 4.0, -1.0]), 6.0)
    np.testing.assert_allclose(behind, [12.0, 6.0, 2.0, 0.0])
    # Of 2 features the edge is the deviation: 3 + 1 / 3 shows of 3, and 2 + 1 / 2 of 2.
    found = denoise(pack(np.diag([10 / 3, 2.5])), 2, 1, 1.0)
    assert (found.pairs.values[0], found.pairs.following) == (pytest.approx(3.0), pytest.approx(2.0))
    assert (found.total, found.coordinate_count) == (pytest.approx(10 / 3 + 2.5), 2)
    negative = denoise(pack(np.diag([10 / 3, -5.0])), 2, 1, 1.0)
    assert negative.total == negative.pairs.values[0] > 3
    # A noisy vector holds 1 - (edge / spike)^2 of what its own does; one spike counts for so much at most.
    among = module._CoordinateSubset(np.arange(2), Eigenpairs(np.array([10 / 3, 2.5]), np.eye(2), 0.0), 1.0)
    assert among.explained_variance(np.inf) == pytest.approx(3 * (1 - 1 / 9) + 2 * (1 - 1 / 4))
    assert among.explained_variance(2.5) == pytest.approx(2.5 * (1 - 1 / 9) + 2 * (1 - 1 / 4))


def test_shells_weigh_by_distances_and_lose_their_noise_first():
    """Two features with noise of deviation 1 have an edge of 2: an eigenvalue of 10 becomes the root of 96."""
    sums = np.array([pack(np.diag(values)) for values in ([10.0, 1.0], [0.0, 0.0], [0.0, 6.0])])
    shells = np.array([[0.0, 4.0, 0.0], [4.0, 8.0, 0.0], [8.0, 16.0, 16.0]])
    alone, expected = combine_shells(sums[:1], np.array([3.0]), shells[:1], 2, 1, 1.0), denoise(sums[0], 2, 1, 1.0)
    np.testing.assert_array_equal(alone.denoised.pairs.values, expected.pairs.values)
    np.testing.assert_array_equal(alone.noisy, [expected.noisy])
    np.testing.assert_allclose([*alone.traces, *alone.squares, alone.deviation], [11, 16 * 3 / 11, 1])
    three = combine_shells(sums, np.zeros(3), shells, 2, 1, 1.0)
    np.testing.assert_allclose(three.traces, [11, 1, 6])
    np.testing.assert_allclose(three.squares, [0, 64 / 4, 256 * 0.375 / np.log(2)])
    np.testing.assert_allclose(three.denoised.pairs.values, [256 * (np.sqrt(32) + 6e-6)], rtol=1e-12)
    assert (three.denoised.pairs.following, three.denoised.detectable, three.denoised.coordinate_count) == (0, 0, 2)
    both = combine_shells(sums[[0, 2]], np.array([11 / 4, 6.0]), shells[[0, 2]], 2, 2, 1.0)
    np.testing.assert_allclose([*both.squares, *both.noisy.flat], [4, 256 * 0.375 / np.log(2), 10, 1, 6, 0])
    of_both = 256 * (np.sqrt(32) + 6e-6) + 4 * 1e-6, 4 * (np.sqrt(96) + 10e-6)
    np.testing.assert_allclose(both.denoised.pairs.values, of_both)
    assert both.denoised.total == pytest.approx(sum(of_both))


@pytest.mark.parametrize("shells", [1, 2])
def test_intervals_of_variances_include_noise_and_cuts(shells):
    """Take an edge of 2: a component at 8 loses (2 / 8)^2 and mixes by 1 / 8; below the edge everything is lost."""
    found = module.Denoised(Eigenpairs(np.array([130.0, 40.0]), np.eye(8)[:, :2], 0.0), 0.0, 2, 8, np.array([8.0, 1.0]))
    of_all = shell_module.Combined(found, np.array([[8.0, 1.0]] * shells), np.ones(shells), np.ones(shells), 1.0)
    noise_of = {"deviation": 2.0, "count_deviation": 1.515, "cut_bound": 7.0}
    intervals = variance_intervals(of_all, np.array([100.0, 50.0]), 101.0, **noise_of)
    around = 1.645 * 2.5 + 100 * (1 / 16 + 1 / 8), 1.645 * np.hypot(2, 0.75) + 50 * 2
    expected = np.array([[100 - around[0], 130.0 if shells == 2 else 100 + around[0] + 7], [0.0, 50 + around[1] + 7]])
    np.testing.assert_allclose(intervals, expected / 100)
