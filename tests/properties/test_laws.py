"""Laws between runs: of the same rows divided, moved, negated or turned, and of other numbers of components."""

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedpca_flwr.simulations.records import card_of
from fedpca_flwr.strategies import METHODS
from fedpca_flwr.transports.recommendation import transports_of
from tests.properties.checks import truth_about
from tests.properties.oracle import EPS, Long, angle, truth_of
from tests.properties.profiles import examples
from tests.properties.running import run_draw
from tests.properties.strategies import GENERATORS, Draw, largest, ordinary

pytestmark = pytest.mark.engine

EXACT = [name for name in METHODS if card_of(name).exact and card_of(name).split == "rows"]
SMOOTH = [
    name
    for name in METHODS
    if card_of(name).split == "rows"
    and not (card_of(name).beyond_moments or card_of(name).local_components or card_of(name).successors)
]
"""Methods whose answers are functions of moments."""


@st.composite
def whole_tables(pick):
    """Draw rows (n, d) of small whole numbers, whose sums float64 holds."""
    shape = pick(st.tuples(st.integers(3, 12), st.integers(1, 5)))
    return np.eye(*shape) + pick(hnp.arrays(np.int64, shape, elements=st.integers(-9, 9)))


@st.composite
def divisions(pick, n):
    """Draw where n rows are cut into parties, and the order in which they are divided."""
    marks = sorted(pick(st.sets(st.integers(1, n - 1), max_size=4)))
    return pick(st.permutations(range(n))), marks


