"""`PCAStrategy`: Flower's side of every method, which drives the method's program, a question in each round.

The strategy waits for exactly the expected parties, refuses a partial round, and checks every reply. A method adds
`aggregate`, straight-line code that yields questions (`fedpca_flwr.protocol.question`).
"""

from __future__ import annotations

import json
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from inspect import Parameter, Signature
from typing import Any, ClassVar, Protocol, Self

from flwr.client import NumPyClient
from flwr.common import EvaluateIns, FitIns, FitRes, Parameters, Scalar, ndarrays_to_parameters
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import Strategy
from numpy.typing import ArrayLike
from threadpoolctl import ThreadpoolController
from typing_extensions import override

from fedpca_flwr.config.method_text import make_run_config, shared_settings
from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.errors import ContractError, FedPCAError
from fedpca_flwr.maths.eigen import EXACT_ANGLE_DEGREES, Eigenpairs
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.solution import FACTORS_REMEDY, SCALE_REMEDY, Certainty, certainty, check_features
from fedpca_flwr.protocol.admission import Reply
from fedpca_flwr.protocol.card import MethodCard, PCAOptions, method_questions
from fedpca_flwr.protocol.client import PCAClient, RefusingClient
from fedpca_flwr.protocol.journal import Context
from fedpca_flwr.protocol.memory import Alternatives, no_alternatives, require_server_memory
from fedpca_flwr.protocol.payload import Fields, content_digest, write_array
from fedpca_flwr.protocol.progress import log_progress
from fedpca_flwr.protocol.question import NO_FIELDS, Program, Public, Round, max_questions
from fedpca_flwr.protocol.quorum import PCA_KEY, Quorum, Results
from fedpca_flwr.protocol.replies import Magnitudes, ReplyCollector
from fedpca_flwr.protocol.transport import ServerTransport
from fedpca_flwr.state.files import utc_time

MIN_THREADED_FEATURES = (
    1000  # with fewer, the server's BLAS threads cost more time than they save, and change last bits
)


class Factory(Protocol):
    """Interface of a factory that makes the server's half and the parties' halves of a run."""

    def strategy(self, run_config: Mapping[str, Any]) -> PCAStrategy:
        """Return the strategy (the server's half) of a run-config; raise ConfigError for faults."""

    def prepare(self, strategy: PCAStrategy, run_config: Mapping[str, Any]) -> None:
        """Set configuration, options and transport of a new strategy; raise ConfigError for a faulty run-config."""

    def client(self, context: Context) -> PCAClient | RefusingClient:
        """Return a party's client for a Flower context, with rows by the node-config; it refuses if these are wrong."""

    def client_of_rows(
        self, context: Context, rows: Callable[[], ArrayLike], run_config: Mapping[str, Any]
    ) -> PCAClient | RefusingClient:
        """Return a party's client as `client` does, but for rows (n, d) that the caller loads."""


class KeywordSignature:
    """Descriptor of a strategy class's signature: the options of its method, as keywords with their defaults."""

    def __get__(self, instance: PCAStrategy | None, owner: type[PCAStrategy]) -> Signature | None:
        """Return the signature of the class, or None for a base class, which is of no method."""
        card = getattr(owner, "card", None)
        if card is None:
            return None
        return Signature([*card.options.keywords().values(), Parameter("run_config", Parameter.VAR_KEYWORD)])


