"""Comparisons: every combination once, resumable, failures shown."""

from __future__ import annotations

import json
import math
import re
import shlex

import numpy as np
import pytest
from PIL import Image

from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.data.datasets import load
from fedpca_flwr.model.model import PCAModel
from simulations import engines, measuring, report_page
from simulations.compare import main, parser
from simulations.comparing import compare, table
from simulations.recommending import Choice
from simulations.records import FLAGS, command, read, title
from simulations.report_page import write_report
from strategies import METHODS
from tests.refusals import unnamed


def test_every_combination_is_one_record():
    records = compare(
        methods=["p-cov", "sub-it block-size=4"], partitions=["iid", "dirichlet"], alphas=[0.1, 0.5], clients=[3, 5]
    )
    assert len(records) == 2 * 3 * 2
    assert {record["alpha"] for record in records if record["partition"] == "iid"} == {None}
    assert max(record["max angle"] for record in records) < 1e-6
    assert records[1]["options"] == {"block-size": 4}


def test_a_comparison_goes_on_where_it_was_cut(tmp_path, monkeypatch):
    target = tmp_path / "runs.jsonl"
    first = compare(methods=["p-cov", "ap-cov"], clients=[4], output=tmp_path)
    lines = target.read_text().splitlines()
    target.write_text(lines[0] + "\n" + lines[1][:50])
    called = []
    honest = engines.run
    monkeypatch.setattr(
        measuring, "run", lambda method, *rest, **more: called.append(method) or honest(method, *rest, **more)
    )
    second = compare(methods=["p-cov", "ap-cov"], clients=[4], output=tmp_path)
    assert called == ["ap-cov"]
    assert [r["max angle"] for r in first] == [r["max angle"] for r in second]
    assert len([json.loads(line) for line in target.read_text().splitlines()]) == 2


def test_an_infinite_number_is_json_and_comes_back(tmp_path):
    (first,) = compare(methods=["personalised mu=infinity"], clients=[3], output=tmp_path)
    assert "Infinity" not in (tmp_path / "runs.jsonl").read_text()
    (again,) = compare(methods=["personalised mu=infinity"], clients=[3], output=tmp_path)
    assert again == first
    assert again["measured"]["mu"] == math.inf


def test_another_file_is_not_overwritten(tmp_path):
    other = tmp_path / "runs.jsonl"
    other.write_text("dear diary\n")
    assert main(["--methods", "p-cov", "--output", str(tmp_path)]) == 2
    assert other.read_text() == "dear diary\n"


def test_a_method_that_fails_is_a_row_and_a_status(capsys):
    assert main(["--methods", "p-cov", "qr-pca rank=2", "--clients", "3"]) == 1
    out = capsys.readouterr().out
    assert "| p-cov |" in out
    assert "ConfigError: 'rank' is 2" in out


@pytest.mark.parametrize("word", ["block-size", "=3", "block-size="])
def test_a_word_that_is_no_option_is_named(word, capsys):
    assert main(["--methods", f"sub-it {word}"]) == 2
    assert not unnamed(capsys.readouterr().err, f"'{word}'", "key=value")


def test_the_table_shows_options_and_accuracy():
    records = compare(methods=["compressed bits=12 codec=auto rank=0"], clients=[3], engine="loopback")
    assert "| compressed bits=12 |" in table(records)


def test_angles_are_to_the_pca_of_the_same_options():
    for record in compare(methods=["p-cov scale=true", "p-cov center=false", "qr-pca"], datasets=["wine"], clients=[3]):
        assert record["max angle"] < 1e-6


def test_another_folder_of_data_is_another_run(tmp_path):
    for name, shade in (("a", 1), ("b", 3)):
        for label in ("one", "two"):
            (tmp_path / name / label).mkdir(parents=True)
            rng = np.random.default_rng(shade)
            for i in range(8):
                pixels = rng.integers(0, 80 * shade, (4, 4), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / name / label / f"{i}.png")
    results = [
        compare(
            methods=["p-cov"],
            datasets=["images"],
            data_root=tmp_path / name,
            clients=[2],
            components=2,
            output=tmp_path,
        )
        for name in ("a", "b", "a")
    ]
    ratios = [record["explained variance"] for (record,) in results]
    assert ratios[0] == ratios[2] != ratios[1]
    assert len((tmp_path / "runs.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ["--methods", ""],
        ["--methods", "p-cov", "--alpha", "nan"],
        ["--methods", "p-cov", "--clients", "0"],
        ["--methods", "p-cov", "--seed", "-1"],
        ["--methods", "p-cov engine=ray"],
        ["--methods", "p-cov dataset=wine"],
        ["--methods", "p-cov n-components=5"],
        ["--methods", "p-cov secure-aggregation=true bound=16"],
        ["--methods", "p-cov", "--bound", "-1"],
    ],
    ids=str,
)
def test_a_wrong_argument_is_named_before_anything_runs(arguments, capsys):
    assert main(arguments) == 2
    assert "ConfigError" in capsys.readouterr().err


