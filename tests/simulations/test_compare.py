"""Comparisons: every combination once, resumable, failures shown."""

import itertools
import json
import math
import re
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from fedpca_flwr import cli
from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.data.datasets import load
from fedpca_flwr.errors import ConfigError
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.reference import pooled_pca
from fedpca_flwr.simulations import engines, measuring, report, sources
from fedpca_flwr.simulations.comparing import Comparison, compare
from fedpca_flwr.simulations.records import AS_GIVEN, FLAGS, format_result
from fedpca_flwr.simulations.runs_file import RUNS, read_records
from fedpca_flwr.strategies import METHODS
from tests.refusals import refused, unnamed

WINE = {"datasets": ["wine"], "clients": [3], "n_components": 2}
POOLED = np.random.default_rng(3).standard_normal((100, 4)) * [4, 3, 2, 1]
TABLE = pd.DataFrame(POOLED, columns=list("abcd"))
NORTH, SOUTH = TABLE[:50], TABLE[50:]


def undrawn(monkeypatch):
    """Pages without figures: drawing them is most of the work."""
    monkeypatch.setattr(report, "figures", lambda *_: [])


def draw_pictures(folder, seed, step=0, most=120):
    """Return an image folder of random pixels; those of the i-th label begin at i times a step."""
    for i, label in enumerate(("one", "two")):
        (folder / label).mkdir(parents=True)
        rng = np.random.default_rng(seed)
        for number in range(8):
            pixels = rng.integers(step * i, step * i + most, (4, 4), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / label / f"{number}.png")


def lines_of(folder):
    return (folder / RUNS).read_text().splitlines()


def written(folder):
    NORTH.to_csv(folder / "north.csv", index=False)
    np.save(folder / "south.npy", SOUTH.to_numpy())
    return [str(folder / "north.csv"), str(folder / "south.npy")]


@pytest.mark.engine
def test_every_combination_is_one_record():
    several = {"partitions": ["iid", "dirichlet", "quantity", "shards"], "alphas": [0.1, 0.5]}
    records = compare(methods=["p-cov", "sub-it block-size=4"], **several, **WINE)
    taken = [(one["partition"], one["alpha"], one["method"]) for one in records]
    parted = [("iid", None), *itertools.product(["dirichlet", "quantity"], [0.1, 0.5]), ("shards", None)]
    assert len(taken) == len(set(taken)) == len(parted) * 2
    assert {one[:2] for one in taken} == {*parted}
    assert max(record["max angle"] for record in records) < 1e-6
    assert records[1]["options"] == {"block-size": 4}
    values = 13 * 14 // 2 + 13 + 1  # of d = 13 features: the scatter's triangle, the mean, the number of rows
    assert records[0]["MB up"] == (8 * values + 4 * 128) / 1e6  # four arrays, the mean's second float among them
    # Of vertical-scores the rows themselves are the new ones: it gives the scores that vertical found.
    cards = {name: method.strategy.card for name, method in METHODS.items()}
    few = [f"{name} iterations=3" if "iterations" in cards[name].options.model_fields else name for name in cards]
    records = compare(methods=few, **{**WINE, "clients": [2]})
    assert {record["method"] for record in records} == cards.keys()
    assert not [record for record in records if "error" in record]
    exact = {record["method"] for record in records if record["exact"] and record["max angle"] < 1e-6}
    assert exact == {"sapca", *(name for name, card in cards.items() if card.exact)}  # sapca tracks all 13 directions
    (off,) = [record for record in records if record["method"] == "ap-cov"]
    assert 0 < off["mean angle"] < off["max angle"]
    kernels = ("kernel=polynomial degree=2 coef0=2 center=true", "kernel=sigmoid gamma=1e-6", "kernel=linear")
    one = {**WINE, "clients": [1], "n_components": 1}  # a single party's kernel is that of all columns
    for record in compare(methods=[f"vfedakpca {kernel}" for kernel in kernels], **one):
        assert record["max angle"] < 1e-6, record


