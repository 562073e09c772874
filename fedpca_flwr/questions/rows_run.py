"""Both halves of a run in which the parties hold rows of the same features: `RowsStrategy` and `RowsClient`.

Both know the method, the model and the last round, and none of the questions before: each question stands with its
answer in the modules beside this one and in the methods' own.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.errors import ContractError
from fedpca_flwr.maths.moments import max_row_count
from fedpca_flwr.maths.rows import Rows, weighted_count
from fedpca_flwr.model.model import PCAModel, check_squared_error
from fedpca_flwr.model.solution import Solution, check_components
from fedpca_flwr.model.summary import shrinkage_notes, unit_notes
from fedpca_flwr.protocol.card import PCAOptions, Stage
from fedpca_flwr.protocol.client import PCAClient
from fedpca_flwr.protocol.journal import State
from fedpca_flwr.protocol.payload import Fields
from fedpca_flwr.protocol.question import Program, Public, Round, SumRound, Total
from fedpca_flwr.protocol.strategy import PCAStrategy
from fedpca_flwr.protocol.transport import ServerTransport
from fedpca_flwr.questions.influence import HIDDEN_UNITS_NOTE, influence_measurements, influence_notes
from fedpca_flwr.questions.pooling import STORED_MOMENTS_NOTE, Evidence, Fitting, Pooling
from fedpca_flwr.questions.projection import Observer, Projection
from fedpca_flwr.questions.row_limits import PooledCentre, permit_fixed_point
from fedpca_flwr.site.scores import score_file
from fedpca_flwr.site.site import Site
from fedpca_flwr.site.vault import Vault

Closing = Generator[Round, Any, Fields]
"""Questions between the fit and the last round; returns what the last round says besides."""


class RowsStage(Stage):
    """A stage of methods for rows. Hooks that a stage does not override do nothing."""

    scales: bool = False  # whether it divides features by a deviation of its own

    # A party

    def require_ready(self, party: RowsClient) -> None:
        """Refuse, before anything is answered, rows of the party that do not fit the stage.

        Parameters
        ----------
        party : RowsClient
            The party.
        """

    def info(self, party: RowsClient) -> dict[str, Any]:
        """Return what every reply says of the party because of the stage.

        Parameters
        ----------
        party : RowsClient
            The party.

        Returns
        -------
        dict
        """
        return {}

    def store_request(self, party: RowsClient, request: Fields) -> None:
        """Store what later answers need of a request.

        Parameters
        ----------
        party : RowsClient
            The party.
        request : mapping of str to ndarray
            Fields that the server sent.
        """

    def rows(self, party: RowsClient, rows: Rows) -> Rows:
        """Return the rows that the method sees.

        Parameters
        ----------
        party : RowsClient
            The party.
        rows : rows of shape (n, d)
            Rows as the stages before leave them.

        Returns
        -------
        rows of shape (n, d)
        """
        return rows

    def projection(self, party: RowsClient, request: Fields, projection: Projection) -> Projection:
        """Return how the party projects its own rows.

        Parameters
        ----------
        party : RowsClient
            The party.
        request : mapping of str to ndarray
            Fields of the last question.
        projection : Projection
            Projection as the stages before leave it.

        Returns
        -------
        Projection
        """
        return projection

    def observer(self, party: RowsClient, request: Fields, projection: Projection, files: ExitStack) -> Observer | None:
        """Return an observer of the rows in the last round, or None.

        Parameters
        ----------
        party : RowsClient
            The party.
        request : mapping of str to ndarray
            Fields of the last question.
        projection : Projection
            How the party projects its rows.
        files : ExitStack
            Closes the files that the observer writes to.

        Returns
        -------
        Observer or None
        """
        return None

    # The server

    def head(self) -> PooledCentre | None:
        """Return count, mean and variances of all rows if known to the stage, so that the run need not ask.

        Returns
        -------
        PooledCentre or None
        """
        return None

    def moments(self, run: RowsStrategy, pooled: Callable[..., Pooling]) -> Pooling:
        """Return the moments of all rows that the method sees.

        Parameters
        ----------
        run : RowsStrategy
            The run.
        pooled : callable
            Asks for the moments (`fedpca_flwr.questions.rows.pooled_moments`), as the stages before leave them.

        Yields
        ------
        Round

        Returns
        -------
        PooledMoments
        """
        return pooled()

    def fit(self, run: RowsStrategy, fitting: Fitting) -> Fitting:
        """Run the method, and the stage's own questions before the method.

        Parameters
        ----------
        run : RowsStrategy
            The run.
        fitting : generator
            The method, with the stages inside this one.

        Yields
        ------
        Round

        Returns
        -------
        Solution
        """
        return fitting

    def model(self, run: RowsStrategy, model: PCAModel, solution: Solution) -> tuple[PCAModel, Solution]:
        """Return the model, and the solution that the parties project with, in the unit of the data.

        Parameters
        ----------
        run : RowsStrategy
            The run.
        model : PCAModel
            Model of the run.
        solution : Solution
            Result of the method.

        Returns
        -------
        model : PCAModel
        solution : Solution
        """
        return model, solution

    def closing(self, run: RowsStrategy, model: PCAModel, request: Fields) -> Closing:
        """Ask between the fit and the last round; return further fields of the last request.

        Parameters
        ----------
        run : RowsStrategy
            The run.
        model : PCAModel
            Model of the run.
        request : mapping of str to ndarray
            Fields of the last request so far.

        Yields
        ------
        Round

        Returns
        -------
        mapping of str to ndarray
        """
        return {}
        yield

    def conclude(self, model: PCAModel, fit: Total) -> None:
        """Note in the model what the last round showed.

        Parameters
        ----------
        model : PCAModel
            Model of the run.
        fit : Total
            Sum of the last replies.
        """


@dataclass
class Party:
    """Argument of an answer: the moments and the state of a party that holds rows, and no row.

    Parameters
    ----------
    vault : Vault
        Moments of the rows that take part.
    public : Public
        Public parameters of the run.
    options : PCAOptions
        Options of the method.
    state : State
        What the party stores over the rounds of the run.
    partition : int
        Number of the party.
    """

    vault: Vault
    public: Public
    options: Any
    state: State
    partition: int


class RowsClient(PCAClient):
    """A party that holds rows: the vault of their moments, from which answers are computed, and the last round.

    The answers of the party stand with each question. A method whose parties project their rows otherwise overrides
    `projection`.
    """

    site: Site
    party_type: ClassVar[type[Party]] = Party

    @cached_property
    def stages(self) -> tuple[RowsStage, ...]:
        """Stages that this run composes with its method."""
        return self.card.active_stages(self.site.config, self.options)

    def info(self) -> dict[str, Any]:
        info = super().info()
        for stage in self.stages:
            info |= stage.info(self)
        return info

    def require_ready(self) -> None:
        assert self.script  # or options contradict each other
        if self.uses_fixed_point:
            permit_fixed_point(self)
        for stage in self.stages:
            stage.require_ready(self)

    def store_request(self, request: Fields) -> None:
        for stage in self.stages:
            stage.store_request(self, request)

    @property
    def data(self) -> Rows:
        """Rows of this party after all stages."""
        rows = self.raw_rows
        for stage in self.stages:
            rows = stage.rows(self, rows)
        return rows

    @cached_property
    def raw_rows(self) -> Rows:
        """Rows of this party as they are."""
        return self.site.data(self.card.split)

    @property
    def row_parts(self) -> tuple[Rows, ...]:
        """All rows of this party in the order of its file, with rows that take no part."""
        table = self.site.table
        if table.weights is not None or table.excluded is not None:
            return (table.rows,)
        return self.raw_rows, table.rows[len(self.raw_rows) :]

    @cached_property
    def vault(self) -> Vault:
        """Vault of the rows that take part, after all stages."""
        return self.make_vault(self.data)

    def make_vault(self, rows: Rows) -> Vault:
        """Return a vault of some rows of this party, whose moments are stored for the run where that is cheaper.

        Parameters
        ----------
        rows : rows of shape (n, d)
            Rows of this party.

        Returns
        -------
        Vault
        """
        columns = self.options.product_columns(self.public)
        parties, threads = self.public.parties, self.site.node.threads
        return Vault(rows, self.site.state, columns=columns, parties=parties, threads=threads)

    @cached_property
    def party(self) -> Party:
        """Argument of the answers of this party."""
        return self.party_type(self.vault, self.public, self.options, self.site.state, self.site.node.partition_id)

    def statistics(self, phase: str, request: Fields) -> Fields | Sequence[Fields]:
        """Answer a question from the vault, or from this client where the question needs more and the card declares so.

        Parameters
        ----------
        phase : str
            Name of the question.
        request : mapping of str to ndarray
            Fields that the server sent.

        Returns
        -------
        mapping of str to ndarray, or sequence of such mappings

        Raises
        ------
        ContractError
            If the question needs more than the card and the stages declare.
        """
        question = self.questions[phase]
        assert question.answer is not None, phase
        if not (question.needs or self.card.needs):
            return question.answer(self.party, request)
        declared = {"files", *self.card.needs, *(need for stage in self.stages for need in stage.needs)}
        if question.needs and question.needs not in declared:
            raise ContractError(
                f"the question '{phase}' of '{self.card.name}' needs {question.needs}, and its card declares "
                f"{', '.join(sorted(declared))}"
            )
        return question.answer(self, request)

    def projection(self, request: Fields) -> Projection:
        """Return how this party projects its own rows.

        Parameters
        ----------
        request : mapping of str to ndarray
            Fields of the last question, or of another question that has the same fields.

        Returns
        -------
        Projection
        """
        projection = Projection(
            self.vault, request["components"], request["mean"], request["scale"], self.site.table.columns
        )
        for stage in self.stages:
            projection = stage.projection(self, request, projection)
        return projection

    def project(self, request: Fields) -> Fields:
        """Write this party's own files, which stay at the party; return the number of rows and the remaining error.

        Parameters
        ----------
        request : mapping of str to ndarray
            Fields of the last question.

        Returns
        -------
        mapping of str to ndarray
            ``count`` and ``squared``, and the observers' fields.
        """
        if self.card.differentially_private:
            try:
                self.write_files(self.projection(request))
            except Exception as error:  # nothing of the rows may show here, not even that they cannot be projected
                self.site.report(error)
            return {"count": np.asarray(1), "squared": np.asarray(0.0)}
        with ExitStack() as files:
            projection = self.projection(request)
            observers = [stage.observer(self, request, projection, files) for stage in self.stages]
            squared = projection.squared_error()
            self.write_files(projection, [observer.watch for observer in observers if observer is not None])
        self.vault.drop()
        reply: dict[str, Any] = {"count": np.asarray(weighted_count(self.data)), "squared": np.asarray(squared)}
        for observer in observers:
            reply |= {} if observer is None else observer.reply()
        return reply

    def write_files(
        self, projection: Projection, watches: Sequence[Callable[[Iterator[Any]], Iterator[Any]]] = ()
    ) -> None:
        """Write the files of scores and loadings that this site asks for.

        Parameters
        ----------
        projection : Projection
            How the party projects its rows.
        watches : sequence of callable
            Observers' functions, through which chunks of the rows pass.
        """
        rows, node = self.site.table.rows, self.site.node
        if node.scores or watches:
            with np.errstate(all="ignore"), score_file(node.scores, len(rows), len(projection.components)) as append:
                for part in self.row_parts:
                    chunks = projection.centred(part)
                    for watch in watches:
                        chunks = watch(chunks)
                    for centred in chunks:
                        append(centred @ projection.components.T)
        if node.loadings:
            projection.loadings().save(node.loadings)


class RowsStrategy(PCAStrategy):
    """Base of the strategies for data split by rows. A method adds `aggregate`."""

    party: ClassVar[type[PCAClient]] = RowsClient

    @abstractmethod
    def aggregate(self) -> Fitting:
        """Run the method: yield its questions, and return its result.

        Yields
        ------
        Round

        Returns
        -------
        Solution
        """

    def prepare(self, config: RunConfig, options: PCAOptions, transport: ServerTransport) -> None:
        super().prepare(config, options, transport)
        self.stages: tuple[RowsStage, ...] = self.card.active_stages(config, options)

    def program(self) -> Program:
        fitting = self.aggregate()
        for stage in reversed(self.stages):
            fitting = stage.fit(self, fitting)
        solution = yield from fitting
        model = self.build_model(solution)
        for stage in self.stages:
            model, solution = stage.model(self, model, solution)
        yield from self.run_closing(model, replace(solution, evidence=None))  # it is large
        self._model = model

    def run_closing(self, model: PCAModel, solution: Solution) -> Program:
        """Ask what the stages need of a model, and run the last round.

        Parameters
        ----------
        model : PCAModel
            Model of the run.
        solution : Solution
            Result of the method.

        Yields
        ------
        Round
        """
        request = dict(self.loadings(model, solution))
        for stage in self.stages:
            request |= yield from stage.closing(self, model, request)
        yield from self.run_projection(model, request)

    def squared_error(self, model: PCAModel) -> float:
        """Return the mean squared error that the parties' rows must have in the last round, if the model is exact.

        Parameters
        ----------
        model : PCAModel
            Model of the run.

        Returns
        -------
        float
        """
        return model.squared_error

    def projected_rows(self, model: PCAModel) -> float:
        """Return how many rows the parties of this run must project in the last round.

        Parameters
        ----------
        model : PCAModel
            Model of the run.

        Returns
        -------
        float
        """
        return model.n_samples_

    def loadings(self, model: PCAModel, solution: Solution) -> Fields:
        """Return the fields that the parties project their own rows with.

        Parameters
        ----------
        model : PCAModel
            Model of the run.
        solution : Solution
            Result of the method.

        Returns
        -------
        mapping of str to ndarray
            ``components`` (k, d), ``mean`` (d,) and ``scale`` (d,) or (0,).
        """
        components, mean = model.loadings()
        scale = np.empty(0) if solution.scale is None else solution.scale
        return {"components": components, "mean": mean, "scale": scale}

    def n_components(self, rows: float, features: int) -> int | float:
        """Return the requested number of components or fraction of variance, checked against the pooled data.

        Parameters
        ----------
        rows : float
            Number of pooled rows.
        features : int
            Number of features.

        Returns
        -------
        int or float
        """
        check_components(self.options.n_components, rows, features)
        return self.options.n_components

    def build_model(self, solution: Solution) -> PCAModel:
        """Build the model from the result of the method, with the parties' influence and all notes.

        Parameters
        ----------
        solution : Solution
            Result of the method.

        Returns
        -------
        PCAModel
        """
        center, influence = self.options.centred, []
        evidence: Evidence = solution.evidence or Evidence()
        units, error_bound = evidence.units, evidence.error_bound
        if evidence.contributions is not None:
            influence = evidence.contributions.influence(solution, center=center, limit=self.config.max_share)
            units = evidence.contributions.units()
            solution = solution.with_details(
                notes=influence_notes(influence), measurements=influence_measurements(influence)
            )
        measured = dict(solution.measurements)
        pairs = solution.pairs.with_rank_bound(max_row_count(solution.rows) - center)
        if np.any(error_bound):
            weights = 1.0 if solution.scale is None else solution.scale**-2
            rounding = float(np.sum(error_bound * weights)) / solution.total
            measured["fixed_point_variance_share"] = rounding
            pairs = replace(solution.pairs, rank=None, error=rounding * solution.total)  # a variance may be lost
        hidden_units = [] if self.sees_single_replies or solution.scale is None else [HIDDEN_UNITS_NOTE]
        odd_units = unit_notes(units, ())
        notes = [
            *evidence.cautions,
            *solution.notes,
            *odd_units,
            *hidden_units,
            *([] if evidence.stored is None else [STORED_MOMENTS_NOTE]),
        ]
        log = self.history(self.certainty(pairs), notes, measured)
        if units:
            log["other_units"] = units
        if influence:
            log["influence"] = [item.entry() for item in influence]
        model = replace(PCAModel.of(solution, log), moments_=evidence.stored)
        if not self.card.differentially_private:
            log["notes"] += shrinkage_notes(model)
        return model

    def run_projection(self, model: PCAModel, request: Fields) -> Program:
        """Let every party project its own rows, and check the remaining squared error against the model.

        Parameters
        ----------
        model : PCAModel
            Model of the run.
        request : mapping of str to ndarray
            Fields of the last request.

        Yields
        ------
        Round

        Raises
        ------
        ContractError
            If the rows or the squared error are not those of the model.
        """
        if self.card.differentially_private:
            yield Round("project", request)
            return
        fit: Total | None = yield SumRound("project", request)
        if fit is None:
            model.log["notes"].append("a party left before the last round: the squared error is not measured")
            return
        rows = float(fit["count"])
        self._require_same_rows(rows, model)
        self._verify(model, float(fit["squared"]) / rows)
        for stage in self.stages:
            stage.conclude(model, fit)

    def _require_same_rows(self, rows: float, model: PCAModel) -> None:
        if abs(rows - self.projected_rows(model)) > (1e-9 * rows if self.config.weights else 0):
            raise ContractError(
                f"all parties together project {rows:.17g} rows, but the model is of {self.projected_rows(model)} of "
                "theirs; did a party's data change during the run?"
            )

    def _verify(self, model: PCAModel, measured: float) -> None:
        predicted = self.squared_error(model)
        mean = np.zeros(1) if model.mean_ is None else model.mean_
        unit = 1.0 if model.scale_ is None else model.scale_
        rounding = float(((np.finfo(np.float64).eps * mean / unit) ** 2).sum())
        allowed = 1e-6 * model.total_variance + rounding if self.exact else np.inf
        check_squared_error(model, measured, predicted, allowed)
