"""Runs by post: the same bits as on a network, whatever becomes of the files on their way."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from datetime import timedelta
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import message_from_proto
from flwr.proto import message_pb2
from flwr.serverapp.strategy import FedAvg
from sklearn.datasets import load_wine

from fedpca_flwr import ContractError, PartyError, PCAModel, QuorumError, pooled_pca, principal_angles, site_app
from fedpca_flwr.cli import main
from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.config.site_file import toml_lines
from fedpca_flwr.flower import run_on
from fedpca_flwr.post.files import locked, seal, write
from fedpca_flwr.post.grid import PostGrid
from fedpca_flwr.post.question import PostedQuestion
from fedpca_flwr.site.rules.audit import audit
from fedpca_flwr.strategies import FACTORY, METHODS
from fedpca_flwr.transports.identity import make_key, read_private_key
from fedpca_flwr.transports.recommendation import transports_of
from tests.families import cut, rows
from tests.harness import at_sites, differences, finish, identities, own, server_of, sites_of
from tests.refusals import refused, unnamed

ROOT = Path(__file__).parents[2]
NAMES = ("north", "south", "west", "east")
SITE = {"may-show": "inner products", "rare-values": "allow", "repeat": "allow", "min-rows": 1}
SITE |= {"allowed-methods": ", ".join(METHODS)}
SECURE = {"secure_aggregation": True, "bound": 100.0}


def nodes_of(folder, parties, **keys):
    """Node-configs of sites with files, journals and identities of their own, and their folders."""
    nodes = sites_of(folder, parties, **SITE, **keys)
    for party, (node, name, identity) in enumerate(zip(nodes, NAMES, identities(len(parties)), strict=False)):
        node |= {"name": name, "partition-id": party, "num-partitions": len(parties), **identity}
        (folder / name).mkdir()
    return nodes


def carry(post, nodes, sites=NAMES, app=site_app.app):
    """Carry questions to these sites, which answer them as `site answer` does, and their replies back."""
    for name, node in zip(NAMES, nodes, strict=False):
        for path in sorted(post.glob(f"to-{name}/*.question")):
            reply = post / f"from-{name}" / f"{path.stem}.reply"
            if name in sites and not reply.exists():
                with contextlib.chdir(post.parent / name):
                    write(reply, seal(PostedQuestion(path, NodeConfig.parse(node)).answer(app, node))[1])


def go_on(post, config, **keywords):
    """Go on as far as the replies permit, and return the model, or None, and the number of exchanges."""
    grid, model = PostGrid(post, NAMES[: config["clients"]], config, **keywords), None
    with contextlib.suppress(SystemExit):
        model = run_on(grid, FACTORY.strategy(config))
    return model, grid.exchange


def by_post(post, nodes, config, *, exchanges=1000):
    """Run to the end, or until the questions of an exchange are written, and return what `go_on` does."""
    while True:
        model, reached = go_on(post, config)
        if model is not None or reached == exchanges:
            return model, reached
        carry(post, nodes)


def config_of(method, clients=3, **options):
    values = {key.replace("_", "-"): value for key, value in options.items()}
    return METHODS.run_config({"method": method, "clients": clients, "n-components": 2, **values})


BY_DAY = {"clear": {"p-cov", "sub-it", "qr-pca", "streaming", "vertical"}, "masked": {"p-cov", "compressed", "dp-pca"}}
RUNS = [
    pytest.param(name, options, marks=() if name in BY_DAY[transport] else pytest.mark.nightly)
    for name, method in METHODS.items()
    for transport, options in {"clear": {}, "masked": SECURE}.items()
    if transport in transports_of(method) and not method.strategy.card.loadings_source
]


@pytest.mark.engine
@pytest.mark.parametrize(("method", "secure"), RUNS)
def test_a_run_by_post_has_the_bits_of_a_run_on_loopback(method, secure, tmp_path):
    by_columns = METHODS[method].strategy.card.split == "columns"
    X, fixed = rows(120, 6), {"mu": 1.0} if method == "personalised" else {}  # else a site's secret chooses rows
    parties = np.split(X, 3, axis=1) if by_columns else cut(X, 50, 40, 30)
    keys = {"split": "columns"} if by_columns else {"epsilon-budget": 100.0} if method == "dp-pca" else {}
    options = {key: value for key, value in own(method).items() if key != "noise_seed"} | secure | fixed
    nodes = nodes_of(tmp_path / "post", parties, **keys)
    model, exchanges = by_post(tmp_path / "post" / "run", nodes, config_of(method, **options))
    server = server_of(method, parties, n_components=2, **secure, **fixed)
    expected = finish(server if method == "dp-pca" else at_sites(server, nodes_of(tmp_path / "twin", parties, **keys)))
    phases = [[entry["phase"] for entry in one.log["rounds"]] for one in (model, expected)]
    assert phases[0] == phases[1]
    assert exchanges == 1 + len(phases[0])
    assert model.log["provenance"]["began"] == json.loads((tmp_path / "post" / "run" / "run.json").read_text())["began"]
    assert method == "dp-pca" or differences(model, expected) == []  # its noise is drawn anew


PARTIES = cut(rows(90, 4), 30, 30, 30)
CONFIG = config_of("p-cov")


@pytest.fixture
def begun(tmp_path):
    """Sites, and a run whose second question is written."""
    nodes, post = nodes_of(tmp_path, PARTIES), tmp_path / "run"
    by_post(post, nodes, CONFIG, exchanges=2)
    return nodes, post


def resealed(path, change, key=None):
    """Return the content of a message's file, changed by somebody who seals it again."""
    message = message_from_proto(message_pb2.Message.FromString(path.read_bytes()))
    change(message.content)
    return seal(message, key)[1]


