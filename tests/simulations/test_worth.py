"""What `site worth` says of a site's own rows, and the page that it writes."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from sklearn.datasets import load_digits

from fedpca_flwr.cli import main
from fedpca_flwr.figures import style
from fedpca_flwr.simulations.subspace_error import estimate_subspace_error
from tests.families import rows

DIGITS = load_digits().data[:300]
FOUR = "n-components=4"


@pytest.fixture
def worth(tmp_path, capsys):
    """Return a function of rows, run-config and further words that runs the command at a site with these rows."""

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
    code, out, _ = worth(DIGITS, run)
    error = estimate_subspace_error(DIGITS, k, scale=scale)
    assert code == 0
    lines = [[float(number) for number in re.findall(r"[\d.]+", line.split(":")[1])] for line in out.splitlines()[:3]]
    distances = error.distance(300), error.distance(5300), error.distance(300, 5300)
    for line, expected in zip(lines, distances, strict=True):
        np.testing.assert_allclose(line[:3], expected, rtol=0.06)
        np.testing.assert_allclose(line[3:], np.rad2deg(np.arcsin(np.array(expected) / np.sqrt(k))), rtol=0.06)
    assert "same population" in out
    content = json.loads(worth(DIGITS, run, "--json")[1])
    assert [case["rows"] for case in content] == [300, 5300, 300]
    np.testing.assert_allclose(content[0]["distance"]["median"], error.distance(300).median)


def test_the_page_is_whole_and_holds_no_row(worth, tmp_path):
    page = tmp_path / "new" / "worth.html"
    code, out, _ = worth(
        DIGITS + 0.123456, FOUR, "--output", str(page), name="St John's & co", journal=str(tmp_path / "j")
    )
    text = page.read_text(encoding="utf-8")
    body = ElementTree.fromstring(re.sub(r"^.*?</head>|</html>\s*$", "", text, flags=re.S))
    words = " ".join(" ".join(body.itertext()).split())
    assert code == 0
    assert str(page) in out
    assert not (tmp_path / "j").exists(), "nothing is noted, as nothing is asked"
    assert "St John's & co. " in words
    assert "300 rows of 64 features, and made the forecast for 4 components. Nothing left the site" in words
    for line in out.splitlines()[:3]:
        for cell in re.findall(r"[\d.]+ \([\d.]+ to [\d.]+\)", line):
            assert cell in words
    assert "same population" in words
    assert body.find(".//{http://www.w3.org/2000/svg}svg") is not None
    assert "123456" not in text
    assert "src=" not in text, "the page asks no other file"


@pytest.mark.parametrize("others", [100, 5000])
def test_the_figure_has_the_forecast_its_interval_and_both_cases(worth, monkeypatch, tmp_path, others):
    drawn, honest = [], style.canvas
    monkeypatch.setattr(style, "canvas", lambda *size: drawn.append(honest(*size)) or drawn[-1])
    assert worth(DIGITS, FOUR, "--rows", str(others), "--output", str(tmp_path / "worth.html"))[0] == 0
    axes, error = drawn[0][1], estimate_subspace_error(DIGITS, 4)

    def degrees(counts):
        distances = np.array([error.distance(count) for count in counts])
        return np.rad2deg(np.arcsin(distances / np.sqrt(4)))

    line, alone, joined = axes.lines
    counts = line.get_xdata()
    assert (counts[0], counts[-1]) == pytest.approx((300, max(3000, 300 + others)))
    np.testing.assert_allclose(line.get_ydata(), degrees(counts)[:, 0])
    x, y = axes.collections[0].get_paths()[0].vertices.T
    np.testing.assert_allclose([(y[x == n].min(), y[x == n].max()) for n in counts], degrees(counts)[:, 1:])
    np.testing.assert_allclose([*alone.get_xydata()[0], *joined.get_xydata()[0]][::2], [300, 300 + others])
    np.testing.assert_allclose([alone.get_ydata()[0], joined.get_ydata()[0]], degrees([300, 300 + others])[:, 0])


def test_a_sites_file_says_where_its_rows_are(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("site").mkdir()
    np.save("site/rows.npy", DIGITS)
    node = "partition-id = 0\nnum-partitions = 3\ndata = 'rows.npy'\n"
    Path("site/site.toml").write_text(f"[supernode]\nsuperlink = 'host:9092'\n[site]\n{node}", encoding="utf-8")
    words = ["--config", "site/site.toml", "--run-config", FOUR, "--output", "worth.html"]
    assert main(["site", "worth", "--rows", "5000", *words]) == 0
    assert "with 5,000 rows of others" in capsys.readouterr().out
    page = Path(tmp_path, "worth.html").read_text(encoding="utf-8")
    assert re.findall(r"With ([\d,]+) rows of\s+other\s+sites", page) == ["5,000"]
    assert main(["site", "worth", "--rows", "100"]) == 2
    assert "--config site.toml" in capsys.readouterr().err


NOISE = np.random.default_rng(0).standard_normal((200, 20))
MISSING = rows(40)
MISSING[3, 2] = np.nan


@pytest.mark.parametrize(
    ("X", "run", "text"),
    [
        (NOISE, "n-components=1", "component 1 of 1 is not resolved"),
        (rows(12), FOUR, "12 rows are too few"),
        (MISSING, FOUR, "1 of 40 rows have missing values"),
        (DIGITS, "n-components=0.9", "name n-components"),
        (DIGITS, "n-components=4 method='p-cov center=false'", "centred"),
        (DIGITS, "n-components=4 method='p-cov clusters=3'", "leave"),
        (DIGITS, "n-components=4 weights='3'", "'weights'"),
        (DIGITS, "method='none'", "expected one of"),
    ],
)
def test_rows_and_runs_without_a_forecast_are_refused(worth, X, run, text):
    code, out, err = worth(X, run)
    assert code == 2
    assert not out
    assert text in err
