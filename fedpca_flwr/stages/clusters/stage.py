"""Clusters of the scores of all rows (options ``clusters``, ``clustering``), by sums, once the components are known.

The server names centres, every party tells how many of its rows are nearest to each and the sum of their scores, and
the means are the next centres; ``clustering='mixture'`` goes on from there with shares by probability
(`fedpca_flwr.maths.clustering`), and ``'harmony'`` brings the scores of the parties together. Several starts, drawn
from the run's seed, go side by side in the same questions, and that of the least sum of squared distances is taken.

A centre of the server's meets scores before they are summed: two questions that differ by one row tell its scores. So
a site must allow that scores of single rows are seen. They are those on one set of components, which a site is told
once in a run. The model says how many rows a cluster has where they are not few.
"""

from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field as Limits
from scipy.linalg import LinAlgError

from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.errors import ContractError
from fedpca_flwr.maths import clustering
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.protocol.card import PCAOptions
from fedpca_flwr.protocol.payload import Field, Fields, Payload
from fedpca_flwr.protocol.question import SERVER, Ask, Public, Question, Questions, Sum, SumLimits, Total
from fedpca_flwr.questions.projection import Projection
from fedpca_flwr.questions.row_limits import FIRST_WORDS, ROWS
from fedpca_flwr.questions.rows_run import Closing, RowsClient, RowsStage, RowsStrategy
from fedpca_flwr.site.scores import beside
from fedpca_flwr.stages.clusters import harmony

STARTS = 10
"""Sets of centres that a run tries."""

MOST_STEPS = 100
"""Of either kind that a run takes."""

FEWEST = 10
"""Of fewer rows in a cluster the model does not say how many there are."""

ENOUGH = 1e-9
"""A mixture is done once a step adds less to the mean logarithm of the density."""

AXES = {"components", "scale"}
"""What scores are made with, which a site is told once in a run: others would tell more numbers of the same row."""

MIXTURE = (
    Field("weights", ("<=m",), kind="size", optional=True),
    Field("covariances", ("<=m", "<=k", "<=k"), optional=True),
)
"""What a mixture has besides its means."""


class ClusterOptions(PCAOptions):
    """Which clusters a run goes on to."""

    clusters: Annotated[int, Limits(ge=0, le=1000, examples=[2, 3])] = 0
    """Find so many clusters among the scores of all rows, if sites allow it (docs/clusters.md); 0: none."""
    clustering: Literal["k-means", "mixture", "harmony"] = "k-means"
    """About centres, a mixture of normal distributions, or those of Harmony (docs/single-cells.md)."""


class Clusters(RowsStage):
    """Clusters of the scores of all rows, between a method's fit and the last round."""

    Options = ClusterOptions
    needs = ("rows",)
    names = ("clusters",)
    examples = ({"clusters": 2, "clustering": "mixture"}, {"clusters": 2, "clustering": "harmony"})
    options: ClusterOptions

    @property
    def exposes(self) -> str:
        return "scores"

    @property
    def site_sums(self) -> Mapping[str, str]:
        return {"harmony": harmony.OF_SITES} if self.options.clustering == "harmony" else {}

    def script(self, config: RunConfig, questions: Questions) -> Questions:
        options, last = self.options, questions.get("project")
        if last is None:  # the method goes on as another one, whose script has it
            return questions

        def sizes(public: Public) -> dict[str, int]:
            own = {"k": public.features, "s": STARTS, "m": options.clusters}
            return {**last.sizes(public), **harmony.sizes(public), **own}

        known = tuple(replace(one, fixed=one.name) if one.name in AXES else one for one in last.asked.fields)
        steps = {"k-means": [self._cells], "mixture": [self._cells, self._shares], "harmony": [self._mixed]}
        asked = {
            name: replace(question, needs="rows", sizes=sizes, words=FIRST_WORDS)
            for make in steps[options.clustering]
            for name, question in make(known, last).items()
        }
        places = (Field("centres", ("<=m", "<=k")), *MIXTURE)
        told = Payload((*known, *(harmony.STEPS if options.clustering == "harmony" else places)))
        closing = replace(last, asked=told, sizes=sizes)
        return {
            **{name: one for name, one in questions.items() if name != "project"},
            **asked,
            "project": closing,
        }

    def _cells(self, known: tuple[Field, ...], last: Question) -> Questions:
        """How many rows are nearest to each centre, and the sums of their scores."""
        sums = (Field("counts", ("s", "m"), kind="size"), Field("sums", ("s", "m", "k")))
        cells = Question(
            asked=Payload((*known, Field("centres", ("<=s", "<=m", "<=k")))),
            reply=Payload((*sums, Field("inertia", ("s",), kind="size"))),
            answer=lambda party, asked: _cells(asked, self.points(party, asked)),
            limits=lambda asked, public: _cell_limits(asked, _farthest(last, asked, public)),
            times=MOST_STEPS,
        )
        return {"cells": cells}

    def _shares(self, known: tuple[Field, ...], last: Question) -> Questions:
        """The sums over rows that are shared out by the probabilities of a mixture."""
        mixture = (Field("means", ("<=m", "<=k")), *(replace(one, optional=False) for one in MIXTURE))
        sums = (Field("counts", ("m",), kind="size"), Field("sums", ("m", "k")), Field("products", ("m", "k", "k")))
        shares = Question(
            asked=Payload((*known, *mixture)),
            reply=Payload((*sums, Field("log_density", ()))),
            answer=lambda party, asked: _shares(asked, self.points(party, asked)),
            limits=lambda asked, public: _share_limits(asked, _farthest(last, asked, public)),
            times=MOST_STEPS,
        )
        return {"shares": shares}

    def _mixed(self, known: tuple[Field, ...], last: Question) -> Questions:
        """The sums of a step of Harmony."""
        mixed = Question(
            asked=Payload((*known, *harmony.STEPS)),
            reply=harmony.MIXED,
            answer=lambda party, asked: harmony.mixed(asked, self.points(party, asked), party.site.node.partition_id),
            limits=lambda asked, public: harmony.limits(asked, _farthest(last, asked, public)),
            times=harmony.times(),
        )
        return {"mixed": mixed}

    # A party

    def points(self, party: RowsClient, asked: Fields, *, every: bool = False) -> Iterator[Array]:
        """The scores of the rows of the run, chunk by chunk, or of every row of the site."""
        projection = party.projection(asked)
        require_scale(asked["scale"], scaled=party.options.scaled or any(stage.scales for stage in party.stages))
        for part in party.parts if every else (party.unscaled,):
            yield from projection.scores(part)

    def observer(self, party: RowsClient, asked: Fields, projection: Projection, files: ExitStack) -> None:
        node, points = party.site.node, self.points(party, asked, every=True)
        if self.options.clustering == "harmony":
            harmony.keep_corrected(node.scores, asked, points, node.partition_id)
        else:
            keep_clusters(node.scores, asked, points)

    # The server

    def closing(self, run: RowsStrategy, model: PCAModel, asked: Fields) -> Closing:
        return (yield from clusters_of(model, asked, self.options, run.public))


