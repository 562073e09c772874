"""Compressed moments: every codec within its own bound, and better with more bytes."""

from contextlib import suppress
from itertools import pairwise

import numpy as np
import pytest

from fedpca_flwr import run
from fedpca_flwr.errors import ConfigError, ContractError, FedPCAError
from fedpca_flwr.maths.codecs import decode_orthonormal_block, encode_block, encode_components
from fedpca_flwr.maths.refine import block_bits
from fedpca_flwr.model.reference import pooled_pca, principal_angles
from tests.families import cut, rows
from tests.families import unlike_parties as parties
from tests.harness import differences, finish, heard, on_request, server_of, tamper_arrays
from tests.refusals import refused

TRUTH = pooled_pca(np.vstack(parties()), 4)
SHORT = {"secure_aggregation": True, "bound": 100.0}
SERIES = {
    "quantise": [{"codec": "quantise", "bits": bits} for bits in (6, 12, 20, 32)],
    "shared-step": [{"codec": "shared-step", "step": step} for step in (1e-2, 1e-4, 1e-6)],
    "low-rank": [
        *({"codec": "low-rank", "rank": rank, "bits": bits} for rank, bits in ((8, 8), (16, 12), (40, 24))),
        {"codec": "low-rank", "rank": 40, "wire": "float64"},
    ],
    "sketch": [{"codec": "sketch", "rank": rank, "bits": 32} for rank in (8, 20, 40)],
}
ORTHONORMAL = np.linalg.qr(np.random.default_rng(0).standard_normal((40, 15)))[0]
TALL = ORTHONORMAL[:, :14]
BLOCKS = [(ORTHONORMAL, 8, "15 .*14"), (TALL, 33, "33 .*14 .*32"), (TALL[:39], 8, "decode")]
BLOCKS += [(2 * TALL, 8, "orthonormal"), (TALL[:, :0], 8, "0 .*40")]


def fit(parts=None, **options):
    return run("compressed", parts or parties(), **{"n_components": 4, **options})


def bound_of(model):
    return model.log["measured"]["angle_bound_degrees"]


def fit_and_measure(**options):
    model = fit(**options)
    angle = principal_angles(model, TRUTH).max
    assert angle <= bound_of(model)
    return angle, bound_of(model), sum(model.bytes_up_by_party)


@pytest.mark.parametrize("series", SERIES.values(), ids=SERIES)
def test_more_bytes_give_a_smaller_angle_and_a_bound_that_holds(series):
    angles, bounds, sent = zip(*(fit_and_measure(**options) for options in series), strict=True)
    assert bounds[-1] < 90
    assert list(angles) == sorted(angles, reverse=True)
    assert list(sent) == sorted(sent)
    assert angles[-1] < 1e-3


@pytest.mark.parametrize(
    ("base", "most", "times_smaller"),
    [*((of_codec[0], 1, 5) for of_codec in [*SERIES.values()][:3]), ({**SERIES["low-rank"][0], "rank": 16}, 3, 10)],
    ids=str,
)
def test_a_correction_shrinks_the_angle_and_the_bound_holds(base, most, times_smaller):
    """Without error feedback the rounding of the first correction would stay."""
    angles, bounds, sent = zip(*(fit_and_measure(**base, corrections=i) for i in range(most + 1)), strict=True)
    assert all(later < earlier / times_smaller for earlier, later in pairwise(angles))
    assert all(later < earlier / 3 for earlier, later in pairwise(bounds))
    assert 0 < min(np.diff(sent)) <= max(np.diff(sent)) < sent[0]