def without_content(path):
    sealed = message_pb2.Message.FromString(path.read_bytes())
    sealed.ClearField("content")
    path.write_bytes(sealed.SerializeToString())


def of_another_run(path):
    other = path.parents[2] / "other" / "run"
    nodes = nodes_of(other.parent, PARTIES)
    by_post(other, nodes, CONFIG, exchanges=2)
    carry(other, nodes)
    shutil.copy(other / "from-north" / path.name, path)


FAULTS = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-20]),
    "without content": without_content,
    "changed": lambda path: path.write_bytes(path.read_bytes().replace(b"simulated", b"simulatEd")),
    "empty": lambda path: path.write_bytes(b""),
    "swapped": lambda path: shutil.copy(str(path).replace("north", "south"), path),
    "of the exchange before": lambda path: shutil.copy(next(path.parent.glob("run-01*")), path),
    "of another run": of_another_run,
    "changed after its use": lambda path: path.write_bytes(
        resealed(path, lambda content: content["metrics"].update({"num-examples": 31}))
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_reply_is_named_with_its_site(fault, begun, capsys):
    nodes, post = begun
    by_post(post, nodes, CONFIG, exchanges=3 if fault.endswith("its use") else 2)
    carry(post, nodes)
    path, record = post / "from-north" / "run-02-north-moments.reply", (post / "run.json").read_bytes()
    copy = Path(shutil.copy(path, path.with_name("a copy.reply")))
    FAULTS[fault](path)
    with refused(ContractError, path.name, "north", *["south"] * (fault == "swapped")):
        go_on(post, CONFIG)
    assert (post / "run.json").read_bytes() == record
    shutil.copy(copy, path)
    assert by_post(post, nodes, CONFIG, exchanges=3)[1] == 3
    carry(post, nodes)
    capsys.readouterr()
    assert command("post", "continue", post) == 0
    assert unnamed(capsys.readouterr().out, copy.name, "of north") == []


def test_another_question_than_before_writes_nothing_and_one_of_two_commands_waits(begun):
    nodes, post = begun
    codes, thread = [], threading.Thread(target=lambda: codes.append(command("post", "continue", post)))
    with locked(post):
        thread.start()
        thread.join(1)
        assert thread.is_alive()
    thread.join()
    assert codes == [3]
    carry(post, nodes)
    record = json.loads((post / "run.json").read_text())
    record["run-config"]["n-components"] = 3
    (post / "run.json").write_text(json.dumps(record))
    before = {path: path.read_bytes() for path in post.rglob("*") if path.is_file()}
    with refused(ContractError, "exchange 1", *NAMES[:3]):
        go_on(post, CONFIG)
    assert {path: path.read_bytes() for path in post.rglob("*") if path.is_file()} == before


def command(*words):
    try:
        return main([str(word) for word in words])
    except SystemExit as end:
        return end.code


def site_file(folder, node, **keys):
    path = folder / node["name"] / "site.toml"
    path.write_text(f"[site]\n{toml_lines({**node, **keys})}")
    return path


def test_a_site_answers_no_question_that_is_not_its_own(tmp_path, capsys):
    (node, *_), post, key = nodes_of(tmp_path, PARTIES), tmp_path / "run", tmp_path / "key"
    public = make_key(str(key), 0).split()[1]
    assert command("post", "start", post, "--sites", "north, south, west", "--key", key, "--name", "Ada") == 3
    path, plain = post / "to-north" / "run-01-north-statement.question", site_file(tmp_path, node).read_text()
    config = site_file(tmp_path, node, **{"coordinator-key": public, "max-reply-bytes": 1000})
    assert command("site", "answer", path, "--config", config, "--yes") == 0
    assert "Ada (proved" in capsys.readouterr().out
    signer, unsigned = read_private_key(str(key)), path.with_name("plain.question")
    old = resealed(path, lambda content: content["post"].update({"version": "0.1.7"}), signer)
    for file, content, name in (
        (path.with_name("changed.question"), path.read_bytes().replace(b"Ada", b"Eve"), "north"),
        (path.with_name("large.question"), bytes(2**21 + 1001), "2,098,153"),
        (unsigned, resealed(path, lambda content: None), "'coordinator-key'"),
        (path.with_name("old.question"), old, "0.1.7"),
        (other := post / "to-south" / "run-01-south-statement.question", other.read_bytes(), "'south'"),
    ):
        file.write_bytes(content)
        assert command("site", "answer", file, "--config", config, "--yes") == 2
        assert unnamed(capsys.readouterr().err, file.name, "north", name) == []
        assert not file.with_suffix(".reply").exists()
    config.write_text(plain)
    assert command("site", "answer", unsigned, "--config", config, "--yes") == 0
    assert command("post", "continue", post) == 2  # with the run's key only


def test_the_same_question_gets_the_same_reply_with_consent(begun, tmp_path, capsys, monkeypatch):
    """The first question is about computing, the second about the file; an earlier question may come again."""
    nodes, post = begun
    path = Path(shutil.copy(post / "to-north" / "run-02-north-moments.question", tmp_path / "north"))
    words, reply = ("site", "answer", path, "--config", site_file(tmp_path, nodes[0])), path.with_suffix(".reply")
    journal = Path(nodes[0]["journal"])
    for consents, questions in ((["n"], 0), (["y", "n"], 1)):
        monkeypatch.setattr("builtins.input", lambda text, consents=consents: consents.pop(0))
        assert command(*words) == 1
        assert not reply.exists()
        assert [run["questions"] for run in audit(journal).runs()] == [questions] * (questions > 0)
    assert unnamed(capsys.readouterr().out, "not proved", "moments", "scatter", "covariance matrix") == []
    carry(post, nodes)
    assert by_post(post, nodes, CONFIG)[1] == 3
    assert command(*words, "--yes") == 0
    assert reply.read_bytes() == (post / "from-north" / reply.name).read_bytes()
    assert audit(journal).runs()[0]["status"] == "completed"
    assert os.name != "posix" or (tmp_path / "north" / "post").stat().st_mode & 0o777 == 0o700


def test_a_run_by_post_has_no_deadline_until_it_is_forgotten(tmp_path, monkeypatch):
    """Other runs begin meanwhile, and would take the secrets of a silent run on a network."""
    for module in ("journal", "audit"):  # whatever was before today is long ago
        monkeypatch.setattr(f"fedpca_flwr.site.rules.{module}.SECRETS_TIMEOUT", timedelta(days=-1))
    nodes, secure = nodes_of(tmp_path, PARTIES), config_of("p-cov", **SECURE)
    posts = [tmp_path / "run", tmp_path / "gone"]
    journal, config = Path(nodes[0]["journal"]), site_file(tmp_path, nodes[0])
    for post in posts:
        by_post(post, nodes, secure, exchanges=3)
    finish(at_sites(server_of("p-cov", PARTIES, n_components=2, **SECURE), nodes))
    assert [run["status"] for run in audit(journal).runs()] == ["running", "running", "completed"]
    run = PostGrid(posts[1]).run.run_id
    assert command("site", "forget", run, "--config", config) == 0
    assert audit(journal).runs()[1]["ended"] == "forgotten"
    assert command("site", "forget", run, "--config", config) == 2
    assert by_post(posts[0], nodes, secure)[1] == 4
    question = posts[1] / "to-north" / "gone-03-north-moments.question"
    assert command("site", "answer", question, "--config", config, "--yes") == 1
    carry(posts[1], nodes)
    with refused(PartyError, "client 0 (north)"):
        go_on(posts[1], secure)


@pytest.mark.parametrize(
    ("options", "exchange", "clients"),
    [({"minimum": 2}, 1, 3), ({**SECURE, "survivors": 3}, 4, 4), ({}, 2, 3)],
    ids=str,
)
def test_a_silent_site_is_left_out_where_the_run_permits_it(options, exchange, clients, tmp_path, capsys):
    parties = cut(rows(30 * clients, 4), *[30] * clients)
    nodes, post, config = nodes_of(tmp_path, parties), tmp_path / "run", config_of("p-cov", clients, **options)
    by_post(post, nodes, config, exchanges=exchange)
    others = [name for name in NAMES[:clients] if name != "west"]
    carry(post, nodes, others[1:])
    assert go_on(post, config, without=["west"])[1] == exchange  # waits for the others
    carry(post, nodes, others)
    record = (post / "run.json").read_bytes()
    if not options:
        with refused(QuorumError, "client 2 (west)"):
            go_on(post, config, without=["west"])
        assert (post / "run.json").read_bytes() == record
        assert by_post(post, nodes, config)[0].n_samples_ == 90
        return
    assert go_on(post, config, without=["west"])[1] == exchange + 1
    assert json.loads((post / "run.json").read_text())["left out"] == {"west": exchange}
    carry(post, nodes)  # west has replied at last
    capsys.readouterr()
    model, _ = by_post(post, nodes, config)
    assert f"run-0{exchange}-west-" in capsys.readouterr().out
    assert [party["name"] for party in model.log["parties"]] == others
    expected = pooled_pca(np.vstack([part for part, name in zip(parties, NAMES, strict=False) if name in others]), 2)
    assert principal_angles(model, expected).max < 1e-6


def test_the_command_line_refuses_what_a_run_by_post_has_not(tmp_path, capsys):
    sites, post = ("--sites", "north, south, west"), tmp_path / "run"
    for words, named in (
        ((*sites, "--method", "sub-it"), ["'sub-it'", 30, "--many"]),
        ((*sites, "--run-config", "output='x' clients=2"), ["'clients'", "'output'"]),
        *((("--sites", names), [named]) for names, named in (("north, a/b", "'a/b'"), ("St Mary, St_Mary", "St_Mary"))),
    ):
        assert command("post", "start", post, *words) == 2
        assert unnamed(capsys.readouterr().err, *named) == []
    assert not (post / "run.json").exists()
    assert command("post", "start", post, *sites, "--method", "sub-it max-rounds=9") == 3
    assert command("post", "start", post, *sites) == 2
    assert command("post", "continue", post, "--without", "east") == 2
    assert command("post", "continue", tmp_path / "none") == 2


def test_any_strategy_of_flower_runs_by_post(tmp_path):
    """FedAvg asks sites in a drawn order, and its client keeps a state."""
    nodes, post, app = nodes_of(tmp_path, PARTIES), tmp_path / "run", ClientApp()

    @app.train()
    def train(message, context):
        times = context.state.setdefault("times", MetricRecord({"n": 0}))
        times["n"] += 1
        values = message.content["arrays"]["w"].numpy() / 3 + times["n"] * context.node_config["partition-id"]
        content = {"arrays": ArrayRecord({"w": Array(values)}), "metrics": MetricRecord({"num-examples": times["n"]})}
        return Message(RecordDict(content), reply_to=message)

    for _ in range(4):  # three exchanges, and the end
        with contextlib.suppress(SystemExit):
            strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=3, min_available_nodes=3)
            result = strategy.start(PostGrid(post, NAMES[:3]), ArrayRecord({"w": Array(np.ones(2))}), num_rounds=3)
        carry(post, nodes, app=app)
    np.testing.assert_allclose(result.arrays["w"].numpy(), 1 / 27 + 1 / 9 + 2 / 3 + 3)


