"""What only DSA and FAST-PCA have: convergence over a graph, a server that only relays, each party's own estimate."""

from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from fedpca_flwr.errors import ConfigError, ContractError
from fedpca_flwr.maths.eigen import principal_angles
from fedpca_flwr.maths.graph import diameter, graph_of, orthonormalised
from fedpca_flwr.model.reference import pooled_pca
from simulations import run
from tests.families import rows
from tests.harness import client_of, finish, heard, on_request, server_of
from tests.refusals import refused, unnamed

DECENTRALISED = ["dsa", "fast-pca"]
GRAPHS = ["ring", "grid", "star", "complete", "erdos-renyi"]


def parties():
    """Unequal, with shifted means, and the first two of eight components far above the third."""
    rng = np.random.default_rng(0)
    basis, _ = np.linalg.qr(rng.standard_normal((8, 8)))
    spread = np.array([2, 1.2, 0.2, 0.15, 0.1, 0.1, 0.1, 0.1])
    shifted = [rng.standard_normal((n, 8)) + 0.6 * rng.standard_normal(8) for n in (80, 60, 50, 40)]
    return [(part * spread) @ basis.T + 30 for part in shifted]


def truth(parts, k=2):
    return pooled_pca(np.vstack(parts), k)


def observed(method, parts, **options):
    """A finished run: model, what each party was sent, what each party sent, both by round before the last."""
    server = server_of(method, parts, **{"n_components": 2, "graph": "ring", **options})
    exchanged = [heard(server, party) for party in range(len(parts))]
    model = finish(server)
    down, up = ([[one[which] for one in own[:-1]] for own in exchanged] for which in (1, 2))
    return model, down, up


def errors(up, iterations, vectors):
    """Largest angle of any party's iterate to the exact components, after each iteration (the last is a report)."""
    steps = [sent[-iterations - 1 :] for sent in up]
    return np.array(
        [
            max(principal_angles(sent[t][-1 if t == iterations else 0], vectors).max() for sent in steps)
            for t in range(iterations + 1)
        ]
    )


@pytest.mark.parametrize(("graph", "count", "step", "iterations"), [("ring", 4, 0.45, 152), ("star", 3, 0.25, 280)])
def test_fast_pca_converges_linearly_to_the_exact_components(graph, count, step, iterations):
    """A wrong mean, weights that favour someone or a tracker that forgets leave a floor; here the error only falls."""
    parts = parties()[:count]
    exact = truth(parts)
    model, _, up = observed("fast-pca", parts, graph=graph, step_size=step, iterations=iterations)
    error = errors(up, iterations, exact.components_.T)
    assert error[-1] <= 1e-6  # of every party's own estimate
    assert principal_angles(model.components_.T, exact.components_.T).max() <= 1e-6
    np.testing.assert_allclose(model.explained_variance_, exact.explained_variance_, rtol=1e-6)
    np.testing.assert_allclose(model.explained_variance_ratio_, exact.explained_variance_ratio_, rtol=1e-6)
    np.testing.assert_allclose(model.mean_, exact.mean_, rtol=1e-13)
    quarter = iterations // 4
    first, second = (np.log(error[t]) - np.log(error[t + quarter]) for t in (quarter, 2 * quarter))
    assert first > 2
    assert second > 2
    assert 0.6 < first / second < 1.7  # linear: a straight line on a logarithmic scale
    assert model.log["measured"]["last_direction_norm"] < 1e-6
    assert model.log["measured"]["consensus_error_degrees"] < 1e-6