def test_a_key_of_the_run_in_a_method_is_a_flag_of_the_comparison(capsys):
    assert main(["--methods", "p-cov secure-aggregation=true bound=16 n_components=5"]) == 2
    said = capsys.readouterr().err
    assert said.count("--bound") == 2
    assert not unnamed(said, "secure-aggregation", "'bound'", "n-components", "--components")


def test_every_flag_that_stands_for_a_key_is_one_of_the_comparison():
    flags = {flag for action in parser()._actions for flag in action.option_strings}
    assert {text.split(",")[0] for text in FLAGS.values()} <= flags
    assert {*FLAGS} <= {*RunConfig.keys()}


def test_too_many_clients_or_components_are_one_row(capsys):
    assert main(["--methods", "p-cov", "--dataset", "wine", "--clients", "3", "1000"]) == 1
    out = capsys.readouterr().out
    assert not unnamed(out, 1000, 178)
    assert out.count("| wine |") == 2
    assert main(["--methods", "p-cov", "--dataset", "wine", "--components", "100"]) == 1
    assert not unnamed(capsys.readouterr().out, "'components'", 100, 13, "wine")


def test_a_last_line_that_is_no_record_is_kept(tmp_path):
    other = tmp_path / "runs.jsonl"
    other.write_bytes(b"precious line one\nprecious last line without newline")
    assert main(["--methods", "p-cov", "--output", str(tmp_path)]) == 2
    assert other.read_bytes().endswith(b"without newline")


def test_the_accuracy_of_the_pooled_rows_is_beside_that_of_the_model(tmp_path):
    for part, seed in (("train", 0), ("test", 1)):
        for shade, label in enumerate(("one", "two")):
            (tmp_path / part / label).mkdir(parents=True)
            rng = np.random.default_rng(seed)
            for i in range(8):
                pixels = rng.integers(40 * shade, 40 * shade + 120, (4, 4), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / part / label / f"{i}.png")
    exact, other = compare(
        methods=["p-cov", "ap-cov"], datasets=["images"], data_root=tmp_path, clients=[2], components=2, knn=True
    )
    assert 0.5 < exact["knn accuracy"] == exact["pooled knn accuracy"] == other["pooled knn accuracy"] <= 1


def test_another_seed_is_another_run(tmp_path):
    records = [compare(methods=["p-cov"], clients=[3], seed=seed, output=tmp_path)[0] for seed in (1, 2)]
    lines = [json.loads(line) for line in (tmp_path / "runs.jsonl").read_text().splitlines()]
    assert [line["seed"] for line in lines] == [1, 2]
    assert lines == records


def test_a_comparison_with_secure_aggregation_is_another_setting_and_repeats_as_one(tmp_path):
    common = {"methods": ["p-cov"], "clients": [3], "output": tmp_path}
    (plain,), (secure,) = compare(**common), compare(**common, bounds=[16.0])
    assert "fixed_point_variance_share" in secure["measured"]
    assert "fixed_point_variance_share" not in plain["measured"]
    assert title(secure) == f"{title(plain)}, secure sums, bound 16"
    line = command([secure])
    assert line.endswith("--engine loopback --bound 16.0")
    assert main([*shlex.split(line)[4:], "--output", str(tmp_path)]) == 0
    assert len((tmp_path / "runs.jsonl").read_text().splitlines()) == 2


def test_options_in_another_order_or_spelling_are_not_run_again(tmp_path):
    for method in ("sub-it block-size=4 scale=true", "sub-it scale=true tolerance=0.000001 block-size=4"):
        compare(methods=[method], clients=[3], output=tmp_path)
    assert len((tmp_path / "runs.jsonl").read_text().splitlines()) == 1


@pytest.mark.parametrize("clients", [3, 7])
def test_megabytes_are_those_of_one_client(clients):
    (record,) = compare(methods=["p-cov"], clients=[clients])
    values = 64 * 65 // 2 + 64 + 1  # of d = 64 features: the scatter's triangle, the mean, the number of rows
    assert record["MB up"] == (8 * values + 4 * 128) / 1e6  # four arrays, the mean's second float among them


