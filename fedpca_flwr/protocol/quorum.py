"""Quorum of a run: each expected party answers once in each round, and errors name absent or faulty parties.

Flower samples whoever has registered when a round starts, and does not say whose failure it reports. Only a run with
``survivors`` or ``minimum`` continues without parties that do not answer, while enough others do.
"""

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from logging import WARNING
from operator import attrgetter
from typing import Any

from flwr.common import GetPropertiesIns
from flwr.common.logger import log
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy

from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.errors import ConfigError, ContractError, QuorumError, value_text
from fedpca_flwr.protocol import admission
from fedpca_flwr.protocol.admission import ErrorReport, PartyInfo, Reply
from fedpca_flwr.protocol.progress import log_progress
from fedpca_flwr.protocol.replies import failure_reason

Results = list[tuple[ClientProxy, Any]]
"""Flower's results of one round: `FitRes` by client."""

PCA_KEY = "fedpca"
"""Key in the config of every question, which marks a message of this project; its value is the name of the PCA."""

DEFAULT_PCA_NAME = "pca"
"""Name of the only PCA of a Flower run."""

PCA_NAME = re.compile(r"[\w -]{1,64}")

MAX_NAMED_PARTIES = 10
"""Largest number of parties that a line about waiting names."""

AskProperties = Callable[[Sequence[ClientProxy], GetPropertiesIns, float], list[Any]]
"""Function that asks clients for their properties within some seconds, and returns those of each, or an exception."""


def require_pca_name(name: object) -> str:
    """Return the name of a PCA; raise ConfigError for a value that is no such name."""
    if not (isinstance(name, str) and PCA_NAME.fullmatch(name)):
        raise ConfigError(
            f"the name of a PCA is {value_text(name)}, expected 1 to 64 letters, digits, '-', '_', spaces"
        )
    return name


def ask_in_threads(
    clients: Sequence[ClientProxy], question: GetPropertiesIns, timeout: float, pool: ThreadPoolExecutor | None = None
) -> list[Any]:
    """Return each client's properties, or Flower's exception, asked by the threads of a pool, or by one each."""

    def ask(client: ClientProxy) -> Any:
        try:
            return client.get_properties(question, timeout=timeout, group_id=0).properties
        except Exception as failure:  # Flower raises what it likes here
            return failure

    with nullcontext(pool) if pool else ThreadPoolExecutor(max(1, len(clients))) as threads:
        return list(threads.map(ask, clients))


