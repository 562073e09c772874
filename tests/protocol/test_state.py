"""What Flower keeps for a party, and what it keeps no longer than the run."""

from flwr.app import RecordDict

from fedpca_flwr.errors import ContractError
from fedpca_flwr.protocol.journal import StateJournal
from tests.refusals import refused


def test_no_secret_outlives_its_run_however_it_ends():
    """Flower keeps the state after the run has ended."""
    state = RecordDict()
    journal = StateJournal(state)
    journal.begin("keys", "", b"options", lambda answered: None)
    journal.keep("private", b"a private key")
    assert StateJournal(state).recall("private") == b"a private key"
    journal.end("ContractError")
    assert StateJournal(state).recall("private") is None
    assert b"a private key" not in state["journal"].values()
    state = RecordDict()
    journal = StateJournal(state)
    journal.keep("private", b"a private key")

    def refuse(answered):
        raise ContractError("out of its script")

    with refused(ContractError):
        journal.begin("moments", "", b"options", refuse)
    assert journal.recall("private") is None
    journal = StateJournal(RecordDict())
    journal.begin("moments", "", b"options", lambda answered: None)
    journal.end("ContractError")
    with refused(ContractError):
        journal.begin("project", "", b"options", lambda answered: None)
