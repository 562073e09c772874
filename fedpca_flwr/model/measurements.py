"""Measurements of a run: the numbers of ``model.log["measured"]``, and the lines of text that a person reads.

The name of a number ends with its unit: ``degrees``, ``rows``, ``share`` (0 to 1), ``bytes..._per_party``.
`MEASUREMENTS` is the table of all numbers, by the lines of a summary; ``docs/measurements.md`` is made from the table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from string import Formatter
from typing import Any

import numpy as np

from fedpca_flwr.config.method_text import format_method
from fedpca_flwr.errors import ContractError
from fedpca_flwr.maths.eigen import certificate_text, format_upper_bound
from fedpca_flwr.maths.influence import near_groups
from fedpca_flwr.model.fitted import FittedPCA

Numbers = Mapping[str, float]
# function that writes a line of a summary from the numbers and from the model (options, names, k)
LineText = Callable[[Numbers, FittedPCA], str]
MIN_MIXING_DEGREES = 20  # components of nearly the same variance mix if they turn by more without a party


def share_text(share: float) -> str:
    """Write a share of the variance (0 to 1) in percent, as 100 only if nothing is left out."""
    percent = 100 * round(share, 12) + 0.0  # beyond are rounding errors, and a sign of zero
    return f"{percent:.{6 if 99.95 <= percent < 100 else 3}g}%"


def is_weighted(model: FittedPCA) -> bool:
    """Return whether columns have weights, so that `scale_` is not their deviations."""
    return bool(model.log.get("options", {}).get("column-weights"))


def is_scaled(model: FittedPCA) -> bool:
    """Return whether the run divided features by their deviations, which only the parties may know."""
    return bool(model.log.get("options", {}).get("scale")) or (model.scale_ is not None and not is_weighted(model))


def _words(model: FittedPCA) -> dict[str, Any]:
    """Return what templates of lines name beside numbers: the run's options, and the unit of variances and errors."""
    unit = "in variances of a feature" if is_scaled(model) else "in the unit of the data, squared"
    return {"options": model.log["options"], "square_unit": unit}


def _angle_certificate_text(numbers: Numbers, model: FittedPCA) -> str:
    """Write the certified bound on the angle to the exact components, and for how many components the bound holds."""
    first = int(numbers["certified_components"])
    complete = first >= model.n_components_
    return certificate_text(numbers["certified_angle_degrees"], first=None if complete else first)


def _missing_values_text(numbers: Numbers, model: FittedPCA) -> str:
    """Write the share of missing values, and the estimated angle, in degrees, that EM still has to go."""
    share, ahead = numbers["missing_share"], numbers["degrees_ahead"]
    return f"{100 * share:.3g}%; EM stopped an estimated {ahead:.2g} degrees before its limit (no bound)"


def _cost_text(prefix: str) -> LineText:
    """Return a text function for the rounds, and MB per party, that a run forecast or spent (the prefix)."""

    def text(numbers: Numbers, model: FittedPCA) -> str:
        rounds = numbers[f"{prefix}_rounds"]
        up, down = (numbers[f"{prefix}_bytes_{way}_per_party"] / 1e6 for way in ("up", "down"))
        return f"{rounds} round{'s' * (rounds != 1)}, {up:.3g} MB up and {down:.3g} MB down per site"

    return text


def _chosen_method_text(numbers: Numbers, model: FittedPCA) -> str:
    """Write the method and options that `adaptive` chose, with the forecast rounds and bytes."""
    choice = model.log["chosen"]
    return f"{format_method(choice['method'], choice['options'])}: {_cost_text('forecast')(numbers, model)}"


def _divergences_text(numbers: Numbers, model: FittedPCA) -> str:
    """Write the score and the four divergences by which `adaptive` chose, and the choice."""
    four = ", ".join(f"{name} {numbers[f'divergence_{name}']:.2f}" for name in DIVERGENCES)
    return f"{numbers['divergence_score']:.2f} of 1 ({four}), so {model.log['chosen']['method']}"


