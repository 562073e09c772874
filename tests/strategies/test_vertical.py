"""VERTICAL: rounds, bytes, solvers and what sites allow; VERTICAL-SCORES; VFedPCA and VFedAKPCA."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.datasets import load_breast_cancer
from sklearn.decomposition import KernelPCA
from sklearn.preprocessing import minmax_scale

from fedpca_flwr import run
from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.errors import ConfigError, ContractError, DataError, DisclosureError
from fedpca_flwr.maths.columns import merge_vectors, orthogonal_direction, project_on_direction, scores_on_direction
from fedpca_flwr.maths.eigen import principal_angles
from fedpca_flwr.model.loadings import Loadings
from fedpca_flwr.model.reference import pooled_pca
from fedpca_flwr.questions.columns_run import MAX_COLUMNS
from fedpca_flwr.questions.merging import merge_questions
from fedpca_flwr.simulations.loopback import assemble
from fedpca_flwr.strategies import FACTORY, METHODS
from fedpca_flwr.strategies.vfedakpca import VFedAKPCAOptions
from fedpca_flwr.strategies.vfedpca import VFedPCAOptions
from tests.families import rows
from tests.harness import at_sites, blocks_added, finish, heard, server_of, tamper_arrays
from tests.refusals import refused, unnamed

SUMS = [("vertical", "product", 2.0**0.5 * 9), ("vertical solver=gram", "gram", 9), ("vertical-scores", "scores", 1.5)]
CANCER = minmax_scale(load_breast_cancer().data[:150])
KERNELS = [{"kernel": "rbf"}, {"kernel": "rbf", "gamma": 0.2}, {"kernel": "linear"}]
KERNELS += [{"kernel": "polynomial", "gamma": 0.05, "degree": 2}, {"kernel": "sigmoid", "gamma": 0.02, "coef0": 0.5}]
SECURE = {"secure_aggregation": True, "bound": 1e4}
every_way = pytest.mark.parametrize("way", [{}, SECURE], ids=["plain", "secure"])
OLD = (
    rows(120) * np.arange(1, 13) + 5.0
)  # of which a model is made, and parties with rows that get scores by that model
NEW = np.split(rows(7, seed=9) * np.arange(1, 13) + 3.0, [6, 10], axis=1)


def cut(X, parties):
    return np.array_split(X, parties, axis=1)


def fit(parties, **options):
    return run("vertical", parties, **{"n_components": 3, **options})


@pytest.mark.engine
def test_certificates_hold_in_as_many_rounds_as_they_need():
    X = rows(300, 40)
    models = {tolerance: fit(cut(X, 3), tolerance=tolerance) for tolerance in (10.0, 1e-3, 1e-6)}
    for tolerance, model in models.items():
        assert principal_angles(model.scores_, pooled_pca(X, 3).transform(X)).max() <= tolerance
    spent = [len(model.log["rounds"]) for model in models.values()]
    assert spent[0] < spent[1] < spent[2]
    up = [entry["up"] for entry in model.log["rounds"]][:-1]
    assert up == [[3 * 136 + 128] * 3, *[[300 * 8 * 8 + 128] * 3] * (len(up) - 1)]
    model = fit(cut(X, 3), max_rounds=2)
    assert not model.log["exact"]
    assert "stopped after max-rounds = 2" in model.log["notes"][0]


def test_the_rounding_of_fixed_point_is_in_the_certificate(monkeypatch):
    """Each entry of a product is off by a step for each party, and blocks are made orthonormal before."""
    added = blocks_added(monkeypatch)
    fit(cut(rows(40, 12), 3), n_components=2, secure_aggregation=True, bound=100.0)
    assert len(added) > 1
    step = np.sqrt(40) * 2 * MAX_COLUMNS * 200.0**2 * 2.0**-121  # of two words, 63 and 58 bits
    for V, error in added:
        assert error / (step * np.sqrt(V.size) * np.linalg.norm(V, 2)) == pytest.approx(3, rel=1e-5)


def test_rank_and_merged_directions_that_do_not_suffice_are_told():
    X = rows(200, 4) @ np.random.default_rng(2).standard_normal((4, 30))
    model, beyond = (fit(cut(X, 3), n_components=k) for k in (4, 5))
    assert principal_angles(model.scores_, pooled_pca(X, 4).transform(X)).max() <= 1e-6
    assert len(model.log["rounds"]) <= 4
    assert beyond.log["notes"][0].startswith("component 5 is below what can be resolved beside the first component")
    assert not beyond.log["exact"]
    X = rows(100, 24)
    truth = pooled_pca(X, 3).transform(X)
    narrow, full = (fit(cut(X, 3), solver="merge", rank=rank) for rank in (3, 8))
    assert (narrow.log["exact"], full.log["exact"]) == (False, True)
    assert 0.01 < principal_angles(narrow.scores_, truth).max() < 30
    assert principal_angles(full.scores_, truth).max() <= 1e-6
    assert "squared_error_per_row" in narrow.log["measured"]
    assert not fit(np.split(rows(60), [10, 11], axis=1), solver="merge", rank=3).log["exact"]  # of ten columns
    few = fit(cut(rows(5), 3), n_components=5, solver="gram", min_rows=1)  # five rows about their mean
    assert "the data have rank 4: components 5 to 5 have no variance and arbitrary directions" in few.log["notes"]
    for sizes, rank, directions in (((4, 4, 4), 1, 3), ((10, 1, 1), 2, 4)):
        with refused(ConfigError, "'rank'", rank, 3, directions, "n_components", 5):
            fit(np.split(rows(60), np.cumsum(sizes)[:-1], axis=1), n_components=5, solver="merge", rank=rank)


@pytest.mark.parametrize("solver", ["krylov", "gram"])
def test_scaling_and_centring_are_those_of_the_pooled_columns(solver):
    X = rows(100, 12) * np.arange(1, 13) + np.arange(12)
    for options in ({"scale": True}, {"center": False}, {"center": False, "scale": True}):
        model, truth = fit(cut(X, 3), solver=solver, **options), pooled_pca(X, 3, **options)
        assert principal_angles(model.scores_, truth.transform(X)).max() <= 1e-6
        np.testing.assert_allclose(model.explained_variance_ratio_, truth.explained_variance_ratio_, rtol=1e-9)
    few_rounds = fit(cut(rows(60), 3), solver=solver, block_size=1, max_rounds=3)
    assert (few_rounds.n_components_, few_rounds.log["exact"]) == (3, solver == "gram")


@pytest.mark.parametrize("method", ["vertical", "vfedpca", "vfedakpca"])
def test_rows_of_frames_are_matched_by_their_index(method, tmp_path):
    """Three tables of the same people in other orders gave other components, in silence."""
    people = pd.DataFrame(rows(60, 9), [f"patient {i:02d}" for i in range(60)], list("abcdefghi"))
    names = {"north": list("abc"), "south": list("defg"), "west": list("hi")}
    turned = {site: people[own].sample(frac=1, random_state=i) for i, (site, own) in enumerate(names.items())}
    options, order = {"n_components": 2, "min_rows": 1}, turned["north"].index
    paths = [tmp_path / f"{site}.npy" for site in names]
    expected = run(method, {site: people.loc[order, own] for site, own in names.items()}, **options)
    model = run(method, turned, **options, scores=paths)
    np.testing.assert_array_equal(model.scores_, expected.scores_)
    (note,) = [note for note in model.log["notes"] if "in the order of" in note]
    assert not unnamed(note, "party 'north'", "party 'south'", "party 'west'")
    assert "in the order of party" not in " ".join(expected.log["notes"])
    for path, part in zip(paths, turned.values(), strict=True):  # each in the order of its own frame
        np.testing.assert_allclose(np.load(path), pd.DataFrame(model.scores_, order).loc[part.index], atol=1e-12)


def test_other_people_are_refused():
    people = pd.DataFrame(rows(60, 6), index=pd.MultiIndex.from_product([range(6), list("abcdefghij")]))
    first, second = people[[0, 1, 2]], people[[3, 4, 5]]
    expected, counted = fit([first, second], min_rows=1), second.reset_index(drop=True)
    for other, named in (
        (second.rename(index={"a": "z"}), [6]),
        (second.drop(index=second.index[3]), [1, 0]),
        (second.set_axis([second.index[0]] * 60), []),
    ):
        with refused(ConfigError, "party 1", *named):
            fit([first, other], min_rows=1)
    for bare in (second.to_numpy(), counted, pa.Table.from_pandas(second, preserve_index=False)):
        model = fit([first, bare], min_rows=1)
        np.testing.assert_array_equal(model.scores_, expected.scores_)
        assert any("by position" in note and "party 1" in note for note in model.log["notes"])
    model = fit([first.reset_index(drop=True), counted.sample(frac=1, random_state=0)], min_rows=1)
    np.testing.assert_allclose(model.explained_variance_, expected.explained_variance_)


def test_each_site_keeps_its_loadings_and_its_part_of_new_scores(tmp_path):
    X, new = rows(120, 12) * np.arange(1, 13) + 5.0, rows(7, 12, seed=9)
    own, scores = ([tmp_path / f"{party}.{end}" for party in range(3)] for end in ("npz", "npy"))
    model, truth = fit(cut(X, 3), scale=True, loadings=own, scores=scores), pooled_pca(X, 3, scale=True)
    loadings = [Loadings.load(path) for path in own]
    components = np.hstack([part.components for part in loadings])
    np.testing.assert_allclose(components @ components.T, np.eye(3), atol=7e-15)
    signs = np.sign((components * truth.components_).sum(axis=1))
    np.testing.assert_allclose(components, truth.components_ * signs[:, None], atol=1e-8)
    parts = [part.part_of_scores(columns) for part, columns in zip(loadings, cut(new, 3), strict=True)]
    np.testing.assert_allclose(sum(parts), truth.transform(new) * signs, atol=1e-8)
    np.testing.assert_allclose(np.load(scores[1]), model.scores_, atol=1e-12)
    with refused(DataError, "(7, 12)", 4):
        loadings[0].part_of_scores(new)


def test_inner_products_need_more_permission_and_data_split_the_other_way_are_refused(tmp_path):
    parties = cut(rows(60), 3)
    assert fit(parties, may_show="scores").n_components_ == 3
    with refused(DisclosureError, "party 0", "may_show"):
        fit(parties, solver="gram", may_show="scores")
    np.save(tmp_path / "own.npy", parties[0])
    node = {"data": str(tmp_path / "own.npy"), "split": "columns"}
    with refused(DisclosureError, "client 0", "may-show"):
        finish(at_sites(server_of("vertical", parties, n_components=2), [node] * 3))
    for method, split, partition in (("vertical", "rows", "iid"), ("p-cov", "columns", "columns")):
        node |= {"split": split, "may-show": "scores"}
        with refused(ConfigError, "client 0", f"'{method}'", split, "'split'"):
            finish(at_sites(server_of(method, parties, n_components=2), [node] * 3))
        config = {"method": method, "partition": partition, "dataset": "wine", "n-components": 2, "clients": 3}
        with refused(ConfigError, "client 0", f"'{method}'", "'split'"):
            finish(at_sites(assemble(config, [rows(30)] * 3, {}), [{}] * 3))


@pytest.mark.parametrize(("named", "phase", "row_limit"), SUMS, ids=str)
def test_limits_of_sums_are_what_the_bound_and_all_columns_allow(named, phase, row_limit):
    """They are sums of two rows of columns whose entries are 3, as large as those about means of a bound of 1.5."""
    config = METHODS.run_config({"method": named, "clients": 3, "secure-aggregation": True, "bound": 1.5})
    running = FACTORY.strategy(config)
    limits = running.script[phase].limits({"scaled": np.asarray(0)}, replace(running.public, rows=2))
    assert limits[phase] >= row_limit * MAX_COLUMNS ** (0.5 if phase == "scores" else 1)
    if phase != "scores":  # whose rows are about another mean
        np.testing.assert_allclose(limits[phase], 2 * row_limit * MAX_COLUMNS, rtol=1e-6)


@pytest.fixture
def paths(tmp_path):
    paths = [tmp_path / f"own{party}.npz" for party in range(3)]
    fitted(paths, OLD)
    return paths


def fitted(paths, X, **options):
    return run("vertical", cut(X, [6, 10]), n_components=3, loadings=paths, **{"tolerance": 1e-9, **options})


def project(parties, paths, **options):
    return run("vertical-scores", parties, loadings=paths, **{"min_rows": 1, **options})


@every_way
@pytest.mark.parametrize("options", [{}, {"scale": True}, {"center": False}], ids=str)
def test_the_scores_are_those_of_the_central_model(way, options, paths, tmp_path):
    earlier, truth = fitted(paths, OLD, **options).scores_, pooled_pca(OLD, 3, **options)
    before, files = [path.read_bytes() for path in paths], [tmp_path / f"{party}.npy" for party in range(3)]
    model, new = project(NEW, paths, scores=files, **way), np.hstack(NEW)
    assert all(np.load(file).tobytes() == model.scores_.tobytes() for file in files)
    assert [path.read_bytes() for path in paths] == before
    expected = truth.transform(new) * np.sign(np.einsum("ij,ij->j", earlier, truth.transform(OLD)))
    np.testing.assert_allclose(model.scores_, expected, rtol=0, atol=1e-9 * np.abs(expected).max())
    assert (model.n_samples_, model.n_features_in_, model.n_components_) == (7, 12, 3)


def test_scores_depend_on_no_order_offset_or_unit(paths):
    ordered, other = project(NEW, paths, **SECURE), project(NEW[::-1], paths[::-1], **SECURE)
    assert ordered.scores_.tobytes() == other.scores_.tobytes()
    model = project(NEW, paths, n_components=2)
    np.testing.assert_array_equal(model.scores_, project(NEW, paths).scores_[:, :2])
    assert "the first 2 of the 3 components of the loadings" in model.log["notes"]
    # A mean that is rounded once would move all new scores alike, by a thousandth of a deviation.
    model = fitted(paths, OLD + 1e13)
    np.testing.assert_allclose(project(cut(OLD + 1e13, [6, 10]), paths).scores_, model.scores_, atol=1e-9)
    # The last party's columns are constant and divided by 1, and the others' are a thousandth of a bound.
    X = OLD * 1e-6
    X[:, 10:] = 1e-6
    fitted(paths, X, scale=True)
    secure = project(cut(X, [6, 10]), paths, secure_aggregation=True, bound=1e-4)
    np.testing.assert_allclose(secure.scores_, project(cut(X, [6, 10]), paths).scores_, atol=1e-9)
    assert secure.log["measured"]["fixed_point_size_share"] < 1e-12


def test_ids_put_the_new_rows_in_one_order(paths, tmp_path):
    rng, nodes, site = np.random.default_rng(0), [], {"ids": "id", "split": "columns", "may-show": "scores"}
    orders = [rng.permutation(7) for _ in range(3)]
    for party, (columns, order) in enumerate(zip(NEW, orders, strict=True)):
        frame = pd.DataFrame(columns, np.arange(100, 107)).add_prefix(f"x{party}").iloc[order]
        frame.to_csv(tmp_path / f"{party}.csv", index_label="id")
        files = {"data": f"{party}.csv", "scores": f"{party}.npy", "loadings": paths[party].name}
        nodes.append({**site, **{key: str(tmp_path / name) for key, name in files.items()}})
    finish(at_sites(server_of("vertical-scores", NEW), nodes))
    expected = project(NEW, paths).scores_
    for party, order in enumerate(orders):
        np.testing.assert_allclose(np.load(tmp_path / f"{party}.npy"), expected[order], atol=1e-12)


@every_way
def test_other_loadings_and_columns_or_hidden_scores_refuse(way, paths, tmp_path):
    other_paths = [tmp_path / f"other{party}.npz" for party in range(3)]
    fitted(other_paths, OLD * np.arange(12, 0, -1))
    with refused(ConfigError, "party 2", "party 0", "'loadings'"):
        project(NEW, [*paths[:2], other_paths[2]], **way)
    with refused(DataError, "party 0", 4, 6):
        project(cut(np.hstack(NEW), 3), paths, **way)
    with refused(DisclosureError, "party 0", "may_show"):
        project(NEW, paths, may_show="nothing", **way)
    assert project(NEW, paths, may_show="scores", **way).n_components_ == 3


def test_missing_loadings_are_named_without_their_path(paths, tmp_path):
    with refused(ConfigError, "party 0", "'loadings'"):
        run("vertical-scores", NEW, min_rows=1)
    with refused(ContractError, "'loadings'") as error:
        project(NEW, [*paths[:2], tmp_path / "absent.npz"])
    assert "absent" not in str(error.value)
    for wrong, named in ((paths[:2], [3]), ("own.npz", ["own.npz", 3])):
        with refused(ConfigError, "'loadings'", *named):
            project(NEW, wrong)
    with refused(DataError):
        project([np.tile(Loadings.load(path).mean, (3, 1)) for path in paths], paths)
    loadings = Loadings.load(paths[1])
    Loadings(loadings.components, loadings.mean, loadings.scale).save(paths[1])
    with refused(ConfigError, "party 1", "'vertical'"):
        project(NEW, paths)


def merged(parties, **options):
    return run("vfedpca", cut(CANCER, parties), **{"n_components": 1, **options})


def angle(model):
    return principal_angles(model.scores_, pooled_pca(CANCER, 1).transform(CANCER)).max()


@pytest.mark.parametrize("scaling", [False, True])
@pytest.mark.parametrize("parties", [3, 10])
def test_the_faithful_variant_is_the_authors_program(parties, scaling):
    """A further component is the same program on what the directions before leave of the columns, and starts anew."""
    directions = np.empty((len(CANCER), 0))
    for component in range(3):
        u = authors_program(
            [block - directions @ (directions.T @ block) for block in cut(CANCER, parties)], component, scaling
        )
        u -= directions @ (directions.T @ u)
        directions = np.column_stack([directions, u / np.linalg.norm(u)])
    options = {"variant": "faithful", "periods": 3, "local_iterations": 5, "weight_scaling": scaling, "seed": 42}
    model = merged(parties, n_components=3, **options)
    for j in range(3):  # the model's components are in the order of what the columns hold of them
        assert principal_angles(model.scores_, directions[:, j : j + 1]).max() <= 1e-6


def authors_program(blocks, component, scaling):
    values, vectors = [], []
    for period in range(4):
        start = np.random.default_rng((42, component, period)).random(len(CANCER))
        for block in blocks:
            A, b = np.cov(block), start
            for _ in range(5):
                b = A @ b / np.linalg.norm(A @ b)
            values.append(b @ A @ b)
            vectors.append(b)
        if period == 0:
            continue  # isolated, but never forgotten
        weights = np.array(values) / np.sum(values)
        larger = np.argsort(np.argsort(-weights)) < len(weights) // 2
        u = weights * (1 + scaling * np.where(larger, 1, -1) * weights.mean()) @ np.array(vectors)
        M = [np.outer(m, m) for m in (block.T @ u for block in blocks)]
        blocks = [block @ m / np.linalg.norm(m) for block, m in zip(blocks, M, strict=True)]
    return u


@pytest.mark.engine
def test_signs_periods_and_warm_starts_that_change_nothing():
    """On a graph: else directions of opposite sign average to nothing."""
    options = {"n_components": 2, "graph": "ring", "periods": 2}
    server = server_of("vfedpca", cut(CANCER, 4), **options)
    tamper_arrays(server, 1, lambda arrays: [-array if array.shape == (150, 2) else array for array in arrays])
    plain, turned = finish(server_of("vfedpca", cut(CANCER, 4), **options)), finish(server)
    assert principal_angles(plain.scores_, turned.scores_).max() <= 1e-6
    errors = [model.log["measured"]["consensus_error_degrees"] for model in (plain, turned)]
    assert errors[0] == pytest.approx(errors[1], rel=1e-12)
    two, ten = merged(3, periods=2), merged(3, periods=10)
    assert principal_angles(two.scores_, ten.scores_).max() < 1e-3
    assert angle(merged(3, periods=1)) > angle(two)
    # After the first period a party's data have rank one: any start ends at the same vector.
    cold, warm = (merged(3, periods=2, local_iterations=1, warm_start=start) for start in ("random", "previous"))
    assert principal_angles(cold.scores_, warm.scores_).max() < 1e-6


def test_one_party_alone_and_an_average_find_what_they_can():
    model = merged(3)
    assert 0.5 < angle(model) < 30
    assert not model.log["exact"]
    assert angle(merged(1, periods=1, local_iterations=60)) < 1e-6
    with_graph, without = (merged(1, graph=graph, local_iterations=60) for graph in ("ring", "server"))
    assert principal_angles(with_graph.scores_, without.scores_).max() < 1e-6
    assert merged(1, n_components=2, graph="ring", variant="faithful", periods=2).scores_.shape == (150, 2)


@pytest.mark.parametrize("variant", ["ours", "faithful"])
@pytest.mark.parametrize("graph", ["complete", "ring", "star"])
def test_without_a_server_neighbours_are_merged(graph, variant):
    server = server_of("vfedpca", cut(CANCER, 5), n_components=1, graph=graph, variant=variant, periods=2)
    exchanged = [heard(server, party) for party in range(5)]
    model = finish(server)
    assert "the server relayed" in " ".join(model.log["notes"])
    agreed = model.log["measured"]["consensus_error_degrees"]
    if (graph, variant) == ("complete", "ours"):
        assert agreed < 1e-5
        assert principal_angles(model.scores_, merged(5, periods=2).scores_).max() < 1e-6
    else:
        assert agreed > 0.1
    reports = [exchange.said[0] for exchanges in exchanged for exchange in exchanges if exchange.phase == "report"]
    assert agreed == pytest.approx(max(principal_angles(u, model.scores_).max() for u in reports), rel=1e-6, abs=1e-6)
    neighbours = {"complete": [4] * 5, "ring": [2] * 5, "star": [4, 1, 1, 1, 1]}[graph]
    assert model.log["rounds"][2]["down"] == [2 * 128 + 8 * 151 * number for number in neighbours]


def test_kernels_have_their_eigenvalue_and_never_overflow():
    """Faults: NaN and a party of weight zero, or for every party an error that rows were identical."""
    for largest in (307, 312):  # a sum, and an entry
        parties = cut(CANCER, 3)
        parties[1] = parties[1] * 10 ** (largest / 6) / np.linalg.norm(parties[1], axis=1).max()
        with refused(DataError, "float64", "'gamma'"):
            run("vfedakpca", parties, n_components=1, kernel="polynomial", gamma=1.0)
    for variant, phase, times, columns in (("ours", "local", 3 * 4 - 1, 3 * 2), ("faithful", "start", 2, 3 * 3)):
        merged_options = VFedPCAOptions(n_components=3, periods=4, variant=variant)
        assert merge_questions(RunConfig(), merged_options)[phase].times == times
        assert merged_options.max_gram_columns(150) == columns
    for options in KERNELS:
        name = {"polynomial": "poly"}.get(options["kernel"], options["kernel"])
        defaults = {"gamma": 1 / (30 * CANCER.var()), "coef0": 1.0, "eigen_solver": "dense"}
        truth = KernelPCA(1, **{**defaults, **options, "kernel": name}).fit(CANCER)
        value, vector = VFedAKPCAOptions(**options).local_direction(CANCER, np.empty(0))
        assert value == pytest.approx(truth.eigenvalues_[0] ** 0.5, rel=1e-9)
        assert principal_angles(vector[:, None], truth.eigenvectors_).max() < 1e-6


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
