"""A party's half of a run in which the parties hold rows of the same features: `RowsClient`, and hooks of stages.

The client knows the method and the last round; each question before stands with its answer in other modules.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.rows import Rows, centred_chunks
from fedpca_flwr.model.loadings import Loadings
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.solution import Solution
from fedpca_flwr.protocol.card import MethodCard, PCAOptions, Stage
from fedpca_flwr.protocol.client import PCAClient, Site
from fedpca_flwr.protocol.journal import State
from fedpca_flwr.protocol.payload import Fields
from fedpca_flwr.protocol.question import Public, Round, Total
from fedpca_flwr.protocol.strategy import PCAStrategy
from fedpca_flwr.questions.pooling import Fitting, Pooling
from fedpca_flwr.questions.row_limits import PooledCentre, permit_fixed_point
from fedpca_flwr.site.rows.selection import Selection
from fedpca_flwr.site.rows.vault import Vault

if TYPE_CHECKING:
    from fedpca_flwr.maths.incomplete_rows import Patterns


@dataclass(frozen=True)
class Projection:
    """Projection of a party's own rows: ``(rows - mean) / scale @ components.T``."""

    vault: Vault  # moments of the rows that take part
    components: Array  # (k, d), orthonormal rows
    mean: Array  # (d,), the centre that is subtracted
    scale: Array  # (d,), or (0,) where features are not divided
    columns: str  # digest of the columns' names

    def centred(self, rows: Rows) -> Iterator[Any]:
        """Subtract the mean from rows and divide by the scale, chunk by chunk.

        Parameters
        ----------
        rows : rows of shape (n, d)
            Rows in the unit of the data.

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
            Rows in the unit of the data.

        Yields
        ------
        ndarray of shape (m, k)
        """
        for centred in self.centred(rows):
            yield centred @ self.components.T

    def squared_error(self) -> float:
        """Return the total squared reconstruction error of the rows that take part, from their moments.

        Returns
        -------
        float
        """
        return self.vault.squared_error(self.mean, self.scale, self.components)

    @property
    def axes(self) -> tuple[Array, Array | None]:
        """Directions (k, d) of the scores in the unit of the vault, and their centre (d,); None for the site's mean."""
        return self.components / (self.scale if self.scale.size else 1.0), self.mean

    def fourth_powers(self) -> Array:
        """Return the sums of the fourth powers of the scores of the rows that take part.

        Returns
        -------
        ndarray of shape (k,)
        """
        return self.vault.fourth_powers(*self.axes)

    def require_near(self) -> None:
        """Raise ContractError for a centre of the server at which rows would be rounded."""
        directions, centre = self.axes
        if centre is not None:
            self.vault.require_near(centre, self.scale if self.scale.size else 1.0, directions)

    def loadings(self) -> Loadings:
        """Return the components, mean and scale as a `Loadings` object that can be saved.

        Returns
        -------
        Loadings
        """
        scale = self.scale if self.scale.size else np.ones_like(self.mean)
        return Loadings(self.components, self.mean, scale, columns=self.columns)


class Observer:
    """Reader of the centred rows while a party writes its scores. The base class changes and adds nothing."""

    def watch(self, chunks: Iterator[Any]) -> Iterator[Any]:
        """Read chunks (m, d) of centred and scaled rows as they pass, and yield each chunk unchanged."""
        return chunks

    def reply(self) -> Fields:
        """Return the fields that the observer adds to the party's last reply."""
        return {}


Closing = Generator[Round, Any, Fields]
"""Generator of questions between the fit and the last round, which returns further fields for the last round."""