def _mu_text(numbers: Numbers, model: FittedPCA) -> str:
    """Write the penalty mu that ties the parties' own components together, and on how many rows it was chosen."""
    value, held_out = numbers["mu"], numbers.get("held_out_rows")
    name = {0.0: "0 (local PCA)", math.inf: "infinity (PCA of all rows)"}.get(value, f"{value:g}")
    return name if held_out is None else f"{name}, chosen on {held_out} rows held out"


def _privacy_text(numbers: Numbers, model: FittedPCA) -> str:
    """Write epsilon, delta, the relation of neighbouring data sets, and the trust model of a private run."""
    options, honest = model.log["options"], numbers.get("honest_parties")
    trust = options["trust"] if honest is None else f"{options['trust']}, {honest} honest sites"
    epsilon, delta = f"epsilon {numbers['epsilon']:g}", f"delta {numbers['delta']:g}"
    return f"{epsilon}, {delta}, {options['relation']}, of one row; trust: {trust}"


def _sums_text(prefix: str) -> LineText:
    """Return a text function that lists the numbers with a prefix, each with the name of its noisy sum in `dp-pca`."""
    return lambda numbers, model: ", ".join(
        f"{value:.6g} ({name.removeprefix(prefix)})" for name, value in numbers.items() if name.startswith(prefix)
    )


def _above_noise_text(numbers: Numbers, model: FittedPCA) -> str:
    """Write how many components, and how many features, stand out of the noise."""
    above, features = numbers["components_above_noise"], numbers["kept_features"]
    return f"{above} of {model.n_components_} components; {features} of {model.n_features_in_} features kept"


def _left_out_text(numbers: Numbers, model: FittedPCA) -> str:
    """Write the variance outside the components, and the number of directions over which that variance is spread."""
    share = share_text(1 - float(model.explained_variance_ratio_.sum()))
    directions = f"{numbers['left_out_directions']:.0f}"
    return f"{share} of the variance, spread over some {directions} direction{'' if directions == '1' else 's'}"


def _outlier_text(numbers: Numbers, model: FittedPCA) -> str:
    """Write how many rows exceed the limits, and which party has the largest share of such rows."""
    t_squared, spe = numbers["rows_above_t_squared_limit"], numbers["rows_above_spe_limit"]
    text = f"{t_squared} beyond the limit of T2, {spe} beyond that of SPE (99 % of normal rows are not)"
    parties = [
        (max(entry["above_t_squared_limit"], entry["above_spe_limit"]) / entry["rows"], entry["party"])
        for entry in model.log.get("outliers", [])
    ]
    share, party = max(parties, default=(0.0, ""))
    return f"{text}; most at {party}: {share:.1%} of its rows" if share else text


def _influence_text(numbers: Numbers, model: FittedPCA) -> str:
    """Write the largest share of a component from a party, and which components turn most without which party."""
    largest_share = numbers["influence_component_share"]
    if "influence_axis_degrees" not in numbers:  # a model of an earlier version, whose angle was another one
        return f"one site holds at most {largest_share:.1%} of a component"
    sites = model.log["influence"]
    names, shares = [site["party"] for site in sites], np.array([site["component_shares"] for site in sites])
    holder, held = np.unravel_index(shares.argmax(), shares.shape)
    rows = sites[holder]["rows_share"]
    texts = [f"{names[holder]} holds {largest_share:.1%} of component {held + 1}, with {rows:.1%} of the rows"]
    angles = np.array([site["angles_degrees"] for site in sites])
    first, turned, mixed = angles.shape[1], list[int](), dict[str, str]()
    for group in near_groups(model.explained_variance_[:first]):
        largest = angles[:, group].max(axis=1)
        if len(group) > 1 and largest.max() > MIN_MIXING_DEGREES:
            mixed[" and ".join(str(i + 1) for i in group)] = names[largest.argmax()]
        else:
            turned += group
    if mixed:
        parties = " or ".join(dict.fromkeys(mixed.values()))
        texts.append(f"components {'; '.join(mixed)} have nearly the same variance: without {parties} they mix")
    if turned:
        most = max(turned, key=lambda i: float(angles[:, i].max()))
        degrees = format_upper_bound(float(angles[:, most].max()))
        texts.append(f"without {names[angles[:, most].argmax()]} component {most + 1} turns by up to {degrees} degrees")
    if first > 1:
        which = f"all {first}" if first == model.n_components_ else f"the first {first}"
        space = format_upper_bound(numbers["influence_subspace_degrees"])
        texts.append(f"without one site the space of {which} turns by up to {space} degrees")
    return "; ".join(texts)


