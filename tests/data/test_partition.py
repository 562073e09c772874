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

every_kind = pytest.mark.parametrize("kind", PARTITIONS)


@every_kind
@pytest.mark.parametrize("parties", [1, 5, 50, 190])
def test_every_row_belongs_to_exactly_one_party(kind, parties):
    parts = split(LABELS, parties, kind=kind, seed=1)
    assert len(parts) == parties
    assert min(map(len, parts)) >= 10
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(2000))


@every_kind
def test_as_many_parties_as_rows(kind):
    assert [len(part) for part in split(LABELS[:40], 20, kind=kind, seed=1)].count(0) == 0
    assert [len(p) for p in split(LABELS[:7], 7, kind=kind, seed=1)] == [1] * 7


@every_kind
def test_the_seed_decides(kind):
    one, same, other = (split(LABELS, 10, kind=kind, seed=seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(one, same, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


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


def sizes(parts):
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(sum(map(len, parts))))
    return [len(part) for part in parts]


def test_columns_are_split_evenly_by_sizes_or_by_names_and_else_refused():
    assert sizes(split_columns(64, 3, "even")) == [22, 21, 21]
    assert sizes(split_columns(64, 3, "20 20 24")) == sizes(split_columns(64, 3, "20,20,24")) == [20, 20, 24]
    parts = split_columns(3, 2, "ash, hue; alcohol", ["alcohol", "ash", "hue"])
    assert [part.tolist() for part in parts] == [[1, 2], [0]]
    for how, named in (("a; b, x", "cx"), ("a; b", "c"), ("a, b; b, c", "b")):
        with refused(ConfigError, "'columns'", *named):
            split_columns(3, 2, how, ["a", "b", "c"])
    with refused(ConfigError, 5, 4):
        split_columns(4, 5, "even")
    with refused(ConfigError, "'columns'", "'3 4'", 2, 10):
        split_columns(10, 2, "3 4")


@pytest.mark.parametrize(
    ("how", "named"),
    [
        ("20 20", ["'columns'", "20 20", 3, 1, 4]),
        ("2 2 0", ["'columns'", "2 2 0"]),
        ("a, b; c; d", ["'columns'", 4, 3, "'even'"]),
        ("a, b; c", ["'columns'", 3, 2]),
    ],
)
def test_columns_that_do_not_fit_are_named(how, named):
    with refused(ConfigError, *named):
        split_columns(4, 3, how)


def test_a_simulated_party_holds_its_columns_of_all_rows():
    node = NodeConfig(partition_id=1, num_partitions=3)
    table = local_table(node, RunConfig(dataset="wine", partition="columns", columns="3 4 6"))
    np.testing.assert_array_equal(table.rows, load("wine").all_rows()[:, 3:7])
    assert table.split == "columns"
    assert local_table(node, RunConfig(dataset="wine")).split == "rows"
    by_name = f"{', '.join(load('wine').names[:12])}; {load('wine').names[12]}"
    named = local_table(
        NodeConfig(partition_id=1, num_partitions=2), RunConfig(dataset="wine", partition="columns", columns=by_name)
    )
    np.testing.assert_array_equal(named.rows, load("wine").all_rows()[:, 12:])


def test_rows_of_one_label_are_shuffled_and_every_part_is_in_order():
    for kind in PARTITIONS:
        for part in split(np.zeros(200, int), 2, kind=kind, seed=0, alpha=5.0):
            assert (np.diff(part) > 0).all()
            assert np.diff(part).max() > 1
