"""Benchmarks run on small data, and each is quoted by the page that it names."""

import json
import re
from multiprocessing.context import BaseContext
from multiprocessing.pool import ThreadPool
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from fedpca_flwr.maths.eigen import principal_angles

pytest.importorskip("resource", reason="benchmarks measure by what POSIX counts")

from fedpca_flwr.simulations.benchmarks import memory, messages, speed
from fedpca_flwr.simulations.benchmarks.__main__ import NAMES, main
from tests.refusals import unnamed


def cells(out: str) -> list[list[str]]:
    table = out.rstrip().split("\n\n")[-1].splitlines()
    assert table[1] == "| --- " * (table[0].count("|") - 1) + "|"
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]


def printed(capsys, *arguments, status=0):
    assert main(arguments) == status
    both = capsys.readouterr()
    return both.err if status else both.out


def test_what_is_as_written_differs_as_the_notes_say():
    X = np.random.default_rng(0).standard_normal((60, 4))
    shifted = [X[:30], X[30:] + 50]
    p_cov, sub_it, qr_pca, _, ap_cov = messages.PUBLISHED.values()
    assert ap_cov(shifted, 1)[1][0] < 5 < p_cov(shifted, 1)[1][0]
    np.testing.assert_allclose(sub_it([X[:10], X[10:]], 2)[1], 60 * p_cov([X[:10], X[10:]], 2)[1] ** 2)
    unlike = [X[:10] * [1, 9, 1, 1], X[10:]]
    counted_twice, pooled = (program(unlike, 1)[0].T for program in (qr_pca, p_cov))
    assert principal_angles(counted_twice, pooled)[0] > 1


@pytest.mark.parametrize("name", sorted(NAMES))
def test_every_benchmark_is_quoted_by_its_page(name, capsys):
    text = printed(capsys, name, "--help")
    assert f"python -m fedpca_flwr.simulations.benchmarks {name}" in text
    page = re.search(r"Quoted in (\S+)\.\n", text)[1]
    assert re.search(rf"(?:benchmarks\s+|`){name}\b", Path(__file__).parents[2].joinpath(page).read_text()), page


def test_an_unknown_benchmark_is_answered_by_all_names(capsys):
    assert not unnamed(printed(capsys, "side-by-sight", status=2), "'side-by-sight'", *NAMES)
    assert all(name in printed(capsys, "-h") for name in NAMES)


def test_lines_are_columns_for_a_terminal_and_records_in_a_file(capsys, tmp_path):
    table = [line.split() for line in printed(capsys, "front", "--quick", "--text").splitlines()]
    assert table[0][:3] == ["method", "rounds", "MB"]
    arguments = ["truncation", "--dataset", "digits", "--seeds", "42", "1", "--record", str(tmp_path / "lines")]
    table = cells(printed(capsys, *arguments))
    lines = [json.loads(line) for line in (tmp_path / "lines").read_text().splitlines()]
    assert [line["partition seed"] for line in lines] == [row[0] for row in table] == ["42"] * 5 + ["1"] * 5
    assert lines[0]["options"]["seeds"] == [42, 1]


def test_memory_is_that_of_as_many_parties_as_named(capsys):
    table = cells(printed(capsys, "memory", "--parties", "12", "--features", "20"))
    assert [line[:3] for line in table] == [["20", way, "12"] for way in memory.WAYS]


@pytest.mark.engine
@pytest.mark.parametrize("name", ["accuracy", "speed", "secure", "compression"])
def test_a_quick_benchmark_has_a_table(name, capsys):
    assert len(cells(printed(capsys, name, "--quick"))) >= 3


@pytest.mark.engine
def test_rivals_are_held_against_the_exact_components(monkeypatch, capsys):
    name = "scikit-learn, `IncrementalPCA`"
    monkeypatch.setattr(speed, "RIVALS", {name: speed.RIVALS[name], "missing": Mock(side_effect=ImportError)})
    given = ["--components", "5", "--methods", "p-cov", "--repeats", "1"]
    ours, theirs, none = cells(printed(capsys, "rivals", *given))
    assert float(ours[3]) < 1e-6 < float(theirs[3])
    assert none == ["missing", "not installed", *["-"] * 5]


@pytest.mark.engine
def test_liars_are_named_and_nobody_else(capsys):
    (none, *lies) = cells(printed(capsys, "influence", "--quick"))
    assert none[1:4] == ["0 of 0", "0 of 0", "0 of 10"]
    assert [line[2:4] for line in lies] == [["2 of 2", "0 of 8"]] * 4
    assert all(float(line[5]) == float(line[6]) < float(line[4]) / 1.5 for line in lies)


@pytest.mark.engine
def test_sparse_rows_and_drawn_genotypes_have_the_components_of_all(capsys, monkeypatch):
    monkeypatch.setattr(BaseContext, "Pool", lambda _, size: ThreadPool(size))  # a process of its own takes seconds
    text = printed(capsys, "sparse", "--rows", "300", "--features", "40", "--parties", "2")
    assert float(re.search(r"largest angle (\S+)", text)[1]) <= 1e-6
    pytest.importorskip("bed_reader", reason="writes the tests' .bed files")
    table = cells(printed(capsys, "genotypes", "--quick"))
    assert [line[0].split()[0] for line in table] == ["ARPACK", "sub-it", "sub-it"]
    for line in table[1:]:
        assert int(line[3]) >= 4  # rounds
        assert max(map(float, line[-1].split(", "))) <= 2e-3


def test_the_front_of_bytes_has_ours_and_the_published_methods(capsys, monkeypatch):
    """Few bytes up, fewer in all, the same in one more round, and no bytes for nothing exact."""
    costs = [(1, 9.0, 0.0), (4, 2.0, 9.0), (4, 3.0, 1.0), (5, 3.0, 1.0), (1, 0.0, 0.0)]
    lines = [messages.Cost("", *cost, np.zeros(1), "", exact=cost[1] > 0) for cost in costs]
    assert messages.fronts(lines) == ["up, up + down", "up", "up + down", "-", "-"]
    monkeypatch.setattr(messages, "OURS", [("p-cov", {}), ("sub-it", {"tolerance": 1.0})])
    monkeypatch.setattr(messages, "PUBLISHED", {name: messages.PUBLISHED[name] for name in ("P-COV", "AP-COV")})
    on = {line[0]: line[-1] for line in cells(printed(capsys, "front", "--quick"))}
    published = dict.fromkeys(["P-COV, published", "AP-COV, published"], "-")
    assert on == {"p-cov": "up, up + down", "sub-it tolerance=1.0": "-", **published}
