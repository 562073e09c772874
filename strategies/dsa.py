"""DSA, the Distributed Sanger's Algorithm: sites of a graph average with neighbours and follow Sanger's rule.

DSA is for comparison. In each round a site sends its iterate X (d x k) to its neighbours. The iterates come near
the components, and stop at a distance that grows with ``step-size`` and with the differences between sites. FAST-PCA
removes this distance and sends twice the bytes.
"""

from typing_extensions import override

from fedpca_flwr.questions import graph, method

BLOCK_NAMES = ("iterate",)

CARD = method.MethodCard(
    name="dsa",
    title="Distributed Sanger's Algorithm",
    exact=False,
    result="On digits it stops improving at 0.6 degrees, and sites are 5 degrees apart. The graph is simulated",
    rounds="the graph's diameter + `iterations` + 2",
    upload="K(2d + 3) for K sites and d features, then d k in each iteration",
    server_sees="all that it relays: means, variances, iterates",
    disclosure=graph.GRAPH_DISCLOSURE,
    options=graph.GraphOptions,
    script=lambda config, options: graph.graph_questions(config, options, BLOCK_NAMES),
    reference="Gang and Bajwa 2022, A Linearly Convergent Algorithm for Distributed PCA",
    differences=graph.DIFFERENCES.format(6, 87),
    local_components="iterates",
)


class DSAParty(graph.GraphParty):
    """Party of DSA: averages iterates with neighbours, and steps along Sanger's direction of its own scatter.

    The stored iterate is ``[X, H(X)]``. Party i iterates ``X <- sum_j w_ij X_j + alpha H_i(X_i)`` (Gang and Bajwa 2022,
    A Linearly Convergent Algorithm for Distributed Principal Component Analysis).
    """

    block_names = BLOCK_NAMES

    @override
    def begin(self, X: method.Array) -> list[method.Array]:
        """Return ``[X, H(X)]``: the start X (d, k) and Sanger's direction (d, k) there."""
        return [X, self.direction(X)]

    @override
    def advance(self, iterate: list[method.Array], average: list[method.Array]) -> list[method.Array]:
        """Return ``[X, H(X)]``, of which X is the ``average`` [X] plus `step_size` times the last H(X); all (d, k)."""
        return self.begin(average[0] + self.step_size * iterate[1])


class DSAClient(graph.GraphClient):
    """Client of DSA, which projects its rows with its own final iterate."""

    party_type = DSAParty


class DSA(graph.GraphStrategy):
    """Strategy of DSA: relays the parties' iterates along a graph, and averages their estimates."""

    card = CARD
    party = DSAClient
