"""One run of a comparison: the parties that its method takes, and what the model is held against."""

import hashlib
import platform
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.data import datasets
from fedpca_flwr.data.partition import split, split_columns
from fedpca_flwr.errors import ConfigError
from fedpca_flwr.maths.eigen import principal_angles as angles_between
from fedpca_flwr.model.loadings import Loadings
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.reference import Angles, captured_variance, knn_accuracy, pooled_pca, principal_angles
from fedpca_flwr.simulations import sources
from fedpca_flwr.simulations.engines import run
from fedpca_flwr.simulations.records import AS_GIVEN, Record, card_of, identity, named, rows_taken

MOST_ROWS = 5000
"""Of more rows the kernel PCA of the pool, the reference of kernel methods, takes too much memory."""

KERNELS = {"rbf": "rbf", "sigmoid": "sigmoid", "polynomial": "poly", "linear": "linear"}
"""Our names of kernels, and scikit-learn's."""


def measured(one: Record, folder: Path | None) -> Record:
    """Run a method, and measure its model against the pooled rows; with a folder, keep the model there."""
    pool = pool_of(one)
    source, _ = truth(*pool)
    rows = source.all_rows()
    parties = parties_of(one, source)
    common = {"n_components": one["components"], "engine": one["engine"], "seed": one["seed"], "progress": False}
    common |= {"secure_aggregation": one["bound"] > 0, "bound": one["bound"]}
    common |= {"min_rows": 1, "may_show": "inner products"}  # sites that allow whatever a method shows
    with _extra_options(one, parties, common) as extra:
        started = time.monotonic()
        model = run(named(one), sources.by_party(one["dataset"], parties), **common, **extra)
        seconds = time.monotonic() - started
        own = extra.get("loadings") if model.scores_ is None else None
        angles, captured = _judged(one, model, rows, parties, own)
    claimed = float(model.explained_variance_ratio_.sum())  # NaN where the model knows of noise alone
    name = f"models/{hashlib.sha256(identity(one).encode()).hexdigest()[:16]}.npz" if folder else None
    if folder and name:
        model.save(folder / name)
    return {
        "model": name,
        "max angle": angles and angles.max,
        "mean angle": angles and angles.mean,
        "captured variance": captured,
        "explained variance": None if np.isnan(claimed) else claimed,
        "rounds": model.rounds,
        "MB up": float(np.mean(model.bytes_up_by_party) / 1e6),
        "MB down": float(np.mean(down_by_party(model)) / 1e6),
        "seconds": round(seconds, 3),
        "knn accuracy": _accuracy(model, source) if one["knn"] else None,
        "pooled knn accuracy": _pooled_accuracy(*pool) if one["knn"] else None,
        "exact": model.log["exact"],
        "notes": model.log["notes"],
        "measured": model.log["measured"],
        "chosen": model.log.get("chosen", {}).get("method"),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {"python": platform.python_version(), **{n: version(n) for n in ("fedpca-flwr", "flwr", "numpy")}},
    }


def down_by_party(model: PCAModel) -> NDArray[np.int64]:
    """Bytes that each party received in the rounds of the fit, without the last one."""
    down = [entry["down"] for entry in model.log["rounds"] if entry["phase"] != "project"]
    return np.asarray(np.sum(down, axis=0))


def pool_of(one: Record) -> tuple[str, str, int, bool, bool]:
    """What the reference of a run depends on."""
    return one["dataset"], one["data root"], one["components"], *rows_taken(one)


def parties_of(one: Record, source: datasets.Dataset) -> list[NDArray[Any]]:
    """Rows by the setting's partition, or for a method of columns all rows of consecutive columns."""
    rows = source.all_rows()
    if card_of(one["method"]).split == "columns":
        return [rows[:, part] for part in split_columns(rows.shape[1], one["clients"], "even")]
    if one["partition"] == AS_GIVEN:
        return [rows[source.labels == party] for party in range(one["clients"])]
    extra = {} if one["alpha"] is None else {"alpha": one["alpha"]}
    parts = split(source.labels, one["clients"], kind=one["partition"], seed=one["seed"], **extra)
    return [rows[part] for part in parts]


