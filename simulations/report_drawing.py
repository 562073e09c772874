"""The figures of a comparison's page, drawn as SVG."""

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.figure import Figure

from fedpca_flwr import analyses
from fedpca_flwr.errors import FedPCAError
from fedpca_flwr.figures import analysis_plots, plots
from fedpca_flwr.figures.style import INK
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.second_moments import SecondMoments
from fedpca_flwr.simulations.measuring import parties_of, pool_key, pooled_reference
from fedpca_flwr.simulations.records import HEADS, Record, method_text, run_identity
from fedpca_flwr.simulations.seed_means import AXES, MAX_PANELS, average_seeds, axes_with_values, curves
from fedpca_flwr.simulations.sources import name_parties

MAX_BAND_FEATURES = 200  # number of features beyond which the band of unrelated features takes seconds
MAX_FAR_MODELS = 1  # models, the farthest off, that are overlaid beside the first model; more make a large page

FRONT_CAPTION = (
    "Bytes up, the mean over the clients, against error. Points further down and to the left are better. No other run "
    "has fewer bytes and a smaller angle than a run on the front. A bar is the 95 % interval of an angle that is a "
    "mean over seeds. An interval that reaches zero is drawn to a third of its mean."
)

FiguresWithText = Iterable[tuple[Figure, str]]  # figures, and the texts below


class Drawing(NamedTuple):
    """Figure as SVG with the text below; only a text if the SVG is empty."""

    svg: Markup
    text: str


def figures(folder: Path, records: Sequence[Record]) -> list[Drawing]:
    """Draw all figures of the runs of a single setting; of several seeds the models in ``folder`` are the first's.

    If data or models are gone, a line that says so is the last; runs that all failed have no figures.
    """
    completed = [record for record in records if "error" not in record]
    if not completed:
        return []
    drawings = _drawings(run_figures(average_seeds(completed)), completed)
    completed = [record for record in completed if record["seed"] == completed[0]["seed"]]
    try:
        return drawings + _drawings(model_figures(folder, completed), completed)
    except FedPCAError as error:
        return [*drawings, Drawing(Markup(), " ".join(f"No more figures: {error}".splitlines()))]


def figures_across(records: Sequence[Record]) -> list[Drawing]:
    """Draw the largest angle over alpha and over the number of clients, where the runs have several values of these.

    The runs may be of any settings.
    """
    drawings = []
    for over in axes_with_values(records):
        panels = curves(records, over, "max angle")
        shown = dict(list(panels.items())[:MAX_PANELS])
        text = f"The largest angle by {AXES[over]}: means over the seeds, with 95 % intervals of the mean. An interval "
        text += "that reaches zero is drawn to a third of its mean."
        text += f" {len(panels) - len(shown)} more settings are not drawn." if len(shown) < len(panels) else ""
        figure = plots.results_over(shown, xlabel=AXES[over], ylabel=HEADS["max angle"], angles=True)
        drawings += _drawings([(figure, text)], [{**records[0], "seed": over}])
    return drawings


def figures_of_pool(records: Sequence[Record]) -> list[Drawing]:
    """Draw the figures of pooled rows, of runs on a data set; none if the data are gone or have too many features."""
    try:
        return _drawings(pool_figures(records[0]), records)
    except FedPCAError:
        return []


def run_figures(records: Sequence[Record]) -> FiguresWithText:
    """Yield the figure of bytes against error of a setting's runs, with its text; it needs the records only."""
    points: dict[str, list[tuple[float, float, float]]] = {}
    for record in records:
        if record["max angle"] is not None:
            half_width = record.get("intervals", {}).get("max angle", 0.0)
            points.setdefault(record["method"], []).append((record["MB up"], record["max angle"], half_width))
    if points:
        yield plots.bytes_against_error(points), FRONT_CAPTION


def model_figures(folder: Path, records: Sequence[Record]) -> FiguresWithText:
    """Yield the figures, with texts, that need models and data: projections, explained variance and heterogeneity.

    ``folder`` holds the models. Raise FedPCAError if data or models are gone.
    """
    setting = records[0]
    source, reference = pooled_reference(*pool_key(setting))
    rows = source.all_rows()
    models = {method_text(record): PCAModel.load(folder / record["model"]) for record in records if record.get("model")}
    models = {name: model for name, model in models.items() if model.components_ is not None}
    if not models:
        return
    if setting["components"] >= 2:
        text = "Rows in the first two components. Open marks are by the pooled PCA, and crosses by the federated model."
        if len(models) > MAX_FAR_MODELS + 1:
            text += " The first model is shown, and the model with the largest angle."
        yield plots.projection_grid(reference, _select_models(records, models), rows, source.labels), text
    yield (
        plots.scree({"pooled": reference, **models}),
        "The share of the variance that each component explains, as each model reports it.",
    )
    row_setting = {**setting, "method": "p-cov"}
    clients = name_parties(setting["dataset"], parties_of(row_setting, source))
    yield plots.heterogeneity(clients, reference), "How much the clients differ."


def pool_figures(record: Record) -> FiguresWithText:
    """Yield the figures, with texts, of the pooled rows of a run's data: numbers of components, and outliers.

    Yield none beyond `MAX_BAND_FEATURES` features, and no outliers of a model without "left_out_directions". Raise
    FedPCAError, when the first is asked for, if the data are gone.
    """
    source, _ = pooled_reference(record["dataset"], record["data root"], record["components"], True, False)
    rows = source.all_rows()
    if rows.shape[1] <= MAX_BAND_FEATURES:
        moments = SecondMoments.of(rows)
        text = "Eigenvalues of the covariance, the band of unrelated features, and the number of components of each "
        yield analysis_plots.how_many(analyses.how_many(moments)), f"{text}rule."
        model = analyses.pca(moments, record["components"])
        if "left_out_directions" in model.log["measured"]:
            text = "How far each row lies within the components and off them, with limits of 99 % of new rows."
            yield analysis_plots.outlier_map(analyses.outliers(model, rows)), text


def _select_models(records: Sequence[Record], models: Mapping[str, PCAModel]) -> dict[str, PCAModel]:
    """Return the setting's first model, and of the other models the `MAX_FAR_MODELS` with the largest angles."""
    angles = {method_text(record): record["max angle"] or 0.0 for record in records}
    first, *further = models
    return {name: models[name] for name in (first, *sorted(further, key=lambda name: -angles[name])[:MAX_FAR_MODELS])}


def _drawings(figures: FiguresWithText, records: Sequence[Record]) -> list[Drawing]:
    """Convert figures to SVG, with inner ids that differ between the figures of a page."""
    drawings = []
    for figure, text in figures:
        salt = run_identity(records[0]) + text[:9]
        buffer = io.StringIO()
        with rc_context({"svg.fonttype": "none", "svg.hashsalt": salt}):  # text as text: small, and the same each time
            no_metadata = dict.fromkeys(["Creator", "Date", "Format", "Type"])
            figure.savefig(buffer, format="svg", metadata=no_metadata, dpi=64, facecolor="none")
        ink = INK.lower()  # without paper, what is written has the colour of the page's own text, on dark pages too
        svg = re.sub(r' xmlns(:xlink)?="[^"]*"', "", buffer.getvalue().replace(ink, "currentColor"))
        inner = Markup(svg[svg.index("<svg") + len("<svg") :])
        drawings.append(Drawing(Markup('<svg role="img" aria-label="{}"{}').format(text, inner), text))
    return drawings
