"""A party's own side: what it writes, and what it keeps in memory."""

import csv
from io import BytesIO

import numpy as np
import pytest
from flwr.app import RecordDict

from fedpca_flwr.maths.moments import Moments
from fedpca_flwr.model.loadings import Loadings
from fedpca_flwr.protocol.journal import State
from fedpca_flwr.site.rows.vault import Vault
from fedpca_flwr.site.scores import OddRows, row_names, score_file
from tests.families import rows
from tests.harness import finish, peak_of, server_of


@pytest.mark.parametrize(("suffix", "scale"), [(".npy", True), (".csv", False)])
def test_scores_are_written_complete_and_in_order(suffix, scale, tmp_path):
    """Rows that rounding leaves over are in no sum, and have scores."""
    X, new = rows(307) + 5, rows(20, seed=1)
    path, loadings = tmp_path / "deep" / f"scores{suffix}", tmp_path / "own.npz"
    site = {"loadings": str(loadings), "round-rows": 10}
    model = finish(server_of("p-cov", [X], n_components=3, scale=scale, scores=str(path), site=site))
    assert model.n_samples_ == 300
    written = np.load(path) if suffix == ".npy" else np.loadtxt(path, delimiter=",", skiprows=1)
    np.testing.assert_allclose(written, model.transform(X), rtol=1e-12, atol=1e-12)
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    scores = Loadings.load(loadings).part_of_scores(new)
    np.testing.assert_allclose(scores, model.transform(new), rtol=1e-12, atol=1e-12)


def test_files_of_scores_are_whole_or_none(tmp_path):
    def interrupted():
        with score_file(str(tmp_path / "scores.npy"), 10, 2) as keep:
            keep(np.zeros((5, 2)))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not list(tmp_path.iterdir())


def test_a_row_is_odd_beyond_either_limit():
    """One component of variance 4 along the first of three features; limits of T2 and SPE are 4 and 1."""
    stream = BytesIO()
    odd_rows = OddRows(np.array([[1.0, 0.0, 0.0]]), np.array([4.0]), np.array([4.0, 1.0]), np.arange(4) < 3, stream)
    odd_rows.add(np.array([[4.0, 0.0, 1.0], [6.0, 1.0, 0.0]]))
    odd_rows.add(np.array([[0.0, 0.5, 2.0], [99.0, 99.0, 98.0]]))
    np.testing.assert_array_equal(odd_rows.exceeding, [1, 1])
    lines = [line.split(",") for line in stream.getvalue().decode().splitlines()]
    assert [line[0] for line in lines[:3]] == ["4", "9", "0"]
    assert [line[2] for line in lines[:3]] == ["1", "1", "4.25"]
    assert [line[4] for line in lines] == ["0", "1", "1", "1"]
    assert [line[5] for line in lines] == ["2 0 1", "1 0 2", "2 1 0", "1 2 0"]
    assert [line[6] for line in lines] == ["0", "1", "2", "3"]


def test_odd_people_of_a_bed_file_have_their_ids(tmp_path):
    (tmp_path / "a.fam").write_text('f1 p1 0 0 0 -9\nf"2 p,2 0 0 0 -9\n')
    (cells,) = csv.reader([",".join(row_names(str(tmp_path / "a.bed")))])
    assert cells == ["f1 p1", 'f"2 p,2']


@pytest.mark.engine
def test_memory_does_not_grow_with_the_rows(tmp_path):
    """240 MB on disk through less than 100 MB of memory."""
    data = np.lib.format.open_memmap(tmp_path / "big.npy", "w+", np.float64, (1_500_000, 20))
    data[::1000] = rows(1500, 20)

    def work():
        moments = Moments.from_rows(data)
        vault = Vault(data, State(RecordDict()), columns=0, parties=1)
        squared = vault.squared_error(moments.mean, np.empty(0), np.eye(20)[:5])
        np.testing.assert_allclose(squared, moments.diagonal()[5:].sum(), rtol=1e-9)

    assert peak_of(work) < 100e6
