"""Command `site doctor`: check a site before its first run for faults that would keep it out of a run."""

import getpass
import os
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from importlib import metadata
from pathlib import Path
from platform import python_version
from tempfile import TemporaryDirectory
from typing import Annotated, Any, NoReturn

import numpy as np
from typer import Context, Option

from fedpca_flwr.cli import Report
from fedpca_flwr.config.node_config import NodeConfig, is_url
from fedpca_flwr.config.site_file import read_site_file
from fedpca_flwr.data.column_notes import column_fault_notes, one_column_text
from fedpca_flwr.data.table import check_rows
from fedpca_flwr.errors import ConfigError, FedPCAError
from fedpca_flwr.protocol import fleet, memory
from fedpca_flwr.protocol.client import RefusingClient
from fedpca_flwr.protocol.journal import StateJournal
from fedpca_flwr.protocol.question import max_reply_cost
from fedpca_flwr.protocol.strategy import Factory
from fedpca_flwr.site.custodian import Custodian
from fedpca_flwr.site.rules import audit
from fedpca_flwr.site.rules.journal import SCHEMA
from fedpca_flwr.site.rules.repeats import UNPROTECTED_TEXT
from fedpca_flwr.state.store import Store
from fedpca_flwr.transports import identity

FLOWER_VERSIONS = ((1, 41), (2,))  # first supported version, and first unsupported version
MAX_AHEAD_SECONDS, MAX_BEHIND_SECONDS = 5, 300  # of this clock; a SuperLink refuses later or earlier signatures
MIN_PARTIES = 2  # of a sum, below which nothing is hidden
RENEWAL_DAYS = 30  # before its end, in which a certificate should be renewed
START_PROGRAM = "import fedpca_flwr.site_app"
MAX_START_SECONDS = 15.0  # half of what Flower allows a ClientApp
FILE_REMEDIES = {
    "root-certificates": "get ca.crt from the coordinator",
    "node-key": "'site node-key' makes it",
    "identity": "'site keys' makes it",
    "identities": "it has the lines of 'site keys' of all sites",
    "data": "it has the rows",
    "variants": "'site variants' makes it",
    "apart": "'site relatives' makes it",
}
CHECK_FILES = {
    "identity": {"identity", "identities"},
    "rows and run": {"data", "variants", "apart"},
    "superlink": {"root-certificates"},
    "key": {"root-certificates", "node-key"},
}
"""Files that a check needs, by its topic: a missing one has a line of its own in place of the check."""


@dataclass(frozen=True)
class SiteSetup:
    """Settings of a site to check: its configs, and how its SuperNode reaches the SuperLink."""

    node_config: Mapping[str, Any]
    run_config: str  # text of TOML
    superlink: str = ""  # host:port; empty: the SuperLink is not asked
    root_certificates: Path | None = None  # of the authority that vouches for the SuperLink; None: no TLS
    key: Path | None = None  # private key with which the site's SuperNode signs in
    starts_once: bool = False  # whether 'site node' runs the site

    @property
    def node(self) -> NodeConfig:
        """Node-config, parsed; raise ConfigError if a key or a value is not allowed."""
        return NodeConfig.parse(self.node_config, source="node-config")


class OpenPoint(str):
    """Finding about something that this site leaves open, with the line to write in its node-config."""


def findings(site: SiteSetup, factory: Factory) -> Iterator[tuple[str, str]]:
    """Check a site's setup, and yield for each topic "ok", "WARN" or "TO DO", with facts or what to do."""
    checks: dict[str, Callable[[SiteSetup], str]] = {"versions": _check_versions, "node-config": _check_node_config}
    checks |= {"start": _time_start, "owner": _check_owner}
    checks |= {"identity": _check_identity, "journal": _check_journal, "rules": _list_open_rules}
    checks["rows and run"] = partial(run_trial, factory)
    if site.superlink:
        checks["superlink"] = check_superlink
        if site.key:
            checks["key"] = _check_key
    missing = _missing_files(site)
    for topic, check in checks.items():
        if CHECK_FILES.get(topic, set()) & missing.keys():
            continue
        try:
            text = check(site)
            yield "WARN" if isinstance(text, OpenPoint) else "ok", f"{topic}: {text}"
        except (FedPCAError, OSError) as error:
            local = getattr(error, "local", "")
            yield "TO DO", f"{topic}: {error}{f' ({local})' if local else ''}"
    for key, path in missing.items():
        topics = ", ".join(topic for topic, files in CHECK_FILES.items() if key in files)
        yield "TO DO", f"{key}: no file {path} that this account may read ({FILE_REMEDIES[key]}); not checked: {topics}"


