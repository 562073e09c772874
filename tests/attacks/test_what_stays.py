"""Whoever looks into a site's SuperNode after a run: what Flower kept there for the run holds nothing of the rows."""

import sqlite3
from contextlib import closing

import numpy as np
import pytest

from tests.families import rows
from tests.harness import at_sites, context_of, finish, server_of
from tests.hostile import HostileSession

SECURE = {"secure_aggregation": True, "bound": 40.0}
RUNS = {
    "compressed": {"codec": "low-rank", "rank": 2, "corrections": 2},
    "sub-it": {"warm_start": "svd"},
    "dsa": {},
    "fast-pca": {},
    "personalised": {},
    "sapca": {"topology": "tree"},
    "adaptive": {},
}


def kept_of(server, party):
    return list(context_of(server, party).state.array_records)


def at_own_files(folder, method, parts, **options):
    nodes = []
    for party, part in enumerate(parts):
        np.save(folder / f"{party}.npy", part)
        own = {"journal": str(folder / f"journal {party}"), "may-show": "scores", "min-rows": 5}
        nodes.append({"data": str(folder / f"{party}.npy"), **own})
    return at_sites(server_of(method, parts, n_components=2, **options), nodes)


@pytest.mark.parametrize(("method", "options"), RUNS.items(), ids=RUNS)
def test_nothing_of_the_rows_stays_when_a_run_has_ended(method, options, tmp_path):
    server = at_own_files(tmp_path, method, [rows(60, 8, seed=seed) + seed for seed in range(3)], **options)
    finish(server)
    assert [kept_of(server, party) for party in range(3)] == [[], [], []]


@pytest.mark.engine
def test_nor_of_secure_sums(tmp_path):
    server = at_own_files(tmp_path, "sub-it", [rows(60, 8, seed=seed) for seed in range(3)], **SECURE)
    finish(server)
    assert [kept_of(server, party) for party in range(3)] == [[], [], []]
    for party in range(3):
        with closing(sqlite3.connect(tmp_path / f"journal {party}" / "site.sqlite")) as journal:
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
