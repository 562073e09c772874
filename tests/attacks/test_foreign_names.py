"""Names that whoever holds the server chooses: they forge no line of a site's log, fill no disk and hide no refusal."""

import logging
import shlex
import sqlite3
import sys
from contextlib import closing
from functools import partial

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict

from fedpca_flwr import ConfigError, FedPCA, LocalGrid, client_app
from fedpca_flwr.protocol.admission import MAX_MESSAGE_CHARACTERS
from fedpca_flwr.protocol.messages import QUERY, TRAIN
from fedpca_flwr.protocol.quorum import PCA_KEY
from fedpca_flwr.site import watch
from fedpca_flwr.site.custodian import AppName
from fedpca_flwr.strategies import FACTORY
from tests.hostile import HostileSession

ROWS = np.random.default_rng(0).normal(size=(60, 4)) * [4, 3, 2, 1]
FORGED = "x\n2026-01-01 00:00:00,000 INFO run 7: forged\x1b[2J\u202e\u2028"
LONG = "a" * 200_000
NAMES = ["no such", "", FORGED, LONG, "../../etc", "pca: journal", "$(id)", "\0", 7, [1, 2], b"pca"]
RUN = {"method": "p-cov", "n-components": 2}


def app_of(*names):
    """Return an app with a PCA, and others with these names."""
    app = client_app(lambda context: ROWS, "p-cov", n_components=2)
    for name in names:
        app.add_pca(name, lambda context: ROWS, "p-cov", n_components=2)
    return app


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.INFO, "fedpca_flwr.client")
    return caplog


def assert_single_lines(log):
    lines = [record.getMessage() for record in log.records if record.name.startswith("fedpca_flwr")]
    assert lines
    assert all(line.isprintable() and len(line) <= 4000 for line in lines)


def assert_short_texts(folder):
    with closing(sqlite3.connect(folder / "site.sqlite")) as database:
        texts = [str(cell) for row in database.execute("SELECT run, kind, about FROM event") for cell in row]
    assert all(text.isprintable() and len(text) <= 1000 for text in texts)


def node_of(folder):
    return {"partition-id": 0, "num-partitions": 3, "journal": str(folder / "journal")}


@pytest.mark.parametrize("kind", [QUERY, TRAIN, "get_properties"])
def test_a_pca_that_the_app_lacks_leaves_one_line_in_the_log_and_nothing_else(kind, tmp_path, log):
    read = "['FEDPCA_RUN', 'FEDPCA_REFUSAL']"
    record = f"import os, sys; print(*map(os.environ.get, {read}), file=open(sys.argv[1], 'a'))"
    command = shlex.join([sys.executable, "-c", record, str(tmp_path / "refusals")])
    context = Context(7, 1, {**node_of(tmp_path), "on-refusal": command}, RecordDict(), {})
    names = [name for name in NAMES if kind in (QUERY, TRAIN) or not isinstance(name, list)]  # which Flower refuses
    LocalGrid(app_of(), 1)  # sets the run of this process's messages
    properties = "getpropertiesins.config", "getpropertiesres.properties"
    asked, said = properties if kind == "get_properties" else ("config", "party")
    for name in names:
        content = {asked: ConfigRecord({PCA_KEY: name, "phase": "moments"}), "arrays": ArrayRecord()}
        message = Message(RecordDict(content), 1, kind, ttl=100)
        reply = app_of("second")(message, context).content.config_records[said]
        assert reply["error"] == "ConfigError"
        assert len(reply["message"]) < 400
        assert reply["message"].isprintable()
    assert_single_lines(log)
    assert len(log.records) == len(names)
    assert not context.state
    assert not (tmp_path / "journal").exists()
    assert (tmp_path / "refusals").read_text().splitlines() == ["7 ConfigError"] * len(names)


@pytest.mark.parametrize("name", ["", "a: b", "x\ny", "a" * 65, "ü\u202e", "a/b"])
def test_names_that_no_message_may_have_are_refused_when_they_are_given(name):
    client = partial(client_app, lambda context: ROWS, name=name)
    for give in (partial(FedPCA, "p-cov", name=name), client, partial(app_of, name)):
        with pytest.raises(ConfigError):
            give()