def _angles_text(name: str, where: str = "") -> LineText:
    """Return a text function for the largest and mean angle to other components; below 1e-6 degrees it is rounding."""

    def text(numbers: Numbers, model: FittedPCA) -> str:
        angles = (numbers[f"angle_to_{name}_{kind}_degrees"] for kind in ("max", "mean"))
        largest, mean = (f"{angle:.1g}" if angle < 1e-6 else f"{angle:.2g}" for angle in angles)
        return f"{largest} degrees at most, {mean} in the mean{where}"

    return text


def _revision_text(numbers: Numbers, model: FittedPCA) -> str:
    """Write the revision of a federation's stored state, and whether there are unsaved changes."""
    return f"{numbers['revision']}{', and changes that are not saved' * bool(numbers.get('unsaved_changes'))}"


def _members_text(word: str) -> LineText:
    """Return a text function that lists the members with a status, such as "joined" or "left"."""
    return lambda numbers, model: ", ".join(model.log["members"][word])


@dataclass(frozen=True)
class Measurement:
    """Line of a model's summary, which is printed if any of its numbers is measured."""

    label: str
    numbers: Mapping[str, str]  # meanings of the numbers that the line is made from, by name
    text: LineText


def define_line(name: str, text: str | LineText, *prefixes: str) -> Measurement:
    """Define a line of a summary, an entry of `MEASUREMENTS`, by its name and the names of the numbers that it needs.

    ``text`` is a template for `str.format` of the numbers and of `_words`; or a function, of numbers with the prefixes.
    """
    if isinstance(text, str):
        template, fields = text, {field for _, field, *_ in Formatter().parse(text)}
        meanings = {number: meaning for number, meaning in MEANINGS.items() if number in fields}
        return Measurement(name, meanings, lambda values, model: template.format(**values, **_words(model)))
    return Measurement(name, {number: text for number, text in MEANINGS.items() if number.startswith(prefixes)}, text)


def bound_line(name: str, number: str, template: str, *, digits: int = 2) -> Measurement:
    """Define a line that puts a number, an upper bound, into a template as ``bound``, rounded up."""
    return define_line(name, lambda n, _: template.format(bound=format_upper_bound(n[number], digits=digits)), number)


