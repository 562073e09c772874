"""What SECURITY.md says can be learned, learned: an attack that fails would make the page wrong."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.common import parameters_to_ndarrays

from fedpca_flwr.errors import DisclosureError
from fedpca_flwr.maths.moments import Moments, unpack
from simulations import run
from strategies import METHODS
from tests.families import cut, rows
from tests.harness import finish, own, server_of, tamper

PATIENTS = np.round(rows(12, 8) * 10 + 50)


def seen(method, parties, **options):
    """The arrays that the server receives from party 0 in the first round."""
    server, caught = server_of(method, parties, n_components=2, **options), []
    tamper(server, 0, lambda reply: caught.append(reply.parameters) or reply)
    finish(server)
    return parameters_to_ndarrays(caught[0])


def as_symmetric(packed, d):
    lower = unpack(packed, d)
    return lower + np.tril(lower, -1).T


def test_the_mean_of_one_row_is_the_row():
    _, mean, _, scatter = seen("p-cov", [PATIENTS[:1], rows(30, 8)])
    np.testing.assert_array_equal(mean, PATIENTS[0])
    assert not scatter.any()


def test_two_rows_follow_from_mean_and_covariance():
    _, mean, _, scatter = seen("p-cov", [PATIENTS[:2], rows(30, 8)])
    values, vectors = np.linalg.eigh(as_symmetric(scatter, 8))
    half = vectors[:, -1] * np.sqrt(values[-1] / 2)
    guessed = sorted([tuple(np.round(mean + half)), tuple(np.round(mean - half))])
    assert guessed == sorted(map(tuple, PATIENTS[:2]))


def test_a_covariance_of_few_rows_tells_whether_someone_is_among_them():
    """With fewer rows than features, exactly the rows' own affine space has variance."""
    few = PATIENTS[:5]
    _, mean, _, scatter = seen("p-cov", [few, rows(30, 8)])
    values, vectors = np.linalg.eigh(as_symmetric(scatter, 8))
    empty = vectors[:, values < 1e-9 * values[-1]]
    assert np.linalg.norm((few - mean) @ empty, axis=1).max() < 1e-6
    assert np.linalg.norm((PATIENTS[5:] - mean) @ empty, axis=1).min() > 1


def test_two_models_tell_what_one_party_added():
    """The difference of two pooled scatters is the newcomer's, to everyone who has both."""
    before, after = Moments.of(PATIENTS[:11]), Moments.of(PATIENTS)
    newcomer = after.count * after.mean - before.count * before.mean
    np.testing.assert_allclose(newcomer, PATIENTS[11], atol=1e-9)


@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if not method.strategy.card.private])
def test_few_rows_are_refused_by_default(method):
    with pytest.raises(DisclosureError, match="'min-rows' = 10"):
        run(method, [PATIENTS[:5], rows(30, 8)], n_components=2, engine="loopback", **own(method))


def test_a_site_may_tell_a_rounded_number_of_rows_and_still_get_all_scores(tmp_path):
    parts = cut(rows(130), 67, 63)
    server = server_of("p-cov", [parts[0]], n_components=3, round_rows=10, scores=str(tmp_path / "s.npy"))
    model = finish(server)
    assert model.log["parties"][0]["rows"] == 60
    np.testing.assert_allclose(np.load(tmp_path / "s.npy"), model.transform(parts[0]), atol=1e-12)
    whole = run("p-cov", [parts[0][:60]], n_components=3, engine="loopback")
    assert whole.components_.tobytes() == model.components_.tobytes()
