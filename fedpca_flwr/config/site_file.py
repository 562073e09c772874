"""The file of a site (site.toml): how its SuperNode reaches the SuperLink, and the site's node-config."""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

from pydantic import Field, StringConstraints

from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.config.run_config import Config, LocalPath
from fedpca_flwr.errors import ConfigError
from fedpca_flwr.state.files import read_text

PROFILES = {"secure": Path(__file__).with_name("secure.toml")}  # models of a site's file, by the rules that they set


class SuperNodeConfig(Config):
    """Table ``[supernode]`` of a site's file: connection of the site's SuperNode, and the app that it answers."""

    public: ClassVar[bool] = False

    superlink: Annotated[str, StringConstraints(pattern=r"^[^/\s]+:\d+$")]
    """Address of the SuperLink, as 'link.example.org:9092'."""
    root_certificates: LocalPath = ""
    """File ca.crt of the coordinator. If empty, the connection has no TLS, which is for trials on one machine only."""
    node_key: LocalPath = ""
    """Private key with which the SuperNode signs in ('fedpca site node-key'). If empty, it signs in
    without a key."""
    port: Annotated[int, Field(ge=0, le=65535)] = 0
    """Port of this machine for messages between the SuperNode and the site's process. With 0 it is a free port."""
    app_hash: Annotated[str, StringConstraints(pattern="^[0-9a-f]{8,64}$")] | None = None
    """First digits (8 to 64) of the SHA-256 of the archive that this site has reviewed. The site answers no other
    app."""

    @property
    def connection(self) -> tuple[str, Path | None, Path | None]:
        """Address of the SuperLink, and files of its root certificates and of the node's key, None if not set."""
        certificates, key = (Path(path) if path else None for path in (self.root_certificates, self.node_key))
        return self.superlink, certificates, key


class SiteFile(NamedTuple):
    """Content of a site's file: the tables ``[supernode]`` and ``[site]``."""

    supernode: SuperNodeConfig
    node: NodeConfig  # table [site], validated
    node_config: dict[str, Any]  # table [site] as in the file, for the SuperNode


def read_site_file(path: Path) -> SiteFile:
    """Read and validate a site's file, in UTF-8 or as PowerShell writes it.

    Raise ConfigError, without texts of the file, if it cannot be read, is no TOML, or has other tables, keys or values.
    """
    tables = _read_tables(path, {"supernode", "site"})
    supernode = SuperNodeConfig.parse(tables["supernode"], source=f"{path}, [supernode]")
    return SiteFile(supernode, *read_node_table(path))


def read_node_table(path: Path) -> tuple[NodeConfig, dict[str, Any]]:
    """Return the table ``[site]`` of a site's file, validated and as in the file; raise ConfigError for a wrong one."""
    table = _read_tables(path, {"site"})["site"]
    return NodeConfig.parse(table, source=f"{path}, [site]"), table


def _read_tables(path: Path, required: set[str]) -> dict[str, dict[str, Any]]:
    """Return the tables of a site's file by name; raise ConfigError if there are other ones."""
    try:
        tables = tomllib.loads(read_text(path))
    except OSError as error:
        raise ConfigError(f"the site's file {path} cannot be read ({error.strerror}): name another --config") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        where = str(error).rpartition("(")[2].rstrip(")")
        raise ConfigError(
            f'the site\'s file {path} is not TOML ({where}): write texts in quotes, as in name = "north", and paths '
            "with '/'"
        ) from None
    are_known = required <= tables.keys() <= {"supernode", "site"}
    if not are_known or not all(isinstance(table, dict) for table in tables.values()):
        present = ", ".join(f"[{name}]" if isinstance(table, dict) else name for name, table in tables.items())
        raise ConfigError(
            f"the site's file {path} has {present or 'nothing'}, expected two tables: [supernode] (superlink, "
            "root-certificates, node-key) and [site] (the node-config)"
        )
    return tables


def toml_lines(table: Mapping[str, object]) -> str:
    """Return a table of texts, numbers and truth values as lines of TOML, each with a line feed at its end."""
    return "".join(f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in table.items())
