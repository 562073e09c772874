"""Comparison of a model with the journals of sites, question by question.

The model's log and each journal have the SHA-256 of every question and reply. Where both are equal, the site was asked
what the server says that it asked, and the server received what the site sent. That a reply is right is not shown.
"""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from typer import Argument

from fedpca_flwr.errors import ConfigError, ContractError, printable_text
from fedpca_flwr.model.history import History, Provenance, history_of
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.site.audit import Audit, audit
from fedpca_flwr.site.chain import Event, first_wrong_link

TABLE_HEAD = ("", "question", "asked", "answered", "time at the site", "bytes")


class Exchange(NamedTuple):
    """Question and its answer, in the record of the server or of a site.

    Parameters
    ----------
    phase : str
        Name of the question.
    question, reply : str
        SHA-256 of both; empty where that side has none.
    time : str
        Time of the question at the site; empty at the server.
    nbytes : int
        Bytes of the answer that left the site.
    """

    phase: str = ""
    question: str = ""
    reply: str = ""
    time: str = ""
    nbytes: int = 0


def journal_exchanges(events: Sequence[Event]) -> list[Exchange]:
    """Collect the questions and answers from the events of one party in one run.

    Parameters
    ----------
    events : sequence of Event
        Events in order.

    Returns
    -------
    list of Exchange
        In order of the questions. An answer that was sent again counts once.
    """
    exchanges: list[Exchange] = []
    for event in events:
        if event.kind == "question":
            exchanges.append(Exchange(event.about, event.digest, time=event.time))
        elif event.kind == "answer" and exchanges:
            exchanges[-1] = exchanges[-1]._replace(reply=event.digest, nbytes=event.bytes)
    return exchanges


def read_journal(path: Path) -> Audit:
    """Read a journal from its folder, or from the file that `site journal --export` wrote.

    Parameters
    ----------
    path : Path
        Folder, or file of JSON lines.

    Returns
    -------
    Audit
        The events and the first gap among the events.

    Raises
    ------
    ConfigError
        If there is no journal.
    ContractError
        If the file holds something else.
    """
    if not path.is_file():
        return audit(str(path))
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        events = [
            Event(*(EVENT_KINDS[name](values[name]) for name in Event._fields)) for values in map(json.loads, lines)
        ]
    except (ValueError, TypeError, KeyError):
        raise ContractError(
            f"{path} is no exported journal: write it with `python -m fedpca_flwr site journal FOLDER --export FILE`"
        ) from None
    return Audit(events, first_wrong_link(events))


EVENT_KINDS: Mapping[str, Callable[[Any], Any]] = {
    name: int if name in {"number", "party", "bytes"} else str for name in Event._fields
}
"""Type of each field of an exported event."""


