"""One self-contained page of a comparison: tables that sort, figures, and how to repeat it. No server, no network.

python -m simulations.report FOLDER        # of a comparison: writes FOLDER/report.html anew
"""

from __future__ import annotations

import argparse
import base64
import html
import io
import json
import sys
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from fedpca_flwr import data, plots
from fedpca_flwr.errors import ConfigError, FedPCAError
from fedpca_flwr.files import written_whole
from fedpca_flwr.model import PCAModel
from fedpca_flwr.partition import split
from fedpca_flwr.reference import pooled_pca

Record = dict[str, Any]

COLUMNS = (
    "method",
    "max angle",
    "mean angle",
    "explained variance",
    "rounds",
    "MB up",
    "MB down",
    "seconds",
    "knn accuracy",
)
UNITS = {"max angle": "max angle (degrees)", "mean angle": "mean angle (degrees)", "MB up": "MB up per client"}

STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; font-size: 0.9rem; }
th, td { padding: 0.35rem 0.6rem; text-align: right; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; }
th button { all: unset; cursor: pointer; font-weight: 600; }
th button:focus-visible { outline: 2px solid; }
th[aria-sort=ascending] button::after { content: " \\2191"; }
th[aria-sort=descending] button::after { content: " \\2193"; }
tbody tr:hover { background: var(--soft); }
figure { margin: 1.5rem 0; } img { max-width: 100%; height: auto; } figcaption { font-size: 0.9rem; }
pre { background: var(--soft); padding: 0.8rem; overflow-x: auto; }
.wide { overflow-x: auto; }
"""

SCRIPT = """
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const head = button.parentElement, body = head.closest("table").tBodies[0];
    const column = [...head.parentElement.children].indexOf(head);
    const down = head.getAttribute("aria-sort") === "ascending";
    for (const other of head.parentElement.children) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const value = row => row.children[column].dataset.value;
    const order = (a, b) => {
      if (a === "" || b === "") return (a === "") - (b === "");
      const compared = isNaN(a) || isNaN(b) ? a.localeCompare(b) : a - b;
      return down ? -compared : compared;
    };
    body.append(...[...body.rows].sort((a, b) => order(value(a), value(b))));
  });
}
"""


def write_report(folder: str | Path, records: Sequence[Record], *, data_root: str = ".") -> Path:
    """Write ``report.html`` of a comparison whose models are in ``folder``, whole or not at all."""
    target = Path(folder) / "report.html"
    page = _page(Path(folder), records, data_root)
    with written_whole(target) as stream:
        stream.write(page.encode())
    return target


def _page(folder: Path, records: Sequence[Record], data_root: str) -> str:
    parts = []
    for (dataset, partition, alpha, clients), own in groupby(sorted(records, key=_where), key=_where):
        runs = list(own)
        title = f"{dataset}, {partition}" + (f" {alpha:g}" if alpha >= 0 else "") + f", {clients} clients"
        parts.append(f"<h2>{html.escape(title)}</h2>\n{_table(runs)}")
        parts += [_figure(figure, text) for figure, text in _figures(folder, runs, data_root)]
    about = json.dumps(records[0]["versions"]) if records and "versions" in records[0] else "unknown"
    rest = (
        f"<h2>How to repeat it</h2>\n<pre>{html.escape(_commands(records))}</pre>\n"
        f"<p>Versions: {html.escape(about)}. Angles are to <code>PCA(svd_solver='full')</code> of the pooled rows in "
        "float64.</p>"
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><title>Federated PCA: comparison</title>'
        f'<link rel="icon" href="data:,"><style>{STYLE}</style></head>\n<body>\n<h1>Federated PCA: comparison</h1>\n'
        + "\n".join([*parts, rest])
        + f"\n<script>{SCRIPT}</script>\n</body></html>\n"
    )


def _where(record: Record) -> tuple[str, str, float, int]:
    alpha = -1.0 if record["alpha"] is None else record["alpha"]
    return record["dataset"], record["partition"], alpha, record["clients"]


def _table(records: Sequence[Record]) -> str:
    measured = [name for name in COLUMNS[1:] if any(record.get(name) is not None for record in records)]
    columns = [COLUMNS[0], *measured]
    heads = "".join(f'<th scope="col"><button>{UNITS.get(name, name)}</button></th>' for name in columns)
    rows = []
    for record in records:
        if "error" in record:
            message = html.escape(record["error"])
            cells = f'<td data-value="">{message}</td>' + '<td data-value=""></td>' * (len(measured) - 1)
        else:
            cells = "".join(_cell(record[name]) for name in measured)
        name = html.escape(named(record))
        rows.append(f'<tr><td data-value="{name}">{name}</td>{cells}</tr>')
    body = "\n".join(rows)
    return f'<div class="wide"><table><thead><tr>{heads}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>'


def _cell(value: float | None) -> str:
    if value is None:
        return '<td data-value=""></td>'
    shown = f"{value:.3g}" if isinstance(value, float) else str(value)
    return f'<td data-value="{value!r}">{shown}</td>'


def named(record: Record) -> str:
    """A run's method with its options."""
    return " ".join([record["method"], *(f"{key}={value}" for key, value in record["options"].items())])


