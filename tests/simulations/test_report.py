"""The report page in a real browser: no console error, tables sort, images are visible."""

import base64
import hashlib
import html
import json
import re
import shlex
import shutil

import numpy as np
import pytest

from fedpca_flwr.cli import main
from fedpca_flwr.data.datasets import load
from fedpca_flwr.data.partition import split
from fedpca_flwr.errors import FedPCAError
from fedpca_flwr.figures import plots
from fedpca_flwr.figures.style import INK
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.reference import principal_angles
from fedpca_flwr.simulations import records as record_module
from fedpca_flwr.simulations import report, report_drawing, report_page
from fedpca_flwr.simulations.comparing import compare
from fedpca_flwr.simulations.recommending import choices
from fedpca_flwr.simulations.records import group_by_setting, run_identity, setting_title
from fedpca_flwr.simulations.runs_file import RUNS, read_records
from fedpca_flwr.strategies import METHODS
from fedpca_flwr.transports.recommendation import transports_of
from tests.needed import need
from tests.refusals import unnamed
from tests.simulations.test_compare import WINE, draw_pictures, undrawn

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    """Return a page of 2 settings, and the parties of which its figures were drawn."""
    folder, drawn, honest = tmp_path_factory.mktemp("comparison"), [], plots.heterogeneity
    methods = ["p-cov", "ap-cov", "sub-it block-size=4", "qr-pca rank=2"]
    settings = {"partitions": ["iid", "dirichlet"], "clients": [3], "alphas": [0.3], "seed": 7}
    records = compare(methods=methods, **settings, output=folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "heterogeneity", lambda parts, *rest: drawn.append(parts) or honest(parts, *rest))
        return report.write_report(folder, records), drawn


@pytest.fixture(scope="module")
def page(comparison):
    return comparison[0]


# What is on the page


