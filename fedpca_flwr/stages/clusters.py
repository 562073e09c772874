"""Clusters of the scores of all rows (options ``clusters``, ``clustering``), by sums, once the components are known.

The server sends centres, every party replies how many of its rows are nearest to each and the sum of their scores, and
the means are the next centres. ``clustering='mixture'`` goes on from there with shares by probability
(`fedpca_flwr.maths.clustering`), and ``'harmony'`` brings the parties' scores together. Several starts, drawn from the
run's seed, go side by side in the same questions, and the one with the least sum of squared distances wins.

A centre of the server's meets scores before they are summed: two questions that differ by one row tell its scores. So a
site must allow that scores of single rows, on one set of components, are seen.
"""

from collections.abc import Generator, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError
from typing_extensions import override

from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.errors import ContractError
from fedpca_flwr.maths import clustering
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.protocol.payload import Field, Fields, Payload
from fedpca_flwr.protocol.question import SERVER, Public, Question, Questions, Round, SumLimits, SumRound, Total
from fedpca_flwr.protocol.strategy import PCAStrategy
from fedpca_flwr.questions.row_limits import FIRST_WORDS, MAX_ROWS
from fedpca_flwr.questions.rows_client import Closing, Projection, RowsClient, RowsStage
from fedpca_flwr.site.scores import companion_file
from fedpca_flwr.stages import harmony
from fedpca_flwr.stages.declarations import Clusters

STARTS = 10  # number of sets of centres that a run tries
MAX_STEPS = 100  # largest number of steps of k-means, and of a mixture
MIN_SHOWN_ROWS = 10  # smallest number of rows of a cluster that the model states

MIN_DENSITY_GAIN = 1e-9  # of a step in the mean logarithm of the density; a smaller gain ends the fit of a mixture

AXIS_FIELDS = {"components", "scale"}
"""Fields from which a party computes scores. A site receives them once in a run, because further ones would show more
about the same row."""

MIXTURE_FIELDS = (
    Field("weights", ("<=m",), kind="size", optional=True),
    Field("covariances", ("<=m", "<=k", "<=k"), optional=True),
)
"""Fields of a mixture besides its means."""


