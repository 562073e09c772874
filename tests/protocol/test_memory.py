"""A reply that is too large, or needs too much memory, is refused before anything is computed, with what would do."""

import re
import sys

import numpy as np
import pytest

from fedpca_flwr import run
from fedpca_flwr.errors import ConfigError, DisclosureError
from fedpca_flwr.flower import FedPCA
from fedpca_flwr.maths.moments import packed_size
from fedpca_flwr.protocol import memory
from fedpca_flwr.protocol.memory import server_memory, site_memory
from fedpca_flwr.protocol.question import Public, max_reply_cost
from fedpca_flwr.simulations.benchmarks.peaks import WAYS as PEAK_WAYS
from fedpca_flwr.simulations.benchmarks.peaks import ResidentMeter, TracedMeter, measure_apart, measure_run
from fedpca_flwr.site.site import Site
from fedpca_flwr.strategies import METHODS
from fedpca_flwr.transports.recommendation import transports_of
from tests.families import cut, rows
from tests.harness import fit
from tests.refusals import refused

WIDE = [np.random.default_rng(i).standard_normal((12, 30_000)) for i in range(3)]
SECURE = {"secure_aggregation": True, "bound": 10.0}
WAYS = {"clear": {}, "masked": SECURE, "surviving": {**SECURE, "survivors": 3}}
CARDS = {name: method.strategy.card for name, method in METHODS.items()}
ALONE = [name for name, card in CARDS.items() if not card.loadings_source and "state" not in card.examples[0]]
"""Methods of which no run depends on an earlier one."""
PARTIES, ROWS = 3, 40


@pytest.mark.parametrize("way", WAYS)
def test_too_many_features_name_methods_that_fit(way, monkeypatch):
    for method in METHODS.values():
        monkeypatch.setattr(method.client, "statistics", lambda *_: pytest.fail("a party computed"))
    with refused(DisclosureError, "party 0", "2,147,483,648", "max_reply_bytes") as caught:
        run("p-cov", WIDE, n_components=3, **WAYS[way])
    named = [f"{method} (" in str(caught.value) for method in ("sub-it", "qr-pca", "streaming")]
    assert named == [way != "surviving", way == "clear", False]


def test_runs_beyond_the_memory_are_refused(monkeypatch, caplog, tmp_path):
    monkeypatch.setattr(memory, "available_memory", lambda: 2**30)
    for method in ("p-cov", "compressed"):
        with refused(ConfigError, "party 0", match=r"\b12,60\d,\d{3},\d{3} bytes") as caught:
            run(method, WIDE, n_components=3, max_reply_bytes=10**12)
        assert f"{2**30:,}" in str(caught.value)  # of the caller's own machine
        assert f"{2**30:,}" in caplog.text
        caplog.clear()
    monkeypatch.setattr(memory, "available_memory", lambda: 150_000)
    with refused(ConfigError, "p-cov", "204,000", 90, "150,000") as caught:
        run("p-cov", cut(rows(60, 90), 20, 20, 20), n_components=3)
    assert "sub-it (" in str(caught.value)
    monkeypatch.undo()  # the memory is that of a container, and needed to the byte
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(memory, "CONTAINER_LIMIT_FILE", limit)
    for text, expected in (("4096\n", 4096), ("max\n", memory.available_memory.__wrapped__())):
        limit.write_text(text)
        assert memory.available_memory.__wrapped__() == expected
    monkeypatch.setattr(memory, "available_memory", lambda: memory.site_memory(1000))
    memory.require_party_memory("p-cov", 1000, lambda most: "")
    with refused(ConfigError, "p-cov", f"{memory.site_memory(1001):,}", 999):
        memory.require_party_memory("p-cov", 1001, lambda most: f"; another needs {most - 1}")


def max_bytes_sent(model):
    return max(max(entry["up"]) for entry in model.log["rounds"])


def test_a_limit_on_replies_holds_to_the_byte():
    parties, limit = cut(rows(90, 60), 30, 30, 30), 9_000
    with pytest.raises(DisclosureError) as caught:
        run("p-cov", parties, n_components=2, max_reply_bytes=limit)
    named = dict(re.findall(r"([\w-]+) \(([\d,]+) bytes", str(caught.value).splitlines()[0]))
    assert list(named) == ["sub-it"]
    sent = max_bytes_sent(run("sub-it", parties, n_components=2, max_reply_bytes=limit))
    assert sent <= int(named["sub-it"].replace(",", "")) <= limit
    sent = max_bytes_sent(run("p-cov", parties, n_components=2))
    assert max_bytes_sent(run("p-cov", parties, n_components=2, max_reply_bytes=sent)) == sent
    with refused(DisclosureError, "max_reply_bytes"):
        run("p-cov", parties, n_components=2, max_reply_bytes=sent - 1)


@pytest.mark.parametrize(("method", "way"), [(name, way) for name in ALONE for way in transports_of(METHODS[name])])
def test_the_forecast_of_a_reply_is_its_size(method, way, monkeypatch):
    """A forecast is never too large, so no run within the limit is refused, and every reply is compared."""
    sizes, honest = [], Site.permit_size
    monkeypatch.setattr(Site, "permit_size", lambda self, n, *named: sizes.append(n) or honest(self, n, *named))
    data = rows(60)
    parties = cut(data, 20, 20, 20) if CARDS[method].split == "rows" else np.array_split(data, 3, axis=1)
    assert max_bytes_sent(fit(method, parties, n_components=2, **WAYS[way])) == max(sizes)


def limits_of(features, way):
    options = {key.replace("-", "_"): value for key, value in PEAK_WAYS[way].items()}
    strategy = FedPCA("p-cov", clients=PARTIES, **options).strategy
    public = Public(strategy.config, strategy.options, PARTIES, features=features)
    site = site_memory(max_reply_cost(strategy.script, public, ROWS)[1])
    server, _ = server_memory(strategy.script, public)
    return np.divide([site, server], 8 * packed_size(features))


@pytest.mark.engine
@pytest.mark.parametrize("way", PEAK_WAYS)
def test_peaks_of_a_run_are_within_the_estimate(way):
    measure_run(200, ROWS, PARTIES, way, TracedMeter)  # loads libraries
    np.testing.assert_array_less(measure_run(900, ROWS, PARTIES, way, TracedMeter), limits_of(900, way))


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
@pytest.mark.parametrize("way", PEAK_WAYS)
def test_peaks_at_3000_features_are_within_estimate(way):
    allocated, resident = (measure_apart(3000, 300, PARTIES, way, meter) for meter in (TracedMeter, ResidentMeter))
    np.testing.assert_array_less([*allocated, resident.site], [4.0, 6.0, 4.0])
    np.testing.assert_array_less(resident, limits_of(3000, way))
