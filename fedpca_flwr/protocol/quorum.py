"""Exactly the expected parties, each once, each round: who takes part, and who is missing or at fault.

Only a run with ``survivors`` goes on without parties that do not answer, while so many do.

Flower samples whoever has registered when a round starts (6 of 10 in a trial), which would silently give the PCA of
60 % of the data; and a failure that it reports does not say whose it was.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from logging import WARNING
from typing import Any

from flwr.common import GetPropertiesIns
from flwr.common.logger import log
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy

from fedpca_flwr.config import RunConfig
from fedpca_flwr.errors import BY_NAME, ConfigError, ContractError, PartyError, QuorumError
from fedpca_flwr.protocol.messages import About, Reply, Report, reply_of, said_by, sender

Results = list[tuple[ClientProxy, Any]]
"""Flower's results of one round: `FitRes` by client."""

REASONS = (
    ("expired due to its TTL", "the round-deadline passed"),
    ("within its deadline", "the round-deadline passed"),
    ("ActorDied", "its process died"),
    ("stopped responding", "its process died"),
    ("Node Unavailable", "its node is offline"),
)
"""Flower's texts, which may quote anything, and what we say instead."""

MOST_FEATURES = 2**24
"""A claim beyond this is refused before anything of that size is made."""


class Quorum:
    """The parties of a run.

    Parameters
    ----------
    config : RunConfig
    open_membership : bool
        Whether any ``expected`` parties may take part, each under a name of its own, and not only those that hold all
        the partitions there are.

    Attributes
    ----------
    expected : int
        How many must take part; 0 until known. Less by those that dropped out.
    dropped : dict of int to str
        The partitions of parties that dropped out of a run with ``survivors``, and how texts name them.
    features : int
        What one party says its data have, for the forecast.
    simulated : bool
        Whether every party drew its rows from the run's data set.
    columns : str
        Digest of the column names that the parties agree on; empty where no party has any.
    seats : dict of str to int
        The partition of each of Flower's clients, once they have replied.
    """

    def __init__(self, config: RunConfig, *, open_membership: bool = False) -> None:
        self.config = config
        self.open_membership = open_membership
        self.expected = config.clients
        self.dropped: dict[int, str] = {}
        self.features = 0
        self.simulated = False
        self.columns = ""
        self.seats: dict[str, int] = {}
        self._members: frozenset[str] = frozenset()
        self._parties: list[dict[str, Any]] = []

    @property
    def total(self) -> int:
        """The parties that there were at first."""
        return self.expected + len(self.dropped)

    def gather(self, client_manager: ClientManager) -> list[ClientProxy]:
        """Wait for exactly the expected clients; the first time, ask one of them how many that is.

        With ``survivors``, those that are there when the join-deadline passes, if they are enough.

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
        clients = self._online(client_manager)
        if len(clients) > self.expected:
            raise QuorumError(
                f"{len(clients)} clients joined, expected exactly {self.expected}; set 'clients' or stop the others"
            )
        if self._members and self._members != frozenset(clients) and not self.config.survivors:
            raise QuorumError("other clients are online than in the first round: a client left and another joined")
        self._members = frozenset(clients)
        return [clients[cid] for cid in sorted(clients)]

    def complete(self, results: Results, failures: Sequence[Any]) -> list[Reply]:
        """The replies by party, or the error that says whose is missing, doubled, refused or in the wrong run."""
        said = [said_by(result.metrics) for _, result in results]
        answered = frozenset(client.cid for client, _ in results)
        self._raise_reported(said)
        self._check_partitions([about for about in said if isinstance(about, About)])
        replies = []
        while results:  # taken one by one: the caller's list is emptied, so that no payload outlives its use
            client, result = results.pop()
            replies.append(reply_of(result))
            self.seats[client.cid] = replies[-1].party
        replies.sort(key=lambda reply: reply.party)
        doubled = [party for party, times in Counter(r.party for r in replies).items() if times > 1]
        if doubled:
            raise QuorumError(f"several clients say they are partition {doubled}: give each its own partition-id")
        self._check_members(replies)
        missing = self._missing({reply.party for reply in replies}, said)
        if missing:
            reasons = sorted({_reason(failure) for failure in failures}) or ["no reply"]
            self._go_on_without(missing, "; ".join(reasons))
            self._members = answered
        parties = [{"party": r.party, "name": r.name, "rows": r.rows} for r in replies]
        before = [party for party in self._parties if party["party"] not in self.dropped]
        if before and parties != before:
            changed = next(r.sender for r, p, q in zip(replies, parties, before, strict=True) if p != q)
            raise ContractError(f"{changed}: its number of rows, or its name, changed during the run")
        self._parties = parties
        return replies

    def parties(self) -> list[dict[str, Any]]:
        """Who took part: ``party``, ``name`` and ``rows`` of each."""
        return self._parties

    def _go_on_without(self, missing: Sequence[int], reasons: str) -> None:
        """Note who dropped out, where a run may go on without them."""
        survivors, left = self.config.survivors, self.expected - len(missing)
        why = "A result without them would not be the PCA of all rows, so the run ends"
        if survivors:
            why = f"{left} are left, and the run needs at least 'survivors' = {survivors} of them"
        if not survivors or left < survivors:
            raise QuorumError(
                f"{len(missing)} of {self.expected} clients did not answer: {_names(missing)} ({reasons}). {why}"
            )
        names = {party["party"]: party["name"] for party in self._parties}
        self.expected = left
        self.dropped.update({party: sender(party, names.get(party, "")) for party in missing})
        log(WARNING, "%s dropped out (%s); %s parties go on", _names(missing), reasons, left)

    def _online(self, client_manager: ClientManager) -> dict[str, ClientProxy]:
        """Flower's clients; with ``survivors``, without those that dropped out or come too late."""
        clients = client_manager.all()  # asking refreshes Flower's list
        if not (self.config.survivors and self._members):
            return dict(clients)
        return {cid: client for cid, client in clients.items() if cid in self._members}

    def _wait(self, client_manager: ClientManager, wanted: int, until: float) -> None:
        while (online := len(self._online(client_manager))) < wanted:
            if time.monotonic() > until:
                if 0 < self.config.survivors <= online:
                    return
                raise QuorumError(
                    f"{online} of {self.expected or 'at least 1'} clients joined within join-deadline = "
                    f"{self.config.join_deadline:g} s; are the other nodes started and registered?"
                )
            time.sleep(0.05)

    def _ask(self, client_manager: ClientManager) -> None:
        """Ask every client what it holds: how many must take part, and how many features their rows have.

        What most of them say counts: one that says otherwise is named by the first check of its reply.
        """
        clients = client_manager.all()
        said: list[Any] = []
        reasons: list[str] = []
        with ThreadPoolExecutor(max_workers=len(clients)) as pool:
            for outcome in pool.map(self._properties_of, [clients[cid] for cid in sorted(clients)]):
                (reasons if isinstance(outcome, str) else said).append(outcome)
        if not said:
            raise QuorumError(f"no client said what it holds ({reasons[0]})")
        about = [said_by(properties) for properties in said]
        self._raise_reported(about)
        known = [one for one in about if isinstance(one, About)]
        for one in known:
            if not one.features:
                raise ContractError(f"{one.sender}: it did not say how many features its rows have")
            if one.features > MOST_FEATURES:
                raise ContractError(f"{one.sender}: it says {one.features} features, at most {MOST_FEATURES:,} can be")
        self.expected = self.expected or _most_common(one.num_partitions for one in known)
        if reasons and not self.config.survivors:
            missing = self._missing({one.partition_id for one in known}, known)
            self._go_on_without(missing, "; ".join(sorted(set(reasons))))
        self.features = _most_common(one.features for one in known)

    def _properties_of(self, client: ClientProxy) -> Any:
        """What a client says, or why it does not."""
        try:
            return client.get_properties(
                GetPropertiesIns(config={}), timeout=self.config.join_deadline, group_id=0
            ).properties
        except Exception as failure:  # Flower raises what it likes here
            return _reason(failure)

    def _raise_reported(self, said: Sequence[About | Report]) -> None:
        reports = sorted((r for r in said if isinstance(r, Report)), key=lambda r: r.partition_id)
        if reports:
            lines = [f"{report.sender}: {report.message}" for report in reports]
            raise BY_NAME.get(reports[0].error, PartyError)("\n".join(lines))

    def _missing(self, answered: set[int], said: Sequence[About | Report]) -> list[int]:
        """The partitions of the parties that did not answer; -1 for one that nobody knows yet."""
        if not self.open_membership:
            return sorted(set(range(self.total)) - set(self.dropped) - answered)
        everyone = {party["party"] for party in self._parties}
        if {about.num_partitions for about in said if isinstance(about, About)} == {self.expected}:
            everyone |= set(range(self.expected))
        lacking = self.expected - len(answered)
        return (sorted(everyone - answered) or [-1] * lacking) if lacking > 0 else []

    def _check_members(self, replies: Sequence[Reply]) -> None:
        doubled = [member for member, times in Counter(r.member for r in replies).items() if times > 1]
        if doubled and self.open_membership:
            raise QuorumError(f"several clients say they are '{doubled[0]}': give each a name of its own")

    def _check_partitions(self, said: Sequence[About]) -> None:
        said = sorted(said, key=lambda about: about.partition_id)
        for about in said:
            if not self.open_membership and about.num_partitions != self.total:
                raise ConfigError(
                    f"{about.sender}: its node-config says the rows are in {about.num_partitions} partitions, the run "
                    f"expects {self.total} clients; both must be the same, or part of the rows would be left out"
                )
            if self.open_membership and about.simulated and about.num_partitions != said[0].num_partitions:
                raise ConfigError(
                    f"{about.sender}: its node-config says the rows are in {about.num_partitions} partitions, the run "
                    f"expects {said[0].num_partitions}, as {said[0].sender} says; the parts would overlap"
                )
            if about.simulated != said[0].simulated:
                alone = next(other for other in said if other.simulated)
                raise ConfigError(f"{alone.sender}: its node-config names no 'data', but that of other clients does")
        named = [about for about in said if about.columns]
        for about in named:
            if about.columns != named[0].columns:
                raise ConfigError(
                    f"{about.sender}: its column names, or their order, differ from those of {named[0].sender}"
                )
            self.columns = about.columns
        self.simulated = all(about.simulated for about in said)


def _most_common(values: Iterable[int]) -> int:
    """What most say; of equally many the smallest."""
    return min(Counter(values).items(), key=lambda found: (-found[1], found[0]))[0]


def _names(parties: Sequence[int]) -> str:
    return ", ".join(f"client {party}" if party >= 0 else "a client" for party in parties)


def _reason(failure: Any) -> str:
    text = f"{type(failure).__name__} {failure}" if isinstance(failure, BaseException) else ""
    return next((ours for theirs, ours in REASONS if theirs in text), "it failed; see its own log")
