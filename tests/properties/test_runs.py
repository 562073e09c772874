"""Runs of every method on drawn data, options and transports, each held against linear algebra of its own."""

import pytest
from hypothesis import event, given, note, target
from hypothesis import strategies as st

from fedpca_flwr.simulations.records import card_of
from fedpca_flwr.strategies import METHODS
from tests.properties.checks import findings, tightness
from tests.properties.profiles import examples
from tests.properties.running import run_draw
from tests.properties.strategies import runs, unfinished

pytestmark = pytest.mark.engine

ITERATIONS = [name for name in METHODS if {"block_size", "max_rounds"} <= card_of(name).options.model_fields.keys()]


def assert_right(run):
    """Run a draw, and assert that nothing is wrong with its outcome."""
    outcome = run_draw(run)
    event(f"{run.method}, {run.transport}, {'refused' if outcome.error else 'model'}")
    note(str(outcome.error or outcome.model.summary(full=True)))
    problems = findings(run, outcome)
    target(tightness(run, outcome.model), label="angle by its bound")
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("method", METHODS)
@examples(3)
@given(data=st.data())
def test_a_model_is_what_it_says_and_a_refusal_has_a_reason(method, data):
    assert_right(data.draw(runs(method)))


@pytest.mark.parametrize("method", ITERATIONS)
@examples(3)
@given(data=st.data())
def test_certificates_of_stopped_iterations_hold(method, data):
    assert_right(data.draw(unfinished(method)))
