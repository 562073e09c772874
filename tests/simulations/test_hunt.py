"""The hunt: it finds every kind of wrong result that is put in, and nothing in the methods themselves."""

import re
import tomllib
import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.decomposition import PCA, KernelPCA

from fedpca_flwr.errors import ConfigError, DataError, PartyError
from fedpca_flwr.maths.eigen import LANCZOS_FROM
from simulations import engines
from simulations.hunt import hunting, running
from simulations.hunt.__main__ import main
from simulations.hunt.checks import findings, truth_about, turn, turned, unequal_moments
from simulations.hunt.draw import Draw, draw, method_of
from simulations.hunt.hunting import Tally, hunt
from simulations.hunt.oracle import angle, truth_of, truth_of_kernel
from simulations.hunt.running import Outcome, run_draw
from strategies import METHODS
from tests.families import cut, rows

SEED, RUNS = 11, 70


@pytest.fixture
def parties():
    return cut(rows(60, 6), 30, 20, 10)


def drawn(method, parties, **options):
    return Draw(method, "clear", parties, {"n_components": 2, **options}, "rows")


def kinds(draw, outcome):
    return {kind for kind, _ in findings(draw, outcome)}


def changed(model, **fields):
    return Outcome(replace(model, **fields), None, (), 0.0)


def failed(error, *warned):
    return Outcome(None, error, warned, 0.0)


def right(one):
    """A draw and its outcome, in which nothing is found."""
    outcome = run_draw(one)
    assert findings(one, outcome) == []
    return one, outcome


def tied(*deviations):
    """Rows of parties whose components have these deviations exactly."""
    return cut(np.linalg.qr(rows(40, 5) - rows(40, 5).mean(axis=0)).Q * deviations, 30, 10)


def claiming(model, **measured):
    """The model with other measurements."""
    return changed(model, log={**model.log, "measured": {**model.log["measured"], **measured}})


# The hunt


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


def test_draws_repeat_their_numbers_rows_and_variances():
    for index in range(40):
        one, other = draw(3, index), draw(3, index)
        for name in ("method", "transport", "about", "options", "orders", "times", "turn", "unit", "parties"):
            assert repr(getattr(one, name)) == repr(getattr(other, name))
        assert method_of(3, index) == one.method
    # Of whole numbers: the scatter is one, too.
    repeated = [one for one in draws_of("sub-it") if "first variance" in one.about and not one.levels]
    exact = [one for one in repeated if "turned" not in one.about]
    assert exact
    for one in exact:
        times = int(re.search(r"first variance (\d) times", one.about)[1])
        scatter = np.vstack(one.parties).T @ np.vstack(one.parties)
        assert (scatter == np.round(scatter)).all()
        assert np.linalg.matrix_rank(scatter - np.linalg.eigvalsh(scatter)[-1] * np.eye(len(scatter))) == (
            len(scatter) - times
        )
    X = rows(9, 4) + [1e6, 0, 3, -1]
    X[:, 1] = 0.1
    turned = turn(np.random.default_rng(0), X)
    np.testing.assert_allclose(turned.mean(axis=0), X.mean(axis=0), rtol=1e-14, atol=1e-14)
    np.testing.assert_allclose(np.cov(turned.T), np.cov(X.T), atol=1e-8)
    assert (turned[:, 1] == 0.1).all()
    assert np.abs(turned - X).max() > 0.1
    for few in (1, 2):
        assert turn(np.random.default_rng(0), X[:few]).shape == (few, 4)


