"""DP-PCA: what a party sends, what it refuses, what the model says of it."""

import contextlib
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from scipy.linalg import subspace_angles

from fedpca_flwr import analyses
from fedpca_flwr.errors import ConfigError, ContractError, DisclosureError
from fedpca_flwr.figures import plots
from fedpca_flwr.maths.moments import diagonal_positions
from fedpca_flwr.maths.privacy import STEPS, fixed, gaussian_multiplier, on_grid, whole_products, whole_sum
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.reference import pooled_pca, principal_angles
from strategies.dp_pca.party import ROWS, UNITS, DPOptions, DPPCAClient
from tests import harness
from tests.families import cut, rows
from tests.harness import client_of, finish, server_of
from tests.hostile import HostileSession, released
from tests.refusals import refused, unnamed

TWO_STAGE = {"release": "two-stage", "clip": 5.0, "centre_clip": 5.0}
FRESH = {"noise_seed": 0, "n_components": 2, **TWO_STAGE}
D = 12
OWN = {"data": "x.npy", "epsilon-budget": 100.0}
"""Of a site with data of its own."""


def fit(method, data, **options):
    return harness.fit(method, data, **{**TWO_STAGE, **options})


def parties():
    return cut(rows(6000), 4000, 1500, 500)


def ask(server, phase="centre", received=(), party=0):
    """A party's answer to one question: arrays, the number of rows that it tells, and what it says of itself."""
    return client_of(server, party).fit(list(received), {"phase": phase})


def products_about(server, centre, party=0):
    """A party's answer to the second question, after the first."""
    ask(server, party=party)
    return ask(server, "products", [centre], party)


def refusal_of(answer):
    """The kind and the text of a refusal, with which no array leaves."""
    arrays, rows_told, said = answer
    assert (arrays, rows_told) == ([], 0)
    return said["error"], said["message"]


@pytest.mark.parametrize("release", ["two-stage", "joint"])
def test_without_noise_it_is_the_exact_pca_of_the_rows_on_the_grid(release, monkeypatch):
    """The noisy route itself, with nothing lost but what rounding rows to the grid loses."""
    monkeypatch.setattr("strategies.dp_pca.party.privacy.gaussian_multiplier", lambda epsilon, delta: 0.0)
    monkeypatch.setattr("fedpca_flwr.maths.privacy.gaussian", lambda size, deviation, source: np.zeros(size))
    model = fit("dp-pca", parties(), n_components=4, clip=50.0, centre_clip=50.0, release=release)
    data, step = np.vstack(parties()), 50.0 / STEPS
    centre = on_grid(data, 50.0).mean(axis=0) * step
    placed = on_grid(data - centre, 50.0) * step if release == "two-stage" else on_grid(data, 50.0) * step - centre
    values, vectors = np.linalg.eigh(placed.T @ placed / (len(data) - 1))
    assert np.rad2deg(subspace_angles(model.components_.T, vectors[:, -4:])).max() <= 1e-6
    np.testing.assert_allclose(model.explained_variance_, values[:-5:-1], rtol=1e-9)
    np.testing.assert_allclose(model.explained_variance_ratio_, values[:-5:-1] / values.sum(), rtol=1e-9)
    np.testing.assert_allclose(model.mean_, centre, atol=1e-12)
    exact = harness.fit("p-cov", parties(), n_components=4)
    np.testing.assert_allclose(model.explained_variance_, exact.explained_variance_, rtol=1e-3)
    assert principal_angles(model, exact).max <= 0.1


@pytest.mark.parametrize("options", [{}, {"release": "joint"}, {"release": "directions"}], ids=str)
def test_with_infinite_epsilon_it_is_p_cov_bit_for_bit(options):
    own = {"clip": "", "centre_clip": ""} if options else TWO_STAGE
    model, exact = (
        fit("dp-pca", parties(), n_components=4, epsilon="infinity", **own, **options),
        harness.fit("p-cov", parties(), n_components=4),
    )
    for name in ("components_", "mean_", "explained_variance_", "explained_variance_ratio_", "singular_values_"):
        assert getattr(model, name).tobytes() == getattr(exact, name).tobytes(), name
    assert "not private: epsilon is infinite, and this is p-cov" in model.log["notes"]


