"""What runs measure is numbers by names that the page lists, and the lines that are read are made of them."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from fedpca_flwr.model.federation import Federation
from fedpca_flwr.model.measurements import MEASUREMENTS, measurement_lines
from fedpca_flwr.strategies import METHODS
from tests.families import cut, rows
from tests.fedpca_flwr.test_server_app import simulated
from tests.harness import fit

X = rows(200) + np.arange(12)
BY_ROWS, BY_COLUMNS = cut(X, 100, 60, 40), np.split(X[:50], [5, 9], axis=1)
SECURE = {"secure_aggregation": True, "bound": 40.0}
RUNS = [(name, {}) for name, method in METHODS.items() if not method.strategy.card.loadings_source]
RUNS += [("sub-it", SECURE), ("vertical", SECURE), ("p-cov", {**SECURE, "survivors": 3}), ("qr-pca", {"rank": 8})]
RUNS += [("ap-stack", {"party-weights": "rows"}), ("adaptive", {"target": 1.0}), ("adaptive", {"rule": "divergences"})]
RUNS += [("vfedpca", {"graph": "ring"}), ("personalised", {"mu": 1.0}), ("robust", {"robust_parties": True})]
RUNS += [("sapca", {"tracked": 6, "n_components": 0.5}), ("p-cov", {"outliers": "counts", "fourth_moments": True})]
RUNS += [("dp-pca", {"release": "joint", "clip": 5.0}), ("dp-pca", {"trust": "distributed", "honest_parties": 2})]


def of(method, options):
    parties = BY_COLUMNS if METHODS[method].strategy.card.split == "columns" else BY_ROWS
    return fit(method, parties, **{"n_components": 3, **options})


@pytest.fixture(scope="module")
def models(tmp_path_factory):
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
    made["digits"] = simulated(2, tmp_path_factory.mktemp("run"), **{"method": "p-cov", "n-components": 3})
    return made


@pytest.mark.engine
def test_every_measurement_is_on_the_page_and_in_summaries(models):
    names = [name for one in MEASUREMENTS for name in one.numbers]
    assert {name for model in models.values() for name in model.log["measured"]} == set(names)
    assert len(set(names)) == len(names)
    for name, model in models.items():
        told, texts = model.log["measured"], dict(measurement_lines(model))
        assert {type(value) for value in told.values()} <= {int, float}, name
        assert not any(math.isnan(value) for value in told.values()), name
        assert len(texts) == len(measurement_lines(model)), name
        lines = set(model.summary(full=True).splitlines())
        assert {f"  {line:<22}{text}" for line, text in texts.items()} <= lines, name


def test_federations_and_streams_have_measurements(models):
    model, running, digits = (models[name] for name in ("federation", "running", "digits"))
    assert (model.log["measured"]["revision"], model.log["measured"]["unsaved_changes"]) == (1, 1)
    assert ("revision", "1, and changes that are not saved") in measurement_lines(model)
    assert (model.rounds, model.bytes_up, model.bytes_down) == (0, 0, 0)
    assert running.log["measured"].items() >= {"running_model_rows": 400, "running_model_revision": 2}.items()
    told = digits.log["measured"]
    assert told["angle_to_pooled_mean_degrees"] <= told["angle_to_pooled_max_degrees"] < 1e-6
    np.testing.assert_allclose(told["captured_variance_share"], digits.explained_variance_ratio_.sum())
    zero, one, two = (f"partition {i}" for i in range(3))
    members = {"joined": {"joined": [zero, one, two]}, "more": {"appended": [one], "unchanged": [zero]}}
    members["changed"] = {"replaced": [one], "unchanged": [zero], "absent": [two]}
    members["left"] = {"replaced": [one], "unchanged": [zero], "left": [two]}
    for name, expected in members.items():
        assert models[name].log["members"] == expected
        told, measured = dict(measurement_lines(models[name])), models[name].log["measured"]
        for word, names in expected.items():
            assert (told[word], measured[f"{word}_members"]) == (", ".join(names), len(names))


def told(line, text, **measured):
    return line, measured, text


SPENT = "spent_rounds", "spent_bytes_up_per_party", "spent_bytes_down_per_party"
OF_THREE, TO_GO = " at most, of the first 3 components", " degrees before its limit (no bound)"
ANGLES = "2 degrees at most, 0.5 in the mean"
ERRORS = {"squared_error_per_row": 2.0, "predicted_squared_error_per_row": 3.0}
HELD = "b holds 50.0% of component 1, with 25.0% of the rows"
MIXED = f"{HELD}; components 1 and 2 have nearly the same variance: without b they mix; without b component 3 turns"
SPACE = "; without one site the space of all 4 turns by up to 9 degrees"
TURNS = {"influence_component_share": 0.5, "influence_axis_degrees": 5.0, "influence_subspace_degrees": 9.0}
PRIVACY = "epsilon 1.5, delta 1e-06, replace-one, of one row; trust: distributed, 2 honest sites"
ODD = "3 beyond the limit of T2, 4 beyond that of SPE (99 % of normal rows are not); most at b: 50.0% of its rows"
INFLUENCE = ("party", "rows_share", "component_shares", "angles_degrees")
SQUARE = "in the unit of the data, squared"
FIRST = {"first_variance_low": 2.0, "first_variance_high": 3.0}
STEPS = {"objective_per_row": 2.5, "objective_iterations": 7}
DISTANCES = ("score", "means", "covariances", "spectra", "variances")
UNLIKE = {f"heterogeneity_{name}": i / 8 for i, name in enumerate(DISTANCES)}
OF_ROWS = {f"{of}held_out_squared_error_per_row": i for i, of in enumerate(("", "local_", "global_"), 1)}
TEXTS = [
    told("certified angle", "no bound", certified_angle_degrees=90.0, certified_components=4),
    told("certified angle", "3e-08 degrees at most", certified_angle_degrees=3e-8, certified_components=4),
    told("certified angle", f"0.5 degrees{OF_THREE}", certified_angle_degrees=0.5, certified_components=3),
    told("missing values", f"0.0027%; EM stopped an estimated 0{TO_GO}", missing_share=2.7e-5, degrees_ahead=0.0),
    told("missing values", f"5.12%; EM stopped an estimated 1.3{TO_GO}", missing_share=0.0512, degrees_ahead=1.26),
    told("angle bound", "13 degrees (Davis and Kahan: the worst case)", angle_bound_degrees=12.31),
    told("scatter error", "0.013 of the variance at most (spectral norm)", scatter_error_variance_share=0.0121),
    told("fixed point", "rounds off 4e-09 of the variance at most", fixed_point_variance_share=3.2e-9),
    told("left out", "25% of the variance, spread over some 1 direction", left_out_directions=1.2),
    told("left out", "25% of the variance, spread over some 8 directions", left_out_directions=7.6),
    told("mu", "0 (local PCA)", mu=0.0),
    told("mu", "infinity (PCA of all rows)", mu=math.inf),
    told("mu", "0.5, chosen on 30 rows held out", mu=0.5, held_out_rows=30),
    told("above the noise", "1 of 4 components; 3 of 5 features kept", components_above_noise=1, kept_features=3),
    told("noise / sensitivity", "2 (centre), 4 (joint)", noise_multiplier_centre=2, noise_multiplier_joint=4),
    told("influence", "one site holds at most 12.3% of a component", influence_component_share=0.123),
    told("influence", f"{HELD}; without b component 1 turns by up to 77 degrees", **TURNS, influence_components=1),
    told("influence", f"{MIXED} by up to 10 degrees{SPACE}", **TURNS, influence_components=4),
    told("angle to exact", f"{ANGLES}, by the server", angle_to_exact_max_degrees=2.0, angle_to_exact_mean_degrees=0.5),
    told("angle to pooled PCA", ANGLES, angle_to_pooled_max_degrees=2.0, angle_to_pooled_mean_degrees=0.5),
    told("members", "3 with 60 rows; 2 took part in this run", members=3, member_rows=60, members_here=2),
    told("running model", "60 rows, revision 2", running_model_rows=60, running_model_revision=2),
    told("ranks on the way", "2 to 5", smallest_rank=2, largest_rank=5),
    told("tracked directions", "6, without 0.25 of the variance", tracked_directions=6, truncated_variance_share=0.25),
    told("heterogeneity", "0.00 of 1 (means 0.12, covariances 0.25, spectra 0.38, variances 0.50)", **UNLIKE),
    told("held-out error", f"1 per row, local 2, global 3, {SQUARE}", **OF_ROWS),
    told("objective", f"2.5 per row, {SQUARE}, after 7 iterations (stiefel)", **STEPS),
    told("sites' sums", "differ by 0.1 of their median, at most by 0.3", unlike_parties=0.1, most_unlike_party=0.3),
    told("first variance", f"2 to 3 (95 %, by fourth moments), {SQUARE}", **FIRST),
    told("squared error per row", f"2 measured, 3 predicted, {SQUARE}", **ERRORS),
    told("rows clipped to", "2 (variances), 3 (joint)", clipping_norm_variances=2.0, clipping_norm_joint=3.0),
    told("secure aggregation", "double masks, 2 of 3 sites", double_masked_parties=2, expected_parties=3),
    told("revision", "2", revision=2, unsaved_changes=0),
    told("spent", "1 round, 2.5 MB up and 0.001 MB down per site", **dict(zip(SPENT, (1, 2.5e6, 1e3), strict=True))),
    told("spent", "2 rounds, 0.001 MB up and 2.5 MB down per site", **dict(zip(SPENT, (2, 1e3, 2.5e6), strict=True))),
    told("privacy", PRIVACY, epsilon=1.5, delta=1e-6, honest_parties=2),
    told("odd rows", ODD, rows_above_t_squared_limit=3, rows_above_spe_limit=4),
]


@pytest.mark.parametrize(("line", "measured", "text"), TEXTS)
def test_a_line_has_the_numbers_in_their_units(line, measured, text):
    keys = "party", "rows", "above_t_squared_limit", "above_spe_limit"
    at_parties = [dict(zip(keys, values, strict=True)) for values in (("a", 10, 1, 3), ("b", 4, 2, 1))]
    options = {"trust": "distributed", "relation": "replace-one", "solver": "stiefel"}
    model = SimpleNamespace(n_components_=4, n_features_in_=5, explained_variance_ratio_=np.array([0.5, 0.25]))
    model.scale_, model.explained_variance_ = None, np.array([10.0, 8.0, 5.0, 4.5])
    turns = np.array([[76.0, 70.0, 9.0, 8.0], [77.0, 60.0, 10.0, 9.0]])[:, : measured.get("influence_components", 4)]
    sites = zip("ab", (0.75, 0.25), ([0.3, 0.4], [0.5, 0.1]), turns.tolist(), strict=True)
    influence = [dict(zip(INFLUENCE, values, strict=True)) for values in sites]
    model.log = {"measured": measured, "options": options, "outliers": at_parties, "influence": influence}
    assert measurement_lines(model) == [(line, text)]
