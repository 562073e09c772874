"""What is said of a run: by its strategy, and to a watcher of a server or a site, in a form that Prometheus reads."""

import itertools
import json
import math
import re
import sys
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import yaml
from flwr.app import Context, RecordDict
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from fedpca_flwr import server_app
from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.errors import ConfigError, QuorumError
from fedpca_flwr.maths.privacy import gaussian_epsilon
from fedpca_flwr.model.solution import Certainty
from fedpca_flwr.protocol import metrics, strategy
from fedpca_flwr.protocol.provenance import describe_run
from fedpca_flwr.site.node import metrics as site_metrics
from fedpca_flwr.site.rules.accounts import Release
from fedpca_flwr.site.rules.audit import Audit
from fedpca_flwr.site.rules.chain import Event
from fedpca_flwr.strategies import FACTORY, METHODS
from tests.families import cut, rows
from tests.harness import context_of, fail_at, finish, server_of, tamper
from tests.hostile import HostileSession
from tests.refusals import refused

EXACT, OVER = 1e-6, float(np.nextafter(1e-6, 1))  # degrees


def samples(file):
    """Return the samples of a file by name and labels, as Prometheus reads them."""
    families = text_string_to_metric_families(file.read_text())
    found = [sample for family in families for sample in family.samples]
    return {(sample.name, sample.labels.pop("at"), *sample.labels.values()): sample.value for sample in found}


def of_server(monkeypatch, folder, change=lambda server: None, method="p-cov", **options):
    server = server_of(method, cut(rows(60), 40, 20), n_components=2, metrics=str(folder / "run"), **options)
    context_of(server, 1).node_config["name"] = "south"
    change(server)
    monkeypatch.setattr(server_app, "FACTORY", SimpleNamespace(strategy=lambda config: server.strategy))
    monkeypatch.setattr(server_app, "run_on", lambda grid, strategy: finish(server))
    server_app.main(None, Context(1, 0, {}, RecordDict(), {}))


def test_metrics_are_of_the_latest_run_and_of_all_and_a_full_disk_ends_none(tmp_path, monkeypatch):
    """A watcher sees that a run goes on and when it changed; a damaged line neither ends a run nor stops counting."""
    seen, before, file = [], time.time() - 1, tmp_path / "run.prom"
    look = partial(tamper, party=0, change=lambda reply: seen.append(samples(file)) or reply)
    of_server(monkeypatch, tmp_path, look, output=str(tmp_path / "one"))
    assert [sample["fedpca_run_active", "server"] for sample in (*seen, samples(file))] == [1, 1, 0]
    with refused(QuorumError, "client 1"):
        of_server(monkeypatch, tmp_path, lambda s: fail_at(s, 1, "project"), output=str(tmp_path / "two"))
    found = samples(file)
    assert before <= found["fedpca_changed_timestamp_seconds", "server"] <= time.time()
    assert found["fedpca_rounds", "server"] == 1  # the second round of the second run never came to its end
    assert found["fedpca_upload_bytes", "server", "client 1 (south)"] > 8 * 10
    assert found["fedpca_waited_seconds", "server", "client 0"] > 0
    assert {key[-1]: found[key] for key in found if key[0] == "fedpca_runs_total"} == {"completed": 1, "failed": 1}
    assert found["fedpca_refusals_total", "server", "QuorumError"] == 1
    lines = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    statuses = [f"{line['status']} {line.get('rounds', 0)}" for line in lines]
    assert statuses == ["running 0", "running 1", "running 2", "completed 2", "running 0", "running 1", "failed 1"]
    assert lines[1]["download_bytes"] == dict.fromkeys(["client 0", "client 1 (south)"], 0)  # nothing but a name
    assert min(lines[1]["upload_bytes"].values()) > 8 * (12 + 12 * 13 / 2)
    with open(tmp_path / "run.jsonl", "ab") as stream:
        stream.write(b'{"status": "comp\n\xff\xfe\n[1]\n"text"\n{}\n{"status": ["failed"], "time": 3}\n')
    of_server(monkeypatch, tmp_path, output=str(tmp_path / "three"))
    assert samples(file)["fedpca_runs_total", "server", "completed"] == 2
    assert (tmp_path / "three.npz").exists()
    fill = partial(monkeypatch.setattr, metrics, "atomic_file", Mock(side_effect=OSError("no space")))
    of_server(monkeypatch, tmp_path, lambda _: fill(), output=str(tmp_path / "model"))
    assert (tmp_path / "model.npz").exists()


