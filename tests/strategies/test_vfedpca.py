"""VFedPCA and VFedAKPCA: the authors' program step by step, our form, and how far both are from exact."""

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer
from sklearn.decomposition import KernelPCA
from sklearn.preprocessing import minmax_scale

from fedpca_flwr import run
from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.errors import DataError
from fedpca_flwr.maths.columns import merge_vectors, orthogonal_direction, project_on_direction, scores_on_direction
from fedpca_flwr.maths.eigen import principal_angles
from fedpca_flwr.model.reference import pooled_pca
from fedpca_flwr.questions.merging import merge_questions
from fedpca_flwr.strategies.vfedakpca import VFedAKPCAOptions
from fedpca_flwr.strategies.vfedpca import VFedPCAOptions
from tests.families import rows
from tests.harness import finish, heard, server_of, tamper_arrays
from tests.refusals import refused

X = minmax_scale(load_breast_cancer().data[:150])


def cut(parties):
    return np.array_split(X, parties, axis=1)


def fit(parties, method="vfedpca", **options):
    return run(method, cut(parties), **{"n_components": 1, **options})


def angle(model, k=1):
    return principal_angles(model.scores_, pooled_pca(X, k).transform(X)).max()


@pytest.mark.parametrize("largest", [307, 312], ids=["sums", "entries"])
def test_a_kernel_that_overflows_is_refused(largest):
    """Faults: NaN and a party of weight zero, or for every party an error that rows were identical."""
    parties = cut(3)
    parties[1] = parties[1] * 10 ** (largest / 6) / np.linalg.norm(parties[1], axis=1).max()
    with refused(DataError, "float64", "'gamma'"):
        run("vfedakpca", parties, n_components=1, kernel="polynomial", gamma=1.0)


@pytest.mark.parametrize("scaling", [False, True])
@pytest.mark.parametrize("parties", [3, 10])
def test_the_faithful_variant_is_the_authors_program(parties, scaling):
    """A further component is the same program on what the directions before leave of the columns, and starts anew."""
    directions = np.empty((len(X), 0))
    for component in range(3):
        u = authors_program([block - directions @ (directions.T @ block) for block in cut(parties)], component, scaling)
        u -= directions @ (directions.T @ u)
        directions = np.column_stack([directions, u / np.linalg.norm(u)])
    options = {"variant": "faithful", "periods": 3, "local_iterations": 5, "weight_scaling": scaling, "seed": 42}
    model = fit(parties, n_components=3, **options)
    for j in range(3):  # the model's components are in the order of what the columns hold of them
        assert principal_angles(model.scores_, directions[:, j : j + 1]).max() <= 1e-6


