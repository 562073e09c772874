"""The two design notes (000: pooled covariances; 001: a comparison of methods): their tables, overlays and grids.

    python -m fedpca_flwr.simulations.papers notes --output DIR [--mnist DEST] [--cifar DEST]

MNIST takes half an hour on one core, CIFAR-10 (a folder of images: DEST/train and DEST/test) as long; digits, which the
notes do not have, a minute. 10 clients and 50 components, as note 001 has them; "five" has note 000's 5 clients. Angles
are in degrees, to ``PCA(svd_solver="full")`` of the pooled rows; the notes have their mean only, and their partitions
were never published.
"""

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedpca_flwr.errors import ConfigError
from fedpca_flwr.figures.style import COLOURS
from fedpca_flwr.model.reference import pooled_pca, principal_angles
from fedpca_flwr.simulations.benchmarks.harness import COMPONENTS, PARTITIONS, clients
from fedpca_flwr.simulations.comparing import compare
from fedpca_flwr.simulations.engines import run
from fedpca_flwr.simulations.measuring import pooled_reference
from fedpca_flwr.simulations.papers.experiment import Paper, Row, Step, figure, markdown
from fedpca_flwr.simulations.records import method_text

METHODS = ["p-cov", "sub-it", "ap-stack", "qr-pca", "ap-cov"]
VARIANTS = [f"{name} variant=paper" for name in ("sub-it", "ap-stack", "qr-pca")] + ["ap-cov party-weights=none"]
DRAWN = ["p-cov", "ap-cov", "ap-stack"]
CODECS = [f"codec=quantise bits={bits}" for bits in (16, 8)]
CODECS += [f"codec=low-rank rank={rank}" for rank in (100, 200)] + ["codec=sketch rank=100"]
PRIVATE = {"local": "trust=local", "joint": "clip=5.0 release=joint", "paper": "variant=paper"}
ROWS = 300  # rows of a panel


def steps(mnist: str = "", cifar: str = "") -> list[Step]:
    """List the steps that reproduce the two design notes, on digits, and on MNIST and CIFAR-10 if in given folders."""
    plan: list[Step] = []
    for name, root in {"digits": ".", "mnist": mnist, "images": cifar}.items():
        if not root:
            continue
        place: Row = {"dataset": name, "data_root": root if name == "digits" else str(Path(root).resolve())}
        cases = {f"{name}-{part.replace(' ', '-')}": {**place, "partition": part} for part in PARTITIONS}
        for kind, case in cases.items():
            plan.append(Step(f"methods-{kind}", _compare, {**case, "methods": METHODS}))
            plan.append(Step(f"paper-{kind}", _compare, {**case, "methods": VARIANTS, "knn": False}))
        for part in ("IID", "Dirichlet-0.1"):
            kind, case = f"{name}-{part}", cases[f"{name}-{part}"]
            plan.append(Step(f"five-{kind}", _compare, {**case, "methods": ["p-cov"], "clients": [5]}))
            plan.append(Step(f"overlay-{kind}", _overlay, case))
        skewed = cases[f"{name}-Dirichlet-0.1"]
        plan.append(Step(f"compression-{name}", _compare, {**skewed, "methods": [f"compressed {c}" for c in CODECS]}))
        if name == "images":  # the notes have no more of CIFAR-10
            continue
        few = {**skewed, "n_components": 20, "clients": [5, 10, 20, 50], "knn": False}
        plan.append(Step(f"scalability-{name}", _compare, {**few, "methods": ["p-cov"]}))
        for kind, case in cases.items():
            plan.append(Step(f"adaptive-{kind}", _compare, {**case, "methods": ["adaptive"], "knn": False}))
            plan.append(Step(f"rule-{kind}", _choose, case))
        plan.append(Step(f"streaming-{name}", _stream, place))
        for epsilon in (1, 5, 10):
            for kind, options in PRIVATE.items():
                methods = [f"dp-pca epsilon={epsilon} {options} noise-seed={draw}" for draw in (1, 2, 3)]
                case = skewed if kind == "local" else {**skewed, "knn": False}
                plan.append(Step(f"privacy-{name}-{epsilon}-{kind}", _compare, {**case, "methods": methods}))
    return plan


def _compare(*, dataset: str, partition: str, methods: Sequence[str], **further: Any) -> Iterable[Row]:
    """Yield angles in degrees, k-NN accuracy and costs of each method on a partition; ConfigError if a run fails."""
    options = PARTITIONS[partition]
    spread = {"partitions": [options["kind"]], "alphas": [options.get("alpha", 1.0)]}
    settings = {"datasets": [dataset], "n_components": COMPONENTS, "knn": True, **spread, **further}
    for record in compare(methods=methods, **settings):
        if "error" in record:
            raise ConfigError(f"{record['method']} on {dataset}, {partition}: {record['error']}")
        yield {
            "method": method_text(record),
            "clients": record["clients"],
            **{key: record[f"{key} angle"] for key in ("mean", "max")},
            "k-NN": record["knn accuracy"],
            "pooled k-NN": record["pooled knn accuracy"],
            **{key: record[key] for key in ("rounds", "MB up", "MB down", "chosen")},
            "times less": record["measured"].get("compression_ratio"),
            "score": record["measured"].get("heterogeneity_score"),
        }


