"""`Site`: a party's side of a run over rows in memory, which a caller passes; rules and files: `Custodian`."""

from __future__ import annotations

import hashlib
import json
import traceback
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.config.entries import load_entry
from fedpca_flwr.config.method_text import format_method, non_defaults, parse_options
from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.data.categories import indicator_names
from fedpca_flwr.data.table import Table, participating_rows, participation, require_complete
from fedpca_flwr.errors import ConfigError, ContractError, DataError, DisclosureError, FedPCAError, PartyError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.rows import Rows, validation_rows
from fedpca_flwr.protocol.admission import MAX_MESSAGE_CHARACTERS, MESSAGES
from fedpca_flwr.protocol.card import MethodCard, PCAOptions
from fedpca_flwr.protocol.journal import Context, Journal, SimulatedContext, State, StateJournal
from fedpca_flwr.protocol.question import Public
from fedpca_flwr.protocol.registry import Method, require_compatible
from fedpca_flwr.protocol.site_log import site_logger
from fedpca_flwr.site.rows.selection import Selection

if TYPE_CHECKING:
    from fedpca_flwr.maths.incomplete_rows import Patterns
    from fedpca_flwr.site.rules.repeats import RepeatRules

LoadTable = Callable[[NodeConfig, RunConfig], Table]
"""Function that returns a party's table in a run, after `RUN_STEPS` (`adapt`)."""
Options = TypeVar("Options", bound=PCAOptions)
SEE_LOG = "see this site's own log"  # sent in place of details that only the log has

RUN_STEPS = {
    "weights": "fedpca_flwr.site.weights:separate_weights",
    "apart": "fedpca_flwr.genetics.relatives:mark_relatives",
    "features": "fedpca_flwr.site.readers.columns:order_features",
    "transform": "fedpca_flwr.site.transform:transform_rows",
}
"""Steps from a site's or a caller's table to that in a run, by the key that asks for each: paths of functions."""


def adapt(table: Table, node: NodeConfig, config: RunConfig, steps: Mapping[str, str] = RUN_STEPS) -> Table:
    """Return the table after the steps that keys of the node-config or run-config ask for; no step knows another."""
    for key, path in steps.items():
        if getattr(node, key, "") or getattr(config, key, ""):
            table = load_entry(path)(table, node, config)
    return table


