"""Papers' figures: complete, resumable without recomputing, the same every time; and the page of all their numbers."""

import json
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedpca_flwr.errors import ConfigError
from fedpca_flwr.maths.eigen import projector_distance
from fedpca_flwr.maths.rows import row_chunks
from fedpca_flwr.simulations.papers import decentralised, experiment, notes, personalised, published, streams, vertical
from fedpca_flwr.simulations.papers.__main__ import NAMES, main
from fedpca_flwr.simulations.papers.experiment import Line, Panel, Step, plot, read_table, run_steps, write_table
from fedpca_flwr.simulations.papers.hierarchical import Federation, best_perpca, closed_form, iterations_needed
from fedpca_flwr.simulations.papers.published import STATES, Exhibit, Number, Seed, page, seeds
from fedpca_flwr.simulations.papers.streams import FrequentDirections, Grouse, PowerMethod, Spirit, feed
from fedpca_flwr.simulations.papers.vertical import densities, matrix
from fedpca_flwr.simulations.papers.vertical_program import graph_images, images, kernel_images
from tests.families import rows
from tests.refusals import refused, unnamed


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def is_png(path):
    return path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.engine
def test_a_run_interrupted_or_not_gives_the_same_files_and_report(tmp_path, monkeypatch):
    """Of Ozkara et al. 2023."""
    for name, small in (("SPREADS", (0.01, 0.1)), ("ROWS", (5, 10)), ("PARTIES", (200, 300))):
        monkeypatch.setattr(personalised, name, small)
    monkeypatch.setattr(personalised, "LARGE", {"d": 20, "r": 4})
    whole, cut, made = tmp_path / "whole", tmp_path / "cut", []

    def reproduce(folder):
        return main(["personalised", "--output", str(folder), "--datasets", "1", "--shrink", "100"])

    def counted(target, rows, settings):
        made.append(target)
        if len(made) == 3:
            raise KeyboardInterrupt
        write_table(target, rows, settings)

    assert reproduce(whole) == 0
    report = (whole / "report.md").read_text()
    for name in ("1a", "1b", "1c", "1d", "2"):
        assert read_table(whole / f"{name}.csv")
        assert is_png(whole / f"{name}.png")
        assert f"![]({name}.png)" in report
    assert [row["spread"] for row in read_table(whole / "1b.csv")] == [0.01, 0.1]
    monkeypatch.setattr(experiment, "write_table", counted)
    monkeypatch.setattr(personalised, "plot", lambda *_: None)  # what is drawn of the same is the same, as below
    assert reproduce(cut) == 130
    before = contents(cut)
    assert (reproduce(cut), len({*made})) == (0, len(made) - 1)  # again only the cut one
    after = contents(cut)
    assert after == {name: content for name, content in contents(whole).items() if name.suffix != ".png"}
    assert before.items() <= after.items()
    for target in (tmp_path / "one.png", tmp_path / "other.png"):
        plot(target, [Panel([Line("a line", [1, 2], [3, 5], {})], {})])
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "other.png").read_bytes()


def test_failed_steps_leave_no_file(tmp_path):
    calls = []

    def function(x):
        calls.append(x)
        yield {"sum": 0.1 * x + 0.2, "n": 3, "name": "a, b"}

    def fails():
        yield {"x": 1}
        raise ValueError("no")

    with refused(ValueError):
        run_steps([Step("one", fails)], tmp_path)
    assert not list(tmp_path.rglob("*"))
    for x in (1, 1, 2):
        expected = [{"sum": 0.1 * x + 0.2, "n": 3, "name": "a, b"}]
        assert run_steps([Step("one", function, {"x": x})], tmp_path)["one"] == expected
    assert calls == [1, 2]
    (tmp_path / "one.csv").write_text("dear diary\n")
    with refused(ConfigError, "one.csv"):
        run_steps([Step("one", lambda: [{"x": 1}])], tmp_path)
    assert (tmp_path / "one.csv").read_text() == "dear diary\n"


def rows_of(paper, name, **settings):
    step = next(step for step in paper.steps(**paper.options) if step.name == name)
    return list(step.function(**step.settings | settings))


