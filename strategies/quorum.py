"""Exactly the expected parties, each once, each round: who takes part, and who is missing or at fault.

Flower samples whoever has registered when a round starts (6 of 10 in a trial), which would silently give the PCA of
60 % of the data; and a failure that it reports does not say whose it was.
"""

from __future__ import annotations

import io
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.common import EvaluateRes, FitRes, GetPropertiesIns
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from numpy.typing import NDArray

from fedpca_flwr.config import RunConfig
from fedpca_flwr.errors import BY_NAME, ConfigError, ContractError, PartyError, QuorumError

Results = list[tuple[ClientProxy, Any]]
"""Flower's results of one round: `FitRes` or `EvaluateRes` by client."""

REASONS = (
    ("expired due to its TTL", "the round-deadline passed"),
    ("within its deadline", "the round-deadline passed"),
    ("ActorDied", "its process died"),
    ("stopped responding", "its process died"),
    ("Node Unavailable", "its node is offline"),
)
"""Flower's texts, which may quote anything, and what we say instead."""


@dataclass
class Reply:
    """One party's answer in one round. ``fields`` is set once the payload is checked."""

    party: int
    name: str
    rows: int
    nbytes: int
    arrays: list[NDArray]
    loss: float = 0.0
    fields: dict[str, NDArray] = field(default_factory=dict)

    @property
    def sender(self) -> str:
        return sender(self.party, self.name)


def sender(party: int, name: str) -> str:
    """How texts name a party."""
    return f"client {party} ({name})" if name else f"client {party}"


