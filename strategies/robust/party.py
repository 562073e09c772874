"""A party of ROBUST: options, questions, and sums of the directions of its rows."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property, partial
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field as Limits
from typing_extensions import override

from fedpca_flwr.maths import moments
from fedpca_flwr.maths.rows import centred_chunks, dense_rows, row_lengths
from fedpca_flwr.questions import method
from fedpca_flwr.questions.row_limits import MAX_ROWS
from fedpca_flwr.site import scores
from fedpca_flwr.strategies.robust import spatial_signs

MAX_INVERSE_DISTANCE = 2.0**40  # largest 1 / r of a row, in units of the run's typical distance
MAX_DIRECTIONS = 200  # along which a run looks for rows far off, or `n-components` if larger
SECOND_STEP_PREFIX = "nearer_"  # of the names of the second step's questions
MAX_SCALE_RATIO = 2.0**100  # largest ratio of `bound` to a feature's deviation, with ``scale`` in secure sums
NO_SCALE: method.Array = np.empty(0)

# keys of what a party stores of its rows between questions
MEDIAN_KEY, FLOOR_KEY, SCALED_FLOOR_KEY = "robust: own median", "robust: own floor", "robust: own floor, scaled"
SPREADS_KEY = "robust: own spreads"  # after the prefix of a step
WEIGHTS_KEY = "robust: own weights"  # of the rows, in the last step so far

SITE_DISCLOSURE = (
    "sums of the sites' own medians, sums of counts with limits from each site's rows, and sums of the rows' "
    "directions from centres that the server chooses. Sums for many centres tell where a site's rows lie"
)


class RobustOptions(method.Options):
    """Options of ROBUST: components, scaling, robustness against faulty parties, and the search for the median."""

    scale: bool = False
    """Divide each feature by its median absolute deviation."""
    robust_parties: bool = False
    """In clear only: bound each site's weight, and use the median of the sites' sums. This option is for sites
    that are alike."""
    max_rounds: Annotated[method.Count, Limits(examples=[1, 2, 3])] = 30
    """Largest number of steps to the median. A model that stops there states the remaining distance."""

    @property
    @override
    def sum_disclosures(self) -> Mapping[str, str]:
        """Disclosure of single sites by sums about chosen centres."""
        return {"robust": SITE_DISCLOSURE}


COUNT_FIELD = method.Field("count", (), "int64", kind="count")
CENTRE_FIELDS = (
    method.Field("centre", ("d",)),
    method.Field("scale", ("d",), kind="positive", optional=True, constant="deviations"),
    method.Field("unit", (), kind="positive"),
    method.Field("rows", (), "int64", kind="count"),
)
UNITS_FIELD = method.Field("units", ("m",), kind="positive")


def robust_script(config: method.RunConfig, options: RobustOptions) -> method.Questions:
    """Return the questions of ROBUST, in order: spatial median, sign covariance, two outlier searches, variances."""
    octave, location = method.Field("octave", ()), method.Field("location", ("d",))
    deviations = (method.Field("measured", ("d",), kind="size"), method.Field("nearness", ("d",), kind="size"))
    location_fields = (octave, *(deviations if options.scale else ()), location)
    start = method.Question(
        reply=method.Payload((COUNT_FIELD, *location_fields)),
        answer=_answer_start,
        limits=None if options.robust_parties else partial(_start_limits, options),
        suggestion="leave out robust-parties, for which the server must see what each party tells",
        words=method.FIRST_WORDS,
    )
    median = method.Question(
        request=method.Payload(CENTRE_FIELDS),
        reply=method.Payload((COUNT_FIELD, method.Field("signs", ("d",)), method.Field("weight", (), kind="size"))),
        answer=_answer_median,
        limits=_limits_per_row(count=1.0, signs=1.0, weight=MAX_INVERSE_DISTANCE),
        words=3,
        times=options.max_rounds,
    )
    signs = method.Question(
        request=method.Payload(CENTRE_FIELDS),
        reply=method.Payload((COUNT_FIELD, method.Field("scatter", ("d(d+1)/2",), kind="scatter"))),
        answer=_answer_signs,
        limits=_limits_per_row(count=1.0, scatter=1.0),
        words=2,
    )
    steps = {**_step_questions(""), **_step_questions(SECOND_STEP_PREFIX)}
    turned = method.Field("turned", ("m", "d"), kind="orthonormal rows")
    request = method.Payload((*CENTRE_FIELDS, turned, UNITS_FIELD))
    variances = replace(steps[f"{SECOND_STEP_PREFIX}scores"], request=request, answer=_answer_variances)
    errors = method.Question(
        request=method.Payload((*CENTRE_FIELDS, method.Field("components", ("k", "d"), kind="orthonormal rows"))),
        reply=method.Payload((COUNT_FIELD, method.Field("errors", ("bins",), kind="size"))),
        answer=_answer_errors,
        sizes=lambda public: {"k": options.n_components, **_sizes(public)},
        limits=_limits_per_row(count=1.0, errors=1.0),
    )
    closing_fields = (method.Field("variances", ("<=k",), kind="size"), method.Field("limits", ("2",), kind="positive"))
    closing = method.projection_questions(differentially_private=True, extra_fields=closing_fields)
    last = {"variances": variances, "errors": errors}
    return {"start": start, "median": median, "signs": signs, **steps, **last, **closing}


def _step_questions(step: str) -> method.Questions:
    """Return an outlier search's questions, named after ``step``: histograms, whitened signs, histograms, sums."""
    vectors, middles, spreads = (
        method.Field("vectors", ("m", "d"), kind="orthonormal rows", constant=f"{step}vectors"),
        method.Field("middles", ("m",), constant=f"{step}middles"),
        method.Field("spreads", ("m",), kind="positive", constant=f"{step}spreads"),
    )
    shape = (
        method.Field("shape_vectors", ("m", "m"), kind="orthonormal rows", constant=f"{step}shape vectors"),
        method.Field("shape_middles", ("m",), constant=f"{step}shape middles"),
        method.Field("shape_spreads", ("m",), kind="positive", constant=f"{step}shape spreads"),
        method.Field("reach", ("2",), kind="positive", constant=f"{step}reach"),
    )
    scatter = method.Field("scatter", ("triangle",), kind="scatter")
    farthest = spatial_signs.MAX_SPREADS
    return {
        f"{step}scores": method.Question(
            request=method.Payload((*CENTRE_FIELDS, vectors, UNITS_FIELD)),
            reply=method.Payload((COUNT_FIELD, method.Field("scores", ("m", "bins"), kind="size"))),
            answer=_answer_scores,
            sizes=_sizes,
            limits=_limits_per_row(count=1.0, scores=1.0),
        ),
        f"{step}shape": method.Question(
            request=method.Payload((*CENTRE_FIELDS, vectors, middles, spreads)),
            reply=method.Payload((COUNT_FIELD, scatter)),
            answer=_answer_shape,
            sizes=_sizes,
            limits=_limits_per_row(count=1.0, scatter=1.0),
            words=2,
        ),
        f"{step}shape_scores": method.Question(
            request=method.Payload((*CENTRE_FIELDS, vectors, middles, spreads, shape[0])),
            reply=method.Payload((COUNT_FIELD, method.Field("scores", ("m+1", "bins"), kind="size"))),
            answer=lambda party, request: _answer_shape_scores(step, party, request),
            sizes=_sizes,
            limits=_limits_per_row(count=1.0, scores=1.0),
        ),
        f"{step}survivors": method.Question(
            request=method.Payload((*CENTRE_FIELDS, vectors, middles, spreads, *shape)),
            reply=method.Payload(
                (COUNT_FIELD, method.Field("weight", (), kind="size"), method.Field("shift", ("m",)), scatter)
            ),
            answer=lambda party, request: _answer_survivors(step, party, request),
            sizes=_sizes,
            limits=_limits_per_row(count=1.0, weight=1.0, shift=farthest, scatter=farthest**2),
            words=2,
        ),
    }


