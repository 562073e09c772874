"""The battery that every method meets: families of data, invariances, scikit-learn's own results, faults."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.decomposition import PCA

from fedpca_flwr.errors import (
    ConfigError,
    ContractError,
    DataError,
    DisclosureError,
    FedPCAError,
    PartyError,
    QuorumError,
)
from fedpca_flwr.model.reference import pooled_pca, principal_angles
from fedpca_flwr.protocol import quorum
from strategies import METHODS, transports_of
from tests.families import FAMILIES, cut, rows
from tests.harness import Clock, exits, finish, fit, late, proxy_of, server_of, tamper, tamper_arrays
from tests.refusals import refused

BY_ROWS = [name for name, method in METHODS.items() if method.strategy.card.split == "rows"]
EXACT = [name for name in BY_ROWS if METHODS[name].strategy.card.exact]
DETERMINED = [name for name in BY_ROWS if not METHODS[name].strategy.card.differentially_private]
"""Methods whose model the rows alone decide; a private one's has noise, which a party draws for itself."""
CODEC = 1e-5
"""What a share may exceed the true one by: rounding of the compressed covariance."""
every_method = pytest.mark.parametrize("method", BY_ROWS)
every_determined_method = pytest.mark.parametrize("method", DETERMINED)
every_exact_method = pytest.mark.parametrize("method", EXACT)
every_approximate_method = pytest.mark.parametrize("method", [name for name in DETERMINED if name not in EXACT])
every_family = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)


def parties_of_three():
    return cut(rows(300), 180, 100, 20)


def pooled_total(family):
    """Variance of all rows together."""
    return float(family.pooled.var(axis=0, ddof=1).sum())


@every_family
@every_exact_method
def test_exact_methods_give_the_pooled_components(method, family):
    model, truth = fit(method, family.parties, n_components=family.k), pooled_pca(family.pooled, family.k)
    require_well_formed(model, family)
    assert principal_angles(model, truth).max <= 1e-6
    np.testing.assert_allclose(model.explained_variance_, truth.explained_variance_, rtol=1e-9)
    np.testing.assert_allclose(model.explained_variance_ratio_, truth.explained_variance_ratio_, rtol=0, atol=1e-10)
    np.testing.assert_allclose(model.singular_values_, truth.singular_values_, rtol=1e-9)
    total = truth.explained_variance_.sum()
    np.testing.assert_allclose(model.noise_variance_, truth.noise_variance_, rtol=1e-6, atol=1e-13 * total)
    np.testing.assert_allclose(model.mean_, truth.mean_, rtol=1e-12, atol=1e-14 * np.sqrt(total))


@every_family
@every_approximate_method
def test_every_model_is_well_formed(method, family):
    model = fit(method, family.parties, n_components=family.k)
    require_well_formed(model, family)
    if not METHODS[method].strategy.card.own_total:
        share, truth = model.explained_variance_ratio_.sum(), pooled_pca(family.pooled, family.k)
        np.testing.assert_allclose(model.explained_variance_.sum() / share, pooled_total(family), rtol=1e-9)
        assert share <= truth.explained_variance_ratio_.sum() * (1 + CODEC)


@every_family
@pytest.mark.parametrize("epsilon", [1.0, 100.0, "infinity"])
@pytest.mark.parametrize("method", sorted(set(BY_ROWS) - set(DETERMINED)))
def test_every_private_model_is_well_formed(method, epsilon, family):
    """Its variances are unknown, all of them, where no component stands out of the noise, and there alone."""
    model = fit(method, family.parties, n_components=family.k, epsilon=epsilon)
    require_directions(model, family.k)
    if model.log["measured"].get("components_above_noise") != 0:
        require_variances(model)
        return
    assert epsilon != "infinity"
    numbers = [model.explained_variance_, model.explained_variance_ratio_, model.singular_values_]
    assert np.isnan([*np.concatenate(numbers), model.noise_variance_]).all()


def require_well_formed(model, family):
    require_directions(model, family.k)
    require_variances(model)
    assert model.n_samples_ == len(family.pooled)


def require_directions(model, k):
    """Components are orthonormal, and their largest loadings positive."""
    np.testing.assert_allclose(model.components_ @ model.components_.T, np.eye(k), atol=1e-10)
    largest = np.abs(model.components_).argmax(axis=1)
    assert (model.components_[np.arange(k), largest] > 0).all()


