"""Rows of parties belong together by their ids, and columns by their names, in whatever order files have them."""

import re

import numpy as np
import pandas as pd
import pytest

from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.data.table import check_rows, names_digest
from fedpca_flwr.errors import ConfigError, DataError, DisclosureError
from fedpca_flwr.site.alignment import id_digests, read_ids_secret
from fedpca_flwr.site.local_table import local_table
from fedpca_flwr.site.readers.columns import ColumnSelection, order_features
from fedpca_flwr.site.readers.files import read, read_ids
from tests.families import cut, rows
from tests.harness import at_sites, differences, finish, fit, server_of
from tests.refusals import refused

COHORT = rows(40, 9)
PARTS = np.array_split(COHORT, 3, axis=1)
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


def test_files_are_joined_by_id_in_any_order_and_ids_that_do_not_fit_are_counted_and_not_named(files, tmp_path):
    model = joined(files, **{f"p{i}": {"scores": str(tmp_path / f"{i}.npy")} for i in range(3)})
    plain = fit("vertical", PARTS, n_components=2)
    np.testing.assert_allclose(model.singular_values_, plain.singular_values_, rtol=1e-10)
    for i, file in enumerate(files):
        here = plain.scores_[[IDS.index(row_id) for row_id in read_ids(file, "id", 40)]]
        written = np.load(tmp_path / f"{i}.npy")  # in the order of the site's own file
        np.testing.assert_allclose(written, here * np.sign((written * here).sum(axis=0)), atol=1e-7)
    assert not model.log["notes"]
    for ids, named, match in (
        ([*IDS[:38], "patient 8000", "patient 9000"], [2, "client 0"], None),
        (IDS[:37], ["client 0"], "lacks 3 .* 0 that"),
        ([*IDS, "patient 8000", "patient 9000"], ["client 0"], "lacks 0 .* 2 that"),
        ([*IDS[:38], *IDS[:1] * 2], [2], "ids"),
        ([*IDS[:38], " ", " "], [2], "empty"),
    ):
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
    with refused(ConfigError, "'ids-secret'"):
        read_ids_secret(str(tmp_path))


def test_the_id_column_is_no_feature_and_needs_columns(tmp_path):
    frame = pd.DataFrame({"key": IDS, "x": COHORT[:, 0], "y": COHORT[:, 1]})
    frame.to_parquet(tmp_path / "key.parquet")
    for name, header in (("bare.csv", False), ("named.csv", True)):
        frame.assign(key=range(100, 140)).to_csv(tmp_path / name, index=False, header=header)
    for name, column in (("key.parquet", "key"), ("bare.csv", "0"), ("named.csv", "0")):
        node = NodeConfig(partition_id=0, num_partitions=1, data=str(tmp_path / name), ids=column, split="columns")
        loaded = local_table(node, RunConfig())
        np.testing.assert_array_equal(loaded.rows[loaded.row_positions], COHORT[:, :2])
        assert (np.diff(loaded.ids.astype(float)) > 0).all()
        assert loaded.split == "columns"
    pd.DataFrame({"key": [" a ", None]}).to_parquet(tmp_path / "lacks.parquet")
    assert read_ids(str(tmp_path / "lacks.parquet"), "key", 2) == ["a", ""]
    (tmp_path / "own.csv").write_text(f"id,a\n{'r' * 200_000},1\ns,2\n")
    with refused(DataError, ".csv", "131,072"):
        read(str(tmp_path / "own.csv"), ids="id")
    with refused(ConfigError, "'ids'", match="columns"):
        NodeConfig.parse({"partition-id": 0, "num-partitions": 1, "ids": "id"}, source="node-config")
    names = ["a", "b", "a"]  # a label is one column, and what is left out is each of its name
    assert ColumnSelection(label="a").positions(names, 3) == [1, 2]
    assert ColumnSelection(leave_out="a").positions(names, 3) == [1]
    assert ColumnSelection(label="2").positions([], 3) == [0, 1]
    with refused(ConfigError, "'label'"):
        ColumnSelection(label="3").positions([], 3)


NAMES = ["age", "height, cm", "pulse", "weight"]
FEATURES = 'age, "height, cm", pulse, weight'
X = rows(200, 4)
PARTIES = cut(X, 100, 60, 40)
ORDERS = [(0, 1, 2, 3), (2, 0, 3, 1), (3, 2, 1, 0), (2, 0, 3, 1)]
SECURE = {"secure_aggregation": True, "bound": 100.0}