def _sizes(public: method.Public) -> dict[str, int]:
    """Return the values of the symbols in field shapes: m directions, m + 1, packed triangle, and bins."""
    m = direction_count(public.features, public.options.n_components)
    return {"m": m, "m+1": m + 1, "triangle": moments.packed_size(m), "bins": spatial_signs.BINS}


def direction_count(features: int, components: int) -> int:
    """Return the number m of directions searched for outliers: all features, at most 200, but at least n_components."""
    return min(features, max(MAX_DIRECTIONS, components))


def _start_limits(options: RobustOptions, request: method.Fields, public: method.Public) -> method.SumLimits:
    """Return limits on the first sums by field; with ``scale`` also those of the fields of deviations."""
    bound, d = public.config.bound, public.features
    limits = {
        "count": np.array(float(MAX_ROWS)),
        "location": np.full(d, MAX_ROWS * bound),
        "octave": np.array(MAX_ROWS * 1100.0),  # log2 of a float64 is less in size
    }
    if options.scale:
        limits |= {"measured": np.full(d, float(MAX_ROWS)), "nearness": np.full(d, MAX_ROWS * MAX_SCALE_RATIO / bound)}
    return limits


def _limits_per_row(**per_row: float) -> Callable[[method.Fields, method.Public], method.SumLimits]:
    """Return a limit function for sums to which each of up to `MAX_ROWS` rows adds at most the given values."""
    limits = {name: np.array(maximum * MAX_ROWS) for name, maximum in per_row.items()}
    return lambda request, public: limits


