"""`RowsStrategy`: a run where the parties hold rows of the same features: the method, the model, the last round."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedpca_flwr import shrinking
from fedpca_flwr.errors import ContractError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.genotypes import deviation
from fedpca_flwr.model import PCAModel
from fedpca_flwr.protocol.payload import Fields
from fedpca_flwr.protocol.phase import Ask, Program, Sum, Total
from fedpca_flwr.protocol.strategy import PCAStrategy
from fedpca_flwr.second_moments import SecondMoments
from fedpca_flwr.solution import Solution, check_components
from fedpca_flwr.statistics.genotypes import about_zero, genotype_notes, pooled_counts, told_frequencies
from fedpca_flwr.statistics.influences import AddedContributions, Contributions, largest_of, notes_on
from fedpca_flwr.statistics.keeping import KEPT
from fedpca_flwr.statistics.row_limits import Pooled
from fedpca_flwr.statistics.units import UNSEEN
from fedpca_flwr.unit_notes import unit_notes


class RowsStrategy(PCAStrategy):
    """Base of the strategies for data split by rows. A method adds `aggregate`.

    Attributes
    ----------
    missed : ndarray of shape (d,)
        Bound on what fixed point rounded off the variances, times rows; set by the statistics that a method asks for.
    joined : ndarray of shape (d,)
        Diagonal of the scatter that the rows of this run are added to.
    known : Pooled or None
        What the allele counts told of standardised genotypes: it is not asked for again where only sums are shown.
    cautions : sequence of str
        What a reader must know of them.
    kept : SecondMoments or None
        The moments of all rows, where the run is to keep them; set likewise.
    contributions : Contributions, AddedContributions or None
        What each party added to the pooled moments, where the server sees that; set by the statistics too.
    units : sequence of dict
        Features that a party has in another unit, where the server sees each party's means and deviations.
    """

    missed: Array = np.zeros(1)
    joined: Array = np.zeros(1)
    known: Pooled | None = None
    cautions: Sequence[str] = ()
    kept: SecondMoments | None = None
    contributions: Contributions | AddedContributions | None = None
    units: Sequence[dict[str, Any]] = ()

    @abstractmethod
    def aggregate(self) -> Generator[Ask, Any, Solution]:
        """The method: asks, and returns what it found."""

    def program(self) -> Program:
        if getattr(self.options, "genotypes", False):
            model, solution = yield from self._of_genotypes()
        else:
            solution = yield from self.aggregate()
            model = self.modelled(solution)
        yield from self.projected(model, solution)
        self._model = model

    def _of_genotypes(self) -> Generator[Ask, Any, tuple[PCAModel, Solution]]:
        """The method on standardised genotypes: its model and solution, in the unit of the genotypes."""
        counts = yield from pooled_counts()
        self.known = about_zero(counts)
        solution = yield from told_frequencies(self.aggregate(), counts.frequencies)
        model = self.modelled(solution.extended(notes=genotype_notes(counts)))
        unit = deviation(counts.frequencies)
        mean = 2 * counts.frequencies  # what is left of the solution's is rounding
        return replace(model, mean_=mean, scale_=unit), replace(solution, mean=mean, scale=unit)

    def squared_error(self, model: PCAModel) -> float:
        """What the parties' own rows must have as mean squared error in the last round, if the model is exact."""
        return model.squared_error

    def rows_here(self, model: PCAModel) -> int:
        """How many rows the parties of this run must project in the last round."""
        return model.n_samples_

    def loadings(self, model: PCAModel, solution: Solution) -> Fields:
        """What the parties project their own rows with."""
        components, mean = model.loadings()
        scale = np.empty(0) if solution.scale is None else solution.scale
        return {"components": components, "mean": mean, "scale": scale}

    def n_components(self, rows: int, features: int) -> int | float:
        """The wanted number of components, or the fraction of variance, checked against the pooled data.

        Raises
        ------
        ConfigError
        """
        check_components(self.options.n_components, rows, features)
        return self.options.n_components

    def modelled(self, solution: Solution) -> PCAModel:
        """The model of what the method found."""
        center, influence = getattr(self.options, "center", True), []
        if self.contributions is not None:
            influence = self.contributions.influence(solution, center=center, limit=self.config.max_share)
            self.units = self.contributions.units()
            solution = solution.extended(notes=notes_on(influence), measured=largest_of(influence))
            self.contributions = None  # they are large
        measured = dict(solution.measured)
        pairs = solution.pairs.of_rank(solution.rows - center)
        if self.transport.sums_only and np.any(self.missed):
            weights = 1.0 if solution.scale is None else solution.scale**-2
            rounding = float(np.sum(self.missed * weights)) / solution.total
            measured["fixed_point_variance_share"] = rounding
            pairs = replace(solution.pairs, rank=None, error=rounding * solution.total)  # a variance may be lost
        unseen = [UNSEEN] if self.transport.sums_only and getattr(self.options, "scale", False) else []
        odd = unit_notes(self.units, ())
        notes = [*self.cautions, *solution.notes, *odd, *unseen, *([] if self.kept is None else [KEPT])]
        log = self.history(self.certainty(pairs), notes, measured)
        if self.units:
            log["other_units"] = self.units
        if influence:
            log["influence"] = [one.entry() for one in influence]
        model = replace(PCAModel.of(solution, log), moments_=self.kept)
        if not self.card.differentially_private:
            log["notes"] += shrinking.notes(model)
        return model

    def projected(self, model: PCAModel, solution: Solution) -> Program:
        """Let every party project its own rows; what that leaves must be what the model foretells."""
        asked = dict(self.loadings(model, solution))
        if self.card.differentially_private:
            yield Ask("project", asked)
            return
        if self.transport.sums_only:
            asked |= {"rows": np.asarray(self.rows_here(model)), "total": np.asarray(solution.total)}
        fit: Total | None = yield Sum("project", asked)
        if fit is None:
            model.log["notes"].append("a party left before the last round: the squared error is not measured")
            return
        self._require_same_rows(int(fit["count"]), model)
        self._verify(model, float(fit["squared"]) / int(fit["count"]))
        self.conclude(model, fit)

    def conclude(self, model: PCAModel, fit: Total) -> None:
        """Note what else the last round told, of a method that asks more in it."""

    def _require_same_rows(self, rows: int, model: PCAModel) -> None:
        if rows != self.rows_here(model):
            raise ContractError(
                f"all parties together project {rows} rows, but the model is of {self.rows_here(model)} of theirs; "
                "did a party's data change during the run?"
            )

    def _verify(self, model: PCAModel, measured: float) -> None:
        predicted = self.squared_error(model)
        mean = np.zeros(1) if model.mean_ is None else model.mean_
        unit = 1.0 if model.scale_ is None else model.scale_
        rounding = float(((np.finfo(np.float64).eps * mean / unit) ** 2).sum())
        allowed = 1e-6 * model.total_variance + rounding if self.exact else np.inf
        difference = abs(measured - predicted)
        if not (np.isfinite(difference) and difference <= allowed):  # one is NaN where a party has sent such numbers
            raise ContractError(
                f"the parties' own rows do not fit the model: their mean squared error is {measured:.9g}, but the "
                f"eigenvalues say {predicted:.9g}; did a party's data change during the run?"
            )
        model.log["measured"] |= {"squared_error_per_row": measured, "predicted_squared_error_per_row": predicted}
