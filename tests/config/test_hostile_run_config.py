"""Whatever a server writes into a run-config, a party answers with a refusal, raises nothing, and at little cost."""

import difflib
import json
import random
from unittest.mock import Mock

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from fedpca_flwr.config import method_text, run_config
from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.errors import ConfigError
from fedpca_flwr.protocol.admission import MAX_MESSAGE_CHARACTERS, ErrorReport
from fedpca_flwr.site_app import site_client
from fedpca_flwr.strategies import FACTORY
from tests.refusals import unnamed

LONG = "x" * 10**6
MANY_OPTIONS = "p-cov " + " ".join(f"a{i}=1" for i in range(1000))
ANYWHERE = [
    *(None, -1, 0, 1.5, float("nan"), float("inf"), True, 10**5000, b"\xff" * 100, [1], {"a": 1}, LONG, '"' * 9999),
    *("'a", """p-cov scale="'"'""", "a\nclient 0: b", "\x1b[2J", "\u202eabc", "\udc80", "\x00"),
    *("~root", "~nosuchuser/a", "a/" * 4000, 'a,"b'),
]
OF_METHODS = [
    *("nope", "p-cov \udc80=1", 'p-cov "a\nclient 0: b=1"', "sub-it block-size=9 block-size=9", MANY_OPTIONS),
    *(f"p-cov {'x' * 9000}=1", f"sub-it block-size={'1' * 5000}", "sub-it block-size=1979-05-27"),
]
OF_LEVELS = [
    *("[" * 200_000, '{"a":' * 100_000, '{"a": ["b", ' + "[" * 100_000, '{"a": [["b"]]}', '{"a": {"b": ["c"]}}'),
    *('{"a": [NaN]}', '{"a": ' + "9" * 9000 + "}", '{"a": ["b"], "a": ["c"]}', '{"a": ["\\ud800"]}'),
    *('{"a": ["\\u0000"]}', '{"\\u0000": ["a"]}', '{"a": ["b\\nclient 0: c"]}'),
]
KEYS = [*RunConfig.keys(), LONG, "data_root", "\x1b[2J", "\udc80", "a\nclient 0: b", ""]


def party_reports(config):
    """Return a party's answers to a run-config, asked in each way; nothing is raised, whose text would travel."""
    contexts = [Context(1, 1, {"partition-id": 1, "num-partitions": 3}, RecordDict(), config) for _ in range(3)]
    first, second, third = (site_client(context, context) for context in contexts)
    return [first.get_properties({}), second.fit([], {"phase": "moments"})[2], third.evaluate([], {})[2]]


def require_clean(reports, config):
    for report in (ErrorReport.parse(metrics) for metrics in reports if "error" in metrics):
        lines = report.message.split("\n")
        assert report.partition_id == 1
        assert all(line.isprintable() and not line.startswith("client 0") for line in lines)
        assert "failed with" not in report.message, config


def short(value):
    return "digits" if isinstance(value, int) and value > 1 else repr(value)[:40]


@pytest.mark.parametrize("value", [*ANYWHERE, *OF_METHODS], ids=short)
def test_every_value_at_every_key_is_answered(value):
    """A faulty text of a method is an ordinary text at all other keys."""
    for key in ("method", "dataset", "features") if value in OF_METHODS else KEYS:
        require_clean(party_reports({key: value}), key)


@pytest.mark.parametrize("value", OF_LEVELS, ids=short)
def test_texts_without_levels_are_refused_in_a_sentence(value):
    reports = party_reports({"levels": value, "method": "p-cov scale=true"})
    assert not any(metrics["error"] != "ConfigError" or unnamed(metrics["message"], "'levels'") for metrics in reports)
    require_clean(reports, value)


@pytest.mark.parametrize(("columns", "levels"), [(1, 1001), (1, 10**5), (10, 999), (9000, 1)])
def test_too_many_levels_are_refused_first(columns, levels, monkeypatch):
    """20,000 levels of 2,000 rows took 3.4 GB."""
    monkeypatch.setattr(np, "zeros", lambda *shape, **kind: pytest.fail("something is made"))
    declared = json.dumps({f"c{i}": [format(j, "x") for j in range(levels)] for i in range(columns)})
    for metrics in party_reports({"levels": declared, "method": "p-cov scale=true"}):
        assert metrics["error"] == "ConfigError"
        assert not unnamed(metrics["message"], "'levels'", "1,000", "10,000")


