"""A single run of a comparison: the parties of its method, and the reference for its model."""

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

from fedpca_flwr import __version__
from fedpca_flwr.data import datasets
from fedpca_flwr.data.partition import MIN_PARTY_ROWS, split, split_columns
from fedpca_flwr.errors import ConfigError
from fedpca_flwr.maths.eigen import principal_angles as angles_between
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.reference import Angles, captured_variance, knn_accuracy, pooled_pca, principal_angles
from fedpca_flwr.simulations import sources
from fedpca_flwr.simulations.engines import run
from fedpca_flwr.simulations.records import AS_GIVEN, Record, card_of, method_text, preprocessing, run_identity

MAX_KERNEL_ROWS = 5000  # beyond which the kernel PCA of the pool, the reference of kernel methods, takes much memory
KERNELS = {"polynomial": "poly"}  # names of kernels in scikit-learn that differ from ours


def measure_run(setting: Record, folder: Path | None) -> Record:
    """Run a method on a comparison's setting, and return results of its model beside the PCA of the pooled rows.

    Shares are from 0 to 1, and MB 10^6 bytes; None is unknown. The model is saved in ``folder``, if any.
    """
    pool = pool_key(setting)
    source, _ = pooled_reference(*pool)
    rows = source.all_rows()
    parties = parties_of(setting, source)
    common = {"n_components": setting["components"], "engine": setting["engine"], "seed": setting["seed"]}
    common |= {"progress": False, "secure_aggregation": setting["bound"] > 0, "bound": setting["bound"]}
    common |= {"min_rows": 1, "may_show": "inner products"}  # sites that allow whatever a method shows
    with _extra_options(setting, parties, common) as extra:
        started = time.monotonic()
        model = run(method_text(setting), sources.name_parties(setting["dataset"], parties), **common, **extra)
        seconds = time.monotonic() - started
        angles, captured = _compare_with_pool(setting, model, rows, parties)
    claimed = float(model.explained_variance_ratio_.sum())  # NaN where the model knows of noise alone
    name = f"models/{hashlib.sha256(run_identity(setting).encode()).hexdigest()[:16]}.npz" if folder else None
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
        "MB down": float(np.mean(bytes_down_by_party(model)) / 1e6),
        "seconds": round(seconds, 3),
        "knn accuracy": _accuracy(model, source) if setting["knn"] else None,
        "pooled knn accuracy": _pooled_accuracy(*pool) if setting["knn"] else None,
        "exact": model.log["exact"],
        "notes": [*model.log["notes"], *_split_notes(setting, parties)],
        "measured": model.log["measured"],
        "chosen": model.log.get("chosen", {}).get("method"),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {
            "python": platform.python_version(),
            "fedpca-flwr": __version__,  # a clone has no metadata
            **{name: version(name) for name in ("flwr", "numpy")},
        },
    }


def bytes_down_by_party(model: PCAModel) -> NDArray[np.int64]:
    """Return the bytes (n_parties,) that each party received, without the last phase, in which parties project rows."""
    down = [entry["down"] for entry in model.log["rounds"] if entry["phase"] != "project"]
    return np.asarray(np.sum(down, axis=0))


def pool_key(setting: Record) -> tuple[str, str, int, bool, bool]:
    """Return the arguments of `pooled_reference` for a run: data set, folder, components, centring and scaling."""
    return setting["dataset"], setting["data root"], setting["components"], *preprocessing(setting)


def parties_of(setting: Record, source: datasets.Dataset) -> list[NDArray[Any]]:
    """Split a data set (n, d) by a setting: rows by its partition, or consecutive columns into equal parts."""
    rows = source.all_rows()
    if card_of(setting["method"]).split == "columns":
        return [rows[:, part] for part in split_columns(rows.shape[1], setting["clients"], "even")]
    if setting["partition"] == AS_GIVEN:
        tables = len(np.unique(source.labels))
        if setting["clients"] != tables:
            expected = f"expected the {tables} tables of the data"
            raise ConfigError(f"comparison: 'clients' is {setting['clients']}, {expected}")
        return [rows[source.labels == party] for party in range(tables)]
    extra = {} if setting["alpha"] is None else {"alpha": setting["alpha"]}
    parts = split(source.labels, setting["clients"], kind=setting["partition"], seed=setting["seed"], **extra)
    return [rows[part] for part in parts]


def _split_notes(setting: Record, parties: Sequence[NDArray[Any]]) -> list[str]:
    """Return a note if the least number of rows of a client, rather than alpha, decides how even the split is."""
    sizes = [len(part) for part in parties]
    least, by_rows = min(sizes), setting["alpha"] is not None and card_of(setting["method"]).split == "rows"
    if not by_rows or least > MIN_PARTY_ROWS or 2 * (count := sizes.count(least)) <= len(sizes):
        return []
    fault = "most clients have the fewest rows that a simulation gives, so sizes are more even than by alpha"
    return [f"{fault}: {count} of {len(sizes)} have {least}"]


