"""The command `methods`: the list of all methods, from their cards."""

from fedpca_flwr import cli
from fedpca_flwr.figures.markdown import table
from fedpca_flwr.strategies import METHODS
from fedpca_flwr.transports.recommendation import transports_of

HEADS = ("method", "result", "rounds", "privacy", "split")


def main() -> cli.Report:
    """List the methods as a Markdown table.

        fedpca methods --json

    Returns
    -------
    Report
        The methods.
    """
    return cli.Report(method_table().rstrip(), [dict(zip(HEADS, row, strict=True)) for row in method_rows()])


def method_table() -> str:
    """Return the methods as a Markdown table, with links to their pages."""
    rows = [[f"[`{name}`](methods/{name}.md)", *cells] for name, *cells in method_rows()]
    return table(HEADS, rows) + "\n"


def method_rows() -> list[list[str]]:
    """Return a row for each method, its cells as in `HEADS`: exact methods first, methods for columns last."""
    rows = []
    for method in sorted(METHODS.values(), key=lambda m: (m.strategy.card.split != "rows", not m.strategy.card.exact)):
        card = method.strategy.card
        privacy = ["differential privacy"] if card.differentially_private else []
        privacy += ["secure aggregation"] if "masked" in transports_of(method) else []
        privacy += [f"a site must allow `{card.exposes}`"] if card.exposes else []
        result = "exact" if card.exact else "approximate"
        rows.append([card.name, result, card.rounds, ", ".join(privacy) or "-", card.split])
    return rows
