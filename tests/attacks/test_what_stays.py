"""Whoever looks into a site's SuperNode after a run: what Flower kept there for the run holds nothing of the rows."""

import sqlite3
from contextlib import closing

import numpy as np
import pytest

from tests.attacks.test_repeats import sites
from tests.families import rows
from tests.harness import context_of, finish
from tests.hostile import HostileSession

RUNS = {
    "compressed": {"codec": "low-rank", "rank": 2, "corrections": 2},
    "sub-it": {"warm_start": "svd"},
    "dsa": {},
    "fast-pca": {},
    "personalised": {},
    "sapca": {"topology": "tree"},
    "adaptive": {},
}


def require_nothing_kept(folder, method, parts, **options):
    node = {"may-show": "scores", "min-rows": 5}
    server = sites(folder, parts, method, options={"n_components": 2, **options}, **node)
    finish(server)
    assert [list(context_of(server, party).state.array_records) for party in range(3)] == [[], [], []]


@pytest.mark.parametrize(("method", "options"), RUNS.items(), ids=RUNS)
def test_nothing_of_the_rows_stays_when_a_run_has_ended(method, options, tmp_path):
    require_nothing_kept(tmp_path, method, [rows(60, 8, seed=seed) + seed for seed in range(3)], **options)


@pytest.mark.engine
def test_nor_of_secure_sums(tmp_path):
    secure = {"secure_aggregation": True, "bound": 40.0}
    require_nothing_kept(tmp_path, "sub-it", [rows(60, 8, seed=seed) for seed in range(3)], **secure)
    for party in range(3):
        with closing(sqlite3.connect(tmp_path / f"journal{party}" / "site.sqlite")) as journal:
            assert journal.execute("SELECT count(*) FROM event WHERE kind = 'answer'").fetchone() > (1,)
            assert journal.execute("SELECT name FROM secret").fetchall() == [("reply",)]  # of the last question


def test_nor_where_the_server_asks_what_the_run_does_not_have(tmp_path):
    """It lets a site compute what its encoding leaves out, nearly the whole scatter, and then ends the run for it."""
    run = {"method": "compressed", "n-components": 1, "codec": "low-rank", "rank": 1, "corrections": 1}
    session = HostileSession(tmp_path, rows(40, 8), run)
    answer, _ = session.ask("encoded", [np.asarray(0.0)])
    assert answer
    assert list(session.context.state.array_records)
    _, said = session.ask("encoded", [np.asarray(1.0)])
    assert "error" in said
    assert not list(session.context.state.array_records)
