"""`GraphStrategy`: relays between neighbours; then makes the reader's model of what the parties report."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from functools import reduce
from itertools import combinations
from typing import Any

import numpy as np

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.certificate import EXACT
from fedpca_flwr.maths.eigen import Eigenpairs, fix_signs
from fedpca_flwr.maths.graph import Adjacency, metropolis_weights, mixing_rate
from fedpca_flwr.maths.heads import Heads
from fedpca_flwr.maths.linear_rate import iterations_left, way_left
from fedpca_flwr.maths.sanger import orthonormalised
from fedpca_flwr.maths.subspace import principal_angles
from fedpca_flwr.model import PCAModel
from fedpca_flwr.protocol.messages import Reply
from fedpca_flwr.protocol.payload import Fields
from fedpca_flwr.protocol.phase import Ask
from fedpca_flwr.solution import Solution
from fedpca_flwr.statistics.graphs import GraphOptions, network, rounds_between, step_size
from fedpca_flwr.statistics.rows_strategy import RowsStrategy

STANDSTILL = 1e-11
"""Degrees of a step that is rounding."""

NOTE = "a simulated network: the server relayed; scores are by each party's own estimate, the model is their mean"


class GraphStrategy(RowsStrategy):
    """Base of the decentralised methods: a subclass is its card."""

    options: GraphOptions

    def aggregate(self) -> Generator[Ask, Any, Solution]:
        graph = network(self.options, self.quorum.total, self.config.seed)
        self._steps: list[float] = []  # how far any party's iterate moved at most, in each iteration
        said: list[Reply] = yield Ask("head")
        rows = sum(reply.rows for reply in said)
        self.n_components(rows, self.quorum.features)
        for _ in range(rounds_between(graph)):
            said = yield _relayed("heads", graph, said)
        heads = reduce(Heads.filled_from, (Heads(**reply.fields) for reply in said))
        said = yield _relayed("start", graph, said)
        for _ in range(self.options.iterations - 1):
            before, said = said, (yield _relayed("step", graph, said))
            self._steps.append(_largest_step(before, said))
        reports: list[Reply] = yield _relayed("report", graph, said)
        return self._reported([report.fields for report in reports], rows, graph, heads)

    def loadings(self, model: PCAModel, solution: Solution) -> Fields:
        return {**super().loadings(model, solution), "order": self._order}

    # Inside

    def _reported(self, reports: Sequence[Fields], rows: int, graph: Adjacency, heads: Heads) -> Solution:
        """The mean of the parties' estimates, with the sums of the energies."""
        estimates = [report["estimate"] for report in reports]
        energies = _added([report["energies"] for report in reports])
        # a run that was too short has them in no order; parties need it for their own estimates
        self._order = np.argsort(-energies, kind="stable")
        components = fix_signs(orthonormalised(_added(estimates))[:, self._order])
        return Solution(
            pairs=Eigenpairs(energies[self._order], components, following=0.0),
            mean=reports[0]["mean"],
            total=math.fsum(report["trace"] for report in reports),
            rows=rows,
            notes=[NOTE, *self._unfinished(estimates)],
            measured=self._measured(reports, components, graph) | {"step_size": step_size(self.options, heads, graph)},
        )

    def _measured(self, reports: Sequence[Fields], components: Array, graph: Adjacency) -> dict[str, float]:
        return {
            "iterations": self.options.iterations,
            "mixing_rate": float(mixing_rate(metropolis_weights(graph))),
            "consensus_error_degrees": max(
                float(principal_angles(report["estimate"], components).max()) for report in reports
            ),
            "last_direction_norm": max(float(report["direction"]) for report in reports),
        }

    def _unfinished(self, estimates: Sequence[Array]) -> list[str]:
        """What a reader must know where the iterations ended too early, or the parties do not agree."""
        apart = max((float(principal_angles(a, b).max()) for a, b in combinations(estimates, 2)), default=0.0)
        step = math.degrees(self._steps[-1]) if self._steps else math.inf
        left = 0 if step <= STANDSTILL else iterations_left(self._steps, math.radians(EXACT))
        if left == 0 and apart <= EXACT:
            return []
        last = f"the last step was {step:.2g} degrees at most" if self._steps else "only one step was made"
        if left is None:
            more = (
                "the steps show no linear rate yet, so it cannot be said how many more iterations are needed, and the "
                "components may be others still, up to 90 degrees from those of all rows"
            )
        elif left:
            way = math.degrees(way_left(self._steps) or 0.0)
            more = (
                f"at the rate of the last ones, {way:.2g} degrees of the way are left, and about {left:,} more "
                f"iterations leave {EXACT:g}; a direction that has hardly begun to turn does not show in that"
            )
        else:
            more = "the parties stand still, where more iterations change nothing and a smaller 'step-size' may"
        return [
            f"not converged: after {self.options.iterations} iterations the parties' estimates are up to {apart:.2g} "
            f"degrees from each other, and {last}: {more}"
        ]


def _largest_step(before: Sequence[Reply], now: Sequence[Reply]) -> float:
    """How far any party's iterate moved at most."""
    pairs = zip(before, now, strict=True)
    return max(float(np.linalg.norm(new.fields["iterate"] - old.fields["iterate"])) for old, new in pairs)


def _relayed(phase: str, graph: Adjacency, said: Sequence[Reply]) -> Ask:
    """A question with which every party receives what its neighbours said."""
    tables = {name: np.stack([reply.fields[name] for reply in said]) for name in said[0].fields}
    each = {reply.party: {name: table[graph[reply.party]] for name, table in tables.items()} for reply in said}
    return Ask(phase, each=each)


def _added(arrays: Sequence[Array]) -> Array:
    """The sum of equal shapes, whose bits do not depend on their order."""
    total: Array = np.sort(arrays, axis=0).sum(axis=0)
    return total
