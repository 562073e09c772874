"""What `site doctor` says of a site before its first run."""

import json
import re
import ssl
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import metadata

import numpy as np
import pytest

from fedpca_flwr.protocol import memory
from fedpca_flwr.site.__main__ import main
from fedpca_flwr.site.certificates import make_certificates
from fedpca_flwr.site.identity import make_key
from tests.families import rows
from tests.site.test_audit import changed, written


@pytest.fixture
def site(tmp_path):
    """A node-config with which everything is right."""
    np.save(tmp_path / "rows.npy", rows(40, 6))
    lines = [make_key(str(tmp_path / f"key{party}"), party) for party in range(3)]
    (tmp_path / "identities").write_text("\n".join(lines), encoding="utf-8")
    files = {"data": "rows.npy", "identity": "key1", "identities": "identities"}
    paths = {key: str(tmp_path / name) for key, name in files.items()}
    return {"partition-id": 1, "num-partitions": 3, **paths, "journal": str(written(tmp_path / "journal"))}


def examined(capsys, site, *more):
    """Exit code, and the lines by what they are about, each with whether it is right."""
    code: int | str | None
    code, config = 0, " ".join(f"{key}={json.dumps(value)}" for key, value in site.items())
    try:
        main(["doctor", "--node-config", config, *more])
    except SystemExit as ended:
        code = ended.code
    printed = re.findall(r"^(ok|TO DO) +([\w -]+): (.*)$", capsys.readouterr().out, re.M)
    return code, {what: (right == "ok", text) for right, what, text in printed}


def test_a_site_that_is_ready(site, capsys, tmp_path):
    before = (tmp_path / "journal" / "site.sqlite").read_bytes()
    code, found = examined(capsys, site)
    assert code == 0
    assert all(right for right, _ in found.values())
    assert list(found) == ["versions", "node-config", "identity", "journal", "rows and run"]
    assert "13 events" in found["journal"][1]
    assert "40 rows of 6 features, 0 values missing" in found["rows and run"][1]
    assert (tmp_path / "journal" / "site.sqlite").read_bytes() == before, "nothing was noted"


def test_values_far_from_all_others_are_said(site, capsys):
    table = rows(40, 6)
    table[3, 2] = 1e5
    np.save(site["data"], table)
    code, found = examined(capsys, site)
    assert code == 0
    assert "1 value of 2" in found["rows and run"][1]


def damage(site, tmp_path):
    changed(tmp_path / "journal", "UPDATE event SET about = 'nothing' WHERE number = 3")
    return site


def with_gaps(site, tmp_path):
    X = rows(40, 6)
    X[3, 2] = np.nan
    np.save(tmp_path / "rows.npy", X)
    return site


@pytest.mark.parametrize(
    ("change", "what", "said"),
    [
        (lambda site, _: site | {"partition-id": 3}, "node-config", "partition-id"),
        (lambda site, _: site | {"partition-id": 2}, "identity", "partition 2"),
        (damage, "journal", "event 3"),
        (lambda site, path: site | {"journal": str(path / "rows.npy")}, "journal", "is a file"),
        (lambda site, path: site | {"data": str(path / "none.csv")}, "rows and run", "none.csv"),
        (with_gaps, "rows and run", "em"),
        (lambda site, _: site | {"min-rows": 50}, "rows and run", "min-rows"),
        (lambda site, _: site | {"allowed-methods": "sub-it"}, "rows and run", "allowed-methods"),
    ],
)
def test_what_is_wrong_is_named_with_exit_code_1(change, what, said, site, tmp_path, capsys):
    code, found = examined(capsys, change(site, tmp_path))
    assert code == 1
    right, text = found[what]
    assert not right
    assert said in text


def test_memory_that_is_not_there_is_named(site, capsys, monkeypatch):
    monkeypatch.setattr(memory, "memory", lambda: 100)
    code, found = examined(capsys, site)
    assert (code, found["rows and run"][0]) == (1, False)
    assert "memory" in found["rows and run"][1]


def test_another_version_of_flower_is_named(site, capsys, monkeypatch):
    version = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "2.0.1" if name == "flwr" else version(name))
    code, found = examined(capsys, site)
    assert (code, found["versions"][0]) == (1, False)


class Handler(BaseHTTPRequestHandler):
    behind = 0.0  # seconds

    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def date_time_string(self, timestamp=None):
        return super().date_time_string(time.time() - self.behind)

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def link(tmp_path_factory):
    """Something with a certificate and a clock, as a SuperLink has them: its port, and the folder with ca.crt."""
    folder = tmp_path_factory.mktemp("link")
    make_certificates(folder, ["127.0.0.1"], days=20)

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "server.pem", folder / "server.key")
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port, folder
        server.shutdown()
        thread.join()


def test_certificate_and_clock_of_the_superlink(site, link, capsys):
    port, folder = link
    code, found = examined(
        capsys, site, "--superlink", f"127.0.0.1:{port}", "--root-certificates", str(folder / "ca.crt")
    )
    right, said = found["superlink"]
    assert (code, right) == (0, True)
    assert "ends in 20 days, have it renewed" in said


@pytest.mark.parametrize("ahead", [60.0, -3600.0])
def test_a_clock_that_is_wrong_is_named(ahead, site, link, capsys, monkeypatch):
    port, folder = link
    monkeypatch.setattr(Handler, "behind", ahead)
    code, found = examined(
        capsys, site, "--superlink", f"127.0.0.1:{port}", "--root-certificates", str(folder / "ca.crt")
    )
    assert (code, found["superlink"][0]) == (1, False)
    assert "NTP" in found["superlink"][1]


def test_a_certificate_of_others_and_nobody_are_named(site, link, capsys, tmp_path):
    make_certificates(tmp_path, ["127.0.0.1"])
    trusting = ["--root-certificates", str(tmp_path / "ca.crt")]
    for superlink, said in ((f"127.0.0.1:{link[0]}", "ca.crt"), ("127.0.0.1:1", "reached"), ("here", "host:port")):
        code, found = examined(capsys, site, "--superlink", superlink, *trusting)
        assert (code, found["superlink"][0]) == (1, False)
        assert said in found["superlink"][1]
