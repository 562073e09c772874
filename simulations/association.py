"""The command `associate`: the associations in a model's log as a table of variants, with both plots."""

from pathlib import Path
from typing import Annotated

import numpy as np
from typer import Option

from fedpca_flwr.cli import Report
from fedpca_flwr.errors import DataError


def main(model: Path, variants: Path, output: Annotated[Path, Option(metavar="FOLDER")]) -> Report:
    """Write the associations that a run has found with each variant, and plot them.

        python -m fedpca_flwr associate model.npz common.bim --output FOLDER

    FOLDER gets association.tsv, with effect in units of an allele, standard error, statistic and p value of each
    variant, manhattan.png and qq.png. The page docs/association.md says what they are.

    Parameters
    ----------
    model : Path
        The model's file (.npz), as a run with `associate` has written it.
    variants : Path
        The .bim file with the run's variants, in their order.
    output : Path
        A folder for all that the command writes.

    Returns
    -------
    Report
        The inflation, and the variants below the genome-wide level; for programs with the numbers of each.

    Raises
    ------
    DataError
        If the model has no associations, or the variants are others.
    """
    from fedpca_flwr.figures import association_plots  # here: a help needs none of it
    from fedpca_flwr.maths.association import degrees, inflation, p_values
    from fedpca_flwr.model.model import PCAModel
    from fedpca_flwr.state.files import atomic_file, read_text

    lines = [line.split() for line in read_text(variants).splitlines() if line.strip()]
    log = PCAModel.load(model).log
    try:
        entry = log["association"]
        logistic = entry["associate"] == "logistic"
        beta, se = (np.array(entry[name], dtype=np.float64) for name in ("beta", "se"))
        freedom = None if logistic else degrees(float(entry["people"]), int(entry["covariates"]))
    except (KeyError, TypeError, ValueError):
        raise DataError(f"{model} holds no association; run with the option 'associate'") from None
    if not beta.shape == se.shape == (len(lines),) or any(len(line) != 6 or not line[3].isdecimal() for line in lines):
        raise DataError(f"{variants} is no .bim file of {beta.size} variants, as the run has; name the list of the run")
    statistics = beta / se
    p = p_values(statistics, freedom)
    output.mkdir(parents=True, exist_ok=True)
    head = ("CHROM", "POS", "ID", "A1", "BETA", "SE", "Z" if logistic else "T", "P")
    table = ["#" + "\t".join(head)]
    hits: list[dict[str, object]] = []
    for (chromosome, name, _, position, allele, _), *numbers in zip(lines, beta, se, statistics, p, strict=True):
        cells = ("NA" if np.isnan(number) else f"{number:.9g}" for number in numbers)
        table.append("\t".join((chromosome, position, name, allele, *cells)))
        if numbers[-1] < association_plots.GENOME_WIDE:
            finite = (float(number) if np.isfinite(number) else None for number in numbers)
            hits.append(dict(zip(head, (chromosome, int(position), name, allele, *finite), strict=True)))
    with atomic_file(output / "association.tsv") as file:
        file.write("".join(f"{line}\n" for line in table).encode())
    places = [line[0] for line in lines], [int(line[3]) for line in lines]
    association_plots.manhattan(*places, p).savefig(output / "manhattan.png", dpi=150)
    association_plots.quantiles(statistics, p).savefig(output / "qq.png", dpi=150)
    ratio = inflation(statistics)
    tested = int(np.isfinite(p).sum())
    summary = [
        f"{beta.size} variants, {tested} of them tested; inflation {ratio:.3f}",
        f"{len(hits)} with p < {association_plots.GENOME_WIDE:g}",
        *(f"  {hit['CHROM']}:{hit['POS']} {hit['ID']}: p = {hit['P']:.3g}" for hit in hits),
        f"written: association.tsv, manhattan.png and qq.png in {output}",
    ]
    content = {"variants": beta.size, "tested": tested, "inflation": ratio, "hits": hits}
    return Report("\n".join(summary), content)
