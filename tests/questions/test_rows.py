"""Rows of which sums are shown: public limits, what fixed point may cost, the last round, and a party's own scatter."""

from contextlib import nullcontext
from fractions import Fraction
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from flwr.app import RecordDict
from scipy import sparse

from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.data.table import MAX_MAGNITUDE
from fedpca_flwr.errors import ConfigError, ContractError, DataError
from fedpca_flwr.maths.incomplete_rows import MIN_EIGENVALUE
from fedpca_flwr.maths.moments import Head, Moments
from fedpca_flwr.maths.rows import sparse_rows, weight_rows
from fedpca_flwr.protocol.journal import State
from fedpca_flwr.protocol.question import Public, Total
from fedpca_flwr.questions import pooling, row_limits
from fedpca_flwr.questions.pooling import party_names
from fedpca_flwr.questions.products import OpenedProducts, require_possible_product
from fedpca_flwr.questions.row_limits import MAX_ROWS, MAX_UNRESOLVED_SHARE
from fedpca_flwr.questions.rows import SUM_PARTS, pooled_centre
from fedpca_flwr.site.rows.vault import Vault, residual_sum, worth_forming
from fedpca_flwr.strategies import METHODS
from fedpca_flwr.strategies.compressed import short_words
from fedpca_flwr.strategies.dp_pca.party import DPPCAClient
from fedpca_flwr.strategies.em import incomplete, incomplete_limits
from tests.families import cut, rows
from tests.harness import finish, fit, heard, require_limits, server_of, tamper_arrays
from tests.hostile import HostileSession
from tests.refusals import refused

PARTIES = cut(rows(90, 4), 40, 30, 20)
DIAGONAL = np.square(np.vstack(PARTIES) - np.vstack(PARTIES).mean(axis=0)).sum(axis=0)
N, TEN = MAX_ROWS, {"rows": np.asarray(10)}
SPREAD = np.array([2.0, 3.0])  # of rows that are all on one line, which meet Cauchy and Schwarz
THREE = SimpleNamespace(config=SimpleNamespace(bound=3.0), parties=3, features=2)
SCALED = SimpleNamespace(options=SimpleNamespace(scale=True))
SQUARES = 1.01 * 10 * np.array([4.0, 1.0])  # ten rows of variance 1, and a deviation beyond the model's mean
NEAR = {"mean": np.array([1.0, 0.0]), "centre": np.zeros(2), "spread": np.ones(2)}
# Ten rows by a model of one factor: variances along the features of 3 and 0.5, and expected squares below these.
FACTOR = {"basis": np.array([[1.0], [0.0]]), "variances": np.array([3.0]), "noise": 0.5, "spread": SPREAD}
BY_FACTOR = np.array([40.4 + 3 * (50.5 / 0.5 + 10), 10.1 + 0.5 * (50.5 / 0.5 + 10)])
FACTOR_LIMITS = {
    "first": np.sqrt(10 * BY_FACTOR),
    "product": np.sqrt(BY_FACTOR * BY_FACTOR.sum())[:, None],
    "square": BY_FACTOR.sum(),
    "likelihood": 10 * (2 * np.log(2) + np.log(6)) + 50.5 / 0.5,
}


@pytest.mark.engine
def test_what_rounding_misses_of_a_sum_is_told_in_closed_form():
    """Each of three parties rounds squares in 13 parts and a scatter in 3: words of 63 bits and then 58."""

    def share(bound, **options):
        model = fit("p-cov", PARTIES, n_components=2, secure_aggregation=True, bound=bound, **options)
        return model.log["measured"]["fixed_point_variance_share"]

    item = 3 * SUM_PARTS * N * 1e24**2 * 2.0 ** -(63 + 3 * 58)
    assert share(1e24) == pytest.approx(4 * item / DIAGONAL.sum(), rel=1e-9, abs=0)
    # Of scaled features, the larger a share the less it varies.
    assert DIAGONAL.max() > 2 * DIAGONAL.min()
    assert share(1e24, scale=True) == pytest.approx((item / DIAGONAL).mean(), rel=1e-9, abs=0)
    item = 3 * 3 * N * 1e6**2 * 2.0 ** -(63 + 2 * 58)
    assert 4 < share(1e6, survivors=3) / (item / DIAGONAL.sum()) < 40  # and what two floats do not hold
    # A share is the same in every unit, and so is whether it leaves a result exact.
    assert fit("p-cov", [X * 1e-6 for X in PARTIES], n_components=2, secure_aggregation=True, bound=1e18).log["exact"]


