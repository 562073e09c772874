"""Personalised PCA (Ozkara et al. 2023; gradients: tests/papers): own components, mu, solvers and the manifold."""

import numpy as np
import pytest
from scipy.linalg import eigh

from fedpca_flwr import run
from fedpca_flwr.errors import ConfigError, ContractError, DataError
from fedpca_flwr.maths.eigen import polar_factor
from fedpca_flwr.maths.eigen import principal_angles as angles_between
from fedpca_flwr.maths.moments import Moments
from fedpca_flwr.maths.rows import validation_rows
from fedpca_flwr.model.loadings import Loadings
from fedpca_flwr.model.reference import pooled_pca, principal_angles
from fedpca_flwr.protocol.journal import State
from fedpca_flwr.simulations.papers.hierarchical import Federation
from fedpca_flwr.strategies.personalised import method
from fedpca_flwr.strategies.personalised import mixing as module
from fedpca_flwr.strategies.personalised.mixing import local_components, personal_components, subspace_distance
from fedpca_flwr.strategies.personalised.own_rows import LocalRows, centre_local_moments, centre_local_rows
from fedpca_flwr.strategies.personalised.party import COMPONENTS_KEY, HELD_OUT_PREFIX, PersonalisedClient
from fedpca_flwr.strategies.personalised.stiefel import align, retract, symmetric_part, tangent_projection, transpose
from tests.families import rows
from tests.harness import blocks_added, finish, heard, proxy_of, server_of, tamper_arrays
from tests.maths.test_columns import KINDS, RNG, many_chunks  # noqa: F401
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
def test_larger_mu_is_nearer_to_the_shared_by_any_solver():
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
    parts, masked = [rows(5, 12, seed=i) for i in range(2)], {"secure_aggregation": True, "bound": 20.0}
    finished(parts, **masked, min_parties=2, n_components=8, iterations=1)
    with refused(ConfigError, "'n-components'", 9, 8, "'mu'"):
        finished(parts, **masked, min_parties=2, n_components=9)
    server = server_of("personalised", related(), n_components=3)
    tamper_arrays(server, 2, lambda arrays: [arrays[0] + 1, *arrays[1:]])
    with refused(ContractError, "client 2", 25, 24, 30):
        finish(server)


def test_shared_variances_and_held_out_errors_are_of_the_rows():
    parts = related(spread=0.2, m=3)
    for mu in (0.0, 1.0, "infinity"):
        model, _ = finished(parts, mu=mu, iterations=5)
        variances = np.cov(model.components_ @ np.vstack(parts).T).diagonal()
        np.testing.assert_allclose(model.explained_variance_, variances, rtol=1e-9)
    model, _ = finished(parts, iterations=2)
    out = [validation_rows(X, 42) for X in parts]
    used = [X[~chosen] for X, chosen in zip(parts, out, strict=True)]
    mean, V = np.vstack(used).mean(axis=0), pooled_pca(np.vstack(used), 3).components_.T
    components = {"local": [local_components(fitted - mean, V) for fitted in used], "global": [V] * 3}
    for which, by_party in components.items():
        rest = [(X[chosen] - mean) @ (np.eye(16) - U @ U.T) for X, chosen, U in zip(parts, out, by_party, strict=True)]
        measured = model.log["measured"][f"{which}_held_out_squared_error_per_row"]
        assert measured == pytest.approx(np.square(rest).sum() / 18, rel=1e-4)


