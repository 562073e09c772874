"""What sites find of their rows in the last round, what they tell of it, and what a server makes of that."""

import numpy as np
import pytest
from scipy import sparse
from scipy.stats import kurtosis

from fedpca_flwr import analyses
from fedpca_flwr.errors import ConfigError, DisclosureError
from fedpca_flwr.model.second_moments import SecondMoments
from fedpca_flwr.questions.last_round import told_count
from simulations import run
from tests.families import cut, rows
from tests.harness import fit
from tests.hostile import HostileSession
from tests.refusals import refused, unnamed

SECURE = {"secure_aggregation": True, "bound": 1000.0}
WAYS = {"clear": {}, "masked": SECURE, "surviving": {**SECURE, "survivors": 3}}

each_way = pytest.mark.parametrize("way", WAYS)


def mixed():
    """Rows of which some are of another kind, many of them at the first party and four at the second."""
    X = rows(600, 12) + np.arange(12)
    X[:60] += 9 * np.random.default_rng(3).standard_normal((60, 12))
    X[300:304] *= 20
    return X


X = mixed()
PARTIES = cut(X, 300, 200, 100)


def written(path):
    return np.genfromtxt(path, delimiter=",", skip_header=1, usecols=range(5))


@each_way
@pytest.mark.parametrize("scale", [False, True])
def test_each_site_judges_its_own_rows_as_the_pooled_analysis_does(way, scale, tmp_path):
    paths = [tmp_path / f"scores{i}.npy" for i in range(3)]
    model = fit("p-cov", PARTIES, n_components=3, outliers="sites", scale=scale, scores=paths, **WAYS[way])
    found = analyses.outliers(analyses.pca(SecondMoments.of(X), 3, scale=scale), X)
    expected = np.column_stack(
        [found.t_squared, [found.t_squared_limit] * 600, found.spe, [found.spe_limit] * 600, found.odd]
    )
    told = np.vstack([written(tmp_path / f"scores{i}-outliers.csv") for i in range(3)])
    np.testing.assert_allclose(told, expected, rtol=1e-6)
    line = (tmp_path / "scores0-outliers.csv").read_text().splitlines()[1]
    most = np.argsort(-found.spe_contributions[0])[:3]
    assert line.split(",")[-1] == " ".join(map(str, most))
    assert "rows_above_spe_limit" not in model.log["measured"]
    assert [np.load(path).shape for path in paths] == [(300, 3), (200, 3), (100, 3)]


def test_sparse_rows_are_judged_too(tmp_path):
    counts = np.random.default_rng(1).poisson(0.3, (300, 8)).astype(float)
    paths = [tmp_path / f"{i}.csv" for i in range(2)]
    fit(
        "p-cov",
        [sparse.csr_array(part) for part in cut(counts, 200, 100)],
        n_components=2,
        outliers="sites",
        scores=paths,
    )
    found = analyses.outliers(analyses.pca(SecondMoments.of(counts), 2), counts[200:])
    np.testing.assert_allclose(
        written(tmp_path / "1-outliers.csv")[:, [0, 2]].T, [found.t_squared, found.spe], rtol=1e-6
    )


@each_way
def test_rows_beyond_the_limits_are_counted(way):
    model = fit("p-cov", PARTIES, n_components=3, outliers="counts", min_rows=10, **WAYS[way])
    found = analyses.outliers(model, X)
    t_squared, spe = found.t_squared > found.t_squared_limit, found.spe > found.spe_limit
    assert t_squared[:300].sum() >= 10
    assert 0 < t_squared[300:500].sum() < 10
    told = model.log["measured"]
    assert told["rows_above_t_squared_limit"] == t_squared[:300].sum()
    assert told["rows_above_spe_limit"] == spe[:300].sum()
    line = next(line for line in model.summary().splitlines() if "odd rows" in line)
    if way == "clear":
        first, second, _ = model.log["outliers"]
        assert (first["above_t_squared_limit"], first["above_spe_limit"]) == (t_squared[:300].sum(), spe[:300].sum())
        assert second["above_t_squared_limit"] == 0
        assert f"most at client 0: {max(t_squared[:300].mean(), spe[:300].mean()):.1%} of its rows" in line
    else:
        assert not model.log["outliers"]
        assert "most at" not in line


@pytest.mark.parametrize(("count", "told"), [(0, 0), (9, 0), (10, 10), (90, 90), (91, 100), (100, 100)], ids=str)
def test_no_count_is_of_fewer_rows_than_a_sites_minimum(count, told):
    assert told_count(count, 100, 10) == told