class Quorum:
    """Parties of a run: waits for exactly the expected clients and matches their replies.

    `settings` (JSON of `shared_settings`) goes to each client that joins, and a client refuses others. With
    `open_membership` any ``expected`` parties may take part, each under a name of its own, without all partitions.
    """

    def __init__(
        self, config: RunConfig, settings: str = "", *, open_membership: bool = False, same_features: bool = False
    ) -> None:
        self.config = config
        self.settings = settings
        self.open_membership = open_membership
        self.same_features = same_features
        self.expected = config.clients  # number of parties that must take part, without dropouts; 0 until known
        self.dropped: dict[int, str] = {}  # labels of the parties that dropped out, by partition
        self.features = 0  # number of features that most parties claim, for the forecast
        self.simulated = False  # whether every party drew its rows from the run's data set
        self.feature_names: tuple[str, ...] = ()  # of the columns, if all parties show them
        self.columns = ""  # digest of the column names on which the parties agree; empty without names
        self.covariates = ""  # positions of the columns of `adjust-for`, on which the parties agree
        self.journals: dict[str, str] = {}  # digest of each party's journal after its last reply, by partition
        self.ask_properties: AskProperties = ask_in_threads
        self.partition_by_client: dict[str, int] = {}  # partition that each of Flower's clients claimed first
        self.pca_name = DEFAULT_PCA_NAME  # name of the PCA among those of a Flower run
        self._names: dict[int, str] = {}  # of the parties, as far as they have said them
        self._member_ids: frozenset[str] = frozenset()
        # ``party`` (partition), ``name`` and ``rows`` of each party that answered the last round, in order
        self.parties: list[dict[str, Any]] = []

    @property
    def initial_parties(self) -> int:
        """Number of parties at the start of the run, including parties that dropped out later."""
        return self.expected + len(self.dropped)

    @property
    def members(self) -> list[int]:
        """Partitions of the parties that take part, sorted; empty before `gather`."""
        return sorted(self.partition_by_client[cid] for cid in self._member_ids if cid in self.partition_by_client)

    def gather(self, client_manager: ClientManager) -> list[ClientProxy]:
        """Return the run's clients, in order of their ids, once all are online; the first call checks their statements.

        Later calls return only these clients, whoever else signs in. With ``survivors`` or ``minimum``, so many clients
        suffice when the join-deadline passes; else raise QuorumError, and faults as `admission.raise_all` does.
        """
        deadline = time.monotonic() + self.config.join_deadline
        if not self._member_ids:
            self._admit(client_manager, deadline)
        clients = self._wait(client_manager, len(self._member_ids), deadline)
        return [clients[cid] for cid in sorted(clients)]

    def match_replies(self, results: Results, failures: Sequence[Any]) -> list[Reply]:
        """Return the replies of a round, unread, in order of the partitions, and empty `results` to free payloads.

        Raise the errors that parties report, QuorumError for a reply that is missing or doubled, ConfigError for one
        that does not fit the run, and ContractError for one of another party or number of rows.
        """
        nodes, infos = list[str](), list[PartyInfo | ErrorReport]()
        party_infos: list[PartyInfo] = []  # all infos, unless a report is raised
        for client, result in results:
            info = admission.parse_info(result.metrics, self._label(client.cid))
            nodes.append(client.cid)
            infos.append(info)
            if isinstance(info, PartyInfo):
                party_infos.append(info)
        partitions = None if self.open_membership else self.initial_parties
        admission.raise_all(
            admission.impersonation_faults(nodes, infos, self.partition_by_client)
            or admission.reported_errors(infos)
            or admission.mismatch_faults(party_infos, partitions=partitions)
        )
        self.columns = next(filter(None, map(attrgetter("columns"), party_infos)), self.columns)
        self.covariates = party_infos[0].covariates if party_infos else self.covariates
        self.simulated = all(map(attrgetter("simulated"), party_infos))
        self.journals = {str(info.partition_id): info.journal for info in party_infos if info.journal}
        replies = []
        for party_info in reversed(party_infos):
            client, result = results.pop()
            reply = admission.make_reply(result, party_info)
            replies.append(reply)
            self.partition_by_client[client.cid], self._names[reply.party] = reply.party, reply.name
        replies.sort(key=attrgetter("party"))
        admission.raise_all(admission.duplicate_faults(party_infos))
        members = Counter(reply.member for reply in replies) if self.open_membership else {}
        if duplicates := [member for member, times in members.items() if times > 1]:
            raise QuorumError(f"several clients have the name '{duplicates[0]}': give each client its own name")
        if missing := self._missing_parties(set(map(attrgetter("party"), replies)), infos):
            reasons = sorted({(failure_reason(each), self._label(getattr(each, "cid", ""))) for each in failures})
            named = sorted({reason for reason, _ in reasons})
            if len(named) > 1:
                named = [f"{label}: {reason}" for reason, label in reasons]
            self._drop(missing, "; ".join(named) or "no reply", self.config.survivors)
            self._member_ids = frozenset(nodes)
        parties = [{"party": r.party, "name": r.name, "rows": r.rows} for r in replies]
        previous = [party for party in self.parties if party["party"] not in self.dropped]
        if previous and parties != previous:
            changed = next(r.sender for r, p, q in zip(replies, parties, previous, strict=True) if p != q)
            raise ContractError(f"{changed}: its number of rows, or its name, changed during the run")
        self.parties = parties
        return replies

    def name_parties(self, parties: Iterable[int]) -> str:
        """Return the labels of at most ten parties for the log, and the number of all others."""
        ordered = sorted(parties)
        suffix = f" and {len(ordered) - MAX_NAMED_PARTIES} others" if len(ordered) > MAX_NAMED_PARTIES else ""
        return admission.party_labels(ordered[:MAX_NAMED_PARTIES], self._names) + suffix

    def _label(self, cid: str) -> str:
        """Return how texts call one of Flower's clients: its node, and its party as far as that is known."""
        party = self.partition_by_client.get(cid)
        return f"node {cid}" if party is None else f"{admission.party_labels([party], self._names)} (node {cid})"

    def _drop(self, missing: Sequence[int], reasons: str, sufficient: int) -> None:
        """Record and log parties that dropped out; raise QuorumError unless `sufficient` parties (0: all) remain."""
        remaining = self.expected - len(missing)
        who = admission.party_labels(missing, self._names)
        why = "A result without them would not be the PCA of all rows, so the run ends"
        if sufficient:
            key = "minimum" if self.config.minimum else "survivors"
            why = f"{remaining} are left, and the run needs at least '{key}' = {sufficient} of them"
        if not sufficient or remaining < sufficient:
            silent = f"{len(missing)} of {self.expected} clients did not answer"
            raise QuorumError(f"{silent}: {who}, since {reasons}. {why}")
        self.expected = remaining
        self.dropped.update({party: admission.party_labels([party], self._names) for party in missing})
        log(WARNING, "%s dropped out (%s); %s parties go on", who, reasons, remaining)

    def _wait(self, client_manager: ClientManager, required: int, deadline: float) -> dict[str, ClientProxy]:
        """Wait until `required` clients are online, log who is missing, and return the clients by their ids.

        After the deadline (monotonic clock), `survivors` or `minimum` clients suffice; with fewer, raise QuorumError.
        """
        previous_count = -1
        while True:
            online = dict(client_manager.all())  # the call refreshes Flower's list of clients
            if self._member_ids:
                online = {cid: client for cid, client in online.items() if cid in self._member_ids}
            if len(online) >= required:
                return online
            if len(online) != previous_count:
                seconds, of_all = max(0.0, deadline - time.monotonic()), self.expected or "some"
                missing = ""
                if self.partition_by_client:
                    missing = f"; missing: {self.name_parties(self._absent_parties(online))}"
                text = "waiting for clients: %s of %s joined; %.0f s are left%s"
                log_progress(text, len(online), of_all, seconds, missing)
            previous_count = len(online)
            if time.monotonic() > deadline:
                if 0 < (self.config.survivors or self.config.minimum) <= len(online):
                    return online
                who = admission.party_labels(self._absent_parties(online), self._names) or "all"
                raise QuorumError(
                    f"{len(online)} of {self.expected or 'at least 1'} clients joined within join-deadline = "
                    f"{self.config.join_deadline:g} s; missing: {who}. Are their nodes started and registered? "
                    "A node with HTTPS_PROXY set reaches the SuperLink only with its address in NO_PROXY"
                )
            time.sleep(0.05)

    def _absent_parties(self, online: Iterable[str]) -> list[int]:
        """Return the partitions of expected parties whose clients (ids in `online`) are missing."""
        present = {self.partition_by_client[cid] for cid in online if cid in self.partition_by_client}
        return self._missing_parties(present, ())

    def _admit(self, client_manager: ClientManager, deadline: float) -> None:
        """Ask clients as they join for statements until all expected have joined, and raise faults of those present."""
        statements: dict[str, PartyInfo | ErrorReport | str] = {}
        before = -1
        while before < len(statements) < max(self.expected, 1):  # if some suffice, until nobody comes any more
            before = len(statements)
            self._wait(client_manager, before + 1, deadline)
            self._admit_new_clients(client_manager, statements)
        infos = [statement for statement in statements.values() if isinstance(statement, PartyInfo)]
        if self.config.minimum and (missing := self._missing_parties({info.partition_id for info in infos}, ())):
            self._drop(missing, "it had not joined when the join-deadline passed", self.config.minimum)
        self.features = _smallest_mode(map(attrgetter("features"), infos))
        if all(info.names or not info.columns for info in infos):
            self.feature_names = next(filter(None, map(attrgetter("feature_names"), infos)), ())
        has_all = len(self.partition_by_client) >= self.expected
        self._member_ids = frozenset(self.partition_by_client if has_all else statements)

    def _admit_new_clients(
        self, client_manager: ClientManager, statements: dict[str, PartyInfo | ErrorReport | str]
    ) -> None:
        """Add the statements of new clients to `statements`, by id, and raise the faults of all: a majority decides."""
        clients = client_manager.all()
        new = sorted(set(clients) - set(statements))
        question = GetPropertiesIns({PCA_KEY: self.pca_name, "settings": self.settings})
        answers = self.ask_properties([clients[cid] for cid in new], question, self.config.join_deadline)
        for cid, answer in zip(new, answers, strict=True):
            if isinstance(answer, BaseException):
                statements[cid] = failure_reason(answer, "join-deadline")
            else:
                statements[cid] = admission.parse_info(answer, self._label(cid))
        infos, reports, silences = dict[str, PartyInfo](), list[ErrorReport](), list[str]()
        for cid, statement in statements.items():
            if isinstance(statement, PartyInfo):
                infos[cid] = statement
                self.partition_by_client[cid] = statement.partition_id
                self._names[statement.partition_id] = statement.name
            elif isinstance(statement, ErrorReport):
                reports.append(statement)
            else:
                silences.append(f"node {cid}: {statement}")
        party_infos, silent = list(infos.values()), "; ".join(sorted(silences))
        faults = admission.reported_errors(reports)
        if not party_infos and not faults:
            raise QuorumError(f"no client described its data ({silent})")
        if party_infos:
            self.expected = self.expected or _smallest_mode(map(attrgetter("num_partitions"), party_infos))
            if len(party_infos) > self.expected:
                faults.append(admission.surplus_error(infos, self.expected))
            else:
                partitions, same_features = None if self.open_membership else self.initial_parties, self.same_features
                faults += admission.admission_faults(party_infos, partitions=partitions, same_features=same_features)
        admission.raise_all(faults)
        if silent and not (self.config.survivors or self.config.minimum):
            if missing := self._missing_parties({statement.partition_id for statement in party_infos}, party_infos):
                self._drop(missing, silent, 0)
            log(WARNING, "the run has its %s clients, and goes on without others (%s)", self.expected, silent)

    def _missing_parties(self, answered: set[int], infos: Sequence[PartyInfo | ErrorReport]) -> list[int]:
        """Return the expected partitions that have not answered, sorted; without `open_membership`, less those dropped.

        With it, if none is known, return -1 for each: all are if all PartyInfos in `infos` state `expected`.
        """
        if not self.open_membership:
            return sorted(set(range(self.initial_parties)) - set(self.dropped) - answered)
        expected_parties = {party["party"] for party in self.parties}
        if {info.num_partitions for info in infos if isinstance(info, PartyInfo)} == {self.expected}:
            expected_parties |= set(range(self.expected))
        missing_count = self.expected - len(answered)
        return (sorted(expected_parties - answered) or [-1] * missing_count) if missing_count > 0 else []


def _smallest_mode(values: Iterable[int]) -> int:
    """Return the most frequent value; of equally frequent values, the smallest."""
    return Counter(sorted(values)).most_common(1)[0][0]
