"""Numbers about runs, for whoever watches a server or a site, in two files beside each other.

`NAME.prom` is OpenMetrics text of the latest run with counts over all (for the textfile collector of Prometheus' node
exporter), replaced whole. `NAME.jsonl` has a line of JSON a round and an end at the server, at a site one a run.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.util import find_spec
from logging import WARNING
from pathlib import Path
from typing import TYPE_CHECKING

from flwr.common.logger import log
from typing_extensions import override

from fedpca_flwr.config.node_config import MISSING_METRICS_EXTRA
from fedpca_flwr.errors import ConfigError
from fedpca_flwr.state.files import SHARED, atomic_file, require_writable_folder

if TYPE_CHECKING:
    from fedpca_flwr.protocol.strategy import PCAStrategy

RUNNING, SILENT = "running", "silent"

GAUGES = {
    "run_active": "1 while a run goes on, else 0",
    "changed_timestamp_seconds": "time of the last change of the latest run, in seconds since 1970",
    "rounds": "rounds of the latest run",
    "upload_bytes": "bytes from each party in the latest run",
    "download_bytes": "bytes to each party in the latest run",
    "waited_seconds": "time that the server waited for each party's replies in the latest run",
    "epsilon": "privacy spent: at the server by the latest run, at a site by all of its runs",
}
"""Fields of the latest record that are gauges, with their help texts."""
COUNTERS = {
    "status": ("fedpca_runs", "runs by how they ended"),
    "refused": ("fedpca_refusals", "runs that an error or a refusal ended, by its kind"),
}
"""Fields of all records whose values are counted, with name and help of the counter."""

ByParty = Mapping[str, float]
"""Number of each party, by the party's name."""


@dataclass(frozen=True)
class Record:
    """Progress and cost of a run at some time: status, rounds, bytes and seconds by party, epsilon."""

    time: str  # time in ISO 8601
    run: str
    about: str  # method of the run, with its options
    status: str
    refused: str = ""  # kind of the error that ended the run
    rounds: int = 0
    upload_bytes: ByParty = field(default_factory=dict)  # bytes from each party
    download_bytes: ByParty = field(default_factory=dict)  # bytes to each party
    waited_seconds: ByParty = field(default_factory=dict)  # seconds that the server has waited for each party
    epsilon: float | None = None  # epsilon that the run spends

    @property
    def run_active(self) -> int:
        """1 while the run goes on, else 0."""
        return int(self.status == RUNNING)

    @property
    def changed_timestamp_seconds(self) -> float:
        """The time in seconds since 1970."""
        return datetime.fromisoformat(self.time).timestamp()

    def line(self) -> str:
        """Return the record as JSON in a line, without the line's end and without values that are empty or infinite."""
        fields = {name: value for name, value in asdict(self).items() if value not in ("", None, {}, math.inf)}
        return json.dumps(fields)


@contextmanager
def measured(strategy: PCAStrategy, run: int) -> Iterator[None]:
    """Write metrics files of a run after each round and at its end, if its run-config names a file.

    Raise ConfigError, before anything is computed, for a missing package, a relative path or a folder that cannot be
    written to. A failure to write later is only logged.
    """
    name = strategy.config.metrics
    if not name:
        yield
        return
    if not Path(name).is_absolute():
        raise ConfigError(f"run-config: 'metrics' is '{name}', expected an absolute path at the server")
    if find_spec("prometheus_client") is None:
        raise ConfigError(f"run-config: {MISSING_METRICS_EXTRA}")
    require_writable_folder(Path(name).parent, SHARED)

    def write(status: str = RUNNING, refused: str = "", epsilon: float | None = None) -> None:
        """Write a record of the run so far; a failure to write is only logged."""
        try:
            _append(name, _record_of(strategy, run, status, refused, epsilon))
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


def _record_of(strategy: PCAStrategy, run: int, status: str, refused: str, epsilon: float | None) -> Record:
    """Return a `Record` of the run as seen by the server: bytes and seconds for each party."""
    entries = strategy.round_log
    parties = sorted(set(strategy.quorum.partition_by_client.values()))
    names = [strategy.quorum.name_parties([party]) for party in parties]

    def totals(direction: str) -> dict[str, float]:
        """Sum the bytes of all rounds by party; `direction` is "up" (replies) or "down" (requests)."""
        by_round = (entry[direction] for entry in entries)
        return dict(zip(names, map(sum, zip(*by_round, strict=False)), strict=False))

    return Record(
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        run=str(run),
        about=strategy.config.method,
        status=status,
        refused=refused,
        rounds=len(entries),
        upload_bytes=totals("up"),
        download_bytes=totals("down"),
        waited_seconds=dict(zip(names, (round(strategy.waiting_seconds.get(p, 0.0), 3) for p in parties), strict=True)),
        epsilon=epsilon,
    )


def _append(name: str, record: Record) -> None:
    """Append a record to ``NAME.jsonl``, and rewrite ``NAME.prom``, whose counts leave damaged lines out."""
    lines = Path(f"{name}.jsonl")
    with open(lines, "a", encoding="utf-8") as stream:
        stream.write(f"{record.line()}\n")
    ended = []
    for line in lines.read_text(encoding="utf-8", errors="replace").splitlines():
        with suppress(ValueError, TypeError, AttributeError):  # a damaged line is of no run that can be counted
            entry = {key: str(json.loads(line).get(key, "")) for key in COUNTERS}
            if entry["status"] not in ("", RUNNING):
                ended.append(entry)
    _write_text(name, "server", record, ended)


def write_records(name: str, at: str, records: Sequence[Record]) -> None:
    """Write the metrics files ``NAME.jsonl`` and ``NAME.prom`` of a site, if there are records, the latest last."""
    if not records:
        return
    with atomic_file(Path(f"{name}.jsonl"), SHARED) as stream:
        stream.writelines(f"{record.line()}\n".encode() for record in records)
    _write_text(name, at, records[-1], [asdict(record) for record in records if record.status not in (RUNNING, SILENT)])


def _write_text(name: str, at: str, latest: Record, ended: Sequence[Mapping[str, str]]) -> None:
    """Write ``NAME.prom`` in OpenMetrics format: gauges of the latest run, counts over ended runs."""
    # here: few runs write it
    from prometheus_client.core import CollectorRegistry, CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.openmetrics.exposition import generate_latest
    from prometheus_client.registry import Collector

    class Runs(Collector):
        """Collector of prometheus_client with gauges of the latest run and counters over ended runs."""

        @override
        def collect(self) -> Iterator[Metric]:
            for key, text in GAUGES.items():
                value = getattr(latest, key)
                by_party = isinstance(value, Mapping)
                gauge = GaugeMetricFamily(f"fedpca_{key}", text, labels=["at", "party"] if by_party else ["at"])
                samples = [([at, party], number) for party, number in value.items()] if by_party else [([at], value)]
                for labels, number in samples:
                    if number is not None:
                        gauge.add_metric(labels, number)
                yield gauge
            for key, (counter_name, text) in COUNTERS.items():
                counter = CounterMetricFamily(counter_name, text, labels=["at", key])
                for reason, count in Counter(filter(None, (record.get(key) for record in ended))).items():
                    counter.add_metric([at, reason], count)
                yield counter

    registry = CollectorRegistry()
    registry.register(Runs())
    with atomic_file(Path(f"{name}.prom"), SHARED) as stream:
        stream.write(generate_latest(registry))
