"""Servers that want all inner products of people from a site that shows scores only: each of these once got them."""

import numpy as np
import pytest

from fedpca_flwr.maths.columns import gram_product
from fedpca_flwr.strategies import METHODS
from tests.hostile import HostileSession
from tests.refusals import unnamed

KRYLOV = {"method": "vertical", "n-components": 1}
SECURE = {"secure-aggregation": True, "bound": 1000.0}
PEOPLE = np.random.default_rng(1).integers(0, 50, (12, 5)).astype(float)
CENTRED = PEOPLE - PEOPLE.mean(axis=0)
ALL = CENTRED @ CENTRED.T


def site(tmp_path, run, rows=PEOPLE, **node):
    return HostileSession(tmp_path, rows, run, **{"may-show": "scores", **node})


def random_block(columns, seed=0):
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((len(PEOPLE), columns)))[0]


def completed(Q, AQ):
    """Return the only positive semidefinite matrix of rank at most that of ``AQ`` with these products."""
    return AQ @ np.linalg.pinv(Q.T @ AQ, rcond=1e-10) @ AQ.T


def missed(found):
    return np.abs(found - ALL).max() / np.abs(ALL).max()


def within(run, columns, width):
    return {**run, "block-size": width, "max-rounds": columns // width}


def test_a_block_is_narrow_and_orthonormal(tmp_path):
    for block in (np.eye(12), random_block(3), 2 * random_block(2), np.ones((12, 2)), np.eye(12)[:, [0, 0]]):
        asking = site(tmp_path / str(block.sum()), within(KRYLOV, 4, 2))
        assert asking.ask("rows", [])[0]
        assert asking.refusal("product", [block]).startswith("PartyError")


@pytest.mark.parametrize("width", [1, 2, 4])
def test_all_that_a_run_may_ask_leaves_inner_products_unknown(tmp_path, width):
    asking, blocks, products = site(tmp_path, within(KRYLOV, 4, width)), [], []
    assert asking.ask("rows", [])[0]
    for seed in range(20):
        replied, _ = asking.ask("product", [random_block(width, seed)])
        blocks += [random_block(width, seed)] * len(replied)
        products += replied
    assert np.hstack(products).shape == (12, 4)
    assert missed(completed(np.hstack(blocks), np.hstack(products))) > 1e-3
    five = np.hstack([*blocks, random_block(1, 20)])  # as many as the site has columns, far fewer than rows
    assert missed(completed(five, gram_product(CENTRED, five))) < 1e-9


@pytest.mark.parametrize("journal", [{}, {"journal": "", "repeat": "allow"}], ids=["journal", "memory"])
def test_two_configurations_of_one_run_do_not_add_up(journal, tmp_path):
    """Each may ask for 4 columns of products, and 5 tell everything."""
    asking, four, one = site(tmp_path, within(KRYLOV, 4, 4), **journal), random_block(4), random_block(1, seed=1)
    assert asking.ask("rows", [])[0]
    assert asking.ask("product", [four])[0]
    asking.context.run_config |= METHODS.run_config(within(KRYLOV, 4, 1))
    assert asking.refusal("product", [one]).startswith("PartyError")


OTHERS = {"vfedpca": 3, "vfedakpca": 5, "vfedpca variant=faithful": 2}
TOO_MANY = [KRYLOV, within(KRYLOV, 5, 1), within(KRYLOV, 6, 3), {**KRYLOV, "solver": "merge", "rank": 5}]
TOO_MANY += [{"method": method, "n-components": k} for method, k in OTHERS.items()]


@pytest.mark.parametrize("run", TOO_MANY, ids=str)
def test_too_many_products_are_refused_before_any_answer(tmp_path, run):
    asking = site(tmp_path, run)
    for said in (asking.client.get_properties({}), asking.ask("rows", [])[1]):
        assert (said["error"], unnamed(said["message"], 5, 12, "may-show='inner products'")) == ("DisclosureError", [])
    assert site(tmp_path / "more", run, **{"may-show": "inner products"}).ask("rows", [])[0]


def test_columns_of_all_parties_count_against_the_rows(tmp_path):
    for method, components in (("vfedpca", 2), ("vfedpca periods=1", 4)):  # of which later periods tell no more
        assert site(tmp_path / method, {"method": method, "n-components": components}).ask("rows", [])[0]
    wide = np.random.default_rng(1).integers(0, 50, (12, 40)).astype(float)
    assert site(tmp_path / "a", within(KRYLOV, 10, 2), rows=wide).ask("rows", [])[0]
    assert not unnamed(site(tmp_path / "b", within(KRYLOV, 12, 2), rows=wide).refusal("rows", []), 11, 12, 40)
    # Three parties, 5 columns here: of at least 7, six products leave one direction unknown.
    for columns, width, answered in ((6, 2, True), (7, 1, False)):
        asking = site(tmp_path / str(columns), {**within(KRYLOV, columns, width), **SECURE})
        assert bool(asking.ask("rows", [])[0]) is answered


def asked_for(tmp_path, columns, run_id, rows=PEOPLE, **node):
    """Return what a run of so many products says first, and the products that it gets."""
    asking = site(tmp_path, within(KRYLOV, columns, 1), rows=rows, run_id=run_id, **node)
    replied, said = asking.ask("rows", [])
    blocks = [random_block(1, seed=10 * run_id + i) for i in range(columns if replied else 0)]
    return said, blocks, [asking.ask("product", [block])[0][0] for block in blocks]


@pytest.mark.engine
def test_runs_of_one_column_each_leave_inner_products_unknown(tmp_path):
    """Each of them may ask for one column: four are answered, and so were forty."""
    runs = [asked_for(tmp_path, 1, run_id) for run_id in range(1, 9)]
    blocks, products = ([array for run in runs for array in run[part]] for part in (1, 2))
    said = runs[-1][0]
    assert (said["error"], unnamed(said["message"], 1, 4, 5, "'n-components'")) == ("DisclosureError", [])
    assert len(products) == 4
    assert missed(completed(np.hstack(blocks), np.hstack(products))) > 1e-3


def test_answered_runs_over_the_same_rows_are_counted(tmp_path):
    """Not where it was only tried out; whatever it then asks."""
    for run_id in (1, 2):
        assert "error" not in site(tmp_path, within(KRYLOV, 4, 1), run_id=run_id).client.get_properties({})
    assert site(tmp_path, within(KRYLOV, 3, 1), run_id=3).ask("rows", [])[0]
    assert asked_for(tmp_path, 2, 4)[0]["error"] == "DisclosureError"
    assert len(asked_for(tmp_path, 1, 5)[2]) == 1
    assert len(asked_for(tmp_path / "2", 4, 1)[2]) == 4
    assert len(asked_for(tmp_path / "2", 4, 2, rows=PEOPLE[::-1] + 1)[2]) == 4
    asking = site(tmp_path / "2", {**within(KRYLOV, 1, 1), "scale": True}, run_id=3)
    assert asking.ask("rows", [])[1]["error"] == "DisclosureError"
    for run_id in (1, 2):
        assert len(asked_for(tmp_path / "3", 4, run_id, journal="", repeat="allow")[2]) == 4
    said, _, _ = asked_for(tmp_path / "3", 1, 3, journal="")
    assert (said["error"], "may-show='scores'" in said["message"]) == ("ConfigError", True)
