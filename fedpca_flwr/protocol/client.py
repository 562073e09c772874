"""`PCAClient`: a party's half of every method. It answers its script and nothing else, and its errors hold no data.

A party does not trust the server: whoever holds the server may ask anything, in any order, any number of times. The
party compares every question with the run's script (`fedpca_flwr.protocol.question`) and notes the question before it
answers. The first question outside the script ends the run for this party. The answer itself is part of the question
(`Question.answer`).

A site that cannot take part has a `RefusingClient`.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from functools import cached_property
from operator import attrgetter
from typing import Any, Protocol

from flwr.client import NumPyClient
from numpy.typing import NDArray
from typing_extensions import override

from fedpca_flwr.config.method_text import require_same_settings, shared_settings
from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.errors import ConfigError
from fedpca_flwr.maths.rows import Rows
from fedpca_flwr.protocol.card import MethodCard, PCAOptions, method_questions
from fedpca_flwr.protocol.journal import Journal, State
from fedpca_flwr.protocol.memory import Alternatives, max_reply_cost, no_alternatives, require_party_memory
from fedpca_flwr.protocol.payload import HEADER_BYTES, Fields
from fedpca_flwr.protocol.question import SERVER, Public, Questions
from fedpca_flwr.protocol.replies import max_magnitude, overflow_handling
from fedpca_flwr.protocol.script import require_next, require_unchanged
from fedpca_flwr.protocol.transport import PartyTransport

logger = logging.getLogger("fedpca_flwr.client")


class Site(Protocol):
    """Interface of a party's half to its site (`fedpca_flwr.site.site.Site`)."""

    run_id: str
    state: State

    @property
    def node(self) -> NodeConfig:
        """Configuration of the site."""

    @property
    def config(self) -> RunConfig:
        """Configuration of the run."""

    @cached_property
    def journal(self) -> Journal:
        """Journal of the party."""

    @property
    def settings_digest(self) -> bytes:
        """Digest of the run-config that the server sent."""

    def options(self, kind: type[PCAOptions]) -> PCAOptions:
        """Return the method's options, of the class that its card names.

        Parameters
        ----------
        kind : type of PCAOptions
            The class.

        Returns
        -------
        PCAOptions
            The options.
        """

    def data(self, split: str) -> Rows:
        """Return the party's rows (n, d) that take part.

        Parameters
        ----------
        split : {"rows", "columns"}
            Data of a party: rows of all features, or all rows of some features.

        Returns
        -------
        rows of shape (n, d)
            The rows, dense, sparse or in blocks.
        """

    def public(self, split: str, options: PCAOptions) -> Public:
        """Return the public parameters of the run.

        Parameters
        ----------
        split : {"rows", "columns"}
            Data of a party: rows of all features, or all rows of some features.
        options : PCAOptions
            Options of the method.

        Returns
        -------
        Public
            What every party and the server know of the run.
        """

    def info(self, split: str) -> dict[str, Any]:
        """Return the party's statement that comes with every reply.

        Parameters
        ----------
        split : {"rows", "columns"}
            Data of a party: rows of all features, or all rows of some features.

        Returns
        -------
        dict
            Number and name of the party, and of how many.
        """

    def permit(self, card: MethodCard, options: PCAOptions, *, sums_only: bool) -> None:
        """Refuse a method or options that the site's policy does not allow.

        Parameters
        ----------
        card : MethodCard
            Card of the method.
        options : PCAOptions
            Options of the method.
        sums_only : bool
            Whether the server sees nothing but sums.
        """

    def permit_size(self, nbytes: int, alternatives: Callable[[int], str]) -> None:
        """Refuse a reply of too many bytes; the error lists methods with smaller replies.

        Parameters
        ----------
        nbytes : int
            Size of the reply in bytes.
        alternatives : callable
            Function of the largest size in bytes that returns the end of the error.
        """

    def permit_moments(self, card: MethodCard, rows: Rows, *, sums_only: bool) -> None:
        """Refuse sums over rows from which single rows could be read.

        Parameters
        ----------
        card : MethodCard
            Card of the method.
        rows : rows of shape (n, d)
            The party's rows.
        sums_only : bool
            Whether the server sees nothing but sums.
        """

    def permit_bound(self, split: str) -> None:
        """Refuse a run whose `bound` the rows exceed.

        Parameters
        ----------
        split : {"rows", "columns"}
            Data of a party: rows of all features, or all rows of some features.
        """

    def permit_sum(self, members: Sequence[str], split: str) -> None:
        """Refuse a sum that, with an earlier sum, would tell a party's share.

        Parameters
        ----------
        members : sequence of str
            Names of the parties in the sum.
        split : {"rows", "columns"}
            Data of a party: rows of all features, or all rows of some features.
        """

    def note_clear(self, card: MethodCard) -> None:
        """Record in the journal that an answer leaves in clear.

        Parameters
        ----------
        card : MethodCard
            Card of the method.
        """

    def report(self, error: Exception, *, late: bool = False) -> dict[str, Any]:
        """Return the report of an error, and log the error.

        Parameters
        ----------
        error : Exception
            The error.
        late : bool
            Whether an answer has left before.

        Returns
        -------
        dict
            Kind and text of the error, without values of anyone's data.
        """