def _cell_limits(asked: Fields, farthest: float) -> SumLimits:
    """Limits of sums over rows whose scores are at most ``farthest`` in size, with room for rounding."""
    apart = np.abs(asked["centres"]).max(axis=(0, 1)) + farthest
    with np.errstate(over="ignore"):  # what is not finite is refused
        inertia = 2 * ROWS * np.square(apart).sum()
    return {"counts": np.array(2.0 * ROWS), "sums": 2 * ROWS * apart, "inertia": inertia}


def _share_limits(asked: Fields, farthest: float) -> SumLimits:
    apart = np.abs(asked["means"]) + farthest
    with np.errstate(over="ignore"):
        products = 2 * ROWS * apart[:, :, None] * apart[:, None]
    return {
        "counts": np.array(2.0 * ROWS),
        "sums": 2 * ROWS * apart,
        "products": products,
        "log_density": np.array(2 * ROWS * clustering.MOST_LOG_DENSITY),
    }


def _farthest(last: Question, asked: Fields, public: Public) -> float:
    """No score is larger in size: its square is in the sum of squares that limits what the ``last`` question leaves."""
    assert last.limits is not None
    return float(np.sqrt(last.limits(asked, public)["squared"]))


# What a party answers


def _cells(asked: Fields, parts: Iterator[Array]) -> Fields:
    """Of each set of centres how many rows are nearest to each, the sums of their scores, and of squared distances."""
    centres = asked["centres"]
    require_axes(asked["components"], centres)
    found = clustering.Cells.about(centres)
    for points in parts:
        found.add(points, centres)
    return {"counts": found.counts, "sums": found.sums, "inertia": found.inertia}


def _shares(asked: Fields, parts: Iterator[Array]) -> Fields:
    """Sums over rows that are shared out by the probabilities of a mixture."""
    mixture = mixture_of(asked, "means")
    found = clustering.Shared.of(mixture)
    for points in parts:
        found.add(points, mixture)
    density = np.asarray(found.log_density)
    return {"counts": found.counts, "sums": found.sums, "products": found.products, "log_density": density}


def require_scale(scale: Array, *, scaled: bool) -> None:
    """Refuse deviations in a run that does not scale, and a run without them that does: then both could be asked."""
    if (scale.size > 0) != scaled:
        raise ContractError(f"{SERVER}: 'scale' holds {scale.size} deviations, and the run has scale={scaled}")


def require_axes(components: Array, *places: Array) -> None:
    """Refuse centres or covariances of other dimensions than there are components."""
    if any(place.shape[-1] != len(components) for place in places):
        raise ContractError(f"{SERVER}: what it says of clusters is not of {len(components)} components")


def labels(points: Array, means: Array, mixture: clustering.Mixture | None) -> tuple[NDArray[np.intp], Array]:
    """Of points (n, k) the number of the cluster, and the distance to its centre, or of a mixture the probability."""
    if mixture is None:
        cells, squares = clustering.nearest(points, means)
        return cells, np.sqrt(squares)
    shares, _ = mixture.shares(points)
    return shares.argmax(axis=1), shares.max(axis=1)


