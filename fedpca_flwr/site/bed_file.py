"""A .bed file of genotypes (PLINK; extra ``genotypes``) as blocks of people, and the variants of .bim files.

Two variants are the same where chromosome, position and the pair of alleles are. What is counted at every site is then
the first allele (PLINK's A1) of the list that all sites have; a site whose file has it second counts 2 less its own.
Alleles of the other strand (A for T, C for G) are recognised, but not those of A/T and C/G variants, which look the
same on both. A call takes 2 bits until a block of people is read.
"""

import logging
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.errors import ConfigError, DataError
from fedpca_flwr.maths.rows import Blocks, Rows
from fedpca_flwr.site.columns import Selection, extra
from fedpca_flwr.site.file_format import Format
from fedpca_flwr.state.files import text_in

UNKNOWN = "0"  # an allele that nobody in a file has, and that it does not name
OTHER_STRAND = str.maketrans("ACGT", "TGCA")
SPELLINGS = {"X": "23", "Y": "24", "XY": "25", "M": "26", "MT": "26"}


class Variant(NamedTuple):
    """A line of a .bim file: what is counted is copies of the first allele."""

    chromosome: str
    position: int
    counted: str
    other: str

    @property
    def place(self) -> tuple[str, int]:
        return self.chromosome, self.position

    @property
    def ambiguous(self) -> bool:
        """Whether its alleles look the same on both strands."""
        return self.counted.translate(OTHER_STRAND) == self.other

    def __str__(self) -> str:
        return f"{self.chromosome}:{self.position}:{self.counted}:{self.other}"


class Matched(NamedTuple):
    """Where the variants of a list are in a site's file."""

    columns: NDArray[np.int64]  # (d,): of each its place in the file; -1 where the file lacks it, or has it twice
    swapped: NDArray[np.bool_]  # (d,): whether the file counts the other allele


def read_bim(file: Path) -> list[Variant]:
    """The variants of a .bim file, in its order; refused with the number of the first line that is none."""
    if not file.is_file():
        raise DataError(
            "there is no .bim file with the variants beside the .bed file, or where it is named", local=str(file)
        )
    found = []
    for number, line in enumerate(text_in(file, errors="replace").splitlines(), start=1):
        cells = line.split()
        if not cells:
            continue
        if len(cells) != 6 or not cells[3].isdecimal():
            raise DataError(
                "a line of the .bim file is not chromosome, name, distance, position and two alleles (the site's log "
                "says which)",
                local=f"line {number} of {file}",
            )
        found.append(Variant(_chromosome(cells[0]), int(cells[3]), cells[4].upper(), cells[5].upper()))
    if not found:
        raise DataError("the .bim file has no variants", local=str(file))
    return found


def _chromosome(text: str) -> str:
    plain = text.upper().removeprefix("CHR")
    return SPELLINGS.get(plain, plain)


def matched(listed: Sequence[Variant], own: Sequence[Variant]) -> Matched:
    """Where each of the ``listed`` variants is among a site's ``own``."""
    places: dict[tuple[str, int], list[int]] = {}
    for i, variant in enumerate(own):
        places.setdefault(variant.place, []).append(i)
    columns, swapped = np.full(len(listed), -1), np.zeros(len(listed), dtype=bool)
    for j, variant in enumerate(listed):
        fits = [(i, turned) for i in places.get(variant.place, ()) if (turned := _turned(variant, own[i])) is not None]
        if len(fits) == 1:
            columns[j], swapped[j] = fits[0]
    return Matched(columns, swapped)


def _turned(listed: Variant, own: Variant) -> bool | None:
    """Whether the same variant's alleles are swapped; None where it is another one."""
    for counted, other in (own[2:], [allele.translate(OTHER_STRAND) for allele in own[2:]]):
        if counted in (listed.counted, UNKNOWN) and other in (listed.other, UNKNOWN):
            return False
        if counted in (listed.other, UNKNOWN) and other in (listed.counted, UNKNOWN):
            return True
    return None


