"""Components that a few rows, and a few parties, cannot move; rows that count less, and quantiles of a grid."""

from functools import cache, partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from scipy.stats import chi2, median_abs_deviation, norm

from fedpca_flwr.errors import DataError
from fedpca_flwr.maths.eigen import principal_angles as angles_between
from fedpca_flwr.maths.moments import pack
from fedpca_flwr.model.reference import principal_angles
from fedpca_flwr.strategies.robust import party as party_module
from fedpca_flwr.strategies.robust import spatial_signs as signs
from fedpca_flwr.strategies.robust.party import RobustClient, direction_count
from tests.families import cut
from tests.harness import finish, fit, heard, server_of, tamper, tamper_arrays
from tests.hostile import HostileSession
from tests.refusals import refused

SPREAD = np.arange(8.0, 0.0, -1.0)
CLEAN = np.random.default_rng(4).standard_normal((900, 8)) * SPREAD + 5
AXES = np.eye(8)
LOCAL_ROWS = CLEAN[:40]
QUARTILE, spread_of = norm.ppf(0.75), partial(median_abs_deviation, scale="normal")
FAR = [(0.2, 1e6), (0.2, -1e6 * AXES[7]), (0.2, 60 * AXES[5]), (0.3, 1e6)]
CENTRE = [LOCAL_ROWS[7], np.empty(0), np.asarray(1.0), np.asarray(900)]


def parties(rows):
    return cut(rows, 500, 300, 100)


def off(model):
    return float(angles_between(model.components_.T, AXES[:, : model.n_components_]).max())


def spoiled(share, where):
    rows = CLEAN.copy()
    rows[np.random.default_rng(0).choice(900, round(900 * share), replace=False)] = where
    return rows


@cache
def of_clean_rows():
    return fit("robust", parties(CLEAN), n_components=3)


@pytest.mark.parametrize(("share", "where"), FAR, ids=["all", "one feature", "nearer", "more than a quarter"])
def test_rows_that_are_far_off_do_not_move_the_components(share, where):
    clean, dirty = of_clean_rows(), fit("robust", parties(spoiled(share, where)), n_components=3)
    assert [note[:3] for note in dirty.log["notes"] if "too far off" in note] == ["30%"] * (share > 0.25)
    if share < 0.25:
        assert off(dirty) <= 2 * off(clean)
        np.testing.assert_allclose(dirty.explained_variance_, clean.explained_variance_, rtol=0.25)


@pytest.mark.parametrize(("share", "distance"), [(0.1, 4), (0.1, 6), (0.1, 8), (0.2, 8)])
def test_rows_within_reach_turn_nothing(share, distance):
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((600, 8)) * np.sqrt([9, 5, 3, 1, 1, 1, 1, 1])
    outliers = rng.choice(600, int(share * 600), replace=False)
    rows[outliers] = 0.3 * rng.standard_normal((outliers.size, 8))
    rows[outliers, 7] += rng.choice([-distance, distance], outliers.size)
    model = fit("robust", np.array_split(rows, 4), n_components=2)
    assert off(model) < 12
    if distance > 4:
        assert model.log["measured"]["rows_far_off"] == pytest.approx(share, abs=0.02)


def test_coinciding_rows_are_refused():
    rng = np.random.default_rng(0)
    rare = rng.poisson([0.05, 0.08, 0.03, 0.1, 0.02], (400, 5)).astype(float)
    for rows in (rare, np.where(rng.random((400, 1)) < 0.6, 3.0, rng.standard_normal((400, 5)))):
        with refused(DataError, "p-cov"):
            fit("robust", [rows[:200], rows[200:]], n_components=2)
    rows = np.hstack([rng.standard_normal((400, 3)) * [3, 2, 1], rare[:, [0, 3]]])
    model = fit("robust", [rows[:200], rows[200:]], n_components=5)
    assert "components 4, 5" in " ".join(model.log["notes"])
    np.testing.assert_allclose(model.explained_variance_[:3], [9, 4, 1], rtol=0.3)


def by_signs(rows):
    """Eigenvalues and eigenvectors, in rows, of the sign covariance about zero."""
    directions = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    values, vectors = np.linalg.eigh(directions.T @ directions)
    return values[::-1], vectors[:, ::-1].T


