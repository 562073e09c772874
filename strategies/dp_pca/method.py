"""DP-PCA: (epsilon, delta)-differentially private components, from noisy sums of directions or of clipped rows.

Take DP-PCA if even people who receive the components must not learn whether a given row was used.
docs/private-by-noise.md states the guarantee and its limits, and compares the values of the option ``release``:

* ``shells``: each row counts by its direction from a private centre. Each shell of distances from the centre has a sum
  of its own, and the server weights the sums by the shells' mean squared distances
  (`fedpca_flwr.strategies.dp_pca.shells`). Variances are estimates from a separate release.
* ``directions``: one shell for all rows, which finds the components of most rows although a few percent are far off and
  no bound is known. They are those of the covariance only if the distribution is elliptical.
* ``joint``: the sum and the second moment of rows clipped about zero, in one round.

The server corrects eigenvalues for the noise (`fedpca_flwr.strategies.dp_pca.private_scatter`). A row is in the replies
of one site only, so epsilon of a site is epsilon of the run.
"""

import math
from collections.abc import Generator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from typing_extensions import override

from fedpca_flwr.maths.moments import pack
from fedpca_flwr.questions import method
from fedpca_flwr.strategies.dp_pca import party as party_half
from fedpca_flwr.strategies.dp_pca import private_scatter as scatter
from fedpca_flwr.strategies.dp_pca.integer_sums import clip_rows
from fedpca_flwr.strategies.dp_pca.shells import (
    Combined,
    choose_shells,
    clipped_squares_bound,
    combine_shells,
    share_within,
    single_shell,
    variance_intervals,
)

CARD = method.MethodCard(
    name="dp-pca",
    title="Differentially private PCA",
    exact=False,
    result="Noise, and the directions or clipped rows that are summed, change the components",
    rounds="6; 1 with `release='joint'`",
    upload="1 to 6 times d(d+1)/2, and 2d + 3,000 + k, for d features; with `joint` d(d+1)/2 + d + 1",
    server_sees="noisy sums",
    disclosure=method.Disclosure(
        "a noisy number of rows, and noisy sums: counts of its rows by distance from a centre, sums of their "
        "directions for each shell of distances, and squares of their scores (with `joint`, sums of its clipped rows "
        "and of their products). With `count='public'` or `relation='replace-one'`, which a site with data of its own "
        "must allow, it learns the true number of rows",
        "the noisy centre, the components",
    ),
    summed_disclosure=method.Disclosure(
        "the noisy number of rows and the same noisy sums", "the noisy centre, the components"
    ),
    options=party_half.DPOptions,
    script=party_half.dp_script,
    examples=({}, {"clip": 1.0, "release": "joint"}, {"epsilon": "infinity"}),
    reference="Dwork, Talwar, Thakurta and Zhang 2014; Balle and Wang 2018; Kim and Jung 2025",
    differences="The publication, the unpublished design note 001, adds Gaussian noise to the mean and the "
    "covariance of rows clipped to length 5. The default sums directions of rows (`shells`), and needs the least "
    "noise for a row added or removed. On digits with values from 0 to 1, with five sites, 5 components and "
    "epsilon 1, the mean angle to the exact components is 29 degrees by default, and 74 with `variant=paper`. "
    "`variant=paper` is `joint` with the note's clip and formula of noise, but not the note to the letter. One row "
    "can change the note's sums by twice as much as the note assumes, and the note spends epsilon twice, so both are "
    "corrected. The noise is added to sums of products about zero, because covariances are 2.8 times as sensitive. "
    "The server corrects eigenvalues for the noise, and leaves out features below it, which the note does not.",
    differentially_private=True,
    variance_base="that of clipped rows, with noise",
    needs=("rows",),
    beyond_moments="rows are clipped or made directions, and noise hides them",
)


