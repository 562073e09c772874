"""What runs measure is numbers by names that the page lists, and the lines that are read are made of them."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from fedpca_flwr.data.datasets import load
from fedpca_flwr.model.federation import Federation
from fedpca_flwr.model.measurements import MEASUREMENTS, measurement_lines
from fedpca_flwr.server_app import _compare_with_pooled
from fedpca_flwr.strategies import METHODS
from tests.families import cut, rows
from tests.harness import fit, server_of

X = rows(200) + np.arange(12)
BY_ROWS, BY_COLUMNS = cut(X, 100, 60, 40), np.split(X[:50], [5, 9], axis=1)
SECURE = {"secure_aggregation": True, "bound": 40.0}
RUNS = [
    *((name, {}) for name, method in METHODS.items() if not method.strategy.card.loadings_source),
    *(("sub-it", SECURE), ("vertical", SECURE), ("p-cov", {**SECURE, "survivors": 3}), ("qr-pca", {"rank": 8})),
    *(("ap-stack", {"party-weights": "rows"}), ("adaptive", {"target": 1.0}), ("vfedpca", {"graph": "ring"})),
    *(("personalised", {"mu": 1.0}), ("robust", {"robust_parties": True})),
    *(("sapca", {"tracked": 6, "n_components": 0.5}), ("p-cov", {"outliers": "counts", "fourth_moments": True})),
    *(("dp-pca", {"release": "joint", "clip": 5.0}), ("dp-pca", {"trust": "distributed", "honest_parties": 2})),
]
NAMES = {name for one in MEASUREMENTS for name in one.numbers}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Models of runs in which everything is measured that can be."""
    made = {f"{method} {options}": of(method, options) for method, options in RUNS}
    states = [str(tmp_path_factory.mktemp("state") / name) for name in ("streaming", "sapca")]
    wide = rows(600, 4) @ np.eye(4, 200) * 10 + np.random.default_rng(1).standard_normal((600, 200))
    made["narrow"] = fit("sub-it", cut(wide, 300, 300), n_components=1, block_size=1)
    made["signal"] = fit("sub-it", cut(wide.T, 100, 100), n_components=6, certify="signal", tolerance=0.1)
    made["joined"] = of("streaming", {"state": states[0]})
    made["changed"] = fit("streaming", [BY_ROWS[0], BY_ROWS[1] + 1], n_components=3, state=states[0])
    made["left"] = fit("streaming", BY_ROWS[:2], n_components=3, state=states[0], leave="partition 2")
    made["more"] = fit("streaming", [BY_ROWS[0], BY_ROWS[2]], n_components=3, state=states[0], append=True)
    of("sapca", {"state": states[1]})
    made["running"] = fit("sapca", [part + 1 for part in BY_ROWS], n_components=3, state=states[1])
    federation = Federation.open(tmp_path_factory.mktemp("federation"))
    federation.join("a", X)
    federation.save()
    federation.join("b", X + 1)
    made["federation"] = federation.model(2)
    # A simulation measures beside the pooled rows; its configuration names the digits.
    strategy = server_of("p-cov", [np.zeros((1, 64))] * 2).strategy
    made["digits"] = model = fit("p-cov", cut(load("digits", ".").all_rows(), 1000, 797), n_components=3)
    model.log["measured"] |= _compare_with_pooled(model, strategy)
    return made


def of(method, options):
    parties = BY_COLUMNS if METHODS[method].strategy.card.split == "columns" else BY_ROWS
    return fit(method, parties, **{"n_components": 3, **options})


@pytest.mark.engine
def test_every_measurement_is_on_the_page_and_in_summaries(models):
    assert {name for model in models.values() for name in model.log["measured"]} == NAMES
    for name, model in models.items():
        told, texts = model.log["measured"], dict(measurement_lines(model))
        assert {type(value) for value in told.values()} <= {int, float}, name
        assert not any(math.isnan(value) for value in told.values()), name
        assert len(texts) == len(measurement_lines(model)), name
        assert {f"  {line:<22}{text}" for line, text in texts.items()} <= set(model.summary().splitlines()), name
    assert sum(len(one.numbers) for one in MEASUREMENTS) == len(NAMES)


