"""What a comparison recommends, keeps, counts and shows; over several seeds means with intervals, and small pages."""

import json
import math
import re
from unittest.mock import Mock

import numpy as np
import pytest
from scipy import stats

from fedpca_flwr.errors import ConfigError, DataError, FedPCAError
from fedpca_flwr.simulations import engines, measuring, records
from fedpca_flwr.simulations.comparing import Comparison, compare
from fedpca_flwr.simulations.recommending import Choice, choices
from fedpca_flwr.simulations.records import run_identity
from fedpca_flwr.simulations.runs_file import RUNS, append_record, read_records, remove_runs
from fedpca_flwr.simulations.seed_means import average_seeds
from tests.refusals import refused
from tests.simulations.test_compare import WINE


def record(method="p-cov", *, angle=0.0, exact=True, up=1.0, rounds=1, captured=0.9, **more):
    results = {"max angle": angle, "exact": exact, "MB up": up, "rounds": rounds, "captured variance": captured}
    return {"method": method, "options": {}, **results, "components": 4, "bound": 0.0, "measured": {}, **more}


def wishes(*runs):
    return {choice.wish: choice.run for choice in choices(runs)}


def test_exact_choices_take_fewest_rounds_or_bytes():
    """By luck, or by a claim alone, nothing is: the other two are cheaper."""
    by_luck = record("ap-cov", angle=1e-9, exact=False, up=0.1)
    by_claim = record("sub-it", angle=1e-3, exact=True, up=0.2)
    truly = record("p-cov", angle=1e-7, exact=True, up=5.0)
    found = wishes(by_luck, by_claim, truly)
    assert found["exact, in the fewest rounds"] is found["exact, with the fewest bytes up"] is truly
    assert not any(wish.startswith("exact") for wish in wishes(by_luck, by_claim))
    # Of equals in one of them, the other decides.
    short, light = record("p-cov", rounds=1, up=5.0), record("sub-it", rounds=9, up=0.1)
    found = wishes(record("streaming", rounds=10, up=0.1), light, record("qr-pca", rounds=1, up=6.0), short)
    assert found["exact, in the fewest rounds"] is short
    assert found["exact, with the fewest bytes up"] is light
    # What failed, or has other rows, is left out.
    for out in ({"method": "vertical"}, {"error": "DataError: a site is away"}):
        assert not wishes({**record(), **out})
        assert wishes(record(), {**record(up=0.01), **out})["exact, with the fewest bytes up"] == record()


def test_within_an_angle_or_private_the_cheapest_or_best_is_told_in_words():
    exact, near, far = record(up=5.0), record("ap-cov", angle=0.1, up=1.0), record("compressed", angle=0.5, up=0.1)
    approximate = [{**one, "exact": False} for one in (near, far)]
    found = wishes(exact, *approximate)
    assert (found["within 0.1°"], found["within 1°"]) == (*approximate,)
    assert not any(wish.startswith("within") for wish in wishes({**exact, "MB up": 0.01}, *approximate))
    cheap, good = record("dp-pca", angle=30.0, exact=False, captured=0.5), record("dp-pca", exact=False, up=9.0)
    assert wishes(cheap, good)["differentially private"] is good
    assert wishes(good, cheap)["differentially private"] is good
    assert Choice("exact", record(rounds=1, up=1.5)).cost == "one round, mean 1.5 MB up"
    assert Choice("exact", record(rounds=2, up=0.0015)).cost == "2 rounds, mean 1.5 kB up"
    words = {3: "only 3 of 4 components above the noise", 0: "none of 4 components above the noise"}
    for above in (0, 3, 4, 5):
        warned = Choice("differentially private", record(measured={"components_above_noise": above})).warning
        assert warned == words.get(above, "")
    assert Choice("differentially private", record()).warning == ""


