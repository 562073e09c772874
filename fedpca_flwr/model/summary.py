"""What a model says of itself, as lines of text.

How a model shows itself in a line, and in a notebook.
"""

from __future__ import annotations

import html

import numpy as np

from fedpca_flwr.errors import ContractError, printable
from fedpca_flwr.model import measurements
from fedpca_flwr.model.measurements import FittedPCA


def summary(model: FittedPCA) -> str:
    """What a person wants to know first, as lines of text.

    Raises
    ------
    ContractError
        Where the model has no history.
    """
    log = model.log
    if lacking := [key for key in ("method", "exact", "parties", "rounds") if key not in log]:
        raise ContractError(f"the model's history has no '{lacking[0]}': a summary is of what a run has made")
    parties = log["parties"]
    by_columns = model.components_ is None
    rows = [] if by_columns else [party["rows"] for party in parties if party["rows"] is not None]
    here = f", {sum(rows)} of them at these parties" if rows and sum(rows) != model.n_samples_ else ""
    held = f", with {min(rows)} to {max(rows)} rows" if rows else ""
    if by_columns:
        widths = [party["features"] for party in parties]
        held = f", with {min(widths)} to {max(widths)} features of the same rows"
    ratio = model.explained_variance_ratio_
    shares = f"{ratio.sum():.4%} (first: {', '.join(f'{r:.2%}' for r in ratio[:5])})"
    if np.isnan(ratio).any():
        shares = "unknown: no component stands out of the noise"
    lines = [
        ("method", f"{log['method']} ({'exact' if log['exact'] else 'approximate'})"),
        ("parties", f"{len(parties)}{held}"),
        ("rows", f"{model.n_samples_} of {model.n_features_in_} features{here}"),
        *_traffic(model),
        ("components", f"{model.n_components_}"),
        ("explained variance", shares),
    ]
    lines += measurements.lines(model)
    lines += [("note", note) for note in log.get("notes", [])]
    return "\n".join(f"  {name:<22}{printable(text)}" for name, text in lines)


def _traffic(model: FittedPCA) -> list[tuple[str, str]]:
    """Lines of the summary about what travelled; none where the model was made of what was there."""
    if not model.log["rounds"]:
        return []
    return [
        ("rounds", f"{model.rounds}, and one in which each party projects its own rows"),
        ("bytes up", f"{max(model.bytes_up_by_party):,} at most per party, {model.bytes_up:,} in all"),
        ("bytes down", f"{model.bytes_down:,} in all"),
    ]


MOST = 20
"""Components that a table shows."""


def line_of(model: FittedPCA) -> str:
    """A model in one line."""
    method, share = printable(str(model.log.get("method", "pooled"))), float(model.explained_variance_ratio_.sum())
    held = "none above the noise" if np.isnan(share) else f"{share:.2%} of the variance"
    return (
        f"PCAModel({method}: {model.n_components_} components of {model.n_features_in_} features, "
        f"{model.n_samples_} rows, {held})"
    )


def page_of(model: FittedPCA) -> str:
    """A model as HTML: its line, a table of its components with bars, and its summary; in the colours of the page."""
    total, rows = 0.0, []
    for i, (variance, share) in enumerate(
        zip(model.explained_variance_[:MOST], model.explained_variance_ratio_, strict=False)
    ):
        if np.isnan(share):
            rows.append(f'<tr><td>{i + 1}</td><td colspan="4">unknown</td></tr>')
            continue
        total += float(share)
        bar = f'<div style="background:currentColor;opacity:.5;height:.7em;width:{100 * float(share):.2f}%"></div>'
        cells = f"<td>{i + 1}</td><td>{variance:.6g}</td><td>{share:.2%}</td><td>{total:.2%}</td>"
        rows.append(f'<tr>{cells}<td style="width:12em">{bar}</td></tr>')
    heads = "".join(f"<th>{name}</th>" for name in ("component", "variance", "share", "in all", ""))
    told = html.escape(summary(model)) if "parties" in model.log else ""
    return (
        f"<div><p>{html.escape(line_of(model))}</p><details><summary>components</summary>"
        f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table></details>"
        f"<details><summary>how it was made</summary><pre>{told}</pre></details></div>"
    )
