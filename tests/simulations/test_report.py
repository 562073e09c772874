"""The report page in a real browser: no console error, tables sort, images are visible."""

from __future__ import annotations

import shutil

import pytest

from simulations import report
from simulations.compare import compare

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("comparison")
    methods = ["p-cov", "ap-cov", "sub-it block-size=4", "qr-pca rank=2"]
    records = compare(methods, partitions=["iid", "dirichlet"], clients=[3], output=folder)
    return report.write_report(folder, records)


def test_the_page_needs_nothing_else(page):
    text = page.read_text()
    assert "http://" not in text
    assert "https://" not in text
    assert text.count("<img ") == 2 * 4
    assert "python -m simulations.compare --methods" in text
    assert "qr-pca rank=2" in text  # it failed, and is shown with its error
    assert "&#x27;rank&#x27; is 2" in text


def test_a_folder_without_a_comparison_is_named(tmp_path, capsys):
    assert report.main([str(tmp_path)]) == 2
    assert "runs.jsonl does not exist" in capsys.readouterr().err


@pytest.mark.engine
@pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs Debian's packages chromium and chromium-driver")
@pytest.mark.filterwarnings("ignore")
def test_the_page_in_a_browser(page, tmp_path):
    from selenium import webdriver
    from selenium.webdriver.common.by import By

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    flags = "--headless --no-sandbox --disable-gpu --disable-background-networking --disable-component-update"
    for flag in (*flags.split(), "--disable-sync", "--no-first-run", f"--user-data-dir={tmp_path}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    try:
        browser.get(page.as_uri())
        assert browser.get_log("browser") == []
        images = browser.find_elements(By.TAG_NAME, "img")
        assert len(images) == 8
        assert all(browser.execute_script("return arguments[0].naturalWidth", image) > 300 for image in images)
        table = browser.find_element(By.TAG_NAME, "table")

        def methods():
            return [
                row.find_element(By.TAG_NAME, "td").text for row in table.find_elements(By.CSS_SELECTOR, "tbody tr")
            ]

        angle = table.find_elements(By.TAG_NAME, "button")[1]
        angle.click()
        upwards = methods()
        assert upwards[-1] == "qr-pca rank=2"  # without a value: last either way
        assert upwards[2] == "ap-cov"
        angle.click()
        assert methods() == [*reversed(upwards[:3]), upwards[3]]
    finally:
        browser.quit()