@pytest.mark.nightly
def test_the_commands_of_the_page_give_the_pooled_model(tmp_path):
    wine, page = load_wine(as_frame=True), (ROOT / "docs" / "post.md").read_text(encoding="utf-8")
    lines = re.findall(r"^```bash\n(.*?)^```", page, re.M | re.S)[0].splitlines()
    members = []
    for party, name in enumerate(NAMES[:3]):
        (tmp_path / name).mkdir()
        wine.data[wine.target == party].to_csv(tmp_path / name / "wine.csv", index=False)
        members.append(make_key(str(tmp_path / name / "key"), party, name))
        keys = {"partition-id": party, "num-partitions": 3, "name": name, "data": "wine.csv", "journal": "journal"}
        site_file(tmp_path, {**keys, "identity": "key", "identities": "../identities"})
    (tmp_path / "identities").write_text("\n".join(members))
    bash = partial(subprocess.run, cwd=tmp_path, executable=shutil.which("bash"), shell=True, check=False)
    folder = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    codes = [bash(lines[0], env={**os.environ, **folder}).returncode]
    while codes[-1] == 3:
        codes.append(bash("\n".join([f"n=0{len(codes)}", *lines[2:]]), env={**os.environ, **folder}).returncode)
    assert codes == [3, 3, 3, 3, 0]
    model, expected = PCAModel.load(tmp_path / "wine" / "model"), pooled_pca(wine.data, 2, scale=True)
    assert principal_angles(model, expected).max < 1e-6
    assert command("audit", tmp_path / "wine", *(tmp_path / name / "journal" for name in NAMES[:3])) == 0
    assert all((tmp_path / name / "post").stat().st_mode & 0o077 == 0 for name in NAMES[:3])