def _missing_files(site: SiteSetup) -> dict[str, Path]:
    """Return by key the paths of the site's files that cannot be read."""
    paths: dict[str, Any] = {"root-certificates": site.root_certificates, "node-key": site.key}
    with suppress(ConfigError):  # has a line of its own
        paths |= {key: getattr(site.node, key) for key in FILE_REMEDIES if key not in paths}
    files = {key: Path(path).expanduser() for key, path in paths.items() if path and not is_url(str(path))}
    return {key: path for key, path in files.items() if not os.access(path, os.R_OK)}


def _check_versions(site: SiteSetup) -> str:
    """Return the versions of the installed packages; raise ConfigError for a version of Flower out of range."""
    versions = {name: metadata.version(name) for name in ("fedpca-flwr", "flwr", "numpy", "scipy")}
    flower = tuple(int(part) for part in versions["flwr"].split(".")[:2])
    if not FLOWER_VERSIONS[0] <= flower < FLOWER_VERSIONS[1]:
        expected = "expected 1.41 or later and below 2: pip install 'flwr>=1.41,<2'"
        raise ConfigError(f"flwr is {versions['flwr']}, {expected}")
    return ", ".join(f"{name} {version}" for name, version in {**versions, "Python": python_version()}.items())


def _check_node_config(site: SiteSetup) -> str:
    """Return the site's partition and name for the report; raise ConfigError for a faulty node-config."""
    return f"partition {site.node.partition_id} of {site.node.num_partitions}, {site.node.name or 'without a name'}"


def _check_identity(site: SiteSetup) -> str:
    """Return that the site's key is in its line of the public keys, or that there is none; ConfigError if not so."""
    if not site.node.identity:
        text = "none; a site with data of its own needs one for secure aggregation"
        return OpenPoint(f'{text} (write identity = "identity", after site keys)') if site.node.data else text
    return f"this site's key is in its line of a list of {len(identity.load_identity(site.node).member_keys)}"


def _check_journal(site: SiteSetup) -> str:
    """Return the number of events in the site's journal, or that there is none (yet) and what follows from that."""
    node = site.node
    if not node.journal:
        text = "none; a site with data of its own needs one for secure aggregation and private methods"
        return OpenPoint(f'{text}; {UNPROTECTED_TEXT} (write journal = "journal")') if node.data else text
    store = Store(node.journal, SCHEMA)
    folder = next(folder for folder in (store.folder, *store.folder.parents) if folder.exists())
    _require_links(folder)
    if not store.exists():
        return "none yet; the first run begins one. If this site had one, put it back before"
    result = audit.audit(node.journal)
    if result.gap:
        raise ConfigError(f"{store.file}: {result.verdict}; restore it from a copy")
    runs = ", ".join(run["run"] for run in result.runs() if not run["compared"])
    uncompared = f"; of run {runs}, {audit.UNCOMPARED_TEXT}" if runs else ""
    return f"{len(result.events)} events, all as they were written{uncompared}"


def _require_links(folder: Path) -> None:
    """Raise ConfigError for a folder in which no file can be made and get a second name; leave nothing there."""
    try:
        with TemporaryDirectory(dir=folder, prefix=".fedpca-") as temporary:
            file = Path(temporary, "file")
            file.touch()
            file.with_name("link").hardlink_to(file)
    except (OSError, NotImplementedError) as error:
        raise ConfigError(
            f"the folder {folder} cannot be used ({getattr(error, 'strerror', error)}): a journal needs a folder in "
            "which this account may create files, on a disk with hard links; network shares often have no hard links"
        ) from None


def _check_owner(site: SiteSetup) -> str:
    """Return the account that owns the site's own files; raise ConfigError for several accounts or another one."""
    owners: dict[str, str] = {}
    for name, path in {"identity": site.node.identity, "journal": site.node.journal, "key": site.key or ""}.items():
        with suppress(OSError, KeyError, NotImplementedError):  # is told elsewhere; a number without a name; Windows
            owners[name] = Path(path).expanduser().owner() if path else ""
    accounts = {account for account in owners.values() if account}
    local = getpass.getuser()
    if len(accounts) > 1 or (local != "root" and not accounts <= {local}):
        texts = ", ".join(f"'{name}' belongs to {account}" for name, account in owners.items() if account)
        raise ConfigError(
            f"{texts}; this is {local}: make the account that runs the site their owner (chown), and run this command "
            "with that account"
        )
    return f"the site's files belong to {', '.join(accounts) or 'nobody yet'}"


