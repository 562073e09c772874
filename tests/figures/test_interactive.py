"""The figure of scores that names the row under the mouse."""

import sys

import numpy as np
import pandas as pd
import pytest

from fedpca_flwr import run
from fedpca_flwr.errors import ConfigError
from fedpca_flwr.figures import plots
from tests.families import cut, rows
from tests.refusals import refused

NORTH, SOUTH = cut(rows(50, 4), 30, 20)
TABLES = {"north": pd.DataFrame(NORTH, index=[f"patient <{i}>" for i in range(30)]), "south": SOUTH}


@pytest.fixture(scope="module")
def model():
    return run("p-cov", {name: np.asarray(table) for name, table in TABLES.items()}, n_components=3)


def test_each_mark_has_the_name_of_its_row(model):
    pytest.importorskip("plotly", reason="draws the figure")
    figure = plots.hover(model, {name: np.asarray(table) for name, table in TABLES.items()}, components=(3, 1))
    north, south = figure.data
    np.testing.assert_allclose(np.column_stack([south.x, south.y]), model.transform(SOUTH)[:, [2, 0]])
    assert list(south.text) == [str(i) for i in range(20)]
    assert north.name == "north"
    named, _ = plots.hover(model, TABLES).data
    assert named.text[7] == "patient &lt;7&gt;"
    assert "%" in figure.layout.xaxis.title.text
    with refused(ConfigError, "'components'", 4, 3):
        plots.hover(model, TABLES, components=(1, 4))


def test_without_plotly_the_error_says_what_to_install(model, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly", None)
    with pytest.raises(ConfigError) as caught:
        plots.hover(model, TABLES)
    assert "pip install plotly" in str(caught.value)