def in_common(files: Mapping[str, Sequence[Variant]], *, ambiguous: bool = False) -> tuple[list[Variant], list[str]]:
    """Return the variants that all files have, whatever the order of the files, and lines that say what differs.

    Parameters
    ----------
    files : mapping of str to sequence of Variant
        The variants of each file by its name. An allele that a file does not name is taken from the others.
    ambiguous : bool
        Whether to take variants whose strand cannot be told.

    Returns
    -------
    variants : list of Variant
        By chromosome and position, coded as most files code them; of as many the first in the alphabet.
    lines : list of str
    """
    codings: dict[tuple[str, int], Counter[tuple[str, str]]] = {}
    for own in files.values():
        for variant in own:
            codings.setdefault(variant.place, Counter())[variant.counted, variant.other] += 1
    every, unnamed = list[Variant](), list[Variant]()
    for place in sorted(codings, key=_genome_order):
        pairs = _named_pairs(codings[place], one_strand=ambiguous)
        every += [Variant(*place, *pair) for pair in pairs]
        unnamed += [] if pairs else [Variant(*place, *min(codings[place]))]
    lines = _line("", "have an allele that no file names", unnamed)
    if not ambiguous:
        lines += _line("", "look the same on both strands", [variant for variant in every if variant.ambiguous])
        every = [variant for variant in every if not variant.ambiguous]
    common = np.ones(len(every), dtype=bool)
    for name, own in files.items():
        found = matched(every, own)
        times = Counter(found.columns.tolist())
        once = np.array([column >= 0 and times[column] == 1 for column in found.columns.tolist()], dtype=bool)
        lines += _line(f"{name}: ", "are not in it, or twice", list(compress(every, ~once)))
        lines += _line(f"{name}: ", "are coded with swapped alleles", list(compress(every, found.swapped)))
        common &= once
    return list(compress(every, common)), lines


def _genome_order(place: tuple[str, int]) -> tuple[bool, int, str, int]:
    """Return what sorts chromosomes by number, and then by name."""
    chromosome, position = place
    return not chromosome.isdecimal(), int(chromosome) if chromosome.isdecimal() else 0, chromosome, position


def _named_pairs(codings: Counter[tuple[str, str]], *, one_strand: bool) -> list[tuple[str, str]]:
    """Return the pairs of alleles that files name at one place, each as most of them code it.

    Where each file names one allele only, two of them are a pair if all files are of ``one_strand``.
    """
    pairs: dict[tuple[str, ...], Counter[tuple[str, str]]] = {}
    for alleles, times in codings.items():
        if UNKNOWN not in alleles:
            strands = (tuple(sorted(alleles)), tuple(sorted(allele.translate(OTHER_STRAND) for allele in alleles)))
            pairs.setdefault(min(strands), Counter())[alleles] += times
    if pairs:
        return [min(own, key=lambda alleles: (-own[alleles], alleles)) for _, own in sorted(pairs.items())]
    single = sorted({allele for alleles in codings for allele in alleles} - {UNKNOWN})
    return [(single[0], single[1])] if one_strand and len(single) == 2 else []


def _line(name: str, what: str, variants: Sequence[Variant]) -> list[str]:
    return [f"{name}{len(variants)} {what}: {some_of(variants)}"] if variants else []


def some_of(named: Sequence[object], most: int = 20) -> str:
    """The first of them by name, and that there are more."""
    return ", ".join(map(str, named[:most])) + (", ..." if len(named) > most else "")


def outside(variants: Sequence[Variant], regions: str) -> list[Variant]:
    """The ``variants`` outside the regions of a file (empty: all), which has chromosome, first and last position in a
    line; a name may follow."""
    within: dict[str, list[tuple[int, int]]] = {}
    for number, line in enumerate(text_in(Path(regions)).splitlines() if regions else [], start=1):
        cells = line.split()
        if not cells or cells[0].startswith("#"):
            continue
        if len(cells) < 3 or not (cells[1] + cells[2]).isdecimal():
            raise DataError(
                f"line {number} of the file of regions is not chromosome, first and last position", local=regions
            )
        within.setdefault(_chromosome(cells[0]), []).append((int(cells[1]), int(cells[2])))
    return [one for one in variants if not any(a <= one.position <= b for a, b in within.get(one.chromosome, ()))]


def write_common(files: Sequence[str], *, ambiguous: bool, exclude: str = "", out: TextIO | None = None) -> None:
    """Print the variants that all .bim files have outside regions as a .bim file; say on stderr how files differ."""
    common, lines = in_common({file: read_bim(Path(file)) for file in files}, ambiguous=ambiguous)
    kept = outside(common, exclude)
    if exclude:
        lines.append(f"{len(common) - len(kept)} variants lie in the regions of {exclude}, and are left out")
    for line in [*lines, f"{len(kept)} variants in all files"]:
        print(line, file=sys.stderr)
    if not kept:
        raise DataError("the files have no variant in common; are their positions of the same genome build?")
    write_bim(kept, out or sys.stdout)


