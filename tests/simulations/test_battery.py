"""The battery that methods of other packages get: ours pass it, and each of its checks finds what it is there for."""

from dataclasses import replace
from typing import Annotated, Literal

import numpy as np
import pytest
from pydantic import Field

from fedpca_flwr import battery
from fedpca_flwr.errors import ConfigError, FedPCAError
from fedpca_flwr.simulations import battery as checks_of_a_method
from fedpca_flwr.simulations import engines
from fedpca_flwr.strategies import METHODS
from tests.harness import CLUSTER_STEPS, forget_classes, own


@pytest.mark.engine
@pytest.mark.parametrize("method", METHODS)
def test_our_methods_pass(method, monkeypatch):
    monkeypatch.setattr(*CLUSTER_STEPS)
    few = {key: value for key, value in own(method).items() if key in ("iterations", "graph", "noise_seed")}
    if method == "compressed":  # in fewer bits it rounds otherwise where codes must add up
        few = {"bits": 32}
    checks = battery(method, **few)
    assert "options" in checks
    for check in checks.values():
        check()


class Foreign(METHODS["p-cov"].strategy):
    """P-COV of another package, over which tests lay one fault each."""

    card = replace(METHODS["p-cov"].strategy.card, name="foreign", examples=({},))


def altered(change, where=lambda strategy: True):
    """Its solution is changed: everywhere, or where only sums open."""

    class Altered(Foreign):
        def aggregate(self):
            solution = yield from super().aggregate()
            if where(self):
                change(solution.pairs)
            return solution

    return Altered


def turned(pairs):
    pairs.vectors[:] = np.linalg.qr(pairs.vectors + [[1e-4]] * 6)[0]


def larger(pairs):
    pairs.values[:] *= 1 + 1e-3


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


def without_a_name(key, value):
    if value == -1:
        raise ConfigError("a value is not allowed")
    return value


@pytest.fixture
def foreign(monkeypatch):
    """Make a class the method `foreign`, and give the checks that it fails, those of stages only on demand."""
    forget_classes(monkeypatch)

    def failing(strategy, client=METHODS["p-cov"].client, *, stages=False):
        checks = battery(type("Foreign", (strategy,), {"party": client})).items()
        return {name for name, check in checks if (stages or not name.startswith("stage")) and fails(check)}

    return failing


def fails(check):
    try:
        check()
    except (AssertionError, FedPCAError):
        return True
    return False


@pytest.mark.engine
def test_methods_that_hold_their_card_pass(foreign, monkeypatch):
    monkeypatch.setattr(*CLUSTER_STEPS)
    assert foreign(Foreign, stages=True) == set()
    stages = {f"stage {stage.__name__}" for stage in Foreign.card.stages}
    checks = {"options", "one party", "bytes", "exact", "order of parties", "masked", "surviving"}
    assert battery("foreign").keys() == checks | {*stages}
    assert foreign(altered(turned), stages=True) == {"exact", "one party", *stages}
    stages -= {"stage Blind"}  # which decomposes the scatter in place of the method
    for change, failed in ((turned, set()), (larger, stages)):
        in_sums = altered(change, lambda strategy: strategy.transport.sums_only)
        assert foreign(in_sums, stages=change is larger) == {"masked", "surviving", *failed}
    assert "order of parties" in foreign(Foreign, FirstCounts)


@pytest.mark.engine
@pytest.mark.parametrize(
    ("taken", "failed"),
    [
        (lambda key, value: value, set()),
        (lambda key, value: abs(value) if key == "level" else value, {"options"}),
        (lambda key, value: "one" if key == "kind" else value, {"options"}),
        (without_a_name, {"options"}),
    ],
)
def test_limits_of_options_are_held_by_name(taken, failed, foreign, monkeypatch):
    monkeypatch.setattr(Loose, "taken", staticmethod(taken), raising=False)
    assert foreign(type("LooseForeign", (Foreign,), {"card": replace(Foreign.card, options=Loose)})) == failed


@pytest.mark.engine
def test_replies_that_no_limit_holds_are_found(foreign, monkeypatch):
    honest = engines.run
    monkeypatch.setattr(checks_of_a_method, "run", lambda *given, max_reply_bytes=0, **more: honest(*given, **more))
    assert foreign(Foreign) == {"bytes"}
