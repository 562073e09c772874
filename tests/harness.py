"""Runs with faults put in between a client and the server."""

import gc
import itertools
import sys
import tempfile
import threading
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Context
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
from numpy.typing import NDArray

from fedpca_flwr import run
from fedpca_flwr.maths.block_iteration import BlockIteration
from fedpca_flwr.maths.rows import to_array
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.protocol.client import PCAClient
from fedpca_flwr.protocol.server import PCAServer
from fedpca_flwr.simulations.loopback import assemble
from fedpca_flwr.simulations.python_words import POLICY
from fedpca_flwr.strategies import FACTORY, METHODS
from fedpca_flwr.transports.identity import make_key


class Clock:
    """Stands for `time` in a module: nobody waits, and however slow the machine is no deadline passes by itself."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


CLUSTER_STEPS = "fedpca_flwr.stages.clusters.MAX_STEPS", 5
"""For `monkeypatch.setattr`, where the subject is not the clusters: a mixture has a hundred steps, each a round."""

BLOCK_SIZES = {
    "CACHE_ELEMENTS": ("maths.rows", "site.readers.databases", "site.readers.files", "site.readers.parquet_file"),
    "CHUNK_ENTRIES": ("cells.h5ad_file", "site.held_rows"),
    "BLOCK_CALLS": ("genetics.calls",),
    "HELD_BYTES": ("data.table",),
}


def forget_classes(monkeypatch: Any) -> None:
    """Let no class that the test makes a method be one of other tests."""
    monkeypatch.setattr(METHODS, "__dict__", deepcopy(vars(METHODS)))


def read_in_blocks(monkeypatch: Any) -> None:
    """Let rows be read in blocks of 64, which nobody keeps, and text in blocks of 100 characters."""
    monkeypatch.setattr("fedpca_flwr.site.readers.csv_file.BLOCK_CHARACTERS", 100)
    for place in (f"{module}.{name}" for name, modules in BLOCK_SIZES.items() for module in modules):
        monkeypatch.setattr(f"fedpca_flwr.{place}", 0)


_STATES = tempfile.TemporaryDirectory(prefix="fedpca-states-")  # removed at the end
_NUMBERS = itertools.count()


def own(method: str) -> dict[str, Any]:
    """Options without which a method does not run here: a state of its own each time, few rounds where there are many.

    Noise is the same each time. On other graphs than the complete one, a result depends on who sits where; with
    directions truncated, on the order of the rows.
    """
    card = METHODS.parse_method(method).strategy.card
    known = card.options.model_fields
    needed: dict[str, Any] = {"iterations": 3, "noise_seed": 1, "tracked": 80}
    needed |= {"graph": "complete"} if "iterations" in known else {}
    state = {"state": f"{_STATES.name}/{next(_NUMBERS)}"} if "state" in card.examples[0] else {}
    return {name: value for name, value in needed.items() if name in known} | state


def fit(method: str, parties: Sequence[Any], **options: Any) -> PCAModel:
    return run(method, parties, engine="loopback", **{"min_rows": 1, **own(method), **options})


@cache
def identities(parties: int) -> list[dict[str, str]]:
    """By party, the keys of a node-config by which sites with data of their own know each other."""
    made = [_identity(party) for party in range(parties)]
    members = Path(_STATES.name, f"identities of {parties}")
    members.write_text("\n".join(line for _, line in made), encoding="utf-8")
    return [{"identity": file, "identities": str(members)} for file, _ in made]


@cache
def _identity(party: int) -> tuple[str, str]:
    """File and line of a party, which is the same one among however many."""
    file = f"{_STATES.name}/identity {party}"
    return file, make_key(file, party)


def peak_of(work: Callable[[], object]) -> int:
    """Bytes of the most that some work held at once, beyond what it began with."""
    usual = gc.get_threshold()
    gc.collect()
    gc.freeze()  # or each collection looks at all that was there before
    gc.set_threshold(300, 1, 1)  # what waits for the collector only is not held: it comes often
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        gc.set_threshold(*usual)
        gc.unfreeze()


def server_of(method: str, parties: list[NDArray], **options: Any) -> PCAServer:
    given = {"min_rows": 1, **own(method), **options}
    options = {key.replace("_", "-"): value for key, value in given.items()}
    site = {key: options.pop(key) for key in (*POLICY, "scores") if key in options} | options.pop("site", {})
    server = assemble(METHODS.run_config({"method": method, "clients": len(parties), **options}), parties, site)
    if "data" in site:
        identify(server)
    return server


def identify(server: PCAServer) -> PCAServer:
    for party, node in enumerate(identities(len(server.client_manager().all()))):
        context_of(server, party).node_config |= node
    return server


def finish(server: PCAServer) -> PCAModel:
    strategy = server.strategy
    server.fit(num_rounds=strategy.rounds, timeout=strategy.config.round_deadline)
    return strategy.model


def proxy_of(server: PCAServer, party: int) -> Any:
    """Return a party as its server meets it; what tests put in its place, it does."""
    return server.client_manager().all()[str(party + 1)]


def client_of(server: PCAServer, party: int) -> PCAClient:
    """Return a client as the next message will meet it: what lasts is in its context."""
    return proxy_of(server, party).make().numpy_client


def context_of(server: PCAServer, party: int) -> Context:
    """Return a party's node-config and memory; what is changed there, the next message meets."""
    return proxy_of(server, party).context


