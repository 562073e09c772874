"""The battery that methods of other packages get: ours pass it, and each of its checks finds what it is there for."""

from dataclasses import replace
from typing import Annotated

import numpy as np
import pytest
from pydantic import Field

import simulations.battery
from fedpca_flwr import battery
from fedpca_flwr.errors import FedPCAError
from fedpca_flwr.protocol.registry import Method
from simulations import engines
from strategies import METHODS
from tests.harness import own


@pytest.mark.engine
@pytest.mark.parametrize("method", METHODS)
def test_our_methods_pass(method):
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


class Biased(Foreign):
    """Its result is off by a little, in clear and in sums alike."""

    def aggregate(self):
        solution = yield from super().aggregate()
        solution.pairs.vectors[:] = np.linalg.qr(solution.pairs.vectors + [[1e-4]] * 6)[0]
        return solution


class Careless(Foreign):
    """Its result is off where only sums open."""

    def aggregate(self):
        solution = yield from super().aggregate()
        solution.pairs.values[:] *= 1 + 1e-3 * self.transport.sums_only
        return solution


class FirstCounts(METHODS["p-cov"].client):
    """The first party's rows count a little more."""

    def statistics(self, phase, asked):
        fields = super().statistics(phase, asked)
        if "scatter" in fields and self.site.node.partition_id == 0:
            fields["scatter"] = fields["scatter"] * (1 + 1e-6)
        return fields


class Loose(METHODS["p-cov"].strategy.card.options):
    """An option whose limits are told, and not held."""

    n_components: Annotated[int, Field(examples=[2])] = 10
    level: Annotated[int, Field(ge=0)] = 0

    @classmethod
    def parse(cls, values, **given):
        return super().parse({key: abs(value) if key == "level" else value for key, value in values.items()}, **given)


@pytest.fixture
def foreign(monkeypatch):
    """Make a class the method `foreign`, and give the checks that it fails."""

    def failing(strategy, client=METHODS["p-cov"].client):
        monkeypatch.setitem(METHODS._found, "foreign", Method(strategy, client))
        monkeypatch.setitem(METHODS._homes, "foreign", "")
        return {name for name, check in battery("foreign").items() if fails(check)}

    return failing


def fails(check):
    try:
        check()
    except (AssertionError, FedPCAError):
        return True
    return False


@pytest.mark.engine
def test_methods_of_other_packages_pass_where_they_do_what_their_card_says(foreign):
    assert foreign(Foreign) == set()
    assert battery("foreign").keys() == {
        *("options", "one party", "bytes", "exact", "order of parties", "masked", "surviving")
    }
    assert foreign(Biased) == {"exact", "one party"}
    assert foreign(Careless) == {"masked", "surviving"}
    assert "order of parties" in foreign(Foreign, FirstCounts)
    loose = type("LooseForeign", (Foreign,), {"card": replace(Foreign.card, options=Loose)})
    assert foreign(loose) == {"options"}


@pytest.mark.engine
def test_replies_that_no_limit_holds_are_found(foreign, monkeypatch):
    honest = engines.run
    monkeypatch.setattr(simulations.battery, "run", lambda *given, max_reply_bytes=0, **more: honest(*given, **more))
    assert foreign(Foreign) == {"bytes"}