def _time_start(site: SiteSetup) -> str:
    """Return how long this app takes to start; raise ConfigError for over `MAX_START_SECONDS` at each message."""
    seconds = min(_start_seconds(), _start_seconds())
    text = f"this app starts in {seconds:.1f} s of CPU time"
    if site.starts_once:
        return f"{text}, once"
    if seconds > MAX_START_SECONDS:
        raise ConfigError(
            f"{text}, and Flower gives up after 30: run this site with 'site node', which starts once, or from a "
            "faster disk"
        )
    return f"{text}; a SuperNode without 'site node' does so for each message"


def _start_seconds() -> float:
    """Start this app in a process, and return its CPU time, or on Windows the time until it has ended."""
    started, before = time.monotonic(), os.times()
    subprocess.run([sys.executable, "-c", START_PROGRAM], check=True, capture_output=True)
    after = os.times()
    seconds = (after.children_user - before.children_user) + (after.children_system - before.children_system)
    return seconds or time.monotonic() - started


def _list_open_rules(site: SiteSetup) -> str:
    """Return what the site's rules leave open, with the lines that forbid it; "none is open" without `data`."""
    node, min_rows = site.node, NodeConfig.model_fields["min_rows"].default
    open_rules = {
        "it also answers in clear (write secure-only = true)": not node.secure_only,
        'it answers every method (write allowed-methods = "p-cov")': not node.allowed_methods,
        f"sums of two parties suffice (write min-parties = {MIN_PARTIES + 1})": node.min_parties == MIN_PARTIES,
        f"fewer than {min_rows} rows suffice (write min-rows = {min_rows})": node.min_rows < min_rows,
        'rare values are allowed (write rare-values = "refuse")': node.rare_values == "allow",
        'several runs may tell a party\'s share (write repeat = "refuse")': node.repeat == "allow",
        f'others may see {node.may_show} (write may-show = "nothing")': node.may_show not in ("", "nothing"),
    }
    texts = [text for text, is_open in open_rules.items() if is_open and node.data]
    return OpenPoint(f"open: {', '.join(texts)}") if texts else "none is open"


def run_trial(factory: Factory, site: SiteSetup) -> str:
    """Describe the rows after a trial run, which writes nothing to the journal; raise the errors of a run."""
    chosen = fleet.parse_config_text(site.run_config, "run-config")
    run_config = {"method": "p-cov", "transform": site.node.transform, **chosen}
    factory.strategy(run_config)  # refuses a run-config that is wrong
    context = fleet.make_context(site.node_config, run_config)
    with TemporaryDirectory() as folder:
        if site.node.identity:  # the site's own may lack or be wrong, which has a line of its own
            lines = [identity.make_key(f"{folder}/{party}", party) for party in range(site.node.num_partitions)]
            Path(folder, "identities").write_text("\n".join(lines), encoding="utf-8")
            files = {"identity": f"{folder}/{site.node.partition_id}", "identities": f"{folder}/identities"}
            context.node_config.update(files)
        client = factory.client(context)
        if isinstance(client, RefusingClient):
            raise ConfigError(str(client.report["message"]))
        party = client.site
        assert isinstance(party, Custodian)
        party.journal = StateJournal(context.state)
        party.report = _raise_locally  # type: ignore[method-assign]
        table = party.table
        client.get_properties({})
    n, d = table.rows.shape
    _, largest = max_reply_cost(client.script, client.public, len(client.selection))
    needed = memory.site_memory(largest)
    missing, available = int(np.sum(table.missing)), memory.available_memory()
    limit = f" of {available:,}" if available is not None else ""
    checked = check_rows(table.rows, table.names, sampled=True)
    notes = [*table.notes, *column_fault_notes({"": checked}, {"": table.names}), one_column_text(checked)]
    if not party.refuses_rare_values and (allowed := party.conspicuous_columns()):
        notes.append(f"{allowed}, and moments tell these rows, which rare-values='allow' permits")
    part = len(client.selection)
    rows_text = f"{n:,} rows of {d:,} features" + (f" ({part:,} rows take part)" if part != n else "")
    return (
        f"{rows_text}, {missing:,} values missing{''.join(f'; {note}' for note in notes if note)}; "
        f"this site would take part in {run_config['method']}, whose largest question needs about {needed:,} bytes of "
        f"memory{limit}"
    )


def _raise_locally(error: Exception, *, late: bool = False, is_noted: bool = True) -> NoReturn:
    """Raise the error with all details instead of a report for the server: only the site reads this."""
    raise error


