"""Papers' figures: complete, resumable without recomputing, the same every time."""

import json

import pytest

from fedpca_flwr.errors import ConfigError
from simulations.papers import experiment, personalised
from simulations.papers.__main__ import PAPERS, main
from simulations.papers.experiment import Step, read_table, run_steps, write_table
from simulations.papers.hierarchical import Federation, best_perpca, closed_form, iterations_needed
from simulations.papers.personalised import compared, means
from tests.refusals import refused, unnamed

TINY = ["--datasets", "1", "--shrink", "100"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A folder with everything, of few points."""
    folder = tmp_path_factory.mktemp("papers")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(personalised, "SPREADS", (0.01, 0.1))
        patch.setattr(personalised, "ROWS", (5, 10))
        patch.setattr(personalised, "PARTIES", (200, 300))
        assert main(["personalised", "--output", str(folder), *TINY]) == 0
        yield folder


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_every_figure_has_a_table_and_a_plot_and_stands_in_the_report(whole):
    report = (whole / "report.md").read_text()
    for name in ("1a", "1b", "1c", "1d", "2"):
        assert read_table(whole / f"{name}.csv")
        assert (whole / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert f"![]({name}.png)" in report
    assert [row["spread"] for row in read_table(whole / "1b.csv")] == [0.01, 0.1]


def test_an_interrupted_run_goes_on_and_gives_the_same_files(whole, tmp_path, monkeypatch):
    called, honest, cut = [], personalised.compared, tmp_path

    def counted(**settings):
        called.append(settings)
        if len(called) == 3:
            raise KeyboardInterrupt
        return honest(**settings)

    monkeypatch.setattr(personalised, "compared", counted)
    with pytest.raises(KeyboardInterrupt):
        main(["personalised", "--output", str(cut), *TINY])
    before = contents(cut)
    assert main(["personalised", "--output", str(cut), *TINY]) == 0
    assert len({json.dumps(settings, sort_keys=True) for settings in called}) == len(called) - 1  # only the cut one
    after = contents(cut)
    assert after == contents(whole)
    assert all(after[name] == content for name, content in before.items())


def test_other_settings_are_computed_anew(tmp_path):
    calls = []

    def function(x):
        calls.append(x)
        yield {"twice": 2.0 * x, "name": "a, b"}

    for x in (1, 1, 2):
        assert run_steps([Step("one", function, {"x": x})], tmp_path)["one"] == [{"twice": 2.0 * x, "name": "a, b"}]
    assert calls == [1, 2]


def test_a_step_that_fails_leaves_no_file_and_another_file_stays(tmp_path):
    def function():
        yield {"x": 1}
        raise ValueError("no")

    with refused(ValueError):
        run_steps([Step("one", function)], tmp_path)
    assert not list(tmp_path.rglob("*"))
    (tmp_path / "one.csv").write_text("dear diary\n")
    with refused(ConfigError, "one.csv"):
        run_steps([Step("one", lambda: [{"x": 1}])], tmp_path)
    assert (tmp_path / "one.csv").read_text() == "dear diary\n"


def test_numbers_survive_a_table_and_settle_after_the_last_that_is_off(tmp_path):
    rows = [{"x": 0.1 + 0.2, "n": 3, "text": "mu"}]
    write_table(tmp_path / "t.csv", rows, {})
    assert read_table(tmp_path / "t.csv") == rows
    assert iterations_needed([10.0, 2.0, 1.5, 1.02, 1.0]) == 4
    assert iterations_needed([1.0]) == 1


def test_papers_are_named_and_the_truth_has_ratios_of_one(capsys):
    assert main(["personalized", "--output", "x"]) == 2
    said = capsys.readouterr().err
    assert not unnamed(said, "'personalized'")
    assert "personalised" in said.splitlines()[-1]
    data = Federation.draw(d=12, r=3, m=4, n=4000, spread=0.1, seed=0)
    assert data.test_ratio(data.truth) == pytest.approx(1, abs=1e-12)
    assert data.train_ratio(data.truth) == pytest.approx(1, abs=0.02)
    U, _ = closed_form(data, data.pooled())
    assert 1 < data.test_ratio(U) < best_perpca(data, data.pooled())


@pytest.mark.parametrize(
    ("spread", "expected"),
    [
        pytest.param(
            0.01,
            {"local": 1.4236, "global": 1.1534, "personal": 1.1346, "PerPCA": 1.2638},
            marks=pytest.mark.nightly,
        ),
        (0.04, {"local": 1.4235, "global": 1.3623, "personal": 1.3289, "personal 2 mu": 1.2819, "PerPCA": 1.3943}),
    ],
)
def test_a_point_of_figure_1b_has_its_published_order(spread, expected):
    """Values of NumPy prototypes; fewer parties here, which moves what is shared by up to 0.01."""
    row = means(list(compared(d=30, r=10, m=100, n=20, spread=spread, datasets=1, perpca=True)))
    for name, value in expected.items():
        assert row[name] == pytest.approx(value, abs=0.015), name
    assert row["personal"] < min(row["local"], row["global"]) < row["PerPCA"]


@pytest.mark.parametrize("paper", sorted(PAPERS))
def test_a_folder_that_cannot_be_written_to_is_named_before_any_work(paper, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").touch()
    monkeypatch.setattr(experiment, "track", lambda *_, **__: pytest.fail("there was work"))
    assert main([paper, "--output", str(tmp_path / "file" / "deeper")]) == 2
    said = capsys.readouterr().err.strip()
    assert said.startswith("ConfigError: ")
    assert str(tmp_path / "file") in said
    assert "\n" not in said
