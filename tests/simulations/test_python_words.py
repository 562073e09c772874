"""Errors of `run` and `FederatedPCA` name keyword arguments, not the keys of a run-config."""

from __future__ import annotations

import pytest

from fedpca_flwr import FederatedPCA, run
from fedpca_flwr.errors import FedPCAError
from simulations.python_words import python_words
from tests.families import rows
from tests.refusals import refused, unnamed

X = rows(60, 5)
PARTIES = [X[:30], X[30:]]


def refusal(method, parties=PARTIES, **options):
    with pytest.raises(FedPCAError) as told:
        run(method, parties, **options)
    return str(told.value)


@pytest.mark.parametrize(
    ("method", "options", "named"),
    [
        ("p-cov", {"n_components": 9}, ["'n_components'", 9, 5, 1]),
        ("p-cov", {"n_components": 0}, ["'n_components'", 0, 1]),
        ("p-cov", {"n_componets": 2}, ["p-cov", "n_componets", "n_components"]),
        ("p-cov", {"scale": "x"}, ["'scale'", "'x'", "True", "False"]),
        ("sub-it", {"block_size": -1}, ["block_size", -1, 0]),
        ("sub-it block-size=3", {"block_size": 4}, ["block_size"]),
        ("p-cov", {"secure_aggregation": True}, ["secure_aggregation", "True", "'bound'", 0]),
        ("pcov", {}, ["'method'", "'pcov'", "p-cov"]),
        ("p-cov", {"min_rows": 40}, ["min_rows", 40]),
    ],
    ids=str,
)
def test_a_caller_of_run_reads_of_keyword_arguments(method, options, named):
    told = refusal(method, **{"n_components": 2, **options} if "n_componets" not in options else options)
    assert not unnamed(told, *named)
    assert "run-config" not in told
    assert "node-config" not in told


def test_so_does_who_fits_an_estimator():
    for fitted, named in (
        (lambda: FederatedPCA(9).fit(PARTIES), ["n_components", 9, 5]),
        (lambda: FederatedPCA(2, method="p-vov").fit(PARTIES), ["'method'", "p-vov"]),
    ):
        with refused(FedPCAError, *named):
            fitted()


def test_only_keys_that_stand_alone_are_reworded():
    kept = "client 0: dp-pca in /home/block-size/max-rounds.csv and min-rows-x; the run-config of a server"
    assert python_words(kept) == kept
    assert python_words("client 0: run-config: 'step' is 1: secure-aggregation=true, 'may-show'") == (
        "client 0: 'step' is 1: secure_aggregation=True, 'may_show'"
    )
    assert python_words("agree (run-config 'features')") == "agree ('features')"
