"""`python -m fedpca_flwr site`: keys and certificates, which are never overwritten, and levels of categories."""

import json
import os
import ssl
import stat
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_ssh_private_key

from fedpca_flwr.cli import main
from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.site.alignment import read_ids_secret
from fedpca_flwr.site.local_table import local_table
from fedpca_flwr.site.rules.policy import permit_levels
from tests.refusals import unnamed

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("flags", "days"), [(["--days", "30"], 30), ([], 365), (["--days", "36500"], 36500)])
def test_certificates_name_hosts_of_every_kind(flags, days, tmp_path):
    hosts = ["link.example.org", "10.0.0.7", "*.example.org", "link", "::1", "xn--hst-sna.org"]
    main(["site", "certificates", str(tmp_path), "--host", *hosts, *flags])
    leaf = x509.load_pem_x509_certificate((tmp_path / "server.pem").read_bytes())
    root = x509.load_pem_x509_certificate((tmp_path / "ca.crt").read_bytes())
    leaf.verify_directly_issued_by(root)
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(name.value) for name in names] == hosts
    for certificate, of_authority, valid in ((leaf, False, days), (root, True, max(days, 3650))):
        assert (certificate.not_valid_after_utc - certificate.not_valid_before_utc).days == valid
        assert certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is of_authority
    assert load_pem_private_key((tmp_path / "server.key").read_bytes(), None).public_key() == leaf.public_key()
    ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))  # OpenSSL reads it


def test_a_renewed_certificate_is_trusted_by_the_sites_of_the_first(tmp_path, capsys):
    link, authority = tmp_path / "link", tmp_path / "authority"
    command = ["site", "certificates", str(link), "--authority", str(authority), "--host", "localhost"]
    assert main([*command, "--renew"]) == 2
    assert not unnamed(capsys.readouterr().err, authority / "ca.key", link / "ca.crt")
    main(command)
    assert sorted(file.name for file in link.iterdir()) == ["ca.crt", "server.key", "server.pem"]
    before = {file: file.read_bytes() for folder in (link, authority) for file in folder.iterdir()}
    main([*command, "--renew", "--days", "90"])
    changed = {file.name for file, content in before.items() if file.read_bytes() != content}
    assert changed == {"server.key", "server.pem"}
    leaf = x509.load_pem_x509_certificate((link / "server.pem").read_bytes())
    leaf.verify_directly_issued_by(x509.load_pem_x509_certificate(before[link / "ca.crt"]))
    assert (leaf.not_valid_after_utc - leaf.not_valid_before_utc).days == 90
    assert load_pem_private_key((link / "server.key").read_bytes(), None).public_key() == leaf.public_key()
    assert stat.S_IMODE((link / "server.key").stat().st_mode) == 0o600
    main(["site", "certificates", str(other := tmp_path / "other"), "--host", "localhost"])
    for folder, key in ((link, other), (other, authority)):
        words = [str(folder), "--authority", str(key), "--host", "localhost", "--renew"]
        assert main(["site", "certificates", *words]) == 2
        assert "--authority" in capsys.readouterr().err


