"""A site's file: what it may hold, how it is written on different systems, and what its errors say."""

import re
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest

from fedpca_flwr.cli import main
from fedpca_flwr.config.site_file import read_site_file, toml_lines
from fedpca_flwr.errors import ConfigError
from tests.refusals import refused

ROOT = Path(__file__).parents[2]
SUPERNODE = {"superlink": "link.example.org:9092", "root-certificates": "ca.crt", "node-key": "node-key"}
SITE = {"partition-id": 0, "num-partitions": 3, "name": "Charité (Berlin)", "secure-only": False, "bound": 1e5}


def text_of(supernode=SUPERNODE, site=SITE):
    return f"[supernode]\n{toml_lines(supernode)}[site]\n{toml_lines(site)}"


def test_the_secure_profile_is_that_of_the_security_page(tmp_path, capsys):
    """Every key has a comment above it, or is the second of a pair; a file that is there stays."""
    path = tmp_path / "site.toml"
    assert main(["site", "init", str(path), "--profile", "secure"]) == 0
    (block,) = re.findall(r"^```toml\n(.*?)^```", (ROOT / "SECURITY.md").read_text(encoding="utf-8"), re.M | re.S)
    assert tomllib.loads(path.read_text()) == tomllib.loads(block)
    assert read_site_file(path).node.secure_only
    text = re.sub("^data = .*\n|^# (?=data = |query = )", "", path.read_text(), flags=re.M)
    (tmp_path / "database.toml").write_text(text)
    assert read_site_file(tmp_path / "database.toml").node.query
    pairs = pairwise(path.read_text().splitlines())
    undocumented = [line.split()[0] for above, line in pairs if re.match(r"[a-z]", line) and above[:1] != "#"]
    assert undocumented == ["num-partitions", "identities"]
    assert main(["site", "init", str(path)]) == 2
    assert str(path) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("encoding", "name"),
    [
        *(("utf-8", name) for name in ("St. Mary's", "H\u00f4pital \u2013 Lyon", "東京")),
        *((encoding, SITE["name"]) for encoding in ("utf-8", "utf-8-sig", "utf-16")),  # PowerShell's
    ],
)
def test_a_file_is_read_in_every_encoding(encoding, name, tmp_path):
    (tmp_path / "site.toml").write_bytes(text_of(site={**SITE, "name": name}).encode(encoding))
    site = read_site_file(tmp_path / "site.toml")
    assert (site.supernode.superlink, site.node.name) == (SUPERNODE["superlink"], name)
    assert site.node_config == {**SITE, "name": name}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (text_of({**SUPERNODE, "superlin": "x"}), ["[supernode]", "superlin", "superlink"]),
        (text_of({**SUPERNODE, "superlink": "https://link:9092"}), ["superlink"]),
        (text_of({**SUPERNODE, "port": 70000}), ["port", 65535]),
        (text_of({**SUPERNODE, "app-hash": "xyz"}), ["app-hash"]),
        (text_of(site={**SITE, "nam": "x"}), ["[site]", "'nam'", "'name'"]),
        (text_of(site={**SITE, "partition-id": 3}), ["partition-id", 3]),
        ("[supernode]\nsuperlink = link:1\n", ["site.toml", "line 2"]),
        ("partition-id = 0\n", ["site.toml", "[supernode]", "[site]", "partition-id"]),
        ("", ["site.toml", "[supernode]", "[site]"]),
        (None, ["site.toml"]),
    ],
)
def test_wrong_keys_and_values_are_named_with_their_table_and_what_is_no_site_file(text, words, tmp_path):
    if text is not None:
        (tmp_path / "site.toml").write_text(text, encoding="utf-8")
    with refused(ConfigError, *words):
        read_site_file(tmp_path / "site.toml")
