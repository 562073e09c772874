"""ROBUST: what a run asks, and what a party answers."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property, partial
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field as Limits

from fedpca_flwr.maths import moments, spatial_signs
from fedpca_flwr.maths.rows import centred_chunks, dense_rows, lengths
from fedpca_flwr.questions import method
from fedpca_flwr.questions.row_limits import ROWS
from fedpca_flwr.site import scores

CLOSEST = 2.0**40
"""In units of the run's typical distance, no row has a larger 1 / r."""

MOST = 200
"""Directions along which a run looks for rows that are far off, at most; or `n-components`, where that is more."""

AGAIN = "nearer_"
"""What the names of the second step's questions begin with."""

FINEST = 2.0**100
"""So many times less than `bound` a feature may vary with ``scale`` in secure sums."""

NOT_SCALED: method.Array = np.empty(0)

MEDIAN, FLOOR, SCALED_FLOOR = "robust: own median", "robust: own floor", "robust: own floor, scaled"
"""What a party keeps of its rows between questions; the scale is the same in all of them."""

OWN_SPREADS = "robust: own spreads"
"""And of a step, whose directions are the same in all questions, how its rows spread along them."""


OF_OWN_PLACES = (
    "sums of the sites' own medians and of counts that each site bounds by its own rows, and directions of rows about "
    "centres that it chooses: with one centre after another these tell where a site's rows lie"
)
"""What the sums tell of single sites (`PCAOptions.site_sums`)."""


class RobustOptions(method.Options):
    """Options of ROBUST."""

    scale: bool = False
    """Divide each feature by its median absolute deviation."""
    robust_parties: bool = False
    """In clear: bound what each party counts, and take the median of the parties' sums. For parties that are alike."""
    max_rounds: Annotated[method.Count, Limits(examples=[1, 2, 3])] = 30
    """At most so many steps to the median; the model says how far it still was."""

    @property
    def site_sums(self) -> Mapping[str, str]:
        return {"robust": OF_OWN_PLACES}


COUNT = method.Field("count", (), "int64", kind="count")
ABOUT = (
    method.Field("centre", ("d",)),
    method.Field("scale", ("d",), kind="positive", optional=True, fixed="deviations"),
    method.Field("unit", (), kind="positive"),
    method.Field("rows", (), "int64", kind="count"),
)

UNITS = method.Field("units", ("m",), kind="positive")


def phases(config: method.RunConfig, options: RobustOptions) -> method.Questions:
    """Where the parties' own rows lie, steps to the median, the directions about it, the variances."""
    deviations = (method.Field("measured", ("d",), kind="size"), method.Field("nearness", ("d",), kind="size"))
    own = (method.Field("octave", ()), *(deviations if options.scale else ()), method.Field("location", ("d",)))
    start = method.Question(
        reply=method.Payload((COUNT, *own)),
        answer=_own_start,
        limits=None if options.robust_parties else partial(_start_limits, options),
        instead="leave out robust-parties, for which the server must see what each party tells",
        words=method.FIRST_WORDS,
    )
    median = method.Question(
        asked=method.Payload(ABOUT),
        reply=method.Payload((COUNT, method.Field("signs", ("d",)), method.Field("weight", (), kind="size"))),
        answer=_own_step,
        limits=_limits(count=1.0, signs=1.0, weight=CLOSEST),
        words=3,
        times=options.max_rounds,
    )
    signs = method.Question(
        asked=method.Payload(ABOUT),
        reply=method.Payload((COUNT, method.Field("scatter", ("d(d+1)/2",), kind="scatter"))),
        answer=_own_signs,
        limits=_limits(count=1.0, scatter=1.0),
        words=2,
    )
    steps = dict[str, method.Question]()
    for step in ("", AGAIN):
        steps |= {step + name: question for name, question in _step_questions(step).items()}
    survivors = steps[f"{AGAIN}survivors"].asked.fields
    variances = replace(
        steps[f"{AGAIN}scores"],
        asked=method.Payload((*survivors, method.Field("turned", ("m", "d"), kind="orthonormal rows"), UNITS)),
        answer=_own_variances,
    )
    errors = method.Question(
        asked=method.Payload((*survivors, method.Field("components", ("k", "d"), kind="orthonormal rows"))),
        reply=method.Payload((COUNT, method.Field("errors", ("bins",), kind="size"))),
        answer=_own_errors,
        sizes=lambda public: {"k": options.n_components, **_sizes(public)},
        limits=_limits(count=1.0, errors=1.0),
    )
    further = (method.Field("variances", ("<=k",), kind="size"), method.Field("limits", ("2",), kind="positive"))
    closing = method.projection_phase(differentially_private=True, further=further)
    last = {"variances": variances, "errors": errors}
    return {"start": start, "median": median, "signs": signs, **steps, **last, **closing}


