"""How many columns of products a site's rows were in, over all runs: enough of them tell all inner products.

Runs add up: four of one column each tell as much as one of four. So what a run may ask for is noted in the journal,
beside a digest of the rows, before the run's first answer, whatever it then asks for.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedpca_flwr.errors import ConfigError, DisclosureError
from fedpca_flwr.maths.blocks import Rows
from fedpca_flwr.node_config import NodeConfig
from fedpca_flwr.protocol.journal import Journal
from fedpca_flwr.site.repeats import ALLOW, rows_digest

PRODUCTS = "products"
"""The kind of the journal's events, and the name of what it keeps of a run that is counted."""


def permit_products(journal: Journal, node: NodeConfig, rows: Rows, asked: int, *, columns: int, counted: bool) -> None:
    """Refuse a run whose products, with those of earlier runs over the same rows, could tell all inner products.

    Parameters
    ----------
    journal : Journal
    node : NodeConfig
    rows : ndarray of shape (n, f)
        This site's, in an order that is its own.
    asked : int
        Columns of products that the run may ask for in all, at most.
    columns : int
        That the products are of: this site's f, in a sum those of the others too.
    counted : bool
        Whether the run's products are noted now, because it is answered.

    Raises
    ------
    ConfigError, DisclosureError
    """
    rank = min(len(rows) - 1, columns)

    def decide(same: Sequence[str], others: Sequence[str]) -> str:
        before = sum(map(_columns_in, same))
        if before + asked >= rank:
            earlier = f" (earlier runs over the same rows for {before})" if before else ""
            raise DisclosureError(
                f"the run may ask for {asked} columns of products{earlier}, and {rank} tell all inner products of the "
                f"rows ({len(rows)} rows, {columns} columns); this site allows scores only. Lower what the run may ask "
                f"for ('max-rounds' times 'block-size', 'rank' or 'n-components') below {rank - before}, or set "
                "may-show='inner products' in the node-config" + (ALLOW if before else "")
            )
        return f"{asked} columns of products" if counted else ""

    decide([], [])
    if node.repeat == "allow":
        return
    if not node.journal:
        raise ConfigError(
            "this site's node-config names no 'journal', the folder in which it counts what runs may ask about its "
            "rows; with may-show='scores' a site needs one"
        )
    if journal.recall(PRODUCTS) is None:  # else this run is counted
        journal.remember(PRODUCTS, rows_digest(journal.data_key, rows), decide)
        if counted:
            journal.keep(PRODUCTS, b"counted")


def _columns_in(about: str) -> int:
    return int(about.partition(" ")[0])
