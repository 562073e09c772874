"""`personalised`: what a site answers is a function of counts, means and scatters of its rows, and its fold never moves."""

from __future__ import annotations

import itertools
from contextlib import suppress

import numpy as np
import pytest

from fedpca_flwr.errors import ConfigError, DisclosureError
from fedpca_flwr.protocol.script import require_next
from fedpca_flwr.site.fold import FOLD, fold
from fedpca_flwr.site.journal import FileJournal
from fedpca_flwr.node_config import NodeConfig
from strategies.personalised.client import PersonalisedClient
from strategies.personalised.script import GRID, HELD_OUT
from tests.attacks.test_repeats import events, sites
from tests.families import rows
from tests.harness import finish
from tests.hostile import HostileSession

SECURE = {"secure-aggregation": True, "bound": 1e4}
SHAPES = {"tall": (60, 8), "wide": (25, 40)}
K = 2


# Equal moments, equal answers


def fixing_ones(n, rng):
    """A random orthogonal matrix (n, n) that leaves the vector of ones as it is."""
    basis = np.linalg.qr(np.column_stack([np.ones(n), rng.standard_normal((n, n - 1))])).Q
    turn = np.linalg.qr(rng.standard_normal((n - 1, n - 1))).Q
    return basis[:, :1] @ basis[:, :1].T + basis[:, 1:] @ turn @ basis[:, 1:].T


def twins(shape, held):
    """Rows, and others with the same count, mean and scatter; so have those held out alone, and those that are not."""
    rng = np.random.default_rng(8)
    X = rng.standard_normal(shape) * rng.uniform(1, 6, shape[1]) + rng.uniform(-3, 3, shape[1]) + 10
    other = X.copy()
    for part in (held, ~held):
        other[part] = fixing_ones(int(part.sum()), rng) @ X[part]
    return X, other


def orthonormal(*shape):
    return np.linalg.qr(np.random.default_rng(3).standard_normal(shape)).Q


def questions(d, mean, *, secure, solver):
    """All questions of a run in turn; each pass asks about one mean, and of blocks of every size."""
    rng, spread = np.random.default_rng(6), {"spread": np.ones(d)} if secure else {}
    centre = {"mean": mean, "remainder": 1e-17 * mean, **spread}
    level = np.eye(d)[:, :1] - np.eye(d)[:, 1:2]  # along it, the distance to the mean is that of the rows' own means
    blocks = [rng.standard_normal((d, 5)) * 10.0 ** rng.uniform(-9, 9, 5), 1e290 * np.ones((d, 1)), level]
    for prefix, strengths in ((HELD_OUT, np.array(GRID)), ("", np.array([50.0]))):
        if secure:
            yield f"{prefix}sums", {}
            yield f"{prefix}deviations", {"rows": np.asarray(100), "centre": mean}
        else:
            yield f"{prefix}start", {}
        for block in blocks:
            yield f"{prefix}product", {"block": block, **centre}
        V = np.repeat(orthonormal(d, K)[None], len(strengths), axis=0)
        for _ in range(2):
            yield f"{prefix}share", {"shared": V, "strengths": 40 * strengths, **centre}
        if prefix:
            yield "choose", {"shared": V[0], **centre}
    yield "report", {"shared": np.hstack([level / np.sqrt(2), np.eye(d)[:, 2:3]]), "strengths": strengths, **centre}


def natural(name, phase, asked, X):
    """The size of an answer that rounding is relative to, from the moments of all rows."""
    n, m = len(X), X.mean(axis=0)
    own, shift = np.sqrt(np.square(X - m).sum(axis=0)), np.sqrt(n) * (m - asked.get("mean", asked.get("centre", m)))
    energy = np.sum(own**2) + np.sum(shift**2)
    if name == "product":
        V = asked["block"]
        return np.outer(own, own @ np.abs(V)) + np.outer(np.abs(shift), np.abs(shift @ V))
    if name == "gram":
        V = asked["shared"]
        sizes = np.sqrt(np.square(own @ np.abs(V)) + np.square(shift @ V))
        return np.outer(sizes, sizes)
    return {"error": energy, "errors": energy, "shared": 1.0, "distance": K}.get(name, energy + n * np.abs(X).max())


MEANS = {
    "a mean": lambda d: 10 + np.linspace(-1, 1, d),
    "a hundred away": lambda d: np.linspace(-1, 1, d) * 1e2,
    "rounding": lambda d: np.concatenate([np.full(2, -(2.0**53)), np.zeros(d - 2)]),
    "1e30": lambda d: np.linspace(-1, 1, d) * 1e30,
    "1e150": lambda d: np.linspace(-1, 1, d) * 1e150,
}


