"""Secure aggregation of rows or columns: the same result, nothing in clear at the server, and every misuse an error."""

from itertools import cycle

import numpy as np
import pytest

from fedpca_flwr.errors import ConfigError, ContractError, DataError, DisclosureError, QuorumError
from fedpca_flwr.maths.block_iteration import BlockIteration
from fedpca_flwr.maths.secure import Layout
from fedpca_flwr.model.reference import principal_angles
from fedpca_flwr.questions.row_limits import FIRST_WORDS, sum_limits
from tests.families import FAMILIES, cut, rows
from tests.harness import client_of, differences, exits, finish, fit, on_request, server_of, tamper_arrays
from tests.refusals import refused

ROWS = ["p-cov", "ap-cov", "sub-it"]
COLUMNS = [
    "vertical",
    "vertical solver=gram",
    "vertical-kernel",
    "vertical-kernel landmarks=20",
    "vertical-kernel kernel=polynomial degree=2 gamma=0.1",
]
SECURE = {"secure_aggregation": True, "bound": 10.0}

every_method = pytest.mark.parametrize("method", [*ROWS, *COLUMNS])
every_way_of_columns = pytest.mark.parametrize("method", COLUMNS)


def three(method):
    return cut(rows(300), 180, 100, 20) if method in ROWS else np.split(rows(60), [6, 10], axis=1)


def secure(method, parties=None, **options):
    return fit(method, parties or three(method), **{"n_components": 3, **SECURE, **options})


def secure_server(method="p-cov", **options):
    return server_of(method, three(method), **{"n_components": 2, **SECURE, **options})


@pytest.mark.parametrize("factor", [1.0, 1e12])
@every_method
def test_a_generous_bound_costs_nothing_where_all_rows_are_far_from_zero(method, factor):
    parties = [part + (0.0 if "polynomial" in method else 1e6) for part in three(method)]
    plain, model = fit(method, parties, n_components=3), secure(method, parties, bound=1.1e6 * factor)
    assert principal_angles(model, plain).max <= 1e-8
    if method in ROWS:
        np.testing.assert_allclose(model.explained_variance_, plain.explained_variance_, rtol=1e-11)


@every_way_of_columns
@pytest.mark.parametrize("options", [{}, {"center": True}, {"center": False, "scale": True}], ids=str)
def test_the_scores_of_columns_are_those_without(method, options):
    parties = np.split(rows(60) * np.arange(1, 13) + 2, [6, 10], axis=1)
    plain, model = fit(method, parties, n_components=3, **options), secure(method, parties, bound=1e4, **options)
    assert principal_angles(model, plain).max <= 1e-9
    np.testing.assert_allclose(model.explained_variance_, plain.explained_variance_, rtol=1e-11)
    np.testing.assert_allclose(model.explained_variance_ratio_, plain.explained_variance_ratio_, rtol=1e-11)
    assert (model.n_samples_, model.n_features_in_) == (60, 12)


@pytest.mark.parametrize(("name", "method"), list(zip(FAMILIES, cycle(COLUMNS[:2]), strict=False)))
def test_every_family_gives_the_scores_without_within_the_certificate(method, name):
    family = FAMILIES[name]
    parties, bound = np.array_split(family.pooled, 3, axis=1), 100 * float(np.abs(family.pooled).max())
    plain = fit(method, parties, n_components=family.k)
    model = secure(method, parties, n_components=family.k, bound=bound)
    assert model.log["exact"]
    assert principal_angles(model, plain).max <= 2e-6
    np.testing.assert_allclose(model.explained_variance_, plain.explained_variance_, rtol=1e-11)


@every_method
def test_the_order_changes_no_bit_and_the_model_tells_what_protected_the_parties(method):
    model, other = (secure(method, parties, secure_only=True) for parties in (three(method), three(method)[::-1]))
    assert not differences(model, other)
    told, phases = model.log["measured"], [entry["phase"] for entry in model.log["rounds"]]
    assert told["pairwise_masked_parties"] == 3
    assert ("squared_error_per_row" in told) == ("kernel" not in method)
    if method in ROWS:
        assert [party["rows"] for party in model.log["parties"]] == [None] * 3
        assert 6.5e-19 < told["fixed_point_variance_share"] < 7e-19
        assert phases[:3] == ["keys", "sums", "deviations"]
    else:
        assert [party["features"] for party in model.log["parties"]] == [6, 4, 2]
        assert 6.5e-19 < told["fixed_point_size_share"] < 7e-19
        assert phases[:3] == ["rows", "keys", "energy"]
        assert "the sums have a value for every row" in model.log["notes"][-1] or "gram" in method or "kernel" in method


