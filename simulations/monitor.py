"""The command `monitor`, by which a site looks at its own new rows with the model of a run."""

from __future__ import annotations

import re
import sys
from dataclasses import asdict
from pathlib import Path

from fedpca_flwr import cli
from fedpca_flwr.errors import DataError, FedPCAError
from fedpca_flwr.state.files import atomic_file

OPTIONS_OF_KEYS = {"data": "ROWS", "label": "--label"}
"""Names of node-config's keys on this command's line."""


def main(
    model: Path,
    rows: str,
    label: str = "",
    level: float = 0.99,
    false_alarms: float = 0.01,
    output: Path | None = None,
) -> cli.Report:
    """Look for rows of a site that are odd, by which features, and whether they are still of the model's kind.

        python -m fedpca_flwr monitor MODEL ROWS --output odd.csv

    A site runs it on its own rows, with the model that the coordinator hands out; nothing leaves the site. ROWS is a
    file that a site may have as its data. The output has a line for each row: T2 and SPE, whether either exceeds its
    limit, and the three features (from 0) that add most to its SPE.

    Parameters
    ----------
    model : Path
        The model's file (.npz), as a run has written it.
    rows : str
        The site's rows: .npy, .npz, .csv, .parquet or .h5ad.
    label : str
        The column that is no feature: its name, or its number from 0.
    level : float
        Share of the model's own rows within each limit.
    false_alarms : float
        How often a drift may be found where there is none.
    output : Path, optional
        A .csv file for the rows, which only its owner may read.

    Returns
    -------
    Report
        Counts of odd rows, and whether the rows have drifted.

    Raises
    ------
    FedPCAError
        If the rows cannot be read, or are not of the model's columns.
    """
    from fedpca_flwr.analyses import drift, outliers  # here: a help needs none of it
    from fedpca_flwr.maths.rows import to_array
    from fedpca_flwr.model.model import PCAModel
    from fedpca_flwr.site.readers import read

    try:
        fitted, table = PCAModel.load(model), read(rows, label)
        if table.columns and fitted.log.get("columns") and table.columns != fitted.log["columns"]:
            raise DataError("the columns of the rows, or their order, are not those of the model")
        X = to_array(table.rows)
        statistics = outliers(fitted, X, level=level)
        shift = drift(fitted, X, false_alarms=false_alarms)
    except FedPCAError as error:
        text = str(error)
        for key, option in OPTIONS_OF_KEYS.items():
            text = re.sub(f"node-config:? '{key}'", option, text)
        raise type(error)(text, local=error.local) from None
    if output:
        top = (-statistics.spe_contributions).argsort(axis=1)[:, :3].tolist()
        columns = zip(statistics.t_squared, statistics.spe, statistics.odd, top, strict=True)
        with atomic_file(output, 0o600) as stream:
            stream.write(b"row,T2,SPE,odd,features\n")
            for row, (t_squared, spe, flag, features) in enumerate(columns):
                stream.write(f"{row},{t_squared:.9g},{spe:.9g},{int(flag)},{' '.join(map(str, features))}\n".encode())
    limits = {
        "T2": (statistics.t_squared, statistics.t_squared_limit),
        "SPE": (statistics.spe, statistics.spe_limit),
    }
    counts = {
        name: {"limit": float(limit), "rows": len(values), "above": int((values > limit).sum())}
        for name, (values, limit) in limits.items()
    }
    lines = [
        f"{name}: {entry['above']} of {entry['rows']} rows above {entry['limit']:.6g} (expected {1 - level:.2%})"
        for name, entry in counts.items()
    ]
    lines += [
        f"mean of the scores: probability {shift.shift_probability:.2g}; mean SPE: {shift.spread_probability:.2g}",
        "drifted" if shift.drifted else f"no drift, at {false_alarms:.2%} false alarms",
    ]
    return cli.Report("\n".join(lines), {**counts, **asdict(shift)})


if __name__ == "__main__":
    sys.exit(cli.main(["monitor", *sys.argv[1:]]))
