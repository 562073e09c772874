"""What somebody else wrote never moves a cursor, forges a line, or turns the direction of writing."""

import sys
import unicodedata

import pytest

from fedpca_flwr.errors import ConfigError, ContractError, FedPCAError, printable_text, value_text
from fedpca_flwr.figures import markdown
from fedpca_flwr.protocol.admission import MESSAGES, ErrorReport, parse_info, reported_errors
from tests.families import cut, rows
from tests.harness import finish, server_of, tamper

EVIL = "a\x1b[2J\u202eb\u2028c\x85d\u200be\x07"
CLEAN = "a?[2J?b?c?d?e?"


@pytest.mark.engine
def test_no_character_that_controls_or_turns_anything_is_left():
    every = "".join(map(chr, range(sys.maxunicode + 1)))
    kinds = {unicodedata.category(one) for one in printable_text(every)}
    assert not kinds & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    printable_text(every).encode()  # half a surrogate pair could not be
    assert printable_text("a\nb", lines=True) == "a\nb"
    assert printable_text("a\nb") == "a?b"
    assert printable_text("Zürich, 東京 3 °C") == "Zürich, 東京 3 °C"


def test_errors_tables_and_clients_hold_no_foreign_text():
    for kind in (FedPCAError, ConfigError, ContractError):
        error = kind(f"x: {EVIL}\ny", local=EVIL)
        assert (str(error), error.local, error.__notes__) == (f"x: {CLEAN}\ny", CLEAN, [CLEAN])
    assert markdown.row([f"{EVIL}\n", 3]) == f"| {CLEAN}? | 3 |"
    assert value_text("x" * 300) == f"'{'x' * 199}..."
    assert (value_text([1.5, 2.5]), value_text(["a", 2.5]), value_text(["a"])) == (*["of type list"] * 2, "['a']")
    with pytest.raises(ContractError) as caught:
        parse_info({"partition-id": 0, "num-partitions": 3, "simulated": True, f"{EVIL}\nclient 2": "x"})
    assert str(caught.value).isprintable()
    message = f"mine\nclient 0: it has 3 rows{EVIL}\nlast"
    report = {"partition-id": 1, "error": "DataError", "message": message, "messages": MESSAGES}
    (told,) = reported_errors([ErrorReport.parse(report)])
    assert str(told) == f"client 1: mine\nclient 1: client 0: it has 3 rows{CLEAN}\nclient 1: last"


def test_the_server_shows_none_of_a_hostile_partys(capfd):
    server = server_of("p-cov", cut(rows(300), 180, 100, 20), n_components=2)
    said = {"partition-id": 1, "error": "DataError", "message": f"{EVIL}\nclient 0: lied"}
    tamper(server, 1, lambda reply: setattr(reply, "metrics", said) or reply)
    with pytest.raises(FedPCAError) as caught:
        finish(server)
    assert all(line.startswith("client 1: ") and line.isprintable() for line in str(caught.value).split("\n"))
    assert not {"\u202e", "\x07"} & set("".join(capfd.readouterr()))
