"""Personalised PCA: own components that stay with the parties, mu and its limits, two solvers."""

from types import SimpleNamespace

import numpy as np
import pytest

from fedpca_flwr import run
from fedpca_flwr.errors import ConfigError, ContractError, DataError
from fedpca_flwr.maths.eigen import principal_angles as angles_between
from fedpca_flwr.maths.rows import validation_rows
from fedpca_flwr.model.loadings import Loadings
from fedpca_flwr.model.reference import pooled_pca, principal_angles
from fedpca_flwr.protocol.journal import State
from fedpca_flwr.simulations.papers.hierarchical import Federation
from fedpca_flwr.strategies.personalised import method
from fedpca_flwr.strategies.personalised.mixing import local_components
from fedpca_flwr.strategies.personalised.party import COMPONENTS_KEY, HELD_OUT_PREFIX, PersonalisedClient
from tests.families import rows
from tests.harness import blocks_added, finish, heard, proxy_of, server_of, tamper_arrays
from tests.refusals import refused


def related(spread=0.04, m=6, n=30, d=16, r=3):
    return list(Federation.draw(d=d, r=r, m=m, n=n, spread=spread, seed=1).rows + np.arange(d))


def finished(parts, **options):
    server = server_of("personalised", parts, **{"n_components": 3, "iterations": 100, **options})
    model = finish(server)
    states = [State(proxy_of(server, i).context.state) for i in range(len(parts))]
    return model, [state[COMPONENTS_KEY][0][0] if COMPONENTS_KEY in state else None for state in states]


def centred(parts):
    mean = np.vstack(parts).mean(axis=0)
    return [X - mean for X in parts]


def strength_of(parts, mu):
    return mu * np.linalg.svd(np.vstack(centred(parts)), compute_uv=False)[2] ** 2 / len(parts)


@pytest.mark.engine
def test_ends_of_mu_are_local_and_pooled_pca():
    parts = related()
    local, alone = finished(parts, mu=0.0)
    for X, U in zip(centred(parts), alone, strict=True):
        assert angles_between(U, local_components(X, U)).max() < 1e-6
        assert (np.diff(np.square(X @ U).sum(axis=0)) < 0).all()
    assert local.log["measured"]["mu"] == 0
    pooled, by_party = finished(parts, mu="infinity")
    assert principal_angles(pooled, pooled_pca(np.vstack(parts), 3)).max < 1e-6
    np.testing.assert_allclose(pooled.explained_variance_, pooled_pca(np.vstack(parts), 3).explained_variance_)
    assert by_party == [None] * 6
    assert pooled.log["measured"]["own_from_shared_degrees"] < 1e-10
    # Between the ends it tends to them.
    _, by_party = finished(parts, mu=1e-7)
    assert max(angles_between(U, W).max() for U, W in zip(by_party, alone, strict=True)) < 0.01
    model, by_party = finished(parts, mu=1e7)
    assert principal_angles(model, pooled).max < 0.01
    assert max(angles_between(U, pooled.components_.T).max() for U in by_party) < 0.01
    # About zero.
    model, _ = finished(parts, mu="infinity", center=False)
    assert not model.mean_.any()
    assert principal_angles(model, pooled_pca(np.vstack(parts), 3, center=False)).max < 1e-6
    _, by_party = finished(parts, mu=0.0, center=False)
    assert angles_between(by_party[0], local_components(parts[0], by_party[0])).max() < 1e-6


@pytest.mark.engine
def test_larger_mu_is_nearer_to_the_shared():
    parts, distances = related(spread=0.2, m=3), []
    for mu in (0.3, 3.0, 30.0):
        model, by_party = finished(parts, mu=mu, iterations=20)
        distances.append(max(angles_between(U, model.components_.T).max() for U in by_party))
    assert distances[0] > distances[1] > distances[2] > 0.1
    near, _ = finished(related(spread=1e-4, n=20), iterations=10)
    unrelated, _ = finished(related(spread=5.0, m=3, n=200), iterations=5)
    assert near.log["measured"]["mu"] >= 3
    assert near.log["measured"]["held_out_rows"] == 24
    assert unrelated.log["measured"]["mu"] in {0, 0.1}
    assert unrelated.summary(full=True).count("per row, local") == 1


@pytest.mark.engine
def test_solvers_and_tall_parties_reach_the_same_objective():
    parts = related()
    closed, _ = finished(parts, mu=1.0)
    descended, _ = finished(parts, mu=1.0, solver="stiefel", iterations=1500)
    objectives = [model.log["measured"]["objective_per_row"] for model in (closed, descended)]
    assert objectives[1] == pytest.approx(objectives[0], abs=5e-3)
    assert "iterations (stiefel)" in descended.summary(full=True)
    # There components are improved from those kept, round by round, instead of computed anew.
    parts = related(n=200, d=24)
    objectives = [finished(parts, mu=1.0, iterations=n)[0].log["measured"]["objective_per_row"] for n in (2, 5, 50)]
    assert objectives[0] >= objectives[1] >= objectives[2]


