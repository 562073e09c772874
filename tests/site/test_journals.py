"""Sites that keep their data and their journal in files: every method comes to its end, with the same bits."""

from __future__ import annotations

import numpy as np
import pytest

from strategies import METHODS
from tests.families import cut, rows
from tests.harness import at_sites, finish, fit, own, server_of

BY_ROWS = [name for name, method in METHODS.items() if method.strategy.card.split == "rows" and name != "dp-pca"]
"""The noise of `dp-pca` is never the same; its journals have tests of their own."""


@pytest.mark.parametrize("method", BY_ROWS)
def test_a_journal_changes_no_bit(method, tmp_path):
    parties = cut(rows(120, 6), 50, 40, 30)
    nodes = []
    for party, own_rows in enumerate(parties):
        np.save(tmp_path / f"rows{party}.npy", own_rows)
        files = {"data": str(tmp_path / f"rows{party}.npy"), "journal": str(tmp_path / f"journal{party}")}
        nodes.append({**files, "split": "rows", "min-rows": 10})
    given = {"mu": 1.0} if method == "personalised" else {}  # to choose it, a site draws rows that no simulation knows
    options = {"n_components": 3, **own(method), **given}
    model = finish(at_sites(server_of(method, parties, **options), nodes))
    expected = fit(method, parties, **options)
    assert model.components_.tobytes() == expected.components_.tobytes()