class DPPCA(method.Strategy):
    """Strategy of DP-PCA: differentially private components from noisy sums of the parties' rows.

    Attributes
    ----------
    intervals : tuple of (float, float, ndarray of shape (k, 2)), or None
        Of a release without bounds: the reach, a lower bound of the share of rows within it, and for each component the
        ends of an interval for the mean square, about the centre, of rows shortened to the reach. Each holds in 90 of
        100 cases.

    Notes
    -----
    The Gaussian mechanism adds to a sum of sensitivity 1 normal noise of deviation ``multiplier``, the smallest
    that gives epsilon and delta [2]_. A phase with the share p of the budget has the multiplier ``multiplier /
    sqrt(p)``. With ``u_i = (x_i - c) / |x_i - c|`` the rows' directions from the centre c, the sum of ``u_i u_i'``
    changes by at most 1 in the Frobenius norm if one row comes or goes [1]_ [3]_. An eigenvalue theta of the noisy
    sum stands for ``lambda`` with ``theta = lambda + q^2 / lambda``, where 2 q is the largest eigenvalue of the noise
    alone.

    References
    ----------
    .. [1] Dwork, Talwar, Thakurta and Zhang 2014, Analyze Gauss: optimal bounds for privacy-preserving principal
       component analysis.
    .. [2] Balle and Wang 2018, Improving the Gaussian mechanism for differential privacy.
    .. [3] Kim and Jung 2025, Robust and differentially private principal component analysis.
    """

    card = CARD
    party = party_half.DPPCAClient
    options: party_half.DPOptions
    intervals: tuple[float, float, method.Array] | None = None

    @override
    def aggregate(self) -> method.Fitting:
        """Run the release that the options choose; with infinite epsilon return the exact PCA, with a note."""
        options = self.options
        if not options.private:
            pooling = yield from method.pooled_moments(self)
            k = options.n_components
            solution = method.solve(pooling.moments, pooling.diagonal, n_components=k, center=True, scale=False)
            solution = replace(solution, evidence=pooling.evidence)
            return solution.with_details(notes=["not private: epsilon is infinite, and this is p-cov"])
        return (yield from (self._release_unbounded() if options.unbounded else self._release_clipped()))

    def _release_unbounded(self) -> method.Fitting:
        """Fit from noisy sums of directions in shells about a noisy centre; set `intervals`, raise as `_row_count`."""
        options, d = self.options, self.quorum.features
        centre, centre_error, shift = np.zeros(d), math.inf, math.inf
        for prefix in ("", "nearer_"):
            centre_request = {"centre": centre} if prefix else {}  # the first time about zero
            counts, count_deviations = yield from self._release_sums(f"{prefix}octaves", centre_request)
            noise = self._noise_norm(f"{prefix}centre", "sum", math.sqrt(d))
            bound, stands_out = scatter.row_reach(counts["octaves"], count_deviations["octaves"], noise=noise)
            sums, deviations = yield from self._release_sums(f"{prefix}centre", centre_request, bound)
            step, previous = self._noisy_centre(sums, deviations, bound), centre
            if stands_out:
                centre, centre_error = scatter.move_centre(centre, step)
            shift = float(np.linalg.norm(centre - previous))
        shells = self._choose_shells(counts["octaves"], count_deviations["octaves"], shift)
        sums, direction_deviations = yield from self._release_sums("directions", {"centre": centre, "shells": shells})
        k, octaves, octave_deviation = options.n_components, sums["octaves"], direction_deviations["octaves"]
        all_shells = combine_shells(sums["products"], sums["energies"], shells, d, k, direction_deviations["products"])
        noise = self._noise_norm("variances", "squares", math.sqrt(k + 1))
        bound, stands_out = scatter.row_reach(octaves, octave_deviation, noise=noise, power=2)
        components = np.ascontiguousarray(all_shells.denoised.pairs.vectors.T)
        request = {"centre": centre, "components": components}
        sums, deviations = yield from self._release_sums("variances", request, bound)
        rows = self._row_count(float(sums["rows"]))
        notes = [] if stands_out else ["how long rows are does not stand out of the noise: variances say nothing"]
        intervals = variance_intervals(
            all_shells,
            sums["squares"][:-1],
            rows,
            deviation=deviations["squares"],
            count_deviation=deviations["rows"],
            cut_bound=clipped_squares_bound(octaves, octave_deviation, bound) if stands_out else math.inf,
        )
        share = 0.0
        if stands_out:
            share = share_within(octaves, octave_deviation, bound, rows, deviations["rows"])
        self.intervals = bound, share, intervals
        notes = notes or [
            f"at least {share:.0%} of the rows lie within {bound:.4g} of the centre, the variances' reach"
        ]
        estimate = estimate_variances(all_shells, sums, deviations, centre_error)
        solution = self._solution(estimate, centre, rows, {"variances": bound})
        return solution.with_details(notes=notes, measurements={"shells": len(shells)})

    def _choose_shells(self, counts: method.Array, deviation: float, shift: float) -> method.Array:
        """Choose distance shells (s, 3) from noisy counts (octaves,) of rows, allowing for the centre's shift since."""
        options = self.options
        edge = self._noise_norm("directions", "products", math.sqrt(2 * self.quorum.features))
        shells = choose_shells(counts, deviation, edge, options.n_components, centre_shift=shift)
        return shells if options.release == "shells" else single_shell(shells[-1, 1])

    def _noise_norm(self, phase: str, name: str, times: float) -> float:
        """Return ``times`` standard deviations of a field's summed noise in a phase, for rows of length 1.

        Return infinity for ``release='directions'``: the reach is then not enlarged, and distant rows change nothing.
        """
        if self.options.release == "directions":
            return math.inf
        deviation, steps = self.options.noise(phase).deviations[name], party_half.FIELD_STEPS[name]
        return times * deviation / steps * math.sqrt(self.quorum.expected)

    def _release_clipped(self) -> method.Fitting:
        """Fit from the noisy sum and second moment of rows clipped to the option ``clip``; raise as `_row_count`."""
        bound, d, k = self.options.clip, self.quorum.features, self.options.n_components
        assert bound is not None  # of a release that is not unbounded
        sums, noise = yield from self._release_sums("joint", {}, bound)
        centre = self._noisy_centre(sums, noise, bound)
        products = sums["products"] - centre.rows * pack(np.outer(centre.value, centre.value))
        estimate = scatter.denoise(products, d, k, noise["products"], excess=centre.subtraction_eigenvalue())
        return self._solution(estimate, centre.value, centre.rows, {"joint": bound})

    def _release_sums(
        self, phase: str, request: Mapping[str, method.Array], bound: float = 1.0
    ) -> Generator[method.Round, Any, tuple[method.Fields, dict[str, float]]]:
        """Ask for a phase's noisy sums, with the ``bound`` where the phase has one, and return them `_in_units`."""
        if party_half.BOUND_FIELD in party_half.REQUEST_FIELDS[phase]:
            request = {**request, "bound": np.asarray(bound)}
        sums: method.Total = yield method.SumRound(phase, request)
        return self._in_units(phase, sums, bound)

    def _in_units(self, phase: str, sums: method.Total, bound: float) -> tuple[method.Fields, dict[str, float]]:
        """Convert a phase's sums and noise deviations, by field, from integer steps to units of the data."""
        unit = {"sum": bound, "products": bound**2, "squares": bound**2}
        steps = {name: unit.get(name, 1.0) / party_half.FIELD_STEPS[name] for name in sums}
        deviations = self.options.noise(phase).deviations
        values = {name: sums[name] * step for name, step in steps.items()}
        return values, {name: deviations[name] * step * math.sqrt(sums.parties) for name, step in steps.items()}

    def _row_count(self, noisy_count: float) -> int:
        """Round a row count, if noisy up to 2 and to n-components; raise ConfigError if it allows fewer components."""
        rows = round(noisy_count)
        if self.options.count == "noised":
            rows = max(rows, 2, self.options.n_components)  # a count that noise made too small ends no run
        self.n_components(rows, self.quorum.features)
        return rows

    def _noisy_centre(self, sums: method.Fields, noise: dict[str, float], bound: float) -> scatter.NoisyCentre:
        """Return the noisy mean of all parties' clipped rows, and the noise of sum and count; raise as `_row_count`."""
        rows = self._row_count(float(sums["rows"]))
        # the mean of clipped rows is no longer than the bound, but with its noise it may be
        shortened = clip_rows(sums["sum"][None] / rows, bound)[0]
        return scatter.NoisyCentre(shortened, rows, bound, count_deviation=noise["rows"], sum_deviation=noise["sum"])

    def _solution(
        self, estimate: scatter.Denoised, centre: method.Array, rows: int, bounds: Mapping[str, float]
    ) -> method.Solution:
        """Return the solution from denoised eigenpairs, with epsilon, noise multipliers and notes."""
        options, k = self.options, self.options.n_components
        hidden_note = f"components {estimate.detectable + 1} to {k} do not stand out of the noise"
        measured = {
            "epsilon": float(options.epsilon),
            "delta": options.delta,
            **({} if options.trust == "local" else {"honest_parties": options.honest_parties}),
            **{f"noise_multiplier_{phase}": options.noise(phase).multiplier for phase in options.phases},
            **{f"clipping_norm_{phase}": bound for phase, bound in bounds.items()},
            "components_above_noise": estimate.detectable,
            "kept_features": estimate.coordinate_count,
        }
        notes = [*([hidden_note] if estimate.detectable < k else []), *self._notes()]
        return method.Solution(
            pairs=estimate.pairs, mean=centre, total=estimate.total, rows=rows, notes=notes, measurements=measured
        )

    @override
    def build_model(self, solution: method.Solution) -> method.PCAModel:
        """Build the model, with intervals of variances in its log; variances are NaN if all are hidden by the noise."""
        model, detectable = super().build_model(solution), int(solution.measurements.get("components_above_noise", 1))
        if self.intervals is not None:
            reach, share, ends = self.intervals
            finite_intervals = [[float(low), float(high)] for low, high in ends[:detectable] if math.isfinite(high)]
            intervals = [*finite_intervals, *[None] * (model.n_components_ - len(finite_intervals))]
            model.log["variance_intervals_within_reach"] = {"reach": reach, "share": share, "intervals": intervals}
        if detectable:  # there is none without noise
            return model
        unknown = np.full(model.n_components_, np.nan)
        model = replace(model, explained_variance_=unknown, explained_variance_ratio_=unknown)
        return replace(model, singular_values_=unknown, noise_variance_=np.nan)

    def _notes(self) -> list[str]:
        """Return notes for the model on what the run's differential privacy does not cover."""
        options, notes = self.options, []
        if options.noise_seed:
            notes.append(f"not private: fixed noise seed {options.noise_seed}")
        if options.trust == "distributed":
            server_note = ["no secure aggregation: epsilon holds for this model, not against the server of the run"]
            notes += method.by_transport(self.config, clear=server_note, masked=[])
        if options.unbounded:
            shells_text = " by shells of distances" if options.release == "shells" else ""
            notes.append(
                f"components are those of the rows' directions{shells_text}; variances, and their shares, are "
                "estimates, without the rows far out that the noise hides"
            )
        else:
            notes.append("variances are those of the clipped second moment")
        notes.append("not covered: errors and refusals, timing")
        if options.count == "public":
            caveat = "" if options.relation == "replace-one" else "; who knows them can tell that a row is there, "
            caveat += f"but its values at epsilon {options.replacement_epsilon():.3g} only" if caveat else ""
            notes.append(f"not covered: the parties' row counts{caveat}")
        notes.append("epsilon is of this run; a site adds up its runs where its node-config names a journal")
        return notes


