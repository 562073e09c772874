"""ROBUST: components that a tenth of the rows cannot move, wherever these rows are.

Take ROBUST if nobody has looked for errors in the rows, or if their distributions have heavy tails; docs/missing.md has
the cost and what a site must allow. The components are those of the covariance of all rows except rows that lie far off
along some direction. The run looks along the eigenvectors of the rows' signs about their spatial median, and of the
signs of whitened rows (`fedpca_flwr.strategies.robust.spatial_signs`), at most 200. It looks twice, the second time
among the rows that are left. ``robust-parties`` uses only sites whose normalised sums are near the spatial median of
all sites' sums.
"""

from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import scipy  # `scipy.special` is loaded when it is used
from typing_extensions import override

from fedpca_flwr.maths import eigen, moments
from fedpca_flwr.model.solution import check_components
from fedpca_flwr.questions import method
from fedpca_flwr.site.scores import LIMIT_LEVEL
from fedpca_flwr.strategies.robust import party as party_half
from fedpca_flwr.strategies.robust import spatial_signs

MIN_SPREAD_SHARE = 1e-9  # of the squared distances: with less variance among the rows that count, most rows coincide
ROUNDING_DEVIATION_SHARE = 2.0**-24  # of the largest deviation along the directions: smaller ones are rounding
CLOSE_VARIANCE_SHARE = 1 / 16  # of the mean square: a smaller variance by medians shows that rows lie close together
NOTED_FAR_SHARE = 0.25  # share of rows far off above which the model has a note
MAX_TYPICAL_DIFFERENCE = 0.3  # median distance of the parties' sums from their median, as a share of its size
MAX_DIFFERENCE_RATIO = 3.0  # multiple of the parties' median difference above which a party is left out

CARD = method.MethodCard(
    name="robust",
    title="Robust PCA by spatial signs",
    exact=False,
    result="For elliptical distributions, components and variances are those of the covariance",
    rounds="13, and about 10 for the centre",
    upload="d + 2 in each step for d features, then d(d+1)/2, and 2m(m+1) + 800 m for m = min(d, 200) directions",
    server_sees="each party's spatial median, sums of its rows' directions, how large its scores are",
    disclosure=method.Disclosure(
        "the number of rows and their spatial median (with `scale` also median absolute deviations); for each centre "
        "that the server names, the sums of the rows' directions from it and of their inverse distances; the sum of "
        "products of directions; counts of the rows by the size of their scores along at most 200 directions, without "
        "counts below `min-rows`; the sum and products of the scores of rows that are not far off",
        "the pooled centre and scales; the components and variances",
    ),
    options=party_half.RobustOptions,
    script=party_half.robust_script,
    exposes="scores",
    non_mean_centre=True,
    variance_base="by medians, of the scores and of the distances to the components",
    needs=("rows",),
    beyond_moments="rows count by their directions from a centre of the server's, which a site must allow",
    examples=({}, {"scale": True}, {"robust-parties": True}),
    reference="Locantore et al. 1999; Visuri, Koivunen and Oja 2000; Vardi and Zhang 2000",
    differences="The publications treat a single data set. The sums over sites are this project's.",
)


def _deviations(values: method.Array) -> method.Array:
    """Return the roots (m,) of descending eigenvalues, with the largest in place of roots that may be rounding.

    Scores divided by the largest root are small, so no row is an outlier along such a direction.
    """
    roots = np.sqrt(np.maximum(values, 0.0))
    return np.asarray(np.where(roots > ROUNDING_DEVIATION_SHARE * roots[0], roots, roots[0]))


def _coincidence_error() -> method.DataError:
    """Return the `DataError` to raise if most rows coincide, so that no robust variance exists."""
    return method.DataError(
        "most rows lie in one place: without those that may be far off there is no variance; leave out columns "
        "in which most rows are alike, or use p-cov"
    )