def site(path, data, order=(0, 1, 2, 3), names=NAMES, **node):
    pd.DataFrame(data, columns=names).iloc[:, list(order)].to_csv(path, index=False)
    return {"data": str(path), "journal": f"{path}.journal", "may-show": "nothing", **node}


def run(folder, parties, orders=ORDERS, method="p-cov", **options):
    folder.mkdir(exist_ok=True)
    files = [folder / f"{party}.csv" for party in range(len(parties))]
    nodes = [site(*own, scores=str(own[0].with_suffix(".npy"))) for own in zip(files, parties, orders, strict=False)]
    return finish(at_sites(server_of(method, parties, **{"n_components": 2, "features": FEATURES, **options}), nodes))


@pytest.mark.engine
@pytest.mark.parametrize(
    ("method", "how"), [("p-cov", SECURE), ("sub-it", {}), ("qr-pca", {}), ("em max-rounds=4", SECURE)]
)
def test_any_order_at_the_sites_gives_the_same_bits(method, how, tmp_path):
    turned = run(tmp_path / "turned", PARTIES, method=method, **how)
    assert not differences(turned, run(tmp_path / "plain", PARTIES, [ORDERS[0]] * 3, method=method, **how))
    assert turned.feature_names_in_.tolist() == NAMES
    assert turned.log["columns"] == names_digest(NAMES)
    for party in range(3):
        np.testing.assert_array_equal(*(np.load(tmp_path / folder / f"{party}.npy") for folder in ("turned", "plain")))


def test_wrong_columns_are_named_to_the_site_only(tmp_path, caplog):
    first, second = cut(X, 120, 80)
    wider = np.hstack([second, second[:, :1]])
    nodes = [site(tmp_path / "0.csv", first), site(tmp_path / "1.csv", wider, range(5), ["Age", *NAMES[1:], "bmi"])]
    with refused(DataError, "client 1", 1, 4, "'features'", 2) as caught:
        finish(at_sites(server_of("p-cov", [first, second], n_components=2, features=FEATURES), nodes))
    assert "bmi" not in str(caught.value)
    spaced = check_rows(X, [f" {name} " for name in NAMES])
    assert order_features(spaced, NodeConfig(partition_id=0, num_partitions=2), RunConfig(features=FEATURES)) is spaced
    assert re.search("'age'.*'Age', 'bmi'", caplog.text)
    spoilt = X.copy()
    spoilt[3, 1] = np.nan  # and missing values are those of their columns
    with refused(DataError, "client 1", "NaN"):
        run(tmp_path, [X, spoilt], ORDERS[1:])
    assert "columns: 'height, cm'" in caplog.text
    assert read(str(tmp_path / "1.csv")).missing.tolist() == [0, 0, 1, 0]


@pytest.mark.engine
def test_rows_are_the_same_in_any_order_of_columns(tmp_path):
    """Otherwise a second secure sum over the same rows, without a party, would pass for a sum over other rows."""
    parties, other = cut(X, 70, 60, 40, 30), 'pulse, age, "height, cm", weight'
    run(tmp_path, parties, **SECURE)
    run(tmp_path, parties, **SECURE, features=other)
    with refused(DisclosureError, 4, 3):
        run(tmp_path, parties[:3], **SECURE, features=other)


def test_a_run_may_choose_features_by_the_names_of_all_alone(tmp_path):
    with refused(ConfigError, "client 1", "'features'"):  # without them another order is refused with what to do
        run(tmp_path, PARTIES, features="")
    with refused(DataError, 0, 3, 1):
        run(tmp_path, PARTIES, features="age, pulse, weight")
    with refused(DataError, "party 0", "'features'"):
        fit("p-cov", [X], n_components=2, features=FEATURES)
    with refused(ConfigError, "'features'", "'vertical'"):
        fit("vertical", cut(X, 100, 100), n_components=2, features="a, b")
    for text, what in {"a, b, a": "'a' .*twice", "a,, b": "empty", "a,": "empty", 3: "text"}.items():
        with refused(ConfigError, "'features'", repr(text), match=what):
            RunConfig.parse({"features": text})
    parts = zip(PARTIES, ORDERS, strict=False)
    frames = [pd.DataFrame(part, columns=NAMES).iloc[:, list(order)] for part, order in parts]
    model = fit("p-cov", frames, n_components=2, features='weight, age, pulse, "height, cm"')
    assert model.feature_names_in_.tolist() == ["weight", "age", "pulse", "height, cm"]
    np.testing.assert_allclose(model.mean_, X[:, [3, 0, 2, 1]].mean(axis=0), atol=1e-12)
    assert not any("in the order of" in note for note in model.log["notes"])
