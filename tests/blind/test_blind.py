"""Blind runs: the parties have the model, the server has the spectrum, and what cannot be blind is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.linalg import subspace_angles

from fedpca_flwr import ConfigError, DataError, PCAModel, run
from fedpca_flwr.blind import stage as blind
from fedpca_flwr.errors import ContractError, PartyError, QuorumError
from tests import genotypes
from tests.families import cut, rows
from tests.harness import fail_at, finish, fit, server_of
from tests.refusals import refused

BLIND = {"secure_aggregation": True, "bound": 1e3, "blind": True, "n_components": 3}
X = rows(90, 6) * [9, 7, 5, 3, 2, 1] + [0, 0, 50, -3, 0, 1]
PARTIES = cut(X, 40, 30, 20)


def blind_server(parties=PARTIES, **options):
    return server_of("p-cov", parties, **{**BLIND, **options})


def require_same(model, plain):
    assert np.degrees(subspace_angles(model.components_.T, plain.components_.T).max()) < 1e-8
    np.testing.assert_allclose(model.mean_, plain.mean_, rtol=1e-15, atol=1e-14)
    np.testing.assert_allclose(model.explained_variance_, plain.explained_variance_, atol=1e-11 * plain.total_variance)
    np.testing.assert_allclose(model.explained_variance_ratio_, plain.explained_variance_ratio_, atol=1e-11)
    assert (np.sign(model.components_) == np.sign(plain.components_))[np.abs(plain.components_) > 1e-6].all()
    assert model.n_samples_ == pytest.approx(plain.n_samples_, rel=1e-15)
    assert (model.scale_ is None) == (plain.scale_ is None)
    assert model.scale_ is None or np.allclose(model.scale_, plain.scale_, rtol=1e-13)


def require_secret_model(folder, parties, plain, atol, **options):
    """Hold that parties write one model and the scores of the plain run; return what a server keeps: the spectrum."""
    site = {key: [str(folder / f"{key} {i}.npy") for i in range(3)] for key in ("model", "scores")}
    kept = PCAModel.load(finish(blind_server(parties, site=site, **options)).save(folder / "server"))
    assert (kept.components_.size, kept.mean_, kept.scale_, kept.adjustment_, kept.n_samples_) == (0, *[None] * 3, 90)
    models = [PCAModel.load(next(Path(own).glob("*.npz"))) for own in site["model"]]
    assert all((model.components_ == models[0].components_).all() for model in models)
    for model, scores, rows_of_party in zip(models, map(np.load, site["scores"]), parties, strict=True):
        np.testing.assert_allclose(scores, plain.transform(rows_of_party), atol=atol)
        np.testing.assert_allclose(scores, model.transform(rows_of_party), atol=atol)
    return kept


ROUNDED = [np.round(part * 2**13) / 2**13 for part in PARTIES]
"""To whole steps of 2^-13, so that both runs have the same rows also at the largest offset."""
CONSTANT = np.column_stack([X[:5, :4], np.full(5, 7.0)])
WEIGHTED = cut(np.column_stack([X, np.random.default_rng(1).uniform(0.2, 3, len(X))]), 40, 30, 20)
DIVISIONS = {  # parties, options of the run, and of the blind run alone
    **{f"offset {by:g}": ([part + by for part in ROUNDED], {}, {"bound": 1e3 + by}) for by in (0, 1e6, 1e12)},
    "two parties": (np.array_split(X, 2), {}, {"min_parties": 2}),
    "five parties": (np.array_split(X, 5), {}, {}),
    "a share of the variance": (PARTIES, {"n_components": 0.8}, {}),
    "a constant feature and few rows": ([CONSTANT[:2], CONSTANT[2:]], {}, {"min_parties": 2}),
    "weights": (WEIGHTED, {"weights": "6"}, {}),
}


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize(("parties", "options", "sums"), DIVISIONS.values(), ids=DIVISIONS)
def test_the_parties_have_the_model_of_all_rows(parties, options, sums, scale):
    options = {"n_components": 3, "scale": scale, **options}
    model = fit("p-cov", parties, **BLIND | sums | options)
    require_same(model, fit("p-cov", parties, **options))
    assert (model.log["method"], model.log["exact"]) == ("p-cov", True)


@pytest.mark.parametrize("number", [20, pytest.param(400, marks=pytest.mark.nightly)])
def test_many_parties_have_the_model(number):
    parties = np.array_split(rows(3 * number, 6) * [9, 7, 5, 3, 2, 1], number)
    require_same(fit("p-cov", parties, **BLIND), fit("p-cov", parties, n_components=3))


def test_genotypes_have_the_model_of_standardised_genotypes(tmp_path):
    people = genotypes.people(90, 24)
    people[:, 5] = 1
    parties = cut(people, 40, 30, 20)
    model = fit("p-cov", parties, **BLIND | {"bound": 0.0}, genotypes=True)
    plain = fit("p-cov", parties, n_components=3, genotypes=True)
    require_same(model, plain)
    assert model.log["exact"]
    require_secret_model(tmp_path, parties, plain, 1e-9, genotypes=True)
    parties[1][0, 0] = np.nan
    np.testing.assert_allclose(model.transform(parties[1]), plain.transform(parties[1]), atol=1e-9)


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_covariates_are_taken_out_as_in_a_plain_run(tmp_path, scale, offset):
    """Feature 6 is a covariate once more, of which nothing is left."""
    parties = cut(np.column_stack([X, 2 * X[:, 1] + 3]) + offset, 40, 30, 20)
    options = {"adjust_for": "4,1", "scale": scale}
    model = fit("p-cov", parties, **BLIND | {"bound": 1e3 + offset}, **options)
    plain = fit("p-cov", parties, n_components=3, **options)
    require_same(model, plain)
    assert (model.adjustment_.covariate_columns == [4, 1]).all()
    np.testing.assert_allclose(model.adjustment_.slopes, plain.adjustment_.slopes, atol=1e-11)
    assert (model.components_[:, [1, 4, 6]] == 0).all()
    require_secret_model(tmp_path, parties, plain, 1e-8, bound=1e3 + offset, **options)


def test_categories_have_the_model_of_their_indicators():
    pandas = pytest.importorskip("pandas")
    drawn = np.random.default_rng(2).integers(0, 3, len(X))
    table = pandas.DataFrame(X, columns=list("abcdef")).assign(kind=np.array(["red", "green", "blue"])[drawn])
    parties = [table.iloc[:40], table.iloc[40:70], table.iloc[70:]]
    levels = {"levels": {"kind": ["blue", "green", "red"]}, "scale": True, "min_rows": 1, "progress": False}
    model, plain = run("p-cov", parties, **BLIND, **levels), run("p-cov", parties, n_components=3, **levels)
    require_same(model, plain)
    np.testing.assert_allclose(model.transform(table), plain.transform(table), atol=1e-9)
    assert list(model.feature_names_in_)[:6] == list("abcdef")


def test_the_server_has_a_spectrum_and_without_a_party_nobody_has_a_model(tmp_path):
    plain = fit("p-cov", PARTIES, n_components=3)
    kept = require_secret_model(tmp_path, PARTIES, plain, 1e-9)
    np.testing.assert_allclose(kept.explained_variance_ratio_, plain.explained_variance_ratio_, rtol=1e-11)
    assert kept.explained_variance_.sum() * 89 == pytest.approx(plain.explained_variance_ratio_.sum(), rel=1e-11)
    assert "90 of 6 features" in kept.summary(full=True)
    assert any("2^-44 of the variance" in note and "at most" in note for note in kept.log["notes"])
    with refused(ContractError, "'model'", "'scores_'", "'p-cov'"):
        kept.transform(X)
    (folder := tmp_path / "of a run that a party leaves").mkdir()
    fail_at(server := blind_server(site={"model": str(folder)}), 1, "moments")
    with refused((QuorumError, PartyError), "client 1"):
        finish(server)
    assert not list(folder.iterdir())


KEYS: dict[str, Any] = {"keep": "moments", "center": False, "harmonise": "means", "clusters": 2, "outliers": "sites"}
KEYS |= {"fourth-moments": True, "survivors": 3, "minimum": 2}
OTHERS = ["sub-it", "ap-cov", "qr-pca", "em", "dp-pca epsilon=1", "vertical", "robust"]
REFUSED = [
    *(("p-cov", {key: value}, [f"'{key}'"]) for key, value in KEYS.items()),
    ("p-cov", {"n_components": "auto"}, ["n-components='auto'"]),
    ("p-cov", {"adjust_for": "0", "genotypes": True}, ["'genotypes'"]),
    ("p-cov", {"genotypes": True, "prune": 0.2}, ["'prune'"]),
    ("p-cov", {"secure_aggregation": False}, ["'blind'"]),
    *((method, {}, ["'blind'", "p-cov"]) for method in OTHERS),
]


@pytest.mark.parametrize(("method", "options", "named"), REFUSED, ids=str)
def test_what_cannot_be_blind_is_refused_by_name(method, options, named):
    with refused(ConfigError, *named) as caught:
        server_of(method, PARTIES, **{**BLIND, **options})
    assert "None" not in str(caught.value)


CALLS = cut(genotypes.people(90, 24), 40, 30, 20)
CALLS[1][0, 0] = np.nan
MANY = rows(90, 25)
TABLES = {
    "missing calls": (CALLS, {"genotypes": True}, DataError, ["'blind'"]),
    "few rows": ([X[:2], X[2:4]], {"n_components": 5, "min_parties": 2}, ConfigError, ["'n-components'", 5, 4]),
    "equal rows": ([np.ones((4, 6))] * 3, {}, DataError, ["client 0"]),
    "more features than a party rotates": (cut(MANY, 40, 30, 20), {}, ConfigError, ["'blind'", 25, 24]),
    "many covariates": (PARTIES, {"adjust_for": "0,1,2,3"}, ConfigError, ["'n-components'", 3, 2]),
    "covariates": (PARTIES, {"adjust_for": "0,1,2,3,4,5", "n_components": 1}, DataError, ["client 0"]),
}


@pytest.mark.parametrize(("parties", "options", "error", "named"), TABLES.values(), ids=TABLES)
def test_tables_that_have_no_blind_model_are_refused(parties, options, error, named, monkeypatch):
    monkeypatch.setattr(blind, "MAX_FEATURES", 24)
    with refused(error, *named):
        finish(blind_server(parties, **options))
