"""Values of any size, for every method over every transport: the right components, or one clear refusal."""

from typing import Any

import numpy as np
import pytest
from scipy.linalg import subspace_angles

from fedpca_flwr.errors import DataError
from fedpca_flwr.model.reference import pooled_pca, principal_angles
from strategies import METHODS, transports_of
from tests.families import cut, rows
from tests.harness import finish, fit, server_of, tamper
from tests.refusals import refused

SECURE = {"secure_aggregation": True, "bound": 100.0, "min_parties": 2}
WAYS = {"clear": {}, "masked": SECURE, "surviving": {**SECURE, "survivors": 3}}
TRANSPORTS = {name: [WAYS[way] for way in transports_of(method)] for name, method in METHODS.items()}
TRANSPORTS["dp-pca"][-1] = {**WAYS["surviving"], "release": "joint", "clip": 5.0}
FITTING = [name for name, method in METHODS.items() if not method.strategy.card.after]


OTHERS = {"dp-pca", "compressed", "dsa", "fast-pca", "vertical-kernel", "vfedakpca"}
"""What these know of variance is one number for all features, or a kernel's."""


def by_rows(method):
    return METHODS[method].strategy.card.split == "rows"


def three(method, X):
    return cut(X, 30, 20, 10) if by_rows(method) else np.split(X, [6, 9], axis=1)


def with_cell(value):
    return lambda part: np.where(np.arange(part.size).reshape(part.shape) == 2 * part.shape[1] + 1, value, part)


@pytest.mark.parametrize("way", [(name, way) for name, ways in TRANSPORTS.items() for way in ways], ids=str)
@pytest.mark.parametrize(
    ("change", "limit"),
    [
        (with_cell(-1.797e308), "1e+140"),
        (with_cell(1e171), "1e+140"),
        (lambda part: part * np.where(np.arange(part.shape[1]) == 1, 1e-200, 1.0), "1e-140"),
    ],
    ids=["nodata", "huge", "tiny"],
)
def test_what_cannot_be_squared_is_refused_before_anything_is_sent(way, change, limit, caplog, tmp_path):
    """Its square is infinite or zero, and beside infinity, or with a square of zero, a column passes for constant."""
    method, transport = way
    parties, site = three(method, rows(60)), {}
    if after := METHODS[method].strategy.card.after:
        site["loadings"] = [str(tmp_path / f"{party}.npz") for party in range(3)]
        fit(after, parties, n_components=2, loadings=site["loadings"])
    parties[1] = change(parties[1])
    server, sent = server_of(method, parties, n_components=2, site=site, **transport), []
    tamper(server, 1, lambda reply: sent.append(reply.parameters.tensors) or reply)
    with caplog.at_level("ERROR", "fedpca_flwr.client"), refused(DataError, "client 1", limit):
        finish(server)
    assert sent in ([], [[]])
    assert "columns (from 0): [1]" in caplog.text


@pytest.mark.parametrize("method", FITTING)
@pytest.mark.parametrize("unit", [2.0**460, 2.0**-455], ids=["1e138", "1e-137"])
def test_what_can_be_squared_gives_the_same_components_in_any_unit(method, unit):
    """Where a method takes the square of a square, that is infinite or zero."""
    own: dict[str, dict[str, Any]] = {
        "personalised": {"mu": 1.0},
        "dp-pca": {"release": "two-stage", "clip": 5.0, "centre_clip": 5.0},
    }
    found = []
    for scale in (1.0, unit):
        options = {key: value * scale if "clip" in key else value for key, value in own.get(method, {}).items()}
        model = fit(method, three(method, (rows(60) + 1) * scale), n_components=2, **options)
        found.append(model.components_.T if by_rows(method) else model.scores_ / model.singular_values_)
    assert subspace_angles(*found).max() <= 1e-9


@pytest.mark.parametrize("method", [name for name in FITTING if name not in OTHERS])
def test_a_constant_feature_of_any_size_hides_no_variance(method):
    """Each feature's variance is held against the rounding of its own mean."""
    X = rows(60)
    X[:, 3] = 2.0**60
    own = {"personalised": {"mu": 1.0}}.get(method, {})
    model = fit(method, three(method, X), n_components=2, **own)
    assert 0 < model.explained_variance_.sum() < 10


@pytest.mark.parametrize(
    "way",
    [
        (method, {"scale": True, **centre, **transport})
        for method in METHODS
        if by_rows(method) and "scale" in METHODS[method].strategy.card.options.model_fields
        for centre in ({}, {"center": False})
        if set(centre) <= set(METHODS[method].strategy.card.options.model_fields)
        for transport in TRANSPORTS[method]
        if not transport
    ],
    ids=str,
)
@pytest.mark.parametrize("constant", [False, True])
def test_scaled_features_may_have_means_of_any_size(way, constant):
    """Time stamps in nanoseconds, long ids: scaled variance is held against the scaled mean."""
    method, options = way
    X = rows(60) + 1
    X[:, 3] = 2.0**54 if constant else 2.0**54 + 32 * np.arange(60)
    model, truth = fit(method, three(method, X), n_components=3, **options), pooled_pca(X, 3, **options)
    if METHODS[method].strategy.card.own_centre:
        assert bool(model.scale_[3] == 1.0) == constant
        return
    assert model.scale_[3] == (1.0 if constant else pytest.approx(32 * np.sqrt((60**2 - 1) / 12)))
    if METHODS[method].strategy.card.exact and "center" not in options:
        assert principal_angles(model, truth).max <= 1e-6
