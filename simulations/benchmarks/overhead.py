"""What Flower's simulation costs beyond the mathematics: start of Ray, messages, rounds.

    python -m simulations.benchmarks.overhead [--clients 10] [--features 64]

The settings that make it smallest are those of `simulations.ray_engine`: one CPU a client, no log forwarding, no
dashboard. A Ray that is already running (``ray start --head``, then ``RAY_ADDRESS``) saves most of the start.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import numpy as np

from simulations import run


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args(arguments)
    rng = np.random.default_rng(0)
    parties = [rng.standard_normal((100, args.features)) for _ in range(args.clients)]
    print("| engine | whole run (s) | of it in rounds (s) | bytes up |\n| --- | --- | --- | --- |")
    for engine in ("loopback", "ray") * args.repeats:
        start = time.perf_counter()
        model = run("p-cov", parties, n_components=10, engine=engine)
        seconds, rounds = time.perf_counter() - start, model.log["rounds"]
        inside = sum(entry["seconds"] for entry in rounds)
        print(f"| {engine} | {seconds:.2f} | {inside:.2f} | {sum(map(sum, (r['up'] for r in rounds))):,} |", flush=True)


if __name__ == "__main__":
    main()