def write_bim(variants: Sequence[Variant], out: TextIO) -> None:
    """Write the lines of a .bim file."""
    for one in variants:
        print(one.chromosome, one, 0, one.position, one.counted, one.other, sep="\t", file=out)


ELEMENTS = 2**23
"""Calls in a block: 32 MiB. The file is by variants, so that each block of people goes through all of it."""

logger = logging.getLogger("fedpca_flwr.client")


def read_bed(
    file: Path, selection: Selection, variants: str = "", *, ambiguous: bool = False
) -> tuple[Rows, list[str]]:
    """The genotypes, float32 with NaN for a missing call, and the names of the variants.

    The file's .bim and .fam stand beside it. ``variants`` is the path of another .bim file: which variants to take, in
    which order and with which allele counted, ``ambiguous`` ones among them or not; empty: the file's.
    """
    with extra("genotypes", "a .bed file needs bed-reader"):
        import bed_reader  # noqa: F401
    if selection.keys:
        raise ConfigError(
            f"node-config: '{next(iter(selection.keys))}' names a column, but a .bed file has variants only"
        )
    own = read_bim(file.with_suffix(".bim"))
    people = len(read_fam(file.with_suffix(".fam")))
    if file.stat().st_size != 3 + len(own) * -(-people // 4):
        raise DataError("the .bed file does not have the size that its .bim and .fam say", local=str(file))
    listed = own
    found = Matched(np.arange(len(own)), np.zeros(len(own), dtype=bool))
    if variants:
        listed = read_bim(Path(variants).expanduser())
        found = matched(listed, own)
        _require_whole(listed, found, ambiguous=ambiguous)
        turned = list(compress(listed, found.swapped))
        if turned:
            logger.info("%d variants have swapped alleles here, and are turned: %s", len(turned), some_of(turned))
    rows = Blocks(lambda: _blocks(file, found, people, len(own)), len(listed), np.dtype(np.float32), count=people)
    return rows, list(map(str, listed))


def read_fam(file: Path) -> list[str]:
    """Family and person id of each of the people in a .fam file."""
    if not file.is_file():
        raise DataError("there is no .fam file with the people beside the .bed file", local=str(file))
    with open(file, encoding="utf-8", errors="replace") as lines:
        return [" ".join(line.split()[:2]) for line in lines if line.strip()]


def _require_whole(listed: list[Variant], found: Matched, *, ambiguous: bool) -> None:
    """Refuse a list of which the file lacks some, or of which some cannot be told from other ones."""
    times = Counter(found.columns.tolist())
    doubled = [times[column] > 1 and column >= 0 for column in found.columns.tolist()]
    faults = {
        "are not in this site's .bed file, or twice": list(compress(listed, found.columns < 0)),
        "are in the list twice": list(compress(listed, doubled)),
        "have an allele that the list does not name": [variant for variant in listed if UNKNOWN in variant[2:]],
        "look the same on both strands (A/T, C/G); where all sites' files are of one strand, set node-config "
        "ambiguous='keep'": [variant for variant in listed if variant.ambiguous and not ambiguous],
    }
    texts = [f"{len(those)} {what}" for what, those in faults.items() if those]
    if texts:
        raise DataError(
            f"of the {len(listed)} variants in the list that node-config 'variants' names, {'; '.join(texts)} (the "
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


BED = Format(read_bed, settings=("variants", "ambiguous"))


def variants(files: list[str], ambiguous: bool = False, exclude: str = "") -> None:
    """Print the variants that several .bim files have in common.

    Print, as a .bim file, the variants that all given .bim files have by chromosome, position and pair of alleles,
    coded as most files do, for every site's node-config 'variants'; and to stderr which of them a file lacks or codes
    with swapped alleles. A .bim file holds no genotypes.

    Parameters
    ----------
    files : list of str
        .bim files of the sites.
    ambiguous : bool
        Also A/T and C/G variants: all files are of one strand.
    exclude : str
        File of regions to leave out: chromosome, first, last.
    """
    write_common(files, ambiguous=ambiguous, exclude=exclude)
