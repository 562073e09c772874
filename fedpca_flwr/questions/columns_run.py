"""Both halves of a run in which the parties hold columns of the same rows: `ColumnsStrategy` and `ColumnsClient`.

The model holds the scores, which all parties learn. The loadings of a column stay where the column is.

Products with a party's ``A = X X'`` (n x n, of rank r) tell all of A once r columns of the products are known, whatever
the block: ``A = A Q (Q' A Q)^+ (A Q)'`` for a random Q (n x r). So a site whose `may-show` is ``scores`` counts, before
it answers anything, how many columns of products runs over the same rows may ask for in all.
"""

from abc import abstractmethod
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.errors import ConfigError, ContractError, DataError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.columns import Columns, prepare_columns
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


class ColumnsOptions(CountOptions):
    """Options of methods for columns: how each party centres and scales its columns."""

    center: bool = True
    """Each site subtracts the means of its own columns."""
    scale: bool = False
    """Each site divides its own columns by their standard deviations. A column whose deviation is no more than the
    last digit of its mean counts as constant."""

    @property
    def centres_columns(self) -> bool:
        """True if each party subtracts the means of its columns."""
        return self.center

    @property
    @override
    def could_scale(self) -> bool:
        """True if the options do not request scaled columns, though the method supports scaling."""
        return not self.scale


class ColumnsClient(PCAClient):
    """Client of a party that holds columns of the common rows: prepares the columns and writes the scores file."""

    @override
    def require_ready(self) -> None:
        """Raise ConfigError, DataError or DisclosureError for a `bound`, sizes or products that a run cannot have."""
        if self.uses_fixed_point:
            permit_fixed_point(self)
            if self.selection.shape[1] > MAX_COLUMNS // self.site.node.num_partitions:
                raise DataError(f"this site has more columns than its part of the {MAX_COLUMNS:,} of a secure sum")
        self._permit_products(counted=False)

    @cached_property
    def local_columns(self) -> Columns:
        """Columns of this party, centred and scaled by the options of the run, with moments that the run stores."""
        rows, options, state = self.selection.rows, self.options, self.site.state
        if COLUMNS_KEY not in state:
            columns = prepare_columns(rows, center=options.centres_columns, scale=options.scale)
            state[COLUMNS_KEY] = [columns.centre, columns.remainder, columns.scale, columns.zero]
        return Columns(rows, *state[COLUMNS_KEY])

    def describe_rows(self) -> Fields:
        """Count the products that the run may ask for, and return the numbers of rows and columns, and row ids.

        Returns
        -------
        mapping of str to ndarray
            ``count``, ``features``, and ``ids`` (n,), empty where the site names no ids.

        Raises
        ------
        ConfigError
            If the site has no journal to count in.
        DisclosureError
            If the products are too many.
        """
        self._permit_products(counted=True)
        n, f = self.selection.shape
        ids = np.empty(0, np.uint64) if self.site.table.ids is None else self.site.table.ids
        return {"count": np.asarray(n), "features": np.asarray(f), "ids": ids}

    def write_scores(self, scores: Array) -> None:
        """Write the scores to the site's scores file, if it names one, in the row order of its own data file.

        Parameters
        ----------
        scores : ndarray of shape (n, k)
            Scores in the order of the run's rows.
        """
        row_order = self.site.table.row_positions
        with self.site.score_file(*scores.shape) as append:
            append(scores if row_order is None else scores[row_order])

    def _permit_products(self, *, counted: bool) -> None:
        """Raise as `permit_products` if products X X' Q could show X X', or with ``counted`` count them, for scores."""
        node, columns = self.site.node, self.selection.shape[1]
        products = self.options.max_gram_columns(len(self.selection))
        if node.data and node.may_show == "scores" and products:
            columns += self.transport.parties_per_sum(node.num_partitions) - 1
            repeats = self.site.repeats(self.card.split)
            repeats.permit_products(products, columns=columns, is_counted=counted)


COLUMNS_KEY = "columns"  # of the state: what a party's columns are centred and scaled by
MAX_COLUMNS = 2**24  # largest number of columns of all parties together

SUMS_NOTE = "of each party the server saw its numbers of rows and columns; the sums have a value for every row"


@dataclass(frozen=True, kw_only=True)
class ScoresSolution:
    """Result of a method for data split by columns."""

    pairs: Eigenpairs  # leading ones of X X'; the vectors (n, k) are the directions of the scores
    total: float  # trace of X X'
    notes: Sequence[str] = ()  # for the reader of the model
    measurements: Mapping[str, float] = field(default_factory=dict)  # names as in `fedpca_flwr.model.measurements`


Fitting = Generator[Round, Any, ScoresSolution]
"""Server's half of a method: a generator that yields questions and returns the result."""


