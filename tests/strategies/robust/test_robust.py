"""Components that a few rows, and a few parties, cannot move."""

from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2

from fedpca_flwr.errors import DataError
from fedpca_flwr.maths.eigen import principal_angles as angles_between
from fedpca_flwr.maths.moments import pack
from fedpca_flwr.model.reference import principal_angles
from fedpca_flwr.strategies.robust import party as party_module
from fedpca_flwr.strategies.robust import spatial_signs as signs
from fedpca_flwr.strategies.robust.method import Robust
from fedpca_flwr.strategies.robust.party import RobustClient, direction_count
from tests.families import cut
from tests.harness import finish, fit, server_of, tamper, tamper_arrays
from tests.hostile import HostileSession
from tests.refusals import refused

SPREAD = np.arange(8.0, 0.0, -1.0)
CLEAN = np.random.default_rng(4).standard_normal((900, 8)) * SPREAD + 5
AXES = np.eye(8)


LOCAL_ROWS = CLEAN[:40]


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


FAR = [(0.2, 1e6), (0.2, -1e6 * AXES[7]), (0.2, 60 * AXES[5]), (0.3, 1e6)]


@pytest.mark.parametrize(("share", "where"), FAR, ids=["all", "one feature", "nearer", "more than a quarter"])
def test_rows_that_are_far_off_do_not_move_the_components(share, where):
    clean, dirty = of_clean_rows(), fit("robust", parties(spoiled(share, where)), n_components=3)
    far_notes = [note[:20] for note in dirty.log["notes"] if "too far off" in note]
    assert far_notes == ["30% of the rows lie "] * (share > 0.25)
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


def middle_and_spread(scores):
    middle = np.median(scores, axis=0)
    return middle, np.median(np.abs(scores - middle), axis=0) / 0.6744897501960817


def by_signs(rows):
    """Eigenvalues and eigenvectors, in rows, of the sign covariance about zero."""
    directions = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    values, vectors = np.linalg.eigh(directions.T @ directions)
    return values[::-1], vectors[:, ::-1].T


@pytest.mark.engine
def test_heavy_tails_do_not_depend_on_units():
    rng = np.random.default_rng(1)
    rows = rng.standard_cauchy((1500, 1)) * rng.standard_normal((1500, 8)) * [4, 3, 2.2, 1.5, 1.2, 1, 1, 1]
    model = fit("robust", np.array_split(rows, 3), n_components=3)
    for parties, degrees in (([X * 3e-5 for X in np.array_split(rows, 3)], 1e-6), (np.array_split(rows, 12), 2)):
        assert principal_angles(model, fit("robust", parties, n_components=3)).max < degrees


@pytest.mark.engine
def test_clean_rows_cost_little():
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
        middle, spread = middle_and_spread((rows - centre) @ vectors.T)
        whitened = ((rows - centre) @ vectors.T - middle) / spread
        values, turned = by_signs(whitened)
        along = whitened @ turned.T - np.median(whitened @ turned.T, axis=0)
        strength = np.clip(2 * ((d * values / n - 1) / ((1 + np.sqrt(d / n)) ** 2 - 1)) - 1.5, 0, 1)
        counted = np.clip(3.5 - (strength * np.abs(along) / middle_and_spread(along)[1]).max(axis=1), 0, 1)
        distance = np.linalg.norm(whitened, axis=1)
        first, middle_distance = np.quantile(distance ** (2 / 3), [0.25, 0.5])
        deviation = (middle_distance - first) / 0.6744897501960817
        inner, outer = (middle_distance + np.array([1.96, 3.29]) * deviation) ** 1.5
        counted = np.minimum(counted, np.clip((outer - distance) / (outer - inner), 0, 1))
        centre = counted @ rows / counted.sum()
        vectors = np.linalg.eigh((rows - centre).T * counted @ (rows - centre))[1][:, ::-1].T
    spread = middle_and_spread((rows - centre)[counted > 0] @ vectors.T)[1]
    return vectors[np.argsort(-spread)]


@pytest.mark.engine
def test_a_pooled_program_gives_the_same():
    rows = spoiled(0.1, 1e4)
    model = fit("robust", parties(rows), n_components=3)
    assert angles_between(model.components_.T, pooled_program(rows)[:3].T).max() < 1
    assert principal_angles(model, fit("robust", [rows], n_components=3)).max < 0.5


@pytest.mark.engine
def test_secure_sums_and_units_change_nothing():
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
    np.testing.assert_allclose(plain.scale_, 900 / sum(len(s) / d for s, d in zip(sizes, deviations, strict=True)))
    np.testing.assert_allclose(other.scale_, plain.scale_ * units)


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


def test_unlike_parties_are_refused():
    unlike = [CLEAN[:300], CLEAN[300:600, ::-1], np.roll(CLEAN[600:], 3, axis=1)]
    with refused(DataError, "'robust_parties'", "30%"):
        fit("robust robust-parties=true", unlike, n_components=3)


