"""Genotypes in several .bed files, one of each site, to components of unrelated people and a plot coloured by site.

    python -m fedpca_flwr genotypes north.bed south.bed east.bed --output FOLDER

Each file plays one party, and no genotype leaves it. The command takes the variants that all files have, leaves out
regions and variants in linkage, and in each file relatives, who have scores all the same. FOLDER has the model, of each
file the scores in the order of its people, the plot, and the variants as .bim files. The page docs/genotypes.md says
what a site shows.
"""

import argparse
from collections.abc import Sequence
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np

from fedpca_flwr.errors import DataError
from fedpca_flwr.figures import plots
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.simulations.engines import run
from fedpca_flwr.simulations.programs import described, status_of
from fedpca_flwr.site import bed_file, relatives
from fedpca_flwr.site.readers import read


def main(arguments: Sequence[str] | None = None) -> int:
    parser = described("fedpca_flwr genotypes", __doc__)
    parser.add_argument("files", nargs="+", type=Path, help=".bed files, their .bim and .fam beside them")
    parser.add_argument("--output", type=Path, required=True, help="a folder for all that it writes")
    parser.add_argument("--components", type=int, default=4, help="so many components (%(default)s)")
    parser.add_argument("--prune", type=float, default=0.2, help="largest squared correlation; 0: all (%(default)s)")
    parser.add_argument(
        "--kinship", type=float, default=relatives.SECOND_DEGREE_KINSHIP, help="largest kinship (%(default)s)"
    )
    parser.add_argument("--exclude", default="", metavar="FILE", help="leave out its regions: chromosome, first, last")
    parser.add_argument("--ambiguous", action="store_true", help="also A/T and C/G variants: all are of one strand")
    parser.add_argument("--secure", action="store_true", help="by secure sums (sub-it); else in clear (qr-pca)")
    args = parser.parse_args(arguments)
    return status_of(lambda: print(analysed(args).summary()))


def analysed(args: argparse.Namespace) -> PCAModel:
    """Write what the command writes; return the model."""
    files = {file.stem: file for file in args.files}
    if len(files) < len(args.files):
        raise DataError(f"files have the same name: {', '.join(map(str, args.files))}; give each site its own")
    args.output.mkdir(parents=True, exist_ok=True)
    common = args.output / "common.bim"
    with common.open("w", encoding="utf-8") as out:
        own = [str(file.with_suffix(".bim")) for file in args.files]
        bed_file.write_common_variants(own, ambiguous=args.ambiguous, exclude=args.exclude, out=out)
    tables: dict[str, Any] = {
        name: read(str(file), variants=str(common), ambiguous=args.ambiguous) for name, file in files.items()
    }
    apart = {name: relatives.find_relatives(file, args.kinship) for name, file in files.items()}
    parties: dict[str, Any] = {name: table._replace(rows=table.rows[~apart[name]]) for name, table in tables.items()}
    method = "sub-it tolerance=1e-4" if args.secure else "qr-pca"
    options = {"genotypes": True, "prune": args.prune, "secure_aggregation": args.secure}
    model = run(method, parties, n_components=args.components, **options)
    model.log["notes"].append(f"{sum(own.sum() for own in apart.values())} relatives take no part, and have scores")
    model.save(args.output / "people")
    kept = np.any(model.loadings()[0], axis=0)
    with (args.output / "kept.bim").open("w", encoding="utf-8") as out:
        bed_file.write_bim(list(compress(bed_file.read_bim(common), kept)), out)
    scores = {name: model.transform(table) for name, table in tables.items()}
    heads = ",".join(["person", *(f"PC{j + 1}" for j in range(args.components)), "relative"])
    for name, points in scores.items():
        people = zip(bed_file.read_fam(files[name].with_suffix(".fam")), points, apart[name], strict=True)
        lines = [",".join([person, *map("{:.17g}".format, its), str(int(out))]) for person, its, out in people]
        (args.output / f"{name}.csv").write_text("\n".join([heads, *lines, ""]), encoding="utf-8")
    plots.scores(tables, model).savefig(args.output / "people.svg")
    return model
