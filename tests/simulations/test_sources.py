"""Comparisons on tables of one's own."""

import numpy as np
import pytest

from fedpca_flwr.errors import ConfigError
from simulations import sources
from simulations.compare import main
from simulations.comparing import compare
from simulations.records import AS_GIVEN, read
from tests.refusals import refused

pandas = pytest.importorskip("pandas")
RNG = np.random.default_rng(3)
NORTH, SOUTH = (pandas.DataFrame(RNG.standard_normal((50, 4)) * [4, 3, 2, 1], columns=list("abcd")) for _ in "ns")
POOLED = np.vstack([NORTH, SOUTH])


def written(folder):
    NORTH.to_csv(folder / "north.csv", index=False)
    np.save(folder / "south.npy", SOUTH.to_numpy())
    return [str(folder / "north.csv"), str(folder / "south.npy")]


def test_tables_are_the_parties_whatever_the_order_of_their_columns():
    made = compare({"north": NORTH, "south": SOUTH[list("dcba")]}, methods=["p-cov", "vertical"], components=2)
    assert [(one["clients"], one["partition"]) for one in made] == [(2, AS_GIVEN)] * 2
    assert max(one["max angle"] for one in made) < 1e-6


def test_files_and_their_folder_are_the_same_data_in_clear_and_in_secure_sums(tmp_path):
    files = written(tmp_path)
    first = compare(files, methods=["p-cov"], components=2, bounds=[0.0, 50.0])
    again = compare([str(tmp_path)], methods=["p-cov"], components=2)
    assert first[0]["dataset"] == again[0]["dataset"]
    assert list(first.frame()["bound"]) == [0.0, 50.0]
    assert "secure, bound 50" in str(first)
    assert "<table>" in first._repr_html_()


def test_other_rows_in_a_file_are_another_run_and_those_of_the_first_are_gone(tmp_path):
    files, output = written(tmp_path), tmp_path / "out"
    (first,) = compare(files, methods=["p-cov"], components=2, output=output)
    np.save(files[1], SOUTH.to_numpy() * 2)
    (then,) = compare(files, methods=["p-cov"], components=2, output=output)
    assert then["max angle"] < 1e-6
    sources.HANDED.clear()
    with refused(ConfigError, f"'{first['dataset']}'"):
        sources.load(first["dataset"], first["data root"])


def test_the_page_has_the_command_that_reads_the_files_again(tmp_path):
    pytest.importorskip("matplotlib")
    files, output = written(tmp_path), tmp_path / "out"
    assert main(["--data", *files, "--methods", "p-cov", "--components", "2", "--output", str(output)]) == 0
    (record,) = read(output)
    page = (output / "report.html").read_text()
    assert f"--data {files[0]} {files[1]} --components 2" in page
    assert page.count(files[0]) == 1  # no heading is as long as paths are
    sources.HANDED.clear()
    assert np.array_equal(sources.load(record["dataset"], record["data root"]).all_rows(), POOLED)


@pytest.mark.parametrize(
    ("named", "also", "words"),
    [
        (["nothere.csv"], {}, ["nothere.csv"]),
        (["."], {}, [".csv"]),
        (["."], {"clients": [3], "partitions": ["iid"]}, ["clients", "partitions"]),
    ],
)
def test_what_cannot_be_the_parties_is_refused(named, also, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with refused(ConfigError, *words):
        compare(named, methods=["p-cov"], **also)
