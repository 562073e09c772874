"""What commit e3ebde38 wrote is read: models, kept moments, federations, running models, journals (`tests/earlier`).

`rows.npz` there holds the rows of five parties; every model is of two components of theirs. `journal-0` is of the first
of three sites with the rows of the first three: a run of sub-it, a refused run, one of dp-pca with epsilon 1, and
one with secure sums.
"""

import shutil
from pathlib import Path

import numpy as np
import pytest

from fedpca_flwr import PCAModel, analyses, run
from fedpca_flwr.errors import DisclosureError
from fedpca_flwr.model.federation import Federation
from fedpca_flwr.model.second_moments import SecondMoments
from fedpca_flwr.site.rules.audit import audit
from tests.harness import at_sites, finish, server_of

EARLIER = Path(__file__).parents[1] / "earlier" / "e3ebde38"


@pytest.fixture(scope="module")
def parties():
    with np.load(EARLIER / "rows.npz") as arrays:
        return [arrays[name] for name in arrays.files]


@pytest.fixture
def folder(tmp_path):
    return Path(shutil.copytree(EARLIER, tmp_path / "earlier"))


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("p-cov", {"scale": True, "clusters": 2, "keep": "parties"}),
        ("em", {}),
        ("dp-pca", {"epsilon": 1.0, "noise_seed": 1}),
        ("vertical", {}),
        ("streaming", {}),
        ("sapca", {"share_low": 0.0, "share_high": 1.0}),  # the number of components was fixed
    ],
)
def test_a_model_of_before_is_that_of_today(method, options, parties, tmp_path):
    model = PCAModel.load(EARLIER / f"{method}.npz")
    options |= {"state": str(tmp_path / "state")} if method in ("streaming", "sapca") else {}
    own = [parties[2][:, :2], parties[2][:, 2:]] if method == "vertical" else [party.copy() for party in parties]
    if method == "em":
        for party in own:
            party[::4, 1] = np.nan
    today = run(method, own, n_components=2, **options)
    # EM's steps are other ones today, and both iterations end within 0.01 degrees (1.7e-4) of the end
    digits = {"rtol": 2e-5, "atol": 2e-5} if method == "em" else {"rtol": 1e-7, "atol": 1e-9}
    for name in ("components_", "mean_", "explained_variance_", "explained_variance_ratio_", "singular_values_"):
        earlier, now = (np.asarray(getattr(one, name), float) for one in (model, today))  # none is nan
        np.testing.assert_allclose(earlier, now, **digits, err_msg=name)
    assert (model.n_samples_, model.n_features_in_) == (today.n_samples_, today.n_features_in_)
    assert model.summary(full=True).splitlines()[0] == today.summary(full=True).splitlines()[0]
    again = PCAModel.load(model.save(tmp_path / "again.npz"))
    np.testing.assert_array_equal(again.components_, model.components_)
    assert [str(entry) for entry in again.log] == [str(entry) for entry in model.log]


def test_kept_moments_of_before_give_the_statistics_of_the_rows(parties):
    moments = SecondMoments.load(EARLIER / "p-cov-moments.npz")
    np.testing.assert_allclose(moments.covariance, np.cov(np.concatenate(parties).T), rtol=1e-12)
    assert np.isfinite(analyses.how_sure_by_parties(moments, 2).variances).all()


def test_a_federation_of_before_goes_on(parties, folder):
    federation = Federation.open(folder / "federation")
    assert sum(federation.members.values()) == sum(map(len, parties))
    model = run("streaming", [parties[0][:11]], n_components=2, state=str(folder / "federation"))
    rows = np.concatenate([parties[0][:11], *parties[1:]])
    assert model.n_samples_ == len(rows)
    np.testing.assert_allclose(model.mean_, rows.mean(axis=0), rtol=1e-12)


@pytest.mark.parametrize("method", ["spca", "sapca"])
def test_a_running_model_of_before_goes_on(method, parties, folder):
    model = run(method, [np.eye(30, 4)], n_components=2, state=str(folder / "running"))
    assert model.n_samples_ == sum(map(len, parties)) + 30


def test_a_journal_of_before_is_whole_and_counts(parties, folder, tmp_path, monkeypatch):
    journal = audit(str(folder / "journal-0"))
    assert journal.gap == 0
    assert [run["compared"] for run in journal.runs()] == [False, True, True, True]  # the first was in clear
    assert {"run", "question", "answer", "release", "refused", "opened"} <= {event.kind for event in journal.events}

    def ask(method, first=0, site=(), **options):
        for number, rows in enumerate(parties[:3]):
            np.savetxt(tmp_path / f"{number}.csv", rows[first:], delimiter=",", header="a,b,c,d", comments="")
        files = [{"data": f"{tmp_path}/{number}.csv", "journal": f"{folder}/journal-{number}"} for number in range(3)]
        server = server_of(method, parties[:3], n_components=2, **options)
        return finish(at_sites(server, [node | dict(site) for node in files]))

    monkeypatch.setattr("tests.harness.own", lambda method: {})  # no fixed noise
    with pytest.raises(DisclosureError, match="client 0: .*epsilon"):
        ask("dp-pca", site={"epsilon-budget": 1.2})
    with pytest.raises(DisclosureError, match="client 0: "):
        ask("p-cov", first=1, secure_aggregation=True, bound=100.0, min_rows=10)
    assert audit(str(folder / "journal-0")).gap == 0
