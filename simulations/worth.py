"""The command `site worth`: a forecast, from a site's own rows alone, of what its components gain from others' rows."""

import io
import os
from datetime import UTC, datetime
from html import escape
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from typer import Option

from fedpca_flwr.cli import Report
from fedpca_flwr.config.method_text import parse_options, split_method_text
from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.config.site_file import read_site_file
from fedpca_flwr.data.table import participating_rows
from fedpca_flwr.errors import ConfigError, DataError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.rows import to_array
from fedpca_flwr.protocol import fleet
from fedpca_flwr.simulations.subspace_error import Distance, SubspaceError, estimate_subspace_error
from fedpca_flwr.site.local_table import local_table
from fedpca_flwr.state.files import atomic_file
from fedpca_flwr.strategies import METHODS

ASSUMPTION = (
    "The forecast assumes that the rows of the other sites are drawn independently from the same population as this "
    "site's rows. The command cannot check this assumption."
)
DEFINITION = (
    "The distance is the root of the sum of the squared sines of the angles between two sets of components. The "
    "degrees are the one angle that all these angles would have if they were equal and gave this distance. The "
    "brackets have an interval that holds in 90 % of cases."
)
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Is it worth joining?</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 11pt/1.45 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem; }}
table {{ border-collapse: collapse; width: 100%; }} th, td {{ vertical-align: top; }}
th, td {{ text-align: left; padding: .3rem .6rem .3rem 0; border-bottom: 1px solid #aaa; }}
h1 {{ margin-bottom: 0; }} h2 {{ font-size: 12pt; margin: 1rem 0 0; }} p, ul {{ margin: .3rem 0; }}
svg {{ width: 100%; height: auto; }} @media print {{ body {{ font-size: 9pt; margin: 0; }} svg {{ width: 80%; }} }}
</style>
</head><body><h1>Is it worth joining?</h1>
<p>{site}This page forecasts how much more precise the components of a principal component analysis (PCA) become if this
site joins other sites. The forecast uses this site's own rows alone.</p>
<p><strong>{answer}</strong></p>
<table><tr><th>components compared</th><th>rows</th><th>distance</th><th>degrees</th></tr>
{lines}
</table>
<p>{definition} At 0 degrees the components are the same. At 90 degrees they have nothing in common.</p>
{figure}
<h2>What was computed, and what left the site</h2>
<p>A computer of the site read {n:,} rows of {d:,} features, and made the forecast for {k} components{scaled}. Nothing
left the site, and nobody else was asked. This page holds no row, no value and no component. It holds only the numbers
that it shows.</p>
<h2>What the forecast assumes</h2>
<ul><li>{assumption} If the sites' populations differ, the joint components describe the mixture of all populations. The
forecast does not say how far this site's own components are from those of the mixture.</li>
<li>Each row is an independent case. If a person has several rows, the forecast is too optimistic.</li>
<li>All sites have the same features, with the same units and the same coding.</li></ul>
<h2>What the forecast does not say</h2>
<p>A smaller angle means that the components are known more precisely. The forecast does not say how useful the
components are, or what the site gives away by joining. The file SECURITY.md of the project says what a site gives
away.</p>
<h2>How the forecast is computed</h2>
<p>The forecast follows from fourth moments of the site's scores, with the correction of random matrix theory for many
features. The page docs/which-method.md of the project has the formula, and says how often the intervals hold for
populations that are known. fedpca-flwr {version}, {day}.</p></body></html>
"""


class Case(NamedTuple):
    """Line of the forecast: whose components are compared with whose, rows, and the distance, also as an angle."""

    title: str
    rows: int
    distance: Distance
    degrees: Distance

    @property
    def texts(self) -> tuple[str, str, str, str]:
        """Title, rows, distance and degrees, as they are printed."""
        pairs = [(self.distance, ".2g"), (self.degrees, ".2g")]
        cells = [f"{value.median:{form}} ({value.low:{form}} to {value.high:{form}})" for value, form in pairs]
        return self.title, f"{self.rows:,}", cells[0], cells[1]


def as_degrees(distance: Distance, k: int) -> Distance:
    """Convert a distance, the root of k angles' summed squared sines, into the degrees of each if all were equal."""
    return Distance(*np.rad2deg(np.arcsin(np.minimum(np.array(distance) / np.sqrt(k), 1))).tolist())


def main(
    rows: Annotated[int, Option(min=1)],
    config: Annotated[Path | None, Option(metavar="FILE")] = None,
    node_config: str = "",
    run_config: str = "method='p-cov'",
    output: Annotated[Path | None, Option(metavar="FILE.html")] = None,
) -> Report:
    """Forecast from this site's own rows how much nearer its components come to the population's by joining.

        fedpca site worth --config site.toml --rows 5000 --output worth.html

    Print the expected distance alone and with rows of others of the same kind, each with an interval. The output is a
    page with a figure that can be handed to an ethics committee. Nothing leaves the site.

    Parameters
    ----------
    rows : int
        Number of rows of all others together.
    config : Path, optional
        The site's file, as of 'site node'. Paths in it count from its folder.
    node_config : str
        Node-config of this site, as of 'flower-supernode'.
    run_config : str
        Run-config of the run: "n-components=4 method='p-cov scale=true'".
    output : Path, optional
        Write the page in HTML into this file. It needs matplotlib.

    Returns
    -------
    Report
        The forecast; for programs each case with its rows, and the ends of its intervals.

    Raises
    ------
    ConfigError, DataError
        If the run is more than a PCA of centred rows that each count once; if the rows do not resolve the components.
    """
    if bool(config) == bool(node_config):
        raise ConfigError("name the site's file (--config site.toml), or else its --node-config")
    output = output and output.absolute()
    if config:
        node = read_site_file(config).node
        os.chdir(config.parent)
    else:
        node = NodeConfig.parse(fleet.parse_config_text(node_config, "node-config"), source="node-config")
    k, scale, X = load_run(node, fleet.parse_config_text(run_config, "run-config"))
    error = estimate_subspace_error(X, k, scale=scale)
    n, joined = len(X), len(X) + rows
    forecasts = [
        ("this site alone, and the population", n, error.distance(n)),
        (f"with {rows:,} rows of others, and the population", joined, error.distance(joined)),
        (f"this site alone, and with {rows:,} rows of others", n, error.distance(n, joined)),
    ]
    cases = [Case(title, count, distance, as_degrees(distance, k)) for title, count, distance in forecasts]
    texts = [case.texts for case in cases]
    lines = [f"{title}: distance {distance}, {degrees} degrees" for title, _, distance, degrees in texts]
    lines += [DEFINITION, ASSUMPTION]
    if output:
        site = f"Site: {escape(node.name)}. " if node.name else ""
        with atomic_file(output) as stream:
            stream.write(write_page(error, cases, X.shape, k, scale=scale, site=site).encode())
        lines.append(f"written: {output}")
    intervals = ({"distance": case.distance._asdict(), "degrees": case.degrees._asdict()} for case in cases)
    content = [{"case": case.title, "rows": case.rows, **entry} for case, entry in zip(cases, intervals, strict=True)]
    return Report("\n".join(lines), content)


def load_run(node: NodeConfig, run: dict[str, Any]) -> tuple[int, bool, Array]:
    """Return the number of components, whether to scale, and the site's rows (n, d); ConfigError for other runs."""
    config = RunConfig.parse(run)
    name, _ = split_method_text(config.method)
    if name not in METHODS:
        raise ConfigError(f"run-config: 'method' is '{name}', expected one of {', '.join(METHODS)}")
    options = parse_options(config.method, METHODS[name].strategy.card.options, {"n-components": config.n_components})
    k = options.n_components
    if not isinstance(k, int) or config.weights or options.stages or options.feature_weights or not options.centred:
        raise ConfigError(
            "a forecast needs a PCA of centred rows that each count once, with a number of components: name "
            "n-components, and leave 'weights' and all options but scale=true out of the run-config"
        )
    X = np.asarray(to_array(participating_rows(local_table(node, config), node.round_rows)), dtype=np.float64)
    complete = ~np.isnan(X).any(axis=1)
    if not complete.all():
        raise DataError(f"{int((~complete).sum())} of {len(X)} rows have missing values (NaN): fill or drop them first")
    return k, options.scaled, X


def write_page(
    error: SubspaceError, cases: list[Case], shape: tuple[int, ...], k: int, *, scale: bool, site: str
) -> str:
    """Write the forecast as HTML with its figure; the cases are alone, joined, and alone compared with joined."""
    alone, joined = (case.texts[3] for case in cases[:2])
    return PAGE.format(
        site=site,
        answer=(
            f"The components of this site alone are expected to differ by {alone} degrees from the components of the "
            f"population. With {cases[1].rows - cases[0].rows:,} rows of other sites, the expected difference is "
            f"{joined} degrees."
        ),
        lines="\n".join(f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in case.texts)}</tr>" for case in cases),
        definition=DEFINITION,
        figure=draw_forecast(error, cases, k),
        n=shape[0],
        d=shape[1],
        k=k,
        scaled=" of features divided by their standard deviations" if scale else "",
        assumption=ASSUMPTION,
        version=metadata.version("fedpca-flwr"),
        day=f"{datetime.now(UTC):%Y-%m-%d}",
    )


def draw_forecast(error: SubspaceError, cases: list[Case], k: int) -> str:
    """Draw the forecast of the angle by number of rows, with its interval and the first two cases, as SVG."""
    try:
        from matplotlib import rc_context

        from fedpca_flwr.figures.style import COLOURS, INK, STYLE, canvas, few_ticks
    except ImportError:
        raise ConfigError("--output needs matplotlib: pip install '.[plots]' in the repository") from None
    counts = np.geomspace(cases[0].rows, max(cases[1].rows, 10 * cases[0].rows), 100)
    median, low, high = np.array([as_degrees(error.distance(count), k) for count in counts]).T
    buffer = io.StringIO()
    with rc_context({**STYLE, "svg.fonttype": "none", "svg.hashsalt": "worth"}):
        figure, axes = canvas(7, 3)
        axes.fill_between(counts, low, high, color=COLOURS[0], alpha=0.2, linewidth=0, label="holds in 90 % of cases")
        axes.plot(counts, median, color=COLOURS[0], label="forecast")
        labels = ("this site alone", "with the others")
        for case, marker, colour, label in zip(cases[:2], "os", COLOURS[2:], labels, strict=False):
            axes.plot(case.rows, case.degrees.median, marker, color=colour, markersize=8, label=label)
        axes.set(xscale="log", ylim=(0, None), xlabel="rows of all sites together")
        axes.set_ylabel("angle to the components\nof the population (degrees)")
        few_ticks(axes.xaxis, counts)
        axes.legend()
        no_metadata = dict.fromkeys(["Creator", "Date", "Format", "Type"])
        figure.savefig(buffer, format="svg", metadata=no_metadata, facecolor="none")
    svg = buffer.getvalue().replace(INK.lower(), "currentColor")
    label = "Forecast of the angle to the population's components, which falls with the number of rows"
    return f'<svg role="img" aria-label="{label}"{svg[svg.index("<svg") + len("<svg") :]}'
