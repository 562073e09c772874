"""The tables of the design notes, ours beside the published numbers, and beside their algorithms as written."""

from __future__ import annotations

import json
import math
import tempfile
from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.decomposition import PCA

from fedpca_flwr.errors import ConfigError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.eigen import principal_angles as angles_between
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.reference import pooled_pca, principal_angles
from fedpca_flwr.state.files import writable, written_whole

from .. import run
from ..comparing import compare
from ..records import Record, named
from . import as_written
from . import published_numbers as note
from .as_written import Result
from .harness import COMPONENTS, DATA, PARTITIONS, Lines, Rows, alternated, benchmark, clients, options_text, ratio

CLIPS = {"mnist": (1785, 3060), "digits": (32, 64)}
DRAWS = (1, 2, 3)


class Place(NamedTuple):
    """Which data, and where the runs are kept."""

    dataset: str
    data_root: str
    output: str

    def runs(self, methods: Sequence[str], partition: str = "Dirichlet 0.1", **more: Any) -> list[Record]:
        """A record of each method, from ``output`` where it is there; as `compare` is told, and with its defaults."""
        how, more = PARTITIONS[partition], {"components": COMPONENTS, "knn": True, **more}
        common: dict[str, Any] = {"datasets": [self.dataset], "data_root": self.data_root, "output": self.output}
        common |= {"partitions": [how["kind"]], "alphas": [how.get("alpha", 1.0)]}
        records = compare(methods=methods, **common, **more)
        for record in records:
            if "error" in record:
                raise ConfigError(f"{record['method']} on {self.dataset}, {partition}: {record['error']}")
        return records


def angles(place: Place) -> Lines:
    known = note.ANGLES.get(place.dataset, {})
    yield ["partition", "", *note.METHODS]
    for partition in PARTITIONS:
        records = place.runs(note.METHODS, partition)
        yield [partition, "ours, mean", *(f"{r['mean angle']:.2g}" for r in records)]
        yield ["", "ours, max", *(f"{r['max angle']:.2g}" for r in records)]
        cells = (known.get(partition, {}).get(method) for method in note.METHODS)
        yield ["", "published, mean", *(_number(cell) for cell in cells)]


def accuracy(place: Place) -> Lines:
    known = note.ACCURACY.get(place.dataset, {})
    yield ["partition", "", "pooled", *note.METHODS]
    for partition in PARTITIONS:
        records = place.runs(note.METHODS, partition)
        ours = [records[0]["pooled knn accuracy"], *(r["knn accuracy"] for r in records)]
        yield [partition, "ours", *map(_share, ours)]
        if partition in known:
            cells = [known[partition].get(method) for method in ("pooled", *note.METHODS)]
            yield ["", "published, note 001", *map(_share, cells)]
    if place.dataset in note.ACCURACY_NOTE_000:
        share = _share(note.ACCURACY_NOTE_000[place.dataset])
        yield ["IID and Dirichlet 0.1", "published, note 000", share, share, "-", "-", "-", "-"]


def communication(place: Place) -> Lines:
    yield ["method", "rounds", "published", "MB up per client", "published", "MB down per client"]
    for record in place.runs(note.METHODS):
        rounds, order = note.COMMUNICATION[record["method"]]
        if record["method"] in {"p-cov", "ap-cov"}:
            order = note.COVARIANCE_MB.get(place.dataset, order)
        bytes_ = [f"{record['MB up']:.3g}", order, f"{record['MB down']:.3g}"]
        yield [record["method"], str(record["rounds"]), rounds, *bytes_]


def privacy(place: Place) -> Lines:
    yield ["epsilon", "trust", "mean angle", "max", "published, mean", "k-NN(5)", "published"]
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
            yield [f"{epsilon:g}", trust.split()[0], *cells]


def compression(place: Place) -> Lines:
    yield ["options", "times less", "published", "mean angle", "max", "published, mean", "k-NN(5)", "published"]
    known = note.COMPRESSION.get(place.dataset, note.COMPRESSION["mnist"])
    published = place.dataset in note.COMPRESSION
    for line in known:
        (record,) = place.runs([f"compressed {line.options}"])
        times = f"{_of(record, 'compression_ratio'):.1f}"
        cells = [line.options, times, _number(line.times if published else None)]
        cells += [f"{record['mean angle']:.2g}", f"{record['max angle']:.2g}"]
        cells += [_number(line.angle if published else None), _share(record["knn accuracy"])]
        yield [*cells, _share(line.accuracy if published else None)]