@pytest.mark.parametrize("mean", MEANS.values(), ids=MEANS)
@pytest.mark.parametrize("secure", [False, True], ids=["clear", "masked"])
@pytest.mark.parametrize("solver", ["closed-form", "stiefel"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_rows_of_equal_moments_get_equal_answers(shape, solver, secure, mean, tmp_path, monkeypatch):
    """The rows are turned among themselves; a number subtracted from each of them would round each otherwise."""
    held = np.arange(shape[0]) % 5 == 2
    monkeypatch.setattr(PersonalisedClient, "_held_out", held)
    run = {"method": "personalised", "n-components": K, "solver": solver, **(SECURE if secure else {})}
    pair = [HostileSession(tmp_path / str(i), X, run) for i, X in enumerate(twins(shape, held))]
    X, client = twins(shape, held)[0], pair[0].client
    phases = client.card.phases(client.site.config, client.options)
    for phase, asked in questions(shape[1], mean(shape[1]), secure=secure, solver=solver):
        assert list(asked) == [field.name for field in phases[phase].asked.fields]
        one, other = (session.client.statistics(phase, asked) for session in pair)
        for name, value in one.items():
            allowed = 1e-9 * natural(name, phase, asked, X)
            assert np.isfinite(value).all(), (phase, name)
            assert (np.abs(value - other[name]) <= allowed).all(), (phase, name)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_mean_beyond_all_numbers_is_refused_whatever_the_rows(shape, tmp_path):
    run = {"method": "personalised", "n-components": K, "mu": 1.0}
    X, other = twins(shape, np.arange(shape[0]) % 5 == 2)
    said = []
    for i, own in enumerate([X, other]):
        session = HostileSession(tmp_path / str(i), own, run)
        session.ask("start", [])
        arrays, told = session.ask("product", [np.eye(shape[1], 3), np.full(shape[1], 1e300), np.zeros(shape[1])])
        assert arrays == []
        said.append(told["message"])
    assert said == ["this site ended its part in the run; its own log says why"] * 2


def test_shared_components_of_any_other_size_are_refused(tmp_path):
    run = {"method": "personalised", "n-components": K, "mu": 1.0}
    session = HostileSession(tmp_path, rows(40, 6), run)
    session.ask("start", [])
    V, z = np.eye(6, K)[None], np.zeros(6)
    arrays, _ = session.ask("product", [np.eye(6, 3), z, z])
    assert len(arrays) == 1
    arrays, told = session.ask("share", [1e9 * V, np.ones(1), z, z])
    assert arrays == []
    assert "error" in told


# A threshold on single rows, by the rounding of what is far away


def away(t, d):
    """A mean beside which what is above t rounds up and what is below rounds down, in the first of two features."""
    mean = np.zeros(d)
    mean[:2] = -(2.0**53 - t), -(2.0**53 - 1000)
    return mean


@pytest.mark.parametrize("shape", [(20, 60), (60, 5)], ids=SHAPES)
@pytest.mark.parametrize("phase", ["product", "report", "share"])
def test_no_row_is_told_from_the_others_by_a_threshold(phase, shape, tmp_path):
    """Each age in turn: on the old code the answers jump where a row passes it, by that row's values."""
    n, d = shape
    rng = np.random.default_rng(4)
    ages = rng.permutation(np.arange(18, 18 + 2 * n, 2))
    X = np.column_stack([ages, np.full(n, 1000.0), np.round(rng.normal(120, 15, (n, d - 2)), 2)])
    run = {"method": "personalised", "n-components": 1, "mu": 1.0}
    session = HostileSession(tmp_path, X, run)
    level, z = (np.eye(d)[:, :1] - np.eye(d)[:, 1:2]) / np.sqrt(2), np.zeros(d)
    answers = []
    for t in range(17, 19 + 2 * n):
        mean = away(float(t), d)
        asked = {
            "product": {"block": level, "mean": mean, "remainder": z},
            "share": {"shared": level[None], "strengths": np.array([1e-3]), "mean": mean, "remainder": z},
            "report": {"shared": level, "strengths": np.empty(0), "mean": mean, "remainder": z},
        }[phase]
        given = session.client.statistics(phase, asked)
        S = np.cov(X.T, bias=True) * n
        shift = np.sqrt(n) * (X.mean(axis=0) - mean)
        moments = {
            "product": S @ level + np.outer(shift, shift @ level),
            "gram": level.T @ S @ level + np.square(shift @ level).sum(),
        }
        name = {"product": "product", "report": "gram", "share": "shared"}[phase]
        expected = moments.get(name, np.zeros(1))
        rest = np.asarray(given[name])[2:] if phase == "product" else np.asarray(given[name])
        answers.append((rest.ravel(), np.asarray(expected[2:] if phase == "product" else expected).ravel()))
    if phase == "share":
        assert np.ptp([answer for answer, _ in answers], axis=0).max() < 1e-9
    else:
        for answer, expected in answers:
            np.testing.assert_allclose(answer, expected, rtol=1e-9)
