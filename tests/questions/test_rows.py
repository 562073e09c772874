"""Rows of which only sums are shown: what fixed point may cost is told, and the last round is of the same rows."""

from types import SimpleNamespace

import numpy as np
import pytest

from fedpca_flwr.errors import ConfigError, ContractError
from fedpca_flwr.maths.moments import Head
from fedpca_flwr.questions.row_limits import ROWS
from fedpca_flwr.questions.rows import _resolved_diagonal
from strategies import METHODS
from strategies.dp_pca.party import DPPCAClient
from tests.families import cut, rows
from tests.harness import finish, fit, heard, server_of
from tests.refusals import refused

PARTIES = cut(rows(90, 4), 40, 30, 20)
DIAGONAL = np.square(np.vstack(PARTIES) - np.vstack(PARTIES).mean(axis=0)).sum(axis=0)
TOTAL = float(DIAGONAL.sum())


def told_share(bound, **options):
    """Of the variance, what a run says that fixed point may have cost."""
    model = fit("p-cov", PARTIES, n_components=2, secure_aggregation=True, bound=bound, **options)
    return model.log["measured"]["fixed_point_variance_share"]


@pytest.mark.engine
def test_what_rounding_misses_of_a_sum_is_told_in_closed_form():
    """Beside a bound of 1e24 the squared deviations, in four words, are coarser than the scatter about their mean."""
    one = 3 * (4 * 1e24**2 * 90) * 2.0 ** -(62 + 3 * 46)  # of a feature: parties, the limit, steps of it
    scatter = 3 * TOTAL * 2.0**-62
    assert 4 * one > 100 * scatter
    assert told_share(1e24) == pytest.approx((4 * one + scatter) / TOTAL, rel=1e-3, abs=0)
    # Of scaled features, the larger a share the less it varies.
    assert DIAGONAL.max() > 2 * DIAGONAL.min()
    assert told_share(1e24, scale=True) == pytest.approx((one / DIAGONAL).mean(), rel=1e-2, abs=0)
    # Scatter, products of the mean, and what float64 rounds off these: each in three words of its own.
    one = 3 * 4 * (ROWS * 1e6**2) * 2.0 ** -(62 + 2 * 46)
    assert told_share(1e6, survivors=3) == pytest.approx(3 * one / TOTAL, rel=1e-9, abs=0)
    # A share is the same in every unit, and so is whether it leaves a result exact.
    small = [X * 1e-6 for X in PARTIES]
    assert fit("p-cov", small, n_components=2, secure_aggregation=True, bound=1e18).log["exact"]


@pytest.mark.parametrize(
    ("way", "named"), [({"secure_aggregation": True, "bound": 100.0}, [89, 90]), ({}, ["client 1", 29, 30])], ids=str
)
def test_a_last_round_of_other_rows_is_refused(way, named, monkeypatch):
    """One party leaves a row out, and says so wherever it is asked."""
    honest = METHODS["p-cov"].client.statistics

    def statistics(self, phase, asked):
        reply = honest(self, phase, asked)
        other = phase == "project" and self.site.node.partition_id == 1
        return {**reply, "count": reply["count"] - 1} if other else reply

    monkeypatch.setattr(METHODS["p-cov"].client, "statistics", statistics)
    with refused(ContractError, *named):
        fit("p-cov", PARTIES, n_components=2, **way)


@pytest.mark.engine
def test_a_private_last_round_tells_a_constant_whatever_the_rows_are(monkeypatch):
    """Neither how many there are, nor that they cannot be projected."""

    def fail(party, asked):
        raise ValueError

    for size in (40, 41, 400):
        server = server_of("dp-pca", [rows(size, 4), *PARTIES], n_components=2, epsilon=10.0)
        said = heard(server, 0)
        finish(server)
        assert [array.tolist() for array in said[-1].said] == [1, 0.0]
        monkeypatch.setattr(DPPCAClient, "keep_scores", fail)


def resolved(missed, diagonal, *, bound=1.0, indicators=0, scaled=True):
    config, options = SimpleNamespace(bound=bound, indicators=indicators), SimpleNamespace(centred=True, scaled=scaled)
    run, head = SimpleNamespace(config=config, options=options), Head(10, np.zeros(2), np.zeros(2))
    return _resolved_diagonal(run, np.array(missed), np.array(diagonal), head, which="", joined=0.0)


@pytest.mark.parametrize(("scaled", "expected"), [(True, [4.0, 0.0]), (False, [4.0, 1e-30])])
def test_of_a_feature_that_fixed_point_does_not_see_nothing_is_scaled(scaled, expected):
    """Or it would be divided by what rounding left of it."""
    found, cautions = resolved([0.0, 1e-30], [4.0, 1e-30], scaled=scaled)
    np.testing.assert_array_equal(found, expected)
    assert len(cautions) == scaled


def test_indicators_that_fixed_point_does_not_see_are_refused():
    """Those of levels that nobody has are constant; beside a huge bound all of them would be."""
    assert resolved([1e-20, 1e-20], [4.0, 0.0], indicators=1) == (pytest.approx([4.0, 0.0]), ())
    with refused(ConfigError, "'bound'", "1e+70"):
        resolved([1e50, 1e50], [4e140, 0.0], bound=1e70, indicators=1)
