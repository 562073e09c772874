"""A party's half of a run in which the parties hold rows of the same features: `RowsClient`, and hooks of stages.

The client knows the method and the last round, and none of the questions before: each question stands with its answer
in the modules beside this one and in the methods' own. A `RowsStage` changes what the client and the server do.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from fedpca_flwr.errors import ContractError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.rows import Rows, centred_chunks, weighted_count
from fedpca_flwr.model.loadings import Loadings
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.solution import Solution
from fedpca_flwr.protocol.card import Stage
from fedpca_flwr.protocol.client import PCAClient
from fedpca_flwr.protocol.journal import State
from fedpca_flwr.protocol.payload import Fields
from fedpca_flwr.protocol.question import Public, Round, Total
from fedpca_flwr.protocol.strategy import PCAStrategy
from fedpca_flwr.questions.pooling import Fitting, Pooling
from fedpca_flwr.questions.row_limits import PooledCentre, permit_fixed_point
from fedpca_flwr.site.scores import score_file
from fedpca_flwr.site.site import Site
from fedpca_flwr.site.vault import Vault


@dataclass(frozen=True)
class Projection:
    """Projection of a party's own rows: ``(rows - mean) / scale @ components.T``.

    Parameters
    ----------
    vault : Vault
        The moments of the rows that take part.
    components : ndarray of shape (k, d)
        Components with orthonormal rows.
    mean : ndarray of shape (d,)
        Centre that is subtracted.
    scale : ndarray of shape (d,) or (0,)
        Unit of each feature; empty where features are not divided.
    columns : str
        Digest of the columns' names.
    """

    vault: Vault
    components: Array
    mean: Array
    scale: Array
    columns: str

    def centred(self, rows: Rows) -> Iterator[Any]:
        """Centre and scale rows, chunk by chunk.

        Parameters
        ----------
        rows : rows of shape (n, d)

        Returns
        -------
        iterator of ndarray of shape (m, d)
        """
        return centred_chunks(rows, self.mean, self.scale if self.scale.size else None)

    def scores(self, rows: Rows) -> Iterator[Array]:
        """Project rows to scores, chunk by chunk.

        Parameters
        ----------
        rows : rows of shape (n, d)

        Yields
        ------
        ndarray of shape (m, k)
        """
        for centred in self.centred(rows):
            yield centred @ self.components.T

    def squared_error(self) -> float:
        """Return the squared error that the projection leaves of the rows that take part, from their moments.

        Returns
        -------
        float
        """
        return self.vault.squared_error(self.mean, self.scale, self.components)

    def loadings(self) -> Loadings:
        """Return the loadings that project new rows.

        Returns
        -------
        Loadings
        """
        scale = self.scale if self.scale.size else np.ones_like(self.mean)
        return Loadings(self.components, self.mean, scale, columns=self.columns)


class Observer:
    """Observer of a party's rows in the last round, which may add fields to the reply."""

    def watch(self, chunks: Iterator[Any]) -> Iterator[Any]:
        """Watch chunks of centred rows, and pass each chunk on.

        Parameters
        ----------
        chunks : iterator of ndarray of shape (m, d)
            Centred and scaled rows.

        Returns
        -------
        iterator of ndarray of shape (m, d)
            The same chunks.
        """
        return chunks

    def reply(self) -> Fields:
        """Return the fields of the party's reply besides count and squared error.

        Returns
        -------
        mapping of str to ndarray
        """
        return {}


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
        """

    def info(self, party: RowsClient) -> dict[str, Any]:
        """Return what every reply says of the party because of the stage.

        Parameters
        ----------
        party : RowsClient

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
        request : mapping of str to ndarray
        """

    def rows(self, party: RowsClient, rows: Rows) -> Rows:
        """Return the rows that the method sees.

        Parameters
        ----------
        party : RowsClient
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
        request : mapping of str to ndarray
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
        request : mapping of str to ndarray
        projection : Projection
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

    def moments(self, run: PCAStrategy, pooled: Callable[..., Pooling]) -> Pooling:
        """Return the moments of all rows that the method sees.

        Parameters
        ----------
        run : PCAStrategy
        pooled : callable
            Asks for the moments (`fedpca_flwr.questions.rows.pooled_moments`), as the stages before leave them.

        Returns
        -------
        PooledMoments
        """
        return pooled()

    def fit(self, run: PCAStrategy, fitting: Fitting) -> Fitting:
        """Run the method, and the stage's own questions before the method.

        Parameters
        ----------
        run : PCAStrategy
        fitting : generator
            The method, with the stages inside this one.

        Returns
        -------
        Solution
        """
        return fitting

    def model(self, run: PCAStrategy, model: PCAModel, solution: Solution) -> tuple[PCAModel, Solution]:
        """Return the model, and the solution that the parties project with, in the unit of the data.

        Parameters
        ----------
        run : PCAStrategy
        model : PCAModel
        solution : Solution

        Returns
        -------
        model : PCAModel
        solution : Solution
        """
        return model, solution

    def closing(self, run: PCAStrategy, model: PCAModel, request: Fields) -> Closing:
        """Ask between the fit and the last round; return further fields of the last request.

        Parameters
        ----------
        run : PCAStrategy
        model : PCAModel
        request : mapping of str to ndarray
            Fields of the last request so far.

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

    The answers of the party stand with each question. A question that needs more than the vault is answered from this
    client, if the method's card or a stage declares so. A method whose parties project their rows otherwise overrides
    `projection`.
    """

    site: Site
    party_type: ClassVar[type[Party]] = Party

    @cached_property
    def stages(self) -> tuple[RowsStage, ...]:
        """Stages that this run composes with its method."""
        return self.card.active_stages(self.site.config, self.options)

    @override
    def info(self) -> dict[str, Any]:
        info = super().info()
        for stage in self.stages:
            info |= stage.info(self)
        return info

    @override
    def require_ready(self) -> None:
        assert self.script  # or options contradict each other
        if self.uses_fixed_point:
            permit_fixed_point(self)
        for stage in self.stages:
            stage.require_ready(self)

    @override
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

    @override
    def statistics(self, phase: str, request: Fields) -> Fields | Sequence[Fields]:
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
