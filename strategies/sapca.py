"""SAPCA: every party follows its stream of rows in one pass, and the subspaces are merged (paper 003).

A party needs O(d (r + b)) memory for r tracked directions and blocks of b rows. It sends its directions times their
singular values, mean, energy and an error bound: d r + d + 5 values. Merging is one QR and one SVD, with a column for
each mean, at the server for all parties at once (star) or pairwise along a tree of parties (see `sapca_client`), where
nobody ever holds more than two subspaces. The server relays: Flower has a hub.

What the order of the rows leaves behind: nothing as long as no direction is truncated, which is so where ``tracked`` is
the number of features, or no less than the rank of the data. Else the model depends on it, a little (tracking twice the
components, excess error 1e-4 where the components alone give 2e-3), and says by a bound how far it may be off. A stream
whose directions change for good needs ``forgetting`` or more directions, or the new ones never enter.

With ``state`` the model runs on: new rows are merged into what is stored, ``old-weight`` and ``new-weight`` are the
paper's lambdas. What was merged cannot be taken out; a contribution that was merged already is refused.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.errors import ConfigError, ContractError
from fedpca_flwr.maths.eigen import Eigenpairs, angle_bound
from fedpca_flwr.maths.rank_rules import Band, Energy
from fedpca_flwr.maths.streaming_pca import Subspace, merge
from fedpca_flwr.running_model import Content, RunningModel, subspace_digest
from fedpca_flwr.solution import require_variance
from strategies.base import MethodCard, PCAStrategy, Reply, Request, Solution
from strategies.sapca_client import (
    MEASURES,
    SUMMARY,
    SAPCAClient,
    SAPCAOptions,
    levels_of,
    sends_at,
    subspace_in,
)

__all__ = ["SAPCA", "SAPCAClient"]

DEEPEST = 32
"""Levels of a tree allowed for while the number of parties is not known yet."""

UNKNOWN = 50
"""Directions tracked where a fraction of the variance is asked for."""

CARD = MethodCard(
    name="sapca",
    title="Streaming with adaptive rank",
    exact=False,
    result="with a bound; one pass over the rows",
    rounds=1,
    in_rounds="1; `topology='tree'` log2(parties)",
    upload="d `tracked` + d + 5",
    server_sees="mean, total variance, leading local components",
    options=SAPCAOptions,
    payloads={"summary": SUMMARY, "merged": SUMMARY},
    reference="paper 003, algorithms 1 to 3",
)


class SAPCA(PCAStrategy):
    """SAPCA; ``measured`` has the error bound and what was truncated."""

    card = CARD
    options: SAPCAOptions

    def __init__(self, config, options) -> None:
        super().__init__(config, options)
        _check(options)
        self.running = RunningModel(options.state) if options.state else None
        self._level = 0
        self._passed: dict[int, Reply] = {}  # in a tree: what parties sent in the last round
        self._next: Content | None = None  # of the running model, once this run has succeeded

    @property
    def exact(self) -> bool:
        """Where every direction is tracked nothing is truncated."""
        options = self.options
        return self._tracked() == self.quorum.features and options.forgetting == 1 and not options.state

    @property
    def rounds(self) -> int:
        return DEEPEST if self.options.topology == "tree" else 1

    def request(self) -> Request:
        sizes = {
            "r": self._tracked(),
            "measures": len(MEASURES),
            "level": self._level,
            "parties": self.quorum.expected,
        }
        if not self._level:
            return Request("summary", sizes=sizes)
        each: dict[int, list[NDArray]] = {party: [] for party in range(self.quorum.expected)}
        for party, reply in self._passed.items():
            fields = reply.fields
            each[party - 2 ** (self._level - 1)] = [fields[n] for n in ("measures", "remainder", "mean", "directions")]
        return Request("merged", sizes=sizes, each=each)

    def aggregate_fit(self, server_round, results, failures):
        replies = self.collect(server_round, results, failures)
        parties, level, topology = self.quorum.expected, self._level, self.options.topology
        self._passed = {r.party: r for r in replies if sends_at(r.party, level, parties, topology)}
        for reply in self._passed.values():
            _check_sent(reply)
        self._level += 1
        if topology == "tree" and self._level < levels_of(parties):
            return None, {}
        return self._end(replies)

    def aggregate_evaluate(self, server_round, results, failures):
        verdict = super().aggregate_evaluate(server_round, results, failures)
        if self.running:
            assert self._next is not None
            self.running.save(self._next)
        return verdict

    # Inside

    def _tracked(self) -> int:
        options, features = self.options, self.quorum.features
        most = UNKNOWN if isinstance(options.n_components, float) else 2 * options.n_components
        if options.rank_rule == "paper":
            most = max(most, 2 * math.ceil(1 / options.share_high))  # the rank never grows beyond that half
        return min(options.tracked or most, features)

    def _end(self, replies: list[Reply]):
        parts = [subspace_in(reply.fields) for reply in self._passed.values()]
        rows = sum(reply.rows for reply in replies)
        everything, rows = self._with_the_past(parts, rows)
        self.n_components(rows, len(everything.vectors))
        require_variance(everything.diagonal(), rows, everything.head.mean)
        rank = self._rank(everything)
        unit = rows / everything.head.n  # forgotten rows count less: the variances are those of the weighted rows
        pairs = everything.pairs(rank)
        solution = Solution(
            pairs=Eigenpairs(unit * pairs.values, pairs.vectors, unit * pairs.following),
            mean=everything.head.mean,
            total=unit * everything.energy,
            rows=rows,
        )
        return self.finish(solution, measured=self._measured(everything, pairs))

    def _with_the_past(self, parts: list[Subspace], rows: int) -> tuple[Subspace, int]:
        """All subspaces merged, with that of the running model where there is one, and how many rows that are."""
        options, running = self.options, self.running
        if running is None:
            return merge(parts, self._tracked()), rows
        old, digests, columns = running.content, sorted(map(subspace_digest, parts)), self.quorum.columns
        if old is None:
            everything = merge(parts, self._tracked())
            self._next = Content(everything, rows, options.center, columns, tuple(digests))
            return everything, rows
        _check_fit(old, parts, options.center, columns, digests, running)
        factors = [options.old_weight] + [options.new_weight] * len(parts)
        everything, rows = merge([old.subspace, *parts], self._tracked(), factors), rows + old.rows
        known, columns = (*old.merged, *digests), columns or old.columns
        self._next = Content(everything, rows, options.center, columns, known, old.revision + 1)
        return everything, rows

    def _rank(self, everything: Subspace) -> int:
        rule, sigma = self.options.rule(), everything.sigma
        if isinstance(rule, Band):
            rule.rank = min(sigma.size, max(int(reply.fields["measures"][3]) for reply in self._passed.values()))
            return rule.settled(sigma)
        rank = rule.step(sigma, everything.energy)
        if isinstance(rule, Energy) and rank > sigma.size:
            held = float(sigma @ sigma) / everything.energy
            raise ConfigError(
                f"run-config: 'tracked' is {self._tracked()}, and so many directions hold {held:.4%} of the variance, "
                f"less than n-components = {rule.target:g}; raise 'tracked', or lower n-components"
            )
        return rank

    def _measured(self, everything: Subspace, pairs: Eigenpairs) -> dict[str, str]:
        left = max(0.0, 1 - float(everything.sigma @ everything.sigma) / everything.energy)
        ranks = [int(reply.fields["measures"][3]) for reply in self._passed.values()]
        bound = angle_bound(everything.error, pairs)
        lines = {
            "tracked directions": f"{self._tracked()}, without {left:.2g} of the variance",
            "angle bound": f"{bound:.2g} degrees (Davis and Kahan: the worst case)",
        }
        if self.options.rank_rule == "paper" or isinstance(self.options.n_components, float):
            lines["ranks on the way"] = f"{min(ranks)} to {max(ranks)}"
        if self._next:
            lines["running model"] = f"{self._next.rows} rows, revision {self._next.revision}"
        return lines


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


def _check_sent(reply: Reply) -> None:
    """Refuse a reply without directions, or with numbers that no subspace has."""
    if not reply.fields["directions"].size:
        raise ContractError(f"{reply.sender}: field 'directions' is empty, but it was its turn to send")
    smallest = (np.finfo(np.float64).tiny, 0.0, 0.0, 1.0)
    for name, value, least in zip(MEASURES, reply.fields["measures"].tolist(), smallest, strict=True):
        if value < least:
            raise ContractError(f"{reply.sender}: its {name} is {value:g}, expected at least {least:g}")


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