def test_infinite_epsilon_is_for_simulations(tmp_path):
    options = {"n_components": 2, "epsilon": "infinity", "noise_seed": 0}
    with refused(ConfigError, "'epsilon'", "'infinity'"):
        finish(server_of("dp-pca", parties(), **options, site={**OWN, "journal": str(tmp_path)}))
    with refused(ConfigError, "'moments'", "p-cov"):
        fit("dp-pca", parties(), **options, secure_aggregation=True)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"release": "joint"},
        {"count": "public"},
        {"relation": "replace-one"},
        {"trust": "distributed", "honest_parties": 3},
    ],
    ids=str,
)
def test_with_little_noise_it_is_near(options):
    truth = pooled_pca(np.vstack(parties()), 2)
    model = fit("dp-pca", parties(), n_components=2, epsilon=20.0, **options)
    assert principal_angles(model, truth).max < 3
    np.testing.assert_allclose(model.explained_variance_, truth.explained_variance_, rtol=0.1)


RELEASES = [
    {},
    {"release": "joint"},
    {"count": "public"},
    {"release": "joint", "count": "public"},
    {"trust": "distributed", "honest_parties": 8},
    {"relation": "replace-one", "epsilon": 10.0},
]


@pytest.mark.parametrize(("options", "length"), list(zip(RELEASES, itertools.cycle([4.9, 0.0]), strict=False)), ids=str)
def test_rows_without_variance_show_no_component(options, length):
    """The noise of the products is not the only one: the centre has noise, and so has what is subtracted."""
    alike = [np.full((20, D), length / np.sqrt(D))] * 16
    for seed in (1, 2):
        model = fit("dp-pca", alike, n_components=3, **{**options, "noise_seed": seed})
        assert model.log["measured"]["components_above_noise"] == 0, seed


def test_where_no_component_stands_out_variances_are_unknown(tmp_path):
    few = [np.random.default_rng(seed).standard_normal((50, 6)) for seed in range(3)]
    for release in ({}, {"release": "joint"}):
        model = fit("dp-pca", few, n_components=2, epsilon=0.5, noise_seed=1, **release)
        assert model.log["measured"]["components_above_noise"] == 0
        for again in (model, PCAModel.load(model.save(tmp_path / f"model{len(release)}"))):
            assert np.isnan(again.explained_variance_).all()
            assert np.isnan(again.explained_variance_ratio_).all()
            assert np.isnan(again.singular_values_).all()
            assert np.isnan(again.noise_variance_)
            assert "explained variance    unknown: no component stands out of the noise" in again.summary()
            assert "nan" not in f"{again.summary()} {again!r} {again._repr_html_()}"
            assert np.isfinite(again.transform(few[0])).all()
            assert np.isnan(again.shrinkage_).all()
            assert np.isnan(again.squared_error)
            (told,) = plots.scree(again).legends[0].get_texts()
            assert "no component stands out of the noise" in told.get_text().replace("\n", " ")
            assert np.isnan(analyses.projected(again, few[0])).all()
            with refused(ContractError):
                analyses.whitened(again, few[0])


@pytest.mark.parametrize("options", [o for o in RELEASES if "trust" not in o], ids=str)
def test_components_that_stand_out_are_told(options):
    """The threshold takes in all noise, and not more: three parties with 6,000 rows of decreasing variance."""
    model = fit("dp-pca", parties(), n_components=4, **{"epsilon": 5.0, **options})
    assert model.log["measured"]["components_above_noise"] == 4


