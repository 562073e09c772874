"""What a site refuses by its own rules."""

import numpy as np
import pytest

from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.data.table import check
from fedpca_flwr.errors import DisclosureError
from fedpca_flwr.site.policy import permit_pairs, permit_values
from tests.refusals import refused


def node(**rules):
    """A site with a minimum of 10 rows, which tells its rows in tens."""
    given = {"partition-id": 0, "num-partitions": 3, "min-rows": 10, "round-rows": 10, **rules}
    return NodeConfig.parse(given)


def table(rows, *observed):
    """So many rows of which features have values in just these."""
    X = np.full((rows, len(observed)), np.nan)
    for feature, places in enumerate(observed):
        X[places, feature] = 1.0
    return check(X)


def test_the_rows_left_out_to_round_may_be_those_with_values():
    """Of 103 rows 3 are left out: with values in 13 at least 10 are in the sums."""
    everywhere = slice(None)
    permit_values(node(), table(103, everywhere, slice(13)))
    permit_values(node(), table(103, everywhere, slice(0)))
    permit_values(node(**{"round-rows": 1}), table(103, everywhere, slice(10)))
    for rules, few in (({}, 12), ({"round-rows": 1}, 9)):
        with refused(DisclosureError, "min-rows", 10) as caught:
            permit_values(node(**rules), table(103, everywhere, slice(few)))
        assert caught.value.local == "columns (from 0): [1]"


@pytest.mark.parametrize(("rounded", "least"), [(1, 10), (10, 13)])
def test_two_features_may_be_together_in_as_many_rows_as_the_minimum(rounded, least):
    rules = node(**{"round-rows": rounded})
    permit_pairs(rules, table(103, slice(50), slice(50 - least, None)))
    permit_pairs(rules, table(103, slice(50), slice(50, None)))
    with refused(DisclosureError, "min-rows"):
        permit_pairs(rules, table(103, slice(50), slice(51 - least, None)))
