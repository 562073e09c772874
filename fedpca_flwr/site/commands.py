"""The commands of `python -m fedpca_flwr site`: what whoever runs a site does beside the runs."""

import argparse
import json
import secrets
import signal
import sys
from collections.abc import Callable, Sequence
from io import TextIOWrapper
from pathlib import Path

from fedpca_flwr.errors import ConfigError, ContractError, FedPCAError
from fedpca_flwr.protocol.strategy import Factory
from fedpca_flwr.site import audit, certificates, identity, kept_rows, levels
from fedpca_flwr.site.bed_file import add_variants
from fedpca_flwr.site.doctor import add_doctor
from fedpca_flwr.site.relatives import add_relatives
from fedpca_flwr.state.files import require_writable_folder, write_new

Command = Callable[..., argparse.ArgumentParser]  # adds a command of a name, with its help


def main(arguments: Sequence[str], factory: Factory) -> None:
    """Run a command, to which the ``factory`` makes halves of runs."""
    parser = argparse.ArgumentParser(prog="python -m fedpca_flwr site", description="What a site does beside the runs.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for add in COMMANDS:
        add(commands.add_parser)
    parser.set_defaults(factory=factory)
    given = parser.parse_args(arguments)
    if isinstance(sys.stdout, TextIOWrapper) and not sys.stdout.isatty():
        sys.stdout.reconfigure(encoding="utf-8")  # other sites read such a file; Windows has an encoding of its own
    try:
        given.run(given)
    except FedPCAError as error:
        of_here = f" ({error.local})" if error.local else ""
        parser.exit(1, f"{parser.prog} {given.command}: {error}{of_here}\n")


def _keys(command: Command) -> None:
    keys = command(
        "keys",
        help="make this site's identity: a private key, and the line for every site's list of public keys",
        description="Write a new private key (Ed25519, readable by its owner only), which never leaves the site, and "
        "print the line with its public key for the list that every site has (node-config 'identities').",
    )
    keys.add_argument("file", help="where the private key is written (node-config 'identity'); must not exist")
    keys.add_argument("--partition-id", type=int, required=True, help="of this site, as in its node-config")
    keys.add_argument("--name", default="", help="of this site: a comment in the line")
    keys.set_defaults(run=lambda given: print(identity.make_key(given.file, given.partition_id, given.name)))


def _journal(command: Command) -> None:
    journal = command(
        "journal",
        help="show what this site was asked and has told, and whether a line of it was changed",
        description="Print a site's journal as a table, and whether the chain of its lines' digests is whole: the exit "
        "code is 1 where a line is missing, was added, changed or moved. The digest of the last line, kept elsewhere, "
        "shows later that nobody has written the whole journal anew.",
    )
    journal.add_argument("folder", help="the journal (node-config 'journal')")
    instead = journal.add_mutually_exclusive_group()
    instead.add_argument("--export", metavar="FILE", type=Path, help="write it as JSON lines instead")
    instead.add_argument("--check", action="store_true", help="print the verdict only")
    remove = "remove the copies of rows in the folder, which runs that broke off have left"
    instead.add_argument("--remove-rows", action="store_true", help=remove)
    journal.set_defaults(run=_audited)


def _audited(given: argparse.Namespace) -> None:
    found = audit.audit(given.folder)
    if given.remove_rows:
        copies = kept_rows.copy_folders(Path(given.folder))
        kept_rows.remove_stale_copies(Path(given.folder), ())
        print(f"removed the copies of rows of {len(copies)} runs")
        return
    if given.export:
        found.export(given.export)
    elif not given.check:
        print(found.table())
    if found.gap:
        raise ContractError(found.verdict)
    print(found.verdict)


def _status(command: Command) -> None:
    status = command(
        "status",
        help="show what became of each run at this site",
        description="Print of each run in a site's journal what it was, when, how much was asked and has left, and how "
        "it ended; the exit code is 1 where a line of the journal is not as it was written.",
    )
    status.add_argument("folder", help="the journal (node-config 'journal')")
    status.add_argument("--json", action="store_true", help="print JSON instead")
    status.set_defaults(run=_state)


def _state(given: argparse.Namespace) -> None:
    found = audit.audit(given.folder)
    print(json.dumps(found.runs(), indent=2) if given.json else found.status())
    if not given.json and (copies := kept_rows.copy_folders(Path(given.folder))):
        print(f"copies of rows of {len(copies)} runs are in {given.folder}: they go on, or broke off. If none goes on,")
        print("'site journal FOLDER --remove-rows' removes them")
    if found.gap:
        raise ContractError(found.verdict)


def _levels(command: Command) -> None:
    parser = command(
        "levels",
        help="print the levels of a file's columns of categories, or put together what several sites have printed",
        description="Of a site's .csv or .parquet file print, as JSON, the levels that at least --min-rows rows have, "
        "which the site reads before it hands them to the others. Of .json files that sites have printed print all "
        "levels together, for the run-config's 'levels'.",
    )
    parser.add_argument("files", nargs="+", metavar="file", help="a table, or .json files")
    parser.add_argument("--categories", default="", help="columns of a table, as in the node-config: 'sex, island'")
    parser.add_argument("--label", default="", help="a column that is no feature, as in the node-config")
    parser.add_argument("--min-rows", type=int, default=10, help="rows of a level that is told (%(default)s)")
    parser.set_defaults(run=lambda given: print(json.dumps(_levels_in(given), ensure_ascii=False)))


def _levels_in(given: argparse.Namespace) -> dict[str, list[str]]:
    if not given.categories:
        found, notes = levels.merge_levels(given.files)
        for note in notes:
            print(f"note: {note}", file=sys.stderr)
        return found
    if len(given.files) > 1:
        raise ConfigError(f"--categories names columns of one table, and {len(given.files)} files are given")
    return levels.table_levels(given.files[0], given.categories, given.label, given.min_rows)


def _certificates(command: Command) -> None:
    parser = command(
        "certificates",
        help="make a certificate authority and the SuperLink's certificate",
        description="Write ca.crt (every site gets it over a channel that it trusts), server.pem and server.key (for "
        "the SuperLink), and ca.key (with which whoever has it can stand in for the SuperLink: lock it away).",
    )
    parser.add_argument("folder", type=Path, help="where they are written; none of them may be there")
    parser.add_argument(
        "--host", nargs="+", required=True, help="names and addresses by which sites call the SuperLink"
    )
    parser.add_argument("--days", type=int, default=365, help="that they are valid (%(default)s)")
    parser.set_defaults(
        run=lambda given: certificates.make_certificates(require_writable_folder(given.folder), given.host, given.days)
    )


def _node_key(command: Command) -> None:
    node_key = command(
        "node-key",
        help="make the key with which this site's SuperNode signs in to the SuperLink",
        description="Write a new private key (readable by its owner only), which never leaves the site, and beside it "
        "the public one (.pub), which the coordinator registers with 'flwr supernode register'.",
    )
    node_key.add_argument("file", type=Path, help="where the private key is written; must not exist")
    node_key.set_defaults(run=lambda given: print(certificates.make_node_key(given.file)))


def _ids_secret(command: Command) -> None:
    ids = command(
        "ids-secret",
        help="make the secret under which sites compare the ids of their rows",
        description="Write 32 random bytes (node-config 'ids-secret'). One site makes the file, all others get it over "
        "a channel that does not pass through the coordinator.",
    )
    ids.add_argument("file", type=Path, help="where it is written; must not exist")
    ids.set_defaults(run=lambda given: write_new(given.file, secrets.token_bytes(32)))


def _rehearse(command: Command) -> None:
    rehearsal = command(
        "rehearse",
        help="run a whole federation on this machine: certificates, four sites, a secure PCA",
        description="Make certificates, keys and a site for each file of --data (or four with rows of their own), "
        "start a SuperLink and their SuperNodes, run a PCA with secure aggregation, and stop everything. Takes two or "
        "three minutes.",
    )
    rehearsal.add_argument("folder", type=Path, help="for all that it makes; new or empty")
    rehearsal.add_argument("--app", type=Path, default=Path(), help="this project's folder (the present one)")
    rehearsal.add_argument("--data", type=Path, nargs="+", default=[], metavar="FILE", help="a file for each site")
    rehearsal.add_argument("--run-config", default="", help="of the run, instead of one with p-cov and secure sums")
    dropout = "kill a site during the run, which goes on without it"
    rehearsal.add_argument("--dropout", action="store_true", help=dropout)
    rehearsal.set_defaults(run=_rehearsed)


def _rehearsed(given: argparse.Namespace) -> None:
    from fedpca_flwr.site.deployment import rehearse

    signal.signal(signal.SIGTERM, _stop)
    rehearse(
        given.folder,
        given.app,
        data=given.data,
        run=given.run_config,
        dropout=given.dropout,
        show=lambda line: print(line, flush=True),
    )


def _stop(signum: int, frame: object) -> None:
    """End by an exception, so that SuperLink and SuperNodes are stopped, too; once, since that takes a moment."""
    signal.signal(signum, signal.SIG_IGN)
    sys.exit(128 + signum)


COMMANDS: tuple[Callable[[Command], None], ...] = (
    _keys,
    _journal,
    _status,
    add_doctor,
    add_variants,
    add_relatives,
    _levels,
    _certificates,
    _node_key,
    _ids_secret,
    _rehearse,
)
"""What adds each command."""
