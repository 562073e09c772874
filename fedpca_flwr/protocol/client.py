"""`PCAClient`: a party's half of every method. It answers its script's questions only, and its errors hold no data.

A party does not trust the server: whoever holds the server may ask anything, in any order, any number of times. The
party compares every question with the run's script (`fedpca_flwr.protocol.question`) and notes the question before it
answers. The first question outside the script ends the run for this party.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property, partial
from operator import attrgetter
from typing import Any, Protocol

import numpy as np
from flwr import common
from flwr.client import Client, NumPyClient
from flwr.common import Code, Parameters, Status
from flwr.common.constant import SType
from numpy.typing import NDArray
from typing_extensions import override

from fedpca_flwr.config.method_text import require_same_settings, shared_settings
from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.data.table import Table
from fedpca_flwr.errors import ConfigError, ContractError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.rows import Rows
from fedpca_flwr.model.loadings import Loadings
from fedpca_flwr.protocol.admission import MESSAGES
from fedpca_flwr.protocol.card import MethodCard, PCAOptions, method_questions
from fedpca_flwr.protocol.journal import REPLY_NAME, Journal, State
from fedpca_flwr.protocol.memory import Alternatives, no_alternatives, require_party_memory
from fedpca_flwr.protocol.payload import HEADER_BYTES, Fields, content_digest, read_array, write_array
from fedpca_flwr.protocol.question import (
    SERVER,
    Public,
    Questions,
    answer_cost,
    max_reply_cost,
    require_next,
    require_unchanged,
)
from fedpca_flwr.protocol.replies import max_magnitude, overflow_handling
from fedpca_flwr.protocol.site_log import site_logger
from fedpca_flwr.protocol.transport import PartyTransport

PENDING_KEY = "pending"
"""Key in the statement of a party that is still computing its answer to the same question."""

ANSWERED = Status(Code.OK, "")

MAX_STORED_REPLY_BYTES = 2**26
"""Size up to which a reply is stored; a larger reply that is lost ends the run at its deadline."""


class PartyRows(Protocol):
    """Rows of a party as its answers may use them: their number and features, and themselves where a card says so."""

    def __len__(self) -> int:
        """Return the number of rows."""

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and of features."""

    @property
    def count(self) -> int | float:
        """Number of rows, or the sum of their weights."""

    @property
    def rows(self) -> Rows:
        """The rows (n, d)."""


