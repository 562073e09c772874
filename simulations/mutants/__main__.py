"""Put each known fault into a copy of the code, and say which the tests do not see.

    python -m simulations.mutants                     # all; hours divided by --workers
    python -m simulations.mutants --changed main      # those of files that differ from a commit
    python -m simulations.mutants --only moments      # those whose name or file has this text

The exit code is 1 where a fault was not seen. Where an entry does not fit the code, nothing is run.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Sequence

from .faults import ROOT, changed_files, read
from .running import SEEN, outcomes


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m simulations.mutants", description=__doc__.splitlines()[0])
    parser.add_argument("--changed", metavar="COMMIT", help="faults of files that differ from this commit")
    parser.add_argument("--only", metavar="TEXT", default="", help="faults whose name or file has this text")
    parser.add_argument("--workers", type=int, default=2, help="copies of the code that are tested at a time (2)")
    given = parser.parse_args(arguments)

    faults = [fault for fault in read() if given.only in fault.name or given.only in fault.file]
    if given.changed:
        changed = changed_files(given.changed)
        faults = [fault for fault in faults if fault.touched_by(changed)]
    wrong = [line for fault in faults for line in fault.misfits(ROOT)]
    if wrong:
        print(*wrong, "mend these entries in simulations/mutants/faults", sep="\n")
        return 2
    rooms: Counter[tuple[str, str]] = Counter()
    for fault, what in outcomes(faults, given.workers) if faults else ():
        room = "/".join(fault.file.split("/")[:2]).removesuffix(".py")
        rooms[room, what] += 1
        print(f"{what:>8}  {fault.file}: {fault.name}", flush=True)
    for room in sorted({room for room, _ in rooms}):
        print(f"{room}: " + ", ".join(f"{rooms[room, what]} {what}" for at, what in sorted(rooms) if at == room))
    return int(any(what != SEEN for _, what in rooms))


if __name__ == "__main__":
    sys.exit(main())
