"""The report page in a real browser: no console error, tables sort, images are visible."""

import base64
import hashlib
import html
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedpca_flwr.data.datasets import load
from fedpca_flwr.data.partition import split
from fedpca_flwr.errors import FedPCAError
from fedpca_flwr.figures import plots
from fedpca_flwr.figures.style import INK
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.reference import principal_angles
from simulations import report, report_page
from simulations.compare import main
from simulations.comparing import compare
from simulations.recommending import choices
from simulations.records import COUNTED, by_setting, identity, read, title
from strategies import METHODS, transports_of
from tests.needed import need
from tests.refusals import unnamed
from tests.simulations.test_compare import draw_pictures

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("comparison")
    methods = ["p-cov", "ap-cov", "sub-it block-size=4", "qr-pca rank=2"]
    records = compare(methods=methods, partitions=["iid", "dirichlet"], clients=[3], output=folder)
    return report.write_report(folder, records)


def test_the_page_needs_nothing_else(page):
    text = page.read_text()
    assert "http://" not in text
    assert "https://" not in text
    assert INK.lower() not in text  # on a dark page the colour of text is another
    assert text.count("<main>") == 1  # a screen reader goes there, and a keyboard reaches whatever scrolls
    assert text.count('class="wide"') == text.count('class="wide" tabindex="0"') > 0
    assert text.count("<svg ") == 2 * 4 + 2  # of each setting, and of the rows themselves
    assert text.count("<h2>The rows of digits, pooled</h2>") == 1
    assert "python -m fedpca_flwr compare --methods" in text
    assert '<button>variance captured</button></th><th scope="col"><button>variance claimed</button>' in text
    assert "qr-pca rank=2" in text  # it failed, and is shown with its error
    assert "&#x27;rank&#x27; is 2" in text


@pytest.fixture
def undrawn(monkeypatch):
    """Pages without figures: drawing them is most of the work."""
    monkeypatch.setattr(report_page, "figures", lambda *_: [])
    monkeypatch.setattr(report_page, "figures_of_pool", lambda *_: [])


@pytest.fixture
def secure(tmp_path, undrawn):
    """The page of secure runs, two of which were refused."""
    records = compare(methods=["p-cov", "qr-pca", "ap-stack"], clients=[3], bounds=[16.0], output=tmp_path)
    return report.write_report(tmp_path, records).read_text()


def test_runs_with_secure_aggregation_say_what_the_server_saw(secure, page):
    table = secure[: secure.index('<table class="runs">')]
    assert "sums over all parties only; to see more it must collude with all parties but one" in table
    assert "each party&#x27;s covariance" not in table
    (plain,) = choices(compare(methods=["p-cov"], clients=[3]))[:1]
    assert plain.server_sees == "each party's covariance"
    kinds = re.findall(r'<tr id="run-0-\d" data-is="([^"]*)"><td data-value="([^"]*)"', secure)
    assert [name for kind, name in kinds if "secure" in kind.split()] == ["p-cov"]
    assert len(kinds) == 3
    assert '<input type="checkbox" value="secure" disabled>' in page.read_text()
    assert "<code>--bound</code> makes some" in page.read_text()
    assert '<input type="checkbox" value="secure">' in secure
    assert "<code>--bound</code> makes some" not in secure


def test_long_errors_unfold_and_heads_say_what_is_counted(secure):
    short = re.findall(r"<details><summary>(.*?)</summary>(.*?)</details>", secure)
    assert len(short) == 2
    for summary, error in short:
        assert len(html.unescape(summary)) <= report_page.SHORT < len(html.unescape(error))
        assert "Methods that do: p-cov, " in error
        assert error.endswith([name for name, method in METHODS.items() if "masked" in transports_of(method)][-1])
    heads = re.findall(r'<button title="([^"]*)">([^<]*)</button>', secure)
    names = ["rounds", "up per client (mean)", "down per client (mean, before the last round)"]
    assert [name for _, name in heads] == names
    assert {html.unescape(tip) for tip, _ in heads} == {COUNTED}


def test_what_each_client_has_is_in_a_page_of_less_than_half_a_megabyte(page):
    text = page.read_text()
    record = next(record for record in read(page.parent) if record["method"] == "p-cov")
    model = PCAModel.load(page.parent / record["model"])
    assert text.count("<h3>What each client has in p-cov</h3>") == 2
    assert text.count("angle of the first without it (degrees)") == 2
    for one in model.log["influence"]:
        share = max(one["component_shares"])
        assert f"<td>{one['party']}</td>" in text
        assert f"<td>{share:.2%}</td>" in text
    assert page.stat().st_size < 5e5
    text = page.read_text()
    assert text.count('<p class="lead">Exact, in the fewest rounds') == 2
    assert "<h2>All settings: the largest angle (degrees)</h2>" in text


