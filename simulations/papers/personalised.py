"""Ozkara et al. 2023, Personalized PCA for Federated Heterogeneous Data: figures 1(a) to (d) and 2, and real data.

    python -m fedpca_flwr.simulations.papers personalised --output DIR [--mnist DEST]

About half an hour on one core, with 5 data sets for each point (``--datasets``); ``--shrink 10`` is a quick look. DIR
gets a table for each step, one for each figure, plots and report.md. DEST holds MNIST, for real data. Errors are ratios
to the error of the true components, on new rows unless a column says otherwise. Figures 1(a), (c) and (d) are also
drawn with a spread at which the published shapes appear: those stated give others.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedpca_flwr.data import datasets as data_sets
from fedpca_flwr.figures.style import COLOURS
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.protocol.progress import limit_flower_log
from fedpca_flwr.simulations.loopback import assemble
from fedpca_flwr.simulations.papers.experiment import Line, Panel, Paper, Row, Step, markdown, plot, select, write_table
from fedpca_flwr.simulations.papers.hierarchical import (
    PRIORS,
    Federation,
    algorithm_1,
    ascend,
    best_perpca,
    closed_form,
    iterations_needed,
)
from fedpca_flwr.strategies import METHODS
from fedpca_flwr.strategies.personalised import party
from fedpca_flwr.strategies.personalised.mixing import local_components

SMALL, LARGE = {"d": 30, "r": 10}, {"d": 100, "r": 20}
SPREADS = (0.001, 0.01, 0.02, 0.04, 0.06, 0.08, 0.10, 0.15, 0.20, 0.40, 0.80)
ROWS = (5, 10, 20, 40, 80, 160)
PARTIES = (2, 10, 50, 100)
TIMES = {"personal": 1.0, "personal 2 mu": 2.0}  # strengths, in units of the model's strength


def steps(datasets: int, shrink: int = 1, mnist: str = "") -> list[Step]:
    """List the steps of all figures, with points of ``datasets`` data sets, and of real data in a folder ``mnist``."""
    many_parties = {"m": max(4, 200 // shrink), "datasets": datasets}
    fewer_parties = {"m": max(4, 100 // shrink), "datasets": min(datasets, 2)}
    fifty = {**SMALL, "m": max(4, 50 // shrink), "n": 20, "datasets": min(datasets, 3)}
    plan: list[Step] = []
    for spread in (0.2, 0.04):
        case = {**SMALL, **many_parties, "n": 10, "spread": spread}
        plan.append(Step(f"1a-{spread}", _compare, {**case, "perpca": True}))
        plan.append(Step(f"1a-trace-{spread}", _trace, {**case, "iterations": 300 // shrink}))
    case = {**SMALL, **many_parties, "n": 20, "perpca": True}
    plan += [Step(f"1b-{spread}", _compare, {**case, "spread": spread}) for spread in SPREADS]
    for spread in (0.1, 0.01):
        case = {**LARGE, **fewer_parties, "n": 10, "spread": spread}
        plan += [Step(f"1c-{spread}-{n}", _compare, {**case, "n": n}) for n in ROWS]
        numbers = sorted({max(2, m // shrink) for m in PARTIES})
        plan += [Step(f"1d-{spread}-{m}", _compare, {**case, "m": m}) for m in numbers]
    case = {**fifty, "spread": 0.04, "iterations": 300 // shrink}
    plan += [Step(f"2-{spread}", _descend, {**case, "spread": spread}) for spread in (0.01, 0.04, 0.2)]
    plan += [Step(f"local-{local}", _descend, {**case, "local": local}) for local in (1, 4, 16)]
    case = {**SMALL, **fewer_parties, "n": 20, "spread": 0.04}
    plan += [Step(f"prior-{prior}", _compare, {**case, "prior": prior}) for prior in PRIORS]
    return plan + ([Step("mnist-2 classes, 20 rows", _real_data, {"root": mnist})] if mnist else [])


def _compare(*, datasets: int, perpca: bool = False, **case: Any) -> Iterable[Row]:
    """Yield a row for each data set: the test error of every method over that of the true components."""
    for seed in range(datasets):
        data = Federation.draw(**case, seed=seed)
        pooled = data.pooled()
        row: Row = {"seed": seed, "local": data.test_ratio(data.local(data.random_start(seed)))}
        row["global"] = data.test_ratio(np.broadcast_to(pooled, data.truth.shape))
        for name, times in TIMES.items():
            row[name] = data.test_ratio(closed_form(data, pooled, times=times))
        if perpca:
            row["PerPCA"] = best_perpca(data, pooled)
        yield row


def _trace(*, datasets: int, iterations: int, **case: Any) -> Iterable[Row]:
    """Yield mean test ratios by iteration of local, global and personalised training from random starts (fig. 1(a))."""

    def curve(data: Federation, U: Array, V: Array) -> Iterator[list[float]]:
        local = ascend(data.rows, U, iterations)
        pooled = ascend(data.rows.reshape(-1, data.rows.shape[-1]), V, iterations)
        for alone, shared, (ours, _) in zip(local, pooled, algorithm_1(data, U, V, iterations), strict=True):
            yield [data.test_ratio(x) for x in (alone, np.broadcast_to(shared, alone.shape), ours)]

    return _mean_curve(("local", "global", "personal"), curve, datasets, case)


def _descend(*, datasets: int, iterations: int, local: int = 1, **case: Any) -> Iterable[Row]:
    """Yield mean training ratio, test ratio and objective of Algorithm 1 by iteration (figure 2)."""

    def curve(data: Federation, U: Array, V: Array) -> Iterator[list[float]]:
        for ours, shared in algorithm_1(data, U, V, iterations, local=local):
            yield [data.train_ratio(ours), data.test_ratio(ours), data.objective(ours, shared)]

    return _mean_curve(("train", "test", "objective"), curve, datasets, case)


def _mean_curve(
    names: Sequence[str], curve: Callable[[Federation, Array, Array], Iterator[list[float]]], datasets: int, case: Row
) -> Iterable[Row]:
    """Yield, by iteration, the mean over drawn data sets of the numbers that ``curve`` yields from a random start."""
    federations = [Federation.draw(**case, seed=seed) for seed in range(datasets)]
    starts = ((data, data.random_start(i, len(data.rows)), data.random_start(i)) for i, data in enumerate(federations))
    for i, row in enumerate(np.mean([list(curve(*start)) for start in starts], axis=0), start=1):
        yield {"iteration": i, **dict(zip(names, map(float, row), strict=True))}


def means(rows: Sequence[Row]) -> Row:
    """Return the mean of each column over the data sets, without the column of seeds."""
    return {name: float(np.mean([row[name] for row in rows])) for name in rows[0] if name != "seed"}


# columns that a step's name gives behind the name of its figure
POINTS: dict[str, tuple[str, ...]] = {"local": ("local iterations",), "prior": ("prior",)}
POINTS |= dict.fromkeys(("1a", "1b", "2"), ("spread",)) | {"1c": ("spread", "rows"), "1d": ("spread", "parties")}


def _tables(results: dict[str, list[Row]]) -> dict[str, list[Row]]:
    """Collect the steps' rows into a table for each figure, with a row for each point of the figure."""
    tables: dict[str, list[Row]] = {}
    for name, rows in results.items():
        figure, *point = name.split("-")
        if figure == "mnist":
            tables.setdefault(figure, []).extend(rows)
        elif "trace" not in point:
            if figure in {"2", "local"}:
                numbers = {key: rows[-1][key] for key in ("train", "test", "objective")}
                numbers["iterations to 3 %"] = iterations_needed([row["objective"] for row in rows])
            else:
                numbers = means(rows)
            tables.setdefault(figure, []).append({**dict(zip(POINTS[figure], point, strict=True)), **numbers})
    return tables


