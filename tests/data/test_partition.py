"""Every row (or column) exactly once, no empty party, the same split for the same seed."""

import numpy as np
import pytest

from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.data.datasets import load
from fedpca_flwr.data.partition import PARTITIONS, split, split_columns
from fedpca_flwr.errors import ConfigError
from fedpca_flwr.site.local_table import local_table
from tests.refusals import refused

LABELS = np.random.default_rng(0).integers(0, 10, 2000)


@pytest.mark.parametrize("kind", PARTITIONS)
def test_every_row_belongs_to_exactly_one_party(kind):
    for rows, parties in ((2000, 1), (2000, 5), (2000, 50), (2000, 190), (40, 20), (7, 7)):
        parts = split(LABELS[:rows], parties, kind=kind, seed=1)
        assert len(parts) == parties
        assert min(map(len, parts)) >= min(10, rows // parties)
        np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(rows))


@pytest.mark.parametrize("kind", PARTITIONS)
def test_the_seed_decides_and_every_part_is_in_order(kind):
    one, same, other = (split(LABELS, 10, kind=kind, seed=seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(one, same, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
    for part in split(np.zeros(200, int), 2, kind=kind, seed=0, alpha=5.0):  # rows of one label are shuffled
        assert (np.diff(part) > 0).all()
        assert np.diff(part).max() > 1


def test_parts_of_rows_are_as_even_as_their_kind_says():
    parts = split(np.sort(LABELS), 10, kind="iid", seed=1)
    assert min(len(np.unique(np.sort(LABELS)[part])) for part in parts) == 10

    def labels_in_largest(alpha):
        parts = split(LABELS, 10, kind="dirichlet", seed=1, alpha=alpha)
        return np.mean([np.bincount(LABELS[part], minlength=10).max() / len(part) for part in parts])

    assert labels_in_largest(0.1) > 0.5
    assert labels_in_largest(1000.0) < 0.2
    parts = split(LABELS, 10, kind="shards", seed=1, shards_per_party=2)
    assert max(len(np.unique(LABELS[part])) for part in parts) <= 4
    sizes = [len(part) for part in split(LABELS, 10, kind="quantity", seed=1, alpha=0.5)]
    assert max(sizes) > 5 * min(sizes)
    with refused(ConfigError, 11, 10):
        split(LABELS[:10], 11, kind="iid", seed=1)


def test_columns_are_split_evenly_by_sizes_or_by_names():
    for how, sizes in {"even": [22, 21, 21], "20 20 24": [20, 20, 24], "20,20,24": [20, 20, 24]}.items():
        parts = split_columns(64, 3, how)
        np.testing.assert_array_equal(np.concatenate(parts), np.arange(64))
        assert [len(part) for part in parts] == sizes
    parts = split_columns(3, 2, "ash, hue; alcohol", ["alcohol", "ash", "hue"])
    assert [part.tolist() for part in parts] == [[1, 2], [0]]


@pytest.mark.parametrize(
    ("parties", "how", "names", "named"),
    [
        (3, "20 20", "", ["'columns'", "20 20", 3, 1, 4]),
        (2, "3 4", "", ["'columns'", "'3 4'", 2, 4]),
        (3, "2 2 0", "", ["'columns'", "2 2 0"]),
        (5, "even", "", [5, 4]),
        (3, "a, b; c; d", "", ["'columns'", 4, 3, "'even'"]),
        (3, "a, b; c", "", ["'columns'", 3, 2]),
        (2, "a; b, x, d", "abcd", ["'columns'", "c", "x"]),
        (2, "a; b, d", "abcd", ["'columns'", "c"]),
        (2, "a, b; b, c, d", "abcd", ["'columns'", "b"]),
    ],
)
def test_columns_that_do_not_fit_are_named(parties, how, names, named):
    with refused(ConfigError, *named):
        split_columns(4, parties, how, list(names))


def test_a_simulated_party_holds_its_columns_of_all_rows():
    wine = load("wine")
    by_name = f"{', '.join(wine.names[:12])}; {wine.names[12]}"
    for parties, how, own in ((3, "3 4 6", np.s_[3:7]), (2, by_name, np.s_[12:])):
        node = NodeConfig(partition_id=1, num_partitions=parties)
        table = local_table(node, RunConfig(dataset="wine", partition="columns", columns=how))
        np.testing.assert_array_equal(table.rows, wine.all_rows()[:, own])
        assert table.split == "columns"
    assert local_table(node, RunConfig(dataset="wine")).split == "rows"