def commands(page):
    """The command lines of a report, as a shell reads them."""
    text = html.unescape(re.search(r"<pre[^>]*>(.*?)</pre>", page.read_text(), re.S)[1])
    return [shlex.split(line) for line in text.splitlines()]


def test_the_printed_commands_repeat_the_runs(tmp_path, undrawn):
    """Options that are true or texts, alphas of many digits, another seed, folders with a space in their name."""
    images = tmp_path / "my images"
    draw_pictures(images)
    methods = ["p-cov scale=true", "sub-it wire=float32 tolerance=1e-7", "compressed codec=quantise bits=12"]
    common = {"components": 3, "output": tmp_path / "runs"}
    compare(methods=methods, partitions=["iid", "quantity"], alphas=[0.5, 0.1234567891], clients=[3], seed=7, **common)
    compare(methods=["p-cov"], datasets=["images"], data_root=str(images), clients=[2], knn=True, **common)
    wanted = read(tmp_path / "runs")
    page = report.write_report(tmp_path / "runs", wanted)
    repeated = []
    for number, command in enumerate(commands(page)):
        assert command[:4] == ["python", "-m", "fedpca_flwr", "compare"]
        assert main([*command[4:], "--output", str(tmp_path / f"again {number}")]) == 0
        repeated += read(tmp_path / f"again {number}")
    assert [identity(record) for record in repeated] == [identity(record) for record in wanted]
    assert [record["max angle"] for record in repeated] == [record["max angle"] for record in wanted]


def test_the_clients_of_the_figure_are_those_of_the_runs(tmp_path, monkeypatch):
    drawn = []
    honest = plots.heterogeneity
    monkeypatch.setattr(
        plots, "heterogeneity", lambda parts, reference: drawn.append(parts) or honest(parts, reference)
    )
    report.write_report(tmp_path, compare(methods=["p-cov"], clients=[3], alphas=[0.3], seed=7, output=tmp_path))
    source = load("digits")
    shares = split(source.labels, 3, kind="dirichlet", seed=7, alpha=0.3)
    for part, share in zip(drawn[0], shares, strict=True):
        np.testing.assert_array_equal(part, source.rows(share))


def test_scaled_runs_are_a_setting_of_their_own_beside_the_pca_of_the_scaled_rows(tmp_path, monkeypatch):
    """Their marks lay at zero beside those of the rows as they are, and the recommendation was of both."""
    drawn, honest = [], plots.projection_grid

    def grid(reference, models, *rest):
        drawn.append([principal_angles(model, reference).max for model in models.values()])
        return honest(reference, models, *rest)

    monkeypatch.setattr(plots, "projection_grid", grid)
    methods = ["p-cov scale=true", "p-cov", "ap-cov scale=true"]
    records = compare(
        methods=methods, datasets=["wine"], partitions=["iid"], clients=[3], components=2, output=tmp_path
    )
    scaled, plain = by_setting(records)
    assert [record["method"] for record in scaled] == ["p-cov", "ap-cov"]
    assert "features scaled" in title(scaled[0])
    assert "scaled" not in title(plain[0])
    report.write_report(tmp_path, records)
    assert drawn[0][0] < 1e-6 < drawn[0][1] < 45
    assert drawn[1][0] < 1e-6


def test_runs_whose_models_are_gone_are_still_in_the_report(tmp_path):
    records = compare(methods=["p-cov"], clients=[3], output=tmp_path)
    (tmp_path / records[0]["model"]).unlink()
    text = report.write_report(tmp_path, records).read_text()
    assert '<td data-value="p-cov">' in text
    assert "No more figures: there is no model at" in text
    assert text.count("<svg ") == 1 + 2  # bytes against angle, and those of the rows themselves


def test_a_report_is_written_where_the_project_is_installed(tmp_path):
    """There `strategies` and `simulations` lie within the library."""
    root, library = Path(__file__).parents[2], tmp_path / "fedpca_flwr"
    for source, target in {"fedpca_flwr": ".", "strategies": "strategies", "simulations": "simulations"}.items():
        shutil.copytree(root / source, library / target, ignore=shutil.ignore_patterns("__pycache__"))
    command = f"-m fedpca_flwr compare --dataset wine --components 2 --clients 3 --methods p-cov --output {tmp_path}"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    subprocess.run([sys.executable, *command.split()], cwd=tmp_path, env=environment, check=True, capture_output=True)
    assert (tmp_path / "report.html").read_text().count("<figure>") >= 4


def test_a_folder_without_a_comparison_is_named(tmp_path, capsys):
    assert report.main([str(tmp_path)]) == 2
    assert "runs.jsonl" in capsys.readouterr().err


