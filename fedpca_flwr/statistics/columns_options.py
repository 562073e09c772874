"""Options of every method for data split by columns that fits a model."""

from __future__ import annotations

from fedpca_flwr.protocol.card import CountOptions


class ColumnsOptions(CountOptions):
    """How each party's columns are centred and scaled."""

    center: bool = True
    """Each party subtracts the means of its own columns."""
    scale: bool = False
    """Each party divides its own columns by their standard deviations."""

    @property
    def about_means(self) -> bool:
        """Whether columns are about their means."""
        return self.center
