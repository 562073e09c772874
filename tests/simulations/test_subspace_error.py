"""Forecasts of the distance to the population's components, held against draws, and the page of `site worth`."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from scipy.linalg import subspace_angles
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler

from fedpca_flwr.cli import main
from fedpca_flwr.errors import DataError
from fedpca_flwr.figures import style
from fedpca_flwr.simulations.subspace_error import estimate_subspace_error
from tests.families import rows
from tests.refusals import refused, unnamed

DIGITS = load_digits().data


def components(X, k, scale=False):
    return PCA(k, svd_solver="covariance_eigh").fit(StandardScaler().fit_transform(X) if scale else X).components_.T


def drawn(draw, V, n, *, scale=False, population=np.inf, draws=200, parties=(1, 2, 5, 10), max_refused=0.1):
    """Hold the medians foretold and how often intervals hold against draws; return the median of n rows."""
    lines, refused = [], 0
    while len(lines) < draws:
        X = draw(n * max(parties))
        try:
            error = estimate_subspace_error(X[:n], V.shape[1], scale=scale)
        except DataError:
            refused += 1
            continue
        own = [components(X[: n * m], V.shape[1], scale) for m in parties]
        true = [np.linalg.norm(np.sin(subspace_angles(V, W))) for W in own]
        lines.append(np.column_stack([true, [error.distance(n * m, population) for m in parties]]))
    assert refused < max_refused * draws
    true, median, low, high = np.array(lines).T
    np.testing.assert_allclose(np.median(median, axis=1), np.median(true, axis=1), rtol=0.1)
    held = np.mean((low <= true) & (true <= high), axis=1)
    assert (held >= 0.85).all(), held
    return np.median(median, axis=1)[0]


def digits(replace):
    """Draw digits; without replacement, as a site's rows among those of all: 1 / n - 1 / N."""
    rng = np.random.default_rng(1)
    return lambda count: DIGITS[rng.choice(len(DIGITS), count, replace=replace)]


def spiked(variances, d, freedom=0.0, seed=0):
    """Draw rows of noise of variance 1 and such components, normal or with the tails of Student's distribution."""
    rng = np.random.default_rng(seed)
    deviations = np.sqrt([*variances, *np.ones(d - len(variances))])

    def draw(count):
        X = rng.standard_normal((count, d)) * deviations
        return X * np.sqrt(freedom / rng.chisquare(freedom, (count, 1))) if freedom else X

    return draw


@pytest.mark.engine
@pytest.mark.parametrize(
    ("draw", "V", "n", "options"),
    [
        (digits(True), components(DIGITS, 4), 179, {}),
        (digits(False), components(DIGITS, 4), 224, {"population": len(DIGITS), "draws": 100, "parties": (1, 4, 7)}),
        # A component that noise turns by 36 degrees, of more features than rows.
        (spiked([12.0, 6.0], 300), np.eye(300)[:, :2], 150, {"draws": 30, "parties": (1, 4)}),
        pytest.param(digits(True), components(DIGITS, 3, True), 400, {"scale": True}, marks=pytest.mark.nightly),
        pytest.param(digits(True), components(DIGITS, 3), 300, {}, marks=pytest.mark.nightly),
    ],
    ids=range(5),
)
def test_forecasts_hold_for_one_to_ten_parties(draw, V, n, options):
    drawn(draw, V, n, **options)


@pytest.mark.engine
@pytest.mark.parametrize("scale", [False, True])
def test_the_precision_of_an_estimate_is_that_of_draws(scale):
    """The variance of the logarithm of estimates, over draws, is the 2 / mu that each of them tells."""
    draw = digits(True)
    errors = [estimate_subspace_error(draw(1200), 1 if scale else 4, scale=scale) for _ in range(60)]
    variance = np.var([np.log(error.slopes.sum()) for error in errors])
    assert 0.6 < variance / np.median([2 / error.freedom for error in errors]) < 1.6


@pytest.mark.parametrize(("d", "n"), [(20, 2000), (100, 200), (300, 150)])
def test_for_equal_noise_the_limit_is_that_of_spikes(d, n):
    """Paul (2007), for few features and for many, at the site's number of rows and at four times as many."""
    variances = np.array([20.0, 10.0])
    draw = spiked(variances, d)
    errors = [estimate_subspace_error(draw(n), 2) for _ in range(20)]
    for count in (n, 4 * n):
        g = (d - 2) / count
        cosines = (1 - g / (variances - 1) ** 2) / (1 + g / (variances - 1))
        median = np.median([error.distance(count).median for error in errors])
        np.testing.assert_allclose(median, np.sqrt(np.sum(1 - cosines)), rtol=0.05)


