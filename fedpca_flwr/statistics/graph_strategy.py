"""`GraphStrategy`: relays between neighbours; then makes the reader's model of what the parties report."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.maths.eigen import Eigenpairs, fix_signs
from fedpca_flwr.maths.graph import Adjacency, metropolis_weights, mixing_rate
from fedpca_flwr.maths.sanger import orthonormalised
from fedpca_flwr.maths.subspace import principal_angles
from fedpca_flwr.model import PCAModel
from fedpca_flwr.protocol.messages import Reply
from fedpca_flwr.protocol.payload import Fields
from fedpca_flwr.protocol.phase import Ask
from fedpca_flwr.solution import Solution
from fedpca_flwr.statistics.graphs import GraphOptions, network, rounds_between
from fedpca_flwr.statistics.rows_strategy import RowsStrategy

Array = NDArray[np.float64]

NOTE = "a simulated network: the server relayed; scores are by each party's own estimate, the model is their mean"


class GraphStrategy(RowsStrategy):
    """Base of the decentralised methods: a subclass is its card."""

    options: GraphOptions

    def aggregate(self) -> Generator[Ask, Any, Solution]:
        graph = network(self.options, self.quorum.total, self.config.seed)
        said: list[Reply] = yield Ask("head")
        rows = sum(reply.rows for reply in said)
        self.n_components(rows, self.quorum.features)
        for _ in range(rounds_between(graph)):
            said = yield _relayed("heads", graph, said)
        said = yield _relayed("start", graph, said)
        for _ in range(self.options.iterations - 1):
            said = yield _relayed("step", graph, said)
        reports: list[Reply] = yield _relayed("report", graph, said)
        return self._reported([report.fields for report in reports], rows, graph)

    def loadings(self, model: PCAModel, solution: Solution) -> Fields:
        return {**super().loadings(model, solution), "order": self._order}

    # Inside

    def _reported(self, reports: Sequence[Fields], rows: int, graph: Adjacency) -> Solution:
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
            notes=[NOTE],
            measured=self._measured(reports, components, graph),
        )

    def _measured(self, reports: Sequence[Fields], components: Array, graph: Adjacency) -> dict[str, str]:
        options = self.options
        apart = max(principal_angles(report["estimate"], components).max() for report in reports)
        return {
            "iterations": f"{options.iterations}, step-size {options.step_size:g}",
            "mixing rate": f"{mixing_rate(metropolis_weights(graph)):.3f} ({options.graph})",
            "consensus error": f"{apart:.2g} degrees at most, from a party's estimate to the mean of all",
            "last direction": f"{max(float(report['direction']) for report in reports):.2g} at most",
        }


def _relayed(phase: str, graph: Adjacency, said: Sequence[Reply]) -> Ask:
    """A question with which every party receives what its neighbours said."""
    tables = {name: np.stack([reply.fields[name] for reply in said]) for name in said[0].fields}
    each = {reply.party: {name: table[graph[reply.party]] for name, table in tables.items()} for reply in said}
    return Ask(phase, each=each)


def _added(arrays: Sequence[Array]) -> Array:
    """The sum of equal shapes, whose bits do not depend on their order."""
    return np.sort(arrays, axis=0).sum(axis=0)