class Robust(method.Strategy):
    """Strategy of ROBUST: eigenvectors of the covariance of all rows but outliers, found by spatial signs.

    Attributes
    ----------
    limits : ndarray of shape (2,)
        Limits of Hotelling's T2 and of the squared prediction error, by which the sites judge their rows.
    excluded_parties : list of str
        Parties without a part in the components, since their sums are unlike those of the others.

    Notes
    -----
    The spatial median c minimises ``sum |x_i - c|``, and ``u_i = (x_i - c) / |x_i - c|`` are the rows' signs
    about c [2]_ [3]_. Rows of an elliptical distribution have the same eigenvectors in the sign covariance ``sum u_i
    u_i' / n`` and in the covariance [1]_. One row changes the sign covariance by at most 1 / n.

    Along each of its eigenvectors the scores are divided by their spread (whitened). Eigenvectors of the whitened rows'
    sign covariance whose eigenvalues stand out are directions along which rows lie far off. The weight of a row falls
    from 1 to 0 with its distance along these directions. The components are eigenvectors of the weighted covariance,
    and their variances are by medians.

    References
    ----------
    .. [1] Locantore et al. 1999, Robust principal component analysis for functional data.
    .. [2] Visuri, Koivunen and Oja 2000, Sign and rank covariance matrices.
    .. [3] Vardi and Zhang 2000, The multivariate L1-median and associated data depth.
    """

    card = CARD
    party = party_half.RobustClient
    options: party_half.RobustOptions
    limits: method.Array
    excluded_parties: list[str]

    @override
    def aggregate(self) -> method.Fitting:
        """Find the spatial median, leave outliers out in two steps, and return robust components.

        Set `limits` and `excluded_parties`. Raise ConfigError for more components than the rows allow, and DataError
        if most rows coincide or, with ``robust-parties``, the parties differ too much.
        """
        self.excluded_parties = []
        sums = yield from self._sum_over_rows("start", {})
        rows = int(sums["rows"])
        check_components(self.options.n_components, rows, self.quorum.features)
        weight, scale = float(sums["count"]), np.empty(0)
        if self.options.scale:  # the harmonic mean of the parties' median absolute deviations; 1 where no party has any
            varies = sums["nearness"] > 0
            scale = np.where(varies, sums["measured"], 1.0) / np.where(varies, sums["nearness"], 1.0)
            scale[varies & (scale == 1.0)] = np.nextafter(1.0, 2.0)  # as `safe_deviation`: 1 is for what has none
        request = {
            "centre": sums["location"] / weight,
            "scale": scale,
            "unit": np.asarray(np.sqrt(scale.size) if scale.size else 2.0 ** (float(sums["octave"]) / weight)),
            "rows": np.asarray(rows),
        }
        request, mean_sign = yield from self._find_centre(request)
        scatter, measured = yield from self._sign_scatter(request)
        m = party_half.direction_count(self.quorum.features, self.options.n_components)
        pairs = eigen.leading_eigenpairs(np.asfortranarray(scatter), m)
        divisor, centre, unit = scale if scale.size else 1.0, request["centre"], float(request["unit"])
        vectors, units = np.ascontiguousarray(pairs.vectors.T), unit * _deviations(pairs.values)
        for step in ("", party_half.SECOND_STEP_PREFIX):
            step_request = {**request, "centre": centre}
            far_share, shift, pairs = yield from self._find_survivors(step, step_request, vectors, units)
            centre = step_request["centre"] + shift * divisor
            vectors, units = pairs.vectors.T @ vectors, _deviations(pairs.values)
        vectors = eigen.fix_signs(vectors.T).T
        sums = yield from self._sum_over_rows("variances", {**step_request, "turned": vectors, "units": units})
        variances = spatial_signs.variances_from_counts(units, sums["scores"])
        solution = yield from self._solution(step_request, vectors, variances, units**2)
        notes = [f"{party}: its sums are unlike the others' and have no part" for party in self.excluded_parties]
        if far_share > NOTED_FAR_SHARE:
            notes.append(
                f"{far_share:.0%} of the rows lie too far off to have a full part: where they are a group, or most "
                "rows have the same values, compare with p-cov"
            )
        measured = {"mean_sign": mean_sign, "rows_far_off": far_share, **measured}
        return replace(solution, mean=centre).with_details(notes=notes, measurements=measured)

    def _find_survivors(
        self, step: str, step_request: dict[str, method.Array], vectors: method.Array, units: method.Array
    ) -> Generator[method.Round, Any, tuple[float, method.Array, eigen.Eigenpairs]]:
        """Find the survivors (rows that are no outliers along directions (m, d)), and their mean and covariance.

        Return the share of outliers, the survivors' mean (d,) about the centre, and m eigenpairs of their covariance
        along the directions. Raise DataError if most rows coincide.
        """
        sums = yield from self._sum_over_rows(f"{step}scores", {**step_request, "vectors": vectors, "units": units})
        directions = spatial_signs.directions_from_counts(vectors, units, sums["scores"])
        request = {**step_request, "vectors": vectors, "middles": directions.middles, "spreads": directions.spreads}
        m = len(vectors)
        matrix, _ = yield from self._pooled_matrix(f"{step}shape", request, m)
        shape = eigen.leading_eigenpairs(np.asfortranarray(matrix), m)
        shape_vectors = np.ascontiguousarray(shape.vectors.T)
        sums = yield from self._sum_over_rows(f"{step}shape_scores", {**request, "shape_vectors": shape_vectors})
        survivors = spatial_signs.find_survivors(shape_vectors, shape.values, int(step_request["rows"]), sums["scores"])
        request |= {"shape_vectors": shape_vectors, "reach": survivors.reach}
        request |= {"shape_middles": survivors.shape.middles, "shape_spreads": survivors.shape.spreads}
        far_share, mean, scatter = yield from self._mean_and_scatter(f"{step}survivors", request, m)
        covariance = scatter - np.outer(mean, mean)
        if not np.trace(covariance) > MIN_SPREAD_SHARE * np.trace(scatter):
            raise _coincidence_error()
        spreads = directions.spreads
        pairs = eigen.leading_eigenpairs(np.asfortranarray(covariance * spreads * spreads[:, None]), m)
        varying = int(np.count_nonzero(pairs.values > ROUNDING_DEVIATION_SHARE**2 * pairs.values[0]))
        if varying < m:  # replace eigenvectors that are rounding by a complement of the others
            complement = np.linalg.qr(pairs.vectors[:, :varying], mode="complete")[0][:, varying:]
            pairs = replace(pairs, vectors=np.hstack([pairs.vectors[:, :varying], complement]))
        scores = directions.middles + spreads * mean
        shift = vectors.T @ scores
        # a feature far smaller than others has only rounding in the directions, which may be large beside its rows
        shift[np.abs(shift) <= m * np.finfo(np.float64).eps * np.abs(scores).sum()] = 0.0
        return far_share, shift, pairs

    def _solution(
        self,
        step_request: dict[str, method.Array],
        vectors: method.Array,
        variances: method.Array,
        mean_squares: method.Array,
    ) -> Generator[method.Round, Any, method.Solution]:
        """Return the solution from the k directions of largest robust variance, and set the outlier `limits`.

        The directions ``vectors`` are (m, d), ``variances`` (m,) come from medians, and ``mean_squares`` (m,) from
        the survivors. The limits follow from the survivors' squared errors. Raise DataError if all variances are zero.
        """
        if not variances.any():
            raise _coincidence_error()
        k, rows, scale = self.options.n_components, int(step_request["rows"]), step_request["scale"]
        order = np.argsort(-variances, kind="stable")
        variances, vectors = variances[order], np.ascontiguousarray(vectors[order])
        remaining_variance = float(variances[k:].sum())
        unit = np.sqrt(remaining_variance) if remaining_variance > 0 else float(step_request["unit"])
        request = {**step_request, "unit": np.asarray(unit), "components": vectors[:k]}
        sums = yield from self._sum_over_rows("errors", request)
        errors = spatial_signs.SquaredErrors.from_counts(sums["errors"], unit)
        if len(vectors) < self.quorum.features:
            remaining_variance = errors.mean
        limit = errors.limit(LIMIT_LEVEL) if k < self.quorum.features else 0.0
        self.limits = np.array([scipy.special.chdtri(k, 1 - LIMIT_LEVEL), max(limit, np.finfo(np.float64).tiny)])
        notes = ["variances are those of normal values with the same medians; rows far off have no part in them"]
        close_components = np.flatnonzero(variances[:k] < CLOSE_VARIANCE_SHARE * mean_squares[order][:k]) + 1
        if close_components.size:
            numbers = ", ".join(map(str, close_components.tolist()))
            notes.append(
                f"half of the rows or more lie close together along components {numbers}, and their variances are "
                "those of these rows: compare with p-cov"
            )
        following = float(variances[k]) * (rows - 1) if k < len(variances) else 0.0
        return method.Solution(
            pairs=eigen.Eigenpairs(variances[:k] * (rows - 1), vectors[:k].T, following),
            mean=step_request["centre"],
            total=(float(variances[:k].sum()) + remaining_variance) * (rows - 1),
            rows=rows,
            scale=scale if scale.size else None,
            notes=notes,
        )

    def _find_centre(
        self, request: dict[str, method.Array]
    ) -> Generator[method.Round, Any, tuple[dict[str, method.Array], float]]:
        """Search the spatial median, where the rows' unit directions add up to zero, for at most `max_rounds` steps.

        Return the request with this ``centre`` and the typical distance from it as ``unit``, and the mean sign length.
        """
        divisor = request["scale"] if request["scale"].size else np.ones_like(request["centre"])
        search = spatial_signs.median_search(request["centre"] / divisor)
        for step in range(1, self.options.max_rounds + 1):
            fields = yield from self._sum_over_rows("median", {**request, "centre": search.point * divisor})
            weight = float(fields["weight"]) / float(request["unit"])
            sums = spatial_signs.SignSums(fields["signs"], weight, float(fields["count"]))
            if sums.mean_sign_length <= spatial_signs.SIGN_TOLERANCE or step == self.options.max_rounds:
                break
            search.add(search.point + sums.step, -sums.mean_sign_length)
        typical_distance = sums.rows / sums.weight if sums.weight > 0 else 1.0
        request = {**request, "centre": search.point * divisor, "unit": np.asarray(typical_distance)}
        return request, sums.mean_sign_length

    def _sign_scatter(
        self, request: dict[str, method.Array]
    ) -> Generator[method.Round, Any, tuple[method.Array, dict[str, float]]]:
        """Return the spatial sign covariance (d, d) of the rows, and measurements of differences between parties.

        Raise DataError if, with ``robust-parties``, half of the parties differ too much from their median.
        """
        scatter, measured = yield from self._pooled_matrix("signs", request, self.quorum.features)
        typical_difference = measured.get("unlike_parties", 0.0)
        if typical_difference > MAX_TYPICAL_DIFFERENCE:
            raise method.DataError(
                f"with 'robust-parties' honest parties must be alike: half of them differ by {typical_difference:.0%} "
                f"or more from their median, at most {MAX_TYPICAL_DIFFERENCE:.0%} is allowed; leave the option out"
            )
        return scatter, measured

    def _pooled_matrix(
        self, phase: str, request: dict[str, method.Array], size: int
    ) -> Generator[method.Round, Any, tuple[method.Array, dict[str, float]]]:
        """Ask for a phase's scatter, and return its mean over all rows, or over similar parties (robust-parties).

        The second result measures how parties differ; empty without the option. Raise DataError for a zero scatter.
        """
        measured: dict[str, float] = {}
        if not self.options.robust_parties:
            sums: method.Total = yield method.SumRound(phase, request)
            matrix = moments.unpack_symmetric(sums["scatter"], size) / float(sums["count"])
        else:
            replies = yield method.Round(phase, request)
            matrix, measured = self._mean_of_similar(replies, size)
        if not np.trace(matrix) > 0:
            raise _coincidence_error()
        return matrix, measured

    def _mean_of_similar(self, replies: Sequence[method.Reply], size: int) -> tuple[method.Array, dict[str, float]]:
        """Return the mean (size, size) of the parties' trace-1 scatters without those far from their median.

        Also return the median and largest difference, and add parties to `excluded_parties`. Raise DataError if every
        party has been left out in some step.
        """
        matrices = [moments.unpack_symmetric(reply.fields["scatter"], size) for reply in replies]
        matrices = [matrix / (np.trace(matrix) or 1.0) for matrix in matrices]
        median_matrix = spatial_signs.median_of_matrices(matrices)
        norm = float(np.linalg.norm(median_matrix)) or 1.0
        differences = np.array([float(np.linalg.norm(matrix - median_matrix)) / norm for matrix in matrices])
        typical_difference = float(np.median(differences))
        similar = differences <= MAX_DIFFERENCE_RATIO * typical_difference
        excluded = [reply.sender for reply, is_similar in zip(replies, similar, strict=True) if not is_similar]
        self.excluded_parties += [sender for sender in excluded if sender not in self.excluded_parties]
        if len(self.excluded_parties) >= len(replies):
            raise method.DataError(
                f"with 'robust-parties' each of the {len(replies)} parties was unlike the others in some step: none is "
                "left; leave the option out"
            )
        measured = {"unlike_parties": typical_difference, "most_unlike_party": float(differences.max())}
        mean = np.mean([matrix for matrix, is_similar in zip(matrices, similar, strict=True) if is_similar], axis=0)
        return mean, measured

    def _mean_and_scatter(
        self, phase: str, request: dict[str, method.Array], size: int
    ) -> Generator[method.Round, Any, tuple[float, method.Array, method.Array]]:
        """Return the share of outliers, and the weighted mean (size,) and mean products (size, size) of other rows.

        With ``robust-parties`` the mean is the median of the parties' means.
        """
        if not self.options.robust_parties:
            sums: method.Total = yield method.SumRound(phase, request)
            weight = float(sums["weight"]) or 1.0
            scatter = moments.unpack_symmetric(sums["scatter"], size) / weight
            return 1 - weight / float(sums["count"]), sums["shift"] / weight, scatter
        replies = yield method.Round(phase, request)
        matrix, _ = self._mean_of_similar(replies, size)
        included = [reply.fields for reply in replies if reply.sender not in self.excluded_parties]
        mean = np.median([fields["shift"] / (float(fields["weight"]) or 1.0) for fields in included], axis=0)
        weight, rows = (sum(float(fields[name]) for fields in included) for name in ("weight", "count"))
        return 1 - weight / rows, mean, size * matrix

    def _sum_over_rows(self, phase: str, request: method.Fields) -> Generator[method.Round, Any, method.Fields]:
        """Ask for a phase's sums over all rows, and return the sums and the number of rows as ``rows``.

        With ``robust-parties`` the sums are over parties that are not left out, each of which counts as at most twice
        the median party.
        """
        if not self.options.robust_parties:
            total: method.Total = yield method.SumRound(phase, request)
            return {**total.fields, "rows": total["count"]}
        replies = yield method.Round(phase, request)
        included = [reply.fields for reply in replies if reply.sender not in self.excluded_parties]
        max_rows = 2 * float(np.median([int(fields["count"]) for fields in included]))
        weights = [min(1.0, max_rows / int(fields["count"])) for fields in included]
        weighted = list(zip(weights, included, strict=True))
        sums = {name: sum(weight * fields[name] for weight, fields in weighted) for name in included[0]}
        return {**sums, "rows": np.asarray(sum(int(fields["count"]) for fields in included))}

    @override
    def loadings(self, model: method.PCAModel, solution: method.Solution) -> method.Fields:
        """Return the request fields for projecting rows, with ``variances`` and ``limits``."""
        fields = super().loadings(model, solution)
        return {**fields, "variances": model.explained_variance_, "limits": self.limits}

    @override
    def run_projection(self, model: method.PCAModel, request: method.Fields) -> method.Program:
        """Let every party project its rows and judge them by `limits`, without checking a squared error."""
        yield method.Round("project", request)
