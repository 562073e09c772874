"""Files that somebody else wrote: whatever is in them, there is one sentence of ours, or they are used.

Each draw changes a whole file in one place or two; a failure names the change.
"""

import copy
import io
import json
import shutil
import sqlite3
import zipfile
from collections.abc import Callable
from contextlib import closing
from functools import partial, reduce
from operator import getitem
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpca_flwr import PCAModel, analyses, run
from fedpca_flwr.errors import FedPCAError
from fedpca_flwr.model import federation
from fedpca_flwr.model.federation import Federation
from fedpca_flwr.state.store import Schema, Store
from fedpca_flwr.strategies.sapca import stream_state
from tests.families import cut, rows
from tests.foreign import JSON_VALUES, paths_in

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numbers that a file has may overflow

X = rows(120, 5)


def by_day(few: int, many: int) -> list[Any]:
    """Return the seeds of so many draws, of which the first few are drawn by day."""
    return [range(few), pytest.param(range(few, many), marks=pytest.mark.nightly)]


SQL_VALUES = [None, -1, 0, 1, 2**62, 1e308, float("inf"), 0.5, "x", "", "\x1b[2J", "\x00", b"\xff\x00", "a" * 1000]


def spoil_archive(rng: np.random.Generator, source: Path, target: Path) -> str:
    """Write the archive with a change in it, and return what has changed."""
    with zipfile.ZipFile(source) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    text = next(name for name in members if name.endswith(".json"))
    if rng.random() < 0.75:
        about, changes = json.loads(members[text]), []
        for _ in range(int(rng.integers(1, 3))):
            paths = list(paths_in(about))
            path = paths[int(rng.integers(len(paths)))]
            inner = reduce(getitem, path[:-1], about)
            if rng.random() < 0.1:
                del inner[path[-1]]
                changes.append(f"{path} removed")
            else:
                inner[path[-1]] = copy.deepcopy(JSON_VALUES[int(rng.integers(len(JSON_VALUES)))])
                changes.append(f"{path}: {inner[path[-1]]!r:.50}")
        members[text], change = json.dumps(about).encode(), "; ".join(changes)
    else:
        name = str(rng.choice([name for name in members if name.endswith(".npy")]))
        array, stream = np.load(io.BytesIO(members[name])), io.BytesIO()
        with np.errstate(all="ignore"):
            ways = [array * np.nan, array * 1e300, array[..., :-1] if array.ndim else array, array.astype("U3")]
            ways += [np.zeros(0), -array, array + 0j, array + 1e5]
        place = int(rng.integers(len(ways)))
        np.save(stream, ways[place])
        members[name], change = stream.getvalue(), f"{name}, way {place}"
    with zipfile.ZipFile(target, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return change


def spoil_store(rng: np.random.Generator, folder: Path, schema: Schema) -> str:
    """Change a row of a store and seal the store again, as a forger would; return what has changed."""
    store = Store(folder, schema)
    table = str(rng.choice(schema.sealed_tables))
    with closing(sqlite3.connect(store.file, isolation_level=None)) as database:
        names = [column[1] for column in database.execute(f"PRAGMA table_info({table})")]
        numbers = [number for (number,) in database.execute(f"SELECT rowid FROM {table}")]
        name, value = str(rng.choice(names)), SQL_VALUES[int(rng.integers(len(SQL_VALUES)))]
        if rng.random() < 0.2:
            database.execute(f"DELETE FROM {table} WHERE rowid = ?", (int(rng.choice(numbers)),))
            value = "a row less"
        elif value is not None:  # the tables refuse that themselves
            database.execute(f"UPDATE {table} SET {name} = ? WHERE rowid = ?", (value, int(rng.choice(numbers))))
        store.seal(database)
    return f"{table}.{name}: {value!r:.50}"


def use(uses: dict[str, Callable[[], Any]], change: str) -> None:
    """Use a file in every way: each use works, or raises or warns in a single sentence."""
    for name, once in uses.items():
        try:
            shown = once()
        except (FedPCAError, UserWarning):
            continue
        except Exception as error:
            pytest.fail(f"{name} raises {type(error).__name__}: {error} ({change})")
        assert "\x1b" not in (shown if isinstance(shown, str) else ""), f"{name} shows control characters ({change})"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder, parties = tmp_path_factory.mktemp("written"), cut(X, 40, 40, 40)
    options = {"n_components": 2, "reference": False}
    for clustering in ("k-means", "mixture", "harmony"):
        run("p-cov", parties, clusters=2, clustering=clustering, outliers="counts", **options).save(folder / clustering)
    run("sapca", parties, state=str(folder / "running"), **options)
    run("dp-pca", parties, clip=5.0, release="joint", **options).save(folder / "dp-pca")
    members = Federation.open(folder / "federation")
    for key, part in zip("abc", parties, strict=True):
        members.join(key, part)
    members.append("a", X[:30] + 3)
    members.save()
    return folder


@pytest.mark.parametrize("seeds", by_day(20, 120), ids=len)
@pytest.mark.parametrize("name", ["k-means", "mixture", "harmony", "dp-pca"])
def test_foreign_models_are_used_or_refused_in_a_sentence(name, seeds, folder, tmp_path):
    used = 0
    for seed in seeds:
        rng = np.random.default_rng(seed)
        change = f"seed {seed}: {spoil_archive(rng, folder / f'{name}.npz', tmp_path / 'other.npz')}"
        try:
            model = PCAModel.load(tmp_path / "other.npz")
        except FedPCAError:
            continue
        used += 1
        found = {
            "summary": model.summary,
            "repr": partial(repr, model),
            "page": model._repr_html_,
            "transform": partial(model.transform, X),
            "outliers": partial(analyses.outliers, model, X),
            "clusters": lambda model=model: str(analyses.clusters(model)) + str(analyses.clusters(model).of(X)),
            "harmony": partial(analyses.harmonised, model, X, 0),
            "names": partial(model.named, ["a", "b", "c", "d", "e"]),
            "save": partial(model.save, tmp_path / "again"),
        }
        use(found, change)
    assert 0 < used < len(seeds)


@pytest.mark.parametrize("seeds", by_day(12, 60), ids=len)
def test_foreign_federations_are_used_or_refused_in_a_sentence(seeds, folder, tmp_path):
    for seed in seeds:
        there = shutil.copytree(folder / "federation", tmp_path / str(seed))
        change = f"seed {seed}: {spoil_store(np.random.default_rng(seed), there, federation.SCHEMA)}"
        try:
            members = Federation.open(there)
        except FedPCAError:
            continue
        found: dict[str, Callable[[], Any]] = {
            "members": lambda members=members: str(members.members),
            "summary": lambda members=members: members.model(2).summary(full=True),
            "leave": partial(members.leave, "b"),
            "append": partial(members.append, "a", X[60:] + 9),
            "join": partial(members.join, "d", X[:30] * 2),
            "save": members.save,
            "again": lambda there=there: Federation.open(there).model(2).summary(full=True),
        }
        use(found, change)


@pytest.mark.parametrize("seeds", by_day(10, 40), ids=len)
def test_foreign_streams_are_used_or_refused_in_a_sentence(seeds, folder, tmp_path):
    for seed in seeds:
        there = shutil.copytree(folder / "running", tmp_path / str(seed))
        change = f"seed {seed}: {spoil_store(np.random.default_rng(seed), there, stream_state.SCHEMA)}"
        more = partial(run, "sapca", cut(X + 1, 60, 60), n_components=2, state=str(there), reference=False)
        use({"load": partial(stream_state.RunningModel, there), "merge": more}, change)
