"""Covariates, and what differs between parties, are taken out in a run as a regression of the pooled rows does."""

from operator import itemgetter
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from sklearn.decomposition import PCA

from fedpca_flwr import analyses
from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.data.column_notes import class_code_notes
from fedpca_flwr.errors import ConfigError, ContractError, DataError
from fedpca_flwr.maths.adjustment import Adjustment
from fedpca_flwr.model.loadings import Loadings
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.second_moments import SecondMoments
from fedpca_flwr.questions.row_limits import MAX_ROWS
from fedpca_flwr.stages.adjust import covariate_columns
from fedpca_flwr.strategies import METHODS
from tests.families import cut
from tests.harness import finish, fit, say, server_of, tamper_arrays
from tests.refusals import refused, unnamed

SIZES = (300, 200, 100)
SITE = np.repeat([0, 1, 2], SIZES)
NAMES = ["a", "age", "b", "c", "sex", "d", "e", "f"]
AGE, SEX = 1, 4
MASKED = {"secure_aggregation": True, "bound": 1000.0}
RNG = np.random.default_rng(0)
Z = np.column_stack([RNG.normal(50, 10, 600), RNG.integers(0, 2, 600)])
X = RNG.standard_normal((600, 6)) * [6, 5, 4, 3, 2, 1] + Z @ RNG.standard_normal((2, 6))
ROWS = np.insert(X * (1 + SITE[:, None] / 2) + 2 * SITE[:, None], [1, 3], Z, axis=1)
PARTIES = cut(ROWS, *SIZES)
RUNS: list[tuple] = [({}, "", "means", 1), ({}, "", "variances", 1), (MASKED, "1, 4", "nothing", 2)]
RUNS += [({}, "1, 4", harmonise, 1) for harmonise in ("nothing", "means", "variances")]
RUNS += [(MASKED, columns, "variances", 3) for columns in ("", "1, 4")]
RUNS += [({**MASKED, "survivors": 3}, "1, 4", harmonise, 5) for harmonise in ("nothing", "means")]
BATCH = np.random.default_rng(0).permutation(np.repeat([1, 2, 3], 60))
BATCHES = pd.DataFrame(np.random.default_rng(1).standard_normal((180, 5)), columns=list("vwxyz"))
BATCHES = BATCHES.assign(v=BATCHES["v"] + 8.0 * (BATCH == 2), batch=BATCH, ill=1.0 * (BATCH == 1))


def adjusted(parties=PARTIES, method="p-cov", **options):
    return fit(method, parties, **{"n_components": 2, "adjust_for": "1, 4", **options})


def residuals(rows, covariates, harmonise, sites=SITE):
    """Return the residuals from the rows themselves: means of sites, a single regression, deviations of sites."""

    def of_sites(statistic, **options):
        return pd.DataFrame(rest).groupby(sites).transform(statistic, **options).to_numpy()

    rest, peers = rows - rows.mean(axis=0), np.setdiff1d(np.arange(rows.shape[1]), covariates)
    if harmonise != "nothing":
        rest = rest - of_sites("mean")
    if covariates:
        rest = rest - rest[:, covariates] @ np.linalg.lstsq(rest[:, covariates], rest, rcond=None)[0]
    rest = rest[:, peers]
    return rest * rest.std(axis=0) / of_sites("std", ddof=0) if harmonise == "variances" else rest, peers


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize(("way", "adjust_for", "harmonise", "rounds"), RUNS)
def test_a_run_equals_the_pca_of_pooled_residuals(way, adjust_for, harmonise, rounds, scale, tmp_path):
    scores, loadings = ([tmp_path / f"{what}{i}.{what}" for i in range(3)] for what in ("npy", "npz"))
    files = {"scores": scores, "loadings": loadings}
    model = adjusted(adjust_for=adjust_for, harmonise=harmonise, scale=scale, n_components=3, **files, **way)
    rest, peers = residuals(ROWS, [AGE, SEX] if adjust_for else [], harmonise)
    rest = rest / rest.std(axis=0) if scale else rest
    truth = PCA(3, svd_solver="full").fit(rest)
    turned = truth.components_ * np.sign(np.sum(truth.components_ * model.components_[:, peers], axis=1))[:, None]
    np.testing.assert_allclose(model.components_[:, peers], turned, atol=1e-12)
    assert not np.delete(model.components_, peers, axis=1).any()
    for name in ("explained_variance_", "explained_variance_ratio_", "noise_variance_"):
        np.testing.assert_allclose(getattr(model, name), getattr(truth, name), rtol=1e-11)
    written = np.vstack([np.load(path) for path in scores])
    np.testing.assert_allclose(written, rest @ turned.T, atol=1e-10)
    local = [Loadings.load(path).part_of_scores(part) for path, part in zip(loadings, PARTIES, strict=True)]
    np.testing.assert_allclose(np.vstack(local), written, atol=1e-10)
    assert model.rounds == rounds
    if not way:
        np.testing.assert_allclose(np.sum([item["component_shares"] for item in model.log["influence"]], axis=0), 1)
    notes = "\n".join(model.log["notes"])
    assert ("may correlate with the covariates again" in notes) == bool(harmonise == "variances" and adjust_for)
    assert ("was taken out" in notes) == (harmonise != "nothing")
    if harmonise == "nothing":
        np.testing.assert_allclose(PCAModel.load(model.save(tmp_path / "model")).transform(ROWS), written, atol=1e-10)
    else:
        with refused(ContractError, f"harmonise='{harmonise}'", "'loadings'"):
            model.transform(ROWS)