def authors_program(blocks, component, scaling):
    values, vectors = [], []
    for period in range(4):
        start = np.random.default_rng((42, component, period)).random(len(X))
        for block in blocks:
            A, b = np.cov(block), start
            for _ in range(5):
                b = A @ b / np.linalg.norm(A @ b)
            values.append(b @ A @ b)
            vectors.append(b)
        if period == 0:
            continue  # isolated, but never forgotten
        weights = np.array(values) / np.sum(values)
        if scaling:
            larger = np.argsort(-weights)[: len(weights) // 2]
            factor = np.full(len(weights), 1 - weights.mean())
            factor[larger] = 1 + weights.mean()
            weights = weights * factor
        u = weights @ np.array(vectors)
        M = [block.T @ u for block in blocks]
        blocks = [block @ np.outer(m, m) / np.linalg.norm(np.outer(m, m)) for block, m in zip(blocks, M, strict=True)]
    return u


@pytest.mark.engine
def test_signs_periods_and_warm_starts_that_change_nothing():
    """On a graph: else directions of opposite sign average to nothing."""
    options = {"n_components": 2, "graph": "ring", "periods": 2}
    plain, turned = server_of("vfedpca", cut(4), **options), server_of("vfedpca", cut(4), **options)
    tamper_arrays(turned, 1, lambda arrays: [-array if array.shape == (150, 2) else array for array in arrays])
    plain_model, turned_model = finish(plain), finish(turned)
    assert principal_angles(plain_model.scores_, turned_model.scores_).max() <= 1e-6
    errors = [model.log["measured"]["consensus_error_degrees"] for model in (plain_model, turned_model)]
    assert errors[0] == pytest.approx(errors[1], rel=1e-12)
    two, ten = fit(3, periods=2), fit(3, periods=10)
    assert principal_angles(two.scores_, ten.scores_).max() < 1e-3
    assert angle(fit(3, periods=1)) > angle(two)
    # After the first period a party's data have rank one: any start ends at the same vector.
    cold, warm = (fit(3, periods=2, local_iterations=1, warm_start=start) for start in ("random", "previous"))
    assert principal_angles(cold.scores_, warm.scores_).max() < 1e-6


def test_one_party_alone_and_an_average_find_what_they_can():
    model = fit(3)
    assert 0.5 < angle(model) < 30
    assert not model.log["exact"]
    options = {"n_components": 1, "local_iterations": 60}
    assert angle(run("vfedpca", [X], periods=1, **options)) < 1e-6
    with_graph, without = (run("vfedpca", [X], graph=graph, **options) for graph in ("ring", "server"))
    assert principal_angles(with_graph.scores_, without.scores_).max() < 1e-6
    assert run("vfedpca", [X], n_components=2, graph="ring", variant="faithful", periods=2).scores_.shape == (150, 2)


@pytest.mark.parametrize("variant", ["ours", "faithful"])
@pytest.mark.parametrize("graph", ["complete", "ring", "star"])
def test_without_a_server_neighbours_are_merged(graph, variant):
    server = server_of("vfedpca", cut(5), n_components=1, graph=graph, variant=variant, periods=2)
    exchanged = [heard(server, party) for party in range(5)]
    model = finish(server)
    assert "the server relayed" in " ".join(model.log["notes"])
    agreed = model.log["measured"]["consensus_error_degrees"]
    if (graph, variant) == ("complete", "ours"):
        assert agreed < 1e-5
        assert principal_angles(model.scores_, fit(5, periods=2).scores_).max() < 1e-6
    else:
        assert agreed > 0.1
    reports = [exchange.said[0] for exchanges in exchanged for exchange in exchanges if exchange.phase == "report"]
    assert agreed == pytest.approx(max(principal_angles(u, model.scores_).max() for u in reports), rel=1e-6, abs=1e-6)
    neighbours = {"complete": [4] * 5, "ring": [2] * 5, "star": [4, 1, 1, 1, 1]}[graph]
    assert model.log["rounds"][2]["down"] == [2 * 128 + 8 * 151 * number for number in neighbours]


KERNELS = [
    {"kernel": "rbf"},
    {"kernel": "rbf", "gamma": 0.2},
    {"kernel": "linear"},
    {"kernel": "polynomial", "gamma": 0.05, "degree": 2},
    {"kernel": "sigmoid", "gamma": 0.02, "coef0": 0.5},
]


@pytest.mark.parametrize("options", KERNELS, ids=str)
def test_kernels_are_weighted_by_their_eigenvalue(options):
    name = {"polynomial": "poly"}.get(options["kernel"], options["kernel"])
    defaults = {"gamma": 1 / (30 * X.var()), "coef0": 1.0, "eigen_solver": "dense"}
    truth = KernelPCA(1, **{**defaults, **options, "kernel": name}).fit(X)
    value, vector = VFedAKPCAOptions(**options).local_direction(X, np.empty(0))
    assert value == pytest.approx(truth.eigenvalues_[0] ** 0.5, rel=1e-9)
    assert principal_angles(vector[:, None], truth.eigenvectors_).max() < 1e-6


def test_no_more_is_asked_than_periods_and_products_are_counted():
    options = VFedPCAOptions(n_components=3, periods=4)
    assert merge_questions(RunConfig(), options)["local"].times == 3 * 4 - 1
    assert options.max_gram_columns(150) == 3 * 2
    faithful = VFedPCAOptions(n_components=3, periods=4, variant="faithful")
    assert merge_questions(RunConfig(), faithful)["start"].times == 2
    assert faithful.max_gram_columns(150) == 3 * 3


def test_merges_and_directions_in_closed_form():
    a, b = np.eye(3)[0], np.array([0.6, 0.8, 0.0])
    for sign in (1.0, -1.0):
        u = merge_vectors([3.0, 1.0], [a, sign * b], aligned=True, scaled=False)
        assert principal_angles(u[:, None], (0.75 * a + 0.25 * b)[:, None]).max() < 1e-6
    scaled = merge_vectors([2.0, 1.0, 1.0], [a, a, b], aligned=True, scaled=True)  # eta 1/3, ceil(3/2) boosted
    np.testing.assert_allclose(np.abs(scaled), np.abs((0.5 + 0.25) * 4 / 3 * a + 0.25 * 2 / 3 * b))
    block, u = rows(30), rows(30)[:, 0]
    once, column = project_on_direction(block, u), scores_on_direction(block, u)
    assert (np.linalg.matrix_rank(once), column.shape) == (1, (30, 1))
    np.testing.assert_allclose(column @ column.T, once @ once.T, atol=1e-12 * np.abs(once @ once.T).max())
    basis = np.linalg.qr(rows(5, 4)).Q
    for u in (basis @ [1.0, 2.0, 3.0, 4.0], basis[:, 0] * 1e-200, np.zeros(5)):
        other = orthogonal_direction(u, basis)
        np.testing.assert_allclose(basis.T @ other, 0, atol=1e-15)
        np.testing.assert_allclose(np.linalg.norm(other), 1)


@pytest.mark.parametrize("method", ["vfedpca", "vfedakpca"])
@pytest.mark.parametrize("graph", ["server", "complete"])
@pytest.mark.parametrize("parties", [1, 2])
def test_components_beyond_the_rank_are_orthonormal(method, graph, parties):
    """A fault: two rows differ in a single direction, and a second direction, made of rounding, was the first again."""
    blocks = np.array_split(np.random.default_rng(2).standard_normal((2, 4)), parties, axis=1)
    options = {"n_components": 2, "graph": graph, "periods": 2, "center": True, "min_rows": 1}
    model = run(method, blocks, **options, **({"kernel": "linear"} if method == "vfedakpca" else {}))
    np.testing.assert_allclose(model.explained_variance_ratio_, [1, 0], atol=1e-12)
