"""Functions of single rows that a run applies before its PCA: log1p, sqrt, asinh, and the centred log-ratio of parts.

With g(x) the geometric mean of the d parts of a row x, ``clr(x) = log(x / g(x))`` (Aitchison 1986, The Statistical
Analysis of Compositional Data). The row's total is lost: the inverse returns parts that add up to 1.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from fedpca_flwr.data.table import Table, check_rows, columns_text
from fedpca_flwr.errors import DataError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.rows import CACHE_ELEMENTS, Block, Rows, as_blocks, block_to_array


def log_ratios(rows: Array) -> Array:
    """Return ``clr(x)`` of each of the rows (n, d) of positive parts; a NaN stays NaN, and is no part of the mean."""
    logs = np.log(rows)
    return np.asarray(logs - np.nan_to_num(logs).mean(axis=1, keepdims=True))


def shares(log_ratios: Array) -> Array:
    """Return rows (n, d) of parts that add up to 1 and have these log-ratios."""
    parts = np.exp(log_ratios - log_ratios.max(axis=1, keepdims=True))
    return np.asarray(parts / parts.sum(axis=1, keepdims=True))


def squares(roots: Array) -> Array:
    """Return the squares of square roots, of which negative ones, as a projection may have, count as 0."""
    return np.square(np.maximum(roots, 0.0))


class Transform(NamedTuple):
    """Function of rows, its inverse, the values that it takes, and what to do with others."""

    function: Callable[[Array], Array]
    inverse: Callable[[Array], Array]
    takes: Callable[[Array], NDArray[np.bool_]] = np.isfinite
    domain: str = "any number"
    advice: str = ""


NEGATIVE_ADVICE = "correct or drop these rows, or take transform='asinh', which takes any number"
ZERO_ADVICE = "add a small number to all parts, or leave out columns with zeros"
TRANSFORMS = {
    "log1p": Transform(np.log1p, np.expm1, lambda values: values > -1, "values above -1", NEGATIVE_ADVICE),
    "sqrt": Transform(np.sqrt, squares, lambda values: values >= 0, "values from 0", NEGATIVE_ADVICE),
    "asinh": Transform(np.arcsinh, np.sinh),
    "clr": Transform(log_ratios, shares, lambda values: values > 0, "values above 0, none missing", ZERO_ADVICE),
}
"""Functions by name: values of the key `transform` of a run."""


def _transform_values(values: NDArray[np.generic], name: str) -> Array:
    """Apply a function to finite values, or NaN if missing; values that the function does not take become NaN."""
    numbers = np.asarray(values, dtype=np.float64)
    return TRANSFORMS[name].function(np.where(TRANSFORMS[name].takes(numbers), numbers, np.nan))


def transform_array(rows: NDArray[np.generic], name: str, columns: Sequence[str] = ()) -> Array:
    """Apply a function to rows X (n, d); raise DataError, which names columns, for values that it does not take."""
    values = _transform_values(rows, name)
    faults = np.isnan(values).sum(axis=0) - (name != "clr") * np.isnan(rows).sum(axis=0)
    if faults.any():
        raise DataError(f"{_domain_text(name)}: X has {faults.sum()} others in {columns_text(faults > 0, columns)}")
    return values


def transform_table(table: Table, name: str) -> Table:
    """Return a table after a function of each row, applied whenever blocks are read; zeros stay, except in clr.

    Raise DataError for packed genotypes, and for values that the function does not take, in columns for the own log.
    """
    blocks = as_blocks(table.rows, CACHE_ELEMENTS)
    if blocks.lazy:
        raise DataError(f"transform='{name}' does not go with a .bed file, whose genotypes have a scale of their own")
    is_sparse = blocks.sparse and name != "clr"

    def read() -> Iterator[Block]:
        """Yield each block after the function."""
        for block in blocks.read():
            if is_sparse:
                values = _transform_values(block.data, name)
                yield sparse.csr_array((values, block.indices, block.indptr), shape=block.shape)
            else:
                yield _transform_values(block_to_array(block), name)

    rows: Rows = replace(blocks, read=read, dtype=np.dtype(np.float64), sparse=is_sparse)
    checked = check_rows(rows, table.names)
    faults = checked.missing - (name != "clr") * table.missing
    if faults.any():
        where = f"{faults.sum()} values of {columns_text(faults > 0, table.names)}"
        raise DataError(f"{_domain_text(name)}, and the data hold others", local=where)
    return table._replace(rows=checked.rows, missing=checked.missing)


def _domain_text(name: str) -> str:
    """Write which values a function takes, and what to do with others."""
    return f"transform='{name}' takes {TRANSFORMS[name].domain} ({TRANSFORMS[name].advice})"
