"""How a model shows itself in a line, and in a notebook."""

from __future__ import annotations

import html

import numpy as np

from fedpca_flwr.fitted import FittedPCA
from fedpca_flwr.foreign_text import printable
from fedpca_flwr.summary import summary

MOST = 20
"""Components that a table shows."""


def line(model: FittedPCA) -> str:
    """A model in one line."""
    method, share = printable(str(model.log.get("method", "pooled"))), float(model.explained_variance_ratio_.sum())
    held = "none above the noise" if np.isnan(share) else f"{share:.2%} of the variance"
    return (
        f"PCAModel({method}: {model.n_components_} components of {model.n_features_in_} features, "
        f"{model.n_samples_} rows, {held})"
    )


def page(model: FittedPCA) -> str:
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
        f"<div><p>{html.escape(line(model))}</p><details><summary>components</summary>"
        f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table></details>"
        f"<details><summary>how it was made</summary><pre>{told}</pre></details></div>"
    )
