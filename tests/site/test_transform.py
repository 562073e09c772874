"""Functions of single rows before the PCA: a run with one is that of the function of the rows, and a site agrees."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy import sparse

from fedpca_flwr import ConfigError, DataError, DisclosureError, FederatedPCA, PCAModel, analyses
from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.data.table import check_rows
from fedpca_flwr.data.transforms import TRANSFORMS
from fedpca_flwr.maths.rows import Blocks
from fedpca_flwr.model.loadings import Loadings
from fedpca_flwr.model.second_moments import SecondMoments
from fedpca_flwr.site.transform import transform_rows
from tests.harness import at_sites, finish, fit, read_in_blocks, server_of
from tests.refusals import refused
from tests.site.test_alignment import site

X = np.random.default_rng(3).gamma(2.0, [1, 2, 4, 8, 3], (150, 5)) + 0.1
COUNTS = np.random.default_rng(4).poisson(0.07, (150, 5))  # so many zeros that rows stay sparse
GAPS = np.where(np.random.default_rng(5).random(X.shape) < 0.1, np.nan, X)
NAMES = list("abcde")
SPLIT = partial(np.split, indices_or_sections=[60, 110])
FUNCTIONS: dict[str, Callable[..., Any]] = {"log1p": np.log1p, "sqrt": np.sqrt, "asinh": np.arcsinh}
FUNCTIONS["clr"] = lambda rows: np.log(rows) - np.log(rows).mean(axis=1, keepdims=True)
CONTAINERS = {
    "array": np.float32,
    "pandas": partial(pd.DataFrame, columns=NAMES),
    "polars": partial(pl.DataFrame, schema=NAMES),
    "blocks": lambda rows: Blocks(lambda: np.array_split(rows, 7), 5, rows.dtype, count=len(rows)),
    "sparse": sparse.csr_array,
}


def same_model(model, expected):
    for name in ("components_", "mean_", "explained_variance_", "explained_variance_ratio_"):
        assert getattr(model, name) == pytest.approx(getattr(expected, name), rel=1e-7, abs=1e-7), name


@pytest.mark.parametrize("in_blocks", [False, True], ids=["stored", "read anew"])
@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_run_is_that_of_the_function_of_the_rows(name, container, in_blocks, monkeypatch):
    if in_blocks:
        read_in_blocks(monkeypatch)
    given, function = COUNTS if container == "sparse" and name != "clr" else X, FUNCTIONS[name]
    rows = [CONTAINERS[container](part) for part in SPLIT(given)]
    model = fit("p-cov", rows, n_components=2, transform=name, scale=True)
    expected = fit("p-cov", SPLIT(function(given)), n_components=2, scale=True)
    same_model(model, expected)
    assert model.transform(rows[0]) == pytest.approx(expected.transform(function(given[:60])), abs=1e-5)


SECURE = {"secure_aggregation": True, "bound": 1e3}
WAYS = {"secure": SECURE, "blind": {**SECURE, "blind": True}, "weights": {"weights": "4"}}


@pytest.mark.parametrize("way", [*WAYS, "sub-it", "em max-rounds=4", "vertical"])
def test_every_way_of_a_run_has_it(way):
    keys, given = {"method": "p-cov" if way in WAYS else way, **WAYS.get(way, {})}, GAPS if "em" in way else X
    transformed = np.column_stack([np.log1p(given[:, :4]), given[:, 4] if way == "weights" else np.log1p(given[:, 4])])
    split = partial(np.split, indices_or_sections=[2, 3], axis=1) if way == "vertical" else SPLIT
    model = fit(parties=split(given), n_components=2, transform="log1p", **keys)
    expected = fit(parties=split(transformed), n_components=2, **keys)
    assert model.log["transform"] == "log1p"
    if way == "vertical":
        assert model.scores_ == pytest.approx(expected.scores_, abs=1e-9)
    else:
        same_model(model, expected)


@pytest.mark.parametrize("keys", [{}, SECURE, {"center": False}], ids=str)
@pytest.mark.parametrize("method", ["p-cov", "sub-it", "qr-pca"])
@pytest.mark.parametrize("scale", [False, True])
def test_column_weights_multiply_scaled_columns_by_their_roots(scale, method, keys, tmp_path):
    """The faults: weights that scaling takes out again, or that new rows, loadings or scikit-learn do not have."""
    if method == "qr-pca" and keys == SECURE:
        pytest.skip("it has no sums")
    weights, files = [4, 1, 0.25, 2, 9], [tmp_path / f"{party}.npz" for party in range(3)]
    weighted = (X / X.std(axis=0) if scale else X) * np.sqrt(weights)
    expected = fit("p-cov", SPLIT(weighted), n_components=5, **keys)
    model = fit(method, SPLIT(X), n_components=5, scale=scale, column_weights="4 1 .25 2 9", loadings=files, **keys)
    assert model.explained_variance_ == pytest.approx(expected.explained_variance_, rel=1e-6)
    scores = expected.transform(weighted) * np.sign(np.sum(model.components_ * expected.components_, axis=1))
    for scores_of in (model.transform, model.to_sklearn().transform, Loadings.load(files[0]).part_of_scores):
        assert scores_of(X) == pytest.approx(scores, abs=1e-5)
    assert model.inverse_transform(model.transform(X)) == pytest.approx(X)
    if method == "p-cov" and keys != {"center": False}:  # stored moments are weighted by divisors
        moments = fit("p-cov", SPLIT(X), n_components=2, scale=scale, keep="moments", **keys).moments_
        divisors = (moments.deviation if scale else 1) / np.sqrt(weights)
        same_model(analyses.pca(moments.scaled(divisors), 2), fit("p-cov", [X / divisors], n_components=2))
    assert model.table().columns.name == "loadings"


def test_what_transforms_and_column_weights_do_not_go_with_is_named():
    for name, options, named in (
        ("log", {}, "log1p"),
        ("sqrt", {"levels": '{"a": ["x"]}', "scale": True}, "'levels'"),
        ("sqrt", {"genotypes": True}, "genotypes"),
        ("sqrt", {"method": "streaming"}, "'streaming'"),
        ("clr", {"adjust_for": "1"}, "'adjust-for'"),
        ("clr", {"method": "vertical"}, "'vertical'"),
    ):
        with refused(ConfigError, "transform", name, named):
            server_of(parties=SPLIT(X), **{"method": "p-cov", "n_components": 2, "transform": name, **options})
    for options in ({"keep": "moments"}, {"adjust_for": "0"}, {"column_weights": "1 0 1 1 1"}, {"column_weights": "x"}):
        with refused(ConfigError, "'column_weights'", *options):
            fit("p-cov", SPLIT(X), n_components=2, **{"column_weights": "1 1 1 1 1", **options})
    for own, of_run in (("", "log1p"), ("log1p", ""), ("log1p", "sqrt")):
        node = NodeConfig(partition_id=0, num_partitions=1, data="rows.csv", transform=own)
        with refused(DisclosureError, *(f"'{key}'" if key else "not set" for key in (own, of_run))):
            transform_rows(check_rows(X), node, RunConfig(transform=of_run))
    for method in ("p-cov", "sub-it", "qr-pca"):
        with refused(ConfigError, "'column_weights'", 2, 5):
            fit(method, SPLIT(X), n_components=2, column_weights="1 2")


def test_a_run_applies_it_to_each_row_once(monkeypatch):
    rows = []
    counted = TRANSFORMS["log1p"]._replace(function=lambda block: rows.extend(block) or np.log1p(block))
    monkeypatch.setitem(TRANSFORMS, "log1p", counted)
    fit("sub-it", SPLIT(X), n_components=2, transform="log1p")  # in two rounds, each with a message to every party
    assert len(rows) == len(X)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_follows_from_a_model_has_it_too(name, tmp_path):
    files, k = [tmp_path / f"{party}.npz" for party in range(3)], 4 if name == "clr" else 5
    model = fit("p-cov", SPLIT(X), n_components=k, transform=name, loadings=files, keep="moments")
    saved = PCAModel.load(replace(model, moments_=None).save(tmp_path / "model"))
    ways = [saved.transform, model.to_sklearn().transform, Loadings.load(files[0]).part_of_scores]
    ways += [analyses.pca(model).transform, FederatedPCA(k, transform=name).fit(SPLIT(X)).transform]
    scores = model.transform(X)
    for scores_of in ways:
        assert scores_of(X) == pytest.approx(scores, abs=1e-6)
    back = X / X.sum(axis=1, keepdims=True) if name == "clr" else X  # log-ratios do not tell the sum
    assert saved.inverse_transform(scores) == pytest.approx(back, rel=1e-9)
    assert name != "sqrt" or saved.inverse_transform(-9 * scores).min() == 0  # a negative root is no root
    assert name in model.summary()
    assert model.moments_.merge(SecondMoments.of(X, transform=name)).n_samples == 300
    with refused(ConfigError, name, "'transform'"):
        model.moments_.merge(SecondMoments.of(X))


@pytest.mark.parametrize(("name", "wrong"), [("log1p", -2), ("sqrt", -2), ("clr", 0), ("clr", np.nan)])
def test_values_outside_the_domain_are_named_by_column(name, wrong):
    given = X.copy()
    given[[3, 4, 9], [1, 1, 3]] = wrong
    with refused(DataError, f"'{name}'", 3, "columns: 'b', 'd'"):
        fit("em", [pd.DataFrame(part, columns=NAMES) for part in SPLIT(given)], n_components=2, transform=name)
    if not np.isnan(wrong):
        with refused(DataError, f"'{name}'", 3, 1):
            fit("p-cov", SPLIT(X), n_components=2, transform=name).transform(given)


@pytest.mark.engine
def test_a_server_chooses_no_function_of_a_sites_rows(tmp_path):
    nodes = [site(tmp_path / f"{party}.csv", part, range(5), NAMES) for party, part in enumerate(SPLIT(X))]
    allowed = [{**node, "transform": "log1p"} for node in nodes]

    def ask(nodes, **keys):
        return finish(at_sites(server_of("p-cov", SPLIT(X), n_components=2, **keys), nodes))

    for _ in range(2):  # again is allowed
        same_model(ask(allowed, transform="log1p"), fit("p-cov", SPLIT(np.log1p(X)), n_components=2))
    for own, keys in ((nodes, {"transform": "log1p"}), (allowed, {}), (allowed, {"transform": "sqrt"})):
        with refused(DisclosureError, *map("'{}'".format, keys.values()), "'transform'"):
            ask(own, **keys)
    with refused(DisclosureError, match="but for a few"):  # the journal has rows after the function: these are others
        ask([{**node, "transform": "sqrt"} for node in nodes], transform="sqrt")
