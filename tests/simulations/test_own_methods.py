"""A class of a notebook is a method of runs, comparisons, Flower apps, and of the battery, which finds its faults."""

from dataclasses import replace
from typing import Annotated, Literal

import numpy as np
import pytest
from pydantic import Field

from fedpca_flwr import METHODS, FedPCA, LocalGrid, PooledCovariance, battery, client_app, compare, run
from fedpca_flwr.errors import ConfigError, FedPCAError
from fedpca_flwr.questions import method
from fedpca_flwr.simulations import battery as checks_of_a_method
from fedpca_flwr.simulations import engines
from fedpca_flwr.simulations.records import card_of
from fedpca_flwr.simulations.report import write_report
from fedpca_flwr.simulations.runs_file import read_records
from fedpca_flwr.strategies import FACTORY
from tests.families import cut, rows
from tests.harness import CLUSTER_STEPS, forget_classes, own
from tests.refusals import refused
from tests.simulations.test_compare import lines_of, undrawn

PARTIES = cut(rows(60), 25, 20, 15)


def make(name="own-cov", power=1.0):
    """Return a class that is P-COV of another name, with scatters to a power of which an option can be 1."""

    class Options(method.ScaledOptions):
        unused_rank: int = 3

    def script(config, options):
        return {**method.moments_questions(config), **method.projection_questions()}

    class OwnCovariance(PooledCovariance):
        card = replace(PooledCovariance.card, name=name, title="Mine", options=Options, script=script)

        def aggregate(self):
            pooling = yield from method.pooled_moments(self)
            solution = method.solve(pooling.moments, pooling.diagonal, **self.options.solve_options)
            vectors = solution.pairs.vectors * power
            return replace(solution, pairs=replace(solution.pairs, vectors=vectors / np.linalg.norm(vectors, axis=0)))

    return OwnCovariance


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
    # A class that is defined again takes the place of the first.
    again, first = (run(one, PARTIES, n_components=2) for one in (make(power=-1.0), own))
    np.testing.assert_array_equal([again.components_, first.components_], [-model.components_, model.components_])


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
    assert ([run["method"] for run in made], len(lines_of(tmp_path))) == (["p-cov", "own-cov"], 3)
    page = made.report().read_text()
    assert page.count("<tr><td>") + page.count('<tr class="best">') == 2
    monkeypatch.undo()  # as in another process
    undrawn(monkeypatch)
    assert card_of("own-cov").title != "Mine"
    assert [run["method"] for run in read_records(tmp_path)] == ["p-cov", "own-cov"]
    assert "<td>own-cov</td>" in write_report(tmp_path, read_records(tmp_path)).read_text()


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (dict, ["dict", "'aggregate'"]),
        (type("NoCard", (method.Strategy,), {"aggregate": lambda self: iter(())}), ["NoCard", "'card'"]),
        (type("NoAggregate", (method.Strategy,), {"card": PooledCovariance.card}), ["NoAggregate", "'aggregate'"]),
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


BY_DAY = ["p-cov", "ap-cov", "dp-pca", "streaming", "vertical"]
"""One method of each kind: exact, not exact, with noise, with a state, of columns."""
BY_NIGHT = [pytest.param(name, marks=pytest.mark.nightly) for name in METHODS if name not in BY_DAY]


@pytest.mark.engine
@pytest.mark.parametrize("method", [*BY_DAY, *BY_NIGHT])
def test_our_methods_pass(method, monkeypatch):
    monkeypatch.setattr(*CLUSTER_STEPS)
    few = {key: value for key, value in own(method).items() if key in ("iterations", "graph", "noise_seed")}
    few |= {"bits": 32} if method == "compressed" else {}  # in fewer it rounds otherwise where codes must add up
    checks = battery(method, **few)
    assert "options" in checks
    for check in checks.values():
        check()


class Foreign(METHODS["p-cov"].strategy):
    """P-COV of another package, over which tests lay one fault each."""

    card = replace(METHODS["p-cov"].strategy.card, name="foreign", examples=({},))