@pytest.mark.engine
def test_clean_rows_cost_little_and_heavy_tails_have_any_unit():
    rng = np.random.default_rng(1)
    rows = rng.standard_cauchy((1500, 1)) * rng.standard_normal((1500, 8)) * [4, 3, 2.2, 1.5, 1.2, 1, 1, 1]
    model = fit("robust", np.array_split(rows, 3), n_components=3)
    for others, degrees in (([X * 3e-5 for X in np.array_split(rows, 3)], 1e-6), (np.array_split(rows, 12), 2)):
        assert principal_angles(model, fit("robust", others, n_components=3)).max < degrees
    rows = CLEAN[:600].copy()
    rows[0] = 1e4
    dirty, clean = (fit("robust", cut(X, 300, 300), n_components=2) for X in (rows, CLEAN[:600]))
    assert principal_angles(dirty, clean).max < 2
    model, plain = of_clean_rows(), fit("p-cov", parties(CLEAN), n_components=3)
    assert principal_angles(model, plain).max < 4
    np.testing.assert_allclose(model.explained_variance_, plain.explained_variance_, rtol=0.15)
    assert model.total_variance == pytest.approx(plain.total_variance, rel=0.05)
    assert fit("robust", parties(CLEAN), n_components=8).explained_variance_ratio_.sum() == pytest.approx(1, rel=1e-12)


def pooled_program(rows):
    n, d = rows.shape
    centre = np.median(rows, axis=0)
    for _ in range(300):
        inverse = 1 / np.linalg.norm(rows - centre, axis=1)
        centre = inverse @ rows / inverse.sum()
    vectors = by_signs(rows - centre)[1]
    for _ in range(2):
        scores = (rows - centre) @ vectors.T
        whitened = (scores - np.median(scores, axis=0)) / spread_of(scores)
        values, turned = by_signs(whitened)
        along = whitened @ turned.T - np.median(whitened @ turned.T, axis=0)
        strength = np.clip(2 * ((d * values / n - 1) / ((1 + np.sqrt(d / n)) ** 2 - 1)) - 1.5, 0, 1)
        counted = np.clip(3.5 - (strength * np.abs(along) / spread_of(along)).max(axis=1), 0, 1)
        distance = np.linalg.norm(whitened, axis=1)
        first, middle = np.quantile(distance ** (2 / 3), [0.25, 0.5])
        inner, outer = (middle + np.array([1.96, 3.29]) * (middle - first) / QUARTILE) ** 1.5
        counted = np.minimum(counted, np.clip((outer - distance) / (outer - inner), 0, 1))
        centre = counted @ rows / counted.sum()
        vectors = np.linalg.eigh((rows - centre).T * counted @ (rows - centre))[1][:, ::-1].T
    return vectors[np.argsort(-spread_of((rows - centre)[counted > 0] @ vectors.T))]


@pytest.mark.engine
def test_secure_sums_units_and_one_party_change_nothing():
    clear = of_clean_rows()
    masked = fit("robust", parties(CLEAN), n_components=3, secure_aggregation=True, bound=1e9)
    assert principal_angles(clear, masked).max < 1e-8
    np.testing.assert_allclose(masked.explained_variance_, clear.explained_variance_, rtol=1e-9)
    tiny = np.column_stack([CLEAN[:300], CLEAN[:300, 0] * 1e-30])  # less than a sum can hold
    scaled = fit("robust scale=true", np.array_split(tiny, 3), n_components=2, secure_aggregation=True, bound=1e9)
    assert scaled.scale_[-1] == 1
    units = np.array([1e3, 1, 1e-3, 1, 1, 7, 1, 1])
    rows = CLEAN.copy()
    rows[:, 2] = rows[:, 2] > 9  # most are the same, whose median absolute deviation is zero
    plain, other = (fit("robust scale=true", parties(X), n_components=3) for X in (rows, rows * units))
    assert principal_angles(plain, other).max < 1e-6
    sizes = [np.abs(part - np.median(part, axis=0)) for part in parties(rows)]
    deviations = [np.where(np.median(part, axis=0) > 0, np.median(part, axis=0), part.mean(axis=0)) for part in sizes]
    np.testing.assert_allclose(plain.scale_, 900 / (np.array([500, 300, 100]) @ (1 / np.array(deviations))))
    np.testing.assert_allclose(other.scale_, plain.scale_ * units)
    rows = spoiled(0.1, 1e4)
    model = fit("robust", parties(rows), n_components=3)
    assert angles_between(model.components_.T, pooled_program(rows)[:3].T).max() < 1
    assert principal_angles(model, fit("robust", [rows], n_components=3)).max < 0.5


