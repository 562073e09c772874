"""`Custodian`: a site that holds data, with its rules, files and journal. No run can change the rules of a site."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from fedpca_flwr.config.method_text import settings_digest, split_method_text
from fedpca_flwr.data.categories import indicator_names
from fedpca_flwr.data.table import Table, participating_rows, require_same_rows
from fedpca_flwr.errors import ConfigError, excerpt
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.rows import Rows, select_columns, to_array
from fedpca_flwr.protocol.card import MethodCard, PCAOptions
from fedpca_flwr.protocol.journal import Context, Journal, PostContext, StateJournal
from fedpca_flwr.protocol.registry import Method, require_compatible
from fedpca_flwr.protocol.site_log import site_logger
from fedpca_flwr.site import local_table, scores
from fedpca_flwr.site.readers import columns
from fedpca_flwr.site.readers import files as readers
from fedpca_flwr.site.rows import rare_values
from fedpca_flwr.site.rows.selection import Selection
from fedpca_flwr.site.rules import fold, journal, policy, repeats
from fedpca_flwr.site.site import LoadTable, Site
from fedpca_flwr.site.watch import run_on_refusal

MAX_RUN_CHARACTERS = 1000  # of the journal's event of which run it is: method, options and app

BLIND_FREE_KEYS = {"method", "n_components", "seed", "reference", "output", "overwrite", "metrics"}
BLIND_FREE_KEYS |= {"join_deadline", "round_deadline"}
"""Keys in which blind runs over the same rows may differ: the spectrum does not depend on them."""


class Custodian(Site):
    """A party's side of a run by the rules of its node-config: rows of its own (`local_table`), or from ``load``."""

    def __init__(self, context: Context, load: LoadTable | None, methods: Mapping[str, Method]) -> None:
        super().__init__(context, load or local_table.local_table, methods)
        self.rows_from_caller = load is not None
        self._by_post = isinstance(context, PostContext)

    @cached_property
    @override
    def table(self) -> Table:
        stored = self.journal.load_secret("rows") or b""  # before the rows are read: the journal may be lost
        table = self.load(self.node, self.config)
        digest, _, content = stored.decode().partition("\n")
        if not digest and table.digest:
            content = local_table.file_digest(self.node.data, table.digest)
            self.journal.store_secret("rows", f"{table.digest}\n{content}".encode())
        elif digest != table.digest:  # a file with the same bytes may have another time of change
            require_same_rows(content or digest, local_table.file_digest(self.node.data, table.digest))
        return table

    @cached_property
    @override
    def journal(self) -> Journal:
        """Journal in the site's own folder if its node-config names a folder, else in Flower's state."""
        run_state = StateJournal(self._records)
        if not self.node.journal:
            return run_state
        settings = ""
        try:  # what run this is, as far as a site can know: Flower does not name who started the run
            secure = "; only sums" if self.config.secure_aggregation else ""
            numbers = f"n-components={self.config.n_components}; round-deadline={self.config.round_deadline:g}"
            description = f"{self.config.method}; {numbers}{secure}"
            if method := self.methods.get(split_method_text(self.config.method)[0]):
                card = method.strategy.card
                settings = settings_digest(card.name, self.options(card.options), self.config)
        except ConfigError:
            description = "of a run-config that is refused"
        party, description = self.node.partition_id, excerpt(f"{description}; {AppName.loaded()}", MAX_RUN_CHARACTERS)
        return journal.FileJournal(
            self.node.journal, self.run_id, party, run_state, description, settings, by_post=self._by_post
        )

    @cached_property
    @override
    def common_gaps(self) -> tuple[Any, NDArray[np.bool_]]:
        patterns, common = super().common_gaps
        if self.node.data and self.node.gaps != "all":
            common = patterns.common_rows(self.node.min_rows, self.node.round_rows)
        return patterns, common

    @override
    def permit(self, card: MethodCard, options: PCAOptions, *, sums_only: bool) -> None:
        require_compatible(self.config, card, options, self.methods)
        policy.permit_method(self.node, card, sums_only=sums_only)
        policy.permit_sight(self.node, blind=self.config.blind)
        policy.permit_sums(self.node, card, options, sums_only=sums_only)
        policy.require_files(self.node)
        policy.permit_exposure(self.node, card, options)
        policy.require_journal(self.node, card, sums_only=sums_only)
        policy.permit_split(self.node, card, self.table.split, self.config.weights)
        self.permit_table(card, options)

    @override
    def score_file(self, n: int, k: int) -> AbstractContextManager[Callable[[Array], object]]:
        return scores.score_file(self.node.scores, n, k, self.node.data)

    @override
    def permit_selections(self, card: MethodCard, *, sums_only: bool) -> None:
        """Allow no further selections, and examine those of the run; raise DisclosureError if they tell few rows."""
        self._selections_are_final = True
        if not self.node.data:
            return
        for selection in self._selections.values():
            policy.permit_rows(self.node, len(selection))
            if self.refuses_rare_values:
                settings, names = self.settings_digest, self.table.names
                rare_values.permit_columns(self.journal, self.node.min_rows, selection, names, settings=settings)
            if not sums_only:
                self.repeats(card.split, selection).permit_clear(is_noted=False)

    @property
    def refuses_rare_values(self) -> bool:
        """True if the site refuses runs over columns with values that few rows have."""
        return (self.node.rare_values or ("allow" if self.rows_from_caller else "refuse")) == "refuse"

    def conspicuous_columns(self) -> str:
        """List for the site itself the columns from which moments would reveal single rows; empty if there are none."""
        rules = self.node.min_rows, self.table.names
        texts = [rare_values.conspicuous_text(selection, *rules) for selection in self._selections.values()]
        return "; ".join(filter(None, texts))

    @override
    def note_clear(self, card: MethodCard) -> None:
        """Record that answers over the selected rows leave in clear, and warn if the site has no journal."""
        if not self.node.data:
            return
        for selection in self._selections.values():
            is_new = self.repeats(card.split, selection).permit_clear(is_noted=True)
            if is_new and not self.node.journal:
                site_logger.warning("run %s: %s", self.run_id, repeats.UNPROTECTED_TEXT)

    @override
    def repeats(self, split: str, selection: Selection | None = None) -> repeats.RepeatRules:
        """Return the site's rules about repeated runs over a selection, by default over all rows that take part.

        The rules have the rows in the file's order as the run has them, and before weights and indicators.
        """
        weights, levels = self.table.weights, self.config.levels
        name, mask = (selection.name, selection.mask) if selection else ("", None)
        unweighted = participating_rows(self.table._replace(weights=None), self.node.round_rows)
        rows = self._in_file_order(self.table.rows if split == "columns" else unweighted)
        rows = rows if mask is None else rows[mask]  # rows split by rows are in the order of the file
        width = rows.shape[1]
        if levels and (self.rows_from_caller or readers.holds_texts(self.node.data)):
            width -= len(indicator_names(self.config.levels_by_column))
        added = range(width, rows.shape[1])
        selected = repeats.SelectedRows(
            select_columns(rows, range(width)) if added else rows,
            b"" if weights is None else weights.tobytes(),
            (lambda: (levels, select_columns(rows, added))) if added else None,
            name,
            by_gaps=selection is not None and selection.by_gaps,
        )
        return repeats.RepeatRules(self.journal, self.node, self._in_file_order(self._rows(split)), selected)

    @override
    def permit_sum(self, members: Sequence[str], split: str) -> None:
        """Note a secure sum; raise DisclosureError if it and an earlier one reveal a party's summand or few rows."""
        for selection in self._selections.values():
            self.repeats(split, selection).permit_sum(members, split=split)

    @override
    def permit_blind(self, card: MethodCard, options: PCAOptions) -> None:
        """Note a blind run's settings; raise DisclosureError if an earlier one over the same rows had others."""
        chosen = options.model_dump(by_alias=True, exclude={"n_components"})
        settings = {**self.config.model_dump(by_alias=True, exclude=BLIND_FREE_KEYS), "options": chosen}
        self.repeats(card.split).permit_blind(hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest())

    @override
    def permit_bound(self, split: str) -> None:
        """Raise DataError if the rows exceed a bound, and DisclosureError after too many, or if below the own one."""
        if self.node.bound is not None:
            policy.permit_site_bound(self.node.bound, self._rows(split), self.config.bound)
        else:
            self.repeats(split).permit_bound(self.config.bound, self.table.names)

    @override
    def held_out(self, split: str) -> NDArray[np.bool_]:
        rows = self._in_file_order(self._rows(split)) if self.node.data else self._rows(split)
        return fold.held_out_rows(self.journal, self.node, rows, self.config.seed)

    def _in_file_order(self, selected: Rows) -> Rows:
        """Return participating rows with rows and columns in the order of the site's file."""
        rows, places = columns.restore_column_order(self.table, selected), self.table.row_positions
        return rows if places is None else to_array(rows)[places]

    @override
    def record_refusal(self, kind: str, *, is_noted: bool) -> None:
        with suppress(Exception):  # the error may be about the journal itself, and is logged already
            if is_noted:
                self.journal.record_refusal(kind)  # this site takes no part in the run
        with suppress(ConfigError):  # the node-config itself may be wrong
            run_on_refusal(self.node.on_refusal, self.run_id, kind)


class AppName:
    """Name of the app that answers, if a site's own process answers with an app of its installation."""

    text: ClassVar[str] = ""  # empty where Flower has loaded the app of the run

    @classmethod
    def loaded(cls) -> str:
        """Return publisher, name, version and hash of the app that this process runs, or that there is none."""
        apps = [Path(entry).name for entry in sys.path if Path(entry).parent.name == "apps"]
        return cls.text or (f"app {apps[0]}" if apps else "no app of Flower's")
