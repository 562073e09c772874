"""The graph of neighbours: everybody finds the same one, of any keys, and its honest parties are as the bound says."""

import numpy as np
import pytest
from scipy.sparse.csgraph import connected_components
from scipy.stats import chi2

from fedpca_flwr.errors import DisclosureError
from fedpca_flwr.maths.secure import expected_arcs
from fedpca_flwr.transports import neighbours
from fedpca_flwr.transports.encoding import Group
from fedpca_flwr.transports.masked import Masked
from fedpca_flwr.transports.neighbours import COMPLETE, commitment, degree, require_opened, seed_of
from strategies import METHODS, TRAVEL, script_of
from tests.families import rows
from tests.harness import fit
from tests.refusals import refused

PUBLICS = [bytes([party]) * 32 for party in range(60)]
ABOUT = b"run"


def graph_of(seed, parties, among=None):
    """A symmetric matrix, as all parties find it, or those among them."""
    tied = np.zeros((parties, parties), bool)
    for own in among or range(parties):
        tied[own, neighbours.neighbours(seed, parties, own)] = True
    return tied


@pytest.mark.parametrize("parties", [51, 60, 333])
def test_each_party_finds_the_same_graph_of_the_degree_that_is_said(parties):
    tied = graph_of(bytes(32), parties)
    assert (tied == tied.T).all()
    assert not tied.diagonal().any()
    assert set(tied.sum(axis=0)) == {degree(parties)}


def test_degrees_graphs_and_commitments_are_those_of_the_docs():
    assert [degree(parties) for parties in (2, 10, COMPLETE)] == [1, 9, 49]
    assert [degree(parties) for parties in (51, 100, 1000, 10_000)] == [36, 54, 92, 108]
    first = neighbours.neighbours(seed_of(ABOUT, PUBLICS), 60, 7)
    for party in (0, 31, 59):
        changed = [*PUBLICS[:party], b"\xff" * 32, *PUBLICS[party + 1 :]]
        assert neighbours.neighbours(seed_of(ABOUT, changed), 60, 7) != first
    assert neighbours.neighbours(seed_of(b"another run", PUBLICS), 60, 7) != first
    assert len({commitment(party, public) for party in range(3) for public in PUBLICS}) == 180
    shown = [commitment(party, public) for party, public in enumerate(PUBLICS)]
    require_opened(shown, PUBLICS)
    with refused(DisclosureError, 4, 9, match="committed"):
        require_opened(shown, [b"\xff" * 32 if party in (4, 9) else key for party, key in enumerate(PUBLICS)])


@pytest.mark.engine
def test_everybody_is_as_often_a_neighbour_and_honest_parties_are_apart_as_often_as_the_formula_says(monkeypatch):
    monkeypatch.setattr(neighbours, "degree", lambda parties: 4)
    # Chi-square over 2000 graphs, whose seeds are fixed; wrong for one set of seeds in 500,000.
    found = [neighbours.neighbours(seed_of(ABOUT, [bytes([i % 256, i // 256]) * 16]), 12, 3) for i in range(2000)]
    counts, expected = np.delete(np.bincount(np.ravel(found), minlength=12), 3), 2000 * 4 / 11
    assert chi2.ppf(1e-6, 10) < ((counts - expected) ** 2 / expected).sum() < chi2.ppf(1 - 1e-6, 10)
    # 1500 graphs of 14 parties, nine of whom collude: gaps cut the ring into as many arcs.
    graphs = [graph_of(seed_of(ABOUT, [i.to_bytes(32, "little")]), 14, range(9, 14))[9:, 9:] for i in range(1500)]
    pieces = np.array([connected_components(tied)[0] for tied in graphs])
    arcs = pieces * (pieces - 1)
    assert abs(np.mean(arcs) - float(expected_arcs(14, 9, 4))) < 4 * np.std(arcs) / np.sqrt(len(arcs))


def test_a_commitment_is_compared_to_its_last_byte():
    """Keys are searched for whose commitments begin or end as that of the first."""
    mine = commitment(0, PUBLICS[0])
    others = [key for number in range(2000) if (key := number.to_bytes(32, "big")) != PUBLICS[0]]
    alike = [next(key for key in others if commitment(0, key)[end] == mine[end]) for end in (0, -1)]
    changed = [bytes(byte ^ (i == place) for i, byte in enumerate(mine)) for place in range(32)]
    require_opened([mine], PUBLICS[:1])
    for shown, key in [*((mine, key) for key in alike), *((other, PUBLICS[0]) for other in changed)]:
        with refused(DisclosureError, 0):
            require_opened([shown], [key])


# Whole runs


@pytest.mark.engine
def test_of_more_than_fifty_parties_keys_are_committed_to_first(monkeypatch):
    """And the sum that a site is in is over all of them, whoever its neighbours are."""
    members, summed, parties = Group.members, [], COMPLETE + 1
    monkeypatch.setattr(Group, "members", lambda self, of: summed.append(len(of)) or members(self, of))
    data, secure = [rows(6, 4, seed=party) for party in range(parties)], {"secure_aggregation": True, "bound": 1e3}
    model, plain = (fit("p-cov", X, n_components=2, **way) for X, way in ((data, secure), ([np.vstack(data)], {})))
    np.testing.assert_allclose(model.components_, plain.components_, atol=1e-12)
    assert summed == [parties] * parties
    phases = [entry["phase"] for entry in model.log["rounds"]]
    assert phases == ["keys", "openings", "sums", "deviations", "scatter", "project"]
    assert "it must collude with more than 34 of the parties" in model.log["notes"][-1]


@pytest.mark.parametrize(("method", "committed"), [("p-cov", True), ("dp-pca", False)])
def test_up_to_fifty_parties_and_with_shared_noise_nothing_more_is_asked(method, committed):
    clear, masked = (
        script_of(METHODS[method], TRAVEL[way], METHODS[method].strategy.card.examples[0])
        for way in ("clear", "masked")
    )
    assert ("openings" in masked) == committed
    transport = Masked()
    transport.own = clear
    assert [transport.commits(parties) for parties in (COMPLETE, COMPLETE + 1)] == [False, committed]