def _step_questions(step: str) -> method.Questions:
    """The questions by which rows that are far off are left out; a run tells a step's directions once for all."""
    vectors, middles, spreads = (
        method.Field("vectors", ("m", "d"), kind="orthonormal rows", fixed=f"{step}vectors"),
        method.Field("middles", ("m",), fixed=f"{step}middles"),
        method.Field("spreads", ("m",), kind="positive", fixed=f"{step}spreads"),
    )
    shape_vectors = method.Field("shape_vectors", ("m", "m"), kind="orthonormal rows", fixed=f"{step}shape vectors")
    shape = (
        shape_vectors,
        method.Field("shape_middles", ("m",), fixed=f"{step}shape middles"),
        method.Field("shape_spreads", ("m",), kind="positive", fixed=f"{step}shape spreads"),
        method.Field("reach", ("2",), kind="positive", fixed=f"{step}reach"),
    )
    scatter = method.Field("scatter", ("triangle",), kind="scatter")
    farthest = spatial_signs.FARTHEST
    return {
        "scores": method.Question(
            asked=method.Payload((*ABOUT, vectors, UNITS)),
            reply=method.Payload((COUNT, method.Field("scores", ("m", "bins"), kind="size"))),
            answer=_own_scores,
            sizes=_sizes,
            limits=_limits(count=1.0, scores=1.0),
        ),
        "shape": method.Question(
            asked=method.Payload((*ABOUT, vectors, middles, spreads)),
            reply=method.Payload((COUNT, scatter)),
            answer=_own_shape,
            sizes=_sizes,
            limits=_limits(count=1.0, scatter=1.0),
            words=2,
        ),
        "shape_scores": method.Question(
            asked=method.Payload((*ABOUT, vectors, middles, spreads, shape_vectors)),
            reply=method.Payload((COUNT, method.Field("scores", ("m+1", "bins"), kind="size"))),
            answer=lambda party, asked: _own_shape_scores(step, party, asked),
            sizes=_sizes,
            limits=_limits(count=1.0, scores=1.0),
        ),
        "survivors": method.Question(
            asked=method.Payload((*ABOUT, vectors, middles, spreads, *shape)),
            reply=method.Payload(
                (COUNT, method.Field("weight", (), kind="size"), method.Field("shift", ("m",)), scatter)
            ),
            answer=lambda party, asked: _own_survivors(step, party, asked),
            sizes=_sizes,
            limits=_limits(count=1.0, weight=1.0, shift=farthest, scatter=farthest**2),
            words=2,
        ),
    }


def _sizes(public: method.Public) -> dict[str, int]:
    m = directions_of(public.features, public.options.n_components)
    return {"m": m, "m+1": m + 1, "triangle": moments.packed_size(m), "bins": spatial_signs.BINS}


def directions_of(features: int, components: int) -> int:
    """Return along how many directions a run looks."""
    return min(features, max(MOST, components))


def _start_limits(options: RobustOptions, asked: method.Fields, public: method.Public) -> method.SumLimits:
    bound, d = public.config.bound, public.features
    limits = {"count": np.array(float(ROWS)), "location": np.full(d, ROWS * bound), "octave": np.array(ROWS * 1100.0)}
    if options.scale:
        limits |= {"measured": np.full(d, float(ROWS)), "nearness": np.full(d, ROWS * FINEST / bound)}
    return limits


def _limits(**each: float) -> Callable[[method.Fields, method.Public], method.SumLimits]:
    """Limits of sums to which a row adds at most so much, of as many rows as there can be."""
    limits = {name: np.array(most * ROWS) for name, most in each.items()}
    return lambda asked, public: limits


# What a party answers


