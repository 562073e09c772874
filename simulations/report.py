"""The command `report`, which writes the page of a comparison anew."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedpca_flwr import cli
from fedpca_flwr.errors import ConfigError


def write_report(folder: Path, records: Sequence[dict[str, Any]]) -> Path:
    """Write the HTML page ``report.html`` of a comparison's runs into its folder, and return the page's path.

    Raise ConfigError if matplotlib or jinja2 is not installed.
    """
    if missing := [name for name in ("matplotlib", "jinja2") if find_spec(name) is None]:
        raise ConfigError(f"a report needs {' and '.join(missing)}: pip install '.[plots]' in the repository")
    from fedpca_flwr.simulations.report_page import write_page  # here: a help needs nothing of it

    return write_page(folder, records)


def main(folder: Path, data_root: str | None = None) -> cli.Report:
    """Write the page of a comparison again: tables that sort, figures and commands.

        fedpca report FOLDER

    The page is FOLDER/report.html. It contains all that it shows, and needs neither a server nor a network.

    Parameters
    ----------
    folder : Path
        The --output of a comparison.
    data_root : str, optional
        Where the data are now, if not where they were.

    Returns
    -------
    Report
        The path of the page.

    Raises
    ------
    ConfigError
        If the folder holds no runs.
    """
    from fedpca_flwr.simulations.runs_file import RUNS, read_records  # here: a help needs nothing of it

    records = read_records(folder)
    if not records:
        raise ConfigError(f"{folder / RUNS} does not exist, or is empty; name the --output folder of a comparison")
    if data_root:
        records = [{**run, "data root": data_root} if run["data root"] != "." else run for run in records]
    page = str(write_report(folder, records))
    return cli.Report(page, {"page": page})