def test_covariates_are_named_or_numbered_and_leave_one_column():
    frames = [pd.DataFrame(part, columns=NAMES) for part in PARTIES]
    named, numbered = adjusted(frames, adjust_for="sex, age"), adjusted(adjust_for="4, 1")
    np.testing.assert_array_equal(named.components_, numbered.components_)
    np.testing.assert_array_equal(named.adjustment_.covariate_columns, [SEX, AGE])
    assert "adjusted for sex, age" in named.summary(full=True)
    np.testing.assert_array_equal(named.transform(frames[0]), numbered.transform(PARTIES[0]))
    with refused(ConfigError, "adjust_for", "'weight'", "'batch'", 8) as report:
        adjusted(frames, adjust_for="weight, age, batch")
    assert all(f"party {party}" in str(report.value) for party in range(3))
    table = SimpleNamespace(rows=np.zeros((2, 3)), names=("age", "sex", "weight"))
    np.testing.assert_array_equal(covariate_columns(["weight", "0"], table), [2, 0])
    with refused(ConfigError, "'adjust-for'", "age, 0"):
        covariate_columns(["age", "0"], table)
    # Numbers beyond 64 bits were an OverflowError.
    for text, count in (("", 1), ("3", 1), ("1 1", 2), ("0", 2), ("0 1", 1), (f"1 {10**4000}", 2), (f"1 {1:04001}", 2)):
        server = server_of("p-cov", [X[:, :3]], n_components=1, adjust_for="0, 1"[: 3 * count - 2])
        with refused(ConfigError, count, 3, *([f"'{text}'"] if len(text) < 9 else [])):
            finish(say(server, 0, covariates=text))


def test_fully_explained_features_are_zero_and_constant_covariates_no_fault():
    """The rounding of what is explained must not be scaled up."""
    S = np.array([[1.0, 1.0], [1.0, 1 + 2.0**-50]])
    assert not Adjustment(np.array([0]), np.array([[0.0, 1.0]])).residual_scatter(S).any()
    rows = np.column_stack([ROWS, 3 * ROWS[:, AGE] - ROWS[:, SEX]])
    assert not adjusted(cut(rows, *SIZES), n_components=6, scale=True).components_[:, 8].any()
    with refused(DataError, "covariates"):
        adjusted(cut(rows[:, [AGE, SEX, 8]], *SIZES), n_components=1, adjust_for="0,1")
    rows = np.column_stack([ROWS, ROWS[:, AGE] * 12, np.ones(600)])
    model, plain = adjusted(cut(rows, *SIZES), adjust_for=f"{AGE},{SEX},8,9"), adjusted()
    np.testing.assert_allclose(model.components_[:, :8], plain.components_, atol=1e-10)
    assert any("of the covariates 1, 8, 9 some combination does not vary" in note for note in model.log["notes"])
    assert not any("does not vary" in note for note in plain.log["notes"])
    rows = ROWS.copy()
    rows[:300, SEX] = 1
    model = adjusted(cut(rows, *SIZES), harmonise="variances")
    truth = PCA(2).fit(residuals(rows, [AGE, SEX], "variances")[0])
    np.testing.assert_allclose(model.explained_variance_, truth.explained_variance_, rtol=1e-10)
    model = adjusted(cut(ROWS, 300, 298, 1, 1), adjust_for="", harmonise="variances")
    sites = np.repeat([0, 1], [300, 298])
    rest, _ = residuals(ROWS[:598], [], "means", sites)
    spread = np.sqrt((rest**2).sum(axis=0) / 600)
    rest = np.vstack([rest[sites == site] * spread / rest[sites == site].std(axis=0) for site in (0, 1)])
    np.testing.assert_allclose(model.explained_variance_, np.linalg.eigvalsh(rest.T @ rest)[:-3:-1] / 599, rtol=1e-10)


