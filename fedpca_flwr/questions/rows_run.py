"""A run where the parties hold rows of the same features, its two halves: `RowsStrategy`, and a party's `RowsClient`.

Both know the method, the model and the last round, and none of the questions before it: these, each with its answer,
are in the modules beside and in the methods' own.
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
    """A stage of methods for rows. What it does not write does nothing."""

    scales: bool = False  # whether it divides features by a deviation of its own

    # A party

    def require_ready(self, party: RowsClient) -> None:
        """Refuse, before anything is answered, what the party's rows do not allow."""

    def info(self, party: RowsClient) -> dict[str, Any]:
        """Return what every reply says of the party besides."""
        return {}

    def store_request(self, party: RowsClient, request: Fields) -> None:
        """Keep what later answers need of a question."""

    def rows(self, party: RowsClient, rows: Rows) -> Rows:
        """Return the rows that the method sees."""
        return rows

    def projection(self, party: RowsClient, request: Fields, projection: Projection) -> Projection:
        """Return how the party projects its own rows."""
        return projection

    def observer(self, party: RowsClient, request: Fields, projection: Projection, files: ExitStack) -> Observer | None:
        """Return what watches the rows in the last round; ``files`` closes what it writes to."""
        return None

    # The server

    def head(self) -> PooledCentre | None:
        """Return count, mean and variances of all rows where the stage has them: then they are not asked for."""
        return None

    def moments(self, run: RowsStrategy, pooled: Callable[..., Pooling]) -> Pooling:
        """Return the moments of all rows that the method sees, from those that ``pooled`` asks for."""
        return pooled()

    def fit(self, run: RowsStrategy, fitting: Fitting) -> Fitting:
        """Run the method, and the stage's own questions before it."""
        return fitting

    def model(self, run: RowsStrategy, model: PCAModel, solution: Solution) -> tuple[PCAModel, Solution]:
        """Return the model, and what the parties project with, in the unit of the data."""
        return model, solution

    def closing(self, run: RowsStrategy, model: PCAModel, request: Fields) -> Closing:
        """Ask between the fit and the last round, whose question has what is ``asked`` so far."""
        return {}
        yield

    def conclude(self, model: PCAModel, fit: Total) -> None:
        """Note in the model what the last round told."""


@dataclass
class Party:
    """What an answer is given of a party that holds rows: no row.

    Parameters
    ----------
    vault : Vault
    public : Public
    options : PCAOptions
        Those of the method.
    state : State
        What it keeps over the rounds of the run.
    partition : int
        Its number.
    """

    vault: Vault
    public: Public
    options: Any
    state: State
    partition: int


class RowsClient(PCAClient):
    """A party that holds rows: their moments, of which all answers are made, and the last round.

    What it answers stands with each question. A method whose parties project their rows otherwise writes `projection`.
    """

    site: Site
    party_type: ClassVar[type[Party]] = Party

    @cached_property
    def stages(self) -> tuple[RowsStage, ...]:
        """The stages that this run composes with its method."""
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
        """This party's rows as the method sees them."""
        rows = self.raw_rows
        for stage in self.stages:
            rows = stage.rows(self, rows)
        return rows

    @cached_property
    def raw_rows(self) -> Rows:
        """This party's rows as they are."""
        return self.site.data(self.card.split)

    @property
    def row_parts(self) -> tuple[Rows, ...]:
        """All of this party's rows in the order of its file, those that take no part too."""
        table = self.site.table
        if table.weights is not None or table.excluded is not None:
            return (table.rows,)
        return self.raw_rows, table.rows[len(self.raw_rows) :]

    @cached_property
    def vault(self) -> Vault:
        """The rows that take part, as the method sees them."""
        return self.make_vault(self.data)

    def make_vault(self, rows: Rows) -> Vault:
        """Some of this party's ``rows`` (n, d), whose moments are kept for the run where that is cheaper."""
        columns = self.options.product_columns(self.public)
        parties, threads = self.public.parties, self.site.node.threads
        return Vault(rows, self.site.state, columns=columns, parties=parties, threads=threads)

    @cached_property
    def party(self) -> Party:
        """What an answer is given of this party."""
        return self.party_type(self.vault, self.public, self.options, self.site.state, self.site.node.partition_id)

    def statistics(self, phase: str, request: Fields) -> Fields | Sequence[Fields]:
        """Answer by the vault; a question that needs more is given this client, where the method's card says so."""
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
        """How this party projects its own rows, by what the last round asks, or another question with its fields."""
        projection = Projection(
            self.vault, request["components"], request["mean"], request["scale"], self.site.table.columns
        )
        for stage in self.stages:
            projection = stage.projection(self, request, projection)
        return projection

    def project(self, request: Fields) -> Fields:
        """Write this party's own files, which stay here; return how many rows there are, and the squared error left."""
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
        """Write the files of scores and loadings that this site wants; ``watches`` pass chunks of its rows on."""
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
        """The method: asks, and returns what it found."""

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
        """What the stages ask of a model, and the last round."""
        request = dict(self.loadings(model, solution))
        for stage in self.stages:
            request |= yield from stage.closing(self, model, request)
        yield from self.run_projection(model, request)

    def squared_error(self, model: PCAModel) -> float:
        """What the parties' own rows must have as mean squared error in the last round, if the model is exact."""
        return model.squared_error

    def projected_rows(self, model: PCAModel) -> float:
        """How many rows the parties of this run must project in the last round."""
        return model.n_samples_

    def loadings(self, model: PCAModel, solution: Solution) -> Fields:
        """What the parties project their own rows with."""
        components, mean = model.loadings()
        scale = np.empty(0) if solution.scale is None else solution.scale
        return {"components": components, "mean": mean, "scale": scale}

    def n_components(self, rows: float, features: int) -> int | float:
        """The wanted number of components, or the fraction of variance, checked against the pooled data."""
        check_components(self.options.n_components, rows, features)
        return self.options.n_components

    def build_model(self, solution: Solution) -> PCAModel:
        """The model of what the method found."""
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
        """Let every party project its own rows; what that leaves must be what the model foretells."""
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
