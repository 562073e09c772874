"""Look for wrong results until a time is over, or repeat one draw.

    python -m fedpca_flwr.simulations.hunt --minutes 10 --seed 7
    python -m fedpca_flwr.simulations.hunt --seed 7 --only 1234

Every line of a finding ends with the command that repeats it. The exit code is 1 where there was one.
"""

import argparse
import sys
import time
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m fedpca_flwr.simulations.hunt", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="the number of one draw, which is then shown")
    parser.add_argument("--methods", nargs="+", metavar="METHOD", help="names (all)")
    values = parser.parse_args(arguments)

    from fedpca_flwr.simulations.hunt import hunting  # here: a help needs nothing of it
    from fedpca_flwr.strategies import METHODS

    target = values.methods or list(METHODS)
    unknown = [name for name in target if name not in METHODS]
    if unknown:
        parser.error(f"argument --methods: {', '.join(unknown)}: expected of {', '.join(METHODS)}")
    if values.only is not None:
        return hunting.show(values.seed, values.only)
    tally = hunting.Tally()
    end = time.monotonic() + 60 * values.minutes
    for line in hunting.hunt(values.seed, hunting.until(end, values.seed, target), tally):
        print(line, flush=True)
    print(tally.table())
    print(", ".join(f"{kind} {count}" for kind, count in tally.kinds.most_common()) or "no finding")
    return int(bool(tally.findings))


if __name__ == "__main__":
    sys.exit(main())
