"""DP-PCA's noise: the change by a row, whatever the data and the server, and the noise that each party adds."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.errors import DataError, DisclosureError
from fedpca_flwr.maths.moments import diagonal_positions
from fedpca_flwr.maths.privacy import compose_multipliers, gaussian_multiplier
from fedpca_flwr.protocol.question import Public
from fedpca_flwr.strategies.dp_pca import integer_sums
from fedpca_flwr.strategies.dp_pca.integer_sums import GRID_STEPS, MAX_ROWS
from fedpca_flwr.strategies.dp_pca.party import BUDGET_SHARES, FIELD_STEPS, MAX_TOTAL_ROWS, DPOptions, dp_script
from tests.families import rows
from tests.harness import client_of, finish, fit, server_of
from tests.refusals import refused, unnamed

D = 12
RELEASES: dict[str, dict[str, Any]] = {"joint": {"release": "joint", "clip": 5.0}, "shells": {}}
RELEASES["directions"] = {"release": "directions"}
SHELLS = np.array([[0.0, 2.0, 0.0], [2.0, 8.0, 8.0], [8.0, 64.0, 16.0]])
"""The first has directions only, in the others rows keep their length up to the end, and up to a part of it."""
CENTRE, BOUND = {"centre": np.ones(D)}, {"bound": np.asarray(2.0)}
REQUESTS: dict[str, dict[str, dict[str, Any]]] = {"joint": {"joint": {}}}
REQUESTS["shells"] = {"octaves": {}, "centre": BOUND, "nearer_octaves": CENTRE, "nearer_centre": CENTRE | BOUND}
REQUESTS["shells"]["directions"] = {**CENTRE, "shells": SHELLS}
REQUESTS["shells"]["variances"] = {**CENTRE, **BOUND, "components": np.eye(D)[:2]}
REQUESTS["directions"] = {**REQUESTS["shells"], "directions": {**CENTRE, "shells": SHELLS[:1]}}
WAYS = [{}, {"count": "public"}, {"relation": "replace-one"}, {"trust": "distributed", "honest_parties": 2}]
every_way = pytest.mark.parametrize("way", WAYS, ids=str)
TELLS: dict[str, dict[str, dict[str, Any]]] = {
    "octaves": {"octaves": {}},
    "directions": {"octaves": {}, "energies": {"shells": SHELLS}, "products": {"shells": SHELLS}},
    "variances": {"squares": {"components": np.linalg.qr(rows(4, 4))[0][:2], "bound": 2.5}},
}


def server(release="joint", parties=1, **options):
    values = {"noise_seed": 0, "n_components": 2, **RELEASES[release], **options}
    return server_of("dp-pca", [rows(50)] * parties, **values)


def ask(server, phase="joint", request=(), party=0):
    return client_of(server, party).fit(list(request), {"phase": phase})


def exact(name, data, *, centre=0.0, bound=1.0, shells=None, components=None):
    centre = np.zeros(data.shape[1]) + centre
    if name == "products" and shells is not None:
        return integer_sums.integer_shell_products(data, centre, shells)
    return {
        "rows": lambda: len(data) * GRID_STEPS,
        "octaves": lambda: integer_sums.integer_octave_counts(data, centre),
        "sum": lambda: integer_sums.integer_sum(data, centre, float(bound)),
        "products": lambda: integer_sums.integer_products(data, centre, float(bound)),
        "energies": lambda: integer_sums.integer_energies(data, centre, shells),
        "squares": lambda: integer_sums.integer_score_squares(data, centre, components, float(bound)),
    }[name]()


def noise_of(running, release):
    deviations = {}
    for phase, request in REQUESTS[release].items():
        sums, _, metrics = ask(running, phase, request.values())
        assert "error" not in metrics
        bound = {"bound": 5.0} if release == "joint" else {}
        expected = client_of(running, 0).options.noise(phase).deviations
        for (name, deviation), array in zip(expected.items(), sums, strict=True):
            deviations[phase, name] = array - exact(name, rows(50), **{**bound, **request}), deviation
    return deviations


@every_way
@pytest.mark.parametrize("release", RELEASES)
def test_each_answer_has_the_noise_that_it_needs(release, way, monkeypatch):
    monkeypatch.setattr(integer_sums, "discrete_gaussian", lambda size, deviation, source: np.full(size, deviation))
    for (_, name), (noise, deviation) in noise_of(server(release, parties=3, **way), release).items():
        if name == "products":
            off_diagonal = np.delete(noise, diagonal_positions(D), axis=-1)
            np.testing.assert_allclose(off_diagonal, deviation / np.sqrt(2), rtol=1e-6)
        np.testing.assert_array_equal(noise[..., diagonal_positions(D)] if name == "products" else noise, deviation)


@every_way
def test_the_noise_of_clipped_rows_is_what_one_row_needs(way):
    """The largest change of the sums by a row that comes, goes or is replaced, in deviations of the noise."""
    options = DPOptions(epsilon=1.0, **RELEASES["joint"], **way)
    deviations = options.noise("joint").deviations
    assert (deviations["rows"] > 0) == ("count" not in way and "relation" not in way)
    honest = way.get("honest_parties", 1) ** 0.5
    count, length, products = (
        FIELD_STEPS[name] / (deviations[name] * honest) if deviations.get(name) else 0.0
        for name in ("rows", "sum", "products")
    )
    change = np.sqrt(count**2 + length**2 + products**2)
    if options.relation == "replace-one":
        t = np.linspace(-1, 1, 200_001)  # the cosine of the two rows
        change = np.sqrt((length**2 * (2 - 2 * t) + products**2 * (2 - 2 * t**2)).max())
    allowed = 1 / gaussian_multiplier(1.0, 1e-5)
    assert allowed * (1 - 2e-4) < change <= allowed  # deviations are whole numbers of steps, rounded up


@pytest.mark.engine
@pytest.mark.parametrize("phase", TELLS)
@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_no_neighbour_exceeds_a_sensitivity(phase, relation):
    """On the grid, and with rows of any length: the search moves two rows and their lengths."""
    deviations = DPOptions(relation=relation, count="public", epsilon=1.0).noise(phase).deviations
    allowed = BUDGET_SHARES["shells"][phase] ** 0.5 / gaussian_multiplier(1.0, 1e-5)
    other_rows, times = rows(5, 4), {"products": (2 - np.eye(4)[np.triu_indices(4)]) ** 0.5}

    def tell(data):
        """Return the sums in deviations of their noise; off-diagonal products count twice with half the variance."""
        sums = {name: exact(name, data, centre=[0.5, -2, 1, 0], **fields) for name, fields in TELLS[phase].items()}
        return np.hstack([np.ravel(values / deviations[name] * times.get(name, 1)) for name, values in sums.items()])

    def change(flat):
        pair = flat.reshape(2, 1, 4)
        after = other_rows if relation == "add-remove" else np.vstack([other_rows, pair[1]])
        return float(np.linalg.norm(tell(np.vstack([other_rows, pair[0]])) - tell(after)))

    starts = np.random.default_rng(0).standard_normal((8, 8))[[1, 2, 6, 7]] * [[1], [3], [1e9], [1e100]]
    searches = [minimize(lambda x: -change(x), start, method="Powell").fun for start in starts]
    assert 0.99 * allowed <= max(-min(searches), *map(change, starts)) <= allowed


def test_each_phase_shell_party_and_run_has_noise_of_its_own():
    replies = noise_of(server("shells", noise_seed=7), "shells")
    first, second = (replies[phase, "octaves"][0] for phase in ("octaves", "nearer_octaves"))
    assert (first != second).mean() > 0.9
    noise, _ = replies["directions", "products"]
    assert np.abs(np.corrcoef(noise) - np.eye(3)).max() < 5 / np.sqrt(noise.shape[1])
    for seed, drawn in ((0, 4), (5, 2)):
        servers = [server(parties=2, noise_seed=seed) for _ in range(2)]
        assert len({ask(running, party=party)[0][1].tobytes() for running in servers for party in (0, 1)}) == drawn
    (noisy_count, *_), reply_count, metrics = ask(server())
    assert noisy_count != 50 * GRID_STEPS
    assert (reply_count, set(metrics)) == (1, {"partition-id", "num-partitions", "simulated"})
    model = finish(server())
    assert model.log["parties"][0]["rows"] is None
    assert "row counts" not in model.summary(full=True)


def test_replacements_and_rounded_rows_are_of_one_row():
    """The sum of half the weight and the products change most where the cosine of the two rows is -1/8."""
    options = DPOptions(**RELEASES["joint"], epsilon=1.0, count="public")
    cost = (0.5**2 * (2 + 2 / 8) + 2 - 2 / 8**2) / (0.5**2 + 1)
    epsilon = options.replacement_epsilon()
    assert gaussian_multiplier(epsilon, 1e-5) == pytest.approx(options.multiplier / cost**0.5, rel=1e-6)
    for release in ("shells", "joint"):
        assert DPOptions(**RELEASES[release], relation="replace-one").replacement_epsilon() == pytest.approx(1.0)
    # a row that goes may take another one with it, and the noise is made for one
    with refused(DisclosureError, "round_rows", 2):
        fit("dp-pca", [rows(50)], n_components=2, round_rows=2)
    fit("dp-pca", [rows(50)], n_components=2, round_rows=2, relation="replace-one")


def refusal_in(phase, request, release="shells"):
    running = server(release)
    for name, usual in REQUESTS["shells"].items():
        sums, _, metrics = ask(running, name, (request if name == phase else usual).values())
        if name == phase:
            assert (sums, metrics["error"]) == ([], "ContractError")
            return metrics["message"]
    raise AssertionError(phase)


def test_bounds_shells_and_centres_that_no_rows_give_are_refused():
    for distance in (5e-324, 1e-200, 1e200):
        shells, bound = {**CENTRE, "shells": np.array([[0.0, distance, 0.0]])}, {"bound": np.asarray(distance)}
        for phase, name, request in (("centre", "bound", bound), ("directions", "shells", shells)):
            text = refusal_in(phase, request)
            assert not unnamed(text, f"'{name}'", f"{distance:g}", "3.05494e-151", "3.27339e+150")
    assert not unnamed(refusal_in("directions", REQUESTS["shells"]["directions"], "directions"), "'shells'")
    assert not unnamed(refusal_in("nearer_octaves", {}), 0, 1, "centre")
    for centre, named in ((np.zeros(3), ["(3,)", "(12,)"]), (np.full(D, np.nan), ["NaN"])):
        assert not unnamed(refusal_in("nearer_octaves", {"centre": centre}), "'centre'", *named)


@pytest.mark.parametrize("size", [1e-300, 1.0, 1e150, 1e300])
def test_no_centre_and_no_bound_makes_a_row_count_for_more(size):
    fields = {"shells": SHELLS, "components": np.eye(D)[:2], "bound": size}
    for centre, name in product((0.0, size), FIELD_STEPS.keys() - {"sum"}):
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            values = exact(name, rows(20), centre=centre, **fields) / FIELD_STEPS[name]
        values = values[:, diagonal_positions(D)] if name == "products" else values
        assert np.isfinite(values).all()
        assert np.sum(values) <= 20


def test_a_site_with_too_many_rows_takes_no_part(monkeypatch):
    monkeypatch.setattr(integer_sums, "MAX_ROWS", 49)
    with refused(DataError, "client 0", 49):
        finish(server())
    monkeypatch.setattr(integer_sums, "MAX_ROWS", 50)
    assert finish(server()).n_components_ == 2


def test_budgets_are_spent_and_limits_have_room_for_noise():
    options, multiplier = DPOptions(epsilon=1.0), gaussian_multiplier(1.0, 1e-5)
    assert sum(BUDGET_SHARES["shells"].values()) == pytest.approx(1.0, abs=1e-12)
    assert compose_multipliers(options.noise(phase).multiplier for phase in options.phases) >= multiplier * (1 - 1e-12)
    # A tenth of the weight each for how far rows are, by octaves and by shells; 0.3 for a number of rows.
    products = multiplier / 0.9**0.5 * np.sqrt(1 + 2 * 0.1**2) * GRID_STEPS**2
    expected = {"octaves": 10 * products / GRID_STEPS, "energies": 10 * products, "products": products}
    assert options.noise("directions").deviations == pytest.approx(expected, rel=1e-5)
    squares = multiplier / 0.02**0.5 * np.hypot(1, 0.3) * GRID_STEPS**2
    expected = {"rows": squares / GRID_STEPS / 0.3, "squares": squares}
    assert options.noise("variances").deviations == pytest.approx(expected, rel=1e-5)
    # No noise is beyond 60 deviations, and without that room a full sum would not open.
    for trust in [{}, {"trust": "distributed", "honest-parties": 3}]:
        options = DPOptions.parse({"n-components": 2, "epsilon": 0.1, **trust})
        for phase in options.phases:
            limits, noise = options.limits(phase, 4, 5), options.noise(phase).deviations
            assert limits.keys() == noise.keys()
            for name, deviation in noise.items():
                assert (limits[name] >= MAX_TOTAL_ROWS * FIELD_STEPS[name] + 5 * 60 * deviation).all()
                assert (limits[name] < 2.0**62).all()


@pytest.mark.parametrize(("release", "phase"), [(name, phase) for name in REQUESTS for phase in REQUESTS[name]])
@pytest.mark.parametrize("count", ["public", "noised"])
def test_whole_numbers_travel_as_they_are(release, phase, count):
    """The most rows that there can be, at the bound, all alike, and noise of twenty deviations at every party."""
    options, parties = DPOptions(**RELEASES[release], count=count), 256
    config = RunConfig(method="dp-pca", clients=parties, secure_aggregation=True)
    layout = dp_script(config, options)[phase].layout({}, Public(config, options, parties, features=4))
    noise, limits = options.noise(phase).deviations, layout.limits.items()
    most = {name: np.full(limit.shape, MAX_ROWS * FIELD_STEPS[name] + 20 * noise[name] + 1.0) for name, limit in limits}
    vectors = [layout.encode({name: sign * value for name, value in most.items()}) for sign in [1] * 255 + [-1]]
    total = np.sum(vectors, axis=0, dtype=np.uint64)
    assert (total[0], layout.words) == (parties, 1)
    for name, value in most.items():
        high, low = (part[name] for part in layout.decode(total))
        exact = [int(h) + int(rest) for h, rest in zip(np.ravel(high), np.ravel(low), strict=True)]
        assert exact == [254 * int(v) for v in np.ravel(value)]