def require_variances(model):
    """Variances descend, and their shares are of a whole."""
    assert (np.diff(model.explained_variance_) <= 0).all()
    assert 0 < model.explained_variance_ratio_.sum() <= 1 + 1e-12


@every_determined_method
def test_the_order_of_the_clients_changes_no_bit(method):
    family = FAMILIES["means shifted by ten deviations"]
    one = fit(method, family.parties, n_components=5)
    for order in ([3, 2, 1, 0], [1, 3, 0, 2]):
        other = fit(method, [family.parties[i] for i in order], n_components=5)
        for name in ("components_", "mean_", "explained_variance_", "explained_variance_ratio_"):
            assert getattr(one, name).tobytes() == getattr(other, name).tobytes(), name


@every_exact_method
def test_a_client_split_in_two_changes_nothing(method):
    whole = parties_of_three()
    halves = [whole[0][:70], whole[0][70:], *whole[1:]]
    one, other = fit(method, whole, n_components=5), fit(method, halves, n_components=5)
    np.testing.assert_allclose(one.components_, other.components_, rtol=0, atol=1e-9)
    np.testing.assert_allclose(one.explained_variance_, other.explained_variance_, rtol=1e-9)


@every_method
def test_shuffled_rows_change_nothing(method):
    rng = np.random.default_rng(3)
    one = fit(method, parties_of_three(), n_components=5)
    other = fit(method, [rng.permutation(part) for part in parties_of_three()], n_components=5)
    np.testing.assert_allclose(one.components_, other.components_, rtol=0, atol=1e-9)


@every_exact_method
def test_to_sklearn_does_what_scikit_learn_does(method):
    X = rows(300) + np.arange(12)
    ours = fit(method, cut(X, 180, 100, 20), n_components=5).to_sklearn()
    theirs = PCA(5, svd_solver="full").fit(X)
    assert isinstance(ours, PCA)
    signs = np.sign((ours.components_ * theirs.components_).sum(axis=1))
    np.testing.assert_allclose(ours.transform(X), theirs.transform(X) * signs, atol=1e-9)
    np.testing.assert_allclose(ours.inverse_transform(ours.transform(X)), theirs.inverse_transform(theirs.transform(X)))
    np.testing.assert_allclose(ours.score(X), theirs.score(X), rtol=1e-9)
    np.testing.assert_allclose(ours.get_covariance(), theirs.get_covariance(), atol=1e-10)


@every_method
def test_the_log_counts_what_travelled(method):
    model = fit(method, parties_of_three(), n_components=5)
    private = METHODS[method].strategy.card.differentially_private
    assert [party["rows"] for party in model.log["parties"]] == ([None] * 3 if private else [180, 100, 20])
    assert model.log["rounds"][-1]["phase"] == "project"
    for entry in model.log["rounds"]:
        assert len(entry["up"]) == len(entry["down"]) == 3
        assert min(entry["up"]) > 0


@every_method
@pytest.mark.parametrize("bad", [np.inf, -np.inf])
def test_a_client_with_infinite_values_is_named(method, bad):
    parties = parties_of_three()
    parties[1][7, 3] = bad
    with refused(DataError, "client 1", match="infinite"):
        fit(method, parties, n_components=2)


@every_method
def test_a_client_with_missing_values_is_named_or_takes_part(method):
    parties = parties_of_three()
    parties[1][7, 3] = np.nan
    if METHODS[method].strategy.card.incomplete:
        assert fit(method, parties, n_components=2).n_samples_ == 300
        return
    takers = ", ".join(name for name in BY_ROWS if METHODS[name].strategy.card.incomplete)
    with refused(DataError, "client 1", f"method='{takers}'"):
        fit(method, parties, n_components=2)


@every_method
@pytest.mark.parametrize(
    ("data", "named"),
    [
        (np.empty((0, 12)), ["(0, 12)"]),
        (np.zeros(12), [1, 2]),
        (np.array([["a"] * 12] * 20), ["<U1"]),
        (np.ones((20, 12), dtype=complex), ["complex128"]),
    ],
    ids=["empty", "one axis", "text", "complex"],
)
def test_a_client_with_unusable_data_is_named(method, data, named):
    parties = parties_of_three()
    parties[2] = data
    with refused(DataError, "client 2", *named):
        fit(method, parties, n_components=2)


@every_method
def test_a_client_with_other_features_is_named(method):
    parties = [*parties_of_three(), rows(40, 11)]
    with refused(DataError, "client 3", 11, "client 0", 12):
        fit(method, parties, n_components=2)