def test_runs_of_another_setting_are_other_runs_and_its_title_tells_all():
    one = {**dict.fromkeys(records.SETTING), **record()}
    keys = {"dataset", "data root", "partition", "alpha", "clients", "components", "seed", "engine", "knn", "bound"}
    changed = {key for key in one if run_identity(one) != run_identity({**one, key: "another"})}
    assert changed == keys | {"method", "options"}
    assert run_identity({**one, "options": {"b": 1, "a": 2}}) == run_identity({**one, "options": {"a": 2, "b": 1}})
    source = {"dataset": "images", "data root": "/a b", "partition": "quantity", "alpha": 0.25, "clients": 3, "seed": 7}
    how = {"options": {"scale": True, "center": False}, "engine": "ray", "knn": True, "bound": 12.3456789}
    one = {**record(), **source, **how}
    assert records.setting_title([one]) == (
        "images, quantity 0.25, 3 clients, 4 components, seed 7, features scaled, rows about zero, "
        "secure sums, bound 12.3457, with k-NN(5), engine ray (data of /a b)"
    )
    others = [{**one, "options": options} for options in ({}, {"center": False}, {"scale": True})]
    assert len(records.group_by_setting([one, *others])) == 4


def test_a_failed_run_is_not_recorded(tmp_path, monkeypatch):
    honest, counted = engines.run, {"mean": ([1, 2, 0], [1, 2, 3]), "moments": ([0, 0, 3], [0, 0, 3])}
    counted["project"] = [1000] * 3, [1000] * 3  # the last round, which does not count
    megabytes = {phase: (10**6 * np.array(both)).tolist() for phase, both in counted.items()}

    def run(*args, **more):
        model = honest(*args, **more)
        rounds = [{"phase": phase, "up": up, "down": down, "seconds": 0.0} for phase, (up, down) in megabytes.items()]
        model.log["rounds"] = rounds
        return model

    setting = {"methods": ["p-cov"], "datasets": ["wine"], "clients": [3], "n_components": 2, "output": tmp_path}
    monkeypatch.setattr(measuring, "run", Mock(side_effect=DataError("a site\nis away")))
    failed = compare(**setting)
    (line,) = failed.frame().to_dict("records")
    assert (line["dataset"], line["seed"], line["max angle"]) == ("wine", 42, None)
    assert line["error"] == "DataError: a site\nis away"
    assert "| DataError: a site is away |" in str(failed)
    assert not (tmp_path / RUNS).exists()
    monkeypatch.setattr(measuring, "run", run)
    (done,) = compare(**setting)
    assert ("error" in done, len((tmp_path / RUNS).read_text().splitlines())) == (False, 1)
    assert (done["rounds"], done["MB up"], done["MB down"]) == (2, 2.0, 3.0)


RESULTS = ("max angle", "mean angle", "explained variance", "knn accuracy", "MB up", "MB down", "seconds")
SETTING = {"dataset": "", "data root": ".", "partition": "iid", "alpha": None, "clients": 3, "components": 2, "seed": 0}
RUN = {"method": "p-cov", "options": {}, "engine": "loopback", "bound": 0.0, "knn": False, "exact": True}
WHOLE = {**dict.fromkeys(RESULTS, 0.5), **SETTING, **RUN, "rounds": 2, "model": None, "measured": {}}

MODELS = ["../models/0123456789abcdef.npz", "models/0123456789abcdef.npz/../../x.npz", "models/0123456789ABCDEF.npz"]
MODELS += ["models/0123456789abcdef0.npz", "models/0123456789abcde.npz"]
WRONG = [
    *(("model", file) for file in MODELS),
    *(("clients", number) for number in (-1, 2**63, 0)),
    *(("max angle", angle) for angle in ("0", float("nan"), 180)),
    *(("notes", notes) for notes in (["x" * 10_001], ["a", 3])),
    *(("alpha", alpha) for alpha in (float("inf"), 0.5)),
    *(("method", "no such method"), ("knn", 1), ("partition", "halves"), ("engine", "moon")),
    *(("components", 2**40), ("rounds", None), ("options", {"epsilon": []})),
]
ALLOWED = [
    *(({"partition": "halves"}, ["'halves'", "'iid'", "'shards'"]), ({"alpha": 0.5}, ["'alpha'", 0.5, "'iid'"])),
    ({"partition": "dirichlet"}, ["'alpha'", "'dirichlet'"]),
    *(({"partition": "dirichlet", "alpha": -0.5}, ["'alpha'", -0.5, 0]), ({"notes": ["a", 3]}, [3])),
    ({"max angle": 180}, [180]),
]


