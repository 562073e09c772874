"""A .bed file of genotypes (PLINK) as blocks of people, and the variants of .bim files.

Two variants are the same where chromosome, position and the pair of alleles are equal. At every site, a genotype counts
the first allele (PLINK's A1) of the list that all sites have. A site whose file has the alleles swapped counts 2 minus
its own genotype. Alleles of the other strand (A for T, C for G) are recognised, except those of A/T and C/G variants,
which look the same on both strands. The file is mapped, and a genotype call takes 2 bits until it is multiplied
(`fedpca_flwr.genetics.calls`).
"""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import compress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.cli import Report
from fedpca_flwr.errors import ConfigError, DataError
from fedpca_flwr.genetics.calls import SWAPPED_BYTE, PackedCalls, people_per_block
from fedpca_flwr.maths.rows import Blocks, Rows
from fedpca_flwr.protocol.site_log import site_logger
from fedpca_flwr.site.readers.columns import ColumnSelection
from fedpca_flwr.site.readers.file_format import FileFormat
from fedpca_flwr.state.files import SHARED, atomic_file, read_text

UNKNOWN_ALLELE = "0"  # PLINK's mark of an allele that nobody in the file has
UNNAMED = "."  # PLINK's mark of a variant without a name
COMPLEMENT = str.maketrans("ACGT", "TGCA")
CHROMOSOME_NUMBERS = {"X": "23", "Y": "24", "XY": "25", "M": "26", "MT": "26"}


class Variant(NamedTuple):
    """Genetic variant in a .bim file."""

    chromosome: str  # in PLINK's numbering: "1" to "22", "23" for X
    position: int  # in base pairs
    counted: str  # allele; "0" is an allele that the file does not name
    other: str  # allele, likewise
    name: str = ""  # such as rs429358, by which nothing is matched; empty: none

    @property
    def alleles(self) -> tuple[str, str]:
        """Pair of the counted and the other allele."""
        return self.counted, self.other

    @property
    def locus(self) -> tuple[str, int]:
        """Pair of chromosome and position."""
        return self.chromosome, self.position

    @property
    def ambiguous(self) -> bool:
        """True if the alleles are A/T or C/G, which look the same on both strands of the DNA."""
        return self.counted.translate(COMPLEMENT) == self.other

    def __str__(self) -> str:
        """Return "chromosome:position:counted:other"."""
        return f"{self.chromosome}:{self.position}:{self.counted}:{self.other}"


class VariantMatch(NamedTuple):
    """Match of d listed variants to the columns of a site's file."""

    columns: NDArray[np.int64]  # (d,), -1 if the file lacks the variant or has the variant twice
    swapped: NDArray[np.bool_]  # (d,), whether the file counts the other allele


def read_bim(file: Path) -> list[Variant]:
    """Read the variants of a .bim file, alleles in capitals, chromosomes in PLINK's numbering; or raise DataError."""
    if not file.is_file():
        where = "neither beside the .bed file nor where 'variants' names it"
        raise DataError(f"the .bim file with the variants does not exist, {where}", local=str(file))
    variants = []
    for number, line in enumerate(read_text(file, errors="replace").splitlines(), start=1):
        cells = line.split()
        if not cells:
            continue
        if len(cells) != 6 or not cells[3].isdecimal():
            cells_text = "chromosome, name, distance, position and two alleles (the site's log says which)"
            raise DataError(f"a line of the .bim file is not {cells_text}", local=f"line {number} of {file}")
        name = "" if cells[1] == UNNAMED else cells[1]
        variants.append(Variant(_chromosome(cells[0]), int(cells[3]), cells[4].upper(), cells[5].upper(), name))
    if not variants:
        raise DataError("the .bim file has no variants", local=str(file))
    return variants


def _chromosome(text: str) -> str:
    """Return a chromosome's name in PLINK's numbers: "chrX" becomes "23", other names lose "CHR"."""
    plain = text.upper().removeprefix("CHR")
    return CHROMOSOME_NUMBERS.get(plain, plain)


