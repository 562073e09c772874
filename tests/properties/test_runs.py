"""Runs of every method on drawn data, options and transports, each held against linear algebra of its own."""

from typing import Any

import numpy as np
import pytest
from hypothesis import event, given, note, target
from hypothesis import strategies as st

from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.simulations.records import card_of
from fedpca_flwr.strategies import METHODS
from fedpca_flwr.transports.recommendation import EXAMPLE_CONFIGS, script_or_none
from tests.families import cut
from tests.harness import CLUSTER_STEPS
from tests.properties.checks import basis_of, findings, malformed, run_draw, tightness
from tests.properties.oracle import Long, angle, truth_of
from tests.properties.profiles import examples
from tests.properties.strategies import Draw, runs, secure_options, unfinished

pytestmark = pytest.mark.engine
ITERATIONS = [name for name in METHODS if {"block_size", "max_rounds"} <= card_of(name).options.model_fields.keys()]


def assert_right(run):
    outcome = run_draw(run)
    event(f"{run.method}, {run.transport}, {'refused' if outcome.error else 'model'}")
    note(str(outcome.error or outcome.model.summary(full=True)))
    problems = findings(run, outcome)
    target(tightness(run, outcome.model), label="angle by its bound")
    assert not problems, "\n".join(problems)
    return outcome.model


@pytest.mark.parametrize("method", [name for name in METHODS if not card_of(name).loadings_source])
@examples(3)
@given(data=st.data())
def test_a_model_is_what_it_says_and_a_refusal_has_a_reason(method, data):
    assert_right(data.draw(runs(method)))


@pytest.mark.parametrize("method", ITERATIONS)
@examples(3)
@given(data=st.data())
def test_certificates_of_stopped_iterations_hold(method, data):
    assert_right(data.draw(unfinished(method)))


SETS = [
    pytest.param(name, dict(example), way, id=f"{name}-{way}-{example}", marks=pytest.mark.nightly if late else ())
    for name in METHODS
    for number, example in enumerate(card_of(name).examples)
    for way in ("clear", "masked")
    for late in [number > 0 and way == "masked"]
    if not (card_of(name).loadings_source or "robust-parties" in example)  # of an earlier run; of parties alike
    and script_or_none(METHODS[name], EXAMPLE_CONFIGS[way], dict(example)) is not None
]
"""Every method with the options of its card's examples, in clear and with secure aggregation."""
UNTOUCHED = {"harmonise", "genotypes", "rank"}
"""Options with which the model is not that of the rows as they are, or of all they hold."""


def drawn(rng: np.random.Generator, name: str, options: dict[str, Any]) -> list[np.ndarray]:
    """Draw rows of some spectrum, divided into parties with means of their own."""
    n, d, parties = int(rng.integers(40, 90)), int(rng.integers(5, 8)), int(rng.integers(2, 5))
    if options.get("genotypes"):
        X, shift = rng.binomial(2, rng.uniform(0.2, 0.8, d), (n, d)).astype(float), 0.0
    else:
        axes = np.linalg.qr(rng.standard_normal((d, d)))[0]
        X = rng.standard_normal((n, d)) * 0.6 ** np.arange(d) @ axes * 10.0 ** rng.integers(-3, 4)
        X += X.std() * 10.0 ** rng.integers(-1, 4) * rng.standard_normal(d)
        shift = 0.3
    if card_of(name).split == "columns":
        return np.array_split(X, parties, axis=1)
    parts = cut(X, n - 9 * (parties - 1), *[9] * (parties - 1))
    return [part + shift * X.std(axis=0) * rng.standard_normal(d) for part in parts]


@pytest.mark.parametrize(("name", "options", "way"), SETS)
@examples(1)
@given(data=st.data(), seed=st.integers(0, 2**32 - 1))
def test_numbers_are_what_they_say(name, options, way, monkeypatch, data, seed):
    monkeypatch.setattr(*CLUSTER_STEPS)
    rng = np.random.default_rng(seed)
    parties, k = drawn(rng, name, options), int(rng.integers(1, 4))
    narrow = {"rank": 4, "prune": 0.5}  # to suit the size of the data
    given = {key.replace("-", "_"): narrow.get(key, value) for key, value in options.items() if key != "state"}
    given |= data.draw(secure_options(way, parties))
    run = Draw(name, way, parties, {"n_components": k, **given}, "shifted")
    if UNTOUCHED.isdisjoint(options):
        model = assert_right(run)
    else:
        model = run_draw(run).model
        assert not list(malformed(run, model))
    if model.log["measured"].get("components_above_noise", 1):  # the noise variance is what the shares leave
        total = model.explained_variance_[0] / model.explained_variance_ratio_[0]
        most = min(model.n_samples_, model.n_features_in_) - model.n_components_
        left = max(0.0, total - model.explained_variance_.sum()) / most if most > 0 else 0.0
        assert model.noise_variance_ == pytest.approx(left, abs=1e-12 * total)
    if UNTOUCHED.isdisjoint(options) and not run.card.differentially_private:
        require_measurements(run, model)


def require_measurements(run: Draw, model: PCAModel) -> None:
    """Hold variances against what the components hold of the rows, and measurements against their definitions."""
    measured, V, freedom = model.log["measured"], basis_of(model), model.n_samples_ - 1
    truth = truth_of(run.pooled, center=run.method != "vfedakpca", scale=model.scale_ is not None)
    rows = (run.pooled.astype(Long) - truth.mean) / truth.scale
    total = float(truth.total) / freedom
    held = np.square(V.T @ rows).sum(axis=1) if run.by_columns else np.square(rows @ V).sum(axis=0)
    # methods whose variances are those that the components hold of the pooled rows
    held_by = {"p-cov", "sub-it", "qr-pca", "adaptive", "dsa", "fast-pca", "streaming", "em", "personalised"}
    held_by |= {"vertical", "vfedpca", "vfedakpca"}
    holds = run.method in held_by and model.log.get("chosen", {}).get("method") != "ap-cov"
    if holds:
        expected = (held / freedom).astype(float)
        np.testing.assert_allclose(model.explained_variance_, expected, rtol=1e-7, atol=1e-10 * total)
    if run.by_columns:
        return
    rest = rows.T @ rows / freedom - (V * model.explained_variance_) @ V.T
    if "squared_error_per_row" in measured and not run.card.local_components:
        about_mean = (run.pooled - model.loadings()[1].astype(Long)) / truth.scale
        error = float(np.square(about_mean - about_mean @ V @ V.T).sum() / model.n_samples_)
        assert measured["squared_error_per_row"] == pytest.approx(error, rel=1e-6, abs=1e-9 * total)
    if "left_out_directions" in measured:
        assert measured["left_out_directions"] == pytest.approx(float(np.trace(rest) ** 2 / (rest**2).sum()), rel=1e-6)
    if "angle_to_exact_max_degrees" in measured:
        off = angle(V, truth.vectors[:, : V.shape[1]])
        assert measured["angle_to_exact_max_degrees"] == pytest.approx(off, abs=1e-6)
    if "influence_component_share" in measured and holds:
        parts = cut(rows, *map(len, run.parties))
        shares = [np.square(part @ V).sum(axis=0) / freedom / model.explained_variance_ for part in parts]
        assert measured["influence_component_share"] == pytest.approx(float(np.max(shares)), rel=1e-6)
        without = [truth_of(np.vstack(parts[:i] + parts[i + 1 :])).vectors[:, :1] for i in range(len(parts))]
        assert measured["influence_axis_degrees"] >= max(angle(V[:, :1], first) for first in without) - 1e-6
