"""`PCAClient`: a party's half of every method. It answers its script and nothing else, and no error of its holds data.

A party does not trust the server: whoever holds it may ask anything, in any order, any number of times. Every question
is held against the run's script (`fedpca_flwr.protocol.question`) and noted before it is answered; the first that is
not in it ends the run for this party. What it answers stands with the question (`Question.answer`).

A party that cannot take part: its run-config is none.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Protocol

from flwr.client import NumPyClient
from numpy.typing import NDArray

from fedpca_flwr.config.method_text import require_same_settings, settings_of
from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.errors import ConfigError
from fedpca_flwr.maths.rows import Rows
from fedpca_flwr.protocol.card import MethodCard, PCAOptions, questions_of
from fedpca_flwr.protocol.journal import Journal, State
from fedpca_flwr.protocol.memory import Alternatives, largest, no_alternatives, require_party_memory
from fedpca_flwr.protocol.payload import HEADER, Fields
from fedpca_flwr.protocol.question import SERVER, Public, Questions, require_as_told, require_next
from fedpca_flwr.protocol.replies import without_warnings
from fedpca_flwr.protocol.transport import PartyTransport

logger = logging.getLogger("fedpca_flwr.client")


class Site(Protocol):
    """What a party's half needs of its site (`fedpca_flwr.site.site`)."""

    run_id: str
    state: State

    @property
    def node(self) -> NodeConfig: ...

    @property
    def config(self) -> RunConfig: ...

    @cached_property
    def journal(self) -> Journal: ...

    @property
    def settings(self) -> bytes: ...

    def options(self, kind: type[PCAOptions]) -> PCAOptions: ...

    def data(self, split: str) -> Rows: ...

    def public(self, split: str, options: PCAOptions) -> Public: ...

    def about(self, split: str) -> dict[str, Any]: ...

    def permit(self, card: MethodCard, options: PCAOptions, *, sums_only: bool) -> None: ...

    def permit_size(self, nbytes: int, alternatives: Callable[[int], str]) -> None: ...

    def permit_moments(self, card: MethodCard, rows: Rows, *, sums_only: bool) -> None: ...

    def permit_bound(self, split: str) -> None: ...

    def permit_sum(self, members: Sequence[str], split: str) -> None: ...

    def note_clear(self, card: MethodCard) -> None: ...

    def report(self, error: Exception, *, late: bool = False) -> dict[str, Any]: ...


