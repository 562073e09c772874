"""DSA and FAST-PCA: the papers' iterations over a graph, a server that relays, each party's estimate."""

from typing import Any

import numpy as np
import pytest

from fedpca_flwr import run
from fedpca_flwr.errors import ConfigError, ContractError
from fedpca_flwr.maths.eigen import principal_angles
from fedpca_flwr.maths.graph import diameter, make_graph, metropolis_weights, mixing_rate, orthonormalise
from fedpca_flwr.model.reference import pooled_pca
from fedpca_flwr.questions.graph import GraphOptions
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


def dissimilar_parties():
    parts = parties()
    return [parts[0] * [9, 1, 1, 1, 1, 1, 1, 1], parts[1][:1], parts[2] + 50, parts[3]]


def observed(method, parts, **options):
    server = server_of(method, parts, **{"n_components": 2, "graph": "ring", **options})
    exchanged = [heard(server, party) for party in range(len(parts))]
    model = finish(server)
    down, up = ([[exchange[which] for exchange in exchanges[:-2]] for exchanges in exchanged] for which in (1, 2))
    return model, down, up


@pytest.mark.parametrize("method", DECENTRALISED)
@pytest.mark.parametrize("graph", GRAPHS)
def test_the_server_only_relays(method, graph, tmp_path):
    """Parties receive, bit for bit, what their neighbours sent in the round before (which steps: tests/papers)."""
    parts = [*dissimilar_parties(), *parties()[:2]]
    files = [str(tmp_path / f"{i}.npy") for i in range(6)]
    model, down, up = observed(method, parts, graph=graph, iterations=3, edge_probability=0.4, scores=files)
    adjacency = make_graph(graph, 6, probability=0.4, seed=42)
    rounds = diameter(adjacency) + 1 + 3
    for i in range(6):
        assert len(down[i]) == rounds
        assert down[i][0] == []
        for t in range(1, rounds):
            sent = zip(*(up[j][t - 1] for j in np.flatnonzero(adjacency[i])), strict=True)
            assert [block.tobytes() for block in down[i][t]] == [np.array(blocks).tobytes() for blocks in sent]
    # The step is that of the largest eigenvalue that any party may have, and of the graph.
    pooled = np.vstack(parts)
    centred = [part - pooled.mean(axis=0) for part in parts]
    between = [len(part) * np.sum(part.mean(axis=0) ** 2) for part in centred]
    within = [np.linalg.norm(part - part.mean(axis=0), 2) ** 2 for part in centred]
    largest, total, measured = np.add(within, between).max(), np.sum(np.vstack(centred) ** 2), model.log["measured"]
    step = min(0.5, np.sqrt(1 - mixing_rate(metropolis_weights(adjacency)))) * total / (6 * largest)
    assert measured["step_size"] == pytest.approx(step, rel=0.01)
    # What the parties report, and what the server makes of it.
    directions, estimates = ([sent[-1][place] for sent in up] for place in (2, 3))
    for sent, part in zip(up, centred, strict=True):
        np.testing.assert_allclose(sent[-1][0], pooled.mean(axis=0), rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(sent[-1][1], np.sum(part**2), rtol=1e-9)
    components = orthonormalise(np.sum(estimates, axis=0))
    energies = np.square(np.vstack(centred) @ components).sum(axis=0)
    order = np.argsort(-energies)

    def in_order(vectors):
        """Return components in the model's order and with its signs."""
        return vectors[:, order] * np.sign(np.sum(vectors[:, order] * model.components_.T, axis=0))

    np.testing.assert_allclose(model.components_.T, in_order(components), atol=1e-10)
    np.testing.assert_allclose(model.explained_variance_, energies[order] / (len(pooled) - 1))
    np.testing.assert_allclose(model.explained_variance_ratio_, energies[order] / total)
    assert measured["last_direction_norm"] == pytest.approx(max(directions))
    angles = [principal_angles(estimate, components).max() for estimate in estimates]
    assert measured["consensus_error_degrees"] == pytest.approx(max(angles), rel=1e-6, abs=1e-8)
    for file, part, estimate in zip(files, centred, estimates, strict=True):  # scores are by the party's own estimate
        np.testing.assert_allclose(np.load(file), part @ in_order(estimate), atol=1e-8)
    assert measured["predicted_squared_error_per_row"] == pytest.approx((total - energies.sum()) / len(pooled))


def ended_early(model):
    return next((note for note in model.log["notes"] if "degrees from each other" in note), "")


@pytest.mark.parametrize("ends", [False, True])
def test_a_run_too_slow_for_its_iterations_says_so_and_may_end(ends, caplog):
    caplog.set_level("INFO")
    options = {"n_components": 3, "iterations": 101, "early_stopping": ends}  # the third and fourth are close
    model = finish(server_of("fast-pca", parties(), **options))
    performed = 51 if ends else 101
    assert model.log["measured"]["iterations"] == performed
    assert f"after {performed} iterations" in ended_early(model)
    warning = next(record.getMessage() for record in caplog.records if "'iterations' to" in record.getMessage())
    assert "after 50 of 101 iterations" in warning
    assert 300 < int(warning.split("needs ")[1].split(";")[0]) < 400
    # a run that converges in time says nothing, and ends when its iterations are over
    caplog.clear()
    model = finish(server_of("fast-pca", parties(), n_components=2, iterations=301, early_stopping=ends))
    assert model.log["measured"]["iterations"] == 301
    assert "'early-stopping'" not in caplog.text


@pytest.mark.engine
def test_fast_pca_converges_and_what_does_not_is_noted():
    parts = parties()
    exact = pooled_pca(np.vstack(parts), 2)
    model, _, up = observed("fast-pca", parts, step_size=0.45, iterations=60)
    ends = [sent[-1][-1] for sent in up]
    spread = max(principal_angles(a, b).max() for a in ends for b in ends)
    step = max(np.degrees(np.linalg.norm(sent[-2][0] - sent[-3][0])) for sent in up)
    note, axes = ended_early(model), exact.components_.T
    assert f"after 60 iterations the parties' estimates are up to {spread:.2g} degrees from each other" in note
    assert f"the last step was {step:.2g} degrees at most" in note
    further_iterations = int(note.split("about ")[1].split(" more")[0].replace(",", ""))
    assert 60 + further_iterations == pytest.approx(146, abs=10)  # where the error falls below 1e-6 degrees
    remaining_degrees = float(note.split("at the rate of the last ones, ")[1].split(" degrees")[0])
    off = max(np.degrees(np.linalg.norm(end - axes * np.sign((end * axes).sum(axis=0)))) for end in ends)
    assert 0.5 < remaining_degrees / off < 2
    model, _, up = observed("fast-pca", parts, step_size=0.45, iterations=60 + further_iterations + 10)
    assert ended_early(model) == ""
    for sent in up:  # every party's own estimate
        assert principal_angles(sent[-1][-1], axes).max() <= 1e-6
    np.testing.assert_allclose(model.explained_variance_, exact.explained_variance_, rtol=1e-6)
    assert max(model.log["measured"][name] for name in ("last_direction_norm", "consensus_error_degrees")) < 1e-6
    model = run("dsa", parties()[:3], n_components=2, step_size=0.4, iterations=200)
    standstill_note = "the parties stand still, where more iterations change nothing and a smaller 'step-size' may"
    assert standstill_note in ended_early(model)
    for method, iterations in (("dsa", 1), ("fast-pca", 2), ("dsa", 3)):
        note = ended_early(run(method, parties(), n_components=2, iterations=iterations))
        assert "the steps show no linear rate yet, so it cannot be said how many more iterations are needed" in note
        assert "up to 90 degrees from those of all rows" in note
        assert ("only one step was made" in note) == (iterations == 1)


@pytest.mark.parametrize(
    ("method", "count", "graph"),
    [(DECENTRALISED[(i + count) % 2], count, graph) for i, graph in enumerate(GRAPHS) for count in (1, 2)],
)
def test_one_and_two_parties_are_a_graph_too(method, count, graph):
    model = run(method, np.split(rows(60), count), n_components=2, graph=graph, iterations=4, step_size=0.25)
    assert model.log["measured"]["mixing_rate"] < 5e-4
    assert (model.log["measured"]["step_size"], model.n_samples_) == (0.25, 60)
    # 40 products to find the largest eigenvalue, one for each component in each iteration, at the start and at the end
    assert GraphOptions(n_components=2, iterations=3).product_columns(None) == 4 * 10 + 2 * 5


@pytest.mark.engine
@pytest.mark.parametrize("method", DECENTRALISED)
def test_a_step_that_is_too_large_is_named(method, monkeypatch):
    run(method, dissimilar_parties(), n_components=2, iterations=60, min_rows=1)
    with refused(ConfigError, "step_size", 30):
        run(method, parties(), n_components=2, step_size=30.0, iterations=50)
    # It is compared with nothing that would let it pass.
    client: Any = client_of(server_of(method, parties(), n_components=2, step_size=0.2), 0)
    for wrong in (np.nan, np.inf):
        with refused(ConfigError, "step-size", 0.2):
            client.party.direction(np.full((8, 2), wrong))
    monkeypatch.setattr("fedpca_flwr.maths.graph.safe_step", lambda largest, mixing: 40 / largest)
    with refused(ConfigError, "step_size", "'auto'"):
        run(method, parties(), n_components=2, iterations=50)


@pytest.mark.engine
def test_heads_are_passed_on_once_in_a_ring_of_four():
    server = server_of("dsa", parties(), n_components=2, graph="ring")
    table = [np.zeros((2, 4), np.int64), np.zeros((2, 4)), np.zeros((2, 4)), np.zeros((2, 4, 8)), np.zeros((2, 4, 8))]
    infos = [
        client_of(server, 0).fit(arrays, {"phase": phase})[2].get("message", "")
        for phase, arrays in (("head", []), ("heads", table), ("heads", table), ("start", table))
    ]
    assert infos[:2] == ["", ""]
    assert not unnamed(infos[2], "'heads'", 2, 1)
    assert infos[3]


@pytest.mark.parametrize(
    ("phase", "change", "named", "what"),
    [
        ("project", lambda a: [a[0], a[1] + 1e-9, *a[2:]], [], "reported"),
        ("project", lambda a: [*a[:3], np.array([0, 0])], [], "reported"),
        ("project", lambda a: [a[0][:1], *a[1:3], a[3][:1]], ["'components'", "(1, 8)", "(2, 8)"], "shape"),
        ("step", lambda a: [array[:1] for array in a], [1, 2], "neighbours"),
        ("start", lambda a: [np.minimum(a[0], 0), *a[1:]], [3], "heads"),
    ],
)
def test_a_party_refuses_what_an_honest_server_never_sends(phase, change, named, what):
    server = server_of("fast-pca", parties(), n_components=2, graph="ring", iterations=3)
    on_request(server, 1, phase, change)
    with refused(ContractError, "client 1", *named, match=what):
        finish(server)