def _choose(*, dataset: str, data_root: str, partition: str) -> Iterable[Row]:
    """Yield note 001's score of divergence of a partition, and the method that its rule chooses."""
    parts = clients(dataset, data_root, **PARTITIONS[partition])
    model = run("adaptive", parts, n_components=COMPONENTS, min_rows=1, variant="paper")
    yield {"score": model.log["measured"]["divergence_score"], "chosen": model.log["chosen"]["method"]}


def _stream(*, dataset: str, data_root: str) -> Iterable[Row]:
    """Yield angles in degrees of ``streaming``, after clients join, leave or change, to the PCA of the present rows."""
    parts = clients(dataset, data_root)
    initial = parts[:8]
    updated = [np.vstack([initial[0], parts[9]]), *initial[1:]]
    operations: dict[str, tuple[list[Any], Row]] = {
        "initial fit": (initial, {}),
        "add a client": (parts[:9], {}),
        "remove a client": (initial, {"leave": "partition 8"}),
        "update a client": (updated, {}),
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, (present, options) in operations.items():
            state = f"{folder}/federation"
            model = run("streaming", present, state=state, n_components=COMPONENTS, min_rows=1, **options)
            yield {"operation": name, **principal_angles(model, pooled_pca(np.vstack(present), COMPONENTS))._asdict()}


def _overlay(*, dataset: str, data_root: str, partition: str) -> Iterable[Row]:
    """Yield the first two scores of sample rows by each method, signed as those of the pooled PCA, and its angle."""
    parts = clients(dataset, data_root, **PARTITIONS[partition])
    source, pooled = pooled_reference(dataset, data_root, COMPONENTS, center=True, scale=False)
    row_numbers = np.linspace(0, len(source.labels) - 1, ROWS).astype(int)
    pooled_scores = pooled.transform(source.rows(row_numbers))[:, :2]
    for method in DRAWN:
        model = run(method, parts, n_components=COMPONENTS, min_rows=1)
        angle = principal_angles(model, pooled).mean
        scores = model.transform(source.rows(row_numbers))[:, :2]
        scores = scores * np.where((scores * pooled_scores).sum(axis=0) < 0, -1.0, 1.0)  # a sign means nothing
        for label, (x, y), (our_x, our_y) in zip(source.labels[row_numbers], pooled_scores, scores, strict=True):
            row = {"x": float(our_x), "y": float(our_y), "pooled x": float(x), "pooled y": float(y)}
            yield {"method": method, "mean": angle, "label": int(label), **row}


def _draw(target: Path, rows: Sequence[Row], methods: Sequence[str]) -> None:
    """Draw a panel for each method into a PNG file: circles are the pooled PCA's scores, crosses the method's."""
    with figure(target, 1, len(methods), figsize=(4.6 * len(methods), 4.2), sharey=True) as axes:
        for axis, method in zip(axes[0], methods, strict=True):
            selected = [row for row in rows if row["method"] == method]
            colours = [COLOURS[row["label"] % len(COLOURS)] for row in selected]
            pooled = {"s": 30, "facecolors": "none", "edgecolors": colours, "label": "pooled"}
            axis.scatter([row["pooled x"] for row in selected], [row["pooled y"] for row in selected], **pooled)
            points = {"s": 14, "marker": "x", "linewidths": 0.8, "color": colours, "label": method}
            axis.scatter([row["x"] for row in selected], [row["y"] for row in selected], **points)
            axis.set(title=f"{method}: {selected[0]['mean']:.2g} degrees", xlabel="first component")
            axis.legend(fontsize="small")
        axes[0][0].set_ylabel("second component")


def _figures(results: Mapping[str, list[Row]], folder: Path) -> dict[str, str]:
    """Draw the overlays into the folder, and return the report's texts by heading: a table for each other step."""
    sections, angles = {}, {}
    for name, rows in results.items():
        kind = name.removeprefix("overlay-")
        if kind == name:
            sections[name] = markdown([{k: v for k, v in row.items() if v != ""} for row in rows], ".3g")
            continue
        _draw(folder / f"{name}.png", rows, ["p-cov"])
        _draw(folder / f"grid-{kind}.png", rows, DRAWN)
        angles[kind] = {method: next(row["mean"] for row in rows if row["method"] == method) for method in DRAWN}
    table = markdown([{"data and partition": kind, **line} for kind, line in angles.items()], ".2g")
    drawn = "\n\n".join(f"{kind}: ![](overlay-{kind}.png) ![](grid-{kind}.png)" for kind in angles)
    return {"Overlays and grids: mean angles": f"{table}\n\n{drawn}", **sections}


TITLE = "The design notes: pooled covariances, and a comparison of methods"
PAPER = Paper("notes", __doc__, TITLE, {"mnist": "", "cifar": ""}, steps, _figures)
