"""What a site's process and the server hold at once is within the estimate by which runs are admitted."""

import sys

import pytest

from fedpca_flwr.flower import FedPCA
from fedpca_flwr.maths.moments import packed_size
from fedpca_flwr.protocol.memory import server_memory, site_memory
from fedpca_flwr.protocol.question import Public, max_reply_cost
from fedpca_flwr.simulations.benchmarks.peaks import WAYS, Peaks, ResidentMeter, TracedMeter, measure_apart, measure_run

PARTIES, ROWS, FEATURES = 3, 40, 900
GOAL = Peaks(site=4.0, server=6.0)


def estimate(features, way):
    """Return the estimates in packed scatters."""
    options = {key.replace("-", "_"): value for key, value in WAYS[way].items()}
    strategy = FedPCA("p-cov", clients=PARTIES, **options).strategy
    public = Public(strategy.config, strategy.options, PARTIES, features=features)
    site = site_memory(max_reply_cost(strategy.script, public, ROWS)[1])
    server, _ = server_memory(strategy.script, public)
    return Peaks(site / (8 * packed_size(features)), server / (8 * packed_size(features)))


def within(peaks, limits):
    return peaks.site <= limits.site and peaks.server <= limits.server


@pytest.fixture(scope="module")
def libraries():
    """All libraries are loaded."""
    measure_run(400, ROWS, PARTIES, "masked", TracedMeter)


@pytest.mark.engine
@pytest.mark.usefixtures("libraries")
@pytest.mark.parametrize("way", WAYS)
def test_peaks_of_a_run_are_within_the_estimate(way):
    peaks = measure_run(FEATURES, ROWS, PARTIES, way, TracedMeter)
    assert within(peaks, estimate(FEATURES, way)), peaks


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
@pytest.mark.parametrize("way", WAYS)
def test_peaks_at_3000_features_are_within_estimate(way):
    allocated, resident = (measure_apart(3000, 300, PARTIES, way, meter) for meter in (TracedMeter, ResidentMeter))
    assert within(allocated, GOAL), allocated
    assert within(resident, estimate(3000, way)), resident
    assert resident.site <= GOAL.site, resident
