"""The command `genotypes`: several .bed files, a file of each site, to components of unrelated people and a plot."""

from itertools import compress
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from typer import Option

from fedpca_flwr import run
from fedpca_flwr.cli import Report
from fedpca_flwr.errors import DataError
from fedpca_flwr.figures import plots
from fedpca_flwr.genetics import bed_file, relatives
from fedpca_flwr.model.summary import summary_report
from fedpca_flwr.site.readers.files import read
from fedpca_flwr.site.scores import score_file


def main(
    files: list[Path],
    output: Annotated[Path, Option(metavar="FOLDER")],
    n_components: int = 4,
    prune: float = 0.2,
    kinship: float = relatives.SECOND_DEGREE_KINSHIP,
    exclude: Annotated[str, Option(metavar="FILE")] = "",
    ambiguous: bool = False,
    secure_aggregation: bool = False,
) -> Report:
    """Plot the people of several .bed files, a file of each site, on components of unrelated people.

        fedpca genotypes north.bed south.bed east.bed --output FOLDER

    Each file plays one party, and no genotype leaves it. The command takes the variants that all files have, leaves out
    regions and variants in linkage, and in each file relatives, who have scores all the same. FOLDER has the model, of
    each file the scores in the order of its people, also as PLINK's .eigenvec, the plot, the variants as .bim files,
    and their loadings. The page docs/genotypes.md says what a site shows.

    Parameters
    ----------
    files : list of Path
        .bed files, their .bim and .fam beside them.
    output : Path
        A folder for all that the command writes.
    n_components : int
        Number of components.
    prune : float
        Largest squared correlation of variants; 0: all variants.
    kinship : float
        Largest kinship of people who take part.
    exclude : str
        Leave out the regions in this file: chromosome, first, last.
    ambiguous : bool
        Also A/T and C/G variants: all files are of one strand.
    secure_aggregation : bool
        By secure sums (sub-it); else in clear (qr-pca).

    Returns
    -------
    Report
        The summary of the model.

    Raises
    ------
    DataError
        If two files have the same name.
    """
    file_of = {file.stem: file for file in files}
    if len(file_of) < len(files):
        raise DataError(f"files have the same name: {', '.join(map(str, files))}; give each site its own")
    common = output / "common.bim"
    lists = [str(file.with_suffix(".bim")) for file in files]
    bed_file.write_bim(bed_file.select_common_variants(lists, ambiguous=ambiguous, exclude=exclude), common)
    settings: dict[str, Any] = {"variants": str(common), "ambiguous": ambiguous}
    tables: dict[str, Any] = {name: read(str(file), **settings) for name, file in file_of.items()}
    related = {name: relatives.find_relatives(file, kinship) for name, file in file_of.items()}
    parties: dict[str, Any] = {name: table._replace(rows=table.rows[~related[name]]) for name, table in tables.items()}
    method = "sub-it tolerance=1e-4" if secure_aggregation else "qr-pca"
    options: dict[str, Any] = {"genotypes": True, "prune": prune, "secure_aggregation": secure_aggregation}
    model = run(method, parties, n_components=n_components, **options)
    count = sum(marks.sum() for marks in related.values())
    model.log["notes"].append(f"{count} relatives take no part, and have scores")
    file = model.save(output / "people")
    loadings, variants = model.loadings()[0], bed_file.read_bim(common)
    used = np.any(loadings, axis=0)
    bed_file.write_bim(compress(variants, used), output / "kept.bim")
    names = [f"PC{j + 1}" for j in range(n_components)]
    with (output / "loadings.tsv").open("w", encoding="utf-8") as out:
        print("#CHROM", "POS", "ID", "A1", "A2", *names, sep="\t", file=out)
        for variant, numbers in compress(zip(variants, loadings.T.tolist(), strict=True), used):
            name = variant.name or variant
            print(variant.chromosome, variant.position, name, *variant.alleles, *numbers, sep="\t", file=out)
    # of the matrix of relationships, as PLINK: the mean over variants of products of standardised genotypes
    values = model.singular_values_**2 / np.count_nonzero(used)
    (output / "people.eigenval").write_text("".join(f"{value:.17g}\n" for value in values), encoding="utf-8")
    heads = ",".join(["person", *names, "relative"])
    for name, table in tables.items():
        people, all_scores = bed_file.read_fam(file_of[name].with_suffix(".fam")), model.transform(table)
        with score_file(str(output / f"{name}.eigenvec"), len(people), n_components, str(file_of[name])) as append:
            append(all_scores)
        lines = [
            ",".join([person, *map("{:.17g}".format, scores), str(int(mark))])
            for person, scores, mark in zip(people, all_scores, related[name], strict=True)
        ]
        (output / f"{name}.csv").write_text("\n".join([heads, *lines, ""]), encoding="utf-8")
    plots.scores(model, tables).savefig(output / "people.svg")
    return summary_report(model, file)