class PCAClient(NumPyClient):
    """Base of every method's client: it looks up the answer to each question.

    The site has this party's rows, rules and memory. ``transport_of`` gives how its answers travel, from the site, the
    card and the options, once these are known to be right.
    """

    def __init__(self, card: MethodCard, site: Site, transport_of: Callable[..., PartyTransport]) -> None:
        super().__init__()
        self.card, self.site, self._transport_of = card, site, transport_of
        self.before: Questions = {}  # of the method that has chosen this one, and was asked them
        self.number = 0
        self.alternatives: Alternatives = no_alternatives

    def go_on_from(self, before: PCAClient, asked: Questions) -> None:
        """Go on in a run that another method's client has begun: ``asked`` are the questions that came before."""
        self.before, self.alternatives = asked, before.alternatives

    # What a method may write

    def statistics(self, phase: str, asked: Fields) -> Fields | Sequence[Fields]:
        """The fields that this party returns in a phase, or the parts of which they are the sum; no row leaves."""
        answer = self.questions[phase].answer
        assert answer is not None, phase
        return answer(self, asked)

    def take(self, asked: Fields) -> None:
        """Keep of a question what those after it need too."""

    def require_ready(self) -> None:
        """Refuse, before anything is answered, what this party's rows do not allow."""

    def permit_survivors(self, dropped: int) -> None:
        """Refuse to open a sum without so many of the parties, where that breaks a promise."""

    def permit_sum(self, members: Sequence[str]) -> None:
        """Refuse to be in a sum over these, where it and an earlier one would tell a share; noise hides that."""
        if not self.card.differentially_private:
            self.site.permit_sum(members, self.card.split)

    def about(self) -> dict[str, Any]:
        """What every reply says of this party."""
        return self.site.about(self.card.split)

    # What it knows

    @cached_property
    def options(self) -> Any:
        """The method's own options, an instance of ``card.options``."""
        return self.site.options(self.card.options)

    @cached_property
    def transport(self) -> PartyTransport:
        """How answers travel."""
        return self._transport_of(self.site, self.card, self.options)

    @cached_property
    def questions(self) -> Questions:
        """The method's own questions in this run, each with its answer."""
        return questions_of(self.card.phases, self.site.config, self.options)

    @cached_property
    def script(self) -> Questions:
        """All questions of this run, in their order."""
        return {**self.before, **self.transport.script(self.card.name, self.questions)}

    @property
    def data(self) -> Rows:
        """This party's rows (n, d): those that take part."""
        return self.site.data(self.card.split)

    @cached_property
    def journal(self) -> Journal:
        return self.site.journal

    @cached_property
    def public(self) -> Public:
        """What the server knows too."""
        return self.site.public(self.card.split, self.options)

    @cached_property
    def in_fixed_point(self) -> bool:
        """Whether its answers are added to those of others in fixed point, within limits that follow from `bound`."""
        return self.transport.sums_only and not self.card.differentially_private

    # What Flower calls. Nothing is ever raised through Flower: an exception's text would travel with it.

    def get_properties(self, config: dict[str, Any]) -> dict[str, Any]:
        try:
            if told := str(config.get("settings", "")):
                require_same_settings(settings_of(self.card.name, self.options, self.site.config), told)
            self._permit()
            self._permit_sizes(*largest(self.script, self.public, len(self.data)))
            return {**self.about(), "features": int(self.data.shape[1])}
        except Exception as error:
            return self._report(error)

    def fit(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> tuple[list[NDArray[Any]], int, dict[str, Any]]:
        try:
            self._permit()
            phase = str(config.get("phase", ""))
            asked = self._question(phase, parameters)
            self.take(asked)
            rows = len(self.data)
            arrays = self._answer(phase, asked, rows)
            return arrays, 1 if self._hidden else rows, self.about()
        except Exception as error:
            return [], 0, self._report(error)

    def evaluate(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> tuple[float, int, dict[str, Any]]:
        """Nothing is asked in this way."""
        return 0.0, 0, self.fit([], {"phase": "evaluate"})[2]

    # Inside

    @cached_property
    def _hidden(self) -> bool:
        """Whether a message tells no number of rows."""
        return self.card.differentially_private or self.transport.sums_only

    @cached_property
    def _of_moments(self) -> bool:
        """Whether its answers are sums over rows without noise, which few rows may be read from."""
        return self.card.split == "rows" and not self.card.differentially_private

    def _permit(self) -> None:
        """The site's own policy, before anything is computed."""
        self.site.permit(self.card, self.options, sums_only=self.transport.sums_only)
        self.require_ready()
        if self._of_moments:
            self.site.permit_moments(self.card, self.data, sums_only=self.transport.sums_only)

    def _permit_sizes(self, nbytes: int, memory: int) -> None:
        """Refuse a reply of so many bytes, or one that needs so much memory, with methods that do not."""

        def alternatives(most: int) -> str:
            return self.alternatives(self.public, len(self.data), most)

        self.site.permit_size(nbytes, alternatives)
        require_party_memory(self.card.name, memory, alternatives)

    def _report(self, error: Exception) -> dict[str, Any]:
        """What is told of an error; once anything was answered it ends the run for this party."""
        try:
            late = self.journal.begun()
            if late:
                self.site.state.clear()
                self.journal.end(type(error).__name__)
        except ConfigError:  # it is the error: this site's configuration is wrong, and nothing was ever answered
            late = False
        except Exception:
            late = True
        return self.site.report(error, late=late)

    def _question(self, phase: str, arrays: list[NDArray[Any]]) -> Fields:
        """What is asked, by name, if it is the next of the script and is what it must be."""
        asked: Fields = {}

        def permit(answered: Sequence[str]) -> None:
            nonlocal asked
            require_next(self.script, answered, phase, self.public)
            self.number = len(answered)
            known = self.script[phase]
            asked = known.asked.named(arrays, SERVER)
            known.asked.check(asked, SERVER, known.asked_sizes(self.public))
            require_as_told(known.asked, asked, self.site.state)

        self.journal.begin(phase, _digest(phase, arrays), self.site.settings, permit)
        return asked

    def _answer(self, phase: str, asked: Fields, rows: int) -> list[NDArray[Any]]:
        """The arrays that leave in answer to a question, of so many rows."""
        known = self.script[phase]
        sizes = known.reply_sizes(asked, self.public)
        nbytes, memory = known.cost({"n": rows, **sizes})
        self._permit_sizes(nbytes, memory)
        with without_warnings(asked):
            fields = self.transport.answer(self, phase, asked)
        known.reply.check(fields, "this site's reply", sizes)
        arrays = known.reply.to_arrays(fields)
        size = HEADER * len(arrays) + sum(array.nbytes for array in arrays)
        if size > nbytes:  # of what is compressed, only the least was known
            self._permit_sizes(size, 0)
        if self._of_moments and not self.transport.sums_only:
            self.site.note_clear(self.card)
        self.journal.answered(", ".join(field.name for field in known.reply.fields), size)
        logger.info("run %s: '%s' is answered with %s bytes", self.site.run_id, phase, size)
        if phase == list(self.script)[-1] and not self.card.goes_on_as:
            self.journal.forget()
            if self.site.node.data:
                self.site.state.clear()
        return arrays


def _digest(phase: str, arrays: Sequence[NDArray[Any]]) -> str:
    """SHA-256 of a question."""
    sha = hashlib.sha256(phase.encode())
    for array in arrays:
        sha.update(f"|{array.dtype.str}{array.shape}|".encode())
        sha.update(array.tobytes())
    return sha.hexdigest()


class RefusingClient(NumPyClient):
    """Answers whatever it is asked with a report (`Site.report`) of why it takes no part.

    Nothing is raised where Flower makes a client: an exception's text would travel with it.
    """

    def __init__(self, report: dict[str, Any]) -> None:
        super().__init__()
        self.report = report

    def get_properties(self, config: dict[str, Any]) -> dict[str, Any]:
        return self.report

    def fit(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> tuple[list[NDArray[Any]], int, dict[str, Any]]:
        return [], 0, self.report

    def evaluate(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> tuple[float, int, dict[str, Any]]:
        return 0.0, 0, self.report
