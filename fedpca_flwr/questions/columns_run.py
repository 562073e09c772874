"""A run where the parties hold columns of the same rows, its two halves: `ColumnsStrategy`, and `ColumnsClient`.

The model holds the scores, which all parties learn; the loadings of a column stay where the column is.

Products with a party's ``A = X X'`` (n x n, of rank r) tell all of A once r columns of them are known, whatever the
block: ``A = A Q (Q' A Q)^+ (A Q)'`` for a random Q (n x r). So a site whose `may-show` is ``scores`` counts how many
runs over the same rows may ask for in all, before it answers anything.
"""

from abc import abstractmethod
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field as Limits

from fedpca_flwr.config.run_config import Count, RunConfig
from fedpca_flwr.errors import ConfigError, ContractError, DataError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.columns import Columns, Kernel, prepare_columns
from fedpca_flwr.maths.columns import Name as KernelName
from fedpca_flwr.maths.eigen import Eigenpairs
from fedpca_flwr.model.model import PCAModel, check_squared_error
from fedpca_flwr.model.solution import Certainty, check_components, require_variance
from fedpca_flwr.protocol.admission import Reply
from fedpca_flwr.protocol.card import CountOptions, PCAOptions
from fedpca_flwr.protocol.client import PCAClient
from fedpca_flwr.protocol.payload import Fields
from fedpca_flwr.protocol.question import Program, Public, Round, SumRound, Total
from fedpca_flwr.protocol.strategy import PCAStrategy
from fedpca_flwr.protocol.transport import ServerTransport
from fedpca_flwr.questions.row_limits import permit_fixed_point
from fedpca_flwr.site.local_table import count_differences
from fedpca_flwr.site.scores import score_file
from fedpca_flwr.site.site import Site


class ColumnsOptions(CountOptions):
    """How each party's columns are centred and scaled."""

    center: bool = True
    """Each party subtracts the means of its own columns."""
    scale: bool = False
    """Each party divides its own columns by their standard deviations."""

    @property
    def centres_columns(self) -> bool:
        """Whether columns are about their means."""
        return self.center

    @property
    def could_scale(self) -> bool:
        return not self.scale


class KernelOptions(ColumnsOptions):
    """The options of methods of kernels."""

    kernel: KernelName = "rbf"
    """``rbf``: exp(-gamma |x - y|^2); ``sigmoid``: tanh(gamma x'y + coef0); ``polynomial``: (gamma x'y + coef0)^degree;
    ``linear``: x'y."""
    gamma: Annotated[float, Limits(ge=0, examples=[0.0, 0.01, 1.0])] = 0.0
    """0: 1 / (m var X)."""
    coef0: Annotated[float, Limits(examples=[0.0, 1.0, -1.0])] = 1.0
    """Of ``sigmoid`` and ``polynomial``."""
    degree: Annotated[Count, Limits(examples=[1, 2, 3])] = 3
    """Of ``polynomial``."""
    center: bool = False
    """Each party subtracts the means of its own columns first; the kernel is centred in any case."""

    @property
    def function(self) -> Kernel:
        """The kernel, with ``gamma`` where it is given."""
        return Kernel(self.kernel, self.gamma, self.coef0, self.degree)


