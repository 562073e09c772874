"""Design note 001's selection by divergences, written from the note, with scales and weights that it leaves open."""

import numpy as np
import pytest

from fedpca_flwr import run
from fedpca_flwr.errors import ConfigError
from tests.papers.partitions import PARTITIONS, ROWS
from tests.refusals import refused


def shares(C):
    values = np.linalg.eigvalsh(C) + 1e-12 * np.trace(C)
    return values / values.sum()


def selection(parties, k, border=0.35):
    """Return the means of the four divergences, and components, variances and ratios of the method that is chosen."""
    n, N = [len(X) for X in parties], sum(map(len, parties))
    means, covariances = [X.mean(axis=0) for X in parties], [np.cov(X.T, bias=True) for X in parties]
    mean = sum(n_k * m for n_k, m in zip(n, means, strict=True)) / N
    average = sum(n_k * C for n_k, C in zip(n, covariances, strict=True)) / N
    total, p = np.trace(average), shares(average)
    measures = []
    for m, C in zip(means, covariances, strict=True):
        between = np.linalg.norm(m - mean) / np.sqrt(total)
        frobenius = np.linalg.norm(C - average) / np.linalg.norm(average)
        measures.append([between, frobenius, (shares(C) * np.log(shares(C) / p)).sum(), abs(np.trace(C) / total - 1)])
    four = np.minimum(measures, 1).mean(axis=0)
    pooled = np.cov(np.vstack(parties).T, bias=True)
    values, vectors = np.linalg.eigh(average if four.mean() <= border else pooled)
    variances = values[::-1][:k]
    return four, vectors[:, ::-1][:, :k], variances * N / (N - 1), variances / np.trace(pooled), mean


@pytest.mark.parametrize(("name", "chosen"), [("iid", "ap-cov"), ("dirichlet", "p-cov"), ("shards", "p-cov")])
def test_the_notes_variant_is_its_selection(name, chosen):
    parties = [ROWS[part] for part in PARTITIONS[name]]
    four, components, variances, ratios, mean = selection(parties, 3)
    model = run("adaptive", parties, n_components=3, variant="paper")
    measured = model.log["measured"]
    names = ("means", "covariances", "spectra", "variances")
    np.testing.assert_allclose([measured[f"divergence_{which}"] for which in names], four, rtol=1e-9)
    assert measured["divergence_score"] == pytest.approx(four.mean(), rel=1e-9)
    assert (model.log["chosen"]["method"], model.log["exact"]) == (chosen, chosen == "p-cov")
    np.testing.assert_allclose(np.abs(model.components_ @ components), np.eye(3), atol=1e-9)
    np.testing.assert_allclose(model.explained_variance_, variances, rtol=1e-9)
    np.testing.assert_allclose(model.explained_variance_ratio_, ratios, rtol=1e-9)
    np.testing.assert_allclose(model.mean_, mean, rtol=1e-9)
    assert f"so {chosen}" in model.summary(full=True)
    assert [entry["phase"] for entry in model.log["rounds"]] == ["moments", "project"]


def score(*parties, **options):
    log = run("adaptive", parties, n_components=2, min_rows=1, rule="divergences", **options).log
    return log["measured"]["divergence_score"], log["chosen"]["method"]


def test_the_score_and_its_threshold():
    """Of alike parties the score is 0, where only the means differ one of four parts is not, and none exceeds 1."""
    X = np.random.default_rng(0).standard_normal((60, 4))
    assert score(X, X) == (pytest.approx(0, abs=1e-12), "ap-cov")
    assert score(X, X + 50) == (pytest.approx(0.25), "ap-cov")
    assert score(X, X + 50, threshold=0.2)[1] == "p-cov"
    assert 0.5 < score(X, X * [1e3, 1, 1, 1])[0] < 1
    assert score(*X[:5, None]) == (pytest.approx(0.25), "p-cov")  # a row each: averaged covariances are zero
    huge = [part * 1e100 for part in (X, X + 50)]
    assert score(*huge)[0] == pytest.approx(0.25)


def test_secure_sums_and_targets_are_refused_with_a_way_out():
    X = np.random.default_rng(0).standard_normal((60, 4))
    with refused(ConfigError, "p-cov", "divergences"):
        score(X, X, X, secure_aggregation=True, bound=10.0)
    with refused(ConfigError, "target", "forecast"):
        score(X, X, target=1.0)
