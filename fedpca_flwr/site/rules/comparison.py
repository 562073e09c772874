"""Comparison of a model with the journals of sites, question by question.

The model's log and each journal have the SHA-256 of every question and reply. Where both are equal, the site was asked
what the server says that it asked, and the server received what the site sent. That a reply is right is not shown.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from typer import Argument

from fedpca_flwr.cli import Report
from fedpca_flwr.errors import ConfigError, ContractError, printable_text
from fedpca_flwr.model import model_file
from fedpca_flwr.model.history import History, Provenance
from fedpca_flwr.site.rules.audit import Audit, audit
from fedpca_flwr.site.rules.chain import Event, first_wrong_link, keyed_digest, parse_row
from fedpca_flwr.state.store import DamageError

BAR = "\\|"  # within a cell of a table in Markdown
TABLE_HEAD = ("", "question", "asked", "answered", "time at the site", "bytes")


class Exchange(NamedTuple):
    """Question and its answer, in the record of the server or of a site."""

    phase: str = ""  # name of the question
    question: str = ""  # SHA-256; empty where this side has none
    reply: str = ""  # SHA-256; empty where this side has none
    time: str = ""  # of the question at the site; empty at the server
    nbytes: int = 0  # of the answer that left the site


def journal_exchanges(events: Sequence[Event]) -> list[Exchange]:
    """Collect the questions of one party in one run, in order, with their answers; a repeated answer counts once."""
    exchanges: list[Exchange] = []
    for event in events:
        if event.kind == "question":
            exchanges.append(Exchange(event.about, event.digest, time=event.time))
        elif event.kind == "answer" and exchanges:
            exchanges[-1] = exchanges[-1]._replace(reply=event.digest, nbytes=event.bytes)
    return exchanges


def read_journal(path: Path) -> Audit:
    """Read a journal from its folder, or from the file that `site journal --export` wrote."""
    if not path.is_file():
        return audit(str(path))
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        events = [
            parse_row(Event, json.loads(line), f"line {number}, event") for number, line in enumerate(lines, start=1)
        ]
    except (ValueError, RecursionError):
        fault = "it is not JSON lines"
    except DamageError as error:
        fault = str(error)
    else:
        return Audit(events, first_wrong_link(events))
    raise ContractError(
        f"{path} is no exported journal ({fault}): write it with `fedpca site journal FOLDER --export FILE`"
    )


@dataclass
class Comparison:
    """Page that compares a model with journals and lists all differences."""

    history: History
    provenance: Provenance  # entry of the log about the run
    journals: list[dict[str, Any]] = field(default_factory=list)  # entries of `add`
    faults: list[str] = field(default_factory=list)  # differences, a sentence for each

    def add(self, path: Path, journal: Audit) -> None:
        """Compare a site's journal with the model; append an entry to `journals`, and differences to `faults`.

        The entry has ``path``, ``verdict`` and ``parties``, and each of these its number (``party``), ``status`` and
        ``exchanges``.
        """
        run = self.provenance.run
        events = [event for event in journal.events if event.run == run]
        if journal.gap:
            self.faults.append(f"{path}: {journal.verdict}")
        numbers = sorted({event.party for event in events})
        if not numbers:
            text = f"the journal has no entry about run {run}: it is another site's, or one from before the run"
            self.faults.append(f"{path}: {text}")
        statuses = {entry["party"]: entry["status"] for entry in journal.runs() if entry["run"] == run}
        parties = []
        ends = {party: digest for entry in self.history.rounds for party, digest in entry.journals.items()}
        digests = [keyed_digest(journal.key, event.chain) for event in journal.events if journal.key and ends]
        for party in numbers:
            if journal.key and str(party) in ends and ends[str(party)] not in digests:
                text = "the journal lacks the event that was its last at the end of the run: an older one was put back"
                self.faults.append(f"{path}: party {party}: {text}, or all of it was written anew")
            exchanges = self._compare(path, party, [event for event in events if event.party == party])
            parties.append({"party": party, "status": statuses[party], "exchanges": exchanges})
        self.journals.append({"path": str(path), "verdict": journal.verdict, "parties": parties})

    def content(self) -> dict[str, Any]:
        """Return for JSON the ``run`` as the server tells, ``journals``, parties ``without journal`` and ``faults``."""
        parties = {entry["party"] for journal in self.journals for entry in journal["parties"]}
        missing = [f"{entry.party} ({entry.name})" for entry in self.history.parties if entry.party not in parties]
        return {"run": self._run_texts(), "journals": self.journals, "without journal": missing, "faults": self.faults}

    def page(self) -> str:
        """Return the comparison as a page in Markdown, which ends with the verdict."""
        content = self.content()
        lines = ["# What the server tells of the run", ""]
        lines += [f"- {name}: {printable_text(text)}" for name, text in content["run"].items()]
        for journal in self.journals:
            lines += ["", f"# {printable_text(journal['path'])}", "", f"The journal: {journal['verdict']}."]
            for party in journal["parties"]:
                lines += ["", _table_line(TABLE_HEAD), _table_line(["---"] * len(TABLE_HEAD))]
                for number, (*texts, nbytes) in enumerate((entry.values() for entry in party["exchanges"]), start=1):
                    lines.append(_table_line([str(number), *texts, f"{nbytes:,}"]))
            for party in journal["parties"]:
                lines.append(f"\nParty {party['party']}: {printable_text(party['status'])}, as the site tells.")
        lines += ["", "# Verdict", ""]
        if content["without journal"]:
            lines.append(f"No journal was given of: {printable_text(', '.join(content['without journal']))}.")
        if not self.faults:
            lines.append(
                "The model's log and these journals have the same SHA-256 of every question and of every answer, and "
                "of the settings. Nothing else was compared."
            )
        return "\n".join([*lines, *(f"- {printable_text(fault)}" for fault in self.faults)])

    def _run_texts(self) -> dict[str, str]:
        """Return what the server tells of the run, by heading; empty texts are left out."""
        entry = self.provenance
        texts = {
            "run": entry.run,
            "time": f"{entry.began} to {entry.ended}",
            "method": self.history.method,
            "app": " ".join(filter(None, (entry.app, entry.app_hash and f"with the hash {entry.app_hash}"))),
            "started by": entry.account,
            "versions at the server": ", ".join(f"{name} {text}" for name, text in entry.versions.items()),
            "settings": f"SHA-256 {entry.settings}",
        }
        return {name: text for name, text in texts.items() if text}

    def _compare(self, path: Path, party: int, events: Sequence[Event]) -> list[dict[str, Any]]:
        """Compare a party's exchanges, in the order of the server's, and append the differences to `faults`.

        Keys, in this order: the question's name (``phase``), how the digests of ``question`` and ``reply`` compare,
        ``time`` and ``bytes`` at the site.
        """
        label = f"{path}: party {party}"
        settings = next((event.digest for event in events if event.kind == "run"), "")
        if settings != self.provenance.settings:
            words = f"other settings (SHA-256 {settings})" if settings else "no settings of this run in its journal"
            self.faults.append(f"{label}: the site had {words}")
        exchanges = []
        rounds = [
            (entry.phase, entry.digests[str(party)]) for entry in self.history.rounds if str(party) in entry.digests
        ]
        server_exchanges = [Exchange(phase, question, reply) for phase, (question, reply) in rounds]
        pairs = zip_longest(server_exchanges, journal_exchanges(events), fillvalue=Exchange())
        for number, (server, site) in enumerate(pairs, start=1):
            name = server.phase or site.phase
            verdicts = {}
            for kind in ("question", "reply"):
                verdicts[kind] = _verdict(getattr(server, kind), getattr(site, kind))
                if verdicts[kind] != "the same":
                    self.faults.append(f"{label}, question {number} ('{name}'): the {kind} is {verdicts[kind]}")
            exchanges.append({"phase": name, **verdicts, "time": site.time, "bytes": site.nbytes})
        return exchanges


def _table_line(cells: Sequence[str]) -> str:
    """Return a line of a table in Markdown, in which no text can make or hide a cell."""
    return f"| {' | '.join(printable_text(cell).replace('|', BAR) for cell in cells)} |"


def _verdict(server: str, site: str) -> str:
    """Return "the same" for equal digests at server and site, else how they differ; an empty digest is missing."""
    if server and site:
        return "the same" if server == site else "another at the site than at the server"
    return "not in the journal" if server else "not in the model" if site else "on neither side"


def main(model: Path, journals: Annotated[list[Path], Argument()]) -> Report:
    """Compare a model with the journals of its sites, and print the result.

        fedpca audit model.npz north/journal south/journal

    Print, as a page in Markdown, what the server and each site tell of the run that made a model: each question and
    each answer by its digest, the settings, times and bytes. The exit code is 1 if anything differs. That a reply is
    right, or that the model follows from the replies, is not shown.

    Parameters
    ----------
    model : Path
        Model file of a run on sites, or the folder of a run by post.
    journals : list of Path
        Journals of sites: each a folder (node-config 'journal'), or a file of `site journal --export`.

    Returns
    -------
    Report
        The page. It has a fault if a question, an answer or a setting differs.

    Raises
    ------
    ConfigError
        If the model is not of a run on a grid of Flower's.
    """
    model = model / "model.npz" if model.is_dir() else model
    _, _, history = model_file.read(model)
    if history.provenance is None:
        raise ConfigError(
            f"{model} does not say which run made it, because it was computed in one process or by a version before "
            "0.3; name the model of a run on sites"
        )
    comparison = Comparison(history, history.provenance)
    for path in journals:
        comparison.add(path, read_journal(path))
    count = len(comparison.faults)
    fault = f"{model} and the journals differ in {count} points; the report lists them" if count else ""
    return Report(comparison.page(), comparison.content(), fault)