class ColumnsClient(PCAClient):
    """A party that holds columns: its own, as the run centres and scales them, and the last round.

    What it answers stands with each question.
    """

    site: Site

    def require_ready(self) -> None:
        if self.uses_fixed_point:
            permit_fixed_point(self)
            if self.data.shape[1] > MAX_COLUMNS // self.site.node.num_partitions:
                raise DataError(
                    f"this site has more columns than its part of {MAX_COLUMNS:,}, the most in a secure sum"
                )
        self._permit_products(counted=False)

    @cached_property
    def local_columns(self) -> Columns:
        """This party's columns, centred and scaled as the run says."""
        return prepare_columns(self.data, center=self.options.centres_columns, scale=self.options.scale)

    def describe_rows(self) -> Fields:
        """What this party says of its rows, before anything else is asked."""
        self._permit_products(counted=True)
        n, f = self.data.shape
        ids = np.empty(0, np.uint64) if self.site.table.ids is None else self.site.table.ids
        return {"count": np.asarray(n), "features": np.asarray(f), "ids": ids}

    def write_scores(self, scores: Array) -> None:
        """Write the scores (n, k), in the order of the site's own file."""
        row_order = self.site.table.row_positions
        with score_file(self.site.node.scores, *scores.shape) as append:
            append(scores if row_order is None else scores[row_order])

    # Inside

    def _permit_products(self, *, counted: bool) -> None:
        """Refuse a run whose products could tell all inner products, where this site shows scores only.

        A sum has at least one column of each other party.
        """
        node, columns = self.site.node, self.data.shape[1]
        products = self.options.products(len(self.data))
        if node.data and node.may_show == "scores" and products:
            columns += self.transport.parties_per_sum(node.num_partitions) - 1
            repeats = self.site.repeats(self.card.split)
            repeats.permit_products(products, columns=columns, is_counted=counted)


MAX_COLUMNS = 2**24
"""Columns that all parties together may have."""

SUMS_NOTE = "of each party the server saw its numbers of rows and columns; the sums have a value for every row"


@dataclass(frozen=True, kw_only=True)
class ScoresSolution:
    """What a method found."""

    pairs: Eigenpairs  # leading eigenpairs of ``X X'``: vectors (n, k), the directions of the scores
    total: float  # trace of ``X X'``
    notes: Sequence[str] = ()  # what a reader of the model must know
    measurements: Mapping[str, float] = field(default_factory=dict)
    """Numbers by the names of `fedpca_flwr.model.measurements`."""


Fitting = Generator[Round, Any, ScoresSolution]
"""The server's half of a method: it asks, and returns what it found."""


