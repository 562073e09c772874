"""VERTICAL: its rounds and bytes, its three solvers, what stays at the sites, and what they allow.

And VERTICAL-SCORES: scores of new rows from the loadings that the parties kept, in clear and as a secure sum.
"""

from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from fedpca_flwr import run
from fedpca_flwr.errors import ConfigError, ContractError, DataError, DisclosureError
from fedpca_flwr.maths.eigen import principal_angles
from fedpca_flwr.model.loadings import Loadings
from fedpca_flwr.model.reference import pooled_pca
from fedpca_flwr.questions.columns_run import MAX_COLUMNS
from fedpca_flwr.simulations.loopback import assemble
from fedpca_flwr.strategies import FACTORY, METHODS
from tests.families import rows
from tests.harness import at_sites, blocks_added, finish, server_of
from tests.refusals import refused, unnamed


def cut(X, parties):
    return np.array_split(X, parties, axis=1)


def fit(parties, **options):
    return run("vertical", parties, **{"n_components": 3, **options})


@pytest.mark.engine
def test_certificates_hold_in_as_many_rounds_as_they_need():
    X, spent = rows(300, 40), []
    truth = pooled_pca(X, 3).transform(X)
    for tolerance in (10.0, 1e-3, 1e-6):
        model = fit(cut(X, 3), tolerance=tolerance)
        assert principal_angles(model.scores_, truth).max() <= tolerance
        spent.append(len(model.log["rounds"]))
    assert spent[0] < spent[1] < spent[2]
    header, *products, _ = (entry["up"] for entry in model.log["rounds"])
    assert header == [3 * 136 + 128] * 3
    assert products == [[300 * 8 * 8 + 128] * 3] * len(products)
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


@pytest.mark.parametrize("solver", ["krylov", "gram"])
@pytest.mark.parametrize("options", [{"scale": True}, {"center": False}, {"center": False, "scale": True}], ids=str)
def test_scaling_and_centring_are_those_of_the_pooled_columns(solver, options):
    X = rows(100, 12) * np.arange(1, 13) + np.arange(12)
    model, truth = fit(cut(X, 3), solver=solver, **options), pooled_pca(X, 3, **options)
    assert principal_angles(model.scores_, truth.transform(X)).max() <= 1e-6
    np.testing.assert_allclose(model.explained_variance_ratio_, truth.explained_variance_ratio_, rtol=1e-9)


@pytest.mark.parametrize("method", ["vertical", "vfedpca", "vfedakpca"])
def test_rows_of_frames_are_matched_by_their_index(method, tmp_path):
    """Three tables of the same people in other orders gave other components, in silence."""
    people = pd.DataFrame(rows(60, 9), [f"patient {i:02d}" for i in range(60)], list("abcdefghi"))
    parts = {name: people[list(names)] for name, names in (("north", "abc"), ("south", "defg"), ("west", "hi"))}
    turned = {name: part.sample(frac=1, random_state=i) for i, (name, part) in enumerate(parts.items())}
    options, order = {"n_components": 2, "min_rows": 1}, turned["north"].index
    paths = [tmp_path / f"{name}.npy" for name in parts]
    expected = run(method, {name: part.loc[order] for name, part in parts.items()}, **options)
    model = run(method, turned, **options, scores=paths)
    np.testing.assert_array_equal(model.scores_, expected.scores_)
    (note,) = [note for note in model.log["notes"] if "in the order of" in note]
    assert not unnamed(note, "party 'north'", "party 'south'", "party 'west'")
    assert "in the order of party" not in " ".join(expected.log["notes"])
    for path, part in zip(paths, turned.values(), strict=True):  # each in the order of its own frame
        names = pd.DataFrame(model.scores_, index=order).loc[part.index]
        np.testing.assert_allclose(np.load(path), names, atol=1e-12)


def test_other_people_are_refused():
    people = pd.DataFrame(rows(60, 6), index=pd.MultiIndex.from_product([range(6), list("abcdefghij")]))
    first, second = people[[0, 1, 2]], people[[3, 4, 5]]
    options = {"n_components": 2, "min_rows": 1}
    expected = run("vertical", [first, second], **options)
    for other, named in (
        (second.rename(index={"a": "z"}), ["party 1", 6]),
        (second.drop(index=second.index[3]), ["party 1", 1, 0]),
        (second.set_axis([second.index[0]] * 60), ["party 1"]),
    ):
        with refused(ConfigError, *named):
            run("vertical", [first, other], **options)
    for bare in (second.to_numpy(), second.reset_index(drop=True), pa.Table.from_pandas(second, preserve_index=False)):
        model = run("vertical", [first, bare], **options)
        np.testing.assert_array_equal(model.scores_, expected.scores_)
        assert any("by position" in note and "party 1" in note for note in model.log["notes"])
    numbered = second.reset_index(drop=True).sample(frac=1, random_state=0)  # and one that is counted
    model = run("vertical", [first.reset_index(drop=True), numbered], **options)
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


