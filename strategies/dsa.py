"""DSA, the Distributed Sanger's Algorithm: parties of a graph average with neighbours and follow Sanger's rule.

DSA is for comparison. Party i has a matrix A_i, whose mean over the parties is the pooled scatter with trace 1, and an
iterate X_i (d x k). In each round the party sends X_i, which are d k numbers, and steps along Sanger's direction of its
own matrix, from the weighted mean of its neighbours' iterates, with Metropolis weights w_ij and the step size alpha::

    X_i <- sum_j w_ij X_j + alpha H_i(X_i),   H_i(X) = A_i X - X triu(X' A_i X)

The iterates converge linearly, but only to a neighbourhood of the components: where parties differ, their directions do
not vanish at the solution, and hold the parties apart in proportion to ``step-size``. FAST-PCA removes this distance at
twice the bytes.
"""

from typing_extensions import override

from fedpca_flwr.questions import graph, method

BLOCK_NAMES = ("iterate",)

CARD = method.MethodCard(
    name="dsa",
    title="Distributed Sanger's Algorithm",
    exact=False,
    result="stalls at a distance (on digits 0.6 degrees, parties 5 apart); for comparison; over a simulated graph",
    rounds="the graph's diameter + `iterations` + 1",
    upload="d k in each iteration; at first K(2d + 3) for K parties",
    server_sees="all that it relays: heads, iterates",
    disclosure=graph.GRAPH_DISCLOSURE,
    options=graph.GraphOptions,
    script=lambda config, options: graph.graph_questions(config, options, BLOCK_NAMES),
    reference="Gang and Bajwa 2022, A Linearly Convergent Algorithm for Distributed PCA",
    local_components="iterates",
)


class DSAParty(graph.GraphParty):
    """Party of DSA: averages iterates with neighbours, and steps along Sanger's direction of its own scatter.

    Notes
    -----
    The stored iterate is ``[X, H(X)]``. One iteration of party i, with the neighbours' average of X [1]_::

        X <- sum_j w_ij X_j + alpha H_i(X_i)

    References
    ----------
    .. [1] Gang and Bajwa 2022, A Linearly Convergent Algorithm for Distributed Principal Component Analysis.
    """

    block_names = BLOCK_NAMES

    @override
    def begin(self, X: method.Array) -> list[method.Array]:
        """Return ``[X, H(X)]``: the start and Sanger's direction there."""
        return [X, self.direction(X)]

    @override
    def advance(self, iterate: list[method.Array], average: list[method.Array]) -> list[method.Array]:
        """Return ``[X, H(X)]`` at the neighbours' average plus the step along the last direction."""
        return self.begin(average[0] + self.step_size * iterate[1])


class DSAClient(graph.GraphClient):
    """Client of DSA, which projects its rows with its own final iterate."""

    party_type = DSAParty


class DSA(graph.GraphStrategy):
    """Strategy of DSA: relays the parties' iterates along a graph, and averages their estimates."""

    card = CARD
    party = DSAClient
