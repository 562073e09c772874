"""Records that somebody else wrote: `report` writes its page, or says in a sentence which record it cannot read."""

import copy
import json
from io import BytesIO
from itertools import islice

import pytest

from fedpca_flwr.cli import main
from fedpca_flwr.errors import FedPCAError
from fedpca_flwr.simulations import measuring
from fedpca_flwr.simulations.comparing import compare
from fedpca_flwr.simulations.report import figures
from fedpca_flwr.simulations.runs_file import RUNS
from tests.foreign import replaced
from tests.simulations.test_compare import WINE, undrawn

PARTS = 4


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """Return a folder, and the records of two seeds of a private method, as `compare` has written them."""
    folder = tmp_path_factory.mktemp("records")
    compare(methods=["dp-pca epsilon=5.0"], partitions=["dirichlet"], alphas=[0.5], seeds=[0, 1], output=folder, **WINE)
    return folder, *map(json.loads, (folder / RUNS).read_text().splitlines())


def report(folder, capsys, *records):
    """Exit code of `report` of these records, and what it prints: all is printable, and what is wrong is told."""
    (folder / RUNS).write_text("".join(f"{json.dumps(record)}\n" for record in records))
    capsys.readouterr()
    code = main(["report", str(folder)])
    printed = capsys.readouterr()
    text = printed.out + printed.err
    assert text.replace("\n", "").isprintable()
    assert str(folder) in text
    assert (code, bool(printed.err)) in {(0, False), (2, True)}
    return code, text


@pytest.mark.parametrize("part", range(PARTS))
def test_every_value_of_a_record_is_on_the_page_or_told(records, tmp_path, capsys, monkeypatch, part):
    undrawn(monkeypatch)
    _, first, second = records
    for path, value, hostile in islice(replaced(first, 2), part, None, PARTS):
        code, text = report(tmp_path, capsys, hostile, second)
        assert code == 0 or "line 1" in text, (path, value)


@pytest.mark.parametrize(
    "values",
    [
        *({"dataset": name} for name in ("x", "a/../\x00b")),
        *({"dataset": "x", "data root": root} for root in ("", "9" * 1000, "~nobody:.")),
        *({"partition": "as given", "clients": 4}, {"partition": "halves"}, {"clients": 10**9}, {"components": 10**9}),
    ],
    ids=range(9),
)
def test_wrong_data_of_a_setting_are_refused_in_a_sentence(records, values):
    record = {**records[1], **values}
    with pytest.raises(FedPCAError):
        measuring.parties_of(record, measuring.pooled_reference(*measuring.pool_key(record))[0])


def test_extreme_numbers_have_figures(records):
    _, first, second = records
    extremes = [{**first, "MB up": 1e15, "alpha": 1e-300}, {**second, "max angle": 0.0, "MB up": 1e-9, "alpha": 1e9}]
    drawn = figures(extremes)
    assert len(drawn) == 2
    for figure, _ in drawn:
        figure.savefig(BytesIO(), format="svg")
    for record in extremes:
        record["seed"] = 2**63 - 1
        assert len(measuring.parties_of(record, measuring.pooled_reference(*measuring.pool_key(record))[0])) == 3


@pytest.mark.parametrize("key", ["notes", "versions", "captured variance", "date", "chosen"])
def test_a_record_without_a_key_is_averaged_with_others(records, tmp_path, capsys, monkeypatch, key):
    undrawn(monkeypatch)
    _, first, second = copy.deepcopy(records)
    second.pop(key)
    assert report(tmp_path, capsys, first, second)[0] == 0
    assert report(tmp_path, capsys, second)[0] == 0


@pytest.mark.parametrize("line", ["", "{", "[]", "null", "[" * 99999, '{"clients": 1e999}', "\x00", "9" * 5000])
def test_a_line_that_is_no_record_is_told(tmp_path, capsys, line):
    (tmp_path / RUNS).write_text(f"{line}\n")
    assert main(["report", str(tmp_path)]) == 2
    printed = capsys.readouterr()
    assert f"{tmp_path / RUNS}, line 1" in printed.err
    assert printed.err.count("\n") == 1
