"""A site's file of phenotypes (node-config ``phenotypes``): a text with a header, and a line for each person.

If the header begins with FID and IID, or with IID, as PLINK's files do, people are found by the ids of the .fam file
beside the site's .bed file. Else the lines are in the order of the site's rows. NA, nan, -9 and nothing are missing.
"""

import re
from pathlib import Path

import numpy as np

from fedpca_flwr.errors import ConfigError, DataError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.state.files import read_text

MISSING = {"", "na", "nan", "-9", "."}


def read_phenotypes(path: str, names: list[str], data: str, rows: int) -> Array:
    """Read columns of a file of phenotypes, in the order of the site's rows.

    Parameters
    ----------
    path : str
        The file: cells between tabs, commas or spaces.
    names : list of str
        Names of the columns.
    data : str
        The site's data; of a .bed file the .fam file beside it has the ids.
    rows : int
        Number n of the site's rows.

    Returns
    -------
    ndarray of shape (n, len(names))
        NaN for a missing value, and for people who are not in the file.

    Raises
    ------
    ConfigError
        If the file lacks a column.
    DataError
        If a cell is no number, or the file does not fit the rows.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        raise DataError("the file that this site's node-config names as 'phenotypes' does not exist", local=path)
    lines = [line for line in read_text(file).splitlines() if line.strip()]
    delimiter = next((sign for sign in "\t," if lines and sign in lines[0]), r"\s+")
    header, *cells = [[cell.strip() for cell in re.split(delimiter, line)] for line in lines] or [[""]]
    header[0] = header[0].removeprefix("#")
    if unknown := [name for name in names if header.count(name) != 1]:
        raise ConfigError(
            f"this site's file of phenotypes lacks the column {', '.join(map(repr, unknown))}, or has it twice; name "
            "columns as the file's header does (options 'phenotype' and 'phenotype-covariates')",
            local=f"columns: {', '.join(header)}",
        )
    try:
        if any(len(line) != len(header) for line in cells):
            raise ValueError
        columns = [header.index(name) for name in names]
        values = [[np.nan if line[j].lower() in MISSING else float(line[j]) for j in columns] for line in cells]
        table = np.array(values, dtype=np.float64).reshape(len(cells), len(names))
        if np.isinf(table).any():
            raise ValueError
    except ValueError:
        raise DataError(
            "a line of this site's file of phenotypes has another number of cells than the header, or a cell that is "
            "not a finite number; missing values are NA, -9 and empty cells",
            local=path,
        ) from None
    n_ids = next((n for n, ids in ((2, ["FID", "IID"]), (1, ["IID"])) if header[:n] == ids), 0)
    if n_ids and data.endswith(".bed"):
        fam = read_text(Path(data).expanduser().with_suffix(".fam")).splitlines()
        people = [" ".join(line.split()[2 - n_ids : 2]) for line in fam if line.strip()]
        ids = [" ".join(line[:n_ids]) for line in cells]
        if len(set(ids)) < len(ids) or len(set(people)) < len(people):
            raise DataError("this site's file of phenotypes or its .fam file has an id twice", local=path)
        of_person = dict(zip(ids, table, strict=True))
        return np.array([of_person.get(person, np.full(len(names), np.nan)) for person in people])
    if len(table) != rows:
        raise DataError(
            "this site's file of phenotypes does not have one line for each row of the data; write one line for each "
            "row, or for a .bed file add the columns FID and IID",
            local=path,
        )
    return table