def _figures(folder: Path, records: Sequence[Record], data_root: str) -> Iterable[tuple[Figure, str]]:
    good = [record for record in records if "error" not in record]
    if not good:
        return
    points: dict[str, list[tuple[float, float]]] = {}
    for record in good:
        points.setdefault(record["method"], []).append((record["MB up"], record["max angle"]))
    yield plots.bytes_against_error(points), "Bytes against error. Down and to the left is better."
    models = {named(record): PCAModel.load(folder / record["model"]) for record in good if record.get("model")}
    if not models:
        return
    one = good[0]
    source = data.load(one["dataset"], data_root)
    rows, reference = source.all_rows(), pooled_pca(source.all_rows(), one["components"])
    if one["components"] >= 2:
        text = "Rows in the first two components: circles by the pooled PCA, crosses by the federated model."
        yield plots.projection_grid(reference, models, rows, source.labels), text
    yield plots.scree({"pooled": reference, **models}), "Explained variance."
    extra = {} if one["alpha"] is None else {"alpha": one["alpha"]}
    parts = split(source.labels, one["clients"], kind=one["partition"], seed=one["seed"], **extra)
    yield plots.heterogeneity([rows[part] for part in parts], reference), "How different the clients are."


def _figure(figure: Figure, text: str) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=144)
    coded = base64.b64encode(buffer.getvalue()).decode()
    return (
        f'<figure><img alt="{html.escape(text)}" src="data:image/png;base64,{coded}">'
        f"<figcaption>{html.escape(text)}</figcaption></figure>"
    )


def _commands(records: Sequence[Record]) -> str:
    """The command of each setting, on one line."""
    lines = []
    for where, own in groupby(sorted(records, key=_where), key=_where):
        runs = list(own)
        one = runs[0]
        alpha = f" --alpha {where[2]:g}" if where[2] >= 0 else ""
        methods = " ".join(f'"{named(record)}"' for record in runs)
        lines.append(
            f"python -m simulations.compare --methods {methods} --dataset {one['dataset']} --data-root DEST "
            f"--partition {one['partition']}{alpha} --clients {one['clients']} --components {one['components']} "
            f"--seed {one['seed']} --engine {one['engine']}"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data-root", default=".")
    args = parser.parse_args(arguments)
    runs = args.folder / "runs.jsonl"
    try:
        if not runs.exists():
            raise ConfigError(f"{runs} does not exist; name the --output folder of a comparison")
        records = [json.loads(line) for line in runs.read_text().splitlines()]
        print(write_report(args.folder, records, data_root=args.data_root))
    except FedPCAError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
