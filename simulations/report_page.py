"""The page of a comparison: tables that sort, figures, and how to repeat it. No server, no network."""

import base64
import hashlib
import html
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any

from fedpca_flwr.errors import FedPCAError, printable_text
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.tables import tables_by_name
from fedpca_flwr.simulations.recommending import EXACT, choices, sentence
from fedpca_flwr.simulations.records import (
    COUNTED,
    COUNTS,
    HEADS,
    Record,
    by_setting,
    card_of,
    columns_of,
    command,
    named,
    shown,
    title,
)
from fedpca_flwr.simulations.report_drawing import figures, figures_of_pool
from fedpca_flwr.state.files import atomic_file


def write_page(folder: Path, records: Sequence[Record]) -> Path:
    """Write ``report.html`` of a comparison whose models are in ``folder``, whole or not at all."""
    target = folder / "report.html"
    page = _page(folder, records)
    with atomic_file(target) as stream:
        stream.write(page.encode())
    return target


ABOUT = """Angles are to <code>PCA(svd_solver='full')</code> of the pooled rows in float64, those of kernel methods to
scikit-learn's kernel PCA. Variance captured: the share of the pooled rows' variance that a model's components hold
(with <code>personalised</code> each client's own, of its own rows); claimed: what the model says of itself. Methods for
columns had equal numbers of columns at each client, all others rows as a heading says. Without secure sums in its
heading a setting's runs were in clear."""

STYLE, SCRIPT = (Path(__file__).with_name(name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
"""How the page looks, and what its buttons and boxes do: both are written into it, so that it needs no other file."""

FILTERS = {"exact": "exact only", "secure": "with secure aggregation", "private": "differentially private"}

SHORT = 120
"""Characters of an error that stand in a table; what is longer unfolds."""


def _grid(figures: list[str]) -> list[str]:
    """Figures side by side, where the page is wide enough."""
    return ['<div class="figures">', *figures, "</div>"]


def _page(folder: Path, records: Sequence[Record]) -> str:
    groups = by_setting(records)
    parts = [_filters(records), *_across(groups)]
    for number, runs in enumerate(groups):
        parts.append(f"<h2>{_text(title(runs[0]))}</h2>\n{_recommended(runs)}\n{_table(runs, number)}")
        parts += _influence(folder, runs)
        parts += _grid(figures(folder, runs))
    pools: dict[tuple[str, str, int], list[Record]] = {}
    for record in (record for runs in groups for record in runs):
        pools.setdefault((record["dataset"], record["data root"], record["components"]), []).append(record)
    for (dataset, *_), runs in pools.items():
        drawn = figures_of_pool(runs)
        parts += [f"<h2>The rows of {_text(dataset)}, pooled</h2>", *_grid(drawn)] if drawn else []
    commands = "\n".join(_text(command(runs)) for runs in groups)
    versions = {json.dumps(record["versions"]): None for record in records if "versions" in record}
    dates = sorted(record["date"] for record in records if "date" in record)
    made = f"Runs of {dates[0]} to {dates[-1]} (UTC). " if dates else ""
    about = f"{_text(made)}Versions: {_text('; '.join(versions) or 'unknown')}. {ABOUT} {COUNTED}"
    rest = f'<h2>How to repeat it</h2>\n<pre tabindex="0">{commands}</pre>\n<p>{about}</p>'
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy()}">'
        '<meta name="viewport" content="width=device-width"><title>Federated PCA: comparison</title>'
        f'<link rel="icon" href="data:,"><style>{STYLE}</style></head>\n'
        "<body>\n<main>\n<h1>Federated PCA: comparison</h1>\n"
        + "\n".join([*parts, rest])
        + f"\n</main>\n<script>{SCRIPT}</script>\n</body></html>\n"
    )


def _policy() -> str:
    """What a browser may do with the page: run its own script, and nothing else that anyone wrote into it."""
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    nothing = "default-src 'none'; base-uri 'none'; form-action 'none'"
    return f"{nothing}; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:"


def _text(value: object) -> str:
    """Whatever a record holds, as the text of a page."""
    return html.escape(printable_text(str(value)))


def _filters(records: Sequence[Record]) -> str:
    """A box for each kind of run; one that would hide all rows cannot be ticked."""
    there = {kind for record in records for kind in _kinds(record).split()}
    boxes = (
        f'<label><input type="checkbox" value="{value}"{"" if value in there else " disabled"}> {text}</label>'
        for value, text in FILTERS.items()
    )
    hint = "<p>No run here is with secure aggregation: <code>--bound</code> makes some.</p>"
    hint = "" if "secure" in there else hint
    return f"<fieldset><legend>Show methods</legend>{''.join(boxes)}{hint}</fieldset>"


def _kinds(record: Record) -> str:
    """What a run is, of `FILTERS`."""
    card = card_of(record["method"])
    angle = record.get("max angle")
    exact = card.exact if "error" in record else record["exact"] and angle is not None and angle <= EXACT
    secure = record["bound"] > 0 and "error" not in record
    is_so = {"exact": exact, "secure": secure, "private": card.differentially_private}
    return " ".join(name for name, holds in is_so.items() if holds)


