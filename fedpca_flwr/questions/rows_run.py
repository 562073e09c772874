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
from fedpca_flwr.maths.moments import most_rows
from fedpca_flwr.maths.rows import Rows, count_of
from fedpca_flwr.model.model import PCAModel, require_fit
from fedpca_flwr.model.solution import Solution, check_components
from fedpca_flwr.model.summary import shrinkage_notes, unit_notes
from fedpca_flwr.protocol.card import PCAOptions, Stage
from fedpca_flwr.protocol.client import PCAClient
from fedpca_flwr.protocol.journal import State
from fedpca_flwr.protocol.payload import Fields
from fedpca_flwr.protocol.question import Ask, Program, Public, Sum, Total
from fedpca_flwr.protocol.strategy import PCAStrategy
from fedpca_flwr.protocol.transport import ServerTransport
from fedpca_flwr.questions.influence import UNSEEN, largest_of, notes_on
from fedpca_flwr.questions.pooling import KEPT, Evidence, Fitting, Pooling
from fedpca_flwr.questions.projection import Observer, Projection
from fedpca_flwr.questions.row_limits import Pooled, permit_fixed_point
from fedpca_flwr.site.scores import score_file
from fedpca_flwr.site.site import Site
from fedpca_flwr.site.vault import Vault

Closing = Generator[Ask, Any, Fields]
"""Questions between the fit and the last round; returns what the last round says besides."""


