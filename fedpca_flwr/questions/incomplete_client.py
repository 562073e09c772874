"""`IncompleteClient`: what a party returns about rows with missing values, for the statistics of `incomplete`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.errors import ContractError, DisclosureError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.factor_em import FactorGaussian, factor_sums, filled_by, squared_error_by_factors
from fedpca_flwr.maths.gap_groups import GappedRows, Patterns, of_rows
from fedpca_flwr.maths.gaussian_em import Gaussian, expected_sums
from fedpca_flwr.maths.incomplete_rows import FLOOR, squared_error_of
from fedpca_flwr.maths.moments import pack, symmetric
from fedpca_flwr.maths.rows import Rows, chunks
from fedpca_flwr.protocol.payload import Fields
from fedpca_flwr.protocol.question import SERVER
from fedpca_flwr.questions.incomplete import unit_of
from fedpca_flwr.questions.rows_run import RowsClient

ELEMENTS = 2**22
"""Of a chunk, each pattern of which is factored: larger ones have fewer patterns a row."""

logger = logging.getLogger("fedpca_flwr.client")


class IncompleteClient(RowsClient):
    """What it answers is of the count, the mean and the scatter of each group of rows with the same gaps.

    Rows without any value have no part in any sum, and scores of zero.
    """

    def statistics(self, phase: str, asked: Fields) -> Fields:
        """As `PCAClient.statistics`, of the phases in `fedpca_flwr.questions.incomplete` and `incomplete_factors`."""
        answers: dict[str, Callable[[Fields], Fields]] = {
            "observed": self.observed,
            "deviations": self.deviations,
            "expected": self.expected,
            "products": self.products,
            "project": self.project,
        }
        with np.errstate(all="ignore"):  # what overflows is refused as a reply that is not finite
            return answers[phase](asked)

    def require_ready(self) -> None:
        super().require_ready()
        node = self.site.node
        if len(self.data) < node.min_rows:
            raise DisclosureError(
                f"of this site's rows fewer than its own minimum (node-config 'min-rows' = {node.min_rows}) are left "
                "without those whose gaps too few of its rows share; fill what is rarely missing, or leave such "
                "columns out, or set gaps='all' in its node-config if it is content with what that tells"
            )

    @cached_property
    def _patterns(self) -> tuple[Patterns, NDArray[np.bool_]]:
        """The gaps of this party's rows, and which of these take part."""
        node, patterns = self.site.node, Patterns.in_rows(self._unscaled)
        if not node.data or node.gaps == "all":
            return patterns, np.ones(patterns.of.size, dtype=bool)
        return patterns, patterns.shared(node.min_rows, node.round_rows)

    @cached_property
    def data(self) -> Rows:
        """This party's rows but for those whose gaps too few share: a sum over such a group would be of these few.

        The server chooses the model, so it can make one in which all that is expected but of a single pattern is known.
        """
        taken = self._patterns[1]
        return self._unscaled if taken.all() else of_rows(self._unscaled, taken)

    @cached_property
    def gapped(self) -> GappedRows:
        """The same rows, by pattern."""
        patterns, taken = self._patterns
        return GappedRows(self.data, patterns._replace(of=patterns.of[taken]))

    def observed(self, asked: Fields) -> Fields:
        """Rows, those without any value, the sums of what is observed of each feature, and how many rows that are.

        By a covariance, how many rows have both of two features instead.
        """
        rows, patterns = self.gapped, self.gapped.patterns
        if left_out := len(self._unscaled) - len(self.data):
            logger.warning(
                "%d rows take no part in this run, since fewer rows than 'min-rows' = %d share their gaps, or to make "
                "the number of rows a multiple of 'round-rows'; they get scores",
                left_out,
                self.site.node.min_rows,
            )
        empty = int(patterns.counts[patterns.without_values].sum())
        counts = {"values": rows.counts} if self.options.model == "factors" else {"pairs": self._pairs(patterns)}
        return {"count": np.asarray(len(self.data)), "empty": np.asarray(empty), **counts, "sum": rows.totals}

    @staticmethod
    def _pairs(patterns: Patterns) -> Array:
        seen = (~patterns.missing).astype(np.float64)
        return pack((patterns.counts[:, None] * seen).T @ seen)

    def deviations(self, asked: Fields) -> Fields:
        """Sums of deviations from the centre, and of their squares, of what is observed."""
        own = self.gapped.own_values()
        deviation = np.where(own.counts > 0, (own.mean - asked["centre"]) + own.remainder, 0.0)
        return {"shift": own.counts * deviation, "diagonal": own.squares + own.counts * deviation**2}

    def expected(self, asked: Fields) -> Fields:
        """Expected deviations from a model's mean, and their products."""
        model = Gaussian(asked["mean"], symmetric(asked["covariance"], asked["mean"].size))
        try:
            sums = expected_sums(self.gapped, model, asked["centre"], unit_of(asked["spread"], scale=True))
        except ValueError as error:
            raise ContractError(f"{SERVER}: 'covariance': {error}") from None
        return {"first": sums.first, "second": sums.second}

    def products(self, asked: Fields) -> Fields:
        """Expected deviations from the mean of a model of factors, and their products with its directions."""
        model = FactorGaussian(asked["mean"], asked["basis"], asked["variances"], float(asked["noise"]))
        if model.noise < FLOOR or model.variances.min() <= model.noise:
            raise ContractError(
                f"{SERVER}: 'noise' is {model.noise:.3g}, expected at least {FLOOR:.3g} and below all 'variances'"
            )
        unit = unit_of(asked["spread"], scale=self.options.scale)
        sums = factor_sums(self.gapped, model, asked["centre"], unit)
        return {
            "first": sums.first,
            "product": sums.product,
            "square": np.asarray(sums.square),
            "likelihood": np.asarray(sums.likelihood),
        }

    def project(self, asked: Fields) -> Fields:
        """Keep the scores of all of this party's rows; rows that took part, and the squared error that is left."""
        squared = np.maximum(self._squared_error(asked), 0.0)
        self.keep_scores(asked)
        return {"count": np.asarray(len(self.data)), "squared": np.asarray(squared)}

    def _squared_error(self, asked: Fields) -> float:
        mean, components = asked["mean"], asked["components"]
        scale = asked["scale"] if asked["scale"].size else np.ones_like(mean)
        if "factors" in asked:
            return squared_error_by_factors(self.gapped, asked["factors"], mean, scale, components)
        try:
            covariance = symmetric(asked["covariance"], mean.size)
            return squared_error_of(self.gapped, covariance, mean, scale, components)
        except ValueError as error:
            raise ContractError(f"{SERVER}: 'covariance': {error}") from None

    def centred(self, rows: Rows, asked: Fields) -> Iterator[Array]:
        """As `RowsClient.centred`, with what is expected of rows in place of missing values."""
        factors = asked.get("factors")
        covariance = None if factors is not None else symmetric(asked["covariance"], asked["mean"].size)
        for chunk in chunks(rows, ELEMENTS):
            deviations = np.subtract(chunk, asked["mean"], dtype=np.float64)
            yield filled_by(deviations, covariance, factors) / (asked["scale"] if asked["scale"].size else 1.0)
