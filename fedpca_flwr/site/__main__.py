"""`python -m fedpca_flwr.site`: what whoever runs a site does beside the runs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from fedpca_flwr.errors import ContractError, FedPCAError
from fedpca_flwr.site.audit import audit
from fedpca_flwr.site.identity_files import make_key
from fedpca_flwr.site.variants import write_common


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m fedpca_flwr.site", description="What a site does beside the runs.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    _add_keys(commands)
    _add_journal(commands)
    _add_variants(commands)
    given = parser.parse_args(arguments)
    try:
        given.run(given)
    except FedPCAError as error:
        parser.exit(1, f"{parser.prog} {given.command}: {error}\n")


def _add_keys(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    keys = commands.add_parser(
        "keys",
        help="make this site's identity: a private key, and the line for every site's list of public keys",
        description="Write a new private key (Ed25519, readable by its owner only), which never leaves the site, and "
        "print the line with its public key for the list that every site has (node-config 'identities').",
    )
    keys.add_argument("file", help="where the private key is written (node-config 'identity'); must not exist")
    keys.add_argument("--partition-id", type=int, required=True, help="of this site, as in its node-config")
    keys.add_argument("--name", default="", help="of this site: a comment in the line")
    keys.set_defaults(run=_keys)


def _keys(given: argparse.Namespace) -> None:
    print(make_key(given.file, given.partition_id, given.name))


def _add_journal(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    journal = commands.add_parser(
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
    journal.set_defaults(run=_journal)


def _journal(given: argparse.Namespace) -> None:
    found = audit(given.folder)
    if given.export:
        found.export(given.export)
    elif not given.check:
        print(found.table())
    if found.gap:
        raise ContractError(found.verdict)
    print(found.verdict)


def _add_variants(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    variants = commands.add_parser(
        "variants",
        help="print the variants that several .bim files have in common",
        description="Print, as a .bim file, the variants that all given .bim files have by chromosome, position and "
        "pair of alleles, coded as in the first one, for every site's node-config 'variants'; and to stderr which of "
        "them a file lacks or codes with swapped alleles. A .bim file holds no genotypes.",
    )
    variants.add_argument("files", nargs="+", metavar="file", help=".bim files of the sites")
    variants.add_argument("--ambiguous", action="store_true", help="also A/T and C/G variants: all are of one strand")
    variants.set_defaults(run=lambda given: write_common(given.files, ambiguous=given.ambiguous))


if __name__ == "__main__":
    main()