@contextmanager
def _extra_options(one: Record, parties: Sequence[NDArray[Any]], common: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A new federation that all clients join; files for components that are each client's own, or are of the same rows
    by the method that goes before."""
    card = card_of(one["method"])
    with TemporaryDirectory(prefix="fedpca-compare-") as folder:
        files = [f"{folder}/{party}.npz" for party in range(len(parties))]
        if card.loadings_source:
            run(card.loadings_source, parties, **common, loadings=files)
        if "state" in card.examples[0] and "state" not in one["options"]:
            yield {"state": f"{folder}/state"}
        elif card.loadings_source or card.local_components == "personal":
            yield {"loadings": files}
        else:
            yield {}


def _judged(
    one: Record, model: PCAModel, rows: NDArray[Any], parties: Sequence[NDArray[Any]], own: list[str] | None
) -> tuple[Angles | None, float | None]:
    """Angles to the PCA of the pool, and the share of its variance that is held; None where there is no such thing."""
    _, reference = truth(*pool_of(one))
    if own:  # each client's components are judged by its own rows, and need not be the pool's
        return None, _captured_by_each(reference, parties, own)
    if "kernel" in card_of(one["method"]).options.model_fields:
        return _angles_in_feature_space(one, model, rows), None
    if model.adjustment_ is not None:  # the pool's components are those of rows from which nothing was taken out
        return None, None
    captured = captured_variance(model, reference, rows)
    if model.scores_ is not None:  # the loadings lie at the parties
        return _angles_of_scores(model, reference.transform(rows)), captured
    return principal_angles(model, reference), captured


def _captured_by_each(reference: PCAModel, parties: Sequence[NDArray[Any]], own: Sequence[str]) -> float:
    """Share of the variance of all rows, about the pool's mean, that each client's own components hold of its rows."""
    held = total = 0.0
    for X, path in zip(parties, own, strict=True):
        centred = reference.centred(X)
        scores = centred @ Loadings.load(path).components.T
        held, total = held + float(np.vdot(scores, scores)), total + float(np.vdot(centred, centred))
    return held / total if total else 0.0


def _angles_in_feature_space(one: Record, model: PCAModel, rows: NDArray[Any]) -> Angles | None:
    """Angles between scores and those of the kernel PCA of the pooled rows, by the same kernel."""
    from sklearn.decomposition import KernelPCA

    if len(rows) > MOST_ROWS:
        return None
    fields = card_of(one["method"]).options.model_fields
    kernel, gamma, coef0, degree, center = (
        one["options"].get(key, fields[key].default) for key in ("kernel", "gamma", "coef0", "degree", "center")
    )
    X = np.asarray(rows, dtype=np.float64)
    X = X - X.mean(axis=0) if center else X
    gamma = gamma or 1 / (X.shape[1] * X.var())
    pca = KernelPCA(one["components"], kernel=KERNELS[kernel], gamma=gamma, coef0=coef0, degree=degree)
    return _angles_of_scores(model, pca.fit_transform(X))


def _angles_of_scores(model: PCAModel, scores: NDArray[Any]) -> Angles:
    assert model.scores_ is not None
    degrees = angles_between(model.scores_, scores)
    return Angles(float(degrees.max()), float(degrees.mean()))


@cache
def truth(dataset: str, data_root: str, k: int, center: bool, scale: bool) -> tuple[datasets.Dataset, PCAModel]:
    """A data set, and the PCA of all its rows."""
    source = sources.load(dataset, data_root)
    rows = source.all_rows()
    if not 1 <= k <= min(rows.shape):
        raise ConfigError(f"comparison: 'components' is {k}, expected 1 to {min(rows.shape)} for {dataset}")
    return source, pooled_pca(rows, k, center=center, scale=scale)


@cache
def _pooled_accuracy(dataset: str, data_root: str, k: int, center: bool, scale: bool) -> float | None:
    source, reference = truth(dataset, data_root, k, center, scale)
    return _accuracy(reference, source)


def _accuracy(model: PCAModel, source: datasets.Dataset) -> float | None:
    if source.test is None or model.components_ is None:
        return None
    test, labels = source.test()
    return knn_accuracy(model, source.all_rows(), source.labels, test, labels)
