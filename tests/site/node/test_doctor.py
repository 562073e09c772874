"""What `site doctor` says of a site before its first run."""

import json
import os
import re
import ssl
import threading
import time
import tomllib
from http.server import HTTPServer, SimpleHTTPRequestHandler
from importlib import metadata
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from fedpca_flwr import site_app
from fedpca_flwr.cli import main
from fedpca_flwr.config.site_file import read_site_file, toml_lines
from fedpca_flwr.protocol import memory
from fedpca_flwr.site import held_rows
from fedpca_flwr.site.node import doctor
from fedpca_flwr.site.node.certificates import make_certificates
from fedpca_flwr.transports.identity import make_key
from tests.families import rows
from tests.site.rules.test_audit import changed, written

TOPICS = ["versions", "node-config", "start", "owner", "identity", "journal", "rules", "rows and run"]
FILES = {"data": "rows.npy", "identity": "key1", "identities": "identities", "journal": "journal"}


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "START_PROGRAM", "pass")
    np.save(tmp_path / "rows.npy", rows(40, 6))
    lines = [make_key(str(tmp_path / f"key{party}"), party) for party in range(3)]
    (tmp_path / "identities").write_text("\n".join(lines), encoding="utf-8")
    written(tmp_path / "journal")
    return {"partition-id": 1, "num-partitions": 3} | {key: str(tmp_path / name) for key, name in FILES.items()}


def write_site_file(folder, site, **connection):
    (folder / "site.toml").write_text(f"[supernode]\n{toml_lines(connection)}[site]\n{toml_lines(site)}")
    return folder / "site.toml"


@pytest.fixture
def examined(site, capsys):
    def of(changes=(), *arguments):
        config = " ".join(f"{key}={json.dumps(value)}" for key, value in {**site, **dict(changes)}.items())
        code = main(["site", "doctor", "--node-config", config, *arguments])
        output = capsys.readouterr()
        printed = re.findall(r"^(ok|WARN|TO DO) +([\w -]+): (.*)$", output.out, re.M)
        texts = {what: text if sign != "WARN" else f"WARN {text}" for sign, what, text in printed}
        right = {what: texts.pop(what) for sign, what, _ in printed if sign != "TO DO"}
        assert code == bool(texts)
        assert not texts or f": to do {', '.join(texts)}; all else that was checked is well" in output.err
        return right, texts

    return of


def test_a_ready_site_is_told_so_and_nothing_is_written(site, examined, tmp_path):
    before = (tmp_path / "journal" / "site.sqlite").read_bytes()
    right, wrong = examined()
    assert not wrong
    assert list(right) == TOPICS
    assert "13 events" in right["journal"]
    assert right["node-config"] == "partition 1 of 3, without a name"
    assert right["identity"].endswith(" a list of 3")
    assert "40 rows of 6 features, 0 values missing; this site" in right["rows and run"]
    assert (tmp_path / "journal" / "site.sqlite").read_bytes() == before, "nothing was noted"
    assert examined({"name": "north"})[0]["node-config"] == "partition 1 of 3, north"
    assert examined({"journal": str(tmp_path / "new")})[0]["journal"].startswith("none yet")
    assert re.match('WARN .*several runs.*journal = "journal"', examined({"journal": ""})[0]["journal"])
    assert not (tmp_path / "new").exists(), "nothing is made for the account of the site, which may be another"


def test_a_site_that_allows_rare_values_learns_of_them(site, examined):
    far = ["1 value of 2, far from all others", "one row dominates the variance: columns (from 0): [2]"]
    for places, value, changes, run, texts in (
        (np.s_[3, 2], 1e5, {}, "", far),
        (np.s_[:4, 3], -99, {}, "", ["4 values of 3 are repeated"]),
        (np.s_[:, 4], np.arange(40), {}, "", ["running number is in 4"]),
        (np.s_[:, 4], np.arange(40), {"leave-out": "3"}, "", ["column 4 has 99 %"]),
        (np.s_[:3, 2], np.nan, {}, "method='em'", ["3 values missing", " take part in em, "]),
    ):
        table = rows(40, 6)
        table[places] = value
        np.save(site["data"], table)
        right, wrong = examined({"rare-values": "allow", **changes}, *["--run-config", run] * bool(run))
        assert not wrong
        report = right["rows and run"].replace("column 3 has", "column 4 has")
        assert [text for text in texts if text not in report] == []
        if texts is far:
            assert far[1] in examined()[1]["rows and run"]