def altered(change, in_sums=False):
    """Return a class whose solution is changed: everywhere, or where only sums open."""

    class Altered(Foreign):
        def aggregate(self):
            solution = yield from super().aggregate()
            if self.transport.sums_only or not in_sums:
                change(solution.pairs)
            return solution

    return Altered


def turned(pairs):
    pairs.vectors[:] = np.linalg.qr(pairs.vectors + 1e-4)[0]


class FirstCounts(METHODS["p-cov"].client):
    """The first party's rows count a little more."""

    def statistics(self, phase, asked):
        fields = super().statistics(phase, asked)
        if "scatter" in fields and self.site.node.partition_id == 0:
            fields["scatter"] = fields["scatter"] * (1 + 1e-6)
        return fields


class Loose(METHODS["p-cov"].strategy.card.options):
    """Options whose limits are told, and held as a test says by ``taken``."""

    n_components: Annotated[int, Field(examples=[2])] = 10
    level: Annotated[int, Field(ge=0)] = 0
    kind: Literal["one", "other"] = "one"

    @classmethod
    def parse(cls, values, **given):
        return super().parse({key: cls.taken(key, value) for key, value in values.items()}, **given)


def failing(strategy, client=METHODS["p-cov"].client, *, stages=False):
    """Make a class the method `foreign`, and return the checks that it fails, those of stages only on demand."""
    failed = set()
    for name, check in battery(type("Foreign", (strategy,), {"party": client})).items():
        try:
            _ = (stages or not name.startswith("stage")) and check()
        except (AssertionError, FedPCAError):
            failed.add(name)
    return failed


@pytest.mark.engine
def test_methods_that_hold_their_card_pass(monkeypatch):
    monkeypatch.setattr(*CLUSTER_STEPS)
    assert failing(Foreign, stages=True) == set()
    stages = {f"stage {stage.__name__}" for stage in Foreign.card.stages}
    checks = {"options", "one party", "bytes", "exact", "order of parties", "masked", "surviving"}
    assert battery("foreign").keys() == checks | {*stages}
    assert failing(altered(turned), stages=True) == {"exact", "one party", *stages}
    stages -= {"stage Blind"}  # which decomposes the scatter in place of the method
    assert failing(altered(turned, in_sums=True)) == {"masked", "surviving"}
    larger = altered(lambda pairs: np.multiply(pairs.values, 1 + 1e-3, out=pairs.values), in_sums=True)
    assert failing(larger, stages=True) == {"masked", "surviving", *stages}
    assert "order of parties" in failing(Foreign, FirstCounts)
    honest = engines.run  # where no limit holds a reply
    monkeypatch.setattr(checks_of_a_method, "run", lambda *given, max_reply_bytes=0, **more: honest(*given, **more))
    assert failing(Foreign) == {"bytes"}


def without_a_name(key, value):
    if value == -1:
        raise ConfigError("a value is not allowed")
    return value


@pytest.mark.engine
@pytest.mark.parametrize(
    ("taken", "failed"),
    [
        *((lambda key, value: value, set()), (lambda key, value: abs(value) if key == "level" else value, {"options"})),
        *((lambda key, value: "one" if key == "kind" else value, {"options"}), (without_a_name, {"options"})),
    ],
)
def test_limits_of_options_are_held_by_name(taken, failed, monkeypatch):
    monkeypatch.setattr(Loose, "taken", staticmethod(taken), raising=False)
    assert failing(type("LooseForeign", (Foreign,), {"card": replace(Foreign.card, options=Loose)})) == failed


@pytest.mark.engine
def test_a_class_is_a_method_in_another_process_too(monkeypatch):
    """The fault: Flower's workers get an app as a pickle, and know no class that this process has met."""
    from ray import cloudpickle  # which takes a second

    own, reference = make(), run("p-cov", PARTIES, n_components=2)
    app = client_app(lambda context: PARTIES[context.node_config["partition-id"]], own, n_components=2)
    strategy, pickled = FedPCA(own, n_components=2, clients=3), cloudpickle.dumps(app)
    forget_classes(monkeypatch)
    found = strategy.start(LocalGrid(cloudpickle.loads(pickled), 3)).arrays["components"].numpy()
    np.testing.assert_allclose([found, strategy.model.components_], [reference.components_] * 2, atol=1e-12)
