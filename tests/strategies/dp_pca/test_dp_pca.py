"""DP-PCA: a party's messages and refusals, and the model's notes."""

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from scipy.linalg import subspace_angles

from fedpca_flwr import analyses
from fedpca_flwr.errors import ConfigError, ContractError, DisclosureError
from fedpca_flwr.figures import plots
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.reference import pooled_pca, principal_angles
from fedpca_flwr.strategies.dp_pca import integer_sums
from fedpca_flwr.strategies.dp_pca.integer_sums import GRID_STEPS, round_to_grid, seeded_randomness
from fedpca_flwr.strategies.dp_pca.party import DPOptions, DPPCAClient
from tests import harness
from tests.families import cut, rows
from tests.harness import differences, finish, server_of
from tests.hostile import HostileSession, released
from tests.refusals import refused, unnamed
from tests.strategies.dp_pca.test_dp_directions import parties
from tests.strategies.dp_pca.test_dp_noise import ask

JOINT = {"release": "joint", "clip": 5.0}
FRESH = {"noise_seed": 0, "n_components": 2, **JOINT}
D = 12
SITE_KEYS = {"data": "x.npy", "epsilon-budget": 100.0}
"""Of a site with data of its own."""


def fit(method, data, **options):
    return harness.fit(method, data, **{**JOINT, **options})


def test_without_noise_dp_pca_is_exact_on_the_grid(monkeypatch):
    """The noisy route itself, with nothing lost but what rounding rows to the grid loses."""
    monkeypatch.setattr("fedpca_flwr.strategies.dp_pca.party.privacy.gaussian_multiplier", lambda epsilon, delta: 0.0)
    monkeypatch.setattr(integer_sums, "discrete_gaussian", lambda size, deviation, source: np.zeros(size))
    model = fit("dp-pca", parties(), n_components=4, clip=50.0)
    data, step = np.vstack(parties()), 50.0 / GRID_STEPS
    centre = round_to_grid(data, 50.0).mean(axis=0) * step
    placed = round_to_grid(data, 50.0) * step - centre
    values, vectors = np.linalg.eigh(placed.T @ placed / (len(data) - 1))
    assert np.rad2deg(subspace_angles(model.components_.T, vectors[:, -4:])).max() <= 1e-6
    np.testing.assert_allclose(model.explained_variance_, values[:-5:-1], rtol=1e-9)
    np.testing.assert_allclose(model.explained_variance_ratio_, values[:-5:-1] / values.sum(), rtol=1e-9)
    np.testing.assert_allclose(model.mean_, centre, atol=1e-12)
    exact = harness.fit("p-cov", parties(), n_components=4)
    np.testing.assert_allclose(model.explained_variance_, exact.explained_variance_, rtol=1e-3)
    assert principal_angles(model, exact).max <= 0.1


@pytest.mark.parametrize("options", [{}, JOINT, {"release": "joint"}, {"release": "directions"}], ids=str)
def test_with_infinite_epsilon_it_is_p_cov_bit_for_bit(options):
    model = harness.fit("dp-pca", parties(), n_components=4, epsilon="infinity", **options)
    assert not differences(model, harness.fit("p-cov", parties(), n_components=4))
    assert "not private: epsilon is infinite, and this is p-cov" in model.log["notes"]
    with refused(ConfigError, "'moments'", "p-cov"):
        fit("dp-pca", parties(), n_components=2, epsilon="infinity", secure_aggregation=True)


RELEASES = [
    {},
    {"count": "public"},
    {"trust": "distributed", "honest_parties": 8},
    {"relation": "replace-one", "epsilon": 10.0},
]
OF_DIRECTIONS = [({}, 4.9), ({}, 1e6), ({"count": "public"}, 0.0), ({"relation": "replace-one", "epsilon": 10.0}, 4.9)]
CLIPPED = [({**JOINT, **options}, length, 20) for options, length in zip(RELEASES, [4.9, 0.0] * 2, strict=True)]


@pytest.mark.parametrize(
    ("options", "length", "size"),
    [*CLIPPED, *(pytest.param(*case, 200, marks=pytest.mark.engine) for case in OF_DIRECTIONS)],
    ids=str,
)
def test_rows_without_variance_show_no_component(options, length, size):
    """Besides the products, the centre and the subtracted product of the centre have noise."""
    equal_rows = [np.full((size, D), length / np.sqrt(D))] * 16
    for seed in (1, 2):
        model = harness.fit("dp-pca", equal_rows, n_components=3, **{**options, "noise_seed": seed})
        assert model.log["measured"]["components_above_noise"] == 0, seed


