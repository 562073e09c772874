"""The texts of a model: its summary, its line, its page in a notebook, and notes that a reader of it must know."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from fedpca_flwr.errors import ContractError, printable
from fedpca_flwr.model import measurements, tables
from fedpca_flwr.model.fitted import FittedPCA

NAMED_PARTIES = 6  # of more, a summary tells only the number


def summary(model: FittedPCA) -> str:
    """What a person wants to know first, as lines of text; `ContractError` where the model has no history."""
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
    names = [party.get("name") for party in parties]
    named = f" ({', '.join(names)})" if all(names) and len(names) <= NAMED_PARTIES else ""
    ratio = model.explained_variance_ratio_
    above = log.get("measured", {}).get("components_above_noise", ratio.size)
    of = f" by the {above} that stand out of the noise" if above < ratio.size else ""
    shares = f"{ratio[:above].sum():.4%}{of} (first: {', '.join(f'{r:.2%}' for r in ratio[:above][:5])})"
    if np.isnan(ratio).any():
        shares = "unknown: no component stands out of the noise"
    lines = [
        ("method", f"{log['method']} ({'exact' if log['exact'] else 'approximate'})"),
        ("parties", f"{len(parties)}{named}{held}"),
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


def line_of(model: FittedPCA) -> str:
    """A model in one line."""
    method, share = printable(str(model.log.get("method", "pooled"))), float(model.explained_variance_ratio_.sum())
    held = "none above the noise" if np.isnan(share) else f"{share:.2%} of the variance"
    return (
        f"PCAModel({method}: {model.n_components_} components of {model.n_features_in_} features, "
        f"{model.n_samples_} rows, {held})"
    )


def page_of(model: FittedPCA) -> str:
    """A model as HTML: its line, its components with bars and their largest loadings, its notes, and its summary."""
    share = model.explained_variance_ratio_
    columns = [tables.labels(share.size), model.explained_variance_.tolist(), map(tables.Share, share)]
    heads = ["", "variance", "share", "in all"]
    columns.append(map(tables.Share, share.cumsum()))
    if model.components_ is not None:
        names = () if model.feature_names_in_ is None else tuple(model.feature_names_in_)
        columns.append([tables.largest(component, names) for component in model.components_])
        heads.append("largest loadings")
    page = tables.in_html(tables.Shown(line_of(model), heads, list(zip(*columns, strict=True))))
    notes = "".join(f"<li>{html.escape(printable(note))}</li>" for note in model.log.get("notes", []))
    history = html.escape(summary(model)) if "parties" in model.log else ""
    return f"{page}<ul>{notes}</ul><details><summary>how it was made</summary><pre>{history}</pre></details>"


NAMED = 3  # how many features of a party a note names at most


def unit_notes(found: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[str]:
    """One note for each party that seems to have features in another unit than the others.

    These are entries of ``model.log["other_units"]`` by party: ``party``, ``feature`` (its number, from 0), ``mean`` at
    this party and ``mean_elsewhere``. Names are empty where they are not known.
    """
    return [_note(party, list(units), names) for party, units in groupby(found, key=lambda unit: unit["party"])]


def renamed(log: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """A model's log in which the notes on units have the features' names."""
    found = log.get("other_units", [])
    new = dict(zip(unit_notes(found, ()), unit_notes(found, names), strict=True))
    return {**log, "notes": [new.get(note, note) for note in log.get("notes", [])]}


def _note(party: str, found: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str:
    shown = ", ".join(
        f"{names[unit['feature']] if names else 'feature ' + str(unit['feature'] + 1)} (mean {unit['mean']:.4g} there, "
        f"{unit['mean_elsewhere']:.4g} elsewhere)"
        for unit in found[:NAMED]
    )
    more = f", and {len(found) - NAMED} more features" if len(found) > NAMED else ""
    return (
        f"{party} seems to have features in another unit than the others: {shown}{more}. The deviation differs by the "
        "same factor as the mean. Ask that site: if so, this model is of no use, scaled or not"
    )


TOLD = 0.95  # a note tells of scores that lie nearer the centre than this share of where they belong


def shrinkage_notes(model: FittedPCA) -> list[str]:
    """A note where rows are fewer than features, and scores of new rows are much too small."""
    found = model.shrinkage_
    found = found[~np.isnan(found)]
    if model.n_samples_ > model.n_features_in_ or not found.size or found.min() >= TOLD:
        return []
    return [
        f"scores of new rows lie at {found.min():.2f} to {found.max():.2f} of where those of these rows do "
        "(shrinkage_), if what is left out is noise of one level (correlated variants: prune first); "
        "analyses.projected(model, X) corrects them"
    ]