def test_the_sites_flag_the_rows_that_are_odd(tmp_path):
    rows, files = CLEAN.copy(), [tmp_path / f"{party}.csv" for party in range(3)]
    rows[3] = 1e6
    model = fit("robust", parties(rows), n_components=3, scores=files)
    written = [np.loadtxt(file.with_stem(f"{file.stem}-outliers"), str, delimiter=",", skiprows=1) for file in files]
    _, t2_limit, _, spe_limit, flags = np.vstack(written)[:, :5].astype(float).T
    assert flags[3]
    assert 0.005 < flags.mean() < 0.05  # one in a hundred by each limit
    centred = np.delete(rows, 3, axis=0) - model.mean_
    centred -= centred @ model.components_.T @ model.components_
    np.testing.assert_allclose(t2_limit, chi2.ppf(0.99, 3))
    np.testing.assert_allclose(spe_limit, np.quantile((centred**2).sum(axis=1), 0.99), rtol=0.15)


@pytest.mark.engine
def test_a_lying_party_has_no_part():
    five = np.array_split(CLEAN, 5)
    honest = fit("robust robust-parties=true", five, n_components=3)
    mixed = AXES[2] / 6 + AXES[7]  # of which no rows have such a sum of products
    for robust in (True, False):
        server = server_of("robust", five, n_components=3, robust_parties=robust)
        tamper_arrays(server, 4, lambda a: [*a[:-1], 1e6 * pack(np.outer(mixed, mixed))], "nearer_survivors")
        model = finish(server)
        assert (off(model) <= 2 * off(honest)) is robust
        assert any("client 4" in note for note in model.log["notes"]) is robust
    five[4] = five[4] + 60 * AXES[7]
    server = server_of("robust", five, n_components=3, robust_parties=True)
    tamper_arrays(server, 4, lambda a: [(10_000 * array).astype(array.dtype) for array in a])
    tamper(server, 4, lambda reply: setattr(reply, "num_examples", 10_000 * reply.num_examples) or reply)
    model = finish(server)
    assert abs(model.mean_[7] - 5) < 2
    assert off(model) < 10


def with_replies(parts, **replies):
    """Return a server with robust-parties, whose parties reply in a phase with these arrays in place of the last."""
    server = server_of("robust", parts, n_components=1, robust_parties=True, max_rounds=1)
    for phase, of_parties in replies.items():
        for party, last in enumerate(of_parties):
            tamper_arrays(server, party, lambda arrays, last=last: [*arrays[: -len(last)], *last], phase)
    return server


def test_unlike_parties_are_left_out_or_refused():
    """Each differs by an exact share of the size of the median matrix, diag(1/2, 1/2), whatever the traces."""
    traces, offsets = np.arange(1.0, 8)[:, None, None], np.array([-2.9, -1, -1, 0, 1, 1, 3.1])[:, None, None]
    near, far = (traces * (pack(np.eye(2)) + share * offsets * [1, 0, -1]) for share in (0.29, 0.31))
    parts = [CLEAN[:40, :2]] * 7
    server = with_replies(parts, signs=near)
    exchanged, model = heard(server, 0), finish(server)
    assert server.strategy.excluded_parties == ["client 6"]
    (_, _, unit, _, vectors, units), *_ = (exchange.asked for exchange in exchanged if exchange.phase == "scores")
    scatter = vectors.T * (units / unit) ** 2 @ vectors
    np.testing.assert_allclose(scatter, np.diag([0.5, 0.5]) - 0.29 * 2.9 / 12 * np.diag([1, -1]), atol=1e-7)
    expected = {"unlike_parties": 0.29, "most_unlike_party": 0.29 * 3.1}
    assert {name: model.log["measured"][name] for name in expected} == pytest.approx(expected, abs=1e-6)
    with refused(DataError, "31%", "30%"):
        finish(with_replies(parts, signs=far))
    unlike = [CLEAN[:300], CLEAN[300:600, ::-1], np.roll(CLEAN[600:], 3, axis=1)]
    with refused(DataError, "'robust_parties'", "30%"):
        fit("robust robust-parties=true", unlike, n_components=3)
    # They may be others in each step, which leave none.
    phases, scatters = ("signs", "shape", "survivors"), np.eye(3)[[0, 0, 2], None]
    others = {phase: np.roll(scatters, place, axis=0) for place, phase in enumerate(phases)}
    with refused(DataError, "'robust-parties'", 3):
        finish(with_replies(parts[:3], **others))


