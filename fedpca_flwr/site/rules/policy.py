"""Rules of a site's own node-config. They refuse a run before any answer, except for sizes after compression.

Other refusals are made where the facts are known: `protocol.question` (questions out of the script),
`site.rows.rare_values` (columns in which few rows stand out), `site.rules` `repeats`, `fold` and `journal` (with
earlier runs, held-out rows, no usable journal), `transports` `encoding` and `signed` (too few parties, limits,
signatures), and `dp-pca`'s client (noise).
"""

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.data.table import Table, columns_text, participating_rows
from fedpca_flwr.errors import ConfigError, DataError, DisclosureError, FedPCAError, combine_errors
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.rows import Rows, chunks, max_magnitude, pair_with_weights
from fedpca_flwr.protocol.card import MethodCard, PCAOptions
from fedpca_flwr.site.scores import require_score_file
from fedpca_flwr.state.files import require_site_file


def permit_site_bound(site_bound: float, rows: Rows, bound: float) -> None:
    """Raise DisclosureError for a `bound` below the site's own, and DataError if rows exceed that: no more is told."""
    if bound < site_bound:
        raise DisclosureError(
            f"the run's 'bound' is {bound:g}, below the bound that this site states for its values, {site_bound:g} "
            "(node-config 'bound'); run with this bound or a larger one, which costs nothing"
        )
    if max_magnitude(rows) > site_bound:
        raise DataError(
            f"this site's data have values larger in size than its own node-config states ('bound' = {site_bound:g}); "
            "the site must correct this key"
        )


MAX_EPSILON, MAX_DELTA = 10.0, 1e-5  # of one run, where a site with a file of its own does not say
EXPOSURES = ("nothing", "distribution", "scores", "inner products")  # of single rows by a run, the least first


def require_files(node: NodeConfig) -> None:
    """Raise ConfigError, with all faults at once, if scores, loadings or the model could not be written at the end."""
    faults: list[FedPCAError] = []
    try:
        require_score_file(node.scores, node.data)
    except ConfigError as error:
        faults.append(error)
    model = node.model and str(Path(node.model) / "model.npz")
    for key, path in {"scores": node.scores, "loadings": node.loadings, "model": model}.items():
        try:
            if path:
                require_site_file(key, Path(path).expanduser())
        except ConfigError as error:
            faults.append(error)
    if faults:
        raise combine_errors(faults)


def _allowed_methods(node: NodeConfig) -> list[str]:
    """Return the words in the key `allowed-methods`: names of methods, and of sums; empty allows all."""
    return node.allowed_methods.replace(",", " ").split()


def permit_method(node: NodeConfig, card: MethodCard, *, sums_only: bool) -> None:
    """Raise DisclosureError for a method that is not listed, answers in clear, or no noise despite a budget."""
    allowed = _allowed_methods(node)
    if allowed and card.name not in allowed:
        key = f"node-config 'allowed-methods': {', '.join(allowed)}"
        raise DisclosureError(f"this site does not allow the method '{card.name}' ({key})")
    if node.secure_only and not sums_only:
        raise DisclosureError(
            "this site answers with secure aggregation only (node-config 'secure-only'); run with "
            "secure-aggregation=true"
        )
    if node.epsilon_budget is not None and not card.differentially_private:
        raise DisclosureError(
            f"this site has a privacy budget (node-config 'epsilon-budget'), and the method '{card.name}' is "
            "not differentially private"
        )


def permit_sight(node: NodeConfig, *, blind: bool) -> None:
    """Raise DisclosureError if the site allows only blind runs, whose sums are of rotated rows, and this is none."""
    if node.blind and not blind:
        raise DisclosureError(
            "this site answers blind runs only (node-config 'blind'); run with secure-aggregation=true and blind=true"
        )


def permit_sums(node: NodeConfig, card: MethodCard, options: PCAOptions, *, sums_only: bool) -> None:
    """Raise DisclosureError for secure sums that tell about single sites, unless `allowed-methods` permits them."""
    if not (node.data and sums_only):
        return
    unpermitted = {word: text for word, text in options.sum_disclosures.items() if word not in _allowed_methods(node)}
    if unpermitted:
        words = ", ".join(map(repr, unpermitted))
        raise DisclosureError(
            f"the secure sums of {words} tell the server about single sites: it learns "
            f"{'; '.join(unpermitted.values())}. This site's node-config does not permit that: name {words} in "
            f"'allowed-methods', with '{card.name}' and all other methods that the site allows, or run another method"
        )


