"""Shares and angles are those of the rows; what is out of proportion is told; what no rows have is found."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from scipy.linalg import subspace_angles
from sklearn.datasets import load_wine

from fedpca_flwr.maths import influence
from fedpca_flwr.maths.eigen import leading_eigenpairs
from fedpca_flwr.maths.factors import Factor, triangular_factor
from fedpca_flwr.maths.influence import Influence, Turn, indefinite_parts, outlying_parties, party_influences
from fedpca_flwr.maths.moments import Moments, pack, unpack_symmetric
from fedpca_flwr.maths.sums import pool
from tests.families import cut, rows


def found(parties, k, *, scale=None, center=True, between=True, part=Moments.from_rows):
    """Return the parties' influences on the first k components, these components, and the rows about their mean."""
    pooled = np.vstack(parties)
    mean = pooled.mean(axis=0) if center else np.zeros(pooled.shape[1])
    own = [X - X.mean(axis=0) if not between else X - mean for X in parties]
    scatter = sum(X.T @ X for X in own) / (1.0 if scale is None else np.outer(scale, scale))
    pairs = leading_eigenpairs(np.asfortranarray(scatter), k)
    return party_influences([part(X) for X in parties], pairs, mean, scale, center=center, between=between), pairs, own


def factor(X):
    head, R = triangular_factor(X)
    return Factor(head, R, float(np.vdot(R, R)))


@pytest.mark.parametrize("part", [Moments.from_rows, factor])
@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("scale", [None, np.arange(1.0, 13.0)])
def test_shares_are_those_of_the_rows(part, center, scale):
    parties = [X + 3 * i for i, X in enumerate(cut(rows(400), 200, 150, 49, 1))]
    everyone, pairs, own = found(parties, 5, scale=scale, center=center, part=part)
    unit = np.ones(12) if scale is None else scale
    sizes = np.array([((X / unit) ** 2).sum() for X in own])
    spreads = sizes / [len(X) for X in own]
    for one, X, party, size, spread in zip(everyone, own, parties, sizes, spreads, strict=True):
        np.testing.assert_allclose(one.components, ((X / unit @ pairs.vectors) ** 2).sum(axis=0) / pairs.values)
        alone = (party - party.mean(axis=0)) / unit
        held = ((alone @ pairs.vectors) ** 2).sum() / (alone**2).sum() if len(X) > 1 else np.nan
        expected = [size / sizes.sum(), len(X) / 400, spread / np.median(spreads), held]
        np.testing.assert_allclose([one.variance, one.rows, one.spread, one.fit], expected)
    np.testing.assert_allclose(sum(one.components for one in everyone), 1)
    if part is Moments.from_rows and center and scale is None:  # and without what lies between the parties
        everyone, pairs, own = found(parties, 5, between=False)
        for one, X in zip(everyone, own, strict=True):
            np.testing.assert_allclose(one.components, ((X @ pairs.vectors) ** 2).sum(axis=0) / pairs.values)


def turned(parties, k, left_out, *, scale=None, center=True):
    """Compute from the rows by how many degrees each of k components, and their span, turn without a party."""

    def components(some):
        X = np.vstack(some) / (1.0 if scale is None else scale)
        return np.linalg.svd(X - X.mean(axis=0) * center, full_matrices=False)[2][:k].T

    V, W = components(parties), components([X for i, X in enumerate(parties) if i != left_out])
    axes = np.degrees(np.arccos(np.minimum(1.0, np.abs((V * W).sum(axis=0)))))
    return [*axes, np.degrees(subspace_angles(V, W)[0])]


def unlike():
    """Make parties of which the first holds the first component: without this party the first two swap."""
    rng = np.random.default_rng(5)
    scales = [[5, 3, 2, 1.5, 1, 1], [3, 5, 2, 1, 1.5, 1], [2, 4.5, 4, 1, 1, 1], [5, 2, 2, 2, 1, 1]]
    return [rng.normal(size=(50, 6)) * row + rng.normal(size=6) for row in scales]


PARTIES = {
    "unlike": unlike(),
    "classes": [load_wine().data[load_wine().target == label] for label in range(3)],
    "alike": [X + 0.1 * i for i, X in enumerate(cut(rows(500), 200, 150, 100, 50))],
}


def turns(parties, k, **options):
    """Return by party the turns of the axes and, last, of their span."""
    return np.array([[*one.turn.axes, one.turn.span] for one in found(parties, k, **options)[0]])


def make_dear(monkeypatch):
    monkeypatch.setattr(influence, "MAX_EXACT_COST", 0)
    monkeypatch.setattr(influence, "MAX_EXACT_COST_SHARE", 0)