class RobustClient(method.Client):
    """Client of ROBUST, which replies with sums of its rows' unit directions and histograms of their scores."""

    options: RobustOptions

    @cached_property
    def median(self) -> method.Array:
        """Spatial median (d,) of the party's own rows, stored in its state over the rounds."""
        if MEDIAN_KEY not in self.site.state:
            d = self.selection.shape[1]
            mean = sum(rows.sum(axis=0) for rows in self.centred_rows(np.zeros(d))) / len(self.selection)
            centre = spatial_signs.spatial_median(
                lambda c: spatial_signs.sign_sums(self.centred_rows(c), d, spatial_signs.MIN_FLOOR), mean
            )
            self.site.state[MEDIAN_KEY] = [spatial_signs.snap_to_majority(self.centred_rows, centre)]
        return self.site.state[MEDIAN_KEY][0]

    def floor(self, scale: method.Array) -> float:
        """Return the distance from a centre below which rows get less weight, from the party's own rows, and store it.

        The distance is in units of the scale (d,), which is empty for unscaled features.
        """
        name = SCALED_FLOOR_KEY if scale.size else FLOOR_KEY
        if name not in self.site.state:
            lengths_of_chunks = [row_lengths(rows) for rows in self.centred_rows(self.median, scale)]
            self.site.state[name] = [spatial_signs.distance_floor(np.concatenate(lengths_of_chunks))]
        return float(self.site.state[name][0])

    def whitened(self, request: method.Fields) -> Iterator[method.Array]:
        """Return the rows' scores (c, m) along a request's directions, over their spreads, chunk by chunk."""
        directions = spatial_signs.Directions(request["vectors"], request["middles"], request["spreads"])
        return map(directions.whitened, self.rows_about(request))

    def weigh_rows(self, step: str, request: method.Fields) -> Iterator[tuple[method.Array, method.Array]]:
        """Yield outlier weights (c,) from 0 to 1 and whitened scores (c, m), chunk by chunk."""
        shape = spatial_signs.Directions(request["shape_vectors"], request["shape_middles"], request["shape_spreads"])
        spreads, gap = self.site.state[step + SPREADS_KEY]
        survivors = spatial_signs.Survivors(shape, request["reach"]).blunt(spreads, float(gap))
        for whitened in self.whitened(request):
            yield survivors.row_weights(whitened), whitened

    def weighted_rows(self, request: method.Fields) -> Iterator[tuple[method.Array, method.Array]]:
        """Yield the rows' outlier weights (c,) of the last step, and the rows about the request's centre (c, d)."""
        (weights,), start = self.site.state[WEIGHTS_KEY], 0
        for rows in self.rows_about(request):
            yield weights[start : start + len(rows)], rows
            start += len(rows)

    def suppress_small_counts(self, tallies: Iterable[NDArray[np.int64]]) -> method.Array:
        """Add up histograms (m, bins) of chunks, and merge bins whose counts are below the site's ``min-rows``."""
        counts = sum(tallies, np.zeros((1, spatial_signs.BINS), dtype=np.int64))
        return spatial_signs.merge_small_bins(counts, self.site.node.min_rows).astype(np.float64)

    def count_survivors(self, parts: Iterable[tuple[method.Array, method.Array]]) -> method.Array:
        """Return histograms (m, bins) of the values of rows with weight, or of all rows if outliers are too few.

        The parts are chunks of weights (c,) and values (c, m). No count in the result is below the site's ``min-rows``.
        """
        inside = outside = np.zeros((1, spatial_signs.BINS), dtype=np.int64)
        for weights, values in parts:
            inside = inside + spatial_signs.tally(values[weights > 0])
            outside = outside + spatial_signs.tally(values[weights == 0])
        few_outside = outside[0].sum() < self.site.node.min_rows
        return self.suppress_small_counts([inside, outside] if few_outside else [inside])

    def centred_rows(self, centre: method.Array, scale: method.Array = NO_SCALE) -> Iterator[method.Array]:
        """Yield chunks (c, d) of the party's rows less a centre (d,), divided by the scale (d,) unless it is empty."""
        for centred in centred_chunks(self.selection.rows, centre, scale if scale.size else None):
            yield from dense_rows(centred)

    def rows_about(self, request: method.Fields) -> Iterator[method.Array]:
        """Yield chunks (c, d) of the party's rows less the centre of a request, divided by its scale unless empty."""
        scale = request["scale"] if request["scale"].size else None
        directions = request.get("turned", request.get("vectors", request.get("components")))
        for centred in self.selection.about(self.vault, request["centre"], scale, directions):
            yield from dense_rows(centred)

    @override
    def project(self, request: method.Fields) -> method.Fields:
        """Write scores, T2 and SPE of the party's rows to its files; reply with ``count`` and ``squared``, always 0."""
        with scores.outlier_file(self.site.node.scores, request["limits"]) as stream:
            statistics = request["components"], request["variances"], request["limits"]
            outliers = scores.OddRows(*statistics, self.site.participation, stream)
            self.write_files(self.projection(request), [outliers.watch])
        return {"count": np.asarray(len(self.selection)), "squared": np.asarray(0.0)}


