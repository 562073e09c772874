"""`Site`: one party's rows, rules, files and memory. Its rules are its own: no run can change them."""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from numpy.typing import NDArray

from fedpca_flwr.config import NodeConfig, RunConfig
from fedpca_flwr.errors import ConfigError, DisclosureError, FedPCAError, PartyError
from fedpca_flwr.method_text import canonical, options_of
from fedpca_flwr.protocol.card import MethodCard, PCAOptions
from fedpca_flwr.protocol.journal import Journal
from fedpca_flwr.protocol.messages import LONGEST_MESSAGE, UNPRINTABLE
from fedpca_flwr.protocol.phase import Public
from fedpca_flwr.protocol.state import Context, State, StateJournal
from fedpca_flwr.site import repeats
from fedpca_flwr.site.journal import FileJournal
from fedpca_flwr.site.local_table import local_table
from fedpca_flwr.table import Table

EXPOSURES = ("nothing", "scores", "inner products")
"""What a run may show of single rows, the least first."""

Load = Callable[[NodeConfig, RunConfig], Table]

Options = TypeVar("Options", bound=PCAOptions)

logger = logging.getLogger("fedpca_flwr.client")


class Site:
    """A party in one run.

    Parameters
    ----------
    context : flwr.app.Context
        Holds the run-config, this site's node-config, and state that lasts over the rounds.
    load : callable, optional
        Gives this party's rows, from its node-config and the run-config.
    """

    def __init__(self, context: Context, load: Load = local_table) -> None:
        self.run_id = str(context.run_id)
        self.run_config: Mapping[str, Any] = dict(context.run_config)
        self.node_config: Mapping[str, Any] = dict(context.node_config)
        self.state = State(context.state)
        self.load = load

    def running(self, run_config: Mapping[str, Any]) -> Site:
        """The same party in the same run, as another configuration has it."""
        other = copy(self)
        other.__dict__.pop("config", None)
        other.run_config = dict(run_config)
        return other

    # What it holds

    @cached_property
    def node(self) -> NodeConfig:
        return NodeConfig.parse(self.node_config, source="node-config")

    @cached_property
    def config(self) -> RunConfig:
        return RunConfig.parse(self.run_config)

    def configuration(self, card: MethodCard, options: PCAOptions) -> str:
        """The run-config as a text, which all parties of a run agree on: the same run is the same text."""
        told = {**self.config.model_dump(by_alias=True), "method": canonical(card.name, options)}
        return json.dumps(told, sort_keys=True)

    def options(self, kind: type[Options]) -> Options:
        """The method's own options."""
        return options_of(self.config.method, kind, {"n-components": self.config.n_components})

    @cached_property
    def table(self) -> Table:
        return self.load(self.node, self.config)

    @cached_property
    def journal(self) -> Journal:
        if self.node.journal:
            return FileJournal(self.node.journal, self.run_id, self.node.partition_id)
        return StateJournal(self.state.records)

    def data(self, split: str) -> NDArray[Any]:
        """This party's rows (n, d), checked: those that take part."""
        rows = self.table.rows
        if split == "columns":  # the same rows at every party
            return rows
        return rows[: len(rows) - len(rows) % self.node.round_rows]

    def public(self, split: str, options: PCAOptions) -> Public:
        """What the server knows too."""
        n, d = self.data(split).shape
        known = {"rows": n} if split == "columns" else {"features": d}
        return Public(self.config, options, self.node.num_partitions, **known)

    def about(self, split: str) -> dict[str, Any]:
        """What every reply says of this party."""
        return {
            "partition-id": self.node.partition_id,
            "num-partitions": self.node.num_partitions,
            "name": self.node.name,
            "columns": "" if split == "columns" else self.table.columns,  # there, names differ between parties
            "simulated": not self.node.data,
        }

    # Its rules

    def permit(self, card: MethodCard, exposes: str, *, sums_only: bool) -> None:
        """Refuse what this site does not allow, before anything is computed.

        Raises
        ------
        ConfigError, DisclosureError
        """
        self._permit_method(card, sums_only)
        self._permit_exposure(exposes)
        if self.table.split not in ("", card.split):
            raise ConfigError(
                f"the method '{card.name}' is for data split by {card.split}, but this party's are split by "
                f"{self.table.split} (node-config 'split', or in a simulation 'partition'); choose a method for these"
            )
        if card.split == "columns" and self.node.round_rows > 1:
            raise DisclosureError(
                f"this site tells a rounded number of rows (node-config 'round-rows' = {self.node.round_rows}), and "
                f"the method '{card.name}' needs all rows at every party"
            )
        if len(self.data(card.split)) < self.node.min_rows:
            raise DisclosureError(
                f"this site has fewer rows than its own minimum (node-config 'min-rows' = {self.node.min_rows})"
            )

    def permit_size(self, nbytes: int) -> None:
        """Refuse to send a larger reply than this site allows.

        Raises
        ------
        DisclosureError
        """
        if nbytes > self.node.max_reply_bytes:
            raise DisclosureError(
                f"the reply would have {nbytes:,} bytes, this site allows {self.node.max_reply_bytes:,} "
                "(node-config 'max-reply-bytes')"
            )

    def permit_sum(self, split: str, members: Sequence[str]) -> None:
        """Refuse a secure sum that with an earlier one would tell a party's share (`fedpca_flwr.site.repeats`).

        Raises
        ------
        DisclosureError
        """
        repeats.permit_sum(self.journal, self.node, self._in_own_order(split), members, split=split)

    def permit_bound(self, split: str) -> None:
        """Refuse a run whose `bound` the rows exceed, and to tell so of ever more bounds.

        Raises
        ------
        DataError, DisclosureError
        """
        repeats.permit_bound(self.journal, self.node, self._in_own_order(split), self.config.bound)

    def _in_own_order(self, split: str) -> NDArray[Any]:
        """The rows that take part, in the order of the file, which no run can change."""
        rows, places = self.data(split), self.table.places
        return rows if places is None else rows[places]

    def _permit_method(self, card: MethodCard, sums_only: bool) -> None:
        allowed = self.node.allowed_methods.replace(",", " ").split()
        if allowed and card.name not in allowed:
            raise DisclosureError(
                f"this site does not allow the method '{card.name}' (its node-config allows: {', '.join(allowed)})"
            )
        if self.node.secure_only and not sums_only:
            raise DisclosureError(
                "this site answers with secure aggregation only (node-config 'secure-only'); run with "
                "secure-aggregation=true"
            )
        if self.node.epsilon_budget is not None and not card.noised:
            raise DisclosureError(
                f"this site has a privacy budget (node-config 'epsilon-budget'), and the method '{card.name}' is "
                "not differentially private"
            )

    def require_journal(self, card: MethodCard, *, sums_only: bool) -> None:
        """Refuse a run whose rules hold only as long as what was answered is not forgotten.

        Raises
        ------
        ConfigError
        """
        if self.node.data and not self.node.journal and (sums_only or card.noised):
            raise ConfigError(
                "this site's node-config names no 'journal', the folder in which it keeps what it was asked and has "
                "answered; with secure aggregation, and for a private method, a site needs one"
            )

    def _permit_exposure(self, exposes: str) -> None:
        allowed = self.node.may_show or ("nothing" if self.node.data else EXPOSURES[-1])
        if EXPOSURES.index(exposes or "nothing") > EXPOSURES.index(allowed):
            raise DisclosureError(
                f"the run shows {exposes} of single rows, this site allows {allowed} (node-config 'may-show'; "
                f"expected one of: {', '.join(EXPOSURES)})"
            )

    # What it says when something is wrong

    def report(self, error: Exception, *, late: bool = False) -> dict[str, Any]:
        """An error as a reply: its kind and a text without data; the rest goes to this site's own log only.

        Of rows of the site's own nothing is told that only its answers could have shown: an error that comes ``late``,
        after a first answer, is one constant text, unless it is about a configuration or the site's own rules.
        """
        try:
            party, name, guarded = self.node.partition_id, self.node.name, bool(self.node.data)
        except ConfigError:
            party, name, guarded = -1, "", True
        if isinstance(error, FedPCAError):
            logger.error("%s: %s%s", type(error).__name__, error, f" [{error.local}]" if error.local else "")
        else:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            logger.error("%s in %s, line %s", type(error).__name__, Path(frame.filename).name, frame.lineno)
            error = PartyError(f"failed with {type(error).__name__}; see this site's own log")
        if late and guarded and not isinstance(error, ConfigError | DisclosureError):
            error = PartyError("this site ended its part in the run; its own log says why")
        message = UNPRINTABLE.sub("?", str(error))[:LONGEST_MESSAGE]
        return {"partition-id": party, "name": name, "error": type(error).__name__, "message": message}