def test_federations_and_streams_have_measurements(models):
    model = models["federation"]
    assert (model.log["measured"]["revision"], model.log["measured"]["unsaved_changes"]) == (1, 1)
    assert ("revision", "1, and changes that are not saved") in measurement_lines(model)
    assert (model.rounds, model.bytes_up, model.bytes_down) == (0, 0, 0)
    told = models["running"].log["measured"]
    assert (told["running_model_rows"], told["running_model_revision"]) == (400, 2)
    told = models["digits"].log["measured"]
    assert told["angle_to_pooled_mean_degrees"] <= told["angle_to_pooled_max_degrees"] < 1e-6
    np.testing.assert_allclose(told["captured_variance_share"], models["digits"].explained_variance_ratio_.sum())
    # Members are counted and named.
    zero, one, two = (f"partition {i}" for i in range(3))
    assert models["joined"].log["members"] == {"joined": [zero, one, two]}
    assert models["changed"].log["members"] == {"replaced": [one], "unchanged": [zero], "absent": [two]}
    assert models["left"].log["members"] == {"replaced": [one], "unchanged": [zero], "left": [two]}
    assert models["more"].log["members"] == {"appended": [one], "unchanged": [zero]}
    for name in ("joined", "changed", "left", "more"):
        told = dict(measurement_lines(models[name]))
        for word, names in models[name].log["members"].items():
            assert told[word] == ", ".join(names)
            assert models[name].log["measured"][f"{word}_members"] == len(names)