@every_determined_method
def test_identical_rows_have_no_components(method):
    with pytest.raises(DataError, match="variance"):
        fit(method, [np.ones((20, 4)), np.ones((10, 4))], n_components=2)


@every_method
def test_too_many_components_are_refused(method):
    with refused(ConfigError, "n_components", 13, 12):
        fit(method, parties_of_three(), n_components=13)


@every_method
def test_a_payload_with_nan_is_named(method):
    server = server_of(method, parties_of_three(), n_components=2)
    tamper_arrays(server, 1, lambda arrays: [*arrays[:-1], np.full_like(arrays[-1], np.nan)])
    with refused(ContractError, "client 1", "NaN"):
        finish(server)


@every_method
def test_a_payload_of_another_dtype_is_named(method):
    server = server_of(method, parties_of_three(), n_components=2)
    tamper_arrays(server, 1, lambda arrays: [*arrays[:-1], arrays[-1].astype("float32")])
    with refused(ContractError, "client 1", "float32", "float64"):
        finish(server)


@every_method
def test_a_payload_with_an_array_missing_is_named(method):
    server = server_of(method, parties_of_three(), n_components=2)
    tamper_arrays(server, 1, lambda arrays: arrays[:-1])
    with refused(ContractError, "client 1", match="arrays"):
        finish(server)


@every_method
def test_a_payload_of_another_shape_is_named(method):
    server = server_of(method, parties_of_three(), n_components=2)
    tamper_arrays(server, 1, lambda arrays: [*arrays[:-1], arrays[-1][:-1]])
    with refused(ContractError, "client 1", match="shape"):
        finish(server)


@every_method
def test_a_client_that_raises_ends_the_run_without_its_text(method, monkeypatch):
    def broken(self, phase, received):
        raise ValueError("patient 4711 has 98.6")

    monkeypatch.setattr(METHODS[method].client, "statistics", broken)
    with refused(PartyError, "client 0", "ValueError") as caught:
        fit(method, parties_of_three(), n_components=2)
    assert "4711" not in str(caught.value)


@every_method
def test_a_client_that_dies_is_named(method):
    server = server_of(method, parties_of_three(), n_components=2)
    exits(server, 2)
    with refused(QuorumError, 1, 3, "client 2"):
        finish(server)


@every_method
def test_a_missing_client_is_an_error_after_the_join_deadline(method, monkeypatch):
    monkeypatch.setattr(quorum, "time", Clock())
    server = server_of(method, parties_of_three(), n_components=2, join_deadline=30.0)
    server.client_manager().unregister(proxy_of(server, 1))
    with refused(QuorumError, 2, 3, "join-deadline", 30):
        finish(server)


@every_method
def test_one_client_too_many_is_an_error(method):
    server = server_of(method, parties_of_three(), n_components=2, clients=2)
    with refused(QuorumError, 3, 2):
        finish(server)


@every_method
def test_a_client_that_is_late_is_named(method):
    server = server_of(method, parties_of_three(), n_components=2, round_deadline=70.0)
    given = late(server, 1)
    with refused(QuorumError, "client 1", "round-deadline"):
        finish(server)
    assert given == [70.0]


@every_method
def test_two_clients_with_one_partition_are_an_error(method):
    server = server_of(method, parties_of_three(), n_components=2)

    def impostor(reply):
        reply.metrics["partition-id"] = 0
        return reply

    tamper(server, 1, impostor)
    with refused(ContractError, "client 1", "partition 0"):
        finish(server)


@every_method
def test_a_client_of_another_partition_count_is_an_error(method):
    server = server_of(method, parties_of_three(), n_components=2)

    def stranger(reply):
        reply.metrics["num-partitions"] = 10
        return reply

    tamper(server, 1, stranger)
    with refused(ConfigError, "client 1", 10, 3):
        finish(server)


@every_method
def test_a_site_with_too_few_rows_refuses(method):
    with refused(DisclosureError, "client 2", "min_rows", 21):
        fit(method, parties_of_three(), n_components=2, min_rows=21)


@every_method
def test_ten_rows_are_the_default_minimum(method):
    with refused(DisclosureError, "min_rows", 10):
        fit(method, cut(rows(50), 41, 9), n_components=2, min_rows="")
    assert fit(method, cut(rows(50), 40, 10), n_components=2, min_rows="").n_components_ == 2