def test_compressed_measurements_are_as_documented():
    """A step is in mean variances of a feature, and factors have twice as many vectors as there are components."""
    server = server_of("compressed", parties(), n_components=4, codec="shared-step", step=1e-4)
    exchanged = [heard(server, party) for party in range(3)]
    measured, total = finish(server).log["measured"], np.vstack(parties()).var(axis=0).sum() * 600
    assert float(exchanged[0][1].asked[0]) == pytest.approx(1e-4 * total / 40, rel=1e-12)
    error_norm = sum(float(party[1].said[-1][0]) for party in exchanged)
    assert measured["scatter_error_variance_share"] == pytest.approx(error_norm / total, rel=1e-12)
    for model in (fit(), fit(codec="low-rank")):
        ratio = 8 * (40 * 40 + 40 + 1) / np.mean(model.log["rounds"][0]["up"])
        assert model.log["measured"]["compression_ratio"] == pytest.approx(ratio, rel=1e-12)
    assert not differences(fit(codec="low-rank"), fit(codec="low-rank", rank=8))


@pytest.mark.parametrize("codec", SERIES)
@pytest.mark.parametrize("trace", [5e-324, 1e-310, 1.7e308])
def test_an_extreme_trace_breaks_no_code(codec, trace):
    """The fault: such a unit made infinite numbers, at which the server broke down with no sentence."""
    server = server_of("compressed", parties(), n_components=4, codec=codec, corrections=1)
    lie, of_traces = np.array([trace]), (np.float64, (1,))
    tamper_arrays(server, 1, lambda arrays: [lie if (a.dtype, a.shape) == of_traces else a for a in arrays])
    is_refused = trace == 1e-310 and codec == "shared-step"
    with refused(ContractError, "client 1", match="code") if is_refused else suppress(FedPCAError):
        assert np.isfinite(finish(server).explained_variance_).all()


