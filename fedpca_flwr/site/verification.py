"""Command `verify`: check the receipt of a model offline, by the members' public keys and by sites' journals."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import ValidationError
from typer import Argument, Option

from fedpca_flwr.cli import Report
from fedpca_flwr.errors import ConfigError, ContractError, printable_text
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.receipt import RECEIPT_KIND, Receipt, commitment, read_receipt, receipt_faults
from fedpca_flwr.site.audit import Audit
from fedpca_flwr.site.comparison import read_journal
from fedpca_flwr.site.identity import count_members, members_digest, read_member_keys


def commitment_faults(receipt: Receipt, path: Path, journal: Audit) -> list[str]:
    """Open the commitments of a receipt with a site's journal."""
    faults = [f"{path}: {journal.verdict}"] if journal.gap else []
    events = [event for event in journal.events if event.run == receipt.manifest.run]
    witnesses = [event for event in events if event.kind == RECEIPT_KIND]
    if not witnesses:
        return [*faults, f"{path}: the journal has no commitment of run {receipt.manifest.run}"]
    for witness in witnesses:
        label, entry = f"{path}: party {witness.party}", receipt.manifest.parties.get(str(witness.party), {})
        before = [event for event in journal.events if event.number < witness.number]
        answers = [e.digest for e in before if (e.run, e.party, e.kind) == (witness.run, witness.party, "answer")]
        if commitment(bytes.fromhex(witness.digest), answers) != entry.get("answers"):
            faults.append(f"{label} has other answers in its journal than those to which it committed itself")
        if before[-1].chain != entry.get("head"):
            faults.append(f"{label} had another journal when it signed")
    return faults


def receipt_page(model: PCAModel, receipt: Receipt, faults: Sequence[str]) -> str:
    """Write the page of a checked receipt, in Markdown."""
    manifest = receipt.manifest
    lines = [f"# {printable_text(manifest.purpose)}", "", f"- run: {printable_text(manifest.run)}"]
    lines += [f"- list of members: SHA-256 {printable_text(manifest.members)}"]
    lines += [f"- {name}: {printable_text(str(value))}" for name, value in manifest.settings.items() if value != ""]
    lines += [f"- questions: {printable_text(', '.join(manifest.phases))}", "", "## Who signed", ""]
    for party, entry in manifest.parties.items():
        texts = (party, entry.get("name", ""), entry.get("app", ""))
        lines.append(f"- party {' '.join(map(printable_text, texts))}; journal up to {entry.get('head', '')[:16]}")
    lines += ["", "## What the model claims", "", *(f"    {line}" for line in model.summary().splitlines())]
    verdict = [f"- {printable_text(fault)}" for fault in faults] or [
        "All of this is what these sites have signed: each was shown this model in this run. Whether it is right is "
        "another question."
    ]
    return "\n".join([*lines, "", "## Verdict", "", *verdict])


def main(
    model: Path,
    members: Annotated[Path, Option()],
    journals: Annotated[list[Path] | None, Argument()] = None,
) -> Report:
    """Check the signatures of a run's sites about a model.

    Print, as a page in Markdown, who took part, what was asked, what the model claims and which site stands for it. No
    network is needed. The exit code is 1 if the model, the receipt or a journal was changed.

    Parameters
    ----------
    model : Path
        Model file of a run with the option 'receipt'.
    members : Path
        List of the members' public keys (node-config 'identities').
    journals : list of Path, optional
        Journals of sites, folders or files of `site journal --export`, which open the sites' commitments.

    Returns
    -------
    Report
        The page; for programs the signed manifest, and what differs from it.

    Raises
    ------
    ConfigError
        If the model has no receipt.
    ContractError
        If the receipt cannot be read.
    """
    loaded: Any = PCAModel.load(model)
    try:
        receipt = read_receipt(loaded.log)
    except ValidationError as error:
        raise ContractError(f"{model}: its receipt is damaged ({error.error_count()} faults)") from None
    if receipt is None:
        raise ConfigError(f"{model} has no receipt: set the option receipt=true of the run's method")
    keys = read_member_keys(str(members), count_members(str(members)))
    faults = receipt_faults(loaded, receipt, keys, members_digest(keys).hex())
    for path in journals or []:
        faults += commitment_faults(receipt, path, read_journal(path))
    fault = f"{model} is not what was signed, in {len(faults)} points; the report lists them" if faults else ""
    content = {"manifest": receipt.manifest.model_dump(), "faults": faults}
    return Report(receipt_page(loaded, receipt, faults), content, fault)
