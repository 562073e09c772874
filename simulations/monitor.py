"""Which of a site's rows are odd, by which features, and whether they are still of the model's kind.

    python -m fedpca_flwr monitor MODEL ROWS --output odd.csv

A site runs it on its own rows, with the model that the coordinator hands out; nothing leaves the site. ROWS is a file
that a site may have as its data, --label the column that is no feature. The output has a line for each row: T2 and SPE,
whether either exceeds its limit, and the three features (from 0) that add most to its SPE.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedpca_flwr.errors import DataError, FedPCAError
from fedpca_flwr.simulations.programs import described
from fedpca_flwr.state.files import atomic_file

if TYPE_CHECKING:
    from fedpca_flwr.analyses import Outliers

TOP = 3

OF_HERE = {"data": "ROWS", "label": "--label"}
"""What a reader of a site's file calls by the keys of a node-config."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = described("fedpca_flwr monitor", __doc__)
    parser.add_argument("model", type=Path, help="the model's file (.npz), as a run has written it")
    parser.add_argument("rows", help="the site's rows: .npy, .npz, .csv, .parquet or .h5ad")
    parser.add_argument("--label", default="", help="the column that is no feature: its name, or its number from 0")
    parser.add_argument(
        "--level", type=float, default=0.99, help="share of the model's own rows within each limit (%(default)s)"
    )
    parser.add_argument(
        "--false-alarms",
        type=float,
        default=0.01,
        help="how often a drift may be found where there is none (%(default)s)",
    )
    parser.add_argument("--output", type=Path, help="a .csv file for the rows, which only its owner may read")
    args = parser.parse_args(arguments)

    from fedpca_flwr.analyses import drift, outliers  # here: a help needs none of it
    from fedpca_flwr.maths.rows import to_array
    from fedpca_flwr.model.model import PCAModel
    from fedpca_flwr.site.readers import read

    try:
        model, table = PCAModel.load(args.model), read(args.rows, args.label)
        if table.columns and model.log.get("columns") and table.columns != model.log["columns"]:
            raise DataError("the columns of the rows, or their order, are not those of the model")
        rows = to_array(table.rows)
        found = outliers(model, rows, level=args.level)
        told = drift(model, rows, false_alarms=args.false_alarms)
        if args.output:
            _write(args.output, found)
    except (FedPCAError, OSError) as error:
        text = f"{type(error).__name__}: {error} {getattr(error, 'local', '')}".rstrip()
        for key, word in OF_HERE.items():
            text = re.sub(f"node-config:? '{key}'", word, text)
        print(text, file=sys.stderr)
        return 2
    for name, values, limit in (("T2", found.t_squared, found.t_squared_limit), ("SPE", found.spe, found.spe_limit)):
        above = int((values > limit).sum())
        print(f"{name}: {above} of {len(values)} rows above {limit:.6g} (expected {1 - args.level:.2%})")
    print(f"mean of the scores: probability {told.shift_probability:.2g}; mean SPE: {told.spread_probability:.2g}")
    print("drifted" if told.drifted else f"no drift, at {args.false_alarms:.2%} false alarms")
    return 0


def _write(target: Path, found: Outliers) -> None:
    order = (-found.spe_contributions).argsort(axis=1)[:, :TOP]
    with atomic_file(target, 0o600) as stream:
        stream.write(b"row,T2,SPE,odd,features\n")
        for i, features in enumerate(order.tolist()):
            told = f"{found.t_squared[i]:.9g},{found.spe[i]:.9g},{int(found.odd[i])},{' '.join(map(str, features))}"
            stream.write(f"{i},{told}\n".encode())


if __name__ == "__main__":
    sys.exit(main())