def test_other_places_and_false_scatters_are_told():
    with refused(ConfigError, "client 1", "adjust-for", "client 0"):
        finish(say(server_of("p-cov", PARTIES, n_components=2, adjust_for="1,4"), 1, covariates="1 5"))
    server = server_of("p-cov", PARTIES, n_components=2, adjust_for="1,4", harmonise="means")
    tamper_arrays(server, 1, lambda arrays: [*arrays[:3], arrays[3] * 1.01] if len(arrays) == 4 else arrays)
    with refused(ContractError, match="fit"):
        finish(server)


@pytest.mark.parametrize(("spread", "sizes"), [(None, [1.5, 1.125]), ([0, 0.5], [1.5, 0.125]), ([9, 9], [4.5, 2.25])])
def test_limits_in_closed_form(spread, sizes):
    """What slopes add is in the data's unit before it is divided; a feature that varies has the deviations of all."""
    options = {"adjust_for": "0", "harmonise": "nothing" if spread is None else "variances", "scale": True}
    card, config = METHODS["p-cov"].strategy.card, RunConfig(**MASKED | {"bound": 3.0})
    request = {"mean": np.zeros(2), "scale": np.array([2.0, 4.0]), "slopes": np.array([[0.0, 0.5]])}
    request |= {} if spread is None else {"spread": np.array(spread)}
    question = card.script(config, card.options.parse(options))["project"]
    squared = question.limits(request, SimpleNamespace(config=config, features=2))["squared"]
    assert squared == pytest.approx(2 * MAX_ROWS * np.square(sizes).sum(), rel=1e-5)


def test_what_fixed_point_missed_is_told_of_what_is_left():
    """Each sum is rounded by a step for each of three parties; a slope multiplies the rounding of a covariate."""
    told = itemgetter("fixed_point_variance_share")
    bound, d, total = MASKED["bound"], ROWS.shape[1], (residuals(ROWS, [], "variances")[0] ** 2).sum()
    model = adjusted(adjust_for="", harmonise="variances", **MASKED)
    steps = 3 * 3 * 2.0**-131 * 2**32 * bound**2 * d  # three parts of each of three parties, in two words a value
    assert told(model.log["measured"]) == pytest.approx(steps / total, rel=1e-5, abs=0)
    model = adjusted(keep="moments", **MASKED)
    missed = analyses.adjusted(model.moments_, [AGE, SEX]).moments.error_bound
    assert told(model.log["measured"]) == pytest.approx(missed.sum() / (599 * model.total_variance), rel=1e-9, abs=0)
    nearly_age = np.column_stack([ROWS[:, AGE], 1e6 * ROWS[:, AGE] + ROWS[:, 0]])
    with refused(ConfigError, "'bound'", "1e+09"):
        adjusted(cut(nearly_age, *SIZES), adjust_for="0", n_components=1, secure_aggregation=True, bound=1e9)


def test_how_many_is_asked_of_what_is_left():
    rest, _ = residuals(ROWS, [AGE, SEX], "nothing")
    for k in ("auto", 0.8):
        model, plain = adjusted(n_components=k), fit("p-cov", cut(rest, *SIZES), n_components=k)
        np.testing.assert_allclose(model.explained_variance_, plain.explained_variance_, rtol=1e-10)


