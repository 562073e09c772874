"""The page of a comparison: tables that sort, figures, and how to repeat the comparison. No server, no network."""

import base64
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from fedpca_flwr.errors import FedPCAError, printable_text
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.tables import tables_by_name
from fedpca_flwr.simulations.recommending import EXACT_DEGREES, choices, recommendation_text
from fedpca_flwr.simulations.records import (
    COUNTS,
    COUNTS_NOTE,
    HEADS,
    Record,
    card_of,
    columns_of,
    format_result,
    group_by_setting,
    method_text,
    repeat_command,
    setting_title,
)
from fedpca_flwr.simulations.report_drawing import figures, figures_of_pool
from fedpca_flwr.state.files import atomic_file

TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent, encoding="utf-8"),
    autoescape=True,
    undefined=StrictUndefined,
    finalize=lambda value: value if isinstance(value, Markup) else printable_text(str(value)),
)
STYLE, SCRIPT = (Path(__file__).with_name(name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
"""How the page looks, and what its buttons and boxes do: both are written into it, so that it needs no other file."""

FILTERS = {"exact": "exact only", "secure": "with secure aggregation", "private": "differentially private"}

MAX_ERROR_CHARACTERS = 120
"""Characters of an error that stand in a table; what is longer unfolds."""


def write_page(folder: Path, records: Sequence[Record]) -> Path:
    """Write ``report.html`` of a comparison, completely or not at all.

    Parameters
    ----------
    folder : Path
        Folder of the comparison, with its models.
    records : sequence of dict
        Runs of the comparison.

    Returns
    -------
    Path
        Path of the page.
    """
    groups = group_by_setting(records)
    pools: dict[tuple[str, str, int], list[Record]] = {}
    for record in (record for runs in groups for record in runs):
        pools.setdefault((record["dataset"], record["data root"], record["components"]), []).append(record)
    drawings = [(dataset, figures_of_pool(runs)) for (dataset, *_), runs in pools.items()]
    versions = {json.dumps(record["versions"]): None for record in records if "versions" in record}
    dates = sorted(record["date"] for record in records if "date" in record)
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    page = TEMPLATES.get_template("report.html").render(
        style=Markup(STYLE),
        script=Markup(SCRIPT),
        # A browser runs the page's own script, and nothing else that anyone wrote into it.
        policy="default-src 'none'; base-uri 'none'; form-action 'none'; "
        f"script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:",
        filters=FILTERS,
        kinds={kind for record in records for kind in _kinds(record).split()},
        angles=_angles(groups),
        settings=[_setting(folder, runs, number) for number, runs in enumerate(groups)],
        pools=[(dataset, figures_of_data) for dataset, figures_of_data in drawings if figures_of_data],
        commands=[repeat_command(runs) for runs in groups],
        dates=f"Runs of {dates[0]} to {dates[-1]} (UTC). " if dates else "",
        versions="; ".join(versions) or "unknown",
        heads=HEADS,
        counts=COUNTS,
        counted=COUNTS_NOTE,
    )
    target = folder / "report.html"
    with atomic_file(target) as stream:
        stream.write(page.encode())
    return target


def _kinds(record: Record) -> str:
    """Return the page's filters ("exact", "secure", "private") that apply to a run, separated by spaces."""
    card = card_of(record["method"])
    angle = record.get("max angle")
    exact = card.exact if "error" in record else record["exact"] and angle is not None and angle <= EXACT_DEGREES
    secure = record["bound"] > 0 and "error" not in record
    kinds = {"exact": exact, "secure": secure, "private": card.differentially_private}
    return " ".join(name for name, applies in kinds.items() if applies)


def _angles(groups: Sequence[Sequence[Record]]) -> list[list[str]]:
    """Return a line for each method: its name, and its largest angle in each setting."""
    columns = [{method_text(record): record for record in runs} for runs in groups]
    lines = []
    for name in dict.fromkeys(name for column in columns for name in column):
        runs = [column.get(name, {}) for column in columns]
        lines.append([name, *("failed" if "error" in run else format_result(run, "max angle") for run in runs)])
    return lines


def _setting(folder: Path, records: Sequence[Record], number: int) -> dict[str, Any]:
    """Return the page's values for a single setting: recommendations, rows of runs, influence and figures."""
    recommended = choices(records)
    lines = []
    for choice in recommended:
        angle = choice.run["max angle"]
        notes = [*([] if angle is None else [f"{angle:.2g}°"]), *([choice.warning] if choice.warning else [])]
        line = [choice.wish, method_text(choice.run), choice.cost, "; ".join(notes)]
        lines.append([*line, format_result(choice.run, "captured variance"), choice.server_sees])
    columns = columns_of(records)
    return {
        "title": setting_title(records[0]),
        "sentence": recommendation_text(recommended),
        "choices": lines,
        "columns": ["method", *columns],
        "runs": [_run(record, columns, f"run-{number}-{place}") for place, record in enumerate(records)],
        "influence": _influence(folder, records),
        "figures": figures(folder, records),
    }


def _run(record: Record, columns: Sequence[str], identifier: str) -> dict[str, Any]:
    """Return the page's values for a single run: cells of its row, and the notes or the error below."""
    error = record.get("error", "")
    values = [record.get(key) for key in columns]
    return {
        "id": identifier,
        "name": method_text(record),
        "kinds": _kinds(record),
        "cells": [
            ("" if value is None else repr(value), format_result(record, key))
            for key, value in zip(columns, values, strict=True)
        ],
        "lines": error.split("\n") if error else record.get("notes", []),
        # Methods that are refused alike would fill the page, so a long text unfolds.
        "summary": shorten(error, MAX_ERROR_CHARACTERS, placeholder=" …") if len(error) > MAX_ERROR_CHARACTERS else "",
    }


def _influence(folder: Path, records: Sequence[Record]) -> dict[str, Any]:
    """Return each party's shares and angle for the page, by the setting's first model that has influences."""
    models = ((method_text(record), folder / record["model"]) for record in records if record.get("model"))
    try:
        loaded = ((name, PCAModel.load(path)) for name, path in models)
        name, model = next(((name, model) for name, model in loaded if model.log.get("influence")), ("", None))
    except FedPCAError:  # the figures say which model cannot be read
        return {}
    if model is None:
        return {}
    rows = []
    try:
        parties = tables_by_name([entry["party"] for entry in model.log["influence"]], model.log)
        for party, entry in zip(parties, model.log["influence"], strict=True):
            shares = (entry["rows_share"], entry["variance_share"], max(entry["component_shares"]))
            rows.append(
                [party, *(f"{float(share):.2%}" for share in shares), f"{float(entry['angles_degrees'][0]):.3g}"]
            )
    except (LookupError, TypeError, ValueError):  # the file of the model is of somebody else
        return {}
    return {"name": name, "rows": rows}
