"""Neither a value of any sum, nor its fixed point, nor a count, nor a secret reaches the server: in no message."""

import numpy as np
import pytest

from fedpca_flwr.maths.secure import Layout
from fedpca_flwr.protocol.journal import StateJournal
from tests.families import cut, rows
from tests.harness import finish, fit, messages_of, server_of

COLUMNS = np.split(rows(60), [6, 10], axis=1)
SURVIVING = {"bound": 20.0, "survivors": 4}
JOINT = {"release": "joint", "clip": 5.0, "epsilon": 100.0}
WAYS = [
    *((method, {}) for method in ("p-cov", "ap-cov", "sub-it", "vertical", "vertical solver=gram", "vertical-kernel")),
    ("vertical-kernel landmarks=20", {}),
    ("vertical-kernel kernel=polynomial degree=2 gamma=0.1", {}),
    ("vertical-scores", {}),
    *((method, {**SURVIVING, **own}) for method, own in {"p-cov": {}, "ap-cov": {}, "dp-pca": JOINT}.items()),
]


@pytest.mark.parametrize(("method", "options"), WAYS, ids=str)
def test_nothing_in_clear_reaches_the_server(method, options, monkeypatch, tmp_path):
    by_rows = cut(rows(400) + 1, 150, 100, 80, 50, 20) if "survivors" in options else cut(rows(300), 180, 100, 20)
    parties = COLUMNS if method.startswith("vertical") else by_rows
    options = {"n_components": 2, "secure_aggregation": True, "bound": 10.0, "min_parties": 2, **options}
    if method == "vertical-scores":
        options["site"] = {"loadings": [str(tmp_path / f"{party}.npz") for party in range(3)]}
        fit("vertical", parties, n_components=3, **options["site"])
    told = 2**16 if parties is COLUMNS else 0
    plain: set[bytes] = set()
    secrets: list[bytes] = []
    encode, keep = Layout.encode, StateJournal.keep

    def noting(self, values):
        vector = encode(self, values)
        for array in values.values():
            plain.update(np.float64(value).tobytes() for value in np.ravel(array) if value)
        # with columns, small words are numbers such as those of rows and columns, which are told
        plain.update(word.tobytes() for word in vector if abs(int(word.view(np.int64))) > told)
        return vector

    def kept(self, name, value):
        secrets.extend([value] if name in {"private", "masking", "seed"} else [])
        keep(self, name, value)

    monkeypatch.setattr(Layout, "encode", noting)
    monkeypatch.setattr(StateJournal, "keep", kept)
    server = server_of(method, parties, **options)
    messages = messages_of(server)
    finish(server)
    if method == "dp-pca":  # its last round tells a constant, here of each party at the end
        constants, messages = messages[-len(parties) :], messages[: -len(parties)]
        assert len(set(constants)) == 1
    everything = b"|".join(messages)
    assert len(messages) >= len(parties) * 5
    assert len(plain) > 100
    assert len(secrets) >= len(parties)
    assert not [value for value in [*plain, *secrets] if value in everything]
