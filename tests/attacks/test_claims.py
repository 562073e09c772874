"""Parties that claim what is not so: it costs the server nothing, and the right party is named."""

import zipfile

import numpy as np
import pytest
from flwr.common import Parameters

from fedpca_flwr.errors import ContractError, DataError
from fedpca_flwr.model.model import PCAModel
from tests.families import rows
from tests.harness import finish, peak_of, proxy_of, server_of, tamper
from tests.refusals import refused

SECURE = {"secure_aggregation": True, "bound": 10.0}


def parts():
    return [rows(30, 8, seed=seed) for seed in range(3)]


def claiming(server, party, features):
    proxy = proxy_of(server, party)
    honest = proxy.get_properties

    def claim(ins, timeout, group_id):
        reply = honest(ins, timeout, group_id)
        reply.properties["features"] = features
        return reply

    proxy.get_properties = claim


@pytest.mark.engine
@pytest.mark.parametrize("secure", [{}, SECURE, {**SECURE, "survivors": 3}], ids=["clear", "masked", "surviving"])
@pytest.mark.parametrize("claim", [50_000, 10**6])
def test_one_partys_claim_of_many_features_is_not_believed(secure, claim):
    server = server_of("p-cov", parts(), n_components=2, **secure)
    claiming(server, 0, claim)

    def named():
        with refused(DataError, "client 0", claim, "client 1", 8):
            finish(server)

    assert peak_of(named) < 2**26
    claiming(server, 1, 2**62)
    with refused(ContractError, "client 1", 2**62):
        finish(server)


def header(shape, dtype="'<f8'"):
    text = f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    text += b" " * (64 - (len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


ODD = {
    "huge shape": header("(1099511627776,)") + bytes(64),
    "negative shape": header("(-1, -1)") + bytes(64),
    "deep header": header("(" * 3000 + ")" * 3000),
    "structured": header("(1,)", "[('a', '<f8')]") + bytes(8),
    "zero itemsize": header("(4611686018427387904,)", "'|V0'"),
    "no array": b"\x00" * 100,
    "no header": b"\x93NUMPY\x01\x00v\x00" + b"(((".ljust(117) + b"\n" + bytes(8),
    "no hash": b"\x93NUMPY\x01\x00v\x00" + b"{[]:1}".ljust(117) + b"\n" + bytes(8),
    "too few bytes": header("(9999999999,)") + b"x" * 8,
    "objects": header("(1,)", "'|O'") + b"x" * 8,
    "text": b"garbage",
}


def refused_tensors(party, change, *named):
    server = server_of("p-cov", parts(), n_components=2)

    def changed(reply):
        reply.parameters = Parameters(change(reply.parameters.tensors), "numpy.ndarray")
        return reply

    tamper(server, party, changed)
    with refused(ContractError, f"client {party}", *named):
        finish(server)


@pytest.mark.parametrize("tensor", ODD.values(), ids=ODD)
def test_odd_arrays_are_refused_by_name(tensor):
    refused_tensors(1, lambda _: [tensor] * 4)


def test_a_hundred_thousand_arrays_are_not_read(monkeypatch):
    monkeypatch.setattr("fedpca_flwr.protocol.payload._array_view", lambda _: pytest.fail("an array was read"))
    refused_tensors(0, lambda tensors: tensors[:1] * 100_000, 100000, 4)


@pytest.mark.engine
def test_a_model_file_that_unpacks_to_gigabytes_is_not_unpacked(tmp_path):
    model = finish(server_of("p-cov", parts(), n_components=2))
    model.save(tmp_path / "model.npz")
    bomb = header("(12500000,)") + bytes(10**8)
    with zipfile.ZipFile(tmp_path / "model.npz") as whole, zipfile.ZipFile(tmp_path / "bomb.npz", "w") as copy:
        for name in whole.namelist():
            copy.writestr(name, whole.read(name))
        copy.writestr("extra.npy", bomb, zipfile.ZIP_DEFLATED)
    del bomb

    def load():
        with refused(ContractError, "bomb.npz"):
            PCAModel.load(tmp_path / "bomb.npz")

    assert peak_of(load) < 2**22


def test_a_variance_of_nan_does_not_fit_what_the_parties_measure(monkeypatch):
    server = server_of("p-cov", parts(), n_components=2)
    monkeypatch.setattr(type(server.strategy), "squared_error", lambda self, model: np.nan)
    with refused(ContractError, "nan"):
        finish(server)