def test_a_cut_comparison_goes_on(tmp_path, monkeypatch):
    methods = ["personalised mu=infinity", "sub-it block-size=4 scale=true"]
    first = compare(methods=methods, output=tmp_path, **WINE)
    assert "Infinity" not in (tmp_path / RUNS).read_text()
    lines = lines_of(tmp_path)
    (tmp_path / RUNS).write_text(lines[0] + "\n" + lines[1][:50])
    called, honest = [], engines.run
    monkeypatch.setattr(measuring, "run", lambda *given, **more: called.append(given[0]) or honest(*given, **more))
    second = compare(methods=[methods[0], "sub-it scale=true tolerance=0.000001 block-size=4"], output=tmp_path, **WINE)
    assert (called, second[0]) == (["sub-it block-size=4 scale=true"], first[0])
    assert (second[1]["max angle"], second[0]["measured"]["mu"]) == (first[1]["max angle"], math.inf)
    assert len([json.loads(line) for line in lines_of(tmp_path)]) == 2


def test_another_folder_is_another_run_and_pooled_accuracy_is_beside_the_models(tmp_path):
    draw_pictures(tmp_path / "a", seed=1, most=80)
    draw_pictures(tmp_path / "b", seed=3, most=240)
    common = {"methods": ["p-cov"], "clients": [2], "n_components": 2, "output": tmp_path}
    results = [compare(datasets=["wine", "images"], data_root=tmp_path / name, **common) for name in ("a", "b", "a")]
    ratios = [images["explained variance"] for _, images in results]
    assert ratios[0] == ratios[2] != ratios[1]
    compare(datasets=["wine"], **common)
    assert len(lines_of(tmp_path)) == 3
    for part, seed in (("train", 0), ("test", 1)):
        draw_pictures(tmp_path / part, seed, step=40)
    images = {"datasets": ["images"], "data_root": tmp_path, "clients": [2], "n_components": 2}
    exact, other = compare(methods=["p-cov", "ap-cov"], **images, knn=True)
    assert 0.5 < exact["knn accuracy"] == exact["pooled knn accuracy"] == other["pooled knn accuracy"] <= 1


@pytest.mark.engine
def test_what_noise_claims_is_not_what_the_components_capture(tmp_path, monkeypatch):
    """dp-pca's model counts its own noise as variance, and says nothing of variance where all components are noise."""
    rows, joint = load("digits").all_rows(), "release=joint clip=60 noise-seed=1"
    noise, noisy = made = compare(methods=[f"dp-pca epsilon={epsilon} {joint}" for epsilon in (1, 10)], output=tmp_path)
    for record in made:
        components = PCAModel.load(tmp_path / record["model"]).components_
        captured = np.var(rows @ components.T, axis=0).sum() / np.var(rows, axis=0).sum()
        np.testing.assert_allclose(record["captured variance"], captured, rtol=1e-9)
    assert noise["measured"]["components_above_noise"] == 0
    assert noise["explained variance"] is None
    assert noisy["captured variance"] < 0.96 * noisy["explained variance"]
    head, _, unknown, line = str(made).splitlines()[2:6]
    assert "| captured variance | explained variance |" in head
    assert f"| {noise['captured variance']:.2%} |  |" in unknown
    assert f"| {noisy['captured variance']:.2%} | {noisy['explained variance']:.2%} |" in line
    again = read_records(tmp_path)
    assert [record["explained variance"] for record in again] == [None, noisy["explained variance"]]
    page = report.write_report(tmp_path, again).read_text()
    assert "components above the noise" in page
    assert "nan%" not in page


def test_captured_variance_is_of_each_client():
    methods = ["p-cov", "p-cov scale=true", "p-cov center=false", "qr-pca"]
    *exact, compressed = compare(methods=[*methods, "compressed bits=12 codec=auto rank=0"], **WINE)
    for record in exact:
        assert record["max angle"] < 1e-6
        np.testing.assert_allclose(record["captured variance"], record["explained variance"], rtol=1e-9)
    assert not unnamed(str(Comparison([compressed])), "| up per client | down per client |", "| compressed bits=12 ")
    (alone,) = compare(methods="personalised mu=0", **WINE)
    assert alone["max angle"] is None
    assert 0.9 < alone["captured variance"] <= 1
    # Of rows about the mean of all: what lies between two parties is most of their variance, and each one's first axis.
    (apart,) = compare({"north": NORTH, "south": SOUTH + [0, 0, 0, 100]}, methods=["personalised mu=0"], n_components=2)
    assert 0.99 < apart["captured variance"] < 1