class RowsStage(Stage):
    """A stage of methods for rows. What it does not write does nothing."""

    scales: bool = False  # whether it divides features by a deviation of its own

    # A party

    def ready(self, party: RowsClient) -> None:
        """Refuse, before anything is answered, what the party's rows do not allow."""

    def about(self, party: RowsClient) -> dict[str, Any]:
        """Return what every reply says of the party besides."""
        return {}

    def take(self, party: RowsClient, asked: Fields) -> None:
        """Keep what later answers need of a question."""

    def rows(self, party: RowsClient, rows: Rows) -> Rows:
        """Return the rows that the method sees."""
        return rows

    def projection(self, party: RowsClient, asked: Fields, projection: Projection) -> Projection:
        """Return how the party projects its own rows."""
        return projection

    def observer(self, party: RowsClient, asked: Fields, projection: Projection, files: ExitStack) -> Observer | None:
        """Return what watches the rows in the last round; ``files`` closes what it writes to."""
        return None

    # The server

    def head(self) -> Pooled | None:
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

    def closing(self, run: RowsStrategy, model: PCAModel, asked: Fields) -> Closing:
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
    kind: ClassVar[type[Party]] = Party

    @cached_property
    def stages(self) -> tuple[RowsStage, ...]:
        """The stages that this run composes with its method."""
        return self.card.active(self.site.config, self.options)

    def about(self) -> dict[str, Any]:
        about = super().about()
        for stage in self.stages:
            about |= stage.about(self)
        return about

    def require_ready(self) -> None:
        assert self.script  # or options contradict each other
        if self.in_fixed_point:
            permit_fixed_point(self)
        for stage in self.stages:
            stage.ready(self)

    def take(self, asked: Fields) -> None:
        for stage in self.stages:
            stage.take(self, asked)

    @property
    def data(self) -> Rows:
        """This party's rows as the method sees them."""
        rows = self.unscaled
        for stage in self.stages:
            rows = stage.rows(self, rows)
        return rows

    @cached_property
    def unscaled(self) -> Rows:
        """This party's rows as they are."""
        return self.site.data(self.card.split)

    @property
    def parts(self) -> tuple[Rows, ...]:
        """All of this party's rows in the order of its file, those that take no part too."""
        table = self.site.table
        if table.weights is not None or table.apart is not None:
            return (table.rows,)
        return self.unscaled, table.rows[len(self.unscaled) :]

    @cached_property
    def vault(self) -> Vault:
        """The rows that take part, as the method sees them."""
        return self.vault_of(self.data)

    def vault_of(self, rows: Rows) -> Vault:
        """Some of this party's ``rows`` (n, d), whose moments are kept for the run where that is cheaper."""
        columns = self.options.columns(self.public)
        parties, threads = self.public.parties, self.site.node.threads
        return Vault(rows, self.site.state, columns=columns, parties=parties, threads=threads)

    @cached_property
    def party(self) -> Party:
        """What an answer is given of this party."""
        return self.kind(self.vault, self.public, self.options, self.site.state, self.site.node.partition_id)

    def statistics(self, phase: str, asked: Fields) -> Fields | Sequence[Fields]:
        """Answer by the vault; a question that needs more is given this client, where the method's card says so."""
        question = self.questions[phase]
        assert question.answer is not None, phase
        if not (question.needs or self.card.needs):
            return question.answer(self.party, asked)
        declared = {"files", *self.card.needs, *(need for stage in self.stages for need in stage.needs)}
        if question.needs and question.needs not in declared:
            raise ContractError(
                f"the question '{phase}' of '{self.card.name}' needs {question.needs}, and its card declares "
                f"{', '.join(sorted(declared))}"
            )
        return question.answer(self, asked)

    def projection(self, asked: Fields) -> Projection:
        """How this party projects its own rows, by what the last round asks, or another question with its fields."""
        projection = Projection(self.vault, asked["components"], asked["mean"], asked["scale"], self.site.table.columns)
        for stage in self.stages:
            projection = stage.projection(self, asked, projection)
        return projection

    def project(self, asked: Fields) -> Fields:
        """Write this party's own files, which stay here; return how many rows there are, and the squared error left."""
        if self.card.differentially_private:
            try:
                self.write(self.projection(asked))
            except Exception as error:  # nothing of the rows may show here, not even that they cannot be projected
                self.site.report(error)
            return {"count": np.asarray(1), "squared": np.asarray(0.0)}
        with ExitStack() as files:
            projection = self.projection(asked)
            observers = [stage.observer(self, asked, projection, files) for stage in self.stages]
            squared = projection.squared_error()
            self.write(projection, [observer.passing for observer in observers if observer is not None])
        self.vault.drop()
        reply: dict[str, Any] = {"count": np.asarray(count_of(self.data)), "squared": np.asarray(squared)}
        for observer in observers:
            reply |= {} if observer is None else observer.reply()
        return reply

    def write(self, projection: Projection, watches: Sequence[Callable[[Iterator[Any]], Iterator[Any]]] = ()) -> None:
        """Write the files of scores and loadings that this site wants; ``watches`` pass chunks of its rows on."""
        rows, node = self.site.table.rows, self.site.node
        if node.scores or watches:
            with np.errstate(all="ignore"), score_file(node.scores, len(rows), len(projection.components)) as keep:
                for part in self.parts:
                    chunks = projection.centred(part)
                    for passing in watches:
                        chunks = passing(chunks)
                    for centred in chunks:
                        keep(centred @ projection.components.T)
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
        self.stages: tuple[RowsStage, ...] = self.card.active(config, options)

    def program(self) -> Program:
        fitting = self.aggregate()
        for stage in reversed(self.stages):
            fitting = stage.fit(self, fitting)
        solution = yield from fitting
        model = self.modelled(solution)
        for stage in self.stages:
            model, solution = stage.model(self, model, solution)
        yield from self.closed(model, replace(solution, evidence=None))  # it is large
        self._model = model

    def closed(self, model: PCAModel, solution: Solution) -> Program:
        """What the stages ask of a model, and the last round."""
        asked = dict(self.loadings(model, solution))
        for stage in self.stages:
            asked |= yield from stage.closing(self, model, asked)
        yield from self.projected(model, asked)

    def squared_error(self, model: PCAModel) -> float:
        """What the parties' own rows must have as mean squared error in the last round, if the model is exact."""
        return model.squared_error

    def rows_here(self, model: PCAModel) -> float:
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

    def modelled(self, solution: Solution) -> PCAModel:
        """The model of what the method found."""
        center, influence = self.options.centred, []
        evidence: Evidence = solution.evidence or Evidence()
        units, missed = evidence.units, evidence.missed
        if evidence.contributions is not None:
            influence = evidence.contributions.influence(solution, center=center, limit=self.config.max_share)
            units = evidence.contributions.units()
            solution = solution.extended(notes=notes_on(influence), measured=largest_of(influence))
        measured = dict(solution.measured)
        pairs = solution.pairs.of_rank(most_rows(solution.rows) - center)
        if np.any(missed):
            weights = 1.0 if solution.scale is None else solution.scale**-2
            rounding = float(np.sum(missed * weights)) / solution.total
            measured["fixed_point_variance_share"] = rounding
            pairs = replace(solution.pairs, rank=None, error=rounding * solution.total)  # a variance may be lost
        unseen = [] if self.sees_each or solution.scale is None else [UNSEEN]
        odd = unit_notes(units, ())
        notes = [*evidence.cautions, *solution.notes, *odd, *unseen, *([] if evidence.kept is None else [KEPT])]
        log = self.history(self.certainty(pairs), notes, measured)
        if units:
            log["other_units"] = units
        if influence:
            log["influence"] = [one.entry() for one in influence]
        model = replace(PCAModel.of(solution, log), moments_=evidence.kept)
        if not self.card.differentially_private:
            log["notes"] += shrinkage_notes(model)
        return model

    def projected(self, model: PCAModel, asked: Fields) -> Program:
        """Let every party project its own rows; what that leaves must be what the model foretells."""
        if self.card.differentially_private:
            yield Ask("project", asked)
            return
        fit: Total | None = yield Sum("project", asked)
        if fit is None:
            model.log["notes"].append("a party left before the last round: the squared error is not measured")
            return
        rows = float(fit["count"])
        self._require_same_rows(rows, model)
        self._verify(model, float(fit["squared"]) / rows)
        for stage in self.stages:
            stage.conclude(model, fit)

    def _require_same_rows(self, rows: float, model: PCAModel) -> None:
        if abs(rows - self.rows_here(model)) > (1e-9 * rows if self.config.weights else 0):
            raise ContractError(
                f"all parties together project {rows:.17g} rows, but the model is of {self.rows_here(model)} of "
                "theirs; did a party's data change during the run?"
            )

    def _verify(self, model: PCAModel, measured: float) -> None:
        predicted = self.squared_error(model)
        mean = np.zeros(1) if model.mean_ is None else model.mean_
        unit = 1.0 if model.scale_ is None else model.scale_
        rounding = float(((np.finfo(np.float64).eps * mean / unit) ** 2).sum())
        allowed = 1e-6 * model.total_variance + rounding if self.exact else np.inf
        require_fit(model, measured, predicted, allowed)
