"""`Site`: one party's rows, rules, files and memory. Its rules are its own: no run can change them."""

from __future__ import annotations

import hashlib
import json
import logging
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.config.method_text import canonical_text, parse_options
from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.data.categories import indicator_names
from fedpca_flwr.data.table import Table, participating_rows, require_complete, require_same_rows
from fedpca_flwr.errors import ConfigError, DataError, DisclosureError, FedPCAError, PartyError
from fedpca_flwr.maths.rows import Rows, select_columns, to_array
from fedpca_flwr.protocol.admission import MAX_MESSAGE_CHARACTERS
from fedpca_flwr.protocol.card import MethodCard, PCAOptions
from fedpca_flwr.protocol.compatibility import require_compatible
from fedpca_flwr.protocol.journal import Context, Journal, State, StateJournal
from fedpca_flwr.protocol.question import Public
from fedpca_flwr.protocol.registry import Method
from fedpca_flwr.site import (
    columns,
    fold,
    journal,
    local_table,
    policy,
    rare_values,
    readers,
    repeats,
    table_steps,
)
from fedpca_flwr.site.repeats import SelectedRows

LoadTable = Callable[[NodeConfig, RunConfig], Table]
Options = TypeVar("Options", bound=PCAOptions)
SEE_LOG = "see this site's own log"  # told instead of what that log says besides
logger = logging.getLogger("fedpca_flwr.client")


