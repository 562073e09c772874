"""One loop drives every program, however its answers travel."""

from pathlib import Path

from fedpca_flwr.protocol.question import Ask, Sum
from fedpca_flwr.protocol.transport import relayed

ROOT = Path(__file__).parents[2]


def program():
    first = yield Ask("first")
    second = yield Sum("second")
    return first, second


def driven(put):
    """The phases that a relayed program asks, each answered by its name, and what the program returns."""
    run, asked, answer = relayed(program(), put), [], None
    while True:
        try:
            answer = run.send(answer).phase
        except StopIteration as end:
            return asked, end.value
        asked.append(answer)


def test_a_question_may_bring_another_or_be_answered_without_being_asked():
    def put(question):
        if not isinstance(question, Sum):
            return (yield question)
        keys = yield Ask("keys")
        return keys, (yield question)

    assert driven(put) == (["first", "keys", "second"], ("first", ("keys", "second")))

    def answered(question):
        if isinstance(question, Sum):
            return None
        return (yield question)

    assert driven(answered) == (["first"], ("first", None))


def test_nothing_but_the_relay_and_the_strategy_drives_a_program():
    folders = [ROOT / "fedpca_flwr", ROOT / "strategies"]
    found = {
        path.relative_to(ROOT) for folder in folders for path in folder.rglob("*.py") if ".send(" in path.read_text()
    }
    assert found == {Path("fedpca_flwr/protocol/transport.py"), Path("fedpca_flwr/protocol/strategy.py")}
