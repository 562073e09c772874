"""Secure sums over parties with different columns: the same scores, nothing of one party in clear, nobody missing."""

import numpy as np
import pytest

from fedpca_flwr.errors import ConfigError, ContractError, DataError, DisclosureError
from fedpca_flwr.maths.block_iteration import BlockIteration
from fedpca_flwr.maths.eigen import principal_angles
from simulations import run
from tests.families import FAMILIES, rows
from tests.harness import client_of, differences, finish, on_request, server_of, tamper_arrays
from tests.refusals import refused

WAYS = [
    ("vertical", {}),
    ("vertical", {"solver": "gram"}),
    ("vertical-kernel", {}),
    ("vertical-kernel", {"landmarks": 20}),
    ("vertical-kernel", {"kernel": "polynomial", "degree": 2, "gamma": 0.1}),
]
every_way = pytest.mark.parametrize("way", WAYS, ids=str)


def cut(X, *sizes):
    return np.split(X, np.cumsum(sizes)[:-1], axis=1)


def three():
    return cut(rows(60), 6, 4, 2)


def fit(way, parties, **options):
    method, own = way
    return run(method, parties, **{"min_rows": 1, "min_parties": 2, **own, **options})


def secure(way, parties, **options):
    return fit(way, parties, **{"secure_aggregation": True, "bound": 10.0, **options})


def secure_server(way=WAYS[0], parties=None, **options):
    method, own = way
    defaults = {"n_components": 2, "secure_aggregation": True, "bound": 10.0, "min_parties": 2}
    return server_of(method, parties or three(), **{**defaults, **own, **options})


def angle(model, other):
    return principal_angles(model.scores_, other.scores_).max()


@every_way
@pytest.mark.parametrize("options", [{}, {"scale": True}, {"center": True}, {"center": False, "scale": True}], ids=str)
def test_the_result_is_that_without(way, options):
    parties = cut(rows(60) * np.arange(1, 13) + 2, 6, 4, 2)
    plain = fit(way, parties, n_components=3, **options)
    model = secure(way, parties, n_components=3, bound=1e4, **options)
    assert angle(model, plain) <= 1e-9
    np.testing.assert_allclose(model.explained_variance_, plain.explained_variance_, rtol=1e-11)
    np.testing.assert_allclose(model.explained_variance_ratio_, plain.explained_variance_ratio_, rtol=1e-11)
    assert (model.n_samples_, model.n_features_in_) == (60, 12)


@pytest.mark.parametrize("solver", ["krylov", "gram"])
@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_every_family_gives_the_scores_without_within_the_certificate(solver, family):
    way, parties = ("vertical", {"solver": solver}), np.array_split(family.pooled, 3, axis=1)
    bound = 100 * float(np.abs(family.pooled).max())
    plain = fit(way, parties, n_components=family.k)
    model = secure(way, parties, n_components=family.k, bound=bound)
    assert model.log["exact"]
    assert angle(model, plain) <= 2e-6
    np.testing.assert_allclose(model.explained_variance_, plain.explained_variance_, rtol=1e-11)


@every_way
@pytest.mark.parametrize("factor", [1.0, 1e12])
def test_a_generous_bound_costs_nothing_where_all_rows_are_far_from_zero(way, factor):
    _, own = way
    parties = cut(rows(60) + (1e6 if own.get("kernel") is None else 0.0), 6, 4, 2)
    plain = fit(way, parties, n_components=3)
    assert angle(secure(way, parties, n_components=3, bound=1.1e6 * factor), plain) <= 1e-8


@every_way
def test_the_order_changes_no_bit_and_a_site_allows_as_much_as_without(way):
    assert not differences(*(secure(way, parties, n_components=3) for parties in (three(), three()[::-1])))
    with refused(DisclosureError, "client 0", "may_show"):
        secure(way, three(), n_components=2, may_show="nothing")
    assert secure(way, three(), n_components=2, may_show="inner products", secure_only=True).n_components_ == 2


def test_the_certificate_takes_in_the_rounding_of_fixed_point(monkeypatch):
    server, errors = secure_server(), []
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


def test_the_model_tells_what_protected_the_parties():
    model = secure(WAYS[0], three(), n_components=3)
    assert [party["features"] for party in model.log["parties"]] == [6, 4, 2]
    assert model.log["measured"]["pairwise_masked_parties"] == 3
    assert 6.5e-19 < model.log["measured"]["fixed_point_size_share"] < 7e-19
    assert "squared_error_per_row" in model.log["measured"]
    assert [entry["phase"] for entry in model.log["rounds"]][:4] == ["rows", "keys", "energy", "product"]
    assert "the sums have a value for every row" in model.log["notes"][-1]


def test_ids_are_compared_first_and_merging_is_refused():
    server, ids = secure_server(), np.arange(60, dtype=np.uint64)
    tamper_arrays(server, 1, lambda arrays: [*arrays[:2], ids, *arrays[3:]] if arrays[0].dtype == np.int64 else arrays)
    with refused(ConfigError, "client 0", "'ids'", "client 1"):
        finish(server)
    with refused(ConfigError, "'merge'", "'krylov'", "'gram'"):
        secure(WAYS[0], three(), solver="merge")


# What is refused


@every_way
@pytest.mark.parametrize("phase", ["energy", "last sum"])
def test_a_party_that_is_asked_something_else_leaves_noise(way, phase):
    """Else a server could send zeros to all but one and read that one's columns."""
    server = secure_server(way)
    for own in {"product", "gram", "distances", "landmarks", "products"} if phase == "last sum" else {phase}:
        on_request(server, 1, own, lambda arrays: [*arrays[:-1], arrays[-1] * 2])
    with refused(ContractError, 3, match="masks"):
        finish(server)


def test_a_limit_that_does_not_hold_is_told_by_nothing():
    """Else the errors of one party would tell its energy, limit after limit."""
    server = secure_server()
    for party in range(3):
        client_of(server, party).fit([], {"phase": "rows"})
    replies = [client_of(server, party).fit([], {"phase": "keys"})[0] for party in range(3)]
    keys = [np.stack(rows) for rows in zip(*replies, strict=True)]
    client_of(server, 0).fit([*keys, np.asarray(12)], {"phase": "energy"})
    (block, _), words = np.linalg.qr(rows(60)[:, :2]), []
    for energy in (1e-9, 1e9):  # below what the party has, and far above
        (vector,), _, said = client_of(server, 0).fit([block, np.asarray(energy)], {"phase": "product"})
        assert "error" not in said
        words.append(vector)
    low, high = (np.unpackbits(vector.view(np.uint8)).mean() for vector in words)
    assert abs(low - 0.5) < 0.02
    assert abs(high - 0.5) < 0.02


@every_way
def test_the_bound_is_needed_and_must_hold_and_must_be_near_enough(way):
    with refused(ConfigError, "secure_aggregation", "True", "'bound'", 0, "1e-100"):
        secure(way, three(), n_components=2, bound=0.0)
    with refused(ConfigError, "'bound'", "1e+40"):
        secure(way, three(), n_components=2, bound=1e40)
    parties = three()
    parties[1][5, 3] = -12.75
    with refused(DataError, "client 1", "'bound'", 10) as told:
        secure(way, parties, n_components=2)
    assert "12.75" not in str(told.value)
