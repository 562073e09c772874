"""DP-PCA: (epsilon, delta)-differentially private components of directions or of clipped rows (Gaussian mechanism).

Take DP-PCA where the components must not tell about single rows. docs/private-by-noise.md compares the releases,
docs/security/privacy.md says what holds, and against whom.

* ``shells``: a row counts by its direction from a private centre, so that one row changes the sum of ``uu'`` by 1
  whatever the data. There is one sum for each of a few shells of distances (`fedpca_flwr.maths.shells`), and the server
  weighs them by their mean squared distances. Variances are estimates, from a release of their own.
* ``directions``: one shell. The components are those of the covariance only where the distribution is elliptical.
* ``joint``: rows clipped about zero, sum and second moment at once.

The server corrects the eigenvalues of the noisy second moment for the noise (`fedpca_flwr.maths.private_scatter`). Each
row is in one party's replies only, so each party's epsilon is the run's (`SHARES` of its party splits it).
"""

import math
from collections.abc import Generator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fedpca_flwr.maths import private_scatter as scatter
from fedpca_flwr.maths.moments import pack
from fedpca_flwr.maths.privacy import clip
from fedpca_flwr.maths.shells import Combined, combined, cut_off, one_shell, shells_of, variance_intervals
from fedpca_flwr.questions import method
from fedpca_flwr.strategies.dp_pca.party import ASKED, BOUND, UNITS, DPOptions, DPPCAClient, phases

CARD = method.MethodCard(
    name="dp-pca",
    title="Differentially private PCA",
    exact=False,
    result="by directions of rows in shells (or clipped rows) and noise",
    rounds="6; `release='joint'` 1",
    upload="1 to 6 times d(d+1)/2, + 2d + 3,000 + k; `joint` d(d+1)/2 + d + 1",
    server_sees="noisy sums",
    shows=method.Shown(
        "a noisy number of rows (its own with `count='public'`, and with `relation='replace-one'`: a site with "
        "data of its own must allow these), noisy sums: how many of its rows are how far from a centre, their "
        "directions by shells of distances, squares of their scores (or of its clipped rows and their products)",
        "the noisy centre, the components",
    ),
    shows_summed=method.Shown("the noisy numbers of rows, sums and products", "the noisy centre, the components"),
    options=DPOptions,
    phases=phases,
    examples=(
        {},
        {"clip": 1.0, "release": "joint"},
        {"epsilon": "infinity"},
    ),
    reference="Dwork, Talwar, Thakurta and Zhang 2014; Balle and Wang 2018; Kim and Jung 2025",
    differentially_private=True,
    own_total="that of clipped rows, with noise",
    needs=("rows",),
    beyond_moments="rows are clipped or made directions, and noise hides them",
)