def test_papers_are_named_and_the_truth_has_ratios_of_one(capsys):
    assert main(["personalized", "--output", "x"]) == 2
    assert not unnamed(capsys.readouterr().err, "'personalized'", "personalised")
    assert [iterations_needed(errors) for errors in ([10.0, 2.0, 1.5, 1.02, 1.0], [1.0])] == [4, 1]
    data = Federation.draw(d=12, r=3, m=4, n=4000, spread=0.1, seed=0)
    assert data.test_ratio(data.truth) == pytest.approx(1, abs=1e-12)
    assert data.train_ratio(data.truth) == pytest.approx(1, abs=0.02)
    assert 1 < data.test_ratio(closed_form(data, data.pooled())) < best_perpca(data, data.pooled())


@pytest.mark.engine
def test_steps_of_papers_have_their_published_order():
    """Values of NumPy prototypes; fewer parties here, which moves what is shared by up to 0.01."""
    row = personalised.means(rows_of(personalised.PAPER, "1b-0.1", spread=0.04, m=100, datasets=1))
    expected = {"local": 1.4235, "global": 1.3623, "personal": 1.3289, "personal 2 mu": 1.2819, "PerPCA": 1.3943}
    assert {name: row[name] for name in expected} == pytest.approx(expected, abs=0.015)
    assert row["personal"] < min(row["local"], row["global"]) < row["PerPCA"]
    # The rule averages equal parties.
    rows = rows_of(notes.PAPER, "streaming-digits")
    assert [row["operation"] for row in rows] == ["initial fit", "add a client", "remove a client", "update a client"]
    assert max(row["max"] for row in rows) < 1e-9
    exact, average = rows_of(notes.PAPER, "five-digits-Dirichlet-0.1", methods=["p-cov", "ap-cov"])
    assert (exact["clients"], exact["rounds"]) == (5, 1)
    assert exact["max"] < 1e-9 < 0.01 < average["mean"] < average["max"]
    chosen = [rows_of(notes.PAPER, f"rule-digits-{part}")[0]["chosen"] for part in ("IID", "shards")]
    assert chosen == ["ap-cov", "p-cov"]
    # As published the rows are centred, not the columns: that is another matrix than the one whose PCA it is about.
    rows = {row["method"]: row for row in rows_of(vertical.PAPER, "starts-wine", seeds=3)}
    assert rows.keys() == {"merge, rank 1", *vertical.VARIANTS}
    for row in rows.values():
        assert 0 <= row["least"] <= row["mean"] <= row["most"] <= 90
    assert rows["ours"]["most"] < 45 < rows["as published"]["least"]