def estimate_variances(
    all_shells: Combined, sums: method.Fields, deviations: dict[str, float], centre_error: float
) -> scatter.Denoised:
    """Return components with estimated variances, total variance, and the number that stand out of the noise.

    ``sums`` and ``deviations`` are those of the phase "variances", in units of the data.
    """
    estimate, sigma, d = all_shells.denoised, deviations["squares"], len(all_shells.denoised.pairs.vectors)
    values, total = scatter.make_descending(sums["squares"][:-1], sigma), float(sums["squares"].sum())
    if len(all_shells.traces) > 1:  # the sums of several shells know the variances better
        values = estimate.pairs.values
    # rows as near as the centre is wrong may all point in one direction: the share that this may explain
    min_total = total - scatter.NORMAL_99 * sigma * math.sqrt(values.size + 1)
    max_rows = float(sums["rows"]) + scatter.LIPSCHITZ_TAIL * deviations["rows"]
    centre_share = min(1.0, centre_error**2 * max_rows / min_total) if min_total > 0 else 1.0
    same_direction_rows = np.array([max_rows * centre_share])
    if len(all_shells.traces) > 1:
        squares, error = all_shells.squares, centre_error**2
        shares = np.divide(error, squares, out=np.ones_like(squares), where=squares > error)
        same_direction_rows = all_shells.traces * shares
    excesses = zip(all_shells.noisy, same_direction_rows, strict=True)
    detectable = max(scatter.count_detectable(noisy, d, all_shells.deviation, excess) for noisy, excess in excesses)
    last = estimate.pairs.values[-1]
    following = values[-1] * estimate.pairs.following / last if last else 0.0
    pairs = replace(estimate.pairs, values=values, following=following)
    return estimate._replace(pairs=pairs, total=max(total, float(values.sum())), detectable=detectable)
