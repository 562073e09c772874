"""Files of earlier versions (e3ebde38, `tests/earlier`) are read, and foreign files are used or refused in a sentence.

`rows.npz` there holds the rows of five parties; every model is of two components of theirs. `journal-0` is of the first
of three sites with the rows of the first three: a run of sub-it, a refused run, one of dp-pca with epsilon 1, and
one with secure sums. A foreign file is a whole one, changed in one place or two; a failure names the change.
"""

import copy
import io
import json
import shutil
import sqlite3
import zipfile
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial, reduce
from operator import getitem
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpca_flwr import PCAModel, analyses, run
from fedpca_flwr.errors import DisclosureError, FedPCAError
from fedpca_flwr.model import federation
from fedpca_flwr.model.federation import Federation
from fedpca_flwr.model.second_moments import SecondMoments
from fedpca_flwr.site.rules.audit import audit
from fedpca_flwr.state.store import Schema, Store
from fedpca_flwr.strategies.sapca import stream_state
from tests.families import cut, rows
from tests.foreign import JSON_VALUES, paths_in
from tests.harness import at_sites, finish, server_of

EARLIER = Path(__file__).parents[1] / "earlier" / "e3ebde38"
X = rows(120, 5)
SQL_VALUES = [None, -1, 0, 1, 2**62, 1e308, float("inf"), 0.5, "x", "", "\x1b[2J", "\x00", b"\xff\x00", "a" * 1000]
OPTIONS: dict[str, dict[str, Any]] = {"em": {}, "vertical": {}, "streaming": {}}
OPTIONS |= {"p-cov": {"scale": True, "clusters": 2, "keep": "parties"}, "dp-pca": {"epsilon": 1.0, "noise_seed": 1}}
OPTIONS |= {"sapca": {"share_low": 0.0, "share_high": 1.0}}  # the number of components was fixed
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numbers that a file has may overflow


@pytest.fixture(scope="module")
def parties():
    with np.load(EARLIER / "rows.npz") as arrays:
        return [arrays[name] for name in arrays.files]


@pytest.fixture
def earlier(tmp_path):
    return Path(shutil.copytree(EARLIER, tmp_path / "earlier"))


@pytest.mark.parametrize("method", OPTIONS)
def test_a_model_of_before_is_that_of_today(method, parties, tmp_path):
    model = PCAModel.load(EARLIER / f"{method}.npz")
    state = {"state": str(tmp_path / "state")} if method in ("streaming", "sapca") else {}
    own = [parties[2][:, :2], parties[2][:, 2:]] if method == "vertical" else [party.copy() for party in parties]
    if method == "em":
        for party in own:
            party[::4, 1] = np.nan
    today = run(method, own, n_components=2, **OPTIONS[method], **state)
    # EM's steps are other ones today, and both iterations end within 0.01 degrees (1.7e-4) of the end
    digits = {"rtol": 2e-5, "atol": 2e-5} if method == "em" else {"rtol": 1e-7, "atol": 1e-9}
    for name in ("components_", "mean_", "explained_variance_", "explained_variance_ratio_", "singular_values_"):
        earlier, now = (np.asarray(getattr(one, name), float) for one in (model, today))  # none is nan
        np.testing.assert_allclose(earlier, now, **digits, err_msg=name)
    assert (model.n_samples_, model.n_features_in_) == (today.n_samples_, today.n_features_in_)
    assert model.summary(full=True).splitlines()[0] == today.summary(full=True).splitlines()[0]
    again = PCAModel.load(model.save(tmp_path / "again.npz"))
    np.testing.assert_array_equal(again.components_, model.components_)
    assert [str(entry) for entry in again.log] == [str(entry) for entry in model.log]


def test_kept_moments_federations_and_running_models_of_before_go_on(parties, earlier):
    moments = SecondMoments.load(EARLIER / "p-cov-moments.npz")
    np.testing.assert_allclose(moments.covariance, np.cov(np.concatenate(parties).T), rtol=1e-12)
    assert np.isfinite(analyses.how_sure_by_parties(moments, 2).variances).all()
    assert sum(Federation.open(earlier / "federation").members.values()) == sum(map(len, parties))
    model = run("streaming", [parties[0][:11]], n_components=2, state=str(earlier / "federation"))
    rows = np.concatenate([parties[0][:11], *parties[1:]])
    assert model.n_samples_ == len(rows)
    np.testing.assert_allclose(model.mean_, rows.mean(axis=0), rtol=1e-12)
    for method in ("spca", "sapca"):
        state = shutil.copytree(earlier / "running", earlier / method)
        model = run(method, [np.eye(30, 4)], n_components=2, state=str(state))
        assert model.n_samples_ == sum(map(len, parties)) + 30


