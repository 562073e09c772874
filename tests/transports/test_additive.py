"""Secure sums are the same however the pooled rows are divided, or else a site's node-config must name their words."""

from contextlib import suppress

import numpy as np
import pytest

from fedpca_flwr.errors import FedPCAError
from fedpca_flwr.strategies import METHODS
from fedpca_flwr.transports.encoding import MaskedSum
from fedpca_flwr.transports.recommendation import EXAMPLE_CONFIGS, script_or_none
from tests.harness import CLUSTER_STEPS, fit, own
from tests.hostile import HostileSession
from tests.options import option_values
from tests.refusals import unnamed

N, D, BOUND = 240, 6, 1e3
CARDS = {name: method.strategy.card for name, method in METHODS.items()}
SUMMING = [name for name, card in CARDS.items() if not (card.differentially_private or card.loadings_source)]
"""Methods whose sums can be compared: no noise, and no model that another run has left."""
FURTHER = {
    "p-cov": [{"adjust_for": "0"}, {"clusters": 2, "scale": True}, {"outliers": "counts", "fourth_moments": True}],
    "compressed": [{"corrections": 2}, {"tolerance": 1e-6}],
    "personalised": [{"mu": 1.0}, {"mu": "infinity"}, {"mu": 1.0, "solver": "stiefel"}],
}
"""Options that no list of values has."""


def divisions(method, options):
    """Divide in three ways rows of different groups with a few outliers, for EM with gaps in a single pattern."""
    rng = np.random.default_rng(7)
    rows = np.round(rng.standard_normal((N, D)) @ (np.eye(D) + 0.4 * rng.standard_normal((D, D))) * 5 + 40, 2)
    rows[:80] += 3.0
    rows[80:160] = rows[80:160] * 1.5 - 25
    rows[::9] *= 1.7
    if CARDS[method].incomplete:
        rows[::3, 2] = np.nan
    if options.get("genotypes"):
        rows = rng.binomial(2, rng.uniform(0.2, 0.8, D), (N, D)).astype(float)
    if CARDS[method].split == "columns":
        return [np.split(rows, at, axis=1) for at in ([2, 4], [1, 5], [3, 4])]
    turns, shuffled = np.arange(N).reshape(-1, 3).T.ravel(), np.random.default_rng(3).permutation(N)
    orders = (slice(None), [80, 160]), (turns, [60, 150]), (shuffled, [100, 190])
    return [np.split(rows[order], at) for order, at in orders]


def option_sets(method):
    card = CARDS[method]
    for example in card.examples:
        yield {key.replace("-", "_"): value for key, value in example.items() if key != "state"}
    listed = option_values(method, 2, N, D)
    listed.pop("n_components", None)
    for name, values in listed.items():
        default = card.options.model_fields[name].default
        yield from ({name: value} for value in values if isinstance(value, str | bool) and value != default)
    yield from FURTHER.get(method, [])


CASES = {}
for name in SUMMING:
    for options in option_sets(name):
        with suppress(FedPCAError):
            if script_or_none(METHODS[name], EXAMPLE_CONFIGS["masked"], options):
                CASES[f"{name} {options}"] = name, options


@pytest.mark.parametrize(("method", "options"), CASES.values(), ids=CASES)
def test_what_a_site_answers_by_default_adds_up(method, options, tmp_path, monkeypatch):
    monkeypatch.setattr(*CLUSTER_STEPS)
    options = {"max_rounds": 12, **options} if method == "em" else options
    ways = divisions(method, options)
    run = {"method": method, "n_components": 2, "secure_aggregation": True, "bound": BOUND, **own(method), **options}
    run = {name.replace("_", "-"): value for name, value in run.items()}
    site = HostileSession(tmp_path, ways[0][0], run, **{"may-show": "inner products", "allowed-methods": ""})
    refusal = site.client.get_properties({}).get("message", "")
    if not refusal:
        results, decode = [], MaskedSum.decode
        monkeypatch.setattr(MaskedSum, "decode", lambda *said: results[-1].append(decode(*said)) or results[-1][-1])
        for parties in ways:
            results.append([])
            fit(method, parties, n_components=2, secure_aggregation=True, bound=BOUND, **options)
        first, *further = results
        assert first
        for total, other in [pair for sums in further for pair in zip(first, sums, strict=True)]:
            for name in total:  # are equal up to rounding in fixed point, and in float64 if much cancels
                rounding = 4 * np.max(total.error_bounds[name], initial=0.0) + 1e-13 * N * BOUND
                atol = 1e-9 * float(np.abs(total[name]).max(initial=0.0)) + rounding
                np.testing.assert_allclose(total[name], other[name], rtol=0, atol=atol, err_msg=name)
        return
    words = CARDS[method].options.parse(options).sum_disclosures
    assert words
    assert not unnamed(refusal, "'allowed-methods'", *(f"'{word}'" for word in words))
    for named, permitted in ((method, set(words) == {method}), (" ".join([method, *words]), True)):
        site.context.node_config["allowed-methods"] = named
        assert ("message" not in site.client.get_properties({})) == permitted
    run["secure-aggregation"] = False
    in_clear = HostileSession(tmp_path / "in clear", ways[0][0], run, **{"may-show": "scores"})
    assert "message" not in in_clear.client.get_properties({})