@contextmanager
def _extra_options(
    setting: Record, parties: Sequence[NDArray[Any]], common: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Yield ``state`` or ``loadings`` in a temporary folder, for which another method may run first, or nothing."""
    card = card_of(setting["method"])
    with TemporaryDirectory(prefix="fedpca-compare-") as folder:
        files = [f"{folder}/{party}.npz" for party in range(len(parties))]
        if card.loadings_source:
            run(card.loadings_source, parties, **common, loadings=files)
        if "state" in card.examples[0] and "state" not in setting["options"]:
            yield {"state": f"{folder}/state"}
        elif card.loadings_source:
            yield {"loadings": files}
        else:
            yield {}


def _compare_with_pool(
    setting: Record, model: PCAModel, rows: NDArray[Any], parties: Sequence[NDArray[Any]]
) -> tuple[Angles | None, float | None]:
    """Return a model's angles to the PCA of all rows, and its captured share of their variance; None if unknown."""
    _, reference = pooled_reference(*pool_key(setting))
    if model.own_components_:  # which are judged by the client's own rows, and need not be the pool's
        return None, _captured_by_local(reference, parties, model.own_components_)
    if "kernel" in card_of(setting["method"]).options.model_fields:
        return _angles_in_feature_space(setting, model, rows), None
    if model.adjustment_ is not None:  # the pool's components are those of rows from which nothing was taken out
        return None, None
    captured = captured_variance(model, reference, rows)
    if model.scores_ is not None:  # the loadings lie at the parties
        return _angles_of_scores(model, reference.transform(rows)), captured
    return principal_angles(model, reference), captured


def _captured_by_local(reference: PCAModel, parties: Sequence[NDArray[Any]], components: dict[str, Any]) -> float:
    """Return the share of variance about the pooled mean that each party's own components hold of its rows."""
    captured = total = 0.0
    for X, U in zip(parties, components.values(), strict=True):
        centred = reference.centred(X)
        scores = centred @ U.T
        captured, total = captured + float(np.vdot(scores, scores)), total + float(np.vdot(centred, centred))
    return captured / total if total else 0.0


def _angles_in_feature_space(setting: Record, model: PCAModel, rows: NDArray[Any]) -> Angles | None:
    """Return the angles between a model's scores and those of kernel PCA of all rows; None for too many rows."""
    from sklearn.decomposition import KernelPCA

    if len(rows) > MAX_KERNEL_ROWS:
        return None
    fields = card_of(setting["method"]).options.model_fields
    keys = ("kernel", "gamma", "coef0", "degree", "center")
    kernel, gamma, coef0, degree, center = (setting["options"].get(key, fields[key].default) for key in keys)
    X = np.asarray(rows, dtype=np.float64)
    X = X - X.mean(axis=0) if center else X
    gamma = gamma or 1 / (X.shape[1] * X.var())
    pca = KernelPCA(setting["components"], kernel=KERNELS.get(kernel, kernel), gamma=gamma, coef0=coef0, degree=degree)
    return _angles_of_scores(model, pca.fit_transform(X))


def _angles_of_scores(model: PCAModel, scores: NDArray[Any]) -> Angles:
    """Return the angles between the scores of a model and reference scores (n, k), in degrees."""
    assert model.scores_ is not None
    degrees = angles_between(model.scores_, scores)
    return Angles(float(degrees.max()), float(degrees.mean()))


@cache
def pooled_reference(
    dataset: str, data_root: str, k: int, center: bool, scale: bool
) -> tuple[datasets.Dataset, PCAModel]:
    """Load a data set, and compute the PCA of all its rows, once; ConfigError if it has fewer components than k."""
    source = sources.load(dataset, data_root)
    rows = source.all_rows()
    if not 1 <= k <= min(rows.shape):
        raise ConfigError(f"comparison: 'n_components' is {k}, expected 1 to {min(rows.shape)} for {dataset}")
    return source, pooled_pca(rows, k, center=center, scale=scale)


@cache
def _pooled_accuracy(dataset: str, data_root: str, k: int, center: bool, scale: bool) -> float | None:
    """Return the k-NN accuracy on test rows projected on the pooled components; the result is cached."""
    source, reference = pooled_reference(dataset, data_root, k, center, scale)
    return _accuracy(reference, source)


def _accuracy(model: PCAModel, source: datasets.Dataset) -> float | None:
    """Return the accuracy of 5-nearest-neighbours on projected test rows; None without test rows or components."""
    if source.test is None or model.components_ is None:
        return None
    test, labels = source.test()
    return knn_accuracy(model, source.all_rows(), source.labels, test, labels)