class Site(Protocol):
    """Interface of a site for `PCAClient`: configuration, rows, journal and permission.

    A `split` is "rows" if a party has some rows of all features, and "columns" if it has all rows of some features. To
    refuse, a method raises DisclosureError, or ConfigError for configurations, or DataError, without a value of the
    rows.
    """

    run_id: str

    @cached_property
    def state(self) -> State:
        """Lists of arrays that the party keeps between the rounds of the run."""

    @property
    def node(self) -> NodeConfig:
        """Node-config of the site, parsed."""

    @property
    def config(self) -> RunConfig:
        """Run-config of the run, parsed."""

    @cached_property
    def table(self) -> Table:
        """Table of the party, with its rows that take part and those that do not."""

    @property
    def file_length(self) -> int:
        """Number of rows of the site's file, with those that take no part."""

    @cached_property
    def journal(self) -> Journal:
        """Journal in which the site records the questions and answers of a run."""

    @property
    def settings_digest(self) -> bytes:
        """SHA-256 of the run-config that the server sent."""

    def options(self, kind: type[PCAOptions]) -> PCAOptions:
        """Return the method's options as an instance of the given class; raise ConfigError for faults."""

    def configuration(self, card: MethodCard, options: PCAOptions) -> str:
        """Return the run-config as JSON with sorted keys, equal at all parties of the run."""

    def with_run_config(self, run_config: Mapping[str, Any]) -> Any:
        """Return the site of the same party in the same run with another run-config."""

    def select(self, split: str, needs: Collection[str] = ()) -> PartyRows:
        """Return the rows that take part; `needs` says what answers use besides moments: "groups" or "rows"."""

    def public(self, split: str, options: PCAOptions) -> Public:
        """Return the parameters of the run that server and parties know."""

    def info(self, split: str) -> dict[str, Any]:
        """Return the party's statement about itself (`PartyInfo`), which comes with every reply, by key."""

    def permit(self, card: MethodCard, options: PCAOptions, *, sums_only: bool) -> None:
        """Refuse a method or options that the site's policy does not allow; `sums_only`: the server sees sums only."""

    def permit_size(self, nbytes: int, alternatives: Callable[[int], str]) -> None:
        """Refuse a reply of too many bytes; `alternatives` returns the end of the error from the largest size."""

    def permit_selections(self, card: MethodCard, *, sums_only: bool) -> None:
        """Refuse sums over selected rows if values of a few single rows could be read from the sums."""

    def repeats(self, split: str) -> Any:
        """Return the site's rules about repeated runs over all rows that take part."""

    def permit_bound(self, split: str) -> None:
        """Refuse a run if any value of the party's rows is larger than the run's `bound`."""

    def permit_sum(self, members: Sequence[str], split: str) -> None:
        """Refuse a sum over the parties if its difference from an earlier sum reveals a single party's summand."""

    def score_file(self, n: int, k: int) -> AbstractContextManager[Callable[[Array], object]]:
        """Open the site's file of scores (n, k), and yield a function that appends scores (m, k)."""

    def note_clear(self, card: MethodCard) -> None:
        """Record in the journal that answers over the selected rows leave in clear."""

    def report(self, error: Exception, *, late: bool = False) -> dict[str, Any]:
        """Return an error's report (`ErrorReport`) without data, and log details; `late`: after an answer has left."""


