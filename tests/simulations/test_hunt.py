"""The hunt: it finds every kind of wrong result that is put in, and nothing in the methods themselves."""

import re
import tomllib
import warnings
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from sklearn.decomposition import PCA, KernelPCA

from fedpca_flwr.errors import ConfigError, DataError, PartyError
from fedpca_flwr.maths.eigen import MIN_LANCZOS_SIZE
from fedpca_flwr.simulations import engines
from fedpca_flwr.simulations.hunt import hunting, running
from fedpca_flwr.simulations.hunt.__main__ import main
from fedpca_flwr.simulations.hunt.checks import findings, truth_about, turn, turned, unequal_moments
from fedpca_flwr.simulations.hunt.draw import Draw, draw, method_of
from fedpca_flwr.simulations.hunt.hunting import Tally, hunt
from fedpca_flwr.simulations.hunt.oracle import angle, truth_of, truth_of_kernel
from fedpca_flwr.simulations.hunt.running import Outcome, run_draw
from fedpca_flwr.strategies import METHODS
from tests.families import cut, rows

SEED, RUNS = 11, 70
PARTIES = cut(rows(60, 6), 30, 20, 10)


def drawn(method="p-cov", parties=PARTIES, **options):
    return Draw(method, "clear", parties, {"n_components": 2, **options}, "rows")


def kinds(draw, outcome):
    return {kind for kind, _ in findings(draw, outcome)}


def changed(model, *, log=(), measured=(), **fields):
    """Return an outcome whose model has other fields, other keys of its log, or other measurements."""
    told = {**model.log, **dict(log), "measured": {**model.log["measured"], **dict(measured)}}
    return Outcome(replace(model, log=told, **fields), None, (), 0.0)


def failed(error, *warned):
    return Outcome(None, error, warned, 0.0)


@cache
def right(name):
    """Return the model of one of the draws below, in which nothing is found."""
    outcome = run_draw(RIGHT[name])
    assert findings(RIGHT[name], outcome) == []
    return outcome.model


def tied(*deviations):
    """Rows of parties whose components have these deviations exactly."""
    return cut(np.linalg.qr(rows(40, 5) - rows(40, 5).mean(axis=0)).Q * deviations, 30, 10)


def larger(model, factor):
    """Return the three fields of a model's variances, all too large."""
    return {
        "explained_variance_": model.explained_variance_ * factor,
        "singular_values_": model.singular_values_ * np.sqrt(factor),
        "explained_variance_ratio_": model.explained_variance_ratio_ * factor,
    }


# The hunt


@pytest.mark.engine
def test_a_short_hunt_finds_nothing_and_is_outside_the_app():
    tally = Tally()
    lines = list(hunt(SEED, iter(range(RUNS)), tally))
    assert lines == [], "\n".join(lines)
    assert {method for method, _ in tally.runs} == set(METHODS)
    assert {transport for _, transport in tally.runs} == {"clear", "secure_aggregation", "survivors"}
    assert tally.refusals.total() < tally.runs.total() / 3  # else little is looked at
    tool = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["tool"]
    assert not any("**" in one for one in tool["flwr"]["app"]["fab-include"] if "simulations" in one)


# Draws


def draws_of(*methods):
    return [draw(5, index) for index in range(1500) if method_of(5, index) in methods]


@pytest.mark.engine
def test_draws_repeat_their_numbers_rows_and_variances():
    for index in range(40):
        one, other = draw(3, index), draw(3, index)
        assert repr(one) == repr(other)
        assert method_of(3, index) == one.method
    # Of whole numbers: the scatter is one, too.
    repeated = [one for one in draws_of("sub-it") if "first variance" in one.description and not one.levels]
    exact = [one for one in repeated if "turned" not in one.description]
    assert exact
    for one in exact:
        times = int(re.search(r"first variance (\d) times", one.description)[1])
        scatter = np.vstack(one.parties).T @ np.vstack(one.parties)
        assert (scatter == np.round(scatter)).all()
        above = scatter - np.linalg.eigvalsh(scatter)[-1] * np.eye(len(scatter))
        assert np.linalg.matrix_rank(above) == len(scatter) - times


def test_a_turn_keeps_means_scatter_and_constant_columns():
    X = rows(9, 4) + [1e6, 0, 3, -1]
    X[:, 1] = 0.1
    turned = turn(np.random.default_rng(0), X)
    np.testing.assert_allclose(turned.mean(axis=0), X.mean(axis=0), rtol=1e-14, atol=1e-14)
    np.testing.assert_allclose(np.cov(turned.T), np.cov(X.T), atol=1e-8)
    assert (turned[:, 1] == 0.1).all()
    assert np.abs(turned - X).max() > 0.1
    for few in (1, 2):
        assert turn(np.random.default_rng(0), X[:few]).shape == (few, 4)