class RowsStage(Stage):
    """Optional step composed with a method for rows, as hooks at party and server that do nothing by default."""

    scales: bool = False  # whether it divides features by a deviation of its own

    def units(self, mean: Array) -> Array | None:
        """Return the features' divisors (d,), from the mean (d,) of all rows, if the stage divides; else None."""
        return None

    # A party

    def covariate_columns(self, party: RowsClient) -> NDArray[np.int64]:
        """Return the indices (q,) of the columns that the stage regresses out of all others; none by default."""
        return np.empty(0, np.int64)

    def require_ready(self, party: RowsClient) -> None:
        """Raise an error of this package, before any answer, if the party's rows do not fit the stage."""

    def info(self, party: RowsClient) -> dict[str, Any]:
        """Return entries that the stage adds to the party's description in every reply; none by default."""
        return {}

    def store_request(self, party: RowsClient, request: Fields) -> None:
        """Store values of any request of the run that the stage needs for later answers; by default store nothing."""

    def rows(self, party: RowsClient, selection: Selection) -> Selection:
        """Return the party's rows as the stage changes them for the method; unchanged by default."""
        return selection

    def vault(self, party: RowsClient, vault: Vault) -> Vault:
        """Return the vault of the stages before, perhaps wrapped, for the party's answers; unchanged by default."""
        return vault

    def projection(self, party: RowsClient, request: Fields, projection: Projection) -> Projection:
        """Return the projection of the stages before as this stage changes it; unchanged by default."""
        return projection

    def observer(self, party: RowsClient, request: Fields, projection: Projection, files: ExitStack) -> Observer | None:
        """Return an observer of all centred rows while scores are written, or None; ``files`` closes what it opens."""
        return None

    # The server

    def head(self) -> PooledCentre | None:
        """Return count, mean and variances of all rows if the stage has asked for them already, else None."""
        return None

    def moments(self, run: PCAStrategy, pooled: Callable[..., Pooling]) -> Pooling:
        """Ask for the moments of all rows by ``pooled``, of the stages before; return them, by default unchanged."""
        return pooled()

    def fit(self, run: PCAStrategy, fitting: Fitting) -> Fitting:
        """Wrap the generator of the method and inner stages in the stage's own questions; unchanged by default."""
        return fitting

    def model(self, run: PCAStrategy, model: PCAModel, solution: Solution) -> tuple[PCAModel, Solution]:
        """Return the model and the solution as the stage changes them; unchanged by default."""
        return model, solution

    def closing(self, run: PCAStrategy, model: PCAModel, request: Fields) -> Closing:
        """Ask the stage's questions after the fit; return further fields of the last request, beside ``request``."""
        return {}
        yield

    def release(self, model: PCAModel) -> PCAModel:
        """Return the model that the server keeps at the end; by default the complete model."""
        return model

    def conclude(self, model: PCAModel, fit: Total) -> None:
        """Add to the model the results that the sum of the last replies holds; by default add nothing."""


@dataclass
class Party:
    """View of a party that answer functions receive: its moments, options and state, without access to rows."""

    vault: Vault  # moments of the rows that take part
    public: Public
    options: Any  # of the method
    state: State  # arrays that the party stores between the rounds of the run
    partition: int  # number of the party


class RowsSite(Site, Protocol):
    """Interface of a site whose party holds rows, for `RowsClient`."""

    @property
    def participation(self) -> NDArray[np.bool_]:
        """Mask (n,) of the rows of the site's file that take part, in the order of the file."""

    @property
    def file_rows(self) -> tuple[Rows, ...]:
        """All rows in the order of the site's file, for what stays at the site; first those that take part."""

    @cached_property
    def common_gaps(self) -> tuple[Patterns, NDArray[np.bool_]]:
        """Patterns of missing values of the rows, and a mask of the rows whose pattern enough rows share."""

    def select(
        self, split: str, needs: Collection[str] = (), name: str = "", mask: NDArray[np.bool_] | None = None
    ) -> Selection:
        """Return rows that take part, or those of a mask (n,), which the site examines before an answer."""

    def held_out(self, split: str) -> NDArray[np.bool_]:
        """Return the mask (n,) of the fifth of rows that the site holds out, the same in every run."""

    def permit_blind(self, card: MethodCard, options: PCAOptions) -> None:
        """Refuse a blind run over rows of an earlier blind run with other settings, and note the settings."""