class PCAStrategy(Strategy):
    """Base of every method's strategy: asks the method's questions, a question in each Flower round.

    Keywords are the method's options and the run's keys: ``PooledCovariance(n_components=5, clients=3)``.
    """

    card: ClassVar[MethodCard]
    party: ClassVar[type[PCAClient]]
    """Class of the method's client."""
    factory: ClassVar[Factory]
    """Factory of both halves of the transport, which `fedpca_flwr.strategies` sets."""
    __signature__: ClassVar[KeywordSignature] = KeywordSignature()

    def __init__(self, **keywords: Any) -> None:
        super().__init__()
        with self._python_spelling():
            run_config = self._run_config(keywords)
            self.factory.prepare(self, run_config)

    @classmethod
    def from_config(cls, config: RunConfig, options: PCAOptions, transport: ServerTransport) -> Self:
        """Return the strategy of a run, ready to start, from a configuration and options that are parsed already."""
        strategy = cls.__new__(cls)
        strategy.prepare(config, options, transport)
        return strategy

    def prepare(self, config: RunConfig, options: PCAOptions, transport: ServerTransport) -> None:
        """Set configuration, options and transport of a new run; ConfigError if the transport refuses the method."""
        self.config = config
        self.options = options
        self.transport = transport
        self.script = transport.script(self.card.name, method_questions(self.card.script, config, options))
        rows = self.card.split == "rows"
        settings = json.dumps(shared_settings(self.card.name, options, config))
        self.quorum = Quorum(config, settings, open_membership=self.card.open_membership, same_features=rows)
        self._model: PCAModel | None = None
        self.done = False
        self.certificate = 0.0  # bound in degrees on the angle to the exact components, if the method converges to them
        self.alternatives: Alternatives = no_alternatives
        self.before_questions: Callable[[], None] = lambda: None  # once the parties and their features are known
        self.after_round: Callable[[], None] = lambda: None
        self._program: Program | None = None
        self._round = Round("")  # the question of this round
        self.round_log: list[dict[str, Any]] = []  # cost of each round (`_log_round`)
        self._sent_bytes: dict[str, int] = {}  # bytes sent in this round, by the id of Flower's client
        self.provenance: dict[str, Any] = {}  # of a run on a grid, whose questions and replies have digests in the log
        self._question_digests: dict[str, str] = {}  # of this round, by the id of Flower's client
        self._round_start = 0.0  # time at which this round began
        self.waiting_seconds: dict[int, float] = {}  # seconds for the replies of each party, over all rounds
        self._collector = ReplyCollector(NO_FIELDS, {})  # replies of this round
        self._magnitudes = Magnitudes(sums_only=transport.sums_only)

    def continue_from(self, previous: PCAStrategy) -> None:
        """Take over the parties and the log of rounds from another method's strategy in the same run."""
        self.quorum, self.round_log, self.provenance = previous.quorum, previous.round_log, previous.provenance

    # What a method writes

    @abstractmethod
    def program(self) -> Program:
        """Yield all questions of a run, receive the replies or sums, and set the model."""

    @property
    def exact(self) -> bool:
        """True if the method is exact and its certified error, in degrees, is at most `EXACT_ANGLE_DEGREES`."""
        return self.card.exact and self.certificate <= EXACT_ANGLE_DEGREES

    # What it knows

    @property
    def public(self) -> Public:
        """Parameters of the run that the server and every party know."""
        return Public(self.config, self.options, self.quorum.initial_parties, features=self.quorum.features)

    @property
    def sees_single_replies(self) -> bool:
        """True if the server sees each party's reply, and not only the sum of all replies."""
        return not self.transport.sums_only

    @property
    def server_learns(self) -> str:
        """Text on what the server learns in this run: of each party, or if it sees only sums, of all together."""
        if self.config.blind:
            return "the number of rows, and the variances of rotated rows, so each component's share"
        if self.sees_single_replies:
            return self.card.disclosure.server
        sums = [f"by '{word}' of single parties: {text}" for word, text in self.options.sum_disclosures.items()]
        return "; ".join([(self.card.summed_disclosure or self.card.disclosure).server, *sums])

    @property
    def rounds(self) -> int:
        """Largest number of rounds that the run can take."""
        return max_questions(self.script, self.public)

    @property
    def model_bytes(self) -> int:
        """Estimated bytes of the model's file, with stored moments and history, without scores."""
        d, k = self.quorum.features, self.options.n_components
        matrices = self.options.stored_moments_count(self.quorum.initial_parties)
        return 8 * d * ((k if isinstance(k, int) else d) + 8 + matrices * (d + 3)) + 2**20  # and its history

    def certainty(self, pairs: Eigenpairs) -> Certainty:
        """Return exactness, number of components that rounding leaves resolved (unknown beside noise), and notes."""
        if self.card.differentially_private:
            return Certainty(self.exact, [])
        ways = [SCALE_REMEDY] if self.options.could_scale else []
        if self.card.split == "rows" and pairs.resolution is None and self.sees_single_replies:
            ways.append(FACTORS_REMEDY)
        return certainty(pairs, exact=self.exact, remedies=ways)

    def history(self, certainty: Certainty, notes: Sequence[str], measured: Mapping[str, float]) -> dict[str, Any]:
        """Return the model's ``log``, by key: method, options, parties, rounds, measurements, notes and more.

        The keys of `measured` are names of `fedpca_flwr.model.measurements`. Unseen ``rows`` of a party are None.
        """
        parties, config = self.transport.parties(self.quorum), self.config
        measured = dict(measured)
        all_notes = [*notes, *certainty.notes]
        if not self.sees_single_replies:
            sums = self.options.sum_disclosures.items()
            all_notes += [f"the sums of '{word}' tell the server about single parties: {text}" for word, text in sums]
        all_notes += self.transport.notes(self.quorum)
        if config.bound and not config.secure_aggregation:
            idle = f"'bound' is {config.bound:g} and had no effect"
            all_notes.append(f"{idle}: it bounds the values in secure sums only")
        if certainty.resolved is not None and "certified_components" in measured:
            measured["certified_components"] = min(measured["certified_components"], certainty.resolved)
        return {
            "method": self.card.name,
            "exact": certainty.exact,
            "options": self.options.model_dump(by_alias=True),
            "parties": parties if self._shows_row_counts else [{**party, "rows": None} for party in parties],
            "rounds": self.round_log,
            "measured": {**measured, **self.transport.measurements(self.quorum)},
            "columns": self.quorum.columns,
            **({"levels": config.levels_by_column} if config.levels else {}),
            **({"transform": config.transform} if config.transform else {}),
            **({"provenance": {**self.provenance, "ended": utc_time()}} if self.provenance else {}),
            "notes": all_notes,
        }

    @property
    def request_fields(self) -> list[str]:
        """Names of the arrays of this round's question, in their order."""
        return self.script[self._round.phase].request.names

    @property
    def model(self) -> PCAModel:
        """Model of a finished run; before the end a ContractError says how many rounds the run needs."""
        if self._model is None or not self.done:
            raise ContractError(
                f"'{self.card.name}' has no model yet: {len(self.round_log)} rounds have ended, and this run needs up "
                f"to {self.rounds}; give Flower's server num_rounds=strategy.rounds"
            )
        return self._model.named(self.config.feature_names or self.quorum.feature_names)

    @classmethod
    def client(cls, context: Context, rows: ArrayLike, **keywords: Any) -> NumPyClient:
        """Return the client of a party whose rows (n, d) a user's own ClientApp loaded, with a strategy's keywords."""
        with cls._python_spelling():
            run_config = cls._run_config(keywords)
        return cls.factory.client_of_rows(context, lambda: rows, run_config)

    @classmethod
    @contextmanager
    def _python_spelling(cls) -> Iterator[None]:
        """Rewrite errors about keys of the run-config in a with statement as errors about Python's keywords."""
        try:
            yield
        except FedPCAError as error:
            from fedpca_flwr.config.explain import keyword_text  # for errors only

            keys = {*RunConfig.keys(), *cls.card.options.keys()}
            raise type(error)(keyword_text(str(error), keys), local=error.local) from None

    @classmethod
    def _run_config(cls, keywords: Mapping[str, Any]) -> dict[str, Any]:
        """Return the run-config of Python keywords; ContractError before `fedpca_flwr.strategies` is imported."""
        if not hasattr(cls, "factory"):  # a class of another package, which needs no registry to be defined
            raise ContractError(f"{cls.__name__} cannot be created yet: first import fedpca_flwr.strategies")
        values = {key.replace("_", "-"): value for key, value in keywords.items()}
        return make_run_config(cls.card.name, cls.card.options, {**values, "method": cls.card.name})

    # What Flower calls

    @override
    def initialize_parameters(self, client_manager: ClientManager) -> Parameters:
        """Return empty parameters; raise ContractError if the strategy has run already."""
        if self._program is not None:
            raise ContractError(f"this strategy of '{self.card.name}' has already run: make a new one for another run")
        return ndarrays_to_parameters([])

    def __repr__(self) -> str:
        options = {"n_components": self.config.n_components, **self.options.model_dump(exclude_defaults=True)}
        return f"{type(self).__name__}({', '.join(f'{key}={value!r}' for key, value in options.items())})"

    @override
    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, FitIns]]:
        """Return the current question for each client, none after the end; the first call waits for all clients.

        Raise the errors of `Quorum.gather`, and ConfigError for too few features or too little memory.
        """
        if self.done:
            return []
        clients, public = self.quorum.gather(client_manager), self.public
        if self._program is None:
            if self.card.split == "rows":
                check_features(self.options.n_components, self.quorum.features)
            require_server_memory(self.card.name, self.script, public, self.alternatives)
            self.before_questions()
            self._program = self.transport.plain_rounds(self.program(), self)
            self._round = next(self._program)
        current, question = self._round, self.script[self._round.phase]
        config: dict[str, Scalar] = {PCA_KEY: self.quorum.pca_name, "phase": current.phase}
        if current.method:
            config["method"] = current.method
        if self.config.minimum:
            config["parties"] = " ".join(map(str, self.quorum.members))
        shared, instructions, self._sent_bytes, self._question_digests = _serialize(current.request), [], {}, {}
        shared_digest = ""
        for client in clients:
            party = self.quorum.partition_by_client.get(client.cid, -1)
            own = current.party_requests.get(party, {})
            tensors = {**shared, **_serialize(own)} if own else shared
            ordered = [tensors[name] for name in question.request.names]
            instructions.append((client, FitIns(Parameters(ordered, "numpy.ndarray"), config)))
            self._sent_bytes[client.cid] = sum(map(len, ordered))
            if self.provenance:
                digest = "" if own else shared_digest  # the same question of many parties has one digest
                digest = digest or content_digest(current.phase, question.request.to_arrays({**current.request, **own}))
                shared_digest = shared_digest if own else digest
                self._question_digests[client.cid] = digest
        sizes, upload = question.reply_sizes(current.request, public), ""
        if question.has_fixed_size:
            nbytes = question.nbytes({"n": public.features + 1, "d": public.features, **sizes})
            upload = f", each sends at most {nbytes:,} bytes"
        label = f"round {len(self.round_log) + 1} of at most {max_questions(self.script, public)} ({current.phase})"
        log_progress("%s: waiting for %s parties%s", label, self.quorum.expected, upload)
        self._round_start = time.monotonic()
        reply_digest = partial(content_digest, current.phase) if self.provenance else None
        self._collector = ReplyCollector(question.reply, sizes, current.consume, reply_digest)
        return instructions

    def receive(self, client: ClientProxy, result: FitRes) -> None:
        """Check and perhaps consume a client's reply on arrival, and add up the waiting time."""
        party = self.quorum.partition_by_client.get(client.cid, -1)
        self.waiting_seconds[party] = self.waiting_seconds.get(party, 0.0) + time.monotonic() - self._round_start
        self._collector.receive(result)

    def log_awaited_parties(self, clients: Sequence[ClientProxy]) -> None:
        """Log the names of the clients that have not answered in this round, and how many seconds have passed."""
        names = self.quorum.name_parties(self.quorum.partition_by_client.get(client.cid, -1) for client in clients)
        label = f"round {len(self.round_log) + 1} ({self._round.phase})"
        log_progress("%s: still waiting after %.0f s for %s", label, time.monotonic() - self._round_start, names)

    @override
    def aggregate_fit(
        self, server_round: int, results: Results, failures: Sequence[Any]
    ) -> tuple[Parameters | None, dict[str, Scalar]]:
        """Check a round's replies and pass them to the program, which asks the next question; raise their errors."""
        try:
            replies = self._check_replies(results, failures)
        except FedPCAError as error:
            raise self._magnitudes.explain(error) from error
        assert self._program is not None
        threads = 1 if self.card.split == "rows" and self.quorum.features < MIN_THREADED_FEATURES else None
        limit = numerical_libraries().limit(limits=threads, user_api="blas")
        with limit, self._magnitudes.guard(self._round.phase, self._collector.magnitudes):
            try:
                self._round = self._program.send(replies)
            except StopIteration:
                self.done = True
        self.after_round()
        return None, {}

    @override
    def configure_evaluate(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, EvaluateIns]]:
        return []  # a run asks all questions by Flower's fit

    @override
    def aggregate_evaluate(
        self, server_round: int, results: Results, failures: Sequence[Any]
    ) -> tuple[float | None, dict[str, Scalar]]:
        return None, {}

    @override
    def evaluate(self, server_round: int, parameters: Parameters) -> None:
        return None  # the server has no data to evaluate a model on

    # Inside

    @property
    def _shows_row_counts(self) -> bool:
        """True if the server sees the number of rows of each party."""
        return self.sees_single_replies and not self.card.differentially_private

    def _check_replies(self, results: Results, failures: Sequence[Any]) -> list[Reply]:
        """Log a round, and return its checked replies in order of the partitions; raise errors that name parties."""
        replies = self.quorum.match_replies(results, failures)
        self._collector.mark_consumed(replies)
        self._log_round(self._round.phase, replies)
        self._collector.check(replies)
        if self.provenance:
            partitions = {cid: self.quorum.partition_by_client[cid] for cid in self._question_digests}
            self.round_log[-1]["digests"] = {
                str(partitions[cid]): [digest, self._collector.digests.get(partitions[cid], "")]
                for cid, digest in self._question_digests.items()
            }
            self.round_log[-1] |= {"journals": self.quorum.journals} if self.quorum.journals else {}
        rows_visible = self._shows_row_counts and not self.config.weights
        for reply in replies:
            if rows_visible and "count" in reply.fields and reply.rows != int(reply.fields["count"]):
                count = int(reply.fields["count"])
                raise ContractError(f"{reply.sender}: its count is {count}, but its message says {reply.rows} rows")
        return replies

    def _log_round(self, phase: str, replies: list[Reply]) -> None:
        """Append a round's ``phase``, bytes ``up`` and ``down`` by party, and ``seconds`` to the log of rounds."""
        up = dict.fromkeys(self.quorum.dropped, 0)
        for reply in replies:
            up[reply.party] = reply.nbytes
        last_place = self.quorum.initial_parties
        sent = [(self.quorum.partition_by_client.get(cid, last_place), size) for cid, size in self._sent_bytes.items()]
        sent += [(party, 0) for party in self.quorum.dropped.keys() - dict(sent).keys()]
        ups, downs = [size for _, size in sorted(up.items())], [size for _, size in sorted(sent)]
        seconds, number = round(time.monotonic() - self._round_start, 3), len(self.round_log) + 1
        self.round_log.append({"round": number, "phase": phase, "up": ups, "down": downs, "seconds": seconds})


def _serialize(fields: Fields) -> dict[str, bytes]:
    """Return each array by name as bytes, in the format of Flower's parameters."""
    return {name: write_array(array) for name, array in fields.items()}


@cache
def numerical_libraries() -> ThreadpoolController:
    """Return the controller of the threads of BLAS libraries, which are imported with the methods, before this call."""
    return ThreadpoolController()
