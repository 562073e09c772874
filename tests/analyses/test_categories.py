"""Levels of a mixed table on the components: what the rows of all parties say, from the model alone."""

import numpy as np
import pandas as pd
import pytest

from fedpca_flwr import analyses
from fedpca_flwr.errors import ContractError, DataError
from tests.data.test_categories import LEVELS, cells_of, parts, table
from tests.harness import fit
from tests.refusals import refused

FRAME = table()


@pytest.mark.parametrize("numbers", [["mass", "bill", "ratio"], []], ids=["famd", "mca"])
@pytest.mark.filterwarnings("ignore:X has")
def test_levels_lie_at_the_mean_of_their_rows(numbers):
    frame = FRAME[[*numbers, *LEVELS]]
    model = fit("p-cov", parts(frame), n_components=3, scale=True, levels=LEVELS)
    found, scores = analyses.categories(model), model.transform(frame)
    for j, name in enumerate(found.levels):
        column, level = name.split("=")
        has = (cells_of(frame, column) == level).to_numpy()
        assert found.shares[j] == pytest.approx(has.mean(), abs=1e-12)
        np.testing.assert_allclose(found.coordinates[j], scores[has].mean(axis=0), atol=1e-8)
        told = [np.corrcoef(has, one)[0, 1] ** 2 for one in scores.T]
        np.testing.assert_allclose(found.squared_cosines[j], told, atol=1e-8)
    for j, name in enumerate(found.columns):
        if name in numbers:
            told = [np.corrcoef(frame[name], one)[0, 1] ** 2 for one in scores.T]
        else:
            between = pd.DataFrame(scores).groupby(cells_of(frame, name)).transform("mean").var().to_numpy()
            told = between / scores.var(axis=0, ddof=1)
        np.testing.assert_allclose(found.squared_correlations[j], told, atol=1e-8)
    whole = found.contributions.sum(axis=0) + (model.components_[:, : len(numbers)] ** 2).sum(axis=1)
    np.testing.assert_allclose(whole, 1, atol=1e-12)


def test_a_level_of_no_row_or_of_all_has_no_place():
    levels = {"sex": ["f", "m", "x"], "island": ["north"], "planet": ["earth"]}
    model = fit("p-cov", parts(FRAME.assign(planet="earth")), n_components=2, scale=True, levels=levels)
    found = analyses.categories(model)
    assert not {"sex=x", "planet=earth"} & set(found.levels)
    assert np.isfinite(found.coordinates).all()
    with refused(ContractError, "levels="):
        analyses.categories(fit("p-cov", parts(FRAME[["mass", "bill"]]), n_components=2))


def test_levels_may_be_those_that_enough_rows_of_a_party_have():
    """'far' and 'farther' have 5 % of 150 rows each: no party has 12 of either."""
    frame = FRAME[["mass", "island"]]
    model = fit("p-cov", parts(frame), n_components=2, scale=True, levels=["island"], min_rows=12)
    assert model.log["levels"] == {"island": ["north", "south", "west"]}
    with refused(DataError, "'sea'"):
        fit("p-cov", parts(frame), n_components=2, scale=True, levels=["sea"])
