"""SAPCA: every party follows its stream of rows in one pass, and the subspaces are merged (Grammenos et al. 2019).

This is the method for streams; the one called `streaming` is for a federation that lasts from run to run.

A party needs O(d (r + b)) memory for r tracked directions and blocks of b rows. It sends its directions times their
singular values, mean, energy and an error bound: d r + d + 5 values. Merging is one QR and one SVD, with a column for
each mean, at the server for all parties at once (star) or pairwise along a tree of parties
(`strategies.sapca.client`), where nobody ever holds more than two subspaces. The server relays: Flower has a hub.

What the order of the rows leaves behind: nothing as long as no direction is truncated, which is so where ``tracked`` is
the number of features, or no less than the rank of the data. Else the model depends on it, a little (tracking twice the
components, excess error 1e-4 where the components alone give 2e-3), and says by a bound how far it may be off. A stream
whose directions change for good needs ``forgetting`` or more directions, or the new ones never enter.

With ``state`` the model runs on: new rows are merged into what is stored, ``old-weight`` and ``new-weight`` are the
paper's lambdas. What was merged cannot be taken out; a contribution that was merged already is refused.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from fedpca_flwr.config import RunConfig
from fedpca_flwr.errors import ConfigError, ContractError
from fedpca_flwr.maths.eigen import Eigenpairs, angle_bound
from fedpca_flwr.maths.rank_rules import Band, Energy
from fedpca_flwr.maths.subspace_tracking import Subspace, merge
from fedpca_flwr.model import PCAModel
from fedpca_flwr.protocol.card import MethodCard, PCAOptions, Shown
from fedpca_flwr.protocol.messages import Reply
from fedpca_flwr.protocol.phase import Ask, Program
from fedpca_flwr.protocol.transport import ServerTransport
from fedpca_flwr.running_model import Content, RunningModel, subspace_digest
from fedpca_flwr.solution import Solution, require_variance
from fedpca_flwr.statistics.rows_strategy import RowsStrategy

from .client import (
    NO_ROWS,
    SAPCAOptions,
    levels_of,
    phases,
    require_subspace,
    sends_at,
    subspace_in,
)

CARD = MethodCard(
    name="sapca",
    title="Streaming with adaptive rank",
    exact=False,
    result="with a bound; one pass over the rows",
    rounds="1; `topology='tree'` log2(parties)",
    upload="d `tracked` + d + 5",
    server_sees="mean, total variance, leading local components",
    shows=Shown(
        "number of rows, mean, total variance, its leading components and their variances, an error bound, in a "
        "tree merged ones too; with `state` it keeps what was merged, and a digest of each contribution, on disk",
        "the pooled components and mean; in a tree a party sees the **merged subspace, mean and weight of those "
        "below it**, at the lowest level those of one other party",
        "sizes and times of messages; in a tree who is whose parent",
    ),
    options=SAPCAOptions,
    phases=phases,
    reference="Grammenos et al. 2019, algorithms 1 to 3",
    examples=({}, {"topology": "tree"}),
    beyond_moments="a summary of blocks of rows, in their order; nothing that is asked enters it",
)


class SAPCA(RowsStrategy):
    """SAPCA; ``measured`` has the error bound and what was truncated."""

    card = CARD
    options: SAPCAOptions

    def prepare(self, config: RunConfig, options: PCAOptions, transport: ServerTransport) -> None:
        assert isinstance(options, SAPCAOptions)
        _check(options)
        super().prepare(config, options, transport)
        self.running = RunningModel(options.state) if options.state else None
        self._next: Content | None = None  # of the running model, once this run has succeeded
        self._rows_here = 0

    @property
    def exact(self) -> bool:
        """Where every direction is tracked nothing is truncated."""
        options = self.options
        return self._tracked == self.quorum.features and options.forgetting == 1 and not options.state

    def program(self) -> Program:
        yield from super().program()
        if self.running:
            assert self._next is not None
            self.running.save(self._next)

    def aggregate(self) -> Generator[Ask, Any, Solution]:
        parties = self.quorum.total
        replies: list[Reply] = yield Ask("summary")
        sent = self._sent_at(0, replies)
        for level in range(1, levels_of(parties) if self.options.topology == "tree" else 1):
            passed = {reply.party - 2 ** (level - 1): reply.fields for reply in sent}
            received = {party: passed.get(party, NO_ROWS) for party in range(parties)}
            each = {party: {name: fields[name] for name in NO_ROWS} for party, fields in received.items()}
            replies = yield Ask("merged", each=each)
            sent = self._sent_at(level, replies)
        self._rows_here = sum(reply.rows for reply in replies)
        return self._solved([subspace_in(reply.fields) for reply in sent], [_rank_in(reply) for reply in sent])

    def rows_here(self, model: PCAModel) -> int:
        return self._rows_here

    # Inside

    @property
    def _tracked(self) -> int:
        return self.options.tracks(self.quorum.features)

    def _sent_at(self, level: int, replies: Sequence[Reply]) -> list[Reply]:
        """The replies of those whose turn it was to send their subspace, checked."""
        parties, topology = self.quorum.total, self.options.topology
        sent = [reply for reply in replies if sends_at(reply.party, level, parties, topology)]
        for reply in sent:
            require_subspace(reply.fields, reply.sender)
        return sent

    def _solved(self, parts: list[Subspace], ranks: Sequence[int]) -> Solution:
        everything, rows = self._with_the_past(parts, self._rows_here)
        self.n_components(rows, len(everything.vectors))
        require_variance(everything.diagonal(), rows, everything.head.mean)
        pairs = everything.pairs(self._rank(everything, ranks))
        unit = rows / everything.head.n  # forgotten rows count less: the variances are those of the weighted rows
        return Solution(
            pairs=Eigenpairs(unit * pairs.values, pairs.vectors, unit * pairs.following),
            mean=everything.head.mean,
            total=unit * everything.energy,
            rows=rows,
            measured=self._measured(everything, pairs, ranks),
        )

    def _with_the_past(self, parts: list[Subspace], rows: int) -> tuple[Subspace, int]:
        """All subspaces merged, with that of the running model where there is one, and how many rows that are."""
        options, running = self.options, self.running
        if running is None:
            return merge(parts, self._tracked), rows
        old, digests, columns = running.content, sorted(map(subspace_digest, parts)), self.quorum.columns
        if old is None:
            everything = merge(parts, self._tracked)
            self._next = Content(everything, rows, options.center, columns, tuple(digests))
            return everything, rows
        _check_fit(old, parts, options.center, columns, digests, running)
        factors = [options.old_weight] + [options.new_weight] * len(parts)
        everything, rows = merge([old.subspace, *parts], self._tracked, factors), rows + old.rows
        known, columns = (*old.merged, *digests), columns or old.columns
        self._next = Content(everything, rows, options.center, columns, known, old.revision + 1)
        return everything, rows

    def _rank(self, everything: Subspace, ranks: Sequence[int]) -> int:
        rule, sigma = self.options.rule(), everything.sigma
        if isinstance(rule, Band):
            rule.rank = min(sigma.size, max(ranks))
            return rule.stationary_rank(sigma)
        rank = rule.step(sigma, everything.energy)
        if isinstance(rule, Energy) and rank > sigma.size:
            held = float(sigma @ sigma) / everything.energy
            raise ConfigError(
                f"run-config: 'tracked' is {self._tracked}, and so many directions hold {held:.4%} of the variance, "
                f"less than n-components = {rule.target:g}; raise 'tracked', or lower n-components"
            )
        return rank

    def _measured(self, everything: Subspace, pairs: Eigenpairs, ranks: Sequence[int]) -> dict[str, float]:
        left = max(0.0, 1 - float(everything.sigma @ everything.sigma) / everything.energy)
        measured: dict[str, float] = {
            "tracked_directions": self._tracked,
            "truncated_variance_share": left,
            "angle_bound_degrees": angle_bound(everything.omitted, pairs),
        }
        if self.options.rank_rule == "paper" or isinstance(self.options.n_components, float):
            measured |= {"smallest_rank": min(ranks), "largest_rank": max(ranks)}
        if self._next:
            measured |= {"running_model_rows": self._next.rows, "running_model_revision": self._next.revision}
        return measured


def _check(options: SAPCAOptions) -> None:
    """Refuse options that do not go together."""
    if options.rank_rule == "paper" and isinstance(options.n_components, float):
        raise ConfigError("run-config: rank-rule='paper' begins with a number of components; give n-components=10")
    if options.share_low >= options.share_high:
        raise ConfigError(
            f"run-config: 'share-low' is {options.share_low:g}, expected less than share-high = {options.share_high:g}"
        )
    if options.tracked and options.tracked < options.n_components:
        raise ConfigError(
            f"run-config: 'tracked' is {options.tracked}, expected at least n-components = {options.n_components}, and "
            "better twice that"
        )
    if not options.state and (options.old_weight, options.new_weight) != (1.0, 1.0):
        raise ConfigError("run-config: 'old-weight' and 'new-weight' are for a running model; give state='...'")


def _rank_in(reply: Reply) -> int:
    return int(reply.fields["measures"][3])


def _check_fit(
    old: Content, parts: list[Subspace], center: bool, columns: str, digests: list[str], running: RunningModel
) -> None:
    """Refuse what cannot be merged into a running model."""
    features, here = len(old.subspace.vectors), len(parts[0].vectors)
    if features != here:
        raise ContractError(f"the rows have {here} features, those of the model in {running.path} have {features}")
    if old.center != center:
        raise ConfigError(
            f"run-config: 'center' is {center}, but the model in {running.path} was made with {old.center}; "
            "keep it, or name another folder"
        )
    if columns and old.columns not in ("", columns):
        raise ConfigError(f"the column names, or their order, differ from those of the model in {running.path}")
    if set(digests) & set(old.merged):
        raise ConfigError(
            f"a party brings rows that are in the model in {running.path} already, and would count twice; bring only "
            "new ones"
        )