@pytest.mark.engine
def test_draws_are_of_every_kind_and_every_trouble():
    draws = [draw(5, index) for index in range(600)]
    about = " ".join(one.description for one in draws)
    for word in ("tied", "clustered", "units", "salary", "offsets", "float32", "whole numbers", "isotropic", "shifted"):
        assert word in about, word
    arrays = [np.asarray(party) for one in draws if not one.hostile for party in one.parties]
    assert {"float64", "float32", "bool", "int8", "uint8"} <= {str(array.dtype) for array in arrays}
    assert 0.03 < np.mean([bool(one.hostile) for one in draws]) < 0.2
    assert max(len(one.parties) for one in draws) >= 20
    assert max(array.shape[1] for array in arrays) >= MIN_LANCZOS_SIZE
    assert Counter(one.method for one in draws).keys() == METHODS.keys()
    assert any(one.earlier for one in draws if one.method == "streaming")
    assert any(one.levels for one in draws if one.transport != "clear")
    of_moments = {"p-cov", "ap-cov", "sub-it", "qr-pca", "ap-stack", "streaming"}
    draws = draws_of(*of_moments, "em")
    assert of_moments <= {one.method for one in draws if one.turn is not None}
    assert any(one.orders and one.orders[0] != one.orders[-1] for one in draws)
    constant = [one for one in draws if "constant features" in one.description]
    assert {one.method for one in constant} == {"p-cov", "ap-cov", "sub-it", "streaming", "em"}
    assert "clear" not in {one.transport for one in constant}
    assert all(one.options["scale"] for one in constant)
    assert {one.method for one in draws if one.unit} == {"p-cov", "sub-it", "qr-pca", "streaming"}
    assert {one.transport for one in draws if one.unit} == {"clear"}
    assert {one.options["block_size"] for one in draws if "first variance" in one.description} == {1, 2, 3}


# The oracle


def test_the_oracle_agrees_with_scikit_learn():
    X = rows(50, 7) + 3
    theirs, ours = PCA(7, svd_solver="full").fit(X), truth_of(X)
    np.testing.assert_allclose(ours.values.astype(float) / 49, theirs.explained_variance_, rtol=1e-12)
    assert angle(ours.vectors[:, :3], theirs.components_[:3].T) < 1e-12 + ours.uncertainty(3)
    assert ours.miss(theirs.components_[:3].T) <= 0
    scores = truth_of(X, by_columns=True).vectors * theirs.singular_values_
    np.testing.assert_allclose(np.abs(scores), np.abs(theirs.transform(X)), atol=1e-10)
    X, given = rows(30, 4), {"gamma": 0.3, "coef0": 1.0, "degree": 2}
    for kernel, theirs in (("rbf", "rbf"), ("polynomial", "poly"), ("linear", "linear")):
        ours = truth_of_kernel(X, kernel=kernel, center=False, scale=False, **given)
        expected = KernelPCA(3, kernel=theirs, eigen_solver="dense", **given).fit(X).eigenvalues_
        np.testing.assert_allclose(ours.values[:3].astype(float), expected, rtol=1e-10)


def test_the_oracle_knows_ties_means_and_no_direction():
    truth = truth_of(np.vstack(tied(9.0, 2.0, 2.0, 2.0, 1.0)))
    mixed = np.eye(5)[:, :2].copy()
    mixed[1:4, 1] = np.array([1.0, 2.0, 3.0]) / np.sqrt(14)
    assert truth.miss(mixed) <= 1e-9
    assert truth.miss(np.eye(5)[:, [0, 4]]) > 80
    assert truth.miss(np.eye(5)[:, [1, 2]]) > 80
    # 80 bits round a mean of 1.6e18 by 0.1, which is 1e-11 degrees of numbers that differ by 1e11.
    X = (1.6e18 + 2.0**40 * np.round(rows(40, 1) * 8)).astype(np.float64)
    small = (X - 1.6e18) / 2.0**40  # without rounding
    assert angle(truth_of(X, by_columns=True).vectors[:, :1], truth_of(small, by_columns=True).vectors[:, :1]) < 1e-13
    assert truth_of(rows(20, 4)).miss(np.empty((4, 0))) == 0


