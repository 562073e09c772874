"""ROBUST: components that a few rows cannot move, however far off they are, by sums.

Take it where nobody has looked at the rows for errors, or where their tails are heavy; docs/robust.md has the cost and
what a site must allow. The components are those of the generalised sign covariance about the spatial median of all
rows, without rows beyond a reach, which follows from the distances of the inner half
(`fedpca_flwr.maths.spatial_signs`).

The server looks for the median by one question a step, which asks for sums of the rows' directions from its centre and
of inverse distances. Counts of how large the scores are, and how far rows are from the components, give the variances
by medians. ``robust-parties`` takes the components of the parties
whose normalised sums are near the spatial median of all.
"""

from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from functools import cached_property, partial
from typing import Annotated, Any

import numpy as np
import scipy  # `scipy.special` is loaded when it is used
from pydantic import Field as Limits

from fedpca_flwr.maths import eigen, moments, spatial_signs
from fedpca_flwr.maths.rows import centred_chunks, dense_rows, lengths
from fedpca_flwr.model.solution import check_components
from fedpca_flwr.questions import method
from fedpca_flwr.questions.last_round import LEVEL
from fedpca_flwr.questions.row_limits import ROWS
from fedpca_flwr.site import scores

CLOSEST = 2.0**40
"""In units of the run's typical distance, no row has a larger 1 / r."""

WIDEST = 2.0
"""By so much at most a party moves the end of a reach outwards."""

FINEST = 2.0**100
"""So many times less than `bound` a feature may vary with ``scale`` in secure sums."""

UNLIKE = 0.3
"""Parties differ too much where their sums are farther from the median of all than this share of it, by the median."""

APART = 3.0
"""A party that differs by more than so many times what parties do by the median is left out."""

NOT_SCALED: method.Array = np.empty(0)

MEDIAN, FLOOR, SCALED_FLOOR = "robust: own median", "robust: own floor", "robust: own floor, scaled"
"""What a party keeps of its rows between questions; the scale is the same in all of them."""


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
    first, last = (
        method.Field("reach", ("2",), kind="positive", fixed=f"{which} reach") for which in ("first", "last")
    )
    median = method.Question(
        asked=method.Payload(ABOUT),
        reply=method.Payload((COUNT, method.Field("signs", ("d",)), method.Field("weight", (), kind="size"))),
        answer=_own_step,
        limits=lambda asked, public: _of_rows(count=1.0, signs=1.0, weight=CLOSEST),
        words=2,
        times=options.max_rounds,
    )
    signs = method.Question(
        asked=method.Payload((*ABOUT, last)),
        reply=method.Payload((COUNT, method.Field("scatter", ("d(d+1)/2",), kind="scatter"))),
        answer=_own_signs,
        limits=lambda asked, public: _of_rows(
            count=1.0, scatter=float((WIDEST * asked["reach"][spatial_signs.FAR] / asked["unit"]) ** 2)
        ),
        words=2,
    )
    sizes = method.Question(
        asked=method.Payload((*ABOUT, last, method.Field("components", ("k", "d"), kind="orthonormal rows"))),
        reply=method.Payload((COUNT, method.Field("sizes", ("k+1", "bins"), kind="size"))),
        answer=_own_sizes,
        sizes=lambda public: {"k": options.n_components, "k+1": options.n_components + 1, "bins": spatial_signs.BINS},
        limits=lambda asked, public: _of_rows(count=1.0, sizes=1.0),
    )
    distances = method.Question(
        asked=method.Payload(ABOUT),
        reply=method.Payload((COUNT, method.Field("distances", ("bins",), kind="size"))),
        answer=_own_distances,
        sizes=lambda public: {"bins": spatial_signs.BINS},
        limits=lambda asked, public: _of_rows(count=1.0, distances=1.0),
    )
    further = (method.Field("variances", ("<=k",), kind="size"), method.Field("limits", ("2",), kind="positive"))
    centre = replace(median, asked=method.Payload((*ABOUT, first)))
    nearer = {"distances": distances, "centre": centre, "nearer_distances": replace(distances)}
    closing = method.projection_phase(differentially_private=True, further=further)
    return {"start": start, "median": median, **nearer, "signs": signs, "sizes": sizes, **closing}