def test_the_model_says_what_it_promises_and_what_not():
    model = fit("dp-pca", parties(), **FRESH, epsilon=1.0)
    text = model.summary()
    for part in (
        "epsilon 1, delta 1e-05, add-remove, of one row",
        "21.5388 (centre), 3.78788 (products)",
        "not covered: errors and refusals, timing",
        "variances are those of the clipped second moment",
    ):
        assert part in text
    assert "not private" not in text
    assert "row counts" not in text
    told = fit("dp-pca", parties(), **FRESH, count="public").summary()
    assert "not covered: the parties' row counts; who knows them can tell that a row is there" in told
    assert "not private: fixed noise seed 5" in fit("dp-pca", parties(), n_components=2, noise_seed=5).summary()
    tiny = fit("dp-pca", cut(rows(40), 20, 20), n_components=2, epsilon=0.1)
    assert "0 of 2 components" in tiny.summary()
    assert "components 1 to 2 do not stand out of the noise" in tiny.summary()


def test_replacements_and_rounded_rows_are_of_one_row():
    """The sum changes by twice the bound, the products by the root of two."""
    options = DPOptions(release="two-stage", clip=1.0, centre_clip=1.0, epsilon=1.0, count="public")
    cost = 0.03 * 4 + 0.97 * 2
    told = options.epsilon_of_a_replacement()
    assert gaussian_multiplier(told, 1e-5) == pytest.approx(options.multiplier / cost**0.5, rel=1e-6)
    for release in ({}, {"release": "joint", "clip": 1.0}):
        assert DPOptions(**release, relation="replace-one").epsilon_of_a_replacement() == pytest.approx(1.0)
    # 20 rows of which 10 are left out as soon as one goes: the noise is made for one.
    with refused(DisclosureError, "round_rows", 10):
        fit("dp-pca", parties(), n_components=2, round_rows=10)
    fit("dp-pca", parties(), n_components=2, round_rows=10, relation="replace-one")


def noise_of(server, party, data):
    """The noise in a party's products, in units of what it should be."""
    centre = np.zeros(D)
    (products,), _, _ = products_about(server, centre, party)
    noise = (products - whole_products(data, centre, 5.0)) / (STEPS**2 * gaussian_multiplier(1.0, 1e-5) / 0.97**0.5)
    noise *= np.sqrt(2)
    noise[diagonal_positions(D)] /= np.sqrt(2)
    return noise


BOUNDS = {"release": "two-stage", "clip": 5.0, "centre_clip": 2.0}


GAUSSIAN = "fedpca_flwr.maths.privacy.gaussian"


def as_large_as_its_deviation(size, deviation, source):
    """In the place of `GAUSSIAN`."""
    return np.full(size, deviation)


def deviations_of(data, phase, **options):
    """What a party adds, in steps, where each number is as large as its deviation: to rows, sum, products' diagonal."""
    server = server_of("dp-pca", [data] * 3, **{**FRESH, **BOUNDS, **options})
    told, _, _ = products_about(server, np.zeros(D)) if phase == "products" else ask(server, phase)
    bound = BOUNDS["centre_clip" if phase == "centre" else "clip"]
    products = whole_products(data, np.zeros(D), bound)
    true = {"rows": len(data) * STEPS, "sum": whole_sum(data, np.zeros(D), bound), "products": products}
    names = {"centre": ["rows", "sum"], "products": ["products"], "joint": ["rows", "sum", "products"]}[phase]
    found = {}
    for name, array in zip(names, told, strict=True):
        assert (array.shape == ()) == (name == "rows")
        noise = np.atleast_1d(array - true[name])
        if name == "products":
            np.testing.assert_allclose(np.delete(noise, diagonal_positions(D)), noise[0] / np.sqrt(2), rtol=1e-6)
            noise = noise[diagonal_positions(D)]
        np.testing.assert_allclose(noise, noise[0], rtol=1e-9)
        found[name] = float(noise[0])
    return found


