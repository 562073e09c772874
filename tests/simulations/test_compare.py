"""Comparisons: every combination once, resumable, failures shown."""

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
from simulations.records import FLAGS, command, read, title
from simulations.report import write_report
from strategies import METHODS
from tests.refusals import unnamed


@pytest.fixture
def undrawn(monkeypatch):
    """Pages without figures: drawing them is most of the work."""
    monkeypatch.setattr(report_page, "figures", lambda *_: [])
    monkeypatch.setattr(report_page, "figures_of_pool", lambda *_: [])


def draw_pictures(folder, labels=("one", "two"), *, count=8, seed=0, step=0, most=256):
    """An image folder of random pixels; those of the i-th label begin at i times a step."""
    for i, label in enumerate(labels):
        (folder / label).mkdir(parents=True)
        rng = np.random.default_rng(seed)
        for number in range(count):
            pixels = rng.integers(step * i, step * i + most, (4, 4), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / label / f"{number}.png")


def test_every_combination_is_one_record_and_every_method_is_compared():
    records = compare(
        methods=["p-cov", "sub-it block-size=4"], partitions=["iid", "dirichlet"], alphas=[0.1, 0.5], clients=[3, 5]
    )
    assert len(records) == 2 * 3 * 2
    assert {record["alpha"] for record in records if record["partition"] == "iid"} == {None}
    assert max(record["max angle"] for record in records) < 1e-6
    assert records[1]["options"] == {"block-size": 4}
    # Of vertical-scores the rows themselves are the new ones: it gives the scores that vertical found.
    records = compare(methods=["all"], datasets=["wine"], clients=[2], components=2)
    cards = {name: method.strategy.card for name, method in METHODS.items()}
    assert {record["method"] for record in records} == cards.keys()
    assert not [record for record in records if "error" in record]
    exact = {record["method"] for record in records if record["exact"] and record["max angle"] < 1e-6}
    assert exact == {name for name, card in cards.items() if card.exact}


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


@pytest.mark.parametrize("text", ["dear diary\n", "precious line one\nprecious last line without newline"])
def test_another_file_is_not_overwritten(text, tmp_path):
    other = tmp_path / "runs.jsonl"
    other.write_text(text)
    assert main(["--methods", "p-cov", "--output", str(tmp_path)]) == 2
    assert other.read_text() == text


def test_a_method_that_fails_and_too_many_clients_are_a_row_and_a_status(capsys):
    assert main(["--methods", "p-cov", "qr-pca rank=2", "--clients", "3"]) == 1
    out = capsys.readouterr().out
    assert "| p-cov |" in out
    assert "ConfigError: 'rank' is 2" in out
    assert main(["--methods", "p-cov", "--dataset", "wine", "--clients", "3", "1000"]) == 1
    out = capsys.readouterr().out
    assert not unnamed(out, 1000, 178)
    assert out.count("| wine |") == 2
    assert main(["--methods", "p-cov", "--dataset", "wine", "--components", "100"]) == 1
    assert not unnamed(capsys.readouterr().out, "'components'", 100, 13, "wine")
    assert main(["--methods", "p-cov", "--dataset", "wine", "--clients", "3", "0", "-2"]) == 2
    assert not unnamed(capsys.readouterr().err, "'clients'", 0, -2)
    assert main(["--methods", "p-cov", "--dataset", "wine", "--clients", "500"]) == 1
    assert not unnamed(capsys.readouterr().out.splitlines()[-1], 500, 178)


@pytest.mark.parametrize("word", ["block-size", "=3", "block-size="])
def test_a_word_that_is_no_option_is_named(word, capsys):
    assert main(["--methods", f"sub-it {word}"]) == 2
    assert not unnamed(capsys.readouterr().err, f"'{word}'", "key=value")


def test_the_table_shows_options_and_megabytes_of_one_client_without_the_last_round():
    text = table(compare(methods=["compressed bits=12 codec=auto rank=0"], clients=[3], engine="loopback"))
    assert "| compressed bits=12 |" in text
    assert "| up per client (mean) | down per client (mean, before the last round) |" in text.splitlines()[0]
    (record,) = compare(methods=["p-cov"], clients=[7])
    values = 64 * 65 // 2 + 64 + 1  # of d = 64 features: the scatter's triangle, the mean, the number of rows
    assert record["MB up"] == (8 * values + 4 * 128) / 1e6  # four arrays, the mean's second float among them


