"""Texts of a model: its summary, and its page in a notebook."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedpca_flwr.errors import ContractError, printable_text
from fedpca_flwr.model import measurements, tables
from fedpca_flwr.model.components_table import sampling_intervals
from fedpca_flwr.model.fitted import FittedPCA

if TYPE_CHECKING:
    from fedpca_flwr.cli import Report

MAX_NAMED_PARTIES = 6  # of more parties a summary tells only the number
# lines of a summary on the distance of an approximate model from the exact one, the most reliable first
ASSURANCES = ("angle to pooled PCA", "certified angle", "angle bound", "missing values", "privacy")


def summary(model: FittedPCA, *, full: bool = False) -> str:
    """Write the summary `fedpca_flwr.model.model.PCAModel.summary` of a model."""
    log = model.log
    if lacking := [key for key in ("method", "exact", "parties", "rounds") if key not in log]:
        raise ContractError(f"the model's history has no '{lacking[0]}': only models that a run made have a summary")
    if not full:
        return _short_summary(model)
    parties = log["parties"]
    by_columns = model.components_ is None
    rows = [] if by_columns else [party["rows"] for party in parties if party["rows"] is not None]
    local_rows_text = f", {sum(rows)} of them at these sites" if rows and sum(rows) != model.n_samples_ else ""
    sizes_text = f", with {_range_text(rows, 'rows')}" if rows else ""
    if by_columns:
        widths = [party["features"] for party in parties]
        sizes_text = f", with {_range_text(widths, 'features')} of the same rows"
    names = [party.get("name") for party in parties]
    names_text = f" ({', '.join(names)})" if all(names) and len(names) <= MAX_NAMED_PARTIES else ""
    traffic = []
    if log["rounds"]:
        traffic = [
            ("rounds", f"{model.rounds}, and one in which each site projects its own rows"),
            ("bytes up", f"{max(model.bytes_up_by_party):,} at most per site, {model.bytes_up:,} in all"),
            ("bytes down", f"{model.bytes_down:,} in all"),
        ]
    lines = [
        ("method", _method_text(model)),
        ("sites", f"{len(parties)}{names_text}{sizes_text}"),
        ("rows", f"{model.n_samples_} of {model.n_features_in_} features{local_rows_text}"),
        *traffic,
        ("components", f"{model.n_components_}"),
        ("explained variance", _shares_text(model)),
    ]
    scaled = "features divided by their deviations, divisor n (in table() n - 1, as in R)"
    lines.append(("scaled", f"yes: {scaled}" if measurements.is_scaled(model) else "no"))
    lines += [("column weights", text)] if (text := log.get("options", {}).get("column-weights")) else []
    lines += [("transform", f"{step} of the rows")] if (step := log.get("transform")) else []
    lines += measurements.measurement_lines(model)
    lines += [("note", note) for note in log.get("notes", [])]
    return "\n".join(f"  {name:<22}{printable_text(text)}" for name, text in lines)


def summary_report(model: FittedPCA, file: Path) -> Report:
    """Return the full summary as a command's report; for programs the model's file, shares, measurements and notes."""
    from fedpca_flwr.cli import Report  # commands alone need it

    content = {"model": str(file), "explained_variance_ratio": model.explained_variance_ratio_.tolist()}
    return Report(summary(model, full=True), {**content, **{key: model.log[key] for key in ("measured", "notes")}})


def _method_text(model: FittedPCA) -> str:
    """Write the method, and whether it is exact."""
    return f"{model.log['method']} ({'exact' if model.log['exact'] else 'approximate'})"


def _range_text(sizes: Sequence[int], unit: str) -> str:
    """Write the smallest and the largest size, or the size of all parties."""
    if min(sizes) < max(sizes):
        return f"{min(sizes)} to {max(sizes)} {unit}"
    return f"{sizes[0]} {unit}{' each' if len(sizes) > 1 else ''}"


def _shares_text(model: FittedPCA) -> str:
    """Write the share of the variance that the components explain together, and cumulatively the first five."""
    ratio = model.explained_variance_ratio_
    if np.isnan(ratio).any():
        return "unknown: no component stands out of the noise"
    above = model.log.get("measured", {}).get("components_above_noise", ratio.size)
    stand_out_text = f" by the {above} that stand out of the noise" if above < ratio.size else ""
    shares = [measurements.share_text(share) for share in ratio[:above].cumsum()]
    cumulative = f", cumulative {', '.join(shares[:5])}{', ...' * (above > 5)}" if above > 1 else ""
    return f"{shares[-1]} of the variance{stand_out_text}{cumulative}"


def _short_summary(model: FittedPCA) -> str:
    """Write what the model is, how much variance it explains, how certain this is, and the first doubt of the data."""
    log, lines = model.log, dict(measurements.measurement_lines(model))
    assurances = [f"{label} {lines[label]}" for label in ASSURANCES if label in lines]
    sure = ["the components of all rows together, up to rounding"] if log["exact"] else []
    sure += assurances[:1]
    if not sure:
        sure.append("approximate, without a bound on the angle to the exact components")
    intervals = sampling_intervals(model)
    if intervals is not None:
        low, high = intervals[0]
        sure.append(f"first variance {model.explained_variance_[0]:.3g}, 95 % interval {low:.3g} to {high:.3g}")
    notes = log.get("notes", [])
    if count := len(notes):
        sure.append(f"{count} note{'s' * (count > 1)} in summary(full=True)")
    parties = len(log["parties"])
    transform_text = f"; transform: {log['transform']}" if log.get("transform") else ""
    texts = {
        "what": f"{model.n_components_} components of {model.n_features_in_} features in {model.n_samples_} rows of "
        f"{parties} site{'s' * (parties != 1)}, by {_method_text(model)}; scaled: "
        f"{'yes' if measurements.is_scaled(model) else 'no'}{transform_text}",
        "how much": _shares_text(model),
        "how sure": "; ".join(sure),
    }
    if doubts := [note for note in notes if "?" in note]:  # those that ask about the data
        texts["look at"] = doubts[0]
    return "\n".join(f"  {name:<10}{printable_text(text)}" for name, text in texts.items())


def model_page(model: FittedPCA) -> str:
    """Write a model as HTML: its line, components with bars and largest loadings, notes, and summary."""
    share = model.explained_variance_ratio_
    columns = [tables.component_labels(share.size), model.explained_variance_.tolist(), map(tables.Share, share)]
    heads = ["", "variance", "share", "in all"]
    columns.append(map(tables.Share, share.cumsum()))
    if model.components_ is not None:
        names = () if model.feature_names_in_ is None else tuple(model.feature_names_in_)
        columns.append([tables.largest_features(component, names) for component in model.components_])
        heads.append("largest loadings")
    page = tables.table_to_html(tables.DisplayTable(repr(model), heads, list(zip(*columns, strict=True))))
    notes = "".join(f"<li>{html.escape(printable_text(note))}</li>" for note in model.log.get("notes", []))
    history = html.escape(summary(model, full=True)) if "parties" in model.log else ""
    return f"{page}<ul>{notes}</ul><details><summary>how it was made</summary><pre>{history}</pre></details>"