def change_by_one_row(relation, deviations):
    """The most that one row (or another in its place) changes what is told, in deviations of its noise."""
    rows_told, length, products = (
        unit / deviations[name] if deviations.get(name) else 0.0
        for name, unit in (("rows", STEPS), ("sum", STEPS), ("products", STEPS**2))
    )
    if relation == "add-remove":
        return np.sqrt(rows_told**2 + length**2 + products**2)
    t = np.linspace(-1, 1, 200_001)  # the cosine of the two rows
    return np.sqrt((length**2 * (2 - 2 * t) + products**2 * (2 - 2 * t**2)).max())


@pytest.mark.parametrize("phase", ["centre", "products", "joint"])
@pytest.mark.parametrize(
    "options",
    [{}, {"count": "public"}, {"relation": "replace-one"}, {"trust": "distributed", "honest_parties": 2}],
    ids=str,
)
def test_the_noise_of_each_phase_is_what_one_row_needs(phase, options, monkeypatch):
    """With a bound of its own for each phase: the clip of the centre is not that of the products."""
    monkeypatch.setattr(GAUSSIAN, as_large_as_its_deviation)
    release = "joint" if phase == "joint" else "two-stage"
    found = deviations_of(rows(50), phase, **options, release=release)
    told = options.get("count") == "public" or options.get("relation") == "replace-one"
    assert ("rows" in found and found["rows"] > 0) == (phase != "products" and not told)
    share = {"centre": 0.03, "products": 0.97, "joint": 1.0}[phase]
    whole = {name: deviation * options.get("honest_parties", 1) ** 0.5 for name, deviation in found.items()}
    change, allowed = (
        change_by_one_row(options.get("relation", "add-remove"), whole),
        share**0.5 / gaussian_multiplier(1.0, 1e-5),
    )
    assert allowed * (1 - 2e-4) < change <= allowed  # deviations are whole numbers of steps, rounded up


def test_two_parties_have_noise_of_their_own_with_the_variance_promised():
    data, noises = rows(50), []
    for _ in range(20):
        server = server_of("dp-pca", [data, data], **FRESH)
        noises.append([noise_of(server, party, data) for party in (0, 1)])
    one, other = np.concatenate(noises, axis=1)
    assert abs(np.corrcoef(one, other)[0, 1]) < 5 / np.sqrt(one.size)
    for noise in (one, other):
        assert abs(float((noise**2).sum()) - noise.size) < 5 * np.sqrt(2 * noise.size)


def test_noise_is_fresh_and_a_noised_count_told_nowhere():
    first, fresh = (ask(server_of("dp-pca", [rows(50)], **FRESH))[0][1] for _ in range(2))
    assert not np.array_equal(first, fresh)
    (told, _), rows_told, said = ask(server_of("dp-pca", [rows(50)], **FRESH))
    assert told != 50 * STEPS
    assert rows_told == 1
    assert set(said) == {"partition-id", "num-partitions", "name", "columns", "simulated"}
    model = finish(server_of("dp-pca", [rows(50)], **FRESH))
    assert model.log["parties"][0]["rows"] is None
    assert "row counts" not in model.summary()


RUN = {"method": "dp-pca", "n-components": 2, "release": "two-stage", "clip": 5.0, "centre-clip": 5.0}


def site_of(folder):
    """A site with a file and a journal, in a process that has just started: always in the same run."""
    return HostileSession(folder, rows(50), RUN)


def test_a_release_is_noted_before_its_noise_is_drawn(tmp_path, monkeypatch):
    """A site that dies in between has spent it: nobody can tell what has left."""
    monkeypatch.setattr("fedpca_flwr.maths.privacy.system", lambda: pytest.fail("died", pytrace=False))
    with pytest.raises(pytest.fail.Exception):
        site_of(tmp_path).ask("centre", [])
    assert released(tmp_path / "journal") == ["centre"]


