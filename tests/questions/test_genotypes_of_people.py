"""The option ``genotypes``: the textbook's PCA of standardised genotypes, whoever holds which people."""

import numpy as np
import pytest

from fedpca_flwr.errors import ConfigError, DataError, DisclosureError
from fedpca_flwr.maths.eigen import principal_angles
from fedpca_flwr.maths.genotypes import columns_of_others
from fedpca_flwr.questions import genotypes
from tests.harness import client_of, fit, server_of
from tests.refusals import refused

SUMS = {"secure_aggregation": True, "min_parties": 2}

WAYS = [
    *(("p-cov", way) for way in ({}, SUMS)),
    *(("sub-it", way) for way in ({}, SUMS, {"warm_start": "svd"})),
    ("adaptive", {}),
    ("adaptive", {"round_bytes": 1e9}),
    ("qr-pca", {}),
    ("qr-pca", {"rank": 90}),
    ("qr-pca", {"wire": "float32"}),
]


def people(n: int = 90, d: int = 120, *, missing: float = 0.0, seed: int = 0):
    """Genotypes (n, d) of three populations, in the order in which they live."""
    rng = np.random.default_rng(seed)
    ancestral = rng.uniform(0.3, 0.7, d)
    populations = rng.beta(ancestral * 4, (1 - ancestral) * 4, size=(3, d))
    G = rng.binomial(2, np.repeat(populations, n // 3, axis=0)).astype(float)
    G[rng.random(G.shape) < missing] = np.nan
    return G


def by_hand(G):
    """The standardised genotypes, by the formula."""
    p = np.nanmean(G, axis=0) / 2
    variance = 2 * p * (1 - p)
    return np.nan_to_num((G - 2 * p) / np.sqrt(np.where(variance > 0, variance, 1)))


def parties_of(G):
    return [G[:50], G[50:62], G[62:]]


@pytest.mark.parametrize(("method", "way"), WAYS, ids=str)
def test_components_are_those_of_the_standardised_genotypes(method, way):
    G = people(missing=0.05)
    G[:, 5] = 2
    G[:50, 9] = np.nan  # a party that never called a variant
    model = fit(method, parties_of(G), n_components=2, genotypes=True, **way)
    _, values, vectors = np.linalg.svd(by_hand(G), full_matrices=False)
    assert principal_angles(model.components_.T, vectors[:2].T).max() <= 2e-6
    np.testing.assert_allclose(model.singular_values_, values[:2], rtol=1e-7 if "wire" in way else 1e-9)
    np.testing.assert_allclose(model.mean_, np.nanmean(G, axis=0), atol=1e-12)
    np.testing.assert_allclose(model.transform(G), by_hand(G) @ model.components_.T, atol=1e-9)
    measured = model.log["measured"]
    assert measured["squared_error_per_row"] == pytest.approx(measured["predicted_squared_error_per_row"])
    assert any("1 variants have one allele only" in note for note in model.log["notes"])
    assert any("% of the calls are missing" in note for note in model.log["notes"])


@pytest.mark.parametrize("way", [{}, SUMS], ids=str)
def test_frequencies_are_those_of_all_rows_and_not_of_a_party(way):
    """Parties that hold a population each: scaled by their own frequencies, the populations would not stand apart."""
    G = people()
    apart = fit("p-cov", [G[:30], G[30:60], G[60:]], n_components=2, genotypes=True, **way)
    mixed = fit("p-cov", [G[::2], G[1::2]], n_components=2, genotypes=True, **way)
    assert principal_angles(apart.components_.T, mixed.components_.T).max() <= 1e-9
    np.testing.assert_array_equal(apart.mean_, mixed.mean_)


def test_a_site_writes_the_scores_of_people_with_missing_calls(tmp_path):
    parties = parties_of(people(missing=0.05))
    files = [tmp_path / f"{party}.npy" for party in range(3)]
    model = fit("qr-pca", parties, n_components=2, genotypes=True, scores=files, round_rows=10)
    assert model.n_samples_ == 50 + 10 + 20
    for rows, file in zip(parties, files, strict=True):
        np.testing.assert_allclose(np.load(file), model.transform(rows), atol=1e-9)


def test_adaptive_counts_alleles_once_and_forecasts_of_standardised_genotypes():
    G = people(d=2000, missing=0.05)
    model = fit("adaptive", parties_of(G), n_components=2, genotypes=True, round_bytes=1e5)
    phases = [entry["phase"] for entry in model.log["rounds"]]
    assert phases.count("alleles") == phases.count("survey") == 1
    told = [entry["down"][0] > 8 * 2000 for entry in model.log["rounds"][:3]]
    assert told[:2] == [False, True]  # the frequencies, once
    assert not told[2]
    assert all(way["options"]["genotypes"] for way in model.log["candidates"])
    assert {way["method"] for way in model.log["candidates"]} == {"p-cov", "qr-pca", "sub-it"}


def test_masked_sums_need_no_bound_and_no_more_rounds_than_the_method():
    model = fit("p-cov", parties_of(people()), n_components=2, genotypes=True, **SUMS)
    assert [entry["phase"] for entry in model.log["rounds"]] == ["keys", "alleles", "scatter", "project"]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"scale": True}, ["scale=False"]),
        ({"center": False}, ["center=True"]),
        ({"keep": "moments", "scale": True}, ["scale=False", "keep=nothing"]),
    ],
    ids=str,
)
def test_options_that_contradict_it_are_refused(options, named):
    with refused(ConfigError, *named):
        fit("p-cov", parties_of(people()), n_components=2, genotypes=True, **options)


