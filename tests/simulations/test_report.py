"""The report page: two figures and a table, readable on a phone, without anything of a stranger that runs."""

import json
import re
import shutil
from io import BytesIO
from itertools import islice

import pytest

from fedpca_flwr.cli import main
from fedpca_flwr.errors import FedPCAError
from fedpca_flwr.figures.style import INK
from fedpca_flwr.simulations.comparing import compare
from fedpca_flwr.simulations.report import MAX_CHARACTERS, figures, write_report
from fedpca_flwr.simulations.runs_file import RUNS, read_records
from tests.foreign import replaced
from tests.needed import need
from tests.refusals import unnamed
from tests.simulations.test_compare import WINE, undrawn


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("comparison")
    methods = ["p-cov", "ap-cov", "sub-it block-size=4", "qr-pca rank=2"]
    settings = {"partitions": ["iid", "dirichlet"], "clients": [3], "alphas": [0.3, 3.0], "seed": 7}
    return write_report(folder, compare(methods=methods, **settings, output=folder))


def test_the_page_has_two_figures_and_a_table_of_what_to_take(page):
    text = page.read_text()
    assert not re.findall(f"https?://|<script|{INK.lower()}", text)  # on a dark page the colour of text is another
    assert page.stat().st_size < 2e5
    assert (text.count("<svg "), text.count("<table"), text.count("<main>")) == (2, 1, 1)
    assert text.count('class="wide"') == text.count('class="wide" tabindex="0"') == 3  # a keyboard reaches them
    assert "default-src 'none'" in text
    assert text.index("Content-Security-Policy") < text.index("<style>")
    best = re.findall(r'<tr class="best"><td>([^<]*)</td><td>([^<]*)</td>', text)
    assert [name for name, wishes in best if wishes.startswith("exact, in the fewest rounds")] == ["p-cov"] * 3
    assert text.count("<td>qr-pca rank=2</td>") == 3  # it failed, and is shown with its error
    assert text.count("&#x27;rank&#x27; is 2") == 3


def test_secure_runs_say_what_the_server_saw(tmp_path, monkeypatch):
    undrawn(monkeypatch)
    records = compare(methods=["p-cov", "qr-pca"], clients=[3], bounds=[0.0, 16.0], output=tmp_path)
    assert ["fixed_point_variance_share" in one.get("measured", {}) for one in records] == [False] * 2 + [True, False]
    plain, secure = re.findall(r'<tr class="best"><td>p-cov.*?</tr>', records.report().read_text())
    assert "sums over all parties only; to see more it must collude with all parties but one" in secure
    assert "each party&#x27;s covariance" in plain
    assert "each party&#x27;s covariance" not in secure


PAYLOAD = """"'><img src=x onerror="document.title='run'"><script>document.title='run'</script>\u202e\x1b[2J"""