class Site:
    """A party's side of a run over a caller's rows: its configuration, table, selections and error reports.

    ``load`` loads the table, and errors name alternatives among ``methods``. Of its node-config the site knows its
    place in the run and limits of numbers; all other keys are those of a `fedpca_flwr.site.custodian.Custodian`.
    """

    rows_from_caller = True
    """Whether a caller passed the rows: that of `fedpca_flwr.run`, who may hear what is wrong in them, or an app."""

    def __init__(self, context: Context, load: LoadTable, methods: Mapping[str, Method]) -> None:
        self.run_id = str(context.run_id)
        self.run_config: Mapping[str, Any] = dict(context.run_config)
        self._server_run_config = dict(self.run_config)
        self.node_config: Mapping[str, Any] = dict(context.node_config)
        self._records = context.state
        self._is_simulated = isinstance(context, SimulatedContext)
        self.load = load
        self.methods = methods
        self._selections: dict[str, Selection] = {}
        self._selections_are_final = False

    def with_run_config(self, run_config: Mapping[str, Any]) -> Site:
        """Return a copy of the site in the same run with another run-config, and without selections."""
        other = copy(self)
        other.__dict__.pop("config", None)
        other.run_config = dict(run_config)
        other._selections, other._selections_are_final = {}, False
        return other

    @cached_property
    def state(self) -> State:
        """Lists of arrays that the party keeps between the rounds of the run."""
        return State(self._records)

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
        method = format_method(card.name, non_defaults(options))
        settings = {**self.config.model_dump(by_alias=True), "method": method}
        return json.dumps(settings, sort_keys=True)

    def options(self, kind: type[Options]) -> Options:
        """Parse the method's options from the run-config; raise ConfigError for options that the class forbids."""
        return parse_options(self.config.method, kind, {"n-components": self.config.n_components})

    @cached_property
    def table(self) -> Table:
        """Table of the party's rows in the run."""
        return self.load(self.node, self.config)

    @cached_property
    def journal(self) -> Journal:
        """Journal of the run in Flower's state; a `Custodian` may have another, in a folder."""
        return StateJournal(self._records)

    def select(
        self, split: str, needs: Collection[str] = (), name: str = "", mask: NDArray[np.bool_] | None = None
    ) -> Selection:
        """Return rows that take part, or those of a mask (n,), which the site examines and journals before an answer.

        A name selected before has its first rows; raise ContractError for a new one after `permit_selections`.
        """
        if name not in self._selections:
            if self._selections_are_final:
                raise ContractError(f"rows '{name}' were selected after this site had examined the run's selections")
            rows, by_gaps = self._rows(split), self.node.gaps != "all" and bool(self.table.missing.any())
            self._selections[name] = Selection(name, rows if mask is None else rows[mask], needs, mask, by_gaps)
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
        """Patterns of missing values of the rows, and a mask (n,) of the rows whose gaps may show: all."""
        from fedpca_flwr.maths.incomplete_rows import Patterns  # of runs of `em` only

        patterns = Patterns.from_rows(self._participants)
        return patterns, np.ones(patterns.of.size, dtype=bool)

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
        statement = {
            "partition-id": self.node.partition_id,
            "num-partitions": self.node.num_partitions,
            "name": self.node.name,
            # names of data split by columns differ between parties
            "columns": self.table.names_digest if split != "columns" else "",
            "simulated": not self.node.data,
        }
        return {key: value for key, value in statement.items() if value != ""}  # Flower's mods take no empty text

    # Its rules (`fedpca_flwr.site.rules.policy`)

    def permit(self, card: MethodCard, options: PCAOptions, *, sums_only: bool) -> None:
        """Raise ConfigError, DataError or DisclosureError for a run that does not go together, or not with the rows."""
        require_compatible(self.config, card, options, self.methods)
        self.permit_table(card, options)

    def permit_table(self, card: MethodCard, options: PCAOptions) -> None:
        """Raise DataError or DisclosureError for a table with wrong levels, too few rows, or missing values."""
        table, n = self.table, len(self._rows(card.split))
        if not self.config.levels and n >= self.node.min_rows and not table.missing.any():
            return
        from fedpca_flwr.site.rules import policy  # of which a plain table needs nothing

        if self.config.levels:
            policy.permit_levels(self.node, table, indicator_names(self.config.levels_by_column))
        policy.permit_rows(self.node, n)
        if not table.missing.any():
            return
        if card.incomplete or any(stage.accepts_missing for stage in options.stages):
            policy.permit_values(self.node, table)
        else:
            advice = ", or run a method that takes such rows (method='em'; of genotypes, genotypes=true)"
            require_complete(table, advice if card.split == "rows" else "")

    def score_file(self, n: int, k: int) -> AbstractContextManager[Callable[[Array], object]]:
        """Open the site's file of scores (n, k), and yield a function that appends scores (m, k); raise ConfigError."""
        return nullcontext(lambda scores: None)

    def permit_size(self, nbytes: int, alternatives: Callable[[int], str]) -> None:
        """Raise DisclosureError, with the alternatives, for a reply of more bytes than the site allows."""
        if nbytes > self.node.max_reply_bytes:
            from fedpca_flwr.site.rules import policy  # of which a reply within the limit needs nothing

            policy.permit_size(self.node, nbytes, alternatives)

    def permit_selections(self, card: MethodCard, *, sums_only: bool) -> None:
        """Allow no further selections."""
        self._selections_are_final = True

    def repeats(self, split: str) -> RepeatRules:
        """Return the rules about repeated runs, which compare none for lack of a journal that outlasts the run."""
        from fedpca_flwr.site.rules.repeats import RepeatRules  # for bounds, and means that sites keep

        return RepeatRules(self.journal, self.node, self._rows(split))

    def no_rule(self, *facts: Any, **keywords: Any) -> None:
        """Permit what a `Custodian` may refuse, and note nothing: the rows are those of the caller."""

    note_clear = permit_sum = permit_blind = record_refusal = no_rule

    def permit_bound(self, split: str) -> None:
        """Raise DataError if the rows exceed the run's bound."""
        self.repeats(split).permit_bound(self.config.bound, self.table.names)

    def held_out(self, split: str) -> NDArray[np.bool_]:
        """Return the mask (n,) of the fifth of rows that the site holds out, the same in every run with the seed."""
        return validation_rows(self._rows(split), self.config.seed)

    # What it says when something is wrong

    def report(self, error: Exception, *, late: bool = False, is_noted: bool = True) -> dict[str, Any]:
        """Return an error as a reply without data; details go to the site's own log.

        Whoever passed the rows hears where in the rows the fault is. About rows of the site's own, the reply has
        nothing that only its answers could have shown: a ``late`` error, after a first answer, is one constant text,
        unless it is about a configuration or the site's own rules. An earlier error is noted in the journal as a
        refusal.
        """
        try:
            party, name, has_own_data = self.node.partition_id, self.node.name, bool(self.node.data)
        except ConfigError:
            partition = self.node_config.get("partition-id")
            party, name, has_own_data = partition if isinstance(partition, int) else -1, "", True
        if isinstance(error, FedPCAError):
            local = f" [{error.local}]" if error.local else ""
            if local or not self._is_simulated:  # a simulation has one log, and the reports of all parties
                site_logger.error("run %s: %s: %s%s", self.run_id, type(error).__name__, error, local)
        else:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(frame.filename).name}, line {frame.lineno}"
            site_logger.error("run %s: %s in %s", self.run_id, type(error).__name__, where)
            error = PartyError(f"failed with {type(error).__name__}, a fault of code, perhaps the app's", local=where)
        if not late:
            self.record_refusal(type(error).__name__, is_noted=is_noted)
        elif has_own_data and not isinstance(error, ConfigError | DisclosureError):
            error = PartyError("this site ended its part in the run; its own log says why")
        show_local = not has_own_data and isinstance(error, ConfigError | DataError | PartyError)
        detail = error.local if show_local and self.rows_from_caller else error.local and SEE_LOG
        message = "; ".join(filter(None, (str(error), detail)))[:MAX_MESSAGE_CHARACTERS]
        statement = {"partition-id": party, "messages": MESSAGES, **({"name": name} if name else {})}
        return {**statement, "error": type(error).__name__, "message": message}
