"""Compressed on MNIST or CIFAR-10 (JPEG): bytes against angle, each codec.

    python -m simulations.benchmarks compression --dataset mnist --data-root DEST

10 clients, Dirichlet 0.1, 50 components. Bytes are the mean over the clients, count and mean included; times less is
against a full float64 covariance.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedpca_flwr.figures.markdown import head, row
from fedpca_flwr.model.reference import principal_angles

from .. import run
from .setting import COMPONENTS, clients, data_parser, options_text, truth

SETTINGS: list[dict[str, Any]] = [
    *({"codec": "quantise", "bits": bits} for bits in (8, 12, 16, 24)),
    *({"codec": "shared-step", "step": step} for step in (3e-6, 1.5e-5, 5e-5, 1.4e-4, 3e-4)),
    *({"codec": "shared-step", "step": 2e-3, "corrections": times} for times in (1, 2)),
    *({"codec": "shared-step", "step": 6e-4, "corrections": times} for times in (1, 2, 3)),
    {"codec": "shared-step", "step": 2e-4, "tolerance": 1e-6},
    *({"codec": "low-rank", "rank": rank, "bits": bits} for rank, bits in ((100, 8), (100, 10), (150, 12), (200, 12))),
    *({"codec": "low-rank", "rank": 100, "bits": 8, "corrections": times} for times in (1, 2, 4)),
    *({"codec": "combined", "rank": 100, "bits": 8, "step": step} for step in (1.4e-4, 1e-3)),
    {"codec": "top-k", "keep": 0.3, "bits": 12},
    {"codec": "sketch", "rank": 200, "bits": 24},
]


def main(arguments: Sequence[str]) -> None:
    args = data_parser(__doc__).parse_args(arguments)
    parts = clients(args.dataset, args.data_root)
    exact = truth(parts)
    print(head(["codec", "kB up per client", "times less", "mean angle (deg)", "max"]))
    for options in SETTINGS:
        model = run("compressed", parts, n_components=COMPONENTS, engine="loopback", **options)
        angles = principal_angles(model, exact)
        each, times = model.bytes_up / len(parts), model.log["measured"]["compression_ratio"]
        cells = [options_text(options), f"{each / 1e3:.0f}", f"{times:.1f}", f"{angles.mean:.2g}", f"{angles.max:.2g}"]
        print(row(cells), flush=True)
