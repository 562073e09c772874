"""A class of a notebook or script is a method: of runs, comparisons, the battery and Flower apps."""

from dataclasses import replace

import numpy as np
import pytest

from fedpca_flwr import METHODS, FedPCA, LocalGrid, PooledCovariance, battery, client_app, compare, run
from fedpca_flwr.errors import ConfigError
from fedpca_flwr.questions import method
from fedpca_flwr.simulations.records import card_of
from fedpca_flwr.simulations.report import write_report
from fedpca_flwr.simulations.runs_file import RUNS, read_records
from fedpca_flwr.strategies import FACTORY
from tests.families import cut, rows
from tests.harness import forget_classes
from tests.refusals import refused
from tests.simulations.test_compare import lines_of, undrawn

PARTIES = cut(rows(60), 25, 20, 15)


def make(name="own-cov", power=1.0, **more):
    """Return a class that is P-COV of another name, with scatters to a power of which an option can be 1."""

    class Options(method.ScaledOptions):
        unused_rank: int = 3

    class OwnCovariance(PooledCovariance):
        card = replace(PooledCovariance.card, name=name, title="Mine", options=Options, script=own_script, **more)

        def aggregate(self):
            pooling = yield from method.pooled_moments(self)
            solution = method.solve(pooling.moments, pooling.diagonal, **self.options.solve_options)
            vectors = solution.pairs.vectors * power
            return replace(solution, pairs=replace(solution.pairs, vectors=vectors / np.linalg.norm(vectors, axis=0)))

    return OwnCovariance


def own_script(config, options):
    return {**method.moments_questions(config), **method.projection_questions()}


@pytest.fixture(autouse=True)
def no_classes_left(monkeypatch):
    forget_classes(monkeypatch)


def test_a_class_runs_as_the_methods_do_and_then_by_name():
    own, reference = make(), run("p-cov", PARTIES, n_components=2)
    model = run(own, PARTIES, n_components=2)
    np.testing.assert_allclose(model.components_, reference.components_, atol=1e-12)
    assert model.log["method"] == "own-cov"
    assert run("own-cov unused-rank=5", PARTIES, n_components=2).log["options"]["unused-rank"] == 5
    assert run(own, PARTIES, n_components=2, unused_rank=7).log["options"]["unused-rank"] == 7
    with refused(ConfigError, "'unused_rank'", "'x'"):
        run(own, PARTIES, n_components=2, unused_rank="x")


def test_a_class_that_is_defined_again_takes_the_place_of_the_first():
    first, second = make(), make(power=-1.0)
    models = [run(own, PARTIES, n_components=2) for own in (first, second, first)]
    np.testing.assert_array_equal(models[0].components_, -models[1].components_)
    np.testing.assert_array_equal(models[0].components_, models[2].components_)


@pytest.mark.parametrize("options", [{}, {"clusters": 2}, {"adjust_for": "0"}, {"outliers": "counts"}], ids=str)
def test_a_class_that_only_renames_a_method_has_its_stages(options):
    """Its questions had those of the stages twice."""

    class Renamed(PooledCovariance):
        card = replace(METHODS["p-cov"].strategy.card, name="renamed")

    mine, theirs = (run(one, PARTIES, n_components=2, min_rows=1, **options) for one in (Renamed, "p-cov"))
    np.testing.assert_array_equal(mine.components_, theirs.components_)


def test_a_comparison_takes_classes_beside_names(tmp_path, monkeypatch):
    undrawn(monkeypatch)
    own = make()
    for _ in "ab":  # its code may have changed: it is run again, and the page has one line of it
        made = compare(PARTIES, methods=["p-cov", own], n_components=2, output=tmp_path)
    assert [run["method"] for run in made] == ["p-cov", "own-cov"]
    assert len(lines_of(tmp_path)) == 3
    page = made.report().read_text()
    assert page.count("<tr><td>") + page.count('<tr class="best">') == 2
    monkeypatch.undo()  # as in another process
    undrawn(monkeypatch)
    assert card_of("own-cov").title != "Mine"
    assert [run["method"] for run in read_records(tmp_path)] == ["p-cov", "own-cov"]
    assert "<td>own-cov</td>" in write_report(tmp_path, read_records(tmp_path)).read_text()
    assert (tmp_path / RUNS).exists()


@pytest.mark.engine
def test_the_battery_takes_a_class():
    checks = battery(make())
    assert {"exact", "masked", "order of parties"} <= checks.keys()
    checks["exact"]()
    checks["masked"]()


def test_flower_apps_take_a_class():
    own = make()
    strategy = FedPCA(own, n_components=2, clients=3)
    app = client_app(lambda context: PARTIES[int(context.node_config["partition-id"])], own, n_components=2)
    result = strategy.start(LocalGrid(app, 3))
    assert result.arrays["components"].shape == (2, PARTIES[0].shape[1])


class NoCard(method.Strategy):
    def aggregate(self):
        yield method.Round("moments")


class NoAggregate(method.Strategy):
    card = PooledCovariance.card


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        *((dict, ["dict", "'aggregate'"]), (NoCard, ["NoCard", "'card'"])),
        (NoAggregate, ["NoAggregate", "'aggregate'"]),
        *((make(name), ["OwnCovariance", f"'{name}'"]) for name in ("My Method", "sub-it")),
    ],
    ids=str,
)
def test_a_class_that_is_no_method_is_refused(wrong, named):
    with refused(ConfigError, *named):
        run(wrong, PARTIES, n_components=2)
    with refused(ConfigError, *named):
        compare(PARTIES, methods=["p-cov", wrong], n_components=2)
    assert FACTORY.methods is METHODS
