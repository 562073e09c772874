"""Texts of measurements that are more than a template: each takes the numbers, and the model for what is no number."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from fedpca_flwr.fitted import FittedPCA
from fedpca_flwr.maths.certificate import at_most, certified
from fedpca_flwr.method_text import text_of

Numbers = Mapping[str, float]
Text = Callable[[Numbers, FittedPCA], str]


def filled(template: str) -> Text:
    """A text with numbers in it, and the run's options."""
    return lambda numbers, model: template.format(**numbers, options=model.log["options"])


def certificate(numbers: Numbers, model: FittedPCA) -> str:
    first = int(numbers["certified_components"])
    every = first >= model.n_components_
    return certified(numbers["certified_angle_degrees"], first=None if every else first)


def bound(numbers: Numbers, model: FittedPCA) -> str:
    return f"{at_most(numbers['angle_bound_degrees'])} degrees (Davis and Kahan: the worst case)"


def scatter_error(numbers: Numbers, model: FittedPCA) -> str:
    return f"{at_most(numbers['scatter_error_variance_share'])} of the variance at most (spectral norm)"


def missing(numbers: Numbers, model: FittedPCA) -> str:
    share, ahead = numbers["missing_share"], numbers["degrees_ahead"]
    return f"{share:.1%}; an estimated {ahead:.2g} degrees to go (no bound)"


def rounded_off(name: str, whole: str) -> Text:
    """What fixed point costs."""
    return lambda numbers, model: f"rounds off {at_most(numbers[name], digits=1)} of {whole}"


def chosen(numbers: Numbers, model: FittedPCA) -> str:
    way = model.log["chosen"]
    return f"{text_of(way['method'], way['options'])}: {_cost('forecast', numbers)}"


def spent(numbers: Numbers, model: FittedPCA) -> str:
    return _cost("spent", numbers)


def _cost(which: str, numbers: Numbers) -> str:
    rounds = numbers[f"{which}_rounds"]
    up, down = (numbers[f"{which}_bytes_{way}_per_party"] / 1e6 for way in ("up", "down"))
    return f"{rounds} round{'s' * (rounds != 1)}, {up:.3g} MB up and {down:.3g} MB down per party"


def mu(numbers: Numbers, model: FittedPCA) -> str:
    found, held = numbers["mu"], numbers.get("held_out_rows")
    name = {0.0: "0 (local PCA)", math.inf: "infinity (PCA of all rows)"}.get(found, f"{found:g}")
    return name if held is None else f"{name}, chosen on {held} rows held out"


def privacy(numbers: Numbers, model: FittedPCA) -> str:
    options, honest = model.log["options"], numbers.get("honest_parties")
    trust = options["trust"] if honest is None else f"{options['trust']}, {honest} honest parties"
    return (
        f"epsilon {numbers['epsilon']:g}, delta {numbers['delta']:g}, {options['relation']}, of one row; trust: {trust}"
    )


def by_sum(prefix: str) -> Text:
    """The numbers of DP-PCA's sums."""
    return lambda numbers, model: ", ".join(
        f"{value:.6g} ({name.removeprefix(prefix)})" for name, value in numbers.items() if name.startswith(prefix)
    )


def above_noise(numbers: Numbers, model: FittedPCA) -> str:
    above, kept = numbers["components_above_noise"], numbers["kept_features"]
    return f"{above} of {model.n_components_} components; {kept} of {model.n_features_in_} features kept"


def left_out(numbers: Numbers, model: FittedPCA) -> str:
    share = 1 - float(model.explained_variance_ratio_.sum())
    directions = f"{numbers['left_out_directions']:.0f}"
    return f"{share:.4%} of the variance, spread over some {directions} direction{'' if directions == '1' else 's'}"


def odd_rows(numbers: Numbers, model: FittedPCA) -> str:
    t_squared, spe = numbers["rows_above_t_squared_limit"], numbers["rows_above_spe_limit"]
    told = f"{t_squared} beyond the limit of T2, {spe} beyond that of SPE (99 % of normal rows are not)"
    parties = [
        (max(one["above_t_squared_limit"], one["above_spe_limit"]) / one["rows"], one["party"])
        for one in model.log.get("outliers", [])
    ]
    share, party = max(parties, default=(0.0, ""))
    return f"{told}; most at {party}: {share:.1%} of its rows" if share else told


def influence(numbers: Numbers, model: FittedPCA) -> str:
    share = f"one party holds {numbers['influence_component_share']:.1%} of a component at most"
    if "influence_axis_degrees" not in numbers:  # a model of an earlier version, whose angle was another one
        return share
    axis, space = (at_most(numbers[f"influence_{name}_degrees"]) for name in ("axis", "subspace"))
    first = int(numbers["influence_components"])
    whole = f"all {first}" if first == model.n_components_ else f"the first {first}"
    together = f", the space of {whole} by {space}" if first > 1 else ""
    return f"{share}; without one, the first turns by up to {axis} degrees{together}"


def revision(numbers: Numbers, model: FittedPCA) -> str:
    return f"{numbers['revision']}{', and changes that are not saved' * bool(numbers.get('unsaved_changes'))}"


def members(word: str) -> Text:
    """The names of the members of a federation of which something is true."""
    return lambda numbers, model: ", ".join(model.log["members"][word])