def match_variants(target: Sequence[Variant], local: Sequence[Variant]) -> VariantMatch:
    """Find the column of each target variant in a site's file (-1: none or several), and swapped alleles."""
    loci: dict[tuple[str, int], list[int]] = {}
    for i, variant in enumerate(local):
        loci.setdefault(variant.locus, []).append(i)
    columns, swapped = np.full(len(target), -1), np.zeros(len(target), dtype=bool)
    for j, variant in enumerate(target):
        candidates = [
            (i, is_swap) for i in loci.get(variant.locus, ()) if (is_swap := _is_swapped(variant, local[i])) is not None
        ]
        if len(candidates) == 1:
            columns[j], swapped[j] = candidates[0]
    return VariantMatch(columns, swapped)


def _is_swapped(target: Variant, local: Variant) -> bool | None:
    """Return whether the local alleles, on either strand, are the target's in reverse order; None if neither fits."""
    for counted, other in (local.alleles, [allele.translate(COMPLEMENT) for allele in local.alleles]):
        if counted in (target.counted, UNKNOWN_ALLELE) and other in (target.other, UNKNOWN_ALLELE):
            return False
        if counted in (target.other, UNKNOWN_ALLELE) and other in (target.counted, UNKNOWN_ALLELE):
            return True
    return None


def common_variants(
    files: Mapping[str, Sequence[Variant]], *, ambiguous: bool = False
) -> tuple[list[Variant], list[str]]:
    """Return the variants that occur in all files, and lines that report each file's differences.

    The variants are sorted by chromosome and position, with the alleles and the name that most files have, in whatever
    order the files are. Variants that look the same on both strands are taken only if ``ambiguous``.
    """
    codings: dict[tuple[str, int], Counter[tuple[str, str]]] = {}
    for variants in files.values():
        for variant in variants:
            codings.setdefault(variant.locus, Counter())[variant.counted, variant.other] += 1
    candidates, unnamed = list[Variant](), list[Variant]()
    for place in sorted(codings, key=_genome_order):
        pairs = _allele_pairs(codings[place], same_strand=ambiguous)
        candidates += [Variant(*place, *pair) for pair in pairs]
        unnamed += [] if pairs else [Variant(*place, *min(codings[place]))]
    lines = _difference_lines("", "have an allele that no file names", unnamed)
    if not ambiguous:
        both_strands = [variant for variant in candidates if variant.ambiguous]
        lines += _difference_lines("", "look the same on both strands", both_strands)
        candidates = [variant for variant in candidates if not variant.ambiguous]
    common, names = np.ones(len(candidates), dtype=bool), [Counter[str]() for _ in candidates]
    for name, variants in files.items():
        match = match_variants(candidates, variants)
        counts = Counter(match.columns.tolist())
        present = np.array([column >= 0 and counts[column] == 1 for column in match.columns.tolist()], dtype=bool)
        absent = list(compress(candidates, ~present))
        lines += _difference_lines(f"{name}: ", "of all files' variants are not in this file, or twice in it", absent)
        swapped = list(compress(candidates, match.swapped))
        lines += _difference_lines(f"{name}: ", "are coded with swapped alleles", swapped)
        common &= present
        for j in np.flatnonzero(present).tolist():
            names[j][variants[match.columns[j]].name] += 1
    named = [
        variant._replace(name=min(counts, key=lambda name: (not name, -counts[name], name), default=""))
        for variant, counts in zip(candidates, names, strict=True)
    ]
    return list(compress(named, common)), lines


def _genome_order(place: tuple[str, int]) -> tuple[bool, int, str, int]:
    """Return a sort key of a locus (chromosome, position): numbered chromosomes first, then names."""
    chromosome, position = place
    return not chromosome.isdecimal(), int(chromosome) if chromosome.isdecimal() else 0, chromosome, position


def _allele_pairs(codings: Counter[tuple[str, str]], *, same_strand: bool) -> list[tuple[str, str]]:
    """Return the pairs (counted, other) of alleles at a locus, each in the order that most files use.

    Where every file names a single allele, two such alleles are a pair if all files are of the ``same_strand``.
    """
    pairs: dict[tuple[str, ...], Counter[tuple[str, str]]] = {}
    for alleles, count in codings.items():
        if UNKNOWN_ALLELE not in alleles:
            # one key for a pair of alleles in either order, read on either strand
            strands = (tuple(sorted(alleles)), tuple(sorted(allele.translate(COMPLEMENT) for allele in alleles)))
            pairs.setdefault(min(strands), Counter())[alleles] += count
    if pairs:
        return [min(counts, key=lambda alleles: (-counts[alleles], alleles)) for _, counts in sorted(pairs.items())]
    single = sorted({allele for alleles in codings for allele in alleles} - {UNKNOWN_ALLELE})
    return [(single[0], single[1])] if same_strand and len(single) == 2 else []


