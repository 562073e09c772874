"""DP-PCA by directions: no bound to guess, and what one row changes, whatever the data and the server."""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy.optimize import minimize

from fedpca_flwr.maths.moments import diagonal_positions, pack
from fedpca_flwr.maths.privacy import (
    STEPS,
    composed,
    gaussian_multiplier,
    whole_energies,
    whole_octaves,
    whole_shells,
    whole_squares,
)
from fedpca_flwr.maths.shells import combined
from fedpca_flwr.model.reference import pooled_pca
from strategies.dp_pca.method import DPPCA
from strategies.dp_pca.party import SHARES, DPOptions, DPPCAClient
from tests.families import cut, rows
from tests.harness import client_of, fit, server_of
from tests.refusals import unnamed

D = 12
FRESH = {"noise_seed": 0, "n_components": 2}


def parties(scale=1.0, offset=0.0):
    return [part * scale + offset for part in cut(rows(6000), 4000, 1500, 500)]


def held(model, data):
    """What the components hold of the variance that the best ones do."""
    centred = data - data.mean(axis=0)
    best = np.linalg.svd(centred, compute_uv=False)[: model.n_components_]
    return float(((centred @ model.components_.T) ** 2).sum() / (best**2).sum())


# What it finds


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
@pytest.mark.parametrize(("scale", "offset"), [(1.0, 0.0), (1e-30, 0.0), (1e12, 1e13), (1.0, 300.0)])
def test_rows_of_any_unit_and_far_from_zero_need_no_option(scale, offset, relation):
    """The components and variances of the pooled rows: at 300 deviations from zero, too."""
    data = parties(scale, offset)
    truth = pooled_pca(np.vstack(data), 3)
    model = fit("dp-pca", data, n_components=3, epsilon=8.0, relation=relation)
    assert held(model, np.vstack(data)) > 0.98
    noise = 0.05 * truth.explained_variance_[0]
    np.testing.assert_allclose(model.explained_variance_, truth.explained_variance_, rtol=0.1, atol=noise)
    np.testing.assert_allclose(model.mean_, truth.mean_, atol=0.2 * scale)
    assert model.log["measured"]["components_above_noise"] == 3


@pytest.mark.engine
def test_rows_that_are_far_off_do_no_harm():
    """Every twentieth row is replaced by 1e6 in each feature: with a clip it would be the first component."""
    data = np.vstack(parties())
    dirty = data.copy()
    dirty[::20] = 1e6
    for release, left in (("shells", 0.95), ("directions", 0.99)):
        clean, spoilt, more = (
            fit("dp-pca", np.array_split(X, 3), n_components=k, epsilon=8.0, release=release)
            for X, k in ((data, 4), (dirty, 4), (dirty, 5))
        )
        assert held(spoilt, data) > held(clean, data) - 0.05  # of 12 features, it takes one of four components
        centred = data - data.mean(axis=0)
        assert ((centred @ more.components_.T) ** 2).sum() > ((centred @ clean.components_.T) ** 2).sum() * left


@pytest.mark.engine
@pytest.mark.parametrize(
    ("options", "length"),
    [({}, 4.9), ({}, 1e6), ({"count": "public"}, 0.0), ({"relation": "replace-one", "epsilon": 10.0}, 4.9)],
    ids=str,
)
def test_rows_without_variance_show_no_component(options, length):
    """They are all in one direction from a centre that has noise, and this says nothing of them."""
    alike = [np.full((200, D), length / np.sqrt(D))] * 16
    for seed in (1, 2):
        model = fit("dp-pca", alike, n_components=3, **{**options, "noise_seed": seed})
        assert model.log["measured"]["components_above_noise"] == 0, seed


def test_the_model_says_what_it_promises_and_shares_of_what_stands_out_only():
    model = fit("dp-pca", parties(), **FRESH, epsilon=1.0)
    text = model.summary()
    for part in (
        "epsilon 1, delta 1e-05, add-remove, of one row",
        "26.3795 (centre)",
        "3.93243 (directions)",
        "components are those of the rows' directions by shells of distances",
        "not covered: errors and refusals, timing",
    ):
        assert part in text
    assert "row counts" not in text
    model = fit("dp-pca", parties(), n_components=9, epsilon=1.0)
    above = model.log["measured"]["components_above_noise"]
    assert 5 < above < 9
    shares = ", ".join(f"{share:.2%}" for share in model.explained_variance_ratio_[:5])
    held = float(model.explained_variance_ratio_[:above].sum())
    assert f"{held:.4%} by the {above} that stand out of the noise (first: {shares})" in model.summary()
    assert model.log["variance_intervals"][above:] == [None] * (9 - above)


