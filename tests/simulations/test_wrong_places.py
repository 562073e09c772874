"""What a person gives wrongly is told in the words of what was called, and no error holds a row."""

import logging

import numpy as np
import pandas as pd
import pytest
from pyarrow import table

from fedpca_flwr import FederatedPCA
from fedpca_flwr.errors import ConfigError, DisclosureError, FedPCAError, value_text
from simulations import run
from simulations.python_words import python_words
from tests.families import rows
from tests.refusals import refused, unnamed

X = rows(40, 3) + 4711.0
FRAME = table({name: X[:, j] for j, name in enumerate("abc")})

GIVEN = {
    "parties first": (([X, X], "p-cov"), {}, ["method", "list", "'p-cov'"]),
    "components": (("p-cov", [X, X]), {"n_components": X}, ["n_components", "ndarray"]),
    "engine": (("p-cov", [X, X]), {"engine": X}, ["engine", "ndarray", "loopback", "ray"]),
    "flag": (("p-cov", [X, X]), {"scale": X.tolist()}, ["'scale'", "list", "True", "False"]),
    "frame": (("sub-it", [X, X]), {"tolerance": FRAME}, ["'tolerance'", "Table", 0]),
    "clients": (("p-cov", [X, X]), {"clients": X}, ["'clients'", "ndarray", 2]),
    "files": (("p-cov", [X, X]), {"scores": X}, ["'scores'", "ndarray", 2]),
    "a folder": (("p-cov", [X, X]), {"output": "model"}, ["'output'", "run(...).save(path)"]),
    "no name": (([], [X, X]), {}, ["method", "[]"]),
    "an engine of bytes": (("p-cov", [X, X]), {"engine": b"ray"}, ["engine", "bytes", "loopback", "ray"]),
    "the plain name": (("pca", [X, X]), {}, ["'method'", "'pca'", "'p-cov'"]),
}


@pytest.mark.parametrize(("given", "options", "named"), GIVEN.values(), ids=GIVEN)
def test_what_is_in_the_wrong_place_is_named_without_its_values(given, options, named):
    with refused(ConfigError, *named) as caught:
        run(*given, **{"n_components": 2, **options})
    assert "471" not in str(caught.value)


def test_words_numbers_and_keys_that_stand_alone_are_told():
    assert value_text(np.nan) == "nan"
    assert value_text(["a", "b"]) == "['a', 'b']"
    assert len(value_text("a" * 500)) < 220
    kept = "client 0: dp-pca in /home/block-size/max-rounds.csv and min-rows-x; the run-config of a server"
    assert python_words(kept) == kept
    assert python_words("client 0: run-config: 'step' is 1: secure-aggregation=true, 'may-show'") == (
        "client 0: 'step' is 1: secure_aggregation=True, 'may_show'"
    )
    assert python_words("agree (run-config 'features')") == "agree ('features')"


def test_what_a_party_refuses_is_told_once_in_what_is_raised(capfd, monkeypatch):
    """A party's own log says it too: where nobody has set logging up, on the screen, in red in a notebook."""
    monkeypatch.setattr(logging.root, "handlers", [])
    with refused(DisclosureError, "'min_rows'", 10, 1, "client 0 (north)"):
        run("p-cov", {"north": rows(5), "south": rows(5)}, n_components=1)
    assert capfd.readouterr() == ("", "")


def test_groups_of_frames_and_estimators_are_told_what_they_need():
    frame = pd.DataFrame(X, columns=list("abc")).assign(site=1)
    with refused(ConfigError, "'parties'", "DataFrameGroupBy", "for name, rows in parties"):
        run("p-cov", frame.groupby("site"))
    for fitted, named in (
        (lambda: FederatedPCA(9).fit(PARTIES), ["n_components", 9, 5]),
        (lambda: FederatedPCA(2, method="p-vov").fit(PARTIES), ["'method'", "p-vov"]),
    ):
        with refused(FedPCAError, *named):
            fitted()


ROWS = rows(60, 5)
PARTIES = [ROWS[:30], ROWS[30:]]


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