class ColumnsRun(PCAStrategy):
    """A run where the parties hold columns of the same rows, and what is known of them once they have said it.

    Attributes
    ----------
    n_rows : int
        n, once known.
    widths : list of int
        Columns of each party.
    total : float
        Energy of all columns.
    rounding : float
        What fixed point rounded off a sum at most.
    """

    party: ClassVar[type[PCAClient]] = ColumnsClient

    def prepare(self, config: RunConfig, options: PCAOptions, transport: ServerTransport) -> None:
        super().prepare(config, options, transport)
        self.n_rows = 0
        self.widths: list[int] = []
        self.total = self.rounding = 0.0
        self._by_ids = False

    def n_components(self, rows: int, columns: int) -> int:
        """The wanted number of components, checked against the rows and columns of all parties."""
        assert isinstance(self.options, CountOptions)
        check_components(self.options.n_components, rows, columns)
        return self.options.n_components

    # What statistics call

    @property
    def public(self) -> Public:
        return Public(self.config, self.options, self.quorum.initial_parties, rows=self.n_rows)

    @property
    def columns(self) -> int:
        """m, of all parties."""
        return sum(self.widths)

    @property
    def bound_advice(self) -> str:
        """What else than a nearer `bound` would help, for errors that ask for one."""
        return ""

    def require_same_rows(self, replies: list[Reply]) -> None:
        """Take what the parties say of their rows; an error unless all
        have the same, and enough."""
        self._require_same_ids(replies)
        self._require_same_count(replies)
        self.n_rows = int(replies[0].fields["count"])
        self.widths = [int(reply.fields["features"]) for reply in replies]
        self.n_components(self.n_rows, self.columns)

    def set_total(self, total: float) -> None:
        """Take the energy of all columns; a `DataError` where there is none."""
        require_variance(total, self.n_rows, np.zeros(1))
        self.total = total

    def order_notes(self) -> list[str]:
        """What is not known of the order of the rows."""
        if self._by_ids or self.quorum.simulated:
            return []
        return ["rows were taken in the order of the files: nothing shows that they belong together"]

    def history(self, certainty: Certainty, notes: Sequence[str], measured: Mapping[str, float]) -> dict[str, Any]:
        log = super().history(certainty, notes, measured)
        if "energy" in self.script:
            log["measured"]["fixed_point_size_share"] = self.rounding / self.total
            log["notes"].append(SUMS_NOTE)
        parties = zip(log["parties"], self.widths, strict=True)
        return {**log, "parties": [{**party, "features": width} for party, width in parties]}

    # Inside

    def _require_same_ids(self, replies: list[Reply]) -> None:
        with_ids = [reply for reply in replies if reply.fields["ids"].size]
        self._by_ids = bool(with_ids)
        for reply in replies if with_ids else []:
            ids, witness = reply.fields["ids"], with_ids[0]
            if not ids.size:
                raise ConfigError(
                    f"{reply.sender}: its node-config names no 'ids', but that of {witness.sender} does; name an id "
                    "column at every site, or at none (rows then belong together in the order of the files)"
                )
            if (ids[1:] <= ids[:-1]).any():
                raise ContractError(f"{reply.sender}: field 'ids' is not in ascending order, or holds an id twice")
            missing, extra = count_differences(ids, witness.fields["ids"])
            if missing or extra:
                raise DataError(
                    f"{reply.sender}: it lacks {missing} ids that {witness.sender} has, and has {extra} that "
                    f"{witness.sender} lacks; keep the rows that all sites have (do all have the same 'ids-secret'?)"
                )

    def _require_same_count(self, replies: list[Reply]) -> None:
        counts = [int(reply.fields["count"]) for reply in replies]
        (rows, _), *_ = Counter(counts).most_common(1)
        witness = replies[counts.index(rows)].sender
        for reply, count in zip(replies, counts, strict=True):
            if count != rows:
                raise ContractError(
                    f"{reply.sender}: it has {count} rows, {witness} has {rows}; the method '{self.card.name}' is "
                    "for parties that hold different columns of the same rows. For other rows of the same columns take "
                    "a method for data split by rows, such as 'p-cov'"
                )


class ColumnsStrategy(ColumnsRun):
    """Base of the strategies that fit a model. A method adds `aggregate`."""

    options: ColumnsOptions

    @property
    def bound_advice(self) -> str:
        scaled_only = self.options.scale and not self.options.center
        if not scaled_only:
            return ""
        return (
            ", or center=true, with which scaled columns need no bound, or the columns must be in a larger unit: with "
            "center=false 'bound' stands beside columns whose deviation is 1"
        )

    @abstractmethod
    def aggregate(self) -> Fitting:
        """The method: asks, and returns what it found."""

    def program(self) -> Program:
        solution = yield from self.aggregate()
        model = self.build_model(solution)
        yield from self.run_projection(model, solution)
        self._model = model

    def build_model(self, solution: ScoresSolution) -> PCAModel:
        """The model of what the method found."""
        certainty = self.certainty(solution.pairs.with_rank_bound(self.n_rows - self.options.centres_columns))
        log = self.history(certainty, [*solution.notes, *self.order_notes()], solution.measurements)
        values, directions = solution.pairs.values, solution.pairs.vectors
        scores = directions * np.sqrt(values.clip(min=0.0))
        return PCAModel.of_scores(scores, values, total=solution.total, features=self.columns, log=log)

    def run_projection(self, model: PCAModel, solution: ScoresSolution) -> Program:
        """Let every party keep the scores and its loadings; what that leaves must be what the model foretells."""
        request = {"directions": solution.pairs.vectors, "singular": model.singular_values_}
        fit: Total = yield SumRound("project", request)
        allowed = 1e-6 * model.total_variance if self.exact else np.inf
        check_squared_error(model, float(fit["squared"]) / self.n_rows, model.squared_error, allowed)