@pytest.mark.engine
def test_heavy_tails_make_the_distance_larger():
    """Of Student's distribution with 12 degrees of freedom, E[x_j^2 x_i^2] is 1.25 l_j l_i."""
    heavy, normal = spiked([20.0, 10.0], 20, freedom=12.0), spiked([20.0, 10.0], 20)
    median = drawn(heavy, np.eye(20)[:, :2], 300, draws=100, parties=(1, 5), max_refused=4)
    foretold = [estimate_subspace_error(normal(300), 2).distance(300).median for _ in range(20)]
    assert 1.05 < median / np.median(foretold) < 1.25


@pytest.mark.parametrize("k", [1, 2, 5])
def test_rows_with_heavy_tails_are_refused_and_normal_rows_are_not(k):
    """The fault: a sample lacks the few rows that give most of the fourth moment, and its interval is too short."""
    rng, variances = np.random.default_rng(1), np.linspace(40, 20, k)
    loadings = rng.standard_normal((k, 20))
    laws = {
        "normal": spiked(variances, 20),
        "t": spiked(variances, 20, freedom=4.0),
        "counts": lambda n: rng.poisson(np.exp(1 + rng.standard_normal((n, k)) @ loadings)).astype(float),
    }
    answered, refusals = dict.fromkeys(laws, 0), []
    for name, draw in laws.items():
        for _ in range(15):
            try:
                estimate_subspace_error(draw(300), k)
                answered[name] += 1
            except DataError as error:
                refusals.append(str(error))
    assert answered["normal"] == 15
    assert answered["t"] + answered["counts"] <= 2, answered
    assert sum(not unnamed(text, 1, 300, 2) for text in refusals) >= 15


@pytest.mark.parametrize(("variances", "d", "n", "k"), [([], 20, 200, 1), ([20, 10], 20, 200, 3), ([], 120, 60, 1)])
def test_components_of_noise_are_refused(variances, d, n, k):
    draw, refused = spiked(variances, d), 0
    for _ in range(50):
        try:
            estimate_subspace_error(draw(n), k)
        except DataError as error:
            refused += "is not resolved" in str(error)
    assert refused >= 48


@pytest.mark.parametrize(
    ("X", "k", "named"),
    [
        *((spiked([20.0], 5)(29), 2, ["29", "30"]), (spiked([20.0], 5)(60), 5, ["5", "1 to 4"])),
        (spiked([20.0], 5)(60), 0, ["0", "1 to 4"]),
        (np.tile(np.vstack([np.eye(3), -np.eye(3)]), (20, 1)), 1, ["component 1"]),  # of equal variances
    ],
)
def test_too_few_rows_or_directions_are_refused(X, k, named):
    with refused(DataError, *named):
        estimate_subspace_error(X, k)


def test_distances_shrink_with_rows_to_none_and_do_not_depend_on_units():
    X = spiked([20.0, 10.0], 20)(100) @ np.linalg.qr(np.random.default_rng(1).standard_normal((20, 20)))[0]
    error, scaled = (estimate_subspace_error(X, 1, scale=scale) for scale in (False, True))
    more = np.column_stack([1000 * X, np.ones(100)])
    np.testing.assert_allclose(estimate_subspace_error(more, 1).distance(500), error.distance(500))
    units = np.column_stack([X * np.arange(1, 21), np.ones(100)])
    np.testing.assert_allclose(estimate_subspace_error(units, 1, scale=True).distance(500), scaled.distance(500))
    error = estimate_subspace_error(DIGITS[:300], 3)
    medians = [error.distance(rows).median for rows in (300, 1000, 10_000, 1e12)]
    assert medians == sorted(medians, reverse=True)
    assert medians[-1] < 1e-4
    assert (error.distance(300, 300), error.distance(2).high) == ((0, 0, 0), pytest.approx(np.sqrt(3)))


FEW = DIGITS[:300]
FOUR = "n-components=4"


@pytest.fixture
def worth(tmp_path, capsys):
    def of(X, run=FOUR, *words, **keys):
        np.save(tmp_path / "rows.npy", X)
        node = {"partition-id": 0, "num-partitions": 3, "data": str(tmp_path / "rows.npy"), **keys}
        config = " ".join(f"{key}={json.dumps(value)}" for key, value in node.items())
        code = main(["site", "worth", "--rows", "5000", "--node-config", config, "--run-config", run, *words])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return of


@pytest.mark.parametrize("scale", [False, True])
def test_angles_alone_and_joined_are_those_of_the_mathematics(worth, scale):
    k = 2 if scale else 4
    run = f"n-components={k} method='p-cov scale={str(scale).lower()}'"
    code, out, _ = worth(FEW, run)
    error = estimate_subspace_error(FEW, k, scale=scale)
    assert code == 0
    lines = [[float(number) for number in re.findall(r"[\d.]+", line.split(":")[1])] for line in out.splitlines()[:3]]
    distances = error.distance(300), error.distance(5300), error.distance(300, 5300)
    angles = np.rad2deg(np.arcsin(np.array(distances) / np.sqrt(k)))
    np.testing.assert_allclose(lines, np.hstack([distances, angles]), rtol=0.06)
    assert "same population" in out
    content = json.loads(worth(FEW, run, "--json")[1])
    assert [case["rows"] for case in content] == [300, 5300, 300]
    np.testing.assert_allclose(content[0]["distance"]["median"], error.distance(300).median)


