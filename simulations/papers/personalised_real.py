"""Personalised PCA on MNIST: parties with few classes each, errors on rows that they held back from the run."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np

from fedpca_flwr.data import datasets
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.personalised import local_components, perpca
from fedpca_flwr.packages import module, strategies
from fedpca_flwr.protocol.progress import flower_from

from ..loopback import assemble
from .experiment import Row

CASES: dict[str, dict[str, Any]] = {
    "2 classes, 20 rows": {"parties": 50, "classes": 2, "rows": 20},
    "2 classes, 100 rows": {"parties": 50, "classes": 2, "rows": 100},
    "1 class, 20 rows": {"parties": 30, "classes": 1, "rows": 20},
    "1 class, 100 rows": {"parties": 30, "classes": 1, "rows": 100},
    "iid, 50 rows": {"parties": 30, "classes": 10, "rows": 50},
    "2 classes, 200 rows": {"parties": 30, "classes": 2, "rows": 200},
}
HELD_BACK = 100
"""Rows of each party that no run sees."""

OWN: str = module("strategies.personalised.party").OWN


def real_data(*, root: str, parties: int, classes: int, rows: int, components: int = 10) -> Iterator[Row]:
    """Share of the variance about the pooled mean that is lost on rows that no run has seen."""
    drawn = drawn_parties(root, parties, classes, rows + HELD_BACK)
    known, new = [X[:rows] for X in drawn], [X[rows:] for X in drawn]
    mean, own, pooled, mu = personal(known, components)
    centred = np.array(known) - mean
    counts = sorted({max(1, components // 4), components // 2, 3 * components // 4})
    yield {
        "parties": parties,
        "classes": classes,
        "rows": rows,
        "local": lost(new, mean, [local_components(X, pooled) for X in centred]),
        "global": lost(new, mean, [pooled] * parties),
        "personal": lost(new, mean, own),
        "PerPCA": min(lost(new, mean, list(perpca(centred, pooled, count, iterations=100))) for count in counts),
        "mu": mu,
    }


def drawn_parties(root: str, parties: int, classes: int, each: int) -> list[Array]:
    """Rows (each, d) of every party, pixels from 0 to 1, of so many classes in turn; no row twice."""
    source, rng = datasets.load("mnist", root), np.random.default_rng(0)
    pools = [list(rng.permutation(np.flatnonzero(source.labels == label))) for label in range(10)]
    drawn = []
    for i in range(parties):
        own = [(i * classes + j) % 10 for j in range(classes)]
        chosen = [pools[own[j % classes]].pop() for j in range(each)]
        drawn.append(source.rows(np.array(chosen)[rng.permutation(each)]) / 255)
    return drawn


def personal(parties: list[Array], components: int) -> tuple[Array, list[Array], Array, float]:
    """Pooled mean, each party's own components (d, k), those of all rows, and mu, by runs of the method itself."""
    runs = {}
    for mu in ("held-out", "infinity"):
        options = {"method": "personalised", "n-components": components, "mu": mu, "clients": len(parties)}
        server = assemble(strategies.run_config_of(options), parties, {"min-rows": 1})
        with flower_from(logging.ERROR):
            server.fit(num_rounds=server.strategy.rounds, timeout=None)
        runs[mu] = server
    model, pooled = runs["held-out"].strategy.model, runs["infinity"].strategy.model
    chosen: float = model.log["measured"]["mu"]
    clients = runs["held-out"].client_manager().all()
    records = [kept(clients[str(i + 1)]) for i in range(len(parties))]
    shared, _ = pooled.loadings()
    own = [record[OWN].to_numpy_ndarrays()[0][0] if OWN in record else shared.T for record in records]
    return model.loadings()[1], own, shared.T, chosen


def kept(proxy: Any) -> Any:
    """What a party of the loopback engine keeps over the rounds."""
    return proxy.context.state.array_records


def lost(parties: list[Array], mean: Array, components: list[Array]) -> float:
    """The share of the squares about ``mean`` that projections leave; ``components`` (d, k) are each party's."""
    centred = [X - mean for X in parties]
    kept = sum(float(np.square(X @ U).sum()) for X, U in zip(centred, components, strict=True))
    return 1 - kept / sum(float(np.square(X).sum()) for X in centred)
