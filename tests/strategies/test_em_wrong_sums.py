"""EM where what a party sends cannot be, and where a feature is constant: errors and models that say so."""

import numpy as np
import pytest

from fedpca_flwr.errors import ContractError
from fedpca_flwr.questions.incomplete_client import IncompleteClient
from tests.families import cut, rows
from tests.harness import fit
from tests.strategies.test_em import SUMS, parties_of_three

MODELS = [("gaussian", "expected"), ("factors", "products")]


def altered(monkeypatch, phase, change, field=None):
    """Party 1 changes what it answers to the first question of a phase."""
    honest = IncompleteClient.statistics

    def statistics(self, asked_in, asked):
        answer = honest(self, asked_in, asked)
        if asked_in != phase or self.site.node.partition_id != 1:
            return answer
        wrong = {name: change(value) if field in (None, name) else value for name, value in answer.items()}
        return {**wrong, **{name: answer[name] for name in ("count", "empty") if name in answer}}

    monkeypatch.setattr(IncompleteClient, "statistics", statistics)


@pytest.mark.parametrize(("model", "step"), MODELS)
@pytest.mark.parametrize("way", [{}, {**SUMS, "bound": 1e3}], ids=["clear", "masked"])
def test_sums_of_no_rows_are_a_share_that_is_false(monkeypatch, model, step, way):
    field = {"expected": "second", "products": "product"}[step]
    altered(monkeypatch, step, lambda value: -value, field)
    parties = parties_of_three()[1::-1]  # the larger one is altered
    with pytest.raises(ContractError, match="share|client 1: .*diagonal"):
        fit("em", parties, n_components=2, model=model, **way)


@pytest.mark.parametrize("model", ["gaussian", "factors"])
@pytest.mark.parametrize("value", [0.0, 5.3])
def test_a_constant_feature_is_not_scaled_by_what_fixed_point_leaves_of_it(model, value):
    """The fault: its scale was 1e-29, and a new row in which it differs had scores of 1e22."""
    X = rows(100, 8)
    X[:, 5] = value
    X[::7, 5] = X[::9, 2] = np.nan
    parties, options = cut(X, 13, 32, 55), {"n_components": 2, "model": model, "scale": True}
    clear, masked = fit("em", parties, **options), fit("em", parties, **options, **SUMS, bound=1e3)
    new = X[:1] + 1.0
    np.testing.assert_allclose(masked.scale_, clear.scale_, rtol=1e-9)
    assert masked.scale_[5] == 1.0
    np.testing.assert_allclose(masked.transform(new), clear.transform(new), atol=1e-4)
    if value == 0:
        assert any("1 features were taken for constant" in note for note in masked.log["notes"])
