"""EM with few factors, for wide rows: the pooled iteration's result, R's, and what a user is told."""

import shutil
import subprocess
from functools import cache

import numpy as np
import pytest

from fedpca_flwr.errors import ConfigError, ContractError
from fedpca_flwr.maths.eigen import principal_angles
from fedpca_flwr.maths.factor_em import FactorGaussian
from fedpca_flwr.model.model import PCAModel
from tests.families import cut
from tests.harness import fit
from tests.maths.test_factor_model import plain_ppca
from tests.refusals import refused
from tests.strategies.test_em import SUMS, angle, holes, parties_of_three

WIDE = {"model": "factors", "n_components": 2, "tolerance": 1e-9}


def of_factors(n=120, d=40, k=2, share=0.2, noise=0.5, seed=0):
    """Rows of k factors with so much missing completely at random, in a unit of their own."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, k)) * np.arange(k + 1, 1, -1) @ rng.standard_normal((k, d))
    return holes(50 + 10 * (X + noise * rng.standard_normal((n, d))), share, seed)


def pooled_factors(X, k, q, *, prior, scale):
    """Components (d, k) by the textbook's iteration on all rows."""
    mean, each = np.nanmean(X, axis=0), np.nanstd(X, axis=0)
    unit = each if scale else np.full(each.size, np.sqrt(np.mean(each**2)))
    m, V, _ = plain_ppca((X - mean) / unit, q, prior, 120)
    return mean + unit * m, V[:, :k]


@cache
def parties_and_their_pooled_factors(scaled):
    """Three parties, one of which never measured a feature; two components of three factors of all rows."""
    parties = cut(of_factors(d=15, k=3), 70, 40, 10)
    parties[2][:, 3] = np.nan
    return parties, pooled_factors(np.vstack(parties), 2, 3, prior=10.0, scale=scaled)


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("way", [{}, {**SUMS, "bound": 1e3}], ids=["clear", "masked"])
def test_parties_get_what_the_same_em_gives_on_pooled_rows(way, scaled):
    parties, (mean, V) = parties_and_their_pooled_factors(scaled)
    model = fit("em", parties, **WIDE, factors=3, scale=scaled, **way)
    assert angle(model, V) <= 1e-8
    np.testing.assert_allclose(model.mean_, mean, rtol=1e-9)
    assert model.log["measured"]["degrees_ahead"] <= 1e-9


@pytest.mark.parametrize("scaled", [False, True])
def test_without_missing_values_it_is_p_cov(scaled):
    parties = cut(of_factors(share=0.0), 70, 50)
    ours, theirs = fit("em", parties, **WIDE, scale=scaled), fit("p-cov", parties, n_components=2, scale=scaled)
    assert angle(ours, theirs.components_.T) <= 1e-8
    np.testing.assert_allclose(ours.explained_variance_ratio_, theirs.explained_variance_ratio_, rtol=1e-10)


@pytest.mark.parametrize("way", [{}, {**SUMS, "bound": 1e5}], ids=["clear", "masked"])
def test_a_constant_feature_keeps_its_mean_and_is_foretold_to_have_it(way):
    """The fault: of masked sums its mean was off by a whole unit, and honest sites were beyond the last limit."""
    X = of_factors(d=8, k=2)
    still = np.array([0.1, 1 / 3, 12345.678])
    X[:, 5:] = np.where(np.isnan(X[:, 5:]), np.nan, still)  # the mean of so many is rounded
    model = fit("em", cut(X, 70, 50), **{**WIDE, "tolerance": 30.0}, scale=True, **way)
    np.testing.assert_allclose(model.mean_[5:], still, rtol=1e-14)
    np.testing.assert_array_equal(model.scale_[5:], 1.0)
    np.testing.assert_array_equal(model.factors_[:-1, 5:], 0.0)
    measured = model.log["measured"]
    assert measured["squared_error_per_row"] <= model.total_variance


def test_factors_come_nearer_than_means_and_send_no_matrix_of_all_features():
    complete, Y = of_factors(share=0.0, noise=2.0), of_factors(share=0.4, noise=2.0)
    truth = fit("p-cov", [complete], n_components=2).components_.T
    by_means = fit("p-cov", [np.where(np.isnan(Y), np.nanmean(Y, axis=0), Y)], n_components=2)
    assert angle(fit("em", [Y], **WIDE), truth) < 0.8 * angle(by_means, truth)
    wide = of_factors(n=60, d=300)
    model = fit("em", np.array_split(wide, 2), **{**WIDE, "tolerance": 0.01})
    assert model.rounds <= 40
    assert max(model.bytes_up_by_party) < model.rounds * (8 * (300 * 13 + 2) + 1000)
    assert model.covariance_ is None
    assert model.factors_.shape == (13, 300)


