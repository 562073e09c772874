"""What Flower's simulation costs beyond the mathematics: start of Ray, messages, rounds.

    python -m simulations.benchmarks overhead [--clients 10] [--features 64]

The settings that make it smallest are those of `simulations.ray_engine`: one CPU a client, no log forwarding, no
dashboard. A Ray that is already running (``ray start --head``, then ``RAY_ADDRESS``) saves most of the start.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from fedpca_flwr.figures.markdown import head, row

from .. import run
from .setting import parser


def main(arguments: Sequence[str]) -> None:
    args = parser(__doc__, clients=10, features=64, repeats=3).parse_args(arguments)
    rng = np.random.default_rng(0)
    parties = [rng.standard_normal((100, args.features)) for _ in range(args.clients)]
    print(head(["engine", "whole run (s)", "of it in rounds (s)", "bytes up"]))
    for engine in ("loopback", "ray") * args.repeats:
        start = time.perf_counter()
        model = run("p-cov", parties, n_components=10, engine=engine)
        seconds, rounds = time.perf_counter() - start, model.log["rounds"]
        inside = sum(entry["seconds"] for entry in rounds)
        up = sum(sum(entry["up"]) for entry in rounds)
        print(row([engine, f"{seconds:.2f}", f"{inside:.2f}", f"{up:,}"]), flush=True)