TEXTS = [
    *(
        ("certified angle", {"certified_angle_degrees": degrees, "certified_components": components}, text)
        for degrees, components, text in (
            *((90.0, 4, "no bound"), (3e-8, 4, "3e-08 degrees at most")),
            (0.5, 3, "0.5 degrees at most, of the first 3 components"),
        )
    ),
    # A small share is never said to be zero.
    *(
        ("missing values", {"missing_share": share, "degrees_ahead": ahead}, f"{text} degrees to go (no bound)")
        for share, ahead, text in ((2.7e-5, 0.0, "0.0027%; an estimated 0"), (0.0512, 1.26, "5.12%; an estimated 1.3"))
    ),
    ("angle bound", {"angle_bound_degrees": 12.31}, "13 degrees (Davis and Kahan: the worst case)"),
    ("scatter error", {"scatter_error_variance_share": 0.0121}, "0.013 of the variance at most (spectral norm)"),
    ("fixed point", {"fixed_point_variance_share": 3.2e-9}, "rounds off 4e-09 of the variance at most"),
    ("left out", {"left_out_directions": 1.2}, "25.0000% of the variance, spread over some 1 direction"),
    ("left out", {"left_out_directions": 7.6}, "25.0000% of the variance, spread over some 8 directions"),
    ("mu", {"mu": 0.0}, "0 (local PCA)"),
    ("mu", {"mu": math.inf}, "infinity (PCA of all rows)"),
    ("mu", {"mu": 0.5, "held_out_rows": 30}, "0.5, chosen on 30 rows held out"),
    ("above the noise", {"components_above_noise": 1, "kept_features": 3}, "1 of 4 components; 3 of 5 features kept"),
    ("noise / sensitivity", {"noise_multiplier_centre": 2, "noise_multiplier_joint": 4}, "2 (centre), 4 (joint)"),
    ("influence", {"influence_component_share": 0.123}, "one party holds 12.3% of a component at most"),
    *(
        (
            "influence",
            {
                "influence_component_share": 0.5,
                "influence_axis_degrees": 5.0,
                "influence_subspace_degrees": 9.0,
                "influence_components": first,
            },
            f"one party holds 50.0% of a component at most; without one, the first turns by up to 5 degrees{space}",
        )
        for first, space in ((1, ""), (2, ", the space of the first 2 by 9"), (4, ", the space of all 4 by 9"))
    ),
    *(
        (
            f"angle to {to}",
            {f"angle_to_{key}_max_degrees": 2.0, f"angle_to_{key}_mean_degrees": 0.5},
            f"2 max, 0.5 {end}",
        )
        for to, key, end in (
            ("exact", "exact", "mean (degrees, by the server)"),
            ("pooled PCA", "pooled", "mean (degrees)"),
        )
    ),
    ("members", {"members": 3, "member_rows": 60, "members_here": 2}, "3 with 60 rows; 2 took part in this run"),
    ("running model", {"running_model_rows": 60, "running_model_revision": 2}, "60 rows, revision 2"),
    ("ranks on the way", {"smallest_rank": 2, "largest_rank": 5}, "2 to 5"),
    (
        "tracked directions",
        {"tracked_directions": 6, "truncated_variance_share": 0.25},
        "6, without 0.25 of the variance",
    ),
    (
        "heterogeneity",
        {
            f"heterogeneity_{name}": i / 8
            for i, name in enumerate(("score", "means", "covariances", "spectra", "variances"))
        },
        "0.00 (means 0.12, covariances 0.25, spectra 0.38, variances 0.50)",
    ),
    (
        "held-out error",
        {f"{of}held_out_squared_error_per_row": i for i, of in enumerate(("", "local_", "global_"), 1)},
        "1 per row, local 2, global 3",
    ),
    ("objective", {"objective_per_row": 2.5, "objective_iterations": 7}, "2.5 per row after 7 iterations (stiefel)"),
    (
        "parties' sums",
        {"unlike_parties": 0.1, "most_unlike_party": 0.3},
        "differ by 0.1 of their median, at most by 0.3",
    ),
    ("first variance", {"first_variance_low": 2.0, "first_variance_high": 3.0}, "2 to 3 (95 %, by fourth moments)"),
    (
        "squared error per row",
        {"squared_error_per_row": 2.0, "predicted_squared_error_per_row": 3.0},
        "2 measured, 3 predicted",
    ),
    ("rows clipped to", {"clipping_norm_variances": 2.0, "clipping_norm_joint": 3.0}, "2 (variances), 3 (joint)"),
    ("secure aggregation", {"double_masked_parties": 2, "expected_parties": 3}, "double masks, 2 of 3 parties"),
    ("revision", {"revision": 2, "unsaved_changes": 0}, "2"),
    (
        "spent",
        {"spent_rounds": 1, "spent_bytes_up_per_party": 2.5e6, "spent_bytes_down_per_party": 1e3},
        "1 round, 2.5 MB up and 0.001 MB down per party",
    ),
    (
        "spent",
        {"spent_rounds": 2, "spent_bytes_up_per_party": 1e3, "spent_bytes_down_per_party": 2.5e6},
        "2 rounds, 0.001 MB up and 2.5 MB down per party",
    ),
    (
        "privacy",
        {"epsilon": 1.5, "delta": 1e-6, "honest_parties": 2},
        "epsilon 1.5, delta 1e-06, replace-one, of one row; trust: distributed, 2 honest parties",
    ),
    (
        "odd rows",
        {"rows_above_t_squared_limit": 3, "rows_above_spe_limit": 4},
        "3 beyond the limit of T2, 4 beyond that of SPE (99 % of normal rows are not); most at b: 50.0% of its rows",
    ),
]


@pytest.mark.parametrize(("line", "measured", "text"), TEXTS)
def test_a_line_has_the_numbers_in_their_units(line, measured, text):
    keys = "party", "rows", "above_t_squared_limit", "above_spe_limit"
    at_parties = [dict(zip(keys, values, strict=True)) for values in (("a", 10, 1, 3), ("b", 4, 2, 1))]
    options = {"trust": "distributed", "relation": "replace-one", "solver": "stiefel"}
    model = SimpleNamespace(n_components_=4, n_features_in_=5, explained_variance_ratio_=np.array([0.5, 0.25]))
    model.log = {"measured": measured, "options": options, "outliers": at_parties}
    assert measurement_lines(model) == [(line, text)]
