"""Related people within a single site's .bed file, by KING's robust estimator of kinship (Manichaikul et al. 2010).

Kinship compares two people at every variant, so it needs the rows of both in one place. A site looks for relatives
among its own people; nobody looks for relatives at two sites.
"""

from collections.abc import Iterable
from itertools import compress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.cli import Report
from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.data.table import Table
from fedpca_flwr.errors import DataError
from fedpca_flwr.genetics.bed_file import join_names, map_calls, read_bim, read_fam
from fedpca_flwr.genetics.calls import PackedCalls
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.state.files import read_text

BLOCK_VARIANTS = 8192  # variants that are read at a time
SECOND_DEGREE_KINSHIP = 0.0884  # of people above which they are relatives of the second degree or nearer


def kinship(blocks: Iterable[NDArray[np.float32]]) -> Array:
    """Estimate the kinship of all pairs of people by KING-robust (Manichaikul et al. 2010, equation 11).

    A pair is compared at the variants at which both are called; 0 without a heterozygous one. Shapes: (n, m) -> (n, n).
    """
    both_heterozygous, opposite_homozygous, one_heterozygous = 0.0, 0.0, 0.0
    for calls in blocks:
        no_copy, one_copy, two_copies = ((calls == copies).astype(np.float32) for copies in (0, 1, 2))
        both_heterozygous = both_heterozygous + one_copy @ one_copy.T
        opposite_homozygous = opposite_homozygous + no_copy @ two_copies.T
        one_heterozygous = one_heterozygous + one_copy @ (no_copy + two_copies).T
    # 1/2 - (sum of squared differences of calls) / (4 * the smaller number of heterozygous calls of the two people)
    differing = np.asarray(one_heterozygous)
    min_heterozygous = both_heterozygous + np.minimum(differing, differing.T)
    squared_distance = 4 * (opposite_homozygous + np.asarray(opposite_homozygous).T) + differing + differing.T
    defined = min_heterozygous > 0
    return np.where(defined, 0.5 - squared_distance / np.where(defined, 4 * min_heterozygous, 1), 0.0)


def unrelated_exclusions(kinships: Array, limit: float = SECOND_DEGREE_KINSHIP) -> NDArray[np.bool_]:
    """Return a mask (n,) of people to exclude, most relatives first, until no kinship of two others exceeds `limit`."""
    related, excluded = kinships > limit, np.zeros(len(kinships), dtype=bool)
    np.fill_diagonal(related, val=False)
    while related.any():
        person = related.sum(axis=1).argmax()
        excluded[person] = True
        related[person], related[:, person] = False, False
    return excluded


def find_relatives(file: Path, limit: float = SECOND_DEGREE_KINSHIP) -> NDArray[np.bool_]:
    """Return a mask (n,) of people without whom no kinship exceeds `limit`; DataError for a faulty .fam or .bim."""
    people, variants = len(read_fam(file.with_suffix(".fam"))), len(read_bim(file.with_suffix(".bim")))
    calls = map_calls(file, variants, people)
    parts = (np.array(calls[start : start + BLOCK_VARIANTS]) for start in range(0, variants, BLOCK_VARIANTS))
    return unrelated_exclusions(kinship(PackedCalls(part, slice(people)).toarray() for part in parts), limit)


def mark_relatives(table: Table, node: NodeConfig, config: RunConfig) -> Table:
    """Exclude people whom ``node.apart`` lists, who still get scores; DataError for one not in the .fam file."""
    people = read_fam(Path(node.data).expanduser().with_suffix(".fam"))
    lines = read_text(Path(node.apart).expanduser()).splitlines()
    listed_names = {" ".join(line.split()[:2]) for line in lines if line.strip()}
    if unknown := sorted(listed_names.difference(people)):
        fault = f"{len(unknown)} people in the list that node-config 'apart' names are not in this site's .fam file"
        raise DataError(f"{fault}: write family and person ids as in that file", local=join_names(unknown))
    return table._replace(excluded=np.isin(people, sorted(listed_names)))


def main(file: Path, kinship: float = SECOND_DEGREE_KINSHIP) -> Report:
    """Print the people of a .bed file to leave out, so that no two others are related.

        fedpca site relatives north.bed > relatives.txt

    Print family and person id of the people of one .bed file who have relatives in it, so many that none remain without
    them (KING's robust kinship), for this site's node-config 'apart'. Relatives at other sites are not found.

    Parameters
    ----------
    file : Path
        The .bed file, its .bim and .fam beside it.
    kinship : float
        Kinship above which two people are relatives.

    Returns
    -------
    Report
        A line for each person; for programs a list of the same texts.
    """
    names = list(compress(read_fam(file.with_suffix(".fam")), find_relatives(file, kinship)))
    return Report("\n".join(names), names)
