"""The checks find every kind of wrong result that is put into a right one."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from sklearn.decomposition import PCA

from fedpca_flwr.errors import ConfigError, DataError, PartyError
from tests.families import cut, rows
from tests.properties.checks import Outcome, findings, run_draw
from tests.properties.strategies import Draw

PARTIES = cut(rows(60, 6), 30, 20, 10)
OFF = PCA(2).fit(np.vstack(PARTIES)[:59]).components_


def request(method="p-cov", parties=PARTIES, **options):
    """Return a run in clear."""
    return Draw(method, "clear", parties, {"n_components": 2, **options}, "rows")


def ties(*deviations):
    """Return parties whose components have these deviations exactly."""
    return cut(np.linalg.qr(rows(40, 5) - rows(40, 5).mean(axis=0)).Q * deviations, 30, 10)


RIGHT = {
    "p-cov": request(),
    "noise": request("dp-pca", noise_seed=1),
    "tied": request(parties=ties(9.0, 2.0, 2.0, 2.0, 1.0)),
    "second tied": request("sub-it", ties(9.0, 2.0, 2.0, 2.0, 1.0)),
    "first tied": request("sub-it", ties(9.0, 9.0, 9.0, 2.0, 1.0), n_components=3),
    "columns": Draw("vertical", "clear", np.split(rows(40, 6), [2, 5], axis=1), {"n_components": 2}, "columns"),
    "target": request("adaptive", target=1.0),
}


@cache
def right_model(name):
    """Return the model of a run above, in which nothing is wrong."""
    outcome = run_draw(RIGHT[name])
    assert findings(RIGHT[name], outcome) == []
    return outcome.model


def larger(model, factor):
    """Return the three fields of a model's variances, all too large."""
    return {
        "explained_variance_": model.explained_variance_ * factor,
        "singular_values_": model.singular_values_ * np.sqrt(factor),
        "explained_variance_ratio_": model.explained_variance_ratio_ * factor,
    }


def outcome_with(model, log=(), measured=(), **fields):
    """Return an outcome whose model has other fields, keys of its log, or measurements."""
    log = {**model.log, **dict(log), "measured": {**model.log["measured"], **dict(measured)}}
    return Outcome(replace(model, log=log, **fields), None)


def kinds(run, outcome):
    """Return the kinds of all findings."""
    return {text.partition(":")[0] for text in findings(run, outcome)}


def certificate(degrees, components):
    return {"measured": {"certified_angle_degrees": degrees, "certified_components": components}}


FAULTS = [
    ("p-cov", "eigenvalues", lambda m: larger(m, 1 + 1e-5)),
    ("p-cov", "ratio", lambda m: {"explained_variance_ratio_": m.explained_variance_ / m.explained_variance_.sum()}),
    ("p-cov", "mean", lambda m: {"mean_": m.mean_ + 1e-9}),
    ("p-cov", "noise variance", lambda m: {"noise_variance_": m.noise_variance_ * 1.001}),
    ("p-cov", "exact", lambda m: {"components_": OFF}),
    ("p-cov", "exact", lambda m: {"log": {"exact": False}}),
    ("p-cov", "order", lambda m: {"components_": m.components_[::-1]}),
    ("p-cov", "squared error", lambda m: {"measured": {"squared_error_per_row": 7.0}}),
    ("p-cov", "certificate", lambda m: {**certificate(1e-5, 2), "components_": OFF}),
    ("p-cov", "note", lambda m: {"log": {"notes": ["the data have rank 1: component 2 has no variance"]}}),
    ("p-cov", "form", lambda m: {"components_": m.components_[:, :5]}),
    ("p-cov", "form", lambda m: {"components_": m.components_ * 1.001}),
    ("p-cov", "form", lambda m: {"components_": -m.components_}),
    ("p-cov", "form", lambda m: {"explained_variance_": m.explained_variance_[::-1]}),
    ("p-cov", "form", lambda m: {"singular_values_": m.singular_values_ * 2}),
    ("p-cov", "form", lambda m: {"noise_variance_": float("nan")}),
    ("p-cov", "form", lambda m: {"n_samples_": 59}),
    ("p-cov", "form", lambda m: {"explained_variance_ratio_": m.explained_variance_ratio_ * 2}),
    ("noise", "form", lambda m: {"noise_variance_": 1.0}),
    ("noise", "form", lambda m: {"components_": m.components_ * np.nan}),
    ("tied", "note", lambda m: {"log": {"notes": []}}),
    ("second tied", "certificate", lambda m: certificate(1e-9, 2)),
    ("first tied", "certificate", lambda m: certificate(1e-5, 1)),
    ("columns", "form", lambda m: {"scores_": m.scores_[:, [0, 0]]}),
    ("target", "target", lambda m: {"components_": np.eye(6)[:2], "log": {"exact": False}}),
]


@pytest.mark.parametrize(("name", "kind", "fault"), FAULTS)
def test_a_wrong_model_is_found(name, kind, fault):
    model = right_model(name)
    assert kind in kinds(RIGHT[name], outcome_with(model, **fault(model)))


MANY = ConfigError("run-config: 'n-components' is 7, at most 6 = min(rows, features)")
IDENTICAL = DataError("the rows of all parties are identical: there is no variance to explain")


@pytest.mark.parametrize(
    ("run", "error", "kind"),
    [
        (request(n_components=7), MANY, set()),
        (request(), MANY, {"false refusal"}),
        (request(), IDENTICAL, {"false refusal"}),
        (request(parties=[np.ones((5, 3))]), IDENTICAL, set()),
        (request(), PartyError("client 0: failed with ValueError"), {"vague error"}),
        (request(), ValueError("operands could not be broadcast"), {"raw error"}),
    ],
)
def test_an_error_needs_a_reason_that_the_draw_has(run, error, kind):
    assert kinds(run, Outcome(None, error)) == kind


def test_a_warning_is_a_finding():
    assert kinds(request(n_components=7), Outcome(None, MANY, ("RuntimeWarning: overflow",))) == {"warning"}
