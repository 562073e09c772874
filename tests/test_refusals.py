"""A test of a refusal holds what the refusal names, and fails where it names something else."""

from pathlib import Path

import pytest

from fedpca_flwr.errors import ConfigError, DataError
from tests.refusals import refused, unnamed

TEXT = "client 1: 'min-rows' is 150 or 0.5 of -3, at /data/x.csv (2,048 bytes): shape (3, 5), keep='all'."


def test_a_part_of_a_key_is_no_match():
    whole = ["client 1", "min-rows", 150, 0.5, -3, "/data/x.csv", "x.csv", "2,048", "(3, 5)", "keep='all'", "'all'"]
    parts = [50, 15, 3.0, 3.5, "client 11", "rows", "min", 48, 2, "csv", "x", "'rows'"]
    assert unnamed(TEXT, *whole, *parts) == parts


@pytest.mark.parametrize("named", [["'step'", 7], ["'steps'", 8], []])
def test_another_refusal_fails_the_test(named):
    with pytest.raises(AssertionError), refused(ConfigError, *named):
        raise ConfigError("'step' is 8")
    with refused(ConfigError, "'step'", 8):
        raise ConfigError("'step' is 8")
    with pytest.raises(DataError), refused(ConfigError, "'step'", 8):
        raise DataError("'step' is 8")


MATCHES = 100
"""So many times, at most, tests hold a word of a message (`match=`): where two of one kind name the same."""


def test_rewording_a_message_turns_few_tests_red():
    texts = [path.read_text() for path in Path(__file__).parent.rglob("*.py") if path != Path(__file__)]
    assert sum(text.count("match=") for text in texts) <= MATCHES, "hold what is named: tests/refusals.py"
