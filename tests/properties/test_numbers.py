"""Variances, their shares, notes, summaries and measurements of every method, read against their definitions.

Each method is drawn with the options of its card's examples, in clear and with secure aggregation.
"""

import re
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.simulations.records import card_of
from fedpca_flwr.strategies import METHODS
from fedpca_flwr.transports.recommendation import EXAMPLE_CONFIGS, script_or_none
from tests.families import cut
from tests.harness import CLUSTER_STEPS, fit
from tests.properties.oracle import Long, angle
from tests.properties.profiles import examples

pytestmark = pytest.mark.engine

WAYS = {"clear": {}, "masked": {"secure_aggregation": True, "min_parties": 2}}
SETS = [
    pytest.param(name, dict(example), way, id=f"{name}-{way}-{example}", marks=pytest.mark.nightly if late else ())
    for name in METHODS
    for number, example in enumerate(card_of(name).examples)
    for way in WAYS
    for late in [number > 0 and way == "masked"]
    if not (
        card_of(name).loadings_source or "robust-parties" in example
    )  # of an earlier run; of parties that are alike
    and script_or_none(METHODS[name], EXAMPLE_CONFIGS[way], dict(example)) is not None
]
NARROW = {"rank": 4, "prune": 0.5}
"""Options that must suit the size of the data."""
HELD = {"p-cov", "sub-it", "qr-pca", "adaptive", "dsa", "fast-pca", "streaming", "em", "personalised"}
HELD |= {"vertical", "vfedpca", "vfedakpca"}
"""Methods whose variances are those that the components hold of the pooled rows."""
UNTOUCHED = {"harmonise", "genotypes", "rank"}
"""Options with which the model is not that of the rows as they are, or of all they hold."""


Matrix = NDArray[Any]


def eigenpairs(matrix: Matrix) -> tuple[Matrix, Matrix]:
    """Return the eigenvalues (d,), descending, and vectors (d, d) of a symmetric matrix."""
    values, vectors = np.linalg.eigh(matrix.astype(np.float64))
    return values[::-1], vectors[:, ::-1]


def centred(rows: Matrix, scale: Matrix | None = None) -> Matrix:
    """Return rows less their mean, in 80 bits, over a scale."""
    about_mean = rows.astype(Long) - rows.astype(Long).mean(axis=0)
    about_mean -= about_mean.mean(axis=0)
    return about_mean if scale is None else about_mean / scale


def drawn(seed: int, name: str, options: dict[str, Any]) -> tuple[Matrix, list[Matrix], int]:
    """Rows of a drawn spectrum, their division into parties with means of their own, and a number of components."""
    rng = np.random.default_rng(seed)
    n, d, parties = int(rng.integers(40, 90)), int(rng.integers(5, 8)), int(rng.integers(2, 5))
    k = int(rng.integers(1, 4))
    if options.get("genotypes"):
        X = rng.binomial(2, rng.uniform(0.2, 0.8, d), (n, d)).astype(float)
    else:
        axes = np.linalg.qr(rng.standard_normal((d, d)))[0]
        X = rng.standard_normal((n, d)) * 0.6 ** np.arange(d) @ axes * 10.0 ** rng.integers(-3, 4)
        X += X.std() * 10.0 ** rng.integers(-1, 4) * rng.standard_normal(d)
    if card_of(name).split == "columns":
        return X, np.array_split(X, parties, axis=1), k
    sizes = [n - 9 * (parties - 1), *[9] * (parties - 1)]
    shift = 0.0 if options.get("genotypes") else 0.3 * X.std(axis=0)
    own = [part + shift * rng.standard_normal(d) for part in cut(X, *sizes)]
    return np.vstack(own), own, k


@pytest.mark.parametrize(("name", "options", "way"), SETS)
@examples(1)
@given(seed=st.integers(0, 2**32 - 1))
def test_numbers_are_what_they_say(name, options, way, monkeypatch, tmp_path_factory, seed):
    monkeypatch.setattr(*CLUSTER_STEPS)
    X, parties, k = drawn(seed, name, options)
    run = {key.replace("-", "_"): NARROW.get(key, value) for key, value in options.items()}
    if "state" in run:
        run["state"] = str(tmp_path_factory.mktemp("state"))
    run |= {**WAYS[way], "bound": 3 * float(np.abs(X).max())} if WAYS[way] else {}
    model = fit(name, parties, n_components=k, **run)
    if model.log["measured"].get("components_above_noise", 1):
        numbers_that_follow_from_each_other(model, X)
    if UNTOUCHED.isdisjoint(options) and not card_of(name).differentially_private:
        numbers_of_the_rows(model, name, X, parties)


