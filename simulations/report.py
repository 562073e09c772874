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
from pathlib import Path

from matplotlib.figure import Figure

from fedpca_flwr import analyses, analysis_plots, data, plots
from fedpca_flwr.errors import ConfigError, FedPCAError
from fedpca_flwr.files import written_whole
from fedpca_flwr.model import PCAModel
from fedpca_flwr.partition import split
from fedpca_flwr.reference import pooled_pca
from fedpca_flwr.second_moments import SecondMoments
from simulations.columns import HEADS, columns_of, shown
from simulations.records import RUNS, Record, by_setting, command, named, read

NARROW = 200
"""Features, of more of which the band of unrelated ones takes seconds."""

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


def write_report(folder: str | Path, records: Sequence[Record]) -> Path:
    """Write ``report.html`` of a comparison whose models are in ``folder``, whole or not at all."""
    target = Path(folder) / "report.html"
    page = _page(Path(folder), records)
    with written_whole(target) as stream:
        stream.write(page.encode())
    return target


def _page(folder: Path, records: Sequence[Record]) -> str:
    groups = by_setting(records)
    parts = []
    for runs in groups:
        parts.append(f"<h2>{html.escape(_title(runs[0]))}</h2>\n{_table(runs)}")
        parts += _influence(folder, runs)
        parts += _figures(folder, runs)
    commands = html.escape("\n".join(map(command, groups)))
    versions = {json.dumps(record["versions"]): None for record in records if "versions" in record}
    rest = (
        f"<h2>How to repeat it</h2>\n<pre>{commands}</pre>\n"
        f"<p>Versions: {html.escape('; '.join(versions) or 'unknown')}. "
        "Angles are to <code>PCA(svd_solver='full')</code> of the pooled rows in float64. Variance captured: the share "
        "of the pooled rows' variance that a model's components hold; claimed: what the model says of itself.</p>"
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><title>Federated PCA: comparison</title>'
        f'<link rel="icon" href="data:,"><style>{STYLE}</style></head>\n<body>\n<h1>Federated PCA: comparison</h1>\n'
        + "\n".join([*parts, rest])
        + f"\n<script>{SCRIPT}</script>\n</body></html>\n"
    )


def _title(record: Record) -> str:
    """What the runs of a table have in common."""
    alpha = "" if record["alpha"] is None else f" {record['alpha']!r}"
    said = [record["dataset"], f"{record['partition']}{alpha}", f"{record['clients']} clients"]
    said += [f"{record['components']} components", f"seed {record['seed']}"]
    said += ["with k-NN(5)"] if record["knn"] else []
    said += [f"engine {record['engine']}"] if record["engine"] != "loopback" else []
    return ", ".join(said) + ("" if record["data root"] == "." else f" (data of {record['data root']})")


def _table(records: Sequence[Record]) -> str:
    columns = columns_of(records)
    heads = "".join(f'<th scope="col"><button>{head}</button></th>' for head in ["method", *map(HEADS.get, columns)])
    rows = []
    for record in records:
        if "error" in record:
            message = html.escape(record["error"])
            cells = f'<td data-value="">{message}</td>' + '<td data-value=""></td>' * (len(columns) - 1)
        else:
            cells = "".join(_cell(record, key) for key in columns)
        name = html.escape(named(record))
        rows.append(f'<tr><td data-value="{name}">{name}</td>{cells}</tr>')
    body = "\n".join(rows)
    return f'<div class="wide"><table><thead><tr>{heads}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>'


def _influence(folder: Path, records: Sequence[Record]) -> Iterable[str]:
    """What each party has in the first model that says so: all that do say nearly the same of one setting."""
    models = ((named(record), folder / record["model"]) for record in records if record.get("model"))
    try:
        known = ((name, PCAModel.load(path).log.get("influence")) for name, path in models)
        name, influence = next(((name, found) for name, found in known if found), ("", []))
    except FedPCAError:  # the figures say which model cannot be read
        return
    if not influence:
        return
    heads = ("client", "rows", "variance", "most of a component", "angle of the first without it (degrees)")
    lines = []
    for one in influence:
        shares = (one["rows_share"], one["variance_share"], max(one["component_shares"]))
        cells = "".join(f"<td>{share:.2%}</td>" for share in shares)
        angle = f"<td>{one['angles_degrees'][0]:.3g}</td>"
        lines.append(f"<tr><td>{html.escape(one['party'])}</td>{cells}{angle}</tr>")
    head, body = "".join(f'<th scope="col">{text}</th>' for text in heads), "\n".join(lines)
    yield f"<h3>What each client has in {html.escape(name)}</h3>"
    yield f'<div class="wide"><table><thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>'


def _cell(record: Record, key: str) -> str:
    value = record.get(key)
    return f'<td data-value="{"" if value is None else repr(value)}">{shown(record, key)}</td>'


def _figures(folder: Path, records: Sequence[Record]) -> Iterable[str]:
    """The figures of runs of one setting; where their data or models are gone, a line that says so instead."""
    good = [record for record in records if "error" not in record]
    if not good:
        return
    points: dict[str, list[tuple[float, float]]] = {}
    for record in good:
        points.setdefault(record["method"], []).append((record["MB up"], record["max angle"]))
    yield _figure(plots.bytes_against_error(points), "Bytes against error. Down and to the left is better.")
    try:
        yield from (_figure(figure, text) for figure, text in _of_models(folder, good))
    except FedPCAError as error:
        yield f"<p>No more figures: {html.escape(str(error))}</p>"


def _of_models(folder: Path, records: Sequence[Record]) -> Iterable[tuple[Figure, str]]:
    models = {named(record): PCAModel.load(folder / record["model"]) for record in records if record.get("model")}
    if not models:
        return
    one = records[0]
    source = data.load(one["dataset"], one["data root"])
    rows, reference = source.all_rows(), pooled_pca(source.all_rows(), one["components"])
    if one["components"] >= 2:
        text = "Rows in the first two components: circles by the pooled PCA, crosses by the federated model."
        yield plots.projection_grid(reference, models, rows, source.labels), text
    yield plots.scree({"pooled": reference, **models}), "Explained variance, as each model says."
    if rows.shape[1] <= NARROW:
        moments = SecondMoments.of(rows)
        text = "Eigenvalues of the covariance, the band of unrelated features, and where each rule would stop."
        yield analysis_plots.how_many(analyses.how_many(moments)), text
        model = analyses.pca(moments, one["components"])
        if "left_out_directions" in model.log["measured"]:
            text = "How far each row lies within the components and off them, with the limits of 99 %."
            yield analysis_plots.outlier_map(analyses.outliers(model, rows)), text
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


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data-root", help="where the data are now, if not where they were")
    args = parser.parse_args(arguments)
    try:
        records = read(args.folder)
        if not records:
            raise ConfigError(
                f"{args.folder / RUNS} does not exist, or is empty; name the --output folder of a comparison"
            )
        if args.data_root:
            records = [{**one, "data root": args.data_root} if one["data root"] != "." else one for one in records]
        print(write_report(args.folder, records))
    except FedPCAError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
