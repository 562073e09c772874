"""ROBUST: components that a tenth of the rows cannot move, wherever they are, by sums.

Take it where nobody has looked at the rows for errors, or where their tails are heavy; docs/robust.md has the cost and
what a site must allow. The components are those of the covariance of all rows but those that lie far off along a
direction. These are the directions of the rows' signs about their spatial median, and of the signs of whitened rows
(`fedpca_flwr.maths.spatial_signs`): twice, the second time by the rows that are left. At most `MOST` directions are
looked along; all of them are ordered by their variances, so the first components are the same for any ``n-components``.

The server looks for the median by one question a step, which asks for sums of the rows' directions from its centre and
of inverse distances. Counts of how large the scores are along the directions, and how far rows are from the components,
give spreads and variances by medians. ``robust-parties`` takes the components of the parties whose normalised sums are
near the spatial median of all.
"""

from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import scipy  # `scipy.special` is loaded when it is used

from fedpca_flwr.maths import eigen, moments, spatial_signs
from fedpca_flwr.model.solution import check_components
from fedpca_flwr.questions import method
from fedpca_flwr.site.scores import LEVEL
from fedpca_flwr.strategies.robust.party import AGAIN, RobustClient, RobustOptions, directions_of, phases

ONE_PLACE = 1e-9
"""Most rows lie in one place if the rows that count differ by a smaller share of their squared distances."""

SMALLEST = 2.0**-24
"""Share of the largest deviation along the directions below which another one is rounding."""

CLOSE = 1 / 16
"""Rows lie close together along a component whose variance by medians is a smaller share of their mean square."""

MANY = 0.25
"""A model says so where a larger share of the rows lies far off."""

UNLIKE = 0.3
"""Parties differ too much where their sums are farther from the median of all than this share of it, by the median."""

APART = 3.0
"""A party that differs by more than so many times what parties do by the median is left out."""

CARD = method.MethodCard(
    name="robust",
    title="Robust PCA by spatial signs",
    exact=False,
    result="components and variances that a tenth of the rows cannot move; for elliptical rows those of the covariance",
    rounds="13, and some 10 to the centre",
    upload="d(d+1)/2, d + 2 in each step; of m = d or 200 directions 2m(m+1) and 800 m",
    server_sees="each party's spatial median, sums of its rows' directions, how large its scores are",
    shows=method.Shown(
        "number of rows, their spatial median (with `scale` median absolute deviations); for each centre that the "
        "server names, the sum of the rows' directions from it and of their inverse distances; the sum of products of "
        "directions; how many rows have scores of which size along at most 200 directions, none of fewer than "
        "`min-rows`; sum and products of the scores of rows that are not far off",
        "the pooled centre and scales; the components and variances",
    ),
    options=RobustOptions,
    phases=phases,
    exposes="scores",
    own_centre=True,
    own_total="by medians, of the scores and of the distances to the components",
    needs=("rows",),
    beyond_moments="rows count by their directions from a centre of the server's, which a site must allow",
    examples=({}, {"scale": True}, {"robust-parties": True}),
    reference="Locantore et al. 1999; Visuri, Koivunen and Oja 2000; Vardi and Zhang 2000",
)


def _deviations(values: method.Array) -> method.Array:
    """The roots of eigenvalues; the largest instead of one that may be rounding, along which no row is then far off."""
    roots = np.sqrt(np.maximum(values, 0.0))
    return np.asarray(np.where(roots > SMALLEST * roots[0], roots, roots[0]))