# Faults that are put into a right result


def another_unit(count):
    rng = np.random.default_rng(0)
    parts = [rng.standard_normal((20, 3)) + [0, 0, 50.0] for _ in range(count)]
    parts[0][:, 2] *= 1000
    return parts


CONSTANT = [np.insert(part, 2, 100.0, axis=1) for part in cut(rows(60, 3), 30, 30)]
SECURE = {"n_components": 2, "scale": True, "secure_aggregation": True, "bound": 200.0, "min_parties": 2}
ORDERS = [[3, 1, 0, 2, 5, 4], [0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0]]
RIGHT = {
    "p-cov": drawn(),
    "noise": drawn("dp-pca", noise_seed=1),
    "clear": drawn("dp-pca", epsilon="infinity"),
    "tied": drawn(parties=tied(9.0, 2.0, 2.0, 2.0, 1.0)),
    "second tied": drawn("sub-it", tied(9.0, 2.0, 2.0, 2.0, 1.0)),
    "first tied": drawn("sub-it", tied(9.0, 9.0, 9.0, 2.0, 1.0), n_components=3),
    "names": replace(drawn(scale=True), orders=ORDERS),
    "constant": Draw("p-cov", "secure_aggregation", CONSTANT, SECURE, "rows"),
    "units": replace(drawn(parties=another_unit(4)), unit=(0, 2)),
    "units of two": replace(drawn(parties=another_unit(2)), unit=(0, 2)),
    "units, sub-it": replace(drawn("sub-it", another_unit(4)), unit=(0, 2)),
    "units, qr-pca": replace(drawn("qr-pca", another_unit(4)), unit=(0, 2)),
    "columns": Draw("vertical", "clear", np.split(rows(40, 6), [2, 5], axis=1), {"n_components": 2}, "columns"),
    "target": drawn("adaptive", target=1.0),
}
OFF = PCA(2).fit(np.vstack(PARTIES)[:59]).components_


NO_UNITS = {"log": {"notes": [], "other_units": []}}


def claims(angle, components):
    return {"certified_angle_degrees": angle, "certified_components": components}


WRONG = [
    ("p-cov", "eigenvalues", lambda m: larger(m, 1 + 1e-5)),
    ("p-cov", "ratio", lambda m: {"explained_variance_ratio_": m.explained_variance_ / m.explained_variance_.sum()}),
    ("p-cov", "mean", lambda m: {"mean_": m.mean_ + 1e-9}),
    ("p-cov", "noise variance", lambda m: {"noise_variance_": m.noise_variance_ * 1.001}),
    ("p-cov", "exact", lambda m: {"components_": OFF}),
    ("p-cov", "squared error", lambda m: {"measured": {"squared_error_per_row": 7.0}}),
    ("p-cov", "certificate", lambda m: {"measured": claims(1e-5, 2), "components_": OFF}),
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
    ("noise", "form", lambda m: {"singular_values_": np.ones(2)}),
    ("noise", "form", lambda m: {"components_": m.components_ * np.nan}),
    ("noise", "form", lambda m: {"measured": {"components_above_noise": 1}}),
    ("clear", "form", lambda m: larger(m, np.nan)),
    ("tied", "note", lambda m: {"log": {"notes": [], "exact": True}}),
    ("second tied", "certificate", lambda m: {"measured": claims(1e-9, 2)}),
    ("first tied", "certificate", lambda m: {"measured": claims(1e-5, 1)}),
    ("first tied", "certificate", lambda m: {"measured": claims(1e-5, 2)}),
    ("names", "names", lambda m: {"feature_names_in_": None}),
    ("names", "names", lambda m: {"feature_names_in_": m.feature_names_in_[::-1]}),
    ("names", "mean", lambda m: {"mean_": m.mean_[ORDERS[0]]}),
    ("constant", "tiny scale", lambda m: {"scale_": np.where(np.arange(4) == 2, 1e-11, m.scale_)}),
    ("constant", "new rows", lambda m: {"scale_": np.array([1, 1, 1e-9, 1]), "components_": np.eye(4)[[0, 2]]}),
    ("units", "units", lambda m: {"log": {"notes": []}}),
    *((f"units{whose}", "units", lambda m: NO_UNITS) for whose in ("", " of two", ", sub-it", ", qr-pca")),
    ("columns", "form", lambda m: {"scores_": m.scores_[:, [0, 0]]}),
    ("target", "target", lambda m: {"components_": np.eye(6)[:2], "log": {"exact": False}}),
]