@pytest.mark.parametrize("paper", [*NAMES, "all"])
def test_a_folder_that_is_not_writable_is_named_first(paper, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").touch()
    monkeypatch.setattr(experiment, "track", lambda *_, **__: pytest.fail("there was work"))
    assert main([paper, "--output", str(tmp_path / "file" / "deeper")]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"python -m fedpca_flwr.simulations.papers {paper}: ")
    assert str(tmp_path / "file") in said
    assert said.count("\n") == 1


@pytest.mark.engine
def test_crosses_stand_in_circles_and_graphs_are_drawn_by_rounds_and_bytes(tmp_path, monkeypatch):
    steps = [step for step in notes.steps() if step.name == "overlay-digits-Dirichlet-0.1"]
    results = run_steps(steps, tmp_path / "steps")
    rows = pd.DataFrame(results[steps[0].name])
    far = np.maximum(abs(rows["x"] - rows["pooled x"]), abs(rows["y"] - rows["pooled y"])).groupby(rows["method"]).max()
    assert far["p-cov"] < 1e-9 < 0.01 < far["ap-cov"]
    assert "| digits-Dirichlet-0.1 |" in next(iter(notes.PAPER.figures(results, tmp_path).values()))
    for kind in ("overlay", "grid"):
        assert is_png(tmp_path / f"{kind}-digits-Dirichlet-0.1.png")
    monkeypatch.setattr(decentralised, "GRAPHS", ("complete",))
    results = run_steps([step for step in decentralised.steps([2, 4]) if step.name.endswith("IID")], tmp_path / "steps")
    few, more = results["fast-pca-complete-IID"]
    assert more["MB up"] > few["MB up"] > results["dsa-complete-IID"][0]["MB up"]
    assert (more["rounds"] - few["rounds"], results["p-cov-IID"][0]["angle"]) == (2, pytest.approx(0, abs=1e-9))
    assert "decentralised.png" in decentralised.PAPER.figures(results, tmp_path)["Error by rounds and by bytes"]
    assert is_png(tmp_path / "decentralised.png")


@pytest.mark.nightly
def test_a_quick_look_draws_figures_of_each_kind(tmp_path, monkeypatch):
    """Of Cheung et al. 2022, whose program adds vectors of arbitrary sign: a figure of its own says what that costs."""
    sizes = "6-clients-wine", "7-iterations-mixture-5000", "8-warm-breast-cancer", "9"
    drawn = *sizes, "images-digits-3", "12-", "14-"  # one of each kind: to draw figures is most of the work
    steps, paper, kept = tmp_path / "steps", vertical.PAPER, (*drawn, "starts", "angles")

    def few(results, folder):
        return paper.figures({name: rows for name, rows in results.items() if name.startswith(kept)}, folder)

    monkeypatch.setattr(vertical, "PARTIES", (3,))
    monkeypatch.setattr(vertical, "BUNDLED", dict.fromkeys(["wine", "breast-cancer"], ((3,), 10, (3,), 3)))
    monkeypatch.setattr(vertical, "SIZES", ((1000, 200), (5000, 1000)))
    monkeypatch.setattr(vertical, "PAPER", replace(paper, figures=few))
    assert main(["vertical", "--output", str(tmp_path), "--shrink", "20"]) == 0
    for name in ("12-digits-3", "14-digits-3", *drawn[:-2]):
        assert is_png(tmp_path / f"{name}.png")
        assert f"![]({name}.png)" in (tmp_path / "report.md").read_text()
    by_method = pd.DataFrame(read_table(steps / "angles-breast-cancer.csv")).groupby("method")["angle"]
    assert by_method.max()["vertical"] <= 1e-5
    assert by_method.min().filter(like="vfedpca").min() > 0.5
    published = pd.DataFrame(read_table(steps / "6-clients-breast-cancer-3.csv")).query("lists == 'as published'")
    for how in ("vertical", "horizontal"):
        by_signs = pd.DataFrame(read_table(steps / f"9-{how}-3.csv")).groupby("signs")["distance"]
        assert by_signs.count()["aligned"] == 11
        assert by_signs.max()["aligned"] <= np.sqrt(2)
        as_they_come = by_signs.get_group("as they come").tolist()
        assert how == "horizontal" or as_they_come == published["distance"].tolist()


def test_images_have_every_pixel_synthetic_data_are_densities_and_missing_named(tmp_path, capsys):
    X = matrix("digits")
    made = images(X, 5)
    assert all(set(image) == {0, 1, 2} for name, image in made.items() if name.endswith(" cluster"))
    alone = kernel_images(X, 1)
    for name in ("AKPCA, federated", "AKPCA, isolated", "KPCA, isolated"):
        np.testing.assert_allclose(alone[name], alone[f"{name.split(',')[0]}, all columns"], atol=1e-9)
    graphs, kernels = graph_images(X, 5), kernel_images(X, 5)
    assert {image.shape for image in (*made.values(), *graphs.values(), *kernels.values())} == {(64,)}
    for method in ("VFedPCA", "VFedAKPCA"):
        np.testing.assert_allclose(graphs[f"{method}, complete"], graphs[f"{method}, server"], atol=1e-9)
        assert np.abs(graphs[f"{method}, star"] - graphs[f"{method}, server"]).max() > 1e-3
    np.testing.assert_allclose(kernels["AKPCA, federated"], graphs["VFedAKPCA, server"], atol=1e-9)
    assert np.corrcoef(kernels["KPCA, all columns"], X.mean(axis=0))[0, 1] > 0.9
    single = densities("single", 30, 20)
    assert single.shape == (20, 30)
    assert 0 < single.min() < single.max() <= 1 / np.sqrt(2 * np.pi)
    assert densities("mixture", 30, 20).tobytes() == densities("mixture", 30, 20).tobytes()
    assert main(["adaptive-rank", "--output", str(tmp_path / "out"), "--motes", str(tmp_path)]) == 2
    assert not unnamed(capsys.readouterr().err, tmp_path, "q8calibHumid.dat")
    with refused(ConfigError, "--tables", str(tmp_path), "Sonar.csv"):
        vertical.steps(str(tmp_path), "")
    X = np.random.default_rng(0).uniform(2, 5, (12, 6))
    np.savetxt(tmp_path / "Musk.csv", X, delimiter=",", header="a,b,c,d,e,f", comments="")
    steps = {step.name: step.settings for step in vertical.steps(str(tmp_path), "", shrink=5)}
    settings = {"data": "Musk", "path": str(tmp_path), "seeds": 1, "parties": 10, "iterations": 10}
    assert steps["6-clients-Musk-10"] == settings
    scaled = matrix("Musk", str(tmp_path))
    assert (scaled.min(), scaled.max()) == (0, pytest.approx(1))
    np.testing.assert_allclose(scaled[:, 0], (X[:, 0] - X[:, 0].min()) / np.ptp(X[:, 0]))


@pytest.mark.nightly
def test_a_quick_look_draws_every_figure(tmp_path):
    """Of Grammenos et al. 2019."""
    readings = np.random.default_rng(0).standard_normal((120, 12)) * np.arange(1, 13) + 100
    np.savetxt(tmp_path / "q8calibLight.dat", readings)
    assert main(["adaptive-rank", "--output", str(tmp_path / "out"), "--shrink", "40", "--motes", str(tmp_path)]) == 0
    report = (tmp_path / "out/report.md").read_text()
    for name in (f"figure{number}.png" for number in range(1, 9)):
        assert is_png(tmp_path / "out" / name), name
        assert f"]({name})" in report
    assert "Light" in report
    assert "Table 1" in report


def test_every_method_runs_to_the_last_block():
    X = streams.synthetic(1, seed=0, d=30, n=120)
    rows = list(streams.follow(X, streams.methods(30)))
    assert {row["method"] for row in rows if row["rows"] == 120} == streams.methods(30).keys()
    spca = next(row for row in rows if row["rows"] == 120 and row["method"] == "SPCA")
    assert streams.error(X, streams.offline(X, 10)) <= spca["error"] < np.vdot(X, X) / 120


def low_rank(n, *, noise=0.0, seed=0):
    """Rows in four directions of 30, and those directions."""
    rng = np.random.default_rng(seed)
    basis, _ = np.linalg.qr(rng.standard_normal((30, 4)))
    return rng.standard_normal((n, 4)) @ basis.T + noise * rng.standard_normal((n, 30)), basis


def test_methods_of_streams_keep_a_low_rank_and_lose_no_more_than_their_bound():
    X = rows(500)
    directions = FrequentDirections(12, 3)
    feed(directions, X)
    lost = np.linalg.eigvalsh(X.T @ X - directions.sketch.T @ directions.sketch)
    assert lost.min() >= -1e-9 * np.vdot(X, X)
    assert 0 < 6 * lost.max() <= np.vdot(X, X)

    def power_method():
        return PowerMethod(30, 4, rng=np.random.default_rng(1))

    for n, method in ((300, FrequentDirections(30, 4)), (60, power_method())):
        X, basis = low_rank(n)
        assert projector_distance(feed(method, X).vectors, basis) < 1e-10
    X, _ = low_rank(59, noise=0.1)
    one, other = (feed(power_method(), part) for part in (X, X[:30]))
    assert one.vectors.tobytes() == other.vectors.tobytes()
    # GROUSE stays orthonormal, and turns to the rows.
    X, basis = low_rank(4000)
    grouse = Grouse(30, 4, rng=np.random.default_rng(2))
    before = projector_distance(grouse.vectors, basis)
    feed(grouse, X)
    np.testing.assert_allclose(grouse.vectors.T @ grouse.vectors, np.eye(4), atol=1e-10)
    assert projector_distance(grouse.vectors, basis) < 0.1 < before
    # SPIRIT follows a hidden variable.
    scores, (direction, *_) = np.random.default_rng(3).standard_normal((2000, 1)), np.linalg.qr(np.ones((30, 1)))[0].T
    spirit, keen = Spirit(30, forgetting=0.96), Spirit(30, 1)
    assert abs(feed(spirit, scores * direction).vectors[:, 0] @ direction) > 1 - 1e-6
    feed(keen, low_rank(100)[0])
    assert spirit.rank == 1 < keen.rank


@pytest.mark.parametrize("method", [PowerMethod, FrequentDirections, Grouse, Spirit])
def test_the_results_do_not_depend_on_how_the_rows_arrive(method):
    X, of_rank, found = rows(200), () if method is Spirit else (3,), []
    for block in (200, 50, 7, 1):
        drawn = {"rng": np.random.default_rng(0)} if method in (PowerMethod, Grouse) else {}
        running = method(12, *of_rank, **drawn)
        for part in row_chunks(X, block):
            running.update(part)
        found.append(running.vectors)
        np.testing.assert_allclose(found[-1], found[0], atol=1e-10)


HERE = Path(published.__file__).resolve().parent
NUMBERS = json.loads((HERE / "numbers.json").read_text(encoding="utf-8"))


def test_reproduced_numbers_stand_on_the_page_and_are_within_intervals():
    text = (HERE.parents[1] / "paper" / "published.md").read_text(encoding="utf-8")
    assert text == page(seeds(), NUMBERS), "copy published.md and numbers.json from the command's folder"
    assert len(text.encode()) <= 8_800
    shown = Exhibit("it", "reproduced", numbers=[Number("a", "s", "c", 0, 1, "0.01"), Number("b", "s", "c", 0, 1)])
    assert shown.numbers_text({"a": 1.234e-13, "b": 0.56789}) == "a: 1e-13 (0.01); b: 0.5679"
    assert shown.numbers[0].mean([{"c": 1.0}, {"c": 2.0}, {"c": 6.0}]) == 3.0
    assert {seed.paper for seed in seeds()} == set(NAMES)
    for seed in seeds():
        assert not list(published.numbers_outside(seed, NUMBERS[seed.paper]))
        # Quick steps are there, of bundled data, and have numbers.
        paper = import_module(f"fedpca_flwr.simulations.papers.{seed.paper.replace('-', '_')}").PAPER
        steps = {step.name for step in paper.steps(**paper.options)}
        assert set(seed.quick) <= steps & {number.step for shown in seed.shows for number in shown.numbers}
        for shown in seed.shows:
            assert shown.state in STATES
            assert shown.why or shown.state == "reproduced", shown.what
            assert bool(shown.numbers) == (shown.state != "cannot be"), shown.what
            missing = {number.name for number in shown.numbers} - NUMBERS[seed.paper][shown.what].keys()
            assert (shown.state_text(NUMBERS[seed.paper][shown.what]) == "not run") == bool(missing), shown.what
        assert len({shown.what for shown in seed.shows}) == len(seed.shows)


def test_a_quick_run_fails_outside_the_interval(tmp_path, monkeypatch):
    calls = []

    def function(x):
        calls.append(x)
        yield {"method": "a", "angle": 2.0 * x}
        yield {"method": "b", "angle": 100.0}

    def steps(**_):
        return [Step("one", function, {"x": 1}), Step("long", lambda: pytest.fail("not a quick step"))]

    def expected(low, high):
        shown = Exhibit("it", "reproduced", numbers=[Number("a", "one", "angle", low, high, "2.1", {"method": "a"})])
        monkeypatch.setattr(published, "seeds", lambda: [Seed("notes", "Notes", "text", ["one"], [shown])])

    monkeypatch.setattr(notes, "PAPER", replace(notes.PAPER, steps=steps, figures=lambda *_: {}))
    expected(1.9, 2.1)
    for _ in range(2):
        assert main(["all", "--output", str(tmp_path), "--quick"]) == 0
    assert json.loads((tmp_path / "numbers.json").read_text()) == {"notes": {"it": {"a": 2.0}}}
    for low, high in ((2.1, 3), (1, 1.9)):
        expected(low, high)
        with pytest.raises(SystemExit) as stopped:
            main(["all", "--output", str(tmp_path), "--quick"])
        assert f"notes, it, a is 2, expected from {low} to {high}" in str(stopped.value)
    assert calls == [1]
