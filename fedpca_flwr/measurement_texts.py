"""Texts of measurements that are more than a template: each takes the numbers, and the model for what is no number."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from fedpca_flwr.maths.certificate import at_most, certified
from fedpca_flwr.method_text import written

if TYPE_CHECKING:
    from fedpca_flwr.model import PCAModel

Numbers = Mapping[str, float]
Text = Callable[[Numbers, "PCAModel"], str]


def filled(template: str) -> Text:
    """A text with numbers in it, and the run's options."""
    return lambda told, model: template.format(**told, options=model.log["options"])


def certificate(told: Numbers, model: PCAModel) -> str:
    first = int(told["certified_components"])
    every = first >= model.n_components_
    multiplicity = told.get("presumed_multiplicity")
    return certified(told["certified_angle_degrees"], multiplicity=multiplicity, first=None if every else first)


def bound(told: Numbers, model: PCAModel) -> str:
    return f"{at_most(told['angle_bound_degrees'])} degrees (Davis and Kahan: the worst case)"


def scatter_error(told: Numbers, model: PCAModel) -> str:
    return f"{at_most(told['scatter_error_variance_share'])} of the variance at most (spectral norm)"


def rounded_off(name: str, whole: str) -> Text:
    """What fixed point costs."""
    return lambda told, model: f"rounds off {at_most(told[name], digits=1)} of {whole}"


def chosen(told: Numbers, model: PCAModel) -> str:
    way, angle = model.log["chosen"], told["forecast_angle_degrees"]
    about = f", about {angle:.1g} degrees" if angle else ""
    return f"{written(way['method'], way['options'])}: {_cost('forecast', told)}{about}"


def spent(told: Numbers, model: PCAModel) -> str:
    return _cost("spent", told)


def _cost(which: str, told: Numbers) -> str:
    rounds = told[f"{which}_rounds"]
    up, down = (told[f"{which}_bytes_{way}_per_party"] / 1e6 for way in ("up", "down"))
    return f"{rounds} round{'s' * (rounds != 1)}, {up:.3g} MB up and {down:.3g} MB down per party"


def mu(told: Numbers, model: PCAModel) -> str:
    found, held = told["mu"], told.get("held_out_rows")
    name = {0.0: "0 (local PCA)", math.inf: "infinity (PCA of all rows)"}.get(found, f"{found:g}")
    return name if held is None else f"{name}, chosen on {held} rows held out"


def privacy(told: Numbers, model: PCAModel) -> str:
    options, honest = model.log["options"], told.get("honest_parties")
    trust = options["trust"] if honest is None else f"{options['trust']}, {honest} honest parties"
    return f"epsilon {told['epsilon']:g}, delta {told['delta']:g}, {options['relation']}, of one row; trust: {trust}"


def by_sum(prefix: str) -> Text:
    """The numbers of DP-PCA's sums."""
    return lambda told, model: ", ".join(
        f"{value:.6g} ({name.removeprefix(prefix)})" for name, value in told.items() if name.startswith(prefix)
    )


def above_noise(told: Numbers, model: PCAModel) -> str:
    above, kept = told["components_above_noise"], told["kept_features"]
    return f"{above} of {model.n_components_} components; {kept} of {model.n_features_in_} features kept"


def revision(told: Numbers, model: PCAModel) -> str:
    return f"{told['revision']}{', and changes that are not saved' * bool(told.get('unsaved_changes'))}"


def members(word: str) -> Text:
    """The names of the members of a federation of which something is true."""
    return lambda told, model: ", ".join(model.log["members"][word])