def test_a_journal_of_before_is_whole_and_counts(parties, earlier, tmp_path, monkeypatch):
    journal = audit(str(earlier / "journal-0"))
    assert journal.gap == 0
    assert [run["compared"] for run in journal.runs()] == [False, True, True, True]  # the first was in clear
    assert {"run", "question", "answer", "release", "refused", "opened"} <= {event.kind for event in journal.events}

    def ask(method, first=0, site=(), **options):
        files = [{"data": f"{tmp_path}/{i}.csv", "journal": f"{earlier}/journal-{i}", **dict(site)} for i in range(3)]
        for party, node in zip(parties, files, strict=False):
            np.savetxt(node["data"], party[first:], delimiter=",", header="a,b,c,d", comments="")
        return finish(at_sites(server_of(method, parties[:3], n_components=2, **options), files))

    monkeypatch.setattr("tests.harness.own", lambda method: {})  # no fixed noise
    with pytest.raises(DisclosureError, match="client 0: .*epsilon"):
        ask("dp-pca", site={"epsilon-budget": 1.2})
    with pytest.raises(DisclosureError, match="client 0: "):
        ask("p-cov", first=1, secure_aggregation=True, bound=100.0, min_rows=10)
    assert audit(str(earlier / "journal-0")).gap == 0


def spoil_archive(rng: np.random.Generator, source: Path, target: Path) -> str:
    """Write the archive with a change in it, and return what has changed."""
    with zipfile.ZipFile(source) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    if rng.random() < 0.75:
        name, change = next(name for name in members if name.endswith(".json")), ""
        about = json.loads(members[name])
        for _ in range(int(rng.integers(1, 3))):
            paths = list(paths_in(about))
            *path, key = paths[int(rng.integers(len(paths)))]
            inner = reduce(getitem, path, about)
            if rng.random() < 0.1:
                del inner[key]
                change += f"{path}, {key!r} removed; "
            else:
                inner[key] = copy.deepcopy(JSON_VALUES[int(rng.integers(len(JSON_VALUES)))])
                change += f"{path}, {key!r}: {inner[key]!r:.50}; "
        members[name] = json.dumps(about).encode()
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


def by_day(few: int, many: int) -> list[Any]:
    """Return the seeds of so many draws, of which the first few are drawn by day."""
    return [range(few), pytest.param(range(few, many), marks=pytest.mark.nightly)]


@pytest.mark.parametrize("seeds", by_day(20, 120), ids=len)
@pytest.mark.parametrize("name", ["k-means", "mixture", "harmony", "dp-pca"])
def test_foreign_models_are_used_or_refused_in_a_sentence(name, seeds, folder, tmp_path):
    used, other = 0, tmp_path / "other.npz"
    for seed in seeds:
        change = f"seed {seed}: {spoil_archive(np.random.default_rng(seed), folder / f'{name}.npz', other)}"
        try:
            model = PCAModel.load(other)
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
            "names": partial(model.named, [*"abcde"]),
            "save": partial(model.save, tmp_path / "again"),
        }
        use(found, change)
    assert 0 < used < len(seeds)


@pytest.mark.parametrize("seeds", by_day(12, 60), ids=len)
def test_foreign_federations_and_streams_are_used_or_refused(seeds, folder, tmp_path):
    for seed in seeds:
        there = shutil.copytree(folder / "federation", tmp_path / f"federation {seed}")
        change = f"seed {seed}: {spoil_store(np.random.default_rng(seed), there, federation.SCHEMA)}"
        with suppress(FedPCAError):
            members = Federation.open(there)
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
        there = shutil.copytree(folder / "running", tmp_path / f"running {seed}")
        change = f"seed {seed}: {spoil_store(np.random.default_rng(seed), there, stream_state.SCHEMA)}"
        more = partial(run, "sapca", cut(X + 1, 60, 60), n_components=2, state=str(there), reference=False)
        use({"load": partial(stream_state.RunningModel, there), "merge": more}, change)
