"""Related people within one site's .bed file, by KING's robust estimator of kinship (Manichaikul et al. 2010).

Kinship compares two people at every variant, so it needs the rows of both in one place. A site looks among its own
people; nobody looks for relatives at two sites.
"""

from collections.abc import Iterable, Iterator
from itertools import compress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.data.table import Table
from fedpca_flwr.errors import DataError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.site.bed_file import read_bim, read_fam, some_of
from fedpca_flwr.site.columns import extra
from fedpca_flwr.state.files import text_in

AT_ONCE = 8192  # variants that are read at a time

SECOND_DEGREE = 0.0884
"""Kinship of people above which they are relatives of the second degree or nearer."""


def kinship(blocks: Iterable[Array]) -> Array:
    """Kinship (n, n) of people from ``blocks`` of their genotypes (n, variants), at variants where both are called.

    0 for people of whom neither is heterozygous where both are called.
    """
    both, opposite, single = 0.0, 0.0, 0.0
    for calls in blocks:
        none, one, two = ((calls == copies).astype(np.float32) for copies in (0, 1, 2))
        both, opposite = both + one @ one.T, opposite + none @ two.T
        single = single + one @ (none + two).T
    differ = np.asarray(single)
    least = both + np.minimum(differ, differ.T)
    apart = 4 * (opposite + np.asarray(opposite).T) + differ + differ.T
    return np.where(least > 0, 0.5 - apart / np.where(least > 0, 4 * least, 1), 0.0)


def to_leave_out(found: Array, limit: float = SECOND_DEGREE) -> NDArray[np.bool_]:
    """Whom to leave out (n,) so that no kinship above the ``limit`` remains: those with most relatives first."""
    related, out = found > limit, np.zeros(len(found), dtype=bool)
    np.fill_diagonal(related, val=False)
    while related.any():
        most = related.sum(axis=1).argmax()
        out[most] = True
        related[most], related[:, most] = False, False
    return out


def relatives(file: Path, limit: float = SECOND_DEGREE) -> NDArray[np.bool_]:
    """Whom of a .bed file to leave out (n,)."""
    return to_leave_out(kinship(_by_variants(file)), limit)


def _by_variants(file: Path) -> Iterator[Array]:
    people, variants = len(read_fam(file.with_suffix(".fam"))), len(read_bim(file.with_suffix(".bim")))
    with extra("genotypes", "a .bed file needs bed-reader"):
        from bed_reader import open_bed
    with open_bed(file, iid_count=people, sid_count=variants) as bed:
        for start in range(0, variants, AT_ONCE):
            yield bed.read(index=np.s_[:, start : start + AT_ONCE], dtype="float32", num_threads=1)


def apart(table: Table, node: NodeConfig, config: RunConfig) -> Table:
    """Return the table with the people marked whom the site's list names: they take no part, and have scores."""
    return table._replace(apart=listed(Path(node.data).expanduser(), Path(node.apart).expanduser()))


def listed(file: Path, names: Path) -> NDArray[np.bool_]:
    """Who of a .bed file (n,) is in a list of people, a line of family and person id each."""
    people = read_fam(file.with_suffix(".fam"))
    wanted = {" ".join(line.split()[:2]) for line in text_in(names).splitlines() if line.strip()}
    strangers = sorted(wanted.difference(people))
    if strangers:
        raise DataError(
            f"{len(strangers)} people in the list that node-config 'apart' names are not in this site's .fam file: "
            "write family and person id as they are there",
            local=some_of(strangers),
        )
    return np.isin(people, sorted(wanted))


def main(file: Path, kinship: float = SECOND_DEGREE) -> None:
    """Print whom of a .bed file to leave out so that nobody is related.

    Print family and person id of the people of one .bed file who have relatives in it, so many that none remain without
    them (KING's robust kinship), for this site's node-config 'apart'. Relatives at other sites are not found.

    Parameters
    ----------
    file : Path
        The .bed file, its .bim and .fam beside it.
    kinship : float
        Kinship above which two people are relatives.
    """
    print("\n".join(compress(read_fam(file.with_suffix(".fam")), relatives(file, kinship))))
