"""Personalised PCA: each party's own components, drawn towards components that all share (paper 002).

The server sends the shared components V (d x k). Each party computes its own U_i for them, keeps U_i, and returns its
projector times V, of which the server needs only the sum (`fedpca_flwr.maths.personalised`)::

    U_i = leading eigenvectors of Y_i'Y_i + c V V',     V <- orth(sum U_i U_i'V)

With ``solver="stiefel"`` it is Algorithm 1 of the paper: a gradient step for U_i, and a party's version of V comes
back. It reaches the same objective in more rounds. V starts as the PCA of all rows, by block Krylov rounds as in
SUB-IT.

``mu`` says how strongly V draws: c = mu times the k-th eigenvalue of the pooled scatter over the number of parties. At
0 each party has its local PCA, at infinity all have the PCA of all rows. By default it is chosen: each party holds out
a fifth of its rows, all strengths in `GRID` and both ends run at once on the others, the least error on the rows held
out wins, and a second pass with all rows follows. The mean is that of all rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field as Limits
from scipy.linalg import eigh

from fedpca_flwr.config import Count
from fedpca_flwr.contract import Field, Payload
from fedpca_flwr.errors import ContractError
from fedpca_flwr.maths.eigen import Eigenpairs, fix_signs
from fedpca_flwr.maths.iteration import BlockIteration
from fedpca_flwr.maths.krylov import random_block
from fedpca_flwr.maths.moments import Head, pool_heads
from fedpca_flwr.maths.personalised import distance
from fedpca_flwr.solution import require_variance
from strategies.base import CountOptions, MethodCard, PCAStrategy, Reply, Request, Solution
from strategies.moments import HEAD

GRID = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
"""Values of mu to choose from, besides 0 and infinity."""

SETTLED = 1e-7
"""Sum of the squared sines between V and the V before, at which V is found."""

GLOBAL_ROUNDS = 30
"""At most so many rounds for the PCA of all rows."""


class PersonalisedOptions(CountOptions):
    """Options of the personalised method."""

    mu: Literal["held-out", "infinity"] | Annotated[float, Limits(ge=0)] = "held-out"
    """How strongly the shared components draw each party's own; 0: local PCA, ``"infinity"``: PCA of all rows."""
    solver: Literal["closed-form", "stiefel"] = "closed-form"
    """Eigenvectors, or the gradient steps of the paper's Algorithm 1."""
    iterations: Count = 20
    """At most so many for V, in each pass."""
    center: bool = True
    """Subtract the pooled mean."""


CARD = MethodCard(
    name="personalised",
    title="Personalised PCA",
    exact=False,
    result="each party's own components, drawn towards shared ones",
    rounds=2 * (1 + GLOBAL_ROUNDS + 20) + 2,  # with the default iterations
    in_rounds="some 5, then at most `iterations`; twice to choose `mu`",
    upload="d b, then d k in each iteration (six times to choose `mu`)",
    server_sees="products with d x b blocks, each party's own components",
    options=PersonalisedOptions,
    payloads={
        "start": Payload((Field("used", (), dtype="int64", kind="count"), *HEAD[1:], Field("diagonal", ("d",)))),
        "product": Payload((Field("product", ("d", "b")),)),
        "share": Payload((Field("shared", ("m", "d", "k")),)),
        "choose": Payload((Field("errors", ("grid",)),)),
        "report": Payload((Field("error", ()), Field("distance", ()), Field("gram", ("k", "k")))),
    },
    reference="paper 002: Ozkara, Huang and Diggavi 2023, Personalized PCA for Federated Heterogeneous Data",
)