@pytest.mark.parametrize("name", PARTIES)
@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("scaled", [True, False])
def test_influence_angles_are_exact_or_bounds(monkeypatch, scaled, center, name):
    """Compare the angle of each axis, which the span of all axes does not tell."""
    parties = PARTIES[name]
    how = {"scale": np.vstack(parties).std(axis=0) if scaled else None, "center": center}
    for k in (1, 2, 4):
        true = np.array([turned(parties, k, i, **how) for i in range(len(parties))])
        for part in (Moments.from_rows, factor):
            np.testing.assert_allclose(turns(parties, k, part=part, **how), true, rtol=1e-5, atol=1e-4)
        with monkeypatch.context() as within:
            make_dear(within)
            bounds = turns(parties, k, **how)
            assert ((true - 1e-4 <= bounds) & (bounds <= 90)).all()


def test_influence_bounds_are_near_for_small_parties(monkeypatch):
    """Take eigenvalues 4, 2 and 1, and a change that couples the first two to the third by 0.1 and 0.2."""
    parties = cut(rows(5000, 6), 2990, 2000, 10)
    exact = turns(parties, 3)[2]
    make_dear(monkeypatch)
    assert (turns(parties, 3)[2] <= 5 * exact).all()
    coupled = np.array([[0.0, 0.0], [0.0, 0.0], [0.1, 0.2]])
    turn = influence.bounded_turn(coupled, np.eye(3)[:, :2], np.array([4.0, 2.0]), 1.0)
    first = np.arctan2(2 * 0.1, 4 - (1.5 + np.hypot(0.5, 0.2))) / 2
    both = np.arctan2(2 * np.hypot(0.1, 0.2), 2 - 1) / 2
    second = np.arcsin(np.hypot(np.sin(first), np.sin(both)))
    np.testing.assert_allclose(turn.axes, np.degrees([first, second]), rtol=1e-12)
    assert turn.span == pytest.approx(np.degrees(both), rel=1e-12)


def test_a_lone_partys_components_turn_fully(monkeypatch):
    X, alone = rows(300) @ np.diag(np.repeat([1.0, 0.0], [11, 1])), np.zeros((20, 12))
    alone[:, 11] = np.tile([9.0, -9.0], 10)
    everyone, *_ = found([X[:150], X[150:], alone], 3)
    np.testing.assert_allclose([everyone[2].components[0], everyone[2].turn.axes[0]], [1, 90])
    assert max(one.turn.axes[0] for one in everyone[:2]) < 1
    assert "share" in outlying_parties(everyone)[2]
    # Without the third party two variances are the same, so any axes in their plane will do.
    square = np.vstack([np.diag([2.0, 2, 1, 0]), -np.diag([2.0, 2, 1, 0])])
    *axes, span = turns([square, square, np.array([[1.0, 0, 0, 0.1], [-1, 0, 0, -0.1]])], 2)[2]
    assert (axes, span < 1) == ([90, 90], True)
    for cheap in (0, influence.MAX_EXACT_COST):
        monkeypatch.setattr(influence, "MAX_EXACT_COST", cheap)
        for *axes, span in (turn for parts in ((200, 100), (300,)) for turn in turns(cut(rows(300, 5), *parts), 5)):
            assert span == 0 < min(axes)
        ((only,), *_) = found([rows(300)], 3)
        np.testing.assert_allclose([*only.components, *only.turn.axes, only.turn.span], [1] * 3 + [90] * 4)
        assert outlying_parties([only]) == {}


def test_no_unit_overflows_the_influence():
    def numbers(unit):
        everyone, *_ = found(cut(unit * rows(300), 200, 100), 3)
        return [[*one.components, *one.turn.axes, one.variance, one.fit, one.spread] for one in everyone]

    for unit in (1e-130, 1e130):
        np.testing.assert_allclose(numbers(unit), numbers(1.0))
    flat = rows(300) * np.repeat([1.0, 1e-9], [2, 10])
    assert [found(cut(X, 100, 200), k)[0][0].components.size for X, k in ((flat, 5), (rows(300, 30), 20))] == [2, 10]
    everyone, *_ = found(cut(rows(500), 1, 1, 1, 497), 2)
    assert [np.isnan(one.fit) for one in everyone] == [True, True, True, False]
    assert set(outlying_parties(everyone)) == {3}  # it has 497 of 500 rows


def one(rows=0.2, variance=0.2, components=(0.2, 0.2), fit=0.7, spread=1.0):
    return Influence(rows, variance, np.array(components), [Turn(np.zeros(2), 0.0)], fit, spread)


