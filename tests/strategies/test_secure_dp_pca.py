"""DP-PCA with secure aggregation: the same model, and a server that meets no party's noisy sums."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.common import FitIns, ndarrays_to_parameters, parameters_to_ndarrays

from fedpca_flwr.config import RunConfig
from fedpca_flwr.errors import ConfigError, ContractError, DisclosureError
from fedpca_flwr.metrics import principal_angles
from fedpca_flwr.protocol.phase import Public
from strategies.dp_pca import phases
from strategies.dp_pca_options import DPOptions
from tests.families import cut, rows
from tests.harness import finish, fit, proxy_of, server_of, tamper

PARTIES = cut(rows(6000) * 3 + 1, 4000, 1500, 500)
WAYS = [
    {},
    {"release": "joint"},
    {"count": "noised"},
    {"release": "joint", "count": "noised"},
    {"trust": "distributed", "honest_parties": 2},
]


def private(**options):
    return fit("dp-pca", PARTIES, **{"n_components": 3, "epsilon": 2.0, **options})


@pytest.mark.parametrize("options", WAYS, ids=str)
def test_the_model_is_that_without_up_to_fixed_point(options):
    """With the same noise: rounding to fixed point is far below it."""
    plain, secure = private(**options), private(**options, secure_aggregation=True)
    assert principal_angles(plain, secure).max < 1e-5
    np.testing.assert_allclose(secure.explained_variance_, plain.explained_variance_, rtol=1e-9)
    np.testing.assert_allclose(secure.mean_, plain.mean_, atol=1e-9)
    assert secure.log["measured"]["pairwise_masked_parties"] == 3


def test_the_server_meets_random_words_only():
    server = server_of("dp-pca", PARTIES, n_components=3, secure_aggregation=True)
    replies = []
    for party in range(3):
        tamper(server, party, lambda reply: replies.append(parameters_to_ndarrays(reply.parameters)) or reply)
    finish(server)
    keys, sums, last = replies[:3], replies[3:9], replies[9:]
    assert all(array.dtype == np.uint8 for (array,) in keys)
    assert [[array.tolist() for array in reply] for reply in last] == [[1, 0.0]] * 3  # a constant, of no rows
    masked = [array for (array,) in sums]
    assert all(array.dtype == np.uint64 for array in masked)
    assert len(masked) == 2 * 3
    for array in masked:
        bits = np.unpackbits(array.view(np.uint8))
        assert abs(bits.mean() - 0.5) < 5 * 0.5 / np.sqrt(bits.size)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda arrays: arrays[:1], "the server: sent 1 arrays, expected 2 \\(centre, rows\\)"),
        (
            lambda arrays: [arrays[0][:3], arrays[1]],
            "the server: field 'centre' has shape \\(3,\\), expected \\(12,\\)",
        ),
        (lambda arrays: [arrays[0], arrays[1] - 10**6], "the server: field 'rows' is .*, expected at least 1 row"),
    ],
)
def test_what_the_server_sends_is_checked_by_field(change, text):
    server = server_of("dp-pca", PARTIES, n_components=3, secure_aggregation=True)
    proxy = proxy_of(server, 1)
    honest = proxy.fit

    def altered(ins, timeout, group_id):
        if ins.config["phase"] == "products":
            ins = FitIns(ndarrays_to_parameters(change(parameters_to_ndarrays(ins.parameters))), ins.config)
        return honest(ins, timeout, group_id)

    proxy.fit = altered
    with pytest.raises(ContractError, match=f"client 1: {text}"):
        finish(server)


def test_distributed_noise_needs_it_on_a_real_site(tmp_path):
    site = {"data": "x.npy", "honest-parties": 2, "journal": str(tmp_path)}
    options = {"n_components": 2, "noise_seed": 0, "trust": "distributed", "honest_parties": 2}
    with pytest.raises(ConfigError, match="trust='distributed' needs secure-aggregation=true"):
        finish(server_of("dp-pca", PARTIES, **options, site=site))
    assert finish(server_of("dp-pca", PARTIES, **options, site=site, secure_aggregation=True)).n_components_ == 2
    with pytest.raises(DisclosureError, match="assumes 3 honest parties, this site 2"):
        finish(server_of("dp-pca", PARTIES, **{**options, "honest_parties": 3}, site=site, secure_aggregation=True))


def test_a_budget_is_not_met_by_masks_alone(tmp_path):
    """Secure aggregation hides a party's share, not what the sum tells."""
    site = {"journal": str(tmp_path), "epsilon-budget": 1.0}
    options = {"n_components": 2, "secure_aggregation": True, "bound": 100.0}
    with pytest.raises(DisclosureError, match="the method 'p-cov' is not differentially private"):
        finish(server_of("p-cov", PARTIES, **options, site=site))


@pytest.mark.parametrize("phase", ["centre", "products", "joint"])
@pytest.mark.parametrize("count", ["public", "noised"])
def test_no_sum_exceeds_its_limit(phase, count):
    """Rows at the bound, all alike, and noise of twenty deviations at every party."""
    values = {"clip": 2.0, "centre_clip": 3.0, "count": count}
    options = DPOptions(**values, release="joint" if phase == "joint" else "two-stage")
    config = RunConfig(method="dp-pca", clients=5, secure_aggregation=True)
    parties, d, rows_each = 5, 4, 10**6  # so many that noise does not hide them
    noise = options.noise(phase)
    told = parties * rows_each - int(20 * np.sqrt(parties) * options.noise(options.phases[0]).rows)
    asked = {"rows": np.asarray(told)} if phase == "products" else {}
    layout = phases(config, options)[phase].layout(asked, Public(config, options, parties, features=d))
    bound = options.bound(phase)
    row = np.full(d, bound / np.sqrt(d))
    fields = {
        "rows": np.asarray(rows_each + 20 * noise.rows),
        "sum": rows_each * row + 20 * noise.sum,
        "products": rows_each * np.outer(row, row)[np.triu_indices(d)] + 20 * noise.products,
    }
    own = {name: fields[name] for name in layout.limits}
    total = np.sum([layout.encode(own) for _ in range(parties)], axis=0, dtype=np.uint64)
    count_of, decoded = layout.decode(total)
    assert count_of == parties
    for name, value in own.items():
        np.testing.assert_allclose(decoded[name], parties * value, rtol=1e-9)
