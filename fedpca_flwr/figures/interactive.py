"""The figure of scores for a notebook: whoever points at a mark reads which row it is. It needs plotly."""

from html import escape
from typing import Any

import numpy as np

from fedpca_flwr.data.frames import row_labels
from fedpca_flwr.errors import ConfigError
from fedpca_flwr.figures.score_plots import component_title
from fedpca_flwr.figures.style import COLOURS, thin_rows
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.tables import tables_by_name

MAX_HOVER_ROWS = 20_000  # rows of a party that are drawn, a mark each; every one of them is text of the notebook


def hover(parties: Any, model: PCAModel, *, components: tuple[int, int] = (1, 2)) -> Any:
    """Draw the scores of all parties' rows in two components, with the party and the name of the row under the mouse.

    A notebook that is saved with the figure holds the rows' names and scores. At most `MAX_HOVER_ROWS` of a party's
    rows are drawn, evenly spread.

    Parameters
    ----------
    parties : mapping of str to table, or list of tables
        Rows (n_i, d) of each party. A row's name is its label in a data frame of pandas, or else its number from 0.
    model : PCAModel
        Gives the scores, and the shares of the variance along the axes.
    components : (int, int), default (1, 2)
        The components to draw, from 1.

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
    k = model.n_components_
    if not all(1 <= component <= k for component in components):
        raise ConfigError(f"'components' is {components}, expected two numbers from 1 to {k}")
    figure = graph_objects.Figure()
    columns = [component - 1 for component in components]
    titles = [component_title(model, component) for component in components]
    for number, (name, table) in enumerate(tables_by_name(parties, model.log).items()):
        scores = model.transform(table)[:, columns]
        shown = thin_rows(len(scores), MAX_HOVER_ROWS)
        labels = row_labels(table) or range(len(scores))
        trace = graph_objects.Scatter(
            x=scores[shown, 0],
            y=scores[shown, 1],
            mode="markers",
            name=name,
            marker={"color": COLOURS[number % len(COLOURS)], "symbol": number // len(COLOURS), "size": 6},
            text=[escape(str(labels[row])) for row in np.arange(len(scores))[shown].tolist()],
            hovertemplate="row %{text}<br>%{x:.4g}, %{y:.4g}",
        )
        figure.add_trace(trace)
    figure.update_layout(xaxis_title=titles[0], yaxis_title=titles[1], template="plotly_white", showlegend=True)
    return figure
