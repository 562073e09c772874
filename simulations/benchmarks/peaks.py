"""Peak memory of a site's process and of the server's, in a run of P-COV whose messages travel as Flower's objects."""

import gc
import itertools
import tracemalloc
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, cast

import numpy as np
from flwr.app import Context, Message
from flwr.common.serde import context_to_proto
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, no_object_id_recompute
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, push_objects
from typing_extensions import override

from fedpca_flwr.flower import FedPCA, PCAClientApp
from fedpca_flwr.maths.moments import packed_size
from fedpca_flwr.simulations.benchmarks import harness
from fedpca_flwr.simulations.benchmarks.harness import Lines
from fedpca_flwr.simulations.local_grid import LocalGrid
from fedpca_flwr.strategies import FACTORY, METHODS
from fedpca_flwr.transports.identity import make_key

COMPONENTS = 10
# keys of the run-config by how answers travel
WAYS: Mapping[str, Mapping[str, Any]] = {"clear": {}, "masked": {"secure-aggregation": True, "bound": 100.0}}
WARM_UP_FEATURES, WARM_UP_ROWS = 400, 40  # sizes of a run that loads all libraries


class Meter(ABC):
    """Meter of the peak memory of the sites and of the server, which take turns in one process."""

    def __init__(self) -> None:
        self.site_peak = self.server_peak = 0
        gc.collect()
        gc.freeze()  # what is there already need not be looked at again
        self._base = self._begin()

    @abstractmethod
    def memory(self) -> tuple[int, int]:
        """Return the bytes that the process holds now, and the most that it held since `reset`."""

    @abstractmethod
    def reset(self) -> None:
        """Begin a new peak."""

    @contextmanager
    def site(self) -> Iterator[None]:
        """Count the memory of a with statement as that of a site's process, beyond what was there before."""
        self.end_server()
        base = self._begin()
        yield
        self.site_peak = max(self.site_peak, self.memory()[1] - base)
        self._begin()

    def end_server(self) -> None:
        """Count the peak so far as the server's, beyond what was there at the start."""
        self.server_peak = max(self.server_peak, self.memory()[1] - self._base)

    def close(self) -> None:
        """End the measurement."""
        self.end_server()
        gc.unfreeze()

    def _begin(self) -> int:
        """Begin a new peak, and return the bytes that the process holds now."""
        gc.collect()
        self.reset()
        return self.memory()[0]


class TracedMeter(Meter):
    """Meter of what Python and NumPy allocate, which is the same in each run."""

    def __init__(self) -> None:
        tracemalloc.start()
        super().__init__()

    @override
    def memory(self) -> tuple[int, int]:
        return tracemalloc.get_traced_memory()

    @override
    def reset(self) -> None:
        tracemalloc.reset_peak()

    @override
    def close(self) -> None:
        super().close()
        tracemalloc.stop()


class ResidentMeter(Meter):
    """Meter of resident memory, as Linux counts it, with what C libraries and the allocator hold."""

    @override
    def memory(self) -> tuple[int, int]:
        return harness.process_status("VmRSS"), harness.process_status("VmHWM")

    @override
    def reset(self) -> None:
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")


class DiskGrid(LocalGrid):
    """Grid whose sites answer in this process, one after another, and whose replies wait in files in ``folder``.

    A reply is pushed to files as Flower's process of a message pushes it to the SuperLink, with the context, and is
    joined from them again as Flower's grid joins it at the server.
    """

    def __init__(
        self, node_configs: Sequence[Mapping[str, Any]], run_config: Mapping[str, Any], folder: Path, meter: Meter
    ) -> None:
        super().__init__(PCAClientApp(lambda own, context: FACTORY.client(own)), node_configs, run_config)
        self._folder, self._meter, self._numbers = folder, meter, itertools.count()

    @override
    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterator[Message]:
        """Let each site answer, then yield the replies, each joined when the one before is consumed."""
        replies = []
        for message in messages:
            context = self.contexts[message.metadata.dst_node_id]
            with self._meter.site():
                replies.append(self._push(self.app(message, context), context))
        yield from map(_pull, replies)

    def _push(self, reply: Message, context: Context) -> tuple[str, Path]:
        """Write a reply's objects to files of a new folder; return the reply's id and the folder."""
        folder = self._folder / f"reply {next(self._numbers)}"
        folder.mkdir()
        reply.metadata.__dict__["_message_id"] = reply.object_id  # as Flower's process sets it
        with no_object_id_recompute():
            objects = get_all_nested_objects(reply)
            push_objects(objects, lambda name, content: cast(None, (folder / name).write_bytes(content)))
            context_to_proto(context).SerializeToString()
            return reply.object_id, folder