def test_a_failed_method_is_a_row_and_an_unusable_folder_is_named_first(tmp_path, monkeypatch, capsys):
    """A comparison that is interrupted says what is kept."""
    given = ["compare", "--methods", "p-cov", "qr-pca rank=2", "--clients", "3"]
    assert cli.main(given) == 1
    out, err = capsys.readouterr()
    assert "1 of 2 runs failed" in err
    assert not unnamed(out, "| p-cov |", "ConfigError: 'rank' is 2")
    monkeypatch.setattr(measuring, "run", Mock(side_effect=KeyboardInterrupt))
    assert cli.main([*given, "--output", str(tmp_path)]) == 130
    assert not unnamed(capsys.readouterr().err, tmp_path)
    monkeypatch.setattr(measuring, "run", lambda *_, **__: pytest.fail("there was work"))
    text = "precious line one\nprecious last line without newline"
    (tmp_path / RUNS).write_text(text)
    (tmp_path / "file").touch()
    for place in (tmp_path, tmp_path / "file", tmp_path / "file/deeper"):
        assert cli.main(["compare", "--methods", "p-cov", "--output", str(place)]) == 2
        said = capsys.readouterr().err
        assert (said.startswith("fedpca compare: "), str(place) in said, said.count("\n")) == (True, True, 1)
    assert (tmp_path / RUNS).read_text() == text


def test_keys_of_the_run_are_flags_of_the_comparison():
    flags = {flag for parameter in cli.load(cli.COMMANDS["compare"][0]).params for flag in parameter.opts}
    assert {text.split(",")[0] for text in FLAGS.values()} <= flags
    assert {*FLAGS} <= {*RunConfig.keys()}


@pytest.mark.engine
def test_a_second_comparison_adds_to_the_report(tmp_path, monkeypatch, capsys):
    """Among those before may be runs of a time when captures were not measured."""
    undrawn(monkeypatch)
    given = ["--datasets", "wine", "--n-components", "3", "--output", str(tmp_path)]
    assert cli.main(["compare", "--methods", "p-cov", "ap-cov", "qr-pca", "--clients", "3", "4", *given]) == 0
    runs = read_records(tmp_path)
    del runs[0]["captured variance"]
    (tmp_path / RUNS).write_text("".join(f"{json.dumps(run)}\n" for run in runs))
    capsys.readouterr()
    assert cli.main(["compare", "--methods", "p-cov", "ap-cov", "--clients", "3", *given]) == 0
    assert f"|  | {runs[0]['explained variance']:.2%} |" in capsys.readouterr().out
    assert cli.main(["compare", "--methods", "p-cov", "--clients", "3", "--seeds", "7", "8", *given]) == 0
    assert "aggregation: in clear; runs: 2\n" in capsys.readouterr().out
    page = (tmp_path / "report.html").read_text()
    assert page.count("<tr><td>") + page.count('<tr class="best">') == 6  # runs
    for clients, seeds in ((3, "seeds 7, 8, 42"), (4, "seed 42")):
        assert f"<div>wine, dirichlet 0.1, {clients} clients, 3 components, {seeds}</div>" in page
    assert cli.main(["compare", "--methods", "ap-cov", "--clients", "3", *given, "--fresh"]) == 0
    assert [json.loads(line)["method"] for line in lines_of(tmp_path)] == ["ap-cov"]


