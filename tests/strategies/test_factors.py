"""What only QR-PCA and AP-STACK have: truncation, filler, weights, bytes."""

import numpy as np
import pytest
from scipy.linalg import subspace_angles

from fedpca_flwr.errors import ConfigError, DataError
from fedpca_flwr.model.reference import pooled_pca, principal_angles
from simulations import run
from tests.families import FAMILIES, cut, rows
from tests.refusals import refused


def parties():
    X = rows(600, 40)
    X[400:] += rows(1, 40, seed=9)
    return cut(X, 400, 150, 50)


def angle(method, k=4, **options):
    model = run(method, parties(), n_components=k, **options)
    return principal_angles(model, pooled_pca(np.vstack(parties()), k)).max


def test_the_upload_is_the_trapezoid_and_never_more_than_a_covariance():
    d = 80
    wide = FAMILIES["wide"].parties
    model = run("qr-pca", wide, n_components=2, min_rows=1)
    for up, part in zip(model.log["rounds"][0]["up"], wide, strict=True):
        h = len(part) - 1
        assert up == 8 * (h * d - h * (h - 1) // 2 + d + 1) + 4 * 128
    tall = run("qr-pca", parties(), n_components=2)
    assert max(tall.log["rounds"][0]["up"]) == 8 * (40 * 41 // 2 + 40 + 1) + 4 * 128


@pytest.mark.parametrize("options", [{"scale": True}, {"center": False}, {"scale": True, "center": False}], ids=str)
def test_options_of_the_whole_factor(options):
    X = parties()
    model = run("qr-pca", X, n_components=4, **options)
    truth = pooled_pca(np.vstack(X), 4, **options)
    assert principal_angles(model, truth).max <= 1e-6
    np.testing.assert_allclose(model.explained_variance_, truth.explained_variance_, rtol=1e-9)


def test_truncation_converges_the_filler_helps_and_the_stated_bound_holds():
    errors = {(rank, filler): angle("qr-pca", rank=rank, filler=filler) for rank in (8, 16) for filler in (False, True)}
    assert errors[16, True] < errors[8, True] < errors[8, False] < 10
    assert errors[16, True] < errors[16, False]
    assert angle("qr-pca", rank=40) < 1e-9
    for rank in (8, 16, 30):
        model = run("qr-pca", parties(), n_components=4, rank=rank)
        bound = model.log["measured"]["angle_bound_degrees"]
        assert principal_angles(model, pooled_pca(np.vstack(parties()), 4)).max <= bound


def test_weights_of_parties_make_a_stack_exact_or_all_count_the_same():
    assert angle("ap-stack", rank=40) > 1
    assert angle("ap-stack", rank=40, party_weights="rows") < 1e-9
    assert angle("ap-stack", rank=16, party_weights="rows") == pytest.approx(
        angle("qr-pca", rank=16, filler=False), rel=1e-6
    )
    # At rank d the mean of the parties' covariances, whatever their rows; by rows it would be another matrix.
    model = run("ap-stack", parties(), n_components=4, rank=40)
    mean = np.mean([np.cov(part.T, bias=True) for part in parties()], axis=0)
    values, vectors = np.linalg.eigh(mean)
    assert np.degrees(subspace_angles(model.components_.T, vectors[:, -4:])).max() <= 1e-6
    np.testing.assert_allclose(model.explained_variance_ * 599 / 600, values[:-5:-1], rtol=1e-9)
    np.testing.assert_allclose(model.explained_variance_ratio_, values[:-5:-1] / mean.trace(), rtol=1e-9)
    single = np.split(rows(4), 4)
    with refused(DataError, "party_weights='rows'"):
        run("ap-stack", single, n_components=2, min_rows=1)
    exact = run("ap-stack", single, n_components=2, min_rows=1, party_weights="rows")
    assert principal_angles(exact, pooled_pca(np.vstack(single), 2)).max <= 1e-6


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"rank": 3}, ["'rank'", 3, "n_components", 4]),
        ({"rank": 8, "scale": True}, ["'rank'", "center=True", "scale=False"]),
        ({"rank": 8, "n_components": 0.9}, ["'rank'"]),
        ({"wire": "float32", "rank": 10}, ["'wire'", "float32", "rank=0", "scale=False"]),
        ({"wire": "float32", "scale": True}, ["'wire'", "float32", "rank=0", "scale=False"]),
    ],
    ids=str,
)
def test_what_truncation_and_float32_cannot_do_is_refused(options, named):
    with refused(ConfigError, *named):
        run("qr-pca", parties(), **{"n_components": 4, **options})


@pytest.mark.parametrize("unit", [1.0, 1e-60, 1e60])
@pytest.mark.parametrize("center", [True, False])
def test_factors_in_float32_take_half_the_bytes_and_the_stated_bound_holds(unit, center):
    X = [part * unit for part in parties()]
    model = run("qr-pca", X, n_components=4, wire="float32", center=center)
    truth = pooled_pca(np.vstack(X), 4, center=center)
    bound = model.log["measured"]["angle_bound_degrees"]
    assert 1e-9 < principal_angles(model, truth).max <= bound < 1e-3
    assert model.log["exact"] is False
    assert max(model.bytes_up_by_party) < 0.6 * max(run("qr-pca", X, n_components=4).bytes_up_by_party)


def test_the_bound_of_float32_is_that_of_half_a_last_place_in_every_entry():
    """Singular values of 3 and 1 have a gap of 8; the scatter is off by 2 |R| |dR| + |dR|^2, |dR| by eps |R|_F / 2."""
    X = np.array([[1.5, 0], [-1.5, 0], [0, 0.5], [0, -0.5]])
    model = run("qr-pca", [X, X], n_components=1, wire="float32", min_rows=1)
    off = 2.0**-23 * np.sqrt(9 + 1) / 2
    expected = np.degrees(np.arcsin((2 * 3 + off) * off / 8))
    assert model.log["measured"]["angle_bound_degrees"] == pytest.approx(expected, rel=1e-4)