class RobustClient(method.Client):
    """Returns sums of the directions of its rows, and counts of their scores."""

    options: RobustOptions

    @cached_property
    def median(self) -> method.Array:
        """The spatial median of its own rows."""
        if MEDIAN not in self.site.state:
            d = self.data.shape[1]
            mean = sum(rows.sum(axis=0) for rows in self.rows_about(np.zeros(d))) / len(self.data)
            found = spatial_signs.spatial_median(
                lambda c: spatial_signs.sign_sums(self.rows_about(c), d, spatial_signs.NEAREST), mean
            )
            self.site.state[MEDIAN] = [spatial_signs.where_half_lie(self.rows_about, found)]
        return self.site.state[MEDIAN][0]

    def floor(self, scale: method.Array) -> float:
        """The distance within which a row counts less, by the party's own rows alone."""
        name = SCALED_FLOOR if scale.size else FLOOR
        if name not in self.site.state:
            own = [lengths(rows) for rows in self.rows_about(self.median, scale)]
            self.site.state[name] = [spatial_signs.floor_of(np.concatenate(own))]
        return float(self.site.state[name][0])

    def whitened(self, asked: method.Fields) -> Iterator[tuple[method.Array, method.Array]]:
        """Its rows about the centre, and their scores along the directions in spreads, chunk by chunk."""
        directions = spatial_signs.Directions(asked["vectors"], asked["middles"], asked["spreads"])
        for rows in self.rows_about(asked["centre"], asked["scale"]):
            yield rows, directions.whitened(rows)

    def counted(self, step: str, asked: method.Fields) -> Iterator[tuple[method.Array, method.Array, method.Array]]:
        """By how much each of its rows counts (m,), and what `whitened` gives of them, chunk by chunk."""
        shape = spatial_signs.Directions(asked["shape_vectors"], asked["shape_middles"], asked["shape_spreads"])
        spreads, gap = self.site.state[step + OWN_SPREADS]
        survivors = spatial_signs.Survivors(shape, asked["reach"]).blunted(spreads, float(gap))
        for rows, whitened in self.whitened(asked):
            yield survivors.counted(whitened), rows, whitened

    def suppressed(self, tallies: Iterable[NDArray[np.int64]]) -> method.Array:
        """Histograms (m, bins) of its rows, by those of its chunks: no count is below the site's minimum."""
        least = self.site.node.min_rows
        counts = sum(tallies, np.zeros((1, spatial_signs.BINS), dtype=np.int64))
        return np.array([spatial_signs.suppressed(one, least) for one in counts], dtype=np.float64)

    def of_survivors(self, parts: Iterable[tuple[method.Array, method.Array]]) -> method.Array:
        """Histograms (m, bins) of the values (n, m) of its rows that count: of all, where few of them do not."""
        near = far = np.zeros((1, spatial_signs.BINS), dtype=np.int64)
        for counted, values in parts:
            near = near + spatial_signs.tally(values[counted > 0])
            far = far + spatial_signs.tally(values[counted == 0])
        return self.suppressed([near] if far[0].sum() >= self.site.node.min_rows else [near, far])

    def rows_about(self, centre: method.Array, scale: method.Array = NOT_SCALED) -> Iterator[method.Array]:
        """Its rows about a centre, chunk by chunk, divided by a scale (d,) if there is one."""
        for centred in centred_chunks(self.data, centre, scale if scale.size else None):
            yield from dense_rows(centred)

    def project(self, asked: method.Fields) -> method.Fields:
        with scores.outlier_file(self.site.node.scores, asked["limits"]) as stream:
            odd = scores.OddRows(asked["components"], asked["variances"], asked["limits"], len(self.data), stream)
            self.write(self.projection(asked), [odd.passing])
        return {"count": np.asarray(len(self.data)), "squared": np.asarray(0.0)}


def _own_start(party: RobustClient, asked: method.Fields) -> method.Fields:
    """Where its own rows lie, and with ``scale`` how far features are from their medians, times rows."""
    n = len(party.data)
    floor = party.floor(NOT_SCALED)
    told = {"count": np.asarray(n), "location": n * party.median, "octave": np.asarray(n * np.log2(floor))}
    if not party.options.scale:
        return told
    rows = np.concatenate(list(party.rows_about(np.zeros(party.data.shape[1]))))
    sizes = np.abs(rows - np.median(rows, axis=0))
    deviation = np.median(sizes, axis=0)
    deviation = np.where(deviation > 0, deviation, sizes.mean(axis=0))  # where most values are the same
    least = party.site.config.bound / FINEST
    varies = deviation > least
    return {
        **told,
        "measured": n * varies.astype(np.float64),
        "nearness": np.where(varies, n / np.where(varies, deviation, 1.0), 0.0),
    }