@pytest.mark.engine
def test_a_recommendation_is_cheap_and_good_and_warns_of_noise(capsys):
    methods = ["p-cov", "sub-it", "ap-cov", "compressed codec=shared-step step=1e-4"]
    assert cli.main(["compare", "--methods", *methods, "--clients", "5"]) == 0
    said = capsys.readouterr().out.splitlines()[-1]
    assert said == (
        "Exact, in the fewest rounds; exact, with the fewest bytes up: p-cov (one round, mean 17.7 kB up). "
        "Within 0.1°: compressed codec=shared-step step=0.0001 (2 rounds, mean 4.93 kB up)."
    )
    assert cli.main(["compare", "--methods", "dp-pca epsilon=1 noise-seed=1", "--clients", "3"]) == 0
    said = capsys.readouterr().out.splitlines()[-1]
    warning = r"kB up; none of 10 components above the noise, largest angle \d\d°\)\."
    assert re.fullmatch(r"Differentially private: dp-pca [^(]*\(6 rounds, mean [\d.]+ " + warning, said)


def test_files_and_their_folder_are_the_same_data(tmp_path):
    files = written(tmp_path)
    (tmp_path / "notes.txt").write_text("of no party")
    first = compare(files, methods=["p-cov"], n_components=2, bounds=[0.0, 50.0])
    assert first[0]["dataset"] == compare([str(tmp_path)], methods=["p-cov"], n_components=2)[0]["dataset"]
    frame = first.frame()
    assert list(frame["bound"]) == [0.0, 50.0]
    setting = ["method", "dataset", "partition", "alpha", "clients", "components", "seed", "bound"]
    assert [*frame][:9] == [*setting, "max angle"]
    assert "secure, bound 50" in str(first)
    assert "<table>" in first._repr_html_()


def test_files_are_read_again_in_another_process(tmp_path, monkeypatch):
    undrawn(monkeypatch)
    files, output = written(tmp_path), tmp_path / "out"
    given = ["--data", *files, "--methods", "p-cov", "--n-components", "2", "--output", str(output)]
    assert cli.main(["compare", *given]) == 0
    (record,) = read_records(output)
    assert files[0] not in (output / "report.html").read_text()  # no heading is as long as paths are
    sources.HELD_TABLES.clear()
    assert np.array_equal(sources.load(record["dataset"], record["data root"]).all_rows(), POOLED)
    # Rows that have changed are another run.
    np.save(files[1], SOUTH.to_numpy() * 2)
    (then,) = compare(files, methods=["p-cov"], n_components=2, output=output)
    assert then["max angle"] < 1e-6
    sources.HELD_TABLES.clear()
    with refused(ConfigError, f"'{record['dataset']}'"):
        sources.load(record["dataset"], record["data root"])


def test_what_cannot_be_the_parties_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with refused(ConfigError, "nothere.csv"):
        compare(["nothere.csv"], methods=["p-cov"])
    with refused(ConfigError, ".csv"):
        compare(["."], methods=["p-cov"])
    for name in ("north.csv", "south.csv"):
        (tmp_path / name).write_text("a,b\n1,x\n")
    with refused(ConfigError, str(tmp_path / "north.csv"), str(tmp_path / "south.csv"), match="(?s)line 2.*line 2"):
        compare(["."], methods=["p-cov"])
    with refused(ConfigError, "clients", "partitions"):
        compare(["."], methods=["p-cov"], clients=[3], partitions=["iid"])