def test_a_party_counts_at_most_twice_and_only_where_alike():
    told = (8.0, [4.0, 0], [2.0, 2]), (8.0, [8.0, 0], [1, 1]), (4.0, [2.0, 4], [3, 3])
    replies = [(np.array(weight), np.array(shift), pack(np.diag(scatter))) for weight, shift, scatter in told]
    server = with_replies(cut(CLEAN[120:250, :2], 10, 20, 100), nearer_survivors=replies)
    exchanged, model = [heard(server, party) for party in range(3)], finish(server)
    assert not server.strategy.excluded_parties
    asked = {exchange.phase: exchange.asked for exchange in exchanged[0]}
    first, second, third = (own[0].said[2] for own in exchanged)
    np.testing.assert_allclose(asked["median"][0], (first + second + 0.4 * third) / (10 + 20 + 40))
    assert (asked["median"][3], model.log["measured"]["rows_far_off"]) == (130, pytest.approx(1 - 20 / 130))
    centre, _, _, _, vectors, middles, spreads, *_ = asked["nearer_survivors"]
    mean, axes = np.array([0.5, 0]), spreads[:, None] * vectors  # the median of (1/2, 0), (1, 0) and (1/2, 1)
    np.testing.assert_allclose(model.mean_, centre + middles @ vectors + mean @ axes)
    *_, turned, units = asked["variances"]
    np.testing.assert_allclose(turned.T * units**2 @ turned, axes.T @ (np.eye(2) - np.outer(mean, mean)) @ axes)


@pytest.mark.parametrize(
    ("k", "most", "deviations", "sizes", "close"),
    [
        (2, 3, [30, 3, 2], [1, 3, 2], ""),  # that which lies close together is not among the first two
        (2, 3, [30, 20, 2], [1, 4, 2], "components 1,"),
        (1, 2, [30, 3, 2], [2, 3], ""),  # of three directions two are known: the errors tell of the others
        (2, 2, [30, 3], [3, 2], "components 1,"),
    ],
)
def test_the_solution_is_in_the_order_of_its_variances(k, most, deviations, sizes, close, monkeypatch):
    """Along some directions half of the rows lie closer together than their deviation says."""
    monkeypatch.setattr(party_module, "MAX_DIRECTIONS", most)
    errors, features = signs.tally(np.linspace(0.5, 2.0, 100)[:, None])[0], len(deviations)
    tallies = signs.tally(np.outer(norm.ppf(np.arange(0.005, 1, 0.01)), np.divide(sizes, deviations[:most])))
    server: Any = server_of("robust", [CLEAN[:100, :features] / SPREAD[:features] * deviations], n_components=k)
    tamper_arrays(server, 0, lambda arrays: [arrays[0], 1.0 * tallies], "variances")
    tamper_arrays(server, 0, lambda arrays: [arrays[0], 1.0 * errors], "errors")
    exchanged, server.strategy.build_model = heard(server, 0), Mock(wraps=server.strategy.build_model)
    finish(server)
    (solution,) = server.strategy.build_model.call_args.args
    ((*_, vectors, units),) = (exchange.asked for exchange in exchanged if exchange.phase == "variances")
    order = np.argsort(-(variances := signs.variances_from_counts(units, tallies)))
    descending = variances[order]
    remaining = descending[k:].sum()
    if most < features:
        remaining = signs.SquaredErrors.from_counts(errors, np.sqrt(remaining)).mean
    np.testing.assert_allclose(solution.pairs.values, 99 * descending[:k])
    np.testing.assert_array_equal(solution.pairs.vectors.T, vectors[order[:k]])
    assert solution.pairs.following == 99 * np.append(descending, 0.0)[k]
    assert solution.total == pytest.approx(99 * (descending[:k].sum() + remaining))
    assert [close in note for note in solution.notes if "close together" in note] == [True] * bool(close)
    assert (server.strategy.limits[1] > 1e-300) == (k < features)


@pytest.fixture
def session(tmp_path):
    made = HostileSession(tmp_path, LOCAL_ROWS, {"method": "robust", "n-components": 1}, **{"may-show": "scores"})
    made.ask("start", [])
    return made