@pytest.mark.parametrize(
    ("received", "named"),
    [
        ([], [0, 1, "centre"]),
        ([np.zeros(3)], ["'centre'", "(3,)", "(12,)"]),
        ([np.full(D, np.nan)], ["'centre'", "NaN"]),
        ([np.full(D, 5.0)], ["'centre'", "'centre-clip'", 5]),
    ],
    ids=["none", "short", "NaN", "long"],
)
def test_a_centre_that_is_none_is_refused(received, named):
    server = server_of("dp-pca", [rows(50)], **FRESH)
    ask(server)
    kind, text = refusal_of(ask(server, "products", received))
    assert (kind, unnamed(text, *named)) == ("ContractError", [])


def test_the_budget_stops_a_run_before_anything_is_computed(tmp_path, monkeypatch):
    site = {"journal": str(tmp_path), "epsilon-budget": 1.0}
    assert finish(server_of("dp-pca", [rows(50)], **FRESH, epsilon=1.0, site=site)).n_components_ == 2
    assert released(tmp_path) == ["centre", "products"]
    monkeypatch.setattr(DPPCAClient, "_noisy", lambda *_: pytest.fail("computed"))
    with refused(DisclosureError, "client 0", 1, "epsilon-budget"):
        finish(server_of("dp-pca", [rows(50)], **FRESH, epsilon=0.1, site=site))
    assert released(tmp_path) == ["centre", "products"]


def test_budgets_are_held_at_the_sites_delta_and_refuse_what_is_not_private(tmp_path):
    """The same noise has a larger epsilon at a smaller delta."""
    site = {"journal": str(tmp_path), "epsilon-budget": 1.0, "delta-budget": 1e-9}
    with refused(DisclosureError, 1, "1e-09", 0, "epsilon-budget"):
        finish(server_of("dp-pca", [rows(50)], **FRESH, epsilon=1.0, delta=1e-5, site=site))
    assert finish(server_of("dp-pca", [rows(50)], **FRESH, epsilon=1.0, delta=1e-9, site=site)).n_components_ == 2
    # Secure aggregation hides a party's share, not what the sum tells.
    site = {"journal": str(tmp_path / "2"), "epsilon-budget": 1.0}
    for secure in ({}, {"secure_aggregation": True, "bound": 100.0}):
        with refused(DisclosureError, "p-cov"):
            finish(server_of("p-cov", [rows(50)] * 3, n_components=2, site=site, **secure))


