"""Harmony by sums: as well mixed as the paper's program over all rows, and what a site answers about it."""

import numpy as np
import pytest
from sklearn.neighbors import NearestNeighbors

from fedpca_flwr import analyses
from fedpca_flwr.errors import ConfigError, ContractError, DisclosureError
from fedpca_flwr.maths import harmony
from tests.harness import fit
from tests.hostile import HostileSession
from tests.refusals import refused, unnamed

HARMONY = {"n_components": 6, "clusters": 12, "clustering": "harmony"}


def drawn():
    """Three batches of four kinds of cells, in unequal shares, each batch shifted."""
    rng = np.random.default_rng(0)
    kinds, shifts = rng.normal(0, 3, (4, 12)), rng.normal(0, 1.2, (3, 12))
    mixtures = [[0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4], [0.25, 0.25, 0.5, 0]]
    drawn = [rng.choice(4, n, p=mixture) for n, mixture in zip((160, 100, 130), mixtures, strict=True)]
    return [kinds[k] + shift + rng.normal(0, 1, (len(k), 12)) for k, shift in zip(drawn, shifts, strict=True)], drawn


PARTIES, KINDS = drawn()
BATCH = np.repeat(np.arange(3), [len(rows) for rows in PARTIES])


def by_blocks(Z, clusters=12, seed=0):
    """The paper's program on all rows: counts are taken anew after each twentieth of them."""
    rng, (n, _), of_batch = np.random.default_rng(seed), Z.shape, np.eye(3)[BATCH]
    units = harmony.unit(Z)
    centres, moved = units[rng.choice(n, clusters, replace=False)], Z
    R = np.exp(-20 * (1 - units @ centres.T))
    R /= R.sum(axis=1, keepdims=True)
    for _ in range(6):
        for _ in range(15):
            centres = harmony.unit(R.T @ units)
            near = np.exp(-20 * (1 - units @ centres.T))
            for block in np.array_split(rng.permutation(n), 20):
                rest = np.delete(np.arange(n), block)
                held, part = R[rest].T @ of_batch[rest], of_batch[rest].mean(axis=0)
                expected = held.sum(axis=1, keepdims=True) * part
                R[block] = near[block] * (((expected + 1) / (held + 1)) ** 2)[:, BATCH[block]].T
                R[block] /= R[block].sum(axis=1, keepdims=True)
        moved, design = Z.copy(), np.column_stack([np.ones(n), of_batch])
        for share in R.T:
            gram = design.T @ (share[:, None] * design) + np.diag([0, 1, 1, 1])
            effect = np.linalg.solve(gram, design.T @ (share[:, None] * Z))
            moved -= share[:, None] * effect[1:][BATCH]
        units = harmony.unit(moved)
    return moved


def mixed(Z, labels, near=30):
    """How many labels are near a row, on average, less 1, of those that could be (the inverse Simpson index)."""
    found = NearestNeighbors(n_neighbors=near + 1).fit(Z).kneighbors(Z, return_distance=False)[:, 1:]
    shares = np.stack([(labels[found] == one).mean(axis=1) for one in np.unique(labels)])
    return ((1 / (shares**2).sum(axis=0)).mean() - 1) / (len(np.unique(labels)) - 1)


@pytest.mark.engine
def test_batches_are_mixed_as_by_the_papers_program_and_secure_sums_give_the_same(tmp_path):
    model = fit("p-cov", PARTIES, **HARMONY, scores=[tmp_path / f"{i}.csv" for i in range(3)])
    Z = model.transform(np.vstack(PARTIES))
    ours = np.vstack([analyses.harmonised(model, rows, i) for i, rows in enumerate(PARTIES)])
    assert mixed(Z, BATCH) < 0.2 < 0.4 < mixed(ours, BATCH)
    assert mixed(ours, BATCH) == pytest.approx(mixed(by_blocks(Z), BATCH), abs=0.02)
    assert mixed(ours, np.concatenate(KINDS)) < 0.01
    written = np.vstack([np.loadtxt(tmp_path / f"{i}-harmony.csv", delimiter=",", skiprows=1) for i in range(3)])
    np.testing.assert_allclose(written, ours, atol=1e-7)
    secure = fit("p-cov", PARTIES, **HARMONY, secure_aggregation=True, bound=100.0)
    np.testing.assert_allclose(secure.log["harmony"]["moves"], model.log["harmony"]["moves"], atol=1e-8)
    with refused(ConfigError, "'party'", 3):
        analyses.harmonised(model, PARTIES[0], 3)


def test_moves_are_those_of_a_ridge_regression_of_the_rows():
    rng = np.random.default_rng(1)
    Z, of_batch, share = rng.normal(size=(60, 2)), np.eye(3)[rng.integers(0, 3, 60)], rng.random(60)
    sums = np.stack([(share * one) @ Z for one in of_batch.T])
    moves = harmony.ridge_moves((share @ of_batch)[None], sums[None])[0]
    design, root = np.column_stack([np.ones(60), of_batch]), np.sqrt(share)[:, None]
    ridge = np.vstack([root * design, np.diag([0.0, 1, 1, 1])])
    told, *_ = np.linalg.lstsq(ridge, np.vstack([root * Z, np.zeros((4, 2))]), rcond=None)
    np.testing.assert_allclose(moves, told[1:], atol=1e-12)


def test_one_party_has_nothing_taken_off():
    model = fit("p-cov", [np.vstack(PARTIES)], **HARMONY)
    moved = analyses.harmonised(model, PARTIES[0], 0)
    assert np.abs(moved - model.transform(PARTIES[0])).max() < 1e-6


def test_sites_must_allow_that_scores_are_seen_and_models_must_have_moves():
    with refused(DisclosureError, "scores", "distribution"):
        fit("p-cov", PARTIES, **HARMONY, may_show="distribution")
    with refused(ContractError, "clustering='harmony'"):
        analyses.harmonised(fit("p-cov", PARTIES, n_components=2), PARTIES[0], 0)


@pytest.mark.parametrize(
    ("centres", "penalties"), [((2, 3, 2), (2, 3, 3)), ((1, 3, 2), (1, 2, 3)), ((1, 3, 3), (1, 3, 3))]
)
def test_steps_that_do_not_fit_are_refused(tmp_path, caplog, centres, penalties):
    run = {"method": "p-cov", "n-components": 2, "clusters": 3, "clustering": "harmony"}
    asked = HostileSession(tmp_path, PARTIES[0][:, :4], run)
    assert asked.ask("moments", [])[0]
    told = [np.eye(4)[:2], np.zeros(4), np.empty(0)]
    assert asked.refusal("mixed", [*told, np.ones(centres), np.zeros(penalties), np.empty((0, 0, 0, 0))])
    assert not unnamed(caplog.text, "'penalties'")


def test_a_batch_that_its_clusters_describe_without_error_needs_no_second_correction():
    """The objective is zero then, and nothing is better by a share of it."""
    rows = np.repeat([[-3.0], [5.0]], 20, axis=0)
    model = fit("p-cov", [rows], n_components=1, clusters=2, clustering="harmony", seed=1)
    assert model.log["harmony"]["objective"] == 0
    assert len(model.log["harmony"]["moves"]) == 2
