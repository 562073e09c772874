"""The one key that holds a method and its own options; the same run is the same text."""

import json

import pytest
from flwr.app import Context, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from fedpca_flwr import run
from fedpca_flwr.config import method_text
from fedpca_flwr.config.method_text import format_method, non_defaults, require_same_settings, shared_settings
from fedpca_flwr.errors import ConfigError
from fedpca_flwr.strategies import FACTORY, METHODS
from tests.families import cut, rows
from tests.properties.profiles import examples
from tests.refusals import refused, unnamed

KINDS = {name: method.strategy.card.options for name, method in METHODS.items()}


def read(text):
    return method_text.parse_options(text, KINDS[text.split()[0]], {})


def refusal(**run_config):
    with pytest.raises(ConfigError) as caught:
        FACTORY.strategy({key.replace("_", "-"): value for key, value in run_config.items()})
    return str(caught.value)


def test_words_are_a_shells_and_values_those_of_toml():
    for text, key, value in (
        *((f"sub-it {key}=10", "block_size", 10) for key in ("block-size", "block_size")),
        *((f"sub-it tolerance={text}", "tolerance", float(text)) for text in ("1e-3", "1")),
        *(("p-cov scale=true", "scale", True), ("dp-pca release=joint clip=1_000", "clip", 1000.0)),
        *((f"personalised mu={mu}", "mu", mu) for mu in ("infinity", 0.5)),
        ('streaming leave="hospital 1, hospital 2"', "leave", "hospital 1, hospital 2"),
        ("streaming leave='Saint Mary'\"'s\"", "leave", "Saint Mary's"),
        *((f"streaming state={path}", "state", path) for path in ("2024", "true", "a#b=c", r"C:\Users\me")),
    ):
        option = getattr(read(text), key)
        assert (text, option, type(option)) == (text, value, type(value))


def test_a_value_of_another_kind_is_not_guessed():
    for text, *named in (
        *((f"p-cov scale={value}", "'scale'", value, "true", "false") for value in ("yes", "True", 1, "2024-01-01")),
        *((f"sub-it block-size={value}", "block-size", value, 0) for value in ("[1]", 4.0)),
        ("sub-it tolerance=inf", "'tolerance'", "inf", 0, 90),
    ):
        with refused(ConfigError, *named):
            read(text)


def test_all_faults_are_told_at_once_and_where_options_and_keys_belong():
    told = refusal(method="sub-it blok-size=10 max-rounds=3 max-rounds=4 tolerance=x wire bound=2 =5")
    expected = [["sub-it", "blok-size", "block-size", "wire", "center", "scale"], ["max-rounds"]]
    expected += [["'wire'", "key=value"], ["'bound'", "'method'"], ["'=5'", "key=value"], ["'tolerance'", "'x'", 0, 90]]
    assert not any(unnamed(line, *named) for line, named in zip(told.splitlines(), expected, strict=True))
    with refused(ConfigError, "block_size"):
        run("sub-it block-size=3", cut(rows(60), 40, 20), n_components=2, block_size=4)
    assert FACTORY.strategy({"method": "p-cov", "n-components": 0.9}).options.n_components == 0.9
    text = refusal(method="sub-it wire=float32", block_size=10, rank=3, seed=1)
    words = ["block-size", "sub-it", "sapca", "vertical", "'rank'", "qr-pca"]
    assert not unnamed(text, *words, "method='sub-it wire=float32 block-size=10'")
    assert not unnamed(refusal(method="p-cov n-components=3"), "n-components", "'method'")
    assert not unnamed(refusal(method="dsa", n_components=0.9), "n-components", 0.9, 1)
    assert not unnamed(refusal(sede=1), "'sede'", "'seed'")
    assert "quote" in refusal(method="streaming leave='hospital 1")


def test_the_same_run_is_the_same_text():
    for text in ("scale=true block-size=4 tolerance=1e-6", " tolerance=0.000001 'block-size=4' scale=\"true\""):
        assert format_method("sub-it", non_defaults(read(f"sub-it {text}"))) == "sub-it block-size=4 scale=true"
    assert format_method("p-cov", non_defaults(read("p-cov center=true"))) == "p-cov"
    assert format_method("streaming", non_defaults(read("streaming state='a b'"))) == "streaming state='a b'"


@examples(30)
@given(st.text(min_size=1), st.floats(0, allow_infinity=False), st.integers(0), st.booleans())
def test_the_text_of_a_run_is_read_back_as_that_run(leave, mu, bits, scale):
    drawn = {"streaming": {"leave": leave, "scale": scale}, "personalised": {"mu": mu, "iterations": 1 + bits}}
    for name, options in drawn.items():
        parsed_options = KINDS[name].parse(options)
        assert read(format_method(name, non_defaults(parsed_options))) == parsed_options


def client_of(run_config):
    return FACTORY.client(Context(1, 1, {"partition-id": 0, "num-partitions": 3}, RecordDict(), run_config))


def test_server_and_party_read_the_same_options():
    options = {"block-size": 4, "scale": True, "n-components": 3, "max-rounds": 7}
    config = METHODS.run_config({"method": "sub-it", **options})
    assert config == {"method": "sub-it block-size=4 max-rounds=7 scale=true", "n-components": 3}
    client = client_of(config)
    strategy = FACTORY.strategy(config)
    assert client.options == strategy.options
    assert list(client.script) == list(strategy.script)
    settings = shared_settings("sub-it", client.options, strategy.config)
    assert settings.items() >= {"method": "sub-it", **options}.items()
    require_same_settings(settings, json.dumps(settings))
    for other, named, others in (
        ({"method": "p-cov", "scale": False}, ["'method'", "'sub-it'", "'p-cov'"], ["'scale'", "'seed'"]),
        ({"scale": False}, ["'scale'", "True", "False"], ["'seed'"]),
    ):
        with refused(ConfigError, *named) as caught:
            require_same_settings(settings, json.dumps({**settings, **other}))
        assert unnamed(str(caught.value), "'scale'", "'seed'") == others
    for text in ("3", "no JSON"):
        with refused(ConfigError):
            require_same_settings(settings, text)


def test_agreement_does_not_depend_on_spelling():
    """The text goes into the keys of secure aggregation."""

    def agreed(**config):
        client = client_of({"secure-aggregation": True, "bound": 1.0, **config})
        return client.site.configuration(client.card, client.options)

    assert len({agreed(), agreed(method="p-cov", seed=42), agreed(method="p-cov  center=true scale=false")}) == 1
    assert len({agreed(), agreed(method="p-cov scale=true"), agreed(method="ap-cov"), agreed(seed=1)}) == 4
