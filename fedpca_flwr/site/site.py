"""`Site`: the rows, rules, files and journal of one party. No run can change the rules of a site."""

from __future__ import annotations

import hashlib
import json
import sys
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.config.method_text import canonical_text, parse_options, settings_digest, split_method_text
from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.data.categories import indicator_names
from fedpca_flwr.data.table import Table, participating_rows, participation, require_complete, require_same_rows
from fedpca_flwr.errors import ConfigError, ContractError, DataError, DisclosureError, FedPCAError, PartyError, excerpt
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.gap_groups import Patterns
from fedpca_flwr.maths.rows import Rows, select_columns, to_array
from fedpca_flwr.protocol.admission import MAX_MESSAGE_CHARACTERS
from fedpca_flwr.protocol.card import MethodCard, PCAOptions
from fedpca_flwr.protocol.compatibility import require_compatible
from fedpca_flwr.protocol.journal import Context, Journal, State, StateJournal
from fedpca_flwr.protocol.question import Public
from fedpca_flwr.protocol.registry import Method
from fedpca_flwr.protocol.site_log import site_logger
from fedpca_flwr.site import local_table, scores, table_steps
from fedpca_flwr.site.readers import columns
from fedpca_flwr.site.readers import files as readers
from fedpca_flwr.site.rows import rare_values
from fedpca_flwr.site.rows.selection import Selection
from fedpca_flwr.site.rules import fold, journal, policy, repeats
from fedpca_flwr.site.watch import run_on_refusal

LoadTable = Callable[[NodeConfig, RunConfig], Table]
Options = TypeVar("Options", bound=PCAOptions)
MAX_RUN_CHARACTERS = 1000  # of the journal's event of which run it is: method, options and app
SEE_LOG = "see this site's own log"  # sent in place of details that only the log has

BLIND_FREE_KEYS = {"method", "n_components", "seed", "reference", "output", "overwrite", "metrics"}
BLIND_FREE_KEYS |= {"join_deadline", "round_deadline"}
"""Keys in which blind runs over the same rows may differ: the spectrum does not depend on them."""


