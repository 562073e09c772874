"""Ways round a site's rules that were open: pairs of features, levels, rows that change, slopes asked again."""

from itertools import combinations

import numpy as np
import pandas as pd
import pytest

from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.data.categories import encoded
from fedpca_flwr.site import local_table
from fedpca_flwr.site.readers import files as readers
from fedpca_flwr.site.rules.repeats import MAX_BOUND_ANSWERS
from tests.families import rows
from tests.hostile import HostileSession, keys_of

SECURE = {"secure-aggregation": True, "bound": 100.0}
MASKED = {"method": "sub-it", "n-components": 1, "block-size": 2, "max-rounds": 9, **SECURE}
HARMONISED = {"method": "p-cov", "n-components": 2, "harmonise": "variances", "adjust-for": "0", **SECURE}


def together(folder, run, *, run_id=1):
    """Three sites of a masked run that have exchanged their keys, and sent what comes before the scatter."""
    sites = [HostileSession(folder / str(i), rows(60, 4, seed=i), run, index=i, run_id=run_id) for i in range(3)]
    keys = keys_of(sites)
    assert all(site.ask("sums" if run is MASKED else "moments", keys)[0] for site in sites)
    return sites


def test_two_chips_do_not_isolate_a_shared_person(tmp_path):
    """Each variant was typed in 41 people; every pair across the two chips in one, whose products the scatter is."""
    G = np.random.default_rng(0).binomial(2, 0.4, (81, 12)).astype(float)
    G[:40, 6:] = G[40:80, :6] = np.nan
    run = {"method": "p-cov", "n-components": 2, "genotypes": True}
    node = {"min-rows": 10, "gaps": "all"}
    shared = HostileSession(tmp_path / "shared", G, run, **node)
    assert "pairs of features that have values together in fewer rows" in shared.refusal("alleles", [])
    G[80] = np.nan  # nobody on both: the pair tells nothing
    assert HostileSession(tmp_path / "apart", G[:80], run, **node).ask("alleles", [])[0]


@pytest.mark.parametrize("rare", [1, 4, 9])
@pytest.mark.parametrize("empty", [0, 3, 11])
def test_runs_of_other_levels_differ_by_many_rows(rare, empty):
    """Their sums would differ by the sums over these rows: of a level that one row has, by the row."""
    cells = ["a"] * 40 + ["b"] * 25 + ["c"] * 12 + ["d"] * 10 + ["x"] * rare + ["y"] * (rare - 1) + [None] * empty
    frame = pd.DataFrame({"kind": cells})
    declared = [own for size in range(1, 7) for own in combinations("abcdxy", size)]
    tables = [np.asarray(encoded(frame, {"kind": own}, "site", min_rows=10).rows) for own in declared]
    seen = np.unique(np.hstack(tables), axis=1).astype(int).T
    apart = (seen[:, None] > seen[None]).sum(axis=2)  # rows in one indicator, and not in the other
    assert seen.sum(axis=1).max() > 10
    assert not ((apart > 0) & (apart < 10)).any()


def test_a_file_that_gains_a_row_during_a_run_ends_it(tmp_path):
    """The difference of two sums of the same block was that row."""
    sites = together(tmp_path, MASKED)
    asked = [np.zeros(4), np.full(4, 100.0)]
    assert all(site.ask("product", [*asked, np.eye(4)[:, :2]])[0] for site in sites)
    np.save(tmp_path / "1" / "rows.npy", np.vstack([rows(60, 4, seed=1), rows(1, 4, seed=9)]))
    assert [bool(site.ask("product", [*asked, np.eye(4)[:, 2:]])[0]) for site in sites] == [True, False, True]


def test_a_file_that_changes_during_a_run_is_another(tmp_path, monkeypatch):
    """Else a first answer was of the rows before, and the next of those after, under the same digest."""
    file = tmp_path / "rows.npy"
    np.save(file, rows(60, 4))
    honest = readers.read

    def overtaken(*given, **more):
        table = honest(*given, **more)
        if len(table.rows) == 60:  # once
            np.save(file, rows(61, 4))
        return table

    monkeypatch.setattr(local_table, "read", overtaken)
    node = NodeConfig.parse({"partition-id": 0, "num-partitions": 3, "data": str(file)})
    first, then = (local_table.local_table(node, RunConfig()).digest for _ in range(2))
    assert first != then


@pytest.mark.engine
def test_other_slopes_for_the_same_rows_are_refused(tmp_path):
    """What is divided by each party's own deviations is no sum of shares: a few such sums told every share."""
    for run_id, slope in ((1, 0.25), (2, 0.25), (3, 0.5)):
        asked = [np.array([[0.0, slope, 0.0, 0.0]]), np.full(4, 3.0)]
        for site in together(tmp_path, HARMONISED, run_id=run_id):
            assert bool(site.ask("harmonised", asked)[0]) == (slope == 0.25)


@pytest.mark.parametrize(("repeat", "sets"), [("refuse", 1), ("refuse-same", 4)])
def test_a_row_more_does_not_buy_more_bounds(repeat, sets, tmp_path):
    """Unless the site says that such rows are all new."""
    answered = 0
    for number in range(4 * MAX_BOUND_ANSWERS):
        X = np.vstack([rows(60, 3), np.zeros((number // MAX_BOUND_ANSWERS, 3))])
        run = {"method": "p-cov", "n-components": 2, "secure-aggregation": True, "bound": 100.0 - number}
        said = HostileSession(tmp_path, X, run, run_id=number + 1, repeat=repeat).client.get_properties({})
        answered += "error" not in said
    assert answered == sets * MAX_BOUND_ANSWERS


@pytest.mark.parametrize("columns", [3, 4, 20])
def test_em_answers_no_more_directions_than_the_run_has_factors(columns, tmp_path):
    """With as many as features the products were the whole expected covariance."""
    X = rows(60, 20)
    X[np.random.default_rng(0).random(X.shape) < 0.1] = np.nan
    run = {"method": "em", "n-components": 2, "model": "factors", "factors": 3}
    site = HostileSession(tmp_path, X, run)
    _, _, values, totals = site.ask("observed", [])[0]
    assert site.ask("deviations", [np.asarray(60), totals / values])[0]
    directions = [np.eye(20)[:, :columns], np.full(columns, 2.0), np.asarray(1.0)]
    answer, _ = site.ask("products", [np.asarray(60), totals / values, np.ones(20), np.zeros(20), *directions])
    assert bool(answer) == (columns <= 3)