def test_missing_files_and_what_is_wrong_in_a_node_config_are_named(site, examined, tmp_path):
    for key, value, what, text in (
        *(("partition-id", 3, "node-config", "partition-id"), ("partition-id", 2, "identity", "partition 2")),
        *((key, value, "rows and run", key) for key, value in (("min-rows", 50), ("allowed-methods", "sub-it"))),
    ):
        assert text in examined({key: value})[1][what]
    run = "--run-config", "method='p-cov' secure-aggregation=true bound=1e5 clients=3"
    for fault in ({"identities": str(tmp_path / "none")}, {"partition-id": 2}):  # rows are checked without identities
        right, wrong = examined(fault, *run)
        assert (len(wrong), "40 rows of 6 features" in right["rows and run"]) == (1, True)
    assert "min-rows" in examined({"identities": str(tmp_path / "none"), "min-rows": 50}, *run)[1]["rows and run"]
    missing = {key: str(tmp_path / f"no {key}") for key in ("data", "variants", "apart", "identity", "identities")}
    words = ["--superlink", "127.0.0.1:1", "--root-certificates", "no ca.crt", "--auth-supernode-private-key", "no key"]
    right, wrong = examined(missing, *words)
    assert list(wrong) == ["root-certificates", "node-key", "identity", "identities", "data", "variants", "apart"]
    assert [key for key, path in missing.items() if path not in wrong[key]] == []
    assert re.search("no ca.crt .*coordinator.*; not checked: superlink, key", wrong["root-certificates"])
    assert list(right) == [name for name in TOPICS if name not in ("identity", "rows and run")]


def test_unfit_files_disks_memory_and_versions_are_named(site, examined, tmp_path, monkeypatch):
    assert "is a file" in examined({"journal": site["data"]})[1]["journal"]
    changed(tmp_path / "journal", "UPDATE event SET about = 'nothing' WHERE number = 3")
    assert "event 3" in examined()[1]["journal"]
    with monkeypatch.context() as patched:
        patched.setattr(memory, "available_memory", lambda: 100)
        assert "memory" in examined()[1]["rows and run"]
        patched.setattr("getpass.getuser", lambda: "somebody")
        owner = examined()[1]["owner"]
        assert ("; this is somebody: " in owner, "'key'" in owner) == (True, False)
        patched.setattr(memory, "available_memory", lambda: 5000)
        patched.setattr(memory, "site_memory", lambda largest: 3000)
        assert "about 3,000 bytes of memory of 5,000" in examined()[0]["rows and run"]
    version = metadata.version
    for other in ("2.0.1", "1.40.9"):
        monkeypatch.setattr(metadata, "version", lambda name, other=other: other if name == "flwr" else version(name))
        assert other in examined()[1]["versions"]
    np.save(site["data"], np.where(rows(40, 6) > 1, np.nan, rows(40, 6)))
    assert "em" in examined()[1]["rows and run"]
    monkeypatch.setattr(Path, "hardlink_to", Mock(side_effect=PermissionError(1, "Operation not permitted")))
    wrong = examined({"journal": str(tmp_path / "share" / "journal")})[1]
    assert f"{tmp_path} cannot be used (Operation not permitted)" in wrong["journal"]
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".fedpca")) == []


def test_a_start_counts_by_its_cpu_time_on_an_idle_machine(examined, monkeypatch, tmp_path):
    """The first start computes, as on a busy machine or a cold disk, and the second waits."""
    look = f"import os, time; file = {str(tmp_path / 'again')!r}; again = os.path.exists(file); open(file, 'w')"
    monkeypatch.setattr(doctor, "START_PROGRAM", f"{look}; time.sleep(1) if again else sum(range(5 * 10**7))")
    monkeypatch.setattr(doctor, "MAX_START_SECONDS", 0.4)
    assert "start" in examined()[0]
    monkeypatch.setattr(doctor, "MAX_START_SECONDS", -1.0)  # a wait may have no CPU time at all
    assert "'site node'" in examined()[1]["start"]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="root alone gives files away")
def test_files_of_several_accounts_are_named(site, examined):
    os.chown(site["journal"], 1, 1)
    assert "'identity' belongs to root, 'journal' belongs to " in examined()[1]["owner"]


