"""The command `cells`: counts of single cells in several .h5ad files, one of each laboratory, to a single embedding."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from typer import Option

from fedpca_flwr import analyses, run
from fedpca_flwr.cli import Report
from fedpca_flwr.data.table import Table, labels_text
from fedpca_flwr.errors import DataError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.rows import CACHE_ELEMENTS, Block, Blocks, as_blocks
from fedpca_flwr.model.summary import summary_report
from fedpca_flwr.site.readers.files import read

PER_CELL = 10_000.0  # sum of the counts of each cell after the division


def main(
    files: list[Path],
    output: Annotated[Path, Option(metavar="FOLDER")],
    layer: str = "",
    genes: int = 2000,
    n_components: int = 20,
    clusters: int = 20,
) -> Report:
    """Embed the single cells of several .h5ad files together, a file of each laboratory, by Harmony.

        fedpca cells north.h5ad south.h5ad east.h5ad --output FOLDER

    Each file plays one party, and no cell leaves it. Counts are divided by each cell's sum; one round finds the genes
    that vary most, the next the components of the logarithms of these genes' counts; Harmony then brings the
    laboratories' scores together. FOLDER has the model and of each file the scores, and what Harmony made of them, in
    the order of its cells. The page docs/single-cells.md says what a laboratory shows.

    Parameters
    ----------
    files : list of Path
        Counts of cells, .h5ad, with the same genes.
    output : Path
        A folder for the model and the files of scores.
    layer : str
        The layer that holds the counts; without it X does.
    genes : int
        Number of genes, those that vary most.
    n_components : int
        Number of components.
    clusters : int
        Number of Harmony's clusters.

    Returns
    -------
    Report
        The summary of the model.

    Raises
    ------
    DataError
        If two files have the same name, or other genes.
    """
    if len({file.stem for file in files}) < len(files):
        raise DataError(f"files have the same name: {', '.join(map(str, files))}; give each laboratory its own")
    tables = {file.stem: read(str(file), layer=layer) for file in files}
    names = _same_genes(tables)
    all_genes = np.arange(len(names))
    counts = {name: logs(table, all_genes, logarithm=False) for name, table in tables.items()}
    spread = run("sub-it", counts, n_components=1, scale=True, max_rounds=1)
    variable = analyses.highly_variable(spread, min(genes, len(names)))
    parties = {name: logs(table, variable) for name, table in tables.items()}
    output.mkdir(parents=True, exist_ok=True)
    scores = [str(output / f"{name}.csv") for name in tables]
    model = run("p-cov", parties, n_components=n_components, clusters=clusters, clustering="harmony", scores=scores)
    model = model.named(tuple(names[gene] for gene in variable))
    model.log["notes"] += _notes(tables)
    return summary_report(model, model.save(output / "cells"))


def _notes(tables: dict[str, Table]) -> list[str]:
    """Return at most two notes: on files whose values are no whole numbers, and on a run with a single laboratory."""
    fractions = []
    for name, table in tables.items():
        blocks = as_blocks(table.rows, CACHE_ELEMENTS).read()
        values = (block.data if sparse.issparse(block) else block for block in blocks)
        if any(np.any(part != np.rint(part)) for part in values):
            fractions.append(name)
    notes = []
    if fractions:
        notes.append(
            f"values of {labels_text(fractions)} are not whole numbers, so they may be no counts: name the layer that "
            "holds the counts as --layer"
        )
    if len(tables) == 1:
        only = labels_text(list(tables))
        notes.append(f"{only} is the only file: Harmony had no other laboratory to bring it together with")
    return notes


def _same_genes(tables: dict[str, Table]) -> tuple[str, ...]:
    """Return the names of the genes; raise DataError if they differ between files in names or order."""
    first, *further = tables
    names = tables[first].names
    for other in further:
        if tables[other].names != names:
            lacking = [name for name in names if name not in set(tables[other].names)][:3]
            raise DataError(
                f"'{other}' has {len(tables[other].names)} genes that are not those of '{first}' in their order, which "
                f"has {len(names)}{f', such as {lacking}' if lacking else ''}; bring the same genes into one order"
            )
    return names


def logs(table: Table, genes: NDArray[np.intp], *, logarithm: bool = True) -> Blocks:
    """Return log(1 + counts) of genes, by their columns, with each cell's counts first scaled to the sum `PER_CELL`.

    Without ``logarithm`` they are the scaled counts. Reading raises DataError if a count is below 0.
    """
    rows = as_blocks(table.rows, CACHE_ELEMENTS)

    def blocks() -> Iterator[Block]:
        """Yield the scaled counts of the selected genes, block by block."""
        for block in rows.read():
            counts = sparse.csr_matrix(block, dtype=np.float64)
            if counts.nnz and counts.data.min() < 0:
                raise DataError("counts of cells are below 0; name the layer that holds the counts as --layer")
            sums: Array = np.asarray(counts.sum(axis=1)).ravel()
            counts.data *= np.repeat(PER_CELL / np.where(sums > 0, sums, 1.0), np.diff(counts.indptr))
            yield counts[:, genes].log1p() if logarithm else counts[:, genes]

    return replace(rows, read=blocks, width=genes.size, dtype=np.dtype(np.float64), sparse=True)
