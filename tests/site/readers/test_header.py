"""A first line of numbers: names of columns are never a row in silence, and few rows are refused as names."""

import numpy as np
import pytest

from fedpca_flwr import read, run
from fedpca_flwr.errors import ConfigError, DataError
from tests.harness import at_sites, finish, server_of
from tests.refusals import refused

SIZES = (5, 6, 12, 50)
WIDTHS = (2, 3, 5, 6, 8, 30)


def tables(rng, n, d):
    """Rows of many kinds, also such as rise or fall, by columns or by rows."""
    steps, factor = rng.exponential(1, (n, d)), np.exp(rng.normal(0, 1.5, (n, 1)))
    yield rng.normal(50, 9, (n, d)).round(1)
    yield -rng.gamma(2, 3, (n, d)) * 1e-12
    yield rng.normal(size=(n, d)) * 10.0 ** rng.integers(-3, 4, d) + np.arange(d)
    yield rng.poisson(rng.gamma(1, 5, d), (n, d))
    yield rng.integers(1, 6, (n, d))
    yield rng.binomial(2, 0.3, (n, d))
    yield np.exp(rng.normal(0, 2, (n, d)))
    yield factor * np.exp(rng.normal(0, 0.3, (n, d)))
    yield -np.sort(-factor * np.exp(rng.normal(0, 0.3, (n, d))), axis=0)
    yield np.cumsum(steps, axis=1).round(3)
    yield np.cumsum(rng.normal(0.7, 1, (n, d)), axis=1)
    yield np.cumsum(steps, axis=0)
    yield np.exp(-np.arange(n)[:, None] * rng.uniform(0.1, 2, d))
    yield np.column_stack([20240101 + rng.integers(0, 28, n), rng.normal(5, 1, (n, d))])
    yield np.column_stack([np.arange(1, n + 1), rng.normal(size=(n, d))])
    yield np.where(rng.random((n, d)) < 0.2, np.nan, rng.normal(size=(n, d)))


def headers(rng, n, d):
    wavelengths = np.sort(rng.uniform(400, 2500, d)).round(2)
    yield 1100 + 2 * np.arange(d), rng.normal(1, 0.2, (n, d))
    yield wavelengths, 1 + np.sin(wavelengths / 200) + rng.normal(0, 0.02, (n, d))
    yield np.sort(rng.uniform(50, 1200, d)).round(4), rng.lognormal(5, 2, (n, d)).round(2)
    yield np.arange(d) + 2024 - d, rng.normal(2000, 30, (n, d)).round()
    yield rng.choice(99_999, d, replace=False), rng.normal(size=(n, d))
    yield 5 * np.arange(d) - 20, rng.normal(0, 20, (n, d)).round(1)


def file_of(folder, rows, first=None):
    lines = [] if first is None else [",".join(f"{value:.8g}" for value in first)]
    lines += [",".join("" if np.isnan(value) else f"{value:.8g}" for value in row) for row in rows]
    (folder / "site.csv").write_text("\n".join(lines) + "\n")
    return folder / "site.csv"


@pytest.mark.engine
def test_headers_and_rows_are_told_apart(tmp_path):
    """The reader may refuse 1 % of 384 tables, and must refuse or note each of 144 lines of names."""
    refusals, total, silent, rows_of_many, named = 0, 0, 0, 0, True
    for seed, n in enumerate(SIZES):
        for d in WIDTHS:
            rng = np.random.default_rng([seed, d])
            for rows in tables(rng, n, d):
                total += 1
                try:
                    loaded = read(file_of(tmp_path, rows))
                    assert len(loaded.rows) == n
                except DataError:
                    refusals += 1
            for first, rows in headers(rng, n, d):
                try:
                    loaded = read(file_of(tmp_path, rows, first))
                except DataError as error:
                    named &= "header=True" in str(error)
                    continue
                silent += not any("header=True" in note for note in loaded.notes)
                rows_of_many += d >= 5
    assert (total, silent, named) == (384, 0, True)
    assert refusals <= 0.01 * total
    assert rows_of_many <= 2


def test_a_note_of_the_model_says_what_was_taken_for_a_row(tmp_path):
    path = file_of(tmp_path, np.random.default_rng(0).normal(50, 9, (40, 3)))
    model = run("p-cov", {"north": read(path)}, n_components=1)
    assert any("north" in note and "header=True" in note for note in model.log["notes"])
    model = run("p-cov", {"north": read(path, header=False)}, n_components=1)
    assert not any("header" in note for note in model.log["notes"])


def test_sites_with_names_and_without_are_refused(tmp_path):
    rows = np.random.default_rng(0).normal(50, 9, (60, 3))
    nodes = []
    for party, first in enumerate(("a,b,c\n", "")):
        (tmp_path / f"{party}.csv").write_text(first + file_of(tmp_path, rows[30 * party :][:30]).read_text())
        nodes.append({"data": str(tmp_path / f"{party}.csv")})
    with refused(ConfigError, "header=true", "client 1", "client 0"):
        finish(at_sites(server_of("p-cov", [rows[:30], rows[30:]], n_components=1), nodes))
