"""A real SuperLink and two SuperNodes: the bits of loopback, of a file, a database and columns, and faults by name."""

import json
import os
import re
import shutil
import signal
import threading
from contextlib import nullcontext

import duckdb
import numpy as np
import psycopg
import pytest

from fedpca_flwr import run
from fedpca_flwr.errors import FedPCAError
from fedpca_flwr.model.loadings import Loadings
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.reference import pooled_pca, principal_angles
from fedpca_flwr.protocol.fleet import require_registered
from fedpca_flwr.site.node.certificates import make_node_key
from fedpca_flwr.site.node.deployment import HOST, make_site_configs, write_site_files
from fedpca_flwr.strategies import METHODS
from tests.deployment.lab import ROOT, Lab, told
from tests.deployment.postgresql import programs, running
from tests.families import cut, rows
from tests.harness import differences
from tests.needed import need
from tests.refusals import refused

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("ignore")]
HOSPITALS = cut(rows(400, 20) + np.arange(20), 250, 150)
BANKS = np.split(rows(120) + np.arange(12), [8], axis=1)
NAMES = [f"marker_{j}" for j in range(20)]


@pytest.fixture(scope="module")
def database():
    with running() if programs() else nullcontext() as server:
        yield server


@pytest.fixture(scope="module")
def tables(tmp_path_factory, database):
    """Return the node-configs of a hospital with a file, and one with PostgreSQL or, where that is not, DuckDB."""
    folder = tmp_path_factory.mktemp("hospitals")
    nodes = make_site_configs(folder, "hospital", write_site_files(folder, NAMES, HOSPITALS))
    url = database.url if database else f"duckdb:///{folder}/cohort.duckdb"
    opened = psycopg.connect(url, password=database.password) if database else duckdb.connect(folder / "cohort.duckdb")
    with opened as connection:
        connection.execute(f"CREATE TABLE visit (id integer, {', '.join(f'{name} float8' for name in NAMES)})")
        for i, row in reversed([*enumerate(HOSPITALS[1].tolist())]):
            connection.execute(f"INSERT INTO visit VALUES ({i}, {', '.join(map(repr, row))})")
    columns = ", ".join(reversed(NAMES))  # brought into the order that the run names
    nodes[1] |= {"data": url, "query": f"SELECT {columns} FROM visit ORDER BY id"}
    rules = {"min-rows": 40, "min-parties": 2, "allowed-methods": " ".join(METHODS.keys() - {"ap-cov"})}
    return [{**node, **rules, "loadings": str(folder / f"own{i}.npz")} for i, node in enumerate(nodes)]


@pytest.fixture(scope="module")
def lab(tmp_path_factory, tables, database):
    lab = Lab(tmp_path_factory.mktemp("lab") / "flower", tables)
    lab.environment["PGPASSFILE"] = str(database.passfile if database else "")
    with lab:
        yield lab


@pytest.fixture
def hospitals(lab, tables):
    return lab.with_sites(tables)


@pytest.fixture
def banks(lab, tmp_path):
    """Return the same SuperNodes as those of banks, with different columns of the same rows."""
    rules, nodes = {"num-partitions": 2, "split": "columns", "may-show": "inner products"}, []
    for i, columns in enumerate(BANKS):
        np.save(tmp_path / f"data{i}.npy", columns)
        files = {key: str(tmp_path / f"{key}{i}.npy") for key in ("data", "scores")}
        files["loadings"] = str(tmp_path / f"loadings{i}.npz")
        nodes.append({"name": f"bank {i}", "partition-id": i, **rules, **files})
    return lab.with_sites(nodes)


def deployed(lab, method, folder, **options):
    status, log = lab.run(told(method, **options, output=str(folder / "model")))
    assert status == "finished:completed", log
    return PCAModel.load(folder / "model"), log


OF_MARKERS = {"features": ", ".join(NAMES), "n_components": 5}
SECURE = {"secure_aggregation": True, "bound": 100.0}
SPY = """
import pathlib, sys
with pathlib.Path({record!r}).open("a") as stream:
    print(" ".join(sys.orig_argv), file=stream)
"""