def test_where_no_component_stands_out_variances_are_unknown(tmp_path):
    few = [np.random.default_rng(seed).standard_normal((50, 6)) for seed in range(3)]
    model = fit("dp-pca", few, n_components=2, epsilon=0.5, noise_seed=1)
    assert model.log["measured"]["components_above_noise"] == 0
    unknown = "explained_variance_", "explained_variance_ratio_", "singular_values_", "shrinkage_"
    for either in (model, PCAModel.load(model.save(tmp_path / "model"))):
        assert np.isnan([getattr(either, name) for name in unknown]).all()
        assert np.isnan([either.noise_variance_, either.squared_error]).all()
        assert "explained variance    unknown: no component stands out of the noise" in either.summary(full=True)
        assert "nan" not in f"{either.summary(full=True)} {either!r} {either._repr_html_()}"
        assert np.isfinite(either.transform(few[0])).all()
        (legend,) = plots.scree(either).legends[0].get_texts()
        assert "no component stands out of the noise" in legend.get_text().replace("\n", " ")
        assert np.isnan(analyses.projected(either, few[0])).all()
        with refused(ContractError):
            analyses.whitened(either, few[0])


DISTRIBUTED = {"trust": "distributed", "honest_parties": 3}
OF_THREE = [options for options in RELEASES if "trust" not in options]


@pytest.mark.parametrize("options", [*OF_THREE, DISTRIBUTED], ids=str)
def test_with_little_noise_it_is_near_and_all_stand_out(options):
    truth = pooled_pca(np.vstack(parties()), 2)
    model = fit("dp-pca", parties(), n_components=2, **{**options, "epsilon": 40.0})
    assert principal_angles(model, truth).max < 3
    np.testing.assert_allclose(model.explained_variance_, truth.explained_variance_, rtol=0.1)
    if options in OF_THREE:  # with more noise, of 6,000 rows of decreasing variance
        model = fit("dp-pca", parties(), n_components=4, **{"epsilon": 5.0, **options})
        assert model.log["measured"]["components_above_noise"] == 4


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (JOINT, ["(joint)", "variances are those of the clipped second moment"]),
        ({}, ["26.3795 (centre)", "3.93243 (directions)", "those of the rows' directions by shells of distances"]),
    ],
    ids=["joint", "shells"],
)
def test_the_model_says_what_it_promises(options, named):
    text = harness.fit("dp-pca", parties(), noise_seed=0, n_components=2, epsilon=1.0, **options).summary(full=True)
    named = [*named, "epsilon 1, delta 1e-05, add-remove, of one row", "not covered: errors and refusals, timing"]
    assert not [part for part in named if part not in text]
    assert not [part for part in ("not private", "row counts") if part in text]


def test_the_model_says_what_it_does_not_promise():
    summary = fit("dp-pca", parties(), **FRESH, count="public").summary(full=True)
    assert "not covered: the parties' row counts; who knows them can tell that a row is there" in summary
    assert f"its values at epsilon {DPOptions(**JOINT, count='public').replacement_epsilon():.3g} only" in summary
    shared = fit("dp-pca", parties(), **FRESH, **DISTRIBUTED).summary(full=True)
    assert "no secure aggregation: epsilon holds for this model, not against the server of the run" in shared
    seeded = fit("dp-pca", parties(), n_components=2, noise_seed=5)
    assert "not private: fixed noise seed 5" in seeded.summary(full=True)
    tiny = fit("dp-pca", cut(rows(40), 20, 20), n_components=2, epsilon=0.1)
    assert "0 of 2 components" in tiny.summary(full=True)
    assert "components 1 to 2 do not stand out of the noise" in tiny.summary(full=True)


def test_a_release_is_noted_before_its_noise_is_drawn(tmp_path, monkeypatch):
    """A site that dies after the note has spent the release, since nobody can tell what has left the site."""
    monkeypatch.setattr(integer_sums, "system_randomness", lambda: pytest.fail("died", pytrace=False))
    run = {"method": "dp-pca", "n-components": 2, **JOINT}
    with pytest.raises(pytest.fail.Exception):
        HostileSession(tmp_path, rows(50), run).ask("joint", [])
    assert released(tmp_path / "journal") == ["joint"]


CENTRES = {
    "none": ([], [0, 1, "centre"]),
    "short": ([np.zeros(3)], ["'centre'", "(3,)", "(12,)"]),
    "NaN": ([np.full(D, np.nan)], ["'centre'", "NaN"]),
}


@pytest.mark.parametrize(("received", "named"), CENTRES.values(), ids=CENTRES)
def test_a_centre_that_is_none_is_refused(received, named):
    server = server_of("dp-pca", [rows(50)], n_components=2)
    ask(server, "octaves")
    ask(server, "centre", [np.asarray(1.0)])
    arrays, count, metrics = ask(server, "nearer_octaves", received)
    assert (arrays, count, metrics["error"]) == ([], 0, "ContractError")
    assert not unnamed(metrics["message"], *named)


