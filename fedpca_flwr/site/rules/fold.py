"""Rows that a site holds out of some sums. The site draws them itself, once for the same rows.

Whoever knew the sums over many different four fifths of the rows could solve for each row. So the draw follows from the
random secret of the site's journal and from the rows. However many runs there are over the same rows, they reveal two
sums: over all rows, and over all but the fifth.
"""

import hmac
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.errors import ConfigError, DisclosureError
from fedpca_flwr.maths.rows import Rows, first_fifth, row_digests, validation_rows
from fedpca_flwr.protocol.journal import Journal, Note
from fedpca_flwr.site.rules.accounts import HeldOut
from fedpca_flwr.site.rules.repeats import ALLOW_ADVICE, decide_once

ALTERNATIVE = "run with mu=<number> or mu='infinity', which hold nothing out"


def require_fold(node: NodeConfig, rows: int) -> None:
    """Raise DisclosureError if a fifth of a site's rows is fewer than `min-rows`, and ConfigError without a journal.

    The journal makes the draw the same in every run. A party without data of its own is not refused.
    """
    if not node.data:
        return
    if 0 < rows // 5 < node.min_rows:
        raise DisclosureError(
            "a fifth of this site's rows, which the run would hold out to choose 'mu', is fewer rows than the site's "
            f"minimum (node-config 'min-rows' = {node.min_rows}): the difference of the sums over all rows and over "
            f"the other rows would show these few rows; {ALTERNATIVE}"
        )
    if not node.journal:
        raise ConfigError(
            "this site's node-config names no 'journal'. With a journal every run over the same rows holds out "
            f"the same rows to choose 'mu': set 'journal', or {ALTERNATIVE}"
        )


def held_out_rows(journal: Journal, node: NodeConfig, rows: Rows, seed: int) -> NDArray[np.bool_]:
    """Return the mask (n,) of a fixed fifth of the rows, which some sums leave out.

    The rows (n, d) are in an order that no run chooses; ``seed`` is for parties without data of their own. Raise
    DisclosureError if other rows were held out earlier, of the same rows or of nearly the same rows.
    """
    if not node.data:
        return validation_rows(rows, seed)
    stored = journal.load_secret(HeldOut.kind)
    if stored is None:
        stored = np.packbits(_draw_fold(journal, node, rows)).tobytes()
        journal.store_secret(HeldOut.kind, stored)
    return np.unpackbits(np.frombuffer(stored, np.uint8), count=len(rows)).astype(bool)


def _draw_fold(journal: Journal, node: NodeConfig, rows: Rows) -> NDArray[np.bool_]:
    """Draw a fifth of the rows (mask (n,)) by keyed hashes of the rows, and note the draw in the journal."""
    secret = journal.data_key
    row_hashes = row_digests(rows, secret)
    rows_digest = hmac.digest(secret, b"held out" + b"".join(sorted(row_hashes)), "sha256")
    draws = [hmac.digest(rows_digest, digest, "sha256") for digest in row_hashes]
    chosen = first_fifth(draws)
    subset = hmac.digest(rows_digest, b"".join(sorted(np.array(draws, object)[chosen])), "sha256").hex()
    entry = HeldOut(len(rows), int(chosen.sum()), subset).text()

    def judge(same: Sequence[Note], near: Sequence[Note]) -> None:
        """Raise DisclosureError if an earlier run held out other rows, of the same data or nearly as many rows."""
        conflicts = [note for note in near if abs(HeldOut.parse(note.content).rows - len(rows)) < node.min_rows]
        if conflicts or any(earlier.content != entry for earlier in same):
            raise DisclosureError(
                "an earlier run held out other rows to choose 'mu', of the same or nearly the same rows, which may "
                "differ by fewer rows than the site's minimum (node-config 'min-rows'): several such sums together "
                f"tell about single rows; {ALTERNATIVE}; if all rows are new, set repeat='refuse-same' in its "
                "node-config" + ALLOW_ADVICE
            )

    journal.remember(HeldOut.kind, rows_digest.hex(), decide_once(node, entry, judge))
    return chosen
