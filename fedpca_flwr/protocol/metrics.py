"""Numbers about runs, for whoever watches a server or a site: OpenMetrics text, and JSON lines.

Both are files beside each other. `NAME.prom` has the numbers of the latest run and counts over all of them, and is
replaced whole: Prometheus gets it by the textfile collector of its node exporter, or by a web server. `NAME.jsonl` has
a line for each record: at the server one after each round and at the end, at a site one for each run.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from logging import WARNING
from pathlib import Path
from typing import TYPE_CHECKING, Self

from flwr.common.logger import log

from fedpca_flwr.errors import ConfigError
from fedpca_flwr.state.files import atomic_file, require_writable_folder

if TYPE_CHECKING:
    from fedpca_flwr.protocol.strategy import PCAStrategy

RUNNING = "running"

GAUGES = {
    "rounds": "rounds of the latest run",
    "upload_bytes": "bytes from each party in the latest run",
    "download_bytes": "bytes to each party in the latest run",
    "waited_seconds": "time that the server waited for each party's replies in the latest run",
    "epsilon": "privacy spent: at the server by the latest run, at a site by all of its runs",
}
COUNTERS = {
    "status": ("fedpca_runs", "runs by how they ended"),
    "refused": ("fedpca_refusals", "runs that an error or a refusal ended, by its kind"),
}

ByParty = Mapping[str, float]


@dataclass(frozen=True)
class Record:
    """What is known of a run at some time; ``refused`` is the kind of the error that has ended it."""

    time: str
    run: str
    about: str
    status: str
    refused: str = ""
    rounds: int = 0
    upload_bytes: ByParty = field(default_factory=dict)
    download_bytes: ByParty = field(default_factory=dict)
    waited_seconds: ByParty = field(default_factory=dict)
    epsilon: float | None = None

    @classmethod
    def of(cls, strategy: PCAStrategy, run: int, status: str, refused: str, epsilon: float | None) -> Self:
        """A run as its server sees it."""
        quorum, entries = strategy.quorum, strategy.round_log
        parties = sorted(set(quorum.partition_by_client.values()))
        names = [quorum.name_parties([party]) for party in parties]
        sent = {way: [sum(one) for one in zip(*(e[way] for e in entries), strict=False)] for way in ("up", "down")}
        return cls(
            time=datetime.now(UTC).isoformat(timespec="seconds"),
            run=str(run),
            about=strategy.config.method,
            status=status,
            refused=refused,
            rounds=len(entries),
            upload_bytes=dict(zip(names, sent["up"], strict=False)),
            download_bytes=dict(zip(names, sent["down"], strict=False)),
            waited_seconds=dict(
                zip(names, (round(strategy.waiting_seconds.get(p, 0.0), 3) for p in parties), strict=True)
            ),
            epsilon=epsilon,
        )

    def line(self) -> str:
        """The record as JSON, which has no infinity: what is not there, or infinite, is left out."""
        return json.dumps(
            {name: value for name, value in asdict(self).items() if value not in ("", None, {}, math.inf)}
        )


@contextmanager
def measured(strategy: PCAStrategy, run: int) -> Iterator[None]:
    """Keep the numbers of a run at the server, as long as it lasts, where its run-config names a file for them.

    `ConfigError`: before anything is computed, where they cannot be written. Later a full disk ends no run.
    """
    name = strategy.config.metrics
    if not name:
        yield
        return
    if not Path(name).is_absolute():
        raise ConfigError(f"run-config: 'metrics' is '{name}', expected an absolute path at the server")
    require_writable_folder(Path(name).parent)

    def write(status: str = RUNNING, refused: str = "", epsilon: float | None = None) -> None:
        try:
            _add(name, Record.of(strategy, run, status, refused, epsilon))
        except (OSError, ValueError) as error:
            log(WARNING, "the numbers of the run were not written to %s (%s)", name, error)

    strategy.after_round = write
    write()
    try:
        yield
    except Exception as error:
        write("failed", type(error).__name__)
        raise
    write("completed", epsilon=strategy.model.log["measured"].get("epsilon") if strategy.done else None)


def _add(name: str, record: Record) -> None:
    """Add a line about the latest run, and bring the text up to date."""
    lines = Path(f"{name}.jsonl")
    with open(lines, "a", encoding="utf-8") as stream:
        stream.write(f"{record.line()}\n")
    known = [json.loads(line) for line in lines.read_text(encoding="utf-8").splitlines()]
    _write_text(name, "server", record, [one for one in known if one["status"] != RUNNING])


def write_records(name: str, at: str, records: Sequence[Record]) -> None:
    """Write the files of a site anew, from all its runs, once there is one."""
    if not records:
        return
    with atomic_file(Path(f"{name}.jsonl")) as stream:
        stream.writelines(f"{record.line()}\n".encode() for record in records)
    _write_text(name, at, records[-1], [asdict(record) for record in records])


def _write_text(name: str, at: str, latest: Record, ended: Sequence[Mapping[str, str]]) -> None:
    """Replace the text; every sample has the label ``at``, so that files of one machine differ."""
    counts = {key: Counter(filter(None, (record.get(key) for record in ended))) for key in COUNTERS}
    with atomic_file(Path(f"{name}.prom")) as stream:
        stream.writelines(f"{line}\n".encode() for line in _exposition(at, latest, counts))


def _exposition(at: str, latest: Record, counts: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    """The lines, as OpenMetrics 1.0 has them."""
    for key, about in GAUGES.items():
        value = getattr(latest, key)
        samples = {"": value} if not isinstance(value, Mapping) else value
        yield from (f"# TYPE fedpca_{key} gauge", f"# HELP fedpca_{key} {about}")
        for party, number in samples.items():
            if number is not None:
                yield f"fedpca_{key}{_labels(at=at, party=party)} {_number(number)}"
    for key, (name, about) in COUNTERS.items():
        yield from (f"# TYPE {name} counter", f"# HELP {name} {about}")
        for reason, number in counts[key].items():
            yield f"{name}_total{_labels(at=at, **{key: reason})} {number}"
    yield "# EOF"


def _labels(**labels: str) -> str:
    shown = {name: value.translate(ESCAPED) for name, value in labels.items() if value}
    return "{" + ",".join(f'{name}="{value}"' for name, value in shown.items()) + "}"


ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def _number(value: float) -> str:
    return str(value) if math.isfinite(value) else "+Inf" if value > 0 else "NaN"