@each_way
def test_intervals_by_fourth_moments_are_those_of_the_pooled_rows(way):
    heavy = np.random.default_rng(0).standard_t(9, (900, 5)) * [4, 3, 2, 1, 1]
    model = fit("p-cov", cut(heavy, 500, 300, 100), n_components=2, fourth_moments=True, **WAYS[way])
    scores = model.transform(heavy)
    n = len(heavy)
    known = kurtosis(scores, fisher=False) * ((n - 1) / n) ** 2  # variances with divisor n - 1
    np.testing.assert_allclose(model.log["kurtosis"], known, rtol=1e-9)
    step = 1.959963984540054 * np.sqrt((known - 1) / n)
    expected = model.explained_variance_[:, None] / np.column_stack([1 + step, 1 - step])
    np.testing.assert_allclose(analyses.variance_intervals(model), expected, rtol=1e-9)
    assert f"{expected[0, 0]:.6g} to {expected[0, 1]:.6g} (95 %, by fourth moments)" in model.summary()


def test_options_and_components_without_limits_are_said(tmp_path):
    for options, named in (
        ({"outliers": "sites", "center": False}, ["'outliers'", "center=True"]),
        ({"fourth_moments": True, "scale": True}, ["fourth_moments", "center=True", "scale=False"]),
    ):
        with refused(ConfigError, *named):
            fit("p-cov", PARTIES, n_components=2, **options)
    with refused(ConfigError, "sub-it", "'outliers'"):
        fit("sub-it", PARTIES, n_components=2, outliers="sites")
    with refused(ConfigError, "p-cov", "fourth_moments=True"):
        analyses.variance_intervals(run("p-cov", PARTIES, n_components=2))
    paths = [tmp_path / f"{i}.csv" for i in range(3)]
    model = fit("p-cov", PARTIES, n_components=12, outliers="counts", scores=paths)
    assert any("rows have no limits" in note for note in model.log["notes"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.csv", "1.csv", "2.csv"]


# A server that wants single rows


PEOPLE = np.random.default_rng(1).integers(18, 98, (40, 3)).astype(float)
COUNTS = {"method": "p-cov", "n-components": 1, "outliers": "counts"}


def boundary(mean, limit):
    """A last question whose SPE is the squared distance to a point in two directions."""
    return [np.eye(1, 3), np.asarray(mean, float), np.empty(0), np.ones(1), np.array([1e300, limit])]


@pytest.mark.parametrize("options", [{"outliers": "counts"}, {"fourth-moments": True}], ids=str)
def test_a_site_tells_nothing_of_single_rows_unless_it_says_so(tmp_path, options):
    run = {"method": "p-cov", "n-components": 1, **options}
    replied, said = HostileSession(tmp_path, PEOPLE, run).ask("moments", [])
    assert not replied
    assert not unnamed(said["message"], "may-show", "distribution", "nothing")
    with refused(DisclosureError, "client 0", "may_show"):
        fit(
            "p-cov",
            PARTIES,
            n_components=2,
            may_show="nothing",
            **{key.replace("-", "_"): v for key, v in options.items()},
        )


def test_no_boundary_is_drawn_around_a_few_rows(tmp_path):
    """A server that knows a person's values draws it around them, and all others, at any size."""
    person = PEOPLE[7]
    for i, limit in enumerate(np.geomspace(1e-6, 2e4, 30)):
        session = HostileSession(
            tmp_path / str(i), PEOPLE, COUNTS, run_id=i + 1, **{"may-show": "distribution", "min-rows": 10}
        )
        assert session.ask("moments", [])[0]
        (_, _, above), _ = session.ask("project", boundary(person, limit))
        beyond = int((((PEOPLE - person) ** 2)[:, 1:].sum(axis=1) > limit).sum())
        assert above[1] in (0, 40) or 10 <= above[1] <= 30
        assert above[1] == (beyond if 10 <= beyond <= 30 else 0 if beyond < 10 else 40)


def test_variances_are_as_many_as_components(tmp_path):
    session = HostileSession(tmp_path, PEOPLE, COUNTS, **{"may-show": "distribution"})
    assert session.ask("moments", [])[0]
    question = boundary(np.zeros(3), 1.0)
    question[3] = np.ones(2)
    replied, said = session.ask("project", question)
    assert not replied
    assert said["error"] in {"ContractError", "PartyError"}
