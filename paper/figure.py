"""Makes the figure of the paper and prints its table: `python paper/figure.py`, with the extra ``plots``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedpca_flwr import compare
from fedpca_flwr.figures import plots

METHODS = ["p-cov", "qr-pca", "sub-it block-size=10", "compressed tolerance=1e-6", "compressed", "ap-stack", "ap-cov"]


def records() -> dict[str, Mapping[str, Any]]:
    """Runs every method on scikit-learn's digits: ten parties, with rows of few classes each, and ten components."""
    found = compare(methods=METHODS, datasets=["digits"], alphas=[0.1], clients=[10], components=10)
    return dict(zip(METHODS, found, strict=True))


def table(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the largest angle, the mean bytes up and the rounds of every method; angles below 1e-6 are rounding."""
    lines = ["| method | largest angle (degrees) | kB up per party | rounds |", "| --- | --- | --- | --- |"]
    for method, one in found.items():
        angle = f"{one['max angle']:.2g}" if one["max angle"] > plots.EXACT_ANGLE_DEGREES else "below 1e-6"
        lines.append(f"| `{method}` | {angle} | {1e3 * one['MB up']:.1f} | {one['rounds']} |")
    return "\n".join(lines)


def main() -> None:
    found = records()
    print(table(found))
    points = {method: [(one["MB up"], one["max angle"])] for method, one in found.items()}
    plots.bytes_against_error(points).savefig(Path(__file__).with_name("bytes.png"), dpi=150)


if __name__ == "__main__":
    main()
