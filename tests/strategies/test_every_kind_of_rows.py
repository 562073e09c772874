"""Every method takes rows as arrays, in blocks, sparse and as small integers, of any size, or refuses clearly."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from scipy.linalg import subspace_angles

from fedpca_flwr.data import table
from fedpca_flwr.data.frames import as_rows
from fedpca_flwr.errors import DataError
from fedpca_flwr.maths import rows as blocks
from fedpca_flwr.maths.columns import Columns
from fedpca_flwr.maths.rows import Blocks
from fedpca_flwr.model.reference import pooled_pca, principal_angles
from fedpca_flwr.simulations.ray_engine import save
from fedpca_flwr.site.readers.files import read
from fedpca_flwr.strategies import METHODS
from fedpca_flwr.transports.recommendation import transports_of
from tests.families import cut, rows
from tests.harness import differences, finish, fit, read_in_blocks, server_of, tamper
from tests.refusals import refused

CARDS = {name: method.strategy.card for name, method in METHODS.items()}
FITTING = [name for name, card in CARDS.items() if not card.loadings_source]
SECURE = {"secure_aggregation": True, "bound": 100.0}
WAYS: dict[str, dict] = {"clear": {}, "masked": SECURE, "surviving": {**SECURE, "survivors": 3}}
RUNS = [(name, way) for name, method in METHODS.items() for way in transports_of(method)]
FITTING_RUNS = [(name, way) for name, way in RUNS if name in FITTING]
APPROXIMATE = {"dp-pca", "compressed", "dsa", "fast-pca", "vfedakpca"}  # variance is one number, or a kernel's
SCALING = [name for name in FITTING if CARDS[name].split == "rows" and "scale" in CARDS[name].options.model_fields]
SCALED = [(name, {"scale": True}) for name in SCALING]
SCALED += [(name, {"scale": True, "center": False}) for name in SCALING if "center" in CARDS[name].options.model_fields]
MU: dict[str, dict[str, Any]] = {"personalised": {"mu": 1.0}}
IN_UNITS = [*FITTING, "sub-it warm-start=svd", "sub-it warm-start=svd wire=float32"]
IN_UNITS += [f"compressed codec={codec}" for codec in ("low-rank corrections=1", "shared-step")]


@pytest.fixture(autouse=True)
def _no_row_copies(monkeypatch):
    read_in_blocks(monkeypatch)


def parties_of(method, X):
    if CARDS[method].split == "rows":
        return np.split(X, [len(X) // 2, len(X) * 5 // 6])
    return np.split(X[:60], [6, 9], axis=1)


def fitted(method, way, parties):
    return fit(method, parties, n_components=3, **WAYS[way], **one_sum(method, way))


def one_sum(method, way):
    return {"release": "joint", "clip": 5.0} if (method, way) == ("dp-pca", "surviving") else {}


def counts(n=150, d=12):
    rng = np.random.default_rng(4)
    strengths = rng.gamma(1.0, 1.0, size=(n, 6)) * [4, 2, 1, 0.5, 0.25, 0.1]
    return rng.poisson(strengths @ rng.gamma(0.3, 1.0, size=(6, d))).clip(max=100).astype(np.int8)


def in_blocks(rows):
    at = np.cumsum([1, 7, 20, 2])
    return Blocks(lambda: (part for part in np.split(rows, at) if len(part)), rows.shape[1], rows.dtype)


def as_frame(part):
    """Columns of 0 and 1 as booleans, the others as whole numbers, of which values may be missing."""
    columns = (pd.Series(column) for column in part.T)
    return pd.DataFrame({j: c.astype("boolean" if c.max() <= 1 else "Int64") for j, c in enumerate(columns)})


KINDS = {
    "blocks, entries in any order, frames": (in_blocks, sparse.coo_matrix, as_frame),
    "rows by index, small integers, blocks": (sparse.csr_array, np.asarray, in_blocks),
}


@pytest.mark.parametrize(("method", "way", "kinds"), [(*one, list(KINDS)[i % 2]) for i, one in enumerate(FITTING_RUNS)])
def test_numbers_of_any_kind_give_the_bits_of_an_array_of_floats(method, way, kinds):
    parties = parties_of(method, counts())
    floats = [part.astype(np.float64) for part in parties]
    of_kinds = [kind(part) for kind, part in zip(KINDS[kinds], parties, strict=True)]
    assert not differences(fitted(method, way, floats), fitted(method, way, of_kinds))


def few_entries(d=90):
    """Return rows with an entry in twenty, but for a feature without zeros far from zero and a constant feature."""
    rng = np.random.default_rng(5)
    X = rng.gamma(1.0, 1.0, size=(150, 4)) @ rng.gamma(0.5, 1.0, size=(4, d)) * (rng.random((150, d)) < 0.05)
    X[:, 40], X[:, 41] = 50 + 3 * rng.standard_normal(150), 0.1
    return X


@pytest.mark.parametrize(("method", "way"), FITTING_RUNS, ids=str)
def test_rows_that_stay_sparse_give_the_same_model(method, way):
    parties = parties_of(method, few_entries(45))
    dense, of_sparse = (fitted(method, way, [kind(X) for X in parties]) for kind in (np.array, sparse.csr_array))
    for name in ("components_", "scores_", "mean_"):
        if getattr(dense, name) is not None:
            np.testing.assert_allclose(getattr(dense, name), getattr(of_sparse, name), rtol=0, atol=1e-8)
    np.testing.assert_allclose(dense.explained_variance_, of_sparse.explained_variance_, rtol=1e-10)


@pytest.mark.engine
def test_products_with_wide_sparse_rows_never_make_them_dense(monkeypatch):
    few = sparse.random_array((60, 9000), density=0.01, rng=np.random.default_rng(6), format="csr")
    parties, decode = [few[:40] * 2, few[40:]], blocks.block_to_array
    truth = fit("qr-pca", [part.toarray() for part in parties], n_components=2)
    monkeypatch.setattr(
        blocks, "block_to_array", lambda block: decode(block) if block.shape[1] < 900 else pytest.fail("dense")
    )
    assert principal_angles(fit("sub-it", parties, n_components=2), truth).max <= 1e-6


@pytest.mark.engine
@pytest.mark.parametrize("way", ["clear", "masked"])
def test_columns_that_need_no_array_are_never_made_one(way, monkeypatch, tmp_path):
    cuts, kinds = np.split(few_entries(), [20, 60], axis=1), (sparse.csr_array, in_blocks, sparse.csr_array)
    options = {"n_components": 2, "loadings": [tmp_path / f"{party}.npz" for party in range(3)], **WAYS[way]}
    dense = [fit(name, cuts, **options).scores_ for name in ("vertical", "vertical-scores")]
    monkeypatch.setattr(Columns, "X", None)
    for name in ("to_array", "dense_rows"):
        monkeypatch.setattr(blocks, name, None)
    mixed = [kind(part) for kind, part in zip(kinds, cuts, strict=True)]
    for name, expected in zip(("vertical", "vertical-scores"), dense, strict=True):
        np.testing.assert_allclose(expected, fit(name, mixed, **options).scores_, atol=1e-7)


@pytest.mark.parametrize("kind", [sparse.csr_array, in_blocks], ids=["sparse", "blocks"])
@pytest.mark.parametrize("solver", ["closed-form", "stiefel"])
def test_personalised_never_joins_long_rows(solver, kind, monkeypatch):
    parties = cut(np.vstack([few_entries()] * 2)[:, 36:46], 150, 80, 70)  # of each more rows are held out
    options = {"n_components": 2, "solver": solver}
    model = fit("personalised", parties, **options)
    monkeypatch.setattr(Columns, "X", None)
    monkeypatch.setattr(blocks, "to_array", None)
    other = fit("personalised", [kind(part) for part in parties], **options)
    np.testing.assert_allclose(model.components_, other.components_, atol=1e-7)


def test_rows_are_the_same_in_another_pass_or_process(tmp_path):
    tables = [counts()]
    checked = table.check_rows(Blocks(lambda: tables, 12, np.dtype(np.int8))).rows
    assert checked.shape == (150, 12)
    for n in (149, 151, 0):
        tables[0] = counts(n)
        with refused(DataError):
            list(checked.read())
    for kind in (sparse.csr_array, in_blocks):  # as Ray's processes get them
        (tmp_path / kind.__name__).mkdir()
        save(tmp_path / kind.__name__ / "1", as_rows(kind(few_entries()), "party 1"))
        (file,) = (tmp_path / kind.__name__).iterdir()
        np.testing.assert_array_equal(blocks.to_array(read(str(file)).rows), few_entries())


def with_cell(value):
    return lambda part: np.where(np.arange(part.size).reshape(part.shape) == 2 * part.shape[1] + 1, value, part)


UNSQUARED = {
    "nodata": (with_cell(-1.797e308), "1e+140"),
    "huge": (with_cell(1e171), "1e+140"),
    "tiny": (lambda part: part * np.where(np.arange(part.shape[1]) == 1, 1e-200, 1.0), "1e-140"),
}


@pytest.mark.parametrize(("method", "way"), RUNS, ids=str)
@pytest.mark.parametrize(("change", "limit"), UNSQUARED.values(), ids=UNSQUARED)
def test_rows_without_squares_are_refused_first(method, way, change, limit, caplog, tmp_path):
    """Its square is infinite or zero, and beside infinity, or with a square of zero, a column passes for constant."""
    parties, site = parties_of(method, rows(60)), {}
    if after := CARDS[method].loadings_source:
        site["loadings"] = [str(tmp_path / f"{party}.npz") for party in range(3)]
        fit(after, parties, n_components=2, loadings=site["loadings"])
    parties[1] = change(parties[1])
    server, sent = server_of(method, parties, n_components=2, site=site, **WAYS[way], **one_sum(method, way)), []
    tamper(server, 1, lambda reply: sent.append(reply.parameters.tensors) or reply)
    with caplog.at_level("ERROR", "fedpca_flwr.client"), refused(DataError, "client 1", limit):
        finish(server)
    assert sent in ([], [[]])
    assert "columns (from 0): [1]" in caplog.text


@pytest.mark.parametrize("method", IN_UNITS)
@pytest.mark.parametrize("unit", [2.0**460, 2.0**-455], ids=["1e138", "1e-137"])
def test_components_are_the_same_in_any_unit(method, unit):
    """Faults: the square of a square is infinite or zero, and factors travel in float32, which ends at 3e38."""
    name, components, claims = method.split()[0], [], []
    for scale in (1.0, unit):
        options = {**MU, "dp-pca": {"release": "joint", "clip": 5.0 * scale}}.get(name, {})
        model = fit(method, parties_of(name, (rows(60) + 1) * scale), n_components=2, **options)
        components.append(model.scores_ / model.singular_values_ if model.components_ is None else model.components_.T)
        bounds = [model.log["measured"].get(f"{kind}_degrees", 90) for kind in ("certified_angle", "angle_bound")]
        claims.append((model.log["exact"], min(bounds)))
    assert subspace_angles(*components).max() <= 1e-9
    assert claims[0][0] == claims[1][0]
    assert claims[0][1] == pytest.approx(claims[1][1], rel=0.1, abs=1e-6)


@pytest.mark.parametrize("method", [name for name in FITTING if name not in APPROXIMATE])
def test_a_constant_feature_of_any_size_hides_no_variance(method):
    """Each feature's variance is held against the rounding of its own mean."""
    X = rows(60)
    X[:, 3] = 2.0**60
    assert 0 < fit(method, parties_of(method, X), n_components=2, **MU.get(method, {})).explained_variance_.sum() < 10


@pytest.mark.parametrize(("method", "options"), SCALED, ids=str)
@pytest.mark.parametrize("constant", [False, True])
def test_scaled_features_may_have_means_of_any_size(method, options, constant):
    """Time stamps in nanoseconds, long ids: scaled variance is held against the scaled mean."""
    X = rows(60) + 1
    X[:, 3] = 2.0**54 if constant else 2.0**54 + 32 * np.arange(60)
    model, truth = fit(method, parties_of(method, X), n_components=3, **options), pooled_pca(X, 3, **options)
    if CARDS[method].non_mean_centre:
        assert bool(model.scale_[3] == 1.0) == constant
        return
    assert model.scale_[3] == (1.0 if constant else pytest.approx(32 * np.sqrt((60**2 - 1) / 12)))
    if CARDS[method].exact and "center" not in options:
        assert principal_angles(model, truth).max <= 1e-6
