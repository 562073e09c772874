"""The bytes of every round that docs/secure-aggregation.md gives, against those of runs."""

import re
from pathlib import Path

import pytest

from tests.families import rows
from tests.harness import fit

PAGE = (Path(__file__).parents[2] / "docs" / "secure-aggregation.md").read_text()
TABLE = re.findall(r"^\| (masked|survivors|both) \| `(\w+)` \| `(.+?)` \| `(.+?)` \|$", PAGE, re.M)
COMPONENTS, BLOCK = 2, 3


@pytest.mark.engine
@pytest.mark.parametrize(
    ("kind", "method", "features", "parties"),
    [
        ("masked", "p-cov", 7, 4),
        ("masked", "p-cov", 5, 52),
        ("masked", f"sub-it block-size={BLOCK} max-rounds=2", 9, 6),  # later blocks may have fewer columns
        ("survivors", "p-cov", 7, 4),
        ("survivors", "p-cov", 9, 6),
    ],
)
def test_a_round_has_the_bytes_up_and_down_that_the_page_says(kind, method, features, parties):
    known = {"d": features, "P": parties, "k": COMPONENTS, "b": BLOCK}
    said = {phase: (up, down) for of, phase, up, down in TABLE if of in (kind, "both")}
    secure = {"secure_aggregation": True, "bound": 1e3, "survivors": parties - 1 if kind == "survivors" else 0}
    held = [rows(30 + party, features, seed=party) for party in range(parties)]
    entries = fit(method, held, n_components=COMPONENTS, **secure).log["rounds"]
    assert ("openings" in [entry["phase"] for entry in entries]) == (parties > 50)
    for entry in entries:
        expected = [{eval(formula, known.copy())} for formula in said[entry["phase"]]]
        assert [set(entry["up"]), set(entry["down"])] == expected, entry["phase"]


def test_in_all_a_run_costs_what_the_page_says():
    assert len(TABLE) == 12
    model = fit("p-cov", [rows(30, 7, seed=seed) for seed in range(3)], n_components=2)
    assert set(model.bytes_up_by_party) == {520 + 8 * 7 + 4 * 7 * 8}
    others = ("product", "openings")
    masked = [eval(up, {"d": 7}) for of, phase, up, _ in TABLE if of == "masked" and phase not in others]
    assert sum(masked) == 792 + 96 * 7 + 4 * 7 * 8