class Site:
    """A party's side of a run: its configuration, rows, rules, journal and error reports.

    ``load`` loads the table from the node-config and the run-config, and errors name alternatives among ``methods``.
    ``rows_from_caller`` says whether a caller passed the rows: that of `fedpca_flwr.run`, who may hear what is wrong in
    them, or an app.
    """

    def __init__(self, context: Context, load: LoadTable, methods: Mapping[str, Method]) -> None:
        """Store the configs of Flower's context, the function that loads the table, and the methods."""
        self.run_id = str(context.run_id)
        self.run_config: Mapping[str, Any] = dict(context.run_config)
        self._server_run_config = dict(self.run_config)
        self.node_config: Mapping[str, Any] = dict(context.node_config)
        self.state = State(context.state)
        self.load = load
        self.methods = methods
        self.rows_from_caller = load is not local_table.local_table
        self._selections: dict[str, Selection] = {}
        self._selections_are_final = False

    def with_run_config(self, run_config: Mapping[str, Any]) -> Site:
        """Return a copy of the site in the same run with another run-config, and without selections."""
        other = copy(self)
        other.__dict__.pop("config", None)
        other.run_config = dict(run_config)
        other._selections, other._selections_are_final = {}, False
        return other

    @property
    def settings_digest(self) -> bytes:
        """SHA-256 of the run-config as sent by the server."""
        return hashlib.sha256(json.dumps(self._server_run_config, sort_keys=True).encode()).digest()

    # What it holds

    @cached_property
    def node(self) -> NodeConfig:
        """Node-config of the site, parsed."""
        return NodeConfig.parse(self.node_config, source="node-config")

    @cached_property
    def config(self) -> RunConfig:
        """Run-config of the run, parsed."""
        return RunConfig.parse(self.run_config)

    def configuration(self, card: MethodCard, options: PCAOptions) -> str:
        """Return run-config and method with all options as JSON with sorted keys, equal at all parties of the run."""
        settings = {**self.config.model_dump(by_alias=True), "method": canonical_text(card.name, options)}
        return json.dumps(settings, sort_keys=True)

    def options(self, kind: type[Options]) -> Options:
        """Parse the method's options from the run-config; raise ConfigError for options that the class forbids."""
        return parse_options(self.config.method, kind, {"n-components": self.config.n_components})

    @cached_property
    def table(self) -> Table:
        """Table of the party's rows, loaded and adapted to the run; DataError if it changed during the run."""
        expected = self.journal.load_secret("rows")  # before the rows are read: the journal may be lost
        table = self.load(self.node, self.config)
        if expected:
            require_same_rows(expected.decode(), table.digest)
        elif table.digest:
            self.journal.store_secret("rows", table.digest.encode())
        return table_steps.apply_steps(table, self.node, self.config)

    @cached_property
    def journal(self) -> Journal:
        """Journal in the site's own folder if its node-config names a folder, else in Flower's state."""
        run_state = StateJournal(self.state.records)
        if not self.node.journal:
            return run_state
        settings = ""
        try:  # what run this is, as far as a site can know: Flower does not name who started the run
            secure = "; only sums" if self.config.secure_aggregation else ""
            description = f"{self.config.method}; n-components={self.config.n_components}{secure}"
            if method := self.methods.get(split_method_text(self.config.method)[0]):
                card = method.strategy.card
                settings = settings_digest(card.name, self.options(card.options), self.config)
        except ConfigError:
            description = "of a run-config that is refused"
        party, description = self.node.partition_id, excerpt(f"{description}; {loaded_app()}", MAX_RUN_CHARACTERS)
        return journal.FileJournal(self.node.journal, self.run_id, party, run_state, description, settings)

    def select(
        self, split: str, needs: Collection[str] = (), name: str = "", mask: NDArray[np.bool_] | None = None
    ) -> Selection:
        """Return rows that take part, or those of a mask (n,), which the site examines and journals before an answer.

        A name that was selected before has its first rows. Raise ContractError for a new one after `permit_selections`.
        """
        if name not in self._selections:
            if self._selections_are_final:
                raise ContractError(f"rows '{name}' were selected after this site had examined the run's selections")
            rows = self._rows(split)
            self._selections[name] = Selection(name, rows if mask is None else rows[mask], needs, mask)
        return self._selections[name]

    @property
    def participation(self) -> NDArray[np.bool_]:
        """Mask (n,) of the rows of the site's file that take part, in the order of the file."""
        return participation(self.table, self.node.round_rows)

    @property
    def file_length(self) -> int:
        """Number of rows of the site's file, with those that take no part."""
        return len(self.table.rows)

    @property
    def file_rows(self) -> tuple[Rows, ...]:
        """All rows in the order of the site's file, for what stays at the site; first those that take part."""
        table = self.table
        if table.weights is not None or table.excluded is not None:
            return (table.rows,)
        return self._participants, table.rows[len(self._participants) :]

    @cached_property
    def common_gaps(self) -> tuple[Patterns, NDArray[np.bool_]]:
        """Patterns of missing values of the rows, and a mask (n,) of the rows whose pattern ``min-rows`` rows share.

        The mask is true everywhere where all gaps are allowed, and without data of the site's own.
        """
        node, patterns = self.node, Patterns.from_rows(self._participants)
        if not node.data or node.gaps == "all":
            return patterns, np.ones(patterns.of.size, dtype=bool)
        return patterns, patterns.common_rows(node.min_rows, node.round_rows)

    def _rows(self, split: str) -> Rows:
        """Return the rows (n, d) that take part; of data split by columns, all rows."""
        return self.table.rows if split == "columns" else self._participants

    @cached_property
    def _participants(self) -> Rows:
        """Rows that take part: without excluded rows and without the last ones that `round-rows` drops."""
        return participating_rows(self.table, self.node.round_rows)

    def public(self, split: str, options: PCAOptions) -> Public:
        """Return the public parameters of the run, with the number of features or, if split by columns, of rows."""
        n, d = self._rows(split).shape
        sizes = {"rows": n} if split == "columns" else {"features": d}
        return Public(self.config, options, self.node.num_partitions, **sizes)

    def info(self, split: str) -> dict[str, Any]:
        """Return what every reply says of this party; the digest of column names is empty if split by columns."""
        return {
            "partition-id": self.node.partition_id,
            "num-partitions": self.node.num_partitions,
            "name": self.node.name,
            "columns": "" if split == "columns" else self.table.columns,  # there, names differ between parties
            "simulated": not self.node.data,
        }

    # Its rules (`fedpca_flwr.site.rules.policy`)

    def permit(self, card: MethodCard, options: PCAOptions, *, sums_only: bool) -> None:
        """Raise ConfigError, DataError or DisclosureError for a run that this site's rules do not allow."""
        require_compatible(self.config, card, options, self.methods)
        policy.permit_method(self.node, card, sums_only=sums_only)
        policy.permit_sight(self.node, blind=self.config.blind)
        policy.permit_sums(self.node, card, options, sums_only=sums_only)
        policy.require_files(self.node)
        policy.permit_exposure(self.node, card, options)
        policy.require_journal(self.node, card, sums_only=sums_only)
        n = len(self._rows(card.split))
        policy.permit_split(self.node, card, self.table.split, self.config.weights)
        if self.config.levels:
            policy.permit_levels(self.node, self.table, indicator_names(self.config.levels_by_column))
        policy.permit_rows(self.node, n)
        if card.incomplete or any(stage.accepts_missing for stage in options.stages):
            policy.permit_values(self.node, self.table)
        else:
            require_complete(
                self.table, ", or run a method that takes such rows (method='em'; of genotypes, genotypes=true)"
            )

    def score_file(self, n: int, k: int) -> AbstractContextManager[Callable[[Array], object]]:
        """Open the site's file of scores (n, k), and yield a function that appends scores (m, k); raise ConfigError."""
        return scores.score_file(self.node.scores, n, k, self.node.data)

    def permit_size(self, nbytes: int, alternatives: Callable[[int], str]) -> None:
        """Raise DisclosureError, with the alternatives, for a reply of more bytes than the site allows."""
        policy.permit_size(self.node, nbytes, alternatives)

    def permit_selections(self, card: MethodCard, *, sums_only: bool) -> None:
        """Allow no further selections; examine those of the run, and note which columns are permitted.

        Raise DisclosureError if a selection has too few rows, if its columns reveal single rows, or if an earlier
        answer is over nearly the same rows.
        """
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
        selections = self._selections.values()
        texts = [rare_values.conspicuous(one._rows, self.node.min_rows).text(self.table.names) for one in selections]
        return "; ".join(filter(None, texts))

    def note_clear(self, card: MethodCard) -> None:
        """Record that answers over the selected rows leave in clear, and warn if the site has no journal.

        Raise DisclosureError if an answer with an earlier one would reveal a few rows.
        """
        if not self.node.data:
            return
        for selection in self._selections.values():
            is_new = self.repeats(card.split, selection).permit_clear(is_noted=True)
            if is_new and not self.node.journal:
                site_logger.warning("run %s: %s", self.run_id, repeats.UNPROTECTED_TEXT)

    def repeats(self, split: str, selection: Selection | None = None) -> repeats.RepeatRules:
        """Return the site's rules about repeated runs over a selection, by default over all rows that take part.

        The rules have the rows in the order of the file, twice: as the run has the rows, and before the run weighs the
        rows, without the indicators that its levels add.
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
        )
        return repeats.RepeatRules(self.journal, self.node, self._in_file_order(self._rows(split)), selected)

    def permit_sum(self, members: Sequence[str], split: str) -> None:
        """Note a secure sum; raise DisclosureError if it and an earlier one reveal a party's summand or few rows."""
        for selection in self._selections.values():
            self.repeats(split, selection).permit_sum(members, split=split)

    def permit_blind(self, card: MethodCard, options: PCAOptions) -> None:
        """Note a blind run's settings; raise DisclosureError if an earlier one over the same rows had others.

        The spectrum does not depend on `BLIND_FREE_KEYS` and the number of components, which may differ.
        """
        chosen = options.model_dump(by_alias=True, exclude={"n_components"})
        settings = {**self.config.model_dump(by_alias=True, exclude=BLIND_FREE_KEYS), "options": chosen}
        self.repeats(card.split).permit_blind(hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest())

    def permit_bound(self, split: str) -> None:
        """Raise DataError if the rows exceed a bound, and DisclosureError after too many different bounds.

        With a bound of the site's own the rows are compared with that one, and a smaller bound of the run is refused.
        """
        if self.node.bound is not None:
            policy.permit_site_bound(self.node.bound, self._rows(split), self.config.bound)
        else:
            self.repeats(split).permit_bound(self.config.bound)

    def held_out(self, split: str) -> NDArray[np.bool_]:
        """Return the mask (n,) of the fifth of rows that the site holds out, the same in every run (`site.fold`)."""
        rows = self._in_file_order(self._rows(split)) if self.node.data else self._rows(split)
        return fold.held_out_rows(self.journal, self.node, rows, self.config.seed)

    def _in_file_order(self, selected: Rows) -> Rows:
        """Return participating rows with rows and columns in the order of the site's file."""
        rows, places = columns.restore_column_order(self.table, selected), self.table.row_positions
        return rows if places is None else to_array(rows)[places]

    # What it says when something is wrong

    def report(self, error: Exception, *, late: bool = False, is_noted: bool = True) -> dict[str, Any]:
        """Return an error as a reply without data; details go to the site's own log.

        Whoever passed the rows hears where in the rows the fault is. About rows of the site's own, the reply has
        nothing that only its answers could have shown: an error after a first answer (``late``) is one constant text,
        unless the error is about a configuration or the site's own rules. An earlier error is noted in the journal as a
        refusal.
        """
        try:
            party, name, has_own_data = self.node.partition_id, self.node.name, bool(self.node.data)
        except ConfigError:
            partition = self.node_config.get("partition-id")
            party, name, has_own_data = partition if isinstance(partition, int) else -1, "", True
        if isinstance(error, FedPCAError):
            local = f" [{error.local}]" if error.local else ""
            site_logger.error("run %s: %s: %s%s", self.run_id, type(error).__name__, error, local)
        else:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(frame.filename).name}, line {frame.lineno}"
            site_logger.error("run %s: %s in %s", self.run_id, type(error).__name__, where)
            error = PartyError(f"failed with {type(error).__name__}", local=where)
        if not late:
            with suppress(Exception):  # the error may be about the journal itself, and is logged already
                if is_noted:
                    self.journal.record_refusal(type(error).__name__)  # this site takes no part in the run
            with suppress(ConfigError):  # the node-config itself may be wrong
                run_on_refusal(self.node.on_refusal, self.run_id, type(error).__name__)
        elif has_own_data and not isinstance(error, ConfigError | DisclosureError):
            error = PartyError("this site ended its part in the run; its own log says why")
        show_local = self.rows_from_caller and not has_own_data and isinstance(error, DataError | PartyError)
        detail = error.local if show_local else error.local and SEE_LOG
        message = "; ".join(filter(None, (str(error), detail)))[:MAX_MESSAGE_CHARACTERS]
        return {"partition-id": party, "name": name, "error": type(error).__name__, "message": message}


class AppName:
    """Name of the app that answers, if a site's own process answers with an app of its installation."""

    text: ClassVar[str] = ""  # empty where Flower has loaded the app of the run


def loaded_app() -> str:
    """Return publisher, name, version and hash of the Flower app that this process runs, or that there is none."""
    if AppName.text:
        return AppName.text
    apps = [Path(entry).name for entry in sys.path if Path(entry).parent.name == "apps"]
    return f"app {apps[0]}" if apps else "no app of Flower's"