CLIPPED_SUMS = ("variances", "joint")  # DP-PCA's sums
DIVERGENCES = {
    "means": "distance of a site's mean from that of all rows, in square roots of the average variance",
    "covariances": "relative Frobenius distance of a site's covariance from the average covariance",
    "spectra": "Kullback-Leibler divergence of a site's normalised spectrum from that of the average covariance",
    "variances": "relative distance of a site's total variance from the average",
}
NOISED_SUMS = (*CLIPPED_SUMS, "centre", "octaves", "nearer_octaves", "nearer_centre", "directions")
MEANINGS = {
    "certified_angle_degrees": "bound on the largest angle to the exact components; 90 means no bound",
    "certified_components": "number of first components for which the bound holds",
    "standing_out_components": "number of components that stand out of the noise",
    "angle_bound_degrees": "worst case of the largest angle (Davis and Kahan); 90 means no bound",
    "angle_to_exact_max_degrees": "largest angle to the exact components",
    "angle_to_exact_mean_degrees": "mean angle to the exact components",
    "between_parties_variance_share": "share of the variance that averaged covariances leave out",
    "compression_ratio": "bytes of a full float64 covariance over the bytes that a site sent; mean over the sites",
    "scatter_error_variance_share": "bound on the spectral norm of the encoding's error, as a share of the variance",
    "tracked_directions": "number of directions that each site tracks",
    "truncated_variance_share": "share of the variance outside these directions",
    "smallest_rank": "smallest and largest rank with which a site's stream ended",
    "largest_rank": "smallest and largest rank with which a site's stream ended",
    "running_model_rows": "number of rows that the running model has merged",
    "running_model_revision": "number of runs that merged rows",
    "heterogeneity_score": "mean of the next four numbers, each limited to 1; 0 if the sites are alike",
    "heterogeneity_means": "share of the variance between the sites",
    "heterogeneity_covariances": "relative distance to the average covariance",
    "heterogeneity_spectra": "Jensen-Shannon divergence of the normalised spectra, base 2",
    "heterogeneity_variances": "relative distance of the total variances to their average",
    "divergence_score": "mean of the next four numbers",
    **{f"divergence_{name}": f"{text}; limited to 1, mean of the sites" for name, text in DIVERGENCES.items()},
    "forecast_rounds": 'forecast rounds of the chosen method, `log["chosen"]`',
    "forecast_bytes_up_per_party": "forecast bytes, mean over the sites",
    "forecast_bytes_down_per_party": "forecast bytes, mean over the sites",
    "spent_rounds": "rounds after the survey and before the last round",
    "spent_bytes_up_per_party": "bytes of these rounds, mean over the sites",
    "spent_bytes_down_per_party": "bytes of these rounds, mean over the sites",
    "periods_per_component": "rounds of merging for each component",
    "iterations": "number of steps of each site",
    "step_size": "size of each step, for a pooled scatter of trace 1",
    "mixing_rate": "share of the sites' disagreement that one exchange leaves",
    "consensus_error_degrees": "largest angle between the estimate of a site and the mean of all estimates",
    "last_direction_norm": "largest norm of a site's last step",
    "mu": "strength of the shared components: 0 is local PCA, infinity the PCA of all rows",
    "held_out_rows": "number of rows on which the run chose mu",
    "held_out_squared_error_per_row": "squared error with each site's own components",
    "local_held_out_squared_error_per_row": "squared error with each site's local PCA",
    "global_held_out_squared_error_per_row": "squared error with the PCA of all rows",
    "objective_per_row": "objective that the sites' own and the shared components minimise",
    "objective_iterations": "number of iterations",
    "own_from_shared_degrees": "root mean square sine between the sites' own and the shared components",
    "missing_share": "share of all values that are missing",
    "degrees_ahead": "estimated angle to the final components; not a bound",
    "epsilon": "epsilon and delta of the whole run, for one row",
    "delta": "epsilon and delta of the whole run, for one row",
    "honest_parties": "number of sites that must add their share of the noise (`trust='distributed'`)",
    **{f"noise_multiplier_{name}": "noise of this sum divided by its sensitivity" for name in NOISED_SUMS},
    **{f"clipping_norm_{x}": "largest length of a row in this sum, in the unit of the data" for x in CLIPPED_SUMS},
    "shells": "number of shells of distances from the centre",
    "mean_sign": "length of the rows' mean direction from the centre, which is 0 at their spatial median",
    "rows_far_off": "share of the rows with weight 0, because they lie far off along a direction",
    "unlike_parties": "median difference of the sites' normalised sums, divided by the size of their median",
    "most_unlike_party": "the same number for the site that differs most",
    "components_above_noise": "number of components that stand out of the noise",
    "kept_features": "number of features that stand out of the noise",
    "members": "number of members of the federation",
    "member_rows": "number of rows of all members",
    "members_here": "number of members that took part in this run",
    "revision": "revision of the stored federation",
    "unsaved_changes": "number of changes since it was saved",
    "joined_members": "number of new members",
    "replaced_members": "number of members with other rows than before",
    "appended_members": "number of members that added rows",
    "unchanged_members": "number of members with the same rows",
    "left_members": "number of members whose rows no longer count",
    "absent_members": "number of members that took no part; their rows count",
    "fixed_point_variance_share": "bound on the share of the variance that fixed point rounds off (methods for rows)",
    "fixed_point_size_share": "the same bound as a share of the largest size of a sum (methods for columns)",
    "pairwise_masked_parties": "number of sites in every sum",
    "double_masked_parties": "number of sites in the sum",
    "expected_parties": "number of sites at the start",
    "left_out_directions": "number of directions over which the left-out variance is spread",
    "rows_above_t_squared_limit": "number of rows beyond the limit of T squared, which 1 % of normal rows exceed",
    "rows_above_spe_limit": "number of rows beyond the limit of SPE; sites with few such rows count 0",
    "first_variance_low": "lower end of the 95 % interval for the first variance, from fourth moments",
    "first_variance_high": "upper end of this interval; infinity if there is no upper end",
    "squared_error_per_row": "squared error after projection, which the sites measured on their own rows",
    "predicted_squared_error_per_row": "squared error that the eigenvalues predict",
    "influence_component_share": "largest share of a component's variance that one site holds",
    "influence_axis_degrees": "largest angle by which the first component turns without one site",
    "influence_subspace_degrees": "the same angle for the space of the first components",
    "influence_components": "number of these first components, at most ten",
    "captured_variance_share": "share of the pooled rows' variance in the components (simulations only)",
    "angle_to_pooled_max_degrees": "largest angle to scikit-learn's PCA (simulations only)",
    "angle_to_pooled_mean_degrees": "mean angle to scikit-learn's PCA (simulations only)",
}


