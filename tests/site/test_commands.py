"""`python -m fedpca_flwr site`: keys and certificates, which are never overwritten."""

import ssl
import stat

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_ssh_private_key

from fedpca_flwr.site.__main__ import main
from fedpca_flwr.site.local_table import ids_secret


def test_certificates_name_the_hosts_and_a_client_trusts_them(tmp_path):
    main(["certificates", str(tmp_path), "--host", "link.example.org", "10.0.0.7", "--days", "30"])
    leaf = x509.load_pem_x509_certificate((tmp_path / "server.pem").read_bytes())
    root = x509.load_pem_x509_certificate((tmp_path / "ca.crt").read_bytes())
    leaf.verify_directly_issued_by(root)
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(name.value) for name in names] == ["link.example.org", "10.0.0.7"]
    assert (leaf.not_valid_after_utc - leaf.not_valid_before_utc).days == 30
    key = load_pem_private_key((tmp_path / "server.key").read_bytes(), None)
    assert key.public_key() == leaf.public_key()
    ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))  # OpenSSL reads it


@pytest.mark.parametrize(
    ("command", "files"),
    [
        (["node-key", "site0"], ["site0"]),
        (["ids-secret", "salt"], ["salt"]),
        (["certificates", ".", "--host", "localhost"], ["ca.key", "server.key"]),
    ],
    ids=lambda value: value[0],
)
def test_secrets_are_for_their_owner_and_never_overwritten(command, files, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    main(command)
    before = [(tmp_path / file).read_bytes() for file in files]
    assert [stat.S_IMODE((tmp_path / file).stat().st_mode) for file in files] == [0o600] * len(files)
    with pytest.raises(SystemExit):
        main(command)
    assert "exists already, and was left as it is" in capsys.readouterr().err
    assert [(tmp_path / file).read_bytes() for file in files] == before


def test_keys_and_secrets_are_of_the_form_that_is_asked_for(tmp_path):
    main(["node-key", str(tmp_path / "site0")])
    key = load_ssh_private_key((tmp_path / "site0").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    assert (tmp_path / "site0.pub").read_bytes().startswith(b"ecdsa-sha2-nistp384 ")
    for name in ("one", "other"):
        main(["ids-secret", str(tmp_path / name)])
    assert ids_secret(str(tmp_path / "one")) != ids_secret(str(tmp_path / "other"))


@pytest.mark.parametrize(
    ("app", "made", "why"), [(".", "old", "is not empty"), ("nowhere", "", "is not this project's folder")]
)
def test_a_rehearsal_that_cannot_begin_says_why(app, made, why, tmp_path, capsys):
    if made:
        (tmp_path / made).touch()
    with pytest.raises(SystemExit):
        main(["rehearse", str(tmp_path), "--app", app])
    assert why in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--host", ""], "host is '', expected names"),
        (
            ["--host", "good.org", "höst", "a b", "link:18000", "https://x"],
            "host is 'höst', 'a b', 'link:18000', 'https",
        ),
        (["--host", "localhost", "--days", "0"], "days is 0, expected 1 to 36500"),
        (["--host", "localhost", "--days", "999999999"], "days is 999999999, expected 1 to 36500"),
    ],
)
def test_certificates_of_nothing_are_refused(given, message, tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["certificates", str(tmp_path), *given])
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_hosts_of_every_kind_are_taken_and_missing_files_named(tmp_path, capsys):
    main(["certificates", str(tmp_path), "--host", "*.example.org", "link", "10.0.0.7", "::1", "xn--hst-sna.org"])
    assert (tmp_path / "server.pem").exists()
    with pytest.raises(SystemExit):
        main(["variants", str(tmp_path / "mine.bim")])
    assert "mine.bim" in capsys.readouterr().err
