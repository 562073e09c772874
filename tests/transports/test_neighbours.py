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
from simulations import run
from strategies import METHODS, TRAVEL, script_of
from tests.families import rows
from tests.refusals import refused

PUBLICS = [bytes([party]) * 32 for party in range(60)]
ABOUT = b"run"


def graph_of(seed, parties):
    """A symmetric matrix, as all parties find it."""
    tied = np.zeros((parties, parties), bool)
    for own in range(parties):
        tied[own, neighbours.neighbours(seed, parties, own)] = True
    return tied


@pytest.mark.parametrize("parties", [51, 60, 100, 333])
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


def test_everybody_is_as_often_a_neighbour(monkeypatch):
    """Chi-square over 2000 graphs, whose seeds are fixed; wrong for one set of seeds in 500,000."""
    monkeypatch.setattr(neighbours, "degree", lambda parties: 4)
    found = [neighbours.neighbours(seed_of(ABOUT, [bytes([i % 256, i // 256]) * 16]), 12, 3) for i in range(2000)]
    counts = np.delete(np.bincount(np.ravel(found), minlength=12), 3)
    expected = 2000 * 4 / 11
    assert chi2.ppf(1e-6, 10) < ((counts - expected) ** 2 / expected).sum() < chi2.ppf(1 - 1e-6, 10)


def test_honest_parties_are_apart_as_often_as_the_formula_says(monkeypatch):
    """1500 graphs of 14 parties with four neighbours each, nine of whom collude."""
    monkeypatch.setattr(neighbours, "degree", lambda parties: 4)
    arcs = []
    for i in range(1500):
        tied = graph_of(seed_of(ABOUT, [i.to_bytes(32, "little")]), 14)[9:, 9:]
        pieces = connected_components(tied)[0]
        arcs.append(pieces * (pieces - 1))  # gaps cut the ring into as many arcs
    expected = float(expected_arcs(14, 9, 4))
    assert abs(np.mean(arcs) - expected) < 4 * np.std(arcs) / np.sqrt(len(arcs))


# Whole runs


def phases(parties, **options):
    data = [rows(6, 4, seed=party) for party in range(parties)]
    secure = run("p-cov", data, n_components=2, secure_aggregation=True, bound=1e3, min_rows=1, **options)
    plain = run("p-cov", data, n_components=2, min_rows=1, **options)
    np.testing.assert_allclose(secure.components_, plain.components_, atol=1e-12)
    return [entry["phase"] for entry in secure.log["rounds"]], secure.log["notes"][-1]


def test_of_more_than_fifty_parties_keys_are_committed_to_first(monkeypatch):
    """And the sum that a site is in is over all of them, whoever its neighbours are."""
    members, summed = Group.members, []
    monkeypatch.setattr(Group, "members", lambda self, of: summed.append(len(of)) or members(self, of))
    asked, note = phases(COMPLETE + 1)
    assert summed == [COMPLETE + 1] * (COMPLETE + 1)
    assert asked == ["keys", "openings", "sums", "deviations", "scatter", "project"]
    assert "it must collude with more than 34 of the parties" in note


def test_up_to_fifty_parties_and_with_shared_noise_nothing_more_is_asked():
    asked, note = phases(COMPLETE)
    assert asked == ["keys", "sums", "deviations", "scatter", "project"]
    assert "it must collude with all parties but one" in note
    for method, committed in (("p-cov", True), ("dp-pca", False)):
        script = script_of(METHODS[method], TRAVEL["masked"], METHODS[method].strategy.card.examples[0])
        assert ("openings" in script) == committed
        masked = Masked()
        masked.own = script_of(METHODS[method], TRAVEL["clear"], METHODS[method].strategy.card.examples[0])
        assert masked.commits(COMPLETE + 1) == committed


def test_a_commitment_is_compared_to_its_last_byte():
    """Keys are searched for whose commitments begin or end as that of the first."""
    mine = commitment(0, PUBLICS[0])
    others = [key for number in range(2000) if (key := number.to_bytes(32, "big")) != PUBLICS[0]]
    alike = [key for key in others if commitment(0, key)[0] == mine[0]][:1]
    alike += [key for key in others if commitment(0, key)[-1] == mine[-1]][:1]
    assert len(alike) == 2
    require_opened([mine], PUBLICS[:1])
    for key in alike:
        with refused(DisclosureError, 0):
            require_opened([mine], [key])
    for place in range(32):
        changed = bytes(byte ^ (i == place) for i, byte in enumerate(mine))
        with refused(DisclosureError, 0):
            require_opened([changed], PUBLICS[:1])
