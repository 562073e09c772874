"""The figure of scores for a notebook: whoever points at a mark reads which row it is. It needs plotly."""

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np
from matplotlib.colors import to_hex

from fedpca_flwr.data.frames import row_labels
from fedpca_flwr.errors import ConfigError
from fedpca_flwr.figures.model_plots import takes_model
from fedpca_flwr.figures.rows import (
    Labels,
    component_places,
    component_title,
    label_rows,
    model_title,
    tables_and_labels,
)
from fedpca_flwr.figures.style import COLOURS, thin_rows
from fedpca_flwr.model.model import PCAModel

MAX_HOVER_ROWS = 20_000  # rows of a party that are drawn, a mark each; every one of them is text of the notebook


@takes_model
def hover(
    model: PCAModel, parties: Any, *, labels: Any = None, components: Sequence[int] = (1, 2), title: str | None = None
) -> Any:
    """Draw the scores of all parties' rows in two components, with the party and the name of the row under the mouse.

    A notebook that is saved with the figure holds the rows' names and scores. At most `MAX_HOVER_ROWS` of a party's
    rows are drawn, evenly spread.

    Parameters
    ----------
    model : PCAModel
        Gives the scores, and the shares of the variance along the axes.
    parties : mapping of str to table, or list of tables
        Rows (n_i, d) of each party. A row's name is its label in a data frame of pandas, or else its number from 0.
    labels, components, title : optional
        As in `scores`.

    Returns
    -------
    plotly.graph_objects.Figure
        A notebook shows the figure as the last value of a cell; ``figure.write_html(path)`` writes a page.

    Raises
    ------
    ConfigError
        If plotly is not installed, or the model has no such components.
    """
    try:
        from plotly import graph_objects
    except ImportError:
        raise ConfigError("hover needs plotly, which is not installed: pip install plotly") from None
    columns = component_places(components, model.n_components_)
    tables, values, column = tables_and_labels(parties, labels, model)
    points = {name: model.transform(table)[:, columns] for name, table in tables.items()}
    rows = {name: len(part) for name, part in points.items()}
    names = np.repeat(list(rows), list(rows.values()))
    shown = Labels(names, list(rows)) if labels is None else label_rows(values, rows, column)
    starts = np.cumsum([0, *rows.values()]).tolist()
    figure = graph_objects.Figure()
    for number, (name, part) in enumerate(points.items()):
        step = thin_rows(len(part), MAX_HOVER_ROWS)
        own = shown.of(slice(starts[number], starts[number + 1])).of(step)
        index = row_labels(tables[name]) or range(len(part))
        texts = [escape(str(index[row])) for row in np.arange(len(part))[step].tolist()]
        if labels is not None:
            texts = [f"{text}<br>{escape(str(label))}" for text, label in zip(texts, own.values.tolist(), strict=True)]
        symbol = number // len(COLOURS) if labels is None else number
        trace = graph_objects.Scatter(
            x=part[step, 0],
            y=part[step, 1],
            mode="markers",
            name=name,
            marker={"color": [to_hex(colour) for colour in own.colours], "symbol": symbol, "size": 6},
            text=texts,
            hovertemplate="row %{text}<br>%{x:.4g}, %{y:.4g}",
        )
        figure.add_trace(trace)
    x, y = (component_title(model, place + 1) for place in columns)
    heading = model_title(model) if title is None else title
    figure.update_layout(title=heading, xaxis_title=x, yaxis_title=y, template="plotly_white", showlegend=True)
    return figure
