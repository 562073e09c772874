"""The page of a comparison, and the command `report`, which writes it anew."""

import re
from collections.abc import Sequence
from html import escape
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpca_flwr import cli
from fedpca_flwr.errors import ConfigError, printable_text
from fedpca_flwr.state.files import SHARED, atomic_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_SETTINGS = 50  # settings of which the page shows the runs
MAX_CHARACTERS = 600  # of an error, or of the notes of a run
STYLE = Path(__file__).with_name("report.css").read_text(encoding="utf-8")
HEADER = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy"
content="default-src 'none'; base-uri 'none'; form-action 'none'; style-src 'unsafe-inline'; img-src data:">
<meta name="viewport" content="width=device-width"><title>Federated PCA: comparison</title>
<link rel="icon" href="data:,">
"""


def write_report(folder: Path, records: Sequence[dict[str, Any]]) -> Path:
    """Write the HTML page ``report.html`` of a comparison's runs into its folder, and return the page's path."""
    from fedpca_flwr.simulations.records import RESULTS_NOTE, group_by_setting

    groups = group_by_setting(records)
    parts = [f"{HEADER}<style>{STYLE}</style></head>", "<body><main>", "<h1>Federated PCA: comparison</h1>"]
    parts += [f'<div class="figures">{"".join(map(_figure, figures(records)))}</div>', _table(groups[:MAX_SETTINGS])]
    if left_out := len(groups) - MAX_SETTINGS:
        parts += [f"<p>{left_out} more settings are in the folder's runs.jsonl.</p>"] if left_out > 0 else []
    parts.append(f"<p>{RESULTS_NOTE}</p>")
    target = folder / "report.html"
    with atomic_file(target, SHARED) as stream:
        stream.write("\n".join([*parts, "</main></body></html>\n"]).encode())
    return target


def _text(value: object) -> str:
    """Return a value as text of HTML, with "?" for characters that are not printable."""
    return escape(printable_text(str(value)))


def _table(groups: Sequence[Sequence[dict[str, Any]]]) -> str:
    """Return the table of all runs: for each setting those to take first, and for what."""
    from fedpca_flwr.simulations.recommending import choices
    from fedpca_flwr.simulations.records import HEADS, columns_of, format_result, method_text, setting_title
    from fedpca_flwr.simulations.seed_means import average_seeds, failure_texts, runs_text

    columns = columns_of(every := average_seeds([run for runs in groups for run in runs]))
    several = any("seeds" in record for record in every)
    heads = ["method", "take it for", *["runs"] * several, *(HEADS[key] for key in columns), "the server sees"]
    lines = [f"<tr>{''.join(f'<th scope=col>{_text(head)}</th>' for head in heads)}</tr>"]
    for runs in groups:
        title = f"<div>{_text(setting_title(runs))}</div>"
        lines.append(f'<tr><th scope="rowgroup" colspan="{len(heads)}">{title}</th></tr>')
        averaged = average_seeds(runs)
        recommended = choices(averaged)
        for record in sorted(averaged, key=lambda record: not any(choice.run is record for choice in recommended)):
            best = [choice for choice in recommended if choice.run is record]
            wishes = "; ".join([*(choice.wish for choice in best), *({choice.warning for choice in best} - {""})])
            faults = [record["error"]] if "error" in record else failure_texts(record)
            faults += [f"note: {'. '.join(record['notes'])}"] if record.get("notes") else []
            results = [format_result(record, key) for key in columns]
            sees = best[0].server_sees if best else ""
            cells = [method_text(record), wishes, *[runs_text(record)] * several, *results, sees]
            kind = ' class="best"' if best else ""
            lines.append(f"<tr{kind}>{''.join(f'<td>{_text(cell)}</td>' for cell in cells)}</tr>")
            for text in faults:
                short = text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]} …"
                lines.append(f'<tr class="fault"><td colspan="{len(heads)}"><div>{_text(short)}</div></td></tr>')
    return f'<div class="wide" tabindex="0"><table>{chr(10).join(lines)}</table></div>'


def figures(records: Sequence[dict[str, Any]]) -> list[tuple["Figure", str]]:
    """Return the figures of the runs with results, and the texts below."""
    try:
        from fedpca_flwr.figures import plots
    except ConfigError:
        raise ConfigError("a report needs matplotlib: pip install '.[plots]' in the repository") from None
    from fedpca_flwr.simulations.records import HEADS
    from fedpca_flwr.simulations.seed_means import AXES, MAX_PANELS, axes_with_values, curves

    text = "Bytes up, the mean over the clients, against the angle, of all settings. Down and to the left is better."
    has_angles = any(record.get("max angle") is not None for record in records)
    drawn = [(plots.bytes_against_error(curves(records, "MB up", "max angle")[""]), text)] if has_angles else []
    for over in axes_with_values(records)[:1]:
        panels = dict(list(curves(records, over, "max angle").items())[:MAX_PANELS])
        figure = plots.results_over(panels, xlabel=AXES[over], ylabel=HEADS["max angle"], angles=True)
        drawn.append((figure, f"The largest angle by {AXES[over]}: means over the seeds, with 95 % intervals."))
    return drawn


def _figure(drawing: tuple["Figure", str]) -> str:
    """Return a figure as SVG that a phone shows whole: in the page's colours, and with the legend below."""
    from matplotlib import rc_context

    from fedpca_flwr.figures.style import INK, STYLE, add_legend

    figure, text = drawing
    buffer = StringIO()
    with rc_context({**STYLE, "svg.fonttype": "none", "svg.hashsalt": text}):  # the same text and bytes each time
        if len(figure.axes) == 1:
            (legend,) = figure.legends
            handles: list[Any] = list(legend.legend_handles)
            for handle, entry in zip(handles, legend.get_texts(), strict=True):
                handle.set_label(entry.get_text())
            legend.remove()
            figure.set_size_inches(3.6, 4.0)
            add_legend(figure, handles, below=True, columns=1)
        no_metadata = dict.fromkeys(["Creator", "Date", "Format", "Type"])
        figure.savefig(buffer, format="svg", metadata=no_metadata, facecolor="none")
    svg = buffer.getvalue().replace(INK.lower(), "currentColor")
    svg = re.sub(r' xmlns(:xlink)?="[^"]*"', "", svg[svg.index("<svg") :])
    svg = svg.replace("<svg", f'<svg role="img" aria-label="{escape(text)}"', 1)
    return f'<figure><div class="wide" tabindex="0">{svg}</div><figcaption>{escape(text)}</figcaption></figure>'


def main(folder: Path) -> cli.Report:
    """Write the page of a comparison again: two figures, and a table that says which run to take for what.

        fedpca report FOLDER

    The page is FOLDER/report.html. It contains all that it shows, and needs neither a server nor a network.

    Parameters
    ----------
    folder : Path
        The --output of a comparison.

    Returns
    -------
    Report
        The path of the page.

    Raises
    ------
    ConfigError
        If the folder holds no runs.
    """
    from fedpca_flwr.simulations.runs_file import RUNS, read_records  # here: a help needs nothing of it

    records = read_records(folder)
    if not records:
        raise ConfigError(f"{folder / RUNS} does not exist, or is empty; name the --output folder of a comparison")
    page = str(write_report(folder, records))
    return cli.Report(page, {"page": page})