def test_dsa_stalls_at_a_distance_that_shrinks_with_the_step():
    parts = parties()[:3]
    vectors = truth(parts).components_.T
    floors = []
    for step, iterations in ((0.4, 80), (0.2, 160)):
        _, _, up = observed("dsa", parts, step_size=step, iterations=iterations)
        error = errors(up, iterations, vectors)
        assert 0.95 < error[-1] / error[-iterations // 8] < 1.05, "not stalled yet"
        floors.append(error[-1])
    assert 1.5 < floors[0] / floors[1] < 2.5


def test_one_party_or_parties_alike_converge_with_dsa_by_the_step_that_is_asked_for():
    """Its floor comes from the differences alone."""
    part = parties()[0]
    model, *_ = observed("dsa", [part] * 2, step_size=0.45, iterations=160)
    assert principal_angles(model.components_.T, truth([part]).components_.T).max() <= 1e-6
    # As the algorithm is published: the first step is along Sanger's direction, by so much.
    part = parties()[0]
    model, _, up = observed("dsa", [part], step_size=0.25, iterations=3)
    assert model.log["measured"]["step_size"] == 0.25
    centred = part - part.mean(axis=0)
    A, (before, after) = centred.T @ centred / (centred**2).sum(), (sent[0] for sent in up[0][1:3])
    np.testing.assert_allclose(
        after, before + 0.25 * (A @ before - before @ np.triu(before.T @ A @ before)), atol=1e-12
    )


@pytest.mark.parametrize("method", DECENTRALISED)
@pytest.mark.parametrize("graph", GRAPHS)
def test_the_server_relays_to_neighbours_and_adds_nothing(method, graph):
    """In every round each party receives, bit for bit, what its neighbours sent in the round before, and no more."""
    parts = [*parties(), *parties()[:2]]
    _, down, up = observed(method, parts, graph=graph, iterations=3, edge_probability=0.4)
    adjacency = graph_of(graph, 6, probability=0.4, seed=42)
    rounds = diameter(adjacency) + 1 + 3
    for i in range(6):
        assert len(down[i]) == rounds
        assert down[i][0] == []
        for t in range(1, rounds):
            neighbours = [up[j][t - 1] for j in np.flatnonzero(adjacency[i])]
            assert len(down[i][t]) == len(up[i][t - 1])
            for told, said in zip(down[i][t], zip(*neighbours, strict=True), strict=True):
                assert [one.tobytes() for one in told] == [one.tobytes() for one in said]


@pytest.mark.parametrize(
    ("method", "count", "graph"),
    [(DECENTRALISED[(i + count) % 2], count, graph) for i, graph in enumerate(GRAPHS) for count in (1, 2)],
)
def test_one_and_two_parties_are_a_graph_too(method, count, graph):
    X = rows(60)
    model = run(method, np.split(X, count), n_components=2, graph=graph, iterations=4)
    assert model.log["measured"]["mixing_rate"] < 5e-4
    assert model.n_samples_ == 60


@pytest.mark.parametrize("method", DECENTRALISED)
def test_scores_are_by_the_partys_own_estimate(method, tmp_path):
    """Not by the reader's model; in its order and with its signs. The prediction of the last round is by the same."""
    parts = parties()
    files = [str(tmp_path / f"{i}.npy") for i in range(4)]
    model, _, up = observed(method, parts, iterations=30, scores=files)
    for i in range(4):
        own = up[i][-1][-1]
        written = np.load(files[i])
        expected = (parts[i] - model.mean_) @ own
        signs = np.sign(np.einsum("ij,ji->j", own, model.components_))
        np.testing.assert_allclose(written, expected * signs, atol=1e-10)
        assert np.abs(written - model.transform(parts[i])).max() > 1e-3
    told = model.log["measured"]
    assert told["squared_error_per_row"] == pytest.approx(told["predicted_squared_error_per_row"], rel=1e-6)


def test_the_models_components_are_the_mean_of_reports_that_graphs_pass_on():
    model, _, up = observed("dsa", parties(), iterations=30)
    mean = orthonormalised(sum(sent[-1][-1] for sent in up))
    assert principal_angles(model.components_.T, mean).max() < 1e-10
    energies = sum(sent[-1][-2] for sent in up)
    np.testing.assert_allclose(model.explained_variance_ * (230 - 1), np.sort(energies)[::-1], rtol=1e-12)
    # A ring of four: once. A server that goes on asking is refused.
    server = server_of("dsa", parties(), n_components=2, graph="ring")
    table = [np.zeros((2, 4), np.int64), np.zeros((2, 4)), np.zeros((2, 4)), np.zeros((2, 4, 8)), np.zeros((2, 4, 8))]
    assert told(client_of(server, 0), "head", []) == ""
    assert told(client_of(server, 0), "heads", table) == ""
    assert not unnamed(told(client_of(server, 0), "heads", table), "'heads'", 2, 1)
    assert told(client_of(server, 0), "start", table)


@pytest.mark.parametrize("method", DECENTRALISED)
def test_runs_and_iterates_that_diverge_say_so(method):
    with refused(ConfigError, "step_size", 30):
        run(method, parties(), n_components=2, step_size=30.0, iterations=50)
    # It is compared with nothing that would let it pass.
    client: Any = client_of(server_of(method, parties(), n_components=2, step_size=0.2), 0)
    for wrong in (np.nan, np.inf):
        with refused(ConfigError, "step-size", 0.2):
            client.direction(np.full((8, 2), wrong))


DIGITS_APART = {"fast-pca": 0.01, "dsa": 1.0}
"""Degrees at the defaults: two parties, ten components."""


@pytest.mark.parametrize("method", DECENTRALISED)
def test_the_defaults_come_close_on_digits(method):
    """With a step of 0.2, which is small against a first eigenvalue of 0.15, they were 89 degrees off."""
    X = load_digits().data
    parts = np.array_split(X[np.random.default_rng(0).permutation(len(X))], 2)
    model = run(method, parts, n_components=10)
    assert principal_angles(model.components_.T, truth(parts, 10).components_.T).max() <= DIGITS_APART[method]
    assert model.rounds == 502


@pytest.mark.parametrize(
    ("method", "graph", "alike"),
    [("dsa", "ring", False), ("dsa", "star", True), ("fast-pca", "complete", False), ("fast-pca", "erdos-renyi", True)],
)
def test_a_step_of_its_own_never_diverges(method, graph, alike):
    """Parties that differ in size, mean and spectrum; parties of a single row."""
    parts = parties()
    if not alike:
        parts = [parts[0] * [9, 1, 1, 1, 1, 1, 1, 1], parts[1][:1], parts[2] + 50, parts[3]]
    model = run(method, parts, n_components=2, graph=graph, iterations=60, min_rows=1)
    assert 0 < model.log["measured"]["step_size"] < 5
    if alike and method == "fast-pca":
        assert principal_angles(model.components_.T, truth(parts).components_.T).max() < 1


def test_steps_that_diverge_and_graphs_that_fall_apart_are_told(monkeypatch):
    with refused(ConfigError, "edge_probability", "1e-06", 1000, 4):
        run("dsa", parties(), graph="erdos-renyi", edge_probability=1e-6)
    monkeypatch.setattr("fedpca_flwr.questions.graph.safe_step", lambda largest, mixing: 40 / largest)
    with refused(ConfigError, "step_size", "'auto'"):
        run("dsa", parties(), n_components=2, iterations=50)


# What a party answers


def told(client, phase, arrays):
    return client.fit(arrays, {"phase": phase})[2].get("message", "")


@pytest.mark.parametrize(
    ("phase", "change", "named", "what"),
    [
        ("project", lambda a: [a[0], a[1] + 1e-9, *a[2:]], [], "reported"),
        ("project", lambda a: [*a[:3], np.array([0, 0])], [], "reported"),
        ("project", lambda a: [a[0][:1], *a[1:3], a[3][:1]], ["'components'", "(1, 8)", "(2, 8)"], "shape"),
        ("step", lambda a: [one[:1] for one in a], [1, 2], "neighbours"),
        ("start", lambda a: [np.minimum(a[0], 0), *a[1:]], [3], "heads"),
    ],
)
def test_a_party_refuses_what_an_honest_server_never_sends(phase, change, named, what):
    server = server_of("fast-pca", parties(), n_components=2, graph="ring", iterations=3)
    on_request(server, 1, phase, change)
    with refused(ContractError, "client 1", *named, match=what):
        finish(server)


def ended_early(model):
    """The note on iterations that ended too early, if any."""
    return next((note for note in model.log["notes"] if "degrees from each other" in note), "")


def test_a_run_that_ended_too_early_says_how_far_apart_the_parties_are_and_how_long_it_takes():
    """What the note foretells is held against a longer run."""
    parts = parties()
    model, _, up = observed("fast-pca", parts, step_size=0.45, iterations=60)
    ends = [sent[-1][-1] for sent in up]
    apart = max(principal_angles(a, b).max() for a in ends for b in ends)
    step = max(np.degrees(np.linalg.norm(sent[-2][0] - sent[-3][0])) for sent in up)
    note = ended_early(model)
    assert f"after 60 iterations the parties' estimates are up to {apart:.2g} degrees from each other" in note
    assert f"the last step was {step:.2g} degrees at most" in note
    more = int(note.split("about ")[1].split(" more")[0].replace(",", ""))
    assert 60 + more == pytest.approx(146, abs=10)  # where the error falls below 1e-6 degrees
    left = float(note.split("at the rate of the last ones, ")[1].split(" degrees")[0])
    exact = truth(parts).components_.T
    off = max(np.degrees(np.linalg.norm(end - exact * np.sign((end * exact).sum(axis=0)))) for end in ends)
    assert 0.5 < left / off < 2
    options = {"n_components": 2, "step_size": 0.45, "iterations": 60 + more + 10}
    model = run("fast-pca", parts, **options)
    assert ended_early(model) == ""
    assert principal_angles(model.components_.T, truth(parts).components_.T).max() <= 2e-6


def test_parties_that_stand_still_apart_say_so():
    model = run("dsa", parties()[:3], n_components=2, step_size=0.4, iterations=300)
    said = "the parties stand still, where more iterations change nothing and a smaller 'step-size' may"
    assert said in ended_early(model)


@pytest.mark.parametrize(("method", "iterations"), [("dsa", 1), ("fast-pca", 2), ("dsa", 3)])
def test_no_number_of_iterations_is_promised_where_no_rate_can_be_seen(method, iterations):
    note = ended_early(run(method, parties(), n_components=2, iterations=iterations))
    assert "the steps show no linear rate yet, so it cannot be said how many more iterations are needed" in note
    assert "up to 90 degrees from those of all rows" in note
    assert ("only one step was made" in note) == (iterations == 1)
