"""The option ``prune``: PCA of the variants that pruning leaves."""

import numpy as np
import pytest

from fedpca_flwr.errors import ConfigError, ContractError
from fedpca_flwr.maths.eigen import principal_angles
from fedpca_flwr.questions import linkage
from tests.harness import client_of, finish, fit, server_of, tamper_arrays
from tests.maths.test_linkage import by_hand as plinks_rule
from tests.maths.test_linkage import linked_people
from tests.questions.test_genotypes_of_people import SUMS, by_hand
from tests.refusals import refused

OPTIONS = {"n_components": 2, "genotypes": True, "prune": 0.2, "prune_window": 50, "prune_step": 7}


def parties_of(G):
    return [G[:40], G[40:65], G[65:]]


@pytest.mark.parametrize(
    ("method", "way"),
    [("qr-pca", {}), ("p-cov", SUMS), ("sub-it", {}), ("sub-it", SUMS), ("adaptive", {})],
    ids=str,
)
@pytest.mark.parametrize("missing", [0.0, 0.05])
def test_components_are_those_of_the_kept_variants(method, way, missing, monkeypatch):
    monkeypatch.setattr(linkage, "PAIRS", 4000)  # so that several questions are needed
    G = np.delete(linked_people(missing=missing), 120, axis=1)
    model = fit(method, parties_of(G), **OPTIONS, **way)
    expected = plinks_rule(G, [0], 50, 7, 0.2)
    np.testing.assert_array_equal(model.components_.any(axis=0), expected)
    vectors = np.linalg.svd(by_hand(G) * expected)[2][:2]
    assert principal_angles(model.components_.T, vectors.T).max() <= 2e-6
    asked = [entry["phase"] for entry in model.log["rounds"]]
    assert asked.count("gapped_neighbours" if missing else "neighbours") == 3
    assert any(note.startswith(f"{expected.sum()} variants are kept") for note in model.log["notes"])
    assert model.transform(G).shape == (90, 2)


def test_a_window_ends_with_its_chromosome():
    frames = pytest.importorskip("pandas")
    G = np.delete(linked_people(), 120, axis=1)
    names = [f"{1 + (place >= 100)}:{place}:A:G" for place in range(G.shape[1])]
    parties = [frames.DataFrame(part, columns=names) for part in parties_of(G)]
    model = fit("qr-pca", parties, **OPTIONS)
    np.testing.assert_array_equal(model.components_.any(axis=0), plinks_rule(G, [0, 100], 50, 7, 0.2))


@pytest.mark.parametrize(
    ("options", "named"),
    [({"genotypes": False}, ["'prune'", 0.2, "genotypes=True"]), ({"prune_step": 60}, ["'prune_step'", 60, 50])],
    ids=str,
)
def test_options_that_contradict_it_are_refused(options, named):
    with refused(ConfigError, *named):
        fit("qr-pca", parties_of(linked_people()), **OPTIONS | options)


def test_sums_that_no_genotypes_have_are_a_false_share():
    server = server_of("qr-pca", parties_of(linked_people()), **OPTIONS)

    def change(arrays):
        arrays[0][0, 30, 2] += 500
        return arrays

    tamper_arrays(server, 1, change, "gapped_neighbours")
    with refused(ContractError):
        finish(server)


def test_a_party_answers_about_no_pair_beyond_its_variants():
    server = server_of("qr-pca", parties_of(linked_people()), **OPTIONS)
    assert client_of(server, 0).fit([], {"phase": "alleles"})[0]
    reply = client_of(server, 0).fit([np.asarray(240)], {"phase": "gapped_neighbours"})
    assert reply[2]["error"] == "ContractError"