class Site:
    """A party in one run.

    Its context (Flower's) holds the run-config, this site's node-config, and state that lasts over the rounds; ``load``
    gives this party's rows, from its node-config and the run-config; errors name other ``methods``.
    """

    def __init__(self, context: Context, load: LoadTable, methods: Mapping[str, Method]) -> None:
        self.run_id = str(context.run_id)
        self.run_config: Mapping[str, Any] = dict(context.run_config)
        self._server_run_config = dict(self.run_config)
        self.node_config: Mapping[str, Any] = dict(context.node_config)
        self.state = State(context.state)
        self.load = load
        self.methods = methods
        self.rows_from_caller = load is not local_table.local_table  # by whoever called `fedpca_flwr.run`

    def with_run_config(self, run_config: Mapping[str, Any]) -> Site:
        """The same party in the same run, as another configuration has it."""
        other = copy(self)
        other.__dict__.pop("config", None)
        other.run_config = dict(run_config)
        return other

    @property
    def settings_digest(self) -> bytes:
        """Digest of the run-config that came from the server."""
        return hashlib.sha256(json.dumps(self._server_run_config, sort_keys=True).encode()).digest()

    # What it holds

    @cached_property
    def node(self) -> NodeConfig:
        return NodeConfig.parse(self.node_config, source="node-config")

    @cached_property
    def config(self) -> RunConfig:
        return RunConfig.parse(self.run_config)

    def configuration(self, card: MethodCard, options: PCAOptions) -> str:
        """The run-config as a text, which all parties of a run agree on: the same run is the same text."""
        settings = {**self.config.model_dump(by_alias=True), "method": canonical_text(card.name, options)}
        return json.dumps(settings, sort_keys=True)

    def options(self, kind: type[Options]) -> Options:
        """The method's own options."""
        return parse_options(self.config.method, kind, {"n-components": self.config.n_components})

    @cached_property
    def table(self) -> Table:
        expected, folder = (
            self.journal.load_secret("rows"),
            self.journal.rows_folder,
        )  # first, as nothing is kept beside a lost journal
        if folder and not self.rows_from_caller:
            found = local_table.load_run_table(self.node, self.config, folder)
        else:
            found = self.load(self.node, self.config)
        if expected:
            require_same_rows(expected.decode(), found.digest)
        elif found.digest:
            self.journal.store_secret("rows", found.digest.encode())
        return table_steps.apply_steps(found, self.node, self.config)

    @cached_property
    def journal(self) -> Journal:
        memory = StateJournal(self.state.records)
        if self.node.journal:
            return journal.FileJournal(
                self.node.journal, self.run_id, self.node.partition_id, memory, self._description
            )
        return memory

    @property
    def _description(self) -> str:
        """What run this is, as far as a site is told: Flower names nobody who has started it."""
        try:
            config = self.config
        except ConfigError:
            return f"of a run-config that is refused; {loaded_app()}"
        secure = "; only sums" if config.secure_aggregation else ""
        return f"{config.method}; n-components={config.n_components}{secure}; {loaded_app()}"

    def data(self, split: str) -> Rows:
        """This party's rows (n, d), checked: those that take part."""
        return self.table.rows if split == "columns" else self._participants  # of columns, all parties have all rows

    @cached_property
    def _participants(self) -> Rows:
        return participating_rows(self.table, self.node.round_rows)

    def public(self, split: str, options: PCAOptions) -> Public:
        """What the server knows too."""
        n, d = self.data(split).shape
        sizes = {"rows": n} if split == "columns" else {"features": d}
        return Public(self.config, options, self.node.num_partitions, **sizes)

    def info(self, split: str) -> dict[str, Any]:
        """What every reply says of this party."""
        return {
            "partition-id": self.node.partition_id,
            "num-partitions": self.node.num_partitions,
            "name": self.node.name,
            "columns": "" if split == "columns" else self.table.columns,  # there, names differ between parties
            "simulated": not self.node.data,
        }

    # Its rules (`fedpca_flwr.site.policy`)

    def permit(self, card: MethodCard, options: PCAOptions, *, sums_only: bool) -> None:
        """Refuse what this site does not allow, before anything is computed."""
        require_compatible(self.config, card, options, self.methods)
        policy.permit_method(self.node, card, sums_only=sums_only)
        policy.permit_sums(self.node, card, options, sums_only=sums_only)
        policy.require_files(self.node)
        policy.permit_exposure(self.node, card, options)
        policy.require_journal(self.node, card, sums_only=sums_only)
        n = len(self.data(card.split))
        policy.permit_split(self.node, card, self.table.split)
        policy.permit_weights(self.node, card, self.config.weights)
        if self.config.levels:
            policy.permit_levels(self.node, self.table, indicator_names(self.config.levels_by_column))
        policy.permit_rows(self.node, n)
        if card.incomplete or any(stage.accepts_missing for stage in options.stages):
            policy.permit_values(self.node, self.table)
        else:
            require_complete(
                self.table, ", or run a method that takes such rows (method='em'; of genotypes, genotypes=true)"
            )

    def permit_size(self, nbytes: int, alternatives: Callable[[int], str]) -> None:
        """Refuse to send a larger reply than this site allows, and tell the ``alternatives`` that are not."""
        policy.permit_size(self.node, nbytes, alternatives)

    def permit_moments(self, card: MethodCard, rows: Rows, *, sums_only: bool) -> None:
        """Refuse sums over the ``rows`` (n, d) of this party that would tell of few of them, alone or with those of
        earlier runs."""
        if not self.node.data:
            return
        if self.refuses_rare_values:
            rare_values.permit_columns(
                self.journal, self.node.min_rows, rows, self.table.names, settings=self.settings_digest
            )
        if not sums_only:
            self.repeats(card.split).permit_clear(is_noted=False)

    @property
    def refuses_rare_values(self) -> bool:
        """Whether columns in which few rows stand out refuse a run."""
        return (self.node.rare_values or ("allow" if self.rows_from_caller else "refuse")) == "refuse"

    def note_clear(self, card: MethodCard) -> None:
        """Note in the journal that an answer in clear leaves, once a run, if it may; warn where there is none."""
        if not self.node.data:
            return
        if not self.node.journal and self.journal.load_secret(repeats.CLEAR_NAME) is None:
            logger.warning("run %s: %s", self.run_id, repeats.UNPROTECTED_TEXT)
        self.repeats(card.split).permit_clear(is_noted=True)

    def repeats(self, split: str) -> repeats.RepeatRules:
        """What this site allows after what earlier runs over its rows were told."""
        return repeats.RepeatRules(
            self.journal, self.node, self._in_file_order(self.data(split)), self._selected_rows(split)
        )

    def permit_sum(self, members: Sequence[str], split: str) -> None:
        """Refuse to be in a sum over these parties, where it and an earlier one would tell a share."""
        self.repeats(split).permit_sum(members, split=split)

    def _selected_rows(self, split: str) -> SelectedRows:
        """The rows that take part before the run weighs them, without the indicators that its levels have added."""
        weights, levels = self.table.weights, self.config.levels
        unweighted = participating_rows(self.table._replace(weights=None), self.node.round_rows)
        rows = self._in_file_order(self.table.rows if split == "columns" else unweighted)
        width = rows.shape[1]
        if levels and (self.rows_from_caller or readers.holds_texts(self.node.data)):
            width -= len(indicator_names(self.config.levels_by_column))
        added = range(width, rows.shape[1])
        return SelectedRows(
            select_columns(rows, range(width)) if added else rows,
            b"" if weights is None else weights.tobytes(),
            (lambda: (levels, select_columns(rows, added))) if added else None,
        )

    def permit_bound(self, split: str) -> None:
        """Refuse a run whose `bound` the rows exceed, and to tell so of ever more bounds; where this site says a bound
        of its own, one below that."""
        if self.node.bound is not None:
            policy.permit_site_bound(self.node.bound, self.data(split), self.config.bound)
        else:
            self.repeats(split).permit_bound(self.config.bound)

    def held_out(self, split: str) -> NDArray[np.bool_]:
        """Which of the rows that take part are held out, the same in every run (`fedpca_flwr.site.fold`)."""
        rows = self._in_file_order(self.data(split)) if self.node.data else self.data(split)
        return fold.held_out_rows(self.journal, self.node, rows, self.config.seed)

    def _in_file_order(self, selected: Rows) -> Rows:
        """Rows that take part, rows and columns in the order of the file, which no run can change."""
        rows, places = columns.restore_column_order(self.table, selected), self.table.row_positions
        return rows if places is None else to_array(rows)[places]

    # What it says when something is wrong

    def report(self, error: Exception, *, late: bool = False) -> dict[str, Any]:
        """An error as a reply: its kind and a text without data; the rest goes to this site's own log only. Whoever
        has handed over the rows is told what is wrong where in them.

        Of rows of the site's own nothing is told that only its answers could have shown: an error that comes ``late``,
        after a first answer, is one constant text, unless it is about a configuration or the site's own rules.
        """
        try:
            party, name, has_own_data = self.node.partition_id, self.node.name, bool(self.node.data)
        except ConfigError:
            partition = self.node_config.get("partition-id")
            party, name, has_own_data = partition if isinstance(partition, int) else -1, "", True
        if isinstance(error, FedPCAError):
            local_text = f" [{error.local}]" if error.local else ""
            logger.error("run %s: %s: %s%s", self.run_id, type(error).__name__, error, local_text)
        else:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(frame.filename).name}, line {frame.lineno}"
            logger.error("run %s: %s in %s", self.run_id, type(error).__name__, where)
            error = PartyError(f"failed with {type(error).__name__}", local=where)
        if not late:
            with suppress(Exception):  # the journal may be what is wrong, which the log says; nothing is raised here
                self.journal.record_refusal(type(error).__name__)  # this site takes no part in the run
        if late and has_own_data and not isinstance(error, ConfigError | DisclosureError):
            error = PartyError("this site ended its part in the run; its own log says why")
        show_local = self.rows_from_caller and isinstance(error, DataError | PartyError)
        detail = error.local if show_local else error.local and SEE_LOG
        message = "; ".join(filter(None, (str(error), detail)))[:MAX_MESSAGE_CHARACTERS]
        return {"partition-id": party, "name": name, "error": type(error).__name__, "message": message}


def loaded_app() -> str:
    """The Flower app that this process runs, by publisher, name, version and hash as Flower's folder of it has them."""
    apps = [Path(entry).name for entry in sys.path if Path(entry).parent.name == "apps"]
    return f"app {apps[0]}" if apps else "no app of Flower's"


def show_log() -> None:
    """Show a site's own log, with the time of each line, where Flower shows what a ClientApp writes."""
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
