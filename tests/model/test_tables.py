"""Results as tables, and as data frames."""

import numpy as np
import pandas as pd
import pytest

from fedpca_flwr.model import tables
from fedpca_flwr.model.tables import Share, Shown
from simulations import run
from tests.families import cut, rows

NAMES = [f"f{j}" for j in range(6)]
FRAME = pd.DataFrame(rows(60, 6), columns=NAMES, index=[f"row {i}" for i in range(60)])
PARTIES = {"north": FRAME[:40], "south": FRAME[40:]}
MODEL = run("p-cov", PARTIES, n_components=2)


def test_tables_are_title_head_and_lines_short_and_no_markup():
    shown = Shown("some", ["feature", "mean", "share", "why"], [["a", 1234.5678, Share(0.25), "x"], ["bc", 2, 1, "yy"]])
    assert tables.in_text(shown).splitlines() == [
        "some",
        "  feature  mean   share  why",
        "  a        1235  25.00%  x",
        "  bc          2       1  yy",
    ]
    page = tables.in_html(shown)
    assert page.count("<tr>") == 3
    assert "width:25.00%" in page
    shown = Shown("", ["row"], [[i] for i in range(tables.MOST + 7)])
    assert len(tables.in_text(shown).splitlines()) == tables.MOST + 3
    assert "and 7 more" in tables.in_text(shown)
    assert "and 7 more" in tables.in_html(shown)
    shown = Shown("<b>\x1b[2J", ["<i>"], [["<script>\x1b[2J"]])
    assert "\x1b" not in tables.in_text(shown) + tables.in_html(shown)
    assert not any(tag in tables.in_html(shown) for tag in ("<b>", "<i>", "<script>"))
    values = np.arange(50.0)
    assert [line[0] for line in tables.by_feature((), values, weight=values)] == list(range(50))[::-1]
    assert [line[0] for line in tables.by_feature(NAMES, values[:6], weight=values[:6])] == NAMES


def test_loadings_and_scores_are_frames_with_names():
    frame = MODEL.loadings_frame()
    assert (list(frame.index), list(frame.columns)) == (NAMES, ["PC1", "PC2"])
    np.testing.assert_array_equal(frame.to_numpy(), MODEL.components_.T)
    frame = run("p-cov", cut(rows(60), 40, 20), n_components=2).scores_frame(cut(rows(60), 40, 20))
    assert frame["party"].tolist() == ["party 0"] * 40 + ["party 1"] * 20


@pytest.mark.parametrize("parties", [PARTIES, list(PARTIES.values())], ids=["by name", "as the run had them"])
def test_scores_as_a_frame_have_the_names_of_parties_and_rows(parties):
    frame = MODEL.scores_frame(parties)
    assert list(frame.index) == list(FRAME.index)
    assert frame.pop("party").tolist() == ["north"] * 40 + ["south"] * 20
    np.testing.assert_allclose(frame.to_numpy(), MODEL.transform(FRAME))