def test_secrets_are_for_their_owner_and_never_overwritten(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for command, files in (
        (["keys", "key", "--partition-id", "0"], ["key"]),
        (["node-key", "site0"], ["site0"]),
        (["ids-secret", "salt"], ["salt"]),
        (["init"], ["site.toml"]),
        (["certificates", ".", "--host", "localhost"], ["ca.key", "server.key"]),
    ):
        with ExitStack() as stack:
            stack.callback(os.umask, os.umask(0))
            main(["site", *command])
        before = [(tmp_path / file).read_bytes() for file in files]
        assert [stat.S_IMODE((tmp_path / file).stat().st_mode) for file in files] == [0o600] * len(files)
        assert main(["site", *command]) == 2
        assert not unnamed(capsys.readouterr().err, files[0])
        assert [(tmp_path / file).read_bytes() for file in files] == before
    assert isinstance(load_ssh_private_key((tmp_path / "site0").read_bytes(), None), ec.EllipticCurvePrivateKey)
    assert (tmp_path / "site0.pub").read_bytes().startswith(b"ecdsa-sha2-nistp384 ")
    main(["site", "ids-secret", "other"])
    secrets = [read_ids_secret(str(tmp_path / name)) for name in ("salt", "other")]
    assert list(map(len, secrets)) == [32, 32]
    assert secrets[0] != secrets[1]


def test_what_cannot_be_done_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for file, text in {"no.json": "no json", "list.json": '["a"]', "empty.json": '{"ward": []}'}.items():
        (tmp_path / file).write_text(text)
    new, files = ["certificates", "new", "--host"], ["no.json", "list.json", "empty.json"]
    rehearsed = ["rehearse", "new", "--app", str(ROOT), "--data", *files, "--run-config", "method='nope'"]
    for command, expected in (
        ([*new, ""], ["host is '', expected"]),
        ([*new, "a.org", "höst", "a b", "a:18000", "https://x"], ["host is 'höst', 'a b', 'a:18000', 'https://x'"]),
        *(([*new, "localhost", "--days", days], [f"days is {days}", "1 to 36500"]) for days in ("0", "36501")),
        (["rehearse", ".", "--app", "."], ["is not empty"]),
        (["rehearse", "new", "--app", "nowhere"], ["nowhere is not the folder of fedpca-flwr"]),
        (rehearsed, [*files, "'nope'"]),
        (["variants", "mine.bim"], ["mine.bim"]),
        *((["levels", file], ["levels"]) for file in files),
        (["levels", "no.json", "list.json", "--categories", "ward"], ["--categories", "2 files"]),
    ):
        assert main(["site", *command]) == 2
        message = capsys.readouterr().err.replace("level of", "levels of")
        assert [text for text in expected if text not in message] == []
        assert not list(tmp_path.glob("new/*"))


def test_sites_agree_on_the_levels_that_enough_rows_of_one_have(tmp_path, capsys, caplog):
    def printed_levels(*arguments):
        main(["site", "levels", *map(str, arguments)])
        printed = capsys.readouterr()
        return json.loads(printed.out), printed.err

    north, south = ["a"] * 12 + ["b"] * 11 + ["rare"] + [None] * 12, ["c"] * 10 + ["b"] * 3
    for name, cells, common, sums in (("north", north, ["a", "b"], [12] * 3), ("south", south, ["c"], [0, 13, 0])):
        rows = pd.DataFrame({"mass": range(len(cells)), "ward": cells, "label": "yes"})
        rows.to_csv(tmp_path / f"{name}.csv", index=False)
        levels, _ = printed_levels(tmp_path / f"{name}.csv", "--categories", "ward", "--label", "label")
        assert levels == {"ward": common}
        rows.to_csv(file := tmp_path / f"bare {name}.csv", index=False, header=False)
        assert printed_levels(file, "--categories", "1", "--label", "2")[0] == {"1": common}
        key = {"label" if name == "north" else "leave-out": "2"}
        node = NodeConfig.parse({"partition-id": 0, "num-partitions": 2, "data": str(file), "categories": "1", **key})
        encoded = local_table(node, RunConfig(levels='{"1": ["a"]}'))
        permit_levels(node, encoded, encoded.names[1:])
        assert encoded.names == ("0", "1=a", "1=other", "1=missing")
        assert np.asarray(encoded.rows)[:, 1:].sum(axis=0).tolist() == sums
        (tmp_path / f"{name}.json").write_text(json.dumps(levels))
    levels, note = printed_levels(tmp_path / "north.json", tmp_path / "south.json")
    assert levels == {"ward": ["a", "b", "c"]}
    assert not unnamed(caplog.text, "'1'", "this site", "'a'")
    assert not unnamed(note, "'ward'", "north.json", "south.json", "'a', 'b'", "'c'")
