"""The page of a comparison: tables that sort, figures, and how to repeat the comparison. No server, no network."""

import base64
import hashlib
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from textwrap import shorten
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from fedpca_flwr.errors import FedPCAError, printable_text
from fedpca_flwr.maths.eigen import EXACT_ANGLE_DEGREES
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.tables import tables_by_name
from fedpca_flwr.simulations.recommending import choices, recommendation_text
from fedpca_flwr.simulations.records import (
    COUNTS,
    COUNTS_NOTE,
    HEADS,
    Record,
    card_of,
    columns_of,
    format_result,
    group_by_setting,
    is_installed,
    method_text,
    repeat_commands,
    setting_title,
)
from fedpca_flwr.simulations.report_drawing import Drawing, figures, figures_across, figures_of_pool
from fedpca_flwr.simulations.seed_means import SEEDS_NOTE, average_seeds, count_runs, failure_texts, runs_text
from fedpca_flwr.state.files import SHARED, atomic_file

TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent, encoding="utf-8"),
    autoescape=True,
    undefined=StrictUndefined,
    finalize=lambda value: value if isinstance(value, Markup) else printable_text(str(value)),
)
# how the page looks, and what its buttons and boxes do: both are written into it, so that it needs no other file
STYLE, SCRIPT = (Path(__file__).with_name(name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
FILTERS = {"exact": "exact only", "secure": "with secure aggregation", "private": "differentially private"}
MAX_FIGURE_CHARACTERS = 600_000  # characters of all figures of a page, so that it has at most 1.5 MB
MAX_SECTIONS = 50  # settings that have a section of their own; the table of all settings has the others, too

FULL_NOTE = (
    "More figures would make the page too large. In Python, compare(...).figure() has them, and so has the page of a "
    "comparison of fewer settings in a folder of its own."
)

MAX_ERROR_CHARACTERS = 120  # characters of an error that stand in a table; what is longer unfolds


def write_page(folder: Path, records: Sequence[Record]) -> Path:
    """Write ``report.html`` of a comparison's runs into its folder, completely or not at all, and return its path."""
    groups = group_by_setting(records)
    pools: dict[tuple[str, str, int], list[Record]] = {}
    for record in (record for runs in groups for record in runs):
        pools.setdefault((record["dataset"], record["data root"], record["components"]), []).append(record)
    sections, budget = groups[:MAX_SECTIONS], Budget(MAX_FIGURE_CHARACTERS)
    across = budget.take(partial(figures_across, records))
    drawings = [(dataset, budget.take(partial(figures_of_pool, runs))) for (dataset, *_), runs in pools.items()]
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
        methods=(methods := list(dict.fromkeys(method_text(record) for runs in groups for record in runs))),
        angles=_angles(groups, methods),
        across=across,
        settings=[_setting(folder, runs, number, budget) for number, runs in enumerate(sections)],
        left_out=len(groups) - len(sections),
        pools=[(dataset, figures_of_data) for dataset, figures_of_data in drawings if figures_of_data],
        commands=[command for runs in sections for command in repeat_commands(runs)],
        classes=sorted({record["method"] for record in records if not is_installed(record["method"])}),
        seeds_note=SEEDS_NOTE if any("seeds" in record for record in average_seeds(records)) else "",
        dates=f"Runs of {dates[0]} to {dates[-1]} (UTC). " if dates else "",
        versions="; ".join(versions) or "unknown",
        heads=HEADS,
        counts=COUNTS,
        counted=COUNTS_NOTE,
    )
    target = folder / "report.html"
    with atomic_file(target, SHARED) as stream:
        stream.write(page.encode())
    return target


def _kinds(record: Record) -> str:
    """Return the page's filters ("exact", "secure", "private") that apply to a run, separated by spaces."""
    card, angle = card_of(record["method"]), record.get("max angle")
    near = angle is not None and angle <= EXACT_ANGLE_DEGREES
    exact = card.exact if "error" in record else record["exact"] and near
    secure = record["bound"] > 0 and "error" not in record
    kinds = {"exact": exact, "secure": secure, "private": card.differentially_private}
    return " ".join(name for name, applies in kinds.items() if applies)


def _angles(groups: Sequence[Sequence[Record]], methods: Sequence[str]) -> list[list[str]]:
    """Return a line for each setting: its title, and the largest angle of each method."""
    lines = []
    for runs in groups:
        by_method = {method_text(record): record for record in average_seeds(runs)}
        angles = (by_method.get(name, {}) for name in methods)
        texts = ("failed" if "error" in record else format_result(record, "max angle") for record in angles)
        lines.append([setting_title(runs), *texts])
    return lines


def _setting(folder: Path, records: Sequence[Record], number: int, budget: "Budget") -> dict[str, Any]:
    """Return the page's values for a single setting: recommendations, rows of runs, influence and figures."""
    averaged = average_seeds(records)
    recommended = choices(averaged)
    lines = []
    for choice in recommended:
        angle = format_result(choice.run, "max angle")
        notes = [*([f"{angle}°"] if angle else []), *([choice.warning] if choice.warning else [])]
        line = [choice.wish, method_text(choice.run), choice.cost, "; ".join(notes)]
        lines.append([*line, format_result(choice.run, "captured variance"), choice.server_sees])
    columns = [*(["runs"] if any("seeds" in record for record in averaged) else []), *columns_of(averaged)]
    return {
        "title": setting_title(records),
        "sentence": recommendation_text(recommended),
        "choices": lines,
        "columns": ["method", *columns],
        "runs": [_run(record, columns, f"run-{number}-{place}") for place, record in enumerate(averaged)],
        "influence": _influence(folder, records),
        "figures": budget.take(partial(figures, folder, records)),
    }


class Budget:
    """Number of characters that the figures of a page may have together."""

    def __init__(self, characters: int) -> None:
        """Store the number of characters."""
        self.characters = characters

    def take(self, draw: Callable[[], list[Drawing]]) -> list[Drawing]:
        """Draw figures, and return those that fit, with a line on the others; draw nothing on a full page."""
        if self.characters <= 0:
            return []
        taken: list[Drawing] = []
        for drawing in draw():
            self.characters -= len(drawing.svg)
            if self.characters <= 0:
                return [*taken, Drawing(Markup(), FULL_NOTE)]
            taken.append(drawing)
        return taken


def _run(record: Record, columns: Sequence[str], identifier: str) -> dict[str, Any]:
    """Return the page's values for a single run: cells of its row, and the notes or the error below."""
    error = record.get("error", "")
    lines = error.split("\n") if error else [*failure_texts(record), *record.get("notes", [])]
    return {
        "id": identifier,
        "name": method_text(record),
        "kinds": _kinds(record),
        "cells": [_cell(record, key) for key in columns],
        "lines": lines,
        # Methods that are refused alike would fill the page, so a long text unfolds.
        "summary": shorten(error, MAX_ERROR_CHARACTERS, placeholder=" …") if len(error) > MAX_ERROR_CHARACTERS else "",
    }


def _cell(record: Record, key: str) -> tuple[str, str]:
    """Return the value by which a cell is sorted, and its text."""
    if key == "runs":
        return repr(count_runs(record)), runs_text(record)
    value = record.get(key)
    return "" if value is None else repr(value), format_result(record, key)


def _influence(folder: Path, records: Sequence[Record]) -> dict[str, Any]:
    """Return the name of the setting's first model that has influences, and ``rows`` of each party's shares and angle.

    Return {} if there is no such model, or one cannot be read.
    """
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
            angle = f"{float(entry['angles_degrees'][0]):.3g}"
            rows.append([party, *(f"{float(share):.2%}" for share in shares), angle])
    except (LookupError, TypeError, ValueError):  # the file of the model is of somebody else
        return {}
    return {"name": name, "rows": rows}