@pytest.mark.engine
def test_the_last_round_measures_personal_errors():
    """Each iteration sends d k values up for each mu, and own components never leave."""
    parts = related()
    model, local = finished(parts, mu=1.0)
    error = sum(np.square(X - X @ U @ U.T).sum() for X, U in zip(centred(parts), local, strict=True)) / 180
    distance = sum(3 - np.square(model.components_ @ U).sum() for U in local)
    expected = {
        "squared_error_per_row": error,
        "predicted_squared_error_per_row": error,
        "objective_per_row": error + strength_of(parts, 1.0) * distance / 180,
        "own_from_shared_degrees": np.degrees(np.arcsin(np.sqrt(distance / (6 * 3)))),
    }
    assert {name: model.log["measured"][name] for name in expected} == pytest.approx(expected, rel=1e-5)
    sent = [entry["up"] for entry in model.log["rounds"] if entry["phase"] == "share"]
    assert len(sent) > 1
    assert sent == [[128 + 8 * 16 * 3] * 6] * len(sent)


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
    parts, options = related(m=3), {"n_components": 3, "mu": 1.0}
    files, scores = ([tmp_path / f"{party}.{end}" for party in "abc"] for end in ("npz", "npy"))
    model = run("personalised", dict(zip("abc", parts, strict=True)), **options, loadings=files, scores=scores)
    for X, name, file, own in zip(parts, "abc", files, map(np.load, scores), strict=True):
        U, loadings = model.own_components_[name], Loadings.load(file)
        np.testing.assert_array_equal(U, loadings.components)
        np.testing.assert_allclose(own, (X - model.mean_) @ U.T, atol=1e-12)
        np.testing.assert_allclose(loadings.part_of_scores(X), own, atol=1e-12)
        assert np.abs(own - model.transform(X)).max() > 0.1
        assert (np.diff(np.square(own).sum(axis=0)) < 0).all()
    np.testing.assert_array_equal(run("personalised", parts, **options).own_components_["party 2"], U)
    assert finished(parts, mu=1.0)[0].own_components_ is None
    shared = run("personalised", parts, **{**options, "mu": "infinity"})
    np.testing.assert_array_equal(list(shared.own_components_.values()), [shared.components_] * 3)


@pytest.mark.parametrize("start", ["pooled", "uniform"])
def test_deviations_set_the_strength_from_any_start(start):
    parts = related()
    expected, _ = finished(parts, mu=0.36 * 1.36 / 0.2**2 / strength_of(parts, 1.0), tolerance=1e-4)
    model, _ = finished(parts, mu="sigma", sigma_u=0.2, sigma_eps=0.6, start=start, tolerance=1e-4)
    assert principal_angles(model, expected).max < 0.01
    assert ("product" in {entry["phase"] for entry in model.log["rounds"]}) == (start == "pooled")


def test_ties_choose_the_largest_mu_and_false_sums_none():
    parts = related(m=2)
    total = 48 * np.vstack([X[~validation_rows(X, 42)] for X in parts]).var(axis=0).sum()
    for more, mu, best in ((0.9e-9, 1.0, 3), (1.1e-9, 0.1, 1)):
        server, errors = server_of("personalised", parts, n_components=3), np.array([3, 1, 2, 1 + more, 1.1, 2, 2, 2])
        for party in (0, 1):
            tamper_arrays(server, party, lambda _, said=(1 - party) * total * errors: [said], "choose")
        measured = finish(server).log["measured"]
        error = 12 * measured["held_out_squared_error_per_row"] / total
        assert (measured["mu"], error) == (mu, pytest.approx(errors[best], rel=1e-12))
    server = server_of("personalised", parts, n_components=3, mu=1.0)
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


def setting(n=20, d=12, r=3, m=6):
    rng = np.random.default_rng(0)
    U, V = (polar_factor(rng.standard_normal((d, r))) for _ in range(2))
    return rng.standard_normal((m, n, d)) * np.linspace(2, 0.5, d), U, V


def test_formulas_are_those_of_the_paper():
    rows, U, V = setting()
    turned, distance = U @ polar_factor(U.T @ V), 3 - np.square(V.T @ U).sum()
    value, dense = module.objective(rows[0], U, V, noise=0.5, spread=0.04), []
    for basis in (turned, U):  # equation (4) with its d x d matrices, and no turning
        W, prior = basis @ basis.T + 0.5 * np.eye(12), np.square(tangent_projection(V, basis)).sum() / (2 * 0.04)
        dense.append(np.linalg.slogdet(W)[1] * 20 / 2 + np.trace(np.linalg.solve(W, rows[0].T @ rows[0])) / 2 + prior)
    assert value == pytest.approx(dense[0], rel=1e-12)
    assert value < dense[1]
    distances = np.square(tangent_projection(V, turned)).sum(), subspace_distance(U, V)
    assert distances == pytest.approx((distance, distance), rel=1e-12)
    assert subspace_distance(V, V) < 1e-28
    turned = U @ polar_factor(np.random.default_rng(2).standard_normal((3, 3)))
    np.testing.assert_allclose(align(turned, U), U, atol=1e-14)