def _difference_lines(name: str, difference: str, variants: Sequence[Variant]) -> list[str]:
    """Return a line that counts and lists the variants with this difference; no line without variants."""
    return [f"{name}{len(variants)} {difference}: {join_names(variants)}"] if variants else []


def join_names(names: Sequence[object], max_names: int = 20) -> str:
    """Join at most `max_names` names with commas, with "..." if there are more."""
    return ", ".join(map(str, names[:max_names])) + (", ..." if len(names) > max_names else "")


def exclude_regions(variants: Sequence[Variant], regions: str) -> list[Variant]:
    """Return the variants outside the regions that a file lists (chromosome, first, last); or raise DataError."""
    regions_by_chromosome: dict[str, list[tuple[int, int]]] = {}
    for number, line in enumerate(read_text(Path(regions)).splitlines() if regions else [], start=1):
        cells = line.split()
        if not cells or cells[0].startswith("#"):
            continue
        if len(cells) < 3 or not (cells[1] + cells[2]).isdecimal():
            fault = "is not chromosome, first and last position"
            raise DataError(f"line {number} of the file of regions {fault}", local=regions)
        regions_by_chromosome.setdefault(_chromosome(cells[0]), []).append((int(cells[1]), int(cells[2])))
    return [
        variant
        for variant in variants
        if not any(a <= variant.position <= b for a, b in regions_by_chromosome.get(variant.chromosome, ()))
    ]


def select_common_variants(files: Sequence[str], *, ambiguous: bool, exclude: str = "") -> list[Variant]:
    """Return `common_variants` of .bim files outside regions, and print how files differ; DataError without any."""
    common, lines = common_variants({file: read_bim(Path(file)) for file in files}, ambiguous=ambiguous)
    selected = exclude_regions(common, exclude)
    if exclude:
        lines.append(f"{len(common) - len(selected)} variants lie in the regions of {exclude} and are left out")
    for line in [*lines, f"{len(selected)} variants in all files"]:
        print(line, file=sys.stderr)
    if not selected:
        raise DataError("the files have no variant in common; do their positions belong to the same genome build?")
    return selected


def bim_lines(variants: Iterable[Variant]) -> list[str]:
    """Return a line of a .bim file, without its end, for each variant: six columns with tabs, and the distance 0."""
    return [
        f"{variant.chromosome}\t{variant.name or variant}\t0\t{variant.position}\t{variant.counted}\t{variant.other}"
        for variant in variants
    ]


def write_bim(variants: Iterable[Variant], file: Path) -> None:
    """Write a .bim file, which appears complete or not at all, and make its folder; raise OSError if it cannot."""
    with atomic_file(file, SHARED) as stream:
        stream.write("".join(f"{line}\n" for line in bim_lines(variants)).encode())


MAGIC = b"\x6c\x1b\x01"  # first bytes of a .bed file whose variants follow one another


