"""What stages declare that a run shows, of single rows and of single sites by sums, and what they do not go with."""

import pytest

from fedpca_flwr.errors import ConfigError
from fedpca_flwr.strategies import METHODS
from tests.families import cut, rows
from tests.harness import fit
from tests.refusals import refused

OPTIONS = METHODS["p-cov"].strategy.card.options


@pytest.mark.parametrize(
    ("options", "exposes", "words"),
    [
        ({}, "", []),
        ({"adjust_for": "1"}, "", []),
        *(({"harmonise": what}, "", ["harmonise"]) for what in ("means", "variances")),
        *(({"clusters": 2, "clustering": way}, "scores", []) for way in ("k-means", "mixture")),
        ({"clusters": 2, "clustering": "harmony"}, "scores", ["harmony"]),
        ({"outliers": "sites"}, "", []),
        ({"outliers": "counts"}, "distribution", ["outliers"]),
        ({"fourth_moments": True}, "distribution", []),
        ({"harmonise": "means", "outliers": "counts"}, "distribution", ["harmonise", "outliers"]),
    ],
    ids=str,
)
def test_a_run_shows_what_its_options_declare(options, exposes, words):
    chosen = OPTIONS.parse(options)
    assert (chosen.exposes, list(chosen.sum_disclosures)) == (exposes, words)


def test_harmonised_variances_disclose_more_than_means():
    less, more = (OPTIONS.parse({"harmonise": what}).sum_disclosures["harmonise"] for what in ("means", "variances"))
    assert more != less
    assert more.startswith(less)


MASKED = {"secure_aggregation": True, "bound": 1000.0}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"adjust_for": "1, 1"}, ["adjust_for"]),
        ({"adjust_for": "0,1,2,3,4,5,6,7"}, ["adjust_for", 8]),
        ({"adjust_for": "1, 4", "center": False}, ["adjust_for", "center=True"]),
        ({"adjust_for": "1, 4", "genotypes": True}, ["adjust_for", "genotypes"]),
        ({"adjust_for": "1", "n_components": 8}, ["n_components", 8, 7]),
        *(
            ({"adjust_for": "1, 4", "method": name}, ["adjust_for", "p-cov"])
            for name in ("ap-cov", "sub-it", "qr-pca", "streaming", "dp-pca")
        ),
        ({"harmonise": "means", "keep": "moments", **MASKED}, ["'keep'", "'moments'", "'harmonise'"]),
        ({"harmonise": "variances", **MASKED, "survivors": 3}, ["moments", "harmonised"]),
        ({"clusters": 2, **MASKED, "survivors": 2}, ["'survivors'", "cells"]),
        ({"outliers": "sites", "center": False}, ["'outliers'", "center=True"]),
        ({"outliers": "sites", "method": "dp-pca"}, ["dp-pca", "'outliers'"]),
        *(
            ({"fourth_moments": True, **other}, ["fourth_moments", "center=True", "scale=False"])
            for other in ({"scale": True}, {"center": False})
        ),
        ({"weights": "6", "method": "em"}, ["'6'", "p-cov"]),
        ({"weights": "6", "keep": "moments"}, ["'6'", "keep"]),
        ({"weights": "6", "n_components": "auto"}, ["'6'", "n_components='auto'"]),
        ({"weights": "6", "method": "sub-it", "warm_start": "svd"}, ["'6'", "warm_start"]),
        ({"weights": "6", "clusters": 2}, ["'6'", "clusters"]),
    ],
    ids=str,
)
def test_options_that_do_not_go_together_are_named(options, named):
    parties = cut(rows(60, 8), 30, 20, 10)
    with refused(ConfigError, *named):
        fit(**{"method": "p-cov", "parties": parties, "n_components": 2, **options})