@pytest.mark.parametrize(("values", "named"), [*(({key: value}, []) for key, value in WRONG), *ALLOWED])
def test_a_refused_record_names_value_and_what_is_allowed(values, named, tmp_path):
    for model in ("models/0123456789abcdef.npz", None):
        append_record(tmp_path, {**WHOLE, "model": model})
    assert len(read_records(tmp_path)) == 1
    (tmp_path / RUNS).write_text(json.dumps({**WHOLE, **values}) + "\n")
    is_json = all(not isinstance(value, float) or math.isfinite(value) for value in values.values())
    keys = [f"'{key}'" for key in values] if is_json and not named else named
    with refused(ConfigError, str(tmp_path / RUNS), "line 1", *keys):
        read_records(tmp_path)


def test_only_a_comparisons_own_files_are_removed(tmp_path):
    older = {key: value for key, value in WHOLE.items() if key != "bound"}
    append_record(tmp_path, {**older, "seeds": [0, 1], "intervals": 3})  # of which other keys are not read
    (tmp_path / "models").mkdir()
    for name in ("0123456789abcdef.npz", "notes.txt"):
        (tmp_path / "models" / name).touch()
    assert read_records(tmp_path) == [WHOLE]
    remove_runs(tmp_path)
    assert not read_records(tmp_path)
    assert [file.name for file in tmp_path.rglob("*") if file.is_file()] == ["notes.txt"]
    (tmp_path / RUNS).write_text("no record\n")
    (tmp_path / "report.html").touch()
    with refused(ConfigError, RUNS):
        remove_runs(tmp_path)
    assert len([file for file in tmp_path.rglob("*") if file.is_file()]) == 3


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    many = {**WINE, "alphas": [0.1, 10], "clients": [2, 4]}
    return compare(methods=["p-cov", "ap-cov"], seeds=range(4), output=tmp_path_factory.mktemp("seeds"), **many)


def test_means_are_of_the_seeds_of_a_method_and_setting(several):
    frame, means = several.frame(), several.means()
    assert (len(frame), frame["seed"].nunique(), means["runs"].tolist()) == (2 * 2 * 2 * 4, 4, [4] * 8)
    by_hand = frame.groupby(["method", "alpha", "clients"])["max angle"].agg(["mean", "sem"])
    for line in means.to_dict("records"):
        mean, error = by_hand.loc[(line["method"], line["alpha"], line["clients"])]
        assert line["max angle"] == pytest.approx(mean)
        half_width = stats.t.ppf(0.975, 3) * error
        ends = [max(0, mean - half_width), mean + half_width]
        assert [line["max angle low"], line["max angle high"]] == pytest.approx(ends)
    text = str(several)
    assert re.search(r"\| dirichlet 0.1 \| 2 \| ap-cov( \[\d\])* \| [\d.]+ \(0 to [\d.]+\) \|", text)
    assert text.count("seeds 0 to 3:") == 4


def test_seeds_that_failed_are_told_and_what_is_recommended_every_seed_keeps(several):
    runs = [run for run in several if (run["method"], run["alpha"], run["clients"]) == ("ap-cov", 0.1, 2)]
    unknown, error = ("max angle", "rounds", "measured"), {"error": "DataError: a site is away"}
    away = [{key: run[key] for key in run if key not in unknown} | error for run in runs]
    for failed, seeds in ((1, "seed 0"), (3, "seeds 0, 1, 2"), (4, "")):
        made = Comparison([*away[:failed], *runs[failed:]])
        assert made.means()["runs"].tolist() == [4 - failed]
        assert f"runs: {4 - failed} of 4\n" in str(made)
        assert (f"ap-cov, {seeds} failed: DataError: a site is away" in str(made)) == (failed < 4)
    assert "| DataError: a site is away |" in str(made)
    assert Comparison([*away[:3], runs[3]]).means()["max angle"].tolist() == [runs[3]["max angle"]]
    assert "runs: 0 of 1\n" in str(Comparison(away[:1]))
    how = {"exact": False, **dict.fromkeys(["dataset", "data root", "partition", "alpha", "clients", "engine", "knn"])}
    angles = enumerate([0.01, 0.01, 1.3])
    runs = [record("ap-cov", angle=angle, seed=seed, **{"mean angle": angle}, **how) for seed, angle in angles]
    (mean,) = average_seeds(runs)
    assert (mean["max angle"], [choice.wish for choice in choices([mean])]) == (pytest.approx(0.44), ["within 10°"])


