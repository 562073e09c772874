"""Streaming: a federation that lasts, from one run to the next (`fedpca_flwr.federation`).

The server keeps the moments of every member in a folder (``state``). In a run, parties join, or replace what they sent
before, or append to it; members that are not there keep their contribution until they are told to ``leave``. The model
is that of P-COV on the rows of all current members, bit for bit unless a member has appended.

1. Every party sends count, mean and a digest (SHA-256) of its moments.
2. Those whose digest is not that of what the server has send their moments; where all have it, there is no such round.

The state is saved when the parties' own rows have proved the model: a run that fails leaves it as it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas

from fedpca_flwr.contract import Field, Fields, Payload
from fedpca_flwr.errors import ConfigError, ContractError
from fedpca_flwr.federation import Federation
from fedpca_flwr.maths.moments import Moments, pool, unpack
from fedpca_flwr.maths.products import head_and_diagonal
from fedpca_flwr.model import PCAModel
from fedpca_flwr.state_folder import digest
from strategies.base import MethodCard, Reply, Request
from strategies.moments import (
    HEAD,
    CovarianceOptions,
    CovarianceStrategy,
    MomentsClient,
    head_fields,
    moments_in,
    moments_of,
)
from strategies.quorum import Quorum


class StreamingOptions(CovarianceOptions):
    """Options of the streaming method."""

    state: str = ""
    """Folder at the server that holds the federation; required."""
    leave: str = ""
    """Members to go on without, separated by commas."""
    append: bool = False
    """Whether the parties' rows are new ones, to be added to those that they brought before."""


COUNT, MEAN, REMAINDER = HEAD

CARD = MethodCard(
    name="streaming",
    title="Streaming",
    exact=True,
    result="for the current members of a federation that lasts",
    rounds=2,
    in_rounds="1; 2 if anyone's rows changed",
    upload="d + 5; if rows changed 2d + 6, and d(d+1)/2 from whom they did",
    server_sees="each party's covariance, and keeps it",
    options=StreamingOptions,
    payloads={
        "digest": Payload((Field("digest", ("32",), "uint8"), COUNT, REMAINDER, MEAN)),
        "moments": Payload((*HEAD, Field("scatter", ("d(d+1)/2",), kind="scatter", optional=True))),
    },
    reference="note 000, sections 3.2 and 4",
)


