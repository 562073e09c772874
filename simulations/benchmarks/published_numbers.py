"""The numbers of the design notes (docs/published.md); `simulations.benchmarks.published` sets ours beside.

Note 001 has 10 clients and 50 components. Angles are means over the components, in degrees: the notes print no largest
angle. Their 0.01 of P-COV is the floor of an arccosine. Shares are accuracies of k-NN(5). Where a data set or a cell is
missing, the notes have no number.
"""

from __future__ import annotations

from typing import NamedTuple

METHODS = ("p-cov", "sub-it", "ap-stack", "qr-pca", "ap-cov")


def _angles(*lines: tuple[float, ...]) -> dict[str, dict[str, float]]:
    names = ("IID", "Dirichlet 0.5", "Dirichlet 0.1", "shards")
    return {name: dict(zip(METHODS, line, strict=True)) for name, line in zip(names, lines, strict=True)}


ANGLES = {
    "mnist": _angles(
        (0.01, 0.18, 13.07, 1.06, 0.03),
        (0.01, 0.17, 12.62, 8.81, 0.30),
        (0.01, 0.17, 39.72, 13.17, 0.61),
        (0.01, 0.17, 8.78, 1.80, 1.04),
    ),
    "images": _angles(
        (0.00, 0.65, 0.76, 0.11, 0.02),
        (0.00, 0.65, 10.25, 1.77, 0.09),
        (0.00, 0.65, 11.97, 1.91, 0.13),
        (0.00, 0.65, 1.93, 0.30, 0.18),
    ),
}
"""Note 001, "Experiment Results"; ``images`` is CIFAR-10."""

ACCURACY = {
    "mnist": {
        "IID": {"pooled": 0.9565, "p-cov": 0.9565, "ap-stack": 0.9564, "ap-cov": 0.9565},
        "Dirichlet 0.1": {"pooled": 0.9565, "p-cov": 0.9565, "ap-stack": 0.9469, "ap-cov": 0.9555},
    },
    "images": {
        "IID": {"pooled": 0.3954, "p-cov": 0.3954, "ap-stack": 0.3951, "ap-cov": 0.3954},
        "Dirichlet 0.1": {"pooled": 0.3954, "p-cov": 0.3954, "ap-stack": 0.3949, "ap-cov": 0.3954},
    },
}
"""Note 001, "Classification Accuracy"."""

ACCURACY_NOTE_000 = {"mnist": 0.972, "images": 0.894}
"""Note 000, section 7.5: pooled and P-COV alike, IID and not. It contradicts note 001."""

COMMUNICATION = {
    "p-cov": ("2", "O(d²)"),
    "sub-it": ("multiple", "-"),
    "qr-pca": ("1", "O(d r)"),
    "ap-stack": ("1", "O(d r)"),
    "ap-cov": ("1", "O(d²)"),
}
"""Note 001, "Methods Implemented": rounds and order of the bytes."""

COVARIANCE_MB = {"images": "36 (note 000), 72 (note 001)"}
"""What one client's covariance of CIFAR-10 takes."""

PRIVACY = {"mnist": {1.0: (74.2, 0.9269), 5.0: (60.0, 0.9487), 10.0: (47.0, 0.9537)}}
"""Note 001, "Privacy-Utility Trade-off": epsilon to angle and accuracy; delta 1e-5."""


class Compressed(NamedTuple):
    """A line of the table of compression: our options, times less, angle, accuracy."""

    options: str
    times: float
    angle: float | None = None
    accuracy: float | None = None


COMPRESSION = {
    "mnist": (
        Compressed("codec=quantise bits=16", 4, 0.02, 0.9565),
        Compressed("codec=quantise bits=8", 8, 3, 0.9561),
        Compressed("codec=low-rank rank=100", 8, 1.5, 0.9569),
        Compressed("codec=low-rank rank=200", 4, 0.7, 0.9567),
        Compressed("codec=sketch rank=100", 24, 60),
    ),
    "images": (
        Compressed("codec=quantise bits=16", 4),
        Compressed("codec=low-rank rank=200", 15),
    ),
}
"""Note 001, "Communication Compression"; of CIFAR-10 it has bytes only: 18 and 4.8 of 72 MB. The sketch: "60+"."""


class Choice(NamedTuple):
    """A line of the table of adaptive selection."""

    score: float
    method: str
    angle: float


ADAPTIVE = {
    "mnist": {
        "IID": Choice(0.30, "ap-cov", 0.03),
        "Dirichlet 0.5": Choice(0.60, "p-cov", 0.01),
        "Dirichlet 0.1": Choice(0.67, "p-cov", 0.01),
        "shards": Choice(0.74, "p-cov", 0.01),
    }
}
"""Note 001, "Adaptive Method Selection"."""

STREAMING = {"initial fit": 1e-6, "add a client": 0.0, "remove a client": 0.0, "update a client": 1e-6}
"""Note 001, "Accuracy Verification": on synthetic data."""

STREAMING_REAL = {"mnist": 0.002}
"""The same table's one line for real data, which does not say after which operation."""

SCALABILITY = {"mnist": {5: 0.0, 10: 0.0, 20: 0.0, 50: 0.0}}
"""Note 000, section 7.3: clients to P-COV's angle; Dirichlet 0.1, 20 components."""