def _start_limits(options: RobustOptions, asked: method.Fields, public: method.Public) -> method.SumLimits:
    bound, d = public.config.bound, public.features
    limits = {"count": np.array(float(ROWS)), "location": np.full(d, ROWS * bound), "octave": np.array(ROWS * 1100.0)}
    if options.scale:
        limits |= {"measured": np.full(d, float(ROWS)), "nearness": np.full(d, ROWS * FINEST / bound)}
    return limits


def _of_rows(**each: float) -> method.SumLimits:
    """Limits of sums to which a row adds at most so much."""
    return {name: np.asarray(ROWS * most) for name, most in each.items()}


# What a party answers


class RobustClient(method.Client):
    """Returns sums of the directions of its rows, and counts of their scores."""

    options: RobustOptions
    odd: scores.OddRows | None = None

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

    def reach(self, asked: method.Fields) -> method.Array:
        """From where on rows count less, and nothing (2,).

        The edge is no sharper than the floor, or it would tell which row a centre brings in. Where fewer rows than the
        site's minimum would count, none does.
        """
        if "reach" not in asked:
            return spatial_signs.EVERYWHERE
        near, far = asked["reach"].tolist()
        far = max(far, min(near + self.floor(asked["scale"]), WIDEST * far))
        inside = sum(int((lengths(rows) < far).sum()) for rows in self.rows_about(asked["centre"], asked["scale"]))
        return np.array([near, far]) if inside >= self.site.node.min_rows else spatial_signs.NOWHERE

    def rows_about(self, centre: method.Array, scale: method.Array = NOT_SCALED) -> Iterator[method.Array]:
        """Its rows about a centre, chunk by chunk, divided by a scale (d,) if there is one."""
        for centred in centred_chunks(self.data, centre, scale if scale.size else None):
            yield from dense_rows(centred)

    def centred(self, rows: Any, asked: method.Fields) -> Iterator[Any]:
        found = super().centred(rows, asked)
        return found if self.odd is None else self.odd.passing(found)

    def project(self, asked: method.Fields) -> method.Fields:
        with scores.outlier_file(self.site.node.scores, asked["limits"]) as stream:
            self.odd = scores.OddRows(asked["components"], asked["variances"], asked["limits"], len(self.data), stream)
            self.keep_scores(asked)
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
    floor = max(party.floor(asked["scale"]), float(asked["unit"]) / CLOSEST)  # the sum has room for so much
    rows = party.rows_about(asked["centre"], asked["scale"])
    sums = spatial_signs.sign_sums(rows, party.data.shape[1], floor, party.reach(asked))
    return {"count": np.asarray(sums.rows), "signs": sums.signs, "weight": np.asarray(sums.weight * asked["unit"])}


def _own_signs(party: RobustClient, asked: method.Fields) -> method.Fields:
    rows = party.rows_about(asked["centre"], asked["scale"])
    scatter = spatial_signs.sign_scatter(rows, party.data.shape[1], float(asked["unit"]), party.reach(asked))
    return {"count": np.asarray(len(party.data)), "scatter": moments.pack(scatter)}


def _own_distances(party: RobustClient, asked: method.Fields) -> method.Fields:
    """How many rows are how far from the centre."""
    found = [lengths(rows) for rows in party.rows_about(asked["centre"], asked["scale"])]
    told = spatial_signs.histogram(np.concatenate(found), float(asked["unit"]), party.site.node.min_rows)
    return {"count": np.asarray(len(party.data)), "distances": told.astype(np.float64)}


def _own_sizes(party: RobustClient, asked: method.Fields) -> method.Fields:
    """How many rows within reach have scores of which size, by component, and are how far from all components."""
    components, unit, least = asked["components"], float(asked["unit"]), party.site.node.min_rows
    found, distances = list[method.Array](), list[method.Array]()
    for rows in party.rows_about(asked["centre"], asked["scale"]):
        own = rows @ components.T
        found.append(np.column_stack([np.abs(own), lengths(rows - own @ components)]))
        distances.append(lengths(rows))
    sizes = np.concatenate(found)[spatial_signs.within(np.concatenate(distances), party.reach(asked), least)]
    told = [spatial_signs.histogram(one, unit, least) for one in sizes.T]
    return {"count": np.asarray(len(party.data)), "sizes": np.array(told, dtype=np.float64)}