def check_superlink(site: SiteSetup) -> str:
    """Return when the SuperLink's certificate ends, and how the clocks compare; raise FedPCAError for a fault."""
    host, _, port = site.superlink.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(f"superlink is '{site.superlink}', expected host:port")
    try:
        if site.root_certificates is None:
            end, connection = None, HTTPConnection(host, int(port), timeout=20)
        else:
            trust = ssl.create_default_context(cafile=str(site.root_certificates))
            connection = secure = HTTPSConnection(host, int(port), timeout=20, context=trust)
            secure.connect()
            end = ssl.cert_time_to_seconds(str((secure.sock.getpeercert() or {})["notAfter"]))
        connection.request("GET", "/health")
        date = connection.getresponse().getheader("Date")
        connection.close()
    except ssl.SSLCertVerificationError as error:
        raise FedPCAError(
            f"the certificate of {site.superlink} is not one that {site.root_certificates} vouches for "
            f"({error.verify_message}): get ca.crt from the coordinator, and use a name of the SuperLink that its "
            "certificate contains; if it has expired, the coordinator renews it ('site certificates --renew')"
        ) from None
    except FileNotFoundError:
        raise FedPCAError(f"no file {site.root_certificates}: get it from the coordinator") from None
    except (OSError, HTTPException) as error:
        advice = "does the SuperLink run, and is the port open?"
        raise FedPCAError(f"{site.superlink} cannot be reached ({error}): {advice}") from None
    if end is None:
        return OpenPoint(f'without TLS, for rehearsals only (write root-certificates = "ca.crt"); {_clock_text(date)}')
    days = (end - time.time()) / 86400
    text = f"its certificate ends in {days:.0f} days"
    if days < RENEWAL_DAYS:
        return OpenPoint(f"{text}, have it renewed; {_clock_text(date)}")
    return f"{text}; {_clock_text(date)}"


def _clock_text(date: str | None) -> str:
    """Compare this machine's clock with the date in the SuperLink's reply; raise FedPCAError if it is far off."""
    if not date:
        return "it does not say what time it is"
    ahead = time.time() - parsedate_to_datetime(date).timestamp()
    if not -MAX_BEHIND_SECONDS <= ahead <= MAX_AHEAD_SECONDS + 1:  # that date has whole seconds
        raise FedPCAError(
            f"this clock is {ahead:.0f} s ahead of the SuperLink's clock; {-MAX_BEHIND_SECONDS} to "
            f"{MAX_AHEAD_SECONDS} s are allowed: set the clock by NTP"
        )
    return f"this clock is within {abs(ahead) + 1:.0f} s of its"


def _check_key(site: SiteSetup) -> str:
    """Return "registered" if the SuperLink knows the key of this site's SuperNode; else raise FedPCAError."""
    assert site.key is not None
    fleet.require_registered(site.superlink, site.root_certificates, site.key.expanduser())
    return "registered"


def main(
    context: Context,
    config: Annotated[Path | None, Option(metavar="FILE")] = None,
    node_config: str = "",
    run_config: str = "method='p-cov'",
    superlink: Annotated[str, Option(metavar="HOST:PORT")] = "",
    root_certificates: Path | None = None,
    auth_supernode_private_key: Path | None = None,
) -> Report:
    """Check this site for faults that would keep it out of a run.

        fedpca site doctor --config site.toml

    Print a line for each thing that a run needs of this site: 'ok', 'WARN' where the site leaves something open, with
    the line to write, or 'TO DO'. The exit code is 1 if something is to be done. Name the site's file, or for a
    SuperNode without one its options.

    Parameters
    ----------
    context : Context
        Context of the command, whose object returns the factory of runs.
    config : Path, optional
        The site's file, as of 'site node'. Paths in it count from its folder.
    node_config : str
        Node-config of this site, as of 'flower-supernode'.
    run_config : str
        Run-config of the run.
    superlink : str
        Address of the SuperLink. Without an address the SuperLink is not asked.
    root_certificates : Path, optional
        The coordinator's ca.crt. Without it there is no TLS.
    auth_supernode_private_key : Path, optional
        Key with which this site signs in.

    Returns
    -------
    Report
        What is right and what is to be done.

    Raises
    ------
    ConfigError
        If not exactly one of the site's file and its node-config is given.
    """
    if bool(config) == bool(node_config):
        raise ConfigError("name the site's file (--config site.toml), or else its --node-config")
    if config:
        file = read_site_file(config)
        os.chdir(config.parent)
        site = SiteSetup(file.node_config, run_config, *file.supernode.connection, starts_once=True)
    else:
        settings = fleet.parse_config_text(node_config, "node-config")
        site = SiteSetup(settings, run_config, superlink, root_certificates, auth_supernode_private_key)
    lines = list(findings(site, context.obj()))
    faults = [line.partition(":")[0] for status, line in lines if status == "TO DO"]
    return Report(
        "\n".join(f"{status:<5}  {line}" for status, line in lines),
        [{"status": status, "text": line} for status, line in lines],
        f"this site is not ready: to do {', '.join(faults)}; all else that was checked is well" if faults else "",
    )