@pytest.mark.parametrize("harmonise", ["nothing", "means", "variances"])
def test_units_and_offsets_cost_no_digits(harmonise):
    unlike, options = (ROWS + 1e5) * 10.0 ** np.arange(-4, 4), {"harmonise": harmonise, "scale": True}
    elsewhere, here = (adjusted(parties, **options).components_ for parties in (cut(unlike, *SIZES), PARTIES))
    np.testing.assert_allclose(np.abs(elsewhere), np.abs(here), atol=1e-8)


def test_kept_moments_have_covariates_and_features(tmp_path):
    paths = [tmp_path / f"{i}.csv" for i in range(3)]
    model = adjusted(n_components=3, keep="moments", outliers="counts", scores=paths)
    np.testing.assert_allclose(model.moments_.scatter, SecondMoments.of(ROWS).scatter, rtol=1e-9, atol=1e-6)
    later = analyses.pca(analyses.adjusted(model.moments_, [AGE, SEX]).moments, 3)
    np.testing.assert_allclose(later.explained_variance_, model.explained_variance_, rtol=1e-12)
    result, files = analyses.outliers(model, ROWS), [tmp_path / f"{i}-outliers.csv" for i in range(3)]
    report = np.vstack([np.genfromtxt(file, delimiter=",", skip_header=1, usecols=(0, 2)) for file in files])
    np.testing.assert_allclose(report, np.column_stack([result.t_squared, result.spe]), rtol=1e-6)
    with refused(ContractError, "scikit-learn's"):
        model.to_sklearn()


@pytest.mark.parametrize("options", [{}, {"scale": True}, MASKED, {**MASKED, "blind": True}], ids=str)
def test_a_column_of_levels_is_taken_out_whole(options):
    """The fault: batches 1, 2, 3 were taken for amounts, and the second remained the first component."""
    dummies = pd.get_dummies(BATCHES, columns=["batch"], dtype=float)
    sites, numeric = ([rows[:60], rows[60:120], rows[120:]] for rows in (BATCHES, dummies))
    model = fit("p-cov", sites, n_components=2, adjust_for="batch", levels=["batch"], **options)
    truth = fit("p-cov", numeric, n_components=2, adjust_for="batch_1, batch_2", scale=options.get("scale", False))
    np.testing.assert_allclose(model.explained_variance_, truth.explained_variance_, rtol=1e-6)
    np.testing.assert_allclose(np.abs(model.transform(BATCHES)), np.abs(truth.transform(dummies)), atol=1e-3)
    assert not any("batch=1" in note or "does not vary" in note or "'batch'" in note for note in model.log["notes"])
    with refused(ConfigError, "adjust_for", "'levels'"):
        fit("p-cov", sites, n_components=2, adjust_for="v", levels=["batch"])


def test_a_covariate_that_may_be_a_class_gets_a_note(caplog):
    def notes(**options):
        model = fit("p-cov", {"a": BATCHES[:90], "b": BATCHES[90:]}, n_components=2, **options)
        return [note for note in model.log["notes"] if "levels=" in note]

    for options in ({}, {"features": "ill,z,y,x,w,v,batch"}):
        (note,) = notes(adjust_for=["batch"], **options)
        assert not unnamed(note, "levels=['batch']", "numbers=['batch']", "'batch'", "party 'a'", "party 'b'")
        assert not notes(adjust_for="batch, ill", numbers=["batch"], **options)
    assert caplog.text.count("this site") == 2 * 2  # runs, parties
    with refused(ConfigError, "'numbers'", "v", "'adjust_for'"):
        notes(adjust_for="batch", numbers="v")
    # Codes are few whole numbers, or identifiers that recur.
    rng = np.random.default_rng(0)
    few, long, zeros = rng.integers(0, 3, 60), rng.integers(10**5, 10**6, 20), rng.random(60) < 0.6
    counts, incomes = rng.poisson(np.exp(rng.normal(4, 2, 60))), np.round(np.exp(rng.normal(10, 0.5, 60)), -3)
    codes = [few, np.repeat(np.arange(20), 3), np.repeat(long, rng.integers(1, 5, 20))]
    amounts = [few > 0, np.round(rng.normal(50, 15, 60)), incomes, np.where(zeros, 0, counts), few / 2, few * 1e300]
    amounts.append(rng.integers(0, 20, 600))
    seen = [bool(class_code_notes({"": values[:, None].astype(float)}, (), {"0"})) for values in (*codes, *amounts)]
    assert seen == [True] * 3 + [False] * 7