class ColumnsRun(PCAStrategy):
    """Server side of a run in which the parties hold different columns of the same rows."""

    party: ClassVar[type[PCAClient]] = ColumnsClient

    @override
    def prepare(self, config: RunConfig, options: PCAOptions, transport: ServerTransport) -> None:
        """Set configuration, options and transport, and reset the numbers of rows, columns and energy."""
        super().prepare(config, options, transport)
        self.n_rows = 0  # until the parties have said it
        self.widths: list[int] = []  # number of columns of each party
        self.total = self.rounding = 0.0  # energy of all columns; largest bound on the fixed-point rounding of a sum
        self._by_ids = False

    def n_components(self, rows: int, columns: int) -> int:
        """Return the requested number of components, checked against the rows and columns of all parties.

        Parameters
        ----------
        rows, columns : int
            Numbers of rows and columns of all parties.

        Returns
        -------
        int

        Raises
        ------
        ConfigError
            If the rows or columns are too few.
        """
        assert isinstance(self.options, CountOptions)
        check_components(self.options.n_components, rows, columns)
        return self.options.n_components

    @property
    @override
    def public(self) -> Public:
        """Public parameters of the run, with the number of rows that the parties have reported."""
        return Public(self.config, self.options, self.quorum.initial_parties, rows=self.n_rows)

    @property
    def columns(self) -> int:
        """Number of columns m of all parties together."""
        return sum(self.widths)

    @property
    def bound_advice(self) -> str:
        """Further remedy at the end of an error text that advises a smaller `bound`; may be empty."""
        return ""

    def require_same_rows(self, replies: list[Reply]) -> None:
        """Store the numbers of rows and columns, and check that the parties' rows are the same.

        Parameters
        ----------
        replies : list of Reply
            Replies to the first question: ``count``, ``features`` and ``ids``.

        Raises
        ------
        ConfigError
            If some sites name ids and others do not, or there are fewer rows or columns than components.
        ContractError
            If ids are not ascending, or the numbers of rows differ.
        DataError
            If the ids differ.
        """
        self._require_same_ids(replies)
        counts = [int(reply.fields["count"]) for reply in replies]
        (rows, _), *_ = Counter(counts).most_common(1)  # the error names parties that deviate from the majority
        witness = replies[counts.index(rows)].sender
        for reply, count in zip(replies, counts, strict=True):
            if count != rows:
                raise ContractError(
                    f"{reply.sender}: it has {count} rows, {witness} has {rows}; the method '{self.card.name}' is "
                    "for parties that hold different columns of the same rows. For other rows of the same columns take "
                    "a method for data split by rows, such as 'p-cov'"
                )
        self.n_rows = rows
        self.widths = [int(reply.fields["features"]) for reply in replies]
        self.n_components(self.n_rows, self.columns)

    def set_total(self, total: float) -> None:
        """Store the energy (sum of squares) of all columns.

        Parameters
        ----------
        total : float
            Energy of all columns.

        Raises
        ------
        DataError
            If the energy is zero.
        """
        require_variance(total, self.n_rows, np.zeros(1))
        self.total = total

    def order_notes(self) -> list[str]:
        """Return a note if the parties' rows were matched by their order in the files, without ids; else none.

        Returns
        -------
        list of str
        """
        if self._by_ids or self.quorum.simulated:
            return []
        return ["rows were taken in the order of the files: nothing shows that they belong together"]

    @override
    def history(self, certainty: Certainty, notes: Sequence[str], measured: Mapping[str, float]) -> dict[str, Any]:
        """Return the model's log, with each party's number of columns and the rounding of secure sums."""
        log = super().history(certainty, notes, measured)
        if "energy" in self.script:
            log["measured"]["fixed_point_size_share"] = self.rounding / self.total
            log["notes"].append(SUMS_NOTE)
        parties = zip(log["parties"], self.widths, strict=True)
        return {**log, "parties": [{**party, "features": width} for party, width in parties]}

    def _require_same_ids(self, replies: list[Reply]) -> None:
        """Raise ConfigError for missing ids, ContractError if not ascending, DataError if the parties' ids differ."""
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
            witness_ids = witness.fields["ids"]
            missing, extra = np.setdiff1d(witness_ids, ids).size, np.setdiff1d(ids, witness_ids).size
            if missing or extra:
                raise DataError(
                    f"{reply.sender}: it lacks {missing} ids that {witness.sender} has, and has {extra} that "
                    f"{witness.sender} lacks; keep the rows that all sites have (do all have the same 'ids-secret'?)"
                )


class ColumnsStrategy(ColumnsRun):
    """Base of the strategies that fit a PCA model to data split by columns. A method adds `aggregate`."""

    options: ColumnsOptions

    @property
    @override
    def bound_advice(self) -> str:
        """Advice to centre scaled columns, if the run scales columns without centring; else empty."""
        if not self.options.scale or self.options.center:
            return ""
        return (
            ", or center=true, with which scaled columns need no bound, or the columns must be in a larger unit: with "
            "center=false 'bound' stands beside columns whose deviation is 1"
        )

    @abstractmethod
    def aggregate(self) -> Fitting:
        """Run the method: yield its rounds of questions, and return the eigenpairs with notes."""

    @override
    def program(self) -> Program:
        """Run the method, build the model, and let the parties store scores and loadings."""
        solution = yield from self.aggregate()
        model = self.build_model(solution)
        yield from self._run_projection(model, solution)
        self._model = model

    def build_model(self, solution: ScoresSolution) -> PCAModel:
        """Build the PCA model, with scores and eigenvalues, from the method's eigenpairs.

        Parameters
        ----------
        solution : ScoresSolution

        Returns
        -------
        PCAModel
        """
        certainty = self.certainty(solution.pairs.with_rank_bound(self.n_rows - self.options.centres_columns))
        log = self.history(certainty, [*solution.notes, *self.order_notes()], solution.measurements)
        values, directions = solution.pairs.values, solution.pairs.vectors
        scores = directions * np.sqrt(values.clip(min=0.0))
        return PCAModel.of_scores(scores, values, total=solution.total, features=self.columns, log=log)

    def _run_projection(self, model: PCAModel, solution: ScoresSolution) -> Program:
        """Let every party store the scores and its loadings, and check the unexplained energy against the model."""
        request = {"directions": solution.pairs.vectors, "singular": model.singular_values_}
        fit: Total = yield SumRound("project", request)
        allowed = 1e-6 * model.total_variance if self.exact else np.inf  # rounding is far smaller
        check_squared_error(model, float(fit["squared"]) / self.n_rows, model.squared_error, allowed)