class Quorum:
    """The parties of a run.

    Attributes
    ----------
    expected : int
        How many must take part; 0 until known.
    features : int
        What one party says its data have, for the forecast.
    simulated : bool
        Whether every party drew its rows from the run's data set.
    """

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.expected = config.clients
        self.features = 0
        self.simulated = False
        self._members: frozenset[str] = frozenset()
        self._parties: list[dict[str, Any]] = []
        self._columns = ("", "")  # the first party that named its columns, and their digest

    def gather(self, client_manager: ClientManager) -> list[ClientProxy]:
        """Wait for exactly the expected clients; the first time, ask one of them how many that is.

        Raises
        ------
        QuorumError
            When the join-deadline passes, more have joined than expected, or other clients than before.
        """
        until = time.monotonic() + self.config.join_deadline
        if not self.features:
            self._wait(client_manager, 1, until)
            self._ask(client_manager)
        self._wait(client_manager, self.expected, until)
        clients = dict(client_manager.all())
        if len(clients) > self.expected:
            raise QuorumError(
                f"{len(clients)} clients joined, expected exactly {self.expected}; set 'clients' or stop the others"
            )
        if self._members and self._members != frozenset(clients):
            raise QuorumError("other clients are online than in the first round: a client left and another joined")
        self._members = frozenset(clients)
        return [clients[cid] for cid in sorted(clients)]

    def complete(self, results: Results, failures: Sequence[Any]) -> list[Reply]:
        """The replies by party, or the error that says whose is missing, doubled, refused or in the wrong run."""
        self._raise_reported([result.metrics for _, result in results])
        replies = []
        while results:  # taken one by one, so that a payload is never held twice
            _, result = results.pop()
            self._check_partitions(result.metrics)
            replies.append(_reply(result))
        replies.sort(key=lambda reply: reply.party)
        doubled = [party for party, times in Counter(r.party for r in replies).items() if times > 1]
        if doubled:
            raise QuorumError(f"several clients say they are partition {doubled}: give each its own partition-id")
        missing = sorted(set(range(self.expected)) - {reply.party for reply in replies})
        if missing:
            reasons = sorted({_reason(failure) for failure in failures}) or ["no reply"]
            raise QuorumError(
                f"{len(missing)} of {self.expected} clients did not answer: {_names(missing)} ({'; '.join(reasons)}). "
                "A result without them would not be the PCA of all rows, so the run ends"
            )
        if not self._parties:
            self._parties = [{"party": r.party, "name": r.name, "rows": r.rows} for r in replies]
        return replies

    def parties(self) -> list[dict[str, Any]]:
        """Who took part: ``party``, ``name`` and ``rows`` of each."""
        return self._parties

    def _wait(self, client_manager: ClientManager, wanted: int, until: float) -> None:
        while (online := client_manager.num_available()) < wanted:  # asking refreshes Flower's list
            if time.monotonic() > until:
                raise QuorumError(
                    f"{online} of {self.expected or 'at least 1'} clients joined within join-deadline = "
                    f"{self.config.join_deadline:g} s; are the other nodes started and registered?"
                )
            time.sleep(0.05)

    def _ask(self, client_manager: ClientManager) -> None:
        clients = client_manager.all()
        client = clients[min(clients)]
        try:
            said = client.get_properties(
                GetPropertiesIns(config={}), timeout=self.config.join_deadline, group_id=0
            ).properties
        except Exception as failure:  # Flower raises what it likes here
            raise QuorumError(f"a client did not say what it holds ({_reason(failure)})") from None
        self._raise_reported([said])
        self.expected = self.expected or int(said["num-partitions"])
        self.features = int(said["features"])

    def _raise_reported(self, said: Sequence[dict[str, Any]]) -> None:
        reports = sorted(
            (int(metrics["partition-id"]), str(metrics["name"]), str(metrics["error"]), str(metrics["message"]))
            for metrics in said
            if "error" in metrics
        )
        if not reports:
            return
        lines = [
            f"{sender(party, name) if party >= 0 else 'a client'}: {message}" for party, name, _, message in reports
        ]
        raise BY_NAME.get(reports[0][2], PartyError)("\n".join(lines))

    def _check_partitions(self, metrics: dict[str, Any]) -> None:
        who, parts = sender(metrics["partition-id"], metrics["name"]), metrics["num-partitions"]
        if parts != self.expected:
            raise ConfigError(
                f"{who}: its node-config says the rows are in {parts} partitions, the run expects {self.expected} "
                "clients; both must be the same, or part of the rows would be left out"
            )
        first, reference = self._columns
        if metrics["columns"] and not reference:
            self._columns = (who, metrics["columns"])
        elif metrics["columns"] and metrics["columns"] != reference:
            raise ConfigError(f"{who}: its column names, or their order, differ from those of {first}")
        self.simulated = bool(metrics["simulated"])


def _reply(result: FitRes | EvaluateRes) -> Reply:
    metrics = result.metrics
    party, name = int(metrics["partition-id"]), str(metrics["name"])
    if isinstance(result, EvaluateRes):
        return Reply(party, name, result.num_examples, nbytes=16, arrays=[], loss=result.loss)
    tensors = result.parameters.tensors
    try:
        arrays = [_view(tensor) for tensor in tensors]
    except ValueError as error:
        raise ContractError(f"{sender(party, name)}: its reply does not hold whole arrays ({error})") from None
    return Reply(party, name, result.num_examples, nbytes=sum(map(len, tensors)), arrays=arrays)


def _view(tensor: bytes) -> NDArray:
    """The array in a message of Flower's (NumPy's own file format), without a copy and without pickle."""
    stream = io.BytesIO(tensor)
    version = np.lib.format.read_magic(stream)
    header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = header(stream)
    if dtype.hasobject:
        raise ValueError("objects are not accepted")
    return np.frombuffer(tensor, dtype, offset=stream.tell()).reshape(shape, order="F" if fortran else "C")


def _names(parties: Sequence[int]) -> str:
    return ", ".join(f"client {party}" for party in parties)


def _reason(failure: Any) -> str:
    text = f"{type(failure).__name__} {failure}" if isinstance(failure, BaseException) else ""
    return next((ours for theirs, ours in REASONS if theirs in text), "it failed; see its own log")