def test_the_page_is_whole_and_holds_no_row(worth, tmp_path):
    page = tmp_path / "new" / "worth.html"
    site = {"name": "St John's & co", "journal": str(tmp_path / "j")}
    code, out, _ = worth(FEW + 0.123456, FOUR, "--output", str(page), **site)
    text = page.read_text(encoding="utf-8")
    body = ElementTree.fromstring(re.sub(r"^.*?</head>|</html>\s*$", "", text, flags=re.S))
    words = " ".join(" ".join(body.itertext()).split())
    assert code == 0
    assert str(page) in out
    assert not (tmp_path / "j").exists(), "nothing is noted, as nothing is asked"
    assert "St John's & co. " in words
    assert "300 rows of 64 features, and made the forecast for 4 components. Nothing left the site" in words
    cells = re.findall(r"[\d.]+ \([\d.]+ to [\d.]+\)", "".join(out.splitlines(keepends=True)[:3]))
    assert not [cell for cell in cells if cell not in words]
    assert "same population" in words
    assert body.find(".//{http://www.w3.org/2000/svg}svg") is not None
    assert "123456" not in text
    assert "src=" not in text, "the page asks no other file"


@pytest.mark.parametrize("others", [100, 5000])
def test_the_figure_has_the_forecast_its_interval_and_both_cases(worth, monkeypatch, tmp_path, others):
    drawn, honest = [], style.canvas
    monkeypatch.setattr(style, "canvas", lambda *size: drawn.append(honest(*size)) or drawn[-1])
    assert worth(FEW, FOUR, "--rows", str(others), "--output", str(tmp_path / "worth.html"))[0] == 0
    axes, error = drawn[0][1], estimate_subspace_error(FEW, 4)

    def degrees(counts):
        return np.rad2deg(np.arcsin(np.array([error.distance(count) for count in counts]) / np.sqrt(4)))

    line, *points = axes.lines
    counts = line.get_xdata()
    assert (counts[0], counts[-1]) == pytest.approx((300, max(3000, 300 + others)))
    np.testing.assert_allclose(line.get_ydata(), degrees(counts)[:, 0])
    x, y = axes.collections[0].get_paths()[0].vertices.T
    np.testing.assert_allclose([(y[x == n].min(), y[x == n].max()) for n in counts], degrees(counts)[:, 1:])
    cases = [300, 300 + others]
    expected = np.column_stack([cases, degrees(cases)[:, 0]])
    np.testing.assert_allclose(np.concatenate([point.get_xydata() for point in points]), expected)


def test_a_sites_file_says_where_its_rows_are(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("site").mkdir()
    np.save("site/rows.npy", FEW)
    node = "partition-id = 0\nnum-partitions = 3\ndata = 'rows.npy'\n"
    Path("site/site.toml").write_text(f"[supernode]\nsuperlink = 'host:9092'\n[site]\n{node}", encoding="utf-8")
    words = ["--config", "site/site.toml", "--run-config", FOUR, "--output", "worth.html"]
    assert main(["site", "worth", "--rows", "5000", *words]) == 0
    assert "with 5,000 rows of others" in capsys.readouterr().out
    page = Path(tmp_path, "worth.html").read_text(encoding="utf-8")
    assert re.findall(r"With ([\d,]+) rows of\s+other\s+sites", page) == ["5,000"]
    assert main(["site", "worth", "--rows", "100"]) == 2
    assert "--config site.toml" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("X", "run", "text"),
    [
        (np.random.default_rng(0).standard_normal((200, 20)), "n-components=1", "component 1 of 1 is not resolved"),
        (rows(12), FOUR, "12 rows are too few"),
        (np.where(np.arange(480).reshape(40, 12) == 38, np.nan, rows(40)), FOUR, "1 of 40 rows have missing values"),
        (FEW, "n-components=0.9", "name n-components"),
        (FEW, "n-components=4 method='p-cov center=false'", "centred"),
        *((FEW, "n-components=4 method='p-cov clusters=3'", "leave"), (FEW, "n-components=4 weights='3'", "'weights'")),
        (FEW, "method='none'", "expected one of"),
    ],
)
def test_rows_and_runs_without_a_forecast_are_refused(worth, X, run, text):
    code, out, err = worth(X, run)
    assert code == 2
    assert not out
    assert text in err