@pytest.mark.engine
def test_two_runs_at_once_cannot_spend_one_budget(tmp_path, monkeypatch):
    """Each draws its noise only when the other is there too, or cannot come there."""
    both = threading.Barrier(2)

    def met():
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(timeout=0.5)
        return fixed(1)

    monkeypatch.setattr("fedpca_flwr.maths.privacy.system", met)
    site = {"journal": str(tmp_path), "epsilon-budget": 1.0}
    servers = [server_of("dp-pca", [rows(50)], **{**FRESH, "release": "joint"}, site=site) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        errors = [future.exception() for future in [pool.submit(finish, server) for server in servers]]
    assert sorted(type(error).__name__ for error in errors) == ["DisclosureError", "NoneType"]
    assert released(tmp_path) == ["joint"]


DISTRIBUTED = {"trust": "distributed", "honest_parties": 3}


@pytest.mark.parametrize(
    ("options", "site", "error", "named"),
    [
        ({"noise_seed": 3}, {}, ConfigError, ["noise-seed", 3]),
        (DISTRIBUTED, {}, DisclosureError, [3, 1, "honest-parties"]),
        (DISTRIBUTED, {"honest-parties": 3}, ConfigError, ["trust='distributed'", "secure-aggregation=true"]),
        ({"trust": "distributed", "honest_parties": 4}, {}, ConfigError, ["honest-parties", 4, 3]),
    ],
    ids=["fixed noise", "more honest parties than trusted", "no secure aggregation", "more than there are"],
)
def test_a_real_site_refuses_noise_that_protects_nobody(options, site, error, named, tmp_path):
    site = {**OWN, "journal": str(tmp_path), **site}
    server = server_of("dp-pca", cut(rows(300), 100, 100, 100), **{**FRESH, **options}, site=site)
    with refused(error, *named):
        finish(server)


@pytest.mark.parametrize(
    ("options", "site", "named"),
    [
        ({"epsilon": 10.1}, OWN, ["10.1", 10, "max-epsilon"]),
        ({"delta": 2e-5}, OWN, ["2e-05", "1e-05", "max-delta"]),
        ({"epsilon": 10.1}, {**OWN, "max-epsilon": 2.0}, [2, "max-epsilon"]),
        ({"epsilon": 0.6}, {"max-epsilon": 0.5}, ["0.6", "0.5", "max-epsilon"]),
        ({"epsilon": "infinity"}, {"max-epsilon": 0.5}, ["inf", "0.5", "max-epsilon"]),
        ({"delta": 1e-6}, {"max-delta": 1e-7}, ["1e-06", "1e-07", "max-delta"]),
    ],
    ids=str,
)
def test_a_site_refuses_a_run_that_promises_less_than_it_wants_without_any_budget(options, site, named, tmp_path):
    server = server_of("dp-pca", [rows(50)], **{**FRESH, **options}, site={"journal": str(tmp_path), **site})
    with refused(DisclosureError, *named):
        finish(server)
    assert released(tmp_path) == []


@pytest.mark.parametrize("site", [OWN, {**OWN, "max-epsilon": 50.0, "max-delta": 0.01}, {}])
def test_a_site_answers_a_run_within_its_limits(site, tmp_path):
    within = {"epsilon": 10.0, "delta": 1e-5} if site == OWN else {"epsilon": 50.0, "delta": 0.01}
    server = server_of("dp-pca", [rows(50)], **{**FRESH, **within}, site={"journal": str(tmp_path), **site})
    assert finish(server).n_components_ == 2


def test_a_site_whose_ledger_is_gone_in_a_run_answers_nothing_more(tmp_path):
    """A phase would be released again, with fresh noise, and be in no ledger with the first."""
    session = site_of(tmp_path)
    assert len(session.ask("centre", [])[0]) == 2
    (tmp_path / "journal" / "site.sqlite").unlink()
    replied, said = session.ask("centre", [])
    assert (replied, said["error"]) == ([], "DisclosureError")
    assert "journal" in said["message"]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"clip": ""}, ["'clip'"]),
        ({"centre_clip": ""}, ["centre_clip"]),
        ({"release": "directions"}, ["'clip'", "release='directions'"]),
        ({"trust": "distributed"}, ["honest_parties"]),
        ({"relation": "replace-one", "count": "noised"}, ["count='noised'"]),
        ({"epsilon": 0.0}, ["'epsilon'", "0.0"]),
        ({"epsilon": float("inf")}, ["'epsilon'", "inf"]),
        ({"delta": 1.0}, ["'delta'", "1.0"]),
        ({"clip": -1.0}, ["'clip'", "-1.0"]),
    ],
    ids=str,
)
def test_options_that_promise_nothing_are_named(options, named):
    with refused(ConfigError, *named):
        fit("dp-pca", parties(), **options)


@pytest.mark.parametrize("trust", [{}, {"trust": "distributed", "honest-parties": 3}], ids=["local", "distributed"])
def test_the_limits_of_a_sum_have_room_for_all_rows_and_the_noise_of_all_parties(trust):
    """Beyond 60 deviations there is no noise; without room for it a full sum would not open."""
    options = DPOptions.parse({"n-components": 2, "epsilon": 0.1, **trust})
    for phase in options.phases:
        limits, noise = options.limits(phase, 4, 5), options.noise(phase).of
        assert limits.keys() == noise.keys()
        for name, deviation in noise.items():
            assert (limits[name] >= ROWS * UNITS[name] + 5 * 60 * deviation).all()
            assert (limits[name] < 2.0**62).all()
