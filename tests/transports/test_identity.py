"""A site's identity: made in one command, kept to its owner, and a list of which every fault is named."""

import contextlib
import os
import re

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from fedpca_flwr.cli import main
from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.errors import ConfigError
from fedpca_flwr.state.files import write_new
from fedpca_flwr.transports.identity import (
    SMALL_ORDER_KEYS,
    load_identity,
    make_key,
    read_member_keys,
    read_private_key,
)
from tests.refusals import refused


@pytest.fixture
def nodes(tmp_path):
    """Each party's node-config; their keys and the list are in files."""
    lines = [make_key(str(tmp_path / f"{party}.pem"), party, f"hospital {party}") for party in range(3)]
    (tmp_path / "list").write_text("# all of us\n\n" + "\n".join(lines) + "\n")
    every = {"num_partitions": 3, "data": "x.npy", "identities": str(tmp_path / "list")}
    return [NodeConfig(partition_id=party, identity=str(tmp_path / f"{party}.pem"), **every) for party in range(3)]


@pytest.fixture
def lines(nodes, tmp_path):
    return (tmp_path / "list").read_text().splitlines()[2:]


def listed(folder, *lines):
    (folder / "list").write_text("\n".join(lines))
    return str(folder / "list")


@pytest.mark.parametrize("name", ["hospital 2", "Charité \u2013 Berlin", "St. Mary's", "UKE, Hamburg (Nord) & Co."])
def test_one_command_makes_a_key_and_prints_its_line(name, tmp_path, capsys):
    main(["site", "keys", str(tmp_path / "site.pem"), "--partition-id", "2", "--name", name])
    public = read_private_key(str(tmp_path / "site.pem")).public_key().public_bytes_raw().hex()
    assert capsys.readouterr().out == f"2 {public}  # {name}\n"
    assert NodeConfig.parse({"partition-id": 2, "num-partitions": 3, "name": name}).name == name


@pytest.mark.parametrize(
    ("party", "name", "named"), [(-1, "", [-1, 0]), (0, "a\n1 key", ["a\\n1 key"]), (0, "x" * 65, [64])]
)
def test_a_line_that_would_be_none_is_not_made(party, name, named, tmp_path):
    with refused(ConfigError, *named):
        make_key(str(tmp_path / "key"), party, name)
    assert not list(tmp_path.iterdir())


def test_the_list_gives_every_partys_key(nodes):
    first, other, third = map(load_identity, nodes)
    signature = first.sign(b"something")
    assert other.is_signed_by(0, b"something", signature)
    assert third.is_signed_by(0, b"something", signature)
    assert not other.is_signed_by(0, b"something else", signature)
    assert not other.is_signed_by(2, b"something", signature)
    assert not other.is_signed_by(0, b"something", signature[::-1])
    assert first.digest == other.digest
    first, other = (load_identity(NodeConfig(partition_id=i, num_partitions=3)) for i in range(2))  # without data
    assert other.is_signed_by(0, b"something", first.sign(b"something"))


def test_comments_and_the_order_of_the_lines_do_not_matter(nodes, lines, tmp_path):
    (tmp_path / "other").write_text("".join(line.split("#")[0] + "\r\n" for line in lines[::-1]))
    assert read_member_keys(str(tmp_path / "other"), 3) == read_member_keys(nodes[0].identities, 3)


def test_every_fault_of_the_list_is_named_at_once(lines, tmp_path):
    first, second, third = (line.split()[1] for line in lines)
    entries = [f"0 {first}", f"1 {second[:-2]}", f"hospital {second}", f"0 {third}", f"4 {third}", f"2 {first} # two"]
    with pytest.raises(ConfigError) as raised:
        read_member_keys(listed(tmp_path, *entries, f"3 {second} {third}"), 4)
    faults = {2: "64", 3: "64", 4: "partition 0", 5: "partition 4.*0 to 3", 6: "partition 2.*partition 0", 7: "64"}
    assert re.findall(r"line (\d)", str(raised.value)) == [str(line) for line in faults]
    for line, fault in faults.items():
        assert re.search(f"line {line}: [^;]*{fault}", str(raised.value))
    assert "partition 1, 2, 3" in str(raised.value)
    assert str(tmp_path) not in str(raised.value)


def forged(key):
    """Check a signature that nobody made, R = 1 and S = 0, under each of 200 texts."""
    public_key, signature = Ed25519PublicKey.from_public_bytes(key), b"\x01" + bytes(63)
    for text in range(200):
        with contextlib.suppress(InvalidSignature):
            public_key.verify(signature, bytes([text]))
            return True
    return False


@pytest.mark.parametrize("sign", [0, 128])
def test_keys_with_which_anybody_can_sign_are_refused(sign, nodes, lines, tmp_path):
    """Such as zeros in the place of a key that is not there yet."""
    assert not forged(load_identity(nodes[0]).member_keys[0])
    assert len(SMALL_ORDER_KEYS) == 7
    for y in SMALL_ORDER_KEYS:
        key = y[:-1] + bytes([y[-1] | sign])
        assert forged(key)
        with refused(ConfigError, "line 3", "partition 2"):
            read_member_keys(listed(tmp_path, *lines[:2], f"2 {key.hex()}"), 3)


def test_a_list_with_a_wrong_own_key_is_refused(nodes, lines):
    with refused(ConfigError, "partition 0", "'identities'", "'identity'") as raised:
        load_identity(nodes[0].model_copy(update={"identity": nodes[1].identity}))
    assert raised.value.local == lines[1].split("#")[0].strip().replace("1", "0", 1)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"identity": "", "identities": ""}, ["'identity'", "'identities'"]),
        ({"identity": "", "identities": "", "secure_only": True}, ["'secure-only'", "'identity'", "'identities'"]),
        ({"identities": ""}, ["'identity'", "'identities'"]),
        ({"identity": ""}, ["'identities'", "'identity'"]),
        ({"identity": "absent"}, ["'identity'"]),
        ({"identities": "absent"}, ["'identities'"]),
    ],
)
def test_what_a_site_lacks_is_named(changes, named, nodes):
    with refused(ConfigError, *named) as raised:
        load_identity(NodeConfig.parse({**nodes[0].model_dump(), **changes}, source="node-config"))
    assert "absent" not in str(raised.value)


@pytest.mark.parametrize("mode", [0o640, 0o602])
@pytest.mark.skipif(os.name != "posix", reason="permissions of other systems are not these")
def test_a_private_key_that_others_may_read_or_write_is_refused(mode, nodes, tmp_path):
    (tmp_path / "0.pem").chmod(mode)
    with refused(ConfigError, "'identity'", "chmod 600"):
        load_identity(nodes[0])


@pytest.mark.parametrize("text", ["no key", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"])
def test_a_file_that_is_no_private_key_is_named(text, tmp_path):
    write_new(tmp_path / "key", text.encode())
    with refused(ConfigError, "Ed25519"):
        read_private_key(str(tmp_path / "key"))
