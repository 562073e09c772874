"""Secure aggregation: the same components, nothing in clear at the server, and every misuse an error."""

import numpy as np
import pytest

from fedpca_flwr.errors import ConfigError, ContractError, DataError, DisclosureError, QuorumError
from fedpca_flwr.maths.secure import Layout
from fedpca_flwr.model.reference import principal_angles
from fedpca_flwr.questions.row_limits import FIRST_WORDS, sum_limits
from simulations import run
from tests.families import FAMILIES, cut, rows
from tests.harness import differences, exits, finish, on_request, server_of, tamper_arrays
from tests.refusals import refused

every_method = pytest.mark.parametrize("method", ["p-cov", "ap-cov", "sub-it"])


def three():
    return cut(rows(300), 180, 100, 20)


def fit(method, parties, **options):
    return run(method, parties, **{"min_rows": 1, "min_parties": 2, **options})


def secure(method, parties, **options):
    return fit(method, parties, **{"secure_aggregation": True, "bound": 10.0, **options})


def secure_server(method, parties=None, **options):
    defaults = {"n_components": 2, "secure_aggregation": True, "bound": 10.0}
    return server_of(method, parties or three(), **{**defaults, **options})


@every_method
@pytest.mark.parametrize("factor", [1.0, 1e6, 1e12])
def test_a_generous_bound_costs_nothing(method, factor):
    family = FAMILIES["offset 1e6"]
    plain = fit(method, family.parties, n_components=5)
    model = secure(method, family.parties, n_components=5, bound=1.1e6 * factor)
    assert principal_angles(model, plain).max <= 1e-8
    np.testing.assert_allclose(model.explained_variance_, plain.explained_variance_, rtol=1e-11)


@every_method
def test_the_order_changes_no_bit_and_the_model_tells_what_protected_the_rows(method):
    assert not differences(*(secure(method, parties, n_components=5) for parties in (three(), three()[::-1])))
    model = secure(method, three(), n_components=3)
    assert [party["rows"] for party in model.log["parties"]] == [None] * 3
    assert model.log["measured"]["pairwise_masked_parties"] == 3
    assert 6.5e-19 < model.log["measured"]["fixed_point_variance_share"] < 7e-19
    assert "squared_error_per_row" in model.log["measured"]
    assert [entry["phase"] for entry in model.log["rounds"]][:3] == ["keys", "sums", "deviations"]
    with refused(ConfigError, "'bound'", "1e+30"):
        secure(method, three(), n_components=2, bound=1e30)


# What is refused


def test_what_secure_sums_cannot_be_is_refused():
    with refused(ConfigError, "qr-pca", "p-cov", "ap-cov", "sub-it", "em", "streaming"):
        secure("qr-pca", three())
    with refused(ConfigError, "warm_start='random'", "'sub-it'"):
        secure("sub-it", three(), warm_start="svd", n_components=2)
    with refused(ConfigError, "secure_aggregation", "True", "'bound'", 0, "1e-100"):
        secure("p-cov", three(), bound=0.0)
    parties = three()
    parties[1][5, 3] = -12.75
    with refused(DataError, "client 1", "'bound'", 10) as told:
        secure("p-cov", parties, n_components=2)
    assert "12.75" not in str(told.value)


@pytest.mark.parametrize("method", ["p-cov", "vertical"])
def test_three_parties_are_the_default_minimum_and_without_one_there_is_nothing(method):
    parties = cut(rows(90), 60, 30) if method == "p-cov" else np.hsplit(rows(60), 2)
    with refused(DisclosureError, 2, 3, "min_parties"):
        run(method, parties, n_components=2, secure_aggregation=True, bound=10.0)
    with refused(DisclosureError, "client 0", 2, 4):
        secure(method, parties, n_components=2, min_parties=4)
    server = secure_server(method, three() if method == "p-cov" else np.split(rows(60), 3, axis=1))
    exits(server, 2)
    with refused(QuorumError, 1, 3, "client 2"):
        finish(server)


def test_a_site_may_refuse_to_answer_otherwise():
    with refused(DisclosureError, "client 0", "secure_only", "secure_aggregation=True"):
        fit("p-cov", three(), n_components=2, secure_only=True)
    assert secure("p-cov", three(), n_components=2, secure_only=True).n_components_ == 2


@pytest.mark.parametrize("phase", ["deviations", "scatter"])
def test_a_party_that_is_asked_something_else_leaves_noise(phase):
    """Else a server could send zeros to all but one and read that one's reply."""
    server = secure_server("p-cov")
    on_request(server, 1, phase, lambda arrays: [*arrays[:-1], arrays[-1] * 2])
    with refused(ContractError, 3, match="masks"):
        finish(server)


def test_a_scatter_that_was_changed_on_its_way_does_not_pass_the_last_round():
    server = secure_server("p-cov")

    def enlarge(arrays):
        masked = arrays[0].copy()
        if masked.size == 1 + 12 * 13 // 2:
            masked[1:2] += np.uint64(2**60)  # wraps; a scalar would warn where it does
        return [masked, *arrays[1:]]

    tamper_arrays(server, 1, enlarge)
    with refused(ContractError, match="fit"):
        finish(server)


def test_scaling_never_takes_a_small_feature_for_constant():
    rng = np.random.default_rng(3)
    z = rng.standard_normal((90, 3))
    z[:, 2] += z[:, 0]
    parts = cut(z * [1, 1, 1e-11], 30, 30, 30)
    exact = fit("p-cov", parts, n_components=1, scale=True)
    for bound in (1e1, 1e8):
        model = secure("p-cov", parts, n_components=1, scale=True, bound=bound)
        assert principal_angles(model, exact).max <= 1e-6
    for bound in (1e20, 1e24):
        with refused(ConfigError, "'bound'"):
            secure("p-cov", parts, n_components=1, scale=True, bound=bound)


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
    server = secure_server("p-cov")

    def lie(arrays):
        masked = arrays[0].copy()
        layout = Layout(sum_limits(10.0, 12), words=FIRST_WORDS)
        if masked.size == layout.size and masked.dtype == np.uint64:
            exponent = 62 - int(np.frexp(float(layout.limits["count"]))[1])
            masked[1] += np.array(said * 2**exponent, np.int64).view(np.uint64)
        return [masked, *arrays[1:]]

    tamper_arrays(server, 1, lie)
    with refused(ContractError, 3, "1,099,511,627,776"):
        finish(server)