def test_a_last_round_of_other_rows_is_refused(monkeypatch):
    """A party leaves a row out, and says so wherever the row counts."""
    honest = METHODS["p-cov"].client.statistics

    def statistics(self, phase, asked):
        reply = honest(self, phase, asked)
        other = phase == "project" and self.site.node.partition_id == 1
        return {**reply, "count": reply["count"] - 1} if other else reply

    monkeypatch.setattr(METHODS["p-cov"].client, "statistics", statistics)
    for way, named in (({"secure_aggregation": True, "bound": 100.0}, [89, 90]), ({}, ["party 1", 29, 30])):
        with refused(ContractError, *named):
            fit("p-cov", PARTIES, n_components=2, **way)


@pytest.mark.parametrize("method", ["p-cov", "vertical"])
def test_a_last_round_fits_to_a_millionth_of_the_variance(method):
    parties = PARTIES if method == "p-cov" else np.split(rows(90), 3, axis=1)
    total = 90 * fit(method, parties, n_components=2).total_variance
    for share, fits in ((0.9e-6, nullcontext()), (1.1e-6, refused(ContractError, match="fit"))):
        server = server_of(method, parties, n_components=2)
        tamper_arrays(server, 1, lambda arrays, off=share * total: [*arrays[:-1], arrays[-1] + off], "project")
        with fits:
            finish(server)


@pytest.mark.engine
def test_a_private_last_round_tells_a_constant(monkeypatch):
    """Neither how many there are, nor that they cannot be projected."""
    for size in (40, 41, 400):
        server = server_of("dp-pca", [rows(size, 4), *PARTIES], n_components=2, epsilon=10.0)
        answers = heard(server, 0)
        finish(server)
        assert [array.tolist() for array in answers[-1].said] == [1, 0.0]
        monkeypatch.setattr(DPPCAClient, "write_files", Mock(side_effect=ValueError))


def opened(rows, total, squares, missed):
    """Return the sum of so many rows and of their squares, with an error bound for each number."""
    exact = {"sum": total, "squares": squares}
    exact = {name: np.array([int(Fraction(n) * 2**200) for n in numbers], object) for name, numbers in exact.items()}
    missed = {"squares": np.array(missed) / SUM_PARTS, "sum": np.zeros(2)}
    integers, count = (lambda name: (exact[name], np.full(2, 200))), {"count": np.asarray(rows)}
    return Total(count, 3, exact_integers=integers, error_bounds=missed)


def pooled(total, *, bound=1.0, indicators=0, scaled=True):
    config = SimpleNamespace(bound=bound, indicators=indicators, weights="")
    options = SimpleNamespace(centred=True, scaled=scaled)
    program = pooled_centre(SimpleNamespace(stages=(), config=config, options=options))
    next(program)
    with pytest.raises(StopIteration) as end:
        program.send(total)
    return end.value.value


def test_features_below_fixed_point_are_not_scaled_and_squares_are_as_large_as_their_mean_says():
    """Ten rows about zero; four rows that add up to 4 have squares of 4 and more, but for rounding in fixed point."""
    for missed, diagonal, run, expected, below in (
        ([0.0, 1e-30], [4.0, 1e-30], {}, [4.0, 0.0], ["3.2e-16"]),  # it would be divided by what rounding left
        ([0.0, 1e-30], [4.0, 1e-30], {"scaled": False}, [4.0, 1e-30], []),
        ([1e-20, 1e-20], [4.0, 0.0], {"indicators": 1}, [4.0, 0.0], []),  # of a level that nobody has
    ):
        resolved = pooled(opened(10.0, [0, 0], diagonal, missed), **run)
        np.testing.assert_allclose(resolved.diagonal, expected, rtol=1e-6)
        assert [text.split("below ")[1].split(";")[0] for text in resolved.cautions] == below
    result = pooled(opened(4.0, [4, 0], [4 - 1e-7, 1e5], [1e-6, 1e-6]), scaled=False)
    np.testing.assert_array_equal(result.diagonal, [0.0, 1e5])
    with refused(ContractError, "not those of any rows"):
        pooled(opened(4.0, [4, 0], [4 - 1e-5, 1e5], [1e-6, 1e-6]))
    with refused(ConfigError, "'bound'", "1e+70"):  # beside a huge bound all indicators would be constant
        pooled(opened(10.0, [0, 0], [4e140, 0.0], [1e50, 1e50]), bound=1e70, indicators=1)
    for lost, told in ((1.9e-14, 0), (2.1e-14, 2)):  # what rounding loses of a mean, beside a deviation
        head, squares = Head(4, np.ones(2), np.array([0.0, 3 * lost])), np.array([1.0, 4 * 3.0**2])
        assert pooling.remainder_if_needed(head, squares).size == told