@pytest.mark.parametrize("secure", [{}, {"secure_aggregation": True, "bound": 2.0, "min_parties": 2}], ids=str)
def test_refusals_of_training_rows_name_them(secure):
    """The fault: all rows were said to be identical, though two differ."""
    part = np.ones((5, 2))
    (chosen,) = np.flatnonzero(validation_rows(part, 0))
    part[chosen, 0] = 1.25
    assert validation_rows(part, 0)[chosen]
    with refused((DataError, ConfigError), "'mu'", match="identical|variance"):
        run("personalised", [part, part], n_components=1, min_rows=1, **secure)
    assert run("personalised", [part, part], n_components=1, mu=1.0, min_rows=1, **secure).total_variance > 0


@pytest.mark.engine
def test_parties_too_small_or_that_hold_out_other_rows_are_told():
    parts = [rows(4, 6, seed=i) for i in range(5)]
    model, _ = finished(parts)
    assert any("no party has 5 rows" in note for note in model.log["notes"])
    assert principal_angles(model, pooled_pca(np.vstack(parts), 3)).max < 1e-6
    server = server_of("personalised", related(), n_components=3)
    tamper_arrays(server, 2, lambda arrays: [arrays[0] + 1, *arrays[1:]])
    with refused(ContractError, "client 2", 25, 24, 30):
        finish(server)


@pytest.mark.parametrize("mu", [0.0, 1.0, "infinity"])
def test_shared_variances_are_those_of_the_rows(mu):
    parts = related(spread=0.2, m=3)
    model, _ = finished(parts, mu=mu, iterations=5)
    V = model.components_
    np.testing.assert_allclose(model.explained_variance_, np.diag(V @ np.cov(np.vstack(parts).T) @ V.T), rtol=1e-9)


def test_held_out_rows_measure_the_error():
    parts = related(spread=0.2, m=3)
    model, _ = finished(parts, iterations=2)
    out = [validation_rows(X, 42) for X in parts]
    used = [X[~chosen] for X, chosen in zip(parts, out, strict=True)]
    mean, V = np.vstack(used).mean(axis=0), pooled_pca(np.vstack(used), 3).components_.T
    components = {"local": [local_components(fitted - mean, V) for fitted in used], "global": [V] * 3}
    for which, by_party in components.items():
        rest = [(X[chosen] - mean) @ (np.eye(16) - U @ U.T) for X, chosen, U in zip(parts, out, by_party, strict=True)]
        measured = model.log["measured"][f"{which}_held_out_squared_error_per_row"]
        assert measured == pytest.approx(np.square(rest).sum() / 18, rel=1e-4)


def test_every_party_projects_by_its_own_components(tmp_path):
    parts, files = related(), {"scores": str(tmp_path / "scores.npy"), "loadings": str(tmp_path / "own.npz")}
    model, local = finished(parts, mu=1.0, site=files)
    last = np.load(files["scores"])  # every party writes there; the last one's stay
    np.testing.assert_allclose(last, (parts[5] - model.mean_) @ local[5], atol=1e-12)
    assert np.abs(last - model.transform(parts[5])).max() > 0.1
    np.testing.assert_allclose(Loadings.load(files["loadings"]).part_of_scores(parts[5]), last, atol=1e-12)


@pytest.mark.engine
def test_the_last_round_measures_personal_errors():
    """Each iteration sends d k values up for each mu, and own components never leave."""
    parts = related()
    model, local = finished(parts, mu=1.0)
    error = sum(np.square(X - X @ U @ U.T).sum() for X, U in zip(centred(parts), local, strict=True)) / 180
    measured, predicted = (model.log["measured"][f"{which}squared_error_per_row"] for which in ("", "predicted_"))
    assert measured == pytest.approx(error, rel=1e-5)
    assert predicted == pytest.approx(error, rel=1e-5)
    distance = sum(3 - np.square(model.components_ @ U).sum() for U in local)
    objective = error + strength_of(parts, 1.0) * distance / 180
    assert model.log["measured"]["objective_per_row"] == pytest.approx(objective, rel=1e-5)
    degrees = np.degrees(np.arcsin(np.sqrt(distance / (6 * 3))))
    assert model.log["measured"]["own_from_shared_degrees"] == pytest.approx(degrees, rel=1e-5)
    sent = [set(entry["up"]) for entry in model.log["rounds"] if entry["phase"] == "share"]
    assert len(sent) > 1
    assert all(sizes == {128 + 8 * 16 * 3} for sizes in sent)


@pytest.mark.engine
def test_a_run_that_is_cut_short_says_so():
    parts = related(spread=0.2)
    server = server_of("personalised", parts, n_components=3, mu=0.3, iterations=2)
    exchanged = heard(server, 0)
    finish(server)
    first, second = (exchange.asked[0][0] for exchange in exchanged if exchange.phase == "share")
    model, local = finished(parts, mu=0.3, iterations=1)
    moved = np.degrees(np.arcsin(np.sqrt(3 - np.square(first.T @ second).sum())))
    assert f"stopped after iterations = 1; V still moved by {moved:.2g} degrees (tolerance 0.018)" in model.log["notes"]
    V, strength = model.components_.T, strength_of(parts, 0.3)
    for X, U in zip(centred(parts), local, strict=True):
        assert angles_between(U, np.linalg.eigh(X.T @ X + strength * V @ V.T)[1][:, -3:]).max() < 1e-3