ORDINARY = [one(), one(rows=0.95), one(rows=0.94), one(spread=9.9), one(fit=0.29), one(fit=np.nan, spread=np.nan)]
ORDINARY += [one(rows=0.11, components=(0.1, 0.34))]  # little is not told however few its rows
ORDINARY += [one(rows=0.13, components=(0.1, 0.36))]  # nor much of whom has many
ODD = [(one(rows=0.96), ["rows"]), (one(spread=10.1), ["spread"]), (one(fit=0.27), ["fit"])]
ODD += [(one(rows=0.11, components=(0.1, 0.36)), ["share"])]
ODD += [(one(rows=0.96, fit=0.1, spread=11.0), ["rows", "spread", "fit"])]


def test_what_is_out_of_proportion_is_told():
    for odd, why in (*((ordinary, None) for ordinary in ORDINARY), *ODD):
        told = outlying_parties([*[one(rows=(1 - odd.rows) / 4) for _ in range(4)], odd])
        assert (told.get(4), len(told)) == (why, why is not None), odd
    assert outlying_parties([one(rows=0.5), one(rows=0.5, fit=0.12, spread=11.0)]) == {}
    assert outlying_parties([one(fit=0.3), one(fit=0.3), one(fit=0.01)]) == {}
    few = [one(rows=1e-10, components=(0.4, 0.1)), one(rows=1e-10), one(rows=1e-10)]
    assert outlying_parties([*few, one(rows=1 - 3e-10, components=(0.1, 0.1))]) == {3: ["rows"]}


def largest(parts) -> float:
    return float(np.linalg.eigvalsh(unpack_symmetric(pool(parts).scatter, 12))[-1])


def erasing(parts):
    """Return moments whose scatter removes the first component of ``parts``, with a diagonal that hides the removal."""
    u = np.linalg.eigh(unpack_symmetric(pool(parts).scatter, 12)).eigenvectors[:, -1]
    return replace(parts[0], scatter=pack(largest(parts) * (np.eye(12) * (u**2).max() - np.outer(u, u))))


@pytest.mark.parametrize("count", [2, influence.MAX_GROUPS, 10, 50])
def test_a_share_that_takes_a_component_away_is_found(count):
    honest = [Moments.from_rows(X) for X in np.array_split(rows(2000), count)]
    parts = [*honest[:-1], erasing(honest)]
    assert parts[-1].diagonal().min() >= 0
    for seed in range(20):
        assert indefinite_parts(parts, largest(parts), None, np.random.default_rng(seed)) == [count - 1]


@pytest.mark.parametrize("ends", [None, (-6, 6), (20, 32), (-112, -88), (88, 112)])
def test_scatters_of_rows_pass_in_any_rank_and_unit(ends):
    """Float32 does not hold the squares of units between the last three ends."""
    unit = None if ends is None else np.logspace(*ends, 12)
    X = np.where(np.arange(12) == 3, 7.0, rows(300))
    for sizes in ((1, 1, 1, 297), (100, 100, 100), (2, 298)):
        parts = [Moments.from_rows((part + 5) * (1.0 if unit is None else unit)) for part in cut(X, *sizes)]
        value = largest(map(Moments.from_rows, cut(X, *sizes)))
        assert indefinite_parts(parts, value, unit, np.random.default_rng(0)) == []
    if unit is not None:
        honest = list(map(Moments.from_rows, cut(rows(300), 100, 100, 100)))
        bad = [*honest[:2], erasing(honest)]
        scaled = [replace(p, mean=p.mean * unit, scatter=p.scatter * pack(np.outer(unit, unit))) for p in bad]
        assert indefinite_parts(scaled, largest(bad), unit, np.random.default_rng(0)) == [2]


def test_negative_eigenvalues_beyond_rounding_are_named():
    """Rounding are 4 d roundings of float32: 1.4e-6 of the largest eigenvalue for three features."""
    X = Moments.from_rows(rows(300))
    huge = [replace(X, scatter=sign * 1e300 * X.scatter) for sign in (1, -1)]
    assert indefinite_parts([X, huge[0], X, huge[1]], 1.0, None, np.random.default_rng(1)) == [3]
    for unit, (part, named) in product((1e-200, 1.0, 1e200), ((1e-6, []), (2e-6, [0]))):
        own = Moments(9, np.zeros(3), np.zeros(3), unit * pack(np.diag([1.0, 0.5, -part])))
        assert indefinite_parts([own], unit, None, np.random.default_rng(0)) == named
    groups = influence.RandomGroups(1, np.random.default_rng(0))
    groups.add("north", replace(own, scatter=own.scatter / unit))
    assert groups.indefinite_groups(3, 1.0, None) == [["north"]]
