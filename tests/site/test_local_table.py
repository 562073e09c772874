"""A party's own rows: what shows that they are others than before."""

from __future__ import annotations

import os

import numpy as np

from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.site.local_table import local_table
from tests.families import rows


def test_a_file_that_is_rewritten_in_place_shows_though_its_size_stays(tmp_path):
    """What a run began with and goes on with must be the same rows: a nanosecond later they may be others."""
    file = tmp_path / "rows.npy"
    np.save(file, rows(20, 3))
    node = NodeConfig.parse({"partition-id": 0, "num-partitions": 3, "data": str(file)})
    before, first = file.stat(), local_table(node, RunConfig())
    assert local_table(node, RunConfig()).digest == first.digest
    with open(file, "r+b") as stream:
        stream.seek(-8, os.SEEK_END)
        stream.write(np.float64(7.0).tobytes())
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    then = local_table(node, RunConfig())
    assert (file.stat().st_ino, file.stat().st_size) == (before.st_ino, before.st_size)
    assert then.rows[-1, -1] == 7.0
    assert then.digest != first.digest


def test_a_file_in_the_place_of_another_shows_though_its_time_and_size_are_the_same(tmp_path):
    file, other = tmp_path / "rows.npy", tmp_path / "other.npy"
    node = NodeConfig.parse({"partition-id": 0, "num-partitions": 3, "data": str(file)})
    np.save(file, rows(20, 3))
    before, first = file.stat(), local_table(node, RunConfig())
    np.save(other, rows(20, 3, seed=1))
    other.replace(file)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (file.stat().st_mtime_ns, file.stat().st_size) == (before.st_mtime_ns, before.st_size)
    assert local_table(node, RunConfig()).digest != first.digest