MNIST_PARTIES, MNIST_ROWS, HELD_BACK = 50, 20, 100  # parties, their rows in a run, and their rows that no run sees


def _real_data(*, root: str) -> Iterator[Row]:
    """Yield, in one row, each method's share of the variance that is lost on MNIST rows held back from training."""
    drawn = _draw_parties(root, MNIST_PARTIES, MNIST_ROWS + HELD_BACK)
    training, new = [X[:MNIST_ROWS] for X in drawn], [X[MNIST_ROWS:] for X in drawn]
    mean, bases, pooled, mu = _fit_personal(training, 10)
    yield {
        "local": _lost_share(new, mean, [local_components(X, pooled) for X in np.array(training) - mean]),
        "global": _lost_share(new, mean, [pooled] * MNIST_PARTIES),
        "personal": _lost_share(new, mean, bases),
        "mu": mu,
    }


def _draw_parties(root: str, parties: int, count: int) -> list[Array]:
    """Draw distinct MNIST rows (count, d) of two classes, which go round the parties, for each; pixels 0 to 1."""
    source, rng = data_sets.load("mnist", root), np.random.default_rng(0)
    pools = [list(rng.permutation(np.flatnonzero(source.labels == label))) for label in range(10)]
    drawn = []
    for i in range(parties):
        chosen = [pools[(2 * i + j % 2) % 10].pop() for j in range(count)]
        drawn.append(source.rows(np.array(chosen)[rng.permutation(count)]) / 255)
    return drawn


def _fit_personal(parties: list[Array], components: int) -> tuple[Array, list[Array], Array, float]:
    """Run `personalised`; return the mean (d,), each party's components (d, k), the pooled components, and mu."""
    runs = {}
    for mu in ("held-out", "infinity"):
        options = {"method": "personalised", "n-components": components, "mu": mu, "clients": len(parties)}
        server = assemble(METHODS.run_config(options), parties, {"min-rows": 1})
        with limit_flower_log(logging.ERROR):
            server.fit(num_rounds=server.strategy.rounds, timeout=None)
        runs[mu] = server
    model, pooled = runs["held-out"].strategy.model, runs["infinity"].strategy.model
    selected_mu: float = model.log["measured"]["mu"]
    clients: Any = runs["held-out"].client_manager().all()
    records = [clients[str(i + 1)].context.state.array_records for i in range(len(parties))]
    pooled_components, _ = pooled.loadings()
    key = party.COMPONENTS_KEY
    bases = [record[key].to_numpy_ndarrays()[0][0] if key in record else pooled_components.T for record in records]
    return model.loadings()[1], bases, pooled_components.T, selected_mu