def test_a_factor_is_above_the_noise_and_that_above_rounding():
    for variance, noise in ((0.5, 0.5), (1.0, 0.9 * MIN_EIGENVALUE)):
        request = {"mean": np.zeros(2), "basis": np.eye(2)[:, :1], "variances": np.array([variance]), "noise": noise}
        with refused(ContractError, "'noise'", "'variances'", f"{noise:.3g}"):
            incomplete.factor_question(1, 1).answer(None, request)


def test_a_share_may_be_off_by_the_rounding_of_its_centre():
    """The rounding is 2^-48 of the centre, in the feature's unit (1 where it is constant); no `bound` is given."""
    request = {**TEN, "centre": np.array([-(2.0**50), 2.0**50]), "spread": np.array([2.0, 0.0])}
    request |= {"mean": np.array([-1.0, 0.0]), "covariance": np.zeros(3)}
    public = Public(RunConfig(), None, parties=3)
    result = incomplete.expected_question(1).share_limits(request, public)
    np.testing.assert_allclose(result["first"], np.sqrt(1.01) * 10 * np.array([1 + 1 + 2.0, 1 + 4.0]), rtol=1e-14)
    limits = incomplete_limits.unbounded_limits(lambda request, public: {"bound": public.config.bound})
    assert limits({}, public)["bound"] == MAX_MAGNITUDE


def test_a_site_answers_about_as_many_rows_as_its_minimum(tmp_path):
    """The site has five more rows, each of which has gaps of its own."""
    for complete in (5, 4):
        X = np.random.default_rng(0).normal(50, 10, (5 + complete, 3))
        X[[0, 1, 2, 3, 3, 4, 4], [0, 1, 2, 0, 1, 0, 2]] = np.nan
        session = HostileSession(tmp_path / f"{complete}", X, {"method": "em", "n-components": 1}, **{"min-rows": 5})
        assert bool(session.ask("observed", [])[0]) == (complete == 5)


def test_ids_are_in_order_and_each_once():
    strategy: Any = server_of("vertical", np.split(rows(3, 4), 2, axis=1), n_components=2).strategy
    table, orders = {"count": 3, "features": 2}, ([2, 3, 5], [3, 2, 5], [2, 3, 3])
    right, *others = (SimpleNamespace(fields={**table, "ids": np.array(ids)}, sender="client 1") for ids in orders)
    strategy.require_same_rows([right, right])
    for other in others:
        with refused(ContractError, "client 1", "'ids'"):
            strategy.require_same_rows([right, other])
    # Parties are named as members where no two are one.
    replies = [SimpleNamespace(member=member, sender=f"client {i}") for i, member in enumerate("aab")]
    assert [party_names(some) for some in (replies[1:], replies)] == [["a", "b"], ["client 0", "client 1", "client 2"]]


def test_limits_in_closed_form():
    require_limits(row_limits.projection_limits(SPREAD), {"count": N, "squared": 2 * 13.0 * N})
    require_limits(row_limits.scatter_limits(SPREAD), {"scatter": [4.0, 6.0, 9.0]})
    expected = {"count": N, "sum": N * SPREAD, "squares": N * SPREAD**2, "scatter": N * np.array([4.0, 6.0, 9.0])}
    require_limits(row_limits.moments_limits(SPREAD), expected)
    require_limits(row_limits.product_limits(SPREAD, 1), {"product": 2 * N * 13**0.5 * SPREAD[:, None]})
    limits = incomplete_limits.deviation_limits({"centre": np.array([-2.0, 0.0])}, THREE, 10)
    require_limits(limits, {"shift": [50.0, 30.0], "diagonal": [250.0, 90.0]})
    expected = {"first": np.sqrt(10 * SQUARES), "second": [SQUARES[0], np.sqrt(SQUARES.prod()), SQUARES[1]]}
    require_limits(incomplete_limits.expected_limits({**NEAR, "covariance": np.zeros(3)}, 10, 1.0), expected)
    require_limits(incomplete_limits.factor_limits({**TEN, **NEAR, **FACTOR}, SCALED, shared=True), FACTOR_LIMITS)
    expected = {"count": N, "empty": N, "pairs": [N] * 3, "sum": [3.0 * N] * 2}
    require_limits(incomplete_limits.observed_limits(THREE, pairs=True), expected)
    request = {"centre": np.zeros(2), "features": SPREAD, "columns": np.array([3.0, 4.0])}
    correction = short_words.short_questions(RunConfig(), 8, lambda public: 2, corrections=1)["correction"]
    require_limits(correction.limits(request, THREE), {"product": [[6.0, 8.0], [9.0, 12.0]]})


