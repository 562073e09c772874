"""`RowsClient`: what a party returns about its own rows, for the statistics of `rows` and `products` beside."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from fedpca_flwr.errors import ContractError
from fedpca_flwr.loadings import Loadings
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.blocks import Rows, column_sums
from fedpca_flwr.maths.centred import centred_chunks
from fedpca_flwr.maths.genotypes import count_alleles, deviation, standard_chunks, standardised
from fedpca_flwr.maths.uncentred import mean_products, mean_squares, total_of
from fedpca_flwr.protocol.client import PCAClient
from fedpca_flwr.protocol.payload import Fields
from fedpca_flwr.protocol.phase import SERVER
from fedpca_flwr.site.policy import permit_calls
from fedpca_flwr.site.scores import score_file
from fedpca_flwr.site.site import Site
from fedpca_flwr.statistics.genotypes import CHECKED, FREQUENCIES, require_frequencies, require_genotypes
from fedpca_flwr.statistics.moment_fields import head_fields
from fedpca_flwr.statistics.own_scatter import OwnScatter
from fedpca_flwr.statistics.row_limits import require_bound, require_few_rows

FARTHEST = 2.0**10
"""A centre may be so many times `bound` away from a party's mean: beyond it no mean of the run's rows can be."""


class RowsClient(PCAClient):
    """Answers what the statistics of rows ask. A method with questions of its own adds them to `statistics`."""

    site: Site

    @property
    def within(self) -> bool:
        """Whether scatters are about this party's own mean, also where all share a centre."""
        return False

    def require_ready(self) -> None:
        if self.transport.sums_only and not self.card.differentially_private and self.site.config.bound:
            require_bound(self.site.config.bound)
            self.site.permit_bound(self.card.split)
        if self.transport.sums_only and not self.card.differentially_private:
            require_few_rows(len(self.data), self.site.node.num_partitions)
        if self._of_genotypes and not self.journal.begun() and CHECKED not in self.site.state:
            require_genotypes(self._unscaled)
            permit_calls(self.site.node, self.site.table)
            self.site.state[CHECKED] = []

    @property
    def data(self) -> Rows:
        """This party's rows; of genotypes, as soon as their frequencies are known, the standardised ones."""
        if FREQUENCIES.name not in self.site.state:
            return self._unscaled
        return standardised(self._unscaled, self.site.state[FREQUENCIES.name][0])

    def take(self, asked: Fields) -> None:
        told = FREQUENCIES.name in self.site.state
        if FREQUENCIES.name in asked and not told:
            require_frequencies(asked)
            self.site.state[FREQUENCIES.name] = [asked[FREQUENCIES.name]]

    @property
    def _unscaled(self) -> Rows:
        return self.site.data(self.card.split)

    @property
    def _of_genotypes(self) -> bool:
        return getattr(self.options, "genotypes", False)

    @property
    def used(self) -> Rows:
        """The rows (n, d) that the statistics are of."""
        return self.data

    @property
    def columns(self) -> int:
        """About how many columns the scatter will be multiplied with in the whole run."""
        return 0

    @cached_property
    def own(self) -> OwnScatter:
        """The scatter of these rows, kept for the run where that is cheaper."""
        bounded = self.transport.sums_only and not self.card.differentially_private and self.site.config.bound
        farthest = FARTHEST * self.site.config.bound if bounded else math.inf
        return OwnScatter(
            self.used, self.site.state, columns=self.columns, parties=self.public.parties, farthest=farthest
        )

    def statistics(self, phase: str, asked: Fields) -> Fields | Sequence[Fields]:
        """As `PCAClient.statistics`, of the phases in `fedpca_flwr.statistics.rows` and `products`."""
        answers: dict[str, Callable[[Fields], Fields | Sequence[Fields]]] = {
            "alleles": self.alleles,
            "moments": self.moments,
            "sums": self.sums,
            "deviations": self.deviations,
            "scatter": self.scatter,
            "heads": self.heads,
            "start": self.start,
            "product": self.product,
            "uncentred": self.uncentred,
            "project": self.project,
        }
        return answers[phase](asked)

    def alleles(self, asked: Fields) -> Fields:
        """Of each variant the calls, the copies of the counted allele, and the sum of squares."""
        rows, called, alleles, squares = count_alleles(self._unscaled)
        return {"count": np.asarray(rows), "called": called, "alleles": alleles, "squares": squares}

    def moments(self, asked: Fields) -> Fields:
        """Count, mean and scatter."""
        found = self.own.moments()
        return {**head_fields(found.head, found.diagonal()), "scatter": found.scatter}

    def sums(self, asked: Fields) -> Fields:
        """Count and sum."""
        return {"count": np.asarray(len(self.used)), "sum": column_sums(self.used)}

    def deviations(self, asked: Fields) -> Fields:
        """Sums of deviations from the centre, and of their squares."""
        (head, diagonal), deviation = self.own.head_and_diagonal(), self.own.deviation(asked["centre"])
        return {"shift": head.n * deviation, "diagonal": diagonal + head.n * deviation**2}

    def scatter(self, asked: Fields) -> Fields:
        """Packed scatter about the centre."""
        found = self.own.moments()
        self.own.deviation(asked["centre"])  # or it is too far away
        return {"scatter": found.scatter if self.within else found.scatter_about(asked["centre"])}

    def uncentred(self, asked: Fields) -> Sequence[Fields]:
        """Count, sum and second moments about zero, in parts that together have twice the digits of float64."""
        found = self.own.moments()
        total = total_of(found.head)
        first = {"count": np.asarray(found.count), "sum": total[0], "scatter": found.scatter}
        if self.within:
            high, low = mean_squares(found.head)
            return [{**first, "squares": found.diagonal()}, {"sum": total[1], "squares": high}, {"squares": low}]
        high, low = mean_products(found.head)
        return [first, {"sum": total[1], "scatter": high}, {"scatter": low}]

    def heads(self, asked: Fields) -> Fields:
        """Count, mean, and the scatter's diagonal."""
        head, diagonal = self.own.head_and_diagonal()
        return {**head_fields(head, diagonal), "diagonal": diagonal}

    def first_block(self) -> Array:
        """The block (d, b) of the first product, which all parties make alike."""
        raise NotImplementedError

    def start(self, asked: Fields) -> Fields:
        """The same, and the scatter's product with the first block."""
        return {**self.heads(asked), "product": self.own.times(self.first_block())}

    def product(self, asked: Fields) -> Fields:
        """The scatter's product with a block: about the centre that all share, or else about this party's own mean."""
        V = asked["block"].astype(np.float64)
        return {"product": self.own.times_about(asked["centre"], V) if "centre" in asked else self.own.times(V)}

    def loadings(self, asked: Fields) -> Array:
        """The components (k, d) by which this party projects its rows."""
        return asked["components"]

    def centred(self, rows: Rows, asked: Fields) -> Iterator[Any]:
        """Chunks of rows, centred and scaled, as this party projects them."""
        if self._of_genotypes:
            return standard_chunks(rows, asked["mean"], asked["scale"])
        return centred_chunks(rows, asked["mean"], asked["scale"] if asked["scale"].size else None)

    def own_loadings(self, asked: Fields, components: Array) -> Loadings:
        """What this party projects new rows with."""
        scale = asked["scale"] if asked["scale"].size else np.ones_like(asked["mean"])
        return Loadings(components, asked["mean"], scale, columns=self.site.table.columns)

    def project(self, asked: Fields) -> Fields:
        """Keep the scores of this party's own rows, and what gave them; rows, and the squared error that is left."""
        if not self.card.differentially_private:
            squared = self.squared_error(asked)
            self.keep_scores(asked)
            self.own.drop()
            return {"count": np.asarray(len(self.data)), "squared": np.asarray(squared)}
        try:
            self.keep_scores(asked)
        except Exception as error:  # nothing of the rows may show here, not even that they cannot be projected
            self.site.report(error)
        return {"count": np.asarray(1), "squared": np.asarray(0.0)}

    def squared_error(self, asked: Fields) -> float:
        """What the projection leaves of the squares of this party's rows, from their moments."""
        components = self.loadings(asked)
        if not self._of_genotypes:
            return self.own.squared_error(asked["mean"], asked["scale"], components)
        self._require_told(asked)
        return self.own.squared_error(np.zeros_like(asked["mean"]), np.empty(0), components)

    def _require_told(self, asked: Fields) -> None:
        """Refuse to project genotypes otherwise than by the frequencies that the run told."""
        frequencies = self.site.state[FREQUENCIES.name][0]
        expected = {"mean": 2 * frequencies, "scale": deviation(frequencies)}
        if any(not np.array_equal(asked[name], known) for name, known in expected.items()):
            raise ContractError(f"{SERVER}: 'mean' and 'scale' are not those of the 'frequencies' that it told before")

    def keep_scores(self, asked: Fields) -> None:
        """Write this party's own files; they stay here."""
        components, rows, node = self.loadings(asked), self.site.table.rows, self.site.node
        if self.writes_scores:
            with np.errstate(all="ignore"), score_file(node.scores, len(rows), len(components)) as keep:
                for part in (self._unscaled, rows[len(self._unscaled) :]):
                    for centred in self.centred(part, asked):
                        keep(centred @ components.T)
        if node.loadings:
            self.own_loadings(asked, components).save(node.loadings)

    @property
    def writes_scores(self) -> bool:
        """Whether this party projects its rows, one by one, for itself."""
        return bool(self.site.node.scores)