def sites_of(folder: Path, parties: Sequence[NDArray], **node: Any) -> list[dict[str, Any]]:
    """Write each party's rows into a file, and return node-configs with that file, a journal and these keys."""
    folder.mkdir(parents=True, exist_ok=True)
    nodes = []
    for party, rows in enumerate(parties):
        np.save(folder / f"{party}.npy", rows)
        nodes.append({"data": str(folder / f"{party}.npy"), "journal": str(folder / f"journal{party}"), **node})
    return nodes


def at_sites(server: PCAServer, nodes: Sequence[dict[str, Any]]) -> PCAServer:
    """Let every party read the file that its own node-config names, and know the others."""
    identify(server)
    for party, node in enumerate(nodes):
        context = context_of(server, party)
        context.node_config |= node
        proxy_of(server, party).make = lambda context=context: FACTORY.client(context).to_client()
    return server


def _answers(server: PCAServer, party: int, answer: Callable[[Any, Callable[[Any], Any]], Any]) -> None:
    """Let ``answer(question, honest)`` fit in a party's place, where ``honest(question)`` is what the party replies."""
    proxy = proxy_of(server, party)
    own = proxy.fit
    proxy.fit = lambda ins, timeout, group_id: answer(ins, lambda asked: own(asked, timeout, group_id))


def tamper(server: PCAServer, party: int, change: Callable[[Any], Any], phase: str = "") -> None:
    """Let ``change`` alter the fit replies of one party on their way, in a phase or always."""

    def altered(ins, honest):
        reply = honest(ins)
        return change(reply) if phase in ("", ins.config["phase"]) else reply

    _answers(server, party, altered)


def say(server: PCAServer, party: int, phase: str = "", **metrics: Any) -> PCAServer:
    """Let one party say something else of itself in its fit replies, in a phase or always; None: say nothing."""

    def change(reply: Any) -> Any:
        reply.metrics = {key: value for key, value in {**reply.metrics, **metrics}.items() if value is not None}
        return reply

    tamper(server, party, change, phase)
    return server


def exits(server: PCAServer, party: int) -> None:
    """Let one party's process exit after its first answer, which nobody gets."""
    tamper(server, party, lambda _: sys.exit())


def fail_at(server: PCAServer, party: int, phase: str) -> None:
    """Let one party's process die when it is asked in a phase."""

    def fit(ins, honest):
        if ins.config["phase"] == phase:
            raise RuntimeError
        return honest(ins)

    _answers(server, party, fit)


def late(server: PCAServer, party: int, phase: str = "") -> list[float]:
    """Let one party hang, in a phase or always, until its deadline, which passes at once; fills with its deadlines."""
    proxy, given = proxy_of(server, party), []
    honest, prompt = proxy.fit, proxy.make

    def fit(ins, timeout, group_id):
        if phase not in ("", ins.config["phase"]):
            return honest(ins, timeout, group_id)
        given.append(timeout)
        release = threading.Event()
        proxy.make = lambda: release.wait() and prompt()
        try:
            return honest(ins, 0.01, group_id)
        finally:
            release.set()

    proxy.fit = fit
    return given