class RowsClient(PCAClient):
    """Client of a party that holds rows: answers from the rows' stored moments, and projects the rows at the end.

    A question that a card or a stage declares to need more is answered from this client. A method whose parties project
    their rows otherwise overrides `projection`.
    """

    site: RowsSite
    party_type: ClassVar[type[Party]] = Party

    @cached_property
    def stages(self) -> tuple[RowsStage, ...]:
        """Optional steps, such as adjustment for covariates, that this run composes with its method."""
        return self.card.active_stages(self.site.config, self.options)

    @override
    def info(self) -> dict[str, Any]:
        """Return the party's description that comes with every reply, with the entries of its stages."""
        info = self.site.info(self.card.split)
        for stage in self.stages:
            info |= stage.info(self)
        return info

    @override
    def require_ready(self) -> None:
        """Raise ConfigError for conflicting options, and what `permit_fixed_point` and the stages raise."""
        assert self.script  # or options contradict each other
        if self.uses_fixed_point:
            permit_fixed_point(self)
        for stage in self.stages:
            stage.require_ready(self)

    @override
    def store_request(self, request: Fields) -> None:
        """Let every stage store the values of a request that its later answers need."""
        for stage in self.stages:
            stage.store_request(self, request)

    @cached_property
    def needs(self) -> frozenset[str]:
        """What the card and the stages declare that answers need besides moments of all rows."""
        return frozenset[str](self.card.needs).union(*map(attrgetter("needs"), self.options.stages))

    @cached_property
    def participants(self) -> Selection:
        """Rows of this party that take part, before any stage changes them."""
        return self.site.select(self.card.split, self.needs)

    @property
    @override
    def selection(self) -> Selection:
        """Rows of this party that take part, after all stages."""
        selection = self.participants
        for stage in self.stages:
            selection = stage.rows(self, selection)
        return selection

    @property
    def scored_rows(self) -> Rows:
        """Rows that take part and have scores: all by default."""
        return self.participants.rows

    @cached_property
    def vault(self) -> Vault:
        """Store of the moments of the rows that take part, after all stages."""
        vault = self.make_vault(self.selection)
        for stage in self.stages:
            vault = stage.vault(self, vault)
        return vault

    def make_vault(self, selection: Selection) -> Vault:
        """Return the moments of a selection, cached over rounds where that is cheaper.

        Parameters
        ----------
        selection : Selection
            Rows of this party.

        Returns
        -------
        Vault
        """
        columns = self.options.product_columns(self.public)
        parties, threads = self.public.parties, self.site.node.threads
        meets_columns = columns > 0 or bool(self.options.covariates)  # of the server, of any size
        form = bool(self.site.node.data) and meets_columns
        return selection.vault(self.site.state, columns=columns, parties=parties, threads=threads, always_form=form)

    @cached_property
    def party(self) -> Party:
        """View of this party (moments, public parameters, options, state) that answer functions receive."""
        return self.party_type(self.vault, self.public, self.options, self.site.state, self.site.node.partition_id)

    @override
    def statistics(self, phase: str, request: Fields) -> Fields | Sequence[Fields]:
        """Answer a question from the site's moments, or from this client if the card declares a need of rows."""
        question = self.questions[phase]
        assert question.answer is not None, phase
        return question.answer(self if question.needs or self.card.needs else self.party, request)

    def projection(self, request: Fields) -> Projection:
        """Return this party's projection: components, mean and scale from the request, as changed by the stages.

        Parameters
        ----------
        request : mapping of str to ndarray
            Fields of the last question, or of another question that has the same fields.

        Returns
        -------
        Projection
        """
        components, columns = request["components"], self.site.table.names_digest
        projection = Projection(self.vault, components, request["mean"], request["scale"], columns)
        for stage in self.stages:
            projection = stage.projection(self, request, projection)
        return projection

    def project(self, request: Fields) -> Fields:
        """Write this party's files of scores and loadings, and return row count and squared projection error.

        A differentially private party returns 1 and 0, and reports errors to its own log only.

        Parameters
        ----------
        request : mapping of str to ndarray
            Fields of the last question: components, mean, scale and those of the stages.

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
            observers: list[Observer] = []
            for stage in self.stages:
                observer = stage.observer(self, request, projection, files)
                observers += [] if observer is None else [observer]
            squared = projection.squared_error()
            self.write_files(projection, list(map(attrgetter("watch"), observers)))
        self.vault.drop()
        reply: dict[str, Any] = {"count": np.asarray(self.selection.count), "squared": np.asarray(squared)}
        for observer in observers:
            reply |= observer.reply()
        return reply

    def write_files(
        self, projection: Projection, watches: Sequence[Callable[[Iterator[Any]], Iterator[Any]]] = ()
    ) -> None:
        """Write the scores file and the loadings file that this site's configuration names.

        Parameters
        ----------
        projection : Projection
            Projection of the rows to scores.
        watches : sequence of callable
            Observers' functions, through which chunks of the rows pass.
        """
        node = self.site.node
        self.loadings = replace(projection.loadings(), transform=self.site.config.transform)
        if node.scores or watches:
            with (
                np.errstate(all="ignore"),
                self.site.score_file(self.site.file_length, len(projection.components)) as append,
            ):
                for part in self.site.file_rows:
                    chunks = projection.centred(part)
                    for watch in watches:
                        chunks = watch(chunks)
                    for centred in chunks:
                        append(centred @ projection.components.T)
        if node.loadings:
            self.loadings.save(node.loadings)