def adaptive(place: Place) -> Lines:
    heads = "partition", "target", "score", "published", "chosen", "published"
    yield *heads, "mean angle", "max", "published, mean"
    known = note.ADAPTIVE.get(place.dataset, {})
    for partition in PARTITIONS:
        there = known.get(partition)
        for record in place.runs(["adaptive", "adaptive target=0.2"], partition, knn=False):
            score = f"{_of(record, 'heterogeneity_score'):.2f}"
            cells = [partition, f"{record['options'].get('target', 0):g}", score]
            cells += [_number(there and there.score), record["chosen"], there.method if there else "-"]
            cells += [f"{record['mean angle']:.2g}", f"{record['max angle']:.2g}", _number(there and there.angle)]
            yield cells


def streaming(place: Place) -> Lines:
    target = Path(place.output) / f"streaming-{place.dataset}.json"
    if not target.exists():
        found = _streamed(clients(place.dataset, place.data_root))
        with written_whole(target) as stream:
            stream.write(json.dumps(found).encode())
    ours = json.loads(target.read_text())
    real = note.STREAMING_REAL.get(place.dataset)
    yield ["operation", "mean angle", "max", "published, synthetic", f"published, {place.dataset}"]
    for name, published in note.STREAMING.items():
        cells = [f"{ours[name]['mean']:.2g}", f"{ours[name]['max']:.2g}", _number(published), _number(real)]
        yield [name, *cells]


def _streamed(parts: list[Rows]) -> dict[str, dict[str, float]]:
    """Angles after each operation, by runs of the method ``streaming``, to the PCA of the rows that are then there."""
    most = parts[:8]
    updated = [np.vstack([most[0], parts[9]]), *most[1:]]
    leaves: dict[str, Any] = {"leave": "partition 8"}
    steps: list[tuple[list[Rows], dict[str, Any]]] = [(most, {}), (parts[:9], {}), (most, leaves), (updated, {})]
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, (here, options) in zip(note.STREAMING, steps, strict=True):
            state = f"{folder}/federation"
            model = run("streaming", here, state=state, n_components=COMPONENTS, min_rows=1, **options)
            found[name] = principal_angles(model, pooled_pca(np.vstack(here), COMPONENTS))._asdict()
    return found


def scalability(place: Place) -> Lines:
    methods = ("p-cov", "qr-pca", "sub-it")
    yield ["clients", *(f"{m}: mean, max angle" for m in methods), "p-cov, published", "p-cov: MB up per client"]
    known = note.SCALABILITY.get(place.dataset, {})
    for number in (5, 10, 20, 50):
        records = place.runs(methods, clients=[number], components=20, knn=False)
        cells = [f"{r['mean angle']:.1e}, {r['max angle']:.1e}" for r in records]
        yield [str(number), *cells, _number(known.get(number)), f"{records[0]['MB up']:.3g}"]


