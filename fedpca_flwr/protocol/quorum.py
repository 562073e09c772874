"""Exactly the expected parties, each once, each round: who takes part, and who is missing or at fault.

Only a run with ``survivors`` goes on without parties that do not answer, while so many do.

Flower samples whoever has registered when a round starts (6 of 10 in a trial), which would silently give the PCA of
60 % of the data; and a failure that it reports does not say whose it was.
"""

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

from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.errors import ContractError, QuorumError
from fedpca_flwr.protocol import admission
from fedpca_flwr.protocol.admission import ErrorReport, PartyInfo, Reply
from fedpca_flwr.protocol.progress import tell
from fedpca_flwr.protocol.replies import reason_of

Results = list[tuple[ClientProxy, Any]]
"""Flower's results of one round: `FitRes` by client."""

MOST_NAMED = 10
"""Parties that a line about waiting names."""


class Quorum:
    """The parties of a run.

    With ``open_membership`` any ``expected`` parties may take part, each under a name of its own, and not only those
    that hold all the partitions there are. With ``same_features`` all hold the same ones, and not each its own.

    The ``settings`` of the run (`settings_of`, as JSON) go to each client when it joins, which refuses any others.

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
    covariates : str
        Where the columns of ``adjust-for`` stand in their rows, as the parties agree.
    at_once : int
        How many clients are asked at the same time what they hold; 0: all.
    seats : dict of str to int
        The partition of each of Flower's clients, as it first said.
    """

    def __init__(
        self, config: RunConfig, settings: str = "", *, open_membership: bool = False, same_features: bool = False
    ) -> None:
        self.config = config
        self.settings = settings
        self.open_membership = open_membership
        self.same_features = same_features
        self.expected = config.clients
        self.dropped: dict[int, str] = {}
        self.features = 0
        self.simulated = False
        self.columns = ""
        self.covariates = ""
        self.at_once = 0
        self.seats: dict[str, int] = {}
        self._names: dict[int, str] = {}  # of the parties, as far as they have said them
        self._members: frozenset[str] = frozenset()
        self._parties: list[dict[str, Any]] = []

    @property
    def total(self) -> int:
        """The parties that there were at first."""
        return self.expected + len(self.dropped)

    def gather(self, client_manager: ClientManager) -> list[ClientProxy]:
        """The clients of this run: the first time wait for exactly the expected ones, and ask each what it holds.

        From then on only these are asked, whoever else signs in; one that is away is waited for. With ``survivors``,
        those that are there when the join-deadline passes, if they are enough.

        Raises
        ------
        QuorumError
            When the join-deadline passes, or more have joined at the start than expected.
        """
        until = time.monotonic() + self.config.join_deadline
        if not self._members:
            self._meet(client_manager, until)
        clients = self._wait(client_manager, len(self._members), until)
        return [clients[cid] for cid in sorted(clients)]

    def complete(self, results: Results, failures: Sequence[Any]) -> list[Reply]:
        """The replies by party, or the error that says whose is missing, doubled, refused or in the wrong run."""
        said = [admission.info_of(result.metrics) for _, result in results]
        nodes = [client.cid for client, _ in results]
        admission.raise_all(admission.impostors(nodes, said, self.seats))
        admission.raise_all(admission.reported(said))
        known = [info for info in said if isinstance(info, PartyInfo)]  # all of them, or it was raised
        admission.raise_all(admission.unlike(known, partitions=None if self.open_membership else self.total))
        self.columns = admission.columns_of(known) or self.columns
        self.covariates = known[0].covariates if known else self.covariates
        self.simulated = all(info.simulated for info in known)
        replies = []
        for info in reversed(known):
            client, result = results.pop()  # the caller's list is emptied, so that no payload outlives its use
            replies.append(admission.reply_of(result, info))
            self.seats[client.cid] = replies[-1].party
        replies.sort(key=lambda reply: reply.party)
        admission.raise_all(admission.doubled(known))
        members = Counter(reply.member for reply in replies) if self.open_membership else {}
        if doubled := [member for member, times in members.items() if times > 1]:
            raise QuorumError(f"several clients say they are '{doubled[0]}': give each a name of its own")
        if missing := self._missing({reply.party for reply in replies}, said):
            reasons = sorted({reason_of(failure) for failure in failures}) or ["no reply"]
            self._go_on_without(missing, "; ".join(reasons))
            self._members = frozenset(nodes)
        parties = [{"party": r.party, "name": r.name, "rows": r.rows} for r in replies]
        before = [party for party in self._parties if party["party"] not in self.dropped]
        if before and parties != before:
            changed = next(r.sender for r, p, q in zip(replies, parties, before, strict=True) if p != q)
            raise ContractError(f"{changed}: its number of rows, or its name, changed during the run")
        self._parties = parties
        self._names.update({reply.party: reply.name for reply in replies})
        return replies

    def parties(self) -> list[dict[str, Any]]:
        """Who took part: ``party``, ``name`` and ``rows`` of each."""
        return self._parties

    def named(self, parties: Iterable[int]) -> str:
        """How a line names the parties that it is about: at most ten, and how many others."""
        ordered = sorted(parties)
        others = f" and {len(ordered) - MOST_NAMED} others" if len(ordered) > MOST_NAMED else ""
        return admission.senders(ordered[:MOST_NAMED], self._names) + others

    def _go_on_without(self, missing: Sequence[int], reasons: str) -> None:
        """Note who dropped out, where a run may go on without them."""
        survivors, left = self.config.survivors, self.expected - len(missing)
        who = admission.senders(missing, self._names)
        why = "A result without them would not be the PCA of all rows, so the run ends"
        if survivors:
            why = f"{left} are left, and the run needs at least 'survivors' = {survivors} of them"
        if not survivors or left < survivors:
            raise QuorumError(f"{len(missing)} of {self.expected} clients did not answer: {who} ({reasons}). {why}")
        self.expected = left
        self.dropped.update({party: admission.senders([party], self._names) for party in missing})
        log(WARNING, "%s dropped out (%s); %s parties go on", who, reasons, left)

    def _online(self, client_manager: ClientManager) -> dict[str, ClientProxy]:
        """Flower's clients; once the members of the run are known, these only."""
        clients = client_manager.all()  # asking refreshes Flower's list
        return {cid: client for cid, client in clients.items() if not self._members or cid in self._members}

    def _wait(self, client_manager: ClientManager, wanted: int, until: float) -> dict[str, ClientProxy]:
        """The clients that are online, once so many are."""
        seen = -1
        while len(online := self._online(client_manager)) < wanted:
            if len(online) != seen:
                seconds, of_all = max(0.0, until - time.monotonic()), self.expected or "some"
                missing = f"; missing: {self.named(self._absent(online))}" if self.seats else ""
                tell("waiting for clients: %s of %s joined; %.0f s are left%s", len(online), of_all, seconds, missing)
            seen = len(online)
            if time.monotonic() > until:
                if 0 < self.config.survivors <= len(online):
                    break
                who = admission.senders(self._absent(online), self._names) or "all"
                raise QuorumError(
                    f"{len(online)} of {self.expected or 'at least 1'} clients joined within join-deadline = "
                    f"{self.config.join_deadline:g} s; missing: {who}. Are their nodes started and registered?"
                )
            time.sleep(0.05)
        return online

    def _absent(self, online: Iterable[str]) -> list[int]:
        """The partitions of the parties at none of these clients."""
        return self._missing({self.seats[cid] for cid in online if cid in self.seats}, ())

    def _meet(self, client_manager: ClientManager, until: float) -> None:
        """Ask every client what it holds, before anything is computed: how many must take part, how many features.

        Whatever is wrong with those that are there is told at once; the others are asked as they come.
        """
        said: dict[str, PartyInfo | ErrorReport | str] = {}
        before = -1
        while before < len(said) < max(self.expected, 1):  # with survivors, until nobody comes any more
            before = len(said)
            self._wait(client_manager, before + 1, until)
            self._ask(client_manager, said)
        self.features = _most_common(one.features for one in said.values() if isinstance(one, PartyInfo))
        self._members = frozenset(self.seats if len(self.seats) >= self.expected else said)

    def _ask(self, client_manager: ClientManager, said: dict[str, PartyInfo | ErrorReport | str]) -> None:
        """Add what clients say that were not asked before; raise all that is wrong with any.

        What most of them say counts: one that says otherwise is at fault. One that says nothing is, where it is needed.
        """
        clients = client_manager.all()
        new = sorted(set(clients) - set(said))
        with ThreadPoolExecutor(max_workers=self.at_once or max(1, len(new))) as pool:
            for cid, answer in zip(new, pool.map(self._properties_of, [clients[cid] for cid in new]), strict=True):
                said[cid] = answer if isinstance(answer, str) else admission.info_of(answer)
        infos = {cid: one for cid, one in said.items() if isinstance(one, PartyInfo)}
        known = list(infos.values())
        faults = admission.reported([one for one in said.values() if isinstance(one, ErrorReport)])
        silent = "; ".join(sorted(f"node {cid}: {one}" for cid, one in said.items() if isinstance(one, str)))
        if not known and not faults:
            raise QuorumError(f"no client said what it holds ({silent})")
        self.seats = {cid: info.partition_id for cid, info in infos.items()}
        self._names.update({info.partition_id: info.name for info in known})
        if known:
            self.expected = self.expected or _most_common(one.num_partitions for one in known)
            if len(known) > self.expected:
                faults.append(admission.too_many(infos, self.expected))
            else:
                partitions = None if self.open_membership else self.total
                faults += admission.unfit(known, partitions=partitions, same_features=self.same_features)
        admission.raise_all(faults)
        if silent and not self.config.survivors:
            if missing := self._missing({one.partition_id for one in known}, known):
                self._go_on_without(missing, silent)
            log(WARNING, "the run has its %s clients, and goes on without others (%s)", self.expected, silent)

    def _properties_of(self, client: ClientProxy) -> Any:
        """What a client says, or why it does not."""
        try:
            return client.get_properties(
                GetPropertiesIns(config={"settings": self.settings}), timeout=self.config.join_deadline, group_id=0
            ).properties
        except Exception as failure:  # Flower raises what it likes here
            return reason_of(failure, "join-deadline")

    def _missing(self, answered: set[int], said: Sequence[PartyInfo | ErrorReport]) -> list[int]:
        """The partitions of the parties that did not answer; -1 for one that nobody knows yet."""
        if not self.open_membership:
            return sorted(set(range(self.total)) - set(self.dropped) - answered)
        everyone = {party["party"] for party in self._parties}
        if {info.num_partitions for info in said if isinstance(info, PartyInfo)} == {self.expected}:
            everyone |= set(range(self.expected))
        lacking = self.expected - len(answered)
        return (sorted(everyone - answered) or [-1] * lacking) if lacking > 0 else []


def _most_common(values: Iterable[int]) -> int:
    """What most say; of equally many the smallest."""
    return min(Counter(values).items(), key=lambda found: (-found[1], found[0]))[0]
