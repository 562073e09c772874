"""A site's identity: made in one command, kept to its owner, and a list of which every fault is named."""

import contextlib
import os
import re
import stat

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.errors import ConfigError
from fedpca_flwr.site.__main__ import main
from fedpca_flwr.site.identity import FORGEABLE, identity_of, make_key, read_members, read_private_key
from tests.refusals import refused, unnamed


def made(tmp_path, parties=3):
    """Each party's node-config, and the lines of the list."""
    lines = [make_key(str(tmp_path / f"{party}.pem"), party, f"hospital {party}") for party in range(parties)]
    (tmp_path / "list").write_text("# all of us\n\n" + "\n".join(lines) + "\n")
    nodes = [
        NodeConfig(
            partition_id=party,
            num_partitions=parties,
            data="x.npy",
            identity=str(tmp_path / f"{party}.pem"),
            identities=str(tmp_path / "list"),
        )
        for party in range(parties)
    ]
    return nodes, lines


def test_one_command_makes_a_key_and_prints_its_line(tmp_path, capsys):
    file = tmp_path / "site.pem"
    main(["keys", str(file), "--partition-id", "2", "--name", "hospital 2"])
    public = read_private_key(str(file)).public_key().public_bytes_raw().hex()
    assert capsys.readouterr().out == f"2 {public}  # hospital 2\n"


def test_a_new_key_is_for_its_owner_only_however_the_process_was_started(tmp_path):
    before = os.umask(0)
    try:
        make_key(str(tmp_path / "key"), 0)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600


def test_a_key_is_never_overwritten(tmp_path, capsys):
    file = tmp_path / "key"
    make_key(str(file), 0)
    before = file.read_bytes()
    with pytest.raises(SystemExit) as ended:
        main(["keys", str(file), "--partition-id", "0"])
    assert ended.value.code == 1
    assert not unnamed(capsys.readouterr().err, file)
    assert file.read_bytes() == before


@pytest.mark.parametrize(("party", "name", "named"), [(-1, "", [-1, 0]), (0, "a\n1 key", ["a\\n1 key"])])
def test_a_line_that_would_be_none_is_not_made(party, name, named, tmp_path):
    with refused(ConfigError, *named):
        make_key(str(tmp_path / "key"), party, name)
    assert not list(tmp_path.iterdir())


def test_the_list_gives_every_partys_key_and_parties_know_each_other_by_it(tmp_path):
    own, other, third = (identity_of(node) for node in made(tmp_path)[0])
    said = own.sign(b"something")
    assert other.signed(0, b"something", said)
    assert third.signed(0, b"something", said)
    assert not other.signed(0, b"something else", said)
    assert not other.signed(2, b"something", said)
    assert not other.signed(0, b"something", said[::-1])
    assert own.digest == other.digest


def test_comments_and_the_order_of_the_lines_do_not_matter(tmp_path):
    _, lines = made(tmp_path)
    (tmp_path / "other").write_text("".join(line.split("#")[0] + "\r\n" for line in lines[::-1]))
    assert read_members(str(tmp_path / "other"), 3) == read_members(str(tmp_path / "list"), 3)


def test_every_fault_of_the_list_is_named_at_once(tmp_path):
    _, lines = made(tmp_path)
    first, second, third = (line.split()[1] for line in lines)
    text = f"0 {first}\n1 {second[:-2]}\nhospital {second}\n0 {third}\n7 {third}\n2 {first} # two\n3 {second} {third}\n"
    (tmp_path / "list").write_text(text)
    with pytest.raises(ConfigError) as told:
        read_members(str(tmp_path / "list"), 4)
    for fault in (
        "line 2: .*64",
        "line 3: .*64",
        "line 4: .*partition 0",
        "line 5: .*partition 7.*0 to 3",
        "line 6: .*partition 2.*partition 0",
        "line 7: .*64",
        "partition 1, 2, 3",
    ):
        assert re.search(fault, str(told.value))
    assert "line 1" not in str(told.value)
    assert str(tmp_path) not in str(told.value)


def forged(key):
    """Whether a signature that nobody made, R = 1 and S = 0, is right under one of 200 texts."""
    known, signature = Ed25519PublicKey.from_public_bytes(key), b"\x01" + bytes(63)
    for text in range(200):
        with contextlib.suppress(InvalidSignature):
            known.verify(signature, bytes([text]))
            return True
    return False


@pytest.mark.parametrize("y", sorted(FORGEABLE), ids=bytes.hex)
@pytest.mark.parametrize("sign", [0, 128])
def test_a_key_with_which_anybody_can_sign_is_refused(y, sign, tmp_path):
    """Such as zeros in the place of a key that is not there yet."""
    nodes, lines = made(tmp_path)
    key = y[:-1] + bytes([y[-1] | sign])
    assert forged(key)
    assert not forged(identity_of(nodes[0]).members[0])
    (tmp_path / "list").write_text("\n".join([*lines[:2], f"2 {key.hex()}"]))
    with refused(ConfigError, "line 3", "partition 2"):
        read_members(str(tmp_path / "list"), 3)


def test_a_list_with_another_key_for_this_site_is_refused_with_the_line_that_belongs_there(tmp_path):
    nodes, lines = made(tmp_path)
    swapped = nodes[0].model_copy(update={"identity": nodes[1].identity})
    with refused(ConfigError, "partition 0", "'identities'", "'identity'") as told:
        identity_of(swapped)
    assert told.value.local == lines[1].split("#")[0].strip().replace("1", "0", 1)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"identity": "", "identities": ""}, ["'identity'", "'identities'"]),
        ({"identities": ""}, ["'identity'", "'identities'"]),
        ({"identity": ""}, ["'identities'", "'identity'"]),
        ({"identity": "absent"}, ["'identity'"]),
        ({"identities": "absent"}, ["'identities'"]),
    ],
)
def test_what_a_site_lacks_is_named(given, named, tmp_path):
    node = {**made(tmp_path)[0][0].model_dump(), **given}
    with refused(ConfigError, *named) as told:
        identity_of(NodeConfig.parse(node, source="node-config"))
    assert "absent" not in str(told.value)


@pytest.mark.skipif(os.name != "posix", reason="permissions of other systems are not these")
def test_a_private_key_that_others_may_read_is_refused(tmp_path):
    node = made(tmp_path)[0][0]
    (tmp_path / "0.pem").chmod(0o640)
    with refused(ConfigError, "'identity'", "chmod 600"):
        identity_of(node)


@pytest.mark.parametrize("text", ["no key", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"])
def test_a_file_that_is_no_private_key_is_named(text, tmp_path):
    file = tmp_path / "key"
    file.write_text(text)
    file.chmod(0o600)
    with refused(ConfigError, "Ed25519"):
        read_private_key(str(file))


def test_a_site_without_data_has_an_identity_that_protects_nothing():
    own, other = (identity_of(NodeConfig(partition_id=i, num_partitions=3)) for i in range(2))
    assert other.signed(0, b"something", own.sign(b"something"))