def test_figures_have_a_panel_for_what_else_differs(several):
    over_clients, over_alpha = (several.figure(over, "captured variance").axes for over in ("clients", "alpha"))
    titles = [[axes.get_title() for axes in panels] for panels in (over_clients, over_alpha)]
    assert titles == [["alpha 0.1", "alpha 10"], ["2 clients", "4 clients"]]
    labels = [axes.get_xlabel() for axes in (*over_clients, *over_alpha)]
    assert labels == ["number of clients", "number of clients", "alpha", "alpha"]
    (line,) = (line for line in over_alpha[0].get_lines() if line.get_label() == "ap-cov")
    shown = several.means().query("clients == 2 and method == 'ap-cov'")["captured variance"]
    np.testing.assert_allclose(line.get_ydata(), shown)
    single = Comparison(run for run in several if run["alpha"] == 0.1)
    with refused(ConfigError, "alpha", 0.1):
        single.figure("alpha")
    with refused(ConfigError, "'over'", "'seeds'", "clients"):
        single.figure("seeds")
    with refused(ConfigError, "'result'", "'angle'", "max angle"):
        single.figure("clients", "angle")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"partitions": ["diri", "iid", 3]}, ["'partitions'", "'diri'", 3, "'dirichlet'", "quantity"]),
        ({"datasets": ["digit", "wine"]}, ["'datasets'", "'digit'", "'digits'", "openml:NAME"]),
        *(({"alphas": [-1, "a"]}, ["'alphas'", -1, "'a'"]), ({"clients": [3.5, 0]}, ["'clients'", 3.5, 0])),
        *(({"n_components": value}, ["'n_components'", repr(value)]) for value in (0, "x")),
        *(({"seeds": [1.5, -2]}, ["'seeds'", 1.5, -2]), ({"engine": "rays"}, ["'engine'", "'rays'", "loopback"])),
        *(({"methods": f"sub-it {word}"}, [f"'{word}'", "key=value"]) for word in ("block-size", "=3", "block-size=")),
        ({"alphas": np.nan, "bounds": -2, "seeds": -1}, ["'alphas'", np.nan, "'bounds'", -2, "'seeds'", -1]),
        *(({"methods": "p-cov engine=ray"}, ["'engine'"]), ({"methods": "p-cov dataset=wine"}, ["--datasets"])),
        ({"methods": "p-cov bound=16 n_components=5"}, ["'bound'", "--bounds", "--n-components"]),
        ({"methods": "p-cov secure-aggregation=true bound=16"}, ["secure-aggregation", "'bound'", "--bounds"]),
        ({"methods": ["p-covv", "sub-itt", 3]}, ["'p-covv'", "'sub-itt'", 3]),
        *(({"methods": value}, ["'methods'", named]) for value, named in ((None, None), ([], "empty"), ("", "p-cov"))),
        ({"clients": [], "engine": 1}, ["'clients'", "empty", "'engine'"]),
        ({"datasets": ["wine", "digits"], "n_components": 100}, ["'n_components'", 100, "wine", "digits"]),
        ({"datasets": "wine", "clients": [1000, 500]}, ["'clients'", 500, 1000, 178, "wine"]),
        ({"datasets": ["mnist", "cifar10"], "data_root": "/nowhere"}, ["'mnist'", "cifar10"]),
        ({"datasets": "images", "data_root": "~nobody:."}, ["data-root"]),
        ({"parties": "wine"}, ["'parties'", "'wine'", "datasets"]),
    ],
    ids=str,
)
def test_all_wrong_values_are_named_before_a_run(arguments, named, monkeypatch):
    monkeypatch.setattr(measuring, "run", lambda *_, **__: pytest.fail("there was work"))
    with refused(FedPCAError, *named):
        compare(**{"methods": "p-cov", "n_components": 2, **arguments})
