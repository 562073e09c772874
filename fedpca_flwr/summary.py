"""What a model says of itself, as lines of text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedpca_flwr.model import PCAModel


def summary(model: PCAModel) -> str:
    """What a person wants to know first, as lines of text."""
    log = model.log
    parties = log["parties"]
    by_columns = model.components_ is None
    rows = [] if by_columns else [party["rows"] for party in parties if party["rows"] is not None]
    here = f", {sum(rows)} of them at these parties" if rows and sum(rows) != model.n_samples_ else ""
    held = f", with {min(rows)} to {max(rows)} rows" if rows else ""
    if by_columns:
        widths = [party["features"] for party in parties]
        held = f", with {min(widths)} to {max(widths)} features of the same rows"
    ratio = model.explained_variance_ratio_
    lines = [
        ("method", f"{log['method']} ({'exact' if log['exact'] else 'approximate'})"),
        ("parties", f"{len(parties)}{held}"),
        ("rows", f"{model.n_samples_} of {model.n_features_in_} features{here}"),
        *_traffic(log),
        ("components", f"{model.n_components_}"),
        ("explained variance", f"{ratio.sum():.4%} (first: {', '.join(f'{r:.2%}' for r in ratio[:5])})"),
    ]
    lines += [(name, text) for name, text in log.get("measured", {}).items()]
    lines += [("note", note) for note in log.get("notes", [])]
    return "\n".join(f"  {name:<22}{text}" for name, text in lines)


def _traffic(log: dict[str, Any]) -> list[tuple[str, str]]:
    """Lines of the summary about what travelled; none where the model was made of what was there."""
    rounds = log["rounds"]
    if not rounds:
        return []
    fit = [entry for entry in rounds if entry["phase"] != "project"]
    up = [sum(sent) for sent in zip(*(entry["up"] for entry in fit), strict=True)]
    return [
        ("rounds", f"{len(fit)}, and one in which each party projects its own rows"),
        ("bytes up", f"{max(up):,} at most per party, {sum(up):,} in all"),
        ("bytes down", f"{sum(sum(entry['down']) for entry in rounds):,} in all"),
    ]
