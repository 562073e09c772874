"""A site's journal for its reader: a table, an export, a status of runs, and a check that no event was changed."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.errors import ConfigError, printable_text
from fedpca_flwr.site.rules.accounts import ACCOUNTS, event_text
from fedpca_flwr.site.rules.chain import Event, FurtherRefusals, events, first_gap, further_refusals
from fedpca_flwr.site.rules.journal import COMPLETED_KIND, POST_KIND, SCHEMA, SECRETS_TIMEOUT, stored_key
from fedpca_flwr.state.files import atomic_file
from fedpca_flwr.state.store import Store

DEADLINE = re.compile(r"; round-deadline=(\d{1,9}(?:\.\d{1,9})?(?:e\+\d\d)?)(?:;|$)")
DEFAULT_DEADLINE = RunConfig().round_deadline
PHASE = re.compile(r"(phase \d+ of \d+)\b")
UNCOMPARED_TEXT = "an earlier version noted no digest of the rows, so no later run is compared with its answers"
TABLE_COLUMNS = ("time", "run", "party", "kind", "about", "bytes")
MAX_WIDTH = 200  # characters up to which a column of the table is as wide as its longest text


@dataclass(frozen=True)
class Audit:
    """Result of reading a journal: all events, and where their chain of SHA-256 digests breaks, if anywhere."""

    events: Sequence[Event]
    gap: int  # number of the first event that is missing or was changed; 0: none
    further_refusals: Sequence[FurtherRefusals] = ()  # refused runs that the journal only counts
    key: bytes = field(default=b"", repr=False)  # of the journal's digests; empty for an export

    @property
    def verdict(self) -> str:
        """Sentence on whether the journal's chain of digests is intact, with the last digest."""
        if self.gap:
            return f"event {self.gap} is missing, was added or was changed; what follows it proves nothing"
        last = self.events[-1].chain if self.events else "none"
        return (
            f"{len(self.events)} events, each with the digest that follows from its content and the event before; last "
            f"digest: {last} (keep it elsewhere: whoever owns the file could make the whole chain anew, or leave out "
            "its end, with another last digest)"
        )

    def table(self) -> str:
        """Return a text table: a header, a line for each event, and a line for each group of counted refusals."""
        rows = [list(TABLE_COLUMNS)]
        for event in self.events:
            fields = {**event._asdict(), "about": event_text(event.kind, event.about)}
            rows.append([printable_text(str(fields[name])) for name in TABLE_COLUMNS])
        widths = [min(MAX_WIDTH, max(map(len, column))) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        return "\n".join([*lines, *map(printable_text, map(_further_line, self.further_refusals))])

    def runs(self) -> list[dict[str, Any]]:
        """Summarise the events of each run and party, in the order of their first events.

        Keys: ``run``, ``party``, ``began`` and ``last`` (times), ``about`` (which run it was), ``questions`` (their
        number), ``bytes`` (sent), ``refused`` and ``ended`` (kinds of the errors, or empty), ``phase`` (the last one
        answered), ``compared`` (False if answers in clear of a version before 0.3 have no digest of their rows), and
        ``status``: "running", "silent" (for longer than its round-deadline), "completed", "refused", "broke off",
        "asked nothing" (there are notes alone), or "answered" (versions before 0.3, which noted no end).
        """
        runs: dict[tuple[str, int], dict[str, Any]] = {}
        completed: set[tuple[str, int]] = set()
        by_post: set[tuple[str, int]] = set()
        for event in self.events:
            blank = {"run": event.run, "party": event.party, "began": event.time, "about": ""}
            blank |= {"questions": 0, "bytes": 0, "refused": "", "ended": "", "phase": "", "compared": False}
            run = runs.setdefault((event.run, event.party), blank)
            run["last"] = event.time
            run["questions"] += event.kind == "question"
            run["bytes"] += event.bytes
            if event.kind in {"refused", "ended", "run"}:
                run["about" if event.kind == "run" else event.kind] = printable_text(event.about)
            elif event.kind == "answer" and (phase := PHASE.match(event.about)):
                run["phase"] = phase[1]
            elif event.kind in {COMPLETED_KIND, POST_KIND}:
                (completed if event.kind == COMPLETED_KIND else by_post).add((event.run, event.party))
            run["compared"] |= event.kind in ACCOUNTS
        now = datetime.now(UTC)
        long_ago = (now - SECRETS_TIMEOUT).isoformat()
        latest = {run["party"]: run for run in runs.values()}
        for key, run in runs.items():
            is_silent = key not in by_post and (run is not latest[run["party"]] or run["last"] < long_ago)
            if key in completed:
                run["status"] = "completed"
            elif run["refused"] or (run["ended"] and not run["questions"]):
                run["status"] = "refused"
            elif run["ended"] or (run["phase"] and is_silent):
                run["status"] = "broke off"
            elif run["questions"]:  # versions before 0.3 have noted no phase, and not that a run was completed
                run["status"] = "answered" if is_silent else "running"
            else:
                run["status"] = "asked nothing"
            deadline = DEADLINE.search(run["about"])
            seconds = min(float(deadline[1]) if deadline else DEFAULT_DEADLINE, SECRETS_TIMEOUT.total_seconds())
            too_old = (now - timedelta(seconds=seconds)).isoformat()
            if run["status"] == "running" and key not in by_post and run["last"] < too_old:
                run["status"] = "silent"
            run["compared"] |= bool(run["phase"]) or not run["bytes"] or "; only sums" in run["about"]
        return list(runs.values())

    def status(self) -> str:
        """Return two lines on each run (questions, bytes sent, its end), and one on each group of counted refusals."""
        lines = []
        for run in self.runs():
            where = f" after {run['phase']}" if run["status"] == "broke off" and run["phase"] else ""
            error = run["refused"] or run["ended"]
            since = f" since {run['last']}" if run["status"] == "silent" else ""
            end = f"{run['status']}{since}{where}{f': {error}' if error else ''}"
            end += "" if run["compared"] else f"; {UNCOMPARED_TEXT}"
            title = run["about"] or "nothing is noted of what it was"
            lines.append(f"run {printable_text(run['run'])} (client {run['party']}): {title}")
            counts = f"{run['questions']} questions, {run['bytes']:,} bytes left, {end}"
            lines.append(f"  {run['began']} to {run['last']}: {counts}")
        lines += map(_further_line, self.further_refusals)
        return "\n".join(map(printable_text, lines or ["no run has asked this site anything"]))

    def export(self, file: Path) -> None:
        """Write the events as JSON lines, from which a reader can recompute the chain of digests.

        The file appears complete or not at all, for its owner only. Raise ConfigError if it cannot be written.
        """
        try:
            with atomic_file(file) as stream:
                for event in self.events:
                    stream.write(json.dumps(event._asdict()).encode() + b"\n")
        except OSError as error:
            raise ConfigError(
                f"{file} cannot be written ({error.strerror}); name a file in a folder that allows writing"
            ) from None


def audit(folder: str) -> Audit:
    """Read the journal in a folder (node-config 'journal'), and check its chain of digests."""
    store = Store(folder, SCHEMA)
    if not store.exists():
        raise ConfigError(f"there is no journal in {store.folder}: name the folder of node-config 'journal'")
    with store.transaction() as database:
        key = stored_key(database)
        return Audit(list(events(database)), first_gap(database), further_refusals(database), key)


def _further_line(runs: FurtherRefusals) -> str:
    """Return a line about refused runs that the journal only counts, without an event for each."""
    last = printable_text(f"{runs.time} of run {runs.run}")
    return f"after event {runs.number}: {runs.times} further refusals, the last at {last}"
