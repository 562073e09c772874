"""A test of a refusal holds what the refusal names, and fails where it names something else."""

from pathlib import Path

import pytest

from fedpca_flwr.errors import ConfigError, DataError
from tests.refusals import refused, unnamed

TEXT = "client 1: 'min-rows' is 150 or 0.5 of -3, at /data/x.csv (2,048 bytes): shape (3, 5), keep='all'."


@pytest.mark.parametrize(
    "one", ["client 1", "min-rows", 150, 0.5, -3, "/data/x.csv", "x.csv", "2,048", "(3, 5)", "keep='all'", "'all'"]
)
def test_a_key_or_a_value_is_found_as_a_whole(one):
    assert not unnamed(TEXT, one)


@pytest.mark.parametrize("one", [50, 15, 3.0, 3.5, "client 11", "rows", "min", 48, 2, "csv", "x", "'rows'"])
def test_a_part_of_one_is_not_found(one):
    assert unnamed(TEXT, one) == [one]


@pytest.mark.parametrize(
    ("kind", "named"), [(ConfigError, ["'step'", 7]), (ConfigError, ["'steps'", 8]), (ConfigError, [])]
)
def test_another_refusal_fails_the_test(kind, named):
    with pytest.raises(AssertionError), refused(kind, *named):
        raise ConfigError("'step' is 8")
    with refused(kind, "'step'", 8):
        raise ConfigError("'step' is 8")
    with pytest.raises(DataError), refused(kind, "'step'", 8):
        raise DataError("'step' is 8")


MATCHES = 100
"""So many times, at most, tests hold a word of a message (`match=`): where two of one kind name the same."""


def test_rewording_a_message_turns_few_tests_red():
    texts = [path.read_text() for path in Path(__file__).parent.rglob("*.py") if path != Path(__file__)]
    assert sum(text.count("match=") for text in texts) <= MATCHES, "hold what is named: tests/refusals.py"