def numbers_that_follow_from_each_other(model: PCAModel, X: Matrix) -> None:
    """Whatever the method is."""
    (n, d), k, variances = X.shape, model.n_components_, model.explained_variance_
    private = "epsilon" in model.log["measured"]
    if not private:
        assert model.n_samples_ == n
    assert (np.diff(variances) <= 1e-12 * variances[0]).all()
    np.testing.assert_allclose(model.singular_values_**2, (model.n_samples_ - 1) * variances, rtol=1e-12)
    total = variances[0] / model.explained_variance_ratio_[0]
    np.testing.assert_allclose(variances / total, model.explained_variance_ratio_, rtol=1e-12)
    left = max(0.0, total - variances.sum())
    most = min(model.n_samples_, d) - k
    assert model.noise_variance_ == pytest.approx(left / most if most > 0 else 0.0, abs=1e-12 * total)
    lines, share = model.summary(full=True), float(model.explained_variance_ratio_.sum())
    assert re.search(rf"rows +{model.n_samples_} of {d} features", lines)
    assert re.search(rf"components +{k}\n", lines)
    told = re.search(r"explained variance +([\d.]+)%", lines)
    assert told is not None
    if not private:
        assert abs(float(told[1]) - 100 * share) <= 0.051
        if rest := re.search(r"left out +([\d.]+)% of the variance, spread", lines):
            assert abs(float(rest[1]) - 100 * (1 - share)) <= 0.051
    predicted = model.log["measured"].get("predicted_squared_error_per_row")
    if predicted is not None and model.log["method"] != "personalised":  # whose rows have components of their own
        assert predicted == pytest.approx(left * (n - 1) / n, rel=1e-9, abs=1e-12 * total)


def numbers_of_the_rows(model: PCAModel, name: str, X: Matrix, parties: list[Matrix]) -> None:
    """Return what is said of the pooled rows."""
    card, measured, (n, _), k = card_of(name), model.log["measured"], X.shape, model.n_components_
    by_columns, variances = card.split == "columns", model.explained_variance_
    rows = X.astype(Long) if name == "vfedakpca" else centred(X, model.scale_)  # that is about zero
    scatter = rows.T @ rows
    values, vectors = eigenpairs(scatter / (n - 1))
    total = float(values.sum())
    if not card.variance_base or name == "vfedakpca":
        assert variances[0] / model.explained_variance_ratio_[0] == pytest.approx(total, rel=1e-9)
    if by_columns:
        assert model.scores_ is not None
        directions = model.scores_ / model.singular_values_
        held = ((directions.T @ rows) ** 2).sum(axis=1) / (n - 1)
        left = rows - directions @ (directions.T @ rows)
    else:
        V, mean = model.loadings()
        held = np.einsum("ij,jk,ik->i", V, scatter, V) / (n - 1)
        about_mean = (X - mean.astype(Long)) / (1.0 if model.scale_ is None else model.scale_)
        left = about_mean - about_mean @ V.T @ V
    holds = name in HELD and model.log.get("chosen", {}).get("method") != "ap-cov"
    if holds:
        np.testing.assert_allclose(variances, held.astype(float), rtol=1e-7, atol=1e-10 * total)
    if model.log["exact"]:
        np.testing.assert_allclose(variances, values[:k].astype(float), rtol=1e-8, atol=1e-10 * total)
    if "squared_error_per_row" in measured and not card.local_components:
        error = float((left**2).sum() / n)
        assert measured["squared_error_per_row"] == pytest.approx(error, rel=1e-6, abs=1e-9 * total)
    bound = measured.get("angle_bound_degrees", measured.get("certified_angle_degrees", 90.0))
    if not by_columns and bound < 90 and measured.get("certified_components", k) == k:
        assert angle(V.T, vectors[:, :k]) <= bound + 1e-7
    if by_columns:
        return
    rest = scatter / (n - 1) - (V.T * variances) @ V
    if "left_out_directions" in measured:
        assert measured["left_out_directions"] == pytest.approx(float(np.trace(rest) ** 2 / (rest**2).sum()), rel=1e-6)
    within = sum((centred(part, model.scale_) ** 2).sum() for part in parties) / (n - 1)
    if "between_parties_variance_share" in measured:
        assert measured["between_parties_variance_share"] == pytest.approx(float(1 - within / total), abs=1e-9)
    if "angle_to_exact_max_degrees" in measured:
        assert measured["angle_to_exact_max_degrees"] == pytest.approx(angle(V.T, vectors[:, :k]), abs=1e-6)
    if "influence_component_share" in measured and holds:
        numbers_of_parties(measured, V, variances, rows, model, parties)


def numbers_of_parties(
    measured: dict[str, float], V: Matrix, variances: Matrix, rows: Matrix, model: PCAModel, parties: list[Matrix]
) -> None:
    """Return what one party holds of a component, and by how much the first one turns without it."""
    ends = np.cumsum([0, *map(len, parties)])
    shares, turns = [], []
    for start, end in pairwise(ends):
        shares.append((((rows[start:end] @ V.T) ** 2).sum(axis=0) / (len(rows) - 1) / variances).max())
        others = centred(np.delete(rows, np.s_[start:end], axis=0))
        first = eigenpairs(others.T @ others)[1][:, :1]
        turns.append(angle(V[:1].T, first))
    assert measured["influence_component_share"] == pytest.approx(float(max(shares)), rel=1e-6)
    assert measured["influence_axis_degrees"] >= max(turns) - 1e-6
