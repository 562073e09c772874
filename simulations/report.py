"""One self-contained page of a comparison: tables that sort, figures, and how to repeat it. No server, no network.

python -m fedpca_flwr report FOLDER        # of a comparison: writes FOLDER/report.html anew
"""

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedpca_flwr.errors import ConfigError
from fedpca_flwr.simulations.programs import described, status_of


def write_report(folder: Path, records: Sequence[dict[str, Any]]) -> Path:
    """Write ``report.html`` of these runs into the folder that has their models; it needs matplotlib, an extra."""
    if find_spec("matplotlib") is None:
        raise ConfigError("a report needs matplotlib: pip install '.[plots]' in the repository")
    from fedpca_flwr.simulations.report_page import write_page  # here: a help needs nothing of it

    return write_page(folder, records)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = described("fedpca_flwr report", __doc__)
    parser.add_argument("folder", type=Path, help="the --output of a comparison")
    parser.add_argument("--data-root", help="where the data are now, if not where they were")
    args = parser.parse_args(arguments)

    return status_of(lambda: print(_again(args.folder, args.data_root)))


def _again(folder: Path, data_root: str | None) -> Path:
    from fedpca_flwr.simulations.records import RUNS, read  # here: a help needs nothing of it

    records = read(folder)
    if not records:
        raise ConfigError(f"{folder / RUNS} does not exist, or is empty; name the --output folder of a comparison")
    if data_root:
        records = [{**one, "data root": data_root} if one["data root"] != "." else one for one in records]
    return write_report(folder, records)


if __name__ == "__main__":
    sys.exit(main())