def upto(session, phase, spread=1.0, first="median"):
    """Ask the questions from a phase on before another along the axes, and return the last reply."""
    scores = [*CENTRE, AXES, np.full(8, spread)]
    shape = [*CENTRE, AXES, np.zeros(8), np.full(8, spread)]
    script = {"median": CENTRE, "signs": CENTRE, "scores": scores, "shape": shape, "shape_scores": [*shape, AXES]}
    names = [*script, phase]
    for name in names[names.index(first) : names.index(phase)]:
        reply, _ = session.ask(name, script[name])
    return reply


def survivors(spread, along, reach):
    """Return the request for survivors: rows count within so many spreads on the first axis, and by their distance."""
    shape = [np.full(8, spread), AXES, 0 * AXES[0], np.where(AXES[0] > 0, along, 1e6)]
    return [*CENTRE, AXES, 0 * AXES[0], *shape, np.asarray(reach)]


def test_a_centre_on_a_row_has_no_weight_but_the_floors(session):
    median = signs.spatial_median(lambda c: signs.sign_sums([LOCAL_ROWS - c], 8, 0.0), LOCAL_ROWS[0])
    floor = signs.distance_floor(np.linalg.norm(LOCAL_ROWS - median, axis=1))
    (_, near, weight), _ = session.ask("median", [*CENTRE[:2], np.asarray(1e-6), CENTRE[3]])
    assert weight / 1e-6 <= 40 / floor * (1 + 1e-9)
    assert np.linalg.norm(near) <= 40


def test_no_edge_of_a_reach_tells_which_row_it_passes(session):
    """A sharp edge around most rows becomes as wide as the site's distances differ."""
    upto(session, "survivors", 10.0)
    distances = np.linalg.norm(LOCAL_ROWS - LOCAL_ROWS[7], axis=1) / 10
    edge = np.sort(distances)[30]
    reply, _ = session.ask("survivors", survivors(10.0, 1e6, [edge, edge * (1 + 1e-9)]))
    gap = np.median(distances) - np.quantile(distances, 0.25)
    assert reply[1] == pytest.approx(np.clip(1 - (distances - edge) / gap, 0, 1).sum(), rel=0.03)


def test_edges_are_a_quarter_of_the_local_spread(session):
    upto(session, "survivors")
    reply, _ = session.ask("survivors", survivors(1.0, 1e-9, [1e6, 2e6]))
    scores = np.abs(LOCAL_ROWS - LOCAL_ROWS[7])
    inside = np.clip(3.5 - scores[:, 0] / (0.25 * spread_of(LOCAL_ROWS[:, 0] - LOCAL_ROWS[7, 0])), 0, 1)
    counted = np.where(scores.max(axis=1) <= 16, inside, 0)
    assert (counted > 0).sum() >= 5
    assert reply[1] == pytest.approx(counted.sum(), rel=0.1)


@pytest.mark.parametrize(("inside", "told"), [(4, 0.0), (5, 1.0)])
def test_few_survivors_are_told_nowhere(inside, told, session):
    """Rows within 16 spreads in each feature count, the farther the less: five have a weight of less than five."""
    scores = LOCAL_ROWS[np.argsort(np.abs(LOCAL_ROWS - LOCAL_ROWS[7]).max(axis=1))] - LOCAL_ROWS[7]
    spread = np.abs(scores[inside - 1 : inside + 1]).max(axis=1).mean() / 16
    upto(session, "survivors", spread)
    reply, near = session.ask("survivors", survivors(spread, 1e6, [1e-9, 100.0]))[0], scores[:inside] / spread
    weights = told * (1 - np.linalg.norm(near, axis=1) / 100)
    expected = 40, weights.sum(), weights @ near, pack(np.asfortranarray(near.T * weights @ near))
    np.testing.assert_allclose(np.hstack(reply), np.hstack(expected))


def test_few_others_are_told_nowhere():
    party = SimpleNamespace(site=SimpleNamespace(node=SimpleNamespace(min_rows=5)))
    party.suppress_small_counts = partial(RobustClient.suppress_small_counts, party)
    parts = [(np.repeat([1.0, 0.0], [20 - outside, outside]), np.ones((20, 1))) for outside in (0, 4, 5)]
    assert [RobustClient.count_survivors(party, [part]).sum() for part in parts] == [20, 20, 15]
    assert [direction_count(*sizes) for sizes in ((100, 5), (300, 5), (300, 250))] == [100, 200, 250]