def test_another_folder_of_data_is_another_run(tmp_path):
    for name, shade in (("a", 1), ("b", 3)):
        draw_pictures(tmp_path / name, seed=shade, most=80 * shade)
    common = {"methods": ["p-cov"], "datasets": ["images"], "clients": [2], "components": 2, "output": tmp_path}
    results = [compare(data_root=tmp_path / name, **common) for name in ("a", "b", "a")]
    ratios = [record["explained variance"] for (record,) in results]
    assert ratios[0] == ratios[2] != ratios[1]
    assert len((tmp_path / "runs.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ["--methods", ""],
        ["--methods", "p-cov", "--alpha", "nan"],
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


def test_keys_of_the_run_are_flags_of_the_comparison(capsys):
    assert main(["--methods", "p-cov secure-aggregation=true bound=16 n_components=5"]) == 2
    said = capsys.readouterr().err
    assert said.count("--bound") == 2
    assert not unnamed(said, "secure-aggregation", "'bound'", "n-components", "--components")
    flags = {flag for action in parser()._actions for flag in action.option_strings}
    assert {text.split(",")[0] for text in FLAGS.values()} <= flags
    assert {*FLAGS} <= {*RunConfig.keys()}


def test_the_accuracy_of_the_pooled_rows_is_beside_that_of_the_model(tmp_path):
    for part, seed in (("train", 0), ("test", 1)):
        draw_pictures(tmp_path / part, seed=seed, step=40, most=120)
    exact, other = compare(
        methods=["p-cov", "ap-cov"], datasets=["images"], data_root=tmp_path, clients=[2], components=2, knn=True
    )
    assert 0.5 < exact["knn accuracy"] == exact["pooled knn accuracy"] == other["pooled knn accuracy"] <= 1


def test_a_comparison_with_secure_aggregation_is_another_setting_and_repeats_as_one(tmp_path, undrawn):
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


def test_captured_variance_is_that_of_each_clients_components_and_exact_where_the_model_is():
    methods = ["p-cov", "p-cov scale=true", "p-cov center=false", "qr-pca"]
    for record in compare(methods=methods, datasets=["wine"], clients=[3]):
        assert record["max angle"] < 1e-6
        np.testing.assert_allclose(record["captured variance"], record["explained variance"], rtol=1e-9)
    (alone,) = compare(methods=["personalised mu=0"], datasets=["wine"], clients=[3], components=2)
    (together,) = compare(methods=["p-cov"], datasets=["wine"], clients=[3], components=2)
    assert alone["max angle"] is None
    assert 0.9 < alone["captured variance"] <= 1
    assert together["captured variance"] <= 1


def test_a_second_comparison_adds_to_the_report(tmp_path, undrawn):
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
    draw_pictures(tmp_path, count=4)
    common = {"clients": [2], "components": 2, "output": tmp_path / "runs", "data_root": str(tmp_path)}
    compare(methods=["p-cov"], datasets=["wine", "images"], **common)
    compare(methods=["p-cov"], datasets=["wine"], **common)
    assert len((tmp_path / "runs" / "runs.jsonl").read_text().splitlines()) == 2


def test_runs_of_before_captures_were_measured_are_still_shown(tmp_path, capsys, undrawn):
    (record,) = compare(methods=["p-cov"], clients=[3], output=tmp_path)
    del record["captured variance"]
    (tmp_path / "runs.jsonl").write_text(json.dumps(record) + "\n")
    assert main(["--methods", "p-cov", "ap-cov", "--clients", "3", "--output", str(tmp_path)]) == 0
    assert f"|  | {record['explained variance']:.2%} |" in capsys.readouterr().out


def test_a_recommendation_is_cheap_and_good_and_warns_of_noise(capsys):
    methods = ["p-cov", "sub-it", "ap-cov", "compressed codec=shared-step step=1e-4"]
    assert main(["--methods", *methods, "--clients", "5"]) == 0
    said = capsys.readouterr().out.splitlines()[-1]
    assert said == (
        "Exact, in the fewest rounds; exact, with the fewest bytes up: p-cov (one round, mean 17.7 kB up). "
        "Within 0.1°: compressed codec=shared-step step=0.0001 (2 rounds, mean 4.79 kB up)."
    )
    assert main(["--methods", "dp-pca epsilon=1 noise-seed=1", "--clients", "3"]) == 0
    said = capsys.readouterr().out.splitlines()[-1]
    warning = r"kB up; none of 10 components above the noise, largest angle \d\d°\)\."
    assert re.fullmatch(r"Differentially private: dp-pca [^(]*\(6 rounds, mean [\d.]+ " + warning, said)


def test_a_comparison_that_is_interrupted_says_what_is_kept(tmp_path, monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(measuring, "run", interrupted)
    assert main(["--methods", "p-cov", "--clients", "3", "--output", str(tmp_path)]) == 130
    assert not unnamed(capsys.readouterr().err, tmp_path)


def test_a_fresh_comparison_forgets_those_before_and_nothing_else(tmp_path, undrawn):
    given = ["--clients", "3", "--dataset", "wine", "--components", "2", "--output", str(tmp_path)]
    assert main(["--methods", "p-cov", *given]) == 0
    (tmp_path / "notes.txt").write_text("mine")
    assert main(["--methods", "ap-cov", *given, "--fresh"]) == 0
    assert [json.loads(line)["method"] for line in (tmp_path / "runs.jsonl").read_text().splitlines()] == ["ap-cov"]
    assert len(list((tmp_path / "models").iterdir())) == 1
    assert (tmp_path / "notes.txt").read_text() == "mine"