@pytest.mark.engine
def test_intervals_of_variances_hold_the_true_ones():
    """Of 45 at 90 %, 37 or more but for chance of 1 in 100; none is told of a component that the noise hides."""
    truth, inside = pooled_pca(np.vstack(parties()), 3).explained_variance_, 0
    for seed in range(1, 16):
        model = fit("dp-pca", parties(), n_components=3, epsilon=1.0, noise_seed=seed)
        known = model.log["variance_intervals"]
        inside += sum(low <= value <= high for (low, high), value in zip(known, truth, strict=True))
    assert inside >= 37
    tiny = fit("dp-pca", cut(rows(40), 20, 20), n_components=2, epsilon=0.1)
    assert tiny.log["variance_intervals"] == [None, None]


def test_the_variance_behind_the_components_keeps_its_share_of_the_last():
    """Of one shell the variances are told, and of two they are those of the sums."""
    sums = np.array([pack(np.diag(one)) for one in ([900.0, 500, 300, 0, 0, 0], [90.0, 50, 0, 0, 60, 60])])
    energies, shells = np.array([1000.0, 100.0]), np.array([[0.0, 4.0, 0.0], [4.0, 64.0, 0.0]])
    run = SimpleNamespace(quorum=SimpleNamespace(features=6))
    told, noise = {"squares": np.array([3000.0, 1000.0, 500.0]), "rows": 1000.0}, {"squares": 1.0, "rows": 1.0}
    for number, expected in ((1, [3000.0, 1000.0]), (2, None)):
        of_all = combined(sums[:number], energies[:number], shells[:number], 6, 2, 20.0)
        before, found = of_all.found.pairs, DPPCA._with_variances(run, of_all, told, noise, 0.1).pairs
        np.testing.assert_array_equal(found.values, before.values if expected is None else expected)
        assert found.following / found.values[-1] == pytest.approx(before.following / before.values[-1])


# What one row changes


def claimed(phase, relation):
    """By how much one row changes what a phase tells, each number in deviations of its noise, at most."""
    return 1 / DPOptions(relation=relation, count="public", epsilon=1.0).noise(phase).multiplier


def in_deviations(phase, relation, **told):
    """What a phase tells, so; products off the diagonal stand for two entries of half the variance."""
    of = DPOptions(relation=relation, count="public", epsilon=1.0).noise(phase).of
    if "products" in told:
        told["products"] = told["products"] * (2 - np.eye(4)[np.triu_indices(4)]) ** 0.5
    return np.concatenate([np.ravel(values) / of[name] for name, values in told.items()])


CENTRE = np.array([0.5, -2.0, 1.0, 0.0])
SHELLS = np.array([[0.0, 2.0, 0.0], [2.0, 8.0, 8.0], [8.0, 64.0, 16.0]])
"""The first has directions only, in the others rows keep their length up to the end, and up to a part of it."""
BASIS = np.linalg.qr(rows(4, 4))[0][:2]
TELLS = {
    "octaves": lambda data: {"octaves": whole_octaves(data, CENTRE)},
    "directions": lambda data: {
        "octaves": whole_octaves(data, CENTRE),
        "energies": whole_energies(data, CENTRE, SHELLS),
        "products": whole_shells(data, CENTRE, SHELLS),
    },
    "variances": lambda data: {"squares": whole_squares(data, CENTRE, BASIS, 2.5)},
}


@pytest.mark.engine
@pytest.mark.parametrize("phase", TELLS)
@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_a_search_for_neighbours_reaches_each_sensitivity_and_never_exceeds_it(phase, relation):
    """On the grid, and with rows of any length: the search moves two rows and their lengths."""
    allowed = claimed(phase, relation)
    others = rows(5, 4)

    def tell(data):
        return in_deviations(phase, relation, **TELLS[phase](data))

    def change(flat):
        pair = flat.reshape(2, 1, 4)
        after = others if relation == "add-remove" else np.vstack([others, pair[1]])
        return float(np.linalg.norm(tell(np.vstack([others, pair[0]])) - tell(after)))

    starts = np.random.default_rng(0).standard_normal((8, 8))[[1, 2, 6, 7]] * [[1], [3], [1e9], [1e100]]
    found = max(max(change(start), -minimize(lambda x: -change(x), start, method="Powell").fun) for start in starts)
    assert 0.99 * allowed <= found <= allowed