@every_method
def test_a_site_refuses_a_reply_that_is_too_large(method):
    with refused(DisclosureError, "client 0", 100, match="bytes"):
        fit(method, parties_of_three(), n_components=2, max_reply_bytes=100)


@every_method
def test_a_site_refuses_a_method_that_it_does_not_allow(method):
    with refused(DisclosureError, "client 0", method, "allowed_methods"):
        fit(method, parties_of_three(), n_components=2, allowed_methods="other, another")
    allowed = f"other, {', '.join(METHODS)}"  # all: adaptive goes on with others
    assert fit(method, parties_of_three(), n_components=2, allowed_methods=allowed).n_components_ == 2


@every_method
@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"n_component": 3}, ["n_component", "n_components"]),
        ({"n_components": 0}, ["n_components", 0]),
        ({"n_components": 1.5}, ["n_components", "1.5"]),
        ({"n_components": "3"}, ["n_components", "'3'"]),
        ({"n_components": True}, ["n_components", "True"]),
        ({"alpha": float("nan")}, ["'alpha'", "nan"]),
        ({"alpha": -1.0}, ["'alpha'", "-1.0"]),
        ({"partition": "even"}, ["'partition'", "'even'"]),
        ({"round_deadline": 0.0}, ["round_deadline", "0.0"]),
        ({"min_rows": 0}, ["client 0", "min_rows", 0]),
    ],
    ids=str,
)
def test_a_bad_configuration_is_named(method, options, named):
    with refused(ConfigError, *named):
        fit(method, parties_of_three(), **options)


def test_an_unknown_method_is_named():
    with refused(ConfigError, "'method'", "'pcov'", "p-cov"):
        fit("pcov", parties_of_three())


@every_method
def test_every_error_is_ours(method):
    """A caller can catch one class."""
    one_row = [[rows(1)]] if method in DETERMINED else []  # a private method does not know that there is only one
    for parties in ([np.empty((0, 3))], *one_row, [rows(20), rows(20, 3)]):
        with pytest.raises(FedPCAError):
            fit(method, parties, n_components=2)


# However answers travel: sums only, over all parties or over those that are left

WAYS = {"masked": {"secure_aggregation": True}, "surviving": {"secure_aggregation": True}}
SUMS = [
    (method, way)
    for method in DETERMINED
    for way in transports_of(METHODS[method])
    if way in WAYS and method != "compressed"  # whose codes in clear do not add up
]
TOGETHER = {name: family for name, family in FAMILIES.items() if len(family.parties) > 1}
OF_OPTIONS = ["means shifted by ten deviations", "wide", "constant columns", "offset 1e6"]
"""Families in which scaling, and no centre, make a difference."""


def choices(method):
    """Families with what of the model a run can choose."""
    known = METHODS[method].strategy.card.options.model_fields
    chosen = [{name: value} for name, value in {"scale": True, "center": False}.items() if name in known]
    return [*((name, {}) for name in TOGETHER), *((name, options) for name in OF_OPTIONS for options in chosen)]


@pytest.mark.parametrize(
    ("method", "way", "name", "options"),
    [(method, way, *chosen) for method, way in SUMS for chosen in choices(method)],
    ids=str,
)
def test_sums_only_give_the_model_that_clear_answers_give(method, way, name, options):
    family = FAMILIES[name]
    parties = len(family.parties)
    if way == "surviving" and not 3 <= parties <= 10:
        pytest.skip("survivors need three parties, and twenty take long")
    if method == "personalised" and options.get("center") is False and np.abs(family.pooled.mean()) > 1e5:
        pytest.skip("float64 does not resolve the variances beside such a mean, in clear neither; the model says so")
    sums = {**WAYS[way], "bound": 2 * float(np.abs(family.pooled).max()), "min_parties": 2}
    sums |= {"survivors": parties} if way == "surviving" else {}
    clear = fit(method, family.parties, n_components=family.k, **options)
    model = fit(method, family.parties, n_components=family.k, **options, **sums)
    assert principal_angles(model, clear).max <= 1e-8
    np.testing.assert_allclose(model.explained_variance_, clear.explained_variance_, rtol=1e-9)
    np.testing.assert_allclose(model.explained_variance_ratio_, clear.explained_variance_ratio_, rtol=1e-9)
    np.testing.assert_allclose(model.mean_, clear.mean_, rtol=1e-12, atol=1e-16 * sums["bound"])
    assert model.n_samples_ == clear.n_samples_
    assert [party["rows"] for party in model.log["parties"]] == [None] * parties