def test_what_noise_claims_is_not_what_the_components_capture(tmp_path):
    """dp-pca's model counts its own noise as variance, and says nothing of variance where all components are noise."""
    rows, two_stage = load("digits").all_rows(), "release=two-stage clip=60 centre-clip=60 noise-seed=1"
    noise, noisy = compare(methods=[f"dp-pca epsilon={epsilon} {two_stage}" for epsilon in (1, 10)], output=tmp_path)
    for record in (noise, noisy):
        components = PCAModel.load(tmp_path / record["model"]).components_
        captured = np.var(rows @ components.T, axis=0).sum() / np.var(rows, axis=0).sum()
        np.testing.assert_allclose(record["captured variance"], captured, rtol=1e-9)
    assert noise["measured"]["components_above_noise"] == 0
    assert noise["explained variance"] is None
    assert noisy["captured variance"] < 0.96 * noisy["explained variance"]
    head, _, unknown, line = table([noise, noisy]).splitlines()
    assert "| variance captured | variance claimed |" in head
    assert f"| {noise['captured variance']:.2%} |  |" in unknown
    assert f"| {noisy['captured variance']:.2%} | {noisy['explained variance']:.2%} |" in line
    again = read(tmp_path)
    assert [record["explained variance"] for record in again] == [None, noisy["explained variance"]]
    page = write_report(tmp_path, again).read_text()
    assert "components 1 to 10 do not stand out of the noise" in page
    assert "nan%" not in page


@pytest.mark.parametrize("options", ["", " scale=true", " center=false"])
def test_what_an_exact_model_claims_is_what_it_captures(options):
    (record,) = compare(methods=[f"p-cov{options}"], datasets=["wine"], clients=[3], components=2)
    np.testing.assert_allclose(record["captured variance"], record["explained variance"], rtol=1e-9)


def test_a_second_comparison_adds_to_the_report(tmp_path, monkeypatch):
    monkeypatch.setattr(report_page, "figures", lambda *_: [])  # drawing them is most of the work
    monkeypatch.setattr(report_page, "figures_of_pool", lambda *_: [])
    plenty = ["--methods", "p-cov", "ap-cov", "qr-pca", "--clients", "3", "4", "--output", str(tmp_path)]
    assert main(plenty) == 0
    other = ["--dataset", "wine", "--components", "3", "--seed", "7", "--clients", "3", "--output", str(tmp_path)]
    assert main(["--methods", "p-cov", *other]) == 0
    page = (tmp_path / "report.html").read_text()
    assert page.count('<tr id="run-') == 7  # rows of the tables of runs
    for heading in (
        "digits, dirichlet 0.1, 3 clients, 10 components, seed 42",
        "digits, dirichlet 0.1, 4 clients, 10 components, seed 42",
        "wine, dirichlet 0.1, 3 clients, 3 components, seed 7",
    ):
        assert f"<h2>{heading}</h2>" in page