def test_budgets_are_spent_and_noise_is_drawn_for_each_phase():
    options = DPOptions(epsilon=1.0)
    assert sum(SHARES["shells"].values()) == pytest.approx(1.0, abs=1e-12)
    together = composed(options.noise(phase).multiplier for phase in options.phases)
    assert together >= gaussian_multiplier(1.0, 1e-5) * (1 - 1e-12)
    # Of a fixed seed, too: the same counts are told with other noise.
    party = client_of(server_of("dp-pca", parties(), n_components=3, noise_seed=7), 0)
    assert isinstance(party, DPPCAClient)
    first = party._noisy("octaves", {})["octaves"]
    again = party._noisy("nearer_octaves", {"centre": np.zeros(party.data.shape[1])})["octaves"]
    assert (first != again).mean() > 0.9


ASKED = {
    "octaves": [],
    "centre": [np.asarray(4.0)],
    "nearer_octaves": [np.ones(D)],
    "nearer_centre": [np.ones(D), np.asarray(2.0)],
    "directions": [np.ones(D), SHELLS],
    "variances": [np.ones(D), np.asarray(2.0), np.eye(D)[:2]],
}


@pytest.mark.parametrize("trust", [{}, {"trust": "distributed", "honest_parties": 2}], ids=["local", "distributed"])
def test_each_answer_has_the_noise_that_it_needs(trust, monkeypatch):
    """Each number as large as its deviation: the answer less that is what the rows say."""
    monkeypatch.setattr("fedpca_flwr.maths.privacy.gaussian", lambda size, deviation, source: np.full(size, deviation))
    data = rows(50)
    server = server_of("dp-pca", [data] * 3, **FRESH, **trust)
    whole = gaussian_multiplier(1.0, 1e-5) * STEPS**2 / trust.get("honest_parties", 1) ** 0.5
    for phase, asked in ASKED.items():
        told, _, said = client_of(server, 0).fit(asked, {"phase": phase})
        assert "error" not in said
        added = whole / SHARES["shells"][phase] ** 0.5
        if phase == "directions":
            added *= np.sqrt(1 + 2 * 0.1**2)  # and how far the rows are, by octaves and by shells
            noise = np.ravel((told[2] - whole_shells(data, np.ones(D), SHELLS))[:, diagonal_positions(D)])
            energies = told[1] - whole_energies(data, np.ones(D), SHELLS)
            np.testing.assert_allclose(energies, 10 * noise[0], rtol=1e-3)
        elif phase == "variances":
            noise = told[1] - whole_squares(data, np.ones(D), np.eye(D)[:2], 2.0)
            added *= np.hypot(1, 0.3)  # a number of rows is told beside
        elif "octaves" in phase:
            noise, added = told[0] - whole_octaves(data, asked[0] if asked else np.zeros(D)), added / STEPS
        else:
            continue  # as in two stages
        np.testing.assert_allclose(noise, added, rtol=1e-3)


def test_each_shell_has_noise_of_its_own():
    server = server_of("dp-pca", [rows(50)], **FRESH)
    for phase in ASKED:
        told, _, _ = client_of(server, 0).fit(ASKED[phase], {"phase": phase})
        if phase == "directions":
            noise = told[2] - whole_shells(rows(50), np.ones(D), SHELLS)
            assert np.abs(np.corrcoef(noise) - np.eye(3)).max() < 5 / np.sqrt(noise.shape[1])
            return


# A server that lies


@pytest.mark.parametrize("bound", [5e-324, 1e-200, 1e200])
def test_a_bound_that_no_rows_give_is_refused(bound):
    server = server_of("dp-pca", [rows(50)], **FRESH)
    client_of(server, 0).fit(ASKED["octaves"], {"phase": "octaves"})
    arrays, _, said = client_of(server, 0).fit([np.asarray(bound)], {"phase": "centre"})
    assert (arrays, said["error"]) == ([], "ContractError")
    assert not unnamed(said["message"], "'bound'", f"{bound:g}", "3.05494e-151", "3.27339e+150")


@pytest.mark.parametrize("size", [1e-300, 1.0, 1e150, 1e300])
def test_no_centre_and_no_bound_makes_a_row_count_for_more(size):
    """Whatever is asked about, answers are whole numbers within what so many rows can make them."""
    data = rows(20)
    for centre in (np.zeros(D), np.full(D, size)):
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            told = [
                whole_octaves(data, centre) / STEPS,
                whole_shells(data, centre, SHELLS)[:, diagonal_positions(D)] / STEPS**2,
                whole_energies(data, centre, SHELLS) / STEPS**2,
                whole_squares(data, centre, np.eye(D)[:2], size) / STEPS**2,
            ]
        for values in told:
            assert np.isfinite(values).all()
            assert values.sum() <= len(data)
