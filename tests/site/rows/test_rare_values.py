"""Columns by which few rows could be read out of moments: which ones, and what a site tells of them."""

import numpy as np
import pytest
from scipy import sparse

from fedpca_flwr.errors import DisclosureError
from fedpca_flwr.maths.rows import sparse_rows, weight_rows
from fedpca_flwr.site.rows.rare_values import conspicuous, conspicuous_text
from fedpca_flwr.site.rows.selection import Selection
from tests.families import rows
from tests.harness import finish, server_of
from tests.hostile import HostileSession
from tests.refusals import refused

RUN = {"method": "p-cov", "n-components": 2}


def one_column(x, min_rows, weights):
    """Return by definition whether a column has rare values, and the largest share of a row over the allowed share."""
    here = ~np.isnan(x)
    x, weights = x[here], weights[here]
    counts = np.unique(x, return_counts=True)[1] if x.size else np.zeros(1, int)
    rare = 0 < x.size - counts.max() < min_rows and counts.max() > 1
    if not x.size or np.ptp(x) == 0:
        return rare, 0.0
    shares = weights * (x - np.average(x, weights=weights)) ** 2
    return rare, shares.max() / shares.sum() / max(0.2, 25 / x.size)


@pytest.mark.parametrize("kind", ["dense", "sparse", "weighted", "integers", "missing"])
def test_columns_are_those_of_the_definitions(kind):
    """The tables have at least as many rows as the minimum, fewer than twice as many too, and several blocks."""
    rng, hit = np.random.default_rng(3), np.zeros(2, int)
    for trial in range(300):
        n, d, min_rows = int(rng.integers(1, 90)), int(rng.integers(1, 7)), int(rng.integers(1, 25))
        X = rng.integers(0, rng.integers(1, 4), (n, d)) * (rng.random((n, d)) < rng.random()) + 7.0 * (trial % 3 == 0)
        if kind in {"dense", "sparse"} and trial % 2:
            X = X * np.exp(3 * rng.normal(size=(n, d))) * (-1) ** (trial // 2)  # far above all others, or far below
        if kind == "missing":
            X[rng.random((n, d)) < rng.random()] = np.nan
        weights = rng.integers(1, 4, n).astype(float) if kind == "weighted" else np.ones(n)
        kinds = {"integers": np.uint8, "sparse": lambda X: sparse_rows(sparse.csr_array(X))}
        kinds["weighted"] = lambda X, weights=weights: weight_rows(X, weights)
        result = conspicuous(kinds.get(kind, np.asarray)(X), min_rows)
        rare, share = np.transpose([one_column(column, min_rows, weights) for column in X.T])
        np.testing.assert_array_equal(result.rare, rare)
        assert ((result.dominated == (share > 1)) | (abs(share - 1) < 1e-9)).all()
        hit += int(rare.sum()), (share > 1).sum()
    assert hit.min() > 10


def test_tables_of_many_rows_or_columns_are_checked():
    X = np.zeros((2000, 3))
    X[::2, 0], X[5, 1], X[:9, 2], X[9, 2] = 3.0, 1.0, 1.0, np.nan
    for table_rows in (X, sparse_rows(sparse.csr_array(X))):
        text = conspicuous(table_rows, 10).text(["a", "b", "c"])
        assert text.startswith("few rows differ from all others: columns: 'b', 'c'")
        assert not conspicuous(table_rows, 9).rare[2]
    result = conspicuous(np.random.default_rng(0).standard_normal((30, 20_000)), 10)
    assert not result.rare.any()
    assert result.dominated.sum() <= 4, "30 normal rows are refused hardly ever"
    number = np.arange(60)  # of 20 rows with a gap one has another value of b
    X = np.column_stack([np.where(number < 20, np.nan, number), (number == 0) | (number >= 40)])
    texts = [conspicuous_text(Selection("", X, by_gaps=gaps), 10, ["a", "b"]) for gaps in (False, True)]
    assert texts == ["", "few rows differ from all others: columns: 'b'"]


def rare(n=200):
    X = rows(n, 6)
    X[:, 2], X[:, 4] = 0.0, X[:, 4] + 1e4 * (np.arange(n) == 77)
    X[61, 2] = 1.0
    return X


@pytest.mark.parametrize("secure", [{}, {"secure-aggregation": True, "bound": 1e6}], ids=["clear", "secure"])
def test_rare_values_are_refused_before_any_answer(secure, tmp_path, caplog):
    phase = "keys" if secure else "moments"
    for method in ("p-cov", "sub-it", "qr-pca") if not secure else ("p-cov", "sub-it"):
        session = HostileSession(tmp_path / method, rare(), {**RUN, "method": method, **secure})
        reply = session.client.get_properties({})
        with refused(DisclosureError, "'allow'"):
            raise DisclosureError(reply["message"])
        assert not any(character.isdigit() for character in reply["message"])
        assert session.refusal(next(iter(session.client.script)), []).startswith("DisclosureError")
        assert "few rows differ from all others: columns (from 0): [2]; " in caplog.text
        assert "one row dominates the variance: columns (from 0): [2, 4]" in caplog.text
        caplog.clear()
    assert HostileSession(tmp_path / "allowed", rare(), {**RUN, **secure}, **{"rare-values": "allow"}).ask(phase, [])[0]


def test_excluded_rows_do_not_count_and_rows_are_checked_anew_for_other_settings(tmp_path):
    X = rare(200)[:, [0, 1, 2]]
    X[:, 2] = np.arange(200) >= 199
    assert HostileSession(tmp_path / "rounded", X, RUN, **{"round-rows": 9}).ask("moments", [])[0]
    private = {"method": "dp-pca", "n-components": 2, "release": "joint", "clip": 9.0}
    assert "error" not in HostileSession(tmp_path / "private", X, private).client.get_properties({})
    node = {"may-show": "inner products", "split": "columns"}
    vertical = HostileSession(tmp_path / "vertical", X, {"method": "vertical", "n-components": 1}, **node)
    assert "error" not in vertical.client.get_properties({})
    assert finish(server_of("p-cov", [X, X], n_components=2, min_rows=100)).n_samples_ == 400  # a simulation
    # A server that first asks without weights has not seen the rows as they are weighted.
    X = np.column_stack([np.random.default_rng(0).standard_normal((200, 2)), np.ones(200)])
    X[3] = 5.5, 0.0, 5.0
    session = HostileSession(tmp_path / "weighted", X, RUN, weights="2")
    assert "error" not in session.client.get_properties({})
    session.context.run_config["weights"] = "2"
    assert session.client.get_properties({})["error"] == "DisclosureError"
