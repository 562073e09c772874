"""The tables of the design notes, ours beside the published numbers.

    python -m simulations.benchmarks published --dataset mnist --data-root DEST --output FOLDER
    python -m simulations.benchmarks published --dataset images --data-root DEST/cifar10-jpeg --output FOLDER
    python -m simulations.benchmarks published --dataset mnist --data-root DEST --output FOLDER --table angles privacy

Each run is a line of `simulations.compare` in ``FOLDER/runs.jsonl``: what is there is not run again, and
``python -m fedpca_flwr report FOLDER`` shows it. 10 clients, 50 components, seed 42. Angles are to
``PCA(svd_solver="full")`` of the pooled rows, in degrees; ``images`` stands for CIFAR-10 (JPEG). The notes' partitions
were never published, so numbers on other partitions than IID compare in size only. The clips of dp-pca are those of
`simulations.benchmarks.privacy`.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedpca_flwr.errors import ConfigError, FedPCAError
from fedpca_flwr.figures.markdown import table
from fedpca_flwr.model.reference import pooled_pca, principal_angles
from fedpca_flwr.state.files import writable, written_whole

from .. import run
from ..comparing import compare
from ..records import Record, named
from . import published_numbers as note
from .setting import COMPONENTS, PARTITIONS, clients, data_parser

CLIPS = {"mnist": (1785, 3060), "digits": (32, 64)}
DRAWS = (1, 2, 3)
SKEWED = "Dirichlet 0.1"


class Place(NamedTuple):
    """Which data, and where the runs are kept."""

    dataset: str
    data_root: str
    output: str

    def runs(
        self,
        methods: Sequence[str],
        partition: str = SKEWED,
        *,
        number: int = 10,
        k: int = COMPONENTS,
        knn: bool = True,
    ) -> list[Record]:
        """A record of each method, from ``output`` where it is there."""
        how = PARTITIONS[partition]
        common: dict[str, Any] = {"datasets": [self.dataset], "data_root": self.data_root, "output": self.output}
        where: dict[str, Any] = {"partitions": [how["kind"]], "alphas": [how.get("alpha", 1.0)], "clients": [number]}
        records = compare(methods, **common, **where, components=k, knn=knn)
        for record in records:
            if "error" in record:
                raise ConfigError(f"{record['method']} on {self.dataset}, {partition}: {record['error']}")
        return records


def angles(place: Place) -> list[list[str]]:
    lines = [["partition", "", *note.METHODS]]
    known = note.ANGLES.get(place.dataset, {})
    for partition in PARTITIONS:
        records = place.runs(note.METHODS, partition)
        lines.append([partition, "ours, mean", *(f"{r['mean angle']:.2g}" for r in records)])
        lines.append(["", "ours, max", *(f"{r['max angle']:.2g}" for r in records)])
        cells = (known.get(partition, {}).get(method) for method in note.METHODS)
        lines.append(["", "published, mean", *(_number(cell) for cell in cells)])
    return lines


def accuracy(place: Place) -> list[list[str]]:
    lines = [["partition", "", "pooled", *note.METHODS]]
    known = note.ACCURACY.get(place.dataset, {})
    for partition in PARTITIONS:
        records = place.runs(note.METHODS, partition)
        ours = [records[0]["pooled knn accuracy"], *(r["knn accuracy"] for r in records)]
        lines.append([partition, "ours", *map(_share, ours)])
        if partition in known:
            cells = [known[partition].get(method) for method in ("pooled", *note.METHODS)]
            lines.append(["", "published, note 001", *map(_share, cells)])
    if place.dataset in note.ACCURACY_NOTE_000:
        share = _share(note.ACCURACY_NOTE_000[place.dataset])
        lines.append(["IID and Dirichlet 0.1", "published, note 000", share, share, "-", "-", "-", "-"])
    return lines


def communication(place: Place) -> list[list[str]]:
    heads = ["method", "rounds", "published", "MB up per client", "published", "MB down per client"]
    lines = [heads]
    for record in place.runs(note.METHODS):
        rounds, order = note.COMMUNICATION[record["method"]]
        if record["method"] in {"p-cov", "ap-cov"}:
            order = note.COVARIANCE_MB.get(place.dataset, order)
        bytes_ = [f"{record['MB up']:.3g}", order, f"{record['MB down']:.3g}"]
        lines.append([record["method"], str(record["rounds"]), rounds, *bytes_])
    return lines


def privacy(place: Place) -> list[list[str]]:
    lines = [["epsilon", "trust", "mean angle", "max", "published, mean", "k-NN(5)", "published"]]
    if place.dataset not in CLIPS:
        raise ConfigError(f"the table 'privacy' has no clips for {place.dataset}, only for: {', '.join(CLIPS)}")
    clip, centre = CLIPS[place.dataset]
    known = note.PRIVACY.get(place.dataset, {})
    for epsilon in (1.0, 5.0, 10.0):
        angle, share = known.get(epsilon, (None, None))
        for trust in ("local", "distributed honest-parties=10"):
            way = f"dp-pca release=two-stage epsilon={epsilon:g} clip={clip} centre-clip={centre} trust={trust}"
            records = place.runs([f"{way} noise-seed={draw}" for draw in DRAWS])
            ours = [_mean(records, key) for key in ("mean angle", "max angle", "knn accuracy")]
            cells = [f"{ours[0]:.1f}", f"{ours[1]:.0f}", _number(angle), _share(ours[2]), _share(share)]
            lines.append([f"{epsilon:g}", trust.split()[0], *cells])
    return lines


def compression(place: Place) -> list[list[str]]:
    lines = [["options", "times less", "published", "mean angle", "max", "published, mean", "k-NN(5)", "published"]]
    known = note.COMPRESSION.get(place.dataset, note.COMPRESSION["mnist"])
    published = place.dataset in note.COMPRESSION
    for line in known:
        (record,) = place.runs([f"compressed {line.options}"])
        times = f"{_of(record, 'compression_ratio'):.1f}"
        cells = [line.options, times, _number(line.times if published else None)]
        cells += [f"{record['mean angle']:.2g}", f"{record['max angle']:.2g}"]
        cells += [_number(line.angle if published else None), _share(record["knn accuracy"])]
        lines.append([*cells, _share(line.accuracy if published else None)])
    return lines


def adaptive(place: Place) -> list[list[str]]:
    heads = ["partition", "target", "score", "published", "chosen", "published", "mean angle", "max", "published, mean"]
    lines = [heads]
    known = note.ADAPTIVE.get(place.dataset, {})
    for partition in PARTITIONS:
        there = known.get(partition)
        for record in place.runs(["adaptive", "adaptive target=0.2"], partition, knn=False):
            score = f"{_of(record, 'heterogeneity_score'):.2f}"
            cells = [partition, f"{record['options'].get('target', 0):g}", score]
            cells += [_number(there and there.score), record["chosen"], there.method if there else "-"]
            cells += [f"{record['mean angle']:.2g}", f"{record['max angle']:.2g}", _number(there and there.angle)]
            lines.append(cells)
    return lines


def streaming(place: Place) -> list[list[str]]:
    target = Path(place.output) / f"streaming-{place.dataset}.json"
    if not target.exists():
        found = _streamed(clients(place.dataset, place.data_root))
        with written_whole(target) as stream:
            stream.write(json.dumps(found).encode())
    ours = json.loads(target.read_text())
    real = note.STREAMING_REAL.get(place.dataset)
    lines = [["operation", "mean angle", "max", "published, synthetic", f"published, {place.dataset}"]]
    for name, published in note.STREAMING.items():
        cells = [f"{ours[name]['mean']:.2g}", f"{ours[name]['max']:.2g}", _number(published), _number(real)]
        lines.append([name, *cells])
    return lines


def _streamed(parts: list[np.ndarray]) -> dict[str, dict[str, float]]:
    """Angles after each operation, by runs of the method ``streaming``, to the PCA of the rows that are then there."""
    most = parts[:8]
    updated = [np.vstack([most[0], parts[9]]), *most[1:]]
    steps: list[tuple[list[np.ndarray], dict[str, Any]]] = [
        (most, {}),
        (parts[:9], {}),
        (most, {"leave": "partition 8"}),
        (updated, {}),
    ]
    found = {}
    with tempfile.TemporaryDirectory() as state:
        for name, (here, options) in zip(note.STREAMING, steps, strict=True):
            common: dict[str, Any] = {"n_components": COMPONENTS, "engine": "loopback", "min_rows": 1}
            model = run("streaming", here, state=f"{state}/federation", **common, **options)
            found[name] = principal_angles(model, pooled_pca(np.vstack(here), COMPONENTS))._asdict()
    return found


def scalability(place: Place) -> list[list[str]]:
    methods = ("p-cov", "qr-pca", "sub-it")
    lines = [["clients", *(f"{m}: mean, max angle" for m in methods), "p-cov, published", "p-cov: MB up per client"]]
    known = note.SCALABILITY.get(place.dataset, {})
    for number in (5, 10, 20, 50):
        records = place.runs(methods, number=number, k=20, knn=False)
        cells = [f"{r['mean angle']:.1e}, {r['max angle']:.1e}" for r in records]
        lines.append([str(number), *cells, _number(known.get(number)), f"{records[0]['MB up']:.3g}"])
    return lines


TABLES: dict[str, Callable[[Place], list[list[str]]]] = {
    table.__name__: table
    for table in (angles, accuracy, communication, privacy, compression, adaptive, streaming, scalability)
}
PUBLISHED = {"mnist": list(TABLES), "images": ["angles", "accuracy", "communication", "compression"]}


def _of(record: Record, name: str) -> float:
    """A number that the run measured; `ConfigError` for a run of a version that wrote texts."""
    if name not in record["measured"]:
        raise ConfigError(f"--output has a run of '{named(record)}' by an older version; name a new folder")
    return float(record["measured"][name])


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"


def _share(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:.2%}"


def _mean(records: Sequence[Record], key: str) -> float:
    values = [record[key] for record in records]
    return math.nan if None in values else float(np.mean(values))


def main(arguments: Sequence[str]) -> int:
    options = data_parser(__doc__)
    options.add_argument("--output", required=True, help="a folder for the runs, which go on where they were cut")
    options.add_argument("--table", nargs="+", choices=list(TABLES), help="all that the notes have, if not given")
    args = options.parse_args(arguments)
    place = Place(args.dataset, args.data_root, args.output)
    try:
        writable(Path(args.output))
        for name in args.table or PUBLISHED.get(args.dataset, list(TABLES)):
            heads, *rows = TABLES[name](place)
            print(f"\n{name}, {args.dataset}\n\n{table(heads, rows)}", flush=True)
    except FedPCAError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    return 0
