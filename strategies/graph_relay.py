"""What DSA and FAST-PCA share: parties that talk only to their neighbours in a graph, which Flower's server simulates.

Flower has a hub, so the server relays: what a party sends goes unchanged to its neighbours, and the server adds nothing
up. It is a simulated network, and the server sees all that passes.

Centring is exact. In the first rounds every party forwards all heads (count, mean, trace of the scatter) that it knows;
after as many rounds as the graph's diameter each knows all K of them, hence the pooled mean ``m`` and the total
variance. Then party i works with::

    A_i = K (S_i + n_i (m_i - m)(m_i - m)^T) / trace of the pooled scatter

whose mean over the parties is the pooled scatter with trace one, so that ``step-size`` has no unit.

The end is for the reader. Each party reports its own estimate, made orthonormal, and the energies of its rows in it.
The server averages the estimates to the model's components and adds the energies to its eigenvalues. The parties
project their rows with their own estimates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from itertools import combinations

import numpy as np
from flwr.common import ndarrays_to_parameters
from numpy.typing import NDArray

from fedpca_flwr.maths.eigen import Eigenpairs, fix_signs
from fedpca_flwr.maths.graph import Adjacency, diameter, metropolis_weights, mixing_rate
from fedpca_flwr.maths.linear_rate import iterations_left
from fedpca_flwr.maths.sanger import orthonormalised
from fedpca_flwr.maths.subspace import principal_angles
from strategies.base import PCAStrategy, Reply, Request, Solution
from strategies.graph_client import GraphOptions, network

CONVERGED = 1e-6
"""Degrees at which components are the same for every purpose."""

STANDSTILL = 1e-11
"""Degrees of a step that is rounding."""

LONGEST = 10_000
"""Rounds of flooding allowed for while the number of parties is not known yet."""


class GraphStrategy(PCAStrategy):
    """Relays; then makes the reader's model of what the parties report."""

    options: GraphOptions

    def __init__(self, config, options) -> None:
        super().__init__(config, options)
        self._said: dict[int, list[NDArray]] = {}  # by party, in the last round
        self._steps: list[float] = []  # how far any party's iterate moved at most, in each iteration

    @property
    def rounds(self) -> int:
        return (self._flooding if self.quorum.expected else LONGEST) + self.options.iterations + 1

    def request(self) -> Request:
        each = {
            party: [array for other in np.flatnonzero(self._graph[party]).tolist() for array in self._said[other]]
            for party in self._said
        }
        sizes = {"parties": self.quorum.expected, "k": self.options.n_components}
        return Request(self._phase(), sizes=sizes, each=each)

    def aggregate_fit(self, server_round, results, failures):
        last = self._phase() == "report"
        replies = self.collect(server_round, results, failures)
        rows = sum(reply.rows for reply in replies)
        self.n_components(rows, self.quorum.features)
        if last:
            return self._end(replies, rows)
        said = {reply.party: list(reply.fields.values()) for reply in replies}
        if self._iteration > 1:
            self._steps.append(max(float(np.linalg.norm(said[party][0] - self._said[party][0])) for party in said))
        self._said = said
        return None, {}

    @cached_property
    def _graph(self) -> Adjacency:
        return network(self.options, self.quorum.expected, self.config.seed)

    @cached_property
    def _flooding(self) -> int:
        return max(1, diameter(self._graph))

    @property
    def _iteration(self) -> int:
        """That of the next round; below 0 in the flooding."""
        return len(self._rounds) - self._flooding

    def _phase(self) -> str:
        if self._iteration < 0:
            return "heads"
        if self._iteration == 0:
            return "start"
        return "step" if self._iteration < self.options.iterations else "report"

    def _end(self, replies: list[Reply], rows: int):
        fields = [reply.fields for reply in replies]
        estimates = [own["estimate"] for own in fields]
        energies = _added([own["energies"] for own in fields])
        order = np.argsort(-energies, kind="stable")  # a run that was too short has them in no order
        components = fix_signs(orthonormalised(_added(estimates))[:, order])
        solution = Solution(
            pairs=Eigenpairs(energies[order], components, following=0.0),
            mean=fields[0]["mean"],
            total=math.fsum(own["trace"] for own in fields),
            rows=rows,
        )
        apart = max(principal_angles(estimate, components).max() for estimate in estimates)
        options = self.options
        measured = {
            "iterations": f"{options.iterations}, step-size {options.step_size:g}",
            "mixing rate": f"{mixing_rate(metropolis_weights(self._graph)):.3f} ({options.graph})",
            "consensus error": f"{apart:.2g} degrees at most, from a party's estimate to the mean of all",
            "last direction": f"{max(float(own['direction']) for own in fields):.2g} at most",
        }
        note = (
            "a simulated network: the server relayed; scores are by each party's own estimate, the model is their mean"
        )
        notes = [note, *self._unfinished(estimates)]
        parameters, metrics = self.finish(solution, notes=notes, measured=measured)
        parameters.tensors += ndarrays_to_parameters([order]).tensors  # for the parties' own estimates
        return parameters, metrics

    def _unfinished(self, estimates: Sequence[NDArray]) -> list[str]:
        """What a reader must know where the iterations ended too early, or the parties do not agree."""
        apart = max((float(principal_angles(a, b).max()) for a, b in combinations(estimates, 2)), default=0.0)
        step = math.degrees(self._steps[-1]) if self._steps else math.inf
        left = 0 if step <= STANDSTILL else iterations_left(self._steps, math.radians(CONVERGED))
        if left == 0 and apart <= CONVERGED:
            return []
        last = f"the last step was {step:.2g} degrees at most" if self._steps else "only one step was made"
        if left is None:
            more = "the steps show no linear rate yet, so it cannot be said how many more iterations are needed"
        elif left:
            more = (
                f"at the rate of the last ones, about {left:,} more iterations leave {CONVERGED:g} degrees of the way"
            )
        else:
            more = "the parties stand still, where more iterations change nothing and a smaller 'step-size' may"
        return [
            f"after {self.options.iterations} iterations the parties' estimates are up to {apart:.2g} degrees from "
            f"each other, and {last}: {more}"
        ]


def _added(arrays: Sequence[NDArray]) -> NDArray:
    """The sum of equal shapes, whose bits do not depend on their order."""
    return np.sort(arrays, axis=0).sum(axis=0)
