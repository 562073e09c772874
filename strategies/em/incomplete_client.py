"""`IncompleteClient`: a party whose rows have missing values, the rows that take part, and the projection of rows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from typing_extensions import override

from fedpca_flwr.errors import ContractError, DisclosureError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.incomplete_rows import MAX_ELEMENTS, Patterns, fill_rows
from fedpca_flwr.maths.moments import unpack_symmetric
from fedpca_flwr.maths.rows import Rows, as_blocks, chunks
from fedpca_flwr.protocol.payload import Fields
from fedpca_flwr.protocol.question import SERVER
from fedpca_flwr.questions.rows_client import Projection, RowsClient
from fedpca_flwr.site.rows.selection import Selection
from fedpca_flwr.site.rows.vault import require_near
from fedpca_flwr.strategies.em.factor_em import squared_error_by_factors
from fedpca_flwr.strategies.em.gap_groups import GappedRows
from fedpca_flwr.strategies.em.gaussian_em import squared_error_by_covariance

CHUNK_ELEMENTS = 2**22  # of a chunk of rows, each pattern of which is factored: larger chunks have fewer a row


class IncompleteClient(RowsClient):
    """Client of a party whose rows have missing values, grouped by which features are missing.

    Rows without any value have no part in any sum, and scores of zero.
    """

    @override
    def statistics(self, phase: str, request: Fields) -> Fields | Sequence[Fields]:
        """Answer a question without warnings of overflow: replies that are not finite are refused elsewhere."""
        with np.errstate(all="ignore"):
            return super().statistics(phase, request)

    @override
    def require_ready(self) -> None:
        """Raise DisclosureError if fewer than ``min-rows`` rows have patterns of missing values that are not rare.

        With levels, unless gaps='all', raise it too for levels that fewer rows with the same gaps have.
        """
        super().require_ready()
        node = self.site.node
        if len(self.selection) < node.min_rows:
            raise DisclosureError(
                f"of this site's rows fewer than its own minimum (node-config 'min-rows' = {node.min_rows}) are left "
                "without those whose gaps too few of its rows share; fill what is rarely missing, or leave such "
                "columns out, or set gaps='all' in its node-config if it is content with what that tells"
            )
        if self.site.config.levels and node.data and node.gaps != "all":
            self._permit_levels()

    def _permit_levels(self) -> None:
        """Raise DisclosureError for levels that 1 to ``min-rows`` - 1 rows with the same gaps have."""
        indicators = slice(self.selection.shape[1] - self.site.config.indicators, None)
        patterns = self.gapped.patterns
        counts = np.zeros((len(patterns.missing), self.site.config.indicators))
        start = 0
        for chunk in chunks(self.selection.rows, CHUNK_ELEMENTS):
            np.add.at(counts, patterns.of[start : start + len(chunk)], chunk[:, indicators])
            start += len(chunk)
        if ((counts > 0) & (counts < self.site.node.min_rows)).any():
            raise DisclosureError(
                "among this site's rows with the same gaps there are levels that fewer rows have than its own minimum "
                f"(node-config 'min-rows' = {self.site.node.min_rows}), and EM adds up such rows by themselves; fill "
                "what is rarely missing, count such levels as 'other', or set gaps='all' in its node-config"
            )

    @property
    def patterns(self) -> Patterns:
        """Patterns of missing values of all rows."""
        return self.site.common_gaps[0]

    @cached_property
    @override
    def participants(self) -> Selection:
        """Rows of this party that take part: without rows whose pattern of missing values is too rare at the site."""
        included = self.site.common_gaps[1]
        return self.site.select(self.card.split, self.needs, mask=None if included.all() else included)

    @cached_property
    def gapped(self) -> GappedRows:
        """Rows that take part, grouped by their pattern of missing values."""
        mask = self.participants.mask
        of = self.patterns.of if mask is None else self.patterns.of[mask]
        return GappedRows(self.participants.rows, self.patterns._replace(of=of))

    @property
    @override
    def scored_rows(self) -> Rows:
        """Rows that take part and have a value."""
        empty = self.gapped.patterns.without_values[self.gapped.patterns.of]
        rows = self.participants.rows
        return as_blocks(rows, MAX_ELEMENTS)[~empty] if empty.any() else rows

    @override
    def projection(self, request: Fields) -> Projection:
        """Return a projection that imputes missing values by the request's covariance or factors.

        Raise ContractError if the covariance does not fit the mean.
        """
        covariance, factors = None, request.get("factors")
        if factors is None:
            try:
                covariance = unpack_symmetric(request["covariance"], request["mean"].size)
            except ValueError as error:
                raise ContractError(f"{SERVER}: 'covariance': {error}") from None
        projection = super().projection(request)
        return FilledProjection(**vars(projection), gapped=self.gapped, covariance=covariance, factors=factors)


@dataclass(frozen=True)
class FilledProjection(Projection):
    """Projection of rows with missing values, which are replaced by their expected values; see `Projection`.

    Missing values are predicted by ``covariance`` (d, d), or by ``factors`` (q + 1, d): the loadings of q factors and,
    in the last row, the noise variances. The other one is None.
    """

    gapped: GappedRows
    covariance: Array | None
    factors: Array | None

    @override
    def centred(self, rows: Rows) -> Iterator[Array]:
        """Centre rows, impute their missing values, divide by the scale, and yield chunks (m, d)."""
        for chunk in chunks(rows, CHUNK_ELEMENTS):
            deviations = np.subtract(chunk, self.mean, dtype=np.float64)
            yield fill_rows(deviations, self.covariance, self.factors) / (self.scale if self.scale.size else 1.0)

    @override
    def require_near(self) -> None:
        """Raise ContractError for a centre of the server at which observed values would be rounded."""
        values = self.gapped.observed_moments
        distance = (values.mean - self.mean) + values.remainder
        unit = self.scale if self.scale.size else 1.0
        require_near(distance, values.squares, np.maximum(values.counts, 1), values.mean, unit, self.components / unit)

    @override
    def squared_error(self) -> float:
        """Return the imputed rows' total squared error, at least 0; raise ContractError for a false covariance."""
        scale = self.scale if self.scale.size else np.ones_like(self.mean)
        if self.factors is not None:
            squared = squared_error_by_factors(self.gapped, self.factors, self.mean, scale, self.components)
        else:
            assert self.covariance is not None
            try:
                squared = squared_error_by_covariance(self.gapped, self.covariance, self.mean, scale, self.components)
            except ValueError as error:
                raise ContractError(f"{SERVER}: 'covariance': {error}") from None
        return max(float(squared), 0.0)