def _lost_share(parties: list[Array], mean: Array, components: list[Array]) -> float:
    """Return the share of the parties' sum of squares about ``mean`` that lies outside each party's components."""
    centred = [X - mean for X in parties]
    captured = sum(float(np.square(X @ U).sum()) for X, U in zip(centred, components, strict=True))
    return 1 - captured / sum(float(np.square(X).sum()) for X in centred)


# each method has its colour, mark and line in every figure
LOOKS: dict[str, dict[str, Any]] = {
    "local": {"color": COLOURS[3], "marker": "s", "linestyle": "--", "fillstyle": "none", "markersize": 9},
    "global": {"color": COLOURS[0], "marker": "^", "linestyle": "-."},
    "personal": {"color": COLOURS[2], "marker": "o"},
    "personal 2 mu": {"color": COLOURS[5], "marker": "v", "linestyle": ":"},
    "PerPCA": {"color": COLOURS[4], "marker": "x", "linestyle": ":"},
}


def _draw(tables: dict[str, list[Row]], results: dict[str, list[Row]], folder: Path) -> None:
    """Draw all figures of the paper as PNG."""
    _side_by_side(folder / "1a.png", select(results, "1a-trace-"), "iteration", "iterations", marker="")
    _side_by_side(folder / "1b.png", {"": tables["1b"]}, "spread", "spread of the parties, $\\sigma_U^2$", scale="log")
    _side_by_side(folder / "1c.png", _by_spread(tables["1c"]), "rows", "rows at each party, n", scale="log")
    _side_by_side(folder / "1d.png", _by_spread(tables["1d"]), "parties", "parties, m", scale="log")
    _training(folder / "2.png", select(results, "2-"))


def _by_spread(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Group the rows of a table by their column "spread", the variance of the parties about V."""
    return {f"{s}": [row for row in rows if row["spread"] == s] for s in dict.fromkeys(row["spread"] for row in rows)}


def _side_by_side(
    target: Path, panels: dict[str, list[Row]], x: str, label: str, *, scale: str = "linear", **look: str
) -> None:
    """Draw a panel for each spread of the parties, with a line for each method over the column ``x``."""
    labels = {"xlabel": label, "ylabel": "error / error of the true components", "xscale": scale}
    drawn = []
    for spread, rows in panels.items():
        lines = [Line.of(name, rows, x, name, {**style, **look}) for name, style in LOOKS.items() if name in rows[0]]
        drawn.append(Panel(lines, {"title": f"$\\sigma_U^2$ = {spread}" if spread else "", **labels}))
    plot(target, drawn)


def _training(target: Path, descents: dict[str, list[Row]]) -> None:
    """Draw training and test error by iteration, a line for each spread of the parties (figure 2)."""
    panels = []
    for kind in ("train", "test"):
        lines = [
            Line.of(f"$\\sigma_U^2$ = {spread}", rows, "iteration", kind, {"color": colour, "linestyle": style})
            for colour, style, (spread, rows) in zip(COLOURS, ("-", "--", "-."), descents.items(), strict=False)
        ]
        label = f"{kind} error / error of the true components"
        panels.append(Panel(lines, {"xlabel": "iterations of Algorithm 1", "ylabel": label}))
    plot(target, panels)


TITLES = {
    "1a": "Figure 1(a): convergence; here where it ends, 10 rows at each of 200 parties",
    "1b": "Figure 1(b): spread of the parties, 20 rows at each of 200",
    "1c": "Figure 1(c): rows at each of 100 parties",
    "1d": "Figure 1(d): number of parties, 10 rows each",
    "2": "Figure 2: Algorithm 1 from random starts, 20 rows at each of 50 parties",
    "local": "Algorithm 1 with several local iterations in a round, spread 0.04",
    "prior": "Parties drawn otherwise about V, spread 0.04, 20 rows at each of 100",
    "mnist": "MNIST: share of the variance lost on 100 rows that each of 50 parties held back; 2 classes, 20 rows each",
}


def _write(results: dict[str, list[Row]], folder: Path) -> dict[str, str]:
    """Write the figures and their tables into the folder, and return the report's texts by heading."""
    tables = _tables(results)
    sections = {}
    for name, rows in tables.items():
        write_table(folder / f"{name}.csv", rows, {})
        picture = "" if name in {"local", "prior", "mnist"} else f"\n\n![]({name}.png)"
        sections[TITLES[name]] = markdown(rows) + picture
    _draw(tables, results, folder)
    return sections


OPTIONS = {"datasets": 5, "shrink": 1, "mnist": ""}
PAPER = Paper("personalised", __doc__, "Personalised PCA (Ozkara et al. 2023)", OPTIONS, steps, _write)
