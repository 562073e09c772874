"""Cheung et al. 2022, VFedPCA and VFedAKPCA: its figures 6 to 12 and 14, and the exact methods beside them.

    python -m fedpca_flwr.simulations.papers vertical --output DIR [--tables DIR2] [--mnist DEST]

A quarter of an hour on one core; ``--shrink 5`` is a quick look. DIR gets a table for each step, plots and report.md.
Distances are the paper's own (equation 4, unaligned, to the leading vector of the authors' row-centred matrix); angles
are to the scores of the PCA of all columns, in degrees. DIR2 has the structured data sets as CSV files
of numbers with a head and without the label: College, Vehicle, PimaIndiansDiabetes, GlaucomaM, Ionosphere, Sonar, Musk
(R's packages mlbench, kernlab, TH.data and ISLR have them); breast-cancer and wine are always there. Columns are scaled
to 0 to 1, except sonar's, which have that scale. Images are digits, with ``--mnist`` also MNIST.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.preprocessing import minmax_scale

from fedpca_flwr.data import datasets
from fedpca_flwr.errors import ConfigError
from fedpca_flwr.figures.style import COLOURS
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.eigen import principal_angles
from fedpca_flwr.maths.rows import to_array
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.reference import pooled_pca
from fedpca_flwr.simulations.engines import run
from fedpca_flwr.simulations.papers.experiment import Line, Panel, Paper, Row, Step, figure, markdown, plot, select
from fedpca_flwr.simulations.papers.vertical_program import distances, graph_images, images, kernel_images
from fedpca_flwr.site.readers.files import read

PARTIES = (3, 5, 10)
ITERATIONS = (5, 10, 20)
SMALL = (2, 3, 5), 5, (3, 5, 10), 3
OTHER = PARTIES, 10, ITERATIONS, 5
MANY = (10, 50, 100), 100, (30, 50, 100), 50
STRUCTURED = {"College": SMALL, "Vehicle": SMALL}
STRUCTURED |= {"PimaIndiansDiabetes": ((3, 5, 8), 10, ITERATIONS, 5)}  # it has 8 columns
STRUCTURED |= dict.fromkeys(("Ionosphere", "GlaucomaM", "Sonar", "Musk"), OTHER)
"""Numbers of parties with the paper's local iterations, and of local iterations with its parties (figure 6)."""
BUNDLED = {"breast-cancer": OTHER, "wine": OTHER}
SIZES = ((1000, 200), (5000, 1000), (10_000, 2000), (20_000, 4000))
VARIANTS: dict[str, Row] = {"as published": {"variant": "faithful"}, "paper": {"variant": "paper"}, "ours": {}}
VARIANTS |= {"one period": {"periods": 1}, "warm start": {"warm_start": "previous"}}
VARIANTS |= {"weight scaling": {"weight_scaling": True}}
STARTS = 20
DIGIT = 3  # the images of a study are those of one person; here of one digit


