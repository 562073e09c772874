"""Nothing that is read from a message or a file is executed: each place meets real pickles, which leave a mark.

A fault that this catches: arrays read with ``allow_pickle=True``, or by `pickle` itself.
"""

import io
import pickle
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from flwr.common import FitIns, Parameters, ndarrays_to_parameters
from pyarrow import parquet

from fedpca_flwr.errors import FedPCAError
from fedpca_flwr.model import federation as state_folder
from fedpca_flwr.model.federation import Federation
from fedpca_flwr.model.loadings import Loadings
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.site.readers.files import read, read_ids
from fedpca_flwr.site.rules.journal import FileJournal
from fedpca_flwr.state.store import Store
from fedpca_flwr.strategies.sapca import stream_state
from fedpca_flwr.strategies.sapca.stream_state import RunningModel
from tests.families import rows
from tests.harness import finish, fit, proxy_of, server_of, tamper


class Mark(SimpleNamespace):
    """Whoever unpickles this makes a file."""

    def __reduce__(self):
        return Path.touch, (self.file,)


def array_of_objects(mark):
    np.save(stream := io.BytesIO(), np.array([mark], dtype=object), allow_pickle=True)
    return stream.getvalue()


def rewritten(file, spoil):
    """Return a file whose bytes, or those of its arrays, have become what `spoil` makes of them: a pickle."""
    if file.suffix != ".npz":
        file.write_bytes(spoil(file.read_bytes()))
        return file
    before = zipfile.ZipFile(io.BytesIO(file.read_bytes()))
    with zipfile.ZipFile(file, "w") as archive:
        for name in before.namelist():
            archive.writestr(name, (spoil if name.endswith(".npy") else bytes)(before.read(name)))
    return file


def a_reply(folder, spoil):
    def change(reply):
        reply.parameters.tensors[:] = map(spoil, reply.parameters.tensors)
        return reply

    tamper(server := server_of("p-cov", [rows(30), rows(20)], n_components=2), 1, change)
    finish(server)


def a_message_of_the_server(folder, spoil):
    server = server_of("dp-pca", [rows(30)], n_components=2)
    sent, client = ndarrays_to_parameters([np.asarray(1.0)]), proxy_of(server, 0).make()
    client.fit(FitIns(Parameters([], sent.tensor_type), {"phase": "octaves"}))
    message = FitIns(Parameters([*map(spoil, sent.tensors)], sent.tensor_type), {"phase": "centre"})
    assert "error" not in client.fit(message).metrics


LOADINGS = Loadings(np.eye(3), np.zeros(3), np.ones(3))
FILES: dict[str, tuple[Callable, Callable]] = {
    "model.npz": (lambda file: fit("p-cov", [rows(30)], n_components=2).save(file), PCAModel.load),
    "loadings.npz": (LOADINGS.save, Loadings.load),
    "ids.csv": (lambda file: file.write_text("id,a\nx,1\ny,2\n"), lambda file: read_ids(file, "id", 2)),
    "own.npy": (lambda file: np.save(file, rows(20)), read),
    "own.npz": (lambda file: np.savez(file, X=rows(20)), read),
    "own.csv": (lambda file: np.savetxt(file, rows(20), delimiter=","), read),
    "own.parquet": (lambda file: parquet.write_table(pa.table({"a": [1.0, 2.0]}), file), read),
}


def a_file(folder, spoil, name):
    write, load = FILES[name]
    write(file := folder / name)
    assert load(str(rewritten(file, spoil)))


def a_journal(folder, spoil):
    journal = FileJournal(str(folder), "1", 0)
    journal.store_secret("private", b"key")
    rewritten(folder / "site.sqlite", spoil)
    assert journal.load_secret("private") == b"key"


def a_federation(folder, spoil, respell=False):
    federation = Federation.open(folder)
    federation.join("north", rows(30))
    federation.save()
    if respell:
        respelt(folder, state_folder.SCHEMA, "member", "digest", spoil)
    for file in () if respell else folder.iterdir():
        rewritten(file, spoil)
    Federation.open(folder).model(2)


def respelt(folder, schema, table, column, spoil):
    """Return a store's one large value, spoilt by whoever can name it by its digest and seal it."""
    with (store := Store(folder, schema)).transaction() as database:
        ((value,),) = database.execute("SELECT value FROM piece").fetchall()
        database.execute("DELETE FROM piece")
        database.execute(f"UPDATE {table} SET {column} = ?", (store.put(database, spoil(value)),))
        store.seal(database)


def a_running_model(folder, spoil):
    fit("sapca", [rows(30)], n_components=2, state=str(folder))
    respelt(folder, stream_state.SCHEMA, "model", "subspace", spoil)
    assert RunningModel(folder).content is not None


PLACES = [a_reply, a_message_of_the_server, a_journal, a_federation, a_running_model]
PLACES += [partial(a_federation, respell=True), *(partial(a_file, name=name) for name in FILES)]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: getattr(place, "__name__", None))
def test_no_pickle_is_executed(place, tmp_path):
    """Both are real ones, and the place takes what belongs there: no error is of the test's own making."""
    for made in (array_of_objects, pickle.dumps):
        mark, folder = tmp_path / f"of {made.__name__}", tmp_path / made.__name__
        folder.mkdir()
        pickled = made(Mark(file=mark))
        with pytest.raises((FedPCAError, ValueError)):
            place(folder, lambda _, pickled=pickled: pickled)
        assert not mark.exists()
        np.load(io.BytesIO(pickled), allow_pickle=True)
        assert mark.exists()
    (tmp_path / "as it is").mkdir()
    place(tmp_path / "as it is", bytes)


def test_a_parquet_file_s_own_types_are_not_unpickled(tmp_path):
    """As Arrow once did (CVE-2023-47248)."""
    pickled = pickle.dumps(Mark(file=tmp_path / "m"))
    about = {"ARROW:extension:name": "arrow.py_extension_type", "ARROW:extension:metadata": pickled}
    schema = pa.schema([pa.field("a", pa.float64(), metadata=about)])
    parquet.write_table(pa.table([[1.0, 2.0]], schema=schema), tmp_path / "own.parquet")
    assert read(str(tmp_path / "own.parquet")).rows.shape == (2, 1)
    assert not (tmp_path / "m").exists()