def test_solvers_give_leading_eigenvectors():
    rows, _, V = setting(n=7)
    strengths, several = np.array([0.5, 2.0]), np.array([V, V[:, ::-1]])
    for i in range(2):
        one = personal_components(rows[0], several[i], strengths[i], several[i])
        assert angles_between(personal_components(rows[0], several, strengths, several)[i], one).max() < 1e-6
    rows, U, V = setting(n=40, d=30, r=3)
    gains = []
    for _ in range(7):
        gains.append(np.square(rows[0] @ U).sum() + 2.0 * np.square(V.T @ U).sum())
        U = personal_components(rows[0], V, 2.0, U)
    assert (np.diff(gains) >= -1e-10).all()
    for n in (2, 4, 9, 40):
        rows, _, V = setting(n=n)
        scatter, rank = rows[0].T @ rows[0], min(n, 3)
        own = module.converged_components(rows[0], V, 5.0, V)
        assert angles_between(own, eigh(scatter + 5.0 * V @ V.T)[1][:, -3:]).max() < 1e-5
        own = local_components(rows[0], V)
        np.testing.assert_allclose(own.T @ own, np.eye(3), atol=1e-13)
        assert angles_between(own[:, :rank], eigh(scatter)[1][:, -rank:]).max() < 1e-6
        if n == 2:  # a PCA of few rows is filled by what it is given
            assert angles_between(own, personal_components(rows[0], V, 1e-9, V)).max() < 1e-3
            assert subspace_distance(local_components(np.zeros((2, 12)), V), V) < 1e-25
    # The fault: products of such rows lie in the span of the start, and a Cholesky factor of their rest is noise.
    U = V = np.eye(40, 4)
    rows = np.hstack([np.random.default_rng(3).standard_normal((60, 6)), np.zeros((60, 34))])
    for _ in range(30):
        U = personal_components(rows, V, np.array([2.0, 50.0]), U)
    np.testing.assert_allclose(transpose(U) @ U, np.broadcast_to(np.eye(4), (2, 4, 4)), atol=1e-12)
    for found, strength in zip(U, (2.0, 50.0), strict=True):
        assert angles_between(found, eigh(rows.T @ rows + strength * V @ V.T)[1][:, -4:]).max() < 1e-5


def test_held_out_rows_do_not_depend_on_order_or_unit():
    X, order = np.random.default_rng(4).standard_normal((53, 4)), np.random.default_rng(5).permutation(53)
    assert validation_rows(X, 1).sum() == 10
    np.testing.assert_array_equal(validation_rows(X[order], 1), validation_rows(X, 1)[order])
    assert (validation_rows(X, 1) != validation_rows(X, 2)).any()
    counts = np.arange(24, dtype=np.uint8).reshape(8, 3)
    np.testing.assert_array_equal(validation_rows(counts, 1), validation_rows(counts.astype(float), 1))
    in_units = [validation_rows(unit * X, 1) for unit in (2.0**-300, 2.0, 2.0**300)]
    np.testing.assert_array_equal(in_units, [validation_rows(X, 1)] * 3)
    np.testing.assert_array_equal(*(validation_rows(np.where(X > 0, X, zero), 1) for zero in (0.0, -0.0)))


def test_perpca_separates_shared_components():
    rng = np.random.default_rng(6)
    basis, _ = np.linalg.qr(rng.standard_normal((10, 10)))
    truth = np.array([basis[:, [0, 1, 2 + i]] for i in range(4)])
    rows = (rng.standard_normal((4, 400, 3)) * [3, 2, 1.5]) @ np.swapaxes(truth, 1, 2)
    rows = rows + 0.05 * rng.standard_normal(rows.shape)
    _, _, vectors = np.linalg.svd(rows.reshape(-1, 10), full_matrices=False)
    found = module.perpca(rows, vectors[:3].T, 2)
    assert angles_between(found[0][:, :2], basis[:, :2]).max() < 1
    assert max(angles_between(one, true).max() for one, true in zip(found, truth, strict=True)) < 1
    for U in module.perpca(rows, vectors[:3].T, 1, iterations=2):
        np.testing.assert_allclose(U.T @ U, np.eye(3), atol=1e-12)