@pytest.mark.parametrize(("name", "kind", "fault"), WRONG)
def test_a_wrong_model_is_found(name, kind, fault):
    model = right(name)
    assert kind in kinds(RIGHT[name], changed(model, **fault(model)))


def test_what_is_right_is_not_found_and_what_is_wrong_in_one_way_in_no_other():
    model = right("p-cov")
    assert kinds(RIGHT["p-cov"], changed(model, components_=model.components_[::-1])) == {"order"}
    assert kinds(RIGHT["p-cov"], changed(model, log={"exact": False})) == {"exact"}
    assert right("noise").log["measured"]["components_above_noise"] == 0
    np.testing.assert_allclose(right("names").mean_, RIGHT["names"].pooled.mean(axis=0), atol=1e-12)
    assert "certificate" not in kinds(RIGHT["first tied"], changed(right("first tied"), measured=claims(1e-5, 3)))
    assert "units" in kinds(replace(RIGHT["units"], unit=(0, 1)), changed(right("units")))


def test_certificates_are_held_against_the_components_that_they_are_of():
    one = drawn("sub-it", block_size=1, tolerance=30.0, max_rounds=3)
    model = run_draw(one).model
    true = truth_of(one.pooled).miss(model.components_.T)
    assert true > 1e-3
    assert "certificate" in kinds(one, changed(model, measured=claims(true / 10, 2)))
    assert "certificate" not in kinds(one, changed(model, measured=claims(true, 2)))
    one = drawn("sub-it")
    model = run_draw(one).model
    for certified in (1, 2):
        swapped = {"components_": model.components_[::-1], "log": {"exact": False}}
        found = kinds(one, changed(model, **swapped, measured=claims(1e-9, certified)))
        assert ("certificate" in found) == (certified == 1)


def test_columns_are_held_by_place_without_pandas(monkeypatch):
    monkeypatch.setattr(running, "find_spec", lambda name: None)
    one = replace(drawn(), orders=[[5, 4, 3, 2, 1, 0]] * 3)
    outcome = run_draw(one)
    assert outcome.model.feature_names_in_ is None
    assert findings(one, outcome) == []


def test_units_named_without_a_reason_and_hostile_input_taken_are_found():
    one = drawn(parties=another_unit(4))
    outcome = run_draw(one)
    assert "units" in kinds(one, outcome)  # "rows" are alike at all parties, as far as a draw says
    shifted = replace(one, description="shifted")
    assert "units" not in kinds(shifted, outcome)
    wrong = [{**outcome.model.log["other_units"][0], "feature": 1}]
    assert "units" in kinds(shifted, changed(outcome.model, log={"other_units": wrong}))
    one = replace(drawn(scale="certainly"), hostile="scale='certainly'")
    assert kinds(one, run_draw(one)) == set()
    assert kinds(one, failed(ConfigError("run-config: something is wrong"))) == {"unclear refusal"}
    assert "accepted" in kinds(one, changed(right("p-cov")))


def test_other_variances_of_equal_moments_are_found(monkeypatch):
    """A method that tells more than moments: its variances depend on the largest value."""
    one = replace(drawn(), turn=3)
    assert findings(one, run_draw(one)) == []
    assert len(turned(one).pooled) == 60
    honest = engines.run

    def wrong(method, parties, **options):
        model = honest(method, parties, **options)
        return replace(model, **larger(model, 1 + 1e-8 * float(np.vstack(parties).max())))

    def refuses(method, parties, **options):
        raise DataError("no")

    monkeypatch.setattr(running, "run", wrong)
    assert "equal moments" in kinds(one, run_draw(one))
    monkeypatch.setattr(running, "run", refuses)
    assert "equal moments" in kinds(one, changed(right("p-cov")))


@pytest.mark.engine
def test_corrections_may_turn_what_is_tied_and_nothing_else():
    """Two of three parties have a row each, and beyond the codec's rank all eigenvalues are one."""
    parties = cut(rows(60, 6) + 1e3, 58, 1, 1)
    corrected = replace(drawn("compressed", parties, codec="low-rank", rank=1, corrections=1), turn=0)
    plain = replace(corrected, options={**corrected.options, "corrections": 0})
    for one, apart, wrong in ((corrected, 1e-6, 1e-2), (plain, 0.0, 1e-7)):
        model, other = (run_draw(draw).model for draw in (one, turned(one)))
        variances = model.explained_variance_
        assert np.abs(variances - other.explained_variance_).max() >= apart * variances[0]
        assert findings(one, changed(model)) == []
        assert list(unequal_moments(one, replace(model, explained_variance_=variances * (1 + wrong)), truth_about(one)))