Change = Callable[[list[NDArray]], list[NDArray]]


def tamper_arrays(server: PCAServer, party: int, change: Change, phase: str = "") -> None:
    """Let ``change`` alter the arrays of the fit replies of one party, in a phase or always."""

    def on_reply(reply):
        reply.parameters = ndarrays_to_parameters(change(parameters_to_ndarrays(reply.parameters)))
        return reply

    tamper(server, party, on_reply, phase)


def on_request(
    server: PCAServer, party: int, phase: str, change: Change, config: Mapping[str, Any] = MappingProxyType({})
) -> None:
    """Let ``change`` alter the arrays of every request of a phase to one party, whose config has other values."""

    def altered(ins, honest):
        if ins.config["phase"] == phase:
            arrays = change(parameters_to_ndarrays(ins.parameters))
            ins = type(ins)(ndarrays_to_parameters(arrays), {**ins.config, **config})
        return honest(ins)

    _answers(server, party, altered)


def on_config(server: PCAServer, party: int, phase: str, config: Mapping[str, Any]) -> None:
    """Let the config of every request of a phase to one party have other values."""
    on_request(server, party, phase, lambda arrays: arrays, config)


class Heard(NamedTuple):
    phase: str
    asked: list[NDArray]
    said: list[NDArray]


def heard(server: PCAServer, party: int) -> list[Heard]:
    """Return a list that fills with what one party receives and replies."""
    exchanged: list[Heard] = []

    def listen(ins, honest):
        reply = honest(ins)
        exchanged.append(Heard(ins.config["phase"], *map(parameters_to_ndarrays, (ins.parameters, reply.parameters))))
        return reply

    _answers(server, party, listen)
    return exchanged


def messages_of(server: PCAServer) -> list[bytes]:
    """Return a list that fills with what every party of a secure run sends: nothing in clear beside its arrays."""
    messages: list[bytes] = []

    def listen(reply: Any) -> Any:
        assert reply.num_examples == 1
        assert set(reply.metrics) <= {"partition-id", "num-partitions", "name", "columns", "simulated", "journal"}
        messages.append(b"".join(reply.parameters.tensors))
        return reply

    for party in range(len(server.client_manager().all())):
        tamper(server, party, listen)
    return messages


def differences(one: PCAModel, other: PCAModel) -> list[str]:
    """Names of what is not the same in two models, bit for bit."""
    names = ("components_", "scores_", "mean_", "explained_variance_", "explained_variance_ratio_", "singular_values_")
    pairs = {name: (getattr(one, name), getattr(other, name)) for name in names if getattr(one, name) is not None}
    return [name for name, (a, b) in pairs.items() if a.tobytes() != b.tobytes()]


def reconstruction_error(model: PCAModel, X: Any) -> float:
    """Mean squared error per row of ``X`` (n, d) after projection and back, in squared units of the data."""
    difference = to_array(model.aligned(X)) - model.inverse_transform(model.transform(X))
    return float(np.einsum("ij,ij->", difference, difference) / len(difference))


def require_limits(limits: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Hold the limits of sums against what they are in closed form."""
    assert limits.keys() == expected.keys()
    for name, value in expected.items():
        assert np.shape(limits[name]) in ((), np.shape(value))
        np.testing.assert_allclose(limits[name], value, rtol=1e-14)


def blocks_added(monkeypatch: Any) -> list[tuple[NDArray, float]]:
    """Return a list that fills with every block of an iteration, and the error of its product with the matrix."""
    added: list[tuple[NDArray, float]] = []
    add = BlockIteration.add

    def noting(self: Any, V: NDArray, AV: NDArray, *, error: float, **keywords: Any) -> Any:
        added.append((V, error))
        return add(self, V, AV, error=error, **keywords)

    monkeypatch.setattr(BlockIteration, "add", noting)
    return added