def test_a_model_follows_the_last_round_and_the_time_waited_is_that_of_all(monkeypatch):
    """Here each look at the clock is a second after the one before."""
    seconds, seen = itertools.count(0.0), []
    monkeypatch.setattr(strategy, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    server = server_of("p-cov", [rows(30)], n_components=2)
    server.strategy.after_round = lambda: seen.append(server.strategy.done)
    model = finish(server)
    assert (model.rounds, [entry["round"] for entry in model.log["rounds"]], seen) == (1, [1, 2], [False, True])
    assert server.strategy.waiting_seconds == {0: 2.0}
    assert server.strategy.history(Certainty(True, ["b"]), ["a"], {})["notes"] == ["a", "b"]


def test_a_models_log_names_run_app_account_and_versions(monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", lambda name: f"{name} 1")
    monkeypatch.setattr("platform.python_version", lambda: "3")
    run = {"run_id": 7, "fab_id": "lab/app", "fab_version": "2", "fab_hash": "ab", "account_name": "carol"}
    told = describe_run(Mock(run=Mock(**run, starting_at="2030")), "cd")
    versions = {name: f"{name} 1" for name in ("fedpca-flwr", "flwr", "numpy", "scipy")} | {"python": "3"}
    about = {"app": "lab/app 2", "app_hash": "ab", "account": "carol"}
    assert told == {"run": "7", "began": "2030", "settings": "cd", "versions": versions, **about}


def test_an_impossible_file_or_a_missing_package_is_named_first(monkeypatch, tmp_path):
    """By the server before a run; the package by a site, too, whenever it reads its node-config."""

    def begin(metrics, *named):
        values = {"method": "p-cov", "metrics": metrics, "output": str(tmp_path / "model")}
        with refused(ConfigError, *named):
            server_app.main(None, Context(1, 0, {}, RecordDict(), METHODS.run_config(values)))

    monkeypatch.setattr(server_app, "run_on", lambda *_: pytest.fail("there was work"))
    begin("relative", "'metrics'")
    begin("/dev/null/run", "/dev/null")
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    begin(str(tmp_path / "run"), "'metrics'", "'fedpca-flwr[metrics]'")
    node = {"partition-id": 0, "num-partitions": 2, "journal": str(tmp_path)}
    with refused(ConfigError, "'metrics'", "'fedpca-flwr[metrics]'"):
        NodeConfig.parse({**node, "metrics": str(tmp_path / "site")}, source="node-config")
    NodeConfig.parse(node, source="node-config")


def test_a_site_has_the_numbers_of_its_journal(tmp_path, monkeypatch):
    """Before anything is noted, of a question, and of one that it refuses."""
    private = {"method": "dp-pca", "n-components": 2, "epsilon": 0.1, "release": "joint", "clip": 9.0}
    session = HostileSession(tmp_path, rows(40, 3), private, name="north")
    session.context.node_config["metrics"] = str(tmp_path / "site")
    session.client.get_properties({})
    for phase in ("", "joint", "project"):  # nothing is noted at first
        if phase:
            session.ask(phase, [])
        site_metrics.write_metrics(session.context.node_config)
    found = samples(tmp_path / "site.prom")
    assert (found["fedpca_refusals_total", "north", "ContractError"], found["fedpca_rounds", "north"]) == (1, 1)
    assert 0 < found["fedpca_epsilon", "north"] < 0.1
    assert json.loads((tmp_path / "site.jsonl").read_text())["refused"] == "ContractError"
    # A line has no number that JSON does not have.
    record = metrics.Record("2026-01-01", "1", "dp-pca", "completed", epsilon=math.inf)
    assert json.loads(record.line()).keys() == {"time", "run", "about", "status", "rounds"}


def test_a_site_has_numbers_of_its_latest_run_and_counts_of_all(tmp_path, monkeypatch):
    lines = [
        *(("1", "question", "joint", 0), ("1", "release", Release("joint", "add-remove", 5.0).text(), 0)),
        *(("1", "answer", "phase 1 of 1: products", 100), ("1", "completed", "", 0), ("2", "question", "moments", 0)),
        *(("2", "answer", "phase 1 of 2: scatter", 50), ("2", "ended", "DataError", 0)),
        *(("3", "question", "moments", 0), ("3", "answer", "phase 1 of 2: scatter", 7)),
        ("3", "answer", "phase 2 of 2: squared", 8),
    ]
    now, events = datetime.now(UTC), []
    for number, (run, kind, text, size) in enumerate(lines, start=1):
        seconds = timedelta(seconds=len(lines) - number)
        events.append(Event(number, (now - seconds).isoformat(), run, 1, kind, text, "", size, ""))
    monkeypatch.setattr(site_metrics, "audit", lambda folder: Audit(events, 0))
    node = {"partition-id": 1, "num-partitions": 2, "journal": str(tmp_path), "delta-budget": 1e-3}
    site_metrics.write_metrics({**node, "metrics": str(tmp_path / "site")})
    assert samples(tmp_path / "site.prom") == {
        ("fedpca_run_active", "client 1"): 1,
        ("fedpca_changed_timestamp_seconds", "client 1"): pytest.approx(now.timestamp(), abs=0.5),
        ("fedpca_rounds", "client 1"): 1,
        ("fedpca_upload_bytes", "client 1", "client 1"): 15,
        ("fedpca_epsilon", "client 1"): pytest.approx(gaussian_epsilon(5.0, 1e-3)),
        ("fedpca_runs_total", "client 1", "completed"): 1,
        ("fedpca_runs_total", "client 1", "broke off"): 1,
        ("fedpca_refusals_total", "client 1", "DataError"): 1,
    }


def test_the_dashboard_asks_for_numbers_that_there_are(tmp_path, monkeypatch):
    of_server(monkeypatch, tmp_path, method="dp-pca", epsilon=2.0, reference=False, output=str(tmp_path / "model"))
    assert samples(tmp_path / "run.prom")["fedpca_epsilon", "server"] == pytest.approx(2.0, rel=0.05)
    known = set(re.findall(r"^# TYPE (\w+)", (tmp_path / "run.prom").read_text(), re.MULTILINE))
    folder = Path(__file__).parents[2] / "containers"
    dashboard = json.loads((folder / "grafana.json").read_text())
    rules = yaml.safe_load((folder / "alerts.yaml").read_text())["groups"][0]["rules"]
    assert set(re.findall(r"fedpca_\w+?(?=_total\b|\b)", " ".join(rule["expr"] for rule in rules))) <= known
    expressions = " ".join(target["expr"] for panel in dashboard["panels"] for target in panel["targets"])
    assert {name.removesuffix("_total") for name in re.findall(r"fedpca_\w+", expressions)} == known


@pytest.mark.parametrize(
    ("method", "angle", "certified", "exact"),
    [
        *(("sub-it", angle, True, angle <= EXACT) for angle in (0.0, EXACT, OVER, 90.0)),
        ("ap-cov", 0.0, True, False),
        *((method, None, True, method == "qr-pca") for method in ("qr-pca", "qr-pca rank=4", "qr-pca wire='float32'")),
        *((f"compressed tolerance={most}", EXACT, True, True) for most in (1e-6, 1.0)),
        *(("compressed tolerance=0.0", 0.0, True, False), ("compressed tolerance=1e-6", EXACT, False, False)),
        ("compressed tolerance=1e-6", OVER, True, False),
    ],
)
def test_exact_models_are_certified_to_1e_6_degrees(method, angle, certified, exact):
    strategy = FACTORY.strategy(METHODS.run_config({"method": method, "n-components": 2, "clients": 3}))
    if method.startswith("compressed"):
        vars(strategy).update(proven_angle_degrees=angle, variances_certified=certified)
    elif angle is not None:
        strategy.certificate = angle
    assert strategy.exact is exact


@pytest.mark.parametrize(("k", "keep", "columns"), [(2, "nothing", 2), ("auto", "moments", 7), (0.9, "parties", 7)])
def test_a_models_memory_is_its_arrays(k, keep, columns):
    """Moments are a packed triangle, sums and their low halves, of 7 features each; the log takes a MiB."""
    strategy = FACTORY.strategy(METHODS.run_config({"method": "p-cov", "n-components": k, "clients": 3, "keep": keep}))
    strategy.quorum.features = 7
    assert strategy.model_bytes == 8 * 7 * (columns + 8 + 10 * {"nothing": 0, "moments": 1, "parties": 4}[keep]) + 2**20