def _own_step(party: RobustClient, asked: method.Fields) -> method.Fields:
    rows = party.rows_about(asked["centre"], asked["scale"])
    sums = spatial_signs.sign_sums(rows, party.data.shape[1], _room(party, asked))
    return {"count": np.asarray(sums.rows), "signs": sums.signs, "weight": np.asarray(sums.weight * asked["unit"])}


def _room(party: RobustClient, asked: method.Fields) -> float:
    """The party's floor, or a larger one where a sum has no room for rows as near as that."""
    return max(party.floor(asked["scale"]), float(asked["unit"]) / CLOSEST)


def _own_signs(party: RobustClient, asked: method.Fields) -> method.Fields:
    rows = party.rows_about(asked["centre"], asked["scale"])
    scatter = spatial_signs.sign_scatter(rows, party.data.shape[1], _room(party, asked))
    return {"count": np.asarray(len(party.data)), "scatter": moments.pack(scatter)}


def _own_scores(party: RobustClient, asked: method.Fields) -> method.Fields:
    """How many rows have scores of which size along each direction."""
    rows = party.rows_about(asked["centre"], asked["scale"])
    found = party.suppressed(spatial_signs.tally(one @ asked["vectors"].T / asked["units"]) for one in rows)
    return {"count": np.asarray(len(party.data)), "scores": found}


def _own_shape(party: RobustClient, asked: method.Fields) -> method.Fields:
    """The sign covariance of whitened rows, times rows."""
    m = len(asked["middles"])
    scatter = np.zeros((m, m))
    for _, whitened in party.whitened(asked):
        signs = spatial_signs.whitened_signs(whitened)
        scatter += signs.T @ signs
    return {"count": np.asarray(len(party.data)), "scatter": moments.pack(scatter)}


def _own_shape_scores(step: str, party: RobustClient, asked: method.Fields) -> method.Fields:
    """How many whitened rows have scores of which size along each direction, and are how far from the middle."""
    vectors = asked["shape_vectors"]
    tallies = [
        spatial_signs.tally(spatial_signs.shape_values(whitened, vectors)) for _, whitened in party.whitened(asked)
    ]
    spreads, gap = spatial_signs.own_spreads_and_gap(np.sum(tallies, axis=0))
    party.site.state[step + OWN_SPREADS] = [spreads, np.asarray(gap)]
    return {"count": np.asarray(len(party.data)), "scores": party.suppressed(tallies)}


def _own_survivors(step: str, party: RobustClient, asked: method.Fields) -> method.Fields:
    """The weight, sum and scatter of whitened rows, of which each counts as much as its place allows; of none, where
    fewer than the site's minimum would."""
    m, inside, weight = len(asked["middles"]), 0, 0.0
    shift, scatter = np.zeros(m), np.zeros((m, m))
    for counted, _, whitened in party.counted(step, asked):
        near = counted > 0
        inside += int(near.sum())
        weight += float(counted.sum())
        weighted = whitened[near] * counted[near, None]
        shift += weighted.sum(axis=0)
        scatter += weighted.T @ whitened[near]
    allowed = float(inside >= party.site.node.min_rows)
    return {
        "count": np.asarray(len(party.data)),
        "weight": np.asarray(allowed * weight),
        "shift": allowed * shift,
        "scatter": moments.pack(allowed * scatter),
    }


def _own_variances(party: RobustClient, asked: method.Fields) -> method.Fields:
    """How many rows that count have scores of which size along each direction."""
    found = ((counted, rows @ asked["turned"].T / asked["units"]) for counted, rows, _ in party.counted(AGAIN, asked))
    return {"count": np.asarray(len(party.data)), "scores": party.of_survivors(found)}


def _own_errors(party: RobustClient, asked: method.Fields) -> method.Fields:
    """How many rows that count are how far from all components."""
    components = asked["components"]
    found = (
        (counted, lengths(rows - rows @ components.T @ components)[:, None] / asked["unit"])
        for counted, rows, _ in party.counted(AGAIN, asked)
    )
    return {"count": np.asarray(len(party.data)), "errors": party.of_survivors(found)[0]}