class Handler(SimpleHTTPRequestHandler):
    behind = 0.0  # seconds

    def date_time_string(self, timestamp=None):
        is_asked = self.requestline.startswith("GET /health ")
        return super().date_time_string(time.time() - self.behind) if is_asked else ""


@pytest.fixture
def link(tmp_path, request):
    """Serve a certificate of some days and a clock as a SuperLink does; return the arguments that name the server."""
    make_certificates(tmp_path, ["127.0.0.1"], days=getattr(request, "param", 20))
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield "--superlink", f"127.0.0.1:{server.server_port}", "--root-certificates", str(tmp_path / "ca.crt")
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(("link", "text"), [(29, "29 days, have it renewed"), (31, "31 days;")], indirect=["link"])
def test_certificate_and_clock_of_the_superlink(examined, link, text, monkeypatch):
    right, wrong = examined({}, *link)
    assert not wrong
    assert f"its certificate ends in {text}" in right["superlink"]
    assert right["superlink"].startswith("WARN ") == ("renewed" in text)
    for ahead in (8, 3600, -310):
        monkeypatch.setattr(Handler, "behind", ahead)
        assert abs(int(re.search(r"(-?\d+) s ahead.*NTP", examined({}, *link)[1]["superlink"])[1]) - ahead) <= 5
    monkeypatch.setattr(Handler, "behind", -290)
    assert 285 <= int(re.search(r"within (\d+) s", examined({}, *link)[0]["superlink"])[1]) <= 292


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="sites have a process of their own on Linux")
def test_a_certificate_of_others_and_nobody_are_named(site, examined, link, tmp_path, monkeypatch, caplog):
    """The fault: a SuperNode with a wrong or expired certificate tries again for ever, and says nothing."""
    from fedpca_flwr.site.node import process

    (tmp_path / "others").mkdir()
    make_certificates(tmp_path / "others", ["127.0.0.1"])
    for superlink, text in ((link[1], "ca.crt"), ("127.0.0.1:1", "reached"), ("here", "host:port")):
        words = ["--superlink", superlink, "--root-certificates", str(tmp_path / "others" / "ca.crt")]
        assert text in examined({}, *words)[1]["superlink"]
    monkeypatch.setattr(held_rows, "resident", None)
    for folder, is_wrong in ((tmp_path, False), (tmp_path / "others", True)):
        file = write_site_file(tmp_path, site, superlink=link[1], **{"root-certificates": str(folder / "ca.crt")})
        process.SiteProcess(read_site_file(file), tmp_path, site_app.app_for).examine_link()
        assert ("ca.crt" in caplog.text) == is_wrong


def test_a_site_file_is_examined_as_its_node_config(site, tmp_path, capsys, monkeypatch):
    """Its paths count from its folder, its SuperLink is asked, and 'site node', which runs it, starts once."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(doctor, "MAX_START_SECONDS", 0.0)
    file = write_site_file(tmp_path, site | FILES, superlink="127.0.0.1:1")
    assert main(["site", "doctor", "--config", str(file)]) == 1
    signs = re.findall(r"^(ok|WARN|TO DO) +([\w -]+):", capsys.readouterr().out, re.M)
    assert signs == [*(("WARN" if name == "rules" else "ok", name) for name in TOPICS), ("TO DO", "superlink")]
    for words in ([], ["--config", "site.toml", "--node-config", "partition-id=0"]):
        assert main(["site", "doctor", *words]) == 2
        assert "--config" in capsys.readouterr().err


def test_open_rules_are_listed_by_their_keys(examined):
    closed = {"secure-only": True, "allowed-methods": "p-cov", "min-parties": 3, "min-rows": 10}
    opened = {}, {"min-parties": 2, "min-rows": 9}, {"may-show": "scores"}, {"rare-values": "allow", "repeat": "allow"}
    cases = [(closed | {"repeat": "refuse-same"}, []), ({}, ["secure-only", "allowed-methods"])]
    secure = "--run-config", "method='p-cov' secure-aggregation=true bound=1e5 clients=3"
    for rules, keys in [*cases, *((closed | changes, list(changes)) for changes in opened)]:
        right, _ = examined(rules, *secure)
        assert right["rules"].startswith("WARN ") == bool(keys)
        advice = tomllib.loads("\n".join(re.findall(r"\(write ([^)]+)\)", right["rules"])))
        assert list(advice) == keys
        assert examined(rules | advice, *secure)[0]["rules"] == "none is open"
