"""Rows of different parties belong together by their ids, in whatever order each file has them."""

import numpy as np
import pandas as pd
import pytest

from fedpca_flwr import run
from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.errors import ConfigError, DataError
from fedpca_flwr.site.alignment import id_digests, read_ids_secret
from fedpca_flwr.site.local_table import local_table
from fedpca_flwr.site.readers.files import read, read_ids
from tests.families import rows
from tests.harness import at_sites, finish, server_of
from tests.refusals import refused

X = rows(40, 9)
PARTS = np.array_split(X, 3, axis=1)
IDS = [f"patient {i:04}" for i in range(40)]


def write(path, columns, ids, order):
    frame = pd.DataFrame(columns).add_prefix("m").assign(id=ids, kind="a")
    frame.iloc[order].to_csv(path, index=False)
    return str(path)


@pytest.fixture
def files(tmp_path):
    rng = np.random.default_rng(0)
    return [write(tmp_path / f"{i}.csv", part, IDS, rng.permutation(40)) for i, part in enumerate(PARTS)]


def joined(files, **node):
    """Run over the files; keys of a single party replace the keys of all, and an empty key counts as absent."""
    every = {"label": "kind", "ids": "id", "split": "columns", "may-show": "inner products"}
    nodes = [{"data": file, **every, **node.get(f"p{party}", {})} for party, file in enumerate(files)]
    return finish(at_sites(server_of("vertical", PARTS, n_components=2), nodes))


def test_files_are_joined_by_id_in_any_order(files, tmp_path):
    model = joined(files, **{f"p{i}": {"scores": str(tmp_path / f"{i}.npy")} for i in range(3)})
    plain = run("vertical", PARTS, n_components=2)
    np.testing.assert_allclose(model.singular_values_, plain.singular_values_, rtol=1e-10)
    for i, file in enumerate(files):
        here = plain.scores_[[IDS.index(row_id) for row_id in read_ids(file, "id", 40)]]
        written = np.load(tmp_path / f"{i}.npy")  # in the order of the site's own file
        np.testing.assert_allclose(written, here * np.sign((written * here).sum(axis=0)), atol=1e-7)
    assert not model.log["notes"]


@pytest.mark.parametrize(
    ("ids", "named", "match"),
    [
        ([*IDS[:38], "patient 8000", "patient 9000"], [2, "client 0"], None),
        (IDS[:37], ["client 0"], "lacks 3 .* 0 that"),
        ([*IDS, "patient 8000", "patient 9000"], ["client 0"], "lacks 0 .* 2 that"),
        ([*IDS[:38], *IDS[:1] * 2], [2], "ids"),
        ([*IDS[:38], " ", " "], [2], "empty"),
    ],
)
def test_missing_further_double_and_empty_ids_are_counted_and_not_named(ids, named, match, files, tmp_path):
    write(tmp_path / "1.csv", np.resize(PARTS[1], (len(ids), 3)), ids, range(len(ids)))
    with refused(DataError, "client 1", *named, match=match) as caught:
        joined(files)
    assert "patient" not in str(caught.value)
    assert id_digests(IDS[:2], b"salt").tolist() == [4256453612088260670, 2432732127298975549], "those of HMAC-SHA-256"


def test_all_sites_have_ids_or_none_and_one_secret_or_seed_for_their_digests(files, tmp_path):
    with pytest.raises(DataError):  # the ids are no numbers
        joined(files, p1={"ids": ""})
    with refused(ConfigError, "client 0", "'ids'"):
        joined(files, p0={"ids": "patient"})
    plain, none = str(tmp_path / "plain.csv"), {"ids": "", "label": ""}
    np.savetxt(plain, PARTS[1], delimiter=",", header="a,b,c", comments="")
    with refused(ConfigError, "client 1", "'ids'", "client 0"):
        joined([files[0], plain, files[2]], p1=none)
    assert "nothing shows that they belong together" in joined([plain] * 3, p0=none, p1=none, p2=none).log["notes"][0]
    secret = tmp_path / "secret"
    secret.write_bytes(b"0123456789abcdef")
    with refused(DataError, "client 1", 40, "ids-secret"):
        joined(files, p1={"ids-secret": str(secret)})
    assert joined(files, **{f"p{i}": {"ids-secret": str(secret)} for i in range(3)}).n_components_ == 2
    node = NodeConfig(partition_id=0, num_partitions=3, data=files[0], label="kind", ids="id", split="columns")
    id_lists = [local_table(node, RunConfig(seed=seed)).ids for seed in (1, 1, 2)]
    np.testing.assert_array_equal(id_lists[0], id_lists[1])
    assert not set(id_lists[0].tolist()) & set(id_lists[2].tolist())
    secret.write_bytes(bytes(16))
    assert read_ids_secret(str(secret)) == bytes(16)
    secret.write_bytes(bytes(15))
    with refused(ConfigError, "'ids-secret'", 15, 16):
        read_ids_secret(str(secret))


def test_the_id_column_is_no_feature_and_needs_columns(tmp_path):
    frame = pd.DataFrame({"key": IDS, "x": X[:, 0], "y": X[:, 1]})
    frame.to_parquet(tmp_path / "key.parquet")
    for name, header in (("bare.csv", False), ("named.csv", True)):
        frame.assign(key=range(100, 140)).to_csv(tmp_path / name, index=False, header=header)
    for name, column in (("key.parquet", "key"), ("bare.csv", "0"), ("named.csv", "0")):
        node = NodeConfig(partition_id=0, num_partitions=1, data=str(tmp_path / name), ids=column, split="columns")
        loaded = local_table(node, RunConfig())
        np.testing.assert_array_equal(loaded.rows[loaded.row_positions], X[:, :2])
        assert (np.diff(loaded.ids.astype(float)) > 0).all()
    pd.DataFrame({"key": [" a ", None]}).to_parquet(tmp_path / "lacks.parquet")
    assert read_ids(str(tmp_path / "lacks.parquet"), "key", 2) == ["a", ""]
    (tmp_path / "own.csv").write_text(f"id,a\n{'r' * 200_000},1\ns,2\n")
    with refused(DataError, ".csv", "131,072"):
        read(str(tmp_path / "own.csv"), ids="id")
    with refused(ConfigError, "'ids'", match="columns"):
        NodeConfig.parse({"partition-id": 0, "num-partitions": 1, "ids": "id"}, source="node-config")