def test_the_certificate_takes_in_the_rounding_of_fixed_point(monkeypatch):
    server, errors = secure_server("vertical"), []
    add = BlockIteration.add

    def noting(self, V, AV, *, error=0.0):
        errors.append(error)
        return add(self, V, AV, error=error)

    monkeypatch.setattr(BlockIteration, "add", noting)
    model = finish(server)
    assert len(errors) == sum(entry["phase"] == "product" for entry in model.log["rounds"])
    step, total = 2.0**-62, server.strategy.total
    assert step * total <= min(errors)
    assert max(errors) <= 100 * 3 * step * total * np.sqrt(60 * 7)


# What is refused


@pytest.mark.parametrize(
    ("method", "options", "named"),
    [
        ("qr-pca", {}, ["qr-pca", "p-cov", "ap-cov", "sub-it", "em", "streaming"]),
        ("sub-it", {"warm_start": "svd"}, ["warm_start='random'", "'sub-it'"]),
        ("vertical", {"solver": "merge"}, ["'merge'", "'krylov'", "'gram'"]),
        *((method, {"bound": 0.0}, ["secure_aggregation", "True", "'bound'", 0, "1e-100"]) for method in COLUMNS),
        ("p-cov", {"bound": 0.0}, ["secure_aggregation", "True", "'bound'", 0, "1e-100"]),
        *((method, {"bound": 1e40}, ["'bound'", "1e+40"]) for method in COLUMNS),
        *((method, {"bound": 1e30}, ["'bound'", "1e+30"]) for method in ROWS),
    ],
)
def test_what_secure_sums_cannot_be_is_refused(method, options, named):
    with refused(ConfigError, *named):
        secure(method, three("p-cov" if method == "qr-pca" else method), **options)


@pytest.mark.parametrize("method", ["p-cov", *COLUMNS])
def test_a_value_beyond_the_bound_is_refused_and_not_told(method):
    parties = three(method)
    parties[1][5, 3] = -12.75
    with refused(DataError, "client 1", "'bound'", 10) as told:
        secure(method, parties)
    assert "12.75" not in str(told.value)


@every_way_of_columns
def test_a_site_with_columns_allows_as_much_as_without(method):
    with refused(DisclosureError, "client 0", "may_show"):
        secure(method, may_show="nothing")
    assert secure(method, may_show="inner products").n_components_ == 3


@pytest.mark.parametrize("method", ["p-cov", "vertical"])
def test_three_parties_are_the_default_minimum_and_without_one_there_is_nothing(method):
    two = cut(rows(90), 60, 30) if method == "p-cov" else np.hsplit(rows(60), 2)
    with refused(DisclosureError, 2, 3, "min_parties"):
        secure(method, two)
    with refused(DisclosureError, "client 0", 2, 4):
        secure(method, two, min_parties=4)
    server = secure_server(method)
    exits(server, 2)
    with refused(QuorumError, 1, 3, "client 2"):
        finish(server)


LAST_SUMS = {"product", "gram", "distances", "landmarks", "products"}
"""Of columns, whichever way."""


@pytest.mark.parametrize(
    ("method", "phases"),
    [("p-cov", {"deviations"}), ("p-cov", {"scatter"}), *((m, p) for m in COLUMNS for p in ({"energy"}, LAST_SUMS))],
)
def test_a_party_that_is_asked_something_else_leaves_noise(method, phases):
    """Else a server could send zeros to all but one and read that one's reply."""
    server = secure_server(method)
    for phase in phases:
        on_request(server, 1, phase, lambda arrays: [*arrays[:-1], arrays[-1] * 2])
    with refused(ContractError, 3, match="masks"):
        finish(server)


def test_a_limit_that_does_not_hold_is_told_by_nothing():
    """Else the errors of one party would tell its energy, limit after limit."""
    server = secure_server("vertical")
    for party in range(3):
        client_of(server, party).fit([], {"phase": "rows"})
    replies = [client_of(server, party).fit([], {"phase": "keys"})[0] for party in range(3)]
    keys = [np.stack(rows) for rows in zip(*replies, strict=True)]
    client_of(server, 0).fit([*keys, np.asarray(12)], {"phase": "energy"})
    block, _ = np.linalg.qr(rows(60)[:, :2])
    for energy in (1e-9, 1e9):  # below what the party has, and far above
        (vector,), _, said = client_of(server, 0).fit([block, np.asarray(energy)], {"phase": "product"})
        assert "error" not in said
        assert abs(np.unpackbits(vector.view(np.uint8)).mean() - 0.5) < 0.02