@pytest.mark.parametrize("way", [{}, {**SUMS, "bound": 1e3}], ids=["clear", "masked"])
def test_sites_keep_the_scores_of_incomplete_rows(tmp_path, way):
    parties = cut(of_factors(), 70, 50)
    parties[0][3] = np.nan
    files = [tmp_path / f"{i}.npy" for i in range(2)]
    model = fit("em", parties, **{**WIDE, "tolerance": 1.0}, scores=files, scale=True, **way)
    for part, file in zip(parties, files, strict=True):
        np.testing.assert_allclose(np.load(file), model.transform(part), atol=1e-9)


def test_scores_of_new_rows_are_conditional_expectations(tmp_path):
    complete = of_factors(share=0.0, n=300)
    model = fit("em", [holes(complete[:250], 0.2, 0)], **WIDE)
    new = complete[250:]
    truth, incomplete = model.transform(new), holes(new, 0.5, 4)
    by_means = model.transform(np.where(np.isnan(incomplete), model.mean_, incomplete))
    assert np.linalg.norm(model.transform(incomplete) - truth) < 0.2 * np.linalg.norm(by_means - truth)
    again = PCAModel.load(model.save(tmp_path / "model"))
    np.testing.assert_array_equal(again.transform(incomplete), model.transform(incomplete))
    np.testing.assert_allclose(model.transform(np.full((1, 40), np.nan)), np.zeros((1, 2)), atol=1e-12)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"model": "gaussian", "factors": 3}, ["'factors'", 3, "'model'", "'gaussian'"]),
        ({"n_components": 0.5}, ["n_components", "0.5", "model='factors'"]),
        ({"factors": 1}, ["'factors'", 1, "n_components", 2]),
        ({"n_components": 6}, [5, "model='factors'"]),
        ({"factors": 6}, [5, "model='factors'"]),
    ],
)
def test_what_factors_cannot_be_is_refused(options, named):
    with refused(ConfigError, *named):
        fit("em", parties_of_three(), **{**WIDE, **options})


def test_the_server_cannot_send_noise_that_is_larger_than_the_factors(monkeypatch):
    monkeypatch.setattr(FactorGaussian, "noise", property(lambda self: 5.0))
    with refused(ContractError, "client 0", "'noise'", 5):
        fit("em", parties_of_three(), **WIDE)


PPCA = """
if (!requireNamespace("pcaMethods", quietly = TRUE)) quit(status = 42)
set.seed(1)
path <- commandArgs(TRUE)
rows <- as.matrix(read.csv(path[1], header = FALSE, na.strings = "nan"))
found <- pcaMethods::ppca(rows, nPcs = 2, threshold = 1e-13, maxIterations = 20000)
loadings <- format(found@loadings, digits = 17)
write.table(loadings, path[2], sep = ",", quote = FALSE, row.names = FALSE, col.names = FALSE)
"""


def loadings_of_r(X, folder):
    """By R's pcaMethods, the package r-bioc-pcamethods of Debian."""
    if shutil.which("Rscript") is None:
        pytest.skip("R is not installed (apt-get install --no-install-recommends r-bioc-pcamethods)")
    np.savetxt(folder / "rows.csv", X, delimiter=",", fmt="%.17g")
    (folder / "ppca.R").write_text(PPCA)
    command = ["Rscript", folder / "ppca.R", folder / "rows.csv", folder / "loadings.csv"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 42:
        pytest.skip("R is there, pcaMethods is not (apt-get install --no-install-recommends r-bioc-pcamethods)")
    assert done.returncode == 0, done.stderr
    return np.loadtxt(folder / "loadings.csv", delimiter=",")


@pytest.mark.parametrize("share", [0.0, 0.2, 0.4])
def test_r_finds_the_same_where_its_model_is_the_same(tmp_path, share):
    """R keeps the mean of what is observed, and presumes all values for how sure the factors are: each row is there
    with its negative, so that the means are zero, and noise is small."""
    X = of_factors(n=100, d=12, noise=0.01, share=share) - 50
    X = np.vstack([X, -X])
    model = fit("em", cut(X, 120, 80), **{**WIDE, "tolerance": 1e-7}, factors=2, prior=1e-6)
    assert float(principal_angles(model.components_.T, loadings_of_r(X, tmp_path)).max()) <= 1e-3