def model_of(method, X, k, division=None, transport="clear", **options):
    """Return the model of rows divided into parties, or None where it is refused."""
    order, marks = division or (range(len(X)), [len(X) // 2])
    parties = np.split(X[list(order)], marks)
    if transport != "clear" and len(parties) > 1:
        options |= {"secure_aggregation": True, "bound": largest(parties), "min_parties": 2}
    return run_draw(Draw(method, transport, parties, {"n_components": k, **options}, "rows")).model


def assert_alike(one, other, X, k, scale=False):
    """Assert that two models have the same variances and, where these are apart, the same spans."""
    truth = truth_of(X, scale=scale)
    assert (one is None) == (other is None), "one of both is refused"
    if one is None or truth.unsure:
        return
    first = one.explained_variance_[0]
    np.testing.assert_allclose(other.explained_variance_[:k], one.explained_variance_[:k], rtol=0, atol=1e-9 * first)
    for j in range(1, k + 1):
        if truth.gap(j) > 1e-3:
            assert angle(one.components_[:j].T, other.components_[:j].T) < 1e-5


def isolated(X, k):
    """Return the components of which no neighbour has nearly the same variance."""
    truth = truth_of(X)
    return [j for j in range(k) if truth.gap(j + 1) > 1e-3 and (j == 0 or truth.gap(j) > 1e-3)]


@pytest.mark.parametrize("method", EXACT)
@examples(2)
@given(data=st.data(), X=whole_tables(), scale=st.booleans())
def test_rows_divided_in_three_ways_give_the_same_model(method, data, X, scale):
    k = data.draw(st.integers(1, min(X.shape)))
    travels = ["clear"] + ["secure_aggregation"] * ("masked" in transports_of(METHODS[method]))
    scale = scale and "scale" in card_of(method).options.model_fields
    options = {"scale": True} if scale else {}
    models = [
        model_of(method, X, k, data.draw(divisions(len(X))), data.draw(st.sampled_from(travels)), **options)
        for _ in range(3)
    ]
    event("refused" if models[0] is None else "model")
    for model in models[1:]:
        assert_alike(models[0], model, X, k, scale)
        if model is not None:
            np.testing.assert_allclose(model.mean_, models[0].mean_, rtol=0, atol=1e-9)
            assert model.n_samples_ == models[0].n_samples_


@pytest.mark.parametrize("method", EXACT)
@examples(2)
@given(data=st.data(), X=whole_tables())
def test_an_offset_moves_the_mean_alone(method, data, X):
    k = data.draw(st.integers(1, min(X.shape)))
    offset = data.draw(hnp.arrays(np.int64, X.shape[1], elements=st.integers(-(2**30), 2**30))).astype(np.float64)
    here, there = model_of(method, X, k), model_of(method, X + offset, k)
    assert_alike(here, there, X, k)
    if here is not None:
        np.testing.assert_allclose(there.mean_, here.mean_ + offset, rtol=4 * EPS, atol=1e-12)


@pytest.mark.parametrize("method", EXACT)
@examples(4)
@given(data=st.data(), X=whole_tables())
def test_components_do_not_depend_on_their_number_or_on_the_sign_of_the_rows(method, data, X):
    few, many = sorted(data.draw(st.tuples(*[st.integers(1, min(X.shape))] * 2)))
    one, other = model_of(method, X, few), model_of(method, -X, many)
    assert_alike(one, other, X, few)
    if one is not None:
        np.testing.assert_array_equal(other.mean_, -one.mean_)
    for j in isolated(X, few) if one is not None else []:
        np.testing.assert_allclose(other.components_[j], one.components_[j], atol=1e-6)
        assert one.components_[j].max() >= -one.components_[j].min() - 1e-6


@pytest.mark.parametrize("method", SMOOTH)
@examples(4)
@given(data=st.data())
def test_rows_of_equal_moments_have_equal_variances(method, data):
    run = data.draw(ordinary(method, calm=True))
    if "codec" in run.option_names:  # others round, and so tell rows of equal moments apart
        run = replace(run, options={**run.options, "codec": data.draw(st.sampled_from(["low-rank", "sketch"]))})
    one = run_draw(run).model
    if one is None or not turnable(run) or "taken for constant" in " ".join(one.log["notes"]):
        event("nothing to compare")
        return
    truth = truth_about(run)
    assert truth is not None
    if truth.unsure or not float(truth.total) > 0:
        return
    event("turned")
    other = run_draw(turned(run, data.draw(GENERATORS)))
    assert other.model is not None, f"turned rows are refused: {other.error}"
    slack = 1e-9 if run.options.get("wire") != "float32" else 1e-5
    allowed = rounding_of(run, truth) + slack * float(one.explained_variance_[0])
    allowed += sum(correction_of(run, model) for model in (one, other.model))
    assert np.abs(other.model.explained_variance_ - one.explained_variance_).max() <= allowed


def turnable(run):
    """Return True if variances move little with the moments."""
    options = run.options
    if not isinstance(options["n_components"], int):
        return False
    settled = not re.search("tied|clustered|copies|one-hot|indicators|small", run.description)
    smooth = options.get("tolerance", 1e-6) <= 1e-3 and options.get("max_rounds", 100) == 100
    smooth &= "codec" not in run.option_names or options.get("codec") in {"low-rank", "sketch"}
    return (run.card.pools_moments and not options.get("rank")) or (settled and smooth)


def turned(run, rng):
    """Return the draw with turned rows."""
    earlier = [turn(rng, part) for part in run.earlier]
    return replace(run, earlier=earlier, parties=[turn(rng, part) for part in run.parties])


def turn(rng, X):
    """Return rows (n, d) of the same count, mean and scatter, up to their rounding to float64."""
    n = len(X)
    square = rng.standard_normal((n, n))
    square[:, 0] = 1.0
    basis = np.linalg.qr(square).Q[:, 1:].astype(Long)
    inside = np.linalg.qr(rng.standard_normal((n - 1, n - 1))).Q.astype(Long)
    rows = np.asarray(X).astype(Long)
    mean = np.where((rows == rows[0]).all(axis=0), rows[0], rows.mean(axis=0))
    return (mean + basis @ (inside @ (basis.T @ (rows - mean)))).astype(np.float64)


def rounding_of(run, truth):
    """Return how much rounding of each value of the rows can move a variance, in the model's units."""
    rows = run.pooled.astype(Long) / truth.scale
    moved = 4 * EPS * float(np.sqrt((rows**2).sum()))
    return (2 * float(np.sqrt(truth.values[0])) * moved + moved**2) * 10 / (len(rows) - 1)


def correction_of(run, model):
    """Return the bound on the error of a variance after corrections: the measured error, by Weyl's inequality.

    A correction is about leading eigenvectors of what the server holds. Beyond the rank of the codec they belong to
    one repeated eigenvalue, its filler or zero, so the last digit of a mean turns them, and the correction's few bits
    round other products. Encodings without corrections are compared without this.
    """
    if "codec" not in run.option_names or not (run.options.get("corrections") or run.options.get("tolerance")):
        return 0.0
    return float(model.log["measured"]["scatter_error_variance_share"]) * model.total_variance