def measurement_lines(model: FittedPCA) -> list[tuple[str, str]]:
    """Return names and texts of the lines of a summary; ContractError if the log lacks an entry that one needs."""
    numbers: Numbers = model.log.get("measured", {})
    texts = []
    for measurement in MEASUREMENTS:
        if measurement.numbers.keys() & numbers.keys():
            try:
                texts.append((measurement.label, measurement.text(numbers, model)))
            except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
                fault = f"does not say what '{measurement.label}' needs ({type(error).__name__}): no run wrote it"
                raise ContractError(f"the model's history {fault}") from None
    return texts


MEASUREMENTS = (
    define_line("certified angle", _angle_certificate_text, "certified_"),
    define_line("stand out of the noise", "{standing_out_components} components"),
    bound_line("angle bound", "angle_bound_degrees", "{bound} degrees (Davis and Kahan: the worst case)"),
    define_line("angle to exact", _angles_text("exact", ", by the server"), "angle_to_exact_"),
    define_line(
        "between sites",
        lambda numbers, _: f"{share_text(numbers['between_parties_variance_share'])} of the variance, left out",
        "between_parties_variance_share",
    ),
    define_line("compression", "{compression_ratio:.1f} times less than a full float64 covariance, on average"),
    bound_line("scatter error", "scatter_error_variance_share", "{bound} of the variance at most (spectral norm)"),
    define_line("tracked directions", "{tracked_directions}, without {truncated_variance_share:.2g} of the variance"),
    define_line("ranks on the way", "{smallest_rank} to {largest_rank}"),
    define_line("running model", "{running_model_rows} rows, revision {running_model_revision}"),
    define_line(
        "heterogeneity",
        "{heterogeneity_score:.2f} of 1 (means {heterogeneity_means:.2f}, covariances {heterogeneity_covariances:.2f}, "
        "spectra {heterogeneity_spectra:.2f}, variances {heterogeneity_variances:.2f})",
    ),
    define_line("divergences", _divergences_text, "divergence_"),
    define_line("chosen", _chosen_method_text, "forecast_"),
    define_line("spent", _cost_text("spent"), "spent_"),
    define_line("periods", "{periods_per_component} for each component, {options[variant]}"),
    define_line("iterations", "{iterations}, step-size {step_size:.3g}"),
    define_line("mixing rate", "{mixing_rate:.3f} of the sites' differences stay after an exchange ({options[graph]})"),
    define_line("consensus error", "{consensus_error_degrees:.2g} degrees at most from a site's estimate to the mean"),
    define_line("last direction", "a step of norm {last_direction_norm:.2g} at most"),
    define_line("mu", _mu_text, "mu", "held_out_rows"),
    define_line(
        "held-out error",
        "{held_out_squared_error_per_row:.6g} per row, local {local_held_out_squared_error_per_row:.6g}, "
        "global {global_held_out_squared_error_per_row:.6g}, {square_unit}",
    ),
    define_line(
        "objective",
        "{objective_per_row:.6g} per row, {square_unit}, after {objective_iterations} iterations ({options[solver]})",
    ),
    define_line("own from shared", "{own_from_shared_degrees:.2g} degrees (root mean square sine)"),
    define_line("missing values", _missing_values_text, "missing_share", "degrees_ahead"),
    define_line("privacy", _privacy_text, "epsilon", "delta", "honest_parties"),
    define_line("noise / sensitivity", _sums_text("noise_multiplier_"), "noise_multiplier_"),
    define_line("rows clipped to", _sums_text("clipping_norm_"), "clipping_norm_"),
    define_line("shells", "{shells} of distances from the centre, each with a sum of directions"),
    define_line("centre", "the mean direction of the rows from it is {mean_sign:.1g} of 1 long"),
    define_line("far off", "{rows_far_off:.2g} of the rows"),
    define_line("sites' sums", "differ by {unlike_parties:.2g} of their median, at most by {most_unlike_party:.2g}"),
    define_line("above the noise", _above_noise_text, "components_above_noise", "kept_features"),
    define_line("members", "{members} with {member_rows} rows; {members_here} took part in this run"),
    define_line("revision", _revision_text, "revision", "unsaved_changes"),
    define_line("joined", _members_text("joined"), "joined_members"),
    define_line("replaced", _members_text("replaced"), "replaced_members"),
    define_line("appended", _members_text("appended"), "appended_members"),
    define_line("unchanged", _members_text("unchanged"), "unchanged_members"),
    define_line("left", _members_text("left"), "left_members"),
    define_line("absent", _members_text("absent"), "absent_members"),
    bound_line("fixed point", "fixed_point_variance_share", "rounds off {bound} of the variance at most", digits=1),
    bound_line(
        "fixed point", "fixed_point_size_share", "rounds off {bound} of the largest size that a sum may have", digits=1
    ),
    define_line("secure aggregation", "pairwise masks, {pairwise_masked_parties} sites"),
    define_line("secure aggregation", "double masks, {double_masked_parties} of {expected_parties} sites"),
    define_line("left out", _left_out_text, "left_out_directions"),
    define_line("odd rows", _outlier_text, "rows_above_"),
    define_line(
        "first variance",
        "{first_variance_low:.3g} to {first_variance_high:.3g} (95 %, by fourth moments), {square_unit}",
    ),
    define_line(
        "squared error per row",
        "{squared_error_per_row:.6g} measured, {predicted_squared_error_per_row:.6g} predicted, {square_unit}",
    ),
    define_line("influence", _influence_text, "influence_"),
    define_line(
        "captured variance",
        lambda numbers, _: f"{share_text(numbers['captured_variance_share'])} of that of the pooled rows",
        "captured_variance_share",
    ),
    define_line("angle to pooled PCA", _angles_text("pooled"), "angle_to_pooled_"),
)
