"""A .bed file of genotypes (PLINK; extra ``genotypes``) as blocks of people, 2 bits a call until a block is read."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.errors import ConfigError, DataError
from fedpca_flwr.maths.blocks import Blocks, Rows
from fedpca_flwr.site.columns import LeftOut
from fedpca_flwr.site.variants import UNKNOWN, Matched, Variant, matched, read_bim, some_of

ELEMENTS = 2**23
"""Calls in a block: 32 MiB. The file is by variants, so that each block of people goes through all of it."""

logger = logging.getLogger("fedpca_flwr.client")


def read_bed(file: Path, left_out: LeftOut, variants: str = "", *, ambiguous: bool = False) -> tuple[Rows, list[str]]:
    """The genotypes, float32 with NaN for a missing call, and the names of the variants.

    Parameters
    ----------
    file : Path
        Its .bim and .fam stand beside it.
    left_out : mapping of str to str
        Must be empty: all columns are variants.
    variants : str
        Path of a .bim file: which variants to take, in which order and with which allele counted; empty: the file's.
    ambiguous : bool
        Whether to take those of the list whose strand cannot be told.
    """
    try:
        import bed_reader  # noqa: F401
    except ImportError:
        raise ConfigError(
            "a .bed file needs bed-reader, which is not installed; pip install '.[genotypes]' in the repository"
        ) from None
    if left_out:
        raise ConfigError(f"node-config: '{next(iter(left_out))}' names a column, but a .bed file has variants only")
    own = read_bim(file.with_suffix(".bim"))
    people = _people(file.with_suffix(".fam"))
    if file.stat().st_size != 3 + len(own) * -(-people // 4):
        raise DataError("the .bed file does not have the size that its .bim and .fam say", local=str(file))
    listed = own
    found = Matched(np.arange(len(own)), np.zeros(len(own), dtype=bool))
    if variants:
        listed = read_bim(Path(variants).expanduser())
        found = matched(listed, own)
        _require_whole(listed, found, ambiguous=ambiguous)
        turned = [variant for variant, turn in zip(listed, found.swapped, strict=True) if turn]
        if turned:
            logger.info("%d variants have swapped alleles here, and are turned: %s", len(turned), some_of(turned))
    rows = Blocks(lambda: _blocks(file, found, people, len(own)), len(listed), np.dtype(np.float32), count=people)
    return rows, list(map(str, listed))


def _people(file: Path) -> int:
    if not file.is_file():
        raise DataError("there is no .fam file with the people beside the .bed file", local=str(file))
    with open(file, encoding="utf-8", errors="replace") as lines:
        return sum(1 for line in lines if line.strip())


def _require_whole(listed: list[Variant], found: Matched, *, ambiguous: bool) -> None:
    """Refuse a list of which the file lacks some, or of which some cannot be told from other ones.

    Raises
    ------
    DataError
    """
    times = Counter(found.columns.tolist())
    faults = {
        "are not in this site's .bed file, or twice": [
            variant for variant, column in zip(listed, found.columns, strict=True) if column < 0
        ],
        "are in the list twice": [
            variant for variant, column in zip(listed, found.columns, strict=True) if times[column] > 1 and column >= 0
        ],
        "have an allele that the list does not name": [variant for variant in listed if UNKNOWN in variant[2:]],
        "look the same on both strands (A/T, C/G); where all sites' files are of one strand, set node-config "
        "ambiguous='keep'": [variant for variant in listed if variant.ambiguous and not ambiguous],
    }
    told = [f"{len(those)} {what}" for what, those in faults.items() if those]
    if told:
        raise DataError(
            f"of the {len(listed)} variants in the list that node-config 'variants' names, {'; '.join(told)} (the "
            "site's log names them). 'python -m fedpca_flwr site variants' makes a list of those that all sites have",
            local="; ".join(some_of(those) for those in faults.values() if those),
        )


def _blocks(file: Path, found: Matched, people: int, variants: int) -> Iterator[NDArray[Any]]:
    from bed_reader import open_bed

    few = max(64, ELEMENTS // found.columns.size)
    columns = slice(None) if np.array_equal(found.columns, np.arange(variants)) else found.columns
    with open_bed(file, iid_count=people, sid_count=variants) as bed:
        for start in range(0, people, few):
            which = slice(start, min(people, start + few)), columns
            block = bed.read(index=which, dtype="float32", order="C", num_threads=1)
            block[:, found.swapped] = 2 - block[:, found.swapped]
            yield block
