"""A server that declares other levels in each run looks for indicators that differ by few rows."""

from itertools import combinations

import numpy as np
import pandas as pd
import pytest

from fedpca_flwr.data.categories import encoded

LEAST = 10


@pytest.mark.parametrize("rare", [1, 4, 9])
@pytest.mark.parametrize("empty", [0, 3, 11])
def test_no_two_runs_differ_by_few_rows_of_a_site(rare, empty):
    """Their sums would differ by the sums over these rows: of a level that one row has, by the row."""
    cells = ["a"] * 40 + ["b"] * 25 + ["c"] * 12 + ["d"] * 10 + ["x"] * rare + ["y"] * (rare - 1) + [None] * empty
    frame = pd.DataFrame({"kind": cells})
    declared = [own for size in range(1, 7) for own in combinations("abcdxy", size)]
    tables = [np.asarray(encoded(frame, {"kind": own}, "site", least=LEAST).rows) for own in declared]
    seen = np.unique(np.hstack(tables), axis=1).astype(int).T
    apart = (seen[:, None] > seen[None]).sum(axis=2)  # rows in one indicator, and not in the other
    assert seen.sum(axis=1).max() > LEAST
    assert not ((apart > 0) & (apart < LEAST)).any()