def permit_exposure(node: NodeConfig, card: MethodCard, options: PCAOptions) -> None:
    """Raise DisclosureError for a method or options that show more about single rows than `may-show` allows.

    A party without data of its own and the key allows all. A method in `allowed-methods` may show the distribution.
    """
    allowed = node.may_show or ("nothing" if node.data else EXPOSURES[-1])
    by_method = EXPOSURES.index(card.exposes or "nothing")
    by_options = EXPOSURES.index(options.exposes or "nothing")
    if card.exposes == "distribution" and card.name in _allowed_methods(node):
        by_method = 0
    shown = max(by_method, by_options)
    if shown <= EXPOSURES.index(allowed):
        return
    reason, also = "", "; other options show less" if by_options > by_method else ""
    if by_method > by_options and card.exposes == "distribution":
        reason, also = f" ({card.beyond_moments})", f", or name '{card.name}' in 'allowed-methods'"
    raise DisclosureError(
        f"the run of '{card.name}' shows {EXPOSURES[shown]} of single rows{reason}, this site "
        f"allows {allowed} (node-config 'may-show'; expected one of: {', '.join(EXPOSURES)}{also})"
    )


def permit_privacy(node: NodeConfig, epsilon: float, delta: float) -> None:
    """Raise DisclosureError if epsilon or delta exceeds the site's limit for a run; its own data have a default."""
    limits = {"epsilon": (epsilon, node.max_epsilon, MAX_EPSILON), "delta": (delta, node.max_delta, MAX_DELTA)}
    for key, (value, site_limit, default) in limits.items():
        limit = site_limit if site_limit is not None else default if node.data else math.inf
        if value > limit:
            text = f"but this site allows at most {limit:g} (node-config 'max-{key}')"
            raise DisclosureError(f"the run's {key} is {value:g}, {text}")


def permit_split(node: NodeConfig, card: MethodCard, split: str, weights: str = "") -> None:
    """Raise ConfigError for data split the other way ("": unknown), and DisclosureError if exact counts are rounded."""
    if split not in ("", card.split):
        raise ConfigError(
            f"the method '{card.name}' is for data split by {card.split}, but this party's data are split by {split} "
            f"(node-config 'split', or in a simulation 'partition'); choose a method for data split by {split}"
        )
    rounded = f"this site tells a rounded number of rows (node-config 'round-rows' = {node.round_rows}), and"
    if card.split == "columns" and node.round_rows > 1:
        raise DisclosureError(f"{rounded} the method '{card.name}' needs all rows at every party")
    if weights and node.round_rows > 1:
        raise DisclosureError(f"{rounded} a sum of weights cannot be rounded like a count; run without 'weights'")


def permit_categories(node: NodeConfig, columns: Iterable[str]) -> None:
    """Raise DisclosureError for levels of columns that `categories` does not list: a chosen one would tell more."""
    unknown = [column for column in columns if column not in node.category_names]
    if unknown:
        raise DisclosureError(
            f"the run declares levels of {', '.join(map(repr, unknown))} (run-config 'levels'), but this site's "
            "node-config does not name these columns as 'categories': name them there, or run without 'levels'",
            local=f"categories: {node.categories or 'none'}",
        )


def permit_levels(node: NodeConfig, table: Table, names: Sequence[str]) -> None:
    """Raise DataError if the table's last columns are not these indicators, and DisclosureError for too rare levels."""
    if table.names[-len(names) :] != tuple(names):
        raise DataError(
            "the run declares levels of columns (run-config 'levels'), but the last columns of this site's data are "
            "not the indicators of these levels; fedpca_flwr.data.categories.encoded makes indicators",
            local=f"expected: {', '.join(names)}",
        )
    totals, largest, first_indicator = np.zeros(len(names)), np.zeros(len(names)), len(table.names) - len(names)
    rows = participating_rows(table, node.round_rows)
    for chunk, weights in pair_with_weights(rows, chunks(rows)):
        indicators = chunk[:, first_indicator:]
        if not ((indicators == 0) | (indicators == 1)).all():
            raise DataError("the columns of indicators (run-config 'levels') have values other than 0 and 1")
        indicators = indicators if weights is None else indicators * weights[:, None]
        totals, largest = totals + indicators.sum(axis=0), np.maximum(largest, indicators.max(axis=0))
    if (totals < node.min_rows * largest).any():
        raise DisclosureError(
            "this site has levels of categories with fewer rows than the site's minimum (node-config 'min-rows' = "
            f"{node.min_rows}), or in which one row has too large a share of the weights: count these levels as "
            "'other', or run without 'weights'"
        )