def mixture_of(asked: Fields, means: str) -> clustering.Mixture:
    """The mixture that a server named, whose means are in the field of this name."""
    found = clustering.Mixture(asked["weights"], asked[means], asked["covariances"])
    require_axes(asked["components"], found.means, found.covariances)
    try:
        possible = found.weights.all() and np.linalg.cholesky(found.covariances).size > 0
    except LinAlgError:
        possible = False
    if not possible:
        raise ContractError(f"{SERVER}: 'weights' and 'covariances' are of no mixture of normal distributions")
    return found


def keep_clusters(scores: str, asked: Fields, points: Iterator[Array]) -> None:
    """Write beside a site's own scores of which cluster each row is, and how far from its centre or how probably."""
    means = asked["centres"]
    mixture = mixture_of(asked, "centres") if asked["weights"].size else None
    require_axes(asked["components"], means)
    with beside(scores, "clusters", b"cluster,distance\n" if mixture is None else b"cluster,probability\n") as stream:
        if stream is None:
            return
        for part in points:
            cells, how = labels(part, means, mixture)
            for cell, value in zip(cells.tolist(), how.tolist(), strict=True):
                stream.write(f"{cell},{value:.9g}\n".encode())


# What the server makes of it


Found = Generator[Ask, Any, dict[str, Array]]


def clusters_of(model: PCAModel, told: Fields, options: ClusterOptions, public: Public) -> Found:
    """The clusters of all rows' scores, the largest first; ``told`` is what rows are projected with.

    What is found is what sites are told (``centres``, and of a mixture ``weights`` and ``covariances``); the log of the
    model says how many steps it took, and how many rows each has.
    """
    variances = model.explained_variance_
    if options.clustering == "harmony":
        return (yield from harmony.harmonised(model, told, options.clusters, public))
    centres, counts, inertia, steps = yield from _k_means(model, told, options.clusters, public.config.seed)
    found, measured = {"centres": centres, "weights": np.empty(0), "covariances": np.empty((0, 0, 0))}, inertia
    if options.clustering == "mixture":
        spread = inertia / model.n_samples_ / variances.size * np.eye(variances.size)
        regular = clustering.REGULAR * float(variances.mean())
        spread += regular * np.eye(variances.size)
        start = clustering.Mixture((counts + 1) / (counts + 1).sum(), centres, np.array([spread] * len(centres)))
        found, counts, measured, steps = yield from _mixture(model, told, start, regular)
    rows = [int(count) if count >= FEWEST else None for count in counts.round()]
    name = "mean_log_density" if options.clustering == "mixture" else "inertia"
    model.log["clusters"] = {"kind": options.clustering, "rows": rows, "steps": steps, name: measured}
    model.log["clusters"] |= {name: value.tolist() for name, value in found.items() if value.size}
    if steps == MOST_STEPS:
        model.log["notes"].append(f"the clusters still moved after {MOST_STEPS} steps")
    return found


def _k_means(
    model: PCAModel, told: Fields, clusters: int, seed: int
) -> Generator[Ask, Any, tuple[Array, Array, float, int]]:
    """Centres, counts of rows, sum of squared distances, and steps."""
    variances, moved, steps = model.explained_variance_, np.inf, 0
    centres = clustering.starts(variances, clusters, STARTS, seed)
    while moved > clustering.NEAR * np.sqrt(variances[0]) and steps < MOST_STEPS:
        total: Total = yield Sum("cells", {**told, "centres": centres})
        cells = clustering.Cells(total["counts"].round(), total["sums"], total["inertia"])
        if (cells.counts.sum(axis=1) != model.n_samples_).any():
            raise ContractError(f"the parties have other rows in their clusters than the {model.n_samples_} of the run")
        before, centres, steps = centres, cells.step(centres), steps + 1
        moved = float(np.abs(centres - before).max())
    best = int(cells.inertia.argmin())
    order = np.argsort(-cells.counts[best], kind="stable")
    return centres[best][order], cells.counts[best][order], float(cells.inertia[best]), steps


def _mixture(
    model: PCAModel, told: Fields, start: clustering.Mixture, regular: float
) -> Generator[Ask, Any, tuple[dict[str, Array], Array, float, int]]:
    """The same of a mixture, with the mean logarithm of the density."""
    mixture, density, gained, steps = start, -np.inf, np.inf, 0
    while gained > ENOUGH and steps < MOST_STEPS:
        named = {"means": mixture.means, "weights": mixture.weights, "covariances": mixture.covariances}
        total: Total = yield Sum("shares", {**told, **named})
        shared = clustering.Shared(total["counts"], total["sums"], total["products"], float(total["log_density"]))
        before, density, steps = density, shared.log_density / model.n_samples_, steps + 1
        gained, mixture = density - before, shared.step(mixture.means, regular)
    order = np.argsort(-mixture.weights, kind="stable")
    found = {"centres": mixture.means, "weights": mixture.weights, "covariances": mixture.covariances}
    return {name: value[order] for name, value in found.items()}, shared.counts[order], density, steps
