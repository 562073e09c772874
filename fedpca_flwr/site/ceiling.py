"""A site's own public bound on its values: runs are held against it, and never against the rows."""

from __future__ import annotations

from fedpca_flwr.errors import DataError, DisclosureError
from fedpca_flwr.maths.blocks import Rows, largest_size


def permit_under(ceiling: float, rows: Rows, bound: float) -> None:
    """Refuse a run whose `bound` is below this site's own, and rows (n, d) beyond that.

    Which of the two happens does not depend on the run's bound together with the rows, so no number of runs tells
    more of the rows than that they are within the ceiling, or not.

    Raises
    ------
    DataError, DisclosureError
    """
    if bound < ceiling:
        raise DisclosureError(
            f"the run's 'bound' is {bound:g}, below what this site says publicly of its values, {ceiling:g} "
            "(node-config 'bound'); run with this or a larger one, which costs nothing"
        )
    if largest_size(rows) > ceiling:
        raise DataError(
            f"this site's data hold values beyond what its own node-config says of them ('bound' = {ceiling:g}, in "
            "size); the site must correct it"
        )
