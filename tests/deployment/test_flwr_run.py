"""`flwr run` in Flower's simulation: the README's first command, and what a mistake in it says."""

import json

import pytest

from fedpca_flwr.data import datasets
from fedpca_flwr.errors import FedPCAError
from fedpca_flwr.maths import eigen
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.reference import pooled_pca, principal_angles
from tests.deployment.lab import SimulationLab

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("ignore")]


def of(parties):
    return "--federation-config", f"num-supernodes={parties} client-resources-num-cpus=1"


@pytest.fixture(scope="module")
def link(tmp_path_factory):
    with SimulationLab(tmp_path_factory.mktemp("link") / "flower") as running:
        yield running


def test_digits_on_ten_clients(link, tmp_path):
    status, log = link.run(f"output={json.dumps(str(tmp_path / 'model'))}", *of(10))
    assert status == "finished:completed", log
    model = PCAModel.load(tmp_path / "model")
    truth = pooled_pca(datasets.load("digits").all_rows(), 10)
    assert principal_angles(model, truth).max <= 1e-6
    assert len(model.log["parties"]) == 10
    for line in (
        "parties               10",
        "rows                  1797",
        "bytes up",
        "captured variance     73.8227% of that of the pooled rows",
        "angle to pooled PCA",
        "model.npz",
    ):
        assert line in log
    assert model.to_sklearn().transform(datasets.load("digits").all_rows()).shape == (1797, 10)


def test_columns_of_wine_at_three_clients(link, tmp_path):
    told = "method='vertical scale=true' dataset='wine' partition='columns' columns='4 4 5' n-components=3"
    status, log = link.run(f"{told} output={json.dumps(str(tmp_path / 'model'))}", *of(3))
    assert status == "finished:completed", log
    model = PCAModel.load(tmp_path / "model")
    rows = datasets.load("wine").all_rows()
    truth = pooled_pca(rows, 3, scale=True).transform(rows)
    assert eigen.principal_angles(model.scores_, truth).max() <= 1e-5
    for line in (
        "parties               3, with 4 to 5 features of the same rows",
        "captured variance     66.5300% of that of the pooled rows",
        "angle to pooled PCA",
        "certified angle",
    ):
        assert line in log


def test_a_wrong_value_fails_by_name_and_writes_nothing(link, tmp_path):
    status, log = link.run(f"dataset='digit' output={json.dumps(str(tmp_path / 'model'))}", *of(2))
    assert status == "finished:failed"
    assert "ConfigError: client" in log
    assert "'dataset' is 'digit', expected one of: digits" in log
    assert not list(tmp_path.iterdir())


def test_an_option_beside_the_method_is_refused_before_there_is_a_run(link):
    with pytest.raises(FedPCAError, match="Invalid run configuration"):
        link.run("method='sub-it' block-size=10", *of(2))
