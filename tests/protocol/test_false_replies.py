"""A party whose numbers are no part of anything: one sentence of ours or a finite model, never NumPy's own words."""

import warnings

import numpy as np
import pytest

from fedpca_flwr.errors import ConfigError, ContractError, FedPCAError
from fedpca_flwr.protocol.replies import Magnitudes
from fedpca_flwr.strategies import METHODS
from fedpca_flwr.transports import encoding, masked, surviving
from fedpca_flwr.transports.recommendation import transports_of
from tests.families import cut, rows
from tests.harness import finish, fit, own, server_of, tamper_arrays
from tests.refusals import refused, unnamed

CARDS = {name: method.strategy.card for name, method in METHODS.items()}
FITTING = [name for name, card in CARDS.items() if not card.loadings_source]
"""Methods that compute a model of what parties reply."""

CASES = [(name, n) for name in FITTING for n in range(len(CARDS[name].examples))]
"""Every method with each set of options of its card; what is false takes turns."""

SECURE = {"secure_aggregation": True, "bound": 100.0, "min_parties": 2}
WAYS = {"masked": SECURE, "surviving": {**SECURE, "survivors": 3}}


def times(factor):
    return lambda values: values * factor


HUGE = {
    **{f"times {factor}": times(factor) for factor in (1e300, 1e200)},
    "up to 1e308": lambda values: values * (1e308 / (np.abs(values).max(initial=0.0) or 1.0)),
    "all 1e308": lambda values: np.full_like(values, 1e308),
}
FALSE = {
    **HUGE,
    "times 1e+150": times(1e150),
    "times 1e-300": times(1e-300),
    "zero": np.zeros_like,
    "negative": np.negative,
}
PLACES = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0)]
"""Questions and fields, by their number."""


def in_turn(every, times):
    """Return each case with a value from a cycle; a method's first options get several values."""
    drawn = iter(list(every) * len(CASES) * times)
    return [(*case, next(drawn)) for case in CASES for _ in range(1 if case[1] else times)]


def parties_of_three(method, example):
    if CARDS[method].split == "columns":
        return np.split(rows(60), [6, 10], axis=1)
    parties = cut(rows(300), 180, 100, 20)
    return [np.digitize(part, [-0.1, 0.1]) * 1.0 for part in parties] if example.get("genotypes") else parties


def outcome(method, number, change, *, field=None, round_number=None):
    """Return the error's text, or an empty text, of a run in which client 1's real numbers are changed.

    Only this array of a reply is changed, and only in the reply to this question, if their numbers are given.
    """
    example, before = CARDS[method].examples[number], []
    options = {"n_components": 2, **example, **own(method)}  # what a run needs here, as a state of its own
    server = server_of(method, parties_of_three(method, example), **options)

    def changed(arrays):
        before.append(None)
        if round_number is not None and len(before) - 1 != round_number:
            return arrays
        with np.errstate(all="ignore"):
            return [
                change(array).astype(array.dtype) if array.dtype.kind == "f" and field in {None, i} else array
                for i, array in enumerate(arrays)
            ]

    tamper_arrays(server, 1, changed)
    return run_to_end(server)


def run_to_end(server):
    """Return the text of the run's error, or an empty text if the model is finite."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        try:
            model = finish(server)
        except FedPCAError as error:
            return str(error)
    unknown = model.log["measured"].get("components_above_noise") == 0  # then no variance is told
    variances = () if unknown else (model.explained_variance_, model.explained_variance_ratio_)
    for values in (model.components_, model.scores_, *variances):
        assert values is None or np.isfinite(values).all()
    return ""


@pytest.mark.parametrize(("method", "number", "kind"), in_turn(FALSE, 3))
def test_a_false_reply_ends_in_our_words_or_in_a_model(method, number, kind):
    error_text = outcome(method, number, FALSE[kind])
    assert kind not in HUGE or not error_text or "client 1: " in error_text.split("\n")[0]


@pytest.mark.parametrize(("method", "number", "place"), in_turn(PLACES, 2))
def test_one_false_array_in_one_reply_does_too(method, number, place):
    round_number, field = place
    error_text = outcome(method, number, times(1e300), field=field, round_number=round_number)
    assert not error_text or "client 1: " in error_text.split("\n")[0]


def ends_randomly(words, start):
    return np.append(words[:start], np.random.default_rng(0).integers(0, 2**64, words.size - start, np.uint64))


SHARES = {
    "random words": lambda words: ends_randomly(words, 1),
    "half random": lambda words: ends_randomly(words, words.size // 2),
    "negative": lambda words: np.append(words[:1], -words[1:]),
}
SUMS = [(name, way) for name in FITTING for way in transports_of(METHODS[name]) if way in WAYS]


@pytest.mark.parametrize(
    ("method", "way", "share"),
    [(*one, share) for i, one in enumerate(SUMS) for share in (list(SHARES)[i % 3], list(SHARES)[(i + 1) % 3])],
)
def test_a_false_share_of_a_secure_sum_does_too(method, way, share, monkeypatch):
    """Client 1 follows all rules and counts itself once, but adds words that are no part of anything."""
    honest = encoding.encode_answer

    def encoded(party, *arguments):
        vector = honest(party, *arguments)
        return SHARES[share](vector) if party.site.node.partition_id == 1 else vector

    for module in (masked, surviving):
        monkeypatch.setattr(module, "encode_answer", encoded)
    assert "client 1" not in run_to_end(server_of(method, parties_of_three(method, {}), n_components=2, **WAYS[way]))


def test_false_numbers_are_told_with_those_of_the_others():
    guard = Magnitudes(sums_only=True).guard("scatter", {"client 0": 1e300, "client 1": 1.0})
    with refused(ContractError, "'scatter'", "LinAlgError"), guard:
        raise np.linalg.LinAlgError
    server = server_of("spca", parties_of_three("spca", {}), n_components=2)
    tamper_arrays(server, 1, lambda arrays: [a * 1e300 if a.dtype.kind == "f" else a for a in arrays])
    with refused(ContractError, "client 1", "'summary'", "1.39e+302", "85.2") as caught:
        finish(server)
    assert isinstance(caught.value.__cause__, FloatingPointError)
    # The fault: a party in a large unit was blamed for the value of an option.
    parties = [rows(10, 3), rows(10, 3, seed=1) * 1e90]
    with pytest.raises(ConfigError) as caught:
        fit("vertical", parties, n_components=3, solver="merge", rank=1)
    option, sizes = str(caught.value).splitlines()
    assert not unnamed(option, "'rank'", 1, "n_components", 3)
    assert not unnamed(sizes, "party 1", "'rows'")


def test_a_failure_that_no_size_explains_names_nobody(monkeypatch):
    server = server_of("p-cov", parties_of_three("p-cov", {}), n_components=2)
    honest = type(server.strategy).program

    def failing(self):
        yield next(honest(self))
        raise np.linalg.LinAlgError("of the library")

    monkeypatch.setattr(type(server.strategy), "program", failing)
    with refused(ContractError, "'moments'") as caught:
        finish(server)
    assert "of the library" not in str(caught.value)