def test_random_run_configs_are_answered_and_no_refusal_is_longer_than_a_server_reads():
    rng = random.Random(24)
    for _ in range(150):
        config = {rng.choice(KEYS): rng.choice([*ANYWHERE, *OF_METHODS]) for _ in range(rng.randint(2, 6))}
        require_clean(party_reports(config), config)
    reports = party_reports({"method": "p-cov " + " ".join(f"a{i}=1" for i in range(99))})
    assert {len(metrics["message"]) for metrics in reports} == {MAX_MESSAGE_CHARACTERS} == {4000}


@pytest.mark.parametrize("text", ["\ud800", "\x00", "\x1b[2J", "\u202e", "\U000e0001"])
@pytest.mark.parametrize(
    "method",
    ["{}", "p-cov {}=1", "p-cov adjust-for={}", "streaming state={}", "streaming state=x leave={}", "sapca state={}"],
)
def test_no_text_is_raised_by_a_site_that_notes_it(method, text, tmp_path):
    """The fault: the journal could not write half of a surrogate pair, and its error travelled."""
    np.save(tmp_path / "rows.npy", np.random.default_rng(0).standard_normal((40, 4)))
    node = {"partition-id": 1, "num-partitions": 3, "journal": str(tmp_path / "journal"), "may-show": "distribution"}
    config = {"method": method.format(text), "n-components": 2}
    for phase in ("moments", "digest", "summary", "project"):
        context = Context(1, 1, {**node, "data": str(tmp_path / "rows.npy")}, RecordDict(), config)
        client = site_client(context, context)
        for metrics in (client.get_properties({}), client.fit([], {"phase": phase})[2], client.evaluate([], {})[2]):
            assert "failed with" not in str(metrics).encode().decode()


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"method": f"p-cov {LONG}=1"}, "'method' has 1,000,008 characters, expected at most 10,000"),
        ({"method": f"p-cov {'x' * 9000}=1"}, "an option's name has 9,000 characters, expected at most 64"),
        ({"method": "x" * 9000}, "'method' is 'xxx"),
        ({LONG: 1}, "a key has 1,000,000 characters, expected at most 64"),
        ({"dataset": LONG}, "'dataset' has 1,000,000 characters"),
        ({str(i): 1 for i in range(1000)}, "it has 1,000 keys, expected at most 100"),
        ({"method": MANY_OPTIONS}, "'method' has 1,000 options, expected at most 100"),
        ({"seed": 10**5000}, "'seed' is a whole number of more than 1,024 bits"),
        ({"data-root": "~"}, "'~'"),
    ],
)
def test_texts_that_are_too_long_are_not_compared(config, text, monkeypatch):
    """Looking for the nearest of the known names takes a time that grows with the name's length."""
    watched = Mock(wraps=difflib.get_close_matches)
    monkeypatch.setattr(difflib, "get_close_matches", watched)
    for metrics in party_reports(config):
        assert text in metrics["message"]
        assert len(metrics["message"]) <= 2000
    with pytest.raises(ConfigError):
        FACTORY.strategy(config)
    assert max((len(call.args[0]) for call in watched.mock_calls), default=0) <= run_config.MAX_KEY_CHARACTERS
    assert watched.call_count <= 2 * 2 * run_config.MAX_KEYS


def test_long_texts_and_paths_in_a_sites_own_home_are_taken():
    declared = {f"c{i}": [format(j, "x") for j in range(1000)] for i in range(9)}  # as many as there may be
    assert RunConfig.parse({"levels": json.dumps(declared)}).levels_by_column == declared
    assert len(RunConfig.parse({"features": ", ".join(f"gene {i}" for i in range(20_000))}).feature_names) == 20_000
    path = "a/" * 50
    assert RunConfig.parse({"data-root": path, "output": "x" * run_config.MAX_TEXT_CHARACTERS}).data_root == path
    assert method_text.split_method_text("p-cov " + "a=1 " * run_config.MAX_KEYS)[0] == "p-cov"
    node = NodeConfig.parse({"partition-id": 0, "num-partitions": 3, "scores": "~/scores.npz"}, source="node-config")
    assert node.scores == "~/scores.npz"