def test_the_budget_stops_a_run_before_anything_is_computed(tmp_path, monkeypatch):
    site = {"journal": str(tmp_path), "epsilon-budget": 1.0}
    assert finish(server_of("dp-pca", [rows(50)], **FRESH, epsilon=1.0, site=site)).n_components_ == 2
    assert released(tmp_path) == ["joint"]
    monkeypatch.setattr(DPPCAClient, "_noisy_sums", lambda *_: pytest.fail("computed"))
    with refused(DisclosureError, "client 0", 1, "epsilon-budget"):
        finish(server_of("dp-pca", [rows(50)], **FRESH, epsilon=0.1, site=site))
    assert released(tmp_path) == ["joint"]


def test_budgets_hold_at_the_sites_delta(tmp_path):
    """Equal noise has a larger epsilon at a smaller delta."""
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
    barrier = threading.Barrier(2)

    def met():
        with contextlib.suppress(threading.BrokenBarrierError):
            barrier.wait(timeout=0.5)
        return seeded_randomness(1)

    monkeypatch.setattr(integer_sums, "system_randomness", met)
    site = {"journal": str(tmp_path), "epsilon-budget": 1.0}
    servers = [server_of("dp-pca", [rows(50)], **FRESH, site=site) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        errors = [future.exception() for future in [pool.submit(finish, server) for server in servers]]
    assert sorted(type(error).__name__ for error in errors) == ["DisclosureError", "NoneType"]
    assert released(tmp_path) == ["joint"]


TOO_LITTLE = [
    ({"epsilon": 10.1}, SITE_KEYS, DisclosureError, ["10.1", 10, "max-epsilon"]),
    ({"delta": 2e-5}, SITE_KEYS, DisclosureError, ["2e-05", "1e-05", "max-delta"]),
    ({"epsilon": 10.1}, {**SITE_KEYS, "max-epsilon": 2.0}, DisclosureError, [2, "max-epsilon"]),
    ({"epsilon": 0.6}, {"max-epsilon": 0.5}, DisclosureError, ["0.6", "0.5", "max-epsilon"]),
    ({"epsilon": "infinity"}, {"max-epsilon": 0.5}, DisclosureError, ["inf", "0.5", "max-epsilon"]),
    ({"delta": 1e-6}, {"max-delta": 1e-7}, DisclosureError, ["1e-06", "1e-07", "max-delta"]),
    ({"epsilon": "infinity"}, SITE_KEYS, ConfigError, ["'epsilon'", "'infinity'"]),
    ({"noise_seed": 3}, SITE_KEYS, ConfigError, ["noise-seed", 3]),
    (DISTRIBUTED, SITE_KEYS, DisclosureError, [3, 1, "honest-parties"]),
    (DISTRIBUTED, {**SITE_KEYS, "honest-parties": 3}, ConfigError, ["trust='distributed'", "secure-aggregation=true"]),
    ({**DISTRIBUTED, "honest_parties": 4}, SITE_KEYS, ConfigError, ["honest-parties", 4, 3]),
]


@pytest.mark.parametrize(("options", "site", "error", "named"), TOO_LITTLE, ids=str)
def test_a_site_refuses_a_run_that_promises_less_than_it_wants(options, site, error, named, tmp_path):
    server = server_of("dp-pca", [rows(50)] * 3, **{**FRESH, **options}, site={"journal": str(tmp_path), **site})
    with refused(error, *named):
        finish(server)
    assert released(tmp_path) == []


@pytest.mark.parametrize("site", [SITE_KEYS, {**SITE_KEYS, "max-epsilon": 50.0, "max-delta": 0.01}, {}])
def test_a_site_answers_a_run_within_its_limits(site, tmp_path):
    within = {"epsilon": 10.0, "delta": 1e-5} if site == SITE_KEYS else {"epsilon": 50.0, "delta": 0.01}
    server = server_of("dp-pca", [rows(50)], **{**FRESH, **within}, site={"journal": str(tmp_path), **site})
    assert finish(server).n_components_ == 2


WAYS = [{}, JOINT, {"count": "public"}, {**DISTRIBUTED, "honest_parties": 2}]


@pytest.mark.parametrize("options", WAYS, ids=str)
def test_the_model_is_that_without_bit_for_bit(options):
    data, options = [part * 3 + 1 for part in parties()], {"n_components": 3, "epsilon": 2.0, **options}
    plain, secure = (harness.fit("dp-pca", data, secure_aggregation=way, **options) for way in (False, True))
    assert not differences(plain, secure)
    assert secure.log["measured"]["pairwise_masked_parties"] == 3
