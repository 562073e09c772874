"""DP-PCA with secure aggregation: the same model, and a server that meets no party's noisy sums."""

import numpy as np
import pytest
from flwr.common import parameters_to_ndarrays

from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.errors import ConfigError, ContractError, DisclosureError
from fedpca_flwr.maths.privacy import MOST_ROWS
from fedpca_flwr.protocol.question import Public
from strategies.dp_pca.party import UNITS, DPOptions, phases
from tests.families import cut, rows
from tests.harness import differences, finish, fit, on_request, server_of, tamper
from tests.refusals import refused

PARTIES = cut(rows(6000) * 3 + 1, 4000, 1500, 500)
TWO_STAGE = {"release": "two-stage", "clip": 5.0, "centre_clip": 5.0}
WAYS = [
    {},
    TWO_STAGE,
    {"release": "joint", "clip": 5.0},
    {"count": "public"},
    {"trust": "distributed", "honest_parties": 2},
]


def private(**options):
    return fit("dp-pca", PARTIES, **{"n_components": 3, "epsilon": 2.0, **options})


@pytest.mark.parametrize("options", WAYS, ids=str)
def test_the_model_is_that_without_bit_for_bit(options):
    """With the same noise: sums of whole numbers lose nothing on their way."""
    plain, secure = private(**options), private(**options, secure_aggregation=True)
    assert not differences(plain, secure)
    assert secure.log["measured"]["pairwise_masked_parties"] == 3


def test_the_server_meets_random_words_only():
    server = server_of("dp-pca", PARTIES, n_components=3, secure_aggregation=True)
    replies = []
    for party in range(3):
        tamper(server, party, lambda reply: replies.append(parameters_to_ndarrays(reply.parameters)) or reply)
    finish(server)
    keys, sums, last = replies[:3], replies[3:21], replies[21:]
    assert all(array.dtype == np.uint8 for reply in keys for array in reply)
    assert [[array.tolist() for array in reply] for reply in last] == [[1, 0.0]] * 3  # a constant, of no rows
    masked = [array for (array,) in sums]
    assert all(array.dtype == np.uint64 for array in masked)
    assert len(masked) == 6 * 3
    for array in masked:
        bits = np.unpackbits(array.view(np.uint8))
        assert abs(bits.mean() - 0.5) < 5 * 0.5 / np.sqrt(bits.size)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda arrays: [], [0, 2, "(centre, shells)"]),
        (lambda arrays: [arrays[0][:3], arrays[1]], ["'centre'", "(3,)", "(12,)"]),
    ],
)
def test_what_the_server_sends_is_checked_by_field(change, named):
    server = server_of("dp-pca", PARTIES, n_components=3, secure_aggregation=True)
    on_request(server, 1, "directions", change)
    with refused(ContractError, "client 1", *named):
        finish(server)


@pytest.mark.engine
def test_distributed_noise_needs_it_on_a_real_site(tmp_path):
    site = {"data": "x.npy", "epsilon-budget": 100.0, "honest-parties": 2, "journal": str(tmp_path)}
    options = {"n_components": 2, "noise_seed": 0, "trust": "distributed", "honest_parties": 2}
    with refused(ConfigError, "trust='distributed'", "secure-aggregation=true"):
        finish(server_of("dp-pca", PARTIES, **options, site=site))
    assert finish(server_of("dp-pca", PARTIES, **options, site=site, secure_aggregation=True)).n_components_ == 2
    with refused(DisclosureError, 3, 2, "honest-parties"):
        finish(server_of("dp-pca", PARTIES, **{**options, "honest_parties": 3}, site=site, secure_aggregation=True))


@pytest.mark.parametrize("phase", ["centre", "products", "joint", "octaves", "directions", "variances"])
@pytest.mark.parametrize("count", ["public", "noised"])
def test_whole_numbers_travel_as_they_are(phase, count):
    """The most rows that there can be, at the bound, all alike, and noise of twenty deviations at every party."""
    bounds = {"joint": {"clip": 2.0}, "centre": {"clip": 2.0, "centre_clip": 3.0}}
    bounds["products"] = bounds["centre"]
    release = {"centre": "two-stage", "products": "two-stage", "joint": "joint"}.get(phase, "directions")
    options = DPOptions(**bounds.get(phase, {}), count=count, release=release)
    config = RunConfig(method="dp-pca", clients=256, secure_aggregation=True)
    parties, d, rows_each = 256, 4, MOST_ROWS
    noise = options.noise(phase)
    layout = phases(config, options)[phase].layout({}, Public(config, options, parties, features=d))
    own = {
        name: np.full(limit.shape, rows_each * UNITS[name] + 20 * noise.of[name] + 1.0)
        for name, limit in layout.limits.items()
    }
    vectors = [layout.encode({name: sign * value for name, value in own.items()}) for sign in [1] * 255 + [-1]]
    count_of, decoded = layout.decode_double(np.sum(vectors, axis=0, dtype=np.uint64))
    assert count_of == parties
    for name, value in own.items():
        high, low = decoded[name]
        exact = [int(h) + int(rest) for h, rest in zip(np.ravel(high), np.ravel(low), strict=True)]
        assert exact == [254 * int(v) for v in np.ravel(value)]
        assert layout.words == 1
