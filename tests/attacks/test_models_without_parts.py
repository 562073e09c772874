"""Whoever gets a model's file, pickle or copy: of what single parties sent, it holds nothing but the log's numbers."""

import copy
import io
import pickle
from functools import partial
from itertools import product
from pathlib import Path
from types import FunctionType
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest

from fedpca_flwr import FederatedPCA, run
from fedpca_flwr.maths import influence as maths
from fedpca_flwr.maths.moments import Moments
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.questions import influence
from tests.families import cut, rows

joblib = pytest.importorskip("joblib")  # it has no types
X = rows(300) + np.arange(12)
PARTIES = cut(X, 150, 100, 50)
NAMED = [pd.DataFrame(part, columns=[f"f{i}" for i in range(12)]) for part in PARTIES]


def holds_parts(model):
    """Return whether a model leads to a packed scatter (of 12 features), or to the mean of a single party."""
    stack, seen, found = [model], {}, []
    while stack:
        item = stack.pop()
        if id(item) in seen:
            continue
        seen[id(item)] = item
        if isinstance(item, np.ndarray):
            found += [item] * (item.dtype == np.float64)
            stack.append(item.base)
        elif isinstance(item, dict | list | tuple | set):
            stack += item.values() if isinstance(item, dict) else item
        elif isinstance(item, partial):
            stack += [item.func, item.args, item.keywords]
        elif isinstance(item, FunctionType):
            stack += [cell.cell_contents for cell in item.__closure__ or ()]
        elif hasattr(item, "__dict__") and not isinstance(item, type):
            stack += [vars(item), getattr(item, "__self__", None)]
    vectors = [vector for array in found if array.shape[-1:] == (12,) for vector in array.reshape(-1, 12)]
    pairs = product(vectors, [part.mean(axis=0) for part in PARTIES])
    return any(array.shape == (78,) for array in found) or any(np.allclose(*pair, rtol=1e-9) for pair in pairs)


def joblib_copy(model):
    joblib.dump(model, stream := io.BytesIO())
    return joblib.load(stream)


@pytest.mark.parametrize("parties", [PARTIES, NAMED], ids=["arrays", "frames"])
@pytest.mark.parametrize(
    "duplicate", [lambda model: pickle.loads(pickle.dumps(model)), joblib_copy, copy.copy, copy.deepcopy]
)
def test_no_copy_of_a_model_has_what_a_party_sent(duplicate, parties):
    model = run("p-cov", parties, n_components=3)
    assert holds_parts(model)  # in the memory of the server, which has seen them
    other = duplicate(model)
    assert [holds_parts(one) for one in (other, model)] == [False, False]
    assert other.log == model.log == run("p-cov", parties, n_components=3).log | {"rounds": model.log["rounds"]}
    assert len(other.log["influence"]) == 3
    assert not holds_parts(pickle.loads(pickle.dumps(FederatedPCA(n_components=3).fit(parties).model_)))


@pytest.mark.parametrize("method", ["p-cov", "qr-pca", "adaptive", "em"])
def test_neither_has_its_file(method, tmp_path):
    model = run(method, PARTIES, n_components=3)
    content = (file := model.save(tmp_path / "model")).read_bytes() + pickle.dumps(model)
    for local in map(Moments.from_rows, PARTIES):
        assert not any(array[:2].tobytes() in content for array in (local.mean, local.scatter))
        assert str(local.scatter[1]).encode() not in content
    loaded = PCAModel.load(file)
    assert loaded.log["influence"] == model.log["influence"]
    assert [holds_parts(one) for one in (loaded, model)] == [False, False]


READS = [
    lambda model, folder: model.log,
    lambda model, folder: model.summary(full=True),
    lambda model, folder: model.save(folder / "model"),
    lambda model, folder: model.named([f"f{i}" for i in range(12)]).log,
]


@pytest.mark.parametrize("read", READS, ids=["log", "summary", "save", "names"])
@pytest.mark.parametrize("options", [{}, {"scale": True}, {"center": False}], ids=str)
def test_numbers_are_those_of_the_run_whoever_asks_first(options, read, tmp_path, monkeypatch):
    model = run("p-cov", PARTIES, n_components=3, **options)
    model.components_[:] = 0  # a caller may do with them what it likes
    read(model, tmp_path)
    monkeypatch.setattr(influence, "MAX_OPEN_BYTES", 0)
    at_once = run("p-cov", PARTIES, n_components=3, **options)
    assert not holds_parts(at_once)
    assert model.log["influence"] == at_once.log["influence"]
    kept, own = (one.log["measured"] for one in (model, at_once))
    assert list(kept) == list(own)
    assert all(kept[name] == value for name, value in own.items() if name.startswith("influence"))
    assert list(model.log) == list(at_once.log)


def test_turns_are_computed_when_a_reader_or_a_note_of_the_run_asks(monkeypatch):
    monkeypatch.setattr(maths, "exact_turn", computed := Mock(side_effect=maths.exact_turn))
    model = run("p-cov", NAMED, n_components=3)
    model.transform(NAMED[0])
    assert ("p-cov" in repr(model), model.rounds) == (True, 1)
    assert not computed.called
    assert "without client 0 component 3 turns by up to" in model.summary(full=True)
    assert model.log["influence"][0]["angles_degrees"]
    assert computed.call_count == 3
    assert not hasattr(model, "logs")
    model = run("p-cov", [*PARTIES[:2], PARTIES[2] * [30, *[1] * 11]], n_components=3)
    assert computed.call_count == 6
    (note,) = [note for note in model.log["notes"] if "stands out" in note]
    assert f"that turns by up to {model.log['influence'][2]['angles_degrees'][0]:.0f} degrees" in note
    assert computed.call_count == 6


def test_the_option_keep_is_a_file_of_its_own(tmp_path):
    model = run("p-cov", PARTIES, n_components=3, keep="parties")
    with pytest.warns(UserWarning, match="moments_"):
        file = model.save(tmp_path / "model")
    assert not holds_parts(PCAModel.load(file))
    assert Path(file).stat().st_size < 50_000
    assert holds_parts(pickle.loads(pickle.dumps(model)))  # it was asked for