def test_nearly_singular_models_stay_within_limits():
    """The expected values are 524,288 times as large as the observed.

    Four rows have 1 or -1 as the first of two features with the covariance [[f, c], [c, 1]], and not the second: the
    second is expected to be c / f times as large. With f = 2^-39 and c^2 = f / 2 that is 524,288, of a deviation of 1.
    """
    n, f, zeros = 4, 2.0**-39, np.zeros(2)
    c = np.sqrt(f / 2)
    sums = {"first": zeros, "second": n * np.array([1.0, c / f, (c / f) ** 2 + 1 - c**2 / f])}
    request = {"rows": np.asarray(n), "centre": zeros, "spread": np.ones(2), "mean": zeros}
    public = Public(RunConfig.parse({"secure-aggregation": True, "bound": 1.0}), None, parties=3, features=2)
    layout = incomplete.expected_question(1).layout({**request, "covariance": np.array([f, c, 1.0])}, public)
    np.testing.assert_allclose(layout.decode(layout.encode(sums))[0]["second"], sums["second"])


def test_what_is_observed_of_features_in_closed_form():
    """Five rows, one of which is empty; fixed point may have missed 2e-9 of squares that add up to four.

    The second feature's centre is off by 0.1, which is no spread.
    """
    program = incomplete.observed_values(SimpleNamespace(config=RunConfig(bound=10.0)), scale=False)
    next(program)
    first = {"count": 5.0, "empty": 1.0, "values": np.array([4.0, 3.0]), "sum": np.array([8.0, 3.0])}
    np.testing.assert_array_equal(program.send(Total(first, 3)).request["centre"], [2.0, 1.0])
    second = {"shift": np.array([0.0, 0.3]), "diagonal": np.array([4.0, 3.0])}
    with pytest.raises(StopIteration) as end:
        program.send(Total(second, 3, error_bounds={"diagonal": np.array([2e-9, 0.0])}))
    result = end.value.value
    np.testing.assert_allclose(result.spread, [1.0, np.sqrt(0.99)], rtol=1e-12)
    np.testing.assert_allclose(result.mean, [0.0, 0.1 / np.sqrt(0.99)], rtol=1e-12)
    assert (result.total_rows, result.rows, result.missing_share) == (5, 4, 1 / 8)


def test_a_site_with_more_rows_than_its_share_is_named(monkeypatch):
    monkeypatch.setattr(row_limits, "MAX_ROWS", 119)  # one party has 40 of 90
    with refused(DataError, "party 0", 119):
        fit("p-cov", PARTIES, n_components=2, secure_aggregation=True, bound=100.0)
    monkeypatch.undo()
    assert [row_limits.read_row_count(np.asarray(float(right)), 3) for right in (3, MAX_ROWS)] == [3, MAX_ROWS]
    for wrong in (-1, 0, 1, 2, MAX_ROWS + 1):  # they are of a false share
        with refused(ContractError, 3, wrong):
            row_limits.read_row_count(np.asarray(float(wrong)), 3)