TABLES: dict[str, Callable[[Place], Lines]] = {
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


@benchmark(**DATA, output={"required": True}, table={"nargs": "+", "choices": list(TABLES)})
def published(args: Namespace) -> Lines:
    """The tables of the design notes, ours beside the published numbers; all that the notes have, if none is named.

        python -m simulations.benchmarks published --dataset mnist --data-root DEST --output FOLDER
        python -m simulations.benchmarks published --dataset images --data-root DEST/cifar10-jpeg --output FOLDER
        python -m simulations.benchmarks published --dataset mnist --data-root DEST --output FOLDER --table angles

    Each run is a line of `simulations.compare` in ``FOLDER/runs.jsonl``: what is there is not run again, and
    ``python -m fedpca_flwr report FOLDER`` shows it. 10 clients, 50 components, seed 42. Angles are to
    ``PCA(svd_solver="full")`` of the pooled rows, in degrees; ``images`` stands for CIFAR-10 (JPEG). The notes'
    partitions were never published, so numbers on other partitions than IID compare in size only. The clips of dp-pca
    are those of `privacy`.
    """
    place = Place(args.dataset, args.data_root, args.output)
    writable(Path(args.output))
    for name in args.table or PUBLISHED.get(args.dataset, list(TABLES)):
        yield f"\n{name}, {args.dataset}\n"
        yield from TABLES[name](place)


class Pair(NamedTuple):
    """An algorithm as written, and what answers to it here."""

    written: Callable[..., Result]
    method: str
    options: dict[str, Any]

    @property
    def title(self) -> str:
        return f"{self.method} {options_text(self.options)}".rstrip()


def pairs(dataset: str) -> list[Pair]:
    clip, centre = CLIPS.get(dataset, (None, None))
    private = {"release": "two-stage", "epsilon": 1.0, "clip": clip, "centre_clip": centre, "noise_seed": 1}
    return [
        Pair(as_written.p_cov, "p-cov", {}),
        Pair(as_written.sub_it, "sub-it", {}),
        Pair(as_written.qr_pca, "qr-pca", {}),
        Pair(as_written.qr_pca, "qr-pca", {"rank": 2 * COMPONENTS}),
        Pair(as_written.ap_stack, "ap-stack", {}),
        Pair(as_written.ap_cov, "ap-cov", {}),
        Pair(partial(as_written.quantised, bits=16), "compressed", {"codec": "quantise", "bits": 16}),
        Pair(partial(as_written.quantised, bits=8), "compressed", {"codec": "quantise", "bits": 8}),
        Pair(partial(as_written.low_rank, rank=100), "compressed", {"codec": "low-rank", "rank": 100}),
        *([Pair(partial(as_written.dp_pca, epsilon=1.0), "dp-pca", private)] if clip else []),
    ]


@benchmark(**DATA, repeats=3, blas_threads=1)
def side_by_side(args: Namespace) -> Lines:
    """Ours, the published algorithms as written, and scikit-learn on the pooled rows: in one run, on one partition.

    10 clients, Dirichlet 0.1, 50 components, one BLAS thread. Angles (largest / mean, degrees) and eigenvalues (the
    largest relative error) are to ``PCA(svd_solver="full")`` of the pool. Rounds are those in which clients send, MB
    those sent by a client. Times are multiples of ``PCA(svd_solver="covariance_eigh").fit_transform`` of the pool,
    measured in turn, the median of the repetitions. Ours have all messages, checks and the projection of every row;
    those as written have none.
    """
    parts = clients(args.dataset, args.data_root)
    truth = pooled_pca(np.vstack(parts), COMPONENTS)
    whats = ("angle", "eigenvalues", "rounds", "MB up", "time")
    yield "method", *(head for what in whats for head in (f"{what}: as written", "ours"))
    for pair in pairs(args.dataset):
        yield both(pair, parts, truth, args.repeats)


def both(pair: Pair, parts: list[Rows], truth: PCAModel, repeats: int) -> list[str]:
    """One method's cells."""
    found: dict[str, Any] = {}

    def theirs() -> None:
        found["written"] = pair.written(parts, COMPONENTS)

    def ours() -> None:
        found["ours"] = run(pair.method, parts, n_components=COMPONENTS, min_rows=1, **pair.options)

    pool = np.vstack(parts)
    pca = PCA(COMPONENTS, svd_solver="covariance_eigh")
    times = alternated([theirs, ours, lambda: pca.fit_transform(pool)], repeats)
    written, model = found["written"], found["ours"]
    scale = pool.shape[0] / (pool.shape[0] - 1)  # the notes divide by N
    cells = [
        (_angle(written.components, truth), _angle(model.loadings()[0], truth)),
        (_error(written.variances * scale, truth), _error(model.explained_variance_, truth)),
        (str(written.rounds), str(model.rounds)),
        (f"{written.up / 1e6:.3g}", f"{model.bytes_up / len(parts) / 1e6:.3g}"),
        (f"{ratio(times, 0, 2):.2g}", f"{ratio(times, 1, 2):.2g}"),
    ]
    return [pair.title, *(cell for two in cells for cell in two)]


def _angle(components: Array, truth: PCAModel) -> str:
    degrees = angles_between(components.T, truth.loadings()[0].T)
    return f"{degrees.max():.2g} / {degrees.mean():.2g}"


def _error(variances: Array, truth: PCAModel) -> str:
    return f"{np.abs(variances / truth.explained_variance_ - 1).max():.1g}"
