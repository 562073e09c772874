"""What stages declare that a run shows: of single rows, and of single sites by sums, which a site permits by word."""

import pytest

from fedpca_flwr.strategies import METHODS

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