class ClustersStage(Clusters, RowsStage):
    """Stage that clusters the scores of all rows (k-means, mixture or Harmony) after a method's fit."""

    @override
    def script(self, config: RunConfig, questions: Questions) -> Questions:
        """Add the clustering's questions before the projection, and clusters to its request, if there is one."""
        options, last = self.options, questions.get("project")
        if last is None:  # the method goes on as another one, whose script has it
            return questions

        def sizes(public: Public) -> dict[str, int]:
            """Return the values of the symbols in field shapes: steps t, starts s, clusters m, components k."""
            steps = {"t": harmony.MAX_CORRECTIONS + 1, "parties": public.parties}
            return {**last.request_sizes(public), **steps, "k": public.features, "s": STARTS, "m": options.clusters}

        projection_fields = tuple(
            replace(item, constant=item.name) if item.name in AXIS_FIELDS else item for item in last.request.fields
        )
        if options.clustering == "harmony":
            cluster_questions = {"mixed": self._harmony_question(projection_fields, last)}
            cluster_fields = harmony.STEP_FIELDS
        else:
            cluster_questions = {"cells": self._cells_question(projection_fields, last)}
            cluster_fields = (Field("centres", ("<=m", "<=k")), *MIXTURE_FIELDS)
        if options.clustering == "mixture":
            cluster_questions["shares"] = self._shares_question(projection_fields, last)
        settings: dict[str, Any] = {"needs": "rows", "sizes": sizes, "words": FIRST_WORDS}
        cluster_questions = {name: replace(question, **settings) for name, question in cluster_questions.items()}
        closing = replace(last, request=Payload((*projection_fields, *cluster_fields)), sizes=sizes)
        method_questions = {name: item for name, item in questions.items() if name != "project"}
        return {**method_questions, **cluster_questions, "project": closing}

    def _cells_question(self, projection_fields: tuple[Field, ...], last: Question) -> Question:
        """Return the question of a k-means step: per centre, the count of nearest rows and the sum of their scores."""
        sums = (Field("counts", ("s", "m"), kind="size"), Field("sums", ("s", "m", "k")))
        return Question(
            request=Payload((*projection_fields, Field("centres", ("<=s", "<=m", "<=k")))),
            reply=Payload((*sums, Field("inertia", ("s",), kind="size"))),
            answer=lambda party, request: _local_cells(request, self.points(party, request)),
            limits=lambda request, public: _cell_limits(request, _max_score(last, request, public)),
            times=MAX_STEPS,
        )

    def _shares_question(self, projection_fields: tuple[Field, ...], last: Question) -> Question:
        """Return the question of a mixture's EM step: sums of rows weighted by their cluster probabilities."""
        mixture = (Field("means", ("<=m", "<=k")), *(replace(item, optional=False) for item in MIXTURE_FIELDS))
        sums = (Field("counts", ("m",), kind="size"), Field("sums", ("m", "k")), Field("products", ("m", "k", "k")))
        return Question(
            request=Payload((*projection_fields, *mixture)),
            reply=Payload((*sums, Field("log_density", ()))),
            answer=lambda party, request: _local_shares(request, self.points(party, request)),
            limits=lambda request, public: _share_limits(request, _max_score(last, request, public)),
            times=MAX_STEPS,
        )

    def _harmony_question(self, projection_fields: tuple[Field, ...], last: Question) -> Question:
        """Return the question of a Harmony step: counts and score sums per cluster and party."""

        def answer(party: RowsClient, request: Fields) -> Fields:
            """Return a party's sums of a Harmony step, with its partition as the batch."""
            return harmony.local_sums(request, self.points(party, request), party.site.node.partition_id)

        return Question(
            request=Payload((*projection_fields, *harmony.STEP_FIELDS)),
            reply=harmony.STEP_SUMS,
            answer=answer,
            limits=lambda request, public: harmony.limits(request, _max_score(last, request, public)),
            times=harmony.MAX_QUESTIONS,
        )

    # A party

    def points(self, party: RowsClient, request: Fields, *, all_rows: bool = False) -> Iterator[Array]:
        """Yield the scores (m, k) of rows that take part, or of ``all_rows``; ContractError for a wrong request."""
        projection, scale = party.projection(request), request["scale"]
        if not all_rows:  # whose scores stay at the site
            projection.require_near()
        scaled = party.options.scaled or any(stage.scales for stage in party.stages)
        if (scale.size > 0) != scaled:  # else a server could ask for scores of both kinds
            raise ContractError(f"{SERVER}: 'scale' holds {scale.size} deviations, and the run has scale={scaled}")
        for part in party.site.file_rows if all_rows else (party.scored_rows,):
            yield from projection.scores(part)

    @override
    def observer(self, party: RowsClient, request: Fields, projection: Projection, files: ExitStack) -> None:
        """Write each row's cluster, or its corrected scores, beside the site's scores; return no observer (None)."""
        node, points = party.site.node, self.points(party, request, all_rows=True)
        if self.options.clustering == "harmony":
            harmony.write_corrected(node.scores, request, points, node.partition_id)
        else:
            write_clusters(node.scores, request, points)

    # The server

    @override
    def closing(self, run: PCAStrategy, model: PCAModel, request: Fields) -> Closing:
        """Cluster the scores by rounds of sums, log clusters in the model, and return the last request's fields."""
        options, variances = self.options, model.explained_variance_
        if options.clustering == "harmony":
            return (yield from harmony.harmonise(model, request, options.clusters, run.public))
        centres, counts, inertia, steps = yield from _fit_k_means(model, request, options.clusters, run.config.seed)
        fields, measure = {"centres": centres, "weights": np.empty(0), "covariances": np.empty((0, 0, 0))}, inertia
        if options.clustering == "mixture":
            regular = clustering.RIDGE_SHARE * float(variances.mean())
            spread = (inertia / model.n_samples_ / variances.size + regular) * np.eye(variances.size)
            start = clustering.Mixture((counts + 1) / (counts + 1).sum(), centres, np.array([spread] * len(centres)))
            fields, counts, measure, steps = yield from _fit_mixture(model, request, start, regular)
        rows = [int(count) if count >= MIN_SHOWN_ROWS else None for count in counts.round()]
        name = "mean_log_density" if options.clustering == "mixture" else "inertia"
        model.log["clusters"] = {"kind": options.clustering, "rows": rows, "steps": steps, name: measure}
        model.log["clusters"] |= {name: value.tolist() for name, value in fields.items() if value.size}
        if steps == MAX_STEPS:
            model.log["notes"].append(f"the clusters still moved after {MAX_STEPS} steps")
        return fields


def _cell_limits(request: Fields, max_score: float) -> SumLimits:
    """Return twice the limits of k-means sums over at most `MAX_ROWS` rows with scores up to ``max_score``."""
    distance = np.abs(request["centres"]).max(axis=(0, 1)) + max_score
    with np.errstate(over="ignore"):  # what is not finite is refused
        inertia = 2 * MAX_ROWS * np.square(distance).sum()
    return {"counts": np.array(2.0 * MAX_ROWS), "sums": 2 * MAX_ROWS * distance, "inertia": inertia}


def _share_limits(request: Fields, max_score: float) -> SumLimits:
    """Return twice the limits of EM sums over at most `MAX_ROWS` rows with scores up to ``max_score``."""
    distance = np.abs(request["means"]) + max_score
    with np.errstate(over="ignore"):
        products = 2 * MAX_ROWS * distance[:, :, None] * distance[:, None]
    counts, density = np.array(2.0 * MAX_ROWS), np.array(2 * MAX_ROWS * clustering.MAX_LOG_DENSITY)
    return {"counts": counts, "sums": 2 * MAX_ROWS * distance, "products": products, "log_density": density}


def _max_score(last: Question, request: Fields, public: Public) -> float:
    """Return a bound on the absolute value of a score: the root of the projection question's limit on squared error."""
    assert last.limits is not None
    return float(np.sqrt(last.limits(request, public)["squared"]))