def test_inner_products_need_more_permission(tmp_path):
    parties = cut(rows(60), 3)
    assert fit(parties, may_show="scores").n_components_ == 3
    with refused(DisclosureError, "party 0", "may_show"):
        fit(parties, solver="gram", may_show="scores")
    np.save(tmp_path / "own.npy", parties[0])
    with refused(DisclosureError, "client 0", "may-show"):
        node = {"data": str(tmp_path / "own.npy"), "split": "columns"}
        finish(at_sites(server_of("vertical", parties, n_components=2), [node] * 3))


@pytest.mark.parametrize(("method", "split", "partition"), [("vertical", "rows", "iid"), ("p-cov", *["columns"] * 2)])
def test_data_split_the_other_way_are_refused(method, split, partition, tmp_path):
    parties = cut(rows(60), 3) if method == "vertical" else np.array_split(rows(60), 3)
    np.save(tmp_path / "own.npy", parties[0])
    node = {"data": str(tmp_path / "own.npy"), "split": split, "may-show": "scores"}
    with refused(ConfigError, "client 0", f"'{method}'", split, "'split'"):
        finish(at_sites(server_of(method, parties, n_components=2), [node] * 3))
    config = {"method": method, "partition": partition, "dataset": "wine", "n-components": 2, "clients": 3}
    with refused(ConfigError, "client 0", f"'{method}'", "'split'"):
        finish(at_sites(assemble(config, [rows(30)] * 3, {}), [{}] * 3))


@pytest.mark.parametrize("solver", ["krylov", "gram"])
def test_few_rounds_give_as_many_components_as_were_asked_for(solver):
    model = fit(cut(rows(60), 3), solver=solver, block_size=1, max_rounds=3)
    assert (model.n_components_, model.log["exact"]) == (3, solver == "gram")


@pytest.mark.parametrize(("sizes", "rank", "directions"), [((4, 4, 4), 1, 3), ((10, 1, 1), 2, 4)], ids=str)
def test_too_few_directions_to_merge_are_a_fault_of_the_options(sizes, rank, directions):
    parties = np.split(rows(60), np.cumsum(sizes)[:-1], axis=1)
    with refused(ConfigError, "'rank'", rank, 3, directions, "n_components", 5):
        run("vertical", parties, n_components=5, solver="merge", rank=rank)


@pytest.mark.parametrize(
    ("named", "phase", "row_limit"),
    [
        ("vertical", "product", 2.0**0.5 * 9.0),  # of two rows
        ("vertical solver=gram", "gram", 9.0),
        ("vertical-scores", "scores", 1.5),
    ],
    ids=str,
)
def test_limits_of_sums_are_what_the_bound_and_all_columns_allow(named, phase, row_limit):
    """The limits are sums of each column whose entries are 3, as large as those about means of a bound of 1.5."""
    config = METHODS.run_config({"method": named, "clients": 3, "secure-aggregation": True, "bound": 1.5})
    running = FACTORY.strategy(config)
    limits = running.script[phase].limits({"scaled": np.asarray(0)}, replace(running.public, rows=2))
    assert limits[phase] >= row_limit * MAX_COLUMNS ** (0.5 if phase == "scores" else 1)
    if phase != "scores":  # whose rows are about another mean
        np.testing.assert_allclose(limits[phase], 2 * row_limit * MAX_COLUMNS, rtol=1e-6)


SECURE = {"secure_aggregation": True, "bound": 1e4}
every_way = pytest.mark.parametrize("way", [{}, SECURE], ids=["plain", "secure"])
OLD = rows(120) * np.arange(1, 13) + 5.0
NEW = np.split(rows(7, seed=9) * np.arange(1, 13) + 3.0, [6, 10], axis=1)
"""Rows of which a model is made, and parties with rows that get scores by that model."""


@pytest.fixture
def paths(tmp_path):
    return [tmp_path / f"own{party}.npz" for party in range(3)]


@pytest.fixture
def loading_paths(paths):
    fitted(paths, OLD)
    return paths