def read_bed(
    file: Path, selection: ColumnSelection, variants: str = "", *, ambiguous: bool = False
) -> tuple[Rows, list[str]]:
    """Read genotypes (people x variants, counts 0 to 2, NaN if missing) and the variants' names from a .bed file.

    ``variants`` is a .bim file of the variants to take, in which order, and which allele each counts; empty: all as
    they are. Listed ones may look the same on both strands only if ``ambiguous``. Raise ConfigError if ``selection``
    names a column, and DataError if the .bim and .fam files beside it do not fit, or it lacks a listed variant.
    """
    if selection.keys:
        raise ConfigError(f"'{next(iter(selection.keys))}' names a column, but a .bed file has variants only")
    local = read_bim(file.with_suffix(".bim"))
    people = len(read_fam(file.with_suffix(".fam")))
    # then for each variant 2 bits a person, rounded up to whole bytes
    if file.stat().st_size != len(MAGIC) + len(local) * -(-people // 4):
        raise DataError("the size of the .bed file does not fit its .bim and .fam files", local=str(file))
    with open(file, "rb") as stream:
        if stream.read(len(MAGIC)) != MAGIC:
            fault = "the .bed file does not begin like a file that stores variant after variant"
            raise DataError(f"{fault}; plink2 --make-bed writes such a file", local=str(file))
    selected = local
    match = VariantMatch(np.arange(len(local)), np.zeros(len(local), dtype=bool))
    if variants:
        selected = read_bim(Path(variants).expanduser())
        match = match_variants(selected, local)
        _require_complete_match(selected, match, ambiguous=ambiguous)
        if swapped := list(compress(selected, match.swapped)):
            text = "%d variants have swapped alleles at this site; their counts are reversed: %s"
            site_logger.info(text, len(swapped), join_names(swapped))
    blocks = partial(_read_blocks, file, match, people, len(local))
    return Blocks(blocks, len(selected), PackedCalls.dtype, count=people, lazy=True), list(map(str, selected))


def read_fam(file: Path) -> list[str]:
    """Read "family person" ids of all people from a .fam file, in order; raise DataError if there is no such file."""
    if not file.is_file():
        raise DataError("there is no .fam file with the people beside the .bed file", local=str(file))
    with open(file, encoding="utf-8", errors="replace") as lines:
        return [" ".join(line.split()[:2]) for line in lines if line.strip()]


def _require_complete_match(target: list[Variant], match: VariantMatch, *, ambiguous: bool) -> None:
    """Raise DataError unless the file has each listed variant exactly once, with a known strand."""
    times = Counter(match.columns.tolist())
    duplicated = [times[column] > 1 and column >= 0 for column in match.columns.tolist()]
    faults = {
        "are not in this site's .bed file, or twice": list(compress(target, match.columns < 0)),
        "are in the list twice": list(compress(target, duplicated)),
        "have an allele that the list does not name": [one for one in target if UNKNOWN_ALLELE in one.alleles],
        "look the same on both strands (A/T, C/G); where all sites' files are of one strand, set node-config "
        "ambiguous='keep'": [variant for variant in target if variant.ambiguous and not ambiguous],
    }
    texts = [f"{len(variants)} {fault}" for fault, variants in faults.items() if variants]
    if texts:
        raise DataError(
            f"of the {len(target)} variants in the list that 'variants' names, {'; '.join(texts)} (the "
            "site's log names them). 'fedpca site variants' makes a list of the variants that all "
            "sites have",
            local="; ".join(join_names(variants) for variants in faults.values() if variants),
        )


def map_calls(file: Path, variants: int, people: int) -> NDArray[np.uint8]:
    """Map the calls of a .bed file, four people to a byte, as an array (variants, ceil(people / 4))."""
    return np.memmap(file, np.uint8, "r", offset=len(MAGIC), shape=(variants, -(-people // 4)))


def _read_blocks(file: Path, match: VariantMatch, people: int, variants: int) -> Iterator[PackedCalls]:
    """Yield the listed variants of blocks of people, with the calls of swapped variants turned."""
    calls = map_calls(file, variants, people)
    step = people_per_block(match.columns.size)
    in_order = np.array_equal(match.columns, np.arange(variants))
    for start in range(0, people, step):
        columns = calls[:, start // 4 : (start + step) // 4]
        packed = np.array(columns if in_order else columns[match.columns])
        packed[match.swapped] = SWAPPED_BYTE[packed[match.swapped]]
        yield PackedCalls(packed, slice(min(step, people - start)))


BED = FileFormat(read_bed, settings=("variants", "ambiguous"), row_names=lambda x: read_fam(x.with_suffix(".fam")))


def variants(files: list[str], ambiguous: bool = False, exclude: str = "") -> Report:
    """Print the variants that several .bim files have in common.

        fedpca site variants north.bim south.bim > common.bim

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

    Returns
    -------
    Report
        A .bim file; for programs a list of variants with the columns of such a file.
    """
    common = select_common_variants(files, ambiguous=ambiguous, exclude=exclude)
    return Report("\n".join(bim_lines(common)), [variant._asdict() for variant in common])
