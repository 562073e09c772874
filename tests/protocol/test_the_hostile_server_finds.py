"""The random server finds each of the ways in that sites once had, when it is put back."""

from dataclasses import replace

import pytest

from fedpca_flwr.errors import ContractError
from fedpca_flwr.protocol.client import PCAClient
from strategies import METHODS
from tests.protocol import test_hostile_server as hostile
from tests.protocol.scripts import written

IN_ORDER = hostile.test_a_run_may_ask_what_was_written_down_and_not_its_end_first_nor_anything_after


def ask_at_random(script, folder):
    """As the suite itself does, with its seed."""
    (seed,) = [seed for drawn, seed in hostile.DRAWN if drawn == script]
    hostile.test_a_party_answers_its_script_and_nothing_else_and_one_row_does_not_show(script, seed, folder)


@pytest.mark.engine
def test_a_last_round_that_answers_anything(monkeypatch, tmp_path):
    """Any components, before there was a fit, and any number of times."""
    script = written("dp-pca epsilon=0.1 release=two-stage clip=400.0 centre-clip=400.0: centre, products, project!")
    ask_at_random(script, tmp_path / "as it is")
    monkeypatch.setattr(PCAClient, "evaluate", lambda self, *_: (0.0, 1, self.site.about(self.card.split)))
    with pytest.raises(AssertionError):
        ask_at_random(script, tmp_path / "put back")


def test_a_party_without_a_script(monkeypatch, tmp_path):
    script = written("p-cov: moments, project")
    IN_ORDER(script, tmp_path / "as it is")
    monkeypatch.setattr("fedpca_flwr.protocol.client.require_next", lambda *args: None)
    with pytest.raises(AssertionError):
        IN_ORDER(script, tmp_path / "put back")


def test_a_limit_that_a_party_complains_of(monkeypatch, tmp_path):
    """It tells that this party's share is beyond it, limit after limit."""

    def complaining(party, phase, own, asked):
        try:
            return own.layout(asked, party.public).encode_sum([party.statistics(phase, asked)])
        except ValueError as error:
            raise ContractError(f"{error}: did this site's data change during the run?") from None

    monkeypatch.setattr("fedpca_flwr.transports.masked.encoded", complaining)
    script = written("vertical max-rounds=3 solver=gram masked: rows!, keys, energy, gram, project")
    with pytest.raises(AssertionError):
        ask_at_random(script, tmp_path)


def test_phases_of_a_solver_that_was_not_configured(monkeypatch, tmp_path):
    """A site that allows scores answered with all inner products."""
    card = METHODS["vertical"].strategy.card

    def of_all_solvers(config, options):
        gram = card.phases(config, options.model_copy(update={"solver": "gram"}))["gram"]
        rows, *others = card.phases(config, options).items()
        return dict([rows, ("gram", replace(gram, optional=True)), *others])

    monkeypatch.setattr(METHODS["vertical"].strategy, "card", replace(card, phases=of_all_solvers))
    with pytest.raises(AssertionError, match="gram"):
        IN_ORDER(written("vertical max-rounds=3: rows, product *3, project"), tmp_path)
