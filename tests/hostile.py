"""A server that asks what it likes: real clients, each with a file and a node-config of its own, nothing patched."""

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from flwr.app import Context, RecordDict
from numpy.typing import NDArray

from fedpca_flwr.config.method_text import parse_options
from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.maths.moments import pack, packed_size
from fedpca_flwr.protocol.payload import Field
from fedpca_flwr.protocol.question import Question
from fedpca_flwr.site.rules.accounts import Release
from fedpca_flwr.site.rules.policy import EXPOSURES
from fedpca_flwr.strategies import FACTORY, METHODS
from fedpca_flwr.transports.identity import load_identity
from tests.harness import identities

EXTREMES = (0.0, 1.0, -1.0, 5e-324, 1e-300, 1e100, -1e154, 1e200, 1.7e308)


def shown_by(run: dict[str, Any]) -> str:
    """Return what a run with this method and these options shows of single rows: what a site must allow."""
    text = METHODS.run_config(run)["method"]
    card = METHODS.parse_method(text).strategy.card
    options = parse_options(text, card.options, {"n-components": run.get("n-components", 10)})
    return max(card.exposes or "nothing", options.exposes or "nothing", key=EXPOSURES.index)


def released(folder: Path) -> list[str]:
    with closing(sqlite3.connect(folder / "site.sqlite")) as database:
        noted = database.execute("SELECT about FROM event WHERE kind = 'release' ORDER BY number")
        return [Release.parse(about).phase for (about,) in noted]