def test_unlike_parties_in_each_step_leave_none():
    scatters = np.eye(3)[[0, 0, 2]]
    replies = [SimpleNamespace(sender=name, fields={"scatter": s}) for name, s in zip("abc", scatters, strict=True)]
    with refused(DataError, "'robust-parties'", 3):
        Robust._mean_of_similar(SimpleNamespace(excluded_parties=["a", "b"]), replies, 2)


def sum_of_replies(step, replies):
    """Return the result of a step of a run with robust-parties from the parties' replies, and the run."""
    server: Any = object.__new__(Robust)
    server.options, server.quorum = SimpleNamespace(robust_parties=True), SimpleNamespace(features=2)
    server.excluded_parties = []
    program = step(server)
    next(program)
    with pytest.raises(StopIteration) as end:
        program.send([SimpleNamespace(fields=fields, sender=f"client {i}") for i, fields in enumerate(replies)])
    return end.value.value, server


def test_unlike_parties_are_left_out():
    """Each differs by an exact share of the size of the median matrix, diag(1/2, 1/2), whatever the traces."""
    offsets = np.array([-2.9, -1, -1, 0, 1, 1, 3.1])

    def solve_for(share):
        matrices = [np.diag([0.5 + share * value / 2, 0.5 - share * value / 2]) for value in offsets]
        replies = [{"scatter": trace * pack(np.asfortranarray(value))} for trace, value in enumerate(matrices, 1)]
        return sum_of_replies(lambda server: Robust._sign_scatter(server, {}), replies)

    (scatter, measured), server = solve_for(0.29)
    assert server.excluded_parties == ["client 6"]
    np.testing.assert_allclose(scatter, np.diag([0.5, 0.5]) - 0.29 * 2.9 / 12 * np.diag([1, -1]), atol=1e-7)
    assert measured == pytest.approx({"unlike_parties": 0.29, "most_unlike_party": 0.29 * 3.1}, abs=1e-6)
    with refused(DataError, "31%", "30%"):
        solve_for(0.31)


def test_a_party_counts_as_at_most_twice_the_median_one():
    replies = [{"count": np.array(n), "signs": np.full(2, float(n))} for n in (10, 20, 100)]
    sums, _ = sum_of_replies(lambda server: Robust._sum_over_rows(server, "median", {}), replies)
    assert sums["rows"] == 130
    np.testing.assert_allclose(sums["signs"], 10 + 20 + 40)


def test_the_scatter_and_mean_are_those_of_alike_parties():
    parts = (8.0, [8.0, 0], [2.0, 2]), (8.0, [16.0, 0], [1, 1]), (4.0, [4.0, 8], [3, 3])
    replies = [
        {"count": np.array(10), "weight": np.array(w), "shift": np.array(shift), "scatter": pack(np.diag(scatter))}
        for w, shift, scatter in parts
    ]
    (far_share, mean, scatter), _ = sum_of_replies(lambda server: Robust._mean_and_scatter(server, "s", {}, 2), replies)
    assert far_share == pytest.approx(1 - 20 / 30)
    np.testing.assert_allclose(mean, [1, 0])  # the median of (1, 0), (2, 0) and (1, 2)
    np.testing.assert_allclose(scatter, np.eye(2))


@pytest.mark.parametrize(
    ("k", "features", "variances", "mean_squares", "close"),
    [
        (2, 3, [1.0, 9, 4], [1e3, 9, 4], ""),  # that which lies close together is not among the first two
        (2, 3, [1.0, 9, 4], [1, 1e3, 4], "components 1,"),
        (1, 3, [4.0, 9], [4, 9], ""),  # of three directions two are known: the errors tell of the others
        (2, 2, [4.0, 9], [4, 1e3], "components 1,"),
    ],
)
def test_the_solution_is_in_the_order_of_its_variances(k, features, variances, mean_squares, close):
    errors = signs.tally(np.linspace(0.5, 2.0, 100)[:, None])[0]
    variances, vectors = np.array(variances), np.eye(features)[: len(variances)]
    known = {"rows": np.array(100), "scale": np.empty(0), "unit": np.array(1.0), "centre": np.zeros(features)}

    def solve(server):
        server.options.n_components, server.quorum.features = k, features
        return Robust._solution(server, known, vectors, variances, np.array(mean_squares, float))

    solution, server = sum_of_replies(solve, [{"count": np.array(100), "errors": errors}])
    descending = np.sort(variances)[::-1]
    remaining = descending[k:].sum()
    if len(variances) < features:
        remaining = signs.SquaredErrors.from_counts(errors, np.sqrt(remaining)).mean
    np.testing.assert_allclose(solution.pairs.values, 99 * descending[:k])
    assert solution.pairs.following == 99 * np.append(descending, 0.0)[k]
    assert solution.total == pytest.approx(99 * (descending[:k].sum() + remaining))
    assert [close in note for note in solution.notes if "close together" in note] == [True] * bool(close)
    assert (server.limits[1] > 1e-300) == (k < features)


def test_rows_far_off_are_looked_for_along_200_directions():
    assert [direction_count(*sizes) for sizes in ((100, 5), (300, 5), (300, 250))] == [100, 200, 250]


def centre_request(centre, unit=1.0):
    return [centre, np.empty(0), np.asarray(unit), np.asarray(900)]