@pytest.mark.parametrize(
    "base",
    [SERIES["shared-step"][1], SERIES["low-rank"][1], {"bits": 14}, *({"bits": n, **SHORT} for n in (12, 16, 21))],
    ids=str,
)
def test_corrections_go_on_until_the_certificate_holds(base):
    model, secure = fit(tolerance=1e-6, **base), "bound" in base
    assert principal_angles(model, TRUTH).max <= bound_of(model) <= 1e-6
    assert model.log["exact"]
    np.testing.assert_allclose(model.explained_variance_, TRUTH.explained_variance_, rtol=1e-9 if secure else 1e-7)
    down = [entry["down"][0] for entry in model.log["rounds"] if entry["phase"] == "correction"]
    assert 0 < len(down) < 10
    if not secure:
        assert (np.array(down[:3]) < [1.1 * 40 * 14 * bits // 8 + 1000 for bits in (8, 16, 24)][: len(down)]).all()
        assert down[0] < down[-1]


def test_steps_codes_and_blocks_that_cannot_be_are_refused():
    with refused(ConfigError, "party 0", "'step'", "1e-12"):
        fit(codec="shared-step", step=1e-12)
    server = server_of("compressed", parties(), n_components=4)
    tamper_arrays(server, 1, lambda arrays: [*arrays[:-1], -np.ones(2)])
    with refused(ContractError, "client 1", "'wrong'", -1, 0):
        finish(server)
    even = np.vstack([np.eye(5), -np.eye(5)])  # a third of a feature's variance each, and a step of a whole one
    with refused(ConfigError, "'codec'", "'shared-step'"):
        fit([even] * 3, codec="shared-step", step=1.0, n_components=2, min_rows=1)
    for block, bits, what in BLOCKS:
        coded, _ = encode_block(block, min(bits, 32))
        server = server_of("compressed", parties(), n_components=4, corrections=1)
        sent = [coded.code, coded.scales, np.asarray(bits)]
        on_request(server, 1, "correction", lambda arrays, sent=sent: sent)
        with refused(ContractError, "client 1", match=what):
            finish(server)


def test_blocks_are_sent_in_the_bits_that_leave_little_of_them():
    errors = []
    for bits in map(block_bits, range(4)):
        block = decode_orthonormal_block(encode_block(TALL, bits)[0], bits, TALL.shape)
        np.testing.assert_allclose(block.T @ block, np.eye(14), atol=1e-14)
        errors.append(np.linalg.norm(block - TALL @ (TALL.T @ block), 2))
    assert block_bits(3) == block_bits(9) == 32
    assert all(later < earlier / 100 for earlier, later in pairwise(errors))
    assert 1e-4 < errors[0] < 0.05
    # In 8 bits its 9,000 small entries, together a tenth of it, would all become zero, and sites would refuse it.
    tall = np.full((9001, 1), 0.0036)
    tall[0] = np.sqrt(1 - np.sum(tall[1:] ** 2))
    with refused(ValueError):
        decode_orthonormal_block(encode_block(tall, 8)[0], 8, tall.shape)
    coded, bits, block = encode_components(tall, 8)
    assert bits == 16
    np.testing.assert_array_equal(decode_orthonormal_block(coded, bits, tall.shape), block)
    np.testing.assert_allclose(decode_orthonormal_block(coded, bits, tall.shape), tall, atol=1e-3)


def test_insufficient_corrections_are_noted():
    for options, number in (({"corrections": 1}, 1), ({}, 10)):
        model = fit(tolerance=1e-30, bits=4, **options)
        assert [entry["phase"] for entry in model.log["rounds"]].count("correction") == number
        assert model.log["exact"] is False
        assert model.log["notes"][0].startswith(f"stopped after {number} corrections with ")
        assert model.log["notes"][0].endswith("; wanted 1e-30 degrees")
    model = fit(tolerance=1.0, bits=16)
    assert "correction" not in [entry["phase"] for entry in model.log["rounds"]]
    assert bound_of(model) <= 1.0
    assert not fit(n_components=40, tolerance=1.0, bits=8).log["exact"]  # all directions are right, but no variance is
    assert not fit(cut(rows(3, 10), 2, 1), n_components=3, min_rows=1, tolerance=1e-6, bits=24).log["exact"]
    # With the larger tolerance a run ends once the angle is small, and the variance is proven to fewer digits.
    for tolerance, exact in ((1e-5, False), (1e-6, True)):
        model = fit(codec="shared-step", step=1e-4, n_components=1, tolerance=tolerance)
        assert bound_of(model) <= 1e-6
        assert model.log["exact"] is exact


def test_short_words_are_within_the_bound_and_corrected():
    """All know the steps: the bound is that of half a step of each of three parties, of all entries the worst way."""
    up = {bits: sum(entry["up"][0] for entry in fit(bits=bits, **SHORT).log["rounds"]) for bits in (16, 32)}
    assert up[16] < up[32]
    constant = [np.hstack([part, np.ones((len(part), 20))]) for part in parties()]
    logs = [fit(parts, **SHORT).log["rounds"] for parts in (parties(), constant)]
    varying, more = (next(entry["up"] for entry in log if entry["phase"] == "scatter") for log in logs)
    assert varying == more
    # Without a correction the angle is as large as 12 bits make it, and the bound holds.
    model = fit(bits=12, **SHORT)
    assert 1e-4 < principal_angles(model, TRUTH).max <= bound_of(model)
    for bits, values_per_word in ((8, 8), (16, 4), (21, 3)):
        measured = fit(bits=bits, **SHORT).log["measured"]["scatter_error_variance_share"]
        assert measured == pytest.approx(1.5 / ((int(2 ** (64 / values_per_word)) - 1) // 2 - 2), rel=1e-5)
    # Faults: products of features with tiny units beyond their limit; a step smaller than float64 can count.
    for seed in (1, 2, 3):
        X = rows(60, 12) * 10.0 ** np.random.default_rng(seed).uniform(-16, 16, 12)
        options = {**SHORT, "bound": 1.1 * float(np.abs(X).max()), "min_parties": 2}
        model = fit(cut(X, 40, 20), bits=8, corrections=10, **options)
        assert principal_angles(model, pooled_pca(X, 4)).max <= bound_of(model)
    X = np.outer(*np.split(np.random.default_rng(0).standard_normal(45), [40]))
    for bits in (28, 32):
        model = fit(cut(X, 39, 1), **{**options, "bits": bits, "tolerance": 1e-6, "min_rows": 1, "bound": 10.0})
        assert model.explained_variance_[0] == pytest.approx(X.var(axis=0, ddof=1).sum(), rel=1e-9)
