"""What docs/security says can be learned, learned: an attack that fails would make the page wrong."""

import numpy as np
import pytest

from fedpca_flwr.maths.moments import unpack_symmetric
from tests.families import rows
from tests.harness import finish, fit, heard, server_of
from tests.hostile import HostileSession

PATIENTS = np.round(rows(12, 8) * 10 + 50)


def seen(parties):
    exchanged = heard(server := server_of("p-cov", parties, n_components=2), 0)
    finish(server)
    return exchanged[0].said


def test_moments_of_one_row_and_of_two_are_the_rows_and_of_few_tell_who_is_among_them():
    """With fewer rows than features, exactly the rows' own affine space has variance."""
    _, mean, _, scatter = seen([PATIENTS[:1], rows(30, 8)])
    np.testing.assert_array_equal(mean, PATIENTS[0])
    assert not scatter.any()
    _, mean, _, scatter = seen([PATIENTS[:2], rows(30, 8)])
    values, vectors = np.linalg.eigh(unpack_symmetric(scatter, 8))
    half = vectors[:, -1] * np.sqrt(values[-1] / 2)
    assert sorted([tuple(np.round(mean + half)), tuple(np.round(mean - half))]) == sorted(map(tuple, PATIENTS[:2]))
    _, mean, _, scatter = seen([PATIENTS[:5], rows(30, 8)])
    values, vectors = np.linalg.eigh(unpack_symmetric(scatter, 8))
    distances = np.linalg.norm((PATIENTS - mean) @ vectors[:, values < 1e-9 * values[-1]], axis=1)
    assert distances[:5].max() < 1e-6
    assert distances[5:].min() > 1
    # Who knows all rows but one tells one person from another; what noise hides of this: test_mironov.py.
    worlds = [np.vstack([PATIENTS[:4], PATIENTS[other]]) for other in (6, 5)]
    here, there, asked = (seen([data, rows(30, 8)]) for data in (*worlds, worlds[0][::-1]))
    distances = [sum(np.square(a - b).sum() for a, b in zip(asked, world, strict=True)) for world in (here, there)]
    assert distances[0] < 1e-9 * distances[1]


@pytest.mark.parametrize("way", [{}, {"secure_aggregation": True}], ids=["clear", "masked"])
def test_the_frequencies_in_a_model_tell_who_is_in_it(way):
    """They are in its ``mean_``, however the parties' counts travelled."""
    rng = np.random.default_rng(0)
    population = rng.uniform(0.05, 0.5, 4000)
    inside, outside, others = (rng.binomial(2, population, (60, 4000)).astype(float) for _ in range(3))
    model = fit("sub-it", np.split(inside, 3), n_components=2, max_rounds=2, block_size=2, genotypes=True, **way)
    known = others.mean(axis=0)  # of people in public data

    def nearer_to_the_model(G):
        return (np.abs(G - known) - np.abs(G - model.mean_)).sum(axis=1)

    assert nearer_to_the_model(inside).min() > nearer_to_the_model(outside).max()


D, ALONE, MISSED = 8, 17, 3
OTHERS = np.arange(D) != MISSED
PEOPLE = np.random.default_rng(1).binomial(2, 0.4, (30, D)).astype(float)
PEOPLE[ALONE, MISSED] = np.nan
GENOTYPES = {"n-components": 2, "genotypes": True}


def test_two_runs_or_pruning_reveal_a_person_who_alone_misses_a_call(tmp_path):
    """A server that lies about one frequency in the second run, of a site that takes everybody; or one that reads."""
    products, sums, run = [], [], {"method": "p-cov", **GENOTYPES}
    for run_id, told in enumerate((0.4, 0.2)):
        session = HostileSession(tmp_path / str(run_id), PEOPLE, run, run_id=run_id, gaps="all")
        assert session.ask("alleles", [])[0]
        count, mean, _, packed = session.ask("moments", [np.where(OTHERS, 0.4, told)])[0]
        scatter = unpack_symmetric(packed, D) + count * np.outer(mean, mean)
        products.append(scatter[MISSED] * np.sqrt(2 * told * (1 - told)))  # with (g - 2p) of who was called
        sums.append(count * mean)
    read = (sums[0] - ((products[1] - products[0]) / (2 * (0.4 - 0.2)))) * np.sqrt(2 * 0.4 * 0.6) + 2 * 0.4
    np.testing.assert_allclose(read[OTHERS], PEOPLE[ALONE, OTHERS], atol=1e-9)
    # In pruning it reads the alleles of all who miss a call, and this is one person.
    run = {"method": "qr-pca", **GENOTYPES, "prune": 0.2, "prune-window": D, "prune-step": 1}
    session = HostileSession(tmp_path / "pruned", PEOPLE, run, gaps="all")
    session.ask("alleles", [])
    gaps = session.ask("neighbours", [np.asarray(0), np.array([30, 1]), np.array([MISSED])])[0][1]
    missed = [gaps[2, 0, MISSED - j - 1] if j < MISSED else gaps[0, 0, j - MISSED - 1] for j in np.flatnonzero(OTHERS)]
    np.testing.assert_array_equal(missed, PEOPLE[ALONE, OTHERS])


@pytest.mark.parametrize("method", ["p-cov", "qr-pca", "sub-it", "p-cov masked", "sub-it masked"])
def test_missing_calls_are_refused_unless_all_rows_count(method, tmp_path):
    """Whoever alone misses a call is in no sum, in clear or masked; complete tables are answered."""
    name, *masked = method.split()
    run, first = {"method": name, **GENOTYPES, "secure-aggregation": bool(masked)}, "keys" if masked else "alleles"
    assert HostileSession(tmp_path / "complete", np.delete(PEOPLE, ALONE, axis=0), run).ask(first, [])[0]
    session = HostileSession(tmp_path / "one call", PEOPLE, run)
    said = session.client.get_properties({})
    assert (said["error"], "missing calls" in said["message"]) == ("DisclosureError", True)
    assert "DisclosureError: " in session.refusal(first, [])
    assert HostileSession(tmp_path / "everybody", PEOPLE, run, gaps="all").ask(first, [])[0]
