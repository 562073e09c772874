"""`ColumnsClient`: what a party returns about its own columns, for every statistic of `fedpca_flwr.statistics.columns`.

Products with a party's ``A = X X'`` (n x n, of rank r) tell all of A once r columns of them are known, whatever the
block: ``A = A Q (Q' A Q)^+ (A Q)'`` for a random Q (n x r). So a site whose `may-show` is ``scores`` counts how many
runs over the same rows may ask for in all, before it answers anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from fedpca_flwr.loadings import Loadings, run_digest
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.columns import Columns, columns_of, energies
from fedpca_flwr.protocol.client import PCAClient
from fedpca_flwr.protocol.payload import Fields
from fedpca_flwr.site.scores import score_file
from fedpca_flwr.site.site import Site
from fedpca_flwr.statistics.row_limits import require_bound, require_few_rows


class ColumnsClient(PCAClient):
    """Answers what the statistics of columns ask. A method with questions of its own adds them to `statistics`."""

    site: Site

    @property
    def products(self) -> int:
        """Columns of products with this party's ``X X'`` that a run may ask for in all, at most."""
        return 0

    def require_ready(self) -> None:
        if self.transport.sums_only and self.site.config.bound:
            require_bound(self.site.config.bound)
            self.site.permit_bound(self.card.split)
            require_few_rows(len(self.data), self.site.node.num_partitions)
        self._permit_products(counted=False)

    @cached_property
    def own_columns(self) -> Columns:
        """This party's columns, centred and scaled as the run says."""
        return columns_of(self.data, center=self.options.center, scale=self.options.scale)

    def statistics(self, phase: str, asked: Fields) -> Fields | Sequence[Fields]:
        """As `PCAClient.statistics`, of the phases in `fedpca_flwr.statistics.columns`."""
        answers = {"rows": self.rows, "energy": self.measures, "energies": self.energies, "project": self.project}
        return answers[phase](asked)

    def rows(self, asked: Fields) -> Fields:
        """What this party says of its rows; in clear of all its entries together too."""
        self._permit_products(counted=True)  # it is the first question
        n, f = self.data.shape
        ids = np.empty(0, np.uint64) if self.site.table.ids is None else self.site.table.ids
        about = {"count": np.asarray(n), "features": np.asarray(f), "ids": ids}
        return about if self.transport.sums_only else {**about, **self.measures(asked)}

    def measures(self, asked: Fields) -> Fields:
        """Energy of its columns."""
        return {"energy": np.asarray(self.own_columns.energy)}

    def energies(self, asked: Fields) -> Fields:
        """What its columns hold of the directions."""
        return {"energies": energies(self.own_columns, asked["directions"])}

    def project(self, asked: Fields) -> Fields:
        """Keep the scores of the rows and the loadings of this party's own columns; the energy that is left."""
        U, singular = asked["directions"], asked["singular"]
        projected = self.own_columns.T @ U
        with np.errstate(all="ignore"):  # whatever was asked, nothing of the rows shows in an error
            self.keep_scores(U * singular)
            if self.site.node.loadings:
                held = singular > 0
                components = np.where(held, projected / np.where(held, singular, 1.0), 0.0).T
                # what is longer than a whole unit vector, of which it is this party's part, is rounding
                components[np.linalg.norm(components, axis=1) > 1 + 1e-6] = 0.0
                fitted, run = self.own_columns, run_digest(U, singular)
                own = Loadings(components, fitted.mean, fitted.scale, run, self.site.table.columns)
                own.save(self.site.node.loadings)
        return {"squared": np.asarray(max(0.0, self.own_columns.energy - float(np.vdot(projected, projected))))}

    def keep_scores(self, scores: Array) -> None:
        """Write the scores (n, k), in the order of the site's own file."""
        places = self.site.table.places
        with score_file(self.site.node.scores, *scores.shape) as keep:
            keep(scores if places is None else scores[places])

    def keep_and_count(self, scores: Array) -> Fields:
        """The answer of a party that has written the scores, and can tell no error."""
        self.keep_scores(scores)
        return {"count": np.asarray(len(self.data))}

    # Inside

    def _permit_products(self, *, counted: bool) -> None:
        """Refuse a run whose products could tell all inner products, where this site shows scores only.

        A sum has at least one column of each other party.
        """
        node, columns = self.site.node, self.data.shape[1]
        if node.data and node.may_show == "scores" and self.products:
            columns += node.num_partitions - 1 if self.transport.sums_only else 0
            self.site.permit_products(self.card.split, self.products, columns=columns, counted=counted)