def test_survivors_are_refused_for_a_second_sum():
    with refused(ConfigError, "'survivors'", "p-cov", "alleles", "uncentred"):
        fit("p-cov", parties_of(people()), n_components=2, genotypes=True, survivors=3, **SUMS)


def test_rows_that_are_no_genotypes_are_refused_by_number_of_columns():
    parties = parties_of(people())
    parties[1][0, 3], parties[1][2, 4] = 1.5, 3
    with refused(DataError, 0, 1, 2, "genotypes=True"):
        fit("qr-pca", parties, n_components=2, genotypes=True)


def test_rows_are_looked_through_for_other_values_once_a_run(monkeypatch):
    looked, look = [], columns_of_others
    monkeypatch.setattr(genotypes, "columns_of_others", lambda rows: looked.append(len(rows)) or look(rows))
    fit("sub-it", parties_of(people()), n_components=2, genotypes=True)
    assert sorted(looked) == [12, 28, 50]


def test_missing_calls_say_what_to_do():
    with refused(DataError, "genotypes=True", "NaN"):
        fit("qr-pca", parties_of(people(missing=0.1)), n_components=2)


def test_a_variant_called_in_few_people_is_refused():
    """Its counts would be those of fewer people than the site answers about."""
    parties = parties_of(people())
    parties[0][3:, 7] = np.nan
    with refused(DisclosureError, "client 0", "min_rows"):
        fit("qr-pca", parties, n_components=2, genotypes=True, min_rows=10)


def alleles_asked(**options):
    """A server's question of allele counts answered by a party, whose client it returns."""
    server = server_of("qr-pca", parties_of(people()), n_components=2, genotypes=True, **options)
    assert client_of(server, 0).fit([], {"phase": "alleles"})[0]
    return client_of(server, 0)


@pytest.mark.parametrize("value", [1e-300, 1.5, 1 - 1e-15, np.nan])
def test_a_party_takes_no_frequencies_that_cannot_be(value):
    frequencies = np.full(120, 0.5)
    frequencies[3] = value
    assert alleles_asked().fit([frequencies], {"phase": "factor"})[2]["error"] == "ContractError"


def test_a_party_answers_nothing_about_genotypes_that_it_cannot_standardise():
    assert alleles_asked().fit([np.empty(0)], {"phase": "factor"})[2]["error"] == "ContractError"
    assert alleles_asked().fit([np.full(120, 0.5)], {"phase": "factor"})[0]