@pytest.mark.parametrize("place", ["file", "file/deeper"])
def test_a_folder_that_cannot_be_written_to_is_named_before_any_work(place, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").touch()
    monkeypatch.setattr(measuring, "run", lambda *_, **__: pytest.fail("there was work"))
    assert main(["--methods", "p-cov", "--output", str(tmp_path / place)]) == 2
    said = capsys.readouterr().err.strip()
    assert said.startswith("ConfigError: ")
    assert not unnamed(said, tmp_path / place)
    assert "\n" not in said


def test_data_that_are_not_read_from_a_folder_are_the_same_beside_those_that_are(tmp_path):
    for label in ("one", "two"):
        (tmp_path / label).mkdir()
        for i in range(4):
            pixels = np.random.default_rng(i).integers(0, 256, (4, 4), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / label / f"{i}.png")
    common = {"clients": [2], "components": 2, "output": tmp_path / "runs", "data_root": str(tmp_path)}
    compare(methods=["p-cov"], datasets=["wine", "images"], **common)
    compare(methods=["p-cov"], datasets=["wine"], **common)
    assert len((tmp_path / "runs" / "runs.jsonl").read_text().splitlines()) == 2


def test_runs_of_before_captures_were_measured_are_still_shown(tmp_path, capsys):
    (record,) = compare(methods=["p-cov"], clients=[3], output=tmp_path)
    del record["captured variance"]
    (tmp_path / "runs.jsonl").write_text(json.dumps(record) + "\n")
    assert main(["--methods", "p-cov", "ap-cov", "--clients", "3", "--output", str(tmp_path)]) == 0
    assert f"|  | {record['explained variance']:.2%} |" in capsys.readouterr().out


def test_every_method_that_has_components_is_compared():
    records = compare(methods=["all"], datasets=["wine"], clients=[2], components=2)
    cards = {name: method.strategy.card for name, method in METHODS.items() if not method.strategy.card.after}
    assert {record["method"] for record in records} == cards.keys()
    assert not [record for record in records if "error" in record]
    exact = {record["method"] for record in records if record["exact"] and record["max angle"] < 1e-6}
    assert exact == {name for name, card in cards.items() if card.exact}


def test_components_of_its_own_are_judged_by_each_clients_rows():
    (alone,) = compare(methods=["personalised mu=0"], datasets=["wine"], clients=[3], components=2)
    (together,) = compare(methods=["p-cov"], datasets=["wine"], clients=[3], components=2)
    assert alone["max angle"] is None
    assert 0.9 < alone["captured variance"] <= 1
    assert together["captured variance"] <= 1


def test_a_method_that_has_no_components_says_so(capsys):
    assert main(["--methods", "vertical-scores", "--clients", "3"]) == 1
    assert not unnamed(capsys.readouterr().out, "vertical-scores", "ConfigError")


def test_the_recommendation_is_the_cheapest_that_is_good_enough(capsys):
    methods = ["p-cov", "sub-it", "ap-cov", "compressed codec=shared-step step=1e-4"]
    assert main(["--methods", *methods, "--clients", "5"]) == 0
    said = capsys.readouterr().out.splitlines()[-1]
    assert said == (
        "Exact, in the fewest rounds; exact, with the fewest bytes up: p-cov (one round, mean 17.7 kB up). "
        "Within 0.1°: compressed codec=shared-step step=0.0001 (2 rounds, mean 4.79 kB up)."
    )


def test_components_that_are_noise_are_not_recommended_without_a_warning(capsys):
    assert main(["--methods", "dp-pca epsilon=1 noise-seed=1", "--clients", "3"]) == 0
    said = capsys.readouterr().out.splitlines()[-1]
    warning = r"kB up; none of 10 components above the noise, largest angle \d\d°\)\."
    assert re.fullmatch(r"Differentially private: dp-pca [^(]*\(6 rounds, mean [\d.]+ " + warning, said)


def test_components_that_stand_out_of_the_noise_have_no_warning():
    run = {"measured": {"components_above_noise": 3}, "components": 3, "rounds": 2, "MB up": 0.01, "max angle": 60.0}
    few = {**run, "components": 5}
    assert Choice("differentially private", run).warning == ""
    assert Choice("differentially private", few).warning == "only 3 of 5 components above the noise"


def test_bytes_are_said_to_be_means_without_the_last_round():
    head = table(compare(methods=["p-cov"], datasets=["wine"], clients=[3], components=2)).splitlines()[0]
    assert "| up per client (mean) | down per client (mean, before the last round) |" in head


def test_numbers_of_clients_that_cannot_be_are_named_together(capsys):
    assert main(["--methods", "p-cov", "--dataset", "wine", "--clients", "3", "0", "-2"]) == 2
    assert not unnamed(capsys.readouterr().err, "'clients'", 0, -2)


def test_a_setting_in_which_no_run_is_good_recommends_nothing(capsys):
    assert main(["--methods", "p-cov", "--dataset", "wine", "--clients", "500"]) == 1
    assert not unnamed(capsys.readouterr().out.splitlines()[-1], 500, 178)


def test_a_comparison_that_is_interrupted_says_what_is_kept(tmp_path, monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(measuring, "run", interrupted)
    assert main(["--methods", "p-cov", "--clients", "3", "--output", str(tmp_path)]) == 130
    assert not unnamed(capsys.readouterr().err, tmp_path)


def test_a_fresh_comparison_forgets_those_before_and_nothing_else(tmp_path):
    given = ["--clients", "3", "--dataset", "wine", "--components", "2", "--output", str(tmp_path)]
    assert main(["--methods", "p-cov", *given]) == 0
    (tmp_path / "notes.txt").write_text("mine")
    assert main(["--methods", "ap-cov", *given, "--fresh"]) == 0
    assert [json.loads(line)["method"] for line in (tmp_path / "runs.jsonl").read_text().splitlines()] == ["ap-cov"]
    assert len(list((tmp_path / "models").iterdir())) == 1
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_every_option_of_the_command_is_explained():
    assert not [action.dest for action in parser()._actions if not action.help]