CARD = method.MethodCard(
    name="robust",
    title="Robust PCA by spatial signs",
    exact=False,
    result="components and variances that a few rows cannot move; those of the covariance where rows are elliptical",
    rounds="5, and some 10 to the centre",
    upload="d(d+1)/2, d + 2 in each step, 160 (k + 1)",
    server_sees="each party's spatial median, sums of its rows' directions, how large its scores are",
    shows=method.Shown(
        "number of rows, their spatial median (with `scale` median absolute deviations); for each centre that the "
        "server names, the sum of the rows' directions from it and of their inverse distances; the sum of products of "
        "directions; how many rows have scores of which size, none of fewer than `min-rows`",
        "the pooled centre and scales; the components and variances",
    ),
    options=RobustOptions,
    phases=phases,
    exposes="scores",
    own_centre=True,
    own_total="by medians, of the scores and of the distances to the components",
    beyond_moments="rows count by their directions from a centre of the server's, which a site must allow",
    examples=({}, {"scale": True}, {"robust-parties": True}),
    reference="Locantore et al. 1999; Visuri, Koivunen and Oja 2000; Vardi and Zhang 2000",
)


class Robust(method.Strategy):
    """ROBUST."""

    card = CARD
    party = RobustClient
    options: RobustOptions
    limits: method.Array
    """Of T2 and SPE, by which the sites judge their rows."""
    left_out: list[str]
    """Who has no part in the components, since its sums are unlike those of the others."""

    def aggregate(self) -> method.Fitting:
        self.left_out = []
        told, rows = yield from self._told("start", {})
        check_components(self.options.n_components, rows, self.quorum.features)
        scale, weight = self._scale(told), float(told["count"])
        asked = {
            "centre": told["location"] / weight,
            "scale": scale,
            "unit": np.asarray(np.sqrt(scale.size) if scale.size else 2.0 ** (float(told["octave"]) / weight)),
            "rows": np.asarray(rows),
        }
        asked, _ = yield from self._centre("median", asked, {})
        reach = yield from self._reach("distances", asked)
        asked, left = yield from self._centre("centre", asked, reach)
        reach = yield from self._reach("nearer_distances", asked)
        asked |= reach
        scatter, measured = yield from self._signs(asked)
        if not np.trace(scatter) > 0:
            raise method.DataError(
                "most rows lie in one place: without those that may be far off there is no variance; leave out columns "
                "in which most rows are alike, or use p-cov"
            )
        pairs = eigen.leading_eigenpairs(np.asfortranarray(scatter), self.options.n_components)
        components = np.ascontiguousarray(pairs.vectors.T)
        told, _ = yield from self._told("sizes", {**asked, "components": components})
        found = self._solution(pairs, told["sizes"], asked)
        return found.extended(
            notes=[f"{party}: its sums are unlike the others' and have no part" for party in self.left_out],
            measured={"mean_sign": left, **measured},
        )

    def _solution(self, pairs: eigen.Eigenpairs, sizes: method.Array, asked: method.Fields) -> method.Solution:
        """The components with variances by the sizes of the scores, and the limits that follow from them."""
        k, rows, unit, scale = len(sizes) - 1, int(asked["rows"]), float(asked["unit"]), asked["scale"]
        variances = np.array([spatial_signs.normal_variance(counts, unit) for counts in sizes[:-1]])
        order = np.argsort(-variances, kind="stable")
        errors = spatial_signs.Errors.of(sizes[-1], unit)
        left_out = errors.mean if k < self.quorum.features else 0.0
        self.limits = np.array(
            [scipy.special.chdtri(k, 1 - LEVEL), errors.limit(LEVEL) if left_out else np.finfo(np.float64).tiny]
        )
        share = pairs.following / pairs.values[-1] if pairs.values[-1] > 0 else 0.0
        values = variances[order] * (rows - 1)
        return method.Solution(
            pairs=eigen.Eigenpairs(values, pairs.vectors[:, order], min(share, 1.0) * float(values[-1])),
            mean=asked["centre"],
            total=(float(variances.sum()) + left_out) * (rows - 1),
            rows=rows,
            scale=scale if scale.size else None,
            notes=["variances are those of normal values with the same medians; rows far off have no part in them"],
        )

    def _scale(self, told: method.Fields) -> method.Array:
        """The harmonic mean of the parties' median absolute deviations; 1 where no party has any."""
        if not self.options.scale:
            return np.empty(0)
        varies = told["nearness"] > 0
        return np.where(varies, told["measured"], 1.0) / np.where(varies, told["nearness"], 1.0)

    def _centre(
        self, phase: str, asked: method.Fields, reach: method.Fields
    ) -> Generator[method.Ask, Any, tuple[dict[str, method.Array], float]]:
        """What is asked next, about the centre at which the signs add up to nothing; and the mean sign there."""
        by = asked["scale"] if asked["scale"].size else np.ones_like(asked["centre"])
        search = spatial_signs.median_search(asked["centre"] / by)
        for step in range(1, self.options.max_rounds + 1):
            told, _ = yield from self._told(phase, {**asked, **reach, "centre": search.point * by})
            sums = spatial_signs.SignSums(
                told["signs"], float(told["weight"]) / float(asked["unit"]), float(told["count"])
            )
            if sums.size <= spatial_signs.CLOSE or step == self.options.max_rounds:
                break
            search.add(search.point + sums.step, -sums.size)
        typical = sums.rows / sums.weight if sums.weight > 0 else 1.0
        return {**asked, "centre": search.point * by, "unit": np.asarray(typical)}, sums.size

    def _reach(self, phase: str, asked: method.Fields) -> Generator[method.Ask, Any, method.Fields]:
        """Beyond which rows count nothing, by what the distances say of the inner half."""
        told, _ = yield from self._told(phase, asked)
        return {"reach": spatial_signs.reach_of(told["distances"], float(asked["unit"]))}

    def _signs(self, asked: method.Fields) -> Generator[method.Ask, Any, tuple[method.Array, dict[str, float]]]:
        """The sign covariance (d, d) of all rows, or the median of the parties' ones and how far these are from it."""
        d = self.quorum.features
        if not self.options.robust_parties:
            told: method.Total = yield method.Sum("signs", asked)
            return moments.symmetric(told["scatter"], d) / int(asked["rows"]), {}
        replies = yield method.Ask("signs", asked)
        own = [moments.symmetric(one.fields["scatter"], d) for one in replies]
        own = [matrix / (np.trace(matrix) or 1.0) for matrix in own]
        middle = spatial_signs.median_of_matrices(own)
        if not np.trace(middle) > 0:
            return middle, {}
        unlike = np.array([float(np.linalg.norm(matrix - middle) / np.linalg.norm(middle)) for matrix in own])
        typical = float(np.median(unlike))
        if typical > UNLIKE:
            raise method.DataError(
                f"with 'robust-parties' honest parties must be alike: half of them differ by {typical:.0%} or more "
                f"from their median, at most {UNLIKE:.0%} is allowed; leave the option out"
            )
        alike = unlike <= APART * typical
        self.left_out = [one.sender for one, kept in zip(replies, alike, strict=True) if not kept]
        measured = {"unlike_parties": typical, "most_unlike_party": float(unlike.max())}
        return np.mean([matrix for matrix, kept in zip(own, alike, strict=True) if kept], axis=0), measured

    def _told(self, phase: str, asked: method.Fields) -> Generator[method.Ask, Any, tuple[method.Fields, int]]:
        """The sums of a phase, and all rows; with ``robust-parties`` a party counts as at most twice the median one."""
        if not self.options.robust_parties:
            total: method.Total = yield method.Sum(phase, asked)
            return total.fields, int(total["count"])
        replies = yield method.Ask(phase, asked)
        told = [one.fields for one in replies]
        most = 2 * float(np.median([int(fields["count"]) for fields in told]))
        weights = [min(1.0, most / int(fields["count"])) for fields in told]
        sums = {
            name: sum(weight * fields[name] for weight, fields in zip(weights, told, strict=True)) for name in told[0]
        }
        return sums, sum(int(fields["count"]) for fields in told)

    def loadings(self, model: method.PCAModel, solution: method.Solution) -> method.Fields:
        asked = super().loadings(model, solution)
        return {**asked, "variances": model.explained_variance_, "limits": self.limits}

    def projected(self, model: method.PCAModel, solution: method.Solution) -> method.Program:
        yield method.Ask("project", dict(self.loadings(model, solution)))
