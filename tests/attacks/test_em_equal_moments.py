"""What `em` answers follows from the moments of the rows that share their gaps, whatever a server asks.

The rows of one site are those of another, turned within each group of rows with the same gaps about the vector of ones.
"""

import numpy as np
import pytest

from fedpca_flwr.maths.moments import pack
from tests.hostile import HostileSession, turned_about_ones

D = 4
RUN = {"method": "em", "n-components": 2, "max-rounds": 100, "model": "gaussian"}
FACTORS, STEP = {**RUN, "model": "factors"}, {"gaussian": "expected", "factors": "products"}
"""Another model; and by the model, what is asked of it in a step."""
GROUPS = {(): (16, 50), (2,): (8, 53), (3,): (8, 47)}
"""By what is missing how many rows, and their mean, such that own means of features are whole numbers."""


def patients():
    """Whole numbers, so that all moments are exact in float64."""
    rng = np.random.default_rng(0)
    for gaps, (n, mean) in GROUPS.items():
        part = rng.integers(-30, 30, (n, D)).astype(float)
        part[-1] -= part.sum(axis=0)
        part[:, list(gaps)] = np.nan
        yield part + mean


def reflected(part):
    """Half of a group's rows on the other side of their mean: exact where the others are."""
    half = len(part) // 2
    return np.vstack([2 * part[:half].mean(axis=0) - part[:half], part[half:]])


def turned(part):
    """Return a group's rows turned at random, about the vector of ones."""
    known, other = ~np.isnan(part[0]), part.copy()
    other[:, known] = turned_about_ones(part[:, known], np.random.default_rng(1))
    return other


def correlated(size=1.0, feature=0):
    covariance = size * np.eye(D)
    covariance[3, feature] = covariance[feature, 3] = 0.5 * size
    return covariance


def at(value, place=0):
    return np.where(np.arange(D) == place, value, 0.0)


SIZES = [0.0, 50.0, 1e8, *(-(2.0**53 - t) for t in (20, 33, 50, 51, 64, 80)), 2.0**60, -1e154, 1e300, 5e-324]
SPREADS = [1.0, 1e-2, 5e10, 1e154, 1e300, 1.7e308, 1e-160, 1e-300, 5e-324]
FAR = [{"centre": -np.array([2.0**53 - t, 2.0**53 - 1000, 0.0, 0.0])} for t in range(20, 81, 10)]
"""What lies between two of these once told which rows are above a threshold, by the rounding of each row."""
ASKED = [
    *FAR,
    *({"centre": at(size)} for size in SIZES),
    *({"mean": at(size, 3)} for size in SIZES),
    *({"spread": 1.0 + at(size)} for size in SPREADS),
    *({"spread": np.full(D, size)} for size in SPREADS),
    *({"covariance": correlated(size)} for size in (1e-11, 1e100, 1e300)),
    *({"covariance": correlated(), "centre": at(-(2.0**53 - t)), "spread": np.full(D, 2e8)} for t in range(20, 80, 7)),
]


def answers(folder, parts, run, given):
    """All that a site says to what is `given`, in place of what an honest server would ask: arrays, or the error."""
    honest = {"centre": np.full(D, 50.0), "spread": np.full(D, 15.0), "mean": np.zeros(D), "covariance": correlated()}
    *step, covariance = ({**honest, **given}).values()
    last = [np.eye(2, D), given.get("mean", step[0]), given.get("spread", np.empty(0))]
    if run is RUN:
        model = expects = [pack(covariance)]
    else:
        size, basis = covariance[0, 0], np.array([[0.5], [-0.5], [0.5], [-0.5]])  # the difference of two columns
        model = [basis, np.array([3.0 * size]), np.asarray(size / 2)]
        expects = [np.vstack([np.full((1, D), 0.5), np.diag(covariance)])]
    n, said = np.asarray(32), []
    asked = {"observed": [], "deviations": [n, step[0]], STEP[run["model"]]: [n, *step, *model]}
    session = HostileSession(folder, np.vstack(list(parts)), run, journal="")
    for phase, arrays in (asked | {"project": last + expects}).items():
        replied, told = session.ask(phase, arrays)
        said.append((phase, replied, told.get("error"), told.get("message")))
    return said


@pytest.mark.parametrize("run", [RUN, FACTORS], ids=["gaussian", "factors"])
@pytest.mark.parametrize("given", ASKED, ids=str)
def test_rows_of_the_same_moments_give_the_same_answers(tmp_path, run, given):
    """The fault: a server's centre was taken off each row, and rounding told rows above a threshold from others."""
    exact = run is RUN or any(given is far for far in FAR)
    for change in (reflected, turned) if exact else (turned,):
        worlds = patients(), map(change, patients())
        one, other = (answers(tmp_path / change.__name__, parts, run, given) for parts in worlds)
        for (phase, here, *refused), (_, there, *as_well) in zip(one, other, strict=True):
            assert refused == as_well, phase
            for mine, theirs in zip(here, there, strict=True):
                assert change is turned or mine.tobytes() == theirs.tobytes(), phase
                np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-9 * np.abs(mine).max(), err_msg=phase)


def test_a_few_honest_questions_are_answered(tmp_path):
    """Or all of the above would say nothing."""
    for run in (RUN, FACTORS):
        assert all(arrays for _, arrays, *_ in answers(tmp_path, patients(), run, {}))
        assert all(arrays for _, arrays, *_ in answers(tmp_path, patients(), run, {"centre": at(-(2.0**53 - 50))}))


def foretelling(model, feature):
    """Return a model in which the value of a feature is all that foretells the last one, and by how much of it."""
    if model == "gaussian":
        return [pack(correlated(feature=feature))], 0.5
    basis = np.zeros((D, 1))
    basis[[feature, 3]] = np.sqrt(0.5)
    return [basis, np.array([1.0]), np.asarray(2.0**-30)], 1.0  # one factor at almost no noise


@pytest.mark.parametrize(("model", "atol"), [("gaussian", 1e-9), ("factors", 1e-5)])
def test_a_chosen_model_reveals_a_single_row_with_a_gap(model, atol, tmp_path):
    rows = np.random.default_rng(0).normal(50, 10, (30, D))
    rows[17, 3] = np.nan
    session = HostileSession(tmp_path, rows, {**RUN, "model": model}, gaps="all")
    centre = session.ask("observed", [])[0][3] / np.sum(~np.isnan(rows), axis=0)
    known = np.nansum(rows[:, 3] - centre[3])
    assert session.ask("deviations", [np.asarray(30), centre])[0]
    for feature in range(3):
        chosen, share = foretelling(model, feature)
        sums = session.ask(STEP[model], [np.asarray(30), centre, np.ones(D), np.zeros(D), *chosen])[0][0]
        np.testing.assert_allclose((sums[3] - known) / share + centre[feature], rows[17, feature], atol=atol)
