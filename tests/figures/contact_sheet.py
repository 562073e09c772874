"""Every figure of the package with plain and with hard inputs, and the command that draws them all to be looked at.

    python -m tests.figures.contact_sheet FOLDER [FIGURE ...]

FOLDER gets a PNG file for each figure, with a picture for each input.
"""

import sys
from collections.abc import Callable
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from PIL import Image, ImageDraw

from fedpca_flwr import analyses, run
from fedpca_flwr.figures import plots
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.reference import pooled_pca
from fedpca_flwr.model.second_moments import SecondMoments
from tests.families import cut, rows

RNG = np.random.default_rng(0)
X = rows(300, 12)
PARTIES = dict(zip(["north", "south", "west"], cut(X, 180, 100, 20), strict=True))
MODEL = run("p-cov", PARTIES, n_components=4)


def classes(parties: dict[str, Any], count: int) -> list[list[str]]:
    return [[f"class {i % count}" for i in range(len(part))] for part in parties.values()]


def long_names(what: str, count: int) -> list[str]:
    """Names of 58 letters each, which differ at their ends, as those of measurements and of hospitals do."""
    return [f"{what} by the laboratory of the regional hospital no {i:03d}".rjust(58, "x") for i in range(count)]


def named(part: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame(part, columns=long_names("serum level", part.shape[1]))


FEATURES = {name: named(part) for name, part in PARTIES.items()}
LONG = dict(zip(long_names("cohort", 3), FEATURES.values(), strict=True))
AGED = {name: named(part).assign(age=20 + np.arange(len(part)) % 60) for name, part in PARTIES.items()}
KEPT = run("p-cov", FEATURES, n_components=4, keep="moments")
LONG_MODEL = run("p-cov", LONG, n_components=4)
THIRTY = {f"clinic {i:02d}": X[i::30] + 0.3 * RNG.standard_normal(12) for i in range(30)}
THIRTY_LONG = dict(zip(long_names("cohort", 30), THIRTY.values(), strict=True))
THIRTY_MODEL = run("p-cov", THIRTY, n_components=4)
WIDE = {name: named(RNG.standard_normal((60, 3)) @ RNG.standard_normal((3, 500)) + 1.0) for name in PARTIES}
WIDE_MODEL = run("p-cov", WIDE, n_components=10)
ONE_MODEL = run("p-cov", PARTIES, n_components=1)
KINDS = 8 * RNG.standard_normal((3, 12))
CLOUDS = {name: KINDS[RNG.integers(0, 3, 150)] + RNG.standard_normal((150, 12)) for name in PARTIES}
CLOUDS_MODEL = run("p-cov", CLOUDS, n_components=2)
FEW = {"one row": X[:1], "two rows": X[1:3], "three rows": X[3:6], "rest": X[6:40]}
HUNDRED = {f"clinic {i}": X[i::100] for i in range(100)}

MOMENTS, LONG_MOMENTS = SecondMoments.of(X), SecondMoments.of(named(X))
WIDE_MOMENTS = SecondMoments.of(pd.concat(WIDE.values()))
ALIKE = pd.DataFrame(X[:, :1] + 0.01 * RNG.standard_normal((300, 30)))
ALIKE.columns = [*(f"the concentration of {'n' * (j % 7)} {j}" for j in range(29)), "f" * 60]
ODD = X * np.where(np.arange(300) % 50 == 0, 12.0, 1.0)[:, None]


def mixed(columns: list[str], levels: int) -> tuple[PCAModel, pd.DataFrame]:
    """Return the model of two numbers beside categories with some levels each, and its rows."""
    table = pd.DataFrame(X[:, :2], columns=["age", "mass"])
    for j, column in enumerate(columns):
        table[column] = [f"{column[:20]} {(i * (j + 3) + i // 7) % levels}" for i in range(300)]
    return run("p-cov", [table], n_components=2, scale=True, levels=columns), table


def curves(names: list[str], rounds: int = 12) -> dict[str, list[float]]:
    return {name: [60.0 * 0.4 ** (j * (1 + i % 5) / 3) for j in range(rounds)] for i, name in enumerate(names)}


def costs(names: list[str]) -> dict[str, list[tuple[float, float]]]:
    return {name: [(0.1 * (i + 1), 10.0 ** (1 - i % 9)), (0.3 * (i + 1), 0.01)] for i, name in enumerate(names)}


def models(names: list[str]) -> dict[str, PCAModel]:
    return {name: pooled_pca(X[: 90 + 5 * i], 4) for i, name in enumerate(names)}


METHODS = [f"sub-it block-size={i}" for i in range(30)]
UNORDERED = {"digits": {"p-cov": [(i, i / 10, 0.2) for i in range(12)]}}
LONG_METHODS = [f"dp-pca epsilon=1.5 delta=1e-6 release=directions rounds={i}" for i in range(12)]
overlay = partial(plots.projection_overlay, parties=X, reference=MODEL)


def results_over(methods: list[str], panels: list[str]) -> Figure:
    """Draw angles of methods over four alphas, those of the first within rounding."""
    alphas = np.array([0.1, 0.5, 2.0, 10.0])
    lines = {name: np.transpose([alphas, (i and 1 + i) / alphas, 0.3 / alphas]) for i, name in enumerate(methods)}
    return plots.results_over(dict.fromkeys(panels, lines), xlabel="alpha", ylabel="largest angle", angles=True)


FIGURES: dict[str, dict[str, Callable[[], Figure]]] = {
    "scores": {
        "plain": lambda: plots.scores(MODEL, PARTIES),
        "classes": lambda: plots.scores(MODEL, PARTIES, labels=classes(PARTIES, 3)),
        "names of 58 letters": lambda: plots.scores(LONG_MODEL, LONG),
        "30 parties of 58 letters": lambda: plots.scores(THIRTY_MODEL, THIRTY_LONG),
        "30 parties with classes": lambda: plots.scores(THIRTY_MODEL, THIRTY, labels=classes(THIRTY, 3)),
        "100 parties": lambda: plots.scores(MODEL, HUNDRED),
        "30 classes": lambda: plots.scores(MODEL, PARTIES, labels=classes(PARTIES, 30)),
        "numbers": lambda: plots.scores(KEPT, AGED, labels="age"),
        "500 features": lambda: plots.scores(WIDE_MODEL, WIDE),
        "one component": lambda: plots.scores(ONE_MODEL, PARTIES),
        "one component, classes": lambda: plots.scores(ONE_MODEL, PARTIES, labels=classes(PARTIES, 3)),
        "one component, 30 parties": lambda: plots.scores(run("p-cov", THIRTY, n_components=1), THIRTY_LONG),
        "three clouds": lambda: plots.scores(CLOUDS_MODEL, CLOUDS),
        "ellipses of means": lambda: plots.scores(MODEL, PARTIES, ellipses="mean"),
        "one to three rows": lambda: plots.scores(MODEL, FEW),
    },
    "loadings": {
        "plain": lambda: plots.loadings(MODEL),
        "names of 58 letters": lambda: plots.loadings(LONG_MODEL),
        "500 features": lambda: plots.loadings(WIDE_MODEL),
        "500 features, ten components": lambda: plots.loadings(WIDE_MODEL, components=range(1, 11)),
        "twelve features, four components": lambda: plots.loadings(MODEL, components=range(1, 5)),
        "one component": lambda: plots.loadings(ONE_MODEL),
    },
    "projection_overlay": {
        "plain": lambda: overlay(models(["one"])["one"], labels=np.arange(300) % 3),
        "names of 58 letters": lambda: overlay(MODEL, labels=long_names("kind", 3) * 100, title=METHODS[0] * 3),
        "30 classes": lambda: overlay(MODEL, labels=[f"kind {i % 30}" for i in range(300)]),
        "one component": lambda: overlay(ONE_MODEL, reference=ONE_MODEL),
        "three clouds": lambda: overlay(CLOUDS_MODEL, parties=CLOUDS["north"], reference=CLOUDS_MODEL),
        "two models": lambda: overlay(models(["p-cov", "qr-pca"]), labels=np.arange(300) % 3),
        "one model": lambda: overlay(models(["p-cov"])),
        "names of 58 letters, four models": lambda: overlay(models(LONG_METHODS[:4]), labels=np.arange(300) % 10),
        "12 models": lambda: overlay(models(METHODS[:12])),
        "one component of one": lambda: overlay({"one": ONE_MODEL}, reference=ONE_MODEL),
    },
    "scree": {
        "plain": lambda: plots.scree(MODEL),
        "two models": lambda: plots.scree(models(["pooled", "other"])),
        "names of 58 letters": lambda: plots.scree(models(LONG_METHODS)),
        "30 models": lambda: plots.scree(models(METHODS)),
        "500 features": lambda: plots.scree(WIDE_MODEL),
        "all eigenvalues": lambda: plots.scree(KEPT),
        "one component": lambda: plots.scree(ONE_MODEL),
    },
    "angle_by_round": {
        "plain": lambda: plots.angle_by_round(curves(["sub-it", "fast-pca"]), tolerance=0.1),
        "names of 58 letters": lambda: plots.angle_by_round(curves(LONG_METHODS), tolerance=0.1),
        "30 methods": lambda: plots.angle_by_round(curves(METHODS), tolerance=0.1),
        "one round": lambda: plots.angle_by_round({"p-cov": [0.0]}),
    },
    "bytes_against_error": {
        "plain": lambda: plots.bytes_against_error(costs(["p-cov", "sub-it", "qr-pca"])),
        "names of 58 letters": lambda: plots.bytes_against_error(costs(LONG_METHODS)),
        "30 methods": lambda: plots.bytes_against_error(costs(METHODS)),
        "means of few runs": lambda: plots.bytes_against_error({"a": [(0.4, 0, 0)], "b": [(0.1, 9, 3), (0.2, 0.7, 1)]}),
        "one exact point": lambda: plots.bytes_against_error({"p-cov": [(0.2, 0.0)]}),
    },
    "results_over": {
        "plain": lambda: results_over(["p-cov", "sub-it"], ["4 clients"]),
        "names of 58 letters": lambda: results_over(LONG_METHODS, ["4 clients", "8 clients"]),
        "30 methods": lambda: results_over(METHODS, ["4 clients"]),
        "methods without order": lambda: plots.results_over(UNORDERED, xlabel="", ylabel="s", ticks=LONG_METHODS),
        "six panels": lambda: results_over(METHODS[:3], [f"{count} clients" for count in range(2, 14, 2)]),
    },
    "heterogeneity": {
        "plain": lambda: plots.heterogeneity(MODEL, PARTIES),
        "names of 58 letters": lambda: plots.heterogeneity(LONG_MODEL, LONG),
        "30 parties": lambda: plots.heterogeneity(THIRTY_MODEL, THIRTY),
        "30 parties of 58 letters": lambda: plots.heterogeneity(THIRTY_MODEL, THIRTY_LONG),
        "100 parties": lambda: plots.heterogeneity(MODEL, HUNDRED),
        "one component": lambda: plots.heterogeneity(ONE_MODEL, PARTIES),
    },
    "component_images": {
        "plain": lambda: plots.component_images(MODEL, (3, 4)),
        "one component": lambda: plots.component_images(ONE_MODEL, (3, 4)),
        "colours": lambda: plots.component_images(MODEL, (2, 2, 3)),
        "500 features": lambda: plots.component_images(WIDE_MODEL, (20, 25)),
    },
    "how_many": {
        "plain": lambda: plots.how_many(analyses.how_many(MOMENTS)),
        "500 features": lambda: plots.how_many(analyses.how_many(WIDE_MOMENTS, draws=5)),
        "two features": lambda: plots.how_many(analyses.how_many(SecondMoments.of(X[:, :2]))),
    },
    "outlier_map": {
        "plain": lambda: plots.outlier_map(analyses.outliers(analyses.pca(MOMENTS, 3), X)),
        "rows far off": lambda: plots.outlier_map(analyses.outliers(analyses.pca(MOMENTS, 3), ODD)),
        "one component": lambda: plots.outlier_map(analyses.outliers(analyses.pca(MOMENTS, 1), X)),
    },
    "biplot": {
        "plain": lambda: plots.biplot(analyses.read(MOMENTS, 2), X),
        "classes": lambda: plots.biplot(KEPT, FEATURES, labels=classes(FEATURES, 3), components=(1, 3)),
        "numbers": lambda: plots.biplot(KEPT, AGED, labels="age"),
        "names of 58 letters": lambda: plots.biplot(analyses.read(LONG_MOMENTS, 2), named(X)),
        "30 like features": lambda: plots.biplot(analyses.read(SecondMoments.of(ALIKE), 2), ALIKE),
        "500 features": lambda: plots.biplot(analyses.read(WIDE_MOMENTS, 2), WIDE),
    },
    "variables": {
        "plain": lambda: plots.variables(analyses.read(MOMENTS, 2, supplementary=[0])),
        "names of 58 letters": lambda: plots.variables(analyses.read(LONG_MOMENTS, 2)),
        "500 features": lambda: plots.variables(analyses.read(WIDE_MOMENTS, 2)),
    },
    "levels": {
        "plain": lambda: plots.levels(*mixed(["ward", "sex"], 3)),
        "names of 58 letters": lambda: plots.levels(*mixed(long_names("ward", 4), 4)),
        "24 levels": lambda: plots.levels(*mixed(["ward"], 24)),
    },
    "squared_correlations": {
        "plain": lambda: plots.squared_correlations(mixed(["ward", "sex"], 3)[0]),
        "names of 58 letters": lambda: plots.squared_correlations(mixed(long_names("ward", 4), 4)[0]),
        "33 columns": lambda: plots.squared_correlations(mixed([f"item {j}" for j in range(31)], 3)[0]),
    },
    "contributions": {
        "plain": lambda: plots.contributions(analyses.read(MOMENTS, 2, supplementary=[0])),
        "names of 58 letters": lambda: plots.contributions(analyses.read(LONG_MOMENTS, 2)),
        "500 features": lambda: plots.contributions(analyses.read(WIDE_MOMENTS, 2)),
        "two features": lambda: plots.contributions(analyses.read(SecondMoments.of(X[:, :2]), 1)),
    },
}
"""Functions that draw, by the figure's name and by what is hard about the input."""


def sheet(inputs: dict[str, Callable[[], Figure]], width: int = 1900) -> Image.Image:
    """Lay pictures in lines on a grey page, so that the edges of each are seen, with a text above each."""
    page, x, y, height = Image.new("RGB", (width, 10_000), "#999999"), 0, 0, 0
    for what, draw in inputs.items():
        draw().savefig(stream := BytesIO(), format="png", dpi=80)
        picture = Image.open(stream)
        if x + picture.width > width:
            x, y, height = 0, y + height, 0
        ImageDraw.Draw(page).text((x + 5, y + 4), f"{what} ({picture.width} x {picture.height})", "black")
        page.paste(picture, (x + 5, y + 20))
        x, height = x + picture.width + 10, max(height, picture.height + 30)
    return page.crop((0, 0, width, y + height))


def main(folder: str, *figures: str) -> None:
    Path(folder).mkdir(parents=True, exist_ok=True)
    for name in figures or FIGURES:
        sheet(FIGURES[name]).save(Path(folder) / f"{name}.png")


if __name__ == "__main__":
    main(*sys.argv[1:])