def test_a_scatter_that_was_changed_on_its_way_does_not_pass_the_last_round():
    server = secure_server()

    def enlarge(arrays):
        masked = arrays[0].copy()
        if masked.size == 1 + 12 * 13 // 2:
            masked[1:2] += np.uint64(2**60)  # wraps; a scalar would warn where it does
        return [masked, *arrays[1:]]

    tamper_arrays(server, 1, enlarge)
    with refused(ContractError, match="fit"):
        finish(server)


def test_ids_of_columns_are_compared_first():
    server, ids = secure_server("vertical"), np.arange(60, dtype=np.uint64)
    tamper_arrays(server, 1, lambda arrays: [*arrays[:2], ids, *arrays[3:]] if arrays[0].dtype == np.int64 else arrays)
    with refused(ConfigError, "client 0", "'ids'", "client 1"):
        finish(server)


def test_scaling_never_takes_a_small_feature_for_constant():
    z = np.random.default_rng(3).standard_normal((90, 3))
    z[:, 2] += z[:, 0]
    parts, options = cut(z * [1, 1, 1e-11], 30, 30, 30), {"n_components": 1, "scale": True}
    exact = fit("p-cov", parts, **options)
    for bound in (1e1, 1e8):
        assert principal_angles(secure("p-cov", parts, **options, bound=bound), exact).max <= 1e-6
    for bound in (1e20, 1e24):
        with refused(ConfigError, "'bound'"):
            secure("p-cov", parts, **options, bound=bound)


MALFORMED = [
    ("deviations", lambda arrays: [], [0, 2, "(rows, centre)"]),
    ("deviations", lambda arrays: [arrays[0], arrays[1][:5]], ["'centre'", "(5,)", "(12,)"]),
    ("deviations", lambda arrays: [arrays[0] * 0, arrays[1]], ["'rows'", 0, 1]),
    ("scatter", lambda arrays: arrays[:1], [1, 2, "(centre, spread)"]),
    ("scatter", lambda arrays: [arrays[0], arrays[1] * np.nan], ["'spread'", "NaN"]),
    ("scatter", lambda arrays: [arrays[0], -arrays[1]], ["'spread'", 0]),
    ("project", lambda arrays: arrays[:2], [2, 5, "(components, mean, scale, rows, total)"]),
    ("project", lambda arrays: [*arrays[:4], arrays[1]], ["'total'", 1, 0]),
    ("project", lambda arrays: [2 * arrays[0], *arrays[1:]], ["'components'"]),
    ("product", lambda arrays: arrays[:2], [2, 3, "(centre, spread, block)"]),
    ("product", lambda arrays: [*arrays[:2], arrays[2][0]], ["'block'", 1, 2]),
    ("product", lambda arrays: [*arrays[:2], arrays[2].astype(int)], ["'block'", "int64", "float32", "float64"]),
]


@pytest.mark.parametrize(("phase", "change", "named"), MALFORMED)
def test_what_the_server_sends_is_checked_by_field(phase, change, named):
    server = secure_server("sub-it" if phase == "product" else "p-cov")
    on_request(server, 1, phase, change)
    with refused(ContractError, "client 1", *named):
        finish(server)


@pytest.mark.parametrize("said", [-300, -301, 2**41])
def test_a_false_share_of_the_count_is_named(said):
    """A party that lies can make the count of all whatever it likes: 0 once passed for keys that came twice."""
    server, layout = secure_server(), Layout(sum_limits(10.0, 12), words=FIRST_WORDS)

    def lie(arrays):
        masked = arrays[0].copy()
        if masked.size == layout.size and masked.dtype == np.uint64:
            exponent = 62 - int(np.frexp(float(layout.limits["count"]))[1])
            masked[1] += np.array(said * 2**exponent, np.int64).view(np.uint64)
        return [masked, *arrays[1:]]

    tamper_arrays(server, 1, lie)
    with refused(ContractError, 3, "1,099,511,627,776"):
        finish(server)