def test_a_file_and_a_database_give_the_bits_of_loopback_and_the_archive_no_code(lab, tables, tmp_path, monkeypatch):
    """The app notes who runs code of its archive, its own or of libraries."""
    app, record = tmp_path / "app", tmp_path / "record"
    for part in ("fedpca_flwr", "strategies", "simulations"):
        shutil.copytree(ROOT / part, app / part, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("README.md", "LICENSE", "hatch_build.py"):
        shutil.copy(ROOT / file, app)
    settings = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (app / "pyproject.toml").write_text(settings.replace("fab-include = [", 'fab-include = ["*.py", '))
    modules = (f"fedpca_flwr/{module}" for module in ("site_app", "protocol/client", "site/rows/vault"))
    for module in (*modules, "pyarrow", "psycopg", "duckdb"):
        with open(app / f"{module}.py", "a", encoding="utf-8") as stream:
            stream.write(SPY.format(record=str(record)))
    monkeypatch.setattr(lab, "app", app)
    model, log = deployed(lab.with_sites(tables), "p-cov", tmp_path, **OF_MARKERS, **SECURE)
    assert not differences(model, run("p-cov", HOSPITALS, n_components=5, min_parties=2, **SECURE))
    assert principal_angles(model, pooled_pca(np.vstack(HOSPITALS), 5)).max <= 1e-6
    assert list(model.feature_names_in_) == NAMES
    assert [party["name"] for party in model.log["parties"]] == ["hospital 0", "hospital 1"]
    assert "secure aggregation    pairwise masks, 2 sites" in log
    for site, X in zip(tables, HOSPITALS, strict=True):
        scores = np.loadtxt(site["scores"], delimiter=",", skiprows=1)
        np.testing.assert_allclose(scores, model.transform(X), atol=1e-12)
    programs = record.read_text().splitlines()
    assert programs
    assert all("flwr-serverapp" in program for program in programs), programs


def test_a_site_that_refuses_is_named_on_both_sides(hospitals, tmp_path):
    status, log = hospitals.run(told("ap-cov", output=str(tmp_path / "model")))
    assert status == "finished:failed"
    refusal = "this site does not allow the method 'ap-cov'"
    line = re.search(rf"DisclosureError: (client .*): {refusal}", log)
    assert line, log
    sites = re.findall(r"client (\d) \(hospital \1\)", line[1])  # those that were asked before the run ended
    assert sites, log
    assert all(refusal in hospitals.read_log(f"node{site}") for site in sites)
    assert not list(tmp_path.iterdir())


@pytest.mark.nightly
def test_no_log_has_the_password_of_a_database(hospitals, database):
    need(database, "postgresql")
    with psycopg.connect(database.url, password=database.password) as connection:
        connection.execute("ALTER TABLE visit RENAME TO visits")
        connection.commit()
        status, log = hospitals.run("output='other'")
        connection.execute("ALTER TABLE visits RENAME TO visit")
    assert status == "finished:failed"
    assert "client 1 (hospital 1): node-config: the database refuses the 'query'" in log
    logs = {name: hospitals.read_log(name) for name in ("superlink", "node0", "node1")}
    assert database.password not in log + "".join(logs.values())
    assert 'relation "visit" does not exist' in logs["node1"]
    assert "relation" not in log + logs["superlink"]


@pytest.mark.nightly
def test_a_site_that_is_offline_is_an_error_within_the_deadline(hospitals, tmp_path):
    hospitals.processes["node1"].terminate()
    hospitals.processes["node1"].wait()
    status, log = hospitals.run(f"join-deadline=25.0 output={json.dumps(str(tmp_path / 'model'))}")
    assert status == "finished:failed"
    assert "QuorumError: 1 of 2 clients joined within join-deadline = 25 s" in log
    assert not list(tmp_path.iterdir())


@pytest.mark.nightly
@pytest.mark.parametrize(("question", "is_killed"), [(2, False), (1, True), (2, True), (3, True)])
def test_a_site_that_is_away_for_a_while_ends_nothing(question, is_killed, hospitals, tmp_path):
    """The fault: the SuperLink gives a question up once a node's heartbeats have stopped, and the run ended with it."""
    group, options = os.getpgid(hospitals.processes["node1"].pid), {"tolerance": 1e-9, "round_deadline": 400.0}
    returns = []

    def leave(line):
        if f"round {question} of" in line and not returns:
            if is_killed:  # the SuperLink takes a dead node for online, and refuses it, for about a minute
                hospitals.kill_node(1)
                returns.append(threading.Timer(66, hospitals.spawn_site, (1,)))
            else:
                os.killpg(group, signal.SIGSTOP)
                returns.append(threading.Timer(90, os.killpg, (group, signal.SIGCONT)))
            returns[0].start()

    settings = told("sub-it", **OF_MARKERS, output=str(tmp_path / "model"), **options)
    status, log = hospitals.run(settings, on_line=leave)
    assert status == "finished:completed", log
    assert not differences(PCAModel.load(tmp_path / "model"), run("sub-it", HOSPITALS, n_components=5, **options))


@pytest.mark.nightly  # what a site of columns keeps; how its messages go is seen above
def test_columns_give_the_bits_of_loopback(banks, tmp_path):
    options = {"solver": "gram", "scale": True, "n_components": 3}
    model, _ = deployed(banks, "vertical", tmp_path, **options)
    assert not differences(model, run("vertical", BANKS, **options))
    for site, columns in zip(banks.node_configs, BANKS, strict=True):
        np.testing.assert_allclose(np.load(site["scores"]), model.scores_, atol=1e-12)
        assert Loadings.load(site["loadings"]).components.shape == (3, columns.shape[1])
        np.save(site["scores"], np.empty(0))
    again, _ = deployed(banks, "vertical-scores", tmp_path / "again")
    for scores in (again.scores_, np.load(banks.node_configs[1]["scores"])):
        np.testing.assert_allclose(scores, model.scores_, atol=1e-10)


@pytest.mark.nightly
def test_a_doctor_checks_a_key_and_activates_no_node(lab, tmp_path):
    def online():
        nodes = lab.flwr.list_json("supernode", "list", "lab")["nodes"]
        return {node["node-id"] for node in nodes if node["status"] == "online"}

    link, ca, key = f"{HOST}:{lab.port}", lab.folder / "ca.crt", tmp_path / "site"
    public = make_node_key(key)
    with refused(FedPCAError, link, key, "site.pub"):
        require_registered(link, ca, key)
    before = online()
    lab.flwr("supernode", "register", str(public), "lab")
    require_registered(link, ca, key)
    assert online() == before
