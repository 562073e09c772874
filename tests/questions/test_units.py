"""A site that has a feature in another unit: named where the server sees its means, and no alarm on honest parties."""

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer, load_digits, load_wine

from fedpca_flwr.maths.adjustment import other_units
from fedpca_flwr.questions.influence import UNSEEN
from simulations import run

SECURE = {"secure_aggregation": True, "bound": 1000.0}


def hospitals(count=3, seed=0):
    """Height in cm, glucose and age of patients."""
    rng = np.random.default_rng(seed)
    return [
        np.c_[rng.normal(168 + 3 * i, 10, 60), rng.lognormal(4.6, 0.3, 60), rng.normal(50 - 2 * i, 15, 60)]
        for i in range(count)
    ]


def with_unit(parts, party, feature, factor):
    changed = [part.copy() for part in parts]
    changed[party][:, feature] *= factor
    return changed


METRES = with_unit(hospitals(), 2, 0, 0.01)


def told(parts, method="p-cov", **options):
    model = run(method, parts, n_components=2, **options)
    return [note for note in model.log["notes"] if "another unit" in note]


def found(parts):
    rows = np.array([len(part) for part in parts], dtype=float)
    return other_units(rows, np.stack([p.mean(axis=0) for p in parts]), np.stack([p.std(axis=0) for p in parts]))


@pytest.mark.parametrize("method", ["p-cov", "p-cov scale=true", "ap-cov scale=true", "qr-pca", "sub-it"])
def test_metres_at_one_of_three_hospitals_are_named_with_feature_site_and_means(method):
    (note,) = told([pd.DataFrame(part, columns=["height_cm", "glucose", "age"]) for part in METRES], method)
    here, there = METRES[2][:, 0].mean(), (METRES[0][:, 0].mean() + METRES[1][:, 0].mean()) / 2
    assert note.startswith("client 2 seems to have features in another unit than the others: height_cm (mean ")
    assert f"(mean {here:.4g} there, {there:.4g} elsewhere)." in note
    assert told(hospitals(), method) == []


@pytest.mark.parametrize("factor", [18.0, 1 / 18, 0.01, 88.4])
@pytest.mark.parametrize("count", [3, 5, 8])
def test_a_change_of_unit_is_found_whatever_party_feature_and_factor(count, factor):
    for party, feature in np.ndindex(count, 3):
        ((who, which, mean, others),) = found(with_unit(hospitals(count), party, feature, factor))
        assert (who, which) == (party, feature)
        assert factor / 2 < mean / others < 2 * factor


def test_units_are_named_of_the_odd_parties_and_of_nobody_by_chance():
    for party in (0, 1):
        ((who, which, *_),) = found(with_unit(hospitals(2), party, 0, 0.01))
        assert (who, which) == (1, 0)
    assert [unit.party for unit in found(with_unit(with_unit(hospitals(5), 1, 0, 0.01), 4, 0, 0.01))] == [1, 4]
    parts = [np.random.default_rng(i).normal(100, 10, (40, 6)) for i in range(3)]
    (note,) = told([parts[0] * 25.4, *parts[1:]])
    assert "feature 1 (mean" in note
    assert "feature 3 (mean" in note
    assert "feature 4" not in note
    assert "and 3 more features." in note
    rng = np.random.default_rng(0)
    counts = [rng.poisson(rate, (200, 4)).astype(float) for rate in (2, 60, 3, 2)]
    assert not found(counts)  # thirty times the mean, five times the deviation
    assert not found([rng.normal(75, 15, (80, 1)), rng.normal(78, 15, (80, 1)), rng.normal(20, 8, (80, 1))])
    assert not found([*METRES[:2], METRES[2][:9]])  # too few rows
    assert not found([np.full((20, 2), value) for value in (1.0, 1.0, 100.0)])  # constant


def dirichlet(X, y, parties, alpha, rng):
    shares = rng.dirichlet([alpha] * parties, y.max() + 1).cumsum(axis=1)
    of = (rng.random((len(y), 1)) > shares[y]).sum(axis=1)
    return [X[of == party] for party in np.unique(of)]


@pytest.mark.parametrize("alpha", [0.05, 0.3, 1.0])
@pytest.mark.parametrize("parties", [2, 3, 10])
@pytest.mark.parametrize("load", [load_digits, load_wine, load_breast_cancer])
def test_honest_parties_that_are_unlike_raise_no_alarm(load, parties, alpha):
    """Digits by label: pixels that one party never inks, constant ones; tumours and wines by kind."""
    data = load()
    for seed in range(5):
        assert not found(dirichlet(data.data, data.target, parties, alpha, np.random.default_rng(seed)))
    if alpha == 1:
        for column in range(data.data.shape[1]):  # what differs by degrees
            assert not found(np.array_split(data.data[np.argsort(data.data[:, column])], parties))


def beyond(parts, **options):
    """Which of a party's features are beyond four times the model's own mean or scale; and what the run notes."""
    model = run("p-cov", parts, n_components=2, **SECURE, scale=True)
    seen = [np.maximum(model.scale_ / p.std(axis=0), np.abs(model.mean_ / p.mean(axis=0))) > 4 for p in parts]
    return seen, model.log["notes"]


def test_with_sums_only_a_run_that_scales_says_that_nobody_but_the_sites_can_see_it():
    """By the model's own mean and scale."""
    assert not np.any(beyond(hospitals())[0])
    seen, notes = beyond(METRES)
    assert np.array(seen).tolist() == [[True, False, False]] * 3
    unscaled = run("p-cov", METRES, n_components=2, **SECURE).log["notes"]
    assert (UNSEEN in notes, UNSEEN in unscaled) == (True, False)
    assert not [note for note in [*notes, *unscaled] if "seems to have" in note]
