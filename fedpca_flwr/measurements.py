"""What a run measured: the numbers of ``model.log["measured"]``, and the lines of text that a person reads.

Numbers are kept, texts are made of them where they are printed, and nothing is read back from a text. A name ends with
its unit: ``degrees``, ``rows``, ``share`` (0 to 1), ``bytes..._per_party``. ``docs/measurements.md`` is this table.
"""

from __future__ import annotations

from fedpca_flwr import measurement_texts as texts
from fedpca_flwr.fitted import FittedPCA
from fedpca_flwr.measurement import line

CLIPPED = ("centre", "variances", "products", "joint")  # DP-PCA's sums
SUMS = (*CLIPPED, "octaves", "nearer_octaves", "nearer_centre", "directions")


def lines(model: FittedPCA) -> list[tuple[str, str]]:
    """The measurements of a model, as names and texts."""
    numbers: texts.Numbers = model.log.get("measured", {})
    return [(one.line, one.text(numbers, model)) for one in MEASUREMENTS if one.numbers.keys() & numbers.keys()]


MEASUREMENTS = (
    line(
        "certified angle",
        texts.certificate,
        certified_angle_degrees="bound on the largest angle to the exact components; 90: none is known",
        certified_components="the bound is for so many of the first components; 0 where there is none",
    ),
    line(
        "stand out of the noise",
        "{standing_out_components} components",
        standing_out_components="of the components that the run was to find, those that stand out of the noise",
    ),
    line("angle bound", texts.bound, angle_bound_degrees="bound by Davis and Kahan, for the worst case; 90: none"),
    line(
        "angle to exact",
        "{angle_to_exact_max_degrees:.2g} max, {angle_to_exact_mean_degrees:.2g} mean (degrees, by the server)",
        angle_to_exact_max_degrees="largest angle to the exact components, which the server had too",
        angle_to_exact_mean_degrees="mean angle to them",
    ),
    line(
        "between parties",
        "{between_parties_variance_share:.2%} of the variance, left out",
        between_parties_variance_share="of the variance, what averaged covariances leave out",
    ),
    line(
        "compression",
        "{compression_ratio:.1f} times less than a full float64 covariance, on average",
        compression_ratio="bytes of a full float64 covariance over those that a party sent, on average",
    ),
    line(
        "scatter error",
        texts.scatter_error,
        scatter_error_variance_share="bound on the spectral norm of what encoding got wrong, of the variance",
    ),
    line(
        "tracked directions",
        "{tracked_directions}, without {truncated_variance_share:.2g} of the variance",
        tracked_directions="of each party",
        truncated_variance_share="of the variance, what lies outside them",
    ),
    line(
        "ranks on the way",
        "{smallest_rank} to {largest_rank}",
        smallest_rank="the least that any party's stream ended with",
        largest_rank="the most that any party's stream ended with",
    ),
    line(
        "running model",
        "{running_model_rows} rows, revision {running_model_revision}",
        running_model_rows="rows merged so far",
        running_model_revision="how often rows were merged",
    ),
    line(
        "heterogeneity",
        "{heterogeneity_score:.2f} (means {heterogeneity_means:.2f}, covariances {heterogeneity_covariances:.2f}, "
        "spectra {heterogeneity_spectra:.2f}, variances {heterogeneity_variances:.2f})",
        heterogeneity_score="how different the parties are, 0 (alike) to 1: the mean of the next four, each at most 1",
        heterogeneity_means="share of the variance that lies between the parties",
        heterogeneity_covariances="distance to the average covariance, relative to it",
        heterogeneity_spectra="Jensen-Shannon divergence of the normalised spectra, base 2",
        heterogeneity_variances="distance of the total variances to their average, relative to it",
    ),
    line(
        "chosen",
        texts.chosen,
        forecast_rounds='of the method that `log["chosen"]` names',
        forecast_bytes_up_per_party="of it, the mean over the parties",
        forecast_bytes_down_per_party="of it, the mean over the parties",
    ),
    line(
        "spent",
        texts.spent,
        spent_rounds="after the survey and before the last round",
        spent_bytes_up_per_party="in these, the mean over the parties",
        spent_bytes_down_per_party="in these, the mean over the parties",
    ),
    line(
        "periods",
        "{periods_per_component} for each component, {options[variant]}",
        periods_per_component="rounds of merging for each component",
    ),
    line(
        "iterations",
        "{iterations}, step-size {step_size:.3g}",
        iterations="steps of each party",
        step_size="of each, against the pooled scatter with trace one",
    ),
    line(
        "mixing rate",
        "{mixing_rate:.3f} ({options[graph]})",
        mixing_rate="what an exchange leaves of disagreement, 0 to 1",
    ),
    line(
        "consensus error",
        "{consensus_error_degrees:.2g} degrees at most, from a party's estimate to the mean of all",
        consensus_error_degrees="largest angle from any party's estimate to the mean of all",
    ),
    line("last direction", "{last_direction_norm:.2g} at most", last_direction_norm="of any party's last step"),
    line(
        "mu",
        texts.mu,
        mu="how much parties share; 0: local PCA, infinity: the PCA of all rows",
        held_out_rows="rows on which mu was chosen",
    ),
    line(
        "held-out error",
        "{held_out_squared_error_per_row:.6g} per row, local {local_held_out_squared_error_per_row:.6g}, "
        "global {global_held_out_squared_error_per_row:.6g}",
        held_out_squared_error_per_row="of the rows held out, by each party's own components",
        local_held_out_squared_error_per_row="of the same, by each party's local PCA",
        global_held_out_squared_error_per_row="of the same, by the PCA of all rows",
    ),
    line(
        "objective",
        "{objective_per_row:.6g} per row after {objective_iterations} iterations ({options[solver]})",
        objective_per_row="what the parties' own and the shared components minimise",
        objective_iterations="rounds spent on it",
    ),
    line(
        "own from shared",
        "{own_from_shared_degrees:.2g} degrees (root mean square sine)",
        own_from_shared_degrees="from the parties' own components to the shared ones: root mean square sine",
    ),
    line("missing values", texts.missing, missing_share="of all", degrees_ahead="to go, an estimate, no bound"),
    line("gamma", "{gamma:.6g}", gamma="of the kernel"),
    line(
        "privacy",
        texts.privacy,
        epsilon="of the whole run, for one row",
        delta="of the whole run, for one row",
        honest_parties="parties that must add their share of the noise (`trust='distributed'`)",
    ),
    line(
        "noise / sensitivity",
        texts.by_sum("noise_multiplier_"),
        **{f"noise_multiplier_{name}": f"of the sum `{name}`, over its sensitivity" for name in SUMS},
    ),
    line(
        "rows clipped to",
        texts.by_sum("clipping_norm_"),
        **{f"clipping_norm_{name}": f"of a row in the sum `{name}`, in the unit of the data" for name in CLIPPED},
    ),
    line("above the noise", texts.above_noise, components_above_noise="that stand out", kept_features="that do so too"),
    line(
        "members",
        "{members} with {member_rows} rows; {members_here} took part in this run",
        members="of the federation",
        member_rows="of all members",
        members_here="that took part in this run",
    ),
    line("revision", texts.revision, revision="of the federation", unsaved_changes="operations since it was saved"),
    line("joined", texts.members("joined"), joined_members="that are new in this run"),
    line("replaced", texts.members("replaced"), replaced_members="whose rows are others than before"),
    line("appended", texts.members("appended"), appended_members="that brought more rows"),
    line("unchanged", texts.members("unchanged"), unchanged_members="whose rows are those of before"),
    line("left", texts.members("left"), left_members="whose rows are not counted any more"),
    line("absent", texts.members("absent"), absent_members="that took no part, and whose rows count"),
    line(
        "fixed point",
        texts.rounded_off("fixed_point_variance_share", "the variance at most"),
        fixed_point_variance_share="of the variance, bound on what fixed point rounds off (rows)",
    ),
    line(
        "fixed point",
        texts.rounded_off("fixed_point_size_share", "the largest size that a sum may have"),
        fixed_point_size_share="of the largest size that a sum may have, what fixed point rounds off (columns)",
    ),
    line(
        "secure aggregation",
        "pairwise masks, {pairwise_masked_parties} parties",
        pairwise_masked_parties="parties in every sum",
    ),
    line(
        "secure aggregation",
        "double masks, {double_masked_parties} of {expected_parties} parties",
        double_masked_parties="parties in the sum",
        expected_parties="parties that the run began with",
    ),
    line(
        "left out",
        texts.left_out,
        left_out_directions="over how many directions the variance is spread that the components leave out",
    ),
    line(
        "odd rows",
        texts.odd_rows,
        rows_above_t_squared_limit="beyond the limit of T squared, which 1 % of new normal rows exceed; more of others",
        rows_above_spe_limit="beyond that of SPE, likewise; of a party with few such rows none are told",
    ),
    line(
        "first variance",
        "{first_variance_low:.6g} to {first_variance_high:.6g} (95 %, by fourth moments)",
        first_variance_low="lower end of its interval of 95 %, by fourth moments",
        first_variance_high="upper end; infinity where there is none",
    ),
    line(
        "squared error per row",
        "{squared_error_per_row:.6g} measured, {predicted_squared_error_per_row:.6g} predicted",
        squared_error_per_row="of the parties' own rows after projection, as they measured it",
        predicted_squared_error_per_row="the same, as the eigenvalues say it",
    ),
    line(
        "influence",
        texts.influence,
        influence_component_share="of a component's variance, the most that one party holds",
        influence_axis_degrees="by which the first component turns at most without one party",
        influence_subspace_degrees="the same of the space of the first components: the largest principal angle",
        influence_components="of how many: ten at most, and such as float64 resolves",
    ),
    line(
        "captured variance",
        "{captured_variance_share:.4%} of that of the pooled rows",
        captured_variance_share="of the pooled rows' variance, what the components hold (simulations only)",
    ),
    line(
        "angle to pooled PCA",
        "{angle_to_pooled_max_degrees:.2g} max, {angle_to_pooled_mean_degrees:.2g} mean (degrees)",
        angle_to_pooled_max_degrees="largest angle to scikit-learn's PCA of the pooled rows (simulations only)",
        angle_to_pooled_mean_degrees="mean angle to it",
    ),
)
