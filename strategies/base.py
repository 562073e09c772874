"""`PCAStrategy` and `PCAClient`: everything that is the same for every method.

The server's half waits for exactly the expected parties, refuses a partial round, checks every reply before it is
used, keeps the byte log, and ends with one round in which each party projects its own rows. A method adds
`aggregate_fit`, which begins with `collect` and ends with `finish` (or with the next request).
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from logging import INFO
from typing import Any, ClassVar

import numpy as np
from flwr.common import (
    EvaluateIns,
    FitIns,
    Parameters,
    Scalar,
    ndarrays_to_parameters,
)
from flwr.common.logger import log
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import Strategy
from numpy.typing import NDArray

from fedpca_flwr.certainty import FACTORS, SCALED, Certainty, certainty
from fedpca_flwr.config import RunConfig
from fedpca_flwr.contract import check_together
from fedpca_flwr.errors import ContractError
from fedpca_flwr.maths.certificate import EXACT
from fedpca_flwr.maths.eigen import Eigenpairs
from fedpca_flwr.model import PCAModel
from fedpca_flwr.solution import Solution, check_components
from strategies.card import CountOptions, MethodCard, PCAOptions
from strategies.client import PCAClient
from strategies.quorum import Quorum, Results
from strategies.reply import Reply

__all__ = ["CountOptions", "MethodCard", "PCAClient", "PCAOptions", "PCAStrategy", "Reply", "Request", "Solution"]


@dataclass(frozen=True)
class Request:
    """What the server asks of every party in one round.

    Attributes
    ----------
    phase : str
        One of the card's payloads.
    arrays : sequence of ndarray
        What every party receives.
    sizes : dict of str to int
        What the symbols in the payload's shapes stand for, besides ``d`` and ``n``.
    each : mapping of int to sequence of ndarray
        What the party of a partition receives after ``arrays``, where parties receive different things. Not in the
        first round, when nobody has said yet which partition it is.
    """

    phase: str
    arrays: Sequence[NDArray] = ()
    sizes: dict[str, int] = field(default_factory=dict)
    each: Mapping[int, Sequence[NDArray]] = field(default_factory=dict)


class PCAStrategy(Strategy):
    """Base of every method's strategy.

    Parameters
    ----------
    config : RunConfig
    options : PCAOptions
        The method's own, an instance of ``card.options``.

    Attributes
    ----------
    model : PCAModel or None
        Set by `finish`.
    done : bool
        True once the parties have projected their rows: the run is over.
    certificate : float
        Bound on the largest angle to the exact components, in degrees, of a method that converges to them.
    """

    card: ClassVar[MethodCard]

    def __init__(self, config: RunConfig, options: PCAOptions) -> None:
        super().__init__()
        self.config = config
        self.options = options
        self.model: PCAModel | None = None
        self.done = False
        self.certificate = 0.0
        self.quorum = Quorum(config)
        self._rounds: list[dict[str, Any]] = []
        self._request: Request | None = None  # the open one
        self._sent: dict[str, int] = {}  # its bytes to each of Flower's clients
        self._since = 0.0  # its time

    # What a method writes

    @abstractmethod
    def aggregate_fit(
        self, server_round: int, results: Results, failures: Sequence[Any]
    ) -> tuple[Parameters | None, dict[str, Scalar]]:
        """The method's aggregation."""

    @property
    def rounds(self) -> int:
        """At most so many rounds until there is a model."""
        return self.card.rounds

    @property
    def exact(self) -> bool:
        """Whether this run's model equals the PCA of the pooled rows: then the last round is held against it."""
        return self.card.exact and self.certificate <= EXACT

    def request(self) -> Request:
        """What every party is asked next."""
        return Request("statistics")

    def squared_error(self) -> float:
        """What the parties' own rows must have as mean squared error in the last round, if the model is exact."""
        assert self.model is not None
        return self.model.squared_error

    def projected(self, replies: list[Reply]) -> tuple[int, float] | None:
        """Rows and squared error of all parties in the last round; None where no party may tell them."""
        if self.card.private:
            return None
        return sum(reply.rows for reply in replies), sum(sorted(reply.loss for reply in replies))

    # What a method calls

    def collect(self, server_round: int, results: Results, failures: Sequence[Any]) -> list[Reply]:
        """The checked replies of all parties, in the order of their partitions.

        Raises
        ------
        QuorumError
            Unless exactly the expected parties replied, each once.
        ContractError
            Naming the party whose payload is not what `card` says.
        FedPCAError
            What a party itself reported.
        """
        request = self._request or self.request()
        self._request = None
        payload = self.card.payloads[request.phase]
        replies = self.quorum.complete(results, failures)
        named = {reply.sender: payload.named(reply.arrays, reply.sender) for reply in replies}
        check_together(payload, named, request.sizes)
        for reply in replies:
            reply.fields = named[reply.sender]
            reply.arrays.clear()
            if not self.card.private and "count" in reply.fields and reply.rows != int(reply.fields["count"]):
                count = int(reply.fields["count"])
                raise ContractError(f"{reply.sender}: its count is {count}, but its message says {reply.rows} rows")
        self._record(request.phase, replies)
        return replies

    def n_components(self, rows: int, features: int) -> int | float:
        """The wanted number of components, or the fraction of variance, checked against the pooled data.

        Raises
        ------
        ConfigError
        """
        check_components(self.options.n_components, rows, features)
        return self.options.n_components

    def finish(
        self, solution: Solution, *, notes: Sequence[str] = (), measured: dict[str, str] | None = None
    ) -> tuple[Parameters, dict[str, Scalar]]:
        """Make the model; after this the parties project their rows and the run ends.

        Parameters
        ----------
        solution : Solution
        notes : sequence of str
            What a reader of the model must know.
        measured : dict, optional
            Named measurements for the summary.
        """
        centred = getattr(self.options, "center", True)
        about = self.history(solution.pairs.of_rank(solution.rows - centred), notes, measured)
        self.model = PCAModel.from_eigenpairs(**vars(solution), log=about)
        scale = np.empty(0) if solution.scale is None else solution.scale
        return ndarrays_to_parameters([*self.model.loadings(), scale]), {}

    def history(
        self, pairs: Eigenpairs | None, notes: Sequence[str] = (), measured: dict[str, str] | None = None
    ) -> dict[str, Any]:
        """How the model is made: its ``log``; ``pairs`` is None where nothing was fitted."""
        told = self.certainty(pairs) if pairs else Certainty(self.exact, [])
        measured = dict(measured or {})
        if told.resolved is not None and "certified angle" in measured:
            measured["certified angle"] += f", of the first {told.resolved} components"
        return {
            "method": self.card.name,
            "exact": told.exact,
            "options": self.options.model_dump(by_alias=True),
            "columns": self.quorum.columns,
            "parties": [{**p, "rows": None} if self.card.private else p for p in self.quorum.parties()],
            "rounds": self._rounds,
            "measured": measured,
            "notes": [*notes, *told.notes],
        }

    def certainty(self, pairs: Eigenpairs) -> Certainty:
        """What rounding leaves of the model's components; noise hides it."""
        if self.card.noised:
            return Certainty(self.exact, [])
        ways = [SCALED] if getattr(self.options, "scale", True) is False else []
        if self.card.split == "rows" and pairs.resolution is None and not self.config.secure_aggregation:
            ways.append(FACTORS)
        return certainty(pairs, exact=self.exact, ways=ways)

    def go_on_from(self, other: PCAStrategy) -> None:
        """Take over the parties and the log of a strategy that has asked them something already."""
        self.quorum, self._rounds = other.quorum, other._rounds

    def result(self) -> PCAModel:
        """The model of a finished run."""
        if self.model is None or not self.done:
            raise ContractError(f"method '{self.card.name}' ended without a result")
        return self.model

    # What Flower calls

    def initialize_parameters(self, client_manager: ClientManager) -> Parameters:
        return ndarrays_to_parameters([])

    def configure_fit(self, server_round: int, parameters: Parameters, client_manager: ClientManager):
        if self.model is not None:
            return []
        clients = self.quorum.gather(client_manager)
        request = self._request = self.request()
        if server_round == 1:
            self._forecast(request)
        config: dict[str, Scalar] = {"phase": request.phase, **request.sizes}
        shared = ndarrays_to_parameters(list(request.arrays))
        own = {party: ndarrays_to_parameters(list(arrays)).tensors for party, arrays in request.each.items()}
        instructions = []
        for client in clients:
            tensors = shared.tensors + (own[self.quorum.seats[client.cid]] if own else [])
            instructions.append((client, FitIns(Parameters(tensors, shared.tensor_type), config)))
        self._sending(instructions)
        return instructions

    def configure_evaluate(self, server_round: int, parameters: Parameters, client_manager: ClientManager):
        if self.model is None or self.done:
            return []
        instructions = [(client, EvaluateIns(parameters, {})) for client in self.quorum.gather(client_manager)]
        self._sending(instructions)
        return instructions

    def aggregate_evaluate(self, server_round: int, results, failures):
        replies = self.quorum.complete(results, failures)
        self._record("project", replies)
        told = self.projected(replies)
        measured = 0.0 if told is None else self._verified(*told)
        self.done = True
        return measured, {}

    def evaluate(self, server_round: int, parameters: Parameters) -> None:
        return None

    # Inside

    def _verified(self, rows: int, squared: float) -> float:
        """The mean squared error of the parties' own rows, which an exact model foretells."""
        model = self.model
        assert model is not None
        measured, predicted = squared / rows, self.squared_error()
        mean = np.zeros(1) if model.mean_ is None else model.mean_
        rounding = float(((np.finfo(np.float64).eps * mean) ** 2).sum())
        allowed = 1e-6 * model.total_variance + rounding if self.exact else np.inf
        if not np.isfinite(measured) or abs(measured - predicted) > allowed:
            raise ContractError(
                f"the parties' own rows do not fit the model: their mean squared error is {measured:.9g}, but the "
                f"eigenvalues say {predicted:.9g}; did a party's data change during the run?"
            )
        model.log["measured"]["squared error per row"] = f"{measured:.6g} measured, {predicted:.6g} predicted"
        return float(measured)

    def _forecast(self, request: Request) -> None:
        d = self.quorum.features
        upload = self.card.payloads[request.phase].nbytes({"d": d, "n": d + 1, **request.sizes})
        log(
            INFO,
            "forecast: %s parties, each sends at most %s bytes in the first round (%s features)",
            self.quorum.expected,
            f"{upload:,}",
            d,
        )

    def _sending(self, instructions: Sequence[tuple[ClientProxy, Any]]) -> None:
        self._sent = {client.cid: sum(map(len, ins.parameters.tensors)) for client, ins in instructions}
        self._since = time.monotonic()

    def _record(self, phase: str, replies: list[Reply]) -> None:
        sizes, nobody = {reply.party: reply.nbytes for reply in replies}, self.quorum.total
        entry: dict[str, Any] = {
            "round": len(self._rounds) + 1,
            "phase": phase,
            "up": [sizes.get(party, 0) for party in sorted({*sizes, *self.quorum.dropped})],
            "down": [self._sent[cid] for cid in sorted(self._sent, key=lambda cid: self.quorum.seats.get(cid, nobody))],
            "seconds": round(time.monotonic() - self._since, 3),
        }
        self._rounds.append(entry)
        log(
            INFO,
            "round %s (%s): %s bytes up, %s bytes down",
            entry["round"],
            phase,
            f"{sum(entry['up']):,}",
            f"{sum(entry['down']):,}",
        )