@pytest.mark.parametrize("several", [(), (4,)], ids=["one", "a stack"])
def test_tangents_and_retractions_of_a_point(several):
    rng = np.random.default_rng(0)
    U, X = polar_factor(rng.standard_normal((*several, 9, 3))), rng.standard_normal((*several, 9, 3))
    T, other = tangent_projection(U, X), tangent_projection(U, rng.standard_normal(U.shape))
    np.testing.assert_allclose(symmetric_part(transpose(U) @ T), 0, atol=1e-14)
    np.testing.assert_allclose(tangent_projection(U, T), T, atol=1e-14)
    np.testing.assert_allclose(np.vdot(X - T, other), 0, atol=1e-12)
    for length in (1e-8, 1.0, 1e6):
        end = retract(U, length * T)
        np.testing.assert_allclose(transpose(end) @ end, np.broadcast_to(np.eye(3), (*several, 3, 3)), atol=1e-13)
    # Lemma 1: the distance to U + tX falls with the square of t.
    left = [np.linalg.norm(retract(U, t * T) - (U + t * T)) for t in (1e-2, 1e-3)]
    assert left[0] / left[1] == pytest.approx(100, rel=0.05)
    np.testing.assert_array_equal(retract(U, 0 * T), U)


def both_held(X, centre):
    none = np.zeros(centre.size)
    return centre_local_rows(X, centre, none), centre_local_moments(Moments.from_rows(X), centre, none)


def test_rows_and_moments_give_products_and_no_rounding():
    X, centre = KINDS["array"], RNG.standard_normal(40)
    about, V = X - centre, RNG.standard_normal((2, 40, 3))
    for held in both_held(KINDS["blocks"], centre):
        np.testing.assert_allclose(held.gram(V[0]), (about @ V[0]).T @ (about @ V[0]), rtol=1e-9)
        found, product = (module.scatter_times(own, V) for own in (held, about))
        np.testing.assert_allclose(found, product, rtol=1e-10, atol=1e-10 * np.abs(product).max())
        assert module.row_energy(held) == pytest.approx(module.row_energy(about), rel=1e-12)
        assert module.largest_eigenvalue(held) == pytest.approx(module.largest_eigenvalue(about), rel=1e-10)
        basis, _ = np.linalg.qr(V[0])
        residual = np.square(about - about @ basis @ basis.T).sum()
        assert held.residual_energy(basis) == pytest.approx(residual, rel=1e-10)
        assert held.shape == X.shape
    # The adversary: a server whose mean near 2^53 turned the last bits of U, of any rows, into errors of 1e18.
    for n in [8, 90]:
        X, centre = RNG.standard_normal((n, 40)), np.zeros(40)
        centre[:2] = -(2.0**54), -(2.0**53)
        basis, _ = np.linalg.qr(np.column_stack([centre, RNG.standard_normal((40, 2))]))
        deviations = (X - X.mean(axis=0)) @ (np.eye(40) - basis @ basis.T)
        turns = np.eye(3), np.linalg.qr(RNG.standard_normal((3, 3)))[0]  # of the same span
        energies = [held.residual_energy(basis @ turn) for held in both_held(X, centre) for turn in turns]
        assert energies == pytest.approx([np.square(deviations).sum()] * 4, rel=1e-9)


def test_energy_is_about_the_centre_in_all_units():
    """Rows 1 and 3 about 1: 4, of which half lies between their mean and the centre."""
    own = centre_local_rows(np.array([[1.0, 0.0], [3.0, 0.0]]), np.array([1.0, 0.0]), np.zeros(2))
    np.testing.assert_allclose(own.shift, [np.sqrt(2), 0.0])
    np.testing.assert_allclose(own.energy, 4.0)
    for seed in range(30):
        basis, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((6, 6)))
        assert centre_local_rows(rows(6, 6, seed=seed), np.ones(6), np.zeros(6)).residual_energy(basis) >= 0
    # Numbers far apart count for nothing or are refused.
    own = LocalRows(np.array([[0.0, 1.0], [0.0, -1.0]]), np.zeros(2))
    found = own.times_scaled(np.array([[1.0, 0.0, 1e-150], [1e-150, 1e-150, 1e-150]]))
    np.testing.assert_array_equal(found, [[0, 0, 0], [0, 2e-150, 2e-150]])
    X = np.array([[1.0, 0.0], [3.0, 0.0]])
    shift = centre_local_rows(X, np.ones(2), np.array([0.5, 0.0])).shift
    np.testing.assert_allclose(shift, [np.sqrt(0.5), -np.sqrt(2)])
    with refused(ContractError):
        centre_local_rows(X, np.full(2, 1e160), np.zeros(2))