def test_draws_are_of_every_kind_and_every_trouble():
    draws = [draw(5, index) for index in range(600)]
    about = " ".join(one.about for one in draws)
    for word in ("tied", "clustered", "units", "salary", "offsets", "float32", "whole numbers", "isotropic", "shifted"):
        assert word in about, word
    arrays = [np.asarray(party) for one in draws if not one.hostile for party in one.parties]
    assert {"float64", "float32", "bool", "int8", "uint8"} <= {str(array.dtype) for array in arrays}
    assert 0.03 < np.mean([bool(one.hostile) for one in draws]) < 0.2
    assert max(len(one.parties) for one in draws) >= 20
    assert max(array.shape[1] for array in arrays) >= LANCZOS_FROM
    assert Counter(one.method for one in draws).keys() == METHODS.keys()
    assert any(one.earlier for one in draws if one.method == "streaming")
    assert any(one.levels for one in draws if one.transport != "clear")
    draws = draws_of("p-cov", "ap-cov", "sub-it", "qr-pca", "ap-stack", "streaming", "em")
    turned = {one.method for one in draws if one.turn is not None}
    assert {"p-cov", "ap-cov", "sub-it", "qr-pca", "ap-stack", "streaming"} <= turned
    assert any(one.orders and one.orders[0] != one.orders[-1] for one in draws)
    constant = [one for one in draws if "constant features" in one.about]
    assert {one.method for one in constant} == {"p-cov", "ap-cov", "sub-it", "streaming", "em"}
    assert "clear" not in {one.transport for one in constant}
    assert all(one.options["scale"] for one in constant)
    assert {one.method for one in draws if one.unit} == {"p-cov", "sub-it", "qr-pca", "streaming"}
    assert {one.transport for one in draws if one.unit} == {"clear"}
    repeated = [one for one in draws if "first variance" in one.about]
    assert {one.options["block_size"] for one in repeated} == {1, 2, 3}


def draws_of(*methods):
    return [draw(5, index) for index in range(2500) if method_of(5, index) in methods]


# The oracle


def test_the_oracle_agrees_with_scikit_learn():
    X = rows(50, 7) + 3
    theirs, ours = PCA(7, svd_solver="full").fit(X), truth_of(X)
    np.testing.assert_allclose(ours.values.astype(float) / 49, theirs.explained_variance_, rtol=1e-12)
    assert angle(ours.vectors[:, :3], theirs.components_[:3].T) < 1e-12 + ours.uncertainty(3)
    assert ours.miss(theirs.components_[:3].T) <= 0
    scores = truth_of(X, by_columns=True)
    np.testing.assert_allclose(
        np.abs(scores.vectors * theirs.singular_values_), np.abs(theirs.transform(X)), atol=1e-10
    )
    X = rows(30, 4)
    given = {"gamma": 0.3, "coef0": 1.0, "degree": 2}
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


