"""VERTICAL-SCORES: scores of new rows from the loadings that the parties kept, in clear and as a secure sum."""

import numpy as np
import pytest

from fedpca_flwr.errors import ConfigError, ContractError, DataError, DisclosureError
from fedpca_flwr.model.loadings import Loadings
from fedpca_flwr.model.reference import pooled_pca
from simulations import run
from tests.families import rows
from tests.harness import at_sites, finish, server_of
from tests.refusals import refused

WAYS = [{}, {"secure_aggregation": True, "bound": 1e4}]
every_way = pytest.mark.parametrize("way", WAYS, ids=["plain", "secure"])


def cut(X, *sizes):
    return np.split(X, np.cumsum(sizes or (6, 4, 2))[:-1], axis=1)


def old():
    return rows(120) * np.arange(1, 13) + 5.0


def new(n=7):
    return rows(n, seed=9) * np.arange(1, 13) + 3.0


@pytest.fixture
def kept(tmp_path):
    """Paths of the loadings of a run on `old`."""
    paths = [tmp_path / f"own{party}.npz" for party in range(3)]
    fit(paths, old())
    return paths


def fit(paths, X, **options):
    return run("vertical", cut(X), n_components=3, loadings=paths, **{"tolerance": 1e-9, **options})


def project(parties, paths, **options):
    return run("vertical-scores", parties, loadings=paths, **{"min_rows": 1, **options})


def central(X, signs, **options):
    return pooled_pca(old(), 3, **options).transform(X) * signs


def signs_of(model, **options):
    return np.sign(np.einsum("ij,ij->j", model.scores_, pooled_pca(old(), 3, **options).transform(old())))


@every_way
@pytest.mark.parametrize("options", [{}, {"scale": True}, {"center": False}], ids=str)
def test_the_scores_are_those_of_the_central_model(way, options, tmp_path):
    paths = [tmp_path / f"own{party}.npz" for party in range(3)]
    signs = signs_of(fit(paths, old(), **options), **options)
    model = project(cut(new()), paths, **way)
    expected = central(new(), signs, **options)
    np.testing.assert_allclose(model.scores_, expected, rtol=0, atol=1e-9 * np.abs(expected).max())
    assert (model.n_samples_, model.n_features_in_, model.n_components_) == (7, 12, 3)


@every_way
def test_new_rows_have_the_sums_of_the_parts_and_old_ones_their_own_scores(way, kept):
    parts = [Loadings.load(path).part_of_scores(columns) for path, columns in zip(kept, cut(new()), strict=True)]
    np.testing.assert_allclose(project(cut(new()), kept, **way).scores_, sum(parts), rtol=0, atol=1e-12)
    model = fit(kept, old())
    again = project(cut(old()), kept, **way)
    np.testing.assert_allclose(again.scores_, model.scores_, rtol=0, atol=1e-9)
    np.testing.assert_allclose(again.explained_variance_, model.explained_variance_, rtol=1e-9)
    np.testing.assert_allclose(again.explained_variance_ratio_, model.explained_variance_ratio_, rtol=1e-9)
    model = project(cut(new(1)), kept, **way)
    np.testing.assert_allclose(model.scores_, project(cut(new()), kept).scores_[:1], rtol=0, atol=1e-12)
    assert 0 < model.explained_variance_ratio_.sum() <= 1


@every_way
def test_every_site_gets_the_scores_and_keeps_its_loadings(way, kept, tmp_path):
    before = [path.read_bytes() for path in kept]
    files = [tmp_path / f"{party}.npy" for party in range(3)]
    model = project(cut(new()), kept, scores=files, **way)
    assert all(np.load(file).tobytes() == model.scores_.tobytes() for file in files)
    assert [path.read_bytes() for path in kept] == before


def test_scores_depend_on_no_order_and_need_as_many_components_as_are_asked_for(kept):
    one = project(cut(new()), kept, **WAYS[1])
    other = project(cut(new())[::-1], kept[::-1], **WAYS[1])
    assert one.scores_.tobytes() == other.scores_.tobytes()
    model = project(cut(new()), kept, n_components=2)
    np.testing.assert_array_equal(model.scores_, project(cut(new()), kept).scores_[:, :2])
    assert "the first 2 of the 3 components of the loadings" in model.log["notes"]


def test_ids_put_the_new_rows_in_one_order(kept, tmp_path):
    """Each site's file has the rows in an order of its own, and so has its file of scores."""
    rng, ids = np.random.default_rng(0), np.arange(100, 107)
    nodes: list[dict[str, str]] = []
    orders = [rng.permutation(7) for _ in range(3)]
    for party, (columns, order) in enumerate(zip(cut(new()), orders, strict=True)):
        table = np.column_stack([ids, columns])[order]
        header = ",".join(["id", *(f"x{party}{j}" for j in range(columns.shape[1]))])
        np.savetxt(tmp_path / f"{party}.csv", table, delimiter=",", header=header, comments="", fmt="%.17g")
        files = {"data": f"{party}.csv", "scores": f"{party}.npy", "loadings": kept[party].name}
        about = {"ids": "id", "split": "columns", "may-show": "scores"}
        nodes.append({**about, **{key: str(tmp_path / name) for key, name in files.items()}})
    finish(at_sites(server_of("vertical-scores", cut(new())), nodes))
    expected = project(cut(new()), kept).scores_
    for party, order in enumerate(orders):
        np.testing.assert_allclose(np.load(tmp_path / f"{party}.npy"), expected[order], atol=1e-12)


# What is refused


@every_way
def test_loadings_of_another_run_are_named(way, kept, tmp_path):
    others = [tmp_path / f"other{party}.npz" for party in range(3)]
    fit(others, old() * np.arange(12, 0, -1))
    with refused(ConfigError, "client 2", "client 0", "'loadings'"):
        project(cut(new()), [*kept[:2], others[2]], **way)


@every_way
def test_other_columns_or_sites_that_show_no_scores_refuse(way, kept):
    with refused(DataError, "client 0", 4, 6):
        project(cut(new(), 4, 4, 4), kept, **way)
    with refused(DisclosureError, "client 0", "may_show"):
        project(cut(new()), kept, may_show="nothing", **way)
    assert project(cut(new()), kept, may_show="scores", **way).n_components_ == 3


def test_missing_loadings_are_named_without_their_path(kept, tmp_path):
    with refused(ConfigError, "client 0", "'loadings'"):
        run("vertical-scores", cut(new()), min_rows=1)
    with refused(ContractError, "'loadings'") as told:
        project(cut(new()), [*kept[:2], tmp_path / "absent.npz"])
    assert "absent" not in str(told.value)
    own = Loadings.load(kept[1])
    Loadings(own.components, own.mean, own.scale).save(kept[1])
    with refused(ConfigError, "client 1", "'vertical'"):
        project(cut(new()), kept)


def test_paths_and_rows_that_cannot_be_are_refused(kept):
    with refused(ConfigError, "'loadings'", 3):
        project(cut(new()), kept[:2])
    with refused(ConfigError, "'loadings'", "own.npz", 3):
        project(cut(new()), "own.npz")
    parties = [np.tile(Loadings.load(path).mean, (3, 1)) for path in kept]
    with refused(DataError):
        project(parties, kept)