class PCAClient(NumPyClient):
    """Base of every method's client, which answers each question of the run's script.

    Parameters
    ----------
    card : MethodCard
        Card of the method.
    site : Site
        The site, with this party's rows, rules and memory.
    make_transport : callable
        Function of the site, the card and the options that returns the party's transport. It is called once the options
        are known to be right.
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
        """Continue a run that another method's client has begun.

        Parameters
        ----------
        previous : PCAClient
            Client of the method before.
        questions : mapping of str to Question
            Questions that the server asked so far.
        """
        self.earlier_questions, self.alternatives = questions, previous.alternatives

    # What a method may write

    def statistics(self, phase: str, request: Fields) -> Fields | Sequence[Fields]:
        """Compute the fields that this party returns in a phase; no row leaves.

        Parameters
        ----------
        phase : str
            Name of the question.
        request : mapping of str to ndarray
            Fields of the question, checked.

        Returns
        -------
        mapping of str to ndarray, or sequence of such mappings
            The fields, or parts whose sum they are.
        """
        answer = self.questions[phase].answer
        assert answer is not None, phase
        return answer(self, request)

    def store_request(self, request: Fields) -> None:
        """Store the fields of a question that later questions need; the base stores nothing.

        Parameters
        ----------
        request : mapping of str to ndarray
            Fields of the question, checked.
        """

    def require_ready(self) -> None:
        """Refuse a run that this party's rows do not allow, before anything is answered; the base refuses none."""

    def permit_survivors(self, dropped: int) -> None:
        """Refuse to open a sum without some parties if that breaks a promise; the base refuses none.

        Parameters
        ----------
        dropped : int
            Number of parties that are not in the sum.
        """

    def permit_sum(self, members: Sequence[str]) -> None:
        """Refuse a sum over some parties if this sum and an earlier sum would tell a party's share.

        A differentially private method refuses none: the noise hides the difference.

        Parameters
        ----------
        members : sequence of str
            Public keys of the parties in the sum.

        Raises
        ------
        DisclosureError
            If the site's rules do not permit the sum.
        """
        if not self.card.differentially_private:
            self.site.permit_sum(members, self.card.split)

    def info(self) -> dict[str, Any]:
        """Return the statement of this party that comes with every reply.

        Returns
        -------
        dict
            Metrics for Flower's message (`fedpca_flwr.protocol.admission.PartyInfo`).
        """
        return self.site.info(self.card.split)

    # What it knows

    @cached_property
    def options(self) -> Any:
        """Options of the method, an instance of ``card.options``."""
        return self.site.options(self.card.options)

    @cached_property
    def transport(self) -> PartyTransport:
        """Transport of this party's answers."""
        return self._make_transport(self.site, self.card, self.options)

    @cached_property
    def questions(self) -> Questions:
        """Questions of the method in this run, each with its answer."""
        return method_questions(self.card.script, self.site.config, self.options)

    @cached_property
    def script(self) -> Questions:
        """All questions of this run, in their order."""
        return {**self.earlier_questions, **self.transport.script(self.card.name, self.questions)}

    @property
    def data(self) -> Rows:
        """Rows of this party that take part (n, d)."""
        return self.site.data(self.card.split)

    @cached_property
    def journal(self) -> Journal:
        """Journal of this party, which notes every question."""
        return self.site.journal

    @cached_property
    def public(self) -> Public:
        """Public parameters of the run."""
        return self.site.public(self.card.split, self.options)

    @cached_property
    def uses_fixed_point(self) -> bool:
        """True if answers are added up in fixed point, within limits that follow from `bound`."""
        return self.transport.sums_only and not self.card.differentially_private

    # What Flower calls. Nothing is ever raised through Flower: an exception's text would travel with it.

    @override
    def get_properties(self, config: dict[str, Any]) -> dict[str, Any]:
        try:
            if server_settings := str(config.get("settings", "")):
                require_same_settings(shared_settings(self.card.name, self.options, self.site.config), server_settings)
            self._permit()
            self._permit_sizes(*max_reply_cost(self.script, self.public, len(self.data)))
            return {**self.info(), "features": int(self.data.shape[1])}
        except Exception as error:
            return self._report_error(error)

    @override
    def fit(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> tuple[list[NDArray[Any]], int, dict[str, Any]]:
        try:
            self._permit()
            phase = str(config.get("phase", ""))
            request = self._accept_question(phase, parameters)
            self.store_request(request)
            rows = len(self.data)
            arrays = self._answer(phase, request, rows)
            hides_rows = self.card.differentially_private or self.transport.sums_only
            return arrays, 1 if hides_rows else rows, self.info()
        except Exception as error:
            return [], 0, self._report_error(error)

    @override
    def evaluate(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> tuple[float, int, dict[str, Any]]:
        """Nothing is asked in this way."""
        return 0.0, 0, self.fit([], {"phase": "evaluate"})[2]

    # Inside

    def _permit(self) -> None:
        """Refuse a run that the site's own policy does not allow, before anything is computed."""
        self.site.permit(self.card, self.options, sums_only=self.transport.sums_only)
        self.require_ready()
        if self._sums_rows:
            self.site.permit_moments(self.card, self.data, sums_only=self.transport.sums_only)

    def _permit_sizes(self, nbytes: int, memory: int) -> None:
        """Refuse a reply of too many bytes, or that needs too much memory; the error lists methods that need less."""

        def alternatives(max_bytes: int) -> str:
            """Return the end of an error that lists methods with smaller replies."""
            return self.alternatives(self.public, len(self.data), max_bytes)

        self.site.permit_size(nbytes, alternatives)
        require_party_memory(self.card.name, memory, alternatives)

    def _report_error(self, error: Exception) -> dict[str, Any]:
        """Return the report of an error; if any question was answered before, the error ends the run for this party."""
        try:
            late = self.journal.has_begun()
            if late:
                self.site.state.clear()
                self.journal.end(type(error).__name__)
        except ConfigError:  # it is the error: this site's configuration is wrong, and nothing was ever answered
            late = False
        except Exception:
            late = True
        return self.site.report(error, late=late)

    def _accept_question(self, phase: str, arrays: list[NDArray[Any]]) -> Fields:
        """Check a question against the script, note the question in the journal, and return its fields by name."""
        digest = hashlib.sha256(phase.encode())
        for array in arrays:
            digest.update(f"|{array.dtype.str}{array.shape}|".encode())
            digest.update(array.tobytes())
        request: Fields = {}

        def permit(answered: Sequence[str]) -> None:
            """Refuse a question that is not the next of the script, or whose fields are wrong."""
            nonlocal request
            require_next(self.script, answered, phase, self.public)
            self.question_number = len(answered)
            question = self.script[phase]
            request = question.request.name_arrays(arrays, SERVER)
            question.request.check(request, SERVER, question.request_sizes(self.public))
            require_unchanged(question.request, request, self.site.state)

        self.journal.begin(phase, digest.hexdigest(), self.site.settings_digest, permit)
        return request

    def _answer(self, phase: str, request: Fields, rows: int) -> list[NDArray[Any]]:
        """Return the arrays that leave in answer to a question."""
        question = self.script[phase]
        sizes = question.reply_sizes(request, self.public)
        nbytes, memory = question.cost({"n": rows, **sizes})
        self._permit_sizes(nbytes, memory)
        with overflow_handling(max_magnitude(request), "ignore"):  # the answer is checked
            fields = self.transport.answer(self, phase, request)
        question.reply.check(fields, "this site's reply", sizes)
        arrays = question.reply.to_arrays(fields)
        size = HEADER_BYTES * len(arrays) + sum(map(attrgetter("nbytes"), arrays))
        if size > nbytes:  # a lower limit for compressed fields
            self._permit_sizes(size, 0)
        if self._sums_rows and not self.transport.sums_only:
            self.site.note_clear(self.card)
        self.journal.record_answer(", ".join(map(attrgetter("name"), question.reply.fields)), size)
        logger.info("run %s: '%s' is answered with %s bytes", self.site.run_id, phase, size)
        if phase == list(self.script)[-1] and not self.card.successors:
            self.journal.delete_secrets()
            if self.site.node.data:
                self.site.state.clear()
        return arrays


class RefusingClient(NumPyClient):
    """Client of a site that cannot take part, which answers every question with the report of an error (`Site.report`).

    Nothing is raised where Flower makes a client, since an exception's text would travel.

    Parameters
    ----------
    report : dict
        Metrics of the report.
    """

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

    @override
    def evaluate(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> tuple[float, int, dict[str, Any]]:
        return 0.0, 0, self.report