WRONG = {
    "eigenvalues": lambda m, X: changed(
        m,
        explained_variance_=m.explained_variance_ * (1 + 1e-5),
        singular_values_=m.singular_values_ * np.sqrt(1 + 1e-5),
        explained_variance_ratio_=m.explained_variance_ratio_ * (1 + 1e-5),
    ),
    "ratio": lambda m, X: changed(
        m, explained_variance_ratio_=m.explained_variance_ratio_ / m.explained_variance_ratio_.sum()
    ),
    "mean": lambda m, X: changed(m, mean_=m.mean_ + 1e-9),
    "noise variance": lambda m, X: changed(m, noise_variance_=m.noise_variance_ * 1.001),
    "exact": lambda m, X: changed(m, components_=PCA(2).fit(X[:59]).components_),
    "squared error": lambda m, X: claiming(m, squared_error_per_row=7.0),
    "certificate": lambda m, X: changed(
        claiming(m, certified_angle_degrees=1e-5, certified_components=2).model,
        components_=PCA(2).fit(X[:59]).components_,
    ),
    "note": lambda m, X: changed(m, log={**m.log, "notes": ["the data have rank 1: component 2 has no variance"]}),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_model_is_found(kind, parties):
    one, outcome = right(drawn("p-cov", parties))
    assert kind in kinds(one, WRONG[kind](outcome.model, one.pooled))


def test_models_of_a_wrong_form_are_found(parties):
    one = drawn("p-cov", parties)
    model = run_draw(one).model
    for wrong in (
        {"components_": model.components_[:, :5]},
        {"components_": model.components_ * 1.001},
        {"components_": -model.components_},
        {"explained_variance_": model.explained_variance_[::-1]},
        {"singular_values_": model.singular_values_ * 2},
        {"noise_variance_": float("nan")},
        {"n_samples_": 59},
        {"explained_variance_ratio_": model.explained_variance_ratio_ * 2},
    ):
        assert "form" in kinds(one, changed(model, **wrong)), wrong


def test_variances_are_unknown_where_all_is_noise_and_there_alone(parties):
    one = drawn("dp-pca", parties, noise_seed=1)
    noise, clear = run_draw(one).model, run_draw(drawn("dp-pca", parties, epsilon="infinity")).model
    assert noise.log["measured"]["components_above_noise"] == 0
    assert findings(one, changed(noise)) == findings(one, changed(clear)) == []
    nothing = np.full(2, np.nan)
    for wrong in (
        changed(noise, noise_variance_=1.0),
        changed(noise, singular_values_=np.ones(2)),
        changed(noise, components_=noise.components_ * np.nan),
        claiming(noise, components_above_noise=1),
        changed(clear, explained_variance_=nothing, explained_variance_ratio_=nothing),
    ):
        assert "form" in kinds(one, wrong)


def test_models_in_another_order_or_called_approximate_are_found(parties):
    one = drawn("p-cov", parties)
    model = run_draw(one).model
    assert kinds(one, changed(model, components_=model.components_[::-1])) == {"order"}
    one = drawn("p-cov", parties)
    model = run_draw(one).model
    assert kinds(one, changed(model, log={**model.log, "exact": False})) == {"exact"}
    one, outcome = right(drawn("adaptive", parties, target=1.0))
    wrong = changed(outcome.model, components_=np.eye(6)[:2], log={**outcome.model.log, "exact": False})
    assert "target" in kinds(one, wrong)


def test_certificates_are_held_against_the_components_that_they_are_of(parties):
    one = drawn("sub-it", parties, block_size=1, tolerance=30.0, max_rounds=3)
    model = run_draw(one).model
    true = truth_of(one.pooled).miss(model.components_.T)
    assert true > 1e-3
    assert "certificate" in kinds(one, claiming(model, certified_angle_degrees=true / 10, certified_components=2))
    assert "certificate" not in kinds(one, claiming(model, certified_angle_degrees=true, certified_components=2))
    one = drawn("sub-it", parties)
    model = run_draw(one).model
    wrong = {"components_": model.components_[::-1], "log": {**model.log, "exact": False}}
    swapped = claiming(replace(model, **wrong), certified_angle_degrees=1e-9).model
    assert "certificate" not in kinds(one, claiming(swapped, certified_components=2))
    assert "certificate" in kinds(one, claiming(swapped, certified_components=1))


@pytest.mark.parametrize(
    ("deviations", "k", "angle", "certified", "found"),
    [
        ([9.0, 2.0, 2.0, 2.0, 1.0], 2, 1e-9, 2, True),
        ([9.0, 9.0, 9.0, 2.0, 1.0], 3, 1e-5, 1, True),
        ([9.0, 9.0, 9.0, 2.0, 1.0], 3, 1e-5, 2, True),
        ([9.0, 9.0, 9.0, 2.0, 1.0], 3, 1e-5, 3, False),
    ],
)
def test_a_certificate_that_ends_within_a_tie_is_found(deviations, k, angle, certified, found):
    one, outcome = right(drawn("sub-it", tied(*deviations), n_components=k))
    wrong = claiming(outcome.model, certified_angle_degrees=angle, certified_components=certified)
    assert ("certificate" in kinds(one, wrong)) == found


def test_columns_are_held_by_name_and_without_pandas_by_place(parties, monkeypatch):
    pytest.importorskip("pandas")
    orders = [[3, 1, 0, 2, 5, 4], [0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0]]
    one, outcome = right(replace(drawn("p-cov", parties, scale=True), orders=orders))
    np.testing.assert_allclose(outcome.model.mean_, one.pooled.mean(axis=0), atol=1e-12)
    assert "names" in kinds(one, changed(outcome.model, feature_names_in_=None))
    assert "names" in kinds(one, changed(outcome.model, feature_names_in_=outcome.model.feature_names_in_[::-1]))
    by_place = changed(outcome.model, mean_=outcome.model.mean_[orders[0]])
    assert "mean" in kinds(one, by_place)
    monkeypatch.setattr(running, "find_spec", lambda name: None)
    one = replace(drawn("p-cov", parties), orders=[[5, 4, 3, 2, 1, 0]] * 3)
    outcome = run_draw(one)
    assert outcome.model.feature_names_in_ is None
    assert findings(one, outcome) == []


def test_a_constant_feature_that_is_divided_by_rounding_is_found():
    X = rows(60, 4)
    X[:, 2] = 100.0
    one = Draw("p-cov", "secure_aggregation", cut(X, 30, 30), {"n_components": 2, "scale": True}, "rows")
    one, outcome = right(
        replace(one, options={**one.options, "secure_aggregation": True, "bound": 200.0, "min_parties": 2})
    )
    scale = outcome.model.scale_.copy()
    scale[2] = 1e-11
    assert "tiny scale" in kinds(one, changed(outcome.model, scale_=scale))
    scale[2] = 1e-9
    mixed = np.eye(4)[[0, 2]]
    assert "new rows" in kinds(one, changed(outcome.model, scale_=scale, components_=mixed))


def another_unit(count):
    rng = np.random.default_rng(0)
    parts = [rng.standard_normal((20, 3)) + [0, 0, 50.0] for _ in range(count)]
    parts[0][:, 2] *= 1000
    return parts


@pytest.mark.parametrize("method", ["p-cov", "sub-it", "qr-pca"])
@pytest.mark.parametrize("count", [2, 4])
def test_a_feature_in_another_unit_that_nobody_names_is_found(method, count):
    one, outcome = right(replace(drawn(method, another_unit(count)), unit=(0, 2)))
    log = {**outcome.model.log, "notes": []}
    assert "units" in kinds(one, changed(outcome.model, log=log))
    assert "units" in kinds(one, changed(outcome.model, log={**log, "other_units": []}))
    assert "units" in kinds(replace(one, unit=(0, 1)), outcome)


def test_units_named_without_a_reason_and_hostile_input_taken_are_found(parties):
    one = drawn("p-cov", another_unit(4))
    outcome = run_draw(one)
    assert "units" in kinds(one, outcome)  # "rows" are alike at all parties, as far as a draw says
    shifted = replace(one, about="shifted")
    assert "units" not in kinds(shifted, outcome)
    wrong = [{**outcome.model.log["other_units"][0], "feature": 1}]
    assert "units" in kinds(shifted, changed(outcome.model, log={**outcome.model.log, "other_units": wrong}))
    one = replace(drawn("p-cov", parties, scale="certainly"), hostile="scale='certainly'")
    assert kinds(one, run_draw(one)) == set()
    assert kinds(one, failed(ConfigError("run-config: something is wrong"))) == {"unclear refusal"}
    assert "accepted" in kinds(one, run_draw(drawn("p-cov", parties)))


def test_other_variances_of_equal_moments_are_found(parties, monkeypatch):
    """A method that tells more than moments: its variances depend on the largest value."""
    one = replace(drawn("p-cov", parties), turn=3)
    assert findings(one, run_draw(one)) == []
    assert len(turned(one).pooled) == 60
    honest = engines.run

    def wrong(method, parties, **options):
        model = honest(method, parties, **options)
        larger = 1 + 1e-8 * float(np.vstack(parties).max())
        return replace(
            model,
            explained_variance_=model.explained_variance_ * larger,
            singular_values_=model.singular_values_ * np.sqrt(larger),
            explained_variance_ratio_=model.explained_variance_ratio_ * larger,
        )

    monkeypatch.setattr(running, "run", wrong)
    assert "equal moments" in kinds(one, run_draw(one))

    def refuses(method, parties, **options):
        raise DataError("no")

    outcome = run_draw(replace(one, turn=None))
    monkeypatch.setattr(running, "run", refuses)
    assert "equal moments" in kinds(one, outcome)


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


def test_ties_that_nobody_mentions_and_wrong_scores_are_found():
    one, outcome = right(drawn("p-cov", tied(9.0, 2.0, 2.0, 2.0, 1.0)))
    assert "note" in kinds(one, changed(outcome.model, log={**outcome.model.log, "notes": [], "exact": True}))
    one, outcome = right(
        Draw("vertical", "clear", np.split(rows(40, 6), [2, 5], axis=1), {"n_components": 2}, "columns")
    )
    scores = outcome.model.scores_.copy()
    scores[:, 1] = np.linalg.norm(scores[:, 1]) * np.eye(40)[0]
    assert {"form", "exact"} & kinds(one, changed(outcome.model, scores_=scores))


def test_errors_are_right_answers_only_for_a_reason_that_the_draw_has(parties):
    benign, many = drawn("p-cov", parties), drawn("p-cov", parties, n_components=7)
    told = ConfigError("run-config: 'n-components' is 7, at most 6 = min(rows, features)")
    assert kinds(many, failed(told)) == set()
    assert kinds(benign, failed(told)) == {"false refusal"}
    identical = DataError("the rows of all parties are identical: there is no variance to explain")
    assert kinds(benign, failed(identical)) == {"false refusal"}
    assert kinds(drawn("p-cov", [np.ones((5, 3))]), failed(identical)) == set()
    same, others = [np.ones((3, 3))], [rows(3, 3)]
    for method in ("streaming", "vertical-scores"):  # of the run before; what comes after it does not matter
        assert kinds(Draw(method, "clear", others, {"n_components": 2}, "", earlier=same), failed(identical)) == set()
        benign_first = Draw(method, "clear", same, {"n_components": 2}, "", "a huge value", earlier=others)
        assert kinds(benign_first, failed(identical)) == {"unclear refusal"}
    but = ConfigError("the rows of all parties but those held out to choose 'mu' (set it) have no variance")
    few = np.ones((10, 3))
    few[:2, 0] = 2.0, 3.0
    assert kinds(drawn("personalised", [few, few]), failed(but)) == set()
    assert kinds(drawn("personalised", [few, few], center=False), failed(but)) == {"false refusal"}
    assert kinds(drawn("personalised", [few, few[:5]]), failed(but)) == {"false refusal"}
    lost = ConfigError("the fixed point of secure sums does not tell these rows apart well enough")
    columns = Draw("vertical-kernel", "secure_aggregation", [few], {"n_components": 2, "bound": 3.0}, "columns")
    assert kinds(replace(columns, parties=[few[:, :1] > 1]), failed(lost)) == set()
    assert kinds(replace(columns, parties=[rows(10, 3)]), failed(lost)) == {"false refusal"}
    assert kinds(benign, failed(PartyError("client 0: failed with ValueError"))) == {"vague error"}
    assert kinds(benign, failed(ValueError("operands could not be broadcast"))) == {"raw error"}
    assert kinds(benign, failed(running.HangError("no result"))) == {"hang"}
    assert kinds(many, failed(told, "RuntimeWarning: overflow")) == {"warning"}


def test_warnings_and_hangs_are_seen(parties, monkeypatch):
    def warns(*args, **options):
        warnings.warn("overflow encountered", RuntimeWarning, stacklevel=1)
        raise DataError("no")

    monkeypatch.setattr(running, "run", warns)
    assert run_draw(drawn("p-cov", parties)).warned == ("RuntimeWarning: overflow encountered",)

    monkeypatch.setattr(running, "run", lambda *args, **options: running._hangs(14, None))
    assert isinstance(run_draw(drawn("p-cov", parties)).error, running.HangError)


# The command


def test_a_finding_is_one_line_that_repeats_it(monkeypatch, capsys):
    honest = engines.run

    def wrong(method, parties, **options):
        model = honest(method, parties, **options)
        return replace(
            model, noise_variance_=model.noise_variance_ + 1.0, mean_=None if model.mean_ is None else model.mean_ + 1
        )

    monkeypatch.setattr(running, "run", wrong)
    monkeypatch.setattr(hunting, "until", lambda end, seed, methods: iter(range(20)))  # not so long: so many
    assert main(["--seed", "11"]) == 1
    printed = capsys.readouterr().out.splitlines()
    line = next(line for line in printed if line.startswith("mean: "))
    seed, only = re.search(r"\| python -m simulations\.hunt --seed (\d+) --only (\d+)$", line).groups()
    assert "mean: off by 1 |" in line
    assert any(line.startswith("all ") for line in printed)
    assert main(["--seed", seed, "--only", only]) == 1
    assert "mean: off by 1" in capsys.readouterr().out
    monkeypatch.setattr(running, "run", honest)
    assert main(["--seed", seed, "--only", only]) == 0
    assert "no finding" in capsys.readouterr().out
