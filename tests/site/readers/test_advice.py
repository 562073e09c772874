"""Each advice of a refusal, applied, changes the error or reads the rows: no advice leads in circles."""

import re

import numpy as np
import pytest

from fedpca_flwr import read
from fedpca_flwr.errors import FedPCAError
from fedpca_flwr.maths.rows import to_array
from tests.site.readers.test_bad_tables import FILES
from tests.site.readers.test_texts import ABC, REFUSED, B, body

NAMED_KEY = re.compile(r"\b([a-z_]+)=(?=['\"]|True|False)")
MORE = {
    "a line of units": ("ratio,mass,width\n-,kg,mm\n" + body(table=-B), {}),
    "units and totals": ("a,b,c\ncm,kg,mm\n" + body() + "Total,1,2\n", {}),
    "two marks": (ABC + "1,?,3\n1,2,n/d\n", {"missing": "x"}),
    "blocks above the names": ("Instrument,X\nDate,today\nMode,7\n" + ABC, {}),
    "a footer": (ABC + "measured in May\n", {}),
    "text aligned by spaces": ("a    b  c\n" + body("   "), {}),
    "names with commas": ('"a, b",c\nx,1\ny,2\n', {}),
    "apostrophes between thousands": ("a;b\n1'234;2\n5;3\n", {}),
    "tabs named commas": (ABC.replace(",", ";"), {"delimiter": ","}),
}
CASES = {
    **{kind: (suffix, content, {}) for kind, (suffix, content, *_) in FILES.items()},
    **{f"text: {kind}": (".csv", *case[:2]) for kind, case in (REFUSED | MORE).items()},
    "a .tsv of commas": (".tsv", ABC, {}),
}
READ_RIGHT = {"text: a line of units": -B, "text: text aligned by spaces": B, "text: units below the names": B}


def outcome(path, keys):
    """Return the rows, or the error."""
    try:
        return to_array(read(path, **keys).rows)
    except FedPCAError as error:
        return error


def follow(path, keys, seen):
    """Yield the errors and rows that advice leads to; fail if it leads back, or if a text names another key."""
    result = outcome(path, keys)
    yield result
    if not isinstance(result, FedPCAError):
        return
    error = (str(result), result.local)
    assert error not in seen, f"{seen} leads back to {error}"
    assert {*NAMED_KEY.findall(str(result))} == {key for advice in result.advice for key in advice.keys}
    for advice in result.advice:
        yield from follow(path, {**keys, **advice.keys}, (*seen, error))


def test_no_advice_leads_back_to_an_error(tmp_path):
    refusals, ends = 0, 0
    for kind, (suffix, content, keys) in CASES.items():
        path = tmp_path / f"site{suffix}"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        first, *later = follow(path, keys, ())
        if not isinstance(first, FedPCAError):  # with values that are missing, which a run refuses
            continue
        refusals += 1
        assert path.name in str(first)
        assert "node-config" not in str(first)
        rows = [result for result in later if not isinstance(result, FedPCAError)]
        assert rows or not later or suffix == ".csv", kind
        ends += bool(rows)
        if kind in READ_RIGHT:
            np.testing.assert_array_equal(rows[0], READ_RIGHT[kind])
    assert refusals >= 60
    assert ends >= 40


def test_a_site_sends_no_value_of_an_advice(tmp_path):
    (tmp_path / "site.csv").write_text(ABC.replace("a,", "'weight',") + "1,?,3\n1,2,male\n")
    with pytest.raises(FedPCAError) as caught:
        read(tmp_path / "site.csv", site=True)
    assert "leave-out='...'" in str(caught.value)
    assert "missing='?'" in caught.value.local
    assert not re.search(r"\?|site.csv|leave_out|'c'", str(caught.value))