def test_one_table_is_shared_out_by_its_labels_and_scaled_once():
    table = TABLE.assign(batch=["east", "west"] * 50)
    how = {"label": "batch", "partitions": "dirichlet", "alphas": [0.1, 10], "clients": [2, 4], "n_components": 2}
    made = compare(table=table, methods=["p-cov", "ap-stack"], seeds=range(2), scale=True, **how)
    assert len(made) == 2 * 2 * 2 * 2
    exact = [run for run in made if run["method"] == "p-cov"]
    assert max(run["max angle"] for run in exact) < 1e-6
    expected = pooled_pca(POOLED, 2, scale=True).explained_variance_ratio_.sum()
    np.testing.assert_allclose([run["explained variance"] for run in exact], expected)
    assert min(run["captured variance"] for run in made) > 0.9 * expected  # not of the feature with the largest unit
    (other,) = compare(table=POOLED, methods="p-cov", **{**how, "label": table["batch"], "alphas": 10, "clients": 2})
    assert f"{other['dataset']}, scaled" == exact[0]["dataset"]
    assert compare(table=NORTH, methods="p-cov", n_components=2)[0]["partition"] == "iid"
    for arguments, named in (
        ({"table": table, "label": "ward"}, ["'label'", "'ward'", "'batch'"]),
        ({"table": NORTH, "label": [1, 2]}, ["'label'", 2, 50]),
        ({"table": NORTH, "partitions": ["iid", "shards"]}, ["'partitions'", "shards", "'label'"]),
        *(({"label": "batch"}, ["'table'"]), ({"table": table, "datasets": "wine"}, ["'table'", "datasets"])),
        ({"parties": [POOLED[:, :1], POOLED[:, 1:]], "methods": "vertical"}, ["1, 3", "table"]),
    ):
        with refused(ConfigError, *named):
            compare(**arguments)


def test_notes_are_beside_the_results_of_their_runs(tmp_path, monkeypatch):
    undrawn(monkeypatch)
    frame = pd.DataFrame(POOLED).assign(ward=list("abcde") * 20).set_axis(range(10, 15), axis=1)
    how = {"label": 14, "clients": 10, "n_components": 2, "seeds": range(2), "output": tmp_path}
    made = compare(table=frame, methods=["dsa iterations=3", "p-cov"], **how)
    pattern = r"iterations=3 \[1\] \[2\] \[3\].*p-cov \[3\].*\[2\] not converged.*\[3\] most clients"
    for text in (str(made), made._repr_html_(), made.to_latex().replace(r"\textsuperscript{", "[").replace("}", "]")):
        assert re.search(pattern, text, re.DOTALL)
    assert made.frame()["notes"][2][0].endswith("than by alpha: 10 of 10 have 10")
    assert "not converged. most clients" in made.report().read_text()
    others = Comparison([{**made[2], "notes": ["a: 1", "b to 9"]}, {**made[3], "notes": ["a: 2"]}])
    assert "[1] a\n[2] 1 of 2 runs (b to 9)\n" in str(others)


def test_results_of_given_parties_are_drawn_by_method_and_written_in_latex():
    tables = {"north": NORTH, "south": SOUTH[list("dcba")]}  # in any order of columns
    made = compare(tables, methods=["p-cov", "ap-cov", "vertical"], n_components=2)
    assert [(one["clients"], one["partition"]) for one in made] == [(2, AS_GIVEN)] * 3
    assert max(made[0]["max angle"], made[2]["max angle"]) < 1e-6 < made[1]["max angle"]
    (axes,) = made.figure("methods", "max angle").axes
    assert [text.get_text() for text in axes.get_xticklabels()] == ["p-cov", "ap-cov", "vertical"]
    assert next(line for line in axes.lines if len(line.get_xdata()) == 3).get_ydata()[1] == made[1]["max angle"]
    head, *lines = [line for line in made.to_latex().splitlines() if "&" in line]
    assert head == r"method & max angle (degrees) & captured variance & rounds & up per client \\"
    assert [line.split(" & ")[0] for line in lines] == ["p-cov", r"ap-cov \textsuperscript{1}", "vertical"]
    assert all(r"\%" in line for line in lines)
    assert made.figure("MB up").axes[0].get_xlabel() == "kB up per client"


def test_no_interval_has_impossible_values():
    texts = {
        ("MB up", 0.999, 0.1): "999 kB ± 100 kB",
        ("seconds", 1.0, 3.0): "1 (0 to 4)",
        ("captured variance", 0.5, 0.75): "50.00% (0 to 100.00%)",
        ("max angle", 7.4e-14, 1e-14): "7.4e-14 ± 1e-14",
        ("max angle", 53.7, 86.0): "53.7 (0 to 90)",
    }
    for (key, value, half_width), text in texts.items():
        assert format_result({key: value, "intervals": {key: half_width}}, key) == text
