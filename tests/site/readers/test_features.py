"""Sites whose columns stand in another order put them into the run's, by their names."""

import re

import numpy as np
import pandas as pd
import pytest

from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.data.table import check_rows, names_digest
from fedpca_flwr.errors import ConfigError, DataError, DisclosureError
from fedpca_flwr.site.readers.columns import ColumnSelection, order_features
from fedpca_flwr.site.readers.files import read
from tests.families import cut, rows
from tests.harness import at_sites, differences, finish, fit, server_of
from tests.refusals import refused

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


def test_a_label_is_one_column_and_what_is_left_out_is_each_of_its_name():
    names = ["a", "b", "a"]
    assert ColumnSelection(label="a").positions(names, 3) == [1, 2]
    assert ColumnSelection(leave_out="a").positions(names, 3) == [1]
    assert ColumnSelection(label="2").positions([], 3) == [0, 1]
    with refused(ConfigError, "'label'"):
        ColumnSelection(label="3").positions([], 3)