def steps(tables: str, mnist: str, shrink: int = 1) -> list[Step]:
    """List the steps, a table each, of Cheung et al. 2022; ConfigError if ``tables`` has none of the files.

    Without ``mnist``, its steps are left out. Seeds, rows and columns of synthetic data are divided by ``shrink``.
    """
    seeds = max(1, 5 // shrink)
    plan: list[Step] = []
    files = {name: Path(tables, f"{name}.csv") for name in STRUCTURED} if tables else {}
    tables_found = {name: STRUCTURED[name] for name, file in files.items() if file.is_file()}
    if tables and not tables_found:
        raise ConfigError(f"--tables {tables} has none of the files: {', '.join(file.name for file in files.values())}")
    for name, sizes in {**tables_found, **BUNDLED}.items():
        table = {"data": name, "path": tables if name in tables_found else "", "seeds": seeds}
        plan += _vary(f"6-{{}}-{name}", table, sizes)
        plan.append(Step(f"starts-{name}", _starts, {**table, "seeds": STARTS // shrink}))
    for name in ("Musk", "GlaucomaM") if tables_found.keys() >= {"Musk", "GlaucomaM"} else BUNDLED:
        table = {"data": name, "path": tables if name in tables_found else "", "seeds": seeds}
        for p, option in itertools.product(PARTIES, ("warm", "scaled")):
            plan.append(Step(f"8-{option}-{name}-{p}", _curve, {**table, "parties": p, option: True}))
    name = "Sonar" if "Sonar" in tables_found else "breast-cancer"
    study = {"data": name, "path": tables if name in tables_found else ""}
    for split, p in itertools.product(("vertical", "horizontal"), PARTIES):
        case = {**study, "parties": p, "seeds": seeds, "split": split}
        plan.append(Step(f"9-{split}-{p}", _splits_by_period, case))
    plan.append(Step(f"angles-{name}", _angles, study))
    for pattern in ("single", "mixture"):
        for columns, rows in SIZES:
            size = {"data": pattern, "path": f"{columns // shrink} {rows // shrink}"}
            plan += _vary(f"7-{{}}-{pattern}-{columns}", {**size, "seeds": 1}, ((5, 10, 20), 10, (3, 5, 10), 3))
    wide = {"data": "mixture", "path": f"{2400 // shrink} {2000 // shrink}", "seeds": 1}
    plan += _vary("6-{}-as-wide-as-Swarm", wide, MANY)
    for data, path in [("digits", "")] + ([("mnist", mnist)] if mnist else []):
        for p in PARTIES:
            case = {"data": data, "path": path, "parties": p}
            for name, draw in (("images", images), ("12", kernel_images), ("14", graph_images)):
                plan.append(Step(f"{name}-{data}-{p}", partial(_by_pixel, draw), case))
    return plan


def _vary(name: str, case: Row, sizes: Sequence[Any]) -> list[Step]:
    """List the steps of curves by number of parties, and by number of local iterations (figures 6 and 7)."""
    many, fixed, iterations, parties = sizes
    points = [("clients", p, p, fixed) for p in many] + [("iterations", i, parties, i) for i in iterations]
    return [
        Step(f"{name.format(kind)}-{number}", _curve, {**case, "parties": p, "iterations": i})
        for kind, number, p, i in points
    ]


def matrix(name: str, path: str = "") -> Array:
    """Load (from a folder) or draw (from "columns rows") a data set as a matrix (n, m), scaled as in the paper."""
    if name in {"single", "mixture"}:
        columns, rows = map(int, path.split())
        return densities(name, columns, rows)
    if name in STRUCTURED:
        X: Array = to_array(read(f"{path}/{name}.csv").rows)
        return X if name == "Sonar" else np.asarray(minmax_scale(X))
    source = datasets.load(name, path or ".")
    if name in BUNDLED:
        return np.asarray(minmax_scale(source.all_rows()))
    chosen = np.flatnonzero(source.labels == DIGIT)[:180]
    X = np.asarray(source.rows(chosen), dtype=np.float64)
    return np.asarray(X / X.max())


def densities(pattern: str, columns: int, rows: int) -> Array:
    """Draw the authors' data (rows, columns): densities, at points within 3 sigma, of a Gaussian for each column."""
    rng = np.random.default_rng(0)
    mean, sigma = np.zeros(columns), np.ones(columns)
    if pattern == "mixture":
        mean, sigma = rng.uniform(0, columns, columns), rng.uniform(0, columns, columns)
    x = rng.uniform(mean - 3 * sigma, mean + 3 * sigma, (rows, columns))
    return np.asarray(np.exp(-((x - mean) ** 2) / (2 * sigma**2)) / (np.sqrt(2 * np.pi) * sigma))


def _curve(*, data: str, path: str, parties: int, seeds: int, **options: Any) -> Iterable[Row]:
    """Yield the authors' mean distance by period, with earlier vectors in the sum, and without (``lists``)."""
    X = matrix(data, path)
    for reset, lists in ((False, "as published"), (True, "reset")):
        yield from ({"lists": lists, **row} for row in _by_period(X, parties, seeds, reset=reset, **options))


def _starts(*, data: str, path: str, seeds: int) -> Iterable[Row]:
    """Yield mean, least and largest angle to the exact PCA over random start vectors, for three parties."""
    X = matrix(data, path)
    truth = pooled_pca(X, 1).transform(X)
    merged = _accuracy(_run("vertical", X, 3, n_components=1, solver="merge", rank=1), truth)["angle"]
    yield {"method": "merge, rank 1", "mean": merged, "least": merged, "most": merged}
    for name, options in VARIANTS.items():
        runs = (_run("vfedpca", X, 3, n_components=1, seed=seed, **options) for seed in range(seeds))
        ends = [_accuracy(model, truth)["angle"] for model in runs]
        yield {"method": name, "mean": float(np.mean(ends)), "least": min(ends), "most": max(ends)}


def _by_period(X: Array, parties: int, seeds: int, **options: Any) -> Iterable[Row]:
    """Yield the authors' distance after each communication period, mean over the seeds; the options of `distances`."""
    runs = [distances(X, parties, seed=seed, **options) for seed in range(seeds)]
    for period, distance in enumerate(np.mean(runs, axis=0)):
        yield {"period": period, "distance": float(distance)}


def _splits_by_period(*, data: str, path: str, parties: int, seeds: int, split: str) -> Iterable[Row]:
    """Yield the distance by period where parties hold different columns, or rows, of a matrix (figure 9)."""
    X = matrix(data, path) if split == "vertical" else matrix(data, path).T
    for signs in ("as they come", "aligned"):
        yield from ({"signs": signs, **row} for row in _by_period(X, parties, seeds, aligned=signs == "aligned"))


def _angles(*, data: str, path: str) -> Iterable[Row]:
    """Yield the angle in degrees of each method to the exact scores, and the bytes of the largest sender."""
    X = matrix(data, path)
    for k in (1, 5, 10):
        truth = pooled_pca(X, k).transform(X)
        ways: dict[str, Row] = {f"vfedpca, {periods} periods": {"periods": periods} for periods in (1, 2, 10)}
        ways["vfedpca, paper"] = {"variant": "paper", "periods": 10}
        ways |= {f"merge, rank {rank}": {"solver": "merge", "rank": rank} for rank in (k, 2 * k)}
        for p in PARTIES:
            for name, options in {**ways, "vertical": {}}.items():
                method = "vfedpca" if "periods" in options else "vertical"
                model = _run(method, X, p, n_components=k, seed=0, **options)
                yield {"method": name, "k": k, "parties": p, **_accuracy(model, truth)}


def _by_pixel(
    draw: Callable[[Array, int], dict[str, NDArray[Any]]], *, data: str, path: str, parties: int
) -> Iterable[Row]:
    """Yield a row for each pixel: its number, and its value in each picture (m,) that ``draw`` computes."""
    pictures = draw(matrix(data, path), parties)
    for pixel, values in enumerate(zip(*(picture.tolist() for picture in pictures.values()), strict=True)):
        yield {"pixel": pixel, **dict(zip(pictures, values, strict=True))}


def _run(method: str, X: Array, parties: int, **options: Any) -> PCAModel:
    """Run a method on columns of X that are dealt out to the parties in nearly equal numbers."""
    return run(method, np.array_split(X, parties, axis=1), **options)


def _accuracy(model: PCAModel, truth: Array) -> Row:
    """Return the largest angle in degrees to the exact scores, the rounds, and the bytes of the largest sender."""
    assert model.scores_ is not None
    angle = float(principal_angles(model.scores_, truth).max())
    return {"angle": angle, "rounds": model.rounds, "bytes up": max(model.bytes_up_by_party)}


# meaning of the number of a line, of figures whose lines are separate steps
CURVES = {"clients": "parties", "iterations": "local iterations"}
CURVES |= {"warm": "parties, warm start", "scaled": "parties, weight scaling"}


def _draw(results: dict[str, list[Row]], folder: Path) -> list[str]:
    """Draw all figures of the paper as PNG into the folder, and return their names."""
    names = []
    for name in dict.fromkeys(key.rpartition("-")[0] for key in results if key[:2] in {"6-", "7-", "8-"}):
        lines = {key.rpartition("-")[2]: rows for key, rows in results.items() if key.rpartition("-")[0] == name}
        drawn_lines = _solid_and_dotted(lines, "lists", CURVES[name.split("-")[1]], "lists reset")
        plot(folder / f"{name}.png", [Panel(drawn_lines, AXES)])
        names.append(name)
    _splits(folder / "9.png", results)
    names.append("9")
    for prefixes, draw in ((("images-",), _images), (("12-", "14-"), _grid)):
        for name in sorted(key for key in results if key.startswith(prefixes)):
            draw(folder / f"{name}.png", results[name])
            names.append(name)
    return names


def _solid_and_dotted(lines: dict[str, list[Row]], column: str, what: str, other: str) -> list[Line]:
    """Return lines of distance by period: solid for the first value of a column, dotted for the other."""
    curves = []
    for colour, marker, (number, rows) in zip(COLOURS, "os^", lines.items(), strict=False):
        first = rows[0][column]
        solid = [row for row in rows if row[column] == first]
        dotted = [row for row in rows if row[column] != first]
        curves.append(Line.of(f"{number} {what}", solid, "period", "distance", {"color": colour, "marker": marker}))
        curves.append(Line.of(f"{number}, {other}", dotted, "period", "distance", {"color": colour, "linestyle": ":"}))
    return curves


AXES = {"xlabel": "communication period (0: isolated)", "ylabel": "distance (equation 4)"}


def _splits(target: Path, results: dict[str, list[Row]]) -> None:
    """Draw distance by period: a panel for columns, and a panel for rows, split among the parties (figure 9)."""
    panels = []
    for split, what in (("vertical", "columns"), ("horizontal", "rows")):
        lines = _solid_and_dotted(select(results, f"9-{split}-"), "signs", "parties", "signs aligned")
        panels.append(Panel(lines, {"title": f"{split}: different {what} at each party", **AXES}))
    plot(target, panels, sharey=True)


def _grid(target: Path, rows: Sequence[Row]) -> None:
    """Draw images named 'row, column' in a grid, each with its correlation to the first of its row (figures 12, 14)."""
    names = [name.partition(", ") for name in rows[0] if name != "pixel"]
    down, across = (list(dict.fromkeys(parts)) for parts in ([n[0] for n in names], [n[2] for n in names]))
    side = int(np.sqrt(len(rows)))
    with figure(target, len(down), len(across), figsize=(2 * len(across) + 0.4, 2.3 * len(down))) as axes:
        for line, method in zip(axes, down, strict=True):
            first = np.array([row[f"{method}, {across[0]}"] for row in rows], float)
            for axis, what in zip(line, across, strict=True):
                image = np.array([row[f"{method}, {what}"] for row in rows], float)
                axis.imshow(image.reshape(side, side), cmap="gray")
                axis.set(xticks=[], yticks=[], xlabel=f"r = {np.corrcoef(first, image)[0, 1]:.3f}")
            line[0].set_ylabel(method)
        for axis, what in zip(axes[0], across, strict=True):
            axis.set_title(what, fontsize="medium")


def _images(target: Path, rows: Sequence[Row]) -> None:
    """Draw each method's image above the image of its clusters (figures 10 and 11)."""
    names = [name for name in rows[0] if name != "pixel" and not name.endswith(" cluster")]
    side = int(np.sqrt(len(rows)))
    with figure(target, 2, len(names), figsize=(1.8 * len(names), 3.9)) as axes:
        for column, name in enumerate(names):
            for axis, key in zip(axes[:, column], (name, f"{name} cluster"), strict=True):
                axis.imshow(np.array([row[key] for row in rows], float).reshape(side, side), cmap="gray")
                axis.set(xticks=[], yticks=[])
            axes[0, column].set_title(name, fontsize="small")


TITLES = {
    "starts": "Angle to the exact scores, over start vectors, of three parties",
    "angles": "Angle to the exact scores, and bytes sent by the party that sends most",
}


def _figures(results: dict[str, list[Row]], folder: Path) -> dict[str, str]:
    """Draw all figures, and return the report's texts by heading: tables of angles, then figures."""
    tables = {name: markdown(rows, ".2g") for name, rows in results.items() if name.split("-")[0] in TITLES}
    titled = {f"{TITLES[name.split('-')[0]]}: {name.partition('-')[2]}": text for name, text in tables.items()}
    return {**titled, **{f"Figure {name}": f"![]({name}.png)" for name in _draw(results, folder)}}


OPTIONS = {"tables": "", "mnist": "", "shrink": 1}
PAPER = Paper("vertical", __doc__, "Vertical federated PCA (Cheung et al. 2022)", OPTIONS, steps, _figures)
