"""The bytes of every round that docs/secure-aggregation.md gives, against those of runs."""

import re
from pathlib import Path

import pytest

from simulations import run
from tests.families import rows

PAGE = (Path(__file__).parents[2] / "docs" / "secure-aggregation.md").read_text()
TABLE = re.findall(r"^\| (masked|survivors|both) \| `(\w+)` \| `(.+?)` \| `(.+?)` \|$", PAGE, re.M)
COMPONENTS, BLOCK = 2, 3


def rounds(method, features, parties, **options):
    """Phase, and the bytes up and down of each party, of every round."""
    held = [rows(30 + party, features, seed=party) for party in range(parties)]
    secure = {"secure_aggregation": True, "bound": 1e3}
    model = run(method, held, n_components=COMPONENTS, **secure, **options)
    return [(entry["phase"], set(entry["up"]), set(entry["down"])) for entry in model.log["rounds"]]


@pytest.mark.parametrize(("features", "parties"), [(7, 4), (9, 6)])
@pytest.mark.parametrize(
    ("kind", "method", "options"),
    [
        ("masked", "p-cov", {}),
        ("masked", "sub-it", {"block_size": BLOCK, "max_rounds": 2}),  # later blocks may have fewer columns
        ("survivors", "p-cov", {"survivors": 3}),
    ],
)
def test_a_round_has_the_bytes_that_the_page_says(kind, method, options, features, parties):
    survivors = {"survivors": parties - 1} if options.get("survivors") else {}
    known = {"d": features, "P": parties, "k": COMPONENTS, "b": BLOCK}
    said = {phase: (up, down) for of, phase, up, down in TABLE if of in (kind, "both")}
    for phase, up, down in rounds(method, features, parties, **{**options, **survivors}):
        assert (up, down) == tuple({eval(formula, known.copy())} for formula in said[phase]), phase


def test_of_many_parties_rounds_cost_what_the_page_says_in_all():
    known = {"d": 5, "P": 52, "k": COMPONENTS}
    said = {phase: (up, down) for of, phase, up, down in TABLE if of in ("masked", "both")}
    asked = rounds("p-cov", 5, 52)
    assert "openings" in [phase for phase, _, _ in asked]
    for phase, up, down in asked:
        assert (up, down) == tuple({eval(formula, known.copy())} for formula in said[phase]), phase
    assert len(TABLE) == 12
    model = run("p-cov", [rows(30, 7, seed=seed) for seed in range(3)], n_components=2)
    assert set(model.bytes_up_by_party) == {520 + 8 * 7 + 4 * 7 * 8}
    masked = sum(
        eval(up, {"d": 7}) for of, phase, up, _ in TABLE if of == "masked" and phase not in ("product", "openings")
    )
    assert masked == 792 + 96 * 7 + 4 * 7 * 8
