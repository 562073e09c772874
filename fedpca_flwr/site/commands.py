"""Commands of `fedpca site`, for whoever runs a site.

The command line's options and help are made of each function's signature and docstring, by `fedpca_flwr.cli`.
"""

import json
import os
import secrets
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

from click import Choice
from typer import Argument, Context, Option

from fedpca_flwr.cli import Report
from fedpca_flwr.config.entries import load_entry
from fedpca_flwr.config.site_file import PROFILES
from fedpca_flwr.errors import ConfigError, printable_text
from fedpca_flwr.state.files import require_writable_folder, write_new

ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def init(
    file: Annotated[Path, Argument()] = Path("site.toml"),
    profile: Annotated[str, Option(click_type=Choice(list(PROFILES)))] = "secure",
) -> None:
    """Write a site's file, in which a comment above each line says what the line protects and what it costs.

        fedpca site init --profile secure

    Then change what is particular to this site, make the keys that the comments name, and run 'fedpca site doctor' with
    the coordinator's --run-config.

    Parameters
    ----------
    file : Path
        Where the site's file is written. The file must not exist.
    profile : str
        Rules of the site: 'secure' answers only secure sums of p-cov, as SECURITY.md describes them.
    """
    write_new(file, PROFILES[profile].read_bytes())


def node(config: Annotated[Path, Option(metavar="FILE")]) -> None:
    """Run this site: its SuperNode, and a process of this installation for each message.

        fedpca site node --config site.toml

    The code that a run brings is not run here, and the rows are read once, into memory. Runs until it is stopped, or
    its SuperNode ends. Needs Linux; on other systems start flower-supernode.

    Parameters
    ----------
    config : Path
        The site's file (site.toml): how its SuperNode reaches the SuperLink, and its node-config. Paths in it count
        from the folder of the file.
    """
    if not (hasattr(os, "memfd_create") and hasattr(os, "fork")):
        raise ConfigError(
            "'site node' needs Linux: on this system start flower-supernode, with the [site] table of the file as its "
            "--node-config"
        )
    if any(os.environ.get(key) != value for key, value in ONE_THREAD.items()):  # which a BLAS reads
        os.execve(sys.executable, sys.orig_argv, {**os.environ, **ONE_THREAD})
    from fedpca_flwr.site.node.process import run_site

    list(load_entry("fedpca_flwr.strategies:METHODS").values())  # imports all, once for the processes of all messages
    run_site(config, load_entry("fedpca_flwr.site_app:app_for"))


def keys(file: Path, partition_id: Annotated[int, Option()], name: str = "") -> Report:
    """Make this site's identity: a private key, and the line for every site's list of public keys.

        fedpca site keys identity --partition-id 0 --name "hospital 0"

    Write a new private key (Ed25519, readable by its owner only), which never leaves the site, and print the line with
    its public key for the list that every site has (node-config 'identities').

    Parameters
    ----------
    file : Path
        Where the private key is written (node-config 'identity'). The file must not exist.
    partition_id : int
        Number of this site, as in its node-config.
    name : str
        Name of this site, a comment in the line.

    Returns
    -------
    Report
        The line.
    """
    from fedpca_flwr.transports.identity import make_key

    line = make_key(str(file), partition_id, name)
    return Report(line, {"identity": line})


def journal(folder: Path, export: Annotated[Path | None, Option(metavar="FILE")] = None, check: bool = False) -> Report:
    """Show the questions to this site and the bytes it sent, and whether a line of its journal was changed.

        fedpca site journal journal --check

    Print a site's journal as a table, and whether the chain of its lines' digests is whole. The exit code is 1 if a
    line is missing, was added, changed or moved. The digest of the last line, kept elsewhere, shows later that nobody
    has written the whole journal anew.

    Parameters
    ----------
    folder : Path
        The journal (node-config 'journal').
    export : Path, optional
        Write the journal into this file as JSON lines instead.
    check : bool
        Print the verdict only.

    Returns
    -------
    Report
        The events and the verdict.

    Raises
    ------
    ConfigError
        If both options are given.
    """
    from fedpca_flwr.site.rules import audit

    if export is not None and check:
        raise ConfigError("--export and --check do not go together; name one of them")
    events = audit.audit(str(folder))
    content: dict[str, object] = {"verdict": events.verdict}
    lines = [] if events.gap else [events.verdict]
    if export:
        events.export(export)
    elif not check:
        content = {"events": [event._asdict() for event in events.events], **content}
        lines = [events.table(), *lines]
    return Report("\n".join(lines), content, events.verdict if events.gap else "")


def status(folder: Path) -> Report:
    """Show how each run ended at this site.

        fedpca site status journal

    Print of each run in a site's journal what it was, when, how much was asked and has left, and how it ended. The exit
    code is 1 if a line of the journal is not as it was written.

    Parameters
    ----------
    folder : Path
        The journal (node-config 'journal').

    Returns
    -------
    Report
        The runs.

    Raises
    ------
    ConfigError, StoreError
        If the folder has no journal, or the journal is damaged or cannot be read.
    """
    from fedpca_flwr.site.rules import audit

    events = audit.audit(str(folder))
    return Report(events.status(), events.runs(), events.verdict if events.gap else "")