def test_pcas_whose_names_begin_alike_have_states_of_their_own():
    names = ["pca", "pca 2", "pca-2", "PCA", "Überblick_2"]
    grid, own = LocalGrid(app_of(*names[1:]), 3), ConfigRecord({"round": 3})
    grid.contexts[1].state["fedpca of the user"] = own
    assert len([FedPCA("p-cov", name=name, n_components=2, clients=3).start(grid) for name in names]) == len(names)
    assert grid.contexts[1].state["fedpca of the user"] is own


@pytest.mark.parametrize("phase", [FORGED, LONG, "", "\0"])
def test_a_question_of_any_name_is_refused_in_a_short_line(phase, tmp_path, log):
    said = HostileSession(tmp_path, ROWS, RUN).ask(phase, [])[1]
    assert said["error"] == "ContractError"
    assert said["message"].isprintable()
    assert_single_lines(log)
    assert_short_texts(tmp_path / "journal")


@pytest.mark.parametrize("parties", ["0 1 2 \x1b[2J", "0 1 2 x", " ".join(map(str, range(60_000)))])
def test_the_parties_that_a_server_names_swell_no_journal(parties, tmp_path, log):
    for run_id in range(1, 6):
        session = HostileSession(tmp_path, ROWS, {**RUN, "minimum": 2}, run_id=run_id)
        session.client.fit([], {"phase": "moments", "parties": parties})
    assert_single_lines(log)
    assert (tmp_path / "journal" / "site.sqlite").stat().st_size < 200_000


CONFIGS = [
    *[{key: FORGED} for key in ("weights", "dataset", "levels")],
    *[{"method": method} for method in (f'p-cov "{FORGED}"', f'"{FORGED}"', "p-cov " + "associate=x " * 800)],
    *[{FORGED: 1}, {LONG: 1}, {"partition": LONG}],
    *[{"features": features} for features in (",".join(["a", FORGED, LONG] * 2), f"a,b,c,{LONG}")],
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: next(iter(config))[:8])
def test_a_run_config_writes_short_lines_into_log_and_journal(config, tmp_path, log):
    np.save(tmp_path / "rows.npy", ROWS)
    node = node_of(tmp_path) | ({} if "dataset" in config else {"data": str(tmp_path / "rows.npy")})
    context = Context(7, 1, node, RecordDict(), {**RUN, **config})
    assert len(FACTORY.client(context).get_properties({})["message"]) <= MAX_MESSAGE_CHARACTERS
    assert_single_lines(log)
    assert_short_texts(tmp_path / "journal")


@pytest.mark.parametrize("run", [FORGED, LONG, "\0"])
def test_no_name_of_a_run_keeps_the_sites_command_from_running(run, tmp_path, log):
    record = tmp_path / "record"
    command = "import os, sys; open(sys.argv[1], 'w').write(os.environ['FEDPCA_RUN'])"
    watch.run_on_refusal(shlex.join([sys.executable, "-c", command, str(record)]), run, "ConfigError")
    assert record.read_text().isprintable()
    assert not log.records


@pytest.mark.skipif(sys.platform != "linux", reason="sites have a process of their own on Linux")
@pytest.mark.parametrize("text", [FORGED, LONG])
def test_the_app_of_a_run_is_named_in_a_short_line(text, tmp_path, monkeypatch):
    node = pytest.importorskip("fedpca_flwr.site.node.process", reason="needs Flower's SuperExec")
    from tests.site.node.test_node import site_of

    monkeypatch.setattr(AppName, "text", "")
    refusal = node.SiteProcess(site_of(tmp_path), tmp_path, lambda refusal: refusal).load_app(text, text, "ab" * 32)
    node.held_rows.resident = None
    for shown in (str(refusal), AppName.text):
        assert shown.isprintable()
        assert len(shown) < 1000