class DPPCA(method.Strategy):
    """DP-PCA. Needs only the sum of the replies, and how many there were."""

    card = CARD
    party = DPPCAClient
    options: DPOptions
    intervals: tuple[float, method.Array] | None = None
    """Of a release without bounds: the reach, and by component between which numbers the variance of rows shortened to
    it is in 90 of 100 cases (k, 2)."""

    def aggregate(self) -> method.Fitting:
        options = self.options
        if not options.private:
            found = yield from method.pooled_moments(self)
            k = options.n_components
            solution = method.solve(found.moments, found.diagonal, n_components=k, center=True, scale=False)
            solution = replace(solution, evidence=found.evidence)
            return solution.extended(notes=["not private: epsilon is infinite, and this is p-cov"])
        return (yield from (self._unbounded() if options.unbounded else self._clipped()))

    # The two ways

    def _unbounded(self) -> method.Fitting:
        """Of directions in shells about a centre that is found on the way, and variances on them."""
        options, d = self.options, self.quorum.features
        centre, off, moved = np.zeros(d), math.inf, math.inf
        for nth in ("", "nearer_"):
            about = {"centre": centre} if nth else {}  # the first time about zero
            counts, of_counts = yield from self._told(f"{nth}octaves", about)
            noise = self._noise_beside(f"{nth}centre", "sum", math.sqrt(d))
            bound, stands_out = scatter.reach(counts["octaves"], of_counts["octaves"], noise=noise)
            told, added = yield from self._told(f"{nth}centre", about, bound)
            step, before = self._step(told, added, bound), centre
            if stands_out:
                centre, off = scatter.moved(centre, step)
            moved = float(np.linalg.norm(centre - before))
        shells = self._shells(counts["octaves"], of_counts["octaves"], moved)
        told, noise_of = yield from self._told("directions", {"centre": centre, "shells": shells})
        k, tau = options.n_components, noise_of["products"]
        all_shells = combined(told["products"], told["energies"], shells, d, k, tau)
        noise = self._noise_beside("variances", "squares", math.sqrt(k + 1))
        bound, stands_out = scatter.reach(told["octaves"], noise_of["octaves"], noise=noise, power=2)
        told_counts, of_told_counts = told["octaves"], noise_of["octaves"]
        components = np.ascontiguousarray(all_shells.found.pairs.vectors.T)
        told, added = yield from self._told("variances", {"centre": centre, "components": components}, bound)
        rows = self._rows(float(told["rows"]))
        unseen = [] if stands_out else ["how long rows are does not stand out of the noise: variances say nothing"]
        cut = cut_off(told_counts, of_told_counts, bound) if stands_out else math.inf
        ends = variance_intervals(
            all_shells, told["squares"][:-1], rows, deviation=added["squares"], of_rows=added["rows"], cut=cut
        )
        self.intervals = bound, ends
        found = self._with_variances(all_shells, told, added, off)
        return self._solution(found, centre, rows, {"variances": bound}).extended(
            notes=unseen, measured={"shells": len(shells)}
        )

    def _shells(self, counts: method.Array, deviation: float, moved: float) -> method.Array:
        """The shells to ask for, by numbers of rows about a centre that has moved since."""
        options = self.options
        edge = self._noise_beside("directions", "products", math.sqrt(2 * self.quorum.features))
        shells = shells_of(counts, deviation, edge, options.n_components, moved=moved)
        return shells if options.release == "shells" else one_shell(shells[-1, 1])

    def _noise_beside(self, phase: str, name: str, times: float) -> float:
        """So many deviations of the noise that a phase will have in a field, where rows have the length 1.

        Infinity without shells, where rows that are far off are to do no harm.
        """
        if self.options.release == "directions":
            return math.inf
        return times * self.options.noise(phase).of[name] / UNITS[name] * math.sqrt(self.quorum.expected)

    def _with_variances(
        self, of_all: Combined, told: method.Fields, added: dict[str, float], off: float
    ) -> scatter.Denoised:
        """The components with their variances, and how many the noise does not explain, the centre's included."""
        found, sigma, d = of_all.found, added["squares"], self.quorum.features
        values, total = scatter.descending(told["squares"][:-1], sigma), float(told["squares"].sum())
        if len(of_all.traces) > 1:  # the sums of several shells know the variances better
            values = found.pairs.values
        # rows without variance are all in one direction, and as near as the centre is off
        near = total - scatter.OUTLIER * sigma * math.sqrt(values.size + 1)
        most = float(told["rows"]) + scatter.TAIL * added["rows"]
        alike = np.array([most * min(1.0, off**2 * most / near) if near > 0 else most])
        if len(of_all.traces) > 1:
            alike = of_all.traces * np.minimum(1.0, off**2 / of_all.squares)
        seen = max(
            scatter.detectable(noisy, d, of_all.deviation, excess)
            for noisy, excess in zip(of_all.noisy, alike, strict=True)
        )
        last = found.pairs.values[-1]
        following = values[-1] * found.pairs.following / last if last else 0.0
        pairs = replace(found.pairs, values=values, following=following)
        return found._replace(pairs=pairs, total=max(total, float(values.sum())), detectable=seen)

    def _clipped(self) -> method.Fitting:
        """Of rows clipped to the bound that the options have."""
        bound = self.options.clip
        assert bound is not None  # of a release that is not unbounded
        told, noise = yield from self._told("joint", {}, bound)
        centre = self._step(told, noise, bound)
        products = told["products"] - centre.rows * pack(np.outer(centre.value, centre.value))
        found = scatter.denoised(
            products,
            self.quorum.features,
            self.options.n_components,
            noise["products"],
            excess=centre.seen_by_subtraction(),
        )
        return self._solution(found, centre.value, centre.rows, {"joint": bound})

    # What both need

    def _told(
        self, phase: str, asked: Mapping[str, method.Array], bound: float = 1.0
    ) -> Generator[method.Ask, Any, tuple[method.Fields, dict[str, float]]]:
        """What a phase tells in units of the data, by field, and the standard deviations of the noise in it."""
        if BOUND in ASKED[phase]:
            asked = {**asked, "bound": np.asarray(bound)}
        sums: method.Total = yield method.Sum(phase, asked)
        return self._in_units(phase, sums, bound)

    def _in_units(self, phase: str, sums: method.Total, bound: float) -> tuple[method.Fields, dict[str, float]]:
        """The sums of a phase, and the noise in them, of rows that were measured in a bound."""
        unit = {"sum": bound, "products": bound**2, "squares": bound**2}
        steps = {name: unit.get(name, 1.0) / UNITS[name] for name in sums}
        added = self.options.noise(phase).of
        told = {name: sums[name] * step for name, step in steps.items()}
        return told, {name: added[name] * step * math.sqrt(sums.parties) for name, step in steps.items()}

    def _rows(self, told: float) -> int:
        """The number of rows of all parties, which must be enough."""
        rows = round(told)
        if self.options.count == "noised":
            rows = max(rows, 2, self.options.n_components)  # a count that noise made too small ends no run
        self.n_components(rows, self.quorum.features)
        return rows

    def _step(self, told: method.Fields, noise: dict[str, float], bound: float) -> scatter.NoisyCentre:
        """The mean of the clipped rows of all parties."""
        rows = self._rows(float(told["rows"]))
        shortened = clip(told["sum"][None] / rows, bound)[0]  # the mean of clipped rows is no longer, but its noise is
        return scatter.NoisyCentre(shortened, rows, bound, of_rows=noise["rows"], of_sum=noise["sum"])

    def _solution(
        self, found: scatter.Denoised, centre: method.Array, rows: int, bounds: Mapping[str, float]
    ) -> method.Solution:
        options, k = self.options, self.options.n_components
        hidden = f"components {found.detectable + 1} to {k} do not stand out of the noise"
        measured = {
            "epsilon": float(options.epsilon),
            "delta": options.delta,
            **({} if options.trust == "local" else {"honest_parties": options.honest_parties}),
            **{f"noise_multiplier_{phase}": options.noise(phase).multiplier for phase in options.phases},
            **{f"clipping_norm_{phase}": bound for phase, bound in bounds.items()},
            "components_above_noise": found.detectable,
            "kept_features": found.kept,
        }
        notes = [*([hidden] if found.detectable < k else []), *self._notes()]
        return method.Solution(
            pairs=found.pairs, mean=centre, total=found.total, rows=rows, notes=notes, measured=measured
        )

    def modelled(self, solution: method.Solution) -> method.PCAModel:
        """Where no component stands out of the noise, its variances are numbers of the noise: the model has none."""
        model, above = super().modelled(solution), int(solution.measured.get("components_above_noise", 1))
        if self.intervals is not None:
            reach, ends = self.intervals
            known = [[float(low), float(high)] for low, high in ends[:above] if math.isfinite(high)]
            intervals = [*known, *[None] * (model.n_components_ - len(known))]
            model.log["variance_intervals_within_reach"] = {"reach": reach, "intervals": intervals}
        if above:  # there is none without noise
            return model
        unknown = np.full(model.n_components_, np.nan)
        model = replace(model, explained_variance_=unknown, explained_variance_ratio_=unknown)
        return replace(model, singular_values_=unknown, noise_variance_=np.nan)

    def _notes(self) -> list[str]:
        options, notes = self.options, []
        if options.noise_seed:
            notes.append(f"not private: fixed noise seed {options.noise_seed}")
        if options.trust == "distributed":
            seen = ["no secure aggregation: epsilon holds for this model, not against the server of the run"]
            notes += method.by_transport(self.config, clear=seen, masked=[])
        if options.unbounded:
            by = " by shells of distances" if options.release == "shells" else ""
            notes.append(
                f"components are those of the rows' directions{by}; variances, and their shares, are estimates, "
                "without the rows far out that the noise hides"
            )
        else:
            notes.append("variances are those of the clipped second moment")
        notes.append("not covered: errors and refusals, timing")
        if options.count == "public":
            held = "" if options.relation == "replace-one" else "; who knows them can tell that a row is there, "
            held += f"but its values at epsilon {options.epsilon_of_a_replacement():.3g} only" if held else ""
            notes.append(f"not covered: the parties' row counts{held}")
        notes.append("epsilon is of this run; a site adds up its runs where its node-config names a journal")
        return notes