def test_numbers_that_no_rows_have_are_refused():
    """Of variances a million times are allowed; rounding is limited to 1e-12 of a row, and 1e-30 of the largest."""

    def product_of(size):
        return np.array([[0.0], [size], [-2e6]]), np.eye(3)[:, :1], 2.0

    def rounded(largest, missed):
        return 1.0, np.array([0.0, missed]), np.array([largest, 0.0]), 10

    def unresolved(missed):
        return 1.0, np.array([MAX_UNRESOLVED_SHARE * 4.0, missed]), np.array([3.0, 1.0])

    def observed_by(*counts):
        next(program := incomplete.observed_values(SimpleNamespace(config=RunConfig(bound=10.0)), scale=False))
        program.send(Total({"count": 4.0, "empty": 1.0, "values": np.array(counts), "sum": np.zeros(2)}, 3))

    observed, possible = (3.0, 1.0), require_possible_product
    impossible = 2.0001e6, -2.0001e6, 1e300, np.nan, np.inf
    for check, right, wrong, error, named in (
        (row_limits.require_max_rows, (N // 8, 8), (N // 8 + 1, 8), DataError, ["4,294,967,296"]),
        (row_limits.require_resolved, unresolved(0.0), unresolved(1e-15), ConfigError, ["'bound'"]),
        (row_limits.require_scalable, rounded(1e4, 0.9e-26), rounded(1e4, 1.1e-26), ConfigError, ["'bound'", 1]),
        (row_limits.require_scalable, rounded(1e30, 0.9e-11), rounded(1e30, 1.1e-11), ConfigError, ["'bound'", 1]),
        (observed_by, observed, (3.0, 0.0), DataError, ["[1]"]),
        *((observed_by, observed, (n, 1.0), ContractError, []) for n in (4.0, -1.0)),
        *((possible, product_of(2e6), product_of(n), ContractError, [2, "'p-cov'"]) for n in impossible),
    ):
        check(*right)
        with refused(error, *named):
            check(*wrong)


@pytest.mark.parametrize("columns", [0, 500])
def test_products_are_those_of_the_scatter_formed_or_not(columns):
    """A part of the rows asked about first is not taken for all: `personalised` asks about rows not held out."""
    total, V, state = rows(200, 12) + 1e6, rows(12, 5, seed=1), State(RecordDict())
    for X in (total[:150], total, total):
        scatter = Vault(X, state, columns=columns, parties=3)
        centred, about = X - X.mean(axis=0), X - 3.0
        assert scatter.formed == (columns > 0)
        np.testing.assert_allclose(scatter.times(V), centred.T @ (centred @ V), rtol=1e-9)
        np.testing.assert_allclose(scatter.centred_product(np.full(12, 3.0), V), about.T @ (about @ V), rtol=1e-9)
        assert not np.isfinite(scatter.fourth_powers(V.T, np.full(12, 1e200))).any()
        head, diagonal = scatter.head_and_diagonal()
        np.testing.assert_allclose(diagonal, (centred**2).sum(axis=0), rtol=1e-9)
        assert head.n == len(X)
    weights, state = np.arange(200.0) % 3, State(RecordDict())
    fourth = Vault(weight_rows(total, weights), state, columns=columns, parties=3).fourth_powers(V.T, None)
    about = total - np.average(total, axis=0, weights=weights)
    np.testing.assert_allclose(fourth, weights @ (about @ V) ** 4, rtol=1e-8)


@pytest.mark.parametrize("options", [{}, {"scale": True}, {"secure_aggregation": True, "bound": 100.0}], ids=str)
def test_a_scatter_is_formed_once_a_run(options, monkeypatch):
    formed, of = [], Moments.from_rows
    monkeypatch.setattr(Moments, "from_rows", lambda data, threads: formed.append(len(data)) or of(data, threads))
    parts = cut(rows(900, 60), 500, 380, 20)
    stored = fit("sub-it", parts, n_components=4, **options)
    assert stored.rounds > 2
    assert sorted(formed) == [380, 500]  # 20 rows of 60 features are multiplied as they are
    monkeypatch.setattr("fedpca_flwr.site.rows.vault.MAX_SCATTER_BYTES", 0)
    anew = fit("sub-it", parts, n_components=4, **options)
    assert (anew.rounds, len(formed)) == (stored.rounds, 2)
    np.testing.assert_allclose(stored.components_, anew.components_, atol=1e-10)
    np.testing.assert_allclose(stored.explained_variance_, anew.explained_variance_, rtol=1e-12)


def test_scatters_are_formed_if_that_is_cheaper():
    few, many = sparse.random_array((400, 10), density=0.05, rng=0, format="csr"), np.zeros((3000, 1000))
    ways = [(few.toarray(), 400, 3), (sparse_rows(few), 400, 3), (many, 10**6, 100), (many, 10**6, 1000)]
    vaults = [Vault(X, State(RecordDict()), columns=columns, parties=parties) for X, columns, parties in ways]
    assert [vault.formed for vault in vaults] == [True, False, True, False]
    assert [worth_forming(*size, 600) for size in ((7000, 784), (500, 784), (10**6, 3072))] == [True, False, False]
    assert [residual_sum(1.0, 1 - 2.0**power) for power in (-42, -44)] == [2.0**-42, 0.0]
    scatter = Vault(np.ones((1, 2)), State(RecordDict()), columns=0, parties=3)
    assert scatter.moments().count == 1  # fewer rows than features, which store no scatter
    np.testing.assert_array_equal(scatter.deviation(np.array([1.0, 3.0])), [0.0, -2.0])


def test_a_products_bound_holds_for_its_coarsest_block():
    """The fault: the bound of the last block stood for all blocks."""
    products, unit = OpenedProducts(3), np.eye(3)
    for column, bound in ((0, 1e-3), (1, 1e-9)):
        products.add(unit[:, column : column + 1], unit[:, column : column + 1], np.full((3, 1), bound))
    _, bounds = products.product(np.array([[2.0]]), np.array([[0.5]]))
    assert (bounds >= 2e-3).all()
    assert bounds.shape == (3, 1)
