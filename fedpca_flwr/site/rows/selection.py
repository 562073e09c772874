"""Selections: the only way from an answer to a site's rows.

A site makes a `Selection` of rows for each kind of sums of a run (`fedpca_flwr.site.site.Site.select`). Before the
first answer it counts the rows of each, looks for rare values, and compares the rows with those of earlier runs. What
an answer can take from a selection is one of three kinds:

- **sums**: a `Vault` of the moments;
- **rows about a centre** that the server chose (`Selection.about`), for functions that select or bend rows: nearest
  clusters, counts of odd rows, directions. These tell single rows, but nothing by rounding: far centres are refused;
- **rows**, for functions without a number of the server: groups by gaps, genotypes, streams.

The last two are for methods and stages whose cards declare the need, which a site allows by its own keys.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.errors import ContractError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.rows import Rows, centred_chunks, weighted_count
from fedpca_flwr.protocol.journal import State
from fedpca_flwr.site.rows.vault import Vault


@dataclass(frozen=True)
class Selection:
    """Rows of a site that are together in all sums of one kind."""

    name: str  # of the selection within the run; empty for all rows that take part
    _rows: Rows  # (n, d)
    needs: Collection[str] = ()  # what the method's card and the stages declare; if empty, an answer reads no row
    mask: NDArray[np.bool_] | None = None  # which of the m rows that take part are selected; None for all
    by_gaps: bool = False  # whether answers may tell the sums of each group of rows with the same gaps

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._rows)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and of features."""
        n, d = self._rows.shape
        return n, d

    @property
    def count(self) -> int | float:
        """Number of rows, or the sum of their weights."""
        return weighted_count(self._rows)

    @property
    def rows(self) -> Rows:
        """The rows themselves; raise ContractError unless the run's card or a stage declares that it needs them."""
        if not self.needs:
            raise ContractError("this run's answers are functions of moments: its card declares no need of rows")
        return self._rows

    def with_rows(self, rows: Rows) -> Selection:
        """Return the same rows in another form, such as standardised."""
        return replace(self, _rows=rows)

    def vault(self, state: State, *, columns: int, parties: int, threads: int, always_form: bool) -> Vault:
        """Return the store of the rows' moments (`Vault`)."""
        return Vault(self._rows, state, columns=columns, parties=parties, threads=threads, always_form=always_form)

    def about(
        self, vault: Vault, centre: Array, scale: Array | None = None, directions: Array | None = None
    ) -> Iterator[Any]:
        """Return the rows less a centre that the server chose, divided by a scale, chunk by chunk.

        Directions (k, d) are those by which these will be multiplied. Raise ContractError for a centre that is too far
        away (`Vault.require_near`), or if no need of rows is declared.
        """
        unit = 1.0 if scale is None else scale
        vault.require_near(centre, unit, None if directions is None else directions / unit)
        return centred_chunks(self.rows, centre, scale)