@dataclass
class Comparison:
    """Page that compares a model with journals and lists all differences.

    Parameters
    ----------
    history : History
        Log of the model.
    provenance : Provenance
        Entry of the log about the run.
    lines : list of str
        Lines of the page, in Markdown.
    faults : list of str
        Differences, a sentence for each.
    """

    history: History
    provenance: Provenance
    lines: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Write the server's entries about the run, and start without parties."""
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
        self.lines += ["# What the server tells of the run", ""]
        self.lines += [f"- {name}: {printable_text(text)}" for name, text in texts.items() if text]
        self._parties: set[int] = set()

    def add(self, path: Path, journal: Audit) -> None:
        """Compare a site's journal with the model.

        Parameters
        ----------
        path : Path
            Where the journal is, for the page.
        journal : Audit
            The journal.
        """
        run = self.provenance.run
        events = [event for event in journal.events if event.run == run]
        self.lines += ["", f"# {printable_text(str(path))}", "", f"The journal: {journal.verdict}."]
        if journal.gap:
            self.faults.append(f"{path}: {journal.verdict}")
        parties = sorted({event.party for event in events})
        if not parties:
            self.faults.append(f"{path}: the journal has no entry about run {run}")
        for party in parties:
            self._add_party(f"{path}: party {party}", party, [event for event in events if event.party == party])
        statuses = {entry["party"]: entry["status"] for entry in journal.runs() if entry["run"] == run}
        self.lines += [f"\nParty {party}: {status}, as the site tells." for party, status in statuses.items()]

    def finish(self) -> str:
        """Name the parties without a journal, add the verdict, and return the page.

        Returns
        -------
        str
            The page in Markdown.
        """
        names = [f"{entry.party} ({entry.name})" for entry in self.history.parties if entry.party not in self._parties]
        self.lines += ["", "# Verdict", ""]
        if names:
            self.lines.append(f"No journal was given of: {printable_text(', '.join(names))}.")
        if self._parties and not self.faults:
            self.lines.append("All entries that the model and these journals share about the run are equal.")
        self.lines += [f"- {printable_text(fault)}" for fault in self.faults]
        return "\n".join(self.lines)

    def _add_party(self, label: str, party: int, events: Sequence[Event]) -> None:
        """Write the table of a party's questions and answers, and collect the differences."""
        self._parties.add(party)
        settings = next((event.digest for event in events if event.kind == "run"), "")
        if settings and settings != self.provenance.settings:
            self.faults.append(f"{label}: the site had other settings (SHA-256 {settings})")
        cells = ["---"] * len(TABLE_HEAD)
        self.lines += ["", *(f"| {' | '.join(row)} |" for row in (TABLE_HEAD, cells))]
        pairs = zip_longest(self._server_exchanges(party), journal_exchanges(events), fillvalue=Exchange())
        for number, (server, site) in enumerate(pairs, start=1):
            name = server.phase or site.phase
            words = []
            for kind in ("question", "reply"):
                words.append(_verdict(getattr(server, kind), getattr(site, kind)))
                if words[-1] != "the same":
                    self.faults.append(f"{label}, question {number} ('{name}'): the {kind} is {words[-1]}")
            row = (str(number), name, *words, site.time, f"{site.nbytes:,}")
            self.lines.append(f"| {' | '.join(map(printable_text, row))} |")

    def _server_exchanges(self, party: int) -> Iterator[Exchange]:
        """Yield the questions that the server asked of a party, and the digests of its replies."""
        for entry in self.history.rounds:
            if str(party) in entry.digests:
                question, reply = entry.digests[str(party)]
                yield Exchange(entry.phase, question, reply)


def _verdict(server: str, site: str) -> str:
    """Return how two digests compare; an empty one is missing."""
    if server and site:
        return "the same" if server == site else "another at the site than at the server"
    return "not in the journal" if server else "not in the model" if site else "on neither side"


def main(model: Path, journals: Annotated[list[Path], Argument()]) -> int:
    """Compare a model with the journals of its sites, and print the result.

    Print, as a page in Markdown, what the server and each site tell of the run that made a model: each question and
    each answer by its digest, the settings, times and bytes. The exit code is 1 if anything differs. That a reply is
    right, or that the model follows from the replies, is not shown.

    Parameters
    ----------
    model : Path
        Model file of a run on sites.
    journals : list of Path
        Journals of sites: each a folder (node-config 'journal'), or a file of `site journal --export`.

    Returns
    -------
    int
        Exit code: 1 if a question, an answer or a setting differs.

    Raises
    ------
    ConfigError
        If the model is not of a run on a grid of Flower's.
    """
    loaded: Any = PCAModel.load(model)
    history = history_of(loaded.log, *loaded.components_.shape)
    if history.provenance is None:
        raise ConfigError(
            f"{model} does not say which run made it, because it was computed in one process or by a version before "
            "0.3; name the model of a run on sites"
        )
    comparison = Comparison(history, history.provenance)
    for path in journals:
        comparison.add(path, read_journal(path))
    print(comparison.finish())
    if comparison.faults:
        text = f"{model} and the journals differ in {len(comparison.faults)} points; the page lists them"
        print(text, file=sys.stderr)
    return int(bool(comparison.faults))