def parts_of(X):
    return np.split(X, [6, 10], axis=1)


def fitted(paths, X, **options):
    return run("vertical", parts_of(X), n_components=3, loadings=paths, **{"tolerance": 1e-9, **options})


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


def test_scores_far_from_zero_are_those_of_the_model(paths):
    """A mean that is rounded once would move all new scores alike, by a thousandth of a deviation."""
    model = fitted(paths, OLD + 1e13)
    np.testing.assert_allclose(project(parts_of(OLD + 1e13), paths).scores_, model.scores_, atol=1e-9)


def test_scores_depend_on_no_order(loading_paths):
    ordered, other = project(NEW, loading_paths, **SECURE), project(NEW[::-1], loading_paths[::-1], **SECURE)
    assert ordered.scores_.tobytes() == other.scores_.tobytes()
    model = project(NEW, loading_paths, n_components=2)
    np.testing.assert_array_equal(model.scores_, project(NEW, loading_paths).scores_[:, :2])
    assert "the first 2 of the 3 components of the loadings" in model.log["notes"]


def test_ids_put_the_new_rows_in_one_order(loading_paths, tmp_path):
    rng, nodes = np.random.default_rng(0), []
    orders = [rng.permutation(7) for _ in range(3)]
    for party, (columns, order) in enumerate(zip(NEW, orders, strict=True)):
        names = [f"x{party}{j}" for j in range(columns.shape[1])]
        pd.DataFrame(columns, np.arange(100, 107), names).iloc[order].to_csv(
            tmp_path / f"{party}.csv", index_label="id"
        )
        files = {"data": f"{party}.csv", "scores": f"{party}.npy", "loadings": loading_paths[party].name}
        site = {"ids": "id", "split": "columns", "may-show": "scores"}
        nodes.append({**site, **{key: str(tmp_path / name) for key, name in files.items()}})
    finish(at_sites(server_of("vertical-scores", NEW), nodes))
    expected = project(NEW, loading_paths).scores_
    for party, order in enumerate(orders):
        np.testing.assert_allclose(np.load(tmp_path / f"{party}.npy"), expected[order], atol=1e-12)


@every_way
def test_loadings_of_another_run_are_named(way, loading_paths, tmp_path):
    other_paths = [tmp_path / f"other{party}.npz" for party in range(3)]
    fitted(other_paths, OLD * np.arange(12, 0, -1))
    with refused(ConfigError, "party 2", "party 0", "'loadings'"):
        project(NEW, [*loading_paths[:2], other_paths[2]], **way)


@every_way
def test_other_columns_or_sites_that_show_no_scores_refuse(way, loading_paths):
    with refused(DataError, "party 0", 4, 6):
        project(cut(np.hstack(NEW), 3), loading_paths, **way)
    with refused(DisclosureError, "party 0", "may_show"):
        project(NEW, loading_paths, may_show="nothing", **way)
    assert project(NEW, loading_paths, may_show="scores", **way).n_components_ == 3


def test_unscaled_columns_have_any_unit(paths):
    """The last party's columns are constant and divided by 1, and the others' are a thousandth of a bound."""
    X = OLD * 1e-6
    X[:, 10:] = 1e-6
    fitted(paths, X, scale=True)
    secure = project(parts_of(X), paths, secure_aggregation=True, bound=1e-4)
    np.testing.assert_allclose(secure.scores_, project(parts_of(X), paths).scores_, atol=1e-9)
    assert secure.log["measured"]["fixed_point_size_share"] < 1e-12


def test_missing_loadings_are_named_without_their_path(loading_paths, tmp_path):
    with refused(ConfigError, "party 0", "'loadings'"):
        run("vertical-scores", NEW, min_rows=1)
    with refused(ContractError, "'loadings'") as error:
        project(NEW, [*loading_paths[:2], tmp_path / "absent.npz"])
    assert "absent" not in str(error.value)
    loadings = Loadings.load(loading_paths[1])
    Loadings(loadings.components, loadings.mean, loadings.scale).save(loading_paths[1])
    with refused(ConfigError, "party 1", "'vertical'"):
        project(NEW, loading_paths)


def test_paths_and_rows_that_cannot_be_are_refused(loading_paths):
    for paths, named in ((loading_paths[:2], [3]), ("own.npz", ["own.npz", 3])):
        with refused(ConfigError, "'loadings'", *named):
            project(NEW, paths)
    with refused(DataError):
        project([np.tile(Loadings.load(path).mean, (3, 1)) for path in loading_paths], loading_paths)