MANY = drawn(n_components=7)
TOLD = ConfigError("run-config: 'n-components' is 7, at most 6 = min(rows, features)")
IDENTICAL = DataError("the rows of all parties are identical: there is no variance to explain")
BUT = ConfigError("the rows of all parties but those held out to choose 'mu' (set it) have no variance")
LOST = ConfigError("the fixed point of secure sums does not tell these rows apart well enough")
SAME, OTHERS, FEW = np.ones((3, 3)), rows(3, 3), np.vstack([[[2.0, 1, 1], [3, 1, 1]], np.ones((8, 3))])
SECURED = {"n_components": 2, "bound": 3.0}


def after(method, parties, earlier, hostile=""):
    return Draw(method, "clear", [parties], {"n_components": 2}, "", hostile, earlier=[earlier])


@pytest.mark.parametrize(
    ("one", "error", "found"),
    [
        (MANY, TOLD, set()),
        (drawn(), TOLD, {"false refusal"}),
        (drawn(), IDENTICAL, {"false refusal"}),
        (drawn(parties=[np.ones((5, 3))]), IDENTICAL, set()),
        (after("streaming", OTHERS, SAME), IDENTICAL, set()),  # of the run before; what comes after does not matter
        (after("vertical-scores", OTHERS, SAME), IDENTICAL, set()),
        (after("streaming", SAME, OTHERS, "a huge value"), IDENTICAL, {"unclear refusal"}),
        (after("vertical-scores", SAME, OTHERS, "a huge value"), IDENTICAL, {"unclear refusal"}),
        (drawn("personalised", [FEW, FEW]), BUT, set()),
        (drawn("personalised", [FEW, FEW], center=False), BUT, {"false refusal"}),
        (drawn("personalised", [FEW, FEW[:5]]), BUT, {"false refusal"}),
        (Draw("vertical-kernel", "secure_aggregation", [FEW[:, :1] > 1], SECURED, "columns"), LOST, set()),
        (Draw("vertical-kernel", "secure_aggregation", [rows(10, 3)], SECURED, "columns"), LOST, {"false refusal"}),
        (drawn(), PartyError("client 0: failed with ValueError"), {"vague error"}),
        (drawn(), ValueError("operands could not be broadcast"), {"raw error"}),
        (drawn(), running.HangError("no result"), {"hang"}),
    ],
)
def test_errors_are_right_answers_only_for_a_reason_that_the_draw_has(one, error, found):
    assert kinds(one, failed(error)) == found


def test_warnings_and_hangs_are_seen(monkeypatch):
    def warns(*args, **options):
        warnings.warn("overflow encountered", RuntimeWarning, stacklevel=1)
        raise DataError("no")

    assert kinds(MANY, failed(TOLD, "RuntimeWarning: overflow")) == {"warning"}
    monkeypatch.setattr(running, "run", warns)
    assert run_draw(drawn()).warned == ("RuntimeWarning: overflow encountered",)
    monkeypatch.setattr(running, "run", lambda *args, **options: running._hangs(14, None))
    assert isinstance(run_draw(drawn()).error, running.HangError)


# The command


@pytest.mark.engine
def test_a_finding_is_one_line_that_repeats_it(monkeypatch, capsys):
    honest = engines.run

    def wrong(method, parties, **options):
        model = honest(method, parties, **options)
        mean = None if model.mean_ is None else model.mean_ + 1
        return replace(model, noise_variance_=model.noise_variance_ + 1.0, mean_=mean)

    monkeypatch.setattr(running, "run", wrong)
    monkeypatch.setattr(hunting, "until", lambda end, seed, methods: iter(range(8)))  # not so long: so many
    assert main(["--seed", "11"]) == 1
    printed = capsys.readouterr().out.splitlines()
    line = next(line for line in printed if line.startswith("mean: "))
    seed, only = re.search(r"\| python -m fedpca_flwr.simulations\.hunt --seed (\d+) --only (\d+)$", line).groups()
    assert "mean: off by 1 |" in line
    assert any(line.startswith("all ") for line in printed)
    assert main(["--seed", seed, "--only", only]) == 1
    assert "mean: off by 1" in capsys.readouterr().out
    monkeypatch.setattr(running, "run", honest)
    assert main(["--seed", seed, "--only", only]) == 0
    assert "no finding" in capsys.readouterr().out