@pytest.fixture
def session(tmp_path):
    made = HostileSession(tmp_path, LOCAL_ROWS, {"method": "robust", "n-components": 1}, **{"may-show": "scores"})
    made.ask("start", [])
    return made


def upto(session, phase, spread=1.0, first="median"):
    """Ask the questions from a phase on before another along the axes, and return the last reply."""
    request, spreads = [*centre_request(LOCAL_ROWS[7]), AXES], np.full(8, spread)
    script = {
        "median": centre_request(LOCAL_ROWS[7]),
        "signs": centre_request(LOCAL_ROWS[7]),
        "scores": [*request, spreads],
        "shape": [*request, 0 * spreads, spreads],
        "shape_scores": [*request, 0 * spreads, spreads, AXES],
    }
    names = [*script, phase]
    for name in names[names.index(first) : names.index(phase)]:
        reply, _ = session.ask(name, script[name])
    return reply


def survivors(spread, along, reach):
    """Return the request for survivors: rows count within so many spreads on the first axis, and by their distance."""
    shape = [np.full(8, spread), AXES, 0 * AXES[0], np.where(AXES[0] > 0, along, 1e6)]
    return [*centre_request(LOCAL_ROWS[7]), AXES, 0 * AXES[0], *shape, np.asarray(reach)]


def test_a_centre_on_a_row_has_no_weight_but_the_floors(session):
    median = signs.spatial_median(lambda c: signs.sign_sums([LOCAL_ROWS - c], 8, 0.0), LOCAL_ROWS[0])
    floor = signs.distance_floor(np.linalg.norm(LOCAL_ROWS - median, axis=1))
    (_, near, weight), _ = session.ask("median", centre_request(LOCAL_ROWS[7], unit=1e-6))
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
    inside = np.clip(3.5 - scores[:, 0] / (0.25 * middle_and_spread((LOCAL_ROWS - LOCAL_ROWS[7])[:, :1])[1]), 0, 1)
    counted = np.where(scores.max(axis=1) <= 16, inside, 0)
    assert (counted > 0).sum() >= 5
    assert reply[1] == pytest.approx(counted.sum(), rel=0.1)


def test_fewer_survivors_than_the_minimum_are_none(session):
    upto(session, "survivors")
    (count, weight, shift, scatter), _ = session.ask("survivors", survivors(1.0, 1e6, [1e-3, 2e-3]))
    assert (int(count), float(weight), np.abs(shift).max(), np.abs(scatter).max()) == (40, 0.0, 0.0, 0.0)


@pytest.mark.parametrize(("inside", "weight"), [(4, 0.0), (5, 2.5)])
def test_sums_of_survivors_are_of_the_minimum_at_least(inside, weight):
    weights, ones = np.repeat([0.5, 0.0], [inside, 9 - inside]), np.ones((9, 2))
    site = SimpleNamespace(node=SimpleNamespace(min_rows=5), state={})
    party = SimpleNamespace(selection=ones, site=site, weigh_rows=lambda *_: [(weights, ones)])
    reply = party_module._answer_survivors("", party, {"middles": np.zeros(2)})
    assert (reply["weight"], *reply["shift"], *reply["scatter"]) == (weight,) * 6


@pytest.mark.parametrize(("outside", "counted"), [(0, 20), (4, 20), (5, 15)])
def test_counts_of_survivors_do_not_tell_of_few_others(outside, counted):
    party = SimpleNamespace(site=SimpleNamespace(node=SimpleNamespace(min_rows=5)))
    party.suppress_small_counts = partial(RobustClient.suppress_small_counts, party)
    weights = np.repeat([1.0, 0.0], [20 - outside, outside])
    assert RobustClient.count_survivors(party, [(weights, np.ones((20, 1)))]).sum() == counted


def test_the_directions_of_a_step_are_told_once(session):
    upto(session, "shape")
    request = [*centre_request(LOCAL_ROWS[7]), np.roll(AXES, 1, axis=0)]
    assert not session.ask("shape", [*request, 0 * AXES[0], np.ones(8)])[0]


def test_no_count_of_fewer_rows_than_the_minimum_is_told(session):
    _, scores = upto(session, "shape")
    _, shape_scores = upto(session, "survivors", first="shape")
    for counts in (*scores, *shape_scores):
        assert counts.sum() == 40
        assert set(counts[counts > 0] < 5) == {False}


@pytest.mark.parametrize("place", [0.0, 1.0])
def test_equal_rows_are_the_median(place):
    rows = np.rint(np.abs(LOCAL_ROWS - 5) > SPREAD)
    rows[5:25] = place  # the search comes ever nearer to it
    median = signs.spatial_median(lambda c: signs.sign_sums([rows - c], 8, signs.MIN_FLOOR), rows.mean(axis=0))
    np.testing.assert_array_equal(signs.snap_to_majority(lambda c: np.split(rows - c, 8), median), rows[5])
    rows[24] += 1e-3  # one less than half
    assert signs.snap_to_majority(lambda c: [rows - c], median) is median
    assert np.isfinite(fit("robust", [rows, CLEAN[:60]], n_components=2).explained_variance_).all()