def test_directions_are_told_once_and_counts_of_the_minimum_only(session):
    _, scores = upto(session, "shape")
    _, shape_scores = upto(session, "survivors", first="shape")
    for counts in (*scores, *shape_scores):
        assert counts.sum() == 40
        assert set(counts[counts > 0] < 5) == {False}
    assert not session.ask("shape", [*CENTRE, np.roll(AXES, 1, axis=0), 0 * AXES[0], np.ones(8)])[0]


@pytest.mark.parametrize("place", [0.0, 1.0])
def test_equal_rows_are_the_median(place):
    rows = np.rint(np.abs(LOCAL_ROWS - 5) > SPREAD)
    rows[5:25] = place  # the search comes ever nearer to it
    median = signs.spatial_median(lambda c: signs.sign_sums([rows - c], 8, signs.MIN_FLOOR), rows.mean(axis=0))
    np.testing.assert_array_equal(signs.snap_to_majority(lambda c: np.split(rows - c, 8), median), rows[5])
    rows[24] += 1e-3  # one less than half
    assert signs.snap_to_majority(lambda c: [rows - c], median) is median
    assert np.isfinite(fit("robust", [rows, CLEAN[:60]], n_components=2).explained_variance_).all()


def test_rows_count_by_their_directions_and_less_far_off():
    """Rows at distances of 1, 2 and 4 from the centre, of which the first is nearer than the floor of 1.5."""
    rows = np.array([[1.0, 0.0], [0.0, 2.0], [4.0, 0.0]])
    found = signs.sign_sums([rows[:1], rows[1:]], 2, 1.5)
    np.testing.assert_allclose([found.signs, found.step * (1 / 1.5 + 0.75)], [[1 / 1.5 + 1, 1]] * 2)
    assert (found.weight, found.rows) == (pytest.approx(1 / 1.5 + 0.5 + 0.25), 3)
    assert found.mean_sign_length == pytest.approx(np.hypot(1 / 1.5 + 1, 1) / 3)
    np.testing.assert_allclose(signs.sign_scatter([rows[:2], rows[2:]], 2, 1.5), np.diag([1 / 1.5**2 + 1, 1.0]))
    assert not signs.sign_scatter([np.zeros((1, 2))], 2, 0.0).any()
    rows = np.random.default_rng(4).standard_normal((220, 8)) * [240, 7, 6, 5, 4, 3, 2, 1]
    rows[200:] = 1e5
    median = signs.spatial_median(lambda c: signs.sign_sums([rows - c], 8, 0.0), rows.mean(axis=0))
    assert np.linalg.norm(((rows - median) / np.linalg.norm(rows - median, axis=1)[:, None]).mean(axis=0)) < 1e-8
    # A party moves a reach by its distances only; no row counts for which a sum has no room.
    shape = signs.Directions(np.eye(2), np.array([1.0, 0.0]), np.array([1.0, 1e6]))
    survivors = signs.Survivors(shape, np.array([5.0, 10.0]))
    rows = np.array([[0, 0], [3.5, 0], [4.0, 0], [4.5, 0], [0, 6], [0, 11.0], [0, 17]])
    np.testing.assert_allclose(survivors.row_weights(rows), [1, 1, 0.5, 0, 0.8, 0, 0])
    np.testing.assert_allclose(survivors.blunt(np.array([8.0, 0.0]), 6.0).row_weights(rows), [1, 1, 1, 1, 5 / 6, 0, 0])
    assert not signs.Survivors(shape, np.array([1e3, 1e4])).row_weights(rows)[-1]  # beyond what the sum has room for
    shape = signs.Directions(np.eye(2), np.zeros(2), np.full(2, 1e6))
    for own_gap, far in ((3.0, 10.0), (6.0, 11.0), (1e9, 1e9 + 5)):
        blunted = signs.Survivors(shape, np.array([5.0, 10.0])).blunt(np.zeros(2), own_gap)
        assert blunted.reach.tolist() == [5, far]
        np.testing.assert_allclose(blunted.row_weights(np.array([[8.0, 0], [16.5, 0]])), [(far - 8) / (far - 5), 0])