def _answer_start(party: RobustClient, request: method.Fields) -> method.Fields:
    """Return ``count`` n, and n times the party's median (``location``) and log2 of its distance floor (``octave``).

    With ``scale`` also n times the inverse deviations (``nearness``), 0 for a feature that does not vary, and
    ``measured``, n or 0.
    """
    n = len(party.selection)
    floor = party.floor(NO_SCALE)
    reply = {"count": np.asarray(n), "location": n * party.median, "octave": np.asarray(n * np.log2(floor))}
    if not party.options.scale:
        return reply
    rows = np.concatenate(list(party.centred_rows(np.zeros(party.selection.shape[1]))))
    sizes = np.abs(rows - np.median(rows, axis=0))
    deviation = np.median(sizes, axis=0)
    deviation = np.where(deviation > 0, deviation, sizes.mean(axis=0))  # where most values are the same
    min_deviation = party.site.config.bound / MAX_SCALE_RATIO
    varies = deviation > min_deviation
    return {
        **reply,
        "measured": n * varies.astype(np.float64),
        "nearness": np.where(varies, n / np.where(varies, deviation, 1.0), 0.0),
    }


def _answer_median(party: RobustClient, request: method.Fields) -> method.Fields:
    """Return ``count``, the sum (d,) of the rows' ``signs`` about the centre, and ``weight``, of inverse distances."""
    rows = party.rows_about(request)
    sums = spatial_signs.sign_sums(rows, party.selection.shape[1], _distance_floor(party, request))
    return {"count": np.asarray(sums.rows), "signs": sums.signs, "weight": np.asarray(sums.weight * request["unit"])}


def _distance_floor(party: RobustClient, request: method.Fields) -> float:
    """Return the distance, in units of the scale if there is one, below which rows get less weight.

    It is the party's own, but at least the request's ``unit`` over `MAX_INVERSE_DISTANCE`.
    """
    return max(party.floor(request["scale"]), float(request["unit"]) / MAX_INVERSE_DISTANCE)


