"""FAST-PCA: DSA whose sites also track the mean of all directions, and so converge to the exact components.

FAST-PCA is for the study of sites that exchange numbers with neighbours only. If the gap after the last component is
small beside the first eigenvalue, convergence takes many more rounds than the default, and a note of the model says so.
"""

from typing_extensions import override

from fedpca_flwr.questions import graph, method

BLOCK_NAMES = ("iterate", "tracked")

CARD = method.MethodCard(
    name="fast-pca",
    title="FAST-PCA",
    exact=False,
    result="It converges to the exact components, but slowly if the sites differ. For 5 components of digits the "
    "largest angle after 500 iterations, the default, is 0.001 degrees with five sites that are alike (`alpha=10`), "
    "and 8 to 49 degrees with five that differ (`alpha=0.1`, four draws). The graph is simulated",
    rounds="the graph's diameter + `iterations` + 2",
    upload="K(2d + 3) for K sites and d features, then 2d k in each iteration",
    server_sees="all that it relays: means, variances, iterates",
    disclosure=graph.GRAPH_DISCLOSURE,
    options=graph.GraphOptions,
    script=lambda config, options: graph.graph_questions(config, options, BLOCK_NAMES),
    reference="Gang and Bajwa 2021, arXiv 2108.12373",
    differences=graph.DIFFERENCES.format(11, 88),
    local_components="iterates",
)


class FastPCAParty(graph.GraphParty):
    """Party of FAST-PCA: averages with neighbours, and steps along a tracked mean of all Sanger directions.

    The stored iterate is ``[X, T, H(X)]``, each (d, k), of which neighbours get X and T. The estimates T_i keep the
    mean of all ``H_i(X_i)``, whatever the weights, so their common limit is zero only at the components of the pooled
    scatter (Gang and Bajwa 2021, FAST-PCA: A Fast and Exact Algorithm for Distributed PCA, arXiv 2108.12373).
    """

    block_names = BLOCK_NAMES
    share = 0.5

    @override
    def begin(self, X: method.Array) -> list[method.Array]:
        """Return ``[X, T, H(X)]`` with the tracked direction T equal to Sanger's direction H(X)."""
        direction = self.direction(X)
        return [X, direction, direction]

    @override
    def advance(self, iterate: list[method.Array], average: list[method.Array]) -> list[method.Array]:
        """Return ``[X, T, H(X)]`` after a step along T from the average ``[X, T]``; T changes by as much as H(X)."""
        _, tracked, previous_direction = iterate
        X = average[0] + self.step_size * tracked
        direction = self.direction(X)
        return [X, average[1] + (direction - previous_direction), direction]


class FastPCAClient(graph.GraphClient):
    """Client of FAST-PCA, which projects its rows with its own final iterate."""

    party_type = FastPCAParty


class FastPCA(graph.GraphStrategy):
    """Strategy of FAST-PCA: relays iterates and tracked directions along a graph, and averages the estimates."""

    card = CARD
    party = FastPCAClient