class Personalised(PCAStrategy):
    """Chooses mu, if asked to, then finds V; ``measured`` says what the parties gained."""

    card = CARD
    options: PersonalisedOptions

    def __init__(self, config, options) -> None:
        super().__init__(config, options)
        self._choosing = options.mu == "held-out"
        self._mus = GRID if self._choosing else (math.inf if options.mu == "infinity" else float(options.mu),)
        self._measured: dict[str, str] = {}
        self._notes: list[str] = []
        self._global = np.empty((0, 0))  # components of the rows used in this or the last pass
        self._error = 0.0
        self._next = "start"

    @property
    def rounds(self) -> int:
        return 2 * (1 + GLOBAL_ROUNDS + self.options.iterations) + 2

    def request(self) -> Request:
        k, hold = self.options.n_components, int(self._choosing)
        if self._next == "start":
            return Request("start", sizes={"hold": hold})
        if self._next == "product":
            block = self._found.block
            return Request("product", [block, *self._mean], {"hold": hold, "b": block.shape[1]})
        if self._next == "share":
            sizes = {"hold": hold, "m": len(self._mus), "k": k}
            return Request("share", [self._shared, self._strengths, *self._mean], sizes)
        if self._next == "choose":
            return Request("choose", [self._global, *self._mean], {"hold": hold, "grid": len(GRID) + 2})
        finite = self._strengths[np.isfinite(self._strengths)]
        return Request("report", [self._shared[0], finite, *self._mean], {"hold": hold, "k": k})

    def aggregate_fit(self, server_round, results, failures):
        replies = self.collect(server_round, results, failures)
        if self._next == "report":
            return self._end(replies)
        steps = {"start": self._start, "product": self._find_global, "share": self._share, "choose": self._choose}
        self._next = steps[self._next](replies)
        return None, {}

    def squared_error(self) -> float:
        return self._error / self._rows

    # The phases; each returns the next

    def _start(self, replies: list[Reply]) -> str:
        """Mean and variance of the rows used."""
        order = sorted(replies, key=lambda reply: (reply.rows, *(reply.fields[f].tobytes() for f in reply.fields)))
        heads = [_head(reply, reply.rows - (reply.rows // 5 if self._choosing else 0)) for reply in order]
        pooled, deviations = pool_heads(heads)
        d, k = pooled.mean.size, self.options.n_components
        self.n_components(sum(reply.rows for reply in replies), d)
        between = (head.n * dev**2 for head, dev in zip(heads, deviations, strict=True))
        diagonal = np.sum([*(reply.fields["diagonal"] for reply in order), *between], axis=0)
        self._mean = [pooled.mean, pooled.remainder]
        if not self.options.center:
            diagonal += pooled.n * np.square(pooled.mean + pooled.remainder)
            self._mean = [np.zeros(d), np.zeros(d)]
        require_variance(diagonal, pooled.n, self._mean[0])
        self._rows, self._total = pooled.n, float(diagonal.sum())
        start = random_block(d, min(k + 10, d), self.config.seed)
        self._found = BlockIteration(start, k, trace=self._total)
        self._iterations = 0
        return "product"

    def _find_global(self, replies: list[Reply]) -> str:
        """The PCA of all rows that are used: the end mu = infinity, and where V starts."""
        found = self._found
        if not found.add(found.block, _added(replies, "product")) and found.asked < GLOBAL_ROUNDS:
            return "product"
        if not self._choosing:
            self._notes += [f"PCA of all rows: {note}" for note in found.shortfall(f"{GLOBAL_ROUNDS} rounds")]
        pairs = found.pairs
        unit = max(float(pairs.values[-1]), 1e-12 * float(pairs.values[0])) / len(replies)
        self._strengths = np.array(self._mus) * unit
        self._global = pairs.vectors
        self._shared = np.repeat(pairs.vectors[None], len(self._mus), axis=0)
        return "share" if self._choosing or 0 < self._mus[0] < math.inf else "report"

    def _share(self, replies: list[Reply]) -> str:
        """V for all values of mu that run."""
        found = np.linalg.qr(_added(replies, "shared")).Q
        moved = float(distance(found, self._shared).max())
        self._shared = found
        self._iterations += 1
        if moved > SETTLED and self._iterations < self.options.iterations:
            return "share"
        if moved > SETTLED and not self._choosing:
            angle = math.degrees(math.asin(min(1.0, math.sqrt(moved))))
            self._notes.append(f"stopped after iterations = {self._iterations}; V still moved by {angle:.2g} degrees")
        return "choose" if self._choosing else "report"

    def _choose(self, replies: list[Reply]) -> str:
        """The mu of the least error on the rows held out; of equals the one that shares most."""
        errors, values = _added(replies, "errors"), (0.0, *GRID, math.inf)
        held = sum(reply.rows for reply in replies) - self._rows
        best = int(np.flatnonzero(errors <= errors.min() + 1e-9 * self._total)[-1])
        self._measured["mu"] = f"{_named(values[best])}, chosen on {held} rows held out"
        local, personal, shared = errors[[0, best, -1]] / max(held, 1)
        self._measured["held-out error"] = f"{personal:.6g} per row, local {local:.6g}, global {shared:.6g}"
        if not held:
            self._notes.append("no party has 5 rows, of which one can be held out: mu is infinity")
        self._mus, self._choosing = (values[best],), False
        return "start"

    def _end(self, replies: list[Reply]):
        gram = _added(replies, "gram")
        values, rotation = eigh((gram + gram.T) / 2)
        pairs = Eigenpairs(values[::-1], fix_signs(self._shared[0] @ rotation[:, ::-1]), following=0.0)
        self._error = float(_added(replies, "error"))
        mu, distances = self._mus[0], float(_added(replies, "distance"))
        measured = {"mu": _named(mu), **self._measured}
        if 0 < mu < math.inf:
            objective = self._error + float(self._strengths[0]) * distances
            told = f"{objective / self._rows:.6g} per row after {self._iterations} iterations"
            measured["objective"] = f"{told} ({self.options.solver})"
        sine = math.sqrt(distances / (len(replies) * len(values)))
        measured["own from shared"] = f"{math.degrees(math.asin(min(1.0, sine))):.2g} degrees (root mean square sine)"
        note = "scores are by each party's own components; the model holds the shared ones"
        solution = Solution(pairs=pairs, mean=self._mean[0], total=self._total, rows=self._rows)
        return self.finish(solution, notes=[note, *self._notes], measured=measured)


def _head(reply: Reply, expected: int) -> Head:
    """Of the rows that a party uses: fewer than it has while it holds some out."""
    used, mean, remainder, _ = reply.fields.values()
    if used != expected:
        raise ContractError(f"{reply.sender}: it used {int(used)} rows, expected {expected} of its {reply.rows}")
    return Head(int(used), mean, remainder if remainder.size else np.zeros_like(mean))


def _added(replies: Sequence[Reply], field: str) -> NDArray:
    """The sum of a field, whose bits do not depend on the order of the parties."""
    return np.sort([reply.fields[field] for reply in replies], axis=0).sum(axis=0)


def _named(mu: float) -> str:
    ends = {0.0: "0 (local PCA)", math.inf: "infinity (PCA of all rows)"}
    return ends.get(mu, f"{mu:g}")