def _local_cells(request: Fields, parts: Iterator[Array]) -> Fields:
    """Return a party's k-means sums for each set of centres: counts, score sums and squared distances."""
    centres = request["centres"]
    require_axes(request["components"], centres)
    cells = clustering.CellSums.empty(centres)
    for points in parts:
        cells.add(points, centres)
    return {"counts": cells.counts, "sums": cells.sums, "inertia": cells.inertia}


def _local_shares(request: Fields, parts: Iterator[Array]) -> Fields:
    """Return a party's EM sums for a mixture: rows weighted by cluster probabilities, and the log-density."""
    mixture = read_mixture(request, "means")
    shares = clustering.MixtureSums.empty(mixture)
    for points in parts:
        shares.add(points, mixture)
    density = np.asarray(shares.log_density)
    return {"counts": shares.counts, "sums": shares.sums, "products": shares.products, "log_density": density}


def require_axes(components: Array, *arrays: Array) -> None:
    """Raise ContractError for arrays whose last axis is not the number k of components (k, d)."""
    if any(place.shape[-1] != len(components) for place in arrays):
        raise ContractError(f"{SERVER}: what it says of clusters is not of {len(components)} components")


def labels(points: Array, means: Array, mixture: clustering.Mixture | None) -> tuple[NDArray[np.intp], Array]:
    """Return the clusters (n,) of points (n, k), with distances to means (m, k), or in a mixture probabilities (n,)."""
    if mixture is None:
        cells, squares = clustering.assign_to_nearest(points, means)
        return cells, np.sqrt(squares)
    shares, _ = mixture.responsibilities(points)
    return shares.argmax(axis=1), shares.max(axis=1)


def read_mixture(request: Fields, means: str) -> clustering.Mixture:
    """Return the mixture in a request, whose means are in the field ``means``; raise ContractError for what is none."""
    mixture = clustering.Mixture(request["weights"], request[means], request["covariances"])
    require_axes(request["components"], mixture.means, mixture.covariances)
    try:
        possible = mixture.weights.all() and np.linalg.cholesky(mixture.covariances).size > 0
    except LinAlgError:
        possible = False
    if not possible:
        raise ContractError(f"{SERVER}: 'weights' and 'covariances' are of no mixture of normal distributions")
    return mixture


def write_clusters(scores: str, request: Fields, points: Iterator[Array]) -> None:
    """Write each row's cluster, with its distance or probability, beside the file ``scores``, or nothing without it."""
    means = request["centres"]
    mixture = read_mixture(request, "centres") if request["weights"].size else None
    require_axes(request["components"], means)
    header = b"cluster,distance\n" if mixture is None else b"cluster,probability\n"
    with companion_file(scores, "clusters", header) as stream:
        if stream is None:
            return
        for part in points:
            cells, values = labels(part, means, mixture)
            for cell, value in zip(cells.tolist(), values.tolist(), strict=True):
                stream.write(f"{cell},{value:.9g}\n".encode())


def _fit_k_means(
    model: PCAModel, projection: Fields, clusters: int, seed: int
) -> Generator[Round, Any, tuple[Array, Array, float, int]]:
    """Run k-means by sums from several starts; return the best centres, counts, inertia and steps, largest first."""
    variances, max_move, steps = model.explained_variance_, np.inf, 0
    centres = clustering.draw_starts(variances, clusters, STARTS, seed)
    while max_move > clustering.CENTRE_TOLERANCE * np.sqrt(variances[0]) and steps < MAX_STEPS:
        total: Total = yield SumRound("cells", {**projection, "centres": centres})
        cells = clustering.CellSums(total["counts"].round(), total["sums"], total["inertia"])
        if (cells.counts.sum(axis=1) != model.n_samples_).any():
            raise ContractError(f"the parties have other rows in their clusters than the {model.n_samples_} of the run")
        previous, centres, steps = centres, cells.step(centres), steps + 1
        max_move = float(np.abs(centres - previous).max())
    best = int(cells.inertia.argmin())
    order = np.argsort(-cells.counts[best], kind="stable")
    return centres[best][order], cells.counts[best][order], float(cells.inertia[best]), steps


def _fit_mixture(
    model: PCAModel, projection: Fields, start: clustering.Mixture, regular: float
) -> Generator[Round, Any, tuple[dict[str, Array], Array, float, int]]:
    """Fit a mixture by EM; return its parameters, row counts, mean log-density and steps, the largest weight first."""
    mixture, density, gain, steps = start, -np.inf, np.inf, 0
    while gain > MIN_DENSITY_GAIN and steps < MAX_STEPS:
        request = {"means": mixture.means, "weights": mixture.weights, "covariances": mixture.covariances}
        total: Total = yield SumRound("shares", {**projection, **request})
        shared = clustering.MixtureSums(total["counts"], total["sums"], total["products"], float(total["log_density"]))
        previous, density, steps = density, shared.log_density / model.n_samples_, steps + 1
        gain, mixture = density - previous, shared.step(mixture.means, regular)
    order = np.argsort(-mixture.weights, kind="stable")
    fields = {"centres": mixture.means, "weights": mixture.weights, "covariances": mixture.covariances}
    return {name: value[order] for name, value in fields.items()}, shared.counts[order], density, steps