@pytest.mark.parametrize(("options", "iterations"), [({}, 2), ({"tolerance": 0.02}, 1), ({"tolerance": 0.0}, 4)])
def test_iterations_end_where_the_shared_components_rest(options, iterations, monkeypatch):
    moves = iter([1.2e-7, 5e-8, 1e-12, 0.0])  # squared sines: by default up to 1e-7
    monkeypatch.setattr(method, "subspace_distance", lambda *_: np.array([next(moves)]))
    model, _ = finished(related(), mu=1.0, **options)
    assert model.log["measured"]["objective_iterations"] == iterations
    assert not any("stopped" in note for note in model.log["notes"])


def test_a_simulated_model_has_the_components_that_each_partys_file_has(tmp_path):
    """The fault: a real server, which the parties never send these, would have them too."""
    parts, files = related(m=3), [tmp_path / f"{party}.npz" for party in "abc"]
    model = run("personalised", dict(zip("abc", parts, strict=True)), n_components=3, mu=1.0, loadings=files)
    for X, name, file in zip(centred(parts), "abc", files, strict=True):
        U = model.own_components_[name]
        np.testing.assert_array_equal(U, Loadings.load(file).components)
        assert (np.diff(np.square(X @ U.T).sum(axis=0)) < 0).all()
    np.testing.assert_array_equal(run("personalised", parts, n_components=3, mu=1.0).own_components_["party 2"], U)
    assert finished(parts, mu=1.0)[0].own_components_ is None
    shared = run("personalised", parts, n_components=3, mu="infinity")
    np.testing.assert_array_equal(list(shared.own_components_.values()), [shared.components_] * 3)


@pytest.mark.parametrize("start", ["pooled", "uniform"])
def test_deviations_set_the_strength_from_any_start(start):
    parts = related()
    expected, _ = finished(parts, mu=0.36 * 1.36 / 0.2**2 / strength_of(parts, 1.0), tolerance=1e-4)
    model, _ = finished(parts, mu="sigma", sigma_u=0.2, sigma_eps=0.6, start=start, tolerance=1e-4)
    assert principal_angles(model, expected).max < 0.01
    assert ("product" in {entry["phase"] for entry in model.log["rounds"]}) == (start == "pooled")


def test_equal_errors_choose_the_largest_mu():
    assert method._best_mu(np.array([3, 1, 2, 1 + 1e-9, 1.1, 2, 2, 2]), 10.0) == ((1.0,), 3)
    assert method._best_mu(np.array([3, 1, 2, 1 + 1e-7, 1.1, 2, 2, 2]), 10.0) == ((0.1,), 1)
    run_of_three = SimpleNamespace(options=SimpleNamespace(n_components=3))
    method.Personalised._require_enough_rows(run_of_three, 3)
    with refused(ConfigError, "'n-components'", 3, 2):
        method.Personalised._require_enough_rows(run_of_three, 2)


def test_parts_that_no_orthonormal_columns_add_up_to_are_refused():
    server = server_of("personalised", related(m=2), n_components=3, mu=1.0)
    tamper_arrays(server, 0, lambda arrays: [3e6 * np.sign(arrays[0])], "share")
    with refused(ContractError, "orthonormal"):
        finish(server)


def test_the_rounding_of_fixed_point_is_in_the_pca_of_all_rows(monkeypatch):
    """Each entry of a product is off by a step of four words for each party."""
    parts, added = related(m=3), blocks_added(monkeypatch)
    run("personalised", parts, n_components=3, mu="infinity", secure_aggregation=True, bound=100.0)
    reach = 100.0 + np.abs(np.vstack(parts).mean(axis=0))
    assert added
    for V, error in added:
        assert 3 * 2.0**-240 < error / (2.0**33 * np.linalg.norm(np.outer(reach, reach @ np.abs(V)))) < 3 * 2.0**-230


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("secure", [{}, {"secure_aggregation": True, "bound": 20.0}], ids=["clear", "masked"])
def test_all_questions_of_a_pass_tell_the_same_mean(secure, center, monkeypatch):
    """A site may compare a later question of the pass with an earlier question."""
    means, honest = {}, PersonalisedClient.statistics

    def listen(client, phase, request):
        for name in {"mean", "remainder"} & set(request) if phase != "project" else ():
            first = phase.startswith(HELD_OUT_PREFIX) or phase == "choose"
            means.setdefault((first, name), {}).setdefault(request[name].tobytes(), set()).add(phase)
        return honest(client, phase, request)

    monkeypatch.setattr(PersonalisedClient, "statistics", listen)
    finish(server_of("personalised", related(), n_components=2, iterations=2, center=center, **secure))
    assert len(means) == 4
    for (first, _), values in means.items():
        (phases,) = values.values()
        assert len(phases) == (3 if first or any("share" in phase for phase in phases) else 2)
