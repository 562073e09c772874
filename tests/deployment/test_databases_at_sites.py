"""A deployment whose sites hold a file, a DuckDB database and a PostgreSQL one: the bits of three files."""

import json

import numpy as np
import pytest

from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.site.readers import read
from simulations import run
from simulations.benchmarks.postgresql_server import programs, running
from tests.deployment.lab import Lab, told
from tests.families import cut, rows
from tests.needed import need

psycopg = pytest.importorskip("psycopg", reason="needs the extra 'sql'")
duckdb = pytest.importorskip("duckdb", reason="needs the extra 'sql'")

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("ignore")]

NAMES = [f"marker_{j}" for j in range(12)]


def query(names):
    return f"SELECT {', '.join(names)} FROM visit ORDER BY id"


def fill(connection, X):
    """A table of these rows, the last of them first."""
    columns = ", ".join(f"{name} double precision" for name in NAMES)
    connection.execute(f"CREATE TABLE visit (id integer, {columns})")
    for i in reversed(range(len(X))):
        connection.execute(f"INSERT INTO visit VALUES ({i}, {', '.join(repr(float(x)) for x in X[i])})")


@pytest.fixture
def server():
    need(programs(), "postgresql")
    with running() as server:
        yield server


def test_sites_with_databases_give_the_bits_of_files(server, tmp_path, monkeypatch):
    monkeypatch.setenv("PGPASSFILE", str(server.passfile))
    parts = cut(rows(240, 12) * 10.0 ** np.arange(-6, 6), 120, 70, 50)
    files = [tmp_path / f"site{i}.csv" for i in range(3)]
    for file, X in zip(files, parts, strict=True):
        np.savetxt(file, X, delimiter=",", header=",".join(NAMES), comments="", fmt="%.17g")
    with duckdb.connect(tmp_path / "cohort.duckdb") as connection:
        fill(connection, parts[1])
    with psycopg.connect(server.url, password=server.password) as connection:
        fill(connection, parts[2])
    sources = [
        {"data": str(files[0])},
        {"data": f"duckdb:///{tmp_path}/cohort.duckdb", "query": query(NAMES)},
        {"data": server.url, "query": query(NAMES[::-1])},  # brought into the order that the run names
    ]
    own = [
        {
            "partition-id": i,
            "num-partitions": 3,
            "scores": str(tmp_path / f"{i}.npy"),
            "journal": str(tmp_path / str(i)),
        }
        for i in range(3)
    ]
    asked = {"n_components": 4, "scale": True}
    with Lab(tmp_path / "flower", [site | source for site, source in zip(own, sources, strict=True)]) as lab:
        status, log = lab.run(told("p-cov", **asked, features=", ".join(NAMES), output=str(tmp_path / "model")))
        assert status == "finished:completed", log
        deployed = PCAModel.load(tmp_path / "model")
        local = run("p-cov", [read(str(file)).rows for file in files], **asked)
        for name in ("components_", "mean_", "scale_", "explained_variance_"):
            assert getattr(deployed, name).tobytes() == getattr(local, name).tobytes(), name
        assert list(deployed.feature_names_in_) == NAMES
        for i, X in enumerate(parts):
            np.testing.assert_array_equal(np.load(own[i]["scores"]), local.transform(X))
        with psycopg.connect(server.url, password=server.password) as connection:
            connection.execute("ALTER TABLE visit RENAME TO visits")
        status, log = lab.run(f"output={json.dumps(str(tmp_path / 'other'))}")
        assert status == "finished:failed"
        assert "client 2: node-config: the database refuses the 'query'" in log
        logs = log + "".join(lab.log_of(name) for name in ("superlink", "node0", "node1", "node2"))
        assert server.password not in logs
        assert 'relation "visit" does not exist' in lab.log_of("node2")
        assert "relation" not in log + lab.log_of("superlink")