def permit_rows(node: NodeConfig, rows: int, weights: Array | None = None) -> None:
    """Raise DisclosureError for fewer rows than `min-rows`; with weights by their sum over the largest of them."""
    if rows < node.min_rows:
        rounded = f" and 'round-rows' = {node.round_rows}" if node.round_rows > 1 else ""
        raise DisclosureError(
            f"this site has fewer rows than its own minimum for a run (node-config 'min-rows' = {node.min_rows}); add "
            f"rows, or lower 'min-rows'{rounded}: 1 allows any number of rows"
        )
    if weights is None:
        return
    if float((weights / weights.max()).sum()) * (1 + 1e-9) < node.min_rows:
        raise DisclosureError(
            "the weights of this site's rows leave sums with effectively fewer rows than the site's minimum "
            f"(node-config 'min-rows' = {node.min_rows}), or give one row too large a share: add rows, run with more "
            "equal weights, or lower the minimum"
        )


def permit_values(node: NodeConfig, table: Table) -> None:
    """Raise DisclosureError for a feature, or a pair, with values in fewer rows than `min-rows`, but in some."""
    observed = len(table.rows) - table.missing
    few = (observed > 0) & (observed < _min_observed(node, table))
    if few.any():
        raise DisclosureError(
            f"this site has features with values in fewer rows than the site's minimum "
            f"(node-config 'min-rows' = {node.min_rows}; a feature without any value is allowed)",
            local=columns_text(few, table.names),
        )
    if table.missing.any():
        permit_pairs(node, table)


def _min_observed(node: NodeConfig, table: Table) -> int:
    """Return how many values a column needs, so that ``min-rows`` of the participating rows surely have a value."""
    n_excluded = 0 if table.excluded is None else int(table.excluded.sum())
    return node.min_rows + n_excluded + (len(table.rows) - n_excluded) % node.round_rows


def permit_calls(node: NodeConfig, table: Table) -> None:
    """Raise DisclosureError for a site's genotypes with missing calls, unless its key `gaps` is 'all'.

    Such a call counts as a mean that the server sends: a person who alone lacks a call could be read.
    """
    if node.data and node.gaps != "all" and table.missing.any():
        raise DisclosureError(
            "this site's genotypes have missing calls, and a server that chooses the frequencies could read the "
            "genotypes of a person who alone lacks a call. Impute the calls first, or leave such variants out, or set "
            "gaps='all' in the node-config to accept this"
        )


PAIR_BLOCK_FEATURES = 1000  # whose pairs with all features are counted at a time, to save memory


def permit_pairs(node: NodeConfig, table: Table) -> None:
    """Raise DisclosureError for pairs of features that both have values in some rows, but in fewer than `min-rows`."""
    rows, min_rows, missing = len(table.rows), _min_observed(node, table), table.missing
    has_values = missing < rows
    # features that, if their gaps and the gaps of some feature lie in different rows, share too few rows with it
    scarce = np.flatnonzero(has_values & (missing + missing[has_values].max(initial=0) > rows - min_rows))
    few = np.zeros(missing.size, dtype=bool)
    for block in np.array_split(scarce, -(-scarce.size // PAIR_BLOCK_FEATURES)) if scarce.size else ():
        pairs, in_block = np.zeros((block.size, scarce.size)), np.isin(scarce, block)
        for chunk in chunks(table.rows):
            observed = (~np.isnan(chunk[:, scarce])).astype(np.float64)
            pairs += observed[:, in_block].T @ observed
        few[block] |= ((pairs > 0) & (pairs < min_rows)).any(axis=1)
    if few.any():
        raise DisclosureError(
            "this site has pairs of features that have values together in fewer rows than the site's minimum "
            f"(node-config 'min-rows' = {node.min_rows}; none at all is allowed)",
            local=columns_text(few, table.names),
        )


def permit_size(node: NodeConfig, nbytes: int, alternatives: Callable[[int], str]) -> None:
    """Raise DisclosureError, ending with ``alternatives(limit)``, for more bytes than the limit `max-reply-bytes`."""
    if nbytes > node.max_reply_bytes:
        raise DisclosureError(
            f"the reply would have {nbytes:,} bytes, but this site allows {node.max_reply_bytes:,} "
            f"(node-config 'max-reply-bytes'){alternatives(node.max_reply_bytes)}"
        )


def require_journal(node: NodeConfig, card: MethodCard, *, sums_only: bool) -> None:
    """Raise ConfigError for a site's secure sums without a journal, or private methods without journal and budget."""
    if node.data and not node.journal and (sums_only or card.differentially_private):
        raise ConfigError(
            "this site's node-config names no 'journal', the folder in which a site records questions and "
            "answers; with secure aggregation, and for a private method, a site needs a journal"
        )
    if node.data and node.epsilon_budget is None and card.differentially_private:
        raise ConfigError(
            "this site's node-config names no 'epsilon-budget', the largest epsilon that all private runs "
            f"together may spend; a site with data of its own needs it for the method '{card.name}', because the "
            "noise averages out over many runs"
        )
