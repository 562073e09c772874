"""The server's half of a run in which the parties hold rows of the same features: `RowsStrategy`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar

import numpy as np
from typing_extensions import override

from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.errors import ContractError
from fedpca_flwr.maths.moments import max_row_count
from fedpca_flwr.model.fitted import leave_log_open
from fedpca_flwr.model.model import PCAModel, check_squared_error
from fedpca_flwr.model.notes import shrinkage_notes, unit_notes
from fedpca_flwr.model.solution import Solution, check_components
from fedpca_flwr.protocol.card import PCAOptions
from fedpca_flwr.protocol.client import PCAClient
from fedpca_flwr.protocol.payload import Fields
from fedpca_flwr.protocol.question import Program, Round, SumRound, Total
from fedpca_flwr.protocol.strategy import PCAStrategy
from fedpca_flwr.protocol.transport import ServerTransport
from fedpca_flwr.questions.influence import (
    HIDDEN_UNITS_NOTE,
    PartyInfluence,
    complete_log,
    influence_measurements,
    influence_notes,
)
from fedpca_flwr.questions.pooling import STORED_MOMENTS_NOTE, Evidence, Fitting
from fedpca_flwr.questions.rows_client import RowsClient, RowsStage


class RowsStrategy(PCAStrategy):
    """Base of the server strategies for data split by rows. A method adds `aggregate`."""

    party: ClassVar[type[PCAClient]] = RowsClient
    influence: Sequence[PartyInfluence] = ()  # of the parties on the model, until the run ends

    @abstractmethod
    def aggregate(self) -> Fitting:
        """Run the method: yield its rounds of questions, and return components, eigenvalues and mean.

        Returns
        -------
        Solution
        """

    @override
    def prepare(self, config: RunConfig, options: PCAOptions, transport: ServerTransport) -> None:
        """Set configuration, options and transport, and the stages that the options select."""
        super().prepare(config, options, transport)
        self.stages: tuple[RowsStage, ...] = self.card.active_stages(config, options)

    @override
    def program(self) -> Program:
        """Run the method within its stages, build and store the model, and run the projection round."""
        fitting = self.aggregate()
        for stage in reversed(self.stages):
            fitting = stage.fit(self, fitting)
        solution = yield from fitting
        model = self.build_model(solution)
        for stage in self.stages:
            model, solution = stage.model(self, model, solution)
        yield from self.run_closing(model, replace(solution, evidence=None))  # it is large
        for stage in self.stages:
            model = stage.release(model)
        if self.influence:
            leave_log_open(model, partial(complete_log, model.log, self.influence))
        self._model, self.influence = model, ()

    def run_closing(self, model: PCAModel, solution: Solution) -> Program:
        """Ask the stages' questions about the fitted model, and run the projection round.

        Parameters
        ----------
        model : PCAModel
        solution : Solution

        Yields
        ------
        Round
        """
        request = dict(self.loadings(model, solution))
        for stage in self.stages:
            request |= yield from stage.closing(self, model, request)
        yield from self.run_projection(model, request)

    def squared_error(self, model: PCAModel) -> float:
        """Return the mean squared error per row that the projection round must measure if the model is exact.

        Parameters
        ----------
        model : PCAModel

        Returns
        -------
        float
        """
        return model.squared_error

    def projected_rows(self, model: PCAModel) -> float:
        """Return the number of rows (or sum of weights) that the parties must project in the last round.

        Parameters
        ----------
        model : PCAModel

        Returns
        -------
        float
        """
        return model.n_samples_

    def loadings(self, model: PCAModel, solution: Solution) -> Fields:
        """Return the request fields for projecting rows: components, mean and scale.

        Parameters
        ----------
        model : PCAModel
        solution : Solution

        Returns
        -------
        mapping of str to ndarray
            ``components`` (k, d), ``mean`` (d,) and ``scale`` (d,) or (0,).
        """
        components, mean = model.loadings()
        scale = np.empty(0) if solution.scale is None else solution.scale
        return {"components": components, "mean": mean, "scale": scale}

    def n_components(self, rows: float, features: int) -> int | float:
        """Return the requested number of components, or fraction of variance.

        Parameters
        ----------
        rows : float
            Number of pooled rows.
        features : int
            Number of features.

        Returns
        -------
        int or float

        Raises
        ------
        ConfigError, DataError
            If there are too few rows or features for so many, or a single row.
        """
        check_components(self.options.n_components, rows, features)
        return self.options.n_components

    def build_model(self, solution: Solution) -> PCAModel:
        """Build the model from the result of the method, with the sites' influence and all notes.

        Parameters
        ----------
        solution : Solution

        Returns
        -------
        PCAModel

        Raises
        ------
        ContractError
            If a party's moments are of no rows, or a party holds more than `max-share` of a component.
        """
        center, self.influence = self.options.centred, ()
        evidence: Evidence = solution.evidence or Evidence()
        units = evidence.units or ()
        if evidence.contributions is not None:
            self.influence = evidence.contributions.influence(solution, center=center, limit=self.config.max_share)
            units = evidence.contributions.units() if evidence.units is None else units
            texts = influence_notes(self.influence, solution.pairs.values)
            texts += evidence.contributions.equal_notes()
            solution = solution.with_details(notes=texts, measurements=influence_measurements(self.influence))
        measured = dict(solution.measurements)
        pairs = solution.pairs.with_rank_bound(max_row_count(solution.rows) - center)
        if np.any(evidence.error_bound):
            weights = 1.0 if solution.scale is None else solution.scale**-2
            rounding = float(np.sum(evidence.error_bound * weights)) / solution.total
            measured["fixed_point_variance_share"] = rounding
            pairs = replace(solution.pairs, rank=None, error=rounding * solution.total)  # a variance may be lost
        is_deviation = self.options.divided == self.options.scaled  # and not the root of a weight
        notes = [*evidence.cautions, *solution.notes, *unit_notes(units, ())]
        if solution.scale is not None and is_deviation and not self.sees_single_replies:
            notes.append(HIDDEN_UNITS_NOTE)
        stored = evidence.stored
        if stored is not None:
            notes.append(STORED_MOMENTS_NOTE)
            from fedpca_flwr.model.second_moments import Preparation  # few runs store moments

            preparation = Preparation(
                n_components=pairs.values.size,
                center=center,
                scale=solution.scale is not None,
                indicators=tuple(range(stored.n_features - self.config.indicators, stored.n_features)),
                divisor=solution.divisor,
                transform=self.config.transform,
                adjusted=solution.adjustment is not None,
            )
            stored = replace(stored, preparation=preparation)
        log = self.history(self.certainty(pairs), notes, measured)
        if units:
            log["other_units"] = units
        if self.influence:
            log["influence"] = []
        model = replace(PCAModel.of(solution, log), moments_=stored)
        if not self.card.differentially_private:
            log["notes"] += shrinkage_notes(model)
        return model

    def run_projection(self, model: PCAModel, request: Fields) -> Program:
        """Let every party project its own rows, and check the remaining squared error against the model.

        Parameters
        ----------
        model : PCAModel
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
        if self.script["project"].in_clear:  # the replies are constant
            yield Round("project", request)
            return
        fit: Total | None = yield SumRound("project", request)
        if fit is None:
            model.log["notes"].append("a party left before the last round: the squared error is not measured")
            return
        rows, expected_rows = float(fit["count"]), self.projected_rows(model)
        if abs(rows - expected_rows) > (1e-9 * rows if self.config.weights else 0):  # sums of weights are rounded
            raise ContractError(
                f"all parties together project {rows:.17g} rows, but the model is of {expected_rows} of "
                "theirs; did a party's data change during the run?"
            )
        mean = np.zeros(1) if model.mean_ is None else model.mean_
        unit = 1.0 if model.scale_ is None else model.scale_
        rounding = float(((np.finfo(np.float64).eps * mean / unit) ** 2).sum())
        allowed = 1e-6 * model.total_variance + rounding if self.exact else np.inf
        check_squared_error(model, float(fit["squared"]) / rows, self.squared_error(model), allowed)
        for stage in self.stages:
            stage.conclude(model, fit)