def _answer_signs(party: RobustClient, request: method.Fields) -> method.Fields:
    """Return ``count`` and ``scatter``, the packed sum of outer products of the rows' signs about the centre."""
    rows = party.rows_about(request)
    scatter = spatial_signs.sign_scatter(rows, party.selection.shape[1], _distance_floor(party, request))
    return {"count": np.asarray(len(party.selection)), "scatter": moments.pack(scatter)}


def _answer_scores(party: RobustClient, request: method.Fields) -> method.Fields:
    """Return ``count`` and ``scores``, histograms (m, bins) along each direction without small counts."""
    rows = party.rows_about(request)
    tallies = (spatial_signs.tally(chunk @ request["vectors"].T / request["units"]) for chunk in rows)
    histograms = party.suppress_small_counts(tallies)
    return {"count": np.asarray(len(party.selection)), "scores": histograms}


def _answer_shape(party: RobustClient, request: method.Fields) -> method.Fields:
    """Return ``count`` and ``scatter``, the packed sum of outer products of the whitened rows' signs."""
    m = len(request["middles"])
    scatter = np.zeros((m, m))
    for whitened in party.whitened(request):
        signs = spatial_signs.whitened_signs(whitened)
        scatter += signs.T @ signs
    return {"count": np.asarray(len(party.selection)), "scatter": moments.pack(scatter)}


def _answer_shape_scores(step: str, party: RobustClient, request: method.Fields) -> method.Fields:
    """Return ``count``, and ``scores`` (m + 1, bins) of whitened rows along directions, then lengths; store spreads."""
    vectors = request["shape_vectors"]
    tallies = [spatial_signs.tally(spatial_signs.shape_values(chunk, vectors)) for chunk in party.whitened(request)]
    spreads, gap = spatial_signs.local_spreads_and_gap(np.sum(tallies, axis=0))
    party.site.state[step + SPREADS_KEY] = [spreads, np.asarray(gap)]
    return {"count": np.asarray(len(party.selection)), "scores": party.suppress_small_counts(tallies)}


def _answer_survivors(step: str, party: RobustClient, request: method.Fields) -> method.Fields:
    """Return ``count``, and ``weight``, weighted sum (``shift``) and packed ``scatter`` of the whitened rows.

    The last three are zero if fewer than ``min-rows`` rows have a positive weight.
    """
    m, chunks = len(request["middles"]), [np.empty(0)]
    shift, scatter = np.zeros(m), np.zeros((m, m))
    for weights, whitened in party.weigh_rows(step, request):
        is_inside = weights > 0
        chunks.append(weights)
        weighted = whitened[is_inside] * weights[is_inside, None]
        shift += weighted.sum(axis=0)
        scatter += weighted.T @ whitened[is_inside]
    weights = np.concatenate(chunks)
    party.site.state[WEIGHTS_KEY] = [weights]
    allowed = float(np.count_nonzero(weights) >= party.site.node.min_rows)
    return {
        "count": np.asarray(len(party.selection)),
        "weight": np.asarray(allowed * weights.sum()),
        "shift": allowed * shift,
        "scatter": moments.pack(allowed * scatter),
    }


def _answer_variances(party: RobustClient, request: method.Fields) -> method.Fields:
    """Return ``count`` and ``scores``, histograms (m, bins) along each direction of the rows that are no outliers."""
    weighted_scores = (
        (weights, rows @ request["turned"].T / request["units"]) for weights, rows in party.weighted_rows(request)
    )
    return {"count": np.asarray(len(party.selection)), "scores": party.count_survivors(weighted_scores)}


def _answer_errors(party: RobustClient, request: method.Fields) -> method.Fields:
    """Return ``count`` and ``errors``, the histogram (bins,) of inliers' distances from the components' span."""
    components = request["components"]
    weighted_errors = (
        (weights, row_lengths(rows - rows @ components.T @ components)[:, None] / request["unit"])
        for weights, rows in party.weighted_rows(request)
    )
    return {"count": np.asarray(len(party.selection)), "errors": party.count_survivors(weighted_errors)[0]}