def hostile(record):
    """Yield the records that are had by putting a text in place of each value, or of each value within it."""
    for key, value in record.items():
        inside = [[PAYLOAD]] if isinstance(value, list) else []
        inside += [{**value, "bits": PAYLOAD}, {**value, PAYLOAD: 1}] if isinstance(value, dict) else []
        yield from ((key, {**record, key: other}) for other in (PAYLOAD, *inside))
    yield "error", {**record, "alpha": 0.5, "error": f"ContractError: {PAYLOAD}"}
    yield "error", {**record, "alpha": 0.7, "error": f"{PAYLOAD} {'long ' * MAX_CHARACTERS}"}


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
        page = write_report(folder, [altered for _, altered in taken])
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
    assert not [sign for sign in ("<img", "<script", "\u202e", "\x1b") if sign in text]
    assert "ContractError: &quot;&#x27;&gt;&lt;img src=x onerror=" in text


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    need(chromium and driver, "chromium-driver")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    flags = "--headless --no-sandbox --disable-gpu --disable-background-networking --disable-component-update"
    for flag in (*flags.split(), "--disable-sync", "--no-first-run", f"--user-data-dir={tmp_path_factory.mktemp('u')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield browser
    browser.quit()


@pytest.mark.engine
@pytest.mark.filterwarnings("ignore")
def test_nothing_of_a_strangers_folder_runs_in_a_browser(strangers, browser, tmp_path):
    """And were something not escaped, the page's policy would still not let it run."""
    unescaped = tmp_path / "unescaped.html"
    unescaped.write_text(strangers[-1].read_text().replace("<h1>", f"{PAYLOAD}<h1>"))
    for page, scripts in ((strangers[-1], 0), (unescaped, 1)):
        browser.get(page.as_uri())
        assert browser.title == "Federated PCA: comparison"
        assert browser.execute_script("return document.scripts.length") == scripts


@pytest.mark.engine
@pytest.mark.filterwarnings("ignore")
def test_a_phone_shows_both_figures_with_legible_letters(page, browser):
    """The fault: letters of 6 px, and a legend that left the screen."""
    browser.get_log("browser")  # of what other pages did, which it forgets
    browser.set_window_size(390, 800)
    browser.get(page.as_uri())
    assert browser.get_log("browser") == []
    sizes = "return [...document.querySelectorAll('svg text')].map(text => text.getBoundingClientRect())"
    boxes = browser.execute_script(sizes)
    upright = [box["height"] for box in boxes if box["width"] > box["height"]]
    assert len(upright) > 10
    assert min(upright) >= 10
    assert max(box["right"] for box in boxes) <= browser.execute_script("return window.innerWidth")
    assert browser.execute_script("return document.documentElement.scrollWidth <= window.innerWidth")


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    folder = tmp_path_factory.mktemp("records")
    compare(methods=["dp-pca epsilon=5.0"], partitions=["dirichlet"], alphas=[0.5], seeds=[0, 1], output=folder, **WINE)
    return [json.loads(line) for line in (folder / RUNS).read_text().splitlines()]


def report_of(folder, capsys, *records):
    (folder / RUNS).write_text("".join(f"{json.dumps(record)}\n" for record in records))
    capsys.readouterr()
    code = main(["report", str(folder)])
    printed = capsys.readouterr()
    text = printed.out + printed.err
    assert text.replace("\n", "").isprintable()
    assert str(folder) in text
    assert (code, bool(printed.err)) in {(0, False), (2, True)}
    return code, text


@pytest.mark.parametrize("part", range(4))
def test_every_value_of_a_record_is_on_the_page_or_told(records, tmp_path, capsys, monkeypatch, part):
    undrawn(monkeypatch)
    first, second = records
    for path, value, hostile in islice(replaced(first, 2), part, None, 4):
        code, text = report_of(tmp_path, capsys, hostile, second)
        assert code == 0 or "line 1" in text, (path, value)


def test_extreme_numbers_have_figures():
    first, second = compare(methods="p-cov", alphas=[1e-300, 1e9], seed=2**63 - 1, **WINE)
    drawn = figures([{**first, "MB up": 1e15}, {**second, "max angle": 0.0, "MB up": 1e-9}])
    assert len(drawn) == 2
    for figure, _ in drawn:
        figure.savefig(BytesIO(), format="svg")


def test_a_record_without_a_key_is_averaged_with_others(records, tmp_path, capsys, monkeypatch):
    undrawn(monkeypatch)
    first, second = records
    for key in ("notes", "versions", "captured variance", "date", "chosen"):
        less = {name: value for name, value in second.items() if name != key}
        assert [report_of(tmp_path, capsys, *runs)[0] for runs in ([first, less], [less])] == [0, 0], key


@pytest.mark.parametrize("line", [None, "", "{", "[]", "null", "[" * 99999, '{"clients": 1e999}', "\x00", "9" * 5000])
def test_a_line_that_is_no_record_is_told(tmp_path, capsys, line):
    if line is not None:
        (tmp_path / RUNS).write_text(f"{line}\n")
    assert main(["report", str(tmp_path)]) == 2
    printed = capsys.readouterr().err
    assert f"{tmp_path / RUNS}{' does not exist' if line is None else ', line 1'}" in printed
    assert printed.count("\n") == 1