def _recommended(records: Sequence[Record]) -> str:
    """What the runs of a setting recommend, in a paragraph and a table."""
    found = choices(records)
    if not found:
        return ""
    rows = []
    for choice in found:
        angle = choice.run["max angle"]
        off = [*([] if angle is None else [f"{angle:.2g}°"]), *([choice.warning] if choice.warning else [])]
        cells = [choice.wish, named(choice.run), choice.cost, "; ".join(off)]
        cells += [shown(choice.run, "captured variance"), choice.server_sees]
        rows.append("<tr>" + "".join(f'<td class="text">{_text(cell)}</td>' for cell in cells) + "</tr>")
    heads = ("wish", "method", "cost for each client", "angle", "variance captured", "the server sees")
    head = "".join(f'<th scope="col" class="text">{text}</th>' for text in heads)
    return f'<p class="lead">{_text(sentence(found))}</p>\n{_wide("", head, rows)}'


def _across(groups: Sequence[Sequence[Record]]) -> Iterable[str]:
    """The largest angle of every method in every setting, where there are several."""
    if len(groups) < 2:
        return
    records = {(named(record), i): record for i, runs in enumerate(groups) for record in runs}
    head = "".join(f'<th scope="col">{_text(title(runs[0]))}</th>' for runs in groups)
    rows = []
    for name in dict.fromkeys(name for name, _ in records):
        held = [records.get((name, i), {}) for i in range(len(groups))]
        cells = "".join(f"<td>{'failed' if 'error' in one else _text(shown(one, 'max angle'))}</td>" for one in held)
        rows.append(f"<tr><td>{_text(name)}</td>{cells}</tr>")
    yield "<h2>All settings: the largest angle (degrees)</h2>"
    yield _wide("across", f'<th scope="col">method</th>{head}', rows)


def _table(records: Sequence[Record], number: int) -> str:
    """The runs of a setting; below a run, over the whole width, its notes or why it was refused."""
    columns = columns_of(records)
    heads = "".join(map(_head, ["method", *columns]))
    rows = []
    for place, record in enumerate(records):
        name, key, kinds = _text(named(record)), f"run-{number}-{place}", _kinds(record)
        cells = "".join(_cell(record, column) for column in columns)
        rows.append(f'<tr id="{key}" data-is="{kinds}"><td data-value="{name}">{name}</td>{cells}</tr>')
        text = _error(record["error"]) if "error" in record else "<br>".join(map(_text, record.get("notes", [])))
        if text:
            more = f'class="more" data-of="{key}" data-is="{kinds}"'
            rows.append(f'<tr {more}><td class="note" colspan="{len(columns) + 1}"><div>{text}</div></td></tr>')
    return _wide("runs", heads, rows)


def _head(key: str) -> str:
    """The head of a column of runs, which sorts them; what is counted in it where that can be asked."""
    tip = f' title="{_text(COUNTED)}"' if key in COUNTS else ""
    return f'<th scope="col"><button{tip}>{_text(HEADS.get(key, key))}</button></th>'


def _error(text: str) -> str:
    """Why a run was refused; a long text unfolds, since methods that are refused alike would fill the page."""
    lines = "<br>".join(map(_text, text.split("\n")))
    if len(text) <= SHORT:
        return lines
    return f"<details><summary>{_text(shorten(text, SHORT, placeholder=' …'))}</summary>{lines}</details>"


def _influence(folder: Path, records: Sequence[Record]) -> Iterable[str]:
    """What each party has in the first model that says so: all that do say nearly the same of one setting."""
    models = ((named(record), folder / record["model"]) for record in records if record.get("model"))
    try:
        known = ((name, PCAModel.load(path)) for name, path in models)
        name, model = next(((name, found) for name, found in known if found.log.get("influence")), ("", None))
    except FedPCAError:  # the figures say which model cannot be read
        return
    if model is None:
        return
    heads = ("client", "rows", "variance", "most of a component", "angle of the first without it (degrees)")
    try:
        called = tables_by_name([one["party"] for one in model.log["influence"]], model.log)
        lines = [_influence_of(name, one) for name, one in zip(called, model.log["influence"], strict=True)]
    except (LookupError, TypeError, ValueError):  # the file of the model is of somebody else
        return
    head = "".join(f'<th scope="col">{text}</th>' for text in heads)
    yield f"<h3>What each client has in {_text(name)}</h3>"
    yield _wide("", head, lines)


def _influence_of(name: str, one: Mapping[str, Any]) -> str:
    """The row of a client in that table."""
    shares = (one["rows_share"], one["variance_share"], max(one["component_shares"]))
    cells = "".join(f"<td>{float(share):.2%}</td>" for share in shares)
    return f"<tr><td>{_text(name)}</td>{cells}<td>{float(one['angles_degrees'][0]):.3g}</td></tr>"


def _wide(kind: str, head: str, rows: Sequence[str]) -> str:
    """A table that scrolls by itself where the page is narrow."""
    of_kind = f' class="{kind}"' if kind else ""
    body = "\n".join(rows)
    table = f"<table{of_kind}><thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table>"
    return f'<div class="wide" tabindex="0">{table}</div>'


def _cell(record: Record, key: str) -> str:
    value = record.get(key)
    return f'<td data-value="{"" if value is None else _text(repr(value))}">{_text(shown(record, key))}</td>'
