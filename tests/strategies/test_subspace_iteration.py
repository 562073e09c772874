"""What only SUB-IT has: the certificate, block sizes, the plain iteration, warm starts, float32 on the wire."""

from __future__ import annotations

import numpy as np
import pytest

from fedpca_flwr.errors import ConfigError
from fedpca_flwr.metrics import principal_angles
from fedpca_flwr.reference import pooled_pca
from simulations import run
from tests.families import FAMILIES, cut, rows


def parties(d=60):
    X = rows(600, d)
    X[400:] += rows(1, d, seed=9)
    return cut(X, 400, 150, 50)


def fit(parts, **options):
    return run("sub-it", parts, engine="loopback", **{"n_components": 4, **options})


def certified(model):
    return float(model.log["measured"]["certified angle"].split()[0])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"block_size": 2},
        {"block_size": 60},
        {"acceleration": "none"},
        {"warm_start": "svd"},
        {"warm_start": "svd", "warm_rank": 40},
        {"scale": True},
        {"center": False},
    ],
    ids=str,
)
def test_every_setting_stops_certified_and_the_certificate_holds(options):
    model = fit(parties(), **options)
    scaling = {key: options[key] for key in ("scale", "center") if key in options}
    truth = pooled_pca(np.vstack(parties()), 4, **scaling)
    assert principal_angles(model, truth).max <= max(certified(model), 1e-9) <= 1e-6
    assert model.log["exact"]
    np.testing.assert_allclose(model.explained_variance_, truth.explained_variance_, rtol=1e-9)
    np.testing.assert_allclose(model.explained_variance_ratio_, truth.explained_variance_ratio_, atol=1e-10)


def test_float32_products_are_certified_for_what_they_are():
    model = fit(parties(), warm_start="svd", warm_rank=40, wire="float32", tolerance=0.05)
    angle = principal_angles(model, pooled_pca(np.vstack(parties()), 4)).max
    assert angle <= certified(model) <= 0.05
    assert angle < 1e-3


def test_too_few_rounds_say_so():
    model = fit(parties(), max_rounds=2, block_size=5)
    assert not model.log["exact"]
    assert certified(model) > 1e-6
    assert model.log["notes"][0].startswith("stopped after max-rounds = 2 with a certified angle of")
    truth = pooled_pca(np.vstack(parties()), 4)
    assert principal_angles(model, truth).max <= certified(model)


def test_fewer_columns_cost_fewer_bytes_and_more_rounds():
    narrow, broad = fit(parties(), block_size=3), fit(parties())
    assert len(narrow.log["rounds"]) > len(broad.log["rounds"])
    assert sum(r["up"][0] for r in narrow.log["rounds"]) < sum(r["up"][0] for r in broad.log["rounds"])


def test_blocks_go_down_in_float32_and_products_come_up_in_float64():
    first, second = fit(parties()).log["rounds"][:2]
    assert first["down"] == [0] * 3  # the first block is made from the seed
    width = 14
    assert second["down"] == [60 * width * 4 + 128] * 3
    assert second["up"] == [60 * width * 8 + 128] * 3


def test_the_seed_moves_nothing_but_the_path():
    one, other = fit(parties(), seed=1), fit(parties(), seed=2)
    np.testing.assert_allclose(one.components_, other.components_, atol=1e-9)


def test_equal_eigenvalues_are_all_found():
    family = FAMILIES["repeated eigenvalues"]
    model = fit(family.parties, n_components=3, block_size=3)
    assert principal_angles(model, pooled_pca(family.pooled, 3)).max <= 1e-6


@pytest.mark.parametrize("options", [{"scale": True}, {"center": False}, {"acceleration": "none"}], ids=str)
def test_what_a_warm_start_cannot_do_is_refused(options):
    with pytest.raises(ConfigError, match="'warm-start' is 'svd', which goes only with"):
        fit(parties(), warm_start="svd", **options)


def test_a_fraction_of_the_variance_is_refused():
    with pytest.raises(ConfigError, match="'n-components' is 0.9"):
        fit(parties(), n_components=0.9)