def _pull(pushed: tuple[str, Path]) -> Message:
    """Join a reply, given by its id and folder, from the objects in the folder."""
    name, folder = pushed
    message = inflate_object_from_contents(name, {file.name: file.read_bytes() for file in folder.iterdir()})
    message.metadata.__dict__["_message_id"] = name  # type: ignore[attr-defined]  # a message
    return cast(Message, message)


class Peaks(NamedTuple):
    """Peak memory of a site's and the server's process, without libraries, in scatters of d (d + 1) / 2 float64."""

    site: float
    server: float


def measure_run(features: int, rows: int, parties: int, way: str, meter_class: type[Meter]) -> Peaks:
    """Run P-COV over sites with drawn rows (n, d) each, and measure the peak memory; ``way`` is a key of `WAYS`."""
    with TemporaryDirectory() as name:
        files = [Path(name, f"{party}.npy") for party in range(parties)]
        for party, file in enumerate(files):
            np.save(file, np.random.default_rng(party).standard_normal((rows, features)))
        meter = _run_sites(files, {"clients": parties, "n-components": COMPONENTS, **WAYS[way]}, meter_class)
        scatter = 8 * packed_size(features)
        return Peaks(meter.site_peak / scatter, meter.server_peak / scatter)


def _run_sites(files: Sequence[Path], options: Mapping[str, Any], meter_class: type[Meter]) -> Meter:
    """Run P-COV over sites with journals and identities of their own, and return the meter of its peak memory."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        lines = [make_key(str(folder / f"{party}.key"), party) for party in range(len(files))]
        (folder / "members").write_text("\n".join(lines), encoding="utf-8")
        nodes = []
        for party, file in enumerate(files):
            paths = {"journal": f"journal {party}", "identity": f"{party}.key", "identities": "members"}
            nodes.append({"data": str(file), **{key: str(folder / path) for key, path in paths.items()}})
        strategy = FedPCA("p-cov", **{key.replace("-", "_"): value for key, value in options.items()})
        run_config = METHODS.run_config({"method": "p-cov", **options})
        meter = meter_class()
        try:
            strategy.start(DiskGrid(nodes, run_config, folder, meter))
        finally:
            meter.close()
        return meter


def measure_apart(features: int, rows: int, parties: int, way: str, meter_class: type[Meter]) -> Peaks:
    """Measure a run as `measure_run` does, in a new process which has loaded all libraries."""
    warm_up = [min(WARM_UP_FEATURES, features), WARM_UP_ROWS, parties, way, ResidentMeter]
    peaks: Peaks = harness.isolate(measure_run, features, rows, parties, way, meter_class, warm_up=warm_up).value
    return peaks


@harness.benchmark("docs/streaming.md", features=60, rows=20)
def _peaks(features: int = 3000, rows: int = 300, parties: int = 3) -> Lines:
    """Measure the peak memory of a site's process and of the server's, in packed scatters of the features.

    A run of p-cov, whose sites have files, journals and identities. Each reply is split into Flower's objects and
    joined again. Memory is beyond the libraries': what Python and NumPy allocate, and what is resident (Linux).
    """
    yield "way", "site, allocated", "site, resident", "server, allocated", "server, resident"
    for way in WAYS:
        meters = (TracedMeter, ResidentMeter)
        allocated, resident = (measure_apart(features, rows, parties, way, meter) for meter in meters)
        yield (way, *(f"{value:.1f}" for pair in zip(allocated, resident, strict=True) for value in pair))