class HostileSession:
    """One site in one run, with its policy, asked by whoever holds the server: a new client for each message."""

    def __init__(self, folder: Path, rows: NDArray, run: dict, *, parties=3, index=0, run_id=1, **node: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        np.save(folder / "rows.npy", rows)
        chosen = METHODS.run_config(run)
        card = METHODS.parse_method(chosen["method"]).strategy.card
        options = parse_options(chosen["method"], card.options, {"n-components": chosen.get("n-components", 10)})
        config = {"partition-id": index, "num-partitions": parties, "min-rows": 5, "may-show": shown_by(run)}
        config |= {"data": str(folder / "rows.npy"), "journal": str(folder / "journal"), **identities(parties)[index]}
        config |= {"epsilon-budget": 100.0} if card.name == "dp-pca" else {}
        if options.sum_disclosures:
            config["allowed-methods"] = " ".join([card.name, *options.sum_disclosures])
        self.folder, self.parties, self.own_key = folder, parties, b""
        self.context = Context(run_id, 1, {**config, **node}, RecordDict(), chosen)

    @property
    def client(self):
        return FACTORY.client(self.context)

    def sign(self, party: int, what: str, *said: bytes) -> NDArray:
        """As another party would, which has handed the server all that it has."""
        node = {**self.context.node_config, **identities(self.parties)[party], "partition-id": party}
        colluder = load_identity(NodeConfig.parse(node))
        return replace(self.client.transport.policy.signer, identity=colluder).sign(what, *said)

    def ask(self, phase: str, arrays: list[NDArray]) -> tuple[list[NDArray], dict[str, Any]]:
        """Return the arrays that leave, and what is said beside them."""
        replied, count, said = self.client.fit(list(arrays), {"phase": phase})
        assert count in (0, 1) or "error" not in said
        if phase == "keys" and replied:
            self.own_key = replied[0].tobytes()
        return replied, said

    def refusal(self, phase: str, arrays: list[NDArray]) -> str:
        """Return the error with which nothing leaves: its class and its message."""
        replied, said = self.ask(phase, arrays)
        assert not replied
        return f"{said['error']}: {said['message']}"

    def evaluate(self, arrays: list[NDArray]) -> dict[str, Any]:
        loss, _, said = self.client.evaluate(list(arrays), {})
        assert loss == 0.0
        return said


def signatures(session: HostileSession, keys: NDArray) -> NDArray:
    """Of all parties, which have handed the server all that they have, each under the key in its row."""
    return np.stack([session.sign(party, "run keys", key.tobytes()) for party, key in enumerate(keys)])


def keys_of(sessions: Sequence[HostileSession]) -> list[NDArray]:
    """Return what each party sends in the first round of a secure run: keys and signatures, a row for each party."""
    return [np.stack(rows) for rows in zip(*(session.ask("keys", [])[0] for session in sessions), strict=True)]


def turned_about_ones(rows: NDArray, rng: np.random.Generator) -> NDArray:
    """Other rows of the same count, mean and scatter: an orthogonal matrix times these, which keeps their sum."""
    n = len(rows)
    basis = np.linalg.qr(np.column_stack([np.ones(n), rng.standard_normal((n, n - 1))])).Q
    turn = np.linalg.qr(rng.standard_normal((n - 1, n - 1))).Q
    return (basis[:, :1] @ basis[:, :1].T + basis[:, 1:] @ turn @ basis[:, 1:].T) @ rows


def shape_of(outcome: tuple[list[NDArray], dict[str, Any]]) -> tuple:
    """All that an outcome may tell where values are noised or masked: what was said, and the form of the arrays.

    The digest of a journal has a key of its own at each site.
    """
    arrays, said = outcome
    said = {**said, "journal": len(said["journal"])} if "journal" in said else said
    return tuple((array.dtype.str, array.shape) for array in arrays), tuple(sorted(said.items()))


class Adversary:
    """Asks what a script names, in the right form, with a subclass's numbers but for those ``told`` by name."""

    def __init__(self, seed: int, sizes: dict[str, int], told: Mapping[str, NDArray] = MappingProxyType({})) -> None:
        self.rng = np.random.default_rng(seed)
        self.sizes = sizes
        self.told = dict(told)

    def arrays(self, question: Question, session: HostileSession, known: dict[str, int]) -> list[NDArray]:
        arrays = {field.name: self._field(field, session, known) for field in question.request.fields}
        if "publics" in arrays and "publics" not in self.told:
            arrays["signatures"] = signatures(session, arrays["publics"])
        return list(arrays.values())

    def _field(self, field: Field, session: HostileSession, known: dict[str, int]) -> NDArray:
        name = field.constant or field.constant_or_zero or field.name
        if name in self.told:
            return self.told[name]
        shape = tuple(self._length(symbol, known) for symbol in field.shape)
        value = self._keys(session, known) if field.name == "publics" else self._value(field, shape)
        value = np.asarray(value).astype(field.dtypes[-1])
        if field.constant:
            self.told[name] = value
        return value

    def _value(self, field: Field, shape: tuple[int, ...]) -> NDArray:
        raise NotImplementedError

    def _length(self, symbol: str, known: dict[str, int]) -> int:
        sizes = {**self.sizes, **known}
        if symbol.startswith("<="):
            return int(self.rng.integers(1, sizes[symbol[2:]] + 1))
        return int(symbol) if symbol.isdigit() else {"d(d+1)/2": packed_size(sizes["d"]), "any": 2, **sizes}[symbol]

    def _orthonormal(self, field: Field, shape: tuple[int, ...]) -> NDArray:
        *stack, rows, columns = shape
        tall = np.linalg.qr(self.rng.standard_normal((*stack, max(rows, columns), min(rows, columns))))[0]
        return tall.T if field.kind == "orthonormal rows" else tall

    def _scatter(self, size: int) -> NDArray:
        """Return a packed positive definite matrix, nearly singular as often as not."""
        d = int((np.sqrt(8 * size + 1) - 1) / 2)
        factor = self.rng.standard_normal((d, d)) * 10.0 ** self.rng.uniform(-8, 2, d)
        return pack(factor @ factor.T + 10.0 ** self.rng.uniform(-14, 1) * np.eye(d))

    def _keys(self, session: HostileSession, known: dict[str, int]) -> NDArray:
        size = known.get("key", 32)
        made = [X25519PrivateKey.generate().public_key() for _ in range((session.parties - 1) * size // 32)]
        keys = (session.own_key or bytes(size)) + b"".join(key.public_bytes_raw() for key in made)
        stacked = np.frombuffer(keys, np.uint8).reshape(session.parties, size)
        return stacked[:-1] if self.rng.random() < 0.03 else stacked


class Questions(Adversary):
    """Random arrays for a phase: of the right form more often than not, of any finite size."""

    def arrays(self, question: Question, session: HostileSession, known: dict[str, int]) -> list[NDArray]:
        if self.rng.random() < 0.02:
            return [self._real((3,)) for _ in range(self.rng.integers(0, 5))]
        arrays = {field.name: self._field(field, session, known) for field in question.request.fields}
        if "centre" in arrays:
            if "centre" in self.told and self.rng.random() < 0.9:  # sites take one in a run only
                arrays["centre"] = self.told["centre"]
            self.told["centre"] = arrays["centre"]
        if "publics" in arrays and self.rng.random() < 0.97:
            arrays["signatures"] = signatures(session, arrays["publics"])
        return list(arrays.values())

    def _field(self, field, session: HostileSession, known: dict[str, int]) -> NDArray:
        if field.name == "publics":
            return self._keys(session, known)
        if field.name in {"parties", "members", "survivors", "agreed"}:
            return np.arange(session.parties if self.rng.random() < 0.8 else 2)
        shape = tuple(self._length(symbol, known) for symbol in field.shape)
        if field.dtypes[0] == np.uint8:
            return self.rng.integers(0, 256, shape, dtype=np.uint8)
        if field.dtypes[0].kind in "iu":
            if shape and self.rng.random() < 0.7:  # more often than not a vector of integers holds places
                return self.rng.permutation(shape[0]).astype(field.dtypes[0])
            below = 2 ** int(self.rng.integers(1, 62))
            return np.asarray(self.rng.integers(-1, below, shape or None)).astype(field.dtypes[0])
        if field.optional and self.rng.random() < 0.5:
            return np.empty(0)
        values = self._real(shape)
        if field.name == "frequencies" and self.rng.random() < 0.8:
            values = self.rng.random(shape)
        if field.kind in {"positive", "size"} and self.rng.random() < 0.9:
            values = np.abs(values)
        if field.kind == "scatter" and self.rng.random() < 0.8:
            values = self._scatter(shape[0])
        if field.kind.startswith("orthonormal") and self.rng.random() < 0.7:
            values = self._orthonormal(field, shape)
        with np.errstate(over="ignore"):  # a hostile server may well overflow a float32 to infinity
            return np.asarray(values.astype(field.dtypes[-1]))

    def _real(self, shape: tuple[int, ...]) -> NDArray:
        """Finite numbers: around the size of the data, or extreme."""
        if self.rng.random() < 0.3:
            return np.full(shape, self.rng.choice(EXTREMES))
        return 10.0 ** self.rng.uniform(-1, 4) * np.abs(self.rng.standard_normal(shape) + 1)