class PartyClient(NumPyClient):
    """Client of a party, which may let another client answer a question."""

    loadings: Loadings | None = None  # loadings by which the party projects rows; None before its last answer

    def responder(self, config: Mapping[str, Any]) -> PartyClient:
        """Return the client that answers a question: this one, or that of a method with which this method continues."""
        return self

    def reply_fields(self, phase: str) -> list[str]:
        """Return the names of the arrays in the reply to a question of the script; empty for the report of an error."""
        return []

    @override
    def evaluate(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> tuple[float, int, dict[str, Any]]:
        """Return loss 0, 0 rows and an error's report: runs ask nothing so, and `fit` refuses this phase."""
        return 0.0, 0, self.fit([], {"phase": "evaluate"})[2]

    @override
    def to_client(self) -> Client:
        """Return Flower's client, which asks this one."""
        return ClassicClient(self)


class ClassicClient(Client):
    """Flower's classic client of a party, with arrays read as the server reads them, in threads too (`read_array`)."""

    def __init__(self, party: PartyClient) -> None:
        self.numpy_client = party

    @override
    def get_properties(self, ins: common.GetPropertiesIns) -> common.GetPropertiesRes:
        return common.GetPropertiesRes(ANSWERED, self.numpy_client.get_properties(ins.config))

    @override
    def fit(self, ins: common.FitIns) -> common.FitRes:
        reply, rows, info = self.numpy_client.fit(list(map(read_array, ins.parameters.tensors)), ins.config)
        return common.FitRes(ANSWERED, Parameters(list(map(write_array, reply)), SType.NUMPY), rows, info)

    @override
    def evaluate(self, ins: common.EvaluateIns) -> common.EvaluateRes:
        return common.EvaluateRes(ANSWERED, *self.numpy_client.evaluate([], ins.config))


class PCAClient(PartyClient):
    """Base of every method's client: answers the questions of the run's script, and no others.

    `make_transport` makes the party's transport at the first use, from site, card and options.
    """

    def __init__(self, card: MethodCard, site: Site, make_transport: Callable[..., PartyTransport]) -> None:
        super().__init__()
        self.card, self.site, self._make_transport = card, site, make_transport
        self.earlier_questions: Questions = {}
        self.question_number = 0
        self.alternatives: Alternatives = no_alternatives
        # whether answers are sums over rows without noise, from which few rows could be read
        self._sums_rows = card.split == "rows" and not card.differentially_private

    def continue_from(self, previous: PCAClient, questions: Questions) -> None:
        """Continue the run of another method's client, whose questions so far come first in the script."""
        self.earlier_questions, self.alternatives = questions, previous.alternatives

    # What a method may write

    def statistics(self, phase: str, request: Fields) -> Fields | Sequence[Fields]:
        """Compute the fields that answer a question of the script, or parts that add up to them; no row leaves."""
        answer = self.questions[phase].answer
        assert answer is not None, phase
        return answer(self, request)

    def store_request(self, request: Fields) -> None:
        """Store fields of a request that the answers to later questions need; the base stores nothing."""

    def require_ready(self) -> None:
        """Raise a FedPCAError, before any answer, if the rows do not allow the run; the base allows all."""

    @property
    def ends_run(self) -> bool:
        """Whether the run ends with the script's last question; False if another method may go on."""
        return not self.card.successors

    def permit_survivors(self, dropped: int) -> None:
        """Raise a FedPCAError if no sum without the dropped parties may be unmasked; the base allows every sum."""

    def permit_sum(self, members: Sequence[str]) -> None:
        """Raise DisclosureError if a sum over parties (public keys) less an earlier one shows one summand, no noise."""
        if not self.card.differentially_private:
            self.site.permit_sum(members, self.card.split)

    def info(self) -> dict[str, Any]:
        """Return the party's statement about itself (`PartyInfo`), which comes with every reply, by key."""
        return self.site.info(self.card.split)

    # What it knows

    @cached_property
    def options(self) -> Any:
        """Options of the method, an instance of ``card.options``; a fault raises ConfigError."""
        return self.site.options(self.card.options)

    @cached_property
    def transport(self) -> PartyTransport:
        """Party's half of the transport, which sends answers in clear or masked."""
        return self._make_transport(self.site, self.card, self.options)

    @cached_property
    def questions(self) -> Questions:
        """Questions of the method itself in this run, by name, without questions of the transport."""
        return method_questions(self.card.script, self.site.config, self.options)

    @cached_property
    def script(self) -> Questions:
        """All questions of this run by name, in order, with those of an earlier method and of the transport."""
        return {**self.earlier_questions, **self.transport.script(self.card.name, self.questions)}

    @property
    def selection(self) -> PartyRows:
        """Rows of this party that take part."""
        columns = self.card.split == "columns"  # whose answers are products of a party's own columns
        return self.site.select(self.card.split, self.card.needs or ("rows",) * columns)

    @cached_property
    def journal(self) -> Journal:
        """Journal of this party, which records every question."""
        return self.site.journal

    @cached_property
    def public(self) -> Public:
        """Public parameters of the run, which server and parties know."""
        return self.site.public(self.card.split, self.options)

    @cached_property
    def uses_fixed_point(self) -> bool:
        """True if the run adds fixed-point integers, whose range follows from `bound`."""
        return self.transport.sums_only and not self.card.differentially_private

    # What Flower calls. Nothing is ever raised through Flower: an exception's text would travel with it.

    @override
    def get_properties(self, config: dict[str, Any]) -> dict[str, Any]:
        """Return this party's statement with its number of features, or an error's report if it cannot take part."""
        try:
            if server_settings := str(config.get("settings", "")):
                require_same_settings(shared_settings(self.card.name, self.options, self.site.config), server_settings)
            self._permit()
            rows, features = self.selection.shape
            self._permit_sizes(*max_reply_cost(self.script, self.public, rows))
            statement = {**self.info(), "features": features, "messages": MESSAGES}
            if "columns" in statement and (self.site.node.show_names or not self.site.node.data):
                statement["names"] = "\0".join(self.site.table.names)
            return statement
        except Exception as error:
            return self._report_error(error)

    @override
    def fit(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> tuple[list[NDArray[Any]], int, dict[str, Any]]:
        """Answer a question: return arrays, rows (1 if hidden) and statement, or [], 0 and the report of any error."""
        responder = self.responder(config)
        if responder is not self:
            return responder.fit(parameters, config)
        try:
            phase = str(config.get("phase", ""))
            digest = content_digest(phase, parameters)
            if self.site.node.data and (repeated := self._repeated_reply(phase, digest)) is not None:
                return repeated
            self._permit()
            if self.site.config.minimum:
                self._permit_parties(str(config.get("parties", "")))
            request = self._accept_question(phase, parameters, digest)
            self.store_request(request)
            rows = len(self.selection)
            arrays = self._answer(phase, request, rows)
            hides_rows = self.card.differentially_private or self.transport.sums_only
            info = self.info()
            if self._completes_run(phase) and (digest := self.journal.end_digest()):
                info["journal"] = digest
            reply = arrays, 1 if hides_rows else rows, info
            if self.site.node.data:
                self._store_reply(*reply)
            return reply
        except Exception as error:
            return [], 0, self._report_error(error)

    @override
    def reply_fields(self, phase: str) -> list[str]:
        return self.script[phase].reply.names

    # Inside

    def _completes_run(self, phase: str) -> bool:
        """Return whether the run ends with this question."""
        return self.ends_run and phase == list(self.script)[-1]

    def _permit(self) -> None:
        """Raise a FedPCAError for a run that the site's own policy does not allow, before anything is computed."""
        self.site.permit(self.card, self.options, sums_only=self.transport.sums_only)
        self.require_ready()
        if self._sums_rows:
            _ = self.selection  # made before the site examines all selections
            self.site.permit_selections(self.card, sums_only=self.transport.sums_only)

    def _permit_parties(self, parties: str) -> None:
        """Raise ContractError if these partitions are too few, lack this party's, or are not the run's first ones."""
        minimum, members = self.site.config.minimum, set(parties.split())
        are_partitions = all(member.isascii() and member.isdecimal() for member in members)
        if not are_partitions or len(members) < minimum or str(self.site.node.partition_id) not in members:
            raise ContractError(
                f"the server names {len(members)} parties that take part; the run needs at least 'minimum' = "
                f"{minimum} parties, and this party must be one of them"
            )
        previous, digest = self.site.journal.load_secret("parties"), hashlib.sha256(parties.encode()).digest()
        if previous is None:
            self.site.journal.store_secret("parties", digest)
            names = " ".join(sorted(members))
            site_logger.info("run %s: %s parties take part: %s", self.site.run_id, len(members), names)
        elif previous != digest:
            raise ContractError("the parties that the server names are not those of its first question")

    def _permit_sizes(self, nbytes: int, largest: int) -> None:
        """Raise DisclosureError for a reply of too many bytes, ConfigError if its largest array exceeds the memory."""

        def alternatives(max_bytes: int) -> str:
            """Return the end of an error that lists methods with replies of at most `max_bytes`."""
            return self.alternatives(self.public, len(self.selection), max_bytes)

        self.site.permit_size(nbytes, alternatives)
        require_party_memory(self.card.name, largest, alternatives)

    def _report_error(self, error: Exception) -> dict[str, Any]:
        """Return an error's report; if any question was answered before, end the run here, and forget its state."""
        try:
            late = self.site.journal.has_begun()
            if late:
                self.site.state.clear()
                self.site.journal.end(type(error).__name__)
        except ConfigError:  # the site's configuration itself is wrong, so nothing was ever answered
            late = False
        except Exception:
            late = True
        return self.site.report(error, late=late)

    def _repeated_reply(self, phase: str, digest: str) -> tuple[list[NDArray[Any]], int, dict[str, Any]] | None:
        """Return the last reply again if its question comes again; while it is computed, `PENDING_KEY`; else None."""
        progress = self.site.journal.progress(digest, self.site.settings_digest)
        if progress == "computing":
            return [], 0, {PENDING_KEY: True}
        stored = self.site.journal.load_secret(REPLY_NAME) if progress == "answered" else None
        if stored is None:
            return None
        with np.load(io.BytesIO(stored), allow_pickle=False) as file:
            statement = json.loads(bytes(file["statement"]))
            reply = [file[name] for name in file.files if name != "statement"]
        self.site.journal.record_answer(f"{phase}, sent again", len(stored), partial(content_digest, phase, reply))
        site_logger.info("run %s: the reply to '%s' is sent again", self.site.run_id, phase)
        return reply, *statement

    def _store_reply(self, arrays: list[NDArray[Any]], rows: int, info: dict[str, Any]) -> None:
        """Store a reply until the next question, unless it is larger than `MAX_STORED_REPLY_BYTES`."""
        if sum(array.nbytes for array in arrays) > MAX_STORED_REPLY_BYTES:
            return
        file = io.BytesIO()
        statement = np.frombuffer(json.dumps([rows, info]).encode(), dtype=np.uint8)
        np.savez(file, *arrays, statement=statement)
        self.site.journal.store_secret(REPLY_NAME, file.getvalue())

    def _accept_question(self, phase: str, arrays: list[NDArray[Any]], digest: str) -> Fields:
        """Record a question, and return its fields by name; raise ContractError if it is not the script's next."""
        request: Fields = {}

        def permit(answered: Sequence[str]) -> None:
            """Raise ContractError unless the phase follows the answered phases and its fields are valid."""
            nonlocal request
            require_next(self.script, answered, phase, self.public)
            self.question_number = len(answered)
            question = self.script[phase]
            sizes = question.request_sizes(self.public)
            request = question.request.name_arrays(arrays, SERVER)
            question.request.check(request, SERVER, sizes)
            require_unchanged(question.request, request, self.site.state)

        configuration = self.site.settings_digest
        self.site.journal.begin(phase, digest, configuration, permit)
        return request

    def _answer(self, phase: str, request: Fields, rows: int) -> list[NDArray[Any]]:
        """Compute, check and record the reply to a question, and return its arrays in the order of the payload.

        Raise the errors of `_permit_sizes`, and ContractError for fields that are not those of the question.
        """
        question = self.script[phase]
        sizes = question.reply_sizes(request, self.public)
        nbytes, largest = answer_cost(question, {"n": rows, **sizes})
        self._permit_sizes(nbytes, largest)
        with overflow_handling(max_magnitude(request), "ignore"):  # the answer is checked for infinite values below
            fields = self.transport.answer(self, phase, request)
        question.reply.check(fields, "this site's reply", sizes)
        arrays = question.reply.to_arrays(fields)
        size = HEADER_BYTES * len(arrays) + sum(map(attrgetter("nbytes"), arrays))
        if size > nbytes:  # for compressed fields, the first check had only a lower limit
            self._permit_sizes(size, 0)
        if self._sums_rows and not self.transport.sums_only:
            self.site.note_clear(self.card)
        phases = list(self.script)
        place = f"phase {phases.index(phase) + 1} of {len(phases)}"
        fields_text = ", ".join(question.reply.names)
        self.site.journal.record_answer(f"{place}: {fields_text}", size, partial(content_digest, phase, arrays))
        site_logger.info("run %s: '%s' is answered with %s bytes", self.site.run_id, phase, size)
        if self._completes_run(phase):
            self.site.journal.complete()
            if self.site.node.data:
                self.site.state.clear()
        return arrays


class RefusingClient(PartyClient):
    """Client of a site that cannot take part: an exception where Flower makes clients would travel; a report may."""

    def __init__(self, report: dict[str, Any]) -> None:
        super().__init__()
        self.report = report

    @override
    def get_properties(self, config: dict[str, Any]) -> dict[str, Any]:
        return self.report

    @override
    def fit(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> tuple[list[NDArray[Any]], int, dict[str, Any]]:
        return [], 0, self.report