def levels(files: list[str], categories: str = "", label: str = "", min_rows: int = 10) -> Report:
    """Print the levels of a file's columns of categories, or combine the levels that several sites printed.

        fedpca site levels rows.csv --categories "ward, sex" > levels.json

    Of a site's .csv or .parquet file print, as JSON, the levels that at least --min-rows rows have, which the site
    reads before it hands them to the others. Of .json files that sites have printed print all levels together, for the
    run-config's 'levels'.

    Parameters
    ----------
    files : list of str
        A table, or .json files.
    categories : str
        Columns of a table, as in the node-config: 'sex, island'.
    label : str
        A column that is no feature, as in the node-config.
    min_rows : int
        Smallest number of rows of a level that is printed.

    Returns
    -------
    Report
        The levels of each column, as JSON.

    Raises
    ------
    ConfigError
        If columns of several tables are asked for.
    """
    from fedpca_flwr.site.levels import merge_levels, table_levels

    if not categories:
        united, notes = merge_levels(files)
        for note in notes:
            print(f"note: {printable_text(note)}", file=sys.stderr)
    elif len(files) > 1:
        raise ConfigError(f"--categories names columns of one table, but the command has {len(files)} files")
    else:
        united = table_levels(files[0], categories, label, min_rows)
    return Report(json.dumps(united, ensure_ascii=False), united)


def certificates(
    folder: Path,
    host: Annotated[list[str], Option(metavar="HOST...")],
    days: int = 365,
    authority: Annotated[Path | None, Option(metavar="FOLDER")] = None,
    renew: bool = False,
) -> None:
    """Make a certificate authority and the SuperLink's certificate, or renew that certificate.

        fedpca site certificates link --authority authority --host link.example.org

    Write ca.crt (every site gets it over a channel that it trusts), server.pem and server.key (for the SuperLink), and
    ca.key (with which whoever has it can stand in for the SuperLink: lock it away). The authority is valid for ten
    years.

    Parameters
    ----------
    folder : Path
        Folder for the files. None of them may exist.
    host : list of str
        Names and addresses by which sites call the SuperLink.
    days : int
        Number of days for which the SuperLink's certificate is valid.
    authority : Path, optional
        Folder of ca.key, which the SuperLink does not need; without it FOLDER.
    renew : bool
        Replace server.pem and server.key only, of the same authority: sites keep their ca.crt.
    """
    from fedpca_flwr.site.node.certificates import make_certificates, renew_certificate

    write = renew_certificate if renew else make_certificates
    write(require_writable_folder(folder), host, days, authority=authority and require_writable_folder(authority))


def node_key(file: Path) -> Report:
    """Make the key with which this site's SuperNode signs in to the SuperLink.

        fedpca site node-key node-key

    Write a new private key (readable by its owner only), which never leaves the site, and beside it the public one
    (.pub), which the coordinator registers with 'flwr supernode register'.

    Parameters
    ----------
    file : Path
        Where the private key is written. The file must not exist.

    Returns
    -------
    Report
        The path of the public key.
    """
    from fedpca_flwr.site.node.certificates import make_node_key

    public = str(make_node_key(file))
    return Report(public, {"public key": public})


def ids_secret(file: Path) -> None:
    """Make the secret under which sites compare the ids of their rows.

        fedpca site ids-secret ids-secret

    Write 32 random bytes (node-config 'ids-secret'). One site makes the file, all others get it over a channel that
    does not pass through the coordinator.

    Parameters
    ----------
    file : Path
        Where the secret is written. The file must not exist.
    """
    write_new(file, secrets.token_bytes(32))


def rehearse(
    context: Context,
    folder: Path,
    app: Path = Path(),
    data: Annotated[list[Path], Option(metavar="FILE...")] = [],  # noqa: B006 (typer makes a list of each call's own)
    node_config: str = "",
    run_config: str = "",
    dropout: bool = False,
) -> None:
    """Run a whole federation on this machine: certificates, four sites, a secure PCA.

        fedpca site rehearse rehearsal --dropout

    Make certificates, keys and a site for each file of --data (or four with rows of their own), start a SuperLink and
    their SuperNodes, run a PCA with secure aggregation, and stop everything. Takes two or three minutes. Files that do
    not allow the run are named before anything starts.

    Parameters
    ----------
    context : Context
        Context of the command, whose object returns the factory of runs.
    folder : Path
        Folder for all that the command makes, new or empty.
    app : Path
        This project's folder.
    data : list of Path
        A file for each site.
    node_config : str
        Further keys of all sites' node-configs, as "leave-out='patient_id' min-rows=10".
    run_config : str
        Run-config of the run, instead of one with p-cov and secure sums.
    dropout : bool
        Kill a site during the run, which goes on without it.
    """
    from fedpca_flwr.protocol.fleet import parse_config_text
    from fedpca_flwr.site.node import deployment

    def stop(signum: int, frame: object) -> None:
        """Exit by an exception on SIGTERM, so that all started processes are stopped; ignore further signals."""
        signal.signal(signum, signal.SIG_IGN)
        sys.exit(128 + signum)

    signal.signal(signal.SIGTERM, stop)
    settings, show = parse_config_text(node_config, "node-config") if node_config else {}, partial(print, flush=True)
    deployment.rehearse(
        folder, app, context.obj(), data=data, node_config=settings, run=run_config, dropout=dropout, show=show
    )