def test_directions_that_do_not_stand_out_leave_no_row_out():
    """Take 400 rows along 4 directions: 1.21 is the edge of chance, and cutting begins at 3/4 of the way."""
    counts = np.zeros((5, signs.BINS))
    counts[:, signs.SIDE_BINS + np.arange(0, 40)] = 5.0
    for ratio, strength in ((1.1, 2.0**-20), (1.21, 0.5), (1.3, 1.0)):
        values = np.array([ratio, *[(4 - ratio) / 3] * 3])
        found = signs.find_survivors(np.eye(4), values, 400, counts)
        own = signs.directions_from_counts(np.eye(4), np.ones(4), counts[:-1]).spreads
        np.testing.assert_allclose(found.shape.spreads, own * [1 / strength, *[2**20] * 3])
    first, middle = ((2 + signs.quantile(counts[-1], share)) ** (2 / 3) for share in (0.25, 0.5))
    np.testing.assert_allclose(found.reach, (middle + np.array([1.96, 3.29]) * (middle - first) / QUARTILE) ** 1.5)
    # Nor do directions in which half of the scores are equal.
    half = signs.tally(np.append(np.zeros(60), np.linspace(0.5, 9, 40))[:, None])
    directions = signs.directions_from_counts(np.eye(1), np.array([2.0]), half)
    assert (directions.middles[0], directions.spreads[0]) == (0, 32)
    assert signs.variances_from_counts(np.array([2.0]), half) == [0]


def test_numbers_of_counts_are_those_of_rows_and_quantiles():
    values = np.random.default_rng(4).standard_normal((20_000, 12)) * 3 + 0.5
    counts = signs.tally(values / 3)
    assert (counts.sum(axis=1) == 20_000).all()
    directions = signs.directions_from_counts(np.eye(12), np.full(12, 3.0), counts)
    np.testing.assert_allclose(directions.middles, np.median(values, axis=0), atol=0.02)
    np.testing.assert_allclose(directions.spreads, spread_of(values), rtol=0.01)
    np.testing.assert_allclose(signs.variances_from_counts(np.full(12, 3.0), counts), spread_of(values) ** 2, rtol=0.02)
    lengths = np.linalg.norm(values - 0.5, axis=1) / 3
    errors = signs.SquaredErrors.from_counts(signs.tally(lengths[:, None])[0], 1.0)
    assert errors.mean == pytest.approx(12, rel=0.03)
    assert (lengths**2 > errors.limit(0.99)).mean() == pytest.approx(0.01, abs=0.004)
    assert signs.SquaredErrors(2.0, 0.5).mean == 8 + 3 * 2 * 0.25
    assert [signs.distance_floor(np.array(far)) for far in ([1.0, 2.0, 9.0], [0.0, 0.0, 3.0], [0.0])] == [0.5, 0.25, 1]
    counts, places = np.zeros(signs.BINS, dtype=np.int64), [100, 140]
    counts[places] = 2, 6
    np.testing.assert_array_equal(np.flatnonzero(signs.tally(signs.BIN_EDGES[places, None])), places)
    expected = [(signs.BIN_EDGES[100] + signs.BIN_EDGES[101]) / 2, signs.BIN_EDGES[141]]
    np.testing.assert_allclose([signs.quantile(counts, share) for share in (0.125, 1.0)], expected)
    first, middle, third = ((3 * signs.quantile(counts, share)) ** (2 / 3) for share in (0.25, 0.5, 0.75))
    found = signs.SquaredErrors.from_counts(counts, 3.0)
    assert (found.middle, found.deviation) == pytest.approx((middle, (third - first) / (2 * QUARTILE)))
    assert signs.SquaredErrors(2.0, 0.5).limit(0.5) == pytest.approx(8)
    assert signs.SquaredErrors(2.0, 0.5).limit(0.8413447460685429) == pytest.approx(2.5**3)
    for minimum in [1, 5, 30]:
        sizes = np.append(np.random.default_rng(4).standard_normal(100), [0.0, 1e9])
        tallies = signs.tally(np.column_stack([sizes, 3 * sizes]))
        for factor, counts in zip((1, 3), signs.merge_small_bins(tallies, minimum), strict=True):
            assert counts.sum() == 102
            assert counts[counts > 0].min() >= minimum
            assert signs.quantile(counts, 0.5) == pytest.approx(factor * np.median(sizes), abs=0.2 * factor)
