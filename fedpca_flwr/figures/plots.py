"""Figures: each function returns a matplotlib `Figure` of its own (no global state), to show or to save.

A figure of a model is drawn by ``plots.NAME(model, parties, ...)``, or without the parties if it shows no rows. The
optional arguments have the same meaning in all figures: ``components`` are numbers from 1, such as ``(1, 3)``;
``labels`` are a column's name, or the rows' labels by party or in a list of all rows (texts are classes, and numbers of
more than ten different values have a bar of colours); ``ax`` are axes to draw into; ``title`` is by default the method,
the number of rows and whether they are scaled. The figures need the extra ``plots``. A figure is dark on white paper;
``savefig(..., facecolor="none")`` makes the paper transparent.
"""

from fedpca_flwr.errors import ConfigError

try:
    from fedpca_flwr.figures.analysis_plots import (
        biplot,
        contributions,
        how_many,
        levels,
        outlier_map,
        squared_correlations,
        variables,
    )
    from fedpca_flwr.figures.comparison_plots import angle_by_round, bytes_against_error, results_over
    from fedpca_flwr.figures.interactive import hover
    from fedpca_flwr.figures.model_plots import component_images, heterogeneity, loadings, projection_overlay, scree
    from fedpca_flwr.figures.score_plots import scores
except ImportError:
    raise ConfigError("plots need matplotlib: pip install '.[plots]' in the repository") from None

__all__ = ["angle_by_round", "biplot", "bytes_against_error", "component_images", "contributions", "heterogeneity"]
__all__ += ["hover", "how_many", "levels", "loadings", "outlier_map", "projection_overlay", "results_over", "scores"]
__all__ += ["scree", "squared_correlations", "variables"]


def __dir__() -> list[str]:
    """Return the names of the plots alone."""
    return __all__