class Streaming(CovarianceStrategy):
    """Streaming; ``measured`` says who the members are now and what changed."""

    card = CARD
    options: StreamingOptions

    def __init__(self, config, options) -> None:
        super().__init__(config, options)
        if not options.state:
            raise ConfigError(
                "run-config: 'state' is missing, the server's folder that holds the federation from run to run; "
                "give state='...', the same in every run"
            )
        self.quorum = Quorum(config, open_membership=True)
        self.federation = Federation.open(options.state)
        self.federation.prepare()
        self._leaving = sorted({key.strip() for key in options.leave.split(",")} - {""})
        for key in self._leaving:
            self.federation.leave(key)
        self._digests: dict[str, str] = {}  # of the parties' moments, by member, once they have said so
        self._wanted: dict[int, bool] = {}  # by partition
        self._here: Moments | None = None  # of the rows that the parties of this run hold

    def request(self) -> Request:
        if not self._digests:
            return Request("digest", sizes={"32": 32})
        return Request("moments", each={party: [np.asarray(wanted)] for party, wanted in self._wanted.items()})

    def aggregate_fit(self, server_round, results, failures):
        phase = self.request().phase
        replies = self.collect(server_round, results, failures)
        if phase == "digest":
            self._announced(replies)
            if any(self._wanted.values()):
                return None, {}
        sent = {
            reply.member: self._received(reply) for reply in replies if phase == "moments" and self._wanted[reply.party]
        }
        operations = {reply.member: self._update(reply, sent) for reply in replies}
        self._here = pool(sent.get(reply.member) or self.federation.moments_of(reply.member) for reply in replies)
        moments = self.federation.moments()
        return self.finish(
            self.solve(moments, moments.diagonal()),
            notes=self._notes(replies),
            measured=self._measured(operations),
        )

    def squared_error(self) -> float:
        """Of the rows that the parties of this run hold: absent members project nothing, and appended rows only."""
        assert self.model is not None
        assert self._here is not None
        return squared_error(self.model, self._here)

    def aggregate_evaluate(self, server_round, results, failures):
        verdict = super().aggregate_evaluate(server_round, results, failures)
        self.federation.save()
        return verdict

    # Inside

    def _announced(self, replies: list[Reply]) -> None:
        """Who must send its moments: whoever has others than the server, and everybody who appends."""
        for reply in replies:
            if reply.member in self._leaving:
                raise ConfigError(
                    f"run-config: 'leave' names '{reply.member}', but {reply.sender} takes part in this run; "
                    "stop its node, or take it off 'leave'"
                )
            sha = reply.fields["digest"].tobytes().hex()
            self._digests[reply.member] = sha
            self._wanted[reply.party] = self.options.append or not self.federation.has(reply.member, sha)

    def _received(self, reply: Reply) -> Moments:
        if not reply.fields["scatter"].size:
            raise ContractError(f"{reply.sender}: field 'scatter' is empty, but the server asked for it")
        moments = moments_of(reply)
        if digest(moments) != self._digests[reply.member]:
            raise ContractError(f"{reply.sender}: its moments are not those whose digest it sent; did its data change?")
        return moments

    def _update(self, reply: Reply, sent: Mapping[str, Moments]) -> str:
        """Bring one party's contribution up to date; what was done, in a word."""
        key, federation = reply.member, self.federation
        known = federation.has_part if self.options.append else federation.has
        if known(key, self._digests[key]):
            return "unchanged"
        if key not in federation.members:
            federation.join(key, sent[key], self.quorum.columns)
            return "joined"
        if self.options.append:
            federation.append(key, sent[key], self.quorum.columns)
            return "appended"
        federation.replace(key, sent[key], self.quorum.columns)
        return "replaced"

    def _measured(self, operations: Mapping[str, str]) -> dict[str, str]:
        members = self.federation.members
        absent = sorted(members.keys() - operations.keys())
        lines = {
            "members": f"{len(members)} with {sum(members.values())} rows; {len(operations)} took part in this run",
            "revision": f"{self.federation.revision + self.federation.changed}",
        }
        for word in ("joined", "replaced", "appended", "unchanged"):
            lines |= _line(word, (key for key, done in operations.items() if done == word))
        return lines | _line("left", self._leaving) | _line("absent", absent)

    def _notes(self, replies: list[Reply]) -> list[str]:
        absent = self.federation.members.keys() - {reply.member for reply in replies}
        if self.quorum.simulated and absent:
            return [
                f"{len(absent)} members are absent and keep their rows: if this simulation has split the same data "
                "among fewer parties, those rows count twice"
            ]
        if self.quorum.simulated or all(reply.name for reply in replies):
            return []
        return [
            "parties without a name are known by their partition-id, which must stay theirs: give every site a name"
        ]


class StreamingClient(MomentsClient):
    """Says the digest of its moments, and sends those that the server does not have."""

    def statistics(self, phase: str, received: list[NDArray]) -> Fields:
        if phase == "moments" and not received[-1]:
            return {**head_fields(*head_and_diagonal(self.data)), "scatter": np.empty(0)}
        fields = super().statistics(phase, received)
        own = bytes.fromhex(digest(moments_in(fields)))
        return {**fields, "digest": np.frombuffer(own, np.uint8)}


def squared_error(model: PCAModel, moments: Moments) -> float:
    """Mean squared error that projection leaves of the rows that have these moments."""
    components, mean = model.loadings()
    step = (moments.mean - mean) + moments.remainder
    scatter = blas.dspr(moments.n_features, float(moments.count), step, moments.scatter, lower=1)
    about_mean = Moments(moments.count, mean, np.zeros_like(step), scatter)
    scale = np.ones_like(step) if model.scale_ is None else model.scale_
    directions = np.asfortranarray((components / scale).T)
    products = blas.dsymm(1.0, unpack(scatter, moments.n_features), directions, lower=1)
    kept = float(np.vdot(directions, products))
    return max(0.0, float(np.sum(about_mean.diagonal() / scale**2)) - kept) / moments.count


def _line(word: str, keys: Iterable[str]) -> dict[str, str]:
    names = ", ".join(keys)
    return {word: names} if names else {}
