"""The columns of a comparison's results: in Markdown (`simulations.compare`) and on its page (`simulations.report`)."""

from __future__ import annotations

from collections.abc import Sequence

from .records import Record

HEADS = {
    "max angle": "max angle (degrees)",
    "mean angle": "mean angle (degrees)",
    "captured variance": "variance captured",
    "explained variance": "variance claimed",
    "rounds": "rounds",
    "MB up": "up per client (mean)",
    "MB down": "down per client (mean, before the last round)",
    "seconds": "seconds",
    "knn accuracy": "k-NN(5)",
}
"""What stands above the results of a record, by their key, in their order."""

COUNTED = (
    "Rounds and bytes are those of the fit, as in docs/published.md, bytes the mean over the clients. The last round, "
    "in which each client gets the components and says its squared error, is not among them; the bytes down in the "
    "summary of a run have it, too."
)
"""What is counted as rounds, and as bytes up and down."""

COUNTS = {"rounds", "MB up", "MB down"}

SIZES = {"MB up", "MB down"}

SHARES = {"captured variance", "explained variance", "knn accuracy"}


def columns_of(records: Sequence[Record]) -> list[str]:
    """The keys that any of the records has a result for; the first, under which errors stand, where none has any."""
    return [key for key in HEADS if any(record.get(key) is not None for record in records)] or [*HEADS][:1]


def shown(record: Record, key: str) -> str:
    """A result as text; empty where there is none."""
    value = record.get(key)
    if value is None:
        return ""
    if key in SHARES:
        return f"{value:.2%}"
    if key in SIZES:
        return f"{value:.3g} MB" if value >= 1 else f"{1e3 * value:.3g} kB"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
