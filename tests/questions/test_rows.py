"""Rows of which only sums are shown: what fixed point may cost is told, and the last round is of the same rows."""

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from fedpca_flwr.errors import ConfigError, ContractError
from fedpca_flwr.maths.moments import Head
from fedpca_flwr.questions.row_limits import ROWS
from fedpca_flwr.questions.rows import _resolved_diagonal
from strategies.dp_pca.party import DPPCAClient
from tests.families import cut, rows
from tests.harness import finish, fit, proxy_of, server_of, tamper_arrays
from tests.refusals import refused

PARTIES = cut(rows(90, 4), 40, 30, 20)
TOTAL = float(np.square(np.vstack(PARTIES) - np.vstack(PARTIES).mean(axis=0)).sum())


def told_share(bound, **options):
    """Of the variance, what a run says that fixed point may have cost."""
    model = fit("p-cov", PARTIES, n_components=2, secure_aggregation=True, bound=bound, **options)
    return model.log["measured"]["fixed_point_variance_share"]


def test_what_rounding_misses_of_a_sum_is_told_in_closed_form():
    """Beside a bound of 1e24 the squared deviations, in four words, are coarser than the scatter about their mean."""
    deviations = 3 * 4 * (4 * 1e24**2 * 90) * 2.0 ** -(62 + 3 * 46)  # parties, features, the limit, steps of it
    scatter = 3 * TOTAL * 2.0**-62
    assert deviations > 100 * scatter
    assert told_share(1e24) == pytest.approx((deviations + scatter) / TOTAL, rel=1e-3, abs=0)
    # Scatter, products of the mean, and what float64 rounds off these: each in three words of its own.
    one = 3 * 4 * (ROWS * 1e6**2) * 2.0 ** -(62 + 2 * 46)
    assert told_share(1e6, survivors=3) == pytest.approx(3 * one / TOTAL, rel=1e-9, abs=0)
    # The same of each feature, and so the larger a share the less it varies.
    one = 3 * (4 * 1e24**2 * 90) * 2.0 ** -(62 + 3 * 46)
    diagonal = np.square(np.vstack(PARTIES) - np.vstack(PARTIES).mean(axis=0)).sum(axis=0)
    assert diagonal.max() > 2 * diagonal.min()
    assert told_share(1e24, scale=True) == pytest.approx((one / diagonal).mean(), rel=1e-2, abs=0)


@pytest.mark.parametrize("way", [{"secure_aggregation": True, "bound": 100.0}, {}], ids=["masked", "clear"])
def test_a_last_round_of_other_rows_is_refused(way):
    """One party leaves a row out, and says so wherever it is asked."""
    server = server_of("p-cov", PARTIES, n_components=2, **way)
    proxy = proxy_of(server, 1)
    make = proxy.make

    def changed():
        made = make()
        honest = made.numpy_client.statistics

        def statistics(phase, asked):
            reply = honest(phase, asked)
            return {**reply, "count": reply["count"] - 1} if phase == "project" else reply

        made.numpy_client.statistics = statistics
        return made

    proxy.make = changed
    named = [89, 90] if way else ["client 1", 29, 30]
    with refused(ContractError, *named):
        finish(server)


@pytest.mark.parametrize("size", [40, 41, 400])
def test_a_private_last_round_tells_no_number_of_rows(size):
    """It is one constant, however many rows a party has."""
    server = server_of("dp-pca", [rows(size, 4), *PARTIES], n_components=2, epsilon=10.0)
    told = []

    def noted(arrays):
        told.append(arrays)
        return arrays

    tamper_arrays(server, 0, noted)
    finish(server)
    count, squared = told[-1]
    assert (count.tolist(), squared.tolist()) == (1, 0.0)


def test_a_private_last_round_tells_no_error_of_the_rows(monkeypatch):
    """Not even that they cannot be projected."""

    def fail(party, asked):
        raise ValueError

    monkeypatch.setattr(DPPCAClient, "keep_scores", fail)
    finish(server_of("dp-pca", PARTIES, n_components=2, epsilon=10.0))


@pytest.mark.parametrize("scaled", [True, False])
def test_of_a_feature_that_fixed_point_does_not_see_nothing_is_scaled(scaled):
    """Or it would be divided by what rounding left of it."""
    run = SimpleNamespace(
        config=SimpleNamespace(bound=1.0, indicators=0), options=SimpleNamespace(centred=True, scaled=scaled)
    )
    diagonal, missed = np.array([4.0, 1e-30]), np.array([0.0, 1e-30])
    head = Head(10, np.zeros(2), np.zeros(2))
    found, cautions = _resolved_diagonal(run, missed, diagonal, head, which="", joined=0.0)
    np.testing.assert_array_equal(found, [4.0, 0.0] if scaled else diagonal)
    assert len(cautions) == scaled


@pytest.mark.parametrize("bound", [1.0, 1e70])
def test_indicators_that_fixed_point_does_not_see_are_refused(bound):
    """Those of levels that nobody has are constant; beside a huge bound all of them would be."""
    run = SimpleNamespace(
        config=SimpleNamespace(bound=bound, indicators=1), options=SimpleNamespace(centred=True, scaled=True)
    )
    missed, head = np.full(2, 1e-20 * bound), Head(10, np.zeros(2), np.zeros(2))
    arguments = run, missed, np.array([4.0 * bound**2, 0.0]), head
    with refused(ConfigError, "'bound'", "1e+70") if bound > 1 else nullcontext():
        assert _resolved_diagonal(*arguments, which="", joined=0.0) == (pytest.approx([4.0, 0.0]), ())
