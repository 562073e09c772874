"""The random server finds each of the ways in that sites once had, when it is put back."""

from dataclasses import replace

import pytest

from fedpca_flwr.errors import ContractError
from fedpca_flwr.protocol.client import PCAClient
from strategies import METHODS
from tests.protocol import test_hostile_server as hostile
from tests.protocol.scripts import SCRIPTS

SEEDS = range(5)
"""Those that the suite itself takes."""


def script_named(text):
    return next(script for script in SCRIPTS if str(script) == text)


def finds(test, script, folder, seeds=SEEDS):
    """Whether the random server fails its test with any seed."""
    for seed in seeds:
        try:
            test(script, seed, folder / str(seed))
        except AssertionError:
            return True
    return False


def test_a_last_round_that_answers_anything(monkeypatch, tmp_path):
    """Any components, before there was a fit, and any number of times."""

    def evaluate(self, parameters, config):
        return 0.0, 1, self.site.about(self.card.split)

    script = script_named("dp-pca n-components=2 epsilon=0.1 release=two-stage clip=400.0 centre-clip=400.0")
    assert not finds(hostile.test_a_party_answers_its_script_and_nothing_else, script, tmp_path / "as it is", range(3))
    monkeypatch.setattr(PCAClient, "evaluate", evaluate)
    assert finds(hostile.test_a_party_answers_its_script_and_nothing_else, script, tmp_path / "put back", range(3))


def test_a_party_without_a_script(monkeypatch, tmp_path):
    script = script_named("p-cov n-components=2")
    hostile.test_the_last_question_is_not_answered_before_the_others(script, tmp_path / "as it is")
    monkeypatch.setattr("fedpca_flwr.protocol.client.require_next", lambda *args: None)
    with pytest.raises(AssertionError):
        hostile.test_the_last_question_is_not_answered_before_the_others(script, tmp_path / "put back")


def test_a_limit_that_a_party_complains_of(monkeypatch, tmp_path):
    """It tells that this party's share is beyond it, limit after limit."""

    def complaining(party, phase, own, asked):
        try:
            return own.layout(asked, party.public).encode_sum([party.statistics(phase, asked)])
        except ValueError as error:
            raise ContractError(f"{error}: did this site's data change during the run?") from None

    script = script_named("vertical n-components=2 max-rounds=3 solver=gram secure-aggregation=True")
    monkeypatch.setattr("fedpca_flwr.transports.masked.encoded", complaining)
    assert finds(hostile.test_one_row_more_or_less_does_not_show, script, tmp_path)


def test_phases_of_a_solver_that_was_not_configured(monkeypatch, tmp_path):
    """A site that allows scores answered with all inner products."""
    script = script_named("vertical n-components=2 max-rounds=3")
    card = METHODS["vertical"].strategy.card

    def of_all_solvers(config, options):
        gram = card.phases(config, options.model_copy(update={"solver": "gram"}))["gram"]
        rows, *others = card.phases(config, options).items()
        return dict([rows, ("gram", replace(gram, optional=True)), *others])

    monkeypatch.setattr(METHODS["vertical"].strategy, "card", replace(card, phases=of_all_solvers))
    with pytest.raises(AssertionError):
        hostile.test_what_a_run_may_ask_is_what_was_written_down(script, tmp_path)
