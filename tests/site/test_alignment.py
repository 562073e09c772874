"""Rows of different parties belong together by their ids, in whatever order each file has them."""

import numpy as np
import pytest

from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.errors import ConfigError, DataError
from fedpca_flwr.site.local_table import difference, digests, ids_secret, local_table
from fedpca_flwr.site.readers import read_ids
from simulations import run
from strategies import build_client
from tests.families import rows
from tests.harness import context_of, finish, proxy_of, server_of
from tests.refusals import refused

X = rows(40, 9)
IDS = [f"patient {i:04}" for i in range(40)]


def write(path, columns, ids, order):
    lines = ["id,kind," + ",".join(f"m{j}" for j in range(columns.shape[1]))]
    lines += [f"{ids[i]},a," + ",".join(f"{value:.17g}" for value in columns[i]) for i in order]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def server_of_files(files, **node):
    server = server_of("vertical", np.array_split(X, len(files), axis=1), n_components=2)
    for party, file in enumerate(files):
        context = context_of(server, party)
        own = {"data": file, "label": "kind", "ids": "id", "split": "columns", "may-show": "inner products"}
        context.node_config |= {key: value for key, value in {**own, **node.get(f"p{party}", {})}.items() if value}
        proxy_of(server, party).make = lambda context=context: build_client(context).to_client()
    return server


def three_files(folder, ids=(IDS, IDS, IDS), seed=0):
    rng = np.random.default_rng(seed)
    parts = np.array_split(X, 3, axis=1)
    return [
        write(folder / f"{i}.csv", part, own, rng.permutation(len(own)))
        for i, (part, own) in enumerate(zip(parts, ids, strict=True))
    ]


def test_files_in_different_orders_give_the_pca_of_the_joined_rows(tmp_path):
    scores = [{"scores": str(tmp_path / f"{i}.npy")} for i in range(3)]
    files = three_files(tmp_path)
    model = finish(server_of_files(files, p0=scores[0], p1=scores[1], p2=scores[2]))
    plain = run("vertical", np.array_split(X, 3, axis=1), n_components=2)
    np.testing.assert_allclose(model.singular_values_, plain.singular_values_, rtol=1e-10)
    for i, file in enumerate(files):
        here = [IDS.index(own) for own in read_ids(file, "id", len(plain.scores_))]
        written = np.load(tmp_path / f"{i}.npy")  # in the order of the site's own file
        turned = np.sign((written * plain.scores_[here]).sum(axis=0))
        np.testing.assert_allclose(written, plain.scores_[here] * turned, atol=1e-7)
    assert not model.log["notes"]


def test_missing_and_further_ids_are_counted_and_not_named(tmp_path):
    files = three_files(tmp_path, (IDS, IDS, [*IDS[:38], "patient 8000", "patient 9000"]))
    with refused(DataError, "client 2", 2, "client 0") as caught:
        finish(server_of_files(files))
    assert "patient" not in str(caught.value)
    shorter = write(tmp_path / "1.csv", X[:37, 3:6], IDS, range(37))
    with refused(DataError, "client 1", 3, "client 0", 0):
        finish(server_of_files([files[0], shorter, files[0]]))


@pytest.mark.parametrize(("doubled", "what"), [("patient 0000", "ids"), (" ", "empty")])
def test_double_and_empty_ids_are_refused_at_home(doubled, what, tmp_path):
    files = three_files(tmp_path, (IDS, [*IDS[:39], doubled], IDS))
    with refused(DataError, "client 1", 1, match=what):
        finish(server_of_files(files))


def test_all_sites_have_ids_or_none(tmp_path):
    files = three_files(tmp_path)
    with pytest.raises(DataError):  # the ids are no numbers
        finish(server_of_files(files, p1={"ids": ""}))
    plain = tmp_path / "plain.csv"
    np.savetxt(plain, X[:, 3:6], delimiter=",", header="a,b,c", comments="")
    with refused(ConfigError, "client 1", "'ids'", "client 0"):
        finish(server_of_files([files[0], str(plain), files[2]], p1={"ids": "", "label": ""}))
    model = finish(server_of_files([str(plain)] * 3, **{f"p{i}": {"ids": "", "label": ""} for i in range(3)}))
    assert "nothing shows that they belong together" in model.log["notes"][0]


def test_another_secret_gives_other_digests(tmp_path):
    files = three_files(tmp_path)
    (tmp_path / "secret").write_bytes(b"0123456789abcdef")
    with refused(DataError, "client 1", 40, "ids-secret"):
        finish(server_of_files(files, p1={"ids-secret": str(tmp_path / "secret")}))
    secrets = {f"p{i}": {"ids-secret": str(tmp_path / "secret")} for i in range(3)}
    assert finish(server_of_files(files, **secrets)).n_components_ == 2
    assert not set(digests(IDS, b"one").tolist()) & set(digests(IDS, b"other").tolist())


def test_the_id_column_is_found_by_name_or_number_and_is_no_feature(tmp_path):
    from pyarrow import parquet, table

    parquet.write_table(table({"key": IDS, "x": X[:, 0], "y": X[:, 1]}), tmp_path / "a.parquet")
    bare = tmp_path / "bare.csv"
    bare.write_text("".join(f"{i + 100},{x[0]:.17g},{x[1]:.17g}\n" for i, x in enumerate(X)))
    for file, column in ((tmp_path / "a.parquet", "key"), (bare, "0")):
        node = NodeConfig(partition_id=0, num_partitions=1, data=str(file), ids=column, split="columns")
        found = local_table(node, RunConfig())
        np.testing.assert_array_equal(found.rows[found.places], X[:, :2])
        assert (np.diff(found.ids.astype(float)) > 0).all()


def test_without_a_secret_every_seed_has_other_digests(tmp_path):
    file = three_files(tmp_path)[0]
    node = NodeConfig(partition_id=0, num_partitions=3, data=file, label="kind", ids="id", split="columns")
    found = [local_table(node, RunConfig(seed=seed)).ids for seed in (1, 1, 2)]
    np.testing.assert_array_equal(found[0], found[1])
    assert not set(found[0].tolist()) & set(found[2].tolist())


def test_a_secret_has_sixteen_bytes_at_least(tmp_path):
    (tmp_path / "secret").write_bytes(bytes(16))
    assert ids_secret(str(tmp_path / "secret")) == bytes(16)
    (tmp_path / "secret").write_bytes(bytes(15))
    with refused(ConfigError, "'ids-secret'", 15, 16):
        ids_secret(str(tmp_path / "secret"))


def test_ids_are_counted_apart_and_where_they_cannot_be_refused(tmp_path):
    own, others = digests(IDS[:7], b"salt"), digests(IDS[2:12], b"salt")
    assert difference(own, others) == (5, 2)
    with refused(ConfigError, "'ids'", match="columns"):
        NodeConfig.parse({"partition-id": 0, "num-partitions": 1, "ids": "id"}, source="node-config")
    files = three_files(tmp_path)
    with refused(ConfigError, "client 0", "'ids'"):
        finish(server_of_files(files, p0={"ids": "patient"}))
    np.save(tmp_path / "a.npy", X)
    with refused(ConfigError, ".csv", ".parquet"):
        read_ids(str(tmp_path / "a.npy"), "0", len(X))
