"""Makes the figure of the paper and prints its table: `python paper/figure.py`, with the extra ``plots``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedpca_flwr import compare
from fedpca_flwr.figures import plots
from fedpca_flwr.maths.eigen import EXACT_ANGLE_DEGREES

METHODS = ["p-cov", "qr-pca", "sub-it block-size=10", "compressed tolerance=1e-6", "compressed", "ap-stack", "ap-cov"]


def records() -> dict[str, Mapping[str, Any]]:
    """Run every method on scikit-learn's digits: ten parties, with rows of few classes each, and ten components."""
    records = compare(methods=METHODS, datasets=["digits"], alphas=[0.1], clients=[10], n_components=10)
    return dict(zip(METHODS, records, strict=True))


def table(records: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the largest angle, the mean bytes up and the rounds of every method; angles below 1e-6 are rounding."""
    lines = ["| method | largest angle (degrees) | kB up per party | rounds |", "| --- | --- | --- | --- |"]
    for method, record in records.items():
        angle = f"{record['max angle']:.2g}" if record["max angle"] > EXACT_ANGLE_DEGREES else "below 1e-6"
        lines.append(f"| `{method}` | {angle} | {1e3 * record['MB up']:.1f} | {record['rounds']} |")
    return "\n".join(lines)


def main() -> None:
    """Print the table of the paper, and draw its figure."""
    results = records()
    print(table(results))
    points = {method: [(record["MB up"], record["max angle"])] for method, record in results.items()}
    plots.bytes_against_error(points).savefig(Path(__file__).with_name("bytes.png"), dpi=150)


if __name__ == "__main__":
    main()