@pytest.fixture
def browser(tmp_path):
    need(CHROMIUM and DRIVER, "chromium-driver")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    flags = "--headless --no-sandbox --disable-gpu --disable-background-networking --disable-component-update"
    for flag in (*flags.split(), "--disable-sync", "--no-first-run", f"--user-data-dir={tmp_path}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield browser
    browser.quit()


@pytest.mark.engine
@pytest.mark.filterwarnings("ignore")
def test_the_page_in_a_browser(page, browser):
    from selenium.webdriver.common.by import By

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


PAYLOAD = """"'><img src=x onerror="document.title='run'"><script>document.title='run'</script>\u202e\x1b[2J"""


def hostile(record):
    """The records that are had by putting a text in place of each value, or of each value within it."""
    for key, value in record.items():
        yield key, {**record, key: PAYLOAD}
        if isinstance(value, list):
            yield key, {**record, key: [PAYLOAD]}
        if isinstance(value, dict):
            yield key, {**record, key: {**value, "bits": PAYLOAD}}
            yield key, {**record, key: {**value, PAYLOAD: 1}}
    yield "error", {**record, "error": f"ContractError: {PAYLOAD}"}


@pytest.fixture(scope="module")
def hostile_pages(tmp_path_factory):
    """By the key that was altered: the page of a folder that somebody else has made, or why it was refused."""
    folder = tmp_path_factory.mktemp("hostile")
    compare(methods=["p-cov"], clients=[3], output=folder)
    (record,) = [json.loads(line) for line in (folder / "runs.jsonl").read_text().splitlines()]
    told = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report_page, "figures", lambda *_: [])  # drawing them is most of the work
        patch.setattr(report_page, "figures_of_pool", lambda *_: [])
        for key, altered in hostile(record):
            (folder / "runs.jsonl").write_text(json.dumps(altered) + "\n")
            try:
                told.append((key, report.write_report(folder, read(folder)).read_text()))
            except FedPCAError as error:
                told.append((key, error))
    return told


def of_numbers(record):
    return {key for key, value in record.items() if isinstance(value, int | float)}


def test_a_text_where_a_number_should_be_is_refused_with_its_place(hostile_pages, tmp_path):
    (record,) = compare(methods=["p-cov"], clients=[3], output=tmp_path)
    refused = {key: str(error) for key, error in hostile_pages if isinstance(error, FedPCAError)}
    assert set(refused) >= of_numbers(record) | {"model", "measured", "notes"}
    assert not unnamed(refused["rounds"], "runs.jsonl", "line 1", "'rounds'")
    assert not [text for text in refused.values() if "onerror" in text]


def test_no_markup_and_no_control_character_of_a_record_is_in_the_page(hostile_pages):
    pages = [(key, page) for key, page in hostile_pages if isinstance(page, str)]
    assert {key for key, _ in pages} >= {"dataset", "data root", "partition", "engine", "date", "notes", "error"}
    for key, page in pages:
        assert "<img" not in page, key
        assert page.count("<script>") == 1, key
        assert not {"\u202e", "\x1b"} & set(page), key
    assert any("&lt;img src=x onerror=" in page for key, page in pages if key == "error")


def test_the_page_allows_its_own_script_only(page):
    text = page.read_text()
    policy = html.unescape(re.search(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', text)[1])
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.S)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert "default-src 'none'" in policy
    assert f"script-src 'sha256-{digest}';" in policy
    assert "unsafe-inline" not in policy.replace("style-src 'unsafe-inline'", "")
    assert text.index("Content-Security-Policy") < text.index("<style>")


def test_the_influence_in_a_model_of_somebody_else_is_left_out_where_it_is_none(tmp_path, undrawn):
    (record,) = compare(methods=["p-cov"], clients=[3], output=tmp_path)
    model = PCAModel.load(tmp_path / record["model"])
    model.log["influence"][0]["rows_share"] = PAYLOAD
    model.save(tmp_path / record["model"])
    text = report.write_report(tmp_path, [record]).read_text()
    assert "What each client has" not in text
    assert "onerror" not in text


@pytest.mark.engine
@pytest.mark.filterwarnings("ignore")
def test_nothing_of_a_strangers_folder_runs_in_a_browser(hostile_pages, browser, tmp_path):
    """And were something not escaped, the page's policy would still not let it run."""
    pages = [page for _, page in hostile_pages if isinstance(page, str)]
    unescaped = [pages[-1].replace("<h1>", f"{PAYLOAD}<h1>")]
    for number, text in enumerate([*pages, *unescaped]):
        target = tmp_path / f"{number}.html"
        target.write_text(text)
        browser.get(target.as_uri())
        assert browser.title == "Federated PCA: comparison"
        assert browser.execute_script("return document.scripts.length") == (1 if text in pages else 2)
