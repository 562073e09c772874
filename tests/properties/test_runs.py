"""Runs of every method on drawn data, options and transports, each held against linear algebra of its own."""

import pytest
from hypothesis import event, given, note, target
from hypothesis import strategies as st

from fedpca_flwr.strategies import METHODS
from tests.properties.checks import findings, tightness
from tests.properties.profiles import examples
from tests.properties.running import run_draw
from tests.properties.strategies import runs

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("method", METHODS)
@examples(15)
@given(data=st.data())
def test_a_model_is_what_it_says_and_a_refusal_has_a_reason(method, data):
    run = data.draw(runs(method))
    outcome = run_draw(run)
    event(f"{method}, {run.transport}, {'refused' if outcome.error else 'model'}")
    note(str(outcome.error or outcome.model.summary()))
    problems = findings(run, outcome)
    target(tightness(run, outcome.model), label="angle by its bound")
    assert not problems, "\n".join(problems)
