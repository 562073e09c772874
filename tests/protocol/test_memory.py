"""A reply that is too large, or needs too much memory, is refused before anything is computed, with what would do."""

import re

import numpy as np
import pytest

from fedpca_flwr.errors import ConfigError, DisclosureError
from fedpca_flwr.protocol import memory
from simulations import run
from strategies import METHODS, transports_of
from tests.families import cut, rows
from tests.harness import own
from tests.refusals import refused

WIDE = [np.random.default_rng(i).standard_normal((12, 100_000)) for i in range(3)]
SECURE = {"secure_aggregation": True, "bound": 10.0}


@pytest.fixture
def nobody_computes(monkeypatch):
    """No party gets as far as its statistics."""

    def computed(*args):
        raise AssertionError("a party computed")

    for method in METHODS.values():
        monkeypatch.setattr(method.client, "statistics", computed)


@pytest.mark.usefixtures("nobody_computes")
@pytest.mark.parametrize("options", [{}, SECURE, {**SECURE, "survivors": 3}], ids=["clear", "masked", "surviving"])
def test_a_covariance_of_too_many_features_is_refused_with_the_methods_that_do(options):
    with refused(DisclosureError, "client 0", "2,147,483,648", "max_reply_bytes") as caught:
        run("p-cov", WIDE, n_components=3, **options)
    assert ("sub-it (" in str(caught.value)) == ("survivors" not in options)
    assert ("qr-pca (" in str(caught.value)) == (not options)
    assert "streaming (" not in str(caught.value)


@pytest.mark.usefixtures("nobody_computes")
@pytest.mark.parametrize("method", ["p-cov", "compressed"])
def test_so_is_one_that_a_party_has_not_the_memory_for(method, monkeypatch, caplog):
    monkeypatch.setattr(memory, "memory", lambda: 2**30)
    with refused(ConfigError, "client 0", match=r"\b40,00\d,\d{3},\d{3} bytes") as caught:
        run(method, WIDE, n_components=3, max_reply_bytes=10**12)
    assert f"{2**30:,}" not in str(caught.value)  # what the site has is its own affair
    assert f"{2**30:,}" in caplog.text


@pytest.mark.usefixtures("nobody_computes")
def test_the_server_refuses_what_it_cannot_add_up(monkeypatch):
    monkeypatch.setattr(memory, "memory", lambda: 60_000)
    parties = cut(rows(60, 90), 20, 20, 20)
    with refused(ConfigError, "p-cov", "34,000", 90, "60,000", "68,000") as caught:
        run("p-cov", parties, n_components=3)
    assert "sub-it (" in str(caught.value)


def test_methods_that_are_named_do(monkeypatch):
    """Each keeps to the limit, with just as many bytes as is said."""
    parties, limit = cut(rows(90, 60), 30, 30, 30), 9_000
    with pytest.raises(DisclosureError) as caught:
        run("p-cov", parties, n_components=2, max_reply_bytes=limit)
    named = re.findall(r"([\w-]+) \(([\d,]+) bytes", str(caught.value).splitlines()[0])
    assert {name for name, _ in named} == {"sub-it"}
    for name, said in named:
        model = run(name, parties, n_components=2, max_reply_bytes=limit)
        assert max(max(entry["up"]) for entry in model.log["rounds"]) <= int(said.replace(",", "")) <= limit


CARDS = {name: method.strategy.card for name, method in METHODS.items()}
ALONE = [name for name, card in CARDS.items() if not card.after and "state" not in card.examples[0]]
"""Methods of which no run depends on an earlier one."""
EVERY = [(name, way) for name in ALONE for way in transports_of(METHODS[name])]


@pytest.mark.parametrize(("method", "way"), EVERY, ids=str)
def test_no_reply_is_larger_than_a_limit_that_lets_a_run_through(method, way):
    """What is forecast is never more than what is sent: a limit that replies keep is never refused."""
    by_rows = METHODS[method].strategy.card.split == "rows"
    data = rows(60)
    parties = cut(data, 20, 20, 20) if by_rows else np.array_split(data, 3, axis=1)
    options = {
        "n_components": 2,
        **own(method),
        **({} if way == "clear" else SECURE),
        **({"survivors": 3} if way == "surviving" else {}),
    }
    model = run(method, parties, **options)
    most = max(max(entry["up"]) for entry in model.log["rounds"])
    assert run(method, parties, max_reply_bytes=most, **options).n_components_ == 2
    with refused(DisclosureError, "max_reply_bytes"):
        run(method, parties, max_reply_bytes=most - 1, **options)