@pytest.mark.engine
def test_the_page_allows_its_own_script_only(page):
    text = page.read_text()
    assert "http://" not in text
    assert "https://" not in text
    assert page.stat().st_size < 5e5
    assert INK.lower() not in text  # on a dark page the colour of text is another
    assert text.count("<main>") == 1  # a screen reader goes there, and a keyboard reaches whatever scrolls
    assert text.count('class="wide"') == text.count('class="wide" tabindex="0"') > 0
    policy = html.unescape(re.search(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', text)[1])
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.S)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert "default-src 'none'" in policy
    assert f"script-src 'sha256-{digest}';" in policy
    assert "unsafe-inline" not in policy.replace("style-src 'unsafe-inline'", "")
    assert text.index("Content-Security-Policy") < text.index("<style>")


def test_figures_runs_and_what_each_client_has_are_on_the_page(comparison):
    page, drawn = comparison
    text = page.read_text()
    assert text.count("<svg ") == 2 * 4 + 2  # of each setting, and of the rows themselves
    assert text.count("<h2>The rows of digits, pooled</h2>") == 1
    assert "fedpca compare --methods" in text
    assert '<button>variance captured</button></th><th scope="col"><button>variance claimed</button>' in text
    assert "qr-pca rank=2" in text  # it failed, and is shown with its error
    assert "&#39;rank&#39; is 2" in text
    assert text.count('<p class="lead">Exact, in the fewest rounds') == 2
    assert "<h2>All settings: the largest angle (degrees)</h2>" in text
    record = next(record for record in read_records(page.parent) if record["method"] == "p-cov")
    assert text.count("<h3>Share of each client in the result of p-cov</h3>") == 2
    assert text.count("angle of the first component without the client (degrees)") == 2
    for one in PCAModel.load(page.parent / record["model"]).log["influence"]:
        shares = [one["rows_share"], one["variance_share"], max(one["component_shares"])]
        cells = [one["party"], *(f"{share:.2%}" for share in shares), f"{one['angles_degrees'][0]:.3g}"]
        assert "".join(f"<td>{cell}</td>" for cell in cells) in text
    assert f'<td data-value="{record["MB up"]!r}">' in text  # by which a browser sorts
    assert text.count("<td>failed</td>") == 2
    inner = re.findall(r'<clipPath id="([^"]+)"', text)
    assert len(inner) == len(set(inner)) > 8
    source = load("digits")
    shares = split(source.labels, 3, kind="dirichlet", seed=7, alpha=0.3)
    for part, share in zip(drawn[1], shares, strict=True):
        np.testing.assert_array_equal(part, source.rows(share))


def test_secure_runs_say_what_the_server_saw(tmp_path, monkeypatch, page):
    """Of three runs two were refused."""
    undrawn(monkeypatch)
    records = compare(methods=["p-cov", "qr-pca", "ap-stack"], clients=[3], bounds=[16.0], output=tmp_path)
    secure = records.report().read_text()
    table = secure[: secure.index('<table class="runs">')]
    assert "sums over all parties only; to see more it must collude with all parties but one" in table
    assert "each party&#39;s covariance" not in table
    plain = choices(group_by_setting(read_records(page.parent))[0])[0]
    assert plain.server_sees == "each party's covariance"
    kinds = re.findall(r'<tr id="run-0-\d" data-is="([^"]*)"><td data-value="([^"]*)"', secure)
    assert [name for kind, name in kinds if "secure" in kind.split()] == ["p-cov"]
    assert len(kinds) == 3
    assert '<input type="checkbox" value="secure" disabled>' in page.read_text()
    assert "<code>--bound</code> adds such runs" in page.read_text()
    assert '<input type="checkbox" value="secure">' in secure
    assert "<code>--bound</code> adds such runs" not in secure
    short = re.findall(r"<details><summary>(.*?)</summary>(.*?)</details>", secure)
    assert len(short) == 2
    for summary, error in short:
        assert len(html.unescape(summary)) <= report_page.MAX_ERROR_CHARACTERS < len(html.unescape(error))
        assert "Methods that do: p-cov, " in error
        assert error.endswith([name for name, method in METHODS.items() if "masked" in transports_of(method)][-1])
    heads = re.findall(r'<button title="([^"]*)">([^<]*)</button>', secure)
    names = ["rounds", "up per client (mean)", "down per client (mean, before the last round)"]
    assert [name for _, name in heads] == names
    assert {html.unescape(tip) for tip, _ in heads} == {record_module.COUNTS_NOTE}


def test_scaled_runs_are_a_setting_of_their_own(tmp_path, monkeypatch):
    """Their marks lay at zero beside those of the rows as they are, and the recommendation was of both."""
    drawn = []
    monkeypatch.setattr(plots, "projection_grid", lambda reference, models, *rest: drawn.append((reference, models)))
    methods = ["p-cov scale=true", "p-cov", "ap-cov scale=true"]
    records = compare(methods=methods, partitions=["iid"], output=tmp_path, **WINE)
    scaled, plain = group_by_setting(records)
    assert [record["method"] for record in scaled] == ["p-cov", "ap-cov"]
    assert "features scaled" in setting_title(scaled)
    assert "scaled" not in setting_title(plain)
    for runs in (scaled, plain):
        next(iter(report_drawing.model_figures(tmp_path, runs)))
    angles = [[principal_angles(one, reference).max for one in models.values()] for reference, models in drawn]
    assert angles[0][0] < 1e-6 < angles[0][1] < 45
    assert angles[1][0] < 1e-6


@pytest.mark.engine
def test_the_printed_commands_repeat_the_runs(tmp_path, monkeypatch):
    """Options that are true or texts, alphas of many digits, another seed, folders with a space in their name."""
    undrawn(monkeypatch)
    images = tmp_path / "my images"
    draw_pictures(images)
    methods = ["p-cov scale=true", "sub-it wire=float32 tolerance=1e-7", "compressed codec=quantise bits=12"]
    common = {"components": 3, "output": tmp_path / "runs"}
    alphas = [0.5, 0.1234567891]
    compare(methods=methods, partitions=["iid", "quantity"], alphas=alphas, clients=[3], seed=7, **common)
    compare(methods=["p-cov"], datasets=["images"], data_root=str(images), clients=[2], knn=True, **common)
    wanted, repeated = read_records(tmp_path / "runs"), []
    page = report.write_report(tmp_path / "runs", wanted).read_text()
    lines = html.unescape(re.search(r"<pre[^>]*>(.*?)</pre>", page, re.S)[1]).splitlines()
    for number, command in enumerate(map(shlex.split, lines)):
        assert command[:2] == ["fedpca", "compare"]
        assert main([*command[1:], "--output", str(tmp_path / f"again {number}")]) == 0
        repeated += read_records(tmp_path / f"again {number}")
    assert [run_identity(record) for record in repeated] == [run_identity(record) for record in wanted]
    assert [record["max angle"] for record in repeated] == [record["max angle"] for record in wanted]


# Folders that are not whole, or of somebody else

PAYLOAD = """"'><img src=x onerror="document.title='run'"><script>document.title='run'</script>\u202e\x1b[2J"""


@pytest.mark.engine
def test_runs_without_models_stay_in_the_report(tmp_path, capsys):
    folder = tmp_path / "<b>"
    assert main(["report", str(folder)]) == 2
    assert RUNS in capsys.readouterr().err
    (record,) = compare(methods=["p-cov"], output=folder, **WINE)
    (folder / record["model"]).unlink()
    text = report.write_report(folder, [record]).read_text()
    assert "<b>" not in text
    assert '<td data-value="p-cov">' in text
    assert "No more figures: there is no model at" in text
    assert text.count("<svg ") == 1 + 2  # bytes against angle, and those of the rows themselves


def test_a_foreign_models_wrong_influence_is_left_out(tmp_path, monkeypatch):
    undrawn(monkeypatch)
    (record,) = compare(methods=["p-cov"], output=tmp_path, **WINE)
    model = PCAModel.load(tmp_path / record["model"])
    model.log["influence"][0]["rows_share"] = PAYLOAD
    model.save(tmp_path / record["model"])
    text = report.write_report(tmp_path, [record]).read_text()
    assert "Share of each client" not in text
    assert "onerror" not in text


def hostile(record):
    """Return the records that are had by putting a text in place of each value, or of each value within it."""
    for key, value in record.items():
        yield key, {**record, key: PAYLOAD}
        if isinstance(value, list):
            yield key, {**record, key: [PAYLOAD]}
        if isinstance(value, dict):
            yield key, {**record, key: {**value, "bits": PAYLOAD}}
            yield key, {**record, key: {**value, PAYLOAD: 1}}
    yield "error", {**record, "alpha": 0.5, "error": f"ContractError: {PAYLOAD}"}
    yield "error", {**record, "alpha": 0.7, "error": f"{PAYLOAD} {'long ' * report_page.MAX_ERROR_CHARACTERS}"}


@pytest.fixture(scope="module")
def strangers(tmp_path_factory):
    """Return a record, why others like it were refused, by their key, the keys of the rest, and their page."""
    folder = tmp_path_factory.mktemp("hostile")
    (record,) = compare(methods=["p-cov"], output=folder, **WINE)
    refusals, taken = {}, []
    for key, altered in hostile(record):
        (folder / RUNS).write_text(json.dumps(altered) + "\n")
        try:
            taken += [(key, one) for one in read_records(folder)]
        except FedPCAError as error:
            refusals[key] = str(error)
    with pytest.MonkeyPatch.context() as patch:
        undrawn(patch)
        page = report.write_report(folder, [altered for _, altered in taken])
    return record, refusals, [key for key, _ in taken], page


def test_a_page_has_no_markup_of_a_record(strangers):
    """A text where a number should be is refused with its place."""
    record, refusals, keys, page = strangers
    of_numbers = {key for key, value in record.items() if isinstance(value, int | float)}
    assert set(refusals) >= of_numbers | {"model", "measured", "notes", "partition", "engine"}
    assert not unnamed(refusals["rounds"], RUNS, "line 1", "'rounds'")
    assert all(text.isprintable() for text in refusals.values())
    text = page.read_text()
    assert set(keys) >= {"dataset", "data root", "date", "notes", "error"}
    assert "<img" not in text
    assert text.count("<script>") == 1
    assert not {"\u202e", "\x1b"} & set(text)
    assert "ContractError: &#34;&#39;&gt;&lt;img src=x onerror=" in text


# In a browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    need(CHROMIUM and DRIVER, "chromium-driver")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    flags = "--headless --no-sandbox --disable-gpu --disable-background-networking --disable-component-update"
    for flag in (*flags.split(), "--disable-sync", "--no-first-run", f"--user-data-dir={tmp_path_factory.mktemp('u')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield browser
    browser.quit()


@pytest.mark.engine
@pytest.mark.filterwarnings("ignore")
def test_nothing_of_a_strangers_folder_runs_in_a_browser(strangers, browser, tmp_path):
    """And were something not escaped, the page's policy would still not let it run."""
    unescaped = tmp_path / "unescaped.html"
    unescaped.write_text(strangers[-1].read_text().replace("<h1>", f"{PAYLOAD}<h1>"))
    for page, scripts in ((strangers[-1], 1), (unescaped, 2)):
        browser.get(page.as_uri())
        assert browser.title == "Federated PCA: comparison"
        assert browser.execute_script("return document.scripts.length") == scripts


@pytest.mark.engine
@pytest.mark.filterwarnings("ignore")
def test_the_page_in_a_browser(page, browser):
    from selenium.webdriver.common.by import By

    browser.get_log("browser")  # of what other pages did, which it forgets
    browser.get(page.as_uri())
    assert browser.get_log("browser") == []
    images = browser.find_elements(By.TAG_NAME, "svg")
    assert len(images) == 10
    assert all(image.size["width"] > 300 for image in images)
    table = browser.find_element(By.CSS_SELECTOR, "table.runs")

    def methods():
        rows = table.find_elements(By.CSS_SELECTOR, "tbody tr:not(.more)")
        return [row.find_element(By.TAG_NAME, "td").text for row in rows if row.is_displayed()]

    angle = table.find_elements(By.TAG_NAME, "button")[1]
    angle.click()
    upwards = methods()
    assert upwards[-1] == "qr-pca rank=2"  # without a value: last either way
    assert upwards[2] == "ap-cov"
    angle.click()
    assert methods() == [*reversed(upwards[:3]), upwards[3]]
    notes = [row.get_attribute("data-of") for row in table.find_elements(By.CSS_SELECTOR, "tbody tr.more")]
    runs = [row.get_attribute("id") for row in table.find_elements(By.CSS_SELECTOR, "tbody tr:not(.more)")]
    assert notes == [run for run in runs if run in notes]  # each stays below its run
    browser.find_element(By.CSS_SELECTOR, "input[value=exact]").click()
    assert "ap-cov" not in methods()
    assert "p-cov" in methods()
    browser.set_window_size(400, 800)
    assert browser.execute_script("return document.documentElement.scrollWidth <= window.innerWidth")