def _of_one_place() -> method.DataError:
    return method.DataError(
        "most rows lie in one place: without those that may be far off there is no variance; leave out columns "
        "in which most rows are alike, or use p-cov"
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
        told = yield from self._sum("start", {})
        rows = int(told["rows"])
        check_components(self.options.n_components, rows, self.quorum.features)
        scale, weight = self._scale(told), float(told["count"])
        asked = {
            "centre": told["location"] / weight,
            "scale": scale,
            "unit": np.asarray(np.sqrt(scale.size) if scale.size else 2.0 ** (float(told["octave"]) / weight)),
            "rows": np.asarray(rows),
        }
        asked, mean_sign = yield from self._centre(asked)
        scatter, measured = yield from self._signs(asked)
        pairs = eigen.leading_eigenpairs(
            np.asfortranarray(scatter), directions_of(self.quorum.features, self.options.n_components)
        )
        by, centre, unit = scale if scale.size else 1.0, asked["centre"], float(asked["unit"])
        vectors, units = np.ascontiguousarray(pairs.vectors.T), unit * _deviations(pairs.values)
        for step in ("", AGAIN):
            about = {**asked, "centre": centre}
            survivors, far_off, moved, pairs = yield from self._survivors(step, about, vectors, units)
            centre = about["centre"] + moved * by
            vectors, units = pairs.vectors.T @ vectors, _deviations(pairs.values)
        vectors = eigen.fix_signs(vectors.T).T
        told = yield from self._sum("variances", {**survivors, "turned": vectors, "units": units})
        variances = spatial_signs.variances_by(units, told["scores"])
        solution = yield from self._solution(survivors, vectors, variances, units**2)
        notes = [f"{party}: its sums are unlike the others' and have no part" for party in self.left_out]
        if far_off > MANY:
            notes.append(
                f"{far_off:.0%} of the rows lie too far off to have a full part: where they are a group, or most rows "
                "have the same values, compare with p-cov"
            )
        return replace(solution, mean=centre).extended(
            notes=notes, measured={"mean_sign": mean_sign, "rows_far_off": far_off, **measured}
        )

    def _survivors(
        self, step: str, about: dict[str, method.Array], vectors: method.Array, units: method.Array
    ) -> Generator[method.Ask, Any, tuple[dict[str, method.Array], float, method.Array, eigen.Eigenpairs]]:
        """Which rows survive along directions (m, d) of a run's ``step``, and what is left of the others.

        Returns
        -------
        survivors : dict
            What the parties are told, by which each finds those of its rows.
        far_off : float
            The share of the rows that does not count.
        centre : ndarray of shape (d,)
            The mean of the survivors, about the centre.
        pairs : Eigenpairs
            Of their covariance along the directions.
        """
        told = yield from self._sum(f"{step}scores", {**about, "vectors": vectors, "units": units})
        directions = spatial_signs.directions_by(vectors, units, told["scores"])
        asked = {**about, "vectors": vectors, "middles": directions.middles, "spreads": directions.spreads}
        m = len(vectors)
        matrix, _ = yield from self._matrix(f"{step}shape", asked, m)
        shape = eigen.leading_eigenpairs(np.asfortranarray(matrix), m)
        turned = np.ascontiguousarray(shape.vectors.T)
        told = yield from self._sum(f"{step}shape_scores", {**asked, "shape_vectors": turned})
        survivors = spatial_signs.survivors_by(turned, shape.values, int(about["rows"]), told["scores"])
        asked |= {"shape_vectors": turned, "reach": survivors.reach}
        asked |= {"shape_middles": survivors.shape.middles, "shape_spreads": survivors.shape.spreads}
        far_off, mean, scatter = yield from self._mean_and_scatter(f"{step}survivors", asked, m)
        covariance = scatter - np.outer(mean, mean)
        if not np.trace(covariance) > ONE_PLACE * np.trace(scatter):
            raise _of_one_place()
        spreads = directions.spreads
        pairs = eigen.leading_eigenpairs(np.asfortranarray(covariance * spreads * spreads[:, None]), m)
        varying = int(np.count_nonzero(pairs.values > SMALLEST**2 * pairs.values[0]))
        if varying < m:  # the others follow from these, and not from rounding
            complement = np.linalg.qr(pairs.vectors[:, :varying], mode="complete")[0][:, varying:]
            pairs = replace(pairs, vectors=np.hstack([pairs.vectors[:, :varying], complement]))
        return asked, far_off, vectors.T @ (directions.middles + spreads * mean), pairs

    def _solution(
        self,
        survivors: dict[str, method.Array],
        vectors: method.Array,
        variances: method.Array,
        mean_squares: method.Array,
    ) -> Generator[method.Ask, Any, method.Solution]:
        """The components, the first k of all directions (m, d) in the order of their variances (m,) by medians, and the
        limits of rows by what the components leave of the survivors, whose mean squares are ``mean_squares`` (m,)."""
        if not variances.any():
            raise _of_one_place()
        k, rows, scale = self.options.n_components, int(survivors["rows"]), survivors["scale"]
        order = np.argsort(-variances, kind="stable")
        variances, vectors = variances[order], np.ascontiguousarray(vectors[order])
        beyond = float(variances[k:].sum())
        unit = np.sqrt(beyond) if beyond > 0 else float(survivors["unit"])
        told = yield from self._sum("errors", {**survivors, "unit": np.asarray(unit), "components": vectors[:k]})
        errors = spatial_signs.Errors.of(told["errors"], unit)
        if len(vectors) < self.quorum.features:
            beyond = errors.mean
        limit = errors.limit(LEVEL) if k < self.quorum.features else 0.0
        self.limits = np.array([scipy.special.chdtri(k, 1 - LEVEL), max(limit, np.finfo(np.float64).tiny)])
        notes = ["variances are those of normal values with the same medians; rows far off have no part in them"]
        close = np.flatnonzero(variances[:k] < CLOSE * mean_squares[order][:k]) + 1
        if close.size:
            notes.append(
                f"half of the rows or more lie close together along components {', '.join(map(str, close.tolist()))}, "
                "and their variances are those of these rows: compare with p-cov"
            )
        return method.Solution(
            pairs=eigen.Eigenpairs(
                variances[:k] * (rows - 1),
                vectors[:k].T,
                float(variances[k]) * (rows - 1) if k < len(variances) else 0.0,
            ),
            mean=survivors["centre"],
            total=(float(variances[:k].sum()) + beyond) * (rows - 1),
            rows=rows,
            scale=scale if scale.size else None,
            notes=notes,
        )

    def _scale(self, told: method.Fields) -> method.Array:
        """The harmonic mean of the parties' median absolute deviations; 1 where no party has any."""
        if not self.options.scale:
            return np.empty(0)
        varies = told["nearness"] > 0
        return np.where(varies, told["measured"], 1.0) / np.where(varies, told["nearness"], 1.0)

    def _centre(
        self, asked: dict[str, method.Array]
    ) -> Generator[method.Ask, Any, tuple[dict[str, method.Array], float]]:
        """What is asked next, about the centre at which the signs add up to nothing; and the mean sign there."""
        by = asked["scale"] if asked["scale"].size else np.ones_like(asked["centre"])
        search = spatial_signs.median_search(asked["centre"] / by)
        for step in range(1, self.options.max_rounds + 1):
            told = yield from self._sum("median", {**asked, "centre": search.point * by})
            sums = spatial_signs.SignSums(
                told["signs"], float(told["weight"]) / float(asked["unit"]), float(told["count"])
            )
            if sums.size <= spatial_signs.CLOSE or step == self.options.max_rounds:
                break
            search.add(search.point + sums.step, -sums.size)
        typical = sums.rows / sums.weight if sums.weight > 0 else 1.0
        return {**asked, "centre": search.point * by, "unit": np.asarray(typical)}, sums.size

    def _signs(
        self, asked: dict[str, method.Array]
    ) -> Generator[method.Ask, Any, tuple[method.Array, dict[str, float]]]:
        """The sign covariance (d, d) as `_matrix` gives it, of parties that are alike."""
        scatter, measured = yield from self._matrix("signs", asked, self.quorum.features)
        typical = measured.get("unlike_parties", 0.0)
        if typical > UNLIKE:
            raise method.DataError(
                f"with 'robust-parties' honest parties must be alike: half of them differ by {typical:.0%} or more "
                f"from their median, at most {UNLIKE:.0%} is allowed; leave the option out"
            )
        return scatter, measured

    def _matrix(
        self, phase: str, asked: dict[str, method.Array], size: int
    ) -> Generator[method.Ask, Any, tuple[method.Array, dict[str, float]]]:
        """The scatter (size, size) of a phase over all rows; or with ``robust-parties`` the mean of the parties' ones
        that are near their median, and how far all are from it."""
        if not self.options.robust_parties:
            told: method.Total = yield method.Sum(phase, asked)
            matrix, measured = moments.symmetric(told["scatter"], size) / float(told["count"]), dict[str, float]()
        else:
            replies = yield method.Ask(phase, asked)
            matrix, measured = self._of_parties(replies, size)
        if not np.trace(matrix) > 0:
            raise _of_one_place()
        return matrix, measured

    def _of_parties(self, replies: Sequence[method.Reply], size: int) -> tuple[method.Array, dict[str, float]]:
        """The mean of the parties' scatters, each of trace 1, without those that are unlike their median."""
        own = [moments.symmetric(reply.fields["scatter"], size) for reply in replies]
        own = [matrix / (np.trace(matrix) or 1.0) for matrix in own]
        middle = spatial_signs.median_of_matrices(own)
        norm = float(np.linalg.norm(middle)) or 1.0
        unlike = np.array([float(np.linalg.norm(matrix - middle)) / norm for matrix in own])
        typical = float(np.median(unlike))
        alike = unlike <= APART * typical
        unheard = [reply.sender for reply, near in zip(replies, alike, strict=True) if not near]
        self.left_out += [sender for sender in unheard if sender not in self.left_out]
        if len(self.left_out) >= len(replies):
            raise method.DataError(
                f"with 'robust-parties' each of the {len(replies)} parties was unlike the others in some step: none is "
                "left; leave the option out"
            )
        measured = {"unlike_parties": typical, "most_unlike_party": float(unlike.max())}
        return np.mean([matrix for matrix, near in zip(own, alike, strict=True) if near], axis=0), measured

    def _mean_and_scatter(
        self, phase: str, asked: dict[str, method.Array], size: int
    ) -> Generator[method.Ask, Any, tuple[float, method.Array, method.Array]]:
        """The share of the rows that does not count, and of the others the mean (size,) and the mean products (size,
        size); with ``robust-parties`` their mean is the median of the parties' means."""
        if not self.options.robust_parties:
            told: method.Total = yield method.Sum(phase, asked)
            weight = float(told["weight"]) or 1.0
            scatter = moments.symmetric(told["scatter"], size) / weight
            return 1 - weight / float(told["count"]), told["shift"] / weight, scatter
        replies = yield method.Ask(phase, asked)
        matrix, _ = self._of_parties(replies, size)
        heard = [reply.fields for reply in replies if reply.sender not in self.left_out]
        mean = np.median([fields["shift"] / (float(fields["weight"]) or 1.0) for fields in heard], axis=0)
        weight, rows = (sum(float(fields[name]) for fields in heard) for name in ("weight", "count"))
        return 1 - weight / rows, mean, size * matrix

    def _sum(self, phase: str, asked: method.Fields) -> Generator[method.Ask, Any, method.Fields]:
        """The sums of a phase over the rows, and how many these are; with ``robust-parties`` over those of parties that
        are not left out, of which each counts as at most twice the median one."""
        if not self.options.robust_parties:
            total: method.Total = yield method.Sum(phase, asked)
            return {**total.fields, "rows": total["count"]}
        replies = yield method.Ask(phase, asked)
        heard = [reply.fields for reply in replies if reply.sender not in self.left_out]
        most = 2 * float(np.median([int(fields["count"]) for fields in heard]))
        weights = [min(1.0, most / int(fields["count"])) for fields in heard]
        sums = {name: sum(w * fields[name] for w, fields in zip(weights, heard, strict=True)) for name in heard[0]}
        return {**sums, "rows": np.asarray(sum(int(fields["count"]) for fields in heard))}

    def loadings(self, model: method.PCAModel, solution: method.Solution) -> method.Fields:
        asked = super().loadings(model, solution)
        return {**asked, "variances": model.explained_variance_, "limits": self.limits}

    def projected(self, model: method.PCAModel, asked: method.Fields) -> method.Program:
        yield method.Ask("project", asked)
