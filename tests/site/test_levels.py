"""Levels of categories that sites agree on by files: the command, and what it refuses."""

import json

import pandas as pd
import pytest

from fedpca_flwr.site.__main__ import main

SITES = {"north": ["a"] * 12 + ["b"] * 11 + ["rare"] + [None] * 12, "south": ["c"] * 10 + ["b"] * 3}


def told(capsys, *arguments):
    main(["levels", *map(str, arguments)])
    return json.loads(capsys.readouterr().out)


def test_sites_agree_on_the_levels_that_enough_rows_of_one_have(tmp_path, capsys):
    for name, cells in SITES.items():
        rows = pd.DataFrame({"mass": range(len(cells)), "ward": cells, "label": 1.0})
        rows.to_csv(tmp_path / f"{name}.csv", index=False)
        own = told(capsys, tmp_path / f"{name}.csv", "--categories", "ward", "--label", "label")
        assert own == {"ward": {"north": ["a", "b"], "south": ["c"]}[name]}
        (tmp_path / f"{name}.json").write_text(json.dumps(own))
    assert told(capsys, tmp_path / "north.json", tmp_path / "south.json") == {"ward": ["a", "b", "c"]}


@pytest.mark.parametrize("text", ["no json", '["a"]', '{"ward": []}'])
def test_what_holds_no_levels_is_named(tmp_path, capsys, text):
    (tmp_path / "north.json").write_text(text)
    with pytest.raises(SystemExit):
        main(["levels", str(tmp_path / "north.json")])
    assert "levels" in capsys.readouterr().err.replace("level of", "levels of")
